"""A package index on the loopback, with the moods of real ones."""

from __future__ import annotations

import base64
import datetime as dt
import ipaddress
import re
import ssl
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Self


@dataclass
class Reply:
    """What the server says under one path."""

    body: bytes = b""
    kind: str = "text/html"
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    ranges: bool = True


class IndexServer:
    """Serves what a test puts into ``replies`` and keeps what it was asked."""

    def __init__(
        self,
        *,
        login: str | None = None,
        certificate: Path | None = None,
        client_ca: Path | None = None,
        address: str = "127.0.0.1",
    ) -> None:
        self.replies: dict[str, Reply] = {}
        self.login = login
        self.requests: list[tuple[str, dict[str, str]]] = []
        self._server = ThreadingHTTPServer((address, 0), self._handler())
        self._server.daemon_threads = True
        self._scheme = "http"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            if client_ca is not None:
                context.load_verify_locations(client_ca)
                context.verify_mode = ssl.CERT_REQUIRED
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
            self._scheme = "https"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def url(self, path: str = "", *, login: str = "", host: str = "127.0.0.1") -> str:
        at = f"{login}@" if login else ""
        return f"{self._scheme}://{at}{host}:{self.port}/{path}"

    def asked(self) -> list[str]:
        return [path for path, _ in self.requests]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                outer.requests.append((path, dict(self.headers)))
                self._answer(outer._reply(path, self.headers.get("Authorization")))

            do_HEAD = do_GET  # noqa: N815 - the name that http.server looks for

            def _answer(self, reply: Reply) -> None:
                body, status, headers = reply.body, reply.status, dict(reply.headers)
                span = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
                if span and reply.ranges and status == 200:
                    first, last = span.groups()
                    start = int(first) if first else max(0, len(body) - int(last))
                    end = min(int(last), len(body) - 1) if first and last else len(body) - 1
                    headers["Content-Range"] = f"bytes {start}-{end}/{len(body)}"
                    body, status = body[start : end + 1], 206
                self.send_response(status)
                headers |= {"Content-Type": reply.kind, "Content-Length": str(len(body))}
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        return Handler

    def _reply(self, path: str, authorization: str | None) -> Reply:
        if self.login is not None:
            wanted = "Basic " + base64.b64encode(self.login.encode()).decode()
            if authorization is None:
                return Reply(status=401)
            if authorization != wanted:
                return Reply(status=403)
        return self.replies.get(path, Reply(status=404))


def write_certificate(path: Path) -> None:
    """Write a key and a self-signed certificate for 127.0.0.1 into one PEM file."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "index.example")])
    now = dt.datetime.now(dt.timezone.utc)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
