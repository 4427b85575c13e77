"""How the system's ``ssh`` reaches an environment; pure.

The same settings go into two places: ``-o`` options of a command, which win over whatever the
user's configuration says, and a block of ``ssh_config`` for everything else that speaks SSH.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from gpuenv.containers.ports import parse_port
from gpuenv.containers.users import USER
from gpuenv.errors import UsageError
from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_ALIVE_INTERVAL_S = 15
_ALIVE_COUNT = 8
# A socket's path ends at 104 characters on macOS, and ssh adds 17 to it for a while.
_MAX_CONTROL_PATH = 86
_LAST_PORT = 65535
# A shell puts the last command in its own place, and of a process that a signal ends SSH reports no
# code: 255 then looks like a lost connection. A shell with something left to do waits: 128 + N.
_OWN_CODE = "trap : EXIT; "


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """An environment as ``ssh`` has to know it.

    Attributes:
        alias: What the user calls it by, and what its host key is filed under.
        host: The address of its port, as the last hop sees it.
        jump: ``[USER@]HOST[:PORT]`` of the host that its engine runs on, ``None`` for this one.
        jump_command: What reaches it instead, for a name that ``ProxyJump`` would not pass on
            whole: it goes through a shell unquoted.
        identities: Files of keys to offer, beside the agent's.
        only_these: Offer those keys alone.
        forward_agent: The user's agent can be used from inside.
        forward_x11: Windows from inside open here.
    """

    alias: str
    host: str
    port: int
    known_hosts: Path
    jump: str | None = None
    jump_command: str | None = None
    identities: tuple[Path, ...] = ()
    only_these: bool = False
    forward_agent: bool = False
    forward_x11: bool = False


def alias_of(name: str, place: str = "") -> str:
    """Return what an environment is called in SSH: ``gpuenv-train``, elsewhere with its host."""
    return f"gpuenv-{name}" + (f".{place}" if place else "")


def settings(target: Target) -> tuple[tuple[str, str], ...]:
    """Return the settings of ``ssh_config``, each checked key first.

    Host keys are checked whatever the user's own configuration says for other hosts.
    """
    lines = [
        ("HostName", target.host),
        ("Port", str(target.port)),
        ("User", USER),
        ("HostKeyAlias", target.alias),
        ("UserKnownHostsFile", _path(target.known_hosts)),
        ("GlobalKnownHostsFile", "/dev/null"),
        ("StrictHostKeyChecking", "yes"),
        ("NoHostAuthenticationForLocalhost", "no"),
        ("VerifyHostKeyDNS", "no"),
        ("CheckHostIP", "no"),
        ("UpdateHostKeys", "no"),
        ("HostKeyAlgorithms", "ssh-ed25519"),
        # The server listens on a loopback, and on another host's it is reached inside that host's
        # own connection: nothing is there to record for later, and this takes half the time.
        ("KexAlgorithms", "^curve25519-sha256"),
        # A list of the user's for every host may have nothing in common with this server's; with
        # this cipher there is no message code to agree on.
        ("Ciphers", "^aes128-gcm@openssh.com"),
        ("PubkeyAuthentication", "yes"),
        ("PreferredAuthentications", "publickey"),
        ("PasswordAuthentication", "no"),
        ("KbdInteractiveAuthentication", "no"),
        *(("IdentityFile", _path(path)) for path in target.identities),
        *([("IdentitiesOnly", "yes")] if target.only_these else []),
        ("ServerAliveInterval", str(_ALIVE_INTERVAL_S)),
        ("ServerAliveCountMax", str(_ALIVE_COUNT)),
        ("ForwardAgent", "yes" if target.forward_agent else "no"),
        ("ForwardX11", "yes" if target.forward_x11 else "no"),
        ("ProxyCommand", target.jump_command)
        if target.jump_command is not None
        # ProxyJump none would leave a ProxyCommand of the user's for every host in force.
        else (("ProxyJump", target.jump) if target.jump else ("ProxyCommand", "none")),
        # One of the user's for every host runs in place of the shell, and forbids a command.
        ("RemoteCommand", "none"),
        ("ControlPath", _control_path(target)),
    ]
    return tuple(lines)


def render_block(target: Target) -> str:
    """Return the block of ``ssh_config`` for an environment."""
    lines = [f"Host {target.alias}", *(f"    {key} {value}" for key, value in settings(target))]
    return "\n".join(lines) + "\n"


def ssh_arguments(
    target: Target,
    *,
    command: str | None = None,
    tty: bool = False,
    forwards: tuple[tuple[int, int], ...] = (),
    quiet: bool = False,
) -> tuple[str, ...]:
    """Return the whole command line of ``ssh``.

    Args:
        command: A line for the shell inside; ``None`` opens a login shell.
        tty: A terminal inside, also for a command.
        forwards: Port here → port inside, both on the loopback.
    """
    words = ["ssh"]
    for key, value in settings(target):
        words += ["-o", f"{key}={value}"]
    for here, inside in forwards:
        words += ["-L", f"127.0.0.1:{here}:127.0.0.1:{inside}"]
    if forwards:
        words += ["-o", "ExitOnForwardFailure=yes"]
    if quiet:
        words.append("-q")
    if tty:
        words.append("-t")
        if command is not None:
            # "Connection to 127.0.0.1 closed." is of a session, not of a command; errors stay.
            words += ["-o", "LogLevel=ERROR"]
    words += ["--", target.alias]
    if command is not None:
        words.append(command)
    return tuple(words)


def short_arguments(target: Target, *, config: Path, installed: bool) -> tuple[str, ...]:
    """Return the shortest command line of ``ssh`` that leads to the same shell.

    Args:
        config: The file that holds the environment's block alone.
        installed: The user's own configuration includes it.
    """
    if installed:
        return ("ssh", target.alias)
    if target.jump is None and target.jump_command is None and target.identities:
        return ("ssh", "-F", str(config), target.alias)
    # With -F the user's own file is not read: it may say how the other host or an agent is reached.
    return ssh_arguments(target)


def command_line(words: tuple[str, ...]) -> str:
    """Return the line for the shell inside: one word is a line already, several are quoted."""
    return words[0] if len(words) == 1 else shlex.join(words)


def session_line(line: str | None, *, workdir: str, tmux: str | None = None) -> str | None:
    """Return what is run inside: ``None`` leaves it to a login shell, which knows where to go.

    Args:
        line: For the shell.
        workdir: Where it begins, empty for the home.
        tmux: The session of tmux to attach to or to make. A terminal that the image knows nothing
            of is taken for the one that most resemble.
    """
    go = f"cd {shlex.quote(workdir)} || exit; " if workdir else ""
    if tmux is None:
        return None if line is None else f"{_OWN_CODE}{go}{line}"
    known = 'infocmp "$TERM" >/dev/null 2>&1 || export TERM=xterm-256color; '
    inside = "" if line is None else f" {shlex.quote(line)}"
    return f"{go}{known}exec tmux new-session -A -s {shlex.quote(tmux)}{inside}"


def parse_forward(text: str) -> tuple[int, int]:
    """Read ``--forward [HERE:]PORT``: the port here and the one inside, the same by default.

    Raises:
        ConfigurationError: It is no port.
    """
    here, sign, inside = text.partition(":")
    first = parse_port(here, flag="--forward")
    return first, parse_port(inside, flag="--forward") if sign else first


def require_forwards(
    forwards: tuple[tuple[int, int], ...], *, port_free: Callable[[int], bool]
) -> tuple[tuple[int, int], ...]:
    """Return what can be forwarded, each once: ``ssh`` would end with the kernel's words for it.

    Args:
        port_free: Whether nobody listens on a port here.

    Raises:
        UsageError: A port here is taken, or asked for twice.
    """
    once = tuple(dict.fromkeys(forwards))
    seen: dict[int, int] = {}
    for here, inside in once:
        if here in seen:
            raise UsageError(
                f"--forward asks for port {here} here twice",
                why=f"it cannot lead to {seen[here]} and to {inside} inside",
                fix=f"give one another port here: --forward {_another(here)}:{inside}",
            )
        seen[here] = inside
        if not port_free(here):
            raise UsageError(
                f"--forward cannot have port {here} here",
                why="another program listens on it",
                fix=f"end that program, or take another port: --forward {_another(here)}:{inside}",
            )
    return once


def _another(port: int) -> int:
    """Return a port that reminds of one and that nobody needs a right for."""
    return port + 10000 if port + 10000 <= _LAST_PORT else port - 10000


def _control_path(target: Target) -> str:
    """Return where a shared connection stands, should the user's configuration ask for sharing.

    The usual ``%r@%h:%p`` is the same for environments of several hosts, all of them dev@127.0.0.1
    as their last hop sees them: one's connection would carry the session meant for another.
    """
    path = target.known_hosts.parent / f"{target.alias}.mux"
    return _path(path) if len(str(path)) <= _MAX_CONTROL_PATH else "none"


def _path(path: Path) -> str:
    """Return a path as a value: a percent sign begins a token, and spaces need quotes."""
    text = str(path).replace("%", "%%")
    return f'"{text}"' if " " in text else text
