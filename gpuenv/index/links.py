"""Pure: pages of package indexes to links, and file names to what they hold."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urljoin, urlsplit

from gpuenv.secret import Secret
from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from packaging.tags import Tag
    from packaging.version import Version

    from gpuenv.spec import Arch
    from gpuenv.versions import PythonVersion

JSON_TYPE = "application/vnd.pypi.simple.v1+json"
ACCEPT = f"{JSON_TYPE}, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
_ARCHIVE_ENDS = (".whl", ".tar.gz", ".zip")


class UnreadablePageError(ValueError):
    """A page is no page of a package index; translated where its address is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A file that an index offers.

    Attributes:
        url: Where it is; a query in it may be a signature.
        has_metadata: ``<url>.metadata`` exists (PEP 658).
        yanked: The reason, possibly empty, when the file was withdrawn; else ``None``.
    """

    filename: str
    url: Secret
    sha256: str | None = None
    size: int | None = None
    requires_python: str | None = None
    has_metadata: bool = False
    yanked: str | None = None
    upload_time: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """What a file name says: project, version and, of a wheel, the tags it runs under."""

    project: str
    version: Version
    build: tuple[int, str] | tuple[()]
    tags: frozenset[Tag]

    @property
    def is_wheel(self) -> bool:
        """Say whether it can be installed without building it."""
        return bool(self.tags)

    @property
    def local_tag(self) -> str | None:
        """The local part of the version, ``cu128`` of ``2.8.0+cu128``."""
        return self.version.local


@lru_cache(maxsize=4096)
def normalize_name(name: str) -> str:
    """Return the one spelling of a project name that indexes use (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def parse_archive(filename: str) -> Archive | None:
    """Read a file name, or return ``None`` for one that is neither a wheel nor a source archive.

    Very old names that today's rules refuse are no archives either. The rules are those of
    ``packaging.utils``; its own functions are not used for wheels because a page has thousands of
    names with few different versions and tags.
    """
    if not filename.endswith(".whl"):
        return _parse_source_archive(filename)
    parts = filename.removesuffix(".whl").split("-")
    build: tuple[int, str] | tuple[()] = ()
    if len(parts) == _PARTS_WITH_BUILD:
        number = re.match(r"[0-9]+", parts.pop(2))
        if number is None:
            return None
        build = (int(number[0]), filename.split("-")[2][number.end() :])
    if len(parts) != _PARTS or not _WHEEL_NAME.fullmatch(parts[0]):
        return None
    version = _parse_version(parts[1])
    if version is None:
        return None
    tags = _parse_tags("-".join(parts[2:]))
    return Archive(project=normalize_name(parts[0]), version=version, build=build, tags=tags)


_WHEEL_NAME = re.compile(r"[\w.]+", re.ASCII)
_PARTS = 5
_PARTS_WITH_BUILD = 6


@lru_cache(maxsize=4096)
def _parse_version(text: str) -> Version | None:
    from packaging.version import InvalidVersion, Version

    try:
        return Version(text)
    except InvalidVersion:
        return None


@lru_cache(maxsize=4096)
def _parse_tags(text: str) -> frozenset[Tag]:
    from packaging.tags import parse_tag

    return parse_tag(text)


def _parse_source_archive(filename: str) -> Archive | None:
    from packaging.utils import InvalidSdistFilename, parse_sdist_filename

    try:
        name, version = parse_sdist_filename(filename)
    except InvalidSdistFilename:
        return None
    return Archive(project=name, version=version, build=(), tags=frozenset())


def parse_page(body: bytes, content_type: str, base_url: str) -> tuple[Link, ...]:
    """Read one page of an index, JSON (PEP 691) or HTML (PEP 503, or any page of links).

    Raises:
        UnreadablePageError: It is neither, or of a newer major version than we know.
    """
    kind = content_type.partition(";")[0].strip().lower()
    if kind.endswith("json"):
        return tuple(_links_of_json(body, base_url))
    if kind in {"text/html", "application/vnd.pypi.simple.v1+html", "application/xhtml+xml", ""}:
        return tuple(_links_of_html(body, base_url))
    raise UnreadablePageError(f"its type is {kind!r}, neither HTML nor JSON")


def _links_of_json(body: bytes, base_url: str) -> Iterator[Link]:
    try:
        page = json.loads(body)
        version = str(page.get("meta", {}).get("api-version", "1.0"))
        files = page["files"]
        if version.partition(".")[0] != "1":
            raise UnreadablePageError(f"its API version is {version}; we read 1")
        for entry in files:
            yield _link_of_entry(entry, base_url)
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        if isinstance(exc, UnreadablePageError):
            raise
        raise UnreadablePageError("it is no JSON page of a package index") from exc


def _link_of_entry(entry: dict[str, Any], base_url: str) -> Link:
    metadata = entry.get("core-metadata", entry.get("dist-info-metadata", False))
    yanked = entry.get("yanked", False)
    url = str(entry["url"])
    return Link(
        filename=str(entry["filename"]),
        url=Secret(url if url.startswith("https://") else urljoin(base_url, url)),
        sha256=entry.get("hashes", {}).get("sha256"),
        size=entry.get("size"),
        requires_python=entry.get("requires-python"),
        has_metadata=bool(metadata),
        yanked=None if yanked is False else ("" if yanked is True else str(yanked)),
        upload_time=entry.get("upload-time"),
    )


class _Anchors(HTMLParser):
    """Collects the anchors and the base address of a page."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.base: str | None = None
        self.anchors: list[dict[str, str | None]] = []
        self.is_html = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.is_html = True
        if tag == "base" and self.base is None:
            self.base = dict(attrs).get("href")
        elif tag == "a":
            self.anchors.append(dict(attrs))

    def handle_decl(self, decl: str) -> None:
        self.is_html = self.is_html or decl.lower().startswith("doctype html")


def _links_of_html(body: bytes, base_url: str) -> Iterator[Link]:
    parser = _Anchors()
    parser.feed(body.decode("utf-8", "replace"))
    parser.close()
    if not parser.is_html:
        raise UnreadablePageError("it is no HTML page")
    base = urljoin(base_url, parser.base) if parser.base else base_url
    for anchor in parser.anchors:
        href = (anchor.get("href") or "").strip()
        try:
            parts = urlsplit(urljoin(base, href))
        except ValueError:
            continue  # an address for people, not for us
        # The last part of the path is percent-encoded: torch-2.8.0%2Bcu128-...
        filename = unquote(parts.path.rpartition("/")[2])
        if not filename.endswith(_ARCHIVE_ENDS):
            continue
        algorithm, _, digest = parts.fragment.partition("&")[0].partition("=")
        yield Link(
            filename=filename,
            url=Secret(parts._replace(fragment="").geturl()),
            sha256=digest.lower() if algorithm == "sha256" and digest else None,
            requires_python=anchor.get("data-requires-python"),
            has_metadata=("data-core-metadata" in anchor or "data-dist-info-metadata" in anchor),
            yanked=(anchor["data-yanked"] or "") if "data-yanked" in anchor else None,
        )


def marker_environment(python: PythonVersion, arch: Arch) -> dict[str, str]:
    """Return what environment markers see inside an image."""
    version = f"{python.major}.{python.minor}"
    return {
        "extra": "",
        "implementation_name": "cpython",
        "implementation_version": f"{version}.0",
        "os_name": "posix",
        "platform_machine": arch,
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": f"{version}.0",
        "python_version": version,
        "sys_platform": "linux",
    }


def target_tags(
    python: PythonVersion, arch: Arch, *, glibc: tuple[int, int] = (2, 35)
) -> tuple[Tag, ...]:
    """Return the tags of wheels that run in an image, the best first.

    Args:
        python: CPython's major and minor version.
        arch: The image's machine.
        glibc: The C library's version in the image; 2.35 (Ubuntu 22.04) is the oldest base.
    """
    from packaging.tags import compatible_tags, cpython_tags

    version = (python.major, python.minor)
    platforms = list(_platforms(arch, glibc))
    interpreter = f"cp{python.major}{python.minor}"
    return (
        *cpython_tags(version, abis=[interpreter], platforms=platforms),
        *compatible_tags(version, interpreter=interpreter, platforms=platforms),
    )


def _platforms(arch: Arch, glibc: tuple[int, int]) -> Iterator[str]:
    legacy = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
    lowest = 5 if arch == "x86_64" else 17
    for minor in range(glibc[1], lowest - 1, -1):
        yield f"manylinux_{glibc[0]}_{minor}_{arch}"
        if minor in legacy:
            yield f"{legacy[minor]}_{arch}"
    yield f"linux_{arch}"


def best_wheel(
    links: Iterable[tuple[Link, Archive]], tags: tuple[Tag, ...]
) -> tuple[Link, Archive] | None:
    """Return the newest wheel that runs under ``tags``; of one version the best tag and build."""
    rank = {tag: -position for position, tag in enumerate(tags)}
    pairs = list(links)
    fitting = [
        (archive.version, max(rank[t] for t in archive.tags & rank.keys()), archive.build, n)
        for n, (_, archive) in enumerate(pairs)
        if archive.tags & rank.keys()
    ]
    return pairs[max(fitting)[-1]] if fitting else None
