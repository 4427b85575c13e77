"""The build as it goes, on standard error: a live display, plain lines, JSON lines, or nothing."""

from __future__ import annotations

import json
import threading
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from gpuenv.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.text import Text

    from gpuenv.engine.events import BuildEvent
    from gpuenv.engine.progress import BuildView, Line
    from gpuenv.output import Output

MODES = ("auto", "plain", "json", "quiet")
_SYMBOLS = {"done": "✓", "cached": "=", "failed": "✗", "warning": "!"}
_PLAIN_SYMBOLS = {"done": "+", "cached": "=", "failed": "x", "warning": "!"}
_STYLES = {"done": "green", "cached": "cyan", "failed": "bold red", "warning": "yellow"}
_SPINNER, _PLAIN_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "-\\|/"
_FRAMES_PER_S = 8


@contextmanager
def show_build(out: Output, mode: str) -> Iterator[Callable[[BuildEvent], None]]:
    """Yield the function that is told each event of a build.

    ``auto`` is the live display on a terminal and plain lines elsewhere; ``-q`` is ``quiet``.
    Nothing is made ready before the first event: an image that is there already has none.

    Raises:
        UsageError: There is no such mode.
    """
    if mode not in MODES:
        raise UsageError(
            f"--progress {mode!r} is not a way to show a build",
            why=f"there are {', '.join(MODES)}",
            fix="--progress plain",
        )
    if mode == "quiet" or (out.verbosity < 0 and mode != "json"):
        yield lambda _event: None
        return
    with ExitStack() as stack:
        shown: Callable[[BuildEvent], None] | None = None

        def on_event(event: BuildEvent) -> None:
            nonlocal shown
            if shown is None:
                shown = stack.enter_context(_display(out, mode))
            shown(event)

        yield on_event


@contextmanager
def _display(out: Output, mode: str) -> Iterator[Callable[[BuildEvent], None]]:
    from gpuenv.engine.progress import BuildView

    console = out.console(error=True)
    if mode == "json":
        yield lambda event: _print_json(console, event)
        return
    view = BuildView(time.monotonic)
    if mode == "auto" and console.file.isatty() and out.verbosity == 0:
        with _live(console, view) as on_event:
            yield on_event
    else:
        yield lambda event: _print_plain(console, view, event)
    if view.run or view.cached:
        out.note(view.summary())


def _print_json(console: Console, event: BuildEvent) -> None:
    from gpuenv.engine.progress import event_as_dict

    console.file.write(json.dumps(event_as_dict(event), ensure_ascii=False) + "\n")
    console.file.flush()


def _print_plain(console: Console, view: BuildView, event: BuildEvent) -> None:
    for line in view.feed(event):
        console.file.write(plain_line(line) + "\n")
    console.file.flush()


def plain_line(line: Line) -> str:
    """Return one settled line for a log file."""
    from gpuenv.engine.progress import format_seconds

    step = f"[{line.step}] " if line.step else ""
    if line.mark == "output":
        return f"{step}| {line.text}"
    if line.mark == "start":
        return f"{step}{line.text}"
    words = {"done": "done", "cached": "cached", "failed": "FAILED", "warning": "warning:"}
    took = "" if line.seconds is None else f" in {format_seconds(line.seconds)}"
    note = f" ({line.note})" if line.note else ""
    if line.mark in {"done", "failed"} and line.step:
        return f"{step}{words[line.mark]}{took}{note}"
    return f"{step}{words[line.mark]} {line.text}{took}{note}".rstrip()


# --- the live display -------------------------------------------------------------------------


@contextmanager
def _live(console: Console, view: BuildView) -> Iterator[Callable[[BuildEvent], None]]:
    from rich.live import Live

    plain = not console.options.encoding.startswith("utf")
    lock = threading.Lock()
    running = _Running(view, lock, plain=plain)
    with Live(
        running, console=console, refresh_per_second=_FRAMES_PER_S, transient=True
    ) as display:

        def on_event(event: BuildEvent) -> None:
            with lock:
                settled = view.feed(event)
            for line in settled:
                if line.mark in _STYLES:
                    width = display.console.width
                    display.console.print(_settled_text(line, width=width, plain=plain))

        yield on_event


def _settled_text(line: Line, *, width: int, plain: bool) -> Text:
    from gpuenv.engine.progress import format_seconds

    took = "" if line.seconds is None else format_seconds(line.seconds)
    return _row(
        ((_PLAIN_SYMBOLS if plain else _SYMBOLS)[line.mark], _STYLES[line.mark]),
        line.step,
        (line.text, "dim" if line.mark == "cached" else ""),
        ("  ".join(fact for fact in (line.note, took) if fact), "dim"),
        width=width,
    )


def _row(
    symbol: tuple[str, str],
    step: str,
    title: tuple[str, str],
    facts: tuple[str, str],
    *,
    width: int,
) -> Text:
    """Return one line of the display; the title gives way so that the facts are always seen."""
    from rich.text import Text

    from gpuenv.engine.progress import shorten

    head = f"{step:>5} "
    tail = f"  {facts[0]}" if facts[0] else ""
    room = max(10, width - len(head) - len(tail) - 3)
    return Text.assemble(
        (f"{symbol[0]} ", symbol[1]),
        (head, "dim"),
        (shorten(title[0], room), title[1]),
        (tail, facts[1]),
        no_wrap=True,
        overflow="crop",
    )


class _Running:
    """The lines at the bottom: each step that runs, how long, how much, and its last words."""

    def __init__(self, view: BuildView, lock: threading.Lock, *, plain: bool) -> None:
        self._view = view
        self._lock = lock
        self._spinner = _PLAIN_SPINNER if plain else _SPINNER

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        from gpuenv.engine.progress import format_seconds

        with self._lock:
            running = [
                (ran.step, ran.text, ran.amount, ran.last, seconds)
                for ran, seconds in self._view.running()
            ]
        for step, text, amount, last, seconds in running:
            frame = self._spinner[int(seconds * _FRAMES_PER_S) % len(self._spinner)]
            facts = "  ".join(fact for fact in (amount, format_seconds(seconds)) if fact)
            yield _row(
                (frame, "bold cyan"), step, (text, ""), (facts, "bold"), width=options.max_width
            )
            if last:
                yield Text(f"        {last}", style="dim", no_wrap=True, overflow="ellipsis")
