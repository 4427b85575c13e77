"""Proposing changes to the matrix file from a recorded survey."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from gpuenv.matrix.document import Document, read_document, write_document
from gpuenv.matrix.file import load_document, save_document
from gpuenv.matrix.load import MatrixFileError, build_matrix, shipped_matrix_path
from gpuenv.matrix.update import UpdatePlan, choose_companion, new_releases, plan_update
from gpuenv.wheelfacts import CompanionReading, ReleaseListing, Survey
from tests.unit.survey_data import recorded_survey

if TYPE_CHECKING:
    from pathlib import Path

TEXT = shipped_matrix_path().read_text()
SURVEY = recorded_survey()


def document(change: dict[tuple[str, ...], Any] | None = None) -> Document:
    """Return the shipped file with values changed, or entries removed by ``...``."""
    found = read_document(TEXT, keep_comments=True)
    for path, value in (change or {}).items():
        at: Any = found.data
        for key in path[:-1]:
            at = at[key]
        if value is ...:
            del at[path[-1]]
        else:
            at[path[-1]] = value
    return found


def plan(found: Document, survey: Survey = SURVEY) -> UpdatePlan:
    return plan_update(found, survey, today="2027-01-31")


def after(it: UpdatePlan) -> Any:
    return read_document(it.text).data


def changed(it: UpdatePlan) -> dict[str, tuple[Any, Any]]:
    return {".".join(change.where): (change.before, change.after) for change in it.changes}


PATCH = ("releases", "2.14", "patches", "2.14.1")
CU130 = ("releases", "2.14", "variants", "cu130")


def test_a_file_that_agrees_stays_byte_for_byte() -> None:
    same = plan(document())
    assert same.changes == ()
    assert same.diff == ""
    assert same.text == TEXT


def test_a_value_that_drifted_is_corrected_and_nothing_else() -> None:
    corrected = plan(document({(*CU130, "nccl"): "2.29.7", (*PATCH, "triton"): "3.8.0"}))
    assert changed(corrected) == {
        "releases.2.14.variants.cu130.nccl": ("2.29.7", "2.30.7"),
        "releases.2.14.variants.cu130.checked": ("2026-12-01", "2027-01-31"),
        "releases.2.14.patches.2.14.1.triton": ("3.8.0", "~=3.8.0"),
        "releases.2.14.patches.2.14.1.checked": ("2026-12-01", "2027-01-31"),
    }
    lines = [line for line in corrected.diff.splitlines() if line[:2] in {"+ ", "- "}]
    assert len(lines) == 8


def test_what_was_null_is_filled_from_the_wheel() -> None:
    filled = plan(document({(*CU130, "toolkit"): None, (*CU130, "arch_list", "aarch64"): None}))
    found = after(filled)["releases"]["2.14"]["variants"]["cu130"]
    assert found["toolkit"] == "13.0.3"
    assert found["arch_list"]["aarch64"] == ["sm_80", "sm_90", "sm_100", "sm_110", "sm_120"]


def test_pythons_release_day_and_default_follow_the_index() -> None:
    wrong = {
        (*PATCH, "python", "x86_64"): ["3.9", "3.13"],
        (*PATCH, "released"): "2026-01-01",
    }
    found = after(plan(document(wrong)))["releases"]["2.14"]["patches"]["2.14.1"]
    assert found["python"]["x86_64"] == ["3.10", "3.14"]
    assert found["released"] == "2026-09-30"


def test_a_new_patch_and_a_new_release_are_added_where_they_belong() -> None:
    original = document()
    added = plan(document({("releases", "2.15"): ..., PATCH: ...}))
    data = after(added)
    assert list(data["releases"])[:2] == ["2.15", "2.14"]
    assert list(data["releases"]["2.14"]["patches"]) == ["2.14.1", "2.14.0"]
    ours = data["releases"]["2.15"]["patches"]["2.15.0"]
    theirs = original.data["releases"]["2.15"]["patches"]["2.15.0"]
    facts = ("released", "python", "pypi", "triton", "torchvision", "torchaudio")
    assert {k: ours[k] for k in facts} == {k: theirs[k] for k in facts}
    assert (ours["checked"], ours["source"]) == ("2027-01-31", ["PYPI-WHEEL", "PYPI-INDEX"])
    variant = data["releases"]["2.15"]["variants"]["cu132"]
    facts = ("toolkit", "cudnn", "nccl", "arch_list")
    known = original.data["releases"]["2.15"]["variants"]["cu132"]
    assert {k: variant[k] for k in facts} == {k: known[k] for k in facts}
    # What was not read is told, and not invented.
    assert list(data["releases"]["2.15"]["variants"]) == ["cu132"]
    assert any("cu126, cu130, cu134" in note for note in added.notes)
    assert any("torch 2.15.0: its cpu wheel was not read" in note for note in added.notes)
    assert any("cu132, cu126, cpu are taken over" in note for note in added.notes)
    build_matrix(data)


def test_nothing_is_dropped_and_comments_stay() -> None:
    added = plan(document({("releases", "2.15"): ...}))
    gone = [line for line in added.diff.splitlines() if line.startswith("-") and line[:3] != "---"]
    assert gone == []
    assert [line for line in added.text.splitlines() if line.lstrip().startswith("#")] == [
        line for line in TEXT.splitlines() if line.lstrip().startswith("#")
    ]


def test_another_default_of_an_old_release_is_added_and_bound_to_its_patch() -> None:
    def moved(reading: Any) -> Any:
        if reading.torch != "2.14.1":
            return reading
        return replace(reading, facts=replace(reading.facts, variant="cu134", cuda="13.4"))

    survey = replace(SURVEY, readings=tuple(map(moved, SURVEY.readings)))
    found = plan(document(), survey)
    release = after(found)["releases"]["2.14"]
    assert release["patches"]["2.14.1"]["pypi"] == {"x86_64": "cu134", "aarch64": "cu134"}
    assert release["variants"]["cu134"]["patches"] == ["2.14.1"]
    assert list(release["variants"])[:2] == ["cu134", "cu132"]
    build_matrix(after(found))


def test_a_variant_bound_to_patches_learns_the_new_one() -> None:
    found = document({PATCH: ..., (*CU130, "patches"): ["2.14.0"]})
    assert after(plan(found))["releases"]["2.14"]["variants"]["cu130"]["patches"] == [
        "2.14.1",
        "2.14.0",
    ]


def test_a_value_that_differs_between_patches_is_told_and_left() -> None:
    def other(reading: Any) -> Any:
        if (reading.torch, reading.arch) != ("2.14.0", "x86_64"):
            return reading
        return replace(reading, facts=replace(reading.facts, nccl="2.30.1"))

    survey = replace(SURVEY, readings=tuple(map(other, SURVEY.readings)))
    told = plan(document(), survey)
    assert told.changes == ()
    (note,) = told.notes
    assert note.startswith("releases.2.14.variants.cu130.nccl differs between wheels")
    assert "2.14.0 x86_64: 2.30.1" in note


def test_a_new_release_that_could_not_be_read_is_told() -> None:
    unread = tuple(
        replace(it, facts=None, reason="no answer") if it.torch == "2.15.0" else it
        for it in SURVEY.readings
    )
    told = plan(document({("releases", "2.15"): ...}), replace(SURVEY, readings=unread))
    assert told.changes == ()
    assert "torch 2.15.0 for x86_64 is new and was not read: no answer" in told.notes


def test_releases_older_than_the_file_are_not_new() -> None:
    listed = [
        ReleaseListing(torch=torch, arch="x86_64", pythons=("3.8",))
        for torch in ("1.13.1", "2.14.1", "2.16.0", "2.15.1")
    ]
    assert new_releases(document(), listed) == ("2.15.1", "2.16.0")


def test_the_companion_that_came_with_a_release_is_chosen() -> None:
    def reading(version: str, requires: str | None, released: str) -> CompanionReading:
        return CompanionReading(
            project="torchvision", version=version, requires_torch=requires, released=released
        )

    found = [
        reading("0.29.0", ">=2.14.0", "2026-09-02"),
        reading("0.29.1", ">=2.14.0", "2026-09-30"),
        reading("0.29.2", ">=2.14.0", "2026-10-28"),
        reading("0.30.0", None, "2026-09-30"),
    ]
    assert choose_companion("2.14.1", "torchvision", found, released="2026-09-30") == "0.29.1"
    assert choose_companion("2.14.1", "torchvision", found, released="2026-08-01") == "0.29.2"
    assert choose_companion("2.13.0", "torchvision", found, released="2026-09-30") is None
    exact = [*found, reading("0.28.0", "==2.14.1", "2026-01-01")]
    assert choose_companion("2.14.1", "torchvision", exact, released="2026-09-30") == "0.28.0"


def test_a_file_is_written_whole_after_it_was_checked(tmp_path: Path) -> None:
    path = tmp_path / "versions.yaml"
    path.write_text(TEXT)
    path.chmod(0o640)
    found = load_document(path)
    assert write_document(found) == TEXT
    proposal = plan(document({(*CU130, "nccl"): "2.29.7"}))
    save_document(path, proposal.text)
    assert path.read_text() == proposal.text
    assert path.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.glob("*versions*")) == [path]


def test_an_unsound_text_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "versions.yaml"
    path.write_text(TEXT)
    broken = copy.deepcopy(document())
    broken.data["releases"]["2.14"]["variants"]["cu130"]["nccl"] = "two"
    with pytest.raises(MatrixFileError, match="problem"):
        save_document(path, write_document(broken))
    assert path.read_text() == TEXT


def test_a_file_out_of_form_is_not_changed_behind_a_persons_back(tmp_path: Path) -> None:
    path = tmp_path / "versions.yaml"
    path.write_text(TEXT.replace('format: "1"', "format:   '1'"))
    with pytest.raises(MatrixFileError, match="canonical form") as caught:
        load_document(path)
    line = TEXT.splitlines().index('format: "1"') + 1
    assert f"line {line}" in caught.value.why
