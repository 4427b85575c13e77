"""What a place is made of, in two or three lines: system, GPUs and driver, torch.

Everything here reads facts that may be missing, of the wrong type or from another version, and
then says less.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuenv.checks.model import Facts


def place_facts(facts: Facts) -> tuple[str, ...]:
    """Return the lines that say what was looked at."""
    return tuple(line for line in (_system(facts), _gpus(facts), _software(facts)) if line)


def _system(facts: Facts) -> str:
    machine = _mapping(facts.get("host.machine"))
    words = [_text(_mapping(machine.get("os")).get("pretty"))]
    container = _text(_mapping(machine.get("container")).get("kind"))
    if container:
        words.append(f"{container} container")
    if machine.get("wsl"):
        words.append("WSL")
    virtual = _text(_mapping(machine.get("virtual")).get("vendor"))
    if virtual:
        words.append(f"virtual machine ({virtual})")
    if _text(machine.get("kernel")):
        words.append(f"kernel {machine['kernel']}")
    if isinstance(machine.get("cpus"), int):
        words.append(f"{machine['cpus']} CPUs")
    memory = machine.get("memory_mib")
    if isinstance(memory, int):
        words.append(f"{memory / 1024:.0f} GiB")
    return ", ".join(word for word in words if word)


def _gpus(facts: Facts) -> str:
    nvml = _mapping(facts.get("host.nvml"))
    kinds: Counter[str] = Counter()
    for gpu in nvml.get("gpus") or () if isinstance(nvml.get("gpus"), (list, tuple)) else ():
        fields = _mapping(gpu)
        words = [_text(fields.get("name")) or "unnamed GPU"]
        total = _mapping(fields.get("memory")).get("total")
        if isinstance(total, int):
            words.append(f"{total / 2**30:.0f} GiB")
        capability = _text(fields.get("capability"))
        if capability:
            words.append(f"sm_{capability.replace('.', '')}")
        kinds[", ".join(words)] += 1
    parts = [f"{count} x {kind}" for kind, count in kinds.items()]
    if not parts:
        pci = _mapping(facts.get("host.pci")).get("gpus")
        if isinstance(pci, (list, tuple)):
            number = "one NVIDIA GPU" if len(pci) == 1 else f"{len(pci)} NVIDIA GPUs"
            parts.append(f"{number} on the PCI bus" if pci else "no NVIDIA GPU")
    release = _text(nvml.get("driver")) or _text(
        _mapping(facts.get("host.driver")).get("module_version")
    )
    if release:
        cuda = nvml.get("driver_cuda")
        number = f", CUDA up to {cuda // 1000}.{cuda % 1000 // 10}" if isinstance(cuda, int) else ""
        parts.append(f"driver {release}{number}")
    return "; ".join(parts)


def _software(facts: Facts) -> str:
    imported = _mapping(facts.get("torch.import"))
    static = _mapping(facts.get("torch.static"))
    version = _text(imported.get("version")) or _text(static.get("version"))
    cuda = _text(imported.get("cuda")) or _text(static.get("cuda"))
    words = []
    if version:
        words.append(f"torch {version}" + (f" for CUDA {cuda}" if cuda else " for the CPU"))
    elif static.get("present") is False:
        words.append("no torch")
    python = _text(imported.get("python")) or _text(
        _mapping(_mapping(facts.get("host.machine")).get("python")).get("version")
    )
    if python:
        words.append(f"Python {python}")
    return ", ".join(words)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if hasattr(value, "get") and hasattr(value, "items") else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
