"""A port of a remote host at a port of this one, for as long as its environment is there.

A command ends, but the browser that it opened does not: so a small process of ours stays, logs in
again when the connection is lost, and ends when the environment's private folder is gone or it is
asked to. It never asks for a passphrase, since nobody may be there to answer.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpuenv.containers.facts import probe_port_free
from gpuenv.errors import EngineUnavailableError, GpuenvError
from gpuenv.process import start_daemon
from gpuenv.ssh.remote import RemoteFailedError, log_in, parse_remote
from gpuenv.state import write_private_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuenv.containers.files import EnvironmentFiles
    from gpuenv.ssh.remote import RemoteHost

_PATIENCE_S = 40.0
_PAUSE_S = 0.05
_LOOK_EVERY_S = 1.0
_LONGEST_PAUSE_S = 30.0
_PORTS = 64
_MODULE = "gpuenv.ssh.tunnel"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tunnel:
    """One port there at one port here.

    Attributes:
        pid: The process that keeps it, 0 before there is one.
        here: The port on this host's loopback.
        there: The port on that host's loopback.
        url: The host, as ``ssh://…``.
    """

    pid: int
    here: int
    there: int
    url: str


def tunnel_path(files: EnvironmentFiles) -> Path:
    """Return where the tunnel of an environment is written down."""
    return files.folder / "tunnel.json"


def load_tunnel(path: Path) -> Tunnel | None:
    """Read a tunnel back, ``None`` if there is none."""
    try:
        data = json.loads(path.read_bytes())
        return Tunnel(
            pid=int(data["pid"]), here=int(data["here"]), there=int(data["there"]),
            url=str(data["url"]),
        )  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError):
        return None


def is_kept(path: Path, tunnel: Tunnel) -> bool:
    """Say whether the process that keeps a tunnel is alive, and not another of the same number."""
    try:
        words = Path(f"/proc/{tunnel.pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return _MODULE.encode() in words and os.fsencode(path) in words


def keep_tunnel(
    files: EnvironmentFiles, *, url: str, there: int, environ: Mapping[str, str]
) -> int:
    """Return the port here of a port there, with a process that keeps the way open.

    The same one as last time where it is free, so that a browser's address stays right.

    Raises:
        EngineUnavailableError: The host cannot be logged in to without somebody to type.
    """
    path = tunnel_path(files)
    known = load_tunnel(path)
    if known is not None and is_kept(path, known):
        if (known.there, known.url) == (there, url):
            _wait_until_open(path, known.here)
            return known.here
        end_tunnel(files)
    wanted = there if known is None else known.here
    here = next((p for p in range(wanted, wanted + _PORTS) if probe_port_free(p)), None)
    if here is None:
        raise RemoteFailedError(
            f"no port from {wanted} to {wanted + _PORTS - 1} is free on this machine",
            fix="end what has them",
        )
    tunnel = Tunnel(pid=0, here=here, there=there, url=url)
    files.write(path, json.dumps(asdict(tunnel)))
    log = _log_path(path)
    write_private_file(log, b"")
    start_daemon((sys.executable, "-m", _MODULE, str(path)), log=log, env=environ)
    _wait_until_open(path, here)
    return here


def open_tunnel(files: EnvironmentFiles) -> Tunnel | None:
    """Return the tunnel of an environment if something keeps it."""
    path = tunnel_path(files)
    known = load_tunnel(path)
    return known if known is not None and is_kept(path, known) else None


def end_tunnel(files: EnvironmentFiles) -> None:
    """End the process that keeps the tunnel of an environment; which ports it had stays known."""
    path = tunnel_path(files)
    known = load_tunnel(path)
    if known is None or not is_kept(path, known):
        return
    with suppress(ProcessLookupError):
        os.kill(known.pid, signal.SIGTERM)
    deadline = time.monotonic() + _PATIENCE_S
    while is_kept(path, known) and time.monotonic() < deadline:
        time.sleep(_PAUSE_S)


def _log_path(path: Path) -> Path:
    return path.with_name("tunnel.log")


def _wait_until_open(path: Path, port: int) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        said = _log_path(path).read_text("utf-8", "replace") if _log_path(path).exists() else ""
        known = load_tunnel(path)
        ended = known is not None and known.pid and not is_kept(path, known)
        if ended or time.monotonic() > deadline:
            raise RemoteFailedError(
                "the tunnel to the remote host does not come up",
                why=said.strip()[-1500:] or "it said nothing",
                fix="it must log in without asking: put your key into an agent (ssh-add)",
            )
        time.sleep(_PAUSE_S)


# --- the process that stays ----------------------------------------------------------------------


def keep_open(path: Path) -> None:
    """Keep a tunnel open until its file is gone or another process has taken it over.

    Raises:
        EngineUnavailableError: The first login fails: somebody is still there to be told.
    """
    tunnel = load_tunnel(path)
    if tunnel is None:
        return
    mine = Tunnel(pid=os.getpid(), here=tunnel.here, there=tunnel.there, url=tunnel.url)
    write_private_file(path, json.dumps(asdict(mine)).encode())
    pause_s, first = 1.0, True
    while load_tunnel(path) == mine:
        try:
            with log_in(parse_remote(mine.url), batch=True) as host:
                host.forward(f"127.0.0.1:{mine.here}", f"127.0.0.1:{mine.there}")
                first, pause_s = False, 1.0
                _watch(host, path, mine)
        except EngineUnavailableError as error:
            if first:
                raise
            sys.stderr.write(f"{error.what}: {error.why}\n")
            sys.stderr.flush()
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)


def _watch(host: RemoteHost, path: Path, mine: Tunnel) -> None:
    while host.alive and load_tunnel(path) == mine:
        time.sleep(_LOOK_EVERY_S)


def main(arguments: list[str]) -> int:
    """Run as a process of its own: ``python -m gpuenv.ssh.tunnel FILE``."""

    def leave(_number: int, _frame: object) -> None:
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        keep_open(Path(arguments[0]))
    except GpuenvError as error:
        sys.stderr.write(f"{error.what}\n{error.why}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
