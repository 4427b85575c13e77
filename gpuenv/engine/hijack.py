"""Connections that the engine turns into a raw stream: attach and exec.

The HTTP library reads ahead, and what it read behind the answer's headers is lost to whoever takes
the socket from it. So these few requests are spoken by hand, on a socket of their own.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import TYPE_CHECKING, Any

from gpuenv.engine.errors import EngineLostError
from gpuenv.engine.protocol import LogChunk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from gpuenv.engine.protocol import StreamName

_HEADER = struct.Struct(">BxxxL")
_MAX_HEAD = 64 * 1024


def split_frames(chunks: Iterable[bytes]) -> Iterator[LogChunk]:
    """Take apart the engine's multiplexed output: 8 bytes of header, then a piece of a stream.

    Header: byte 0 is the stream (1 stdout, 2 stderr), bytes 4-7 the length, big endian.
    """
    buffer = bytearray()
    for chunk in chunks:
        buffer += chunk
        while len(buffer) >= _HEADER.size:
            kind, size = _HEADER.unpack_from(buffer)
            end = _HEADER.size + size
            if len(buffer) < end:
                break
            yield LogChunk(stream=_stream_name(kind), data=bytes(buffer[_HEADER.size : end]))
            del buffer[:end]


def _stream_name(kind: int) -> StreamName:
    return "stderr" if kind == 2 else "stdout"  # noqa: PLR2004 - the wire's number for stderr


class UpgradedStream:
    """A request that became a stream.

    Args:
        path: With version and query: ``/v1.41/exec/ID/start``.
        body: Sent as JSON.
    """

    def __init__(self, sock: socket.socket, path: str, body: Mapping[str, Any] | None) -> None:
        self._socket = sock
        payload = json.dumps(body).encode() if body is not None else b""
        head = (
            f"POST {path} HTTP/1.1\r\nHost: docker\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
        )
        try:
            sock.sendall(head.encode("ascii") + payload)
            self.status, self._ahead = self._read_head()
            sock.settimeout(None)
        except BaseException:
            sock.close()
            raise

    def _read_head(self) -> tuple[int, bytes]:
        data = b""
        while b"\r\n\r\n" not in data:
            piece = self._socket.recv(4096)
            if not piece or len(data) > _MAX_HEAD:
                raise EngineLostError(
                    "the engine closed the connection instead of answering",
                    why=f"it sent {data[:200]!r}",
                    fix="see whether the engine still runs: gpuenv engine status",
                )
            data += piece
        head, _, ahead = data.partition(b"\r\n\r\n")
        return int(head.split(b" ", 2)[1]), ahead

    def error_text(self) -> str:
        """Return the engine's words when the status says that it refused."""
        self._socket.settimeout(5)
        text = self._ahead
        try:
            while piece := self._socket.recv(4096):
                text += piece
                if len(text) > _MAX_HEAD or text.rstrip().endswith(b"}"):
                    break
        except OSError:
            pass
        start, end = text.find(b"{"), text.rfind(b"}")
        try:
            return str(json.loads(text[start : end + 1]).get("message", ""))
        except ValueError:
            return text.decode("utf-8", "replace").strip()

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._socket.fileno()

    def settimeout(self, timeout_s: float | None) -> None:
        """Limit how long one read may wait."""
        self._socket.settimeout(timeout_s)

    def read(self) -> bytes:
        """Return the next bytes, empty at the end."""
        if self._ahead:
            ahead, self._ahead = self._ahead, b""
            return ahead
        try:
            return self._socket.recv(65536)
        except ConnectionResetError:
            return b""

    def write(self, data: bytes) -> None:
        """Send all of ``data``."""
        self._socket.sendall(data)

    def close_input(self) -> None:
        """Send the end of input."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


class RawAttachment:
    """An :class:`~gpuenv.engine.protocol.Attachment` on an upgraded connection.

    Args:
        resize: Sends the window's size to the engine.
        exit_code: Asks the engine for the exit code.
    """

    def __init__(
        self,
        stream: UpgradedStream,
        *,
        tty: bool,
        resize: Callable[[int, int], None],
        exit_code: Callable[[], int | None],
    ) -> None:
        self.tty = tty
        self._stream = stream
        self._resize = resize
        self._exit_code = exit_code
        self._chunks = self._read_all()

    def _read_all(self) -> Iterator[LogChunk]:
        pieces = iter(self._stream.read, b"")
        if self.tty:
            return (LogChunk(stream="stdout", data=piece) for piece in pieces)
        return split_frames(pieces)

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self._stream.fileno()

    def read(self) -> LogChunk | None:
        """Wait for the next piece of output; ``None`` at its end."""
        return next(self._chunks, None)

    def write(self, data: bytes) -> None:
        """Send input."""
        self._stream.write(data)

    def close_input(self) -> None:
        """Send the end of input."""
        self._stream.close_input()

    def resize(self, *, rows: int, columns: int) -> None:
        """Tell the tty the size of the window."""
        self._resize(rows, columns)

    def exit_code(self) -> int | None:
        """Return the exit code once the command ended."""
        return self._exit_code()

    def close(self) -> None:
        """Let go of the connection."""
        self._stream.close()
