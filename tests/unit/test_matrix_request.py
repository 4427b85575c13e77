"""From flags, variables and gpuenv.toml to a request, and the words for every mistake."""

from __future__ import annotations

from typing import Any

import pytest

from gpuenv.errors import ConfigurationError
from gpuenv.matrix.load import load_matrix
from gpuenv.matrix.request import layer_settings, parse_request
from gpuenv.spec import MatrixRequest
from gpuenv.versions import ComputeCapability, CudaVersion, DriverRelease, TorchVersion

MATRIX = load_matrix()


def parse(
    *,
    environ: dict[str, str] | None = None,
    file_settings: dict[str, Any] | None = None,
    machine: str = "x86_64",
    **flags: Any,
) -> MatrixRequest:
    settings = layer_settings(flags, environ=environ or {}, file_settings=file_settings)
    return parse_request(MATRIX, settings, machine=machine)


def mistake(**arguments: Any) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as caught:
        parse(**arguments)
    assert caught.value.exit_code == 2
    return caught.value


def test_nothing_given_is_the_open_request() -> None:
    assert parse() == MatrixRequest()


def test_a_torch_with_its_variant_names_the_cuda_too() -> None:
    request = parse(torch="2.9.1+cu128")
    assert request.torch == TorchVersion.parse("2.9.1")
    assert request.cuda == CudaVersion.parse("12.8")
    assert parse(torch="2.9.1+cpu").cuda == "cpu"
    assert parse(torch="2.9.1+cu128", cuda="12.8.1").cuda == CudaVersion.parse("12.8.1")
    assert parse(torch="2.9.1+cu128", cuda="12").cuda == CudaVersion.parse("12.8")


@pytest.mark.parametrize("cuda", ["12.6", "cpu", "13"])
def test_two_cudas_in_one_request_are_refused(cuda: str) -> None:
    error = mistake(torch="2.9.1+cu128", cuda=cuda)
    assert "name different CUDAs" in error.what


def test_flags_win_over_variables_and_those_over_the_file() -> None:
    file_settings = {"torch": "2.6", "cuda": "12.4", "gpu": ["A100", "H100"]}
    environ = {"GPUENV_CUDA": "12.6", "GPUENV_TORCH": "2.7"}
    request = parse(environ=environ, file_settings=file_settings, torch="2.8")
    assert request.torch == TorchVersion.parse("2.8")
    assert request.cuda == CudaVersion.parse("12.6")
    assert [str(gpu.compute_capability) for gpu in request.gpus] == ["8.0", "9.0"]


def test_a_variable_may_hold_several_gpus() -> None:
    request = parse(environ={"GPUENV_GPU": "V100, RTX 5090"})
    assert [gpu.asked for gpu in request.gpus] == ["V100", "RTX 5090"]


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        ({"torch": "2.8rc1"}, "--torch"),
        ({"environ": {"GPUENV_TORCH": "2.8rc1"}}, "GPUENV_TORCH"),
        ({"file_settings": {"torch": "2.8rc1"}}, "gpuenv.toml: torch"),
        ({"environ": {"GPUENV_GPU": "A110"}}, "GPUENV_GPU"),
        ({"file_settings": {"gpu": ["H100", "A110"]}}, "gpuenv.toml: gpu"),
    ],
)
def test_a_bad_value_is_told_with_its_place(arguments: dict[str, Any], place: str) -> None:
    assert mistake(**arguments).what.startswith(place)


def test_a_number_in_the_file_is_refused_before_it_loses_digits() -> None:
    error = mistake(file_settings={"python": 3.1})
    assert error.what == "gpuenv.toml: python must be text, not 3.1"
    assert "quote it" in error.fix


@pytest.mark.parametrize(
    ("arguments", "guess"),
    [
        ({"torch": "v2.9.1"}, "did you mean 2.9.1?"),
        ({"torch": "latest"}, "leave it out for the newest"),
        ({"torch": "2.9.1+cuda128"}, "write it like cu128"),
        ({"cuda": "cuda12.8"}, "did you mean 12.8?"),
        ({"cuda": "none"}, "did you mean cpu?"),
        ({"cuda": "atuo"}, "did you mean auto?"),
        ({"python": "py311"}, "did you mean 3.11?"),
        ({"python": "python3.12"}, "did you mean 3.12?"),
        ({"python": "3.11.4"}, "did you mean 3.11?"),
        ({"python": "3.13t"}, "did you mean 3.13?"),
        ({"driver": "12.8"}, "what nvidia-smi calls Driver Version"),
        ({"arch": "aarch"}, "did you mean aarch64?"),
        ({"arch": "riscv64"}, "give --arch x86_64 or --arch aarch64"),
        ({"flavor": "dev"}, "did you mean devel?"),
        ({"gpu": ["RTX4099"]}, "did you mean RTX 4090"),
        ({"gpu": ["A110"]}, "did you mean A10, A10G or A100?"),
        ({"gpu": ["sm_99"]}, "did you mean 9.0"),
    ],
)
def test_a_mistake_gets_a_guess(arguments: dict[str, Any], guess: str) -> None:
    assert guess in mistake(**arguments).fix


@pytest.mark.parametrize("key", ["torch", "cuda", "cudnn", "nccl", "python", "driver"])
@pytest.mark.parametrize(
    "value", ["2.9;", "2.9\n2", "$(id)", "\uff12.9", "2.9 -i x", "", "2..9", "`w`"]
)
def test_a_version_is_digits_and_dots_only(key: str, value: str) -> None:
    assert mistake(**{key: value}).what.startswith(f"--{key}")


def test_this_machine_s_cpu_is_the_default_under_any_of_its_names() -> None:
    assert parse(machine="arm64").arch == "aarch64"
    assert parse(machine="AMD64").arch == "x86_64"
    assert "this machine" in mistake(machine="ppc64le").what


def test_gpus_that_come_with_a_cpu_decide_for_it_and_say_so() -> None:
    request = parse(gpu=["GH200"])
    assert request.arch == "aarch64"
    assert request.notes == ("GH200 comes with an aarch64 CPU: choosing for aarch64",)
    assert parse(gpu=["GH200"], arch="x86_64").arch == "x86_64"
    assert parse(gpu=["H100"], machine="aarch64").notes == ()


def test_a_gpu_given_twice_counts_once() -> None:
    request = parse(gpu=["sm_90", "sm_90", "A100"])
    assert [gpu.compute_capability for gpu in request.gpus] == [
        ComputeCapability(9, 0),
        ComputeCapability(8, 0),
    ]


def test_a_driver_branch_is_a_driver() -> None:
    assert parse(driver="580").driver == DriverRelease.parse("580")


def test_a_higher_layer_decides_for_the_cuda_that_a_torch_names() -> None:
    request = parse(environ={"GPUENV_CUDA": "12.6"}, torch="2.9.1+cu128")
    assert request.cuda == CudaVersion.parse("12.8")
    request = parse(environ={"GPUENV_TORCH": "2.9.1+cu128"}, cuda="12.6")
    assert (request.torch, request.cuda) == (
        TorchVersion.parse("2.9.1"),
        CudaVersion.parse("12.6"),
    )


def test_cpu_by_flag_does_without_the_project_s_gpus_and_says_so() -> None:
    request = parse(file_settings={"gpu": ["H100"], "nccl": "2.27"}, cuda="cpu")
    assert (request.cuda, request.gpus, request.nccl) == ("cpu", (), None)
    assert request.notes == ("--cuda cpu leaves out gpuenv.toml: gpu, gpuenv.toml: nccl",)
    assert parse(cuda="cpu", gpu=["H100"]).gpus != ()
