"""The report as JSON: what stands in ``data`` of ``gpuenv doctor --json``.

The schemas are beside this file, ``doctor.schema.json`` for the report and ``facts.schema.json``
for the facts in it and for what ``--capture`` writes. Keys may be added within one
``schema_version``; a key that changes its meaning or goes raises it.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from gpuenv.checks.facts import facts_as_document
from gpuenv.checks.model import Status
from gpuenv.errors import CheckFailedError, NotDiagnosedError
from gpuenv.report.text import group_of, level_name, name_of, printable
from gpuenv.resources import package_dir

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuenv.checks.model import Cause, CheckResult
    from gpuenv.errors import GpuenvError
    from gpuenv.report.report import Report

SCHEMA_VERSION = "1"
SchemaName: TypeAlias = Literal["doctor", "facts"]


def report_as_document(report: Report) -> dict[str, Any]:
    """Return the whole report as JSON-ready values."""
    diagnosis = report.diagnosis
    role = _roles(diagnosis.causes)
    document: dict[str, Any] = plain({
        "schema_version": SCHEMA_VERSION,
        "gpuenv_version": report.gpuenv_version,
        "created": report.created,
        "verdict": diagnosis.verdict,
        "exit_code": diagnosis.exit_code,
        "headline": diagnosis.headline,
        "interrupted": diagnosis.interrupted,
        "redacted": report.redacted,
        "where": dict(diagnosis.where),
        "level": level_name(diagnosis.asked),
        "asked": dict(diagnosis.asked),
        "unmet": list(diagnosis.unmet),
        "counts": {status.value: int(diagnosis.counts.get(status, 0)) for status in Status},
        "causes": [
            {
                **_result(report, cause.result),
                "consequences": [_result(report, result) for result in cause.consequences],
            }
            for cause in diagnosis.causes
        ],
        "checks": [
            {**_result(report, result), "role": role.get(_key(result), "none")}
            for result in diagnosis.results
        ],
        "elapsed_s": None if report.elapsed_s is None else round(report.elapsed_s, 4),
        "timings_s": {name: round(value, 4) for name, value in diagnosis.timings_s.items()},
        "facts": facts_as_document(report.facts),
    })  # fmt: skip
    return document


def envelope_errors(report: Report) -> tuple[GpuenvError, ...]:
    """Return a failed report as errors, for readers who look at ``errors`` only."""
    diagnosis = report.diagnosis
    found: list[GpuenvError] = []
    if diagnosis.exit_code == CheckFailedError.exit_code:
        for cause in diagnosis.causes:
            result = cause.result
            if result.status is Status.FAIL or (report.strict and result.status is Status.WARN):
                fix = result.fixes[0] if result.fixes else None
                found.append(
                    CheckFailedError(
                        printable(f"{name_of(result)}: {result.summary}"),
                        why=printable(result.why),
                        fix=printable(fix.command or fix.text) if fix else "",
                    )
                )
    found += [
        NotDiagnosedError(
            f"required but not confirmed: {word}",
            fix="see `data.checks` for what was skipped, and why",
        )
        for word in diagnosis.unmet
    ]
    return tuple(found)


def load_schema(name: SchemaName) -> dict[str, Any]:
    """Return one of the shipped JSON Schemas."""
    path = package_dir() / "report" / f"{name}.schema.json"
    schema: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return schema


def plain(value: Any) -> Any:
    """Return a value as strict JSON has it: no NaN, no infinity, no half surrogate, text keys."""
    if isinstance(value, bool) or value is None or isinstance(value, int):
        return value if not isinstance(value, int) or type(value) in {int, bool} else int(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return printable(str(value))
    if hasattr(value, "items"):
        return {printable(str(name)): plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(inner) for inner in value]
    return printable(str(value))


def _result(report: Report, result: CheckResult) -> dict[str, Any]:
    return {
        "id": result.id,
        "title": report.title_of(result),
        "group": group_of(result.id),
        "subject": result.subject,
        "status": result.status.value,
        "reason": result.reason,
        "summary": result.summary,
        "why": result.why,
        "confidence": result.confidence,
        "blocked_by": result.blocked_by,
        "evidence": [{"source": item.source, "value": item.value} for item in result.evidence],
        "fixes": [
            {"side": fix.side, "text": fix.text, "command": fix.command} for fix in result.fixes
        ],
        "alternatives": list(result.alternatives),
        "numbers": dict(result.numbers),
    }


def _key(result: CheckResult) -> tuple[str, str, str]:
    return result.id, result.subject, result.summary


def _roles(causes: tuple[Cause, ...]) -> Mapping[tuple[str, str, str], str]:
    roles = {_key(result): "consequence" for cause in causes for result in cause.consequences}
    roles.update({_key(cause.result): "cause" for cause in causes})
    return roles
