"""A session by paramiko, for machines without an ``ssh`` program.

It does what a shell and a command need and no more: no forwarding of ports, agents or windows.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
import termios
import tty as tty_mode
from typing import TYPE_CHECKING, Any

from gpuenv.containers.users import USER
from gpuenv.ssh.errors import HostKeyChangedError, NoSharedExchangeError, SshFailedError
from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator

    import paramiko

    from gpuenv.ssh.client import Target
    from gpuenv.ssh.keys import PublicKey

_TIMEOUT_S = 15.0
_ALIVE_INTERVAL_S = 15
_CHUNK = 65536


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """The descriptors that a session is connected to."""

    stdin: int = 0
    stdout: int = 1
    stderr: int = 2


def run_session(
    target: Target,
    host_key: PublicKey,
    command: str | None,
    *,
    tty: bool,
    streams: Streams | None = None,
) -> int:
    """Log in, run a command or a login shell with our streams, and return its exit code.

    Raises:
        HostKeyChangedError: Something else answers.
        SshFailedError: It cannot be reached, or lets nobody in.
    """
    import paramiko

    with contextlib.closing(paramiko.SSHClient()) as client:
        # No policy but refusal, and the one key that it may have known before it is asked.
        client.set_missing_host_key_policy(paramiko.RejectPolicy())
        known = paramiko.hostkeys.HostKeyEntry.from_line(
            f"[{target.host}]:{target.port} {host_key.type} {host_key.blob}"
        )
        if known is not None and known.key is not None:
            client.get_host_keys().add(f"[{target.host}]:{target.port}", host_key.type, known.key)
        identities: Any = [str(path) for path in target.identities] or None
        try:
            client.connect(
                target.host,
                port=target.port,
                username=USER,
                key_filename=identities,
                allow_agent=not target.only_these,
                look_for_keys=False,
                timeout=_TIMEOUT_S,
                banner_timeout=_TIMEOUT_S,
                auth_timeout=_TIMEOUT_S,
            )
        except paramiko.BadHostKeyException as exc:
            raise HostKeyChangedError(
                f"what answers for {target.alias} is not this environment",
                why=f"its host key is not {host_key.fingerprint}",
                fix="somebody may be listening in its place: nothing was sent",
            ) from exc
        except paramiko.ssh_exception.IncompatiblePeer as exc:
            raise NoSharedExchangeError.between("gpuenv's own SSH library", str(exc)) from exc
        except (paramiko.SSHException, OSError) as exc:
            raise SshFailedError(
                f"cannot log in to {target.alias}",
                why=str(exc) or type(exc).__name__,
                fix="gpuenv ssh NAME --list-keys shows who may; a key with a passphrase needs an "
                "agent here",
            ) from exc
        transport = client.get_transport()
        if transport is None:
            raise SshFailedError(f"{target.alias} closed the connection")
        transport.set_keepalive(_ALIVE_INTERVAL_S)
        with contextlib.closing(transport.open_session(timeout=_TIMEOUT_S)) as channel:
            if tty:
                size = shutil.get_terminal_size()
                channel.get_pty(
                    os.environ.get("TERM", "xterm"), width=size.columns, height=size.lines
                )
            if command is None:
                channel.invoke_shell()
            else:
                channel.exec_command(command)
            _carry(channel, streams or Streams(), tty=tty)
            return channel.recv_exit_status()


def _carry(channel: paramiko.Channel, streams: Streams, *, tty: bool) -> None:
    """Carry input and output until the other side has said everything."""
    sources: list[Any] = [channel, streams.stdin]
    with _raw_terminal(streams.stdin, wanted=tty), _following_window(channel, wanted=tty):
        while True:
            ready, _, _ = select.select(sources, [], [])
            if streams.stdin in ready:
                data = os.read(streams.stdin, _CHUNK)
                if data:
                    channel.sendall(data)
                else:
                    channel.shutdown_write()
                    sources.remove(streams.stdin)
            if channel not in ready:
                continue
            ended = channel.closed or channel.eof_received
            while channel.recv_ready():
                _write(streams.stdout, channel.recv(_CHUNK))
            while channel.recv_stderr_ready():
                _write(streams.stderr, channel.recv_stderr(_CHUNK))
            if ended and not channel.recv_ready() and not channel.recv_stderr_ready():
                return


def _write(target: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(target, left) :]


@contextlib.contextmanager
def _raw_terminal(stdin: int, *, wanted: bool) -> Iterator[None]:
    """Hand the keys over as they are, Ctrl-C included, and give the terminal back."""
    if not wanted or not os.isatty(stdin):
        yield
        return
    sys.stdout.flush()
    before = termios.tcgetattr(stdin)
    tty_mode.setraw(stdin)
    try:
        yield
    finally:
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)


@contextlib.contextmanager
def _following_window(channel: paramiko.Channel, *, wanted: bool) -> Iterator[None]:
    def resize(_number: int, _frame: object) -> None:
        size = shutil.get_terminal_size()
        channel.resize_pty(width=size.columns, height=size.lines)

    if not wanted:
        yield
        return
    before = signal.signal(signal.SIGWINCH, resize)
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)
