"""GPU names, and which compiled code runs on which GPU."""

from __future__ import annotations

import pytest

from gpuenv.errors import ConfigurationError
from gpuenv.matrix.gpus import find_gpu, gpu_names, serve
from gpuenv.matrix.load import load_matrix
from gpuenv.matrix.model import Row
from gpuenv.spec import GpuTarget
from gpuenv.versions import ComputeCapability, CudaVersion, PythonVersion, TorchVersion

MATRIX = load_matrix()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("V100", "7.0"),
        ("Tesla V100-SXM2-16GB", "7.0"),
        ("NVIDIA A100-SXM4-80GB", "8.0"),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "8.0"),
        ("a100", "8.0"),
        ("NVIDIA H100 80GB HBM3", "9.0"),
        ("NVIDIA H100 NVL", "9.0"),
        ("NVIDIA H200", "9.0"),
        ("NVIDIA GH200 480GB", "9.0"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "8.9"),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", "8.9"),
        ("rtx-3090", "8.6"),
        ("RTX5090", "12.0"),
        ("4090", "8.9"),
        ("NVIDIA RTX A6000", "8.6"),
        ("A6000", "8.6"),
        ("Tesla V100S-PCIE-32GB", "7.0"),
        ("NVIDIA RTX 4000 SFF Ada Generation", "8.9"),
        ("NVIDIA GeForce RTX 3060 Ti", "8.6"),
        ("NVIDIA T1000 8GB", "7.5"),
        ("NVIDIA RTX 6000 Ada Generation", "8.9"),
        ("Quadro RTX 6000", "7.5"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "12.0"),
        ("NVIDIA GeForce GTX 1080 Ti", "6.1"),
        ("Tesla T4", "7.5"),
        ("NVIDIA L40S", "8.9"),
        ("NVIDIA GB10", "12.1"),
        ("DGX Spark", "12.1"),
        ("Orin Nano", "8.7"),
        ("Jetson Nano", "5.3"),
        ("9.0", "9.0"),
        ("sm_90", "9.0"),
        ("sm_120", "12.0"),
        ("SM_86", "8.6"),
        ("12.1", "12.1"),
    ],
)
def test_a_gpu_is_found_by_the_names_people_and_nvml_use(name: str, expected: str) -> None:
    assert str(find_gpu(MATRIX, name).compute_capability) == expected


def test_every_name_of_the_matrix_finds_itself() -> None:
    for entry in MATRIX.gpus:
        for name in entry.names:
            assert find_gpu(MATRIX, name).compute_capability == entry.compute_capability


@pytest.mark.parametrize("name", ["RTX 6000", "RTX 5000", "RTX 4000", "6000"])
def test_a_name_that_fits_two_generations_is_not_guessed(name: str) -> None:
    with pytest.raises(ConfigurationError, match="fits GPUs that differ") as caught:
        find_gpu(MATRIX, name)
    assert "7.5" in caught.value.why
    assert "8.9" in caught.value.why


@pytest.mark.parametrize(
    "name",
    [
        "",
        "   ",
        "GPU",
        "RTX",
        "Blackwell",
        "V",
        "NVIDIA",
        "Radeon RX 7900",
        "A100; rm -rf /",
        "H1000",
    ],
)
def test_what_is_no_gpu_of_the_matrix_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError):
        find_gpu(MATRIX, name)


def test_names_are_unique() -> None:
    names = [name.casefold() for name in gpu_names(MATRIX)]
    assert len(names) == len(set(names))


def row(*arch_list: str, cuda: str) -> Row:
    return Row(
        torch=TorchVersion.parse("2.9.1"),
        variant=CudaVersion.parse(cuda).variant,
        cuda=CudaVersion.parse(cuda),
        toolkit=None,
        cudnn=None,
        nccl=None,
        triton=None,
        torchvision=None,
        torchaudio=None,
        pythons=(PythonVersion.parse("3.12"),),
        arch="x86_64",
        arch_list=arch_list,
        pypi_default=False,
        released="2026-01-01",
        source=("TEST",),
        checked="2026-01-01",
        confidence="verified",
    )


@pytest.mark.parametrize(
    ("gpu", "arch_list", "cuda", "how"),
    [
        ("8.0", ("sm_80",), "12.8", "cubin"),
        ("8.6", ("sm_80",), "12.8", "cubin"),
        ("8.9", ("sm_80", "sm_86", "sm_90"), "12.8", "cubin"),
        ("8.0", ("sm_86",), "12.8", None),
        ("9.0", ("sm_80", "sm_86"), "12.8", None),
        ("7.0", ("sm_75", "sm_80"), "12.8", None),
        ("10.3", ("sm_100",), "12.9", "cubin"),
        ("12.1", ("sm_120",), "12.8", "cubin"),
        ("12.0", ("sm_100",), "12.8", None),
        # PTX runs on anything as new or newer, and only where no cubin does.
        ("12.0", ("sm_90", "compute_90"), "12.8", "ptx"),
        ("12.1", ("sm_120", "compute_120"), "12.8", "cubin"),
        ("8.0", ("sm_90", "compute_90"), "12.8", None),
        # Jetsons do not run the code of cards of their major, until CUDA 13.2 for two of them.
        ("8.7", ("sm_80", "sm_86"), "13.0", None),
        ("8.7", ("sm_80", "sm_86"), "13.2", "cubin"),
        ("8.7", ("sm_80", "sm_87"), "12.6", "cubin"),
        ("7.2", ("sm_70",), "12.8", None),
        ("7.2", ("sm_70",), "13.2", "cubin"),
        ("6.2", ("sm_60", "sm_61"), "13.2", None),
        ("5.3", ("sm_50", "sm_52"), "13.2", None),
        # Thor was 10.1 to CUDA 12 and is 11.0 to CUDA 13.
        ("10.1", ("sm_100",), "12.8", None),
        ("11.0", ("sm_101",), "12.8", "cubin"),
        ("10.1", ("sm_110",), "13.0", "cubin"),
        # Architecture-specific code runs on one capability, family code on its major.
        ("12.1", ("sm_120a",), "12.8", None),
        ("12.0", ("sm_120a",), "12.8", "cubin"),
        ("10.3", ("sm_100f",), "12.9", "cubin"),
        ("12.0", ("compute_100f",), "12.9", None),
    ],
)
def test_which_code_runs_on_which_gpu(
    gpu: str, arch_list: tuple[str, ...], cuda: str, how: str | None
) -> None:
    target = GpuTarget(asked=gpu, compute_capability=ComputeCapability.parse(gpu))
    service = serve(MATRIX, row(*arch_list, cuda=cuda), target)
    assert service.how == how
    assert bool(service.why) == (how is None)
