"""Several questions at once, with a time limit for all of them together."""

from __future__ import annotations

import queue
import threading
import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")
_WORKERS = 8


class Deadline:
    """A time limit that several calls share.

    Args:
        time_limit_s: From now on.
    """

    def __init__(self, time_limit_s: float) -> None:
        self._end = time.monotonic() + time_limit_s

    @property
    def left_s(self) -> float:
        """What is left of it, never less than nothing."""
        return max(0.0, self._end - time.monotonic())


def run_in_parallel(
    jobs: Sequence[Callable[[], T]], *, time_limit_s: float, workers: int = _WORKERS
) -> list[T | None]:
    """Run jobs in a few threads; ``None`` stands for one that did not end in time.

    The threads are daemons: one that hangs in name resolution does not keep the program alive, as
    one of ``concurrent.futures`` would.

    Raises:
        BaseException: What a job raised, the first by position.
    """
    results: list[T | None] = [None] * len(jobs)
    failures: dict[int, BaseException] = {}
    todo: queue.SimpleQueue[int] = queue.SimpleQueue()
    done = threading.Semaphore(0)
    stopped = threading.Event()

    def work() -> None:
        while not stopped.is_set():
            try:
                number = todo.get_nowait()
            except queue.Empty:
                return
            try:
                results[number] = jobs[number]()
            except BaseException as exc:  # noqa: BLE001 - carried to the caller, see below
                failures[number] = exc
            done.release()

    for number in range(len(jobs)):
        todo.put(number)
    for _ in range(min(workers, len(jobs))):
        threading.Thread(target=work, name="gpuenv-index", daemon=True).start()
    deadline = Deadline(time_limit_s)
    for _ in jobs:
        if not done.acquire(timeout=deadline.left_s):
            break
    stopped.set()
    if failures:
        raise failures[min(failures)]
    return list(results)
