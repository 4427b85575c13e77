"""The only place that starts other programs: argument lists, time limits, typed failure."""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import shutil
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """How a program ended and what it printed."""

    arguments: tuple[str, ...]
    exit_code: int
    stdout: str
    stderr: str


class ProgramNotFoundError(FileNotFoundError):
    """The program is not on PATH, or what lies there is none."""


class CommandTooLongError(OSError):
    """The system starts no program with that much text in its arguments."""


class ProgramTimeoutError(TimeoutError):
    """The program did not end in time and was killed."""


class ProgramFailedError(RuntimeError):
    """The program ended with an exit code other than 0."""

    def __init__(self, program: str, exit_code: int, stderr: str) -> None:
        super().__init__(f"{program} ended with exit code {exit_code}")
        self.exit_code = exit_code
        self.stderr = stderr


_NOISE_BYTES = 65536
_PATIENCE_S = 5.0
_PR_SET_PDEATHSIG = 1
# No permission, a file of another kind or of another processor, a link that leads nowhere.
_NO_PROGRAM = frozenset({errno.EACCES, errno.EPERM, errno.ENOEXEC, errno.ELOOP})


@contextlib.contextmanager
def _starting(program: str) -> Iterator[None]:
    """Tell in our words why a program could not be started."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as exc:
        raise ProgramNotFoundError(program) from exc
    except OSError as exc:
        if exc.errno == errno.E2BIG:
            raise CommandTooLongError(f"the arguments of {program} are too long") from exc
        if exc.errno in _NO_PROGRAM:
            raise ProgramNotFoundError(f"{program} cannot be executed") from exc
        raise


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
        CommandTooLongError: The system takes no arguments that long.
        ProgramTimeoutError: It was killed after ``timeout_s``.
    """
    try:
        with _starting(arguments[0]):
            done = subprocess.run(
                list(arguments),
                input=stdin,
                capture_output=True,
                timeout=timeout_s,
                env=None if env is None else dict(env),
                cwd=cwd,
                check=False,
            )
    except subprocess.TimeoutExpired as exc:
        raise ProgramTimeoutError(f"{arguments[0]} did not end within {timeout_s:g} s") from exc
    return Completed(
        arguments=tuple(arguments),
        exit_code=done.returncode,
        stdout=done.stdout.decode("utf-8", "replace"),
        stderr=done.stderr.decode("utf-8", "replace"),
    )


def stream_program(
    arguments: Sequence[str],
    *,
    timeout_s: float,
    env: Mapping[str, str] | None = None,
    stdin: bytes = b"",
) -> Iterator[str]:
    """Run a program and yield the lines of its standard output as they come.

    Its standard error is read as well and, when it fails, ends up in the error. The program and all
    it started are killed when the caller stops listening, Ctrl-C included, or the time is up.

    Raises:
        ProgramNotFoundError: There is no such program.
        CommandTooLongError: The system takes no arguments that long.
        ProgramTimeoutError: It was killed after ``timeout_s``.
        ProgramFailedError: It ended with another exit code than 0.
    """
    with _starting(arguments[0]):
        process = subprocess.Popen(
            list(arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=None if env is None else dict(env),
            start_new_session=True,
        )
    noise = bytearray()
    try:
        yield from _lines(process, stdin, noise, timeout_s)
        exit_code = process.wait()
    finally:
        _end_group(process)
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
    if exit_code:
        raise ProgramFailedError(arguments[0], exit_code, noise.decode("utf-8", "replace"))


def _lines(
    process: subprocess.Popen[bytes], stdin: bytes, noise: bytearray, timeout_s: float
) -> Iterator[str]:
    deadline = time.monotonic() + timeout_s
    pending = b""
    left = memoryview(stdin)
    with selectors.DefaultSelector() as selector:
        _register(selector, process)
        while process.stdout in {key.fileobj for key in selector.get_map().values()}:
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                raise ProgramTimeoutError(f"no end within {timeout_s:g} s")
            for key, _ in selector.select(min(remaining_s, 1.0)):
                if key.fileobj is process.stdin:
                    left = _feed(key.fd, left)
                    if not left:
                        selector.unregister(key.fileobj)
                        process.stdin.close()
                    continue
                piece = os.read(key.fd, 65536)
                if not piece:
                    selector.unregister(key.fileobj)
                elif key.fileobj is process.stderr:
                    noise += piece
                    del noise[:-_NOISE_BYTES]
                else:
                    *lines, pending = (pending + piece).split(b"\n")
                    yield from (line.decode("utf-8", "replace") for line in lines)
    if pending:
        yield pending.decode("utf-8", "replace")


def _register(selector: selectors.BaseSelector, process: subprocess.Popen[bytes]) -> None:
    for stream, events in (
        (process.stdin, selectors.EVENT_WRITE),
        (process.stdout, selectors.EVENT_READ),
        (process.stderr, selectors.EVENT_READ),
    ):
        if stream is not None:
            os.set_blocking(stream.fileno(), False)
            selector.register(stream, events)


def _feed(fd: int, left: memoryview) -> memoryview:
    """Write what the pipe takes; nothing is left for a program that does not read."""
    try:
        return left[os.write(fd, left[:65536]) :]
    except BlockingIOError:
        return left
    except BrokenPipeError:
        return left[:0]


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Ask the program to end, so that it can end what it started, then make it end."""
    for number, patience_s in ((signal.SIGTERM, _PATIENCE_S), (signal.SIGKILL, None)):
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(patience_s)


def run_in_terminal(
    arguments: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    output_to_stderr: bool = False,
) -> int:
    """Run a program that has our terminal and our streams, and return how it ended.

    Ctrl-C is the program's while it runs: it decides what that means, and we wait for it. It does
    not outlive us, however we end: a terminal that is closed, SIGTERM, on Linux SIGKILL as well.

    Args:
        arguments: Program and arguments; never a shell line.
        env: The whole environment of the child, ``None`` for our own.
        output_to_stderr: What it prints goes to our standard error, where the standard output is
            not its own.

    Returns:
        Its exit code; 128 and the signal's number where a signal ended it.

    Raises:
        ProgramNotFoundError: There is no such program.
        CommandTooLongError: The system takes no arguments that long.
    """
    with _signals_passed_on() as pass_to:
        with _starting(arguments[0]):
            child = subprocess.Popen(
                list(arguments),
                env=None if env is None else dict(env),
                stdout=sys.stderr.fileno() if output_to_stderr else None,
                preexec_fn=_ending_with_us(),  # noqa: PLW1509 - one system call, no Python lock
            )
        pass_to(child)
        code = child.wait()
    return code if code >= 0 else 128 - code


@contextlib.contextmanager
def _signals_passed_on() -> Iterator[Callable[[subprocess.Popen[bytes]], None]]:
    """Let a child decide about Ctrl-C, and end by another signal only after it has.

    It must not be left behind: two that read from one terminal leave neither of use.
    """
    children: list[subprocess.Popen[bytes]] = []
    heard: list[int] = []

    def pass_on(number: int, _frame: object) -> None:
        heard.append(number)
        for child in children:
            child.send_signal(number)

    # A handler of ours, unlike an ignored signal, is not inherited: the program hears its own.
    before = {signal.SIGINT: signal.signal(signal.SIGINT, lambda _number, _frame: None)}
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:  # under nohup, what is ignored stays so
            before[number] = signal.signal(number, pass_on)

    def pass_to(child: subprocess.Popen[bytes]) -> None:
        children.append(child)
        for number in heard:  # meanwhile
            child.send_signal(number)

    try:
        yield pass_to
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if heard:
            os.kill(os.getpid(), heard[0])


def _ending_with_us() -> Callable[[], None] | None:
    """Return what a child calls so that it ends when this process is killed, where that can be had.

    Source: prctl(2), PR_SET_PDEATHSIG; Linux only.
    """
    if sys.platform != "linux":
        return None
    import ctypes

    prctl = ctypes.CDLL(None).prctl
    parent = os.getpid()

    def call() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:  # killed before the call
            os._exit(128 + signal.SIGKILL)

    return call


class RunningProgram:
    """A program of ours in the background; stop it when it is no longer needed."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        self._child = child
        self.pid = child.pid

    def exit_code(self) -> int | None:
        """Return how it ended, ``None`` while it runs."""
        return self._child.poll()

    def stop(self) -> None:
        """Ask it to end, then make it end."""
        for number, patience_s in ((signal.SIGTERM, _PATIENCE_S), (signal.SIGKILL, None)):
            if self._child.poll() is None:
                self._child.send_signal(number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._child.wait(patience_s)


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end what is done as Ctrl-C does: by an exception that cleans up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = {
        number: signal.signal(number, interrupt)
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) != signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def start_program(
    arguments: Sequence[str], *, stderr: Path, env: Mapping[str, str] | None = None
) -> RunningProgram:
    """Start a program that runs beside us, with our terminal but not our streams.

    Ctrl-C is for us and not for it: what we still have to do may need it. On Linux it does not
    outlive us even when we are killed.

    Args:
        arguments: Program and arguments; never a shell line.
        stderr: The file that what it says goes into.
        env: The whole environment of the child, ``None`` for our own.

    Raises:
        ProgramNotFoundError: There is no such program.
        CommandTooLongError: The system takes no arguments that long.
    """
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # which it inherits
    try:
        with stderr.open("wb") as said, _starting(arguments[0]):
            child = subprocess.Popen(
                list(arguments),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
                env=None if env is None else dict(env),
                preexec_fn=_ending_with_us(),  # noqa: PLW1509 - one system call, no Python lock
            )
    finally:
        signal.signal(signal.SIGINT, before)
    return RunningProgram(child)


def start_daemon(arguments: Sequence[str], *, log: Path, env: Mapping[str, str]) -> int:
    """Start a program that outlives us, in a session of its own; return its process id.

    Args:
        arguments: Program and arguments; never a shell line.
        log: Both its output streams are appended here.
        env: Its whole environment.

    Raises:
        ProgramNotFoundError: There is no such program.
        CommandTooLongError: The system takes no arguments that long.
    """
    with log.open("ab") as output, _starting(arguments[0]):
        child = subprocess.Popen(
            list(arguments),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(env),
            cwd="/",
            start_new_session=True,
        )
    # It is not ours to wait for, so it must not look like a child that was forgotten.
    child.returncode = 0
    return child.pid


def reap(pid: int) -> bool:
    """Take note of the end of a daemon that this process started; others are left alone.

    Returns:
        Whether it has ended.
    """
    try:
        return os.waitpid(pid, os.WNOHANG) != (0, 0)
    except ChildProcessError:
        return True
