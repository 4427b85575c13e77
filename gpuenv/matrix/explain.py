"""Say which rule removed which rows for a request."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from gpuenv.matrix.resolve import choose, environment_spec, judge_all, refusal
from gpuenv.matrix.rules import RULES
from gpuenv.matrix.wish import plan_wish
from gpuenv.spec import Availability, HostGpus
from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpuenv.errors import UnsupportedCombinationError
    from gpuenv.matrix.model import Matrix, Row
    from gpuenv.matrix.rules import Rule, Verdict
    from gpuenv.matrix.wish import Wish
    from gpuenv.spec import EnvironmentSpec, MatrixRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One rule in the order they are applied.

    Attributes:
        removed: The rows it removed that no earlier rule had removed.
        left: How many rows are left behind it.
    """

    rule: Rule
    removed: tuple[Verdict, ...]
    left: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """How a request meets the matrix.

    Attributes:
        steps: One a rule, also where it removed nothing.
        verdicts: What every rule says of every row; a row may break several.
        answer: What ``resolve`` returns, ``None`` when it refuses.
        refusal: What ``resolve`` raises, ``None`` when it answers.
    """

    wish: Wish
    steps: tuple[Step, ...]
    verdicts: tuple[Verdict, ...]
    answer: EnvironmentSpec | None
    refusal: UnsupportedCombinationError | None

    @property
    def accepted(self) -> tuple[Verdict, ...]:
        """The rows that break no rule, in the order of the matrix."""
        return tuple(verdict for verdict in self.verdicts if verdict.accepted)

    def as_dict(self) -> dict[str, Any]:
        """Return the explanation as ``gpuenv matrix explain --json`` prints it."""
        return {
            "request": self.wish.in_words(),
            "notes": list(self.wish.notes),
            "answer": None if self.answer is None else self.answer.as_dict(),
            "why": "" if self.refusal is None else self.refusal.why,
            "nearest": [] if self.refusal is None else self.refusal.data["nearest"],
            "steps": [
                {
                    "rule": step.rule,
                    "removed": [_row_name(verdict) for verdict in step.removed],
                    "left": step.left,
                }
                for step in self.steps
            ],
            "rows": [
                {
                    "row": verdict.row.label,
                    "arch": verdict.row.arch,
                    "accepted": verdict.accepted,
                    "rejections": [
                        {"rule": rejection.rule, "text": rejection.text}
                        for rejection in verdict.rejections
                    ],
                }
                for verdict in self.verdicts
            ],
        }


def explain(
    matrix: Matrix,
    request: MatrixRequest,
    availability: Availability = Availability(),  # noqa: B008 - frozen
    *,
    host: HostGpus = HostGpus(),  # noqa: B008 - frozen
    local_bases: frozenset[str] = frozenset(),
) -> Explanation:
    """Ask every rule of every row and tell it all; takes what ``resolve`` takes."""
    wish = plan_wish(request, host)
    verdicts = judge_all(matrix, wish, availability=availability, local_bases=local_bases)
    chosen = choose(verdicts)
    return Explanation(
        wish=wish,
        steps=tuple(_steps(verdicts)),
        verdicts=verdicts,
        answer=None if chosen is None else environment_spec(matrix, wish, chosen),
        refusal=refusal(matrix, wish, verdicts) if chosen is None else None,
    )


def _steps(verdicts: tuple[Verdict, ...]) -> Iterator[Step]:
    left = list(verdicts)
    for rule in RULES:
        removed = tuple(verdict for verdict in left if rule in verdict.broken)
        left = [verdict for verdict in left if rule not in verdict.broken]
        yield Step(rule=rule, removed=removed, left=len(left))


def summarise_rows(explanation: Explanation, rows: Iterable[Verdict]) -> str:
    """Write rows of one CPU shortly, by variant: ``cu126 2.6.0-2.7.1, 2.9.0-2.14.1; cu128 2.7.0``.

    A span holds every release that the variant has in it.
    """
    wanted = {verdict.row for verdict in rows}
    by_variant: dict[str, list[Row]] = {}
    for verdict in reversed(explanation.verdicts):
        if "arch" not in verdict.broken:
            by_variant.setdefault(verdict.row.variant, []).append(verdict.row)
    parts = []
    for variant, known in sorted(by_variant.items()):
        runs = [list(run) for inside, run in groupby(known, wanted.__contains__) if inside]
        if runs:
            parts.append(f"{variant} {', '.join(map(_span, runs))}")
    return "; ".join(parts)


def summarise_step(explanation: Explanation, step: Step) -> str:
    """Say which rows a step removed, and why the newest of them."""
    if step.rule == "arch":
        others = dict.fromkeys(verdict.row.arch for verdict in step.removed)
        return f"rows for {', '.join(others)}"
    verdict = step.removed[0]
    text = next(it.text for it in verdict.rejections if it.rule == step.rule)
    return f"{summarise_rows(explanation, step.removed)}\n{verdict.row.label} {text}"


def _span(rows: list[Row]) -> str:
    oldest, newest = rows[0].torch, rows[-1].torch
    return str(oldest) if oldest == newest else f"{oldest}-{newest}"


def _row_name(verdict: Verdict) -> str:
    return f"{verdict.row.label} {verdict.row.arch}"
