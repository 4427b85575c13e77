"""One cause for host and torch together: what torch suffers is folded below what the host has."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from gpuenv.checks.catalogue import CHECKS
from gpuenv.checks.diagnose import diagnose
from gpuenv.checks.model import Facts, Level, Status
from tests.doctor_corpus import faults
from tests.doctor_machines import BASES, as_facts
from tests.torch_scenes import changed, gpus

if TYPE_CHECKING:
    from gpuenv.checks.model import Diagnosis

CORPUS = {case.id: case for case in faults()}


def joined(host: Facts, torch: Facts) -> Facts:
    """Return a machine that both halves were asked of, at the deepest level."""
    asked = {**host.asked, "level": int(Level.DEEP)}
    return replace(host, asked=asked, probes={**host.probes, **torch.probes})


def diagnosed(fault: str, *changes: Any) -> Diagnosis:
    """Diagnose a fault of the corpus together with what torch makes of it."""
    case = CORPUS[fault]
    torch = gpus(8)
    for probe, change in changes:
        torch = changed(torch, probe, change)
    return diagnose(joined(case.facts(), torch), CHECKS)


def cuda_down(code: int, error: str) -> tuple[Any, ...]:
    """Return what torch's probes say when CUDA does not come up."""

    def state(answer: dict[str, Any]) -> None:
        answer["raw"].update(cuinit=code, device_count=None)
        answer.update(is_available=False, device_count=0, init_error=error)

    def nothing(answer: dict[str, Any]) -> None:
        answer.clear()
        answer["skip"] = {"reason": "no-gpu", "text": "torch sees no GPU"}

    idle = ("torch.kernel", "torch.graph", "torch.allreduce-1p", "torch.p2p", "torch.transfer")
    more = ("torch.memory-rate", "torch.matmul-rate", "torch.memtest", "torch.burn")
    return (("torch.cuda", state), *((probe, nothing) for probe in idle + more))


def failing(error: str, **log: Any) -> Any:
    """Return what a process group that fails tells."""

    def change(answer: dict[str, Any]) -> None:
        answer["failure"] = {
            "kind": "error",
            "stage": "first collective",
            "rank": 0,
            "error": error,
            "words": [],
            "missing": [],
            "arrived": [],
        }
        answer.update(all_reduce=[], scatter_gather=None, bandwidth=[], ddp=None, sampler=[])
        answer["log"].update(log)

    return ("torch.collective", change)


OLD = "RuntimeError: The NVIDIA driver on your system is too old (found version 12080)."


@pytest.mark.parametrize(
    ("fault", "changes"),
    [
        ("driver-too-old-hides-802", cuda_down(802, OLD)),
        ("fabric-manager-not-running", cuda_down(802, "Error 802: system not yet initialized")),
        ("uvm-not-granted", cuda_down(999, "RuntimeError: CUDA unknown error - this may be")),
        ("driver-libraries-baked-into-the-image", cuda_down(803, "Error 803: system has")),
        ("stubs-on-the-library-path", cuda_down(34, "Error 34: CUDA driver is a stub library")),
    ],
)
def test_the_hosts_fault_is_the_cause_and_torchs_a_consequence(
    fault: str, changes: tuple[Any, ...]
) -> None:
    diagnosis = diagnosed(fault, *changes)
    first = diagnosis.causes[0]
    assert first.result.id == CORPUS[fault].cause
    assert "torch.cuda" in {result.id for result in first.consequences}


SMALL_SHM = next(case.id for case in faults() if case.cause == "shm.size")
BAD_INTERFACE = next(case.id for case in faults() if case.cause in ("nccl.ifname", "nccl.env"))
NO_COMPILER = next(case.id for case in faults() if case.cause == "cc.gcc")


@pytest.mark.parametrize(
    ("fault", "change", "consequence"),
    [
        (
            SMALL_SHM,
            failing(
                "DistBackendError: NCCL error: unhandled system error",
                warnings=["Error while creating shared memory segment /dev/shm/nccl-Ab12"],
            ),
            "nccl.allreduce.mp",
        ),
        (
            SMALL_SHM,
            (
                "torch.dataloader",
                lambda answer: answer.update(error="RuntimeError: worker killed by Bus error"),
            ),
            "num.dataloader",
        ),
        (
            BAD_INTERFACE,
            failing(
                "DistBackendError: internal error",
                warnings=["Bootstrap : no socket interface found"],
            ),
            "nccl.allreduce.mp",
        ),
        (
            NO_COMPILER,
            (
                "torch.compile",
                lambda answer: answer["results"][0].update(
                    error="RuntimeError: Failed to find C compiler. Please specify via CC"
                ),
            ),
            "cc.compile",
        ),
    ],
    ids=["shm and NCCL", "shm and DataLoader", "interface and NCCL", "compiler and compile"],
)
def test_a_limit_of_the_container_is_the_cause(fault: str, change: Any, consequence: str) -> None:
    diagnosis = diagnosed(fault, change)
    first = diagnosis.causes[0]
    assert first.result.id == CORPUS[fault].cause
    assert consequence in {result.id for result in first.consequences}


def test_corrupt_peer_copies_are_the_cause_of_wrong_sums() -> None:
    wrong = {"wrong": 5, "first": {"index": 1, "got": 1.0, "right": 2.0}, "wrong_ranks": [0]}
    diagnosis = diagnosed_healthy(
        ("torch.p2p", lambda answer: answer["pairs"][0].update(wrong=4096)),
        ("torch.collective", lambda answer: answer["all_reduce"][0].update(wrong)),
        ("torch.allreduce-1p", lambda answer: answer["results"][0].update(wrong=5)),
    )
    assert [cause.result.id for cause in diagnosis.causes] == ["p2p.copy"]
    assert {result.id for result in diagnosis.causes[0].consequences} == {
        "nccl.allreduce.mp",
        "nccl.allreduce.1p",
    }


def diagnosed_healthy(*changes: Any) -> Diagnosis:
    """Diagnose a healthy eight-GPU machine with torch's answers changed."""
    torch = gpus(8)
    for probe, change in changes:
        torch = changed(torch, probe, change)
    return diagnose(joined(as_facts(BASES["hgx"]()), torch), CHECKS)


def test_a_kernel_that_fails_stands_above_all_that_needs_kernels() -> None:
    error = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
    diagnosis = diagnosed_healthy(
        *(
            (probe, lambda answer: answer["results"][0].update(error=error))
            for probe in ("torch.kernel", "torch.matmul", "torch.step")
        )
    )
    assert diagnosis.causes[0].result.id == "torch.kernel"
    assert len(diagnosis.causes) == 1


def test_a_healthy_machine_of_eight_gpus_is_healthy_at_the_deepest_level() -> None:
    diagnosis = diagnosed_healthy()
    assert diagnosis.causes == ()
    assert diagnosis.verdict == "pass"
    assert diagnosis.counts.get(Status.ERROR, 0) == 0
