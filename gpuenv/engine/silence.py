"""Tell an engine that has nothing to say from one that is stuck.

A step of a build may be silent for minutes. An engine that is frozen, or whose host swaps, is
silent as well, and the two look the same from here until the engine is asked something else.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from typing_extensions import Self

QUIET_S = 30.0


class SilenceWatch:
    """Asks the engine whether it is there when nothing was heard for a while; says so if it is not.

    Args:
        answers: Whether the engine answers another request now.
        say: Told once that it does not, and once that it does again; called from another thread.
        quiet_s: How long a silence needs no question.
    """

    def __init__(
        self,
        answers: Callable[[], bool],
        say: Callable[[str], None],
        *,
        quiet_s: float = QUIET_S,
    ) -> None:
        self._answers = answers
        self._say = say
        self._quiet_s = quiet_s
        self._heard_at = time.monotonic()
        self._over = threading.Event()
        self._told = False
        self._thread = threading.Thread(target=self._watch, name="silence", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._over.set()  # a question that is still open ends with its own time limit

    def heard(self) -> None:
        """Note that the engine said something."""
        self._heard_at = time.monotonic()

    def _watch(self) -> None:
        asked_at = self._heard_at
        while not self._over.wait(self._left_s(asked_at)):
            if self._left_s(asked_at) <= 0:  # else something was heard meanwhile
                self.ask()
                asked_at = time.monotonic()

    def _left_s(self, asked_at: float) -> float:
        return max(asked_at, self._heard_at) + self._quiet_s - time.monotonic()

    def ask(self) -> None:
        """Ask now, and say what is new of it."""
        answered = self._answers()
        if self._over.is_set():
            return
        if not answered and not self._told:
            silent_s = time.monotonic() - self._heard_at
            self._say(
                f"the engine has said nothing for {silent_s:.0f} s and does not answer; "
                "Ctrl-C ends the wait"
            )
        if answered and self._told:
            self._say("the engine answers again")
        self._told = not answered
