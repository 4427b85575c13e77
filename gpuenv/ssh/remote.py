"""A GPU host elsewhere, by the user's own OpenSSH: its engine's socket, its ports, its files.

One ``ssh`` logs in for the life of a command; everything else goes through it (a control socket of
our own), so nobody is asked twice. Jumps, agents, hardware keys and ``~/.ssh/config`` just work,
and the host's key is checked as the user's configuration says.
"""

from __future__ import annotations

import re
import shlex
import shutil
import socket
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import unquote, urlsplit

from gpuenv.containers.facts import Caller, FolderOwner
from gpuenv.errors import ConfigurationError, EngineUnavailableError
from gpuenv.process import (
    ProgramNotFoundError,
    ProgramTimeoutError,
    RunningProgram,
    find_program,
    run_program,
    start_program,
    stream_program,
)
from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Self

    from gpuenv.process import Completed

_CONNECT_TIMEOUT_S = 15
_LOGIN_TIMEOUT_S = 60.0
_ASK_TIMEOUT_S = 30.0
_ALIVE_INTERVAL_S = 15
_PAUSE_S = 0.02
_LAST_WORDS_S = 0.5
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:%-]*")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@\\+-]*")
_PLAIN = re.compile(r"[A-Za-z0-9_.:@\[\]+-]+")
_PATH = re.compile(r"/[A-Za-z0-9_./@+-]+")
_SOCKETS = ("/var/run/docker.sock", "/run/user/$(id -u)/docker.sock")
_MARK = "gpuenv-facts"
# A socket's path may have 107 bytes, and ssh first makes one with 17 more.
_LONGEST_FOLDER = 107 - 17 - len("/gpuenv-12345678/engine.sock")
_VANISHED = 24  # rsync: a file went away meanwhile; everything else was copied
_REFUSED = re.compile(r"open failed: (?:administratively prohibited|unknown channel type)[^\r\n]*")
_NOT_OPENED = re.compile(r"open failed: [^\r\n]*")

_LOG = "log"

SocketState = Literal["usable", "denied", "missing"]


class RemoteNameError(EngineUnavailableError):
    """The name of a remote host stands for no address."""

    slug = "remote-name"


class RemoteNetworkError(EngineUnavailableError):
    """A remote host cannot be reached over the network."""

    slug = "remote-network"


class RemoteHostKeyError(EngineUnavailableError):
    """A remote host shows a key that is not known, or another one than before."""

    slug = "remote-host-key"


class RemoteAuthenticationError(EngineUnavailableError):
    """A remote host does not let this user in."""

    slug = "remote-authentication"


class RemoteNoEngineError(EngineUnavailableError):
    """There is no container engine on a remote host."""

    slug = "remote-no-engine"


class RemotePermissionError(EngineUnavailableError):
    """The user there may not use the container engine."""

    slug = "remote-no-permission"


class RemoteForwardingError(EngineUnavailableError):
    """The SSH server of a remote host lets nothing through it."""

    slug = "remote-forwarding"


class RemoteFailedError(EngineUnavailableError):
    """``ssh`` to a remote host ended for a reason of its own."""

    slug = "remote-failed"


_KINDS: tuple[type[EngineUnavailableError], ...] = (
    RemoteNameError,
    RemoteNetworkError,
    RemoteHostKeyError,
    RemoteAuthenticationError,
    RemoteNoEngineError,
    RemotePermissionError,
    RemoteForwardingError,
)


def remote_error(slug: str) -> type[EngineUnavailableError]:
    """Return the kind of error that a slug stands for."""
    return next((kind for kind in _KINDS if kind.slug == slug), RemoteFailedError)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteAddress:
    """``ssh://[USER@]HOST[:PORT][/SOCKET]``, checked: its parts become arguments of ``ssh``.

    Attributes:
        host: An address or a name, also one that only ``~/.ssh/config`` knows.
        socket: The engine's, empty to look where engines have it.
    """

    host: str
    user: str = ""
    port: int | None = None
    socket: str = ""

    @property
    def place(self) -> str:
        """What tells environments there from those here: ``alice@gpu01:2200``."""
        return self.jump + (self.socket.replace("/", "_") if self.socket else "")

    @property
    def url(self) -> str:
        """The host as ``ssh://…``, without the engine's socket."""
        return f"ssh://{self.jump}"

    @property
    def jump(self) -> str:
        """The host as ``ProxyJump`` takes it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        user = f"{self.user}@" if self.user else ""
        return f"{user}{host}" + (f":{self.port}" if self.port else "")

    @property
    def jump_command(self) -> str | None:
        """A ``ProxyCommand`` to go by this host, ``None`` where ``ProxyJump`` can do it.

        OpenSSH hands a jump to a shell without quotes, and expands percent signs in it.
        """
        if _PLAIN.fullmatch(self.jump):
            return None
        arguments = [word.replace("%", "%%") for word in self.arguments]
        return shlex.join(("ssh", "-W", "[%h]:%p", *arguments))

    @property
    def arguments(self) -> tuple[str, ...]:
        """The host as arguments of ``ssh``."""
        user = ("-l", self.user) if self.user else ()
        port = ("-p", str(self.port)) if self.port else ()
        return (*user, *port, "--", self.host)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFacts:
    """What a remote host says of itself and of the user there.

    Attributes:
        socket: The engine's socket, the first that can be used or else the first there is.
    """

    caller: Caller
    home: str
    socket: str
    socket_state: SocketState


def parse_remote(url: str) -> RemoteAddress:
    """Read the address of a remote engine.

    Raises:
        ConfigurationError: A part of it could not be an argument of ``ssh``.
    """
    parts = urlsplit(url)
    netloc = parts.netloc
    user, sign, rest = netloc.rpartition("@")
    host = rest
    match = re.fullmatch(
        r"(?:\[(?P<six>[^\]]+)\]|(?P<name>[^:\[\]]+))(?::(?P<port>\d{1,5}))?", host
    )
    path = parts.path.rstrip("/")
    bad = ""
    if match is None or not _HOST.fullmatch(match["six"] or match["name"]):
        bad = f"{rest!r} is no name or address of a host"
    elif sign and (":" in user or not _USER.fullmatch(unquote(user))):
        bad = "what stands before the @ is no user; a password has no place in an address"
    elif path and not _PATH.fullmatch(path):
        bad = f"{path!r} is no path of a socket"
    elif match["port"] and not 0 < int(match["port"]) <= 65535:  # noqa: PLR2004 - TCP
        bad = f"{match['port']} is no port"
    if bad or match is None:
        raise ConfigurationError(
            "this is no address of a remote host", why=bad, fix="--host ssh://alice@gpu01"
        )
    return RemoteAddress(
        host=match["six"] or match["name"],
        user=unquote(user),
        port=int(match["port"]) if match["port"] else None,
        socket=path,
    )


def login_arguments(
    address: RemoteAddress, control: Path, *, batch: bool = False
) -> tuple[str, ...]:
    """Return the command line of the one ``ssh`` that logs in; pure.

    What the user's configuration wants for sessions with that host (forwards, commands, agents) is
    not wanted here; how it is reached and checked is.

    Args:
        batch: Ask for nothing, for nobody is there.
    """
    options = {
        "ControlMaster": "yes",
        "ControlPath": str(control).replace("%", "%%"),
        "ControlPersist": "no",
        "ClearAllForwardings": "yes",
        # What went wrong is told by what it says.
        "LogLevel": "INFO",
        "ForwardAgent": "no",
        "ForwardX11": "no",
        "PermitLocalCommand": "no",
        "RemoteCommand": "none",
        "RequestTTY": "no",
        **({"BatchMode": "yes"} if batch else {}),
        "ConnectTimeout": str(_CONNECT_TIMEOUT_S),
        "ServerAliveInterval": str(_ALIVE_INTERVAL_S),
        "ServerAliveCountMax": "4",
    }
    words = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
    return ("ssh", "-nNT", *words, *address.arguments)


def control_arguments(
    address: RemoteAddress, control: Path, *options: str, command: str | None = None
) -> tuple[str, ...]:
    """Return the command line of an ``ssh`` that goes through the one that logged in; pure."""
    words = (
        *("ssh", "-F", "/dev/null", "-T", "-S", str(control), "-o", "ControlMaster=no"),
        # Without that other one it must fail, and not log in by itself.
        *("-o", "ProxyCommand=false"),
        *("-o", "StreamLocalBindUnlink=yes", "-o", "StreamLocalBindMask=0177"),
        *options,
        *address.arguments,
    )
    return words if command is None else (*words, command)


_NO_NAME = re.compile(r"Could not resolve hostname|Name or service not known")
_HOST_KEY = re.compile(r"Host key verification failed")
_NOT_LET_IN = re.compile(r"Permission denied \(|Too many authentication failures")
_NOT_REACHED = re.compile(
    r"Connection (?:refused|timed out|reset|closed)|No route to host|unreachable|"
    r"Operation timed out|kex_exchange_identification|banner exchange"
)
_KNOWN_WORDS = re.compile(
    "|".join(one.pattern for one in (_NO_NAME, _HOST_KEY, _NOT_LET_IN, _NOT_REACHED))
)


def explain_failure(address: RemoteAddress, said: str) -> EngineUnavailableError:
    """Return the error that the words of ``ssh`` stand for; pure.

    Samples::

        ssh: Could not resolve hostname gpu01: Name or service not known
        ssh: connect to host gpu01 port 22: Connection refused
        Host key verification failed.
        alice@gpu01: Permission denied (publickey,password).
    """
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    last = "\n".join(line for line in lines if set(line) != {"@"})[-1500:]
    host = address.jump
    # What the host greets with comes first, and may say anything.
    said = next((line for line in reversed(lines) if _KNOWN_WORDS.search(line)), "")
    if _NO_NAME.search(said):
        return RemoteNameError(
            f"there is no host {address.host}",
            why=last,
            fix="check the name; one that only ssh knows stands in ~/.ssh/config",
        )
    if _HOST_KEY.search(said):
        changed = "IDENTIFICATION HAS CHANGED" in last
        return RemoteHostKeyError(
            f"the host key of {host} has changed"
            if changed
            else f"the host key of {host} is not known",
            why=last,
            fix=f"ask its operator for the fingerprint; then ssh-keygen -R {address.host}, and ssh "
            "to it once"
            if changed
            else f"log in once with ssh {host} and compare the fingerprint with its operator's",
        )
    if _NOT_LET_IN.search(said):
        return RemoteAuthenticationError(
            f"{host} does not let you in",
            why=last,
            fix=f"see that ssh {host} works: the key in your agent (ssh-add -l), the user's name",
        )
    if _NOT_REACHED.search(said):
        return RemoteNetworkError(
            f"{host} cannot be reached",
            why=last,
            fix="see that it is up and that no firewall or VPN is in the way: ssh -v says how far "
            "it comes",
        )
    return RemoteFailedError(
        f"ssh to {host} failed", why=last or "it said nothing", fix=f"see what ssh -v {host} says"
    )


def parse_facts(text: str, address: RemoteAddress) -> RemoteFacts:
    """Read what the question to a remote host printed.

    Raises:
        RemoteFailedError: It is not what was asked for: no ordinary shell answers there.
    """
    lines = text.partition(f"{_MARK}\n")[2].splitlines()
    try:
        uid, gid, groups, login, home, *sockets = lines
        found = [tuple(line.split(" ", 1)) for line in sockets]
        caller = Caller(
            uid=int(uid),
            gid=int(gid),
            login=login,
            groups=tuple(sorted({int(group) for group in groups.split()})),
        )
        usable = [path for state, path in found if state == "usable"]
        denied = [path for state, path in found if state == "denied"]
        first = found[0][1]
    except (ValueError, IndexError) as exc:
        raise RemoteFailedError(
            f"{address.jump} let you in, but no ordinary shell answers there",
            why=text[-500:] or "it printed nothing",
            fix=f"see what ssh {address.jump} id prints",
        ) from exc
    state: SocketState = "usable" if usable else "denied" if denied else "missing"
    return RemoteFacts(
        caller=caller,
        home=home,
        socket=(usable or denied or [first])[0],
        socket_state=state,
    )


def require_engine(facts: RemoteFacts, address: RemoteAddress) -> None:
    """Refuse a host without an engine that this user may use.

    Raises:
        RemoteNoEngineError: There is none.
        RemotePermissionError: The user there may not use it.
    """
    if facts.socket_state == "missing":
        raise RemoteNoEngineError(
            f"there is no container engine on {address.jump}",
            why=f"there is no socket {facts.socket}",
            fix="install and start Docker there; one elsewhere is named by its path: "
            f"ssh://{address.jump}/path/to/docker.sock",
        )
    if facts.socket_state == "denied":
        raise RemotePermissionError(
            f"{facts.caller.login} may not use the container engine on {address.host}",
            why=f"{facts.socket} is there and cannot be written by {facts.caller.login}",
            fix=f"on that host: sudo usermod -aG docker {facts.caller.login}, then log in again",
        )


def _question(address: RemoteAddress) -> str:
    """Return the one line that a remote host is asked; for whatever shell the user has there."""
    sockets = " ".join(f'"{path}"' for path in ((address.socket,) if address.socket else _SOCKETS))
    script = (
        f'echo {_MARK}; id -u; id -g; id -G; id -un; echo "$HOME"; for s in {sockets}; do '
        'if [ ! -S "$s" ]; then echo missing "$s"; elif [ -r "$s" ] && [ -w "$s" ]; '
        'then echo usable "$s"; else echo denied "$s"; fi; done'
    )
    return f"sh -c {shlex.quote(script)}"


class RemoteHost:
    """A host that has been logged in to; close it to log out."""

    def __init__(self, address: RemoteAddress, folder: Path, login: RunningProgram) -> None:
        self.address = address
        self.path = str(folder / "engine.sock")
        self.folder = folder
        self._control = folder / "control"
        self._login = login
        self._facts: RemoteFacts | None = None

    @property
    def facts(self) -> RemoteFacts:
        """What the host says of itself; asked once."""
        if self._facts is None:
            answer = self._ask(_question(self.address))
            self._facts = parse_facts(answer.stdout, self.address)
        return self._facts

    @property
    def shell_arguments(self) -> tuple[str, ...]:
        """How ``rsync -e`` reaches the host through the login that there is."""
        return control_arguments(self.address, self._control)[: -len(self.address.arguments)]

    def run(self, line: str) -> Completed:
        """Run a line of a POSIX shell there, whatever the user's own shell is and greets with.

        Raises:
            RemoteFailedError: The connection is lost.
        """
        done = self._ask(f"sh -c {shlex.quote(f'echo {_MARK}; {line}')}")
        return replace(done, stdout=done.stdout.partition(f"{_MARK}\n")[2])

    def stream(self, line: str, *, stdin: bytes, timeout_s: float) -> Iterator[str]:
        """Run a shell line there and yield the lines it prints as they come.

        Raises:
            ProgramFailedError: It ended with another exit code than 0.
            ProgramTimeoutError: It did not end in time.
        """
        words = control_arguments(self.address, self._control, command=line)
        return stream_program(words, timeout_s=timeout_s, stdin=stdin)

    def _ask(self, line: str, *, timeout_s: float = _ASK_TIMEOUT_S) -> Completed:
        try:
            return run_program(
                control_arguments(self.address, self._control, command=line),
                timeout_s=timeout_s,
            )
        except ProgramTimeoutError as exc:
            raise RemoteFailedError(
                f"{self.address.jump} does not answer any more", why=str(exc), fix="try again"
            ) from exc

    def forward(self, local: str, remote: str) -> None:
        """Make a socket or port there reachable here.

        Args:
            local: A path, or ``ADDRESS:PORT``.
            remote: Likewise, as that host sees it.

        Raises:
            RemoteFailedError: It could not be made.
        """
        done = run_program(
            control_arguments(
                self.address, self._control, "-O", "forward", "-L", f"{local}:{remote}"
            ),
            timeout_s=_ASK_TIMEOUT_S,
        )
        if done.exit_code:
            raise RemoteFailedError(
                f"{remote} on {self.address.jump} cannot be forwarded",
                why=done.stderr.strip(),
                fix="its sshd must allow it: AllowStreamLocalForwarding, AllowTcpForwarding",
            )

    def connect(self, host: str, port: int) -> socket.socket:
        """Open a connection to a port of that host, by way of it.

        Raises:
            OSError: Nobody listens there.
            RemoteForwardingError: The last one was refused for good.
        """
        self.require_forwarding()
        path = self.socket_of(port)
        if not path.exists():
            self.forward(str(path), f"{host}:{port}")
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(_ASK_TIMEOUT_S)
            connection.connect(str(path))
        except BaseException:
            connection.close()
            raise
        return connection

    def socket_of(self, port: int) -> Path:
        """Return the socket here that leads to a port there, once it was connected to."""
        return self.folder / f"{port}.sock"

    def folder_owner(self, path: str) -> FolderOwner | None:
        """Return whose a folder there is, ``None`` if there is no such folder."""
        quoted = shlex.quote(path)
        done = self.run(f"test -d {quoted} && stat -c '%u %g' {quoted}")
        numbers = done.stdout.split()
        if done.exit_code or len(numbers) != 2 or not all(n.isdecimal() for n in numbers):  # noqa: PLR2004
            return None
        return FolderOwner(uid=int(numbers[0]), gid=int(numbers[1]))

    def has(self, path: str) -> bool:
        """Say whether there is such a file or folder there."""
        return self.run(f"test -e {shlex.quote(path)}").exit_code == 0

    @property
    def said(self) -> str:
        """What ``ssh`` has said since the login."""
        try:
            return (self.folder / _LOG).read_text("utf-8", "replace")
        except OSError:
            return ""

    def require_forwarding(self) -> None:
        """Refuse to go on where the host's sshd has refused to open a way through it.

        Raises:
            RemoteForwardingError: It has.
        """
        refused = _REFUSED.findall(self.said)
        if refused:
            raise forwarding_error(self.address, f"it said: {refused[-1]}")

    def explain(self, error: EngineUnavailableError) -> EngineUnavailableError:
        """Return why the engine's socket is of no use, as far as it is a matter of the way there.

        An sshd that forwards no sockets and an engine that does not run make the same noise, so
        the host is asked who listens.
        """
        if self.is_lost():
            return self.lost()
        failed = _NOT_OPENED.findall(self.said)
        if not failed:
            return error
        path = self.facts.socket
        listening = self.run(f"grep -qs ' 00010000 .*/{Path(path).name}$' /proc/net/unix")
        if listening.exit_code == 0 or _REFUSED.search(self.said):
            return forwarding_error(self.address, f"{path} is there, and: {failed[-1]}")
        return RemoteNoEngineError(
            f"the container engine on {self.address.jump} does not answer",
            why=f"{path} is there, and: {failed[-1]}",
            fix="start it there: sudo systemctl start docker; if it runs, the host's sshd does not "
            "let its socket through: AllowTcpForwarding, AllowStreamLocalForwarding",
        )

    def lost(self) -> EngineUnavailableError:
        """Return the error that stands for a connection that has ended."""
        return RemoteFailedError(
            f"the connection to {self.address.jump} is lost",
            why=self.said.strip()[-500:] or "its ssh has ended",
            fix="what runs there goes on: gpuenv ps shows it; then run the command again",
        )

    @property
    def alive(self) -> bool:
        """Whether the connection still stands."""
        return self._login.exit_code() is None

    def is_lost(self) -> bool:
        """Say whether an error now may be that of a connection which is about to end."""
        deadline = time.monotonic() + _LAST_WORDS_S
        while self.alive and time.monotonic() < deadline:
            time.sleep(_PAUSE_S)
        return not self.alive

    def close(self) -> None:
        """Log out."""
        self._login.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def forwarding_error(address: RemoteAddress, why: str) -> RemoteForwardingError:
    """Return the error for an SSH server that lets no ports and sockets through; pure."""
    return RemoteForwardingError(
        f"the SSH server of {address.jump} forwards nothing",
        why=why,
        fix="its sshd_config must say AllowTcpForwarding yes and AllowStreamLocalForwarding yes "
        "for you (or local), and no PermitOpen or DisableForwarding in their way",
    )


def open_remote(url: str) -> RemoteHost:
    """Log in to a host, find its engine and make its socket reachable here.

    Raises:
        EngineUnavailableError: In one of its kinds: the name, the network, the host key, the login,
            no engine there, no permission there.
    """
    host = log_in(parse_remote(url))
    try:
        require_engine(host.facts, host.address)
        host.forward(host.path, host.facts.socket)
    except BaseException:
        host.close()
        raise
    return host


def log_in(address: RemoteAddress, *, batch: bool = False) -> RemoteHost:
    """Log in to a host; a passphrase is asked for in the terminal.

    Args:
        batch: Ask for nothing, for nobody is there.

    Raises:
        EngineUnavailableError: In one of its kinds.
    """
    if find_program("ssh") is None:
        raise RemoteFailedError(
            "there is no ssh program on this machine",
            why="remote hosts are reached by the user's own OpenSSH",
            fix="install the OpenSSH client: apt-get install openssh-client",
        )
    parent = tempfile.gettempdir()
    folder = Path(
        tempfile.mkdtemp(prefix="gpuenv-", dir="/tmp" if len(parent) > _LONGEST_FOLDER else parent)  # noqa: S108 - private to us: 0700
    )
    log = folder / _LOG
    try:
        login = start_program(login_arguments(address, folder / "control", batch=batch), stderr=log)
        try:
            _wait_for_login(address, folder / "control", login, log)
        except BaseException:
            login.stop()
            raise
    except ProgramNotFoundError as exc:
        shutil.rmtree(folder, ignore_errors=True)
        raise RemoteFailedError("ssh cannot be started", why=str(exc)) from exc
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return RemoteHost(address, folder, login)


def _wait_for_login(
    address: RemoteAddress, control: Path, login: RunningProgram, log: Path
) -> None:
    deadline = time.monotonic() + _LOGIN_TIMEOUT_S
    somebody_may_type = sys.stdin is not None and sys.stdin.isatty()
    while not control.exists():
        if login.exit_code() is not None:
            raise explain_failure(address, log.read_text("utf-8", "replace"))
        if time.monotonic() > deadline and not somebody_may_type:
            raise explain_failure(
                address, f"Connection timed out\n{log.read_text('utf-8', 'replace')}"
            )
        time.sleep(_PAUSE_S)


def sync_arguments(
    host: RemoteHost, source: Path, target: str, *, back: bool = False
) -> tuple[str, ...]:
    """Return the command line that copies a folder there, or what is newer back; never deleting."""
    here = f"{source}/"
    there = f"{host.address.host}:{target}/"
    if ":" in host.address.host:
        there = f"[{host.address.host}]:{target}/"
    words = ("rsync", "-a", "--update", "--protect-args", "-e", shlex.join(host.shell_arguments))
    return (*words, "--", *((there, here) if back else (here, there)))


def synchronise(host: RemoteHost, source: Path, target: str, *, back: bool = False) -> None:
    """Copy what is newer of a folder to a host, or back; nothing is deleted on either side.

    Raises:
        RemoteFailedError: It could not be copied.
    """
    if not back:
        made = host.run(f"mkdir -p {shlex.quote(target)}")
        if made.exit_code:
            raise RemoteFailedError(
                f"cannot make {target} on {host.address.jump}", why=made.stderr.strip()
            )
    try:
        done = run_program(sync_arguments(host, source, target, back=back), timeout_s=24 * 3600.0)
    except ProgramNotFoundError as exc:
        raise RemoteFailedError(
            "there is no rsync program on this machine",
            fix="install rsync, or give a folder of the host: --remote-workspace PATH",
        ) from exc
    if done.exit_code not in {0, _VANISHED}:
        raise RemoteFailedError(
            f"the workspace could not be copied {'from' if back else 'to'} {host.address.jump}",
            why=done.stderr.strip()[-1500:],
            fix=_rsync_fix(done.stderr, host),
        )


def _rsync_fix(said: str, host: RemoteHost) -> str:
    if "is your shell clean" in said or "protocol incompatibility" in said:
        return (
            f"the shell of {host.facts.caller.login} there prints text before every command: put "
            "[[ $- == *i* ]] || return at the top of its ~/.bashrc"
        )
    if "not found" in said:
        return f"install rsync on {host.address.jump}, or give a folder of it: --remote-workspace"
    return "see what rsync says; it needs room there and files that you may read here"
