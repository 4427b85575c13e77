"""Rates from two readings of what a container uses; one reading alone is a sum since the start."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuenv.engine.protocol import UsageSample


def cpu_percent(before: UsageSample, now: UsageSample) -> float | None:
    """Return the processor use between two samples, 100 for one processor kept busy.

    ``None`` where the engine does not tell, or the container was restarted in between.
    """
    if before.cpu_ns is None or now.cpu_ns is None or now.cpu_ns < before.cpu_ns:
        return None
    seconds = (now.at - before.at).total_seconds()
    return (now.cpu_ns - before.cpu_ns) / 1e7 / seconds if seconds > 0 else None


def bytes_per_second(before: UsageSample, now: UsageSample, field: str) -> float | None:
    """Return the rate of a counter, ``network_rx_bytes`` or ``disk_write_bytes``."""
    first, last = getattr(before, field), getattr(now, field)
    seconds = (now.at - before.at).total_seconds()
    if first is None or last is None or last < first or seconds <= 0:
        return None
    return float(last - first) / seconds
