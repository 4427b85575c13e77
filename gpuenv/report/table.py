"""The report a person reads in a terminal: verdict, the cause with its fix, then the rest.

Lines are laid out here, not by a table widget, so that a command stands whole on a line of its
own whatever the width (it can be copied as it is), and so that the same lines can be tested
without a terminal. A healthy report is at most 40 lines at 80 columns.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from gpuenv.checks.model import Status
from gpuenv.report.summary import place_facts
from gpuenv.report.text import (
    GROUP_TITLES,
    by_group,
    group_words,
    level_name,
    mark_of_group,
    name_of,
    on_side,
    one_line,
    place_of,
    printable,
    skip_reason,
    skip_words,
    verdict_words,
)
from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.text import Text

    from gpuenv.checks.model import Cause, CheckResult, Fix
    from gpuenv.report.report import Report

MIN_WIDTH = 60
MAX_WIDTH = 120  # longer lines are harder to read, not easier

_STYLES: dict[Status, str] = {
    Status.PASS: "green",
    Status.INFO: "blue",
    Status.WARN: "yellow",
    Status.FAIL: "bold red",
    Status.ERROR: "bold magenta",
    Status.SKIP: "bright_black",
}
_VERDICT_STYLES = {
    "pass": "bold green",
    "warn": "bold yellow",
    "fail": "bold red",
    "undiagnosed": "bold magenta",
    "nothing-to-diagnose": "bold",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Symbols:
    """The marks of one character set."""

    marks: dict[Status, str]
    dash: str
    dot: str


UNICODE = Symbols(
    marks={
        Status.PASS: "✓",
        Status.INFO: "i",
        Status.WARN: "!",
        Status.FAIL: "✗",
        Status.ERROR: "?",
        Status.SKIP: "–",  # noqa: RUF001 - a dash on purpose
    },
    dash="—",
    dot=" · ",
)
ASCII = Symbols(
    marks={
        Status.PASS: "+",
        Status.INFO: "i",
        Status.WARN: "!",
        Status.FAIL: "x",
        Status.ERROR: "?",
        Status.SKIP: "-",
    },
    dash="-",
    dot=", ",
)


@dataclass(frozen=True, slots=True)
class Piece:
    """Some characters in one style."""

    text: str
    style: str = ""


Line = tuple[Piece, ...]


def symbols_for(encoding: str | None) -> Symbols:
    """Return the marks a stream of that encoding can show."""
    try:
        "✗✓·—".encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return UNICODE


def render_lines(
    report: Report, *, width: int = 100, verbosity: int = 0, symbols: Symbols = UNICODE
) -> tuple[Line, ...]:
    """Lay the report out.

    Args:
        report: What to show.
        width: Columns; nothing but commands and long words goes beyond.
        verbosity: -1 shows verdict and causes only, 1 shows every check with what it saw.
        symbols: Character set of the marks.
    """
    layout = _Layout(report, max(MIN_WIDTH, min(width, MAX_WIDTH)), verbosity, symbols)
    return tuple(layout.lines())


def as_text(lines: Sequence[Line]) -> Text:
    """Return laid out lines as one Rich text."""
    from rich.text import Text

    whole = Text()
    for line in lines:
        for piece in line:
            whole.append(piece.text, style=piece.style)
        whole.append("\n")
    whole.rstrip()
    return whole


def as_plain(lines: Sequence[Line]) -> str:
    """Return laid out lines as plain text."""
    return "\n".join("".join(piece.text for piece in line).rstrip() for line in lines) + "\n"


class _Layout:
    def __init__(self, report: Report, width: int, verbosity: int, symbols: Symbols) -> None:
        self.report = report
        self.diagnosis = report.diagnosis
        self.width = width
        self.verbosity = verbosity
        self.symbols = symbols

    def lines(self) -> Iterator[Line]:
        yield self._verdict()
        if self.verbosity >= 0:
            yield ()
            yield from self._head()
        yield from self._unmet()
        for number, cause in enumerate(self.diagnosis.causes):
            yield ()
            yield from self._cause(cause, first=number == 0)
        if self.verbosity > 0:
            yield from self._everything()
        elif self.verbosity == 0:
            yield ()
            yield from self._groups()
            yield from self._skips()
        if self.verbosity < 0 and not (self.diagnosis.causes or self.diagnosis.unmet):
            return
        yield ()
        yield self._verdict()

    def _verdict(self) -> Line:
        words = verdict_words(self.diagnosis)
        interrupted = "cut short; known so far: " if self.diagnosis.interrupted else ""
        return (
            Piece("gpuenv doctor: "),
            Piece(words, self._verdict_style()),
            Piece(f" {self.symbols.dash} {interrupted}{one_line(self.diagnosis.headline)}"),
        )

    def _verdict_style(self) -> str:
        if self.diagnosis.interrupted and self.diagnosis.verdict != "fail":
            return "bold yellow"
        return _VERDICT_STYLES[self.diagnosis.verdict]

    def _head(self) -> Iterator[Line]:
        parts = [place_of(self.diagnosis.where)]
        level = level_name(self.diagnosis.asked)
        if level:
            parts.append(f"level {level}")
        if self.report.elapsed_s is not None:
            parts.append(f"{self.report.elapsed_s:.1f} s")
        yield from self._filled("  ", [self.symbols.dot.join(parts)], style="bright_black")
        for fact in place_facts(self.report.facts):
            yield from self._filled("  ", [fact])

    def _unmet(self) -> Iterator[Line]:
        for number, word in enumerate(self.diagnosis.unmet):
            if number == 0:
                yield ()
            text = f"required but not confirmed: {word}"
            yield from self._filled("  ", [text], style="bold magenta")
            for result in self.report.answers_to(word):
                if result.status in {Status.SKIP, Status.ERROR}:
                    mark = self.symbols.marks[result.status]
                    yield from self._marked(
                        f"    {mark} ", result, f"{name_of(result)}: {result.summary}"
                    )

    def _cause(self, cause: Cause, *, first: bool) -> Iterator[Line]:
        result = cause.result
        mark = self.symbols.marks[result.status]
        label = "CAUSE" if first and result.status is not Status.WARN else result.status.name
        head = f"{mark} {label}  "
        yield (
            Piece(head, _STYLES[result.status]),
            Piece(name_of(result), "bold"),
            *self._confidence(result),
        )
        yield from self._filled("    ", [result.summary], style="bold" if first else "")
        if result.why:
            yield from self._labelled("why", result.why)
        yield from self._evidence(result)
        for number, fix in enumerate(result.fixes):
            yield from self._fix(fix, label="fix" if number == 0 else "")
        for number, text in enumerate(result.alternatives):
            yield from self._labelled("or else" if number == 0 else "", text)
        yield from self._consequences(cause)
        yield from self._labelled("more", f"gpuenv explain {result.id}", style="bright_black")

    def _confidence(self, result: CheckResult) -> Line:
        if result.status in {Status.ERROR, Status.WARN} and result.confidence == "certain":
            return ()
        return (Piece(f"  ({result.confidence})", "bright_black"),)

    def _evidence(self, result: CheckResult) -> Iterator[Line]:
        shown = result.evidence if self.verbosity > 0 else result.evidence[:_EVIDENCE_SHOWN]
        sources = [one_line(item.source) for item in shown]
        column = min(max((len(source) for source in sources), default=0), self.width // 3)
        for number, (source, item) in enumerate(zip(sources, shown, strict=True)):
            label = "evidence" if number == 0 else ""
            value = one_line(item.value)
            if self.verbosity <= 0 and len(value) > _VALUE_SHOWN:
                value = value[: _VALUE_SHOWN - 4] + " ..."
            yield from self._labelled(label, f"{source.ljust(column)}  {value}", hang=column + 2)
        left = len(result.evidence) - len(shown)
        if left:
            yield from self._labelled("", f"and {left} more (-v)")

    def _fix(self, fix: Fix, *, label: str) -> Iterator[Line]:
        yield from self._labelled(label, f"{on_side(fix.side)}: {fix.text}", style="bold cyan")
        for command in printable(fix.command).splitlines():
            yield (Piece(" " * _LABEL_WIDTH + "    " + command, "cyan"),)

    def _consequences(self, cause: Cause) -> Iterator[Line]:
        blocked = [
            result
            for result in self.diagnosis.results
            if result.reason == "blocked" and result.blocked_by == cause.result.id
        ]
        if cause.consequences:
            count = len(cause.consequences)
            text = f"{count} finding{'s' if count > 1 else ''} would go away with it:"
            yield from self._labelled("follows", text)
            for result in cause.consequences:
                mark = self.symbols.marks[result.status]
                lead = " " * (_LABEL_WIDTH + 4) + f"{mark} "
                yield from self._marked(lead, result, f"{name_of(result)}: {result.summary}")
        if blocked:
            ids = ", ".join(dict.fromkeys(result.id for result in blocked))
            text = f"not looked at because of it: {ids}"
            yield from self._labelled("" if cause.consequences else "follows", text)

    def _groups(self) -> Iterator[Line]:
        groups = by_group(self.diagnosis.results)
        if not groups:
            return
        column = max(len(GROUP_TITLES[key]) for key in groups)
        for key, results in groups.items():
            worst = mark_of_group(results)
            words = group_words(results)
            yield (
                Piece(f"  {self.symbols.marks[worst]} ", _STYLES[worst]),
                Piece(GROUP_TITLES[key].ljust(column)),
                Piece(f"  {words}", "" if worst is not Status.SKIP else "bright_black"),
            )
        notes = [result for result in self.diagnosis.results if _is_worth_telling(result)]
        if notes:
            yield ()
        for result in notes[:_NOTES_SHOWN]:
            mark = self.symbols.marks[result.status]
            yield from self._marked(f"  {mark} ", result, f"{name_of(result)}: {result.summary}")
        if len(notes) > _NOTES_SHOWN:
            yield (Piece(f"    and {len(notes) - _NOTES_SHOWN} more", "bright_black"),)

    def _skips(self) -> Iterator[Line]:
        words = skip_words(self.diagnosis.results)
        if not words:
            return
        yield ()
        mark = self.symbols.marks[Status.SKIP]
        text = f"{mark} skipped, which is not a pass: {words}; -v shows each"
        yield from self._filled("  ", [text], hang="    ", style="bright_black")

    def _everything(self) -> Iterator[Line]:
        for key, results in by_group(self.diagnosis.results).items():
            yield ()
            yield (Piece(GROUP_TITLES[key], "bold"),)
            for result in results:
                mark = self.symbols.marks[result.status]
                reason = ""
                if result.status is Status.SKIP:
                    reason = f" ({skip_reason(result)})"
                text = f"{name_of(result)}: {result.summary}{reason}"
                yield from self._marked(f"  {mark} ", result, text)
        if self.diagnosis.timings_s:
            yield ()
            yield (Piece("Time by probe", "bold"),)
            slowest = sorted(self.diagnosis.timings_s.items(), key=lambda item: -item[1])
            words = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in slowest)
            yield from self._filled("  ", [words])

    # Laying out.

    def _marked(self, lead: str, result: CheckResult, text: str) -> Iterator[Line]:
        hang = " " * len(lead)
        for number, line in enumerate(self._wrap(one_line(text), self.width - len(lead))):
            start = Piece(lead, _STYLES[result.status]) if number == 0 else Piece(hang)
            yield (start, Piece(line, "bright_black" if result.status is Status.SKIP else ""))

    def _labelled(self, label: str, text: str, *, hang: int = 0, style: str = "") -> Iterator[Line]:
        lead = f"    {label}".ljust(_LABEL_WIDTH)
        room = self.width - _LABEL_WIDTH
        lines = self._wrap(printable(text), room, hang=hang if hang < room // 2 else 4)
        for number, line in enumerate(lines):
            start = Piece(lead, "bright_black") if number == 0 else Piece(" " * _LABEL_WIDTH)
            yield (start, Piece(line, style))

    def _filled(
        self, indent: str, texts: Sequence[str], *, hang: str | None = None, style: str = ""
    ) -> Iterator[Line]:
        for text in texts:
            lines = self._wrap(one_line(text), self.width - len(hang or indent))
            for number, line in enumerate(lines):
                lead = indent if number == 0 or hang is None else hang
                yield (Piece(lead + line, style),)

    def _wrap(self, text: str, room: int, *, hang: int = 0) -> list[str]:
        lines: list[str] = []
        for paragraph in text.splitlines() or [""]:
            lines.extend(
                textwrap.wrap(
                    paragraph,
                    room,
                    subsequent_indent=" " * hang,
                    break_long_words=False,
                    break_on_hyphens=False,
                )
                or [""]
            )
        return lines


_LABEL_WIDTH = 14
_EVIDENCE_SHOWN = 6
_VALUE_SHOWN = 300
_NOTES_SHOWN = 8


def _is_worth_telling(result: CheckResult) -> bool:
    """Say whether a good result carries news: a note, or something measured."""
    return result.status is Status.INFO or (result.status is Status.PASS and bool(result.numbers))


def describe(report: Report, *, width: int, verbosity: int, encoding: str | None) -> Any:
    """Return the whole report as one Rich text for a stream of that width and encoding."""
    lines = render_lines(report, width=width, verbosity=verbosity, symbols=symbols_for(encoding))
    return as_text(lines)
