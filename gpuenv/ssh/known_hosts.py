"""gpuenv's own file of host keys; the user's is not touched.

Each environment is known by an alias, ``gpuenv-NAME``, not by an address: addresses and ports
change, the key of an environment does not.
"""

from __future__ import annotations

import contextlib
import fcntl
import re
from typing import TYPE_CHECKING

from gpuenv.errors import ConfigurationError
from gpuenv.state import make_private_dir, state_dir, write_private_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from gpuenv.ssh.keys import PublicKey

# What somebody else wrote into the file stays there, even where it is no text.
_AS_IT_IS = ("utf-8", "surrogateescape")


def known_hosts_path(environ: Mapping[str, str]) -> Path:
    """Return where the host keys of all environments stand."""
    return state_dir(environ) / "ssh" / "known_hosts"


def pin_host_key(path: Path, alias: str, key: PublicKey) -> None:
    """Make a key the one and only key of an alias.

    Raises:
        ConfigurationError: The file cannot be read or written.
    """
    line = f"{alias} {key.type} {key.blob}"
    with _locked(path):
        before = _lines(path)
        after = (*_without(before, alias), line)
        if line not in before or len(after) != len(before):
            _write(path, after)


def forget_host(path: Path, alias: str) -> None:
    """Remove what is known of an alias."""
    with _locked(path):
        before = _lines(path)
        after = _without(before, alias)
        if after != before:
            _write(path, after)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Let one gpuenv at a time change the file: each environment's command comes by here."""
    try:
        make_private_dir(path.parent)
        with path.with_name(path.name + ".lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as exc:
        raise ConfigurationError(
            f"cannot use {path}",
            why=exc.strerror or str(exc),
            fix="make room, give write permission or remove what lies there; GPUENV_STATE_DIR "
            "names another folder",
        ) from exc


def _write(path: Path, lines: tuple[str, ...]) -> None:
    write_private_file(path, "".join(f"{text}\n" for text in lines).encode(*_AS_IT_IS))


def _lines(path: Path) -> tuple[str, ...]:
    try:
        return tuple(line for line in path.read_text(*_AS_IT_IS).splitlines() if line.strip())
    except FileNotFoundError:
        return ()


def _without(lines: tuple[str, ...], alias: str) -> tuple[str, ...]:
    pattern = re.compile(rf"{re.escape(alias)}\s")
    return tuple(line for line in lines if not pattern.match(line))
