"""What a torch wheel says of itself, a remote one by range requests: megabytes, not the whole.

A wheel is a zip file; its directory stands at the end. So the end is read first, then the members
that matter: ``METADATA``, ``torch/version.py``, ``torch/cuda/__init__.py``, and on request the
library whose text holds the list of architectures the kernels were compiled for.
"""

from __future__ import annotations

import ast
import io
import re
import zipfile
from email.parser import HeaderParser
from typing import TYPE_CHECKING

from gpuenv.index.failures import NotOnIndexError, PackageIndexError
from gpuenv.index.links import marker_environment, parse_archive
from gpuenv.secret import redact_url
from gpuenv.versions import PythonVersion
from gpuenv.wheelfacts import WheelFacts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import IO

    from gpuenv.index.links import Link
    from gpuenv.index.simple import SimpleClient
    from gpuenv.index.sources import Source
    from gpuenv.spec import Arch
    from gpuenv.wheelfacts import ArchTable

_TAIL_BYTES = 1 << 20
_CHUNK_BYTES = 1 << 18
_ARCH_FLAGS = re.compile(rb"(?:(?:sm|compute)_[0-9]{2,3}[af]?(?: |(?=\0)))+")
_ARCHES: tuple[Arch, ...] = ("x86_64", "aarch64")
_ARCH_MEMBER = "torch/lib/libtorch_python.so"


class BrokenWheelError(PackageIndexError):
    """A wheel cannot be read: no zip file, no metadata, or a server that sends other bytes."""

    slug = "broken-wheel"


class RangeFile(io.RawIOBase):
    """A remote file that is read where :mod:`zipfile` looks, and nowhere else.

    Args:
        client: Sends the requests; its ``bytes_read`` counts.
        link: The file.
        source: Whose login is sent to the same host.

    Raises:
        BrokenWheelError: The server knows no ranges, or the file changes while it is read.
        PackageIndexError: It cannot be had.
    """

    def __init__(self, client: SimpleClient, link: Link, source: Source) -> None:
        super().__init__()
        self._client = client
        self._url = link.url.reveal()
        self._source = source
        self._blocks: list[tuple[int, bytes]] = []
        self._position = 0
        self.bytes_read = 0
        tail, self._size = self._request(f"bytes=-{_TAIL_BYTES}")
        self._blocks.append((self._size - len(tail), tail))

    @property
    def size(self) -> int:
        """The length of the whole file."""
        return self._size

    def readable(self) -> bool:
        """Say yes."""
        return True

    def seekable(self) -> bool:
        """Say yes."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a position; nothing is asked for yet."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, start + offset)
        return self._position

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def read(self, size: int = -1) -> bytes:
        """Read from the position, over the network where it was not read before."""
        left = max(0, self._size - self._position)
        wanted = left if size < 0 else min(size, left)
        parts = []
        while wanted:
            piece = self._piece(self._position, wanted)
            parts.append(piece)
            self._position += len(piece)
            wanted -= len(piece)
        return b"".join(parts)

    def _piece(self, start: int, wanted: int) -> bytes:
        for at, block in self._blocks:
            if at <= start < at + len(block):
                return block[start - at : start - at + wanted]
        # Not into a block that is here already, and not less than a good request's worth.
        end = min(start + max(wanted, _CHUNK_BYTES), self._size)
        end = min([end, *(at for at, _ in self._blocks if at > start)])
        block, size = self._request(f"bytes={start}-{end - 1}")
        if size != self._size or not block:
            raise BrokenWheelError(
                f"{redact_url(self._url)} cannot be read in parts", why="its length changes"
            )
        self._blocks.append((start, block))
        return block[:wanted]

    def _request(self, span: str) -> tuple[bytes, int]:
        # An encoded answer would be ranges of something else.
        headers = {"Range": span, "Accept-Encoding": "identity"}
        response = self._client.get(self._url, source=self._source, headers=headers)
        match = re.fullmatch(
            r"bytes ([0-9]+)-([0-9]+)/([0-9]+)", response.headers.get("Content-Range", "")
        )
        if response.status_code != 206 or match is None:  # noqa: PLR2004 - partial content
            response.close()
            raise BrokenWheelError(
                f"{redact_url(self._url)} cannot be read in parts",
                why=f"the server answers a range request with status {response.status_code}",
                fix="use an index that knows HTTP ranges",
            )
        body = self._client.body(response, limit=1 << 30)
        self.bytes_read += len(body)
        return body, int(match[3])


def read_remote_wheel(
    client: SimpleClient, link: Link, source: Source, *, deep: bool = False
) -> WheelFacts:
    """Read the facts of a remote wheel.

    Args:
        client: Sends the requests.
        link: The wheel, from a page of ``source``.
        source: The index it was found on.
        deep: Read the architecture list as well, about 10 MB.

    Raises:
        PackageIndexError: It cannot be had or read.
    """
    metadata, metadata_bytes = _separate_metadata(client, link, source)
    file = RangeFile(client, link, source)
    place = redact_url(link.url.reveal())
    facts = _read(file, link.filename, place=place, metadata=metadata, deep=deep)
    return _with_bytes(facts, file.bytes_read + metadata_bytes)


def read_local_wheel(path: Path, *, deep: bool = False) -> WheelFacts:
    """Read the facts of a wheel on this host.

    Raises:
        BrokenWheelError: It is no wheel.
    """
    with path.open("rb") as file:
        return _read(file, path.name, place=str(path), metadata=None, deep=deep)


def read_local_variant(path: Path) -> str | None:
    """Return the variant of a torch wheel on this host, ``None`` for one that cannot be read."""
    try:
        with zipfile.ZipFile(path) as archive:
            return _version_of(archive)[1]
    except (OSError, zipfile.BadZipFile, KeyError, ValueError):
        return None


def _separate_metadata(client: SimpleClient, link: Link, source: Source) -> tuple[str | None, int]:
    """Fetch ``<wheel>.metadata`` (PEP 658) where the index says it is there."""
    if not link.has_metadata:
        return None, 0
    try:
        response = client.get(f"{link.url.reveal()}.metadata", source=source, headers={})
    except NotOnIndexError:
        return None, 0  # a mirror that copies the page and not the file
    body = client.body(response)
    return body.decode("utf-8", "replace"), len(body)


def _with_bytes(facts: WheelFacts, count: int) -> WheelFacts:
    from dataclasses import replace

    return replace(facts, bytes_read=count)


def _read(
    file: IO[bytes] | RangeFile, filename: str, *, place: str, metadata: str | None, deep: bool
) -> WheelFacts:
    archive_name = parse_archive(filename)
    arch = _arch_of(filename)
    if archive_name is None or arch is None:
        raise BrokenWheelError(f"{place} is no Linux wheel", why="its name says so")
    try:
        with zipfile.ZipFile(file) as archive:
            if metadata is None:
                metadata = archive.read(_metadata_member(archive)).decode("utf-8", "replace")
            release, variant, cuda = _version_of(archive)
            table = _arch_table_of(archive)
            arch_list = _arch_list_of(archive) if deep and cuda is not None else None
    except (zipfile.BadZipFile, KeyError, ValueError, SyntaxError) as exc:
        raise BrokenWheelError(f"{place} is no torch wheel we can read", why=str(exc)) from exc
    headers = HeaderParser().parsestr(metadata)
    requires = tuple(headers.get_all("Requires-Dist", []))
    pins = dict(_pins(requires, arch))
    return WheelFacts(
        filename=filename,
        torch=release,
        variant=variant,
        arch=arch,
        cuda=cuda,
        toolkit=pins.get("cuda-toolkit"),
        cudart=pins.get("nvidia-cuda-runtime"),
        cudnn=pins.get("nvidia-cudnn"),
        nccl=pins.get("nvidia-nccl"),
        triton=pins.get("triton"),
        requires_python=headers.get("Requires-Python"),
        requires=requires,
        arch_table=table,
        arch_list=() if deep and cuda is None else arch_list,
    )


def _arch_of(filename: str) -> Arch | None:
    stem, dot, ending = filename.rpartition(".")
    platform = stem.rpartition("-")[2]
    if not dot or ending != "whl" or "linux" not in platform:
        return None
    return next((arch for arch in _ARCHES if platform.endswith(f"_{arch}")), None)


def _metadata_member(archive: zipfile.ZipFile) -> str:
    for name in archive.namelist():
        if re.fullmatch(r"torch-[^/]+\.dist-info/METADATA", name):
            return name
    raise KeyError("no METADATA in it")


def _version_of(archive: zipfile.ZipFile) -> tuple[str, str, str | None]:
    """Return release, variant and CUDA version from ``torch/version.py``.

    Sample::

        __version__ = '2.9.1+cu128'
        cuda: Optional[str] = '12.8'
    """
    tree = ast.parse(archive.read("torch/version.py").decode())
    values = {
        name: value.value for name, value in _constants(tree) if isinstance(value, ast.Constant)
    }
    release, _, local = str(values["__version__"]).partition("+")
    cuda = values.get("cuda")
    if cuda is None:
        return release, local or "cpu", None
    return release, local or f"cu{str(cuda).replace('.', '')}", str(cuda)


def _arch_table_of(archive: zipfile.ZipFile) -> ArchTable:
    """Return upstream's build table from ``torch/cuda/__init__.py``.

    Wheels before 2.11 have none, and that of 2.11 is not by machine and was corrected later: it
    counts as none too. Sample::

        PYTORCH_RELEASES_CODE_CC: dict[str, dict[str, set[int]]] = {
            "12.6": {"x86_64": {50, 60, 70}, "aarch64": {80, 90}},
        }
    """
    try:
        tree = ast.parse(archive.read("torch/cuda/__init__.py").decode())
    except KeyError:
        return ()
    for name, value in _constants(tree):
        if name == "PYTORCH_RELEASES_CODE_CC":
            table = ast.literal_eval(value)
            return tuple(
                (arch, str(cuda), tuple(f"sm_{number}" for number in sorted(by_arch[arch])))
                for cuda, by_arch in table.items()
                if isinstance(by_arch, dict)
                for arch in _ARCHES
                if arch in by_arch
            )
    return ()


def _constants(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names that a module assigns at its top, with what it assigns."""
    for node in tree.body:
        if isinstance(node, ast.Assign):
            yield from ((t.id, node.value) for t in node.targets if isinstance(t, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            yield node.target.id, node.value


def _arch_list_of(archive: zipfile.ZipFile) -> tuple[str, ...] | None:
    """Return the architectures of the kernels: the longest run of ``sm_NN`` in the library.

    It is the text that ``torch._C._cuda_getArchFlags()`` returns. Some builds have no zero byte
    before it, so only the form of the run counts.
    """
    with archive.open(_ARCH_MEMBER) as library:
        longest = max(_runs(library), key=len, default=b"")
    flags = longest.decode("ascii").split()
    return tuple(flags) if flags else None


def _runs(stream: IO[bytes]) -> Iterator[bytes]:
    """Yield the runs of flags in a stream that is too big to hold."""
    keep = b""
    while chunk := stream.read(_CHUNK_BYTES):
        window = keep + chunk
        yield from _ARCH_FLAGS.findall(window)
        keep = window[-512:]


def _pins(requires: tuple[str, ...], arch: Arch) -> Iterator[tuple[str, str]]:
    """Yield what the wheel pins on Linux, by a name without CUDA's major.

    Sample::

        nvidia-cudnn-cu12==9.10.2.21; platform_system == "Linux" and platform_machine == "x86_64"
        cuda-toolkit[cudart,nvrtc]==13.0.3; platform_system == "Linux"
        triton~=3.8.0; platform_system == "Linux"
    """
    from packaging.requirements import InvalidRequirement, Requirement

    environment = marker_environment(PythonVersion((3, 11)), arch)
    for text in requires:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        if requirement.marker is not None and not requirement.marker.evaluate(environment):
            continue
        name = re.sub(r"-cu[0-9]+$", "", requirement.name.lower())
        specifiers = list(requirement.specifier)
        if len(specifiers) == 1:
            (only,) = specifiers
            yield name, only.version if only.operator == "==" else str(only)
