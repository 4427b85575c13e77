"""The matrix file: what the loader refuses, its canonical form, and what holds of the data."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from gpuenv.matrix.document import read_document, write_document
from gpuenv.matrix.gpus import parse_code
from gpuenv.matrix.load import (
    MatrixFileError,
    find_problems,
    load_matrix,
    load_schema,
    shipped_matrix_path,
)
from gpuenv.versions import TorchVersion

if TYPE_CHECKING:
    from pathlib import Path

TEXT = shipped_matrix_path().read_text(encoding="utf-8")
MATRIX = load_matrix()


def problems_of(path: Path, text: str) -> list[str]:
    path.write_text(text, encoding="utf-8")
    with pytest.raises(MatrixFileError) as caught:
        load_matrix(path)
    assert caught.value.exit_code == 2
    return caught.value.why.splitlines()


def changed(old: str, new: str) -> tuple[str, int]:
    """Return the shipped text with one piece changed, and the line of that piece."""
    assert old in TEXT
    return TEXT.replace(old, new, 1), TEXT[: TEXT.index(old)].count("\n") + 1


# What the loader refuses


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('cudnn: "9.26.0.51"', "cudnn: 9.10", 'YAML reads 9.10 as a number; quote it: "9.10"'),
        ('max_gcc: "15"', "max_gcc: 15", 'YAML reads 15 as a number; quote it: "15"'),
        ('checked: "2026-12-01"', "checked: 2026-12-01", "quote it"),
        ('  "2.15":', "  2.15:", 'YAML reads the key 2.15 as no text; quote it: "2.15"'),
        ('confidence: "verified"', "confidence: yes", 'quote it: "yes"'),
        ('triton: "~=3.9.0"', "triton:", "an empty value must be written null"),
    ],
)
def test_values_that_yaml_would_change_must_be_quoted(
    tmp_path: Path, old: str, new: str, expected: str
) -> None:
    text, line = changed(old, new)
    found = problems_of(tmp_path / "versions.yaml", text)
    assert any(problem.startswith(f"line {line}: ") and expected in problem for problem in found)


def test_a_key_given_twice_is_refused_with_both_lines(tmp_path: Path) -> None:
    text, line = changed('nccl: "2.30.7"', 'nccl: "2.30.7"\n        nccl: "2.27.5"')
    found = problems_of(tmp_path / "versions.yaml", text)
    assert len(found) == 1
    assert found[0].startswith(f"line {line + 1}: ")
    assert f"the key 'nccl' is given twice, first in line {line}" in found[0]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("cudnn: ", "cuddn: ", "unknown key 'cuddn'; did you mean 'cudnn'?"),
        ('cudnn: "9.26.0.51"', 'cudnn: "nine"', "'nine' does not have the form"),
        ('confidence: "verified"', 'confidence: "sure"', "'sure' is none of verified, derived"),
        ('nccl: "2.30.7"', 'nccl: ["2.30.7"]', "is not text"),
        ('source: ["NV-DRV", "NV-MVC"]', 'source: ["NV-DRW"]', "did you mean NV-DRV?"),
        ('released: "2026-10-28"', 'released: "2026-02-30"', "2026-02-30 is not a day"),
        ('toolkit: "13.2.2"', 'toolkit: "13.0.2"', "13.0.2 is no patch of CUDA 13.2"),
        ('python: {x86_64: ["3.11"', 'python: {x86_64: ["3.16"', "is newer than the newest"),
        ('pypi: {x86_64: "cu132"', 'pypi: {x86_64: "cu128"', "2.15.0 has no variant cu128"),
        ('"2.14.0":\n', '"2.14.2":\n', "2.14.2 stands behind 2.14.1; the newest comes first"),
        ("    managed: true\n", "", "exactly one base must be managed, and there is none"),
        ('"H100"', '"h200"', "named twice"),
    ],
)
def test_what_cannot_be_right_is_told_with_its_line(
    tmp_path: Path, old: str, new: str, expected: str
) -> None:
    text, _ = changed(old, new)
    found = problems_of(tmp_path / "versions.yaml", text)
    matching = [problem for problem in found if expected in problem]
    assert matching, found
    assert re.match(r"line [1-9][0-9]*: ", matching[0])


def test_a_missing_source_or_day_is_named(tmp_path: Path) -> None:
    text, _ = changed('    min_driver: "580.65.06"\n', "")
    text = text.replace('    checked: "2026-12-01"\n', "", 1)
    found = problems_of(tmp_path / "versions.yaml", text)
    assert any("cuda_majors.13: lacks min_driver" in problem for problem in found)
    assert any("cuda_majors.13: lacks checked" in problem for problem in found)


def test_all_problems_of_a_file_are_told_at_once_in_the_order_of_lines(tmp_path: Path) -> None:
    text, _ = changed("cudnn: ", "cuddn: ")
    text = text.replace('max_gcc: "15"', "max_gcc: 15").replace('format: "1"', 'format: "2"')
    found = problems_of(tmp_path / "versions.yaml", text)
    lines = [int(match[1]) for problem in found if (match := re.match(r"line (\d+)", problem))]
    assert len(lines) >= 3
    assert lines == sorted(lines)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"releases: [unclosed", "this is not YAML"),
        (b"", "the file must hold a mapping"),
        (b"- a list", "the file must hold a mapping"),
        (b"\xff\xfe\x00", "no text in UTF-8"),
        (b"a: &x 1\nb: !!python/object/apply:os.system [true]\n", "unknown key"),
    ],
)
def test_a_file_that_is_no_matrix_at_all(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "versions.yaml"
    path.write_bytes(content)
    with pytest.raises(MatrixFileError) as caught:
        load_matrix(path)
    assert expected in caught.value.why


def test_a_missing_file_is_told_by_name(tmp_path: Path) -> None:
    with pytest.raises(MatrixFileError, match=r"cannot read the matrix .*none\.yaml"):
        load_matrix(tmp_path / "none.yaml")


# Canonical form


def test_the_shipped_file_is_in_canonical_form_and_has_no_problem() -> None:
    document = read_document(TEXT, keep_comments=True)
    assert find_problems(document) == ()
    assert write_document(document) == TEXT


def test_a_value_changed_by_a_program_changes_only_its_line() -> None:
    document = read_document(TEXT, keep_comments=True)
    document.data["releases"]["2.15"]["variants"]["cu132"]["nccl"] = "2.31.1"
    before, after = TEXT.splitlines(), write_document(document).splitlines()
    different = [(a, b) for a, b in zip(before, after, strict=True) if a != b]
    assert different == [('        nccl: "2.30.7"', '        nccl: "2.31.1"')]


def test_comments_stay_with_the_key_below_them() -> None:
    text = TEXT.replace("      cu132:\n", "      # read by hand\n      cu132:\n", 1)
    assert write_document(read_document(text, keep_comments=True)) == text


def test_the_schema_is_one_itself() -> None:
    import jsonschema

    jsonschema.Draft202012Validator.check_schema(load_schema())


# What holds of the data


def test_every_minor_from_2_0_to_2_15_is_there_on_both_cpus() -> None:
    minors = [TorchVersion.parse(f"2.{number}") for number in range(16)]
    for arch in ("x86_64", "aarch64"):
        assert {row.minor for row in MATRIX.rows_for(arch)} == set(minors)


def test_every_release_has_a_cpu_row_and_a_pypi_default_on_both_cpus() -> None:
    for arch in ("x86_64", "aarch64"):
        rows = list(MATRIX.rows_for(arch))
        for version in MATRIX.torch_versions:
            of_version = [row for row in rows if row.torch == version]
            assert sum(row.variant == "cpu" for row in of_version) == 1
            assert sum(row.pypi_default for row in of_version) == 1


@pytest.mark.parametrize("row", MATRIX.rows, ids=lambda row: f"{row.label}-{row.arch}")
def test_a_row_is_complete_or_says_that_it_is_not(row: Any) -> None:
    assert row.source
    assert all(name in MATRIX.sources for name in row.source)
    assert row.pythons
    if row.cuda is None:
        assert row.arch_list == ()
        assert (row.toolkit, row.cudnn, row.nccl, row.triton) == (None, None, None, None)
        return
    assert row.cuda.variant == row.variant
    assert row.cuda.major in MATRIX.cuda_majors
    assert row.cuda in MATRIX.toolkits
    if row.confidence != "uncertain":
        assert row.arch_list
        assert row.cudnn is not None
        assert row.toolkit is not None or row.note
        assert row.nccl is not None or row.note
    else:
        assert row.doubt
    if row.confidence == "verified":
        assert row.toolkit is not None
        assert row.nccl is not None
    for name in row.arch_list or ():
        parse_code(name)


@pytest.mark.parametrize("row", MATRIX.rows, ids=lambda row: f"{row.label}-{row.arch}")
def test_compiled_architectures_are_ones_the_toolkit_has(row: Any) -> None:
    for code in map(parse_code, row.arch_list or ()):
        known = [e for e in MATRIX.gpus if e.compute_capability == code.capability]
        if row.cuda.major >= 13:
            assert (code.capability.major, code.capability.minor) >= (7, 5)
        if row.cuda.major >= 12:
            assert code.capability.major >= 5
        first = min((e.first_toolkit for e in known if e.first_toolkit), default=None)
        assert first is None or first <= row.cuda


def test_a_newer_toolkit_never_has_an_older_driver() -> None:
    drivers = [
        (patch, driver) for toolkit in MATRIX.toolkits.values() for patch, driver in toolkit.drivers
    ]
    in_order = [driver for _, driver in sorted(drivers)]
    assert in_order == sorted(in_order)
    for patch, driver in drivers:
        assert driver >= MATRIX.cuda_majors[patch.major].min_driver


def test_every_cuda_row_can_be_built_as_devel_from_one_source_of_nvcc() -> None:
    for row in MATRIX.rows:
        if row.cuda is None or row.confidence == "uncertain":
            continue
        toolkit = MATRIX.toolkits[row.cuda]
        images = [patch for patch, _, _ in toolkit.devel_images]
        wheels = [patch for patch, _ in toolkit.devel_wheels]
        assert bool(images) != bool(wheels)
        assert row.toolkit is None or row.toolkit in (images or wheels)


def test_never_existed_speaks_of_nothing_that_exists() -> None:
    for entry in MATRIX.never_existed:
        for row in MATRIX.rows:
            if row.confidence == "uncertain":
                continue
            matches = all(
                not conditions or (value is not None and any(it.covers(value) for it in conditions))
                for conditions, value in (
                    (entry.torch, row.torch),
                    (entry.cuda, row.cuda),
                    (entry.cudnn, row.cudnn),
                )
            )
            if matches and entry.python:
                assert not any(
                    condition.covers(python) for condition in entry.python for python in row.pythons
                )
            else:
                assert not matches, f"{row.label} {row.arch} exists, yet: {entry.why}"


@pytest.mark.parametrize("text", ["a: [", "", "- x\n", '!!python/object/apply:os.system ["id"]'])
def test_a_file_that_cannot_be_read_is_told_by_that_alone(tmp_path: Path, text: str) -> None:
    assert len(problems_of(tmp_path / "m.yaml", text)) == 1
