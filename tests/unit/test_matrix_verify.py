"""Deciding from a recorded survey which rows of the matrix are true."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from gpuenv.matrix.load import load_matrix
from gpuenv.matrix.verify import (
    RowVerdict,
    Verification,
    verify_rows,
    wanted_companions,
    wanted_packages,
    wanted_wheels,
)
from gpuenv.versions import CudaVersion, CudnnVersion, PythonVersion
from gpuenv.wheelfacts import CompanionReading, PackageListing, Survey, WheelFacts
from tests.unit.survey_data import recorded_survey

if TYPE_CHECKING:
    from gpuenv.matrix.model import Matrix, Row

MATRIX = load_matrix()
SURVEY = recorded_survey()
READ = {(it.torch, it.variant, it.arch) for it in SURVEY.readings if it.facts is not None}


def row(torch: str, variant: str, arch: str = "x86_64", **changes: Any) -> Row:
    (found,) = (
        it for it in MATRIX.rows if (str(it.torch), it.variant, it.arch) == (torch, variant, arch)
    )
    return replace(found, **changes)


def verdict(it: Row, survey: Survey = SURVEY, matrix: Matrix = MATRIX) -> RowVerdict:
    return verify_rows(matrix, [it], survey).verdicts[0]


def fields(it: Row, survey: Survey = SURVEY) -> dict[str, tuple[str | None, str | None]]:
    return {d.field: (d.matrix, d.found) for d in verdict(it, survey).differences}


def with_facts(survey: Survey, torch: str, arch: str = "x86_64", **changes: Any) -> Survey:
    def changed(facts: WheelFacts | None) -> WheelFacts | None:
        return None if facts is None else replace(facts, **changes)

    return replace(
        survey,
        readings=tuple(
            replace(it, facts=changed(it.facts)) if (it.torch, it.arch) == (torch, arch) else it
            for it in survey.readings
        ),
    )


@pytest.mark.parametrize("key", sorted(READ), ids="-".join)
def test_the_shipped_rows_agree_with_the_wheels_that_were_read(key: tuple[str, str, str]) -> None:
    found = verdict(row(*key))
    assert (found.status, found.differences) == ("confirmed", ())
    assert found.wheel is not None


def test_each_field_of_a_row_is_held_against_its_wheel() -> None:
    wrong = row(
        "2.14.1",
        "cu130",
        toolkit=CudaVersion.parse("13.0.2"),
        cudnn=CudnnVersion.parse("9.20.0.48"),
        nccl=None,
        triton="3.8.0",
        arch_list=("sm_75",),
        pythons=(PythonVersion.parse("3.10"), PythonVersion.parse("3.11")),
        released="2026-10-01",
    )
    assert fields(wrong) == {
        "toolkit": ("13.0.2", "13.0.3"),
        "cudnn": ("9.20.0.48", "9.24.0.43"),
        "nccl": (None, "2.30.7"),
        "triton": ("3.8.0", "~=3.8.0"),
        "arch_list": ("sm_75", "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120"),
        "python": ("3.10 3.11", "3.10 3.11 3.12 3.13 3.14"),
        "released": ("2026-10-01", "2026-09-30"),
    }


def test_a_wheel_of_another_variant_is_one_difference_and_not_ten() -> None:
    survey = with_facts(SURVEY, "2.14.1", variant="cu132", cuda="13.2", nccl="9.9.9")
    assert fields(row("2.14.1", "cu130"), survey) == {"variant": ("cu130", "cu132")}


def test_older_wheels_tell_the_runtime_and_not_the_toolkit() -> None:
    old = verdict(row("2.9.1", "cu128"))
    assert (old.status, old.unread) == ("confirmed", ("toolkit",))
    survey = with_facts(SURVEY, "2.9.1", cudart="12.9.79")
    assert fields(row("2.9.1", "cu128"), survey) == {"cudart": ("12.8.*", "12.9.79")}


def test_without_a_deep_reading_the_architectures_stay_open() -> None:
    survey = with_facts(SURVEY, "2.14.1", arch_list=None)
    found = verdict(row("2.14.1", "cu130", arch_list=("sm_75",)), survey)
    assert (found.status, found.unread) == ("confirmed", ("arch_list",))


def test_a_row_whose_wheel_was_not_read_is_unproven_with_the_reason() -> None:
    found = verdict(row("2.9.1", "cu130"))
    assert found.status == "unproven"
    assert "download.pytorch.org cannot be reached" in found.reason
    assert verdict(row("2.10.0", "cu128")).reason == "it was not asked for"


def test_a_pin_that_is_gone_or_withdrawn_is_drift() -> None:
    packages = (
        PackageListing(project="nvidia-cudnn-cu13", versions=(("9.24.0.43", True),)),
        PackageListing(project="nvidia-nccl-cu13", versions=(("2.30.8", False),)),
    )
    assert fields(row("2.14.1", "cu130"), replace(SURVEY, packages=packages)) == {
        "cudnn wheel": ("9.24.0.43", "nvidia-cudnn-cu13 9.24.0.43 was withdrawn"),
        "nccl wheel": ("2.30.7", "no nvidia-nccl-cu13 2.30.7 on the index"),
    }
    silent = (PackageListing(project="nvidia-nccl-cu13", reason="no answer"),)
    assert fields(row("2.14.1", "cu130"), replace(SURVEY, packages=silent)) == {}


def test_a_companion_made_for_another_torch_is_drift() -> None:
    companions = (
        CompanionReading(project="torchvision", version="0.29.1", requires_torch="==2.14.0"),
        CompanionReading(project="torchaudio", version="2.11.0", requires_torch=None),
    )
    assert fields(row("2.14.1", "cu130"), replace(SURVEY, companions=companions)) == {
        "torchvision": ("0.29.1", "torchvision 0.29.1 requires torch==2.14.0")
    }


def test_the_tally_and_releases_the_matrix_lacks() -> None:
    known = replace(MATRIX, rows=tuple(r for r in MATRIX.rows if r.torch.minor < 15))
    rows = [row("2.14.1", "cu130", triton="3"), row("2.9.1", "cu128"), row("2.9.1", "cu130")]
    found = verify_rows(known, rows, SURVEY)
    assert (found.count("drift"), found.count("confirmed"), found.count("unproven")) == (1, 1, 1)
    assert found.has_drift
    assert found.unlisted == ("2.15.0",)
    assert [count for _, count in found.reasons()] == [1]
    assert not verify_rows(MATRIX, [row("2.9.1", "cu128")], SURVEY).has_drift


def test_json_has_every_row_with_what_was_found() -> None:
    data = Verification(
        index="i", verdicts=verify_rows(MATRIX, [row("2.9.1", "cu128")], SURVEY).verdicts
    ).as_dict()
    assert data["rows"] == [
        {
            "torch": "2.9.1",
            "torch_variant": "cu128",
            "arch": "x86_64",
            "status": "confirmed",
            "differences": [],
            "unread": ["toolkit"],
            "reason": "",
            "wheel": "torch-2.9.1-cp311-cp311-manylinux_2_28_x86_64.whl",
            "place": "https://pypi.org/simple",
            "bytes_read": 10848026,
        }
    ]


def test_every_row_is_asked_of_its_own_source_with_a_python_it_has() -> None:
    rows = [row("2.15.0", "cu132"), row("2.9.1", "cu130"), row("2.0.1", "cpu", "aarch64")]
    assert [(it.source, str(it.python), it.variant) for it in wanted_wheels(rows)] == [
        ("pypi", "3.11", "cu132"),
        ("pytorch", "3.11", "cu130"),
        ("pypi", "3.11", "cpu"),
    ]
    late = replace(rows[0], pythons=(PythonVersion.parse("3.15"),))
    assert str(wanted_wheels([late])[0].python) == "3.15"
    assert ("torchvision", "0.24.1") in wanted_companions([row("2.9.1", "cu128")])
    assert "nvidia-nccl-cu13" in wanted_packages(MATRIX)
