"""Processes of a local engine's containers, as the host sees them."""

from __future__ import annotations

import os
import select
from pathlib import Path


def running(word: str) -> tuple[int, ...]:
    """Return the processes with exactly this word on their command line, ours left out."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if word.encode() in words:
            found.append(int(entry.name))
    return tuple(found)


def ends_within(pids: tuple[int, ...], timeout_s: float) -> bool:
    """Wait until all processes have ended; ``False`` if one has not by then."""
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            if not select.select([descriptor], [], [], timeout_s)[0]:
                return False
        finally:
            os.close(descriptor)
    return True
