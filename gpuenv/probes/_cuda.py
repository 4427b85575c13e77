"""The driver's own libraries by ctypes: bus ids, and NVML sampled while something runs.

NVML is asked field by field; a field that a GPU does not have is absent, never an error.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any

_TEMPERATURE_GPU = 0
_THRESHOLD_SLOWDOWN = 1
_CLOCK_SM = 1


def pci_bus_id(ordinal: int) -> str | None:
    """Return the bus id of a CUDA ordinal as the driver spells it, ``0000:0A:00.0``."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    device = ctypes.c_int(0)
    text = ctypes.create_string_buffer(32)
    if cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), ordinal):
        return None
    if cuda.cuDeviceGetPCIBusId(text, len(text), device):
        return None
    return text.value.decode("ascii", "replace")


class Nvml:
    """One GPU in NVML; every question answers ``None`` where there is no answer."""

    def __init__(self, bus_id: str | None) -> None:
        """Open the GPU with this bus id."""
        self._library: Any = None
        self._handle = ctypes.c_void_p()
        if bus_id is None:
            return
        try:
            library = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return
        name = ctypes.c_char_p(bus_id.encode())
        if library.nvmlInit_v2() == 0 and (
            library.nvmlDeviceGetHandleByPciBusId_v2(name, ctypes.byref(self._handle)) == 0
        ):
            self._library = library

    def number(self, function: str, *arguments: int, wide: bool = False) -> int | None:
        """Ask a function whose last argument is a pointer to one unsigned number."""
        call = getattr(self._library, function, None) if self._library is not None else None
        if call is None:
            return None
        value = ctypes.c_ulonglong(0) if wide else ctypes.c_uint(0)
        code = call(self._handle, *(ctypes.c_uint(n) for n in arguments), ctypes.byref(value))
        return int(value.value) if code == 0 else None

    def event_reasons(self) -> int | None:
        """Return the reasons why clocks are lowered, a bit field; older drivers say throttle."""
        for name in (
            "nvmlDeviceGetCurrentClocksEventReasons",
            "nvmlDeviceGetCurrentClocksThrottleReasons",
        ):
            value = self.number(name, wide=True)
            if value is not None:
                return value
        return None

    def utilization(self) -> int | None:
        """Return the percentage of the last interval in which a kernel ran."""
        if self._library is None:
            return None
        rates = (ctypes.c_uint * 2)()
        code = self._library.nvmlDeviceGetUtilizationRates(self._handle, rates)
        return int(rates[0]) if code == 0 else None

    def fixed(self) -> dict[str, Any]:
        """Return what does not change while something runs."""
        return {
            "pcie_gen_max": self.number("nvmlDeviceGetMaxPcieLinkGeneration"),
            "pcie_width_max": self.number("nvmlDeviceGetMaxPcieLinkWidth"),
            "sm_clock_max": self.number("nvmlDeviceGetMaxClockInfo", _CLOCK_SM),
            "slowdown_celsius": self.number(
                "nvmlDeviceGetTemperatureThreshold", _THRESHOLD_SLOWDOWN
            ),
            "replays": self.number("nvmlDeviceGetPcieReplayCounter"),
            "power_limit_mw": self.number("nvmlDeviceGetEnforcedPowerLimit"),
        }

    def sample(self) -> dict[str, int | None]:
        """Return what does change."""
        return {
            "pcie_gen": self.number("nvmlDeviceGetCurrPcieLinkGeneration"),
            "pcie_width": self.number("nvmlDeviceGetCurrPcieLinkWidth"),
            "sm_clock": self.number("nvmlDeviceGetClockInfo", _CLOCK_SM),
            "celsius": self.number("nvmlDeviceGetTemperature", _TEMPERATURE_GPU),
            "power_mw": self.number("nvmlDeviceGetPowerUsage"),
            "reasons": self.event_reasons(),
        }


class Sampling:
    """Sample a GPU in a thread, from ``start`` to ``stop`` or while the ``with`` block runs."""

    def __init__(self, nvml: Nvml, interval_s: float = 0.05) -> None:
        """Take the GPU and how often to look."""
        self._nvml = nvml
        self._interval_s = interval_s
        self._over = threading.Event()
        self._samples: list[dict[str, int | None]] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Sampling:  # noqa: PYI034 - Self is newer than Python 3.8
        """Begin."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End."""
        self.stop()

    def start(self) -> None:
        """Begin to sample."""
        self._thread.start()

    def stop(self) -> None:
        """End, after a last look."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            last = self._over.wait(self._interval_s)
            self._samples.append(self._nvml.sample())
            if last:
                return

    def summary(self) -> dict[str, Any]:
        """Return lowest and highest of each field, and how often each event reason was set."""
        facts: dict[str, Any] = {"samples": len(self._samples)}
        for field in ("pcie_gen", "pcie_width", "sm_clock", "celsius", "power_mw"):
            values = [s[field] for s in self._samples if s[field] is not None]
            facts[field] = [min(values), max(values)] if values else None
        reasons = [s["reasons"] for s in self._samples if s["reasons"] is not None]
        bits: dict[str, int] = {}
        for value in reasons:
            for bit in range(value.bit_length()):
                if value >> bit & 1:
                    bits[hex(1 << bit)] = bits.get(hex(1 << bit), 0) + 1
        facts["reasons"] = bits if reasons else None
        return facts
