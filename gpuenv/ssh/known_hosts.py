"""gpuenv's own file of host keys; the user's is not touched.

Each environment is known by an alias, ``gpuenv-NAME``, not by an address: addresses and ports
change, the key of an environment does not.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpuenv.state import state_dir, write_private_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from gpuenv.ssh.keys import PublicKey


def known_hosts_path(environ: Mapping[str, str]) -> Path:
    """Return where the host keys of all environments stand."""
    return state_dir(environ) / "ssh" / "known_hosts"


def pin_host_key(path: Path, alias: str, key: PublicKey) -> None:
    """Make a key the one and only key of an alias."""
    line = f"{alias} {key.type} {key.blob}"
    kept = _without(path, alias)
    write_private_file(path, "".join(f"{text}\n" for text in (*kept, line)).encode())


def forget_host(path: Path, alias: str) -> None:
    """Remove what is known of an alias."""
    if path.exists():
        write_private_file(path, "".join(f"{text}\n" for text in _without(path, alias)).encode())


def _without(path: Path, alias: str) -> tuple[str, ...]:
    pattern = re.compile(rf"{re.escape(alias)}\s")
    try:
        lines = path.read_text("utf-8").splitlines()
    except FileNotFoundError:
        return ()
    return tuple(line for line in lines if line.strip() and not pattern.match(line))
