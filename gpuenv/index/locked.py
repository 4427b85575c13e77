"""The files of a lock: which lie on this host, and where the rest can be had.

A lock names files by their digest, so it does not matter which source has one. What lies on this
host is read and held against the lock before a build begins; what an index sends is checked by the
installer.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuenv.index.delivery import TorchChannel, plan_delivery
from gpuenv.index.local import LocalArchive, local_links
from gpuenv.index.simple import fetch_pages
from gpuenv.lockfile import LockUnavailableError
from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from gpuenv.index.delivery import SourceDelivery
    from gpuenv.index.simple import ProjectPage, SimpleClient
    from gpuenv.index.sources import PackageSources, Source
    from gpuenv.lockfile import Lock, LockedPackage

_FIRST_STEPS = ("installer", "torch")
_CHUNK = 1 << 20


def deliver_lock(lock: Lock, client: SimpleClient) -> SourceDelivery:
    """Plan how a build gets the files of a lock from this host's sources.

    The host's own constraints and its order of indexes have had their say when the lock was made.

    Raises:
        LockUnavailableError: A file is not to be had here, or is another one than the lock names.
    """
    sources = replace(client.sources, constraints=(), index_strategy="unsafe-best-match")
    found = _find_local(lock, sources)
    pages = _ask(found, lock, client)
    torch_places = {
        source for it in lock.packages if (source := _torch_source(it, sources)) is not None
    }
    problems: list[str] = []
    carried: list[tuple[LockedPackage, LocalArchive]] = []
    channel: TorchChannel | None = None
    for package in lock.packages:
        here = found.get(package.name)
        if here is None and package.name not in {name for _, name in pages}:
            if sources.offline:
                problems.append(f"{package.file}: no folder on this host has it")
            continue
        page = _page_with(package, pages)
        if here is not None and here.archive is not None:
            if here.archive.is_named or page is None:
                carried.append((package, here.archive))
        elif page is None:
            problems += _reasons(package, here, pages)
        elif page.source in torch_places:
            channel = TorchChannel(source=page.source, flat=page.flat)
    if problems:
        raise LockUnavailableError(
            "what gpuenv.lock names cannot be had here",
            why="\n".join(problems),
            fix="add the source that has it (--wheelhouse, --extra-index-url), or lock again where "
            "it is gone: gpuenv lock --upgrade-package NAME",
            data={"missing": problems},
        )
    return plan_delivery(
        sources,
        archives=tuple(archive for it, archive in carried if it.step in _FIRST_STEPS),
        late=tuple(archive for it, archive in carried if it.step not in _FIRST_STEPS),
        torch=channel,
    )


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits."""
    state = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_CHUNK):
            state.update(piece)
    return state.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Here:
    """The files of one name on this host.

    Attributes:
        archive: The one that the lock means.
        others: Place and digest of those that it does not mean.
    """

    archive: LocalArchive | None = None
    others: tuple[tuple[str, str], ...] = ()


def _find_local(lock: Lock, sources: PackageSources) -> dict[str, _Here]:
    found: dict[str, _Here] = {}
    for package in lock.packages:
        others = []
        for source, path in _named(package, sources):
            digest = digest_of(path)
            if digest == package.sha256:
                archive = LocalArchive(
                    project=package.name, version=package.version, path=path, source=source
                )
                found[package.name] = _Here(archive=archive)
                break
            others.append((f"{path.name} in {source}", digest))
        else:
            if others:
                found[package.name] = _Here(others=tuple(others))
    return found


def _named(package: LockedPackage, sources: PackageSources) -> Iterator[tuple[Source, Path]]:
    if package.url is not None:
        return
    for source in sources.local:
        for link, _, path in local_links(source, package.name):
            if link.filename == package.file:
                yield source, path


def _torch_source(package: LockedPackage, sources: PackageSources) -> Source | None:
    """Return the PyTorch index of a package whose version names a variant: ``2.9.1+cu128``."""
    variant = package.version.partition("+")[2]
    return sources.torch_source(variant) if variant and package.step == "torch" else None


def _ask(
    found: Mapping[str, _Here], lock: Lock, client: SimpleClient
) -> dict[tuple[Source, str], ProjectPage]:
    """Ask about what lies here, and about torch and its companions; the installer asks the rest."""
    places: list[tuple[Source, str]] = []
    for package in lock.packages:
        here = found.get(package.name)
        own = _torch_source(package, client.sources)
        if here is not None and here.archive is not None and here.archive.is_named:
            continue
        if here is None and own is None and package.name != "torch":
            continue
        places += [(source, package.name) for source in client.sources.remote]
        if own is not None and (here is None or here.archive is None):
            places.append((own, package.name))
    return fetch_pages(client, places)


def _page_with(
    package: LockedPackage, pages: Mapping[tuple[Source, str], ProjectPage]
) -> ProjectPage | None:
    """Return a page that offers the very file; a page without digests is taken at its word."""
    for (_, name), page in pages.items():
        for link, _ in page.files if name == package.name else ():
            if link.filename == package.file and link.sha256 in {None, package.sha256}:
                return page
    return None


def _reasons(
    package: LockedPackage, here: _Here | None, pages: Mapping[tuple[Source, str], ProjectPage]
) -> Iterator[str]:
    for place, digest in here.others if here is not None else ():
        yield (
            f"{place} is another file than the lock names: sha256 {digest[:12]}…, "
            f"not {package.sha256[:12]}…"
        )
    if here is None:
        for (source, name), page in pages.items():
            if name != package.name:
                continue
            if page.error is not None:
                yield f"{package.file}: {page.error.what}"
            else:
                yield f"{package.file}: {source} has no file of that name and digest"
