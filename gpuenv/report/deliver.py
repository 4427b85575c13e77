"""Every format by its name, and the files a report is written to."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Literal, TypeAlias

from gpuenv.checks.model import Status
from gpuenv.errors import ConfigurationError
from gpuenv.report.table import UNICODE, as_plain, render_lines
from gpuenv.report.text import name_of, one_line, skip_reason
from gpuenv.writing import write_whole

if TYPE_CHECKING:
    from pathlib import Path

    from gpuenv.checks.model import Facts
    from gpuenv.report.report import Report

TextFormat: TypeAlias = Literal["github", "junit", "html", "tap"]


def render_text(report: Report, form: TextFormat) -> str:
    """Return the report in one of the formats other programs read."""
    if form == "github":
        from gpuenv.report.github import fenced_off, render_annotations

        table = as_plain(render_lines(report, width=100, symbols=UNICODE))
        return render_annotations(report) + fenced_off(table)
    if form == "junit":
        from gpuenv.report.junit import render_junit

        return render_junit(report)
    if form == "html":
        from gpuenv.report.page import render_page

        return render_page(report)
    return render_tap(report)


def render_tap(report: Report) -> str:
    """Return the report as TAP 13; what ``--require`` could not confirm is ``not ok``."""
    lines = []
    for word in report.diagnosis.asked.get("require", ()):
        met = word not in report.diagnosis.unmet
        lines.append((met, f"require {one_line(str(word))}", ""))
    for result in report.diagnosis.results:
        bad = result.status in {Status.FAIL, Status.ERROR}
        bad = bad or (report.strict and result.status is Status.WARN)
        directive = ""
        if result.status is Status.SKIP:
            required = set(report.provides.get(result.id, ())) & set(report.diagnosis.unmet)
            bad = bool(required)
            directive = "" if bad else f" # SKIP {_tap(skip_reason(result))}"
        lines.append((not bad, f"{name_of(result)}: {result.summary}", directive))
    body = [
        f"{'ok' if good else 'not ok'} {number} - {_tap(text)}{directive}"
        for number, (good, text, directive) in enumerate(lines, start=1)
    ]
    return "\n".join(["TAP version 13", f"1..{len(lines)}", *body]) + "\n"


def write_text(path: Path, text: str) -> None:
    """Write one output file, whole or not at all: what was there stays if the disk is full.

    Raises:
        ConfigurationError: It cannot be written there.
    """
    target = path.resolve()  # a link stays one
    try:
        if target.exists() and not (target.is_file() and os.access(target.parent, os.W_OK)):
            target.write_text(text, encoding="utf-8")  # a device, or a file in another's folder
            return
        mode = target.stat().st_mode & 0o7777 if target.exists() else None
        write_whole(target, text.encode(), mode=mode)
    except OSError as exc:
        raise ConfigurationError(
            f"cannot write {path}", why=exc.strerror or str(exc), fix="name a file you may write"
        ) from exc


def append_step_summary(path: Path, report: Report) -> None:
    """Add the report to the file GitHub names in ``GITHUB_STEP_SUMMARY``.

    Raises:
        ConfigurationError: It cannot be written.
    """
    from gpuenv.report.github import render_step_summary

    try:
        with path.open("a", encoding="utf-8") as stream:
            stream.write(render_step_summary(report))
    except OSError as exc:
        raise ConfigurationError(
            f"cannot write the step summary to {path}", why=exc.strerror or str(exc)
        ) from exc


def render_facts(facts: Facts) -> str:
    """Return facts as ``--capture`` writes them."""
    from gpuenv.checks.facts import facts_as_document
    from gpuenv.report.document import plain

    return json.dumps(plain(facts_as_document(facts)), indent=1, ensure_ascii=False) + "\n"


def _tap(text: str) -> str:
    return one_line(text).replace("\\", "\\\\").replace("#", "\\#")
