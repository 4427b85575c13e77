"""Numbers of NVML and of the CUDA driver that checks must know, with the names users search for.

Held against ``nvidia-ml-py`` by a test. Source: NVML API reference; CUDA driver API, ``CUresult``.
"""

from __future__ import annotations

NOT_SUPPORTED = 3
NO_PERMISSION = 4
DRIVER_NOT_LOADED = 9
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
RESET_REQUIRED = 16
OPERATING_SYSTEM = 17
VERSION_MISMATCH = 18
UNKNOWN = 999

NVML_NAMES = {
    0: "SUCCESS",
    1: "UNINITIALIZED",
    2: "INVALID_ARGUMENT",
    3: "NOT_SUPPORTED",
    4: "NO_PERMISSION",
    6: "NOT_FOUND",
    7: "INSUFFICIENT_SIZE",
    8: "INSUFFICIENT_POWER",
    9: "DRIVER_NOT_LOADED",
    10: "TIMEOUT",
    11: "IRQ_ISSUE",
    12: "LIBRARY_NOT_FOUND",
    13: "FUNCTION_NOT_FOUND",
    14: "CORRUPTED_INFOROM",
    15: "GPU_IS_LOST",
    16: "RESET_REQUIRED",
    17: "OPERATING_SYSTEM",
    18: "LIB_RM_VERSION_MISMATCH",
    19: "IN_USE",
    20: "MEMORY",
    27: "NOT_READY",
    28: "GPU_NOT_FOUND",
    999: "UNKNOWN",
}

CUDA_NAMES = {
    0: "CUDA_SUCCESS",
    1: "CUDA_ERROR_INVALID_VALUE",
    2: "CUDA_ERROR_OUT_OF_MEMORY",
    3: "CUDA_ERROR_NOT_INITIALIZED",
    34: "CUDA_ERROR_STUB_LIBRARY",
    35: "CUDA_ERROR_INSUFFICIENT_DRIVER",
    46: "CUDA_ERROR_DEVICE_UNAVAILABLE",
    100: "CUDA_ERROR_NO_DEVICE",
    101: "CUDA_ERROR_INVALID_DEVICE",
    209: "CUDA_ERROR_NO_BINARY_FOR_GPU",
    222: "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
    304: "CUDA_ERROR_OPERATING_SYSTEM",
    801: "CUDA_ERROR_NOT_SUPPORTED",
    802: "CUDA_ERROR_SYSTEM_NOT_READY",
    803: "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
    804: "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
    999: "CUDA_ERROR_UNKNOWN",
}

COMPUTE_MODE_PROHIBITED = 2
COMPUTE_MODE_EXCLUSIVE = 3

FABRIC_NOT_SUPPORTED = 0
FABRIC_COMPLETED = 3
FABRIC_STATES = {0: "not supported", 1: "not started", 2: "in progress", 3: "completed"}

RECOVERY_ACTIONS = {
    0: "none",
    1: "reset the GPU",
    2: "reboot the node",
    3: "drain peer-to-peer traffic",
    4: "drain the GPU and reset it",
    5: "recover the IMEX domain",
    6: "reset the bus",
    7: "reboot the system",
}

# Bits of the clocks event reasons.
EVENT_HW_SLOWDOWN = 0x8
EVENT_HW_THERMAL = 0x40
EVENT_HW_POWER_BRAKE = 0x80
EVENTS = {
    0x1: "idle",
    0x2: "application clocks",
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
    0x100: "display clocks",
}

TOPOLOGY = {
    0: "same board",
    10: "one PCIe switch",
    20: "several PCIe switches",
    30: "one host bridge",
    40: "one NUMA node",
    50: "across NUMA nodes",
}


def nvml_name(code: int) -> str:
    """Write an NVML code as users search for it: ``NVML_ERROR_GPU_IS_LOST (15)``."""
    name = NVML_NAMES.get(code)
    if name is None:
        return f"NVML error {code}"
    return "NVML_SUCCESS" if code == 0 else f"NVML_ERROR_{name} ({code})"


def cuda_name(code: int) -> str:
    """Write a driver API code as users search for it: ``CUDA_ERROR_SYSTEM_NOT_READY (802)``."""
    name = CUDA_NAMES.get(code)
    return f"{name} ({code})" if name else f"CUDA error {code}"
