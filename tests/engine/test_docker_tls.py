"""An engine on TCP behind TLS: who it is is checked, and open streams work through it as well."""

from __future__ import annotations

import contextlib
import datetime as dt
import ipaddress
import socket
import ssl
import threading
from typing import TYPE_CHECKING

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from gpuenv.engine import errors as e
from gpuenv.engine.archive import Member, tar_bytes
from gpuenv.engine.connect import connect
from gpuenv.engine.events import build_image
from gpuenv.engine.protocol import BuildRequest, ContainerSpec
from tests.conftest import missing
from tests.engine_fixtures import BASE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from gpuenv.engine.protocol import ContainerEngine

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("base_image")]


class Authority:
    """Signs certificates into a folder, named as Docker names them."""

    def __init__(self, name: str) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.certificate = self._sign(self.name, self.key.public_key(), ca=True)

    def _sign(
        self, name: x509.Name, key: ec.EllipticCurvePublicKey, *, ca: bool = False
    ) -> x509.Certificate:
        now = dt.datetime.now(dt.timezone.utc)
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self.name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(hours=1))
            .not_valid_after(now + dt.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([address]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()),
                critical=False,
            )
            .sign(self.key, hashes.SHA256())
        )

    def write(self, folder: Path) -> Path:
        """Write ca.pem and a new cert.pem with its key.pem."""
        folder.mkdir()
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
        pem = serialization.Encoding.PEM
        certificate = self._sign(subject, key.public_key())
        (folder / "ca.pem").write_bytes(self.certificate.public_bytes(pem))
        (folder / "cert.pem").write_bytes(certificate.public_bytes(pem))
        (folder / "key.pem").write_bytes(
            key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        )
        return folder


class Door:
    """Takes TLS connections with a known client certificate and passes them to a Unix socket."""

    def __init__(self, certificates: Path, engine: str) -> None:
        self._context = ssl.create_default_context(
            ssl.Purpose.CLIENT_AUTH, cafile=str(certificates / "ca.pem")
        )
        self._context.verify_mode = ssl.CERT_REQUIRED
        self._context.load_cert_chain(certificates / "cert.pem", certificates / "key.pem")
        self._engine = engine
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._start(self._accept)

    def _start(self, target: Callable[..., None], *arguments: socket.socket) -> threading.Thread:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        thread.start()
        return thread

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                plain, _ = self._listener.accept()
                self._start(self._serve, plain)

    def _serve(self, plain: socket.socket) -> None:
        with (
            contextlib.suppress(OSError),
            plain,
            self._context.wrap_socket(plain, server_side=True) as outside,
            socket.socket(socket.AF_UNIX) as inside,
        ):
            inside.connect(self._engine)
            back = self._start(self._copy, inside, outside)
            self._copy(outside, inside)
            back.join(10)

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def authority() -> Authority:
    return Authority("test authority")


@pytest.fixture
def door(engine: ContainerEngine, authority: Authority, tmp_path: Path) -> Iterator[Door]:
    if not engine.address.startswith("unix://"):
        missing("engine on a Unix socket, to put TLS in front of")
    opened = Door(authority.write(tmp_path / "server"), engine.address.removeprefix("unix://"))
    yield opened
    opened.close()


def environ_for(door: Door, certificates: Path) -> dict[str, str]:
    return {
        "DOCKER_HOST": door.address,
        "DOCKER_TLS_VERIFY": "1",
        "DOCKER_CERT_PATH": str(certificates),
    }


def test_builds_and_open_streams_work_through_tls(
    door: Door, authority: Authority, tmp_path: Path, run_labels: dict[str, str]
) -> None:
    environ = environ_for(door, authority.write(tmp_path / "client"))
    with connect(environ=environ) as engine:
        assert engine.address == door.address
        assert not engine.capabilities.local, "its paths and processes may be another host's"
        context = tar_bytes([Member(path="Dockerfile", content=f"FROM {BASE}\n".encode())])
        assert build_image(engine, BuildRequest(context=context, labels=run_labels))
        made = engine.create(
            ContainerSpec(image=BASE, command=("sleep", "600"), init=True, labels=run_labels)
        )
        engine.start(made.id)
        assert engine.exec(made.id, ("echo", "through")).stdout == b"through\n"
        shell = engine.exec_attached(made.id, ("sh", "-c", "read x; echo got $x; exit 3"))
        shell.write(b"line\n")
        assert b"".join(chunk.data for chunk in iter(shell.read, None)) == b"got line\n"
        assert shell.exit_code() == 3
        shell.close()


def test_an_engine_that_cannot_prove_who_it_is_is_not_trusted(door: Door, tmp_path: Path) -> None:
    other = Authority("someone else").write(tmp_path / "client")
    with pytest.raises(e.EngineTlsError) as caught:
        connect(environ=environ_for(door, other))
    assert "certificate" in caught.value.why.lower()


def test_an_engine_that_does_not_know_us_lets_nobody_in(
    door: Door, authority: Authority, tmp_path: Path
) -> None:
    certificates = authority.write(tmp_path / "client")
    (certificates / "cert.pem").unlink()
    with pytest.raises((e.EngineTlsError, e.EngineNotRunningError)):
        connect(environ=environ_for(door, certificates))


def test_certificates_that_are_not_are_told(door: Door, tmp_path: Path) -> None:
    folder = tmp_path / "broken"
    folder.mkdir()
    (folder / "ca.pem").write_text("nonsense")
    with pytest.raises(e.EngineTlsError, match="cannot be used"):
        connect(environ=environ_for(door, folder))
