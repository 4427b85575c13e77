"""The keys a user has: one that was named, those of the agent, those in ``~/.ssh``.

A ``.pub`` file counts as the user's own only if its private half lies beside it: people also keep
the public keys of others there, and those must not be let in.
"""

from __future__ import annotations

import base64
import binascii
import re
import struct
from functools import partial
from typing import TYPE_CHECKING

from gpuenv.process import ProgramNotFoundError, ProgramTimeoutError, run_program
from gpuenv.reading import MIB, read_named, reason
from gpuenv.ssh.keys import PublicKey, SshKeyError, parse_public_key, parse_public_keys
from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

_AGENT_TIMEOUT_S = 10.0
_OPENSSH = re.compile(
    r"-----BEGIN OPENSSH PRIVATE KEY-----\s+(.*?)\s+-----END OPENSSH PRIVATE KEY-----", re.DOTALL
)
_MAGIC = b"openssh-key-v1\0"


@dataclass(frozen=True, slots=True, kw_only=True)
class UserKey:
    """A key that the user can log in with.

    Attributes:
        public: What is let in.
        identity: The file that ``ssh -i`` takes, ``None`` where the agent alone has it.
    """

    public: PublicKey
    identity: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundKeys:
    """What was found, and what was passed over with the reason."""

    keys: tuple[UserKey, ...] = ()
    passed_over: tuple[str, ...] = ()


def find_user_keys(folder: Path, environ: Mapping[str, str]) -> FoundKeys:
    """Return the keys of the agent and of a folder, each once.

    Args:
        folder: ``~/.ssh``.
        environ: Where the agent is found.
    """
    found: list[UserKey] = []
    passed_over: list[str] = []

    def take(read: Callable[[], str], origin: str, identity: Path | None) -> None:
        try:
            public = parse_public_key(read(), origin=origin)
        except SshKeyError as error:
            passed_over.append(f"{error.what}: {error.why}")
        else:
            found.append(UserKey(public=public, identity=identity))

    for path in sorted(folder.glob("*.pub")) if folder.is_dir() else ():
        private = path.with_suffix("")
        if not path.name.endswith("-cert.pub") and private.is_file():
            take(partial(_read, path), str(path), private)
    for line in _agent_lines(environ):
        take(partial(str, line), "a key of the agent", None)
    kept: list[UserKey] = []
    for key in found:
        if not any(key.public.same_as(known.public) for known in kept):
            kept.append(key)
    return FoundKeys(keys=tuple(kept), passed_over=tuple(passed_over))


def read_named_key(path: Path) -> UserKey:
    """Return the key of ``--key FILE``, which names a private key or its ``.pub``.

    Raises:
        SshKeyError: It is neither, or its public half is nowhere to be had.
    """
    if path.suffix == ".pub":
        public = parse_public_key(_read(path), origin=str(path))
        private = path.with_suffix("")
        return UserKey(public=public, identity=private if private.is_file() else path)
    text = _read(path)
    beside = path.with_name(path.name + ".pub")
    if beside.is_file():
        public = parse_public_key(_read(beside), origin=str(beside))
        return UserKey(public=public, identity=path)
    return UserKey(public=_public_half(text, path), identity=path)


def read_public_keys(path: Path) -> tuple[PublicKey, ...]:
    """Return the keys of ``--add-key FILE``, a ``.pub`` or ``authorized_keys`` file.

    Raises:
        SshKeyError: It cannot be read, has none, or a line is none.
    """
    keys = parse_public_keys(_read(path), origin=str(path))
    if not keys:
        raise SshKeyError(f"{path} has no key", fix="give one key a line, as in a .pub file")
    return keys


def _public_half(text: str, path: Path) -> PublicKey:
    """Read the public half that stands in the clear in a private key of OpenSSH's form.

    Source: OpenSSH, ``PROTOCOL.key``: magic, cipher, kdf, kdf options, count, public key, …
    """
    match = _OPENSSH.search(text)
    try:
        data = base64.b64decode("".join(match[1].split()), validate=True) if match else b""
        at = len(_MAGIC)
        for _ in range(3):
            at += 4 + int(struct.unpack_from(">I", data, at)[0])
        at += 4
        (length,) = struct.unpack_from(">I", data, at)
        blob = data[at + 4 : at + 4 + length]
        (named,) = struct.unpack_from(">I", blob, 0)
        kind = blob[4 : 4 + named].decode("ascii")
    except (ValueError, struct.error, binascii.Error) as exc:
        raise SshKeyError(
            f"{path} is no key that can be used",
            why=f"there is no {path.name}.pub beside it, and it is not a private key of OpenSSH's "
            "own form",
            fix=f"ssh-keygen -y -f {path.name} > {path.name}.pub",
        ) from exc
    return parse_public_key(f"{kind} {base64.b64encode(blob).decode()}", origin=str(path))


def _agent_lines(environ: Mapping[str, str]) -> tuple[str, ...]:
    if not environ.get("SSH_AUTH_SOCK"):
        return ()
    try:
        listed = run_program(("ssh-add", "-L"), timeout_s=_AGENT_TIMEOUT_S, env=environ)
    except (ProgramNotFoundError, ProgramTimeoutError):
        return ()
    # 1: it has none ("The agent has no identities."), 2: there is no agent
    return tuple(listed.stdout.splitlines()) if listed.exit_code == 0 else ()


def _read(path: Path) -> str:
    try:
        content = read_named(path, limit_bytes=MIB)
    except OSError as exc:
        raise SshKeyError(
            f"cannot read {path}", why=reason(exc), fix="give the file of a key"
        ) from exc
    return content.decode("utf-8", "replace")
