"""The report as JUnit XML, which GitLab, Jenkins and most CI systems show test by test.

GitLab counts a skipped test as a success. So what ``--require`` names and was not confirmed is a
``<failure>`` here, both as a test of its own (``require gpu``) and on the skipped checks that
would have answered it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from gpuenv.checks.model import Status
from gpuenv.report.text import (
    group_of,
    name_of,
    on_side,
    one_line,
    place_of,
    printable,
    skip_reason,
    verdict_words,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuenv.checks.model import CheckResult
    from gpuenv.report.report import Report


def render_junit(report: Report) -> str:
    """Return the report as one XML document."""
    diagnosis = report.diagnosis
    suite = ET.Element("testsuite", {"name": "gpuenv doctor"})
    properties = ET.SubElement(suite, "properties")
    for name, value in _properties(report).items():
        ET.SubElement(properties, "property", {"name": name, "value": value})
    for word in diagnosis.asked.get("require", ()):
        case = _case(suite, group="require", name=f"require {one_line(str(word))}")
        if word in diagnosis.unmet:
            _outcome(case, "failure", f"required but not confirmed: {word}", kind="require")
    folded = {
        id(result): cause.result for cause in diagnosis.causes for result in cause.consequences
    }
    used: dict[str, int] = {}
    for result in diagnosis.results:
        name = name_of(result)
        used[name] = used.get(name, 0) + 1
        unique = name if used[name] == 1 else f"{name} #{used[name]}"
        case = _case(suite, group=group_of(result.id), name=unique)
        _judge(report, case, result, folded.get(id(result)))
    cases = suite.findall("testcase")
    totals = {
        "tests": len(cases),
        "failures": sum(case.find("failure") is not None for case in cases),
        "errors": sum(case.find("error") is not None for case in cases),
        "skipped": sum(case.find("skipped") is not None for case in cases),
    }
    counted = {name: str(count) for name, count in totals.items()}
    counted["time"] = f"{report.elapsed_s or 0.0:.3f}"
    suite.attrib.update(counted)
    if report.created:
        suite.set("timestamp", report.created.removesuffix("Z"))
    root = ET.Element("testsuites", {"name": "gpuenv doctor", **counted})
    root.append(suite)
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _properties(report: Report) -> Mapping[str, str]:
    return {
        "gpuenv_version": report.gpuenv_version,
        "verdict": verdict_words(report.diagnosis),
        "headline": one_line(report.diagnosis.headline),
        "place": place_of(report.diagnosis.where),
        "redacted": str(report.redacted).lower(),
    }


def _case(suite: ET.Element, *, group: str, name: str) -> ET.Element:
    return ET.SubElement(suite, "testcase", {"classname": f"gpuenv.doctor.{group}", "name": name})


def _judge(
    report: Report, case: ET.Element, result: CheckResult, cause: CheckResult | None
) -> None:
    details = _details(result, cause)
    status = result.status
    if status is Status.SKIP:
        message = f"{skip_reason(result)}: {result.summary}"
        required = set(report.provides.get(result.id, ())) & set(report.diagnosis.unmet)
        if required:
            why = f"required ({', '.join(sorted(required))}) but skipped: {message}"
            _outcome(case, "failure", why, kind="require")
        else:
            ET.SubElement(case, "skipped", {"message": one_line(message)})
    elif status is Status.ERROR:
        _outcome(case, "error", result.summary, kind="error", details=details)
    elif status is Status.FAIL or (status is Status.WARN and report.strict):
        kind = "consequence" if cause is not None else status.value
        _outcome(case, "failure", result.summary, kind=kind, details=details)
    else:
        ET.SubElement(case, "system-out").text = f"{status.value}: {details}"


def _outcome(case: ET.Element, tag: str, message: str, *, kind: str, details: str = "") -> None:
    element = ET.SubElement(case, tag, {"message": one_line(message), "type": kind})
    element.text = details or one_line(message)


def _details(result: CheckResult, cause: CheckResult | None) -> str:
    lines = [result.summary]
    if cause is not None:
        lines.append(f"follows from {name_of(cause)}: {cause.summary}")
    if result.why:
        lines.append(f"why: {result.why}")
    lines += [f"evidence: {item.source}: {item.value}" for item in result.evidence]
    for fix in result.fixes:
        lines.append(f"fix {on_side(fix.side)}: {fix.text}")
        if fix.command:
            lines.append(f"    {fix.command}")
    lines += [f"or else: {text}" for text in result.alternatives]
    return printable("\n".join(lines))
