"""What NVML says of the driver and of each GPU, by ctypes: no pynvml, no nvidia-smi.

Every field is its value or ``{"nvml": code}``: 3 means that this GPU or driver has no such thing,
everything else that the question itself failed. Nothing is set, reset or started.
"""

from __future__ import annotations

import ctypes
import os
import time

from ._common import Context

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

_FUNCTION_NOT_FOUND = 13
_INSUFFICIENT_SIZE = 7
_FIELD_RECOVERY_ACTION = 230
_NVLINKS = 18
_PAIRS_UP_TO = 16
_MIG_UP_TO = 16


class _Pci(ctypes.Structure):
    _fields_ = [
        ("legacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("pci_device_id", ctypes.c_uint),
        ("pci_subsystem_id", ctypes.c_uint),
        ("bus_id", ctypes.c_char * 32),
    ]


class _Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


class _Field(ctypes.Structure):
    _fields_ = [
        ("field", ctypes.c_uint),
        ("scope", ctypes.c_uint),
        ("timestamp", ctypes.c_longlong),
        ("latency", ctypes.c_longlong),
        ("kind", ctypes.c_int),
        ("result", ctypes.c_uint),
        ("value", ctypes.c_ulonglong),
    ]


class _Fabric(ctypes.Structure):
    _fields_ = [
        ("cluster", ctypes.c_ubyte * 16),
        ("status", ctypes.c_uint),
        ("clique", ctypes.c_uint),
        ("state", ctypes.c_ubyte),
        ("spare", ctypes.c_ubyte * 64),
    ]


class _ConfidentialState(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint) for name in ("environment", "feature", "dev_tools")]


class _Library:
    """The loaded library: call by name, get a value or ``{"nvml": code}``."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library

    def call(self, name: str, *arguments: Any) -> int:
        """Return the code of a call; 13 (function not found) when the library has no such name."""
        try:
            function = getattr(self.library, name)
        except AttributeError:
            return _FUNCTION_NOT_FOUND
        function.restype = ctypes.c_uint
        return int(function(*arguments))

    def text(self, name: str, *before: Any) -> Any:
        """Return what a call writes into a buffer of characters."""
        buffer = ctypes.create_string_buffer(96)
        code = self.call(name, *before, buffer, ctypes.c_uint(len(buffer)))
        return buffer.value.decode("utf-8", "replace") if code == 0 else {"nvml": code}

    def numbers(self, name: str, *before: Any, count: int = 1, kind: Any = ctypes.c_uint) -> Any:
        """Return what a call writes behind one or more pointers."""
        values = [kind() for _ in range(count)]
        code = self.call(name, *before, *(ctypes.byref(value) for value in values))
        if code:
            return {"nvml": code}
        return values[0].value if count == 1 else [value.value for value in values]

    def struct(self, name: str, handle: Any, value: Any, read: Callable[[Any], Any]) -> Any:
        """Return what ``read`` takes from the structure a call fills."""
        code = self.call(name, handle, ctypes.byref(value))
        return read(value) if code == 0 else {"nvml": code}


def probe(context: Context) -> dict[str, Any]:
    """Return driver, CUDA version and each GPU.

    Keys: ``load`` {path, real, error}, ``init`` (code, ``None`` when not loaded), ``init_s``,
    ``driver``, ``driver_cuda`` (12080), ``count``, ``gpus`` [{index, uuid, name, bdf, minor,
    capability, memory {total, free, used}, ...}], ``pairs`` [{a, b, ancestor, p2p_read,
    p2p_nvlink}], ``confidential``. See :func:`_gpu` for the fields of a GPU.
    """
    if not context.is_real:
        return {"load": {"path": None, "error": "not this machine"}, "init": None, "gpus": []}
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError as error:
        return {"load": {"path": None, "error": str(error)}, "init": None, "gpus": []}
    path = _mapped("libnvidia-ml.so")
    facts = {
        "load": {"path": path, "real": os.path.realpath(path) if path else None, "error": None}
    }  # type: dict[str, Any]
    context.tell(facts)
    nvml = _Library(library)
    begun = time.monotonic()
    facts["init"] = nvml.call("nvmlInit_v2")
    facts["init_s"] = round(time.monotonic() - begun, 4)
    context.tell(facts)
    facts["driver"] = nvml.text("nvmlSystemGetDriverVersion")
    if facts["init"]:
        facts["gpus"] = []
        return facts
    facts["driver_cuda"] = nvml.numbers("nvmlSystemGetCudaDriverVersion_v2", kind=ctypes.c_int)
    facts["count"] = nvml.numbers("nvmlDeviceGetCount_v2")
    context.tell(facts)
    handles = {}
    facts["gpus"] = []
    count = facts["count"] if isinstance(facts["count"], int) else 0
    for index in range(count):
        handle = ctypes.c_void_p()
        code = nvml.call(
            "nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle)
        )
        if code:
            facts["gpus"].append({"index": index, "handle": {"nvml": code}})
        else:
            handles[index] = handle
            facts["gpus"].append(_gpu(nvml, handle, index))
        context.tell({"gpus": facts["gpus"]})
    facts["pairs"] = _pairs(nvml, handles) if len(handles) <= _PAIRS_UP_TO else []
    state = _ConfidentialState()
    code = nvml.call("nvmlSystemGetConfComputeState", ctypes.byref(state))
    facts["confidential"] = state.feature if code == 0 else {"nvml": code}
    if facts["confidential"] == 1:
        facts["confidential_ready"] = nvml.numbers("nvmlSystemGetConfComputeGpusReadyState")
    nvml.call("nvmlShutdown")
    return facts


def _gpu(nvml: _Library, handle: Any, index: int) -> dict[str, Any]:
    """Return the fields of one GPU; bytes, watts, degrees Celsius, generations and lanes."""
    capability = nvml.numbers(
        "nvmlDeviceGetCudaComputeCapability", handle, count=2, kind=ctypes.c_int
    )
    return {
        "index": index,
        "handle": None,
        "uuid": nvml.text("nvmlDeviceGetUUID", handle),
        "name": nvml.text("nvmlDeviceGetName", handle),
        "bdf": nvml.struct(
            "nvmlDeviceGetPciInfo_v3", handle, _Pci(), lambda pci: pci.bus_id.decode().lower()
        ),
        "pci_id": nvml.struct(
            "nvmlDeviceGetPciInfo_v3", handle, _Pci(), lambda pci: hex(pci.pci_device_id)
        ),
        "minor": nvml.numbers("nvmlDeviceGetMinorNumber", handle),
        "capability": "{}.{}".format(*capability) if isinstance(capability, list) else capability,
        "brand": nvml.numbers("nvmlDeviceGetBrand", handle),
        "memory": nvml.struct("nvmlDeviceGetMemoryInfo", handle, _Memory(), _as_dict),
        "bar1": nvml.struct("nvmlDeviceGetBAR1MemoryInfo", handle, _Memory(), _as_dict),
        "persistence": nvml.numbers("nvmlDeviceGetPersistenceMode", handle),
        "compute_mode": nvml.numbers("nvmlDeviceGetComputeMode", handle),
        "mig": _mig(nvml, handle),
        "ecc_mode": nvml.numbers("nvmlDeviceGetEccMode", handle, count=2),
        "ecc": {
            kind: nvml.numbers(
                "nvmlDeviceGetTotalEccErrors",
                handle,
                ctypes.c_uint(error),
                ctypes.c_uint(counter),
                kind=ctypes.c_ulonglong,
            )
            for kind, error, counter in (
                ("corrected_volatile", 0, 0),
                ("uncorrected_volatile", 1, 0),
                ("corrected_aggregate", 0, 1),
                ("uncorrected_aggregate", 1, 1),
            )
        },
        "ecc_sram_uncorrected": nvml.numbers(
            "nvmlDeviceGetMemoryErrorCounter",
            handle,
            ctypes.c_uint(1),
            ctypes.c_uint(1),
            ctypes.c_uint(7),
            kind=ctypes.c_ulonglong,
        ),
        "remapped_rows": nvml.numbers("nvmlDeviceGetRemappedRows", handle, count=4),
        "retired_pages": _retired(nvml, handle),
        "power_limit_w": _milli(nvml.numbers("nvmlDeviceGetEnforcedPowerLimit", handle)),
        "power_default_w": _milli(nvml.numbers("nvmlDeviceGetPowerManagementDefaultLimit", handle)),
        "power_w": _milli(nvml.numbers("nvmlDeviceGetPowerUsage", handle)),
        "temperature_c": nvml.numbers("nvmlDeviceGetTemperature", handle, ctypes.c_uint(0)),
        "slowdown_c": nvml.numbers("nvmlDeviceGetTemperatureThreshold", handle, ctypes.c_uint(1)),
        "clock_mhz": nvml.numbers("nvmlDeviceGetClockInfo", handle, ctypes.c_uint(1)),
        "clock_max_mhz": nvml.numbers("nvmlDeviceGetMaxClockInfo", handle, ctypes.c_uint(1)),
        "clock_application_mhz": nvml.numbers(
            "nvmlDeviceGetApplicationsClock", handle, ctypes.c_uint(1)
        ),
        "clock_application_default_mhz": nvml.numbers(
            "nvmlDeviceGetDefaultApplicationsClock", handle, ctypes.c_uint(1)
        ),
        "events": nvml.numbers(
            "nvmlDeviceGetCurrentClocksThrottleReasons", handle, kind=ctypes.c_ulonglong
        ),
        "pcie": {
            "gen": nvml.numbers("nvmlDeviceGetCurrPcieLinkGeneration", handle),
            "gen_max": nvml.numbers("nvmlDeviceGetMaxPcieLinkGeneration", handle),
            "width": nvml.numbers("nvmlDeviceGetCurrPcieLinkWidth", handle),
            "width_max": nvml.numbers("nvmlDeviceGetMaxPcieLinkWidth", handle),
            "replays": nvml.numbers("nvmlDeviceGetPcieReplayCounter", handle),
        },
        "nvlinks": _nvlinks(nvml, handle),
        "fabric": nvml.struct(
            "nvmlDeviceGetGpuFabricInfo",
            handle,
            _Fabric(),
            lambda fabric: {"state": fabric.state, "status": fabric.status},
        ),
        "recovery_action": _recovery_action(nvml, handle),
        "inforom": nvml.call("nvmlDeviceValidateInforom", handle),
        "display_active": nvml.numbers("nvmlDeviceGetDisplayActive", handle),
        "virtualization": nvml.numbers("nvmlDeviceGetVirtualizationMode", handle),
        "processes": _processes(nvml, handle),
    }


def _as_dict(memory: Any) -> dict[str, int]:
    return {"total": memory.total, "free": memory.free, "used": memory.used}


def _milli(value: Any) -> Any:
    return value / 1000 if isinstance(value, int) else value


def _mig(nvml: _Library, handle: Any) -> Any:
    mode = nvml.numbers("nvmlDeviceGetMigMode", handle, count=2)
    if not isinstance(mode, list):
        return mode
    instances = []
    for number in range(_MIG_UP_TO if mode[0] else 0):
        instance = ctypes.c_void_p()
        code = nvml.call(
            "nvmlDeviceGetMigDeviceHandleByIndex",
            handle,
            ctypes.c_uint(number),
            ctypes.byref(instance),
        )
        if code == 0:
            instances.append(
                {
                    "uuid": nvml.text("nvmlDeviceGetUUID", instance),
                    "memory": nvml.struct("nvmlDeviceGetMemoryInfo", instance, _Memory(), _as_dict),
                }
            )
    return {"current": mode[0], "pending": mode[1], "instances": instances}


def _retired(nvml: _Library, handle: Any) -> Any:
    counts = {}
    for name, cause in (("single_bit", 0), ("double_bit", 1)):
        number = ctypes.c_uint(0)
        code = nvml.call(
            "nvmlDeviceGetRetiredPages", handle, ctypes.c_uint(cause), ctypes.byref(number), None
        )
        counts[name] = number.value if code in (0, _INSUFFICIENT_SIZE) else {"nvml": code}
    counts["pending"] = nvml.numbers("nvmlDeviceGetRetiredPagesPendingStatus", handle)
    return counts


def _nvlinks(nvml: _Library, handle: Any) -> Any:
    """Return the state of each link (1 up, 0 down) or the code of the first when there are none."""
    links = []
    for number in range(_NVLINKS):
        state = nvml.numbers("nvmlDeviceGetNvLinkState", handle, ctypes.c_uint(number))
        if not isinstance(state, int):
            if number == 0:
                return state
            break
        links.append(state)
    return links


def _recovery_action(nvml: _Library, handle: Any) -> Any:
    field = _Field(field=_FIELD_RECOVERY_ACTION)
    code = nvml.call("nvmlDeviceGetFieldValues", handle, ctypes.c_int(1), ctypes.byref(field))
    code = code or field.result
    return {"nvml": code} if code else field.value & 0xFFFFFFFF


def _processes(nvml: _Library, handle: Any) -> Any:
    """Return how many compute processes NVML knows; in a container it may not see any."""
    number = ctypes.c_uint(0)
    code = nvml.call("nvmlDeviceGetComputeRunningProcesses_v3", handle, ctypes.byref(number), None)
    return number.value if code in (0, _INSUFFICIENT_SIZE) else {"nvml": code}


def _pairs(nvml: _Library, handles: dict[int, Any]) -> list[dict[str, Any]]:
    pairs = []
    for a in handles:
        for b in handles:
            if a < b:
                one, other = handles[a], handles[b]
                pairs.append(
                    {
                        "a": a,
                        "b": b,
                        "ancestor": nvml.numbers("nvmlDeviceGetTopologyCommonAncestor", one, other),
                        "p2p_read": nvml.numbers(
                            "nvmlDeviceGetP2PStatus", one, other, ctypes.c_uint(0)
                        ),
                        "p2p_nvlink": nvml.numbers(
                            "nvmlDeviceGetP2PStatus", one, other, ctypes.c_uint(2)
                        ),
                    }
                )
    return pairs


def _mapped(name: str) -> str | None:
    """Return the file this process has mapped under a name: the one the loader really took."""
    try:
        with open("/proc/self/maps") as stream:
            for line in stream:
                path = line.rstrip("\n").partition("/")[2]
                if os.path.basename(path).startswith(name):
                    return "/" + path
    except OSError:
        pass
    return None


PROBES = {"host.nvml": probe}
