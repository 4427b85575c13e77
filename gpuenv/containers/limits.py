"""Shared memory, ulimits, memory, processors: parsed with their units, chosen with a reason."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from gpuenv.engine.protocol import Ulimit
from gpuenv.errors import ConfigurationError
from gpuenv.values import dataclass

if TYPE_CHECKING:
    from gpuenv.engine.capabilities import EngineCapabilities

_SIZE = re.compile(
    r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[kmgt]?)(?:i?b)?", re.IGNORECASE | re.ASCII
)
_FACTOR = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_MIB = 1 << 20
_LEAST_MEMORY = 6 * _MIB
_LEAST_SHM = 64 * _MIB
_STACK = 64 * _MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitWish:
    """What was asked for; ``None`` leaves it to gpuenv or unlimited."""

    memory_bytes: int | None = None
    cpus: float | None = None
    pids: int | None = None
    shm_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitPlan:
    """What the container gets.

    Attributes:
        shm_reason: Why the shared memory has that size.
        notes: What a user should hear of the ulimits.
        warnings: What a user must hear.
    """

    memory_bytes: int | None
    cpus: float | None
    pids: int | None
    shm_bytes: int
    shm_reason: str
    ulimits: tuple[Ulimit, ...]
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def parse_size(text: str, *, flag: str) -> int:
    """Read a size: ``512m``, ``16g``, ``1.5GiB``; units are powers of 1024, as with Docker.

    Raises:
        ConfigurationError: It is no size.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None or float(match["number"]) <= 0:
        raise ConfigurationError(
            f"{flag} {text!r} is not a size",
            why="a size is a number above 0 with b, k, m, g or t behind it",
            fix=f"{flag} 16g",
        )
    return int(float(match["number"]) * _FACTOR[match["unit"].lower()])


def parse_cpus(text: str) -> float:
    """Read ``--cpus``: how many processors' worth of time, ``1.5``.

    Raises:
        ConfigurationError: It is no number above 0.
    """
    try:
        cpus = float(text)
    except ValueError:
        cpus = math.nan
    if not math.isfinite(cpus) or cpus < 0.01:  # noqa: PLR2004 - the engine's least
        raise ConfigurationError(
            f"--cpus {text!r} is not a number of processors",
            why="it must be a number from 0.01 up",
            fix="--cpus 1.5",
        )
    return cpus


def format_size(size: float) -> str:
    """Return a size as people read it: ``64 MiB``, ``1.5 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:  # noqa: PLR2004 - the step between units
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} TiB"


def plan_limits(wish: LimitWish, caps: EngineCapabilities) -> LimitPlan:
    """Decide limits, shared memory and ulimits.

    PyTorch's DataLoader and NCCL pass tensors through ``/dev/shm``, where an engine gives 64 MiB by
    default: a "bus error" as soon as a batch is larger. Pages of it count only once they are used,
    so half of the memory costs nothing until then and cannot starve the host by itself.

    Raises:
        ConfigurationError: A limit cannot be right on this engine.
    """
    warnings: list[str] = []
    if wish.memory_bytes is not None and wish.memory_bytes < _LEAST_MEMORY:
        raise ConfigurationError(
            f"--memory {format_size(wish.memory_bytes)} is too little",
            why="a container needs at least 6 MiB; was the unit forgotten?",
            fix="--memory 16g",
        )
    if wish.pids is not None and wish.pids < 1:
        raise ConfigurationError(
            f"--pids-limit {wish.pids} allows no process",
            why="it must be 1 or more",
            fix="--pids-limit 4096",
        )
    if wish.cpus is not None and caps.cpus is not None and wish.cpus > caps.cpus:
        raise ConfigurationError(
            f"--cpus {wish.cpus:g} is more than the engine has",
            why=f"its host has {caps.cpus} processors",
            fix=f"--cpus {caps.cpus}",
        )
    if (
        wish.memory_bytes is not None
        and caps.memory_bytes is not None
        and wish.memory_bytes > caps.memory_bytes
    ):
        warnings.append(
            f"--memory {format_size(wish.memory_bytes)} is more than the engine's host has "
            f"({format_size(caps.memory_bytes)}): it limits nothing"
        )
    shm_bytes, reason = _shm(wish, caps)
    if wish.shm_bytes is not None:
        if wish.memory_bytes is not None and wish.shm_bytes > wish.memory_bytes:
            warnings.append(
                f"--shm-size {format_size(wish.shm_bytes)} is above --memory "
                f"{format_size(wish.memory_bytes)}: filling it ends the container"
            )
        elif wish.shm_bytes < _LEAST_SHM:
            warnings.append(
                f"--shm-size {format_size(wish.shm_bytes)} is below the engine's usual 64 MiB: "
                "DataLoader workers may die of a bus error"
            )
    ulimits, notes = plan_ulimits(caps)
    return LimitPlan(
        memory_bytes=wish.memory_bytes,
        cpus=wish.cpus,
        pids=wish.pids,
        shm_bytes=shm_bytes,
        shm_reason=reason,
        ulimits=ulimits,
        notes=notes,
        warnings=tuple(warnings),
    )


def _shm(wish: LimitWish, caps: EngineCapabilities) -> tuple[int, str]:
    if wish.shm_bytes is not None:
        return wish.shm_bytes, "as asked with --shm-size"
    if wish.memory_bytes is not None and (
        caps.memory_bytes is None or wish.memory_bytes <= caps.memory_bytes
    ):
        return (
            max(_LEAST_SHM, wish.memory_bytes // 2 // _MIB * _MIB),
            f"half of --memory {format_size(wish.memory_bytes)}",
        )
    if caps.memory_bytes is not None:
        return (
            max(_LEAST_SHM, caps.memory_bytes // 2 // _MIB * _MIB),
            f"half of the {format_size(caps.memory_bytes)} of the engine's host",
        )
    return 8 << 30, "8 GiB, since the engine does not tell the memory of its host"


def plan_ulimits(caps: EngineCapabilities) -> tuple[tuple[Ulimit, ...], tuple[str, ...]]:
    """Decide memlock and stack: unlimited and 64 MiB, or the engine's ceiling where it has one.

    Pinned memory and RDMA registration count against memlock; 64 MiB of stack is what NVIDIA's own
    images ask for.
    """
    ceiling = caps.rlimit_ceiling or {}
    ulimits: list[Ulimit] = []
    notes: list[str] = []
    for name, wanted in (("memlock", -1), ("stack", _STACK)):
        highest = ceiling.get(name)
        if highest is not None and (wanted == -1 or wanted > highest):
            ulimits.append(Ulimit(name=name, soft=highest, hard=highest))
            asked = "unlimited" if wanted == -1 else format_size(wanted)
            notes.append(
                f"ulimit {name} is {format_size(highest)} instead of {asked}: the engine may not "
                "set more (it lacks CAP_SYS_RESOURCE)"
            )
        else:
            ulimits.append(Ulimit(name=name, soft=wanted, hard=wanted))
    return tuple(ulimits), tuple(notes)


_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s?)?", re.ASCII)
_DURATION_UNITS = (86400, 3600, 60, 1)


def parse_duration(text: str, *, flag: str) -> float:
    """Read a time: ``2h``, ``90m``, ``1h30m``, ``45s``; a bare number is seconds.

    Raises:
        ConfigurationError: It is no time above 0.
    """
    match = _DURATION.fullmatch(text.strip())
    parts = match.groups() if match else ()
    seconds = sum(
        int(part) * unit for part, unit in zip(parts, _DURATION_UNITS, strict=False) if part
    )
    if not seconds:
        raise ConfigurationError(
            f"{flag} {text!r} is not a time",
            why="a time is numbers with d, h, m or s behind them, and more than nothing",
            fix=f"{flag} 2h",
        )
    return float(seconds)


def format_duration(seconds: float) -> str:
    """Return a time as people read it: ``45 s``, ``12 min``, ``3 h``, ``2 days``."""
    for limit, unit, name in ((120, 1, "s"), (7200, 60, "min"), (172800, 3600, "h")):
        if seconds < limit:
            return f"{int(seconds // unit)} {name}"
    return f"{int(seconds // 86400)} days"
