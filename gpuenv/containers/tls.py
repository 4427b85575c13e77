"""A certificate for one environment, made here and trusted by its fingerprint."""

from __future__ import annotations

import ipaddress
import re
import ssl
from dataclasses import field
from datetime import datetime, timedelta
from hashlib import sha256
from typing import TYPE_CHECKING

from gpuenv.errors import ConfigurationError
from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cryptography.x509 import GeneralName

_VALID_DAYS = 398  # browsers accept no longer
_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_GIVE_PEM = "give a PEM certificate (with its chain) and its PEM key, comma between them"


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """A certificate chain and its key, both PEM."""

    chain: str
    key: str = field(repr=False)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the first certificate, as browsers show it."""
        der = ssl.PEM_cert_to_DER_cert(_first(self.chain))
        digits = sha256(der).hexdigest().upper()
        return ":".join(digits[i : i + 2] for i in range(0, len(digits), 2))


def _first(chain: str) -> str:
    match = _PEM.search(chain)
    return match[0] if match else ""


def make_certificate(names: tuple[str, ...], *, now: datetime) -> Certificate:
    """Make a self-signed certificate for names and addresses, with a key of its own (P-256).

    Args:
        names: Host names and IP addresses it is good for, the first one its common name.
        now: Aware; it is valid from a day before, for clocks that differ.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"gpuenv {names[0]}"[:64])])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=_VALID_DAYS - 1))
        .add_extension(x509.SubjectAlternativeName([_name(n) for n in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Certificate(
        chain=certificate.public_bytes(serialization.Encoding.PEM).decode("ascii"),
        key=key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ).decode("ascii"),
    )


def _name(text: str) -> GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def load_certificate(cert: Path, key: Path) -> Certificate:
    """Read a certificate and its key, and make sure that they belong together.

    Raises:
        ConfigurationError: A file cannot be read, is no PEM, or they do not match.
    """
    for path in (cert, key):
        if path.exists() and not path.is_file():  # OpenSSL would wait at a pipe, and read a device
            raise ConfigurationError(
                f"--tls {cert},{key} cannot be used", why=f"{path} is no file", fix=_GIVE_PEM
            )
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
            cert, key, password=_no_passphrase(key)
        )
        return Certificate(chain=cert.read_text("ascii"), key=key.read_text("ascii"))
    except (OSError, ValueError) as exc:  # ssl.SSLError is an OSError
        raise ConfigurationError(
            f"--tls {cert},{key} cannot be used",
            why=getattr(exc, "strerror", None) or str(exc),
            fix=_GIVE_PEM,
        ) from exc


def _no_passphrase(key: Path) -> Callable[[], str]:
    def refuse() -> str:
        raise ConfigurationError(
            f"{key} is protected by a passphrase",
            why="the server in the container could not ask for it",
            fix="give a key without one, for instance from openssl pkey",
        )

    return refuse
