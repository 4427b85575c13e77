"""The one value every report format shows: a diagnosis, the facts below it, and how it was made."""

from __future__ import annotations

from dataclasses import field, replace
from typing import TYPE_CHECKING

from gpuenv.checks.model import Diagnosis, Facts
from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpuenv.checks.model import Check, CheckResult
    from gpuenv.report.redact import Redactor


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A diagnosis ready to be shown.

    Attributes:
        facts: What the diagnosis rests on.
        titles: Title of each check by id.
        provides: The ``--require`` words each check answers to, by id.
        strict: Whether warnings count as failures.
        created: When the facts were judged, ISO 8601 in UTC; empty where that must not show.
        gpuenv_version: Of the gpuenv that judged.
        redacted: Whether private values were taken out.
        elapsed_s: Wall time of the probing, ``None`` where nothing was probed.
    """

    diagnosis: Diagnosis
    facts: Facts = field(default_factory=Facts)
    titles: Mapping[str, str] = field(default_factory=dict)
    provides: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    strict: bool = False
    created: str = ""
    gpuenv_version: str = ""
    redacted: bool = True
    elapsed_s: float | None = None

    def title_of(self, result: CheckResult) -> str:
        """Return the check's title, its id where the catalogue has none."""
        return self.titles.get(result.id) or result.id

    def answers_to(self, word: str) -> tuple[CheckResult, ...]:
        """Return the results of the checks that answer to a ``--require`` word."""
        return tuple(
            result for result in self.diagnosis.results if word in self.provides.get(result.id, ())
        )


def make_report(
    diagnosis: Diagnosis,
    facts: Facts,
    checks: Iterable[Check],
    *,
    redactor: Redactor | None,
    strict: bool = False,
    created: str = "",
    elapsed_s: float | None = None,
) -> Report:
    """Join a diagnosis with its facts, redacted unless ``redactor`` is ``None``."""
    from gpuenv import __version__

    catalogue = tuple(checks)
    report = Report(
        diagnosis=diagnosis,
        facts=facts,
        titles={check.id: check.title for check in catalogue},
        provides={check.id: check.provides for check in catalogue if check.provides},
        strict=strict,
        created=created,
        gpuenv_version=__version__,
        redacted=redactor is not None,
        elapsed_s=elapsed_s,
    )
    if redactor is None:
        return report
    redactor.learn({"where": facts.where, "asked": facts.asked, "probes": facts.probes})
    return replace(report, facts=redactor.apply(facts), diagnosis=redactor.apply(diagnosis))
