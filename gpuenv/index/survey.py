"""Read what the indexes say about many torch wheels: the fetching half of verify and update.

Nothing is decided here; :mod:`gpuenv.matrix.verify` and :mod:`gpuenv.matrix.update` decide from the
:class:`~gpuenv.wheelfacts.Survey` this makes.
"""

from __future__ import annotations

import zipfile
from dataclasses import replace
from email.parser import HeaderParser
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from gpuenv.index.failures import NotOnIndexError, PackageIndexError
from gpuenv.index.links import normalize_name
from gpuenv.index.parallel import run_in_parallel
from gpuenv.index.simple import SimpleClient, fetch_pages
from gpuenv.index.wheel import BrokenWheelError, RangeFile, read_local_wheel, read_remote_wheel
from gpuenv.index.wheels import find_wheel, places_of
from gpuenv.spec import WheelKey
from gpuenv.wheelfacts import (
    CompanionReading,
    PackageListing,
    ReleaseListing,
    Survey,
    WheelReading,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from packaging.version import Version

    from gpuenv.index.links import Archive, Link
    from gpuenv.index.simple import ProjectPage
    from gpuenv.index.sources import PackageSources, Source
    from gpuenv.index.wheels import Pages, WheelAnswer
    from gpuenv.spec import Arch
    from gpuenv.wheelfacts import WantedWheel

_ARCHES: tuple[Arch, ...] = ("x86_64", "aarch64")
_READERS = 4
_TIME_LIMIT_S = 1800.0


def without_constraints(sources: PackageSources) -> PackageSources:
    """Return sources that judge an index by what it has, not by what this host installs of it."""
    return replace(sources, constraints=())


def list_releases(client: SimpleClient) -> tuple[ReleaseListing, ...]:
    """Return the torch releases of the main index that carry no variant in their name.

    Raises:
        PackageIndexError: The index cannot be asked.
    """
    source = client.sources.index
    if source is None:
        raise NotOnIndexError(
            "there is no package index to ask",
            why="the settings of pip or uv say no-index",
            fix="name one with --index-url",
        )
    page = client.project_page(source, "torch")
    if page.error is not None:
        raise page.error
    return releases_on(page)


def releases_on(page: ProjectPage) -> tuple[ReleaseListing, ...]:
    """Read the releases out of a page: version, machine, Pythons and the day of upload."""
    pythons: dict[tuple[Version, Arch], set[int]] = {}
    days: dict[tuple[Version, Arch], set[str]] = {}
    for link, archive in page.files:
        version = archive.version
        if (
            not archive.is_wheel
            or version.local
            or version.is_prerelease
            or link.yanked is not None
        ):
            continue
        for minor, arch in _builds(archive):
            pythons.setdefault((version, arch), set()).add(minor)
            if link.upload_time:
                days.setdefault((version, arch), set()).add(link.upload_time[:10])
    return tuple(
        ReleaseListing(
            torch=version.base_version,
            arch=arch,
            pythons=tuple(f"3.{minor}" for minor in sorted(pythons[version, arch])),
            released=min(days.get((version, arch), ()), default=None),
        )
        for version, arch in sorted(pythons)
    )


def _builds(archive: Archive) -> Iterable[tuple[int, Arch]]:
    """Yield Python minor and machine of each CPython 3 build in a wheel's tags."""
    for tag in archive.tags:
        interpreter, number = tag.interpreter, tag.interpreter[3:]
        if not interpreter.startswith("cp3") or tag.abi.rstrip("m") != interpreter:
            continue  # cp313t, the free-threaded build, is another Python
        for arch in _ARCHES:
            if "linux" in tag.platform and tag.platform.endswith(f"_{arch}"):
                yield int(number), arch


def survey_wheels(
    client: SimpleClient,
    wanted: Sequence[WantedWheel],
    *,
    packages: Iterable[str] = (),
    companions: Iterable[tuple[str, str]] = (),
    deep: bool = False,
    on_read: Callable[[WheelReading], None] | None = None,
) -> Survey:
    """Read wheels and list packages; what cannot be read is in the survey with its reason.

    Args:
        client: Asks the indexes.
        wanted: The wheels.
        packages: Projects whose versions are listed.
        companions: ``(project, version)`` whose requirement on torch is read.
        deep: Read the architecture lists too, about 10 MB a wheel.
        on_read: Told about each wheel as it is done, from another thread.

    Raises:
        PackageIndexError: The main index cannot be asked at all.
    """
    releases = list_releases(client)
    index = client.sources.index
    pages = _pages(client, wanted)
    jobs = [_reader(client, it, pages, deep=deep, on_read=on_read) for it in wanted]
    readings = run_in_parallel(jobs, time_limit_s=_TIME_LIMIT_S, workers=_READERS)
    return Survey(
        index=index.location if index is not None else "",
        deep=deep,
        releases=releases,
        readings=tuple(
            reading if reading is not None else _unread(it, "it took too long")
            for it, reading in zip(wanted, readings, strict=True)
        ),
        packages=list_packages(client, packages),
        companions=read_companions(client, companions),
        bytes_read=client.bytes_read,
    )


def _pages(client: SimpleClient, wanted: Sequence[WantedWheel]) -> Pages:
    places = [
        (place, "torch")
        for it in wanted
        for place in places_of(_key(it, it.variant or "cpu"), it.source, client.sources)
    ]
    return fetch_pages(client, places, time_limit_s=120.0)


def _key(it: WantedWheel, variant: str) -> WheelKey:
    return WheelKey(torch=it.torch, variant=variant, python=it.python, arch=it.arch)


def _reader(
    client: SimpleClient,
    it: WantedWheel,
    pages: Pages,
    *,
    deep: bool,
    on_read: Callable[[WheelReading], None] | None,
) -> Callable[[], WheelReading]:
    def read() -> WheelReading:
        answer = find_wheel(
            _key(it, it.variant or "cpu"), it.source, pages=pages, sources=client.sources
        )
        reading = _read_answer(client, it, answer, deep=deep)
        if on_read is not None:
            on_read(reading)
        return reading

    return read


def _read_answer(
    client: SimpleClient, it: WantedWheel, answer: WheelAnswer, *, deep: bool
) -> WheelReading:
    if answer.link is None or answer.place is None:
        return _unread(it, answer.reason)
    try:
        if answer.place.path is not None:
            path = Path(unquote(urlsplit(answer.link.url.reveal()).path))
            facts = read_local_wheel(path, deep=deep)
        else:
            facts = read_remote_wheel(client, answer.link, answer.place, deep=deep)
    except PackageIndexError as error:
        return _unread(it, f"{error.what}: {error.why}" if error.why else error.what)
    return WheelReading(
        torch=str(it.torch),
        variant=it.variant or facts.variant,
        arch=it.arch,
        facts=facts,
        place=answer.place.location,
    )


def _unread(it: WantedWheel, reason: str) -> WheelReading:
    return WheelReading(torch=str(it.torch), variant=it.variant or "", arch=it.arch, reason=reason)


def list_packages(client: SimpleClient, projects: Iterable[str]) -> tuple[PackageListing, ...]:
    """List the versions of projects over all indexes of this host."""
    names = sorted({normalize_name(name) for name in projects})
    sources = client.sources.indexes
    pages = fetch_pages(
        client, [(source, name) for source in sources for name in names], time_limit_s=120.0
    )
    return tuple(_listing(name, [pages[source, name] for source in sources]) for name in names)


def _listing(name: str, pages: Sequence[ProjectPage]) -> PackageListing:
    withdrawn: dict[Version, bool] = {}
    for page in pages:
        for link, archive in page.files:
            gone = link.yanked is not None
            withdrawn[archive.version] = withdrawn.get(archive.version, True) and gone
    errors = [page.error for page in pages if page.error is not None]
    unknown = [error for error in errors if not isinstance(error, NotOnIndexError)]
    return PackageListing(
        project=name,
        versions=tuple((str(version), withdrawn[version]) for version in sorted(withdrawn)),
        reason=f"{unknown[0].what}: {unknown[0].why}" if unknown and not withdrawn else "",
    )


def read_companions(
    client: SimpleClient, wanted: Iterable[tuple[str, str]]
) -> tuple[CompanionReading, ...]:
    """Read what releases of companions require of torch, out of one wheel of each."""
    pairs = sorted(set(wanted))
    if not pairs:
        return ()
    sources = client.sources.indexes
    pages = fetch_pages(
        client, [(source, name) for source in sources for name, _ in pairs], time_limit_s=120.0
    )

    def job(project: str, version: str) -> Callable[[], CompanionReading]:
        found = [pages[source, project] for source in sources]
        return lambda: _read_companion(client, found, project, version)

    jobs = [job(normalize_name(project), version) for project, version in pairs]
    readings = run_in_parallel(jobs, time_limit_s=_TIME_LIMIT_S, workers=_READERS)
    return tuple(reading for reading in readings if reading is not None)


def _read_companion(
    client: SimpleClient, pages: Sequence[ProjectPage], project: str, version: str
) -> CompanionReading:
    found = [
        (page.source, link)
        for page in pages
        for link, archive in page.files
        if str(archive.version) == version and link.filename.endswith("x86_64.whl")
    ]
    requires: str | None = None
    if found:
        source, link = found[0]
        try:
            requires = _requirement_on_torch(client, source, link)
        except (PackageIndexError, zipfile.BadZipFile, StopIteration):
            requires = None
    days = [link.upload_time[:10] for _, link in found if link.upload_time]
    return CompanionReading(
        project=project,
        version=version,
        requires_torch=requires,
        released=min(days, default=None),
    )


def _requirement_on_torch(client: SimpleClient, source: Source, link: Link) -> str:
    from packaging.requirements import Requirement

    with _open(client, source, link) as archive:
        member = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        text = archive.read(member).decode("utf-8", "replace")
    for line in HeaderParser().parsestr(text).get_all("Requires-Dist", []):
        requirement = Requirement(line)
        if normalize_name(requirement.name) == "torch":
            return str(requirement.specifier)
    return ""


def _open(client: SimpleClient, source: Source, link: Link) -> zipfile.ZipFile:
    file: Any
    if source.path is not None:
        file = Path(unquote(urlsplit(link.url.reveal()).path))
    else:
        file = RangeFile(client, link, source)
    try:
        return zipfile.ZipFile(file)
    except (OSError, zipfile.BadZipFile) as exc:
        raise BrokenWheelError(f"{link.filename} is no wheel", why=str(exc)) from exc
