"""A port of a remote host at a port of this one, for as long as its environment is there.

A command ends, but the browser that it opened does not: so a small process of ours stays, logs in
again when the connection is lost, and ends when the environment's private folder is gone or it is
asked to. It never asks for a passphrase, since nobody may be there to answer.

It listens itself and hands on what comes, so that the port stays its own while there is no
connection: nobody else can take it and be shown the token of a browser that tries again, and the
browser is told what is wrong.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from dataclasses import asdict, field, replace
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Literal

from gpuenv.errors import EngineUnavailableError, GpuenvError
from gpuenv.process import reap, start_daemon
from gpuenv.ssh.remote import (
    RemoteAuthenticationError,
    RemoteFailedError,
    log_in,
    parse_remote,
    remote_error,
)
from gpuenv.state import write_private_file
from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuenv.containers.files import EnvironmentFiles
    from gpuenv.ssh.remote import RemoteHost

State = Literal["opening", "open", "lost"]

_PATIENCE_S = 90.0
_END_WITHIN_S = 10.0
_PAUSE_S = 0.05
_LOOK_EVERY_S = 1.0
_LONGEST_PAUSE_S = 30.0
_PORTS = 64
_CHUNK = 65536
_LONGEST_HEAD = 65536
_ASKED_WITHIN_S = 2.0
_TLS_HANDSHAKE = b"\x16"
_MODULE = "gpuenv.ssh.tunnel"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Why a tunnel is not open; the parts of an error."""

    slug: str = ""
    what: str = ""
    why: str = ""
    fix: str = ""

    @classmethod
    def of(cls, error: GpuenvError) -> Trouble:
        """Return an error as what can be written down."""
        return cls(slug=error.slug, what=error.what, why=error.why, fix=error.fix)

    def error(self) -> EngineUnavailableError:
        """Return the error again, of its own kind."""
        return remote_error(self.slug)(self.what, why=self.why, fix=self.fix)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tunnel:
    """One port there at one port here.

    Attributes:
        pid: The process that keeps it, 0 before there is one.
        here: The port on this host's loopback.
        there: The port on that host's loopback.
        url: The host, as ``ssh://…``.
        trouble: Why it is lost.
    """

    pid: int
    here: int
    there: int
    url: str
    state: State = "opening"
    trouble: Trouble = field(default_factory=Trouble)


def tunnel_path(files: EnvironmentFiles) -> Path:
    """Return where the tunnel of an environment is written down."""
    return files.folder / "tunnel.json"


def load_tunnel(path: Path) -> Tunnel | None:
    """Read a tunnel back, ``None`` if there is none."""
    try:
        data = json.loads(path.read_bytes())
        trouble = data.get("trouble") or {}
        known: dict[str, State] = {"open": "open", "lost": "lost"}
        return Tunnel(
            pid=int(data["pid"]), here=int(data["here"]), there=int(data["there"]),
            url=str(data["url"]),
            state=known.get(str(data.get("state")), "opening"),
            trouble=Trouble(**{name: str(text) for name, text in trouble.items()}),
        )  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
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

    The same one as last time where it is free, so that a browser's address stays right. One that
    has lost its way is asked to end, and another tries at once.

    Raises:
        EngineUnavailableError: The host cannot be logged in to without somebody to type, or does
            not let the port through.
    """
    path = tunnel_path(files)
    known = load_tunnel(path)
    if known is not None and is_kept(path, known):
        if (known.there, known.url, known.state) == (there, url, "open"):
            return known.here
        end_tunnel(files)
    wanted = there if known is None else known.here
    files.write(path, _as_text(Tunnel(pid=0, here=wanted, there=there, url=url)))
    log = path.with_name("tunnel.log")
    write_private_file(log, b"")
    pid = start_daemon((sys.executable, "-m", _MODULE, str(path)), log=log, env=environ)
    return _wait_until_open(path, pid, log).here


def open_tunnel(files: EnvironmentFiles) -> Tunnel | None:
    """Return the tunnel of an environment if something keeps it, open or not."""
    path = tunnel_path(files)
    known = load_tunnel(path)
    return known if known is not None and is_kept(path, known) else None


def end_tunnel(files: EnvironmentFiles) -> None:
    """End the process that keeps the tunnel of an environment; which ports it had stays known."""
    path = tunnel_path(files)
    known = load_tunnel(path)
    if known is None or not is_kept(path, known):
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.kill(known.pid, number)
        deadline = time.monotonic() + _END_WITHIN_S
        while is_kept(path, known) and time.monotonic() < deadline:
            time.sleep(_PAUSE_S)


def _as_text(tunnel: Tunnel) -> str:
    return json.dumps(asdict(tunnel))


def _wait_until_open(path: Path, pid: int, log: Path) -> Tunnel:
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        known = load_tunnel(path)
        if known is not None and known.pid == pid:
            if known.state == "open":
                return known
            if known.state == "lost":
                raise _unattended(known.trouble)
        if reap(pid) or time.monotonic() > deadline:
            said = log.read_text("utf-8", "replace") if log.exists() else ""
            raise RemoteFailedError(
                "the tunnel to the remote host does not come up",
                why=said.strip()[-1500:] or "it said nothing",
                fix="try again; see that ssh to it works without a question",
            )
        time.sleep(_PAUSE_S)


def _unattended(trouble: Trouble) -> EngineUnavailableError:
    """Return the error of a login that nobody could answer a question of."""
    error = trouble.error()
    if not isinstance(error, RemoteAuthenticationError):
        return error
    return RemoteAuthenticationError(
        f"the tunnel cannot log in by itself: {error.what}",
        why=error.why,
        fix="it stays when this command has ended, so it must log in without asking: put your key "
        "into an agent (ssh-add)",
    )


# --- the process that stays ----------------------------------------------------------------------


class _Door:
    """Where connections go now: a socket that leads there, or nowhere and why."""

    def __init__(self) -> None:
        self.leads_to: str | None = None
        self.trouble = Trouble(what="the tunnel is not open yet")

    def serve(self, listener: socket.socket) -> None:
        """Take connections until the process ends."""
        while True:
            try:
                client, _ = listener.accept()
            except OSError:  # of that one client, or for want of descriptors
                time.sleep(_PAUSE_S)
                continue
            Thread(target=self._carry, args=(client,), daemon=True).start()

    def _carry(self, client: socket.socket) -> None:
        with client:
            path = self.leads_to
            # What a kernel says comes in small pieces, which are not to wait for one another.
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            with server:
                try:
                    if path is None:
                        raise FileNotFoundError
                    server.connect(path)
                except OSError:
                    apologise(client, self.trouble)
                    return
                back = Thread(target=_pump, args=(server, client), daemon=True)
                back.start()
                _pump(client, server)
                back.join()


def _pump(source: socket.socket, target: socket.socket) -> None:
    """Hand on what comes until its end, which is handed on as well."""
    try:
        while data := source.recv(_CHUNK):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        for one in (source, target):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


def apologise(client: socket.socket, trouble: Trouble) -> None:
    """Tell a browser why there is nothing behind this port; one that speaks TLS is hung up on."""
    head = b""
    try:
        client.settimeout(_ASKED_WITHIN_S)
        while b"\r\n\r\n" not in head and len(head) < _LONGEST_HEAD:
            data = client.recv(_CHUNK)
            if not data or (head + data).startswith(_TLS_HANDSHAKE):
                return
            head += data
        client.sendall(render_page(trouble))
        client.shutdown(socket.SHUT_WR)
        while client.recv(_CHUNK):  # what it still sends, or it would never see the page
            pass
    except OSError:
        return


def render_page(trouble: Trouble) -> bytes:
    """Return the whole answer; pure."""
    from html import escape

    body = (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta http-equiv="refresh" content="5"><title>gpuenv: no connection</title>'
        "<h1>No connection to the remote host</h1>"
        f"<p>{escape(trouble.what)}</p><pre>{escape(trouble.why)}</pre><p>{escape(trouble.fix)}</p>"
        "<p>gpuenv tries again by itself, and so does this page. What runs there goes on.</p>"
    ).encode()
    head = (
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/html; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nRetry-After: 5\r\nCache-Control: no-store\r\n"
        "Content-Security-Policy: default-src 'none'\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


def listen_near(wanted: int) -> socket.socket:
    """Return a socket that listens on the loopback, at a port or the next free one.

    Raises:
        RemoteFailedError: None of many is free.
    """
    for port in range(wanted, min(wanted + _PORTS, 65536)):
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
            listener.listen(128)
        except OSError:
            listener.close()
            continue
        return listener
    raise RemoteFailedError(
        f"no port from {wanted} to {wanted + _PORTS - 1} is free on this machine",
        fix="end what has them",
    )


class _Note:
    """What is written down of the tunnel, for as long as this process is the one that keeps it."""

    def __init__(self, path: Path, tunnel: Tunnel) -> None:
        self.path, self.tunnel = path, tunnel
        write_private_file(path, _as_text(tunnel).encode())

    @property
    def stands(self) -> bool:
        """Whether it has not been removed, nor taken over by another process."""
        written = load_tunnel(self.path)
        return written is not None and written.pid == self.tunnel.pid

    def say(self, state: State, trouble: Trouble | None = None) -> None:
        """Write down how the tunnel is."""
        self.tunnel = replace(self.tunnel, state=state, trouble=trouble or Trouble())
        if self.stands:
            write_private_file(self.path, _as_text(self.tunnel).encode())


def keep_open(path: Path) -> None:
    """Keep a tunnel open until its file is gone or another process has taken it over.

    Raises:
        EngineUnavailableError: The first login fails: somebody is still there to be told.
    """
    wanted = load_tunnel(path)
    if wanted is None:
        return
    with listen_near(wanted.here) as listener:
        here = int(listener.getsockname()[1])
        note = _Note(path, replace(wanted, pid=os.getpid(), here=here))
        door = _Door()
        Thread(target=door.serve, args=(listener,), daemon=True).start()
        pause_s, first = 1.0, True
        while note.stands:
            try:
                with log_in(parse_remote(wanted.url), batch=True) as host:
                    _open(host, wanted.there, door)
                    note.say("open")
                    first, pause_s = False, 1.0
                    _watch(host, note)
                    raise host.lost()
            except EngineUnavailableError as error:
                door.leads_to, door.trouble = None, Trouble.of(error)
                note.say("lost", door.trouble)
                if first:
                    raise
                sys.stderr.write(f"{error.what}: {error.why}\n")
                sys.stderr.flush()
            if note.stands:
                time.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)


def _open(host: RemoteHost, port: int, door: _Door) -> None:
    """Lead the door to a port there.

    Raises:
        RemoteForwardingError: The host lets no ports through.
    """
    host.connect("127.0.0.1", port).close()
    # Its answer comes behind that of the connection, which may be a refusal.
    host.run(":")
    host.require_forwarding()
    door.leads_to = str(host.socket_of(port))


def _watch(host: RemoteHost, note: _Note) -> None:
    while host.alive and note.stands:
        time.sleep(_LOOK_EVERY_S)
    if not note.stands:
        raise SystemExit(0)


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
