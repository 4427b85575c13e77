"""SSH keys: ours are made here, everybody else's are read with suspicion.

A public key goes into ``authorized_keys`` of a container, so a line that says more than a key
(``command=…``, ``no-pty``) or is none is refused with words, not passed on.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import struct
from typing import TYPE_CHECKING

from gpuenv.errors import ConfigurationError
from gpuenv.secret import Secret
from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAX_LINE = 16 * 1024
_MAX_FILE = 1024 * 1024
_MIN_RSA_BITS = 2048
_COMMENT_LENGTH = 200
_TYPES = (
    "ssh-ed25519",
    "sk-ssh-ed25519@openssh.com",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "sk-ecdsa-sha2-nistp256@openssh.com",
    "ssh-rsa",
)
_REFUSED_TYPES = {"ssh-dss": "DSA keys are broken", "ssh-rsa1": "SSH 1 is gone"}
_PRIVATE = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----|^PuTTY-User-Key-File-")
# Other forms of a public key: how they begin, what they are, and what makes a line of them.
_OTHER_FORMS = (
    ("---- BEGIN SSH2 PUBLIC KEY", "in the form of RFC 4716", "ssh-keygen -i -f"),
    ("-----BEGIN PUBLIC KEY", "in PEM", "ssh-keygen -i -m PKCS8 -f"),
    ("-----BEGIN RSA PUBLIC KEY", "in PEM", "ssh-keygen -i -m PEM -f"),
)


class SshKeyError(ConfigurationError):
    """A text is no public key, or none that may be let in."""

    slug = "ssh-key"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicKey:
    """A public key, checked.

    Attributes:
        blob: The key itself in base64, without its type and comment.
        comment: Printable ASCII; for people.
    """

    type: str
    blob: str
    comment: str = ""

    @property
    def fingerprint(self) -> str:
        """``SHA256:…``, as ``ssh-keygen -l`` prints it."""
        digest = hashlib.sha256(base64.b64decode(self.blob)).digest()
        return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")

    @property
    def line(self) -> str:
        """The key as it stands in ``authorized_keys`` and in ``.pub`` files."""
        return f"{self.type} {self.blob}" + (f" {self.comment}" if self.comment else "")

    @property
    def identity(self) -> tuple[str, str]:
        """What makes it this key and no other; comments do not count."""
        return self.type, self.blob

    def same_as(self, other: PublicKey) -> bool:
        """Say whether both are one key."""
        return self.identity == other.identity


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPair:
    """A key of ours."""

    private: Secret
    public: PublicKey


def make_key(comment: str) -> KeyPair:
    """Make an ed25519 key."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    return KeyPair(
        private=Secret(private.decode()),
        public=parse_public_key(f"{public.decode()} {comment}", origin="a key made just now"),
    )


def load_key(private: str, *, origin: str) -> KeyPair:
    """Read a private key of ours back.

    Raises:
        SshKeyError: It is none.
    """
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    try:
        key = serialization.load_ssh_private_key(private.encode(), password=None)
    except ValueError as exc:
        raise SshKeyError(
            f"{origin} is not a private key", why=str(exc), fix="remove it; a new one is made then"
        ) from exc
    if not isinstance(key, Ed25519PrivateKey):
        raise SshKeyError(
            f"{origin} is not an ed25519 key",
            why="gpuenv makes no others",
            fix="remove it; a new one is made then",
        )
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    return KeyPair(private=Secret(private), public=parse_public_key(public.decode(), origin=origin))


def parse_public_key(text: str, *, origin: str) -> PublicKey:
    """Read one line of a ``.pub`` file: ``ssh-ed25519 AAAA… alice@laptop``.

    Args:
        origin: Where it comes from, for messages.

    Raises:
        SshKeyError: It is no public key, has options before it, or is too weak.
    """
    if _PRIVATE.search(text):
        raise SshKeyError(
            f"{origin} is a private key",
            why="the public half is what a server needs; the private one never leaves your machine",
            fix="give the file that ends in .pub",
        )
    if len(text) > _MAX_LINE:
        raise SshKeyError(
            f"{origin} is no public key", why=f"it is longer than {_MAX_LINE} characters",
            fix="give one line as ssh-keygen writes it",
        )  # fmt: skip
    line = text.removeprefix("\ufeff").strip()  # some editors begin a file so
    words = line.split(None, 2)
    if not words:
        raise SshKeyError(f"{origin} is empty", fix="give one line as ssh-keygen writes it")
    kind = words[0]
    _refuse_other_forms(line, kind, origin)
    if kind in _REFUSED_TYPES:
        raise SshKeyError(
            f"{origin} is not let in", why=_REFUSED_TYPES[kind], fix="ssh-keygen -t ed25519"
        )
    if kind not in _TYPES:
        options = "=" in kind or kind.startswith(("no-", "restrict", "cert-authority"))
        raise SshKeyError(
            f"{origin} is no public key",
            why=f"options such as {kind.partition('=')[0]} before a key are not taken"
            if options
            else f"it begins with {kind[:40]!r}",
            fix="give the key alone: its type, the key, a comment",
        )
    if len(words) == 1:
        raise SshKeyError(
            f"{origin} is cut off", why="there is no key behind its type", fix="copy the whole line"
        )
    blob = words[1]
    _check_blob(kind, blob, origin)
    comment = words[2] if len(words) > 2 else ""  # noqa: PLR2004 - the third word
    printable = "".join(c for c in comment if " " <= c <= "~")
    return PublicKey(type=kind, blob=blob, comment=printable.strip()[:_COMMENT_LENGTH])


def _refuse_other_forms(line: str, kind: str, origin: str) -> None:
    """Say of what is a key in another form, or more than one, what to do with it."""
    for begins, what, convert in _OTHER_FORMS:
        if line.startswith(begins):
            raise SshKeyError(
                f"{origin} is not let in", why=f"it is {what}",
                fix=f"make a line of it: {convert} FILE > FILE.pub",
            )  # fmt: skip
    if "-cert-v" in kind:
        raise SshKeyError(
            f"{origin} is not let in",
            why="a certificate is let in for who signed it, and here keys alone are",
            fix="give the .pub file that the certificate was made of",
        )
    if len(_lines(line)) > 1:
        raise SshKeyError(
            f"{origin} is more than a key",
            why="it has several lines",
            fix="give one line as ssh-keygen writes it; --add-key takes a file with several",
        )


def parse_public_keys(text: str, *, origin: str) -> tuple[PublicKey, ...]:
    """Read a ``.pub`` or ``authorized_keys`` file: one key a line, comments and blanks between.

    Raises:
        SshKeyError: A line is no key; the message says which.
    """
    if len(text) > _MAX_FILE:
        raise SshKeyError(f"{origin} is no list of keys", why="it is larger than a megabyte")
    begins = tuple(begins for begins, _, _ in _OTHER_FORMS)
    if _PRIVATE.search(text) or text.startswith(begins):  # of several lines each
        parse_public_key(text, origin=origin)
    keys: dict[tuple[str, str], PublicKey] = {}
    for number, line in enumerate(_lines(text.removeprefix("\ufeff")), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            key = parse_public_key(line, origin=f"{origin} line {number}")
            keys.setdefault(key.identity, key)
    return tuple(keys.values())


def _lines(text: str) -> list[str]:
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def _check_blob(kind: str, blob: str, origin: str) -> None:
    """Check that the base64 holds a key of the type that the line names.

    Source: RFC 4253, section 6.6: each part is a length of four bytes and that many bytes.
    """
    try:
        data = base64.b64decode(blob, validate=True)
        if base64.b64encode(data).decode() != blob:  # one key has one form, or it is two to revoke
            raise ValueError("bits beyond the last byte")  # noqa: TRY301 - one refusal for all
        parts = list(_parts(data))
    except (binascii.Error, ValueError, struct.error) as exc:
        raise SshKeyError(
            f"{origin} is cut off or changed", why="what stands behind its type is no key",
            fix="copy the whole line",
        ) from exc  # fmt: skip
    if not parts or parts[0] != kind.encode():
        raise SshKeyError(
            f"{origin} contradicts itself", why=f"it says {kind} and holds another kind of key",
            fix="give the line as ssh-keygen wrote it",
        )  # fmt: skip
    sizes = {
        "ssh-ed25519": (2, {1: 32}),
        "sk-ssh-ed25519@openssh.com": (3, {1: 32}),
        "ecdsa-sha2-nistp256": (3, {2: 65}),
        "ecdsa-sha2-nistp384": (3, {2: 97}),
        "ecdsa-sha2-nistp521": (3, {2: 133}),
        "sk-ecdsa-sha2-nistp256@openssh.com": (4, {2: 65}),
        "ssh-rsa": (3, {}),
    }
    count, lengths = sizes[kind]
    if len(parts) != count or any(len(parts[at]) != size for at, size in lengths.items()):
        raise SshKeyError(
            f"{origin} is no {kind} key", why="its parts do not have the lengths of one",
            fix="copy the whole line",
        )  # fmt: skip
    if kind == "ssh-rsa" and (bits := int.from_bytes(parts[2], "big").bit_length()) < _MIN_RSA_BITS:
        raise SshKeyError(
            f"{origin} is not let in",
            why=f"an RSA key of {bits} bits is too short",
            fix="ssh-keygen -t ed25519",
        )


def _parts(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        (length,) = struct.unpack_from(">I", data, at)
        if at + 4 + length > len(data):
            raise ValueError("a part is longer than the rest")
        yield data[at + 4 : at + 4 + length]
        at += 4 + length
