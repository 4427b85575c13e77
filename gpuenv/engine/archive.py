"""Tar streams as engines like them: the same bytes every time, and no padding at the end.

An archive ends with exactly two zero blocks. Python's ``tarfile`` pads to 10240 bytes, which some
engines have stopped reading by then; they answer with a broken pipe now and then (buildah#6573).
"""

from __future__ import annotations

import io
import tarfile
from dataclasses import field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from gpuenv.errors import ConfigurationError
from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_BLOCK = tarfile.BLOCKSIZE
_END = b"\0" * (2 * _BLOCK)
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One file, folder or link of an archive.

    Attributes:
        path: Inside the archive, relative.
        content: Bytes of a file, or the file on this host to read them from; a folder has none.
        link: Target of a symbolic link.
    """

    path: str
    content: bytes | Path | None = field(default=None, repr=False)
    link: str | None = None
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    mtime: int = 0


def folder(path: str, *, mode: int = 0o755, uid: int = 0, gid: int = 0) -> Member:
    """Return the member for a folder."""
    return Member(path=path, mode=mode, uid=uid, gid=gid)


def tar_stream(members: Iterable[Member]) -> Iterator[bytes]:
    """Write members, in their order, as one tar; a file on disk is read while it streams.

    Raises:
        ConfigurationError: A file changed its size while it was read.
    """
    for member in members:
        yield from _member(member)
    yield _END


def tar_bytes(members: Iterable[Member]) -> bytes:
    """Return the whole archive; for small ones."""
    return b"".join(tar_stream(members))


def one_file(archive: bytes) -> bytes | None:
    """Return the content of the first regular file of an archive."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for info in tar:
            if info.isfile() and (reader := tar.extractfile(info)) is not None:
                return reader.read()
    return None


def _member(member: Member) -> Iterator[bytes]:
    info = tarfile.TarInfo(str(PurePosixPath(member.path)))
    info.mode, info.uid, info.gid, info.mtime = member.mode, member.uid, member.gid, member.mtime
    if member.link is not None:
        info.type, info.linkname = tarfile.SYMTYPE, member.link
    elif member.content is None:
        info.type = tarfile.DIRTYPE
    elif isinstance(member.content, bytes):
        info.size = len(member.content)
    else:
        yield from _from_disk(member.content, info)
        return
    yield info.tobuf(tarfile.PAX_FORMAT)
    if isinstance(member.content, bytes) and member.content:
        yield member.content
        yield _padding(len(member.content))


def _from_disk(path: Path, info: tarfile.TarInfo) -> Iterator[bytes]:
    with path.open("rb") as file:
        info.size = file.seek(0, io.SEEK_END)
        file.seek(0)
        yield info.tobuf(tarfile.PAX_FORMAT)
        left = info.size
        while left and (piece := file.read(min(_CHUNK, left))):
            left -= len(piece)
            yield piece
        if left or file.read(1):
            raise ConfigurationError(
                f"{path} changed while it was sent to the engine",
                why=f"it had {info.size} bytes when it was opened",
                fix="run again when nothing writes to it",
            )
        yield _padding(info.size)


def _padding(size: int) -> bytes:
    return b"\0" * (-size % _BLOCK)
