"""Wait until what runs in a container answers from outside; never by a health check or by exec.

Each exec leaves processes behind on some engines, and health checks need a systemd that is not
everywhere.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gpuenv.containers.errors import ContainerEndedError, NotReadyError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuenv.engine.protocol import ContainerEngine, ContainerInfo

_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.25
_LOOK_EVERY_S = 0.5
LOG_LINES = 30


def last_logs(engine: ContainerEngine, container: str, *, lines: int = LOG_LINES) -> str:
    """Return the last lines a container printed."""
    text = b"".join(chunk.data for chunk in engine.logs(container, tail=lines))
    return text.decode("utf-8", "replace").strip()


def wait_ready(
    engine: ContainerEngine,
    container: str,
    probe: Callable[[], str],
    *,
    what: str,
    timeout_s: float,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Ask again and again until a probe is content.

    Args:
        probe: Asks once; returns an empty text when it is ready, else what is missing.
        what: What should answer, for the error.
        timeout_s: From now on.

    Raises:
        ContainerEndedError: The container ended meanwhile.
        NotReadyError: It did not answer in time.
    """
    begun = clock()
    looked = begun
    wait_s = _FIRST_PAUSE_S
    while missing := probe():
        now = clock()
        if now - looked >= _LOOK_EVERY_S or now - begun >= timeout_s:
            looked = now
            require_alive(engine, container, what)
        if now - begun >= timeout_s:
            raise NotReadyError(
                f"{what} did not answer within {timeout_s:g} s",
                why="\n".join(t for t in (missing, last_logs(engine, container)) if t),
                fix="--ready-timeout gives it longer; the lines above are the container's last",
            )
        pause(wait_s)
        wait_s = min(wait_s * 1.5, _LONGEST_PAUSE_S)


def require_alive(engine: ContainerEngine, container: str, what: str) -> None:
    """Make sure that a container runs.

    Raises:
        ContainerEndedError: It does not; with its last lines.
    """
    info = engine.container(container)
    if info is None or not info.running:
        raise _ended(engine, container, info, what)


def _ended(
    engine: ContainerEngine, container: str, info: ContainerInfo | None, what: str
) -> ContainerEndedError:
    if info is None:
        return ContainerEndedError(
            f"the container of {what} is gone",
            why="somebody removed it while it was starting",
            fix="run the command again",
        )
    if info.oom_killed:
        why = "the kernel ended it: it needed more memory than its limit allows"
    else:
        why = last_logs(engine, container) or info.error or "it printed nothing"
    return ContainerEndedError(
        f"the container of {what} ended with exit code {info.exit_code}",
        why=why,
        fix="the lines above are its last; gpuenv logs shows all of a container that still exists",
        data={"exit_code": info.exit_code, "oom_killed": info.oom_killed},
    )
