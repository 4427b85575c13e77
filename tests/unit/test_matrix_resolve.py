"""What the solver chooses and what it refuses, on the shipped matrix."""

from __future__ import annotations

import dataclasses
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
    assert spec.notes == (
        "no GPU found, so choosing cpu: no NVIDIA driver; --cuda or --gpu asks for CUDA",
    )


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
        "debian:trixie-slim",
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


# Uncertain rows


def test_a_free_choice_never_takes_an_uncertain_row() -> None:
    assert label(answer(cuda="13.0")) == "2.14.1+cu130"
    assert label(answer(torch="2.15", driver="580.65.06")) == "2.15.0+cu132"
    assert refusal(cuda="13.4").data["rules"] == ["confidence"]


def test_every_derived_row_with_cuda_warns_and_no_cpu_row_does() -> None:
    matrix = load_matrix()
    for row in matrix.rows:
        if row.confidence != "derived" or row.arch != "x86_64":
            continue
        spec = answer(torch=str(row.torch), cuda=str(row.cuda or "cpu"))
        if label(spec) == row.label:
            said = [text for text in spec.warnings if "derived" in text]
            assert bool(said) is (row.cuda is not None), row.label


def test_only_a_verified_row_with_cuda_comes_without_a_warning() -> None:
    assert answer(torch="2.9", cuda="12.8").warnings == ()
    spec = answer(torch="2.9", cuda="12.6")
    assert spec.confidence == "derived"
    assert "not read in the wheel itself but derived (PT-MATRIX-2.9," in spec.warnings[0]


def test_an_uncertain_row_named_exactly_comes_with_a_warning() -> None:
    spec = answer(torch="2.15", cuda="13.4")
    assert (label(spec), spec.confidence) == ("2.15.0+cu134", "uncertain")
    assert "2.15.0+cu134 is uncertain" in spec.warnings[0]


def test_a_doubt_about_one_cpu_is_none_about_the_other() -> None:
    assert answer(torch="2.8", cuda="12.9").confidence == "derived"
    spec = answer("GH200", torch="2.8", cuda="12.9", arch="aarch64")
    assert spec.confidence == "uncertain"
    assert spec.arch_list == ()
    assert any("shows only when it runs" in warning for warning in spec.warnings)


# Drivers and PTX


@pytest.mark.parametrize(
    ("driver", "expected"),
    [
        ("580.65.06", "2.15.0+cu132"),
        ("580.65.05", "2.14.1+cu126"),
        ("580", "2.15.0+cu132"),
        ("579.99", "2.14.1+cu126"),
        ("525.60.13", "2.14.1+cu126"),
        ("525.60.12", "2.7.1+cu118"),
        ("525", "2.14.1+cu126"),
        ("450.80.02", "2.7.1+cu118"),
    ],
)
def test_the_driver_s_floor_is_exact_and_a_bare_branch_stands_for_any_of_it(
    driver: str, expected: str
) -> None:
    assert label(answer(driver=driver)) == expected


def test_a_bare_branch_is_taken_on_trust_and_said() -> None:
    spec = answer(driver="580")
    assert spec.warnings == (
        "2.15.0+cu132 needs 580.65.06 or newer; driver 580 was taken to be one",
    )


def test_a_driver_older_than_all_is_refused_with_the_oldest_that_would_do() -> None:
    error = refusal(driver="440.33.01")
    assert "CUDA 11 needs 450.80.02 or newer" in error.why
    assert error.data["rules"] == ["driver"]
    assert error.fix.startswith("update the driver to 450.80.02 or newer")
    error = refusal(driver="470.57.02", cuda="12.8")
    assert error.fix.startswith("update the driver to 525.60.13 or newer")
    assert nearest(error)[0] == "2.7.1+cu118"


def ptx_matrix() -> Matrix:
    """Return a matrix of one row that has PTX and no cubin for a GPU of 12.0."""
    row = next(row for row in shipped().rows if (row.label, row.arch) == ("2.9.1+cu128", "x86_64"))
    row = dataclasses.replace(row, arch_list=("sm_80", "sm_90", "compute_90"))
    return dataclasses.replace(shipped(), rows=(row,))


def test_ptx_serves_a_newer_gpu_and_needs_the_driver_of_its_toolkit() -> None:
    spec = resolve(ptx_matrix(), request_of("RTX 5090"))
    assert str(spec.min_driver) == "570.124.06"
    assert "its PTX is compiled on first use" in spec.warnings[0]
    assert resolve(ptx_matrix(), request_of("H100")).warnings == ()
    with pytest.raises(UnsupportedCombinationError, match="driver 550") as caught:
        resolve(ptx_matrix(), request_of("RTX 5090", driver="550.54.15"))
    assert "PTX needs the driver of its own toolkit, 570.124.06" in caught.value.why
    assert label(resolve(ptx_matrix(), request_of("H100", driver="550.54.15"))) == "2.9.1+cu128"


def test_a_gpu_newer_than_the_toolkit_gets_a_word_about_compiling() -> None:
    spec = answer("L4", torch="2.0", cuda="11.7")
    assert "needs CUDA 11.8" in spec.warnings[0]
    newer = answer("L4", torch="2.0", cuda="11.8")
    assert not any("needs CUDA 11.8" in warning for warning in newer.warnings)


# cuDNN and NCCL


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"nccl": "2.27"}, "2.10.0+cu128"),
        ({"nccl": "2.27.3"}, "2.8.0+cu128"),
        ({"cudnn": "9.10"}, "2.14.1+cu126"),
        ({"cudnn": "8.9"}, "2.3.1+cu121"),
        ({"torch": "2.10", "nccl": "2.28"}, "2.10.0+cu130"),
    ],
)
def test_a_library_s_prefix_is_a_constraint(flags: dict[str, str], expected: str) -> None:
    spec = answer(**flags)
    assert label(spec) == expected
    assert spec.overrides == ()


def test_an_exact_newer_library_of_the_same_major_is_an_override_said_aloud() -> None:
    spec = answer(torch="2.9", nccl="2.28.9")
    assert label(spec) == "2.9.1+cu128"
    assert spec.overrides == (("nvidia-nccl-cu12", "2.28.9"),)
    assert str(spec.nccl) == "2.28.9"
    assert "replaces 2.27.5" in spec.warnings[0]
    spec = answer(torch="2.15", cudnn="9.27.0.1")
    assert spec.overrides == (("nvidia-cudnn-cu13", "9.27.0.1"),)


def test_a_row_that_carries_the_version_itself_goes_before_an_override() -> None:
    spec = answer(torch="2.10", nccl="2.28.9")
    assert (label(spec), spec.overrides) == ("2.10.0+cu130", ())


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"torch": "2.9", "nccl": "2.28"}, "carries NCCL 2.27.5, not 2.28"),
        ({"torch": "2.9", "nccl": "2.26.2"}, "an older one may lack what torch uses"),
        ({"torch": "2.9", "nccl": "3.0.1"}, "not 3.0.1"),
        ({"torch": "2.3", "cudnn": "9.1.0.70"}, "not 9.1.0.70"),
        ({"torch": "2.2", "cuda": "11.8", "nccl": "2.20.5"}, "inside the wheel"),
        ({"torch": "2.1", "cuda": "11.8", "nccl": "2.18"}, "a version that is not known"),
        ({"cuda": "cpu", "torch": "2.9", "cudnn": "9"}, "built without CUDA"),
    ],
)
def test_a_library_that_cannot_be_had_is_refused(flags: dict[str, str], words: str) -> None:
    assert words in refusal(**flags).why


def test_no_override_takes_away_the_kernels_of_an_old_gpu() -> None:
    assert answer("T4", torch="2.14", cuda="12.6", cudnn="9.20.0.48").overrides
    assert answer("V100", torch="2.14", cuda="12.6", cudnn="9.11.0.1").overrides
    error = refusal("V100", torch="2.14", cuda="12.6", cudnn="9.20.0.48")
    assert "from 9.15.1 on it has no kernels below 7.5" in error.why


# Python, base and nvcc


@pytest.mark.parametrize(
    ("flags", "python", "base", "python_source"),
    [
        ({"torch": "2.9", "cuda": "12.8"}, "3.12", "ubuntu:24.04", "base"),
        ({"torch": "2.1", "cuda": "12.1"}, "3.11", "debian:bookworm-slim", "base"),
        ({"torch": "2.9", "cuda": "12.8", "python": "3.13"}, "3.13", "debian:trixie-slim", "base"),
        (
            {"torch": "2.9", "cuda": "12.8", "python": "3.14"},
            "3.14",
            "debian:bookworm-slim",
            "managed",
        ),
        ({"torch": "2.9", "cuda": "12.8", "python": "3"}, "3.12", "ubuntu:24.04", "base"),
        (
            {"torch": "2.9", "cuda": "12.8", "flavor": "devel"},
            *("3.12", "nvidia/cuda:12.8.1-devel-ubuntu24.04", "base"),
        ),
        (
            {"torch": "2.6", "cuda": "12.4", "flavor": "devel"},
            *("3.10", "nvidia/cuda:12.4.1-devel-ubuntu22.04", "base"),
        ),
        (
            {"torch": "2.9", "cuda": "12.8", "flavor": "devel", "python": "3.13"},
            *("3.13", "nvidia/cuda:12.8.1-devel-ubuntu24.04", "managed"),
        ),
        ({"torch": "2.9", "cuda": "13.0", "flavor": "devel"}, "3.12", "ubuntu:24.04", "base"),
        ({"cuda": "cpu", "flavor": "devel"}, "3.12", "ubuntu:24.04", "base"),
    ],
)
def test_python_and_base_go_together(
    flags: dict[str, str], python: str, base: str, python_source: str
) -> None:
    spec = answer(**flags)
    assert (str(spec.python), spec.base_image) == (python, base)
    assert spec.python_source == python_source


def test_a_base_at_hand_decides_for_its_python_unless_one_was_named() -> None:
    bases = frozenset({"debian:bookworm-slim"})
    request = request_of(torch="2.9", cuda="12.8")
    spec = resolve(shipped(), request, local_bases=bases)
    assert (str(spec.python), spec.base_image) == ("3.11", "debian:bookworm-slim")
    request = request_of(torch="2.9", cuda="12.8", python="3.12")
    assert resolve(shipped(), request, local_bases=bases).base_image == "ubuntu:24.04"


def test_an_imported_base_is_called_by_its_own_name() -> None:
    bases = frozenset({"localhost/gpuenv/base:bookworm"})
    request = request_of(torch="2.9", cuda="12.8")
    spec = resolve(shipped(), request, local_bases=bases)
    assert (str(spec.python), spec.base_image) == ("3.11", "localhost/gpuenv/base:bookworm")
    both = bases | {"debian:bookworm-slim"}
    assert resolve(shipped(), request, local_bases=both).base_image == "debian:bookworm-slim"


def test_nvcc_comes_from_wheels_of_the_same_toolkit_from_cuda_13_on() -> None:
    spec = answer(torch="2.15", cuda="13.2", flavor="devel")
    assert "nvidia-cuda-nvcc==13.2.86.*" in spec.devel_packages
    assert answer(torch="2.15", cuda="13.2").devel_packages == ()
    assert answer(torch="2.9", cuda="12.8", flavor="devel").devel_packages == ()
    unknown_patch = answer(torch="2.10", cuda="13.0", flavor="devel")
    assert unknown_patch.toolkit is None
    assert "nvidia-cuda-nvcc==13.0.88.*" in unknown_patch.devel_packages
    assert any("nvcc of 13.0.3 is installed" in it for it in unknown_patch.warnings)


# Sources


def wheel(torch: str, variant: str, python: str) -> WheelKey:
    return WheelKey(
        torch=TorchVersion.parse(torch),
        variant=variant,
        python=PythonVersion.parse(python),
        arch="x86_64",
    )


def test_pypi_is_asked_for_its_default_and_the_pytorch_index_for_the_rest() -> None:
    assert answer(torch="2.9", cuda="12.8").source == "pypi"
    assert answer(torch="2.9", cuda="12.6").source == "pytorch"
    assert answer(cuda="cpu").source == "pytorch"
    assert answer(torch="2.9", cuda="cpu", arch="aarch64").source == "pypi"
    assert answer(torch="2.9", cuda="12.8", arch="aarch64").source == "pytorch"


def test_what_pypi_lacks_is_taken_from_the_pytorch_index() -> None:
    missing = ((wheel("2.9.1", "cu128", "3.12"), "pypi", "404"),)
    spec = resolve(shipped(), request_of(torch="2.9.1", cuda="12.8"), Availability(missing=missing))
    assert (spec.source, str(spec.python)) == ("pytorch", "3.12")


def test_a_row_that_no_source_has_makes_room_for_the_next() -> None:
    gone = [wheel("2.15.0", "cu132", f"3.{minor}") for minor in range(11, 16)]
    missing = tuple((key, source, "404") for key in gone for source in ("pypi", "pytorch"))
    availability = Availability(missing=missing)  # type: ignore[arg-type]
    assert label(resolve(shipped(), request_of("H100"), availability)) == "2.14.1+cu130"
    with pytest.raises(UnsupportedCombinationError) as caught:
        resolve(shipped(), request_of("H100", torch="2.15"), availability)
    assert "2.15.0+cu132 cannot be had (pypi: 404; pytorch: 404)" in caught.value.why


def test_offline_only_what_lies_in_the_directories_counts() -> None:
    availability = Availability(
        wheelhouse=frozenset({wheel("2.13.0", "cpu", "3.11")}), only_wheelhouse=True
    )
    spec = resolve(shipped(), request_of(cuda="cpu"), availability)
    assert (label(spec), str(spec.python), spec.source) == ("2.13.0+cpu", "3.11", "wheelhouse")
    with pytest.raises(UnsupportedCombinationError, match=r"Python 3\.12") as caught:
        resolve(shipped(), request_of(cuda="cpu", python="3.12", torch="2.13"), availability)
    assert "no wheel in the directories given" in caught.value.why


# Refusals


@pytest.mark.parametrize(
    ("gpus", "flags", "first", "words"),
    [
        ((), {"torch": "2.99"}, "2.15.0+cpu", "no 2.99 among them"),
        ((), {"torch": "3.0", "cuda": "13.2"}, "2.15.0+cu132", "no 3.0 among them"),
        ((), {"torch": "1.13", "cuda": "11.7"}, "2.0.1+cu117", "no 1.13 among them"),
        ((), {"cuda": "12.7"}, "2.14.1+cu126", "ever built for this CUDA version"),
        ((), {"cuda": "10.2"}, "2.0.1+cu117", "no wheel for x86_64 was built for CUDA 10.2"),
        ((), {"torch": "2.14", "cuda": "12.8"}, "2.14.1+cu126", "ended with torch 2.11.0"),
        ((), {"torch": "2.4", "cudnn": "8"}, "2.3.1+cu121", "cuDNN 9 with 2.4.0"),
        ((), {"torch": "2.1", "cuda": "12.1", "python": "3.13"}, "2.1.2+cu121", "begin with"),
        ((), {"torch": "2.10.1", "cuda": "12.8"}, "2.10.0+cu128", "never released"),
        (("RTX 5090",), {"torch": "2.6"}, "2.7.1+cu128", "no code newer than sm_90"),
        (("V100",), {"torch": "2.15"}, "2.14.1+cu126", "no code older than sm_75"),
        (("Jetson AGX Orin",), {"cuda": "12.6", "arch": "aarch64"}, "2.15.0+cu132", "Jetson Orin"),
        ((), {"torch": "2.5", "cuda": "11.8", "arch": "aarch64"}, "2.6.0+cu126", "built for"),
    ],
)
def test_a_refusal_names_the_rule_and_the_nearest_row(
    gpus: tuple[str, ...], flags: dict[str, str], first: str, words: str
) -> None:
    error = refusal(*gpus, **flags)
    assert words in error.why
    assert nearest(error)[0] == first
    assert error.fix


def test_gpus_that_no_row_serves_together_are_refused_with_both_reasons() -> None:
    error = refusal("K80", "RTX 5090")
    assert "cannot serve K80 (3.7)" in error.why
    assert "cannot serve RTX 5090 (12.0)" in error.why
    assert len(nearest(error)) > 1
