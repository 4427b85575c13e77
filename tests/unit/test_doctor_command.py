"""``gpuenv doctor`` at the command line: exit codes, formats, files, redaction, comparison."""

from __future__ import annotations

import io
import json
import sys
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import jsonschema
import pytest
import report_samples as samples

from gpuenv.checks.facts import facts_as_document
from gpuenv.checks.model import Check, CheckResult, Evidence, Facts, Fix, Level, ProbeRun, Status
from gpuenv.cli import main
from gpuenv.report.document import load_schema

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FORMATS = ("table", "json", "github", "junit", "html", "tap")


def _gpu(facts: Facts) -> tuple[CheckResult, ...]:
    gpus = (facts.get("host.pci") or {}).get("gpus")
    if not gpus:
        return (
            CheckResult(id="t.gpu", status=Status.SKIP, reason="no-gpu", summary="no GPU here"),
        )
    return (CheckResult(id="t.gpu", status=Status.PASS, summary=f"{len(gpus)} GPUs"),)


def _shm(facts: Facts) -> tuple[CheckResult, ...]:
    told = facts.get("host.limits") or {}
    size = told.get("shm_mib", 0)
    note = str(told.get("note", ""))
    status = Status.FAIL if size < 64 else Status.WARN if size < 512 else Status.PASS
    return (
        CheckResult(
            id="t.shm",
            status=status,
            summary=f"/dev/shm has {size} MiB {note}".strip(),
            why=note,
            evidence=(Evidence(source="statvfs", value=f"{size} {note}"),),
            fixes=(Fix(side="container", text="more of it", command="docker run --shm-size=8g"),),
        ),
    )


FAKE_CHECKS = (
    Check(
        id="t.gpu", title="A GPU", level=Level.STATIC, run=_gpu, needs=("host.pci",),
        provides=("gpu",),
    ),
    Check(
        id="t.shm", title="Shared memory", level=Level.STATIC, run=_shm, needs=("host.limits",),
        provides=("shm",),
    ),
)  # fmt: skip


@pytest.fixture(autouse=True)
def _two_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuenv.checks.catalogue.CHECKS", FAKE_CHECKS)
    for name in ("GITHUB_STEP_SUMMARY", "COLUMNS", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def capture(tmp_path: Path) -> Callable[..., str]:
    """Write a fact document and return its path."""

    def write(*, gpus: int = 1, shm_mib: int = 8192, name: str = "facts.json", **more: Any) -> str:
        facts = Facts(
            where={"kind": "host"},
            asked={"level": 0},
            complete=more.pop("complete", True),
            probes={
                "host.pci": ProbeRun(
                    status="ok", facts={"gpus": [{"index": n} for n in range(gpus)]}
                ),
                "host.limits": ProbeRun(status="ok", facts={"shm_mib": shm_mib, **more}),
            },
        )
        path = tmp_path / name
        path.write_text(json.dumps(facts_as_document(facts)))
        return str(path)

    return write


CASES = {
    "healthy": ({}, [], 0),
    "failure": ({"shm_mib": 8}, [], 1),
    "warning": ({"shm_mib": 100}, [], 0),
    "warning counts": ({"shm_mib": 100}, ["--strict"], 1),
    "no GPU": ({"gpus": 0}, [], 0),
    "GPU required": ({"gpus": 0}, ["--require", "gpu"], 3),
    "GPU required and there": ({}, ["--require", "gpu,shm"], 0),
    "required and left out": ({}, ["--require", "gpu", "--skip", "t.g*"], 3),
    "failure left out": ({"shm_mib": 8}, ["--skip", "t.shm"], 0),
    "cut short": ({"complete": False}, [], 130),
}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("case", CASES)
def test_exit_code_is_the_same_in_every_format(
    form: str, case: str, capture: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    facts, flags, expected = CASES[case]
    assert main(["doctor", "--from", capture(**facts), "--format", form, *flags]) == expected
    text = capsys.readouterr().out
    if form == "json":
        answer = json.loads(text)
        assert answer["exit_code"] == expected
        jsonschema.validate(answer["data"], load_schema("doctor"))
        assert bool(answer["errors"]) == (expected in (1, 3))
    if form == "junit":
        root = ET.fromstring(text.encode())  # noqa: S314 - our own output
        assert (root.get("failures") != "0") == (expected in (1, 3))


def test_json_flag_before_and_behind_the_command_is_the_json_format(
    capture: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = capture(shm_mib=8)
    assert main(["--json", "doctor", "--from", path]) == 1
    first = json.loads(capsys.readouterr().out)
    assert main(["doctor", "--from", path, "--json"]) == 1
    second = json.loads(capsys.readouterr().out)
    for answer in (first, second):
        assert answer["command"] == "doctor"
        assert answer["errors"][0]["slug"] == "check-failed"
        assert answer["errors"][0]["fix"] == "docker run --shm-size=8g"
        answer["data"].pop("created")
    assert first == second


def test_unconfirmed_requirement_is_an_error_with_its_slug(
    capture: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--from", capture(gpus=0), "--require", "gpu", "--json"]) == 3
    answer = json.loads(capsys.readouterr().out)
    assert [error["slug"] for error in answer["errors"]] == ["not-diagnosed"]
    assert answer["data"]["unmet"] == ["gpu"]


def test_facts_may_come_from_standard_input(
    capture: Callable[..., str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    capture(shm_mib=8)
    data = (tmp_path / "facts.json").read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert main(["doctor", "--from", "-"]) == 1
    assert "t.shm" in capsys.readouterr().out


def test_report_can_be_judged_again(
    capture: Callable[..., str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["doctor", "--from", capture(shm_mib=8), "--json"]) == 1
    report = tmp_path / "report.json"
    report.write_text(capsys.readouterr().out)
    assert main(["doctor", "--from", str(report)]) == 1


def test_files_are_written_beside_the_table(
    capture: Callable[..., str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    junit, page, facts = (tmp_path / name for name in ("j.xml", "p.html", "f.json"))
    assert main([
        "doctor", "--from", capture(shm_mib=8), "--junit", str(junit), "--html", str(page),
        "--capture", str(facts),
    ]) == 1  # fmt: skip
    assert "gpuenv doctor: FAIL" in capsys.readouterr().out
    assert 'failures="1"' in junit.read_text()
    assert page.read_text().startswith("<!DOCTYPE html>")
    jsonschema.validate(json.loads(facts.read_text()), load_schema("facts"))
    assert main(["doctor", "--from", str(facts)]) == 1


@pytest.mark.parametrize("flag", ["--junit", "--html", "--capture"])
def test_file_that_cannot_be_written_is_told(
    flag: str, capture: Callable[..., str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    target = tmp_path / "no" / "such" / "folder"
    assert main(["doctor", "--from", capture(), flag, str(target)]) == 2
    assert f"]: cannot write {target}" in capsys.readouterr().err


def test_github_summary_is_appended_where_github_asks(
    capture: Callable[..., str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    assert main(["doctor", "--from", capture(shm_mib=8), "--format", "github"]) == 1
    assert capsys.readouterr().out.startswith("::error title=gpuenv doctor%3A t.shm::")
    assert summary.read_text().startswith("before\n## ❌ gpuenv doctor: FAIL")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--require", "gqu"], "did you mean gpu?"),
        (["--require", "zzz"], "known: gpu, shm"),
        (["--skip", "t.shn"], "did you mean t.shm?"),
        (["--python", "/usr/bin/python3"], "exclude one another"),
        (["--level", "stattic"], "stattic"),
    ],
)
def test_bad_flag_is_refused_with_a_hint(
    flags: list[str],
    words: str,
    capture: Callable[..., str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["doctor", "--from", capture(), *flags]) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.out == ""


@pytest.mark.parametrize("text", ["", "[]", "not json", '{"gpuenv_facts_version": "99"}'])
def test_file_without_facts_is_refused(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    assert main(["doctor", "--from", str(path)]) == 2
    assert "error[configuration]:" in capsys.readouterr().err


def test_missing_file_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--from", "/no/such/file"]) == 2
    assert "cannot read /no/such/file" in capsys.readouterr().err


class TestRedaction:
    def planted(self, capture: Callable[..., str]) -> str:
        return capture(shm_mib=8, note=samples.PRIVATE, hostname="zeus17.acme-internal.example.net",
                       user="mallory", env={"ACME_THING": "sekritvalue"})  # fmt: skip

    @pytest.mark.parametrize("form", FORMATS)
    def test_no_canary_leaves_by_any_format_or_file(
        self,
        form: str,
        capture: Callable[..., str],
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
    ) -> None:
        written = {name: tmp_path / name for name in ("j.xml", "p.html", "f.json", "s.md")}
        monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(written["s.md"]))
        written["s.md"].write_text("")
        main([
            "doctor", "--from", self.planted(capture), "--format", form, "-v",
            "--junit", str(written["j.xml"]), "--html", str(written["p.html"]),
            "--capture", str(written["f.json"]),
        ])  # fmt: skip
        captured = capsys.readouterr()
        texts = {"out": captured.out, "err": captured.err}
        texts |= {name: path.read_text() for name, path in written.items()}
        for name, text in texts.items():
            for canary in samples.CANARIES:
                assert canary not in text, f"{canary} is in {name}"

    def test_no_redact_keeps_everything_and_says_so(
        self, capture: Callable[..., str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        main(["doctor", "--from", self.planted(capture), "--json", "--no-redact"])
        answer = capsys.readouterr().out
        assert all(canary in answer for canary in samples.CANARIES)
        assert json.loads(answer)["data"]["redacted"] is False

    def test_redacted_facts_give_the_same_diagnosis(
        self, capture: Callable[..., str], capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        clean = tmp_path / "clean.json"
        main(["doctor", "--from", self.planted(capture), "--capture", str(clean), "--json"])
        first = json.loads(capsys.readouterr().out)["data"]
        main(["doctor", "--from", str(clean), "--json"])
        second = json.loads(capsys.readouterr().out)["data"]
        assert [check["summary"] for check in first["checks"]] == [
            check["summary"] for check in second["checks"]
        ]
        assert first["verdict"] == second["verdict"]


class TestDiff:
    def test_finding_comes_first_then_the_facts_it_rests_on(
        self, capture: Callable[..., str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        there = capture(name="there.json", gpus=2)
        here = capture(name="here.json", gpus=1, shm_mib=8)
        assert main(["doctor", "diff", there, here]) == 0
        text = capsys.readouterr().out
        order = [
            "1 finding and 2 facts differ",
            "Worse in B",
            "t.shm",
            "A  ✓ /dev/shm has 8192 MiB",
            "B  ✗ /dev/shm has 8 MiB",
            "Limits, read by the checks above",
            "host.limits: shm_mib  A 8192  B 8",
            "Driver and GPUs",
            "host.pci: gpus[1].index  A 1  B (none)",
        ]
        places = [text.find(part) for part in order]
        assert -1 not in places, order[places.index(-1)]
        assert places == sorted(places)

    def test_what_differs_between_any_two_minutes_is_left_out(
        self, capture: Callable[..., str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        a = capture(name="a.json", uptime_s=1, free_bytes=5, uuid="x", nccl="2.27", limits=[1, 2])
        b = capture(name="b.json", uptime_s=9, free_bytes=6, uuid="y", nccl="2.28", limits=[2, 1])
        assert main(["doctor", "diff", a, b, "--json"]) == 0
        facts = json.loads(capsys.readouterr().out)["data"]["facts"]
        assert [fact["path"] for fact in facts] == ["nccl", "limits"]

    def test_check_that_ran_in_one_place_only_is_no_difference(
        self, capture: Callable[..., str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        there, here = capture(name="there.json"), capture(name="here.json", gpus=0)
        assert main(["doctor", "diff", there, here]) == 0
        text = capsys.readouterr().out
        assert "0 findings and" in text
        assert "Not looked at in B: t.gpu" in text

    def test_what_got_better_is_told_after_what_got_worse(
        self, capture: Callable[..., str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        bad, good = capture(name="bad.json", shm_mib=8), capture(name="good.json")
        assert main(["doctor", "diff", bad, good, "--json"]) == 0
        (finding,) = json.loads(capsys.readouterr().out)["data"]["findings"]
        assert (finding["change"], finding["id"]) == ("better", "t.shm")
        assert (finding["a"]["status"], finding["b"]["status"]) == ("fail", "pass")

    def test_same_place_twice_differs_in_nothing(
        self, capture: Callable[..., str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = capture(shm_mib=8)
        assert main(["doctor", "diff", path, path]) == 0
        assert "0 findings and 0 facts differ" in capsys.readouterr().out

    def test_no_canary_is_in_a_comparison(
        self, capture: Callable[..., str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        a = capture(
            name="a.json",
            note=samples.PRIVATE,
            user="mallory",
            hostname="zeus17.acme-internal.example.net",
        )
        b = capture(name="b.json", note="", shm_mib=8)
        main(["doctor", "diff", a, b, "-v"])
        text = capsys.readouterr().out
        for canary in samples.CANARIES:
            assert canary not in text
