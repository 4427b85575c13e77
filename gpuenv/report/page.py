"""The report as one HTML page that needs nothing else: no network, no script, no other file.

The content policy in its head allows the one style sheet, by hash, and nothing more, so even a
hole in the escaping could load and run nothing. Filters work by radio buttons and style alone.
"""

from __future__ import annotations

import base64
import hashlib
import json
from typing import TYPE_CHECKING

from gpuenv.checks.model import Status
from gpuenv.report.charts import figures_of
from gpuenv.report.document import plain
from gpuenv.report.summary import place_facts
from gpuenv.report.table import UNICODE
from gpuenv.report.text import (
    GROUP_TITLES,
    by_group,
    count_by_status,
    group_words,
    level_name,
    name_of,
    on_side,
    one_line,
    place_of,
    printable,
    skip_reason,
    verdict_words,
)
from gpuenv.resources import package_dir
from gpuenv.values import dataclass

if TYPE_CHECKING:
    from gpuenv.checks.model import CheckResult, Diagnosis, Facts
    from gpuenv.report.report import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class _Filter:
    key: str
    label: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    title: str
    words: str
    results: tuple[CheckResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Probe:
    name: str
    status: str
    text: str


def render_page(report: Report) -> str:
    """Return the report as one self-contained HTML document."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    folder = package_dir() / "report"
    style = (folder / "page.css").read_text(encoding="utf-8")
    environment = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(
        line=one_line,
        safe_text=printable,
        name=name_of,
        reason=skip_reason,
        side=on_side,
        markup=Markup,  # figures escape their own words
    )
    diagnosis = report.diagnosis
    return environment.get_template("page.html.j2").render(
        report=report,
        diagnosis=diagnosis,
        verdict=verdict_words(diagnosis),
        headline=one_line(diagnosis.headline),
        place=place_of(diagnosis.where),
        level=level_name(diagnosis.asked),
        place_facts=place_facts(report.facts),
        figures=figures_of(report),
        filters=_filters(diagnosis),
        groups=_groups(diagnosis),
        probes=_probes(report.facts),
        marks=UNICODE.marks,
        style=Markup(style),  # noqa: S704 - our own file
        style_hash=base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
    )


def _filters(diagnosis: Diagnosis) -> tuple[_Filter, ...]:
    labels = {
        Status.FAIL: "Failed",
        Status.ERROR: "Errors",
        Status.WARN: "Warnings",
        Status.INFO: "Noted",
        Status.PASS: "Passed",
        Status.SKIP: "Skipped",
    }
    counts = count_by_status(diagnosis.results)
    found = [_Filter(key="all", label="All", count=len(diagnosis.results))]
    found += [
        _Filter(key=status.value, label=label, count=counts[status])
        for status, label in labels.items()
        if status in counts
    ]
    return tuple(found)


def _groups(diagnosis: Diagnosis) -> tuple[_Group, ...]:
    return tuple(
        _Group(
            title=GROUP_TITLES[key],
            words=group_words(results),
            results=tuple(results),
        )
        for key, results in by_group(diagnosis.results).items()
    )


def _probes(facts: Facts) -> tuple[_Probe, ...]:
    found = []
    for name, run in facts.probes.items():
        body = plain({"facts": run.facts, "error": run.error} if run.error else run.facts)
        text = json.dumps(body, indent=1, ensure_ascii=False)
        found.append(_Probe(name=one_line(name), status=run.status, text=text))
    return tuple(found)
