"""The GPUs and the driver of this host, by NVML; ``nvidia-smi`` is neither run nor parsed."""

# ruff: noqa: N802, D102 - the protocol has NVML's own names

from __future__ import annotations

import contextlib
from typing import Any, Protocol

from gpuenv.errors import ConfigurationError
from gpuenv.spec import GpuTarget, HostGpus
from gpuenv.versions import ComputeCapability, DriverRelease


class Nvml(Protocol):
    """What is used of the ``pynvml`` module; tests bring their own."""

    NVMLError: type[Exception]

    def nvmlInit(self) -> None: ...

    def nvmlShutdown(self) -> None: ...

    def nvmlSystemGetDriverVersion(self) -> str | bytes: ...

    def nvmlDeviceGetCount(self) -> int: ...

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any: ...

    def nvmlDeviceGetName(self, handle: Any) -> str | bytes: ...

    def nvmlDeviceGetCudaComputeCapability(self, handle: Any) -> tuple[int, int]: ...


def probe_host_gpus(nvml: Nvml | None = None) -> HostGpus:
    """Ask NVML for the driver and the GPUs of this host; nothing is raised.

    A GPU that does not answer is left out and named in ``found_via``; where NVML itself does not
    answer, ``found_via`` says why.

    Args:
        nvml: The ``pynvml`` module or a stand-in, imported when not given.
    """
    if nvml is None:
        try:
            import pynvml  # type: ignore[import-untyped]
        except ImportError as error:
            return HostGpus(
                found_via=f"the Python package nvidia-ml-py cannot be imported: {error}"
            )
        nvml = pynvml
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return HostGpus(found_via=explain_nvml_error(error))
    try:
        return _ask(nvml)
    finally:
        with contextlib.suppress(nvml.NVMLError):  # the answer is complete without it
            nvml.nvmlShutdown()


def _ask(nvml: Nvml) -> HostGpus:
    try:
        driver = _parse_driver(_text(nvml.nvmlSystemGetDriverVersion()))
        count = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError as error:
        return HostGpus(found_via=explain_nvml_error(error))
    gpus: list[GpuTarget] = []
    silent: list[str] = []
    for index in range(count):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
            name = _text(nvml.nvmlDeviceGetName(handle))
        except nvml.NVMLError as error:
            silent.append(f"GPU {index} does not answer: {error}")
            continue
        gpus.append(GpuTarget(asked=name, compute_capability=ComputeCapability(major, minor)))
    if not gpus and not silent:
        return HostGpus(driver_release=driver, found_via="NVML lists no GPU")
    found_via = "; ".join(["NVML", *silent])
    return HostGpus(driver_release=driver, gpus=tuple(gpus), found_via=found_via)


def explain_nvml_error(error: Exception) -> str:
    """Say what an NVML error means for someone who asked for nothing in particular.

    NVML's own words for it are kept: ``Driver Not Loaded``, ``NVML Shared Library Not Found``.
    """
    number = getattr(error, "value", None)
    meaning = _MEANINGS.get(number, "") if isinstance(number, int) else ""
    return f"{meaning} (NVML: {error})" if meaning else f"NVML: {error}"


# By the numbers of nvml.h, which pynvml's errors carry.
_MEANINGS = {
    4: "no right to use the GPU devices",
    9: "the NVIDIA kernel driver is not loaded",
    12: "no NVIDIA driver is installed",
    18: "the NVIDIA driver and its library differ; a reboot after an upgrade mends that",
}


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _parse_driver(text: str) -> DriverRelease | None:
    try:
        return DriverRelease.parse(text)
    except ConfigurationError:
        return None  # a development build; the GPUs still say what they are
