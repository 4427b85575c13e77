"""The torch probes on a real torch: healthy, and with faults put in from outside.

Without a GPU the same code runs on the CPU and on gloo.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from gpuenv.checks.model import Status
from tests.conftest import missing

if TYPE_CHECKING:
    from pathlib import Path

    from tests.torch_runner import TorchProbes

QUICK = (
    "torch.import",
    "torch.cuda",
    "torch.devices",
    "torch.kernel",
    "torch.matmul",
    "torch.autograd",
    "torch.accumulation",
    "torch.tf32",
    "torch.cudnn",
    "torch.step",
    "torch.nccl-versions",
    "torch.libraries",
    "torch.allreduce-1p",
)
NUMERICS = (
    "torch.sampler",
    "torch.second-order",
    "torch.amp",
    "torch.determinism",
    "torch.sdpa",
    "torch.graph",
    "torch.memory",
)
CPU = {"device": "cpu"}


def test_a_healthy_torch_is_found_healthy(torch_probes: TorchProbes) -> None:
    found = torch_probes.run(*QUICK, *NUMERICS, "torch.dataloader", **CPU)
    bad = [r for r in found.diagnosis.results if r.status in (Status.FAIL, Status.ERROR)]
    assert bad == []
    assert found.result("num.autograd").status is Status.PASS
    assert found.facts("torch.autograd")["results"][0]["dx"] == 42
    assert found.facts("torch.second-order")["results"][0]["hessian"][2] == [0, 0, 18]


@pytest.mark.slow
def test_processes_on_gloo_sum_exactly_and_meet_no_requirement_for_nccl(
    torch_probes: TorchProbes,
) -> None:
    found = torch_probes.run("torch.collective", **CPU)
    facts = found.facts("torch.collective")
    assert facts["failure"] is None
    assert {entry["dtype"] for entry in facts["all_reduce"]} >= {"float32", "int64"}
    assert [point["bytes"] for point in facts["bandwidth"]] == [1 << s for s in range(12, 25, 3)]
    assert found.result("gloo.allreduce").status is Status.PASS
    assert found.result("nccl.allreduce.mp").status is Status.SKIP
    assert found.result("num.ddp").status is Status.PASS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("lost-contribution", "what rank 1 (CPU) gave is missing"),
        ("flipped-bit", "wrong sums: 1 of 1000 elements"),
        ("killed-rank", "rank 1 (CPU) died in all_reduce float16 x 1000 (SIGKILL)"),
        ("raising-rank", "rank 1 (CPU) failed in all_reduce float16 x 1000: RuntimeError: CUDA"),
        ("absent-rank", "rank 1 (CPU) did not arrive at all_reduce float32 x 65537 within 8 s"),
    ],
)
def test_a_fault_between_ranks_is_charged_to_the_rank(
    torch_probes: TorchProbes, fault: Any, name: str, says: str
) -> None:
    found = torch_probes.run("torch.collective", env=fault(name), limit_s=8.0, **CPU)
    result = found.result("gloo.allreduce")
    assert result.status is Status.FAIL
    assert says in result.summary
    arms = [arm["name"] for arm in found.facts("torch.collective")["differential"]]
    assert arms == ["again", "loopback"]
    why = "the GPU's memory is damaged" if name == "raising-rank" else "no single change"
    assert why in result.why


@pytest.mark.slow
def test_a_stuck_ranks_stack_is_in_the_evidence(torch_probes: TorchProbes, fault: Any) -> None:
    found = torch_probes.run("torch.collective", env=fault("absent-rank"), limit_s=8.0, **CPU)
    stacks = {e.source: e.value for e in found.result("gloo.allreduce").evidence}
    assert "sitecustomize.py" in stacks["stack of rank 1"]
    assert "sitecustomize.py" not in stacks["stack of rank 0"]


@pytest.mark.slow
def test_an_interface_that_does_not_exist_is_named_with_its_variable(
    torch_probes: TorchProbes,
) -> None:
    env = {"GLOO_SOCKET_IFNAME": "nope", "NCCL_ALGO": "Ring"}
    found = torch_probes.run("torch.collective", env=env, limit_s=20.0, **CPU)
    result = found.result("gloo.allreduce")
    assert "Unable to find address for: nope" in result.summary
    assert "as soon as GLOO_SOCKET_IFNAME is removed" in result.why
    assert result.fixes[0].command == "unset GLOO_SOCKET_IFNAME"
    assert result.confidence == "certain"


@pytest.mark.parametrize(
    ("name", "probe", "check", "says"),
    [
        ("wrong-gradient", "torch.autograd", "num.autograd", "dx is 36.0, not 42.0"),
        ("nan-loss", "torch.step", "num.step", "the loss is not a number"),
        ("wrong-product", "torch.matmul", "num.matmul", "1 in bfloat16"),
        ("forgetful-memory", "torch.memtest", "num.memtest", "8 words of memory"),
    ],
)
def test_a_wrong_number_is_found(
    torch_probes: TorchProbes, fault: Any, name: str, probe: str, check: str, says: str
) -> None:
    found = torch_probes.run("torch.import", probe, env=fault(name), **CPU)
    result = found.result(check)
    assert result.status is Status.FAIL
    assert says in result.summary


def test_a_crash_costs_one_probe_and_the_rest_answer(torch_probes: TorchProbes, fault: Any) -> None:
    names = ("torch.import", "torch.autograd", "torch.tf32", "torch.step")
    found = torch_probes.run(*names, env=fault("crash"), **CPU)
    assert [found.runs[name].status for name in names] == ["ok", "ok", "crashed", "ok"]
    assert "SIGSEGV" in found.runs["torch.tf32"].error


def test_without_torch_nothing_fails(tmp_path: Path) -> None:
    from tests.torch_runner import TorchProbes

    python = tmp_path / "bare"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    found = TorchProbes(str(python)).run(*QUICK)
    assert {run.status for run in found.runs.values()} == {"ok"}
    assert found.result("torch.import").reason == "no-torch"
    assert {r.status for r in found.diagnosis.results} == {Status.SKIP}


@pytest.mark.slow
def test_a_missing_compiler_is_read_from_the_compilers_error(
    torch_probes: TorchProbes, tmp_path: Path
) -> None:
    env = {"PATH": "/nowhere", "CXX": "no-such-compiler", "TMPDIR": str(tmp_path)}
    env["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path / "cache")
    found = torch_probes.run("torch.import", "torch.compile", env=env, **CPU)
    result = found.result("cc.compile")
    assert result.status is Status.FAIL
    assert result.suspects == ("cc.gcc",)
    assert result.fixes[0].command == "apt-get install -y gcc g++"


@pytest.mark.slow
def test_compiled_code_equals_eager_code(torch_probes: TorchProbes, tmp_path: Path) -> None:
    env = {"TMPDIR": str(tmp_path), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    found = torch_probes.run("torch.import", "torch.compile", env=env, **CPU)
    if found.result("cc.compile").reason == "not-applicable":
        missing("a torch that can compile under this Python")
    assert found.result("cc.compile").status is Status.PASS
    assert found.facts("torch.compile")["results"][0]["graphs"] == 1


def test_the_containers_64_mib_of_shared_memory_are_too_few(
    torch_probes: TorchProbes, tmp_path: Path
) -> None:
    unshare = shutil.which("unshare")
    small = 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"'
    command = [unshare or "", "-m", "sh", "-c", small, "sh"]
    if unshare is None or subprocess.run([*command, "true"], capture_output=True).returncode:  # noqa: PLW1510
        missing("the right to mount (unshare -m)")
    wrap = tmp_path / "python"
    quoted = " ".join(f"'{part}'" for part in [*command, torch_probes.python])
    wrap.write_text(f'#!/bin/sh\nexec {quoted} "$@"\n')
    wrap.chmod(0o755)
    found = torch_probes.run("torch.import", "torch.dataloader", wrap=str(wrap), **CPU)
    assert found.facts("torch.dataloader")["shm_free_bytes"] == 64 << 20
    result = found.result("num.dataloader")
    assert result.status is Status.FAIL
    assert result.suspects == ("shm.size",)
    assert "64 MiB free in /dev/shm" in "".join(e.value for e in result.evidence)


def test_the_performance_code_runs_on_the_cpu_too(torch_probes: TorchProbes) -> None:
    names = ("torch.p2p", "torch.transfer", "torch.memory-rate", "torch.matmul-rate")
    found = torch_probes.run(*names, **CPU)
    assert [pair["wrong"] for pair in found.facts("torch.p2p")["pairs"]] == [0, 0]
    assert found.facts("torch.matmul-rate")["results"][0]["tflops"] > 0
    assert found.result("perf.matmul").status is Status.INFO
    assert found.result("hw.pcie.gen").reason == "unsupported-by-driver"
