"""What the solver chooses and what it refuses, on the shipped matrix."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from gpuenv.errors import UnsupportedCombinationError
from gpuenv.matrix.gpus import find_gpu
from gpuenv.matrix.load import load_matrix
from gpuenv.matrix.resolve import resolve
from gpuenv.spec import Availability, EnvironmentSpec, HostGpus, MatrixRequest, WheelKey
from gpuenv.versions import (
    CudaVersion,
    CudnnVersion,
    DriverRelease,
    NcclVersion,
    PythonVersion,
    TorchVersion,
)

if TYPE_CHECKING:
    from gpuenv.matrix.model import Matrix


@cache
def shipped() -> Matrix:
    return load_matrix()


def request_of(*gpus: str, **flags: Any) -> MatrixRequest:
    kinds: dict[str, Any] = {
        "torch": TorchVersion,
        "cuda": CudaVersion,
        "cudnn": CudnnVersion,
        "nccl": NcclVersion,
        "python": PythonVersion,
        "driver": DriverRelease,
    }
    values = {
        name: kinds[name].parse(value) if name in kinds and value not in {"auto", "cpu"} else value
        for name, value in flags.items()
    }
    return MatrixRequest(gpus=tuple(find_gpu(shipped(), gpu) for gpu in gpus), **values)


def answer(*gpus: str, **flags: Any) -> EnvironmentSpec:
    return resolve(shipped(), request_of(*gpus, **flags))


def label(spec: EnvironmentSpec) -> str:
    return f"{spec.torch}+{spec.torch_variant}"


def refusal(*gpus: str, **flags: Any) -> UnsupportedCombinationError:
    with pytest.raises(UnsupportedCombinationError) as caught:
        answer(*gpus, **flags)
    return caught.value


def nearest(error: UnsupportedCombinationError) -> list[str]:
    return [f"{row['torch']}+{row['torch_variant']}" for row in error.data["nearest"]]


@pytest.mark.parametrize(
    ("gpus", "flags", "expected"),
    [
        ((), {"cuda": "12.8"}, "2.11.0+cu128"),
        ((), {"cuda": "12"}, "2.14.1+cu126"),
        ((), {"torch": "2.9"}, "2.9.1+cpu"),
        ((), {"torch": "2.9.1", "cuda": "12.8"}, "2.9.1+cu128"),
        ((), {"cuda": "11.8"}, "2.7.1+cu118"),
        ((), {"cudnn": "8"}, "2.3.1+cu121"),
        ((), {"driver": "580.65.06"}, "2.15.0+cu132"),
        ((), {"driver": "535.104.05"}, "2.14.1+cu126"),
        ((), {"driver": "470.57.02"}, "2.7.1+cu118"),
        (("H100",), {}, "2.15.0+cu132"),
        (("V100",), {}, "2.14.1+cu126"),
        (("V100", "RTX 5090"), {}, "2.10.0+cu128"),
        (("K80",), {}, "2.7.1+cu118"),
        (("H100",), {"torch": "2.0"}, "2.0.1+cu118"),
        (("RTX 5090",), {"driver": "570.124.06"}, "2.13.0+cu129"),
        (("GH200",), {"arch": "aarch64"}, "2.15.0+cu132"),
        (("Jetson AGX Orin",), {"arch": "aarch64"}, "2.15.0+cu132"),
        ((), {"cuda": "13.0", "python": "3.14"}, "2.14.1+cu130"),
    ],
)
def test_the_newest_row_that_fits_is_chosen(
    gpus: tuple[str, ...], flags: dict[str, str], expected: str
) -> None:
    assert label(answer(*gpus, **flags)) == expected


def test_torch_2_8_on_cuda_11_8_is_refused_with_the_two_ways_out_first() -> None:
    error = refusal(torch="2.8", cuda="11.8")
    assert nearest(error)[:2] == ["2.7.1+cu118", "2.8.0+cu126"]
    assert "ended with torch 2.7.1" in error.why


def test_nothing_asked_and_no_gpu_found_means_cpu_said_aloud() -> None:
    spec = resolve(shipped(), MatrixRequest(), host=HostGpus(found_via="no NVIDIA driver"))
    assert spec.torch_variant == "cpu"
    assert "no NVIDIA driver" in spec.notes[0]
    assert "choosing cpu" in spec.notes[0]


def test_auto_takes_the_gpus_and_the_driver_of_the_host() -> None:
    host = HostGpus(
        driver_release=DriverRelease.parse("550.54.15"),
        gpus=(find_gpu(shipped(), "V100"),),
        found_via="nvml",
    )
    assert label(resolve(shipped(), MatrixRequest(), host=host)) == "2.14.1+cu126"
    assert label(resolve(shipped(), request_of("RTX 5090"), host=host)) == "2.15.0+cu132"


def test_a_wheel_at_hand_wins_and_brings_its_python() -> None:
    key = WheelKey(
        torch=TorchVersion.parse("2.15.0"),
        variant="cpu",
        python=PythonVersion.parse("3.13"),
        arch="x86_64",
    )
    spec = resolve(shipped(), request_of(cuda="cpu"), Availability(wheelhouse=frozenset({key})))
    assert (spec.source, str(spec.python), spec.base_image) == (
        "wheelhouse",
        "3.13",
        "debian:trixie",
    )


def test_a_source_that_does_not_answer_has_none_of_its_rows() -> None:
    matrix = load_matrix()
    wheel = WheelKey(
        torch=TorchVersion.parse("2.13.0"),
        variant="cpu",
        python=PythonVersion.parse("3.11"),
        arch="x86_64",
    )
    unreachable = Availability(
        wheelhouse=frozenset({wheel}), unreachable=(("pytorch", "no route to host"),)
    )
    row = resolve(matrix, MatrixRequest(cuda="cpu"), unreachable)
    assert (str(row.torch), row.source) == ("2.13.0", "wheelhouse")
    with pytest.raises(UnsupportedCombinationError) as refused:
        resolve(matrix, MatrixRequest(cuda="cpu", torch=TorchVersion.parse("2.14")), unreachable)
    assert "no route to host" in refused.value.why
