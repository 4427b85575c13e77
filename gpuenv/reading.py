"""Read a file that somebody named, whatever lies under that name.

A named pipe that nobody writes to would be waited for without end, and a device such as
``/dev/zero`` never ends at all. What the shell puts in the place of ``<(command)`` is read, however
long that command takes, and so is ``/dev/null``.
"""

from __future__ import annotations

import errno
import os
import select
import stat
import time
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1024 * 1024
LIMIT_BYTES = 16 * MIB
"""More than any settings, requirements or key have; the matrix has 0.06 MiB."""
_CHUNK = 65536
_TURN_MS = 50
WRITER_GRACE_S = 2.0
"""How long a named pipe may be without a writer, which may be about to start."""


def read_named(path: Path, *, limit_bytes: int = LIMIT_BYTES) -> bytes:
    """Return what a file holds.

    Args:
        path: Given by the user.
        limit_bytes: More than this is refused as soon as it has come.

    Raises:
        OSError: It cannot be read; ``strerror`` says why in words for the user.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        kind = os.fstat(handle).st_mode
        if stat.S_ISDIR(kind):
            raise OSError(errno.EISDIR, "it is a folder", str(path))
        if stat.S_ISBLK(kind):
            raise OSError(errno.ENOTBLK, "it is a device", str(path))
        if stat.S_ISFIFO(kind):
            return _read_pipe(handle, path, limit_bytes)
        os.set_blocking(handle, True)
        with os.fdopen(os.dup(handle), "rb") as file:
            return read_stream(file, name=str(path), limit_bytes=limit_bytes)
    finally:
        os.close(handle)


def read_named_text(path: Path, *, encoding: str = "utf-8", limit_bytes: int = LIMIT_BYTES) -> str:
    """Return a file as text, with plain line ends; see :func:`read_named`.

    Raises:
        OSError: It cannot be read.
        UnicodeDecodeError: It is no text.
    """
    text = read_named(path, limit_bytes=limit_bytes).decode(encoding)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_stream(file: BinaryIO, *, name: str, limit_bytes: int = LIMIT_BYTES) -> bytes:
    """Return the rest of a stream.

    Raises:
        OSError: It holds more than may be.
    """
    pieces: list[bytes] = []
    left = limit_bytes
    while piece := file.read(min(_CHUNK, left + 1)):
        left -= len(piece)
        if left < 0:
            raise _too_long(name, limit_bytes)
        pieces.append(piece)
    return b"".join(pieces)


def _read_pipe(handle: int, path: Path, limit_bytes: int) -> bytes:
    """Read a pipe that was opened without blocking, as long as somebody has it open for writing.

    Raises:
        OSError: Nobody has, or it holds more than may be.
    """
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    deadline = time.monotonic() + WRITER_GRACE_S
    pieces: list[bytes] = []
    length, connected = 0, False
    while True:
        try:
            piece = os.read(handle, _CHUNK)
        except BlockingIOError:  # there is a writer, who has nothing to say yet
            connected = True
            poll.poll()
            continue
        if not piece and connected:
            return b"".join(pieces)
        if not piece and time.monotonic() >= deadline:
            raise OSError(errno.EPIPE, "nobody writes to this pipe", str(path))
        if not piece:
            poll.poll(_TURN_MS)
            continue
        connected = True
        length += len(piece)
        if length > limit_bytes:
            raise _too_long(str(path), limit_bytes)
        pieces.append(piece)


def _too_long(name: str, limit_bytes: int) -> OSError:
    return OSError(errno.EFBIG, f"it holds more than {limit_bytes // MIB} MiB", name)


def reason(exc: OSError | UnicodeDecodeError) -> str:
    """Say why a file could not be read, without repeating its name."""
    if isinstance(exc, UnicodeDecodeError):
        return f"it is no text in UTF-8: byte {exc.start} is {exc.object[exc.start]:#04x}"
    return exc.strerror or str(exc)


def parse_json(text: str) -> object:
    """Return what a JSON text says.

    Raises:
        ValueError: It is none, or one within the other deeper than can be read.
    """
    import json

    try:
        value: object = json.loads(text)
    except RecursionError as exc:
        raise ValueError("it is nested too deeply") from exc
    return value
