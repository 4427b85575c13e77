"""Draw curves on logarithmic axes and bars as SVG, each with its numbers as text.

The pictures are 420 units wide, so that their letters stay readable on a phone, and use classes
and presentation attributes only, because the page's content policy allows no inline style.
"""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING

from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_WIDTH = 420.0
_MOST_BARS = 16
_FEW_BARS = 8
_BYTES = ("B", "bytes")
_DASHES = ("", "6 3", "2 3", "8 3 2 3", "1 2", "10 4")


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Lines over a common pair of axes; both axes logarithmic when ``log``."""

    title: str
    x: str
    x_unit: str
    y: str
    y_unit: str
    series: tuple[tuple[str, tuple[tuple[float, float], ...]], ...]
    expected: float | None = None
    log: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """One bar a thing, with an optional whole behind it, a floor and an expectation.

    Attributes:
        whole: What each bar is a part of, in the same unit.
        most: The end of the scale; by default the largest value.
    """

    title: str
    unit: str
    bars: tuple[tuple[str, float], ...]
    whole: tuple[float, ...] = ()
    most: float | None = None
    floor: float | None = None
    expected: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A picture, its caption and its numbers as rows of text."""

    title: str
    svg: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def draw(chart: Curve | Bars, *, note: str = "") -> Figure:
    """Draw one chart."""
    if isinstance(chart, Curve):
        return _draw_curve(chart, note)
    return _draw_bars(chart, note)


def _draw_curve(chart: Curve, note: str) -> Figure:
    height, left, right, top, bottom = 280.0, 52.0, 14.0, 14.0, 46.0
    xs = [x for _, points in chart.series for x, _ in points]
    ys = [y for _, points in chart.series for _, y in points]
    if chart.expected is not None:
        ys.append(chart.expected)
    x_axis = _Axis(xs, left, _WIDTH - right, log=chart.log, binary=chart.x_unit in _BYTES)
    y_axis = _Axis(ys, height - bottom, top, log=chart.log, binary=False)
    parts: list[str] = []
    for value, label in x_axis.ticks(5):
        at = x_axis.place(value)
        parts.append(_line(at, top, at, height - bottom, "grid"))
        parts.append(_label(at, height - bottom + 16, label, "middle"))
    for value, label in y_axis.ticks(6):
        at = y_axis.place(value)
        parts.append(_line(left, at, _WIDTH - right, at, "grid"))
        parts.append(_label(left - 6, at + 4, label, "end"))
    x_name = chart.x if chart.x_unit in {"", *_BYTES} else f"{chart.x} ({chart.x_unit})"
    y_name = f"{chart.y} ({chart.y_unit})" if chart.y_unit else chart.y
    parts.append(_label((left + _WIDTH - right) / 2, height - 8, x_name, "middle", "axis"))
    parts.append(
        f'<text class="axis" transform="translate(12 {(top + height - bottom) / 2:.1f})'
        f' rotate(-90)" text-anchor="middle">{escape(y_name)}</text>'
    )
    if chart.expected is not None:
        at = y_axis.place(chart.expected)
        parts.append(_line(left, at, _WIDTH - right, at, "expected"))
        text = f"expected {_number(chart.expected)}"
        parts.append(_label(left + 6, at - 5, text, "start", "mark"))
    for number, (_, points) in enumerate(chart.series):
        places = [(x_axis.place(x), y_axis.place(y)) for x, y in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        dash = f' stroke-dasharray="{_DASHES[number]}"' if _DASHES[number] else ""
        parts.append(f'<polyline class="curve c{number}"{dash} points="{path}"/>')
        if len(places) <= 40:  # noqa: PLR2004 - more dots than that hide the line
            parts += [
                f'<circle class="dot c{number}" cx="{x:.1f}" cy="{y:.1f}" r="2.6"/>'
                for x, y in places
            ]
    legend_height = _legend(chart.series, height, parts)
    alternative = _curve_words(chart)
    rows = tuple(
        (name or chart.y, x_axis.label(x), _number(y))
        for name, points in chart.series
        for x, y in points
    )
    return Figure(
        title=chart.title,
        svg=_svg(height + legend_height, chart.title, alternative, parts),
        head=("series", chart.x, y_name),
        rows=rows,
        note=note,
    )


def _legend(
    series: Sequence[tuple[str, tuple[tuple[float, float], ...]]], height: float, parts: list[str]
) -> float:
    if len(series) == 1 and not series[0][0]:
        return 0.0
    row_height = 18.0
    for number, (name, _) in enumerate(series):
        at = height + 8 + number * row_height
        dash = f' stroke-dasharray="{_DASHES[number]}"' if _DASHES[number] else ""
        parts.append(
            f'<line class="curve c{number}"{dash} x1="52" y1="{at:.1f}" x2="82" y2="{at:.1f}"/>'
        )
        parts.append(_label(90, at + 4, name[:48], "start"))
    return 8 + row_height * len(series)


def _draw_bars(chart: Bars, note: str) -> Figure:
    left, right, row, top = 8.0, 8.0, 34.0, 4.0
    thresholds = {
        "floor": chart.floor,
        "expected": chart.expected if chart.expected != chart.floor else None,
    }
    marks = {words: mark for words, mark in thresholds.items() if mark is not None}
    values = [value for _, value in chart.bars]
    most = chart.most or max([*values, *chart.whole, *marks.values()]) or 1.0
    room = _WIDTH - left - right

    def place(value: float) -> float:
        return left + room * max(0.0, min(value, most)) / most

    parts: list[str] = []
    shown = _shown_bars(chart)
    for line, number in enumerate(shown):
        name, value = chart.bars[number]
        at = top + row * line
        low = chart.floor is not None and value < chart.floor
        whole = chart.whole[number] if number < len(chart.whole) else None
        words = f"{_number(value)} {chart.unit}".strip()
        if whole is not None:
            words = f"{_number(value)} of {_number(whole)} {chart.unit}".strip()
            parts.append(_rect(left, at + 17, place(whole) - left, 11, "whole"))
        elif chart.most is not None:
            parts.append(_rect(left, at + 17, room, 11, "whole"))
        parts.append(_label(left, at + 13, name[:44], "start"))
        parts.append(_label(_WIDTH - right, at + 13, words, "end"))
        parts.append(
            _rect(left, at + 17, max(place(value) - left, 1.0), 11, "bar low" if low else "bar")
        )
        # Across the bars only, so that no word is struck out.
        parts += [
            _line(place(mark), at + 16.5, place(mark), at + 29.5, style)
            for style, mark in marks.items()
        ]
    below = top + row * len(shown) + 12
    left_out = len(values) - len(shown)
    if left_out:
        text = (
            f"the lowest {len(shown)}; {left_out} more, up to {_number(max(values))} {chart.unit}"
        )
        parts.append(_label(left, below, text, "start", "mark"))
        below += 16
    for style, mark in marks.items():
        parts.append(_line(left + 2, below - 9, left + 2, below + 2, style))
        text = f"{style} {_number(mark)} {chart.unit}".rstrip()
        parts.append(_label(left + 10, below, text, "start", "mark"))
        below += 16
    alternative = "; ".join(f"{name} {_number(value)} {chart.unit}" for name, value in chart.bars)
    rows = tuple((name, f"{_number(value)} {chart.unit}".strip()) for name, value in chart.bars)
    return Figure(
        title=chart.title,
        svg=_svg(below - 8, chart.title, alternative, parts),
        head=("", chart.unit),
        rows=rows,
        note=note,
    )


def _shown_bars(chart: Bars) -> list[int]:
    """Return which bars are drawn: all, or the lowest few of many (the table has all)."""
    numbers = list(range(len(chart.bars)))
    if len(numbers) <= _MOST_BARS:
        return numbers
    lowest = sorted(numbers, key=lambda number: chart.bars[number][1])[:_FEW_BARS]
    return sorted(lowest)


def _curve_words(chart: Curve) -> str:
    parts = []
    for name, points in chart.series:
        best = max(points, key=lambda point: point[1])
        last = points[-1]
        parts.append(
            f"{name or chart.y}: highest {_number(best[1])} {chart.y_unit}, "
            f"last {_number(last[1])} {chart.y_unit}"
        )
    if chart.expected is not None:
        parts.append(f"expected {_number(chart.expected)} {chart.y_unit}")
    return f"{chart.y} against {chart.x}. " + "; ".join(parts)


class _Axis:
    """Maps values to places along one axis."""

    def __init__(
        self, values: Sequence[float], start: float, end: float, *, log: bool, binary: bool
    ) -> None:
        self.log = log
        self.binary = binary
        self.start, self.end = start, end
        low, high = min(values), max(values)
        if log:
            self.low, self.high = math.log10(low) - 0.03, math.log10(high) + 0.06
        else:
            low = min(low, 0.0)
            self.low, self.high = low, high + (high - low or 1.0) * 0.06
        if self.high - self.low < 0.3 and log:  # noqa: PLR2004 - half a decade at least
            self.low, self.high = self.low - 0.15, self.high + 0.15

    def place(self, value: float) -> float:
        """Return where a value is drawn."""
        at = math.log10(value) if self.log else value
        return self.start + (self.end - self.start) * (at - self.low) / (self.high - self.low)

    def label(self, value: float) -> str:
        """Return a value as words of this axis."""
        return _bytes(value) if self.binary else _number(value)

    def ticks(self, most: int) -> list[tuple[float, str]]:
        """Return at most about ``most`` round values on the axis with their labels."""
        if self.log and self.binary:
            low, high = (edge / math.log10(2) for edge in (self.low, self.high))
            powers = range(math.ceil(low), math.floor(high) + 1)
            step = max(1, math.ceil(len(powers) / most))
            values = [2.0**power for power in powers if power % step == 0]
        elif self.log:
            decades = range(math.floor(self.low), math.ceil(self.high) + 1)
            values = []
            for mantissas in ((1, 2, 5), (1, 3), (1,)):
                values = [mantissa * 10.0**decade for decade in decades for mantissa in mantissas]
                values = [value for value in values if self.low <= math.log10(value) <= self.high]
                if len(values) <= most + 1:
                    break
        else:
            span = self.high - self.low
            rough = span / most
            base = 10.0 ** math.floor(math.log10(rough))
            step_size = next(base * factor for factor in (1, 2, 5, 10) if base * factor >= rough)
            first = math.ceil(self.low / step_size)
            values = [
                number * step_size for number in range(first, math.floor(self.high / step_size) + 1)
            ]
        return [(value, self.label(value)) for value in values]


def _svg(height: float, title: str, description: str, parts: Iterable[str]) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH:g} {height:g}" role="img" '
        f'xmlns="http://www.w3.org/2000/svg" preserveAspectRatio="xMidYMin meet">'
        f"<title>{escape(title)}</title><desc>{escape(description)}</desc>{''.join(parts)}</svg>"
    )


def _line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f'<line class="{style}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _rect(x: float, y: float, width: float, height: float, style: str) -> str:
    return (
        f'<rect class="{style}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" '
        f'height="{height:.1f}" rx="2"/>'
    )


def _label(x: float, y: float, text: str, anchor: str, style: str = "tick") -> str:
    return (
        f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">'
        f"{escape(text)}</text>"
    )


def _number(value: float) -> str:
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    size = abs(value)
    if size >= 1e6 or size < 1e-3:  # noqa: PLR2004 - beyond, powers of ten read better
        return f"{value:.2g}"
    if size >= 100:  # noqa: PLR2004 - three digits are enough
        return f"{value:.0f}"
    return f"{value:.3g}"


def _bytes(value: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:  # noqa: PLR2004 - bytes
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} TiB"
