"""A container in the foreground: its input, output, window size, signals and exit code are ours."""

from __future__ import annotations

import errno
import os
import queue
import re
import select
import shutil
import signal
import termios
import threading
import tty
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Literal, TypeAlias

from gpuenv.engine.errors import EngineTimeoutError
from gpuenv.errors import GpuenvError
from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from gpuenv.engine.protocol import Attachment, ContainerEngine, ExitStatus

_FORWARDED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGCONT")
_PATIENCE = 3
_HANGUP_PATIENCE_S = 5.0
_CHUNK = 65536
_INIT_WORDS = re.compile(rb"\[FATAL tini \([0-9]+\)\] exec (.*) failed: ([^\r\n]+)\r?\n", re.DOTALL)
_MAY_BE_INIT = re.compile(
    rb"|".join(re.escape(b"[FATAL tini ("[:length]) for length in range(1, 13))
    + rb"|\[FATAL tini \([^\n]*\r?\n?"
)

_Event: TypeAlias = (
    "tuple[Literal['signal'], str]"
    "| tuple[Literal['exit'], ExitStatus]"
    "| tuple[Literal['failed'], GpuenvError]"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """The descriptors a container is connected to.

    Attributes:
        stdin: ``None`` sends nothing.
    """

    stdin: int | None = 0
    stdout: int = 1
    stderr: int = 2


class InitWatch:
    """Takes from a container's output what its init says when it cannot run the command.

    An engine that starts it without an init refuses such a start itself; with one the container
    starts and ends, and these are the only words of it::

        [FATAL tini (7)] exec trian.py failed: No such file or directory

    Attributes:
        refused: The program and the reason, once such words came.
    """

    def __init__(self) -> None:
        self.refused: tuple[str, str] | None = None
        self._held = b""
        self._over = False

    def pass_on(self, data: bytes) -> bytes:
        """Return what of the next piece of output is the command's own for certain."""
        if self._over:
            return data
        self._held += data
        if _MAY_BE_INIT.fullmatch(self._held):
            return b""
        self._over = True
        held, self._held = self._held, b""
        return held

    def listen(self, attachment: Attachment, *, timeout_s: float) -> None:
        """Take in what a container prints from its start, until it ends or the time is over."""

        def take_in() -> None:
            for _ in _command_output(attachment, self):
                pass

        listener = threading.Thread(target=take_in, name="first words", daemon=True)
        listener.start()
        listener.join(timeout_s)

    def rest(self) -> bytes:
        """Return what was held back and is the command's own, when no more comes."""
        held, self._held, self._over = self._held, b"", True
        words = _INIT_WORDS.fullmatch(held)
        if words is None:
            return held
        self.refused = (words[1].decode("utf-8", "replace"), words[2].decode("utf-8", "replace"))
        return b""


def run_in_foreground(
    engine: ContainerEngine,
    container: str,
    attachment: Attachment,
    streams: Streams,
    *,
    watch: InitWatch | None = None,
) -> ExitStatus:
    """Carry a started container's streams and signals until it ends; must run in the main thread.

    Signals go to the container's first process, as with ``docker run``; the third Ctrl-C in a row
    kills it. Where the reader of our output goes away, the container gets SIGPIPE. Where our
    terminal is closed, a container with a terminal gets SIGHUP, and SIGKILL if it does not end by
    that: nobody can reach it any more.

    Args:
        attachment: Opened before the start, so that nothing of the output is missed.
        watch: Learns why the command was not run, where that stands in the output.

    Returns:
        How it ended; its output has been written by then.
    """
    events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
    stop_read, stop_write = os.pipe()
    output = threading.Thread(
        target=_pump_output,
        args=(attachment, streams, events, watch or InitWatch()),
        name="output",
        daemon=True,
    )
    waiter = threading.Thread(
        target=_wait_for_exit, args=(engine, container, events), name="wait", daemon=True
    )
    threads = [output, waiter]
    if streams.stdin is not None:
        threads.append(
            threading.Thread(
                target=_pump_input,
                args=(attachment, streams.stdin, stop_read, events),
                name="input",
                daemon=True,
            )
        )
    try:
        with _raw_terminal(streams, attachment), _signals_to(events):
            for thread in threads:
                thread.start()
            status = _serve(engine, container, attachment, events)
            output.join()
    finally:
        os.write(stop_write, b"x")
        for thread in threads[2:]:
            thread.join(timeout=5)
        attachment.close()
        os.close(stop_write)
        os.close(stop_read)
    return status


def _serve(
    engine: ContainerEngine,
    container: str,
    attachment: Attachment,
    events: queue.SimpleQueue[_Event],
    *,
    hangup_patience_s: float = _HANGUP_PATIENCE_S,
) -> ExitStatus:
    if attachment.tty:
        _resize(attachment)
    interrupts = 0
    hung_up = False
    sender = _SignalSender(engine, container)
    while True:
        event = _next_event(events, timeout_s=hangup_patience_s if hung_up else None)
        if event[0] == "exit":
            return event[1]
        if event[0] == "failed":
            raise event[1]
        name = event[1]
        if name == "SIGWINCH":
            _resize(attachment)
            continue
        interrupts += name == "SIGINT"
        hung_up |= name == "SIGHUP" and attachment.tty
        kill = name == "SIGKILL" or (name == "SIGINT" and interrupts >= _PATIENCE)
        if kill and sender.unanswered:
            raise _not_taken(sender.unanswered)
        sender.send("SIGKILL" if kill else name)


def _next_event(events: queue.SimpleQueue[_Event], *, timeout_s: float | None) -> _Event:
    """Return what happens next, a SIGKILL of ours when nothing does in time."""
    try:
        return events.get(timeout=timeout_s)
    except queue.Empty:
        return ("signal", "SIGKILL")


def _not_taken(signals: int) -> EngineTimeoutError:
    return EngineTimeoutError(
        "the container engine does not answer",
        why=f"{signals} signals for the container were not taken",
        fix="the command goes on; gpuenv ps shows it once the engine answers again",
    )


class _SignalSender:
    """Sends signals in their order, without waiting for an engine that does not take them."""

    def __init__(self, engine: ContainerEngine, container: str) -> None:
        self._engine = engine
        self._container = container
        self._waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._sent = self._taken = 0  # each written by one thread alone
        threading.Thread(target=self._run, name="signals", daemon=True).start()

    @property
    def unanswered(self) -> int:
        """How many signals the engine has not taken yet."""
        return self._sent - self._taken

    def send(self, name: str) -> None:
        """Send a signal after those before it."""
        self._sent += 1
        self._waiting.put(name)

    def _run(self) -> None:
        while True:
            # A failure means that it has just ended; the exit event is on its way.
            with suppress(GpuenvError):
                self._engine.signal(self._container, self._waiting.get())
            self._taken += 1


def _resize(attachment: Attachment) -> None:
    size = shutil.get_terminal_size()
    try:
        attachment.resize(rows=size.lines, columns=size.columns)
    except GpuenvError:
        return  # it has just ended


def _wait_for_exit(
    engine: ContainerEngine, container: str, events: queue.SimpleQueue[_Event]
) -> None:
    try:
        events.put(("exit", engine.wait(container)))
    except GpuenvError as error:
        events.put(("failed", error))


def _pump_output(
    attachment: Attachment,
    streams: Streams,
    events: queue.SimpleQueue[_Event],
    watch: InitWatch,
) -> None:
    reader_gone = False
    for stream, piece in _command_output(attachment, watch):
        if reader_gone:
            continue
        target = streams.stdout if stream == "stdout" else streams.stderr
        data = memoryview(piece)
        try:
            while data:
                data = data[os.write(target, data) :]
        except OSError:
            reader_gone = True
            events.put(("signal", "SIGPIPE"))


def _command_output(attachment: Attachment, watch: InitWatch) -> Iterator[tuple[str, bytes]]:
    """Yield what the command prints, with the stream it prints to."""
    stream = "stderr"
    while True:
        try:
            chunk = attachment.read()
        except (OSError, ValueError):
            return  # closed under us when the launch was interrupted
        if chunk is None:
            break
        stream = chunk.stream
        yield stream, watch.pass_on(chunk.data)
    yield stream, watch.rest()


def _pump_input(
    attachment: Attachment, source: int, stop: int, events: queue.SimpleQueue[_Event]
) -> None:
    while True:
        ready, _, _ = select.select([source, stop], [], [])
        if stop in ready:
            return
        try:
            data = os.read(source, _CHUNK)
        except OSError:
            data = b""
        try:
            if not data:
                if attachment.tty and _is_terminal(
                    source
                ):  # raw, so Ctrl-D is a character: this is the end of the terminal
                    events.put(("signal", "SIGHUP"))
                attachment.close_input()
                return
            attachment.write(data)
        except OSError:
            return  # the container ended and takes no more


def _is_terminal(descriptor: int) -> bool:
    """Whether it is a terminal, or was one before that was closed."""
    try:
        termios.tcgetattr(descriptor)
    except termios.error as exc:
        return bool(exc.args[0] == errno.EIO)
    return True


@contextmanager
def _raw_terminal(streams: Streams, attachment: Attachment) -> Iterator[None]:
    """Hand the keys to the container as they are, Ctrl-C included, and give the terminal back."""
    if not attachment.tty or streams.stdin is None or not os.isatty(streams.stdin):
        yield
        return
    before = termios.tcgetattr(streams.stdin)
    tty.setraw(streams.stdin)
    try:
        yield
    finally:
        with suppress(termios.error):  # it was closed
            termios.tcsetattr(streams.stdin, termios.TCSADRAIN, before)


@contextmanager
def _signals_to(events: queue.SimpleQueue[_Event]) -> Iterator[None]:
    def note(number: int, _frame: FrameType | None) -> None:
        events.put(("signal", signal.Signals(number).name))

    numbers = [signal.Signals[name] for name in (*_FORWARDED, "SIGWINCH")]
    before = {
        number: signal.signal(number, note)
        for number in numbers
        if signal.getsignal(number) != signal.SIG_IGN  # under nohup, what is ignored stays so
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
