"""The GPUs of another host, from what the doctor's probes said there; pure.

The same two answers as :mod:`gpuenv.host.nvml` and :mod:`gpuenv.host.gpu_inventory` give for this
host. Every field of ``host.nvml`` may be an error code instead, and then counts as not known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuenv.errors import ConfigurationError
from gpuenv.host.gpu_inventory import GpuInventory, HostGpu
from gpuenv.spec import GpuTarget, HostGpus
from gpuenv.versions import ComputeCapability, DriverRelease

if TYPE_CHECKING:
    from collections.abc import Mapping


def host_gpus_told(nvml: Mapping[str, Any], *, place: str) -> HostGpus:
    """Return what a host offers to ``--cuda auto``.

    Args:
        nvml: The facts of the probe ``host.nvml``.
        place: What the user calls the host.
    """
    try:
        driver = DriverRelease.parse(str(nvml.get("driver")))
    except ConfigurationError:
        driver = None
    gpus: list[GpuTarget] = []
    silent: list[str] = []
    for gpu in _rows(nvml):
        try:
            capability = ComputeCapability.parse(str(gpu.get("capability")))
        except ConfigurationError:
            silent.append(f"GPU {gpu.get('index')} does not answer")
            continue
        gpus.append(GpuTarget(asked=_text(gpu.get("name")), compute_capability=capability))
    if not gpus and not silent:
        return HostGpus(driver_release=driver, found_via=f"{place}: {_why(nvml)}")
    found_via = "; ".join([f"NVML on {place}", *silent])
    return HostGpus(driver_release=driver, gpus=tuple(gpus), found_via=found_via)


def inventory_told(
    nvml: Mapping[str, Any], nodes: Mapping[str, Any], *, place: str
) -> GpuInventory:
    """Return which GPUs a host has and how full they are.

    Args:
        nvml: The facts of the probe ``host.nvml``.
        nodes: Those of ``host.nodes``.
        place: What the user calls the host.
    """
    gpus = tuple(
        HostGpu(
            device_index=int(gpu["index"]),
            uuid=_text(gpu.get("uuid")),
            name=_text(gpu.get("name")),
            minor=_number(gpu.get("minor")),
            memory_bytes=_number(_mapping(gpu.get("memory")).get("total")),
            memory_used_bytes=_number(_mapping(gpu.get("memory")).get("used")),
            mig_uuids=tuple(
                _text(instance.get("uuid"))
                for instance in _listed(_mapping(gpu.get("mig")).get("instances"))
                if _text(instance.get("uuid"))
            ),
        )
        for gpu in _rows(nvml)
        if isinstance(gpu.get("index"), int) and _text(gpu.get("uuid"))
    )
    listed = _mapping(nodes.get("nodes"))
    return GpuInventory(
        gpus=gpus,
        why="" if gpus else f"{place}: {_why(nvml)}",
        nodes=tuple(
            sorted(path for path, entry in listed.items() if _mapping(entry).get("errno") is None)
        ),
    )


def _why(nvml: Mapping[str, Any]) -> str:
    """Say why a host lists no GPU."""
    load = _mapping(nvml.get("load"))
    if load.get("error"):
        return "no NVIDIA driver is installed"
    if nvml.get("init"):
        return f"NVML does not start there (code {nvml['init']})"
    return "NVML lists no GPU"


def _rows(nvml: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [gpu for gpu in _listed(nvml.get("gpus")) if not gpu.get("handle")]


def _listed(value: object) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
