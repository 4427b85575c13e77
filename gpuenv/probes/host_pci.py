"""What the PCI bus sees: GPUs, NVSwitches, the bridges above them, and the IOMMU."""

from __future__ import annotations

import os

from ._common import Context

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_DEVICES = "/sys/bus/pci/devices"
_NVIDIA = "0x10de"
_EXTENDED_CAPABILITY_ACS = 0x0D


def probe(context: Context) -> dict[str, Any]:
    """Return the NVIDIA devices and what stands between them.

    Keys: ``readable`` (False where there is no PCI bus to see), ``gpus`` [{bdf, vendor, device,
    class, driver, numa, lost, link, bars_mib, display}], ``nvswitches`` [bdf], ``bridges`` [{bdf,
    acs}] above GPUs with ``acs`` ``None`` where only root may read it, ``iommu`` {active, types,
    cmdline}.
    """
    names = context.names(_DEVICES)
    gpus, nvswitches = [], []
    for bdf in names:
        folder = _DEVICES + "/" + bdf
        if context.word(folder + "/vendor") != _NVIDIA:
            continue
        kind = context.word(folder + "/class") or ""
        if kind.startswith("0x03"):
            gpus.append(_gpu(context, folder, bdf, kind))
        elif kind.startswith("0x0680"):
            nvswitches.append(bdf)
    return {
        "readable": bool(names),
        "gpus": gpus,
        "nvswitches": nvswitches,
        "bridges": _bridges(context, [gpu["bdf"] for gpu in gpus]),
        "iommu": {
            "active": bool(context.names("/sys/class/iommu")),
            "types": sorted(
                {
                    word
                    for group in context.names("/sys/kernel/iommu_groups")[:64]
                    for word in [context.word("/sys/kernel/iommu_groups/" + group + "/type")]
                    if word
                }
            ),
            "cmdline": [
                word
                for word in (context.read("/proc/cmdline") or "").split()
                if "iommu" in word or word.startswith("pci=")
            ],
        },
    }


def _gpu(context: Context, folder: str, bdf: str, kind: str) -> dict[str, Any]:
    driver = context.link(folder + "/driver")
    return {
        "bdf": bdf,
        "vendor": _NVIDIA,
        "device": context.word(folder + "/device"),
        "subsystem": context.word(folder + "/subsystem_device"),
        "class": kind,
        "driver": os.path.basename(driver) if driver else None,
        "numa": context.number(folder + "/numa_node"),
        "lost": _is_lost(context, folder),
        "link": {
            name: context.word(folder + "/" + name)
            for name in (
                "current_link_speed",
                "max_link_speed",
                "current_link_width",
                "max_link_width",
            )
        },
        "bars_mib": _bars_mib(context.read(folder + "/resource") or ""),
        "display": context.word(folder + "/boot_vga") == "1",
        "virtual_function": context.exists(folder + "/physfn"),
    }


def _is_lost(context: Context, folder: str) -> bool | None:
    """Say whether the configuration space reads as all ones: the device has left the bus."""
    head = _config(context, folder, 4)
    return None if len(head) < 4 else head == b"\xff\xff\xff\xff"


def _config(context: Context, folder: str, size: int) -> bytes:
    try:
        with open(context.path(folder + "/config"), "rb") as stream:
            return stream.read(size)
    except OSError:
        return b""


def _bars_mib(text: str) -> list[int]:
    """Read the sizes of the six BARs from lines ``0x... 0x... 0x...`` (start, end, flags)."""
    sizes = []
    for line in text.splitlines()[:6]:
        words = line.split()
        if len(words) == 3:
            start, end = int(words[0], 16), int(words[1], 16)
            if end > start:
                sizes.append((end - start + 1) >> 20)
    return sizes


def _bridges(context: Context, gpus: list[str]) -> list[dict[str, Any]]:
    found = {}
    for bdf in gpus:
        # The link leads through every bridge: ../../../devices/pci0000:00/0000:00:01.0/0000:01:00.0
        for part in (context.link(_DEVICES + "/" + bdf) or "").split("/")[:-1]:
            if part.count(":") == 2 and part not in found:
                found[part] = {"bdf": part, "acs": _acs(context, _DEVICES + "/" + part)}
    return [found[bdf] for bdf in sorted(found)]


def _acs(context: Context, folder: str) -> bool | None:
    """Say whether Access Control Services redirect peer traffic upwards; root only.

    The extended capabilities begin at 0x100: id (16 bits), version and next (12 bits). The control
    register of ACS is 6 bytes in; bits 2, 3 and 4 redirect requests, completions, upstream.
    """
    config = _config(context, folder, 4096)
    if len(config) <= 0x104:
        return None
    offset, seen = 0x100, set()
    while 0x100 <= offset <= len(config) - 8 and offset not in seen:
        seen.add(offset)
        header = int.from_bytes(config[offset : offset + 4], "little")
        if header & 0xFFFF == _EXTENDED_CAPABILITY_ACS:
            control = int.from_bytes(config[offset + 6 : offset + 8], "little")
            return bool(control & 0b11100)
        offset = header >> 20
    return False


PROBES = {"host.pci": probe}
