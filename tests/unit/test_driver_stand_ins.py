"""The probes of driver libraries, and real pynvml, on stand-ins that fail, hang and die."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from gpuenv.checks.model import Level
from gpuenv.checks.nvml import CUDA_NAMES, NVML_NAMES, nvml_name
from gpuenv.doctor import judge, run_doctor
from gpuenv.probing import DoctorPlan, LocalPlace
from tests.fakes.libraries import build_libcuda, build_libnvidia_ml, nvml_names

if TYPE_CHECKING:
    from pathlib import Path

    from gpuenv.checks.model import Facts

pytestmark = pytest.mark.subprocess


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("libraries")
    build_libcuda(folder)
    build_libnvidia_ml(folder)
    return folder


@pytest.fixture
def ask(libraries: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that asks one probe in a world of stand-ins."""

    def ask(*probes: str, timeout_s: float = 20.0, **world: str) -> Facts:
        from dataclasses import replace

        from gpuenv.checks.probes import STATIC_PROBES

        monkeypatch.setenv("LD_LIBRARY_PATH", str(libraries))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        for name, value in world.items():
            monkeypatch.setenv(name, value)
        plan = DoctorPlan(
            level=Level.STATIC,
            probes=tuple(
                replace(spec, timeout_s=timeout_s) for spec in STATIC_PROBES if spec.name in probes
            ),
            budget_s=60,
            options={"root": "/"},
            asked={"level": 0},
        )
        return run_doctor(plan, LocalPlace(), lambda *_: None)

    return ask


def test_nvml_tells_driver_and_gpus(ask: Any) -> None:
    facts = ask("host.nvml", FAKE_GPUS="2", FAKE_SM="120", FAKE_NAME="NVIDIA GeForce RTX 5090")
    found = facts.get("host.nvml")
    assert (found["init"], found["driver"], found["driver_cuda"]) == (0, "580.65.06", 13000)
    first, second = found["gpus"]
    assert (first["name"], first["capability"]) == ("NVIDIA GeForce RTX 5090", "12.0")
    assert (first["bdf"], second["bdf"]) == ("00000000:10:00.0", "00000000:11:00.0")
    assert first["memory"]["total"] == 80 << 30
    assert first["ecc_mode"] == {"nvml": 3}
    assert first["mig"] == {"current": 0, "pending": 0, "instances": []}
    assert first["remapped_rows"] == [0, 0, 0, 0]
    assert found["load"]["path"].endswith("libnvidia-ml.so.1")


@pytest.mark.parametrize("code", [4, 9, 17, 18, 999])
def test_nvml_that_does_not_start_gives_its_code(ask: Any, code: int) -> None:
    found = ask("host.nvml", FAKE_NVML_INIT=str(code)).get("host.nvml")
    assert (found["init"], found["gpus"]) == (code, [])


@pytest.mark.parametrize(
    ("function", "field"),
    [
        ("nvmlDeviceGetName", "name"),
        ("nvmlDeviceGetTemperature", "temperature_c"),
        ("nvmlDeviceGetMemoryInfo", "memory"),
        ("nvmlDeviceGetHandleByIndex_v2", "handle"),
    ],
)
def test_a_field_that_fails_is_its_code_and_the_others_stand(
    ask: Any, function: str, field: str
) -> None:
    found = ask("host.nvml", **{f"FAKE_{function}": "15"}).get("host.nvml")
    assert found["gpus"][0][field] == {"nvml": 15}
    diagnosis = judge(ask("host.nvml", **{f"FAKE_{function}": "15"}))
    assert diagnosis.causes[0].result.id == "host.gpu.lost"


def test_a_gpu_that_hangs_nvml_costs_its_own_probe_and_no_more(ask: Any) -> None:
    facts = ask("host.nvml", "host.cuda", timeout_s=1.0, FAKE_GPUS="2", FAKE_NVML_DO="sleep")
    nvml = facts.probes["host.nvml"]
    assert nvml.status == "timeout"
    assert [gpu["index"] for gpu in nvml.facts["gpus"]] == [0]
    assert facts.probes["host.cuda"].status == "ok"


def test_a_gpu_that_kills_nvml_keeps_what_was_told(ask: Any) -> None:
    nvml = ask("host.nvml", FAKE_GPUS="3", FAKE_NVML_DO="abort").probes["host.nvml"]
    assert nvml.status == "crashed"
    assert [gpu["index"] for gpu in nvml.facts["gpus"]] == [0, 1]


@pytest.mark.parametrize("code", [2, 3, 34, 46, 100, 101, 801, 802, 803, 804, 999])
def test_cuda_that_does_not_start_gives_the_raw_code(ask: Any, code: int) -> None:
    found = ask("host.cuda", FAKE_CUINIT=str(code), FAKE_CUDA="12080").get("host.cuda")
    assert (found["cu_init"], found["driver_cuda"], found["count"]) == (code, 12080, None)
    assert found["again"]["without LD_LIBRARY_PATH"]


def test_cuda_that_starts_counts_and_names_its_gpus(ask: Any) -> None:
    found = ask("host.cuda", FAKE_GPUS="2", FAKE_SM="90").get("host.cuda")
    assert (found["cu_init"], found["count"]) == (0, 2)
    assert [gpu["capability"] for gpu in found["gpus"]] == ["9.0", "9.0"]
    assert "again" not in found


def test_cuda_that_hangs_is_a_timeout_with_what_was_known(ask: Any) -> None:
    cuda = ask("host.cuda", timeout_s=1.0, FAKE_CUDA_DO="sleep").probes["host.cuda"]
    assert (cuda.status, cuda.facts["driver_cuda"]) == ("timeout", 13000)


def test_a_library_that_prints_does_not_disturb(ask: Any) -> None:
    assert ask("host.cuda", FAKE_CUDA_DO="noise").get("host.cuda")["cu_init"] == 0


def pynvml_says(libraries: Path, code: str, **world: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", "import pynvml\n" + code],
        env={**os.environ, **world, "LD_LIBRARY_PATH": str(libraries)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout.strip() + done.stderr.strip()[-200:]


def test_real_pynvml_sees_the_stand_in_as_a_driver(libraries: Path) -> None:
    code = (
        "pynvml.nvmlInit()\ng = pynvml.nvmlDeviceGetHandleByIndex(1)\n"
        "print(pynvml.nvmlDeviceGetCount(), pynvml.nvmlDeviceGetCudaComputeCapability(g))"
    )
    assert pynvml_says(libraries, code, FAKE_GPUS="2") == "2 (9, 0)"


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("4", "Insufficient Permissions"),
        ("9", "Driver Not Loaded"),
        ("17", "The operating system has blocked the request"),
        ("18", "RM has detected an NVML/RM version mismatch"),
    ],
)
def test_real_pynvml_says_its_words_over_the_stand_in(
    libraries: Path, code: str, text: str
) -> None:
    assert text in pynvml_says(libraries, "pynvml.nvmlInit()", FAKE_NVML_INIT=code)


def test_the_stand_in_has_every_name_of_nvml(libraries: Path) -> None:
    code = (
        "import ctypes\nlib = ctypes.CDLL('libnvidia-ml.so.1')\n"
        f"print([name for name in {nvml_names()!r} if not hasattr(lib, name)])"
    )
    assert len(nvml_names()) > 300
    assert pynvml_says(libraries, code) == "[]"


def test_our_numbers_of_nvml_are_pynvml_s() -> None:
    import pynvml

    for code, name in NVML_NAMES.items():
        full = "NVML_SUCCESS" if code == 0 else f"NVML_ERROR_{name}"
        assert getattr(pynvml, full) == code
    assert nvml_name(18) == "NVML_ERROR_LIB_RM_VERSION_MISMATCH (18)"
    assert pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION == 230
    assert pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown == 0x80
    assert pynvml.NVML_GPU_FABRIC_STATE_COMPLETED == 3
    assert pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS == 3
    assert pynvml.NVML_TOPOLOGY_SYSTEM == 50
    assert CUDA_NAMES[802] == "CUDA_ERROR_SYSTEM_NOT_READY"


def test_our_structures_are_as_large_as_pynvml_s() -> None:
    import ctypes

    import pynvml

    from gpuenv.probes import host_nvml

    for ours, theirs in (
        (host_nvml._Pci, pynvml.nvmlPciInfo_t),
        (host_nvml._Memory, pynvml.c_nvmlMemory_t),
        (host_nvml._Field, pynvml.c_nvmlFieldValue_t),
    ):
        assert ctypes.sizeof(ours) == ctypes.sizeof(theirs)
    assert ctypes.sizeof(host_nvml._Fabric) >= ctypes.sizeof(pynvml.c_nvmlGpuFabricInfo_t)
