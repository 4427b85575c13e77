"""Requests to an engine and their answers: HTTP over a Unix socket, over TCP, over TLS.

Python's own ``http.client`` carries them. Each request has a connection of its own: a local socket
costs nothing, threads share nothing, and no connection is stale when the next request comes. The
docker SDK would carry them as well; importing its client takes longer than most commands do.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_CHUNK = 1 << 16


class TransportError(Exception):
    """No answer, or not all of it.

    Attributes:
        kind: ``tls``: no secure connection; ``timeout``: nothing came in time; ``foreign``: what
            answers does not speak HTTP; ``cut``: the answer ended in its middle; ``broken``: no
            connection, or it broke.
    """

    def __init__(
        self, kind: Literal["tls", "timeout", "foreign", "cut", "broken"], reason: str
    ) -> None:
        super().__init__(reason)
        self.kind = kind


def open_socket(
    base_url: str, tls: ssl.SSLContext | None, timeout_s: float | None
) -> socket.socket:
    """Connect to ``unix:///PATH`` or ``tcp://HOST:PORT``.

    Raises:
        OSError: There is no way.
    """
    parts = urlsplit(base_url)
    if parts.scheme == "unix":
        raw = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            raw.settimeout(timeout_s)
            raw.connect(parts.path)
        except BaseException:
            raw.close()
            raise
        return raw
    plain = socket.create_connection((parts.hostname or "", parts.port or 0), timeout_s)
    if tls is None:
        return plain
    try:
        return tls.wrap_socket(plain, server_hostname=parts.hostname)
    except BaseException:
        plain.close()
        raise


@contextmanager
def translated() -> Iterator[None]:
    """Turn the many exceptions of a connection into one."""
    try:
        yield
    except ssl.SSLError as exc:
        raise TransportError("tls", exc.reason or str(exc)) from exc
    except TimeoutError as exc:
        raise TransportError("timeout", str(exc)) from exc
    except OSError as exc:
        raise TransportError("broken", exc.strerror or str(exc)) from exc
    except http.client.IncompleteRead as exc:
        raise TransportError("cut", "it stopped in the middle of its answer") from exc
    except (http.client.HTTPException, ValueError) as exc:
        raise TransportError("foreign", str(exc)) from exc


class _Connection(http.client.HTTPConnection):
    """A connection over the socket of an engine, whatever its kind."""

    def __init__(self, base_url: str, tls: ssl.SSLContext | None, timeout_s: float | None) -> None:
        parts = urlsplit(base_url)
        super().__init__(parts.hostname or "docker", parts.port, timeout=timeout_s)
        self._base_url, self._tls, self._timeout_s = base_url, tls, timeout_s

    def connect(self) -> None:
        """Open the socket."""
        self.sock = open_socket(self._base_url, self._tls, self._timeout_s)


class Answer:
    """The answer to a request: :meth:`fetch` its body, or read its :meth:`pieces` and close it.

    Attributes:
        status: HTTP's.
        content: The body that was fetched.
    """

    def __init__(self, sock: socket.socket, response: http.client.HTTPResponse) -> None:
        self._socket, self._response = sock, response
        self.status = response.status
        self.content = b""

    def pieces(self) -> Iterator[bytes]:
        """Yield the body as it comes.

        Raises:
            TransportError: It does not come whole.
        """
        with translated():
            while piece := self._response.read1(_CHUNK):
                yield piece
            if self._response.length:  # read1 takes an early end for the end
                raise http.client.IncompleteRead(b"", self._response.length)

    def fetch(self) -> None:
        """Read the whole body and let go of the connection.

        Raises:
            TransportError: It does not come whole.
        """
        try:
            with translated():
                self.content = self._response.read()
        finally:
            self.close()

    @property
    def text(self) -> str:
        """The whole body as text."""
        return self.content.decode("utf-8", "replace")

    def json(self) -> Any:
        """Return what the body says, ``None`` for an empty one."""
        return json.loads(self.content) if self.content else None

    def close(self) -> None:
        """Let go of the connection, whether or not all was read."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # whoever still reads it comes back at once
        self._response.close()
        self._socket.close()


@dataclass(frozen=True, slots=True)
class Transport:
    """The way to an engine.

    Attributes:
        base_url: ``unix:///PATH`` or ``tcp://HOST:PORT``.
        tls: For TCP with TLS.
    """

    base_url: str
    tls: ssl.SSLContext | None = None

    def send(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        data: bytes | Iterable[bytes] | None = None,
        timeout_s: float | None,
    ) -> Answer:
        """Send a request and return its answer, whatever the status.

        Args:
            path: With version and query.
            data: Bytes, or pieces of them that are sent as they come.
            timeout_s: How long each piece of the answer may take.

        Raises:
            TransportError: There is no answer.
        """
        connection = _Connection(self.base_url, self.tls, timeout_s)
        try:
            with translated():
                with suppress(BrokenPipeError, ConnectionResetError):
                    # An engine that refuses a large body may answer before it has read it.
                    connection.request(
                        method,
                        path,
                        body=data,
                        headers={**(headers or {}), "Connection": "close"},
                    )
                sock: socket.socket = connection.sock  # which the answer takes over
                return Answer(sock, connection.getresponse())
        except BaseException:
            connection.close()
            raise
