"""Archives that lie on this host, and which of them a build needs."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from contextlib import suppress
from email.parser import HeaderParser
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeAlias
from urllib.parse import unquote, urlsplit

from gpuenv.index.links import (
    Link,
    UnreadablePageError,
    best_wheel,
    marker_environment,
    normalize_name,
    parse_archive,
    parse_page,
    target_tags,
)
from gpuenv.secret import Secret
from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

    from gpuenv.index.links import Archive
    from gpuenv.index.sources import PackageSources, Source
    from gpuenv.spec import Arch
    from gpuenv.versions import PythonVersion

Elsewhere: TypeAlias = "Callable[[Mapping[str, str]], frozenset[str]]"
"""Projects and the file found of each, to the projects whose file a remote source has too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalArchive:
    """A wheel or source archive on this host that a build needs."""

    project: str
    version: str
    path: Path
    source: Source

    @property
    def is_named(self) -> bool:
        """Say whether the user named its folder on the command line."""
        return self.source.origin == "--wheelhouse"


def local_links(source: Source, project: str) -> Iterator[tuple[Link, Archive, Path]]:
    """Yield the archives of one project that lie in a folder or index on this host."""
    wanted = normalize_name(project)
    for link, path in _local_files(source, wanted):
        archive = parse_archive(link.filename)
        if archive is not None and archive.project == wanted and path.is_file():
            yield link, archive, path


def _local_files(source: Source, project: str) -> Iterator[tuple[Link, Path]]:
    root = source.path
    if root is None:
        return
    page = root if root.suffix in {".html", ".htm"} else root / project / "index.html"
    if source.kind == "local-simple-index" or page == root:
        if page.is_file():
            try:
                links = parse_page(page.read_bytes(), "text/html", page.as_uri())
            except UnreadablePageError:
                links = ()
            for link in links:
                parts = urlsplit(link.url.reveal())
                if parts.scheme == "file":
                    yield link, Path(unquote(parts.path))
            return
        root /= project
    candidates = [root] if root.is_file() else sorted(root.iterdir()) if root.is_dir() else []
    for path in candidates:
        yield Link(filename=path.name, url=Secret(path.absolute().as_uri())), path


def collect_local_archives(
    requirements: Iterable[str],
    sources: PackageSources,
    *,
    python: PythonVersion,
    arch: Arch,
    elsewhere: Elsewhere | None = None,
) -> tuple[LocalArchive, ...]:
    """Choose what of this host's folders and indexes a build needs.

    Starting from the requirements, each project's newest fitting archive is taken, and what its
    metadata requires is followed. A branch ends at a project that no local source has, and at an
    archive that a remote source has too: what a remote package needs is looked for remotely.

    Args:
        requirements: As given to the installer: ``torch==2.13.0+cpu``, ``numpy>=2``.
        sources: Where to look; constraints of the host count.
        python: The image's Python.
        arch: The image's machine.
        elsewhere: Tells which of these files remote sources have too. They are not carried, unless
            their folder was named by ``--wheelhouse``.

    Raises:
        packaging.requirements.InvalidRequirement: A requirement cannot be parsed.
    """
    chooser = _Chooser(sources, python=python, arch=arch)
    chosen = chooser.choose(requirements, elsewhere or (lambda _: frozenset()))
    return tuple(archive for _, archive in sorted(chosen.items()))


class _Chooser:
    """Follows requirements through the metadata of local archives."""

    def __init__(self, sources: PackageSources, *, python: PythonVersion, arch: Arch) -> None:
        self._sources = sources.local
        self._tags = target_tags(python, arch)
        self._python = f"{python.major}.{python.minor}"
        self._environment = marker_environment(python, arch)
        self._specifiers: dict[str, SpecifierSet] = {}
        for constraint in sources.constraints:
            requirement = constraint.parse()  # what cannot be parsed the installer names
            if (
                requirement is not None
                and not constraint.is_of_the_row
                and constraint.holds_in(self._environment)
            ):
                self._narrow(requirement)

    def choose(self, requirements: Iterable[str], elsewhere: Elsewhere) -> dict[str, LocalArchive]:
        from packaging.requirements import Requirement

        chosen: dict[str, LocalArchive] = {}
        followed: dict[str, frozenset[str]] = {}
        extras: dict[str, set[str]] = {}
        frontier = [(Requirement(text), "") for text in requirements]
        while frontier:
            for name in self._take_in(frontier, extras):
                chosen.pop(name, None)
            names = dict.fromkeys(normalize_name(requirement.name) for requirement, _ in frontier)
            found = {n: a for n in names if n in extras and (a := self._newest(n)) is not None}
            remote = elsewhere({n: a.path.name for n, a in found.items() if not a.is_named})
            frontier = []
            for name, archive in found.items():
                if name in remote:
                    continue
                chosen[name] = archive
                wanted = frozenset({f"{archive.path.name}[{extra}]" for extra in extras[name]})
                if followed.get(name) != wanted:
                    followed[name] = wanted
                    needs = _requires(archive.path)
                    frontier += [(r, extra) for extra in sorted(extras[name]) for r in needs]
        return chosen

    def _take_in(
        self, frontier: list[tuple[Requirement, str]], extras: dict[str, set[str]]
    ) -> set[str]:
        """Narrow the choice by the requirements that hold here; return the projects concerned."""
        names = set()
        for requirement, extra in frontier:
            marker = requirement.marker
            if marker is not None and not marker.evaluate({**self._environment, "extra": extra}):
                continue
            name = normalize_name(requirement.name)
            names.add(name)
            self._narrow(requirement)
            extras.setdefault(name, {""}).update(requirement.extras)
        return names

    def _narrow(self, requirement: Requirement) -> None:
        name = normalize_name(requirement.name)
        known = self._specifiers.get(name)
        self._specifiers[name] = (
            requirement.specifier if known is None else known & requirement.specifier
        )

    def _newest(self, name: str) -> LocalArchive | None:
        from packaging.specifiers import InvalidSpecifier, SpecifierSet

        found: list[tuple[Link, Archive]] = []
        places: dict[int, tuple[Path, Source]] = {}
        specifier = self._specifiers[name]
        for source in self._sources:
            for link, archive, path in local_links(source, name):
                try:
                    fits = SpecifierSet(link.requires_python or "").contains(self._python)
                except InvalidSpecifier:
                    fits = True
                if fits and link.yanked is None and specifier.contains(archive.version):
                    found.append((link, archive))
                    places[id(link)] = (path, source)
        best = best_wheel(found, self._tags)
        if best is None:
            best = max(
                (pair for pair in found if not pair[1].is_wheel),
                key=lambda pair: pair[1].version,
                default=None,
            )
        if best is None:
            return None
        path, source = places[id(best[0])]
        return LocalArchive(project=name, version=str(best[1].version), path=path, source=source)


def _requires(path: Path) -> tuple[Requirement, ...]:
    """Return what a local wheel requires; nothing for a source archive or a broken file."""
    from packaging.requirements import InvalidRequirement, Requirement

    if path.suffix != ".whl":
        return ()
    try:
        headers = HeaderParser().parsestr(read_metadata(path))
    except (OSError, zipfile.BadZipFile, KeyError):
        return ()
    found = []
    for text in headers.get_all("Requires-Dist", []):
        with suppress(InvalidRequirement):  # the installer names it
            found.append(Requirement(text))
    return tuple(found)


def read_metadata(path: Path) -> str:
    """Return the ``METADATA`` of a wheel.

    A torch wheel has 12 000 members, and :mod:`zipfile` makes an object of each before it gives
    one. So the directory is searched for the one entry, and only a directory of another form
    (zip64, a comment at its end) is left to :mod:`zipfile`.

    Raises:
        zipfile.BadZipFile: It is no zip file.
        KeyError: It has no such member.
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        text = _find_metadata(file, path.stat().st_size)
    if text is not None:
        return text
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if name.count("/") == 1 and name.encode().endswith(_METADATA):
                return archive.read(name).decode("utf-8", "replace")
    raise KeyError("METADATA")


def metadata_wheel(path: Path) -> bytes:
    """Return a wheel that has the metadata of another and nothing else.

    Enough for a resolver, which asks what a wheel requires: a torch wheel is gigabytes, this one is
    kilobytes.

    Raises:
        zipfile.BadZipFile: It is no zip file.
        KeyError: It has no metadata.
        OSError: It cannot be read.
    """
    folder = "-".join(path.name.split("-")[:2]) + ".dist-info"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in (
            ("METADATA", read_metadata(path)),
            ("WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n"),
            ("RECORD", ""),
        ):
            # With a time of its own each would be another file to the engine's cache.
            archive.writestr(zipfile.ZipInfo(f"{folder}/{name}"), text)
    return buffer.getvalue()


_METADATA = b".dist-info/METADATA"
_NAME_MAX = 256
_END = struct.Struct("<4s4H2LH")  # end of the central directory, without its comment
_ENTRY = struct.Struct("<4s6H3L5H2L")  # an entry of it, without its name
_LOCAL = struct.Struct("<4s5H3L2H")  # what stands before a member's bytes, without its name


def _find_metadata(file: IO[bytes], size: int) -> str | None:
    if size < _END.size:
        return None
    file.seek(size - _END.size)
    mark, *_, length, start, comment = _END.unpack(file.read(_END.size))
    if mark != b"PK\5\6" or comment or start + length != size - _END.size:
        return None
    file.seek(start)
    directory = file.read(length)
    found = directory.find(_METADATA)
    while found >= 0:
        end = found + len(_METADATA)
        for at in range(found - 1, max(found - _NAME_MAX, _ENTRY.size) - 1, -1):
            head = directory[at - _ENTRY.size : at]
            # The entry's own length says where its name begins, and "/" is in it once.
            if head[:4] == b"PK\1\2" and b"/" not in directory[at:found]:
                entry = _ENTRY.unpack(head)
                if entry[10] == end - at:
                    return _read_member(file, method=entry[4], packed=entry[8], offset=entry[-1])
        found = directory.find(_METADATA, end)
    return None


def _read_member(file: IO[bytes], *, method: int, packed: int, offset: int) -> str | None:
    file.seek(offset)
    mark, *_, name, extra = _LOCAL.unpack(file.read(_LOCAL.size))
    if mark != b"PK\3\4" or method not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
        return None
    file.seek(name + extra, 1)
    content = file.read(packed)
    if method == zipfile.ZIP_DEFLATED:
        content = zlib.decompress(content, -zlib.MAX_WBITS)
    return content.decode("utf-8", "replace")
