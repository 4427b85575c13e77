"""What the figures of a report show: read from the numbers of results and from facts.

Both may hold anything at all; what cannot be drawn is left out.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from gpuenv.report.svg import Bars, Curve, Figure, draw
from gpuenv.report.text import name_of, one_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpuenv.checks.model import Facts
    from gpuenv.report.report import Report

_MAX_SERIES = 6
_MAX_POINTS = 400
_MAX_BARS = 1024
_SLOWEST = 7


def figures_of(report: Report) -> tuple[Figure, ...]:
    """Return the figures of a report: what checks measured, memory, training, time of probes."""
    found: list[Figure] = []
    for result in report.diagnosis.results:
        source = one_line(str(result.numbers.get("source", "")))
        note = f"{name_of(result)}" + (f"; expectation from {source}" if source else "")
        measured = (curve_from(result.numbers.get("curve")), bars_from(result.numbers.get("bars")))
        found.extend(draw(chart, note=note) for chart in measured if chart is not None)
    told = (_memory(report.facts), _losses(report.facts), _space(report.facts))
    found.extend(draw(chart) for chart in told if chart is not None)
    times = _times(report.diagnosis.timings_s)
    if times is not None:
        found.append(draw(times))
    return tuple(found)


def curve_from(value: Any) -> Curve | None:
    """Read ``numbers["curve"]`` of a result; ``None`` when there is nothing to draw."""
    if not hasattr(value, "get"):
        return None
    log = value.get("log", True) is not False
    series = tuple(_series(value.get("series"), log=log))
    if not series:
        return None
    expected = value.get("expected")
    return Curve(
        title=_title(value),
        x=_words(value, "x", "size"),
        x_unit=_words(value, "x_unit", ""),
        y=_words(value, "y", "value"),
        y_unit=_words(value, "y_unit", ""),
        series=series[:_MAX_SERIES],
        expected=float(expected) if _is_number(expected) and expected > 0 else None,
        log=log,
    )


def bars_from(value: Any) -> Bars | None:
    """Read ``numbers["bars"]`` of a result; ``None`` when there is nothing to draw."""
    if not hasattr(value, "get"):
        return None
    pairs = tuple(
        (one_line(str(pair[0])), float(pair[1]))
        for pair in value.get("bars") or ()
        if isinstance(pair, (list, tuple)) and len(pair) == 2 and _is_number(pair[1])  # noqa: PLR2004 - name, value
    )
    if not pairs:
        return None
    floor, expected = value.get("floor"), value.get("expected")
    return Bars(
        title=_title(value),
        unit=_words(value, "unit", ""),
        bars=pairs[:_MAX_BARS],
        floor=float(floor) if _is_number(floor) else None,
        expected=float(expected) if _is_number(expected) else None,
    )


def _series(value: Any, *, log: bool) -> Iterator[tuple[str, tuple[tuple[float, float], ...]]]:
    for entry in value if isinstance(value, (list, tuple)) else ():
        points = tuple(
            (float(point[0]), float(point[1]))
            for point in (entry.get("points") or () if hasattr(entry, "get") else ())
            if isinstance(point, (list, tuple))
            and len(point) == 2  # noqa: PLR2004 - x, y
            and all(_is_number(number) and (number > 0 or not log) for number in point)
        )
        if points:
            yield one_line(str(entry.get("name", ""))), points[:_MAX_POINTS]


def _times(timings_s: Mapping[str, float]) -> Bars | None:
    """Return the slowest probes and the sum of the others."""
    times = [(one_line(name), each) for name, each in timings_s.items() if _is_number(each)]
    times = sorted((pair for pair in times if pair[1] > 0), key=lambda pair: -pair[1])
    if not times:
        return None
    rest = times[_SLOWEST:]
    if rest:
        times = [*times[:_SLOWEST], (f"{len(rest)} others", sum(each for _, each in rest))]
    return Bars(title="Time by probe", unit="s", bars=tuple(times))


def _memory(facts: Facts) -> Bars | None:
    devices = (facts.get("torch.devices") or {}).get("devices")
    bars: list[tuple[str, float]] = []
    whole: list[float] = []
    for device in devices if isinstance(devices, (list, tuple)) else ():
        if not hasattr(device, "get"):
            continue
        total, free = (device.get(key) for key in ("memory_bytes", "free_bytes"))
        if _is_number(total) and _is_number(free):
            bars.append((f"GPU {device.get('index')}", (total - free) / 2**30))
            whole.append(total / 2**30)
    if not bars:
        return None
    return Bars(
        title="Memory in use before the checks",
        unit="GiB",
        bars=tuple(bars[:_MAX_BARS]),
        whole=tuple(whole[:_MAX_BARS]),
    )


def _space(facts: Facts) -> Bars | None:
    """Return how full the file systems are that builds, caches and workers write to."""
    places = (facts.get("host.storage") or {}).get("places")
    mounts: dict[str, tuple[list[str], float, float]] = {}
    for name, place in places.items() if places is not None and hasattr(places, "items") else ():
        if not hasattr(place, "get"):
            continue
        total, free = (place.get(key) for key in ("total", "free"))
        if _is_number(total) and _is_number(free) and total > 0:
            names, _, _ = mounts.setdefault(str(place.get("mount")), ([], total, free))
            names.append(str(name))
    bars = []
    for names, total, free in mounts.values():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        sizes = f"{(total - free) / 2**30:.3g} of {total / 2**30:.3g} GiB"
        bars.append((f"{one_line(names[0])}{more}: {sizes}", 100.0 * (total - free) / total))
    if not bars:
        return None
    return Bars(title="Space in use", unit="%", bars=tuple(bars[:_MAX_BARS]), most=100.0)


def _losses(facts: Facts) -> Curve | None:
    results = (facts.get("torch.step") or {}).get("results")
    series = []
    for entry in results if isinstance(results, (list, tuple)) else ():
        losses = entry.get("losses") if hasattr(entry, "get") else None
        points = [
            [step + 1, loss]
            for step, loss in enumerate(losses if isinstance(losses, (list, tuple)) else ())
            if _is_number(loss)
        ]
        if len(points) > 1:
            series.append({"name": str(entry.get("device", "")), "points": points})
    return curve_from({
        "title": "Loss of the test training", "x": "step", "y": "loss", "log": False,
        "series": series,
    })  # fmt: skip


def _words(value: Mapping[str, Any], key: str, default: str) -> str:
    return one_line(str(value.get(key) or default))


def _title(value: Mapping[str, Any]) -> str:
    words = _words(value, "title", "Measured")
    return words[:1].upper() + words[1:]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
