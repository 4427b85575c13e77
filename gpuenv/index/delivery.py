"""How package sources reach the inside of one build step, and leave nothing behind.

The person who writes a build does this::

    sources  = load_package_sources(os.environ, flags=...)          # this host's settings
    archives = collect_local_archives(requirements, sources, python=..., arch=...)
    delivery = plan_delivery(sources, archives=archives, torch=channel)

and gets a :class:`~gpuenv.packages.SourceDelivery`: files to put into the build context and to bind
into one ``RUN``, the variables of that step, build arguments. A bind mount from the context is in
no layer and no history; what the files say (also a password) is part of the step's cache key.

A build cannot see this host's folders, so of a local folder or index the archives that the
requirements need, and only those, travel in the context and are offered as ``find-links``.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from contextlib import suppress
from dataclasses import dataclass
from email.parser import HeaderParser
from typing import TYPE_CHECKING

from gpuenv.index.links import (
    Link,
    UnreadablePageError,
    best_wheel,
    normalize_name,
    parse_archive,
    parse_page,
    target_tags,
)
from gpuenv.packages import CarriedFile, SourceDelivery
from gpuenv.secret import Secret

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

    from gpuenv.index.links import Archive
    from gpuenv.index.sources import PackageSources, Source
    from gpuenv.spec import Arch
    from gpuenv.versions import PythonVersion

MOUNT_POINT = "/run/gpuenv/sources"
_TAIL_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalArchive:
    """A wheel or source archive on this host that a build needs."""

    project: str
    version: str
    path: Path
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchChannel:
    """The PyTorch index a row's wheel comes from; ``flat`` for a bare page of links."""

    source: Source
    flat: bool = False


def local_links(source: Source, project: str) -> Iterator[tuple[Link, Archive, Path]]:
    """Yield the archives of one project that lie in a folder or index on this host."""
    wanted = normalize_name(project)
    for link, path in _local_files(source, wanted):
        archive = parse_archive(link.filename)
        if archive is not None and archive.project == wanted and path.is_file():
            yield link, archive, path


def _local_files(source: Source, project: str) -> Iterator[tuple[Link, Path]]:
    from pathlib import Path
    from urllib.parse import unquote, urlsplit

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
    elsewhere: Mapping[str, frozenset[str]] | None = None,
) -> tuple[LocalArchive, ...]:
    """Choose what of this host's folders and indexes a build needs.

    Starting from the requirements, each project's newest fitting archive is taken, and what its
    metadata requires is followed. A project that no local source has ends its branch.

    Args:
        requirements: As given to the installer: ``torch==2.13.0+cpu``, ``numpy>=2``.
        sources: Where to look; constraints of the host count.
        python: The image's Python.
        arch: The image's machine.
        elsewhere: File names by project that a remote source offers as well. They are not carried,
            unless the folder was named by ``--wheelhouse``.

    Raises:
        packaging.requirements.InvalidRequirement: A requirement cannot be parsed.
    """
    chooser = _Chooser(sources, python=python, arch=arch)
    chosen = chooser.choose(requirements)
    elsewhere = elsewhere or {}
    return tuple(
        archive
        for project, archive in sorted(chosen.items())
        if archive.source.origin == "--wheelhouse"
        or archive.path.name not in elsewhere.get(project, frozenset())
    )


class _Chooser:
    """Follows requirements through the metadata of local archives."""

    def __init__(self, sources: PackageSources, *, python: PythonVersion, arch: Arch) -> None:
        from packaging.requirements import InvalidRequirement, Requirement

        self._sources = sources.local
        self._tags = target_tags(python, arch)
        self._python = f"{python.major}.{python.minor}"
        self._environment = {
            "implementation_name": "cpython",
            "implementation_version": f"{self._python}.0",
            "os_name": "posix",
            "platform_machine": arch,
            "platform_python_implementation": "CPython",
            "platform_release": "",
            "platform_system": "Linux",
            "platform_version": "",
            "python_full_version": f"{self._python}.0",
            "python_version": self._python,
            "sys_platform": "linux",
        }
        self._specifiers: dict[str, SpecifierSet] = {}
        for constraint in sources.constraints:
            try:
                requirement = Requirement(constraint.requirement)
            except InvalidRequirement:
                continue  # the installer names it, with its line
            if requirement.marker is None or requirement.marker.evaluate(self._environment):
                self._narrow(requirement)

    def choose(self, requirements: Iterable[str]) -> dict[str, LocalArchive]:
        from packaging.requirements import Requirement

        chosen: dict[str, LocalArchive] = {}
        extras: dict[str, set[str]] = {}
        queue = [(Requirement(text), "") for text in requirements]
        while queue:
            requirement, extra = queue.pop(0)
            marker = requirement.marker
            if marker is not None and not marker.evaluate({**self._environment, "extra": extra}):
                continue
            name = normalize_name(requirement.name)
            before = (self._specifiers.get(name), frozenset(extras.get(name, ())))
            self._narrow(requirement)
            extras.setdefault(name, {""}).update(requirement.extras)
            if name in chosen and before == (self._specifiers[name], frozenset(extras[name])):
                continue
            archive = self._newest(name)
            if archive is None:
                chosen.pop(name, None)
                continue
            if chosen.get(name) == archive and before[1] == frozenset(extras[name]):
                continue
            chosen[name] = archive
            queue += [(r, e) for e in sorted(extras[name]) for r in _requires(archive.path)]
        return chosen

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
        with zipfile.ZipFile(path) as archive:
            name = next(
                n
                for n in archive.namelist()
                if n.count("/") == 1 and n.endswith(".dist-info/METADATA")
            )
            headers = HeaderParser().parsestr(archive.read(name).decode("utf-8", "replace"))
    except (OSError, zipfile.BadZipFile, StopIteration):
        return ()
    found = []
    for text in headers.get_all("Requires-Dist", []):
        with suppress(InvalidRequirement):  # the installer names it
            found.append(Requirement(text))
    return tuple(found)


def plan_delivery(
    sources: PackageSources,
    *,
    archives: tuple[LocalArchive, ...] = (),
    torch: TorchChannel | None = None,
    mount_point: str = MOUNT_POINT,
) -> SourceDelivery:
    """Plan the files and variables that give these sources to one build step.

    An index that does not answer makes uv give up, so only the PyTorch index that the resolved row
    needs is given, and none when offline.

    Args:
        sources: This host's sources.
        archives: What of its local folders travels, from :func:`collect_local_archives`.
        torch: The PyTorch index the row's wheel comes from, if it does.
        mount_point: Where the build mounts the files.
    """
    remote_indexes = [s for s in sources.indexes if s.path is None]
    remote_links = [s for s in sources.links if s.path is None]
    if torch is not None and not sources.offline:
        (remote_links if torch.flat else remote_indexes).insert(0, torch.source)
    main = sources.index if sources.index in remote_indexes else None
    wheels = {f"wheels/{archive.path.name}": archive for archive in reversed(archives)}
    plan = _Plan(
        main=main,
        indexes=tuple(remote_indexes),
        links=tuple(remote_links),
        wheel_dir=f"{mount_point}/wheels" if wheels else None,
        certificate=f"{mount_point}/ca.pem" if sources.certificate else None,
        client=f"{mount_point}/client.pem" if sources.client_certificate else None,
        trusted_hosts=tuple(dict.fromkeys(host.value for host in sources.trusted_hosts)),
        strategy=sources.index_strategy,
        torch=None if torch is None else torch.source,
    )
    files = [
        CarriedFile(name="uv.toml", content=Secret(plan.uv_toml(hide=False))),
        CarriedFile(name="pip.conf", content=Secret(plan.pip_conf(hide=False))),
    ]
    environment = [
        ("UV_CONFIG_FILE", f"{mount_point}/uv.toml"),
        ("PIP_CONFIG_FILE", f"{mount_point}/pip.conf"),
    ]
    if sources.certificate is not None and plan.certificate is not None:
        files.append(CarriedFile(name="ca.pem", path=sources.certificate.value))
        names = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
        environment += [(name, plan.certificate) for name in names]
    if sources.client_certificate is not None and plan.client is not None:
        files.append(CarriedFile(name="client.pem", path=sources.client_certificate.value))
        environment.append(("SSL_CLIENT_CERT", plan.client))
    constraints: tuple[str, ...] = ()
    if sources.constraints:
        text = "".join(f"{c.requirement}\n" for c in sources.constraints)
        files.append(CarriedFile(name="constraints.txt", content=Secret(text)))
        constraints = (f"{mount_point}/constraints.txt",)
    files += [CarriedFile(name=name, path=a.path) for name, a in sorted(wheels.items())]
    return SourceDelivery(
        mount_point=mount_point,
        files=tuple(files),
        environment=tuple(environment),
        constraints=constraints,
        build_args=tuple(_proxy_arguments(sources)),
        digest=_digest(plan, files),
        summary=tuple(_summary(sources, plan, archives)),
        secrets=_secrets(sources, torch),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What the settings inside the build say, independent of the installer."""

    main: Source | None
    indexes: tuple[Source, ...]
    links: tuple[Source, ...]
    wheel_dir: str | None
    certificate: str | None
    client: str | None
    trusted_hosts: tuple[str, ...]
    strategy: str
    torch: Source | None

    def uv_toml(self, *, hide: bool) -> str:
        """Return uv's settings; ``hide`` leaves the credentials out."""
        lines = [f"index-strategy = {_quote(self.strategy)}"]
        if not self.indexes:
            lines.append("no-index = true")
        places = [*([self.wheel_dir] if self.wheel_dir else []), *self._urls(self.links, hide)]
        if places:
            lines.append(f"find-links = [{', '.join(map(_quote, places))}]")
        if self.trusted_hosts:
            lines.append(f"allow-insecure-host = [{', '.join(map(_quote, self.trusted_hosts))}]")
        for index, url in zip(self.indexes, self._urls(self.indexes, hide), strict=True):
            lines += ["", "[[index]]", f"url = {_quote(url)}"]
            if index == self.main:
                lines.append("default = true")
            if index == self.torch:
                # It answers 403 for what it does not have, which uv takes for a refusal.
                lines.append("ignore-error-codes = [403]")
        if self.main is None and self.indexes:
            # Without a default index uv would ask PyPI, which these settings leave out.
            position = len(lines) - 1 - lines[::-1].index("[[index]]")
            lines.insert(position + 2, "default = true")
        return "\n".join(lines) + "\n"

    def pip_conf(self, *, hide: bool) -> str:
        """Return pip's settings; ``hide`` leaves the credentials out."""
        lines = ["[global]", "disable-pip-version-check = true"]
        urls = dict(zip(self.indexes, self._urls(self.indexes, hide), strict=True))
        main = self.main if self.main is not None else next(iter(self.indexes), None)
        if main is None:
            lines.append("no-index = true")
        else:
            lines.append(f"index-url = {urls[main]}")
            lines += _block("extra-index-url", [u for s, u in urls.items() if s != main])
        places = [*([self.wheel_dir] if self.wheel_dir else []), *self._urls(self.links, hide)]
        lines += _block("find-links", places)
        lines += _block("trusted-host", list(self.trusted_hosts))
        if self.certificate:
            lines.append(f"cert = {self.certificate}")
        if self.client:
            lines.append(f"client-cert = {self.client}")
        return "\n".join(lines) + "\n"

    @staticmethod
    def _urls(sources: tuple[Source, ...], hide: bool) -> list[str]:
        return [s.location if hide else s.url.reveal() for s in sources]


def _block(option: str, values: list[str]) -> list[str]:
    return [f"{option} =", *(f"    {value}" for value in values)] if values else []


def _quote(text: str) -> str:
    """Write a TOML basic string; JSON's escapes are a subset of TOML's."""
    return json.dumps(text, ensure_ascii=False)


def _proxy_arguments(sources: PackageSources) -> Iterator[tuple[str, Secret]]:
    if sources.offline:
        return
    for scheme, proxy in sources.proxies:
        # Programs differ in which spelling they read; the engine knows both as its own.
        for name in (f"{scheme}_proxy", f"{scheme}_proxy".upper()):
            yield name, proxy.value


def _secrets(sources: PackageSources, torch: TorchChannel | None) -> tuple[Secret, ...]:
    every = {*sources.secrets(), *(torch.source.secrets() if torch is not None else ())}
    return tuple(sorted(every, key=lambda s: (-len(s.reveal()), s.reveal())))


def _digest(plan: _Plan, files: list[CarriedFile]) -> str:
    """Digest what the packages offered depend on; a password is not part of it.

    A hash that stands in an image's history must not be a way to test guesses of a password.
    """
    total = hashlib.sha256()
    total.update(plan.uv_toml(hide=True).encode())
    for file in files:
        total.update(f"\0{file.name}\0".encode())
        if file.path is not None and file.name != "client.pem":
            with file.path.open("rb") as stream:
                size = file.path.stat().st_size
                stream.seek(max(0, size - _TAIL_BYTES))
                # The end of a wheel is its directory, with a checksum of every member.
                total.update(f"{size}\0".encode() + stream.read())
        elif file.content is not None and file.name == "constraints.txt":
            total.update(file.content.reveal().encode())
    return total.hexdigest()


def _summary(
    sources: PackageSources, plan: _Plan, archives: tuple[LocalArchive, ...]
) -> Iterator[str]:
    for archive in archives:
        yield f"{archive.path.name} from {archive.source} ({archive.source.origin})"
    for place in plan.links:
        yield f"links on {place} ({place.origin})"
    for place in plan.indexes:
        yield f"index {place} ({place.origin})"
    if sources.certificate is not None:
        yield f"CA bundle {sources.certificate.value} ({sources.certificate.origin})"
