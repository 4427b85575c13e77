"""Ask an SSH server who it is, before anything is sent to it."""

from __future__ import annotations

import base64
import socket
from typing import TYPE_CHECKING

from gpuenv.ssh.errors import HostKeyChangedError, NoSharedExchangeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuenv.ssh.client import Target
    from gpuenv.ssh.keys import PublicKey

_TIMEOUT_S = 10.0
_SSH_TIMEOUT_S = 30.0
_BANNER = b"SSH-2.0-"


def probe_banner(connect: Callable[[], socket.socket]) -> str:
    """Return what is missing for an SSH server to answer; who it is stays open.

    Args:
        connect: Opens a connection to it.
    """
    try:
        with connect() as connection:
            heard = b""
            while len(heard) < len(_BANNER) and (piece := connection.recv(len(_BANNER))):
                heard += piece
    except OSError as error:
        return str(error)
    return "" if heard.startswith(_BANNER) else f"no SSH server answers: it said {heard!r}"


def probe_host_key(connect: Callable[[], socket.socket], expected: PublicKey) -> str:
    """Exchange keys with a server; return what is missing, nothing when it is who it should be.

    No user is named and no key of ours is shown.

    Args:
        connect: Opens a connection to it.
        expected: The one key it may have.

    Raises:
        HostKeyChangedError: It proved to hold another key.
        NoSharedExchangeError: It answers, and paramiko cannot exchange keys with it.
    """
    import logging

    import paramiko

    # Its own traceback of a server that is not up yet is of no use to anybody.
    logging.getLogger("paramiko").setLevel(logging.CRITICAL)
    try:
        connection = connect()
    except OSError as error:
        return str(error)
    with connection:
        transport = None
        try:
            transport = paramiko.Transport(connection)
            transport.start_client(timeout=_TIMEOUT_S)
            shown = transport.get_remote_server_key()
        except paramiko.ssh_exception.IncompatiblePeer as exc:
            raise NoSharedExchangeError.between("gpuenv's own SSH library", str(exc)) from exc
        except (paramiko.SSHException, OSError, EOFError) as error:
            return f"no SSH server answers: {error}"
        finally:
            if transport is not None:
                transport.close()
    blob = base64.b64encode(shown.asbytes()).decode()
    if (shown.get_name(), blob) != (expected.type, expected.blob):
        raise _stranger(
            f"it shows the host key {_fingerprint(shown.asbytes())}, and this environment's is "
            f"{expected.fingerprint}"
        )
    return ""


def prove_by_ssh(target: Target) -> str:
    """Let ``ssh`` check who a server is, without logging in; return what is missing.

    Raises:
        HostKeyChangedError: It holds another key than is pinned.
        NoSharedExchangeError: ``ssh`` cannot exchange keys with it, or there is no ``ssh``.
    """
    from gpuenv.process import ProgramNotFoundError, ProgramTimeoutError, run_program
    from gpuenv.ssh.client import ssh_arguments

    arguments = ssh_arguments(target, command="true")
    # The host's turn is before the user's, whose is refused here.
    nobody = ("PreferredAuthentications=none", "BatchMode=yes", "ControlPath=none")
    options = (word for setting in nobody for word in ("-o", setting))
    try:
        done = run_program((*arguments[:1], *options, *arguments[1:]), timeout_s=_SSH_TIMEOUT_S)
    except ProgramNotFoundError as exc:
        raise NoSharedExchangeError.between("gpuenv's own SSH library", "no ssh program") from exc
    except ProgramTimeoutError as exc:
        return str(exc)
    said = done.stderr.strip()
    if "no matching key exchange method" in said:
        raise NoSharedExchangeError.between("your ssh", said.splitlines()[-1])
    if "Host key verification failed" in said:
        raise _stranger("it shows another host key than the one that is pinned")
    return "" if "Permission denied" in said else said or "ssh was not told that nobody may log in"


def _stranger(why: str) -> HostKeyChangedError:
    return HostKeyChangedError(
        "the SSH server that answers is not this environment",
        why=why,
        fix="somebody may be listening in its place: nothing was sent. gpuenv ps shows where it "
        "should be; gpuenv ssh --replace makes it anew",
    )


def connect_tcp(host: str, port: int) -> socket.socket:
    """Open a connection."""
    return socket.create_connection((host, port), timeout=_TIMEOUT_S)


def _fingerprint(blob: bytes) -> str:
    from hashlib import sha256

    return "SHA256:" + base64.b64encode(sha256(blob).digest()).decode().rstrip("=")
