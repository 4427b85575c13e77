"""The build as it goes, on standard error."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpuenv.engine.events import BuildEvent
    from gpuenv.output import Output


@contextmanager
def show_build(out: Output, mode: str) -> Iterator[Callable[[BuildEvent], None]]:
    """Yield the function that is told each event of a build."""
    from gpuenv.engine.events import StepDone, StepStarted

    def on_event(event: BuildEvent) -> None:
        if isinstance(event, StepStarted) and not event.internal and mode != "quiet":
            out.note(f"  {event.name[:90]}")
        elif isinstance(event, StepDone) and not event.internal:
            out.detail(f"  {event.seconds:6.1f} s")

    yield on_event
