"""The configuration of the SSH server in an environment; pure.

Keys only, modern algorithms only, no root, nothing of the client's forwarded unless asked. The
names of the algorithms are those that OpenSSH 8.9 (Ubuntu 22.04) has, since a server refuses a list
with a name it does not know; ``ssh-audit`` remarks on curve25519 alone, for being no post-quantum
exchange.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

FOLDER = "/etc/gpuenv/ssh"
CONFIG_FILE = f"{FOLDER}/sshd_config"
HOST_KEY_FILE = f"{FOLDER}/ssh_host_ed25519_key"
AUTHORIZED_KEYS_FILE = f"{FOLDER}/authorized_keys"
CONTAINER_PORT = 2222

_KEX = (
    "sntrup761x25519-sha512@openssh.com",
    "curve25519-sha256",
    "curve25519-sha256@libssh.org",
)
# What this server would offer by itself, without all that is not of the two post-quantum kinds: a
# list to be taken away may name what a server does not know, one to be offered may not.
_POST_QUANTUM_KEX = "-!sntrup*,!mlkem*,*"
_CIPHERS = ("aes256-gcm@openssh.com", "aes128-gcm@openssh.com", "aes256-ctr", "aes128-ctr")
_MACS = ("hmac-sha2-512-etm@openssh.com", "hmac-sha2-256-etm@openssh.com")
_KEYS = (
    "ssh-ed25519",
    "sk-ssh-ed25519@openssh.com",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "sk-ecdsa-sha2-nistp256@openssh.com",
    "rsa-sha2-512",
    "rsa-sha2-256",
)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Set by the session itself, or of no use in it.
_NOT_PASSED = frozenset({"HOME", "USER", "LOGNAME", "SHELL", "TERM", "HOSTNAME", "PWD", "SHLVL"})


def render_sshd_config(
    env: Mapping[str, str],
    *,
    as_root: bool = False,
    agent_forwarding: bool = False,
    x11_forwarding: bool = False,
    post_quantum_only: bool = False,
) -> str:
    """Return ``sshd_config``.

    Args:
        env: The variables that the image and the launch set. A session does not inherit them from
            the server, so they are named here; ``PATH`` finds the environment's Python by them.
        as_root: The mapped user is uid 0 of a rootless engine, who has no right on the host that
            its caller does not have.
        post_quantum_only: Exchange keys with nobody who knows but the exchanges of before.
    """
    values: list[tuple[str, str]] = [
        ("Port", str(CONTAINER_PORT)),
        ("HostKey", HOST_KEY_FILE),
        ("PidFile", "none"),
        ("LogLevel", "INFO"),
        # Who may come in: whoever holds a key, and nobody else.
        ("AuthorizedKeysFile", AUTHORIZED_KEYS_FILE),
        ("AuthenticationMethods", "publickey"),
        ("PubkeyAuthentication", "yes"),
        ("PasswordAuthentication", "no"),
        ("KbdInteractiveAuthentication", "no"),
        ("HostbasedAuthentication", "no"),
        ("PermitEmptyPasswords", "no"),
        ("PermitRootLogin", "prohibit-password" if as_root else "no"),
        ("UsePAM", "no"),
        ("LoginGraceTime", "30"),
        ("MaxAuthTries", "10"),
        # Editors open a session for each terminal and language server on one connection, and a
        # script may start one connection a file; only this machine reaches the port.
        ("MaxSessions", "100"),
        ("MaxStartups", "100:30:200"),
        # How it is spoken to.
        ("KexAlgorithms", _POST_QUANTUM_KEX if post_quantum_only else ",".join(_KEX)),
        ("Ciphers", ",".join(_CIPHERS)),
        ("MACs", ",".join(_MACS)),
        ("HostKeyAlgorithms", "ssh-ed25519"),
        ("PubkeyAcceptedAlgorithms", ",".join(_KEYS)),
        # What may go through: ports for TensorBoard and debuggers, nothing of the client's own.
        ("AllowTcpForwarding", "yes"),
        ("AllowStreamLocalForwarding", "yes"),
        ("GatewayPorts", "no"),
        ("PermitTunnel", "no"),
        ("AllowAgentForwarding", "yes" if agent_forwarding else "no"),
        ("X11Forwarding", "yes" if x11_forwarding else "no"),
        ("PermitUserEnvironment", "no"),
        ("AcceptEnv", "LANG LC_* COLORTERM"),
        # A session that says nothing for hours lives on; one whose client is gone does not.
        ("ClientAliveInterval", "30"),
        ("ClientAliveCountMax", "10"),
        ("TCPKeepAlive", "yes"),
        ("PrintMotd", "no"),
        ("Subsystem", "sftp internal-sftp"),
        # What the image found out about its own sshd, if it is one of gpuenv's: see gpuenv.render.
        ("Include", "/etc/ssh/gpuenv.conf"),
    ]
    if x11_forwarding:
        # Where the container has no IPv6, as with most, sshd gives a display up for want of ::1.
        values.append(("AddressFamily", "inet"))
    lines = [f"{name} {value}" for name, value in values]
    passed = [
        f"{name}={_quoted(value)}"
        for name, value in sorted(env.items())
        if _NAME.fullmatch(name) and name not in _NOT_PASSED and _can_stand(value)
    ]
    if passed:
        # One directive: a server takes the first SetEnv and passes over the others.
        lines.append("SetEnv " + " ".join(passed))
    return "\n".join(lines) + "\n"


def _can_stand(value: str) -> bool:
    return "\n" not in value and "\r" not in value and "\0" not in value


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
