"""The folders gpuenv keeps its own files in, by the XDG rules, private to the user."""

from __future__ import annotations

import os
import tempfile
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from gpuenv.writing import write_whole

if TYPE_CHECKING:
    from collections.abc import Mapping


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("HOME") or tempfile.gettempdir())


def state_dir(environ: Mapping[str, str]) -> Path:
    """Return the folder for what must survive (tokens, keys, known hosts); not created here.

    ``GPUENV_STATE_DIR`` wins, then ``XDG_STATE_HOME``, then ``~/.local/state``.
    """
    own = environ.get("GPUENV_STATE_DIR")
    if own:
        return Path(own)
    base = environ.get("XDG_STATE_HOME")
    return (Path(base) if base else _home(environ) / ".local" / "state") / "gpuenv"


def cache_dir(environ: Mapping[str, str]) -> Path:
    """Return the folder for what may be deleted at any time; not created here."""
    own = environ.get("GPUENV_CACHE_DIR")
    if own:
        return Path(own)
    base = environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else _home(environ) / ".cache") / "gpuenv"


def make_private_dir(path: Path) -> Path:
    """Create a folder, and its parents, that only this user can enter; return it."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.chmod(0o700)
    return path


def write_private_file(path: Path, content: bytes) -> None:
    """Write a file that only this user can read, whole or not at all."""
    make_private_dir(path.parent)
    write_whole(path, content)


def write_crash_log(text: str, *, environ: Mapping[str, str]) -> Path | None:
    """Keep a traceback for the user to report; ``None`` where the state folder is not writable."""
    stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S")
    path = state_dir(environ) / "crash" / f"{stamp}-{os.getpid()}.log"
    try:
        write_private_file(path, text.encode())
    except OSError:
        return None
    return path
