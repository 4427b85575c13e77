"""However gpuenv ends, its ``ssh`` ends with it, and the environment goes on."""

from __future__ import annotations

import os
import pty
import secrets
import select
import signal
import subprocess
import sys
import termios
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import missing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.ssh.conftest import Seat

pytestmark = [pytest.mark.ssh, pytest.mark.engine]


@contextmanager
def session(seat: Seat, *, terminal: int | None = None) -> Iterator[tuple[int, int]]:
    """Open a session and return the process ids of gpuenv and its ``ssh``, once it is inside.

    Afterwards gpuenv must have ended by what was done to it, and not well.
    """
    inside, told = os.pipe()
    mine = f"sleep 600.{secrets.randbelow(10**9):09}"  # an earlier test's may still be ending
    line = f"echo inside; exec {mine}"
    # By setsid the terminal is the one that controls gpuenv's session, as a window's is.
    before = [] if terminal is None else ["setsid", "--ctty"]
    process = subprocess.Popen(
        [*before, sys.executable, "-m", "gpuenv", "ssh", seat.name, "--", line],
        stdin=subprocess.PIPE if terminal is None else terminal,
        stdout=told if terminal is None else terminal,
        stderr=subprocess.DEVNULL if terminal is None else terminal,
        cwd=seat.workspace, env=dict(seat.environ), start_new_session=terminal is None,
        # Whoever runs the tests under nohup has it ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # noqa: PLW1509 - no threads
    )  # fmt: skip
    try:
        os.close(told)
        if terminal is None:
            assert os.read(inside, 100) == b"inside\n"
        else:
            seat.inside(f"until pgrep -fx '{mine}' >/dev/null; do sleep 0.1; done")
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        if not children.exists():
            missing("/proc with the children of a process")
        (child,) = children.read_text().split()
        assert Path(f"/proc/{child}/comm").read_text() == "ssh\n"
        yield process.pid, int(child)
        assert process.wait(20) != 0
    finally:
        process.kill()
        process.wait(20)
        if process.stdin:
            process.stdin.close()
        os.close(inside)


@contextmanager
def ending(pid: int) -> Iterator[None]:
    """Check that a process, which need not be a child, ends in what is done meanwhile."""
    handle = os.pidfd_open(pid)
    try:
        yield
        ended, _, _ = select.select([handle], [], [], 20)
        assert ended, f"process {pid} goes on"
    finally:
        os.close(handle)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_ends_gpuenv_ends_its_ssh_and_nothing_else(
    seat: Seat, number: signal.Signals
) -> None:
    with session(seat) as (gpuenv, ssh), ending(ssh), ending(gpuenv):
        os.kill(gpuenv, number)
    assert seat.start()["found"], "neither the container ended nor is its lock still held"
    assert seat.inside("echo on") == "on"


def test_gpuenv_says_by_which_signal_it_ended(seat: Seat) -> None:
    with session(seat) as (gpuenv, ssh), ending(ssh), ending(gpuenv):
        os.kill(gpuenv, signal.SIGTERM)
        told = os.waitid(os.P_PID, gpuenv, os.WEXITED | os.WNOWAIT)
        assert told is not None
        assert (told.si_code, told.si_status) == (os.CLD_KILLED, signal.SIGTERM)


def test_an_interrupt_is_left_to_ssh(seat: Seat) -> None:
    with session(seat) as (gpuenv, ssh), ending(ssh), ending(gpuenv):
        os.killpg(gpuenv, signal.SIGINT)
    assert seat.inside("echo on") == "on"


def test_a_terminal_that_is_closed_ends_both(seat: Seat) -> None:
    leader, follower = pty.openpty()
    with session(seat, terminal=follower) as (gpuenv, ssh), ending(ssh), ending(gpuenv):
        os.close(follower)
        os.close(leader)
    assert seat.inside("echo on") == "on"


def test_a_terminal_is_given_back_as_it_was(seat: Seat) -> None:
    leader, follower = pty.openpty()
    before = termios.tcgetattr(follower)
    with session(seat, terminal=follower) as (gpuenv, ssh), ending(ssh):
        assert termios.tcgetattr(follower) != before, "ssh has it"
        os.kill(gpuenv, signal.SIGTERM)
    assert termios.tcgetattr(follower) == before
    os.close(follower)
    os.close(leader)


# Between making the container and putting its files in.
_KILLED = """\
import os, signal, sys
from gpuenv.engine.docker import DockerEngine
DockerEngine.put_files = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
from gpuenv.cli import main
main(sys.argv[1:])
"""


@pytest.mark.parametrize("command", ["ssh", "jupyter"])
def test_a_start_that_was_killed_half_way_is_begun_anew(seat: Seat, command: str) -> None:
    name = f"{seat.name}-half"
    words = (command, "--name", name, "--image", seat.image, "--no-caches", "--json")
    words = (*words, "--detach") if command == "ssh" else words
    killed = subprocess.run(
        [sys.executable, "-c", _KILLED, *words],
        stdin=subprocess.DEVNULL, capture_output=True, cwd=seat.workspace, check=False,
        env=dict(seat.environ), timeout=60,
    )  # fmt: skip
    try:
        assert killed.returncode == -signal.SIGKILL
        (left,) = seat.engine.containers(labels={"org.gpuenv.name": name})
        assert left.state == "created"
        assert seat.gpuenv("start", name, "--json").slug == "container-not-running"
        anew = seat.gpuenv(*words).data
        assert not anew["found"]
        (running,) = seat.engine.containers(labels={"org.gpuenv.name": name})
        assert running.running
        assert running.id != left.id
    finally:
        for container in seat.engine.containers(labels={"org.gpuenv.name": name}):
            seat.engine.remove(container.id, force=True)
