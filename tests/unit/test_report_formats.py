"""Each report format on reports of places that are well, broken, undiagnosed and hostile."""

from __future__ import annotations

import errno
import html
import json
import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import jsonschema
import pytest
import report_samples as samples

from gpuenv.checks.facts import parse_facts
from gpuenv.checks.model import Cause, CheckResult, Fix, Status
from gpuenv.errors import ConfigurationError
from gpuenv.report.deliver import write_text
from gpuenv.report.document import load_schema, report_as_document
from gpuenv.report.github import fenced_off, render_annotations, render_step_summary
from gpuenv.report.junit import render_junit
from gpuenv.report.page import render_page
from gpuenv.report.redact import Redactor
from gpuenv.report.report import Report, make_report
from gpuenv.report.table import ASCII, UNICODE, as_plain, as_text, render_lines, symbols_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SAMPLES = {
    "healthy": samples.healthy,
    "faulty": samples.faulty,
    "undiagnosed": samples.undiagnosed,
    "nothing": samples.nothing,
    "hostile": samples.hostile,
}
every_sample = pytest.mark.parametrize("make", SAMPLES.values(), ids=SAMPLES)


def table(report: Report, *, width: int = 80, verbosity: int = 0) -> str:
    return as_plain(render_lines(report, width=width, verbosity=verbosity))


class TestTable:
    @pytest.mark.parametrize("width", [80, 100, 120, 200])
    def test_healthy_report_fits_forty_lines(self, width: int) -> None:
        lines = table(samples.healthy(), width=width).splitlines()
        assert len(lines) <= 40
        assert max(map(len, lines)) <= width

    @every_sample
    def test_verdict_is_the_first_and_the_last_line(self, make: Callable[[], Report]) -> None:
        lines = table(make()).splitlines()
        assert lines[0] == lines[-1]
        assert lines[0].startswith("gpuenv doctor: ")

    def test_cause_shows_evidence_fix_confidence_and_consequences(self) -> None:
        text = table(samples.faulty())
        order = [
            "✗ CAUSE  host.driver.match  (certain)",
            "the driver library is 580.65.06",
            "/proc/driver/nvidia/version  575.57.08",
            "fix       on the host: stop what uses the GPUs",
            "or else   a container image",
            "✗ host.nvml.init: NVML does not start",
            "not looked at because of it: torch.kernel",
            "gpuenv explain host.driver.match",
            "! WARN  shm.size  (likely)",
        ]
        places = [text.find(part) for part in order]
        assert -1 not in places, order[places.index(-1)]
        assert places == sorted(places)

    def test_command_stands_whole_on_its_own_line_at_any_width(self) -> None:
        command = samples.MISMATCH.fixes[0].command
        assert len(command) > 80
        assert command in [line.strip() for line in table(samples.faulty()).splitlines()]

    def test_consequence_is_told_once(self) -> None:
        assert table(samples.faulty()).count("NVML does not start") == 1

    def test_skips_are_summarised_by_reason_and_listed_when_asked(self) -> None:
        brief = table(samples.healthy())
        assert "does not apply here (1), needs root (1); -v shows each" in " ".join(brief.split())
        assert "the kernel log is closed" not in brief
        assert "hw.xid: the kernel log is closed (needs root)" in table(
            samples.healthy(), verbosity=1
        )

    def test_what_a_deeper_level_looks_at_is_told_apart(self) -> None:
        deeper = [
            CheckResult(id=name, status=Status.SKIP, reason="level", summary="needs --level deep")
            for name in ("num.step", "num.amp", "hw.temp")
        ]
        well = CheckResult(id="hw.ecc", status=Status.PASS, summary="no errors")
        text = table(samples.report_of(samples.diagnosis_of(well, *deeper)))
        assert "✓ Hardware health        1 passed, 1 at a deeper level" in text
        assert "– Numerics and training  2 at a deeper level" in text  # noqa: RUF001 - a skip
        assert "at a deeper level (3)" in text

    def test_group_is_not_marked_well_when_most_of_it_was_skipped(self) -> None:
        results = [
            CheckResult(id="hw.ecc", status=Status.PASS, summary="no errors"),
            CheckResult(id="hw.xid", status=Status.SKIP, reason="needs-root", summary="closed"),
        ]
        text = table(samples.report_of(samples.diagnosis_of(*results)))
        assert "– Hardware health  1 passed, 1 skipped" in text  # noqa: RUF001 - a skip

    def test_skip_is_never_shown_as_passed(self) -> None:
        text = table(samples.nothing())
        assert "NOTHING TO DIAGNOSE" in text
        assert "1 skipped" in text
        assert "✓" not in text

    def test_unmet_requirement_names_the_check_that_did_not_answer(self) -> None:
        report = samples.undiagnosed()
        report = samples.report_of(report.diagnosis, provides={"host.gpu.pci": ("gpu",)})
        text = table(report)
        assert "required but not confirmed: gpu" in text
        assert "– host.gpu.pci: no NVIDIA GPU here" in text  # noqa: RUF001 - the mark of a skip

    def test_interrupted_report_does_not_say_pass(self) -> None:
        diagnosis = replace(samples.healthy().diagnosis, interrupted=True, exit_code=130)
        report = samples.report_of(diagnosis)
        assert table(report).startswith("gpuenv doctor: INTERRUPTED — cut short; known so far: ")
        for name, text in all_formats(report).items():
            assert name == "json" or "PASS" not in text

    def test_quiet_shows_verdict_and_causes_only(self) -> None:
        text = table(samples.faulty(), verbosity=-1)
        assert "host.driver.match" in text
        assert "Driver and GPUs" not in text
        assert text.count("gpuenv doctor:") == 2
        assert table(samples.healthy(), verbosity=-1).count("gpuenv doctor:") == 1

    @every_sample
    def test_ascii_stream_gets_ascii_marks(self, make: Callable[[], Report]) -> None:
        report = make()
        text = as_plain(render_lines(report, symbols=ASCII, verbosity=1))
        if report.diagnosis.headline != samples.HOSTILE:
            assert text.isascii()

    @pytest.mark.parametrize(
        ("encoding", "expected"),
        [("utf-8", UNICODE), ("ascii", ASCII), ("latin-1", ASCII), (None, ASCII), ("x-no", ASCII)],
    )
    def test_marks_follow_the_encoding(self, encoding: str | None, expected: object) -> None:
        assert symbols_for(encoding) is expected

    def test_control_characters_are_spelt_out(self) -> None:
        text = table(samples.hostile(), verbosity=1)
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert "\\x1b[31mred" in text
        text.encode()

    def test_styled_and_plain_text_are_the_same_words(self) -> None:
        lines = render_lines(samples.faulty(), width=90)
        rich = [line.rstrip() for line in as_text(lines).plain.splitlines()]
        assert rich == as_plain(lines).splitlines()


class TestJson:
    @every_sample
    def test_document_fits_the_shipped_schema(self, make: Callable[[], Report]) -> None:
        document = json.loads(json.dumps(report_as_document(make()), allow_nan=False))
        jsonschema.validate(document, load_schema("doctor"))
        jsonschema.validate(document["facts"], load_schema("facts"))

    @pytest.mark.parametrize("name", ["doctor", "facts"])
    def test_shipped_schema_is_a_schema(self, name: str) -> None:
        jsonschema.Draft202012Validator.check_schema(load_schema(name))  # type: ignore[arg-type]

    def test_schema_refuses_a_skip_without_reason(self) -> None:
        document = report_as_document(samples.nothing())
        document["checks"][0]["reason"] = None
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(document, load_schema("doctor"))

    def test_roles_say_what_is_cause_and_what_follows(self) -> None:
        document = report_as_document(samples.faulty())
        roles = {check["id"]: check["role"] for check in document["checks"]}
        assert roles["host.driver.match"] == "cause"
        assert roles["host.nvml.init"] == "consequence"
        assert roles["torch.kernel"] == "none"
        assert document["causes"][0]["consequences"][0]["id"] == "host.nvml.init"

    def test_facts_inside_a_report_can_be_read_back(self) -> None:
        report = samples.report_of(samples.canary_diagnosis(), samples.canary_facts())
        envelope = {"gpuenv_result_version": "1", "data": report_as_document(report)}
        assert parse_facts(json.dumps(envelope)) == samples.canary_facts()


class TestJunit:
    @every_sample
    def test_it_is_well_formed_and_counts_what_it_holds(self, make: Callable[[], Report]) -> None:
        root = parse_xml(render_junit(make()))
        cases = root.findall(".//testcase")
        for attribute, tag in (
            ("failures", "failure"),
            ("errors", "error"),
            ("skipped", "skipped"),
        ):
            count = sum(case.find(tag) is not None for case in cases)
            assert root.get(attribute) == str(count)
        assert root.get("tests") == str(len(cases))
        names = [(case.get("classname"), case.get("name")) for case in cases]
        assert len(set(names)) == len(names)

    def test_each_status_has_its_element(self) -> None:
        found = cases_of(samples.faulty())
        assert found["host.driver.match"].find("failure") is not None
        assert found["torch.kernel"].find("skipped") is not None
        assert [child.tag for child in found["shm.size"]] == ["system-out"]
        assert cases_of(samples.undiagnosed())["run.probe [torch.kernel]"].find("error") is not None

    def test_consequence_names_its_cause(self) -> None:
        failure = cases_of(samples.faulty())["host.nvml.init"].find("failure")
        assert failure is not None
        assert failure.get("type") == "consequence"
        assert "follows from host.driver.match" in (failure.text or "")

    def test_skip_of_something_required_is_a_failure(self) -> None:
        diagnosis = samples.undiagnosed().diagnosis
        found = cases_of(samples.report_of(diagnosis, provides={"host.gpu.pci": ("gpu",)}))
        assert found["require gpu"].find("failure") is not None
        assert found["host.gpu.pci"].find("failure") is not None
        assert found["host.gpu.pci"].find("skipped") is None

    def test_warning_is_a_failure_when_strict(self) -> None:
        found = cases_of(samples.report_of(samples.faulty().diagnosis, strict=True))
        assert found["shm.size"].find("failure") is not None


def parse_xml(text: str) -> ET.Element:
    return ET.fromstring(text.encode())  # noqa: S314 - our own output


def cases_of(report: Report) -> dict[str, ET.Element]:
    root = parse_xml(render_junit(report))
    return {str(case.get("name")): case for case in root.findall(".//testcase")}


class TestGithub:
    def test_cause_is_one_annotation_with_fix_and_consequence(self) -> None:
        first, second = render_annotations(samples.faulty()).splitlines()
        assert first.startswith("::error title=gpuenv doctor%3A host.driver.match::the driver")
        assert "%0AFix on the host: stop what uses" in first
        assert "%0AFollows: host.nvml.init" in first
        assert second.startswith("::warning title=gpuenv doctor%3A shm.size::")

    def test_warning_is_an_error_when_strict(self) -> None:
        text = render_annotations(samples.report_of(samples.faulty().diagnosis, strict=True))
        assert "::warning" not in text

    def test_unmet_requirement_is_an_error(self) -> None:
        assert "::error title=gpuenv doctor%3A not diagnosed::required but not confirmed: gpu" in (
            render_annotations(samples.undiagnosed())
        )

    def test_healthy_report_is_one_notice(self) -> None:
        assert render_annotations(samples.healthy()).startswith(
            "::notice title=gpuenv doctor::PASS"
        )

    @every_sample
    def test_text_can_start_no_command_of_its_own(self, make: Callable[[], Report]) -> None:
        report = make()
        text = render_annotations(report)
        expected = len(report.diagnosis.causes) + len(report.diagnosis.unmet) or 1
        assert len(text.splitlines()) == expected
        for line in text.splitlines():
            command = re.fullmatch(r"::(error|warning|notice) title=([^:,\r\n]*)::(.*)", line)
            assert command is not None
            assert not re.search(r"%(?!25|0D|0A|3A|2C)", command[2] + command[3])

    def test_table_in_the_log_stands_between_markers(self) -> None:
        opened, *_, closed = fenced_off("::error::x\n").splitlines()
        word = opened.removeprefix("::stop-commands::")
        assert closed == f"::{word}::"
        assert re.fullmatch(r"gpuenv-[0-9a-f]{32}", word)

    @every_sample
    def test_summary_holds_no_live_markup_of_the_text(self, make: Callable[[], Report]) -> None:
        text = render_step_summary(make())
        outside = re.sub(r"(?ms)^(`{3,})sh\n.*?^\1$", "", text)
        assert "<script" not in outside
        assert "<img" not in outside
        assert not re.search(r"(?<!\\)\|.*(?<!\\)\|.*(?<!\\)\|.*(?<!\\)\|.*(?<!\\)\|", outside)

    def test_summary_has_verdict_cause_fix_and_every_check(self) -> None:
        text = render_step_summary(samples.faulty())
        assert text.startswith("## ❌ gpuenv doctor: FAIL")
        assert "```sh\nsudo rmmod nvidia_uvm" in text
        assert "| ➖ | torch.kernel |" in text  # noqa: RUF001 - the emoji

    def test_command_with_backticks_stays_in_its_block(self) -> None:
        bad = CheckResult(
            id="x.y",
            status=Status.FAIL,
            summary="s",
            fixes=(Fix(side="host", text="t", command="echo ```\n# not a heading"),),
        )
        report = samples.report_of(samples.diagnosis_of(bad, causes=(Cause(result=bad),)))
        assert "````sh\necho ```\n# not a heading\n````" in render_step_summary(report)


def test_no_canary_is_in_any_format() -> None:
    report = make_report(
        samples.canary_diagnosis(), samples.canary_facts(), (), redactor=Redactor()
    )
    for name, text in all_formats(report).items():
        for canary in samples.CANARIES:
            assert canary not in text, f"{canary} is in {name}"


def test_canaries_are_planted_in_every_format() -> None:
    report = make_report(samples.canary_diagnosis(), samples.canary_facts(), (), redactor=None)
    for name, text in all_formats(report).items():
        missing = [canary for canary in samples.CANARIES if canary not in text]
        assert not missing, f"{name} would hide nothing of {missing}"


def all_formats(report: Report) -> dict[str, str]:
    return {
        "table": table(report, verbosity=1),
        "json": json.dumps(report_as_document(report)),
        "junit": render_junit(report),
        "github": render_annotations(report),
        "page": html.unescape(render_page(report)),
        "summary": render_step_summary(report).replace("\\", ""),
    }


def test_a_report_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report.html"
    path.write_text("the former", encoding="utf-8")
    path.chmod(0o640)
    link = tmp_path / "latest.html"
    link.symlink_to(path.name)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(ConfigurationError, match=r"cannot write .*latest\.html") as caught:
            write_text(link, "half of the n")
    assert caught.value.why == "No space left on device"
    assert path.read_text(encoding="utf-8") == "the former"
    write_text(link, "the next")
    assert link.is_symlink()
    assert path.read_text(encoding="utf-8") == "the next"
    assert path.stat().st_mode & 0o777 == 0o640
    assert sorted(each.name for each in tmp_path.iterdir() if each.is_file()) == [
        "latest.html",
        "report.html",
    ]
