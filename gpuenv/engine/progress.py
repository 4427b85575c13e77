"""A build's events as lines for people: what ended, what runs, how many bytes and how long."""

from __future__ import annotations

import dataclasses
import re
import shlex
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from gpuenv.engine.events import (
    BuildWarning,
    Failed,
    ImageId,
    Output,
    Progress,
    StepCached,
    StepDone,
    StepStarted,
)
from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuenv.engine.events import BuildEvent

Mark: TypeAlias = Literal["done", "cached", "failed", "warning", "start", "output"]

_NUMBER = re.compile(r"^\[(?:stage-\d+ )?((?:[^\]\s]+ )?\d+/\d+)\] ")
_NOISE = re.compile(r"--(?:mount|network|security)=\S+ |: sha256:[0-9a-f]+; *")
_QUOTED = r"""'[^']*'(?:"'"'[^']*')*"""  # as shlex.quote writes it
_TITLE = re.compile(rf"RUN : ({_QUOTED}|[\w.,-]+);")
_MEGA = 1e6
_SHORT_UPLOAD_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line that stays.

    Attributes:
        step: ``4/9``, or empty.
        seconds: How long the step took.
    """

    mark: Mark
    step: str
    text: str
    seconds: float | None = None
    note: str = ""


@dataclass(slots=True, kw_only=True)
class RunningStep:
    """A step that runs now.

    Attributes:
        began: By the clock of the view.
        last: The last line it printed.
        items: Item → bytes now and in all.
    """

    step: str
    text: str
    internal: bool
    began: float
    last: str = ""
    items: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def amount(self) -> str:
        """How many bytes have come, ``12.3 of 45.6 MB``."""
        return format_amount(
            sum(current for current, _ in self.items.values()),
            sum(total for _, total in self.items.values()),
        )


class BuildView:
    """Keeps the state of a build that is shown.

    Args:
        clock: Seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._running: dict[str, RunningStep] = {}
        self._began = clock()
        self.cached = 0
        self.run = 0

    def feed(self, event: BuildEvent) -> tuple[Line, ...]:
        """Take an event and return the lines that it settles."""
        if isinstance(event, StepStarted):
            return self._start(event)
        if isinstance(event, StepCached):
            self.cached += not event.internal
            step, text = split_name(event.name)
            return () if event.internal else (Line(mark="cached", step=step, text=text),)
        if isinstance(event, StepDone):
            return self._done(event)
        if isinstance(event, Output):
            return self._output(event)
        if isinstance(event, Progress):
            self._progress(event)
            return ()
        return self._other(event)

    def _other(self, event: BuildWarning | Failed | ImageId) -> tuple[Line, ...]:
        if isinstance(event, BuildWarning):
            return (Line(mark="warning", step="", text=event.text),)
        self._running.clear()
        if isinstance(event, ImageId):
            return ()
        step, text = split_name(event.name)
        return (Line(mark="failed", step=step, text=text or event.message.strip()),)

    def _start(self, event: StepStarted) -> tuple[Line, ...]:
        step, text = split_name(event.name)
        self._running[event.step] = RunningStep(
            step=step, text=text, internal=event.internal, began=self._clock()
        )
        return () if event.internal else (Line(mark="start", step=step, text=text),)

    def _done(self, event: StepDone) -> tuple[Line, ...]:
        ran = self._running.pop(event.step, None)
        step, text = split_name(event.name)
        amount = ran.amount if ran else ""
        if event.internal and (event.seconds < _SHORT_UPLOAD_S or not amount):
            return ()
        self.run += bool(step)  # exporting is no step of the Dockerfile
        return (Line(mark="done", step=step, text=text, seconds=event.seconds, note=amount),)

    def _output(self, event: Output) -> tuple[Line, ...]:
        ran = self._running.get(event.step)
        if ran is None:
            return ()
        ran.last = event.text.strip() or ran.last
        return (Line(mark="output", step=ran.step, text=event.text),)

    def _progress(self, event: Progress) -> None:
        ran = self._running.get(event.step)
        if ran is None:
            return
        if event.current or event.total:
            ran.items[event.item] = (event.current, event.total)
        elif not event.done:
            ran.last = event.item

    def running(self) -> tuple[tuple[RunningStep, float], ...]:
        """Return the steps that run now and for how many seconds, the oldest first."""
        now = self._clock()
        shown = [ran for ran in self._running.values() if not ran.internal or ran.amount]
        return tuple((ran, now - ran.began) for ran in shown)

    def summary(self) -> str:
        """Return one sentence for the end."""
        seconds = format_seconds(self._clock() - self._began)
        steps = "step" if self.run == 1 else "steps"
        return f"{self.run} {steps} run, {self.cached} from the cache, {seconds}"


def split_name(name: str) -> tuple[str, str]:
    """Split a step's name into its number and what it does, without mounts and hashes.

    ``[stage-0 4/9] RUN --mount=type=cache,target=/x uv pip install torch`` gives
    ``4/9`` and ``RUN uv pip install torch``; a stage with a name keeps it, ``wheels 4/9``. A step
    of gpuenv's own recipe says first what it is, ``RUN : 'PyTorch'; …``, and is called so.
    """
    found = _NUMBER.match(name)
    text = name[found.end() :] if found else name
    text = " ".join(_NOISE.sub("", text).split())
    titled = _TITLE.match(text)
    if titled:
        text = shlex.split(titled[1])[0]
    return (found[1] if found else "", text.removeprefix("[internal] "))


def format_seconds(seconds: float) -> str:
    """Return a duration as people read it: ``0.4 s``, ``1 min 05 s``."""
    if seconds < 60:  # noqa: PLR2004 - a minute
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s"


def shorten(text: str, width: int) -> str:
    """Cut a line to ``width`` characters, with an ellipsis where it was cut."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def format_amount(current: int, total: int) -> str:
    """Return bytes as people read them: ``12.3 of 45.6 MB``; empty for none."""
    if not current and not total:
        return ""
    now = f"{current / _MEGA:.1f}"
    return f"{now} of {total / _MEGA:.1f} MB" if total else f"{now} MB"


def event_as_dict(event: BuildEvent) -> dict[str, Any]:
    """Return an event for ``--progress json``: its kind and its fields."""
    words = re.sub(r"(?<!^)([A-Z])", r"-\1", type(event).__name__).lower()
    return {"event": words, **dataclasses.asdict(event)}
