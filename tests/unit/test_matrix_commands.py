"""gpuenv matrix list, resolve and explain, through the command line."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

import pytest

from gpuenv.cli import main
from gpuenv.commands import options
from gpuenv.host import nvml
from gpuenv.matrix.gpus import find_gpu
from gpuenv.matrix.load import load_matrix, shipped_matrix_path
from gpuenv.matrix.table import (
    fit_columns,
    list_columns,
    readme_table,
    replace_readme_table,
    select_rows,
)
from gpuenv.spec import HostGpus, MatrixRequest
from gpuenv.versions import DriverRelease
from tests.conftest import REPOSITORY

if TYPE_CHECKING:
    from pathlib import Path

MATRIX = load_matrix()

# The keys of a resolved row, which scripts rely on.
KEYS = {
    *("torch", "torch_variant", "cuda", "toolkit", "cudnn", "nccl", "triton", "torchvision"),
    *("torchaudio", "python", "arch", "arch_list", "min_driver", "base_image", "source"),
    "confidence",
}


@pytest.fixture(autouse=True)
def _no_gpu_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the machine that runs the tests have no say, whatever it has."""
    monkeypatch.setattr(nvml, "probe_host_gpus", lambda: HostGpus(found_via="a test"))
    monkeypatch.setattr("platform.machine", lambda: "x86_64")


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    code = main(["--json", *arguments])
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert answer["exit_code"] == code
    return answer


def test_resolve_gives_the_row_with_its_keys(capsys: pytest.CaptureFixture[str]) -> None:
    answer = run_json(capsys, "matrix", "resolve", "--torch", "2.9", "--cuda", "12.8")
    assert answer["command"] == "matrix resolve"
    assert answer["status"] == "success"
    assert set(answer["data"]) >= KEYS
    assert answer["data"]["torch"] == "2.9.1"
    assert answer["data"]["torch_variant"] == "cu128"
    assert answer["data"]["toolkit"] == "12.8.1"
    assert answer["data"]["source"] == "pypi"
    assert answer["data"]["arch_list"][0] == "sm_70"
    assert answer["data"]["min_driver"] == "525.60.13"


def test_a_refusal_is_exit_3_with_the_nearest_rows(capsys: pytest.CaptureFixture[str]) -> None:
    answer = run_json(capsys, "matrix", "resolve", "--torch", "2.8", "--cuda", "11.8")
    assert answer["exit_code"] == 3
    assert answer["errors"][0]["slug"] == "unsupported-combination"
    assert "CUDA 11.8 wheels ended with torch 2.7.1" in answer["errors"][0]["why"]
    nearest = answer["data"]["nearest"]
    assert [f"{row['torch']}+{row['torch_variant']}" for row in nearest[:2]] == [
        "2.7.1+cu118",
        "2.8.0+cu126",
    ]
    assert set(nearest[0]) >= KEYS
    # What to do instead is said in flags, and they do lead to a row.
    assert answer["errors"][0]["fix"].endswith("; try --torch 2.7, or --cuda 12.6")
    for way in (("--torch", "2.7", "--cuda", "11.8"), ("--torch", "2.8", "--cuda", "12.6")):
        assert run_json(capsys, "matrix", "resolve", *way)["exit_code"] == 0


@pytest.mark.parametrize(
    ("flags", "code", "slug"),
    [
        (["--torch", "2.99"], 3, "unsupported-combination"),
        (["--torch", "3.0"], 3, "unsupported-combination"),
        (["--cuda", "12.7"], 3, "unsupported-combination"),
        (["--gpu", "A110"], 2, "configuration"),
        (["--torch", "2.8rc1"], 2, "configuration"),
        (["--tourch", "2.8"], 2, "usage"),
    ],
)
def test_what_is_unknown_is_refused_and_never_guessed(
    capsys: pytest.CaptureFixture[str], flags: list[str], code: int, slug: str
) -> None:
    answer = run_json(capsys, "matrix", "resolve", *flags)
    assert answer["exit_code"] == code
    assert answer["errors"][0]["slug"] == slug
    if code == 3:
        assert answer["data"]["nearest"]


def test_the_order_of_flags_does_not_matter(capsys: pytest.CaptureFixture[str]) -> None:
    groups = [["--torch", "2.10"], ["--gpu", "V100", "--gpu", "RTX 5090"], ["--python", "3.11"]]
    answers = [
        run_json(capsys, "matrix", "resolve", *itertools.chain(*order))["data"]
        for order in itertools.permutations(groups)
    ]
    assert all(answer == answers[0] for answer in answers)
    assert (answers[0]["torch"], answers[0]["torch_variant"]) == ("2.10.0", "cu128")


def test_an_override_is_said_aloud(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["matrix", "resolve", "--torch", "2.9.1+cu128", "--nccl", "2.28.9"]) == 0
    captured = capsys.readouterr()
    assert "NCCL         2.28.9" in captured.out
    assert "warning: nvidia-nccl-cu12 2.28.9 replaces 2.27.5" in captured.err


def test_choosing_cpu_for_want_of_a_gpu_is_said_aloud(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["matrix", "resolve"]) == 0
    captured = capsys.readouterr()
    assert "torch        2.15.0+cpu" in captured.out
    assert "note: no GPU found, so choosing cpu: a test" in captured.err


def test_auto_takes_this_host_s_gpus(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    host = HostGpus(
        driver_release=DriverRelease.parse("550.54.15"),
        gpus=(find_gpu(MATRIX, "V100"),),
        found_via="NVML",
    )
    monkeypatch.setattr(nvml, "probe_host_gpus", lambda: host)
    data = run_json(capsys, "matrix", "resolve", "--cuda", "auto")["data"]
    assert (data["torch"], data["torch_variant"]) == ("2.14.1", "cu126")
    assert "V100" in data["notes"][0]


def test_the_host_is_not_asked_when_the_request_says_enough(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> HostGpus:
        raise AssertionError("the host was asked")

    monkeypatch.setattr(nvml, "probe_host_gpus", refuse)
    for flags in (["--cuda", "12.8"], ["--gpu", "H100"], ["--driver", "580"], ["--nccl", "2.27"]):
        assert run_json(capsys, "matrix", "resolve", *flags)["exit_code"] == 0


def test_variables_set_the_request(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUENV_CUDA", "12.6")
    assert run_json(capsys, "matrix", "resolve")["data"]["torch_variant"] == "cu126"
    flags = ["--cuda", "13.0"]
    assert run_json(capsys, "matrix", "resolve", *flags)["data"]["torch_variant"] == "cu130"


def test_the_project_s_file_sets_the_request_and_filters_no_list(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "gpuenv.toml").write_text('torch = "2.9"\ngpu = ["V100", "H100"]\n')
    monkeypatch.chdir(tmp_path)
    data = run_json(capsys, "matrix", "resolve")["data"]
    assert (data["torch"], data["torch_variant"]) == ("2.9.1", "cu128")
    data = run_json(capsys, "matrix", "explain", "--torch", "2.14")["data"]
    assert data["answer"]["torch_variant"] == "cu126"
    assert len(run_json(capsys, "matrix", "list")["data"]["rows"]) > 60


def test_a_host_that_no_row_serves_is_told_how_to_go_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = (find_gpu(MATRIX, "K80"), find_gpu(MATRIX, "RTX 5090"))
    host = HostGpus(driver_release=DriverRelease.parse("580.65.06"), gpus=gpus, found_via="NVML")
    monkeypatch.setattr(nvml, "probe_host_gpus", lambda: host)
    answer = run_json(capsys, "matrix", "resolve")
    assert answer["exit_code"] == 3
    assert "--cuda cpu does without them" in answer["errors"][0]["fix"]


def test_explain_accounts_for_every_row(capsys: pytest.CaptureFixture[str]) -> None:
    data = run_json(capsys, "matrix", "explain", "--torch", "2.8", "--cuda", "11.8")["data"]
    assert data["answer"] is None
    assert data["steps"][-1]["left"] == 0
    assert sum(len(step["removed"]) for step in data["steps"]) == len(MATRIX.rows)
    by_rule = {step["rule"]: step["removed"] for step in data["steps"]}
    assert "2.8.0+cu126 x86_64" in by_rule["cuda"]
    assert "2.7.1+cu118 x86_64" in by_rule["torch"]


def test_explain_for_a_person_names_rules_rows_and_the_way_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["matrix", "explain", "--torch", "2.11", "--cuda", "12.8", "--gpu", "V100"]) == 0
    out = capsys.readouterr().out
    assert "2.11.0+cu128 cannot serve V100 (7.0): it has no code older than sm_75" in out
    assert "nearest: 2.11.0+cu126 is built for CUDA 12.6, not 12.8" in out


def test_list_filters_by_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    rows = run_json(capsys, "matrix", "list", "--gpu", "V100", "--python", "3.14")["data"]["rows"]
    assert [f"{row['torch']}+{row['torch_variant']}" for row in rows] == [
        "2.14.1+cu126",
        "2.13.0+cu126",
        "2.12.1+cu126",
        "2.11.0+cu126",
        "2.10.0+cu129",
        "2.10.0+cu128",
        "2.10.0+cu126",
        "2.9.1+cu129",
        "2.9.1+cu128",
        "2.9.1+cu126",
    ]


def test_list_shows_the_newest_patch_of_a_variant_unless_all_are_wanted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["matrix", "list", "--torch", "2.12"]
    newest = run_json(capsys, *arguments)["data"]["rows"]
    assert {row["torch"] for row in newest} == {"2.12.1"}
    every = run_json(capsys, *arguments, "--all-patches")["data"]["rows"]
    assert {row["torch"] for row in every} == {"2.12.0", "2.12.1"}
    assert len(every) == len(newest) + 4


@pytest.mark.parametrize("columns", [40, 60, 80, 100, 120, 200])
def test_the_list_fits_its_terminal(columns: int) -> None:
    rows = select_rows(MATRIX, MatrixRequest(), all_patches=True)
    shown = fit_columns(list_columns(MATRIX, rows), columns)
    assert [column.title for column in shown][:2] == ["torch", "variant"]
    assert sum(column.width + 2 for column in shown) - 2 <= columns
    if columns >= 100:
        assert len(shown) == len(list_columns(MATRIX, rows))


def test_the_printed_list_has_one_line_a_row_in_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["matrix", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = select_rows(MATRIX, MatrixRequest(), all_patches=False)
    assert len([line for line in lines if line.strip()]) == len(rows) + 1
    assert max(map(len, lines)) <= 80


def test_another_matrix_is_checked_before_it_is_used(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "versions.yaml"
    text = shipped_matrix_path().read_text(encoding="utf-8")
    path.write_text(text.replace('max_gcc: "15"', "max_gcc: 15"), encoding="utf-8")
    answer = run_json(capsys, "matrix", "list", "--matrix", str(path))
    assert answer["exit_code"] == 2
    assert answer["errors"][0]["slug"] == "matrix-file"
    assert answer["data"]["problems"][0]["text"].endswith('quote it: "15"')
    path.write_text(text, encoding="utf-8")
    assert run_json(capsys, "matrix", "list", "--matrix", str(path))["exit_code"] == 0


def test_the_readme_s_table_is_the_matrix_s() -> None:
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    assert replace_readme_table(readme, readme_table(MATRIX)) == readme, (
        "run scripts/update_readme_matrix.py"
    )


def test_the_shell_is_offered_rows_of_the_matrix() -> None:
    assert options.complete_torch("2.9") == ["2.9", "2.9.1", "2.9.0"]
    assert options.complete_cuda("12.") == ["12.9", "12.8", "12.6", "12.4", "12.1"]
    assert "RTX 4090" in options.complete_gpu("rtx 40")
    assert options.complete_python("3.1")[0] == "3.15"


def test_completion_survives_a_broken_matrix(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GPUENV_MATRIX", str(tmp_path / "none.yaml"))
    assert options.complete_torch("2") == []
