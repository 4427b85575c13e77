"""How checks go through facts that came device by device."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpuenv.checks.readings import read
from gpuenv.checks.say import group, number, probe, rows, seen, text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from gpuenv.checks.model import Facts, SkipReason
    from gpuenv.checks.say import Results, Say

_BARE = {"device", "error"}
_SKIPS: dict[str, SkipReason] = {
    "no-gpu": "no-gpu",
    "no-torch": "no-torch",
    "single-gpu": "single-gpu",
    "not-applicable": "not-applicable",
}


def label(device: str) -> str:
    """Return what a person calls a device: ``cuda:3`` is GPU 3."""
    kind, _, index = device.partition(":")
    return f"GPU {index}" if kind == "cuda" else "CPU"


def on(devices: tuple[str, ...]) -> str:
    """Return ``on GPU 0``, ``on 8 GPUs`` or ``on the CPU``."""
    if devices == ("cpu",) or not devices:
        return "on the CPU"
    return f"on {label(devices[0])}" if len(devices) == 1 else f"on {len(devices)} GPUs"


def skipped(say: Say, found: Mapping[str, Any]) -> Results | None:
    """Return the probe's own reason for having done nothing, ``None`` when it did something."""
    skip = group(found, "skip")
    if not skip:
        return None
    return say.skip(_SKIPS.get(text(skip, "reason"), "not-applicable"), text(skip, "text"))


def failed(say: Say, what: str, error: str, *more: str, source: str) -> Results:
    """Return a failure that carries an error text and what that text means."""
    reading = read(error, *more)
    return say.fail(
        f"{what}: {first_line(error)}",
        why=reading.why,
        evidence=[seen(source, error), *(seen(source, line) for line in more if line)],
        fixes=reading.fixes,
        alternatives=reading.alternatives,
        suspects=reading.suspects,
        confidence=reading.confidence,
    )


def first_line(error: str) -> str:
    """Return an error's first line, without the source line that raised it, fit for a table."""
    line = error.strip().splitlines()[0] if error.strip() else "no text"
    line = re.sub(r"\[enforce fail at [^\]]*\] (?:[^.]*\. )?", "", line)
    return line if len(line) <= 120 else line[:117] + "..."  # noqa: PLR2004 - a table's width


def each_device(
    facts: Facts,
    name: str,
    say: Say,
    *,
    judge: Callable[[Say, Mapping[str, Any]], Results | None],
    what: str,
    fine: Callable[[str], str],
) -> Results:
    """Judge one probe's devices.

    Args:
        judge: Returns a finding, or ``None`` when the device is right.
        what: What was done, for the sentence about a device that raised: ``the training step``.
        fine: Makes the summary when every device is right; gets ``on 8 GPUs``.
    """
    found = probe(facts, name)
    skip = skipped(say, found)
    if skip is not None:
        return skip
    results: list[Results] = []
    entries = rows(found, "results")
    for entry in entries:
        one = say.of(label(text(entry, "device")))
        error = text(entry, "error")
        verdict: Results | None
        if error:
            verdict = failed(one, f"{what} failed", error, source=name)
        elif set(entry) <= _BARE:
            verdict = one.error(f"{name} told nothing of it")
        else:
            verdict = judge(one, entry)
        if verdict is not None:
            results.append(verdict)
    if results:
        return tuple(result for verdict in results for result in verdict)
    if not entries:
        return say.error(f"{name} told of no device")
    return say.ok(fine(on(tuple(text(entry, "device") for entry in entries))))


def model_of(facts: Facts, device: str) -> str:
    """Return the model of a CUDA device, as the driver names it; empty when unknown."""
    index = device.partition(":")[2]
    for entry in rows(probe(facts, "torch.devices"), "devices"):
        if str(entry.get("index")) == index:
            return text(entry, "name")
    return ""


def span(value: Mapping[str, Any], key: str) -> tuple[float, float] | None:
    """Return a ``[lowest, highest]`` of sampled values."""
    inner = value.get(key)
    if not isinstance(inner, (list, tuple)) or len(inner) != 2:  # noqa: PLR2004 - a pair
        return None
    pair = {"low": inner[0], "high": inner[1]}
    low, high = number(pair, "low"), number(pair, "high")
    return None if low is None or high is None else (low, high)
