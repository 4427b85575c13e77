"""A comparison as lines for a terminal."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from gpuenv.report.table import Line, Piece
from gpuenv.report.text import level_name, one_line, place_of, verdict_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gpuenv.checks.model import CheckResult, Diagnosis
    from gpuenv.report.compare import Comparison, FactChange, FindingChange
    from gpuenv.report.table import Symbols

_FACTS_SHOWN = 30
_HEADINGS: Mapping[str, str] = {
    "worse": "Worse in B",
    "better": "Better in B",
    "changed": "Bad in both, differently",
    "only-in-b": "Only in B",
    "only-in-a": "Only in A",
}
_STYLES = {"worse": "bold red", "only-in-b": "bold red", "changed": "yellow"}


def render_comparison(
    comparison: Comparison,
    places: Sequence[tuple[str, Diagnosis]],
    *,
    width: int,
    verbosity: int,
    symbols: Symbols,
) -> tuple[Line, ...]:
    """Lay a comparison out: the two places, findings, facts.

    Args:
        places: Name and diagnosis of A and B.
        verbosity: 1 shows every fact that differs, not only the first thirty.
    """
    lines: list[Line] = []
    seen = [each for each in comparison.findings if not each.change.startswith("unseen")]
    findings, facts = len(seen), len(comparison.facts)
    lines.append(
        (
            Piece("gpuenv doctor diff: "),
            Piece(f"{_count(findings, 'finding')} and {_count(facts, 'fact')} differ", "bold"),
        )
    )
    lines.append(())
    for letter, (name, diagnosis) in zip("AB", places, strict=True):
        level = level_name(diagnosis.asked)
        parts = [place_of(diagnosis.where), *([f"level {level}"] if level else [])]
        words = symbols.dot.join([*parts, verdict_words(diagnosis)])
        lines.append((Piece(f"  {letter}  "), Piece(one_line(name), "bold"), Piece(f"  {words}")))
    lines += _findings(comparison.findings, symbols, width)
    shown = comparison.facts if verbosity > 0 else comparison.facts[:_FACTS_SHOWN]
    lines += _facts(shown, width)
    if len(shown) < facts:
        lines += [
            (),
            (Piece(f"  and {_count(facts - len(shown), 'fact')} more (-v)", "bright_black"),),
        ]
    return tuple(lines)


def _findings(findings: Sequence[FindingChange], symbols: Symbols, width: int) -> Iterator[Line]:
    heading = ""
    for change in findings:
        if change.change.startswith("unseen"):
            continue
        if _HEADINGS[change.change] != heading:
            heading = _HEADINGS[change.change]
            yield ()
            yield (Piece(heading, _STYLES.get(change.change, "bold")),)
        subject = f" [{one_line(change.subject)}]" if change.subject else ""
        yield (Piece(f"  {change.id}{subject}", "bold"),)
        for letter, result in (("A", change.a), ("B", change.b)):
            yield (Piece(f"      {letter}  {_result(result, symbols)}"),)
    for letter in "ab":
        names = [change.id for change in findings if change.change == f"unseen-in-{letter}"]
        if names:
            words = f"Not looked at in {letter.upper()}: {', '.join(dict.fromkeys(names))}"
            yield ()
            for line in textwrap.wrap(words, width, subsequent_indent="  "):
                yield (Piece(line, "bright_black"),)


def _result(result: CheckResult | None, symbols: Symbols) -> str:
    if result is None:
        return "nothing found"
    return f"{symbols.marks[result.status]} {one_line(result.summary)}"


def _facts(facts: Sequence[FactChange], width: int) -> Iterator[Line]:
    heading = ""
    for change in facts:
        words = f"{change.group}, read by the checks above" if change.related else change.group
        if words != heading:
            heading = words
            yield ()
            yield (Piece(words, "bold"),)
        a, b = _value(change.a), _value(change.b)
        name = f"  {change.probe}: {one_line(change.path)}"
        joined = f"{name}  A {a}  B {b}"
        if len(joined) <= width:
            yield (Piece(name), Piece(f"  A {a}  B {b}", "cyan"))
        else:
            yield (Piece(name),)
            yield (Piece(f"      A  {a}", "cyan"),)
            yield (Piece(f"      B  {b}", "cyan"),)


def _value(value: Any) -> str:
    if value is None:
        return "(none)"
    if isinstance(value, list):
        return one_line(", ".join(map(str, value))) or "(empty)"
    return one_line(str(value)) or "(empty)"


def _count(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"
