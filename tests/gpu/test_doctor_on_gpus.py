"""The doctor's compute probes on real GPUs: healthy, and with faults put in.

Needs a Python with a torch built with CUDA (``GPUENV_TEST_TORCH``) and at least one GPU;
``scripts/gpu_check.sh`` does the same from the command line.
"""

from __future__ import annotations

from typing import Any

import pytest

from gpuenv.checks.model import Status
from tests.conftest import missing
from tests.torch_runner import DOUBLES, TorchProbes, find_torch

pytestmark = [pytest.mark.gpu, pytest.mark.slow]
QUIET = (Status.PASS, Status.INFO, Status.SKIP, Status.WARN)


@pytest.fixture(scope="module")
def gpus() -> TorchProbes:
    """Return the runner, or skip where torch comes up on no GPU."""
    probes = TorchProbes(find_torch())
    found = probes.run("torch.import", "torch.cuda")
    if not found.facts("torch.cuda").get("device_count"):
        missing("an NVIDIA GPU that torch comes up on")
    return probes


def double(name: str) -> dict[str, str]:
    return {"TEST_FAULT": name, "PYTHONPATH": str(DOUBLES)}


def test_a_healthy_machine_is_found_healthy(gpus: TorchProbes) -> None:
    found = gpus.run(burn_s=10.0)
    bad = [r for r in found.diagnosis.results if r.status not in QUIET]
    assert bad == []
    assert found.result("torch.kernel").status is Status.PASS
    assert found.result("nccl.allreduce.mp").status is Status.PASS


def test_a_hidden_gpu_is_no_gpu(gpus: TorchProbes) -> None:
    found = gpus.run("torch.import", "torch.cuda", "torch.kernel", env={"CUDA_VISIBLE_DEVICES": ""})
    assert found.facts("torch.cuda")["device_count"] == 0
    assert found.result("torch.kernel").status is Status.SKIP


@pytest.mark.parametrize(
    ("name", "probe", "check"),
    [
        ("wrong-gradient", "torch.autograd", "num.autograd"),
        ("wrong-product", "torch.matmul", "num.matmul"),
        ("nan-loss", "torch.step", "num.step"),
        ("forgetful-memory", "torch.memtest", "num.memtest"),
    ],
)
def test_a_wrong_number_on_a_gpu_is_found(
    gpus: TorchProbes, name: str, probe: str, check: str
) -> None:
    found = gpus.run("torch.import", probe, env=double(name), memory_share=0.1)
    failed = [r for r in found.diagnosis.results if r.id == check and r.status is Status.FAIL]
    assert failed
    assert all(result.subject.startswith("GPU ") for result in failed)


@pytest.mark.parametrize("name", ["lost-contribution", "killed-rank", "absent-rank"])
def test_a_fault_between_gpus_is_charged_to_its_rank(gpus: TorchProbes, name: str) -> None:
    devices: list[Any] = list(gpus.run("torch.devices").facts("torch.devices")["devices"])
    if len(devices) < 2:
        missing("two GPUs")
    found = gpus.run("torch.collective", env=double(name), limit_s=15.0)
    result = found.result("nccl.allreduce.mp")
    assert result.status is Status.FAIL
    assert "rank 1 (GPU 1)" in result.summary


def test_an_interface_that_does_not_exist_is_named(gpus: TorchProbes) -> None:
    found = gpus.run("torch.collective", env={"NCCL_SOCKET_IFNAME": "nope"}, limit_s=15.0)
    result = found.result("nccl.allreduce.mp")
    assert result.status is Status.FAIL
    assert "nccl.ifname" in result.suspects
