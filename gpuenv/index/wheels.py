"""Which source has the wheel of a matrix row: ask, then decide.

Asking (:func:`ask_for_wheels`, short requests in parallel) and deciding (:func:`find_wheel`, pure)
are apart. A build does this::

    client  = SimpleClient(sources)
    local   = scan_wheelhouse(sources)                               # torch wheels on this host
    answers = ask_for_wheels([(key, "pytorch"), (key, "pypi")], client, local=local)
    known   = availability_of(answers, local=local, sources=sources)  # for the matrix
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias
from urllib.parse import urlsplit

from gpuenv.index.failures import IndexRefusedError, NotOnIndexError
from gpuenv.index.links import Link, best_wheel, marker_environment, target_tags
from gpuenv.index.local import local_links
from gpuenv.index.simple import fetch_pages
from gpuenv.index.sources import PYTORCH_URL
from gpuenv.index.wheel import read_local_variant
from gpuenv.secret import Secret
from gpuenv.spec import Availability, WheelKey
from gpuenv.values import dataclass
from gpuenv.versions import PythonVersion, TorchVersion

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from packaging.version import Version

    from gpuenv.index.links import Archive
    from gpuenv.index.simple import ProjectPage, SimpleClient
    from gpuenv.index.sources import Constraint, PackageSources, Source
    from gpuenv.spec import Arch, WheelSource

WheelState: TypeAlias = Literal["available", "missing", "unreachable"]
Question: TypeAlias = "tuple[WheelKey, WheelSource]"
Pages: TypeAlias = "Mapping[tuple[Source, str], ProjectPage]"

_ARCHES: tuple[Arch, ...] = ("x86_64", "aarch64")


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalTorch:
    """A torch wheel on this host, and the rows it serves."""

    keys: frozenset[WheelKey]
    path: Path
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelAnswer:
    """Whether one source has one wheel.

    Attributes:
        reason: Why not, in a sentence; empty when available.
        place: The very index or folder that has it.
        silent: No place of this kind answered, so none of its wheels can be had.
        flat: ``place`` is a bare page of links, not a simple repository.
        link: The file.
    """

    key: WheelKey
    source: WheelSource
    state: WheelState
    reason: str = ""
    silent: bool = False
    place: Source | None = None
    flat: bool = False
    link: Link | None = None

    @property
    def filename(self) -> str | None:
        """The wheel's file name."""
        return None if self.link is None else self.link.filename


def scan_wheelhouse(sources: PackageSources) -> tuple[LocalTorch, ...]:
    """Find the torch wheels in this host's folders; offline in its local indexes too.

    A local index that could be asked over the network as well is left to the indexes: what lies
    there is what they offer, and copying gigabytes into a build context has to have a reason.
    """
    places = sources.local if sources.offline else sources.find_links
    found = []
    for source in places:
        for _, archive, path in local_links(source, "torch"):
            variant = archive.local_tag or read_local_variant(path)
            if archive.is_wheel and variant is not None:
                keys = frozenset(_keys_of(archive, variant))
                found.append(LocalTorch(keys=keys, path=path, source=source))
    return tuple(found)


def _keys_of(archive: Archive, variant: str) -> Iterator[WheelKey]:
    for tag in archive.tags:
        interpreter, arch = tag.interpreter, next((a for a in _ARCHES if a in tag.platform), None)
        # cp313t, the free-threaded build, is another Python.
        if arch is None or tag.abi != interpreter or not interpreter.startswith("cp3"):
            continue
        yield WheelKey(
            torch=TorchVersion.parse(archive.version.base_version),
            variant=variant,
            python=PythonVersion.parse(f"3.{interpreter[3:]}"),
            arch=arch,
        )


def ask_for_wheels(
    questions: Iterable[Question],
    client: SimpleClient,
    *,
    local: tuple[LocalTorch, ...] = (),
    time_limit_s: float = 20.0,
) -> tuple[WheelAnswer, ...]:
    """Ask each source for each wheel, all at once, within a time limit.

    Args:
        questions: Wheels and the kind of source the matrix expects them at.
        client: Who asks.
        local: From :func:`scan_wheelhouse`, for questions about ``wheelhouse``.
        time_limit_s: For all requests together; a source that is silent is ``unreachable``.
    """
    asked = tuple(questions)
    sources = client.sources
    places = [(it, "torch") for key, source in asked for it in places_of(key, source, sources)]
    pages = fetch_pages(client, places, time_limit_s=time_limit_s)
    return tuple(
        find_wheel(key, source, pages=pages, sources=sources, local=local) for key, source in asked
    )


def places_of(key: WheelKey, source: WheelSource, sources: PackageSources) -> tuple[Source, ...]:
    """Return where a wheel of that kind of source may be, in order."""
    pages = tuple(s for s in sources.links if s.path is None)
    if source == "wheelhouse":
        return ()
    if source == "pytorch":
        torch = sources.torch_source(key.variant)
        return (*((torch,) if torch is not None else ()), *sources.indexes, *pages)
    return (*sources.indexes, *pages)


def find_wheel(
    key: WheelKey,
    source: WheelSource,
    *,
    pages: Pages,
    sources: PackageSources,
    local: tuple[LocalTorch, ...] = (),
) -> WheelAnswer:
    """Decide from what was answered whether a source has a wheel."""
    if refusal := constraint_against(key, sources):
        return WheelAnswer(key=key, source=source, state="missing", reason=refusal)
    if source == "wheelhouse":
        return _find_local(key, local)
    problems: list[tuple[WheelState, str]] = []
    torch = sources.torch_source(key.variant) if source == "pytorch" else None
    for place in places_of(key, source, sources):
        page = pages.get((place, "torch"))
        if page is None:
            continue
        if page.error is not None:
            problems.append(_problem(page, place))
            continue
        # PyPI's default has no variant in its name, and some cpu wheels of the PyTorch index have
        # none either; anywhere else the name must say it.
        plain = source == "pypi" or (place == torch and key.variant == "cpu")
        fitting = [pair for pair in page.files if _fits(pair[1], key, plain=plain)]
        best = best_wheel(fitting, target_tags(key.python, key.arch))
        if best is not None:
            return _available(key, source, page, best[0])
        problems.append(("missing", f"{place} has {_what_there_is(page, key, plain=plain)}"))
    if not problems:
        return WheelAnswer(
            key=key, source=source, state="missing", reason=_no_place(source, sources)
        )
    state: WheelState = "unreachable" if any(s == "unreachable" for s, _ in problems) else "missing"
    reasons = [reason for found, reason in problems if found == state]
    return WheelAnswer(
        key=key,
        source=source,
        state=state,
        reason="; ".join(reasons),
        silent=all(found == "unreachable" for found, _ in problems),
    )


def constraint_against(key: WheelKey, sources: PackageSources) -> str:
    """Return which constraint of this host rules a torch version out, or an empty text."""
    environment = marker_environment(key.python, key.arch)
    for it in torch_constraints(sources):
        allowed = it.specifier.contains(str(key.torch), prereleases=True)
        if it.holds_in(environment) and not allowed:
            return f"this host allows only {it.requirement} ({it.origin})"
    return ""


def torch_constraints(sources: PackageSources) -> tuple[Constraint, ...]:
    """Return the constraints of this host on torch itself."""
    return tuple(it for it in sources.constraints if it.project == "torch")


def availability_of(
    answers: Sequence[WheelAnswer], *, local: tuple[LocalTorch, ...], sources: PackageSources
) -> Availability:
    """Put the answers into the form that the matrix resolves with."""
    allowed = (key for wheel in local for key in wheel.keys if not constraint_against(key, sources))
    return Availability(
        wheelhouse=frozenset(allowed),
        missing=tuple(
            (a.key, a.source, a.reason) for a in answers if a.state != "available" and not a.silent
        ),
        unreachable=tuple(dict.fromkeys((a.source, a.reason) for a in answers if a.silent)),
        only_wheelhouse=sources.offline,
    )


def _find_local(key: WheelKey, local: tuple[LocalTorch, ...]) -> WheelAnswer:
    for wheel in local:
        if key in wheel.keys:
            return WheelAnswer(
                key=key,
                source="wheelhouse",
                state="available",
                place=wheel.source,
                link=Link(
                    filename=wheel.path.name,
                    url=Secret(wheel.path.absolute().as_uri()),
                    size=wheel.path.stat().st_size,
                ),
            )
    return WheelAnswer(
        key=key,
        source="wheelhouse",
        state="missing",
        reason=f"no folder of wheels has {_label(key)}",
    )


def _available(key: WheelKey, source: WheelSource, page: ProjectPage, link: Link) -> WheelAnswer:
    return WheelAnswer(
        key=key,
        source=source,
        state="available",
        place=page.source,
        flat=page.flat,
        link=link,
    )


def _fits(archive: Archive, key: WheelKey, *, plain: bool) -> bool:
    if not archive.is_wheel or not _is_release(archive.version, key):
        return False
    return archive.local_tag == key.variant or (plain and archive.local_tag is None)


def _is_release(version: Version, key: WheelKey) -> bool:
    return not version.is_prerelease and TorchVersion.parse(version.base_version) == key.torch


def _problem(page: ProjectPage, place: Source) -> tuple[WheelState, str]:
    error = page.error
    assert error is not None  # noqa: S101 - the caller has looked
    if isinstance(error, NotOnIndexError):
        return "missing", f"{place} has no torch"
    if isinstance(error, IndexRefusedError) and _is_pytorch_index(place):
        # Its storage answers 403 for a variant it never had.
        return "missing", f"{place} does not exist"
    return "unreachable", f"{error.what}: {error.why}" if error.why else error.what


def _is_pytorch_index(place: Source) -> bool:
    return place.host == urlsplit(PYTORCH_URL).hostname


def _what_there_is(page: ProjectPage, key: WheelKey, *, plain: bool) -> str:
    """Say what comes nearest: no such version, or it, but not for this Python or machine."""
    fitting = [archive for _, archive in page.files if _fits(archive, key, plain=plain)]
    label = f"torch {key.torch}" if plain else _label(key)
    if not fitting:
        return f"no {label}"
    tags = {tag for archive in fitting for tag in archive.tags}
    here = {t for t in tags if key.arch in t.platform}
    if not here:
        return f"{label}, but not for {key.arch}"
    pythons = sorted({t.interpreter for t in here}, key=lambda name: (len(name), name))
    return f"{label} for {key.arch}, but only for {', '.join(pythons)}"


def _no_place(source: WheelSource, sources: PackageSources) -> str:
    if sources.offline:
        return "offline: only folders on this host are used"
    return f"no index is set for wheels of {source}"


def _label(key: WheelKey) -> str:
    return f"torch {key.torch}+{key.variant}"
