"""An image is proven when nothing in it differs from the row; each difference is named."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from gpuenv.spec import EnvironmentSpec
from gpuenv.verify import compare
from gpuenv.versions import (
    CudaVersion,
    CudnnVersion,
    DriverRelease,
    NcclVersion,
    PythonVersion,
    TorchVersion,
)

CU130 = EnvironmentSpec(
    torch=TorchVersion.parse("2.14.1"),
    torch_variant="cu130",
    cuda=CudaVersion.parse("13.0"),
    toolkit=CudaVersion.parse("13.0.3"),
    cudnn=CudnnVersion.parse("9.24.0.43"),
    nccl=NcclVersion.parse("2.30.7"),
    triton="~=3.8.0",
    torchvision="0.29.1",
    torchaudio="2.11.0",
    python=PythonVersion.parse("3.11"),
    arch="x86_64",
    arch_list=("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"),
    min_driver=DriverRelease.parse("580.65.06"),
    base_image="debian:bookworm-slim",
    source="pypi",
    confidence="verified",
)
FACTS: dict[str, Any] = {
    "python": "3.11.2",
    "machine": "x86_64",
    "distributions": {
        "torch": "2.14.1",
        "triton": "3.8.1",
        "nvidia-cudnn-cu13": "9.24.0.43",
        "nvidia-nccl-cu13": "2.30.7",
    },
    "library_copies": {"libcudnn": ["/venv/nvidia/cudnn/lib"], "libnccl": []},
    "driver_files": [],
    "torch": {
        "version": "2.14.1+cu130",
        "cuda": "13.0",
        "arch_flags": ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"],
        "cudnn": 92400,
        "nccl": [2, 30, 7],
        "autograd_ok": True,
    },
}


def _facts(**changes: Any) -> dict[str, Any]:
    """Return the healthy facts with ``a__b=value`` set at ``["a"]["b"]``."""
    facts = copy.deepcopy(FACTS)
    for path, value in changes.items():
        *parents, last = path.split("__")
        node = facts
        for key in parents:
            node = node[key.replace("_", "-") if parents == ["distributions"] else key]
        node[last.replace("_", "-") if parents[:1] == ["distributions"] else last] = value
    return facts


def test_an_image_that_keeps_its_promise_is_proven() -> None:
    assert compare(CU130, FACTS) == ()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"python": "3.12.1"}, "Python: promised 3.11, found 3.12"),
        ({"machine": "arm64"}, "architecture: promised x86_64, found aarch64"),
        ({"torch__version": "2.14.0+cu130"}, "torch: promised 2.14.1, found 2.14.0"),
        ({"torch__version": "2.14.1+cpu"}, "torch variant: promised cu130, found cpu"),
        ({"torch__cuda": None}, "CUDA of torch: promised 13.0, found None"),
        (
            {"torch__arch_flags": ["sm_90"]},
            "compiled architectures: promised sm_100 sm_120 sm_75 sm_80 sm_86 sm_90, found sm_90",
        ),
        ({"torch__cudnn": 91002}, "cudnn loaded by torch: promised 9.24.0, found 9.10.2"),
        ({"torch__nccl": [2, 28, 9]}, "nccl loaded by torch: promised 2.30.7, found 2.28.9"),
        (
            {"distributions__nvidia_nccl_cu13": "2.28.9"},
            "nvidia-nccl-cu13: promised 2.30.7, found 2.28.9",
        ),
        ({"distributions__triton": "3.9.0"}, "triton: promised ~=3.8.0, found 3.9.0"),
        ({"distributions__torchvision": "0.28.0"}, "torchvision: promised 0.29.1, found 0.28.0"),
        (
            {"library_copies__libcudnn": ["/usr/lib/x86_64-linux-gnu", "/venv/nvidia/cudnn/lib"]},
            (
                "copies of libcudnn: promised one, found "
                "/usr/lib/x86_64-linux-gnu, /venv/nvidia/cudnn/lib"
            ),
        ),
        (
            {"driver_files": ["/usr/lib/x86_64-linux-gnu/libcuda.so.580.65.06"]},
            (
                "driver libraries: promised none, the host brings them, "
                "found /usr/lib/x86_64-linux-gnu/libcuda.so.580.65.06"
            ),
        ),
        (
            {"torch__autograd_ok": False},
            "gradient of sum(x²) at 1: promised 2, found something else",
        ),
    ],
)
def test_each_difference_is_named_alone(changes: dict[str, Any], sentence: str) -> None:
    assert [str(difference) for difference in compare(CU130, _facts(**changes))] == [sentence]


def test_a_torch_that_does_not_import_is_the_one_difference() -> None:
    facts = {"python": "3.11.2", "machine": "x86_64", "error": "ImportError: libcudart.so.13"}
    assert [str(d) for d in compare(CU130, facts)] == [
        "torch: promised imports, found ImportError: libcudart.so.13"
    ]


def test_an_override_is_the_promise() -> None:
    spec = replace(
        CU130, nccl=NcclVersion.parse("2.30.9"), overrides=(("nvidia-nccl-cu13", "2.30.9"),)
    )
    assert compare(spec, FACTS) != ()
    facts = _facts(distributions__nvidia_nccl_cu13="2.30.9", torch__nccl=[2, 30, 9])
    assert compare(spec, facts) == ()


def test_the_older_cudnn_numbers_are_read() -> None:
    spec = replace(CU130, cudnn=CudnnVersion.parse("8.9.2.26"))
    facts = _facts(torch__cudnn=8902, distributions__nvidia_cudnn_cu13="8.9.2.26")
    assert compare(spec, facts) == ()


def test_a_cpu_image_has_no_cuda_to_compare() -> None:
    spec = replace(
        CU130, torch_variant="cpu", cuda=None, toolkit=None, cudnn=None, nccl=None, arch_list=()
    )
    facts = _facts(torch__version="2.14.1+cpu", torch__cuda=None, torch__cudnn=None)
    facts["distributions"] = {"torch": "2.14.1+cpu"}
    assert compare(spec, facts) == ()


def test_the_cuda_12_devel_base_may_carry_its_own_copy() -> None:
    two = {"libcudart": ["/usr/local/cuda-12.8/lib64", "/venv/nvidia/cuda_runtime/lib"]}
    spec = replace(CU130, cuda=CudaVersion.parse("12.8"), torch_variant="cu128", flavor="devel")
    names = {d.what for d in compare(spec, _facts(library_copies=two))}
    assert "copies of libcudart" not in names
    runtime = replace(spec, flavor="runtime")
    names = {d.what for d in compare(runtime, _facts(library_copies=two))}
    assert "copies of libcudart" in names


def test_a_row_that_does_not_know_its_architectures_promises_none() -> None:
    facts = _facts(torch__arch_flags=["sm_80"])
    assert compare(replace(CU130, arch_list=()), facts) == ()
