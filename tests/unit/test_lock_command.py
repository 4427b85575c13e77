"""``gpuenv lock --check`` and ``--locked`` through the command line, without an engine."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from gpuenv.cli import main
from gpuenv.host import nvml
from gpuenv.lockfile import load_lock, write_lock
from gpuenv.spec import HostGpus
from tests.lock_samples import cpu_lock, cuda_lock

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder with nothing above it, on a machine without GPUs."""
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(nvml, "probe_host_gpus", lambda: HostGpus(found_via="a test"))
    monkeypatch.setattr("platform.machine", lambda: "x86_64")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    code = main(["--json", *arguments])
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert answer["exit_code"] == code
    return answer


def error(answer: dict[str, Any]) -> dict[str, str]:
    (one,) = answer["errors"]
    return dict(one)


def test_check_passes_for_the_request_it_was_made_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_lock(tmp_path / "gpuenv.lock", cpu_lock())
    (tmp_path / "gpuenv.toml").write_text('cuda = "cpu"\npip = ["einops"]\n')
    answer = run(capsys, "lock", "--check")
    assert answer["exit_code"] == 0
    assert answer["data"]["digest"] == cpu_lock().digest


def test_check_fails_with_the_differences(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "gpuenv.lock"
    write_lock(path, cpu_lock())
    (tmp_path / "gpuenv.toml").write_text('cuda = "cpu"\npip = ["einops", "rich"]\n')
    answer = run(capsys, "lock", "--check", "--apt", "git")
    assert answer["exit_code"] == 1
    assert error(answer)["slug"] == "lock-outdated"
    assert error(answer)["why"].splitlines() == ["+ apt git", "+ pip rich"]
    assert load_lock(path) == cpu_lock(), "a check changes nothing"


def test_check_of_a_lock_made_with_flags_alone_asks_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_lock(tmp_path / "gpuenv.lock", cuda_lock())
    assert run(capsys, "lock", "--check")["exit_code"] == 0


def test_the_lock_of_the_project_is_found_from_a_folder_below(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_lock(tmp_path / "gpuenv.lock", cpu_lock())
    (tmp_path / "gpuenv.toml").write_text('cuda = "cpu"\npip = ["einops"]\n')
    (tmp_path / "src").mkdir()
    monkeypatch.chdir(tmp_path / "src")
    assert run(capsys, "lock", "--check")["exit_code"] == 0


def test_render_locked_needs_no_engine_and_holds_every_digest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_lock(tmp_path / "gpuenv.lock", cpu_lock())
    answer = run(capsys, "render", "--locked")
    assert answer["exit_code"] == 0
    for package in cpu_lock().packages:
        assert package.pin in answer["data"]["dockerfile"]
    assert f"FROM {cpu_lock().base.ref} AS system" in answer["data"]["dockerfile"]


def test_a_lock_file_that_is_named_means_locked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_lock(tmp_path / "other.lock", cpu_lock())
    answer = run(capsys, "render", "--lock-file", "other.lock", "--name", "mine")
    assert answer["data"]["labels"]["org.gpuenv.lock"] == cpu_lock().digest
    assert answer["data"]["labels"]["org.opencontainers.image.title"] == "mine"


def test_a_flag_that_contradicts_the_lock_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_lock(tmp_path / "gpuenv.lock", cpu_lock())
    answer = run(capsys, "render", "--locked", "--torch", "2.9")
    assert answer["exit_code"] == 2
    assert error(answer)["slug"] == "lock-mismatch"
    assert error(answer)["why"] == "torch 2.9 is asked for, the lock has 2.13.0"


def test_locked_without_a_lock_says_what_makes_one(capsys: pytest.CaptureFixture[str]) -> None:
    answer = run(capsys, "render", "--locked")
    assert (answer["exit_code"], error(answer)["slug"]) == (2, "lock-file")
    assert error(answer)["fix"] == "gpuenv lock makes it"


def test_a_broken_lock_is_not_written_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "gpuenv.lock"
    path.write_text("<<<<<<< HEAD\n")
    answer = run(capsys, "lock", "--cuda", "cpu")
    assert (answer["exit_code"], error(answer)["slug"]) == (2, "lock-file")
    assert path.read_text() == "<<<<<<< HEAD\n"
