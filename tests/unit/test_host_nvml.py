"""What the host says of its GPUs, by a stand-in for NVML."""

# ruff: noqa: N802 - the stand-in has NVML's own names

from __future__ import annotations

from typing import Any

import pytest

from gpuenv.host.gpu_inventory import probe_inventory
from gpuenv.host.nvml import probe_host_gpus
from gpuenv.versions import ComputeCapability, DriverRelease


class FakeNvmlError(Exception):
    """As pynvml's: the number of nvml.h in ``value``."""

    def __init__(self, value: int, text: str) -> None:
        super().__init__(text)
        self.value = value


class FakeNvml:
    """An NVML with the GPUs given; an exception in place of a value is raised."""

    NVMLError = FakeNvmlError

    def __init__(self, *gpus: Any, driver: Any = "580.65.06", init: Any = None) -> None:
        self._gpus, self._driver, self._init = gpus, driver, init
        self.is_open = False

    def _give(self, value: Any) -> Any:
        if isinstance(value, Exception):
            raise value
        return value

    def nvmlInit(self) -> None:
        self._give(self._init)
        self.is_open = True

    def nvmlShutdown(self) -> None:
        self.is_open = False

    def nvmlSystemGetDriverVersion(self) -> Any:
        return self._give(self._driver)

    def nvmlDeviceGetCount(self) -> int:
        return len(self._gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        return self._give(self._gpus[index])

    def nvmlDeviceGetName(self, handle: Any) -> Any:
        return handle[0]

    def nvmlDeviceGetCudaComputeCapability(self, handle: Any) -> tuple[int, int]:
        return handle[1]  # type: ignore[no-any-return]


def test_gpus_and_driver_are_told_and_nvml_is_closed() -> None:
    nvml = FakeNvml(("NVIDIA H100 80GB HBM3", (9, 0)), (b"Tesla V100", (7, 0)))
    host = probe_host_gpus(nvml)
    assert host.driver_release == DriverRelease.parse("580.65.06")
    assert [gpu.asked for gpu in host.gpus] == ["NVIDIA H100 80GB HBM3", "Tesla V100"]
    assert host.gpus[1].compute_capability == ComputeCapability(7, 0)
    assert host.found_via == "NVML"
    assert not nvml.is_open


def test_a_lost_gpu_does_not_hide_the_others() -> None:
    nvml = FakeNvml(FakeNvmlError(15, "GPU is lost"), ("NVIDIA A100", (8, 0)))
    host = probe_host_gpus(nvml)
    assert [gpu.asked for gpu in host.gpus] == ["NVIDIA A100"]
    assert host.found_via == "NVML; GPU 0 does not answer: GPU is lost"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (FakeNvmlError(12, "NVML Shared Library Not Found"), "no NVIDIA driver is installed"),
        (FakeNvmlError(9, "Driver Not Loaded"), "the NVIDIA kernel driver is not loaded"),
        (FakeNvmlError(18, "Driver/library version mismatch"), "a reboot after an upgrade"),
        (FakeNvmlError(4, "Insufficient Permissions"), "no right to use the GPU devices"),
        (FakeNvmlError(999, "Unknown Error"), "NVML: Unknown Error"),
    ],
)
def test_a_silent_nvml_is_a_reason_not_an_exception(error: FakeNvmlError, expected: str) -> None:
    host = probe_host_gpus(FakeNvml(init=error))
    assert host.gpus == ()
    assert host.driver_release is None
    assert expected in host.found_via
    assert expected in probe_inventory(FakeNvml(init=error)).why


def test_a_driver_without_gpus_is_told_apart_from_no_driver() -> None:
    host = probe_host_gpus(FakeNvml())
    assert host.found_via == "NVML lists no GPU"
    assert host.driver_release == DriverRelease.parse("580.65.06")


def test_a_driver_that_is_no_release_leaves_the_gpus_known() -> None:
    host = probe_host_gpus(FakeNvml(("NVIDIA A100", (8, 0)), driver="590.dev-internal"))
    assert host.driver_release is None
    assert len(host.gpus) == 1
