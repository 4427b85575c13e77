"""The real torch with a stand-in for the driver: its real words, read right.

Needs a torch built with CUDA; ``GPUENV_TEST_TORCH_CUDA`` names a Python that has one.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import TYPE_CHECKING

import pytest

from gpuenv.checks.model import Status
from tests.conftest import missing
from tests.fakes.libraries import build_libcuda
from tests.torch_runner import TorchProbes

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.cuda

_PYTHON = os.environ.get("GPUENV_TEST_TORCH_CUDA", "")


@pytest.fixture(scope="session")
def cuda_torch() -> TorchProbes:
    """Return the runner for a Python whose torch is built with CUDA."""
    python = _PYTHON or (sys.executable if importlib.util.find_spec("torch") else "")
    probes = TorchProbes(python) if python else None
    if probes is None or not probes.run("torch.import").facts("torch.import").get("cuda"):
        missing("a torch built with CUDA (set GPUENV_TEST_TORCH_CUDA)")
    return probes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "suspect"),
    [
        (3, "host.driver.module"),
        (34, "env.ldpath"),
        (46, "mode.compute"),
        (802, "host.fabricmanager"),
        (803, "host.driver.match"),
        (804, "drv.compat"),
        (999, "ctk.uvm"),
    ],
)
@pytest.mark.parametrize("driver_cuda", [13000, 12080])
def test_torchs_own_words_and_the_drivers_code_lead_to_the_suspect(
    cuda_torch: TorchProbes, tmp_path: Path, code: int, suspect: str, driver_cuda: int
) -> None:
    library = build_libcuda(tmp_path)
    env = {
        "LD_LIBRARY_PATH": str(library.parent),
        "FAKE_CUINIT": str(code),
        "FAKE_CUDA": str(driver_cuda),
    }
    found = cuda_torch.run("torch.import", "torch.cuda", env=env)
    result = found.result("torch.cuda")
    assert result.status is Status.FAIL
    assert f"cuInit {code}" in result.summary
    assert suspect in result.suspects
    masked = "too old" in found.facts("torch.cuda")["init_error"]
    assert masked is ("hides the driver's own code" in result.why)


def test_a_driver_that_dies_in_cuinit_costs_the_probes_that_ask_it(
    cuda_torch: TorchProbes, tmp_path: Path
) -> None:
    library = build_libcuda(tmp_path)
    env = {"LD_LIBRARY_PATH": str(library.parent), "FAKE_CUDA_DO": "abort"}
    names = ("torch.import", "torch.cuda", "torch.matmul", "torch.autograd", "torch.sampler")
    found = cuda_torch.run(*names, env=env)
    assert found.runs["torch.import"].status == "ok"
    assert found.runs["torch.cuda"].status == "crashed"
    assert "SIGABRT" in found.runs["torch.cuda"].error
    assert found.runs["torch.sampler"].status == "ok"


def test_noise_on_standard_output_does_not_spoil_an_answer(
    cuda_torch: TorchProbes, tmp_path: Path
) -> None:
    library = build_libcuda(tmp_path)
    env = {"LD_LIBRARY_PATH": str(library.parent), "FAKE_CUDA_DO": "noise", "FAKE_CUINIT": "100"}
    found = cuda_torch.run("torch.import", "torch.cuda", env=env)
    assert found.facts("torch.cuda")["raw"]["cuinit"] == 100
