"""The only place that starts other programs: argument lists, time limits, typed failure."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """How a program ended and what it printed."""

    arguments: tuple[str, ...]
    exit_code: int
    stdout: str
    stderr: str


class ProgramNotFoundError(FileNotFoundError):
    """The program is not on PATH."""


class ProgramTimeoutError(TimeoutError):
    """The program did not end in time and was killed."""


def find_program(name: str) -> str | None:
    """Return the full path of a program on PATH, or ``None``."""
    return shutil.which(name)


def run_program(
    arguments: Sequence[str],
    *,
    timeout_s: float,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: bytes = b"",
) -> Completed:
    """Run a program to its end and return what it printed.

    Args:
        arguments: Program and arguments; never a shell line.
        timeout_s: Killed after this many seconds.
        env: The whole environment of the child, ``None`` for our own.
        cwd: Its working directory.
        stdin: What it reads; empty by default, so it never waits for the terminal.

    Raises:
        ProgramNotFoundError: There is no such program.
        ProgramTimeoutError: It was killed after ``timeout_s``.
    """
    try:
        done = subprocess.run(
            list(arguments),
            input=stdin,
            capture_output=True,
            timeout=timeout_s,
            env=None if env is None else dict(env),
            cwd=cwd,
            check=False,
        )
    except FileNotFoundError as exc:
        raise ProgramNotFoundError(arguments[0]) from exc
    except subprocess.TimeoutExpired as exc:
        raise ProgramTimeoutError(f"{arguments[0]} did not end within {timeout_s:g} s") from exc
    return Completed(
        arguments=tuple(arguments),
        exit_code=done.returncode,
        stdout=done.stdout.decode("utf-8", "replace"),
        stderr=done.stderr.decode("utf-8", "replace"),
    )
