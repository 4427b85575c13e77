"""The report for GitHub Actions: annotations for the log, and Markdown for the step summary.

Nothing in a report may become a workflow command: annotations are escaped as the runner asks, and
the table in the log stands between ``stop-commands`` markers whose word the table cannot contain.
"""

from __future__ import annotations

import hashlib
import html
import re
from typing import TYPE_CHECKING

from gpuenv.checks.model import Status
from gpuenv.report.text import (
    GROUP_TITLES,
    by_group,
    group_words,
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

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuenv.checks.model import Cause, CheckResult
    from gpuenv.report.report import Report

_ICONS = {
    Status.PASS: "✅",
    Status.INFO: "ℹ️",  # noqa: RUF001 - the emoji
    Status.WARN: "⚠️",
    Status.FAIL: "❌",
    Status.ERROR: "❓",
    Status.SKIP: "➖",  # noqa: RUF001 - the emoji
}
_VERDICT_ICONS = {
    "pass": "✅",
    "warn": "⚠️",
    "fail": "❌",
    "undiagnosed": "❓",
    "nothing-to-diagnose": "➖",  # noqa: RUF001 - the emoji
}


def render_annotations(report: Report) -> str:
    """Return one workflow command a cause, and one a requirement that was not confirmed."""
    lines = [
        _command("error", "gpuenv doctor: not diagnosed", f"required but not confirmed: {word}")
        for word in report.diagnosis.unmet
    ]
    for cause in report.diagnosis.causes:
        result = cause.result
        level = "warning" if result.status is Status.WARN and not report.strict else "error"
        if result.status is Status.ERROR:
            level = "warning"
        lines.append(_command(level, f"gpuenv doctor: {name_of(result)}", _message(cause)))
    if not lines:
        headline = f"{verdict_words(report.diagnosis)}: {report.diagnosis.headline}"
        lines.append(_command("notice", "gpuenv doctor", headline))
    return "\n".join(lines) + "\n"


def fenced_off(text: str) -> str:
    """Return text for the log with workflow commands in it switched off."""
    word = "gpuenv-" + hashlib.sha256(text.encode()).hexdigest()[:32]
    return f"::stop-commands::{word}\n{text.rstrip()}\n::{word}::\n"


def render_step_summary(report: Report) -> str:
    """Return the report as GitHub Markdown."""
    return "\n".join(_summary(report)) + "\n"


def _message(cause: Cause) -> str:
    result = cause.result
    lines = [result.summary]
    if result.why:
        lines.append(result.why)
    for fix in result.fixes:
        lines.append(f"Fix {on_side(fix.side)}: {fix.text}")
        if fix.command:
            lines.append(f"  {fix.command}")
    lines += [f"Follows: {name_of(item)}: {item.summary}" for item in cause.consequences]
    lines.append(f"More: gpuenv explain {result.id}")
    return "\n".join(lines)


def _command(level: str, title: str, message: str) -> str:
    return f"::{level} title={_property(one_line(title))}::{_data(printable(message))}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _summary(report: Report) -> Iterator[str]:
    diagnosis = report.diagnosis
    icon = "⏸️" if diagnosis.interrupted else _VERDICT_ICONS[diagnosis.verdict]
    yield f"## {icon} gpuenv doctor: {verdict_words(diagnosis)}"
    yield ""
    yield f"{_md(diagnosis.headline)}, {_md(place_of(diagnosis.where))}"
    if diagnosis.unmet:
        yield ""
        yield f"**Required but not confirmed:** {_md(', '.join(diagnosis.unmet))}"
    for cause in diagnosis.causes:
        yield ""
        yield from _cause(cause)
    groups = by_group(diagnosis.results)
    if groups:
        yield ""
        yield "| | Area | Result |"
        yield "|---|---|---|"
    for key, results in groups.items():
        icon = _ICONS[mark_of_group(results)]
        yield f"| {icon} | {GROUP_TITLES[key]} | {group_words(results)} |"
    skipped = skip_words(diagnosis.results)
    if skipped:
        yield ""
        yield f"Skipped, which is not a pass: {_md(skipped)}"
    if diagnosis.results:
        yield ""
        yield "<details><summary>All checks</summary>"
        yield ""
        yield "| | Check | What it found |"
        yield "|---|---|---|"
        for result in diagnosis.results:
            reason = f" ({skip_reason(result)})" if result.status is Status.SKIP else ""
            found = f"{_md(result.summary)}{reason}"
            yield f"| {_ICONS[result.status]} | {_md(name_of(result))} | {found} |"
        yield ""
        yield "</details>"


def _cause(cause: Cause) -> Iterator[str]:
    result = cause.result
    yield f"### {_ICONS[result.status]} {_md(name_of(result))}: {_md(result.summary)}"
    if result.why:
        yield ""
        yield f"{_md(result.why)} ({result.confidence})"
    if result.evidence:
        yield ""
        yield "| Seen in | Value |"
        yield "|---|---|"
        for item in result.evidence:
            yield f"| {_md(item.source)} | {_md(item.value)} |"
    for fix in result.fixes:
        yield ""
        yield f"**Fix {_md(on_side(fix.side))}:** {_md(fix.text)}"
        if fix.command:
            yield ""
            yield from _code(printable(fix.command))
    if cause.consequences:
        yield ""
        yield "Would go away with it:"
        yield ""
        for follower in cause.consequences:
            yield from _consequence(follower)


def _consequence(item: CheckResult) -> Iterator[str]:
    yield f"- {_ICONS[item.status]} {_md(name_of(item))}: {_md(item.summary)}"


def _md(text: str) -> str:
    r"""Return text that Markdown shows as it is: HTML escaped, and ``\`` before its own signs."""
    escaped = html.escape(one_line(text), quote=False)
    return re.sub(r"([\\`*_{}\[\]()#+!|~])", r"\\\1", escaped)


def _code(command: str) -> Iterator[str]:
    longest = max((len(run) for run in re.findall(r"`+", command)), default=0)
    fence = "`" * max(3, longest + 1)
    yield f"{fence}sh"
    yield command
    yield fence
