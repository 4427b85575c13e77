"""The doctor's judgement on whole machines: broken, healthy, and false alarms of others."""

from __future__ import annotations

import functools
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpuenv.checks.catalogue import CHECKS
from gpuenv.checks.diagnose import EXPLAINS, diagnose
from gpuenv.checks.model import Level, Status
from gpuenv.checks.probes import all_probes
from gpuenv.doctor import judge, with_matrix
from gpuenv.matrix.load import load_matrix
from tests.doctor_corpus import faults, healthy
from tests.doctor_machines import BASES, as_facts

if TYPE_CHECKING:
    from gpuenv.checks.model import Diagnosis
    from gpuenv.matrix.model import Matrix
    from tests.doctor_corpus import Case

REPOSITORY = Path(__file__).parents[2]
BAD = (Status.FAIL, Status.WARN, Status.ERROR)
STATIC = tuple(check for check in CHECKS if check.level is Level.STATIC)
# Checks whose worst answer is a fact, by design: they must be seen to answer, not to alarm.
ONLY_INFORM = frozenset({"topo.matrix", "topo.iommu", "host.display", "cc.libcuda", "torch.row"})


@functools.cache
def _matrix() -> Matrix:
    return load_matrix()


@functools.cache
def _diagnosis(case: Case) -> Diagnosis:
    return judge(case.facts(), matrix=_matrix())


def _key(case: Case) -> str:
    return case.id


FAULTS = faults()
HEALTHY = healthy()


@pytest.mark.parametrize("case", FAULTS, ids=_key)
def test_a_fault_is_named_as_the_first_cause(case: Case) -> None:
    diagnosis = _diagnosis(case)
    assert diagnosis.causes, "nothing was found"
    assert diagnosis.causes[0].result.id == case.cause


@pytest.mark.parametrize("case", HEALTHY, ids=_key)
def test_a_healthy_machine_has_no_failure(case: Case) -> None:
    diagnosis = _diagnosis(case)
    allowed = (Status.WARN,) if case.warns else ()
    alarms = [
        (result.id, result.status.value, result.summary)
        for result in diagnosis.results
        if result.status in BAD and result.status not in allowed
    ]
    assert alarms == []
    assert diagnosis.exit_code == 0


def test_the_corpus_is_large_enough_to_mean_something() -> None:
    assert len(FAULTS) >= 60
    assert len(HEALTHY) >= 20
    assert len({case.id for case in (*FAULTS, *HEALTHY)}) == len(FAULTS) + len(HEALTHY)


@pytest.mark.parametrize("check", STATIC, ids=lambda check: check.id)
def test_every_static_check_fires_somewhere_and_is_silent_elsewhere(check: object) -> None:
    check_id = check.id  # type: ignore[attr-defined]
    fires = {
        result.status
        for case in FAULTS
        for result in _diagnosis(case).results
        if result.id == check_id and result.status in BAD
    }
    silent = {
        result.status
        for case in HEALTHY
        for result in _diagnosis(case).results
        if result.id == check_id and result.status not in BAD and result.status is not Status.SKIP
    }
    assert fires or check_id in ONLY_INFORM, "no fault of the corpus makes it speak"
    assert silent, "no healthy machine gets an answer from it"


@pytest.mark.parametrize("check", STATIC, ids=lambda check: check.id)
def test_the_corpus_notices_when_a_check_is_taken_away(check: object) -> None:
    check_id = check.id  # type: ignore[attr-defined]
    if check_id in ONLY_INFORM:
        pytest.skip("it never alarms, by design")
    named = [case for case in FAULTS if case.cause == check_id]
    if not named:  # it is only ever a consequence, or answers beside the cause
        named = [
            case
            for case in FAULTS
            if any(r.id == check_id and r.status in BAD for r in _diagnosis(case).results)
        ]
    without = tuple(other for other in CHECKS if other.id != check_id)
    case = named[0]
    diagnosis = diagnose(with_matrix(case.facts(), _matrix()), without)
    assert all(result.id != check_id for result in diagnosis.results)
    whole = {result.id for result in _diagnosis(case).results if result.status in BAD}
    assert whole != {result.id for result in diagnosis.results if result.status in BAD}


def test_the_map_of_consequences_has_no_circle() -> None:
    from fnmatch import fnmatchcase

    ids = [check.id for check in CHECKS]
    below = {
        cause: [
            other
            for other in ids
            if other != cause and any(fnmatchcase(other, pattern) for pattern in patterns)
        ]
        for cause, patterns in EXPLAINS.items()
    }

    def walk(node: str, path: tuple[str, ...]) -> None:
        assert node not in path, f"a circle: {' -> '.join((*path, node))}"
        for other in below.get(node, ()):
            walk(other, (*path, node))

    for cause in below:
        walk(cause, ())


def test_the_map_speaks_of_checks_that_exist() -> None:
    ids = {check.id for check in CHECKS}
    assert set(EXPLAINS) <= ids


def test_ids_are_unique_and_titled_and_explained() -> None:
    ids = [check.id for check in CHECKS]
    assert len(set(ids)) == len(ids)
    for check in CHECKS:
        assert re.fullmatch(r"[a-z0-9]+(\.[a-z0-9_-]+)*", check.id), check.id
        assert check.title
        assert len(check.explanation) > 20, check.id


def test_checks_read_probes_that_exist() -> None:
    known = {spec.name for spec in all_probes()} | {"matrix.row"}
    for check in CHECKS:
        assert set(check.needs) | set(check.uses) <= known, check.id


def test_a_check_waits_only_for_checks_that_come_before_it() -> None:
    seen: set[str] = set()
    for check in CHECKS:
        assert set(check.after) <= seen, check.id
        seen.add(check.id)


@pytest.mark.parametrize("case", FAULTS, ids=_key)
def test_a_fault_says_why_with_evidence_and_what_to_do(case: Case) -> None:
    result = _diagnosis(case).causes[0].result
    assert result.evidence, "no evidence"
    assert result.fixes, "no fix"
    assert all(
        fix.side in ("host", "container", "image", "engine", "project") for fix in result.fixes
    )


@pytest.mark.parametrize("name", BASES)
def test_facts_of_the_wrong_shape_are_an_error_and_not_a_crash(name: str) -> None:
    document = BASES[name]()
    for probe in document["probes"].values():
        probe["facts"] = dict.fromkeys(probe["facts"], "?")
    diagnosis = judge(as_facts(document), matrix=_matrix())
    assert len(diagnosis.results) >= len(STATIC)


def test_a_probe_that_died_is_one_error_and_its_checks_are_skipped() -> None:
    document = BASES["hgx"]()
    document["probes"]["host.nvml"] = {
        "status": "crashed",
        "error": "died of SIGSEGV",
        "duration_s": 0.1,
    }
    diagnosis = judge(as_facts(document), matrix=_matrix())
    errors = [result for result in diagnosis.results if result.status is Status.ERROR]
    assert [(result.id, result.subject) for result in errors] == [("run.probe", "host.nvml")]
    assert diagnosis.exit_code == 0
    hw = next(result for result in diagnosis.results if result.id == "hw.remap")
    assert (hw.status, hw.reason, hw.blocked_by) == (Status.SKIP, "blocked", "run.probe")


@pytest.mark.parametrize(
    ("base", "require", "exit_code", "unmet"),
    [
        ("hgx", ["gpu", "torch"], 0, ()),
        ("ci", ["gpu"], 3, ("gpu",)),
        ("ci-torch", ["torch"], 0, ()),
        ("ci", ["torch", "gpu"], 3, ("torch", "gpu")),
        ("hgx", ["nccl"], 3, ("nccl",)),
    ],
)
def test_require_turns_what_was_not_seen_into_exit_3(
    base: str, require: list[str], exit_code: int, unmet: tuple[str, ...]
) -> None:
    document = BASES[base]()
    document["asked"]["require"] = require
    diagnosis = judge(as_facts(document), matrix=_matrix())
    assert (diagnosis.exit_code, diagnosis.unmet) == (exit_code, unmet)


def test_a_crashed_probe_leaves_its_requirement_unmet() -> None:
    document = BASES["hgx"]()
    document["asked"]["require"] = ["gpu"]
    document["probes"]["host.cuda"] = {"status": "timeout", "error": "killed", "duration_s": 20}
    assert judge(as_facts(document), matrix=_matrix()).exit_code == 3


def test_strict_counts_warnings_as_failures() -> None:
    case = next(case for case in FAULTS if case.id == "shm-of-64-mib")
    assert judge(case.facts(), matrix=_matrix()).exit_code == 0
    strict = judge(case.facts(), matrix=_matrix(), strict=True)
    assert (strict.exit_code, strict.verdict) == (1, "fail")


def test_nothing_to_look_at_is_said_and_is_no_failure() -> None:
    diagnosis = judge(as_facts(BASES["ci"]()), matrix=_matrix())
    assert (diagnosis.verdict, diagnosis.exit_code) == ("nothing-to-diagnose", 0)


def test_an_interrupted_probing_exits_as_interrupted_and_shows_what_is_known() -> None:
    facts = replace(as_facts(BASES["hgx"]()), complete=False)
    diagnosis = judge(facts, matrix=_matrix())
    assert (diagnosis.interrupted, diagnosis.exit_code) == (True, 130)
    assert any(result.status is Status.PASS for result in diagnosis.results)


def test_one_fault_on_eight_gpus_is_one_cause() -> None:
    case = next(case for case in FAULTS if case.id == "mig-without-instances")
    diagnosis = _diagnosis(case)
    assert len(diagnosis.causes) == 1
    assert diagnosis.causes[0].result.subject == "GPU 0, GPU 1, GPU 2, GPU 3 (and 4 more)"
    assert [result.id for result in diagnosis.causes[0].consequences] == ["drv.cuinit"]


def test_an_old_driver_does_not_hide_an_unready_fabric() -> None:
    """Real torch says "driver too old" for every code of cuInit; the raw code tells them apart."""
    case = next(case for case in FAULTS if case.id == "driver-too-old-hides-802")
    causes = [cause.result.id for cause in _diagnosis(case).causes]
    assert causes == ["host.fabricmanager", "drv.cuda"]


@pytest.mark.parametrize("case", FAULTS, ids=lambda case: case.id)
def test_a_command_to_copy_is_only_the_command(case: Case) -> None:
    commands = {
        fix.command
        for cause in _diagnosis(case).causes
        for result in (cause.result, *cause.consequences)
        for fix in result.fixes
        if fix.command
    }
    for command in commands:
        parts = shlex.split(command)
        assert "  " not in command
        assert not {"or", "and", "then", "INDEX", "BDF", "THE-OTHER"} & set(parts), command
        assert not any(part.endswith("=...") for part in parts), command


def test_the_fix_for_a_wheel_without_code_names_one_that_has_it() -> None:
    case = next(case for case in FAULTS if case.id == "v100-with-cu130")
    commands = [fix.command for fix in _diagnosis(case).causes[0].result.fixes]
    assert any("download.pytorch.org/whl/cu126" in command for command in commands)


def test_the_tables_of_the_docs_are_those_of_the_code() -> None:
    from scripts.render_doctor_docs import PAGE, render

    page = PAGE.read_text(encoding="utf-8")
    assert page == render(page), "run scripts/render_doctor_docs.py"


def test_the_docs_have_the_whole_corpus() -> None:
    text = (REPOSITORY / "docs" / "doctor.md").read_text(encoding="utf-8")
    for case in FAULTS:
        assert f"| {case.id} | `{case.cause}` |" in text, "run scripts/render_doctor_docs.py"
