"""Which probe runs, on standard error: one moving line on a terminal, nothing elsewhere."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

    from rich.status import Status

    from gpuenv.checks.model import ProbeRun
    from gpuenv.output import Output


class ProbeProgress:
    """Told of each probe's begin and end; ``-v`` makes a line of each that stays."""

    def __init__(self, out: Output, *, total: int) -> None:
        self._out = out
        self._total = total
        self._done = 0
        self._running: dict[str, None] = {}
        self._status: Status | None = None

    def __enter__(self) -> ProbeProgress:  # noqa: PYI034 - Self is not in Python 3.10
        """Begin the moving line."""
        console = self._out.console(error=True)
        # With -v each probe has a line of its own, which a live display would be mixed up with.
        if sys.stderr.isatty() and console.is_terminal and self._out.verbosity == 0:
            self._status = console.status("starting the probes")
            self._status.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Take the moving line away."""
        if self._status is not None:
            self._status.stop()

    def __call__(self, name: str, run: ProbeRun | None) -> None:
        """Take note of a probe that began (``run`` is ``None``) or answered."""
        if run is None:
            self._running[name] = None
        else:
            self._running.pop(name, None)
            self._done += 1
            self._out.detail(f"{name}: {run.status}, {run.duration_s:.2f} s")
        if self._status is not None:
            names = ", ".join(self._running) or "..."
            self._status.update(f"{self._done} of {self._total} probes done; looking at {names}")
