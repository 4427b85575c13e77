"""Programs that cannot be started, in each of the ways in which one is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpuenv.process import (
    CommandTooLongError,
    ProgramNotFoundError,
    run_in_terminal,
    run_program,
    start_daemon,
    start_program,
    stream_program,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.subprocess


@pytest.fixture(params=["run", "stream", "terminal", "beside", "daemon"])
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[list[str]], object]:
    """One of the ways to start a program."""
    log = tmp_path / "log"
    ways: dict[str, Callable[[list[str]], object]] = {
        "run": lambda words: run_program(words, timeout_s=10),
        "stream": lambda words: list(stream_program(words, timeout_s=10)),
        "terminal": run_in_terminal,
        "beside": lambda words: start_program(words, stderr=log),
        "daemon": lambda words: start_daemon(words, log=log, env={}),
    }
    return ways[request.param]


@pytest.mark.parametrize("kind", ["missing", "text", "forbidden", "folder", "loop", "in a file"])
def test_what_is_no_program_is_none_however_it_is_started(
    start: Callable[[list[str]], object], kind: str, tmp_path: Path
) -> None:
    path = tmp_path / "ssh"
    if kind == "folder":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path)
    elif kind != "missing":
        path.write_text("neither a program nor a script")
        path.chmod(0o600 if kind == "forbidden" else 0o700)
    with pytest.raises(ProgramNotFoundError):
        start([str(path / "ssh" if kind == "in a file" else path)])


def test_a_command_longer_than_the_system_takes_is_told_as_such(
    start: Callable[[list[str]], object],
) -> None:
    with pytest.raises(CommandTooLongError, match="true are too long"):
        start(["true", "x" * 5_000_000])
