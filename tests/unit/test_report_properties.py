"""Whatever a probe says, every report stays well-formed and no text acts on its reader."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import report_samples as samples
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from gpuenv.checks.model import Cause, CheckResult, Evidence, Facts, Fix, ProbeRun, Status
from gpuenv.report.deliver import render_tap
from gpuenv.report.document import report_as_document
from gpuenv.report.github import fenced_off, render_annotations, render_step_summary
from gpuenv.report.junit import render_junit
from gpuenv.report.page import render_page
from gpuenv.report.redact import Redactor
from gpuenv.report.table import as_plain, render_lines

if TYPE_CHECKING:
    from gpuenv.report.report import Report

NASTY = st.sampled_from([
    "::error::x", "\r\n", "\x1b[2J", "<script>", "]]>", "&amp;", "`", "```", "|", "%0A", "\ud800",
    "\x00", "\u202e", "{{ 7 }}", "{% x %}", "]()", "# SKIP", "not ok 1", "\x85", "\u2028", "\x0c",
])  # fmt: skip
TEXT = st.lists(NASTY | st.text(max_size=12), max_size=6).map("".join)
quick = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.generate],
)


@st.composite
def reports(draw: st.DrawFn) -> Report:
    def result(status: Status) -> CheckResult:
        return CheckResult(
            id="torch.libs",
            subject=draw(TEXT),
            status=status,
            summary=draw(TEXT),
            reason="no-gpu" if status is Status.SKIP else None,
            why=draw(TEXT),
            evidence=(Evidence(source=draw(TEXT), value=draw(TEXT)),),
            fixes=(Fix(side="host", text=draw(TEXT), command=draw(TEXT)),),
            alternatives=(draw(TEXT),),
            numbers={draw(TEXT): draw(st.floats() | TEXT)},
        )

    results = [result(status) for status in draw(st.lists(st.sampled_from(Status), max_size=4))]
    bad = [each for each in results if each.status in (Status.FAIL, Status.WARN, Status.ERROR)]
    causes = (Cause(result=bad[0], consequences=tuple(bad[1:])),) if bad else ()
    facts = Facts(
        where={"kind": draw(TEXT), "target": draw(TEXT)},
        probes={draw(TEXT): ProbeRun(status="ok", facts={draw(TEXT): [draw(TEXT)]})},
    )
    diagnosis = samples.diagnosis_of(
        *results, causes=causes, headline=draw(TEXT), where=facts.where, unmet=("gpu",)
    )
    return samples.report_of(diagnosis, facts)


@quick
@given(report=reports())
def test_machine_formats_stay_well_formed(report: Report) -> None:
    ET.fromstring(render_junit(report).encode())  # noqa: S314 - our own output
    text = json.dumps(report_as_document(report), allow_nan=False, ensure_ascii=False)
    assert json.loads(text.encode())["unmet"] == ["gpu"]
    for line in render_tap(report).splitlines()[2:]:
        assert re.match(r"(not )?ok \d+ - ", line)


@quick
@given(report=reports())
def test_no_text_starts_a_workflow_command(report: Report) -> None:
    lines = render_annotations(report).split("\n")[:-1]
    assert len(lines) == len(report.diagnosis.causes) + 1
    assert all(re.fullmatch(r"::(error|warning) title=[^:,]*::[^\r\n]*", line) for line in lines)
    table = as_plain(render_lines(report, verbosity=1))
    opened, *inside, closed, _ = fenced_off(table).split("\n")
    assert closed.strip(":") == opened.removeprefix("::stop-commands::")
    assert closed not in [line.strip() for line in inside]
    render_step_summary(report).encode()


@quick
@given(report=reports())
def test_terminal_gets_no_control_characters(report: Report) -> None:
    text = as_plain(render_lines(report, verbosity=1))
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)
    text.encode()


@quick
@given(report=reports())
def test_page_has_no_element_of_the_text(report: Report) -> None:
    page = render_page(report)
    page.encode()
    assert "<script" not in page
    assert "\x1b" not in page


@quick
@given(text=TEXT | st.text(max_size=200))
def test_redaction_never_fails_and_settles(text: str) -> None:
    redactor = Redactor(users=["mallory"], hosts=["zeus17"], homes=["/home/mallory"])
    once = redactor.text(text)
    assert redactor.text(once) == once


@quick
@given(before=TEXT, after=TEXT, secret=st.sampled_from(samples.CANARIES))
def test_private_words_go_whatever_stands_around_them(before: str, after: str, secret: str) -> None:
    redactor = Redactor()
    redactor.learn({"where": samples.canary_facts().where, "p": samples.canary_facts().probes})
    clean = redactor.text(f"{before} {samples.PRIVATE} {after}")
    assert secret not in clean
