"""What a launch asks of the world, once, before anything is decided."""

from __future__ import annotations

import errno
import os
import pwd
import socket
from typing import TYPE_CHECKING

from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The person at the keyboard, by the numbers that the engine's host knows them under.

    Attributes:
        groups: Supplementary group ids.
        sudo_uid: Who called, where root acts for somebody by ``sudo``.
    """

    uid: int
    gid: int
    login: str
    groups: tuple[int, ...] = ()
    sudo_uid: int | None = None
    sudo_gid: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderOwner:
    """Whose a folder of the host is."""

    uid: int
    gid: int


def probe_caller(environ: Mapping[str, str]) -> Caller:
    """Return who runs this command; a uid without an account gets its number as a login."""
    uid = os.getuid()
    try:
        login = pwd.getpwuid(uid).pw_name
    except KeyError:
        login = str(uid)

    def number(name: str) -> int | None:
        text = environ.get(name, "")
        return int(text) if uid == 0 and text.isdecimal() and text != "0" else None

    return Caller(
        uid=uid,
        gid=os.getgid(),
        login=login,
        groups=tuple(sorted(set(os.getgroups()))),
        sudo_uid=number("SUDO_UID"),
        sudo_gid=number("SUDO_GID"),
    )


def probe_folder_owner(path: Path) -> FolderOwner | None:
    """Return whose a folder is, ``None`` if it cannot be looked at."""
    try:
        status = path.stat()
    except OSError:
        return None
    return FolderOwner(uid=status.st_uid, gid=status.st_gid)


def probe_port_free(port: int, address: str = "127.0.0.1") -> bool:
    """Say whether nobody of this host listens on a port.

    The answer may be old when the engine binds it: a taken port is tried again with the next.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((address, port))
        except OSError as exc:
            # Another reason (an address of the engine's host, a low port) is the engine's to tell.
            return exc.errno != errno.EADDRINUSE
    return True
