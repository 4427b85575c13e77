"""How package sources reach the steps of a build, and leave nothing behind.

The person who writes a build does this::

    sources  = load_package_sources(os.environ, flags=...)          # this host's settings
    archives = collect_local_archives(requirements, sources, python=..., arch=...)
    planned  = plan_delivery(sources, archives=archives, torch=channel)
    context  = render_context(spec, planned.delivery)

A build cannot see this host's folders, so of a local folder or index the archives that the
requirements need, and only those, travel in the context and are offered as ``find-links``. What
travels is bound into the steps that install: no layer and no history has it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from gpuenv.spec import ContextFile, Delivery
from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuenv.index.local import LocalArchive
    from gpuenv.index.sources import PackageSources, Source
    from gpuenv.secret import Secret

MOUNT_POINT = "/run/gpuenv/host"
"""Where a delivery's files lie while a step runs; see ``gpuenv.spec.Delivery``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchChannel:
    """The PyTorch index a row's wheel comes from; ``flat`` for a bare page of links."""

    source: Source
    flat: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceDelivery:
    """What a build is given, and what its author must know beside it.

    Attributes:
        delivery: For :func:`gpuenv.render.render_context`. Its settings files name the PyTorch
            index when there is one.
        build_args: Proxy variables, to be given as build arguments: the engine knows these names
            and keeps them out of the history. They may hold credentials.
        summary: One line a source, credentials masked, for ``--dry-run`` and logs.
        secrets: Every text that must not show in the output of a step, the longest first.
    """

    delivery: Delivery
    build_args: tuple[tuple[str, Secret], ...] = ()
    summary: tuple[str, ...] = ()
    secrets: tuple[Secret, ...] = ()


def plan_delivery(
    sources: PackageSources,
    *,
    archives: tuple[LocalArchive, ...] = (),
    late: tuple[LocalArchive, ...] = (),
    torch: TorchChannel | None = None,
) -> SourceDelivery:
    """Plan the files and variables that give these sources to the steps of a build.

    An index that does not answer makes uv give up, so only the PyTorch index that the resolved row
    needs is given, and none when offline.

    Args:
        sources: This host's sources.
        archives: What of its local folders travels, from :func:`collect_local_archives`.
        late: Those that only the packages on top need.
        torch: The PyTorch index the row's wheel comes from, if it does.
    """
    remote_indexes = [s for s in sources.indexes if s.path is None]
    remote_links = [s for s in sources.links if s.path is None]
    if torch is not None and not sources.offline:
        places = remote_links if torch.flat else remote_indexes
        if torch.source not in places:
            places.insert(0, torch.source)
    wheels = {archive.path.name: archive for archive in reversed(archives)}
    settings = _InnerSettings(
        main=sources.index if sources.index in remote_indexes else None,
        indexes=tuple(remote_indexes),
        links=tuple(remote_links),
        wheels=bool(wheels),
        certificate=sources.certificate is not None,
        client_certificate=sources.client_certificate is not None,
        trusted_hosts=tuple(dict.fromkeys(host.value for host in sources.trusted_hosts)),
        strategy=sources.index_strategy,
        torch=None if torch is None else torch.source,
    )
    secrets = _secrets(sources, torch)
    files = [
        ContextFile(path="uv.toml", data=settings.uv_toml().encode(), secret=bool(secrets)),
        ContextFile(path="pip.conf", data=settings.pip_conf().encode(), secret=bool(secrets)),
    ]
    environ = []
    if sources.certificate is not None:
        files.append(ContextFile(path="ca.crt", source=sources.certificate.value))
    if sources.client_certificate is not None:
        client = sources.client_certificate.value
        files.append(ContextFile(path="client.pem", source=client, secret=True))
        environ.append(("SSL_CLIENT_CERT", f"{MOUNT_POINT}/client.pem"))
    # A row pins torch and all that comes with it; a constraint on those has had its say before.
    beside = [it.requirement for it in sources.constraints if not it.is_of_the_row]
    if beside:
        lines = "".join(f"{requirement}\n" for requirement in beside)
        files.append(ContextFile(path="constraints.txt", data=lines.encode()))
        environ.append(("UV_CONSTRAINT", f"{MOUNT_POINT}/constraints.txt"))
    files += [ContextFile(path=f"wheels/{name}", source=a.path) for name, a in wheels.items()]
    return SourceDelivery(
        delivery=Delivery(
            files=tuple(sorted(files, key=lambda file: file.path)),
            late=tuple(ContextFile(path=a.path.name, source=a.path) for a in late),
            environ=tuple(environ),
            torch_index_delivered=torch is not None,
        ),
        build_args=tuple(_proxy_arguments(sources)),
        summary=tuple(_summary(sources, settings, (*archives, *late))),
        secrets=secrets,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _InnerSettings:
    """What the settings inside the build say, independent of the installer."""

    main: Source | None
    indexes: tuple[Source, ...]
    links: tuple[Source, ...]
    wheels: bool
    certificate: bool
    client_certificate: bool
    trusted_hosts: tuple[str, ...]
    strategy: str
    torch: Source | None

    def uv_toml(self) -> str:
        """Return uv's settings."""
        lines = [f"index-strategy = {_quote(self.strategy)}"]
        if not self.indexes:
            lines.append("no-index = true")
        if places := self._places():
            lines.append(f"find-links = [{', '.join(map(_quote, places))}]")
        if self.trusted_hosts:
            lines.append(f"allow-insecure-host = [{', '.join(map(_quote, self.trusted_hosts))}]")
        # Without a default index uv would ask PyPI, which these settings may leave out.
        default = self.main or next(iter(self.indexes[::-1]), None)
        for index in self.indexes:
            lines += ["", "[[index]]", f"url = {_quote(index.url.reveal())}"]
            if index == default:
                lines.append("default = true")
            if index == self.torch:
                # It answers 403 for what it does not have, which uv takes for a refusal.
                lines.append("ignore-error-codes = [403]")
        return "\n".join(lines) + "\n"

    def pip_conf(self) -> str:
        """Return pip's settings."""
        lines = ["[global]", "disable-pip-version-check = true"]
        main = self.main or next(iter(self.indexes[::-1]), None)
        if main is None:
            lines.append("no-index = true")
        else:
            lines.append(f"index-url = {main.url.reveal()}")
            extra = [index.url.reveal() for index in self.indexes if index != main]
            lines += _block("extra-index-url", extra)
        lines += _block("find-links", self._places())
        lines += _block("trusted-host", list(self.trusted_hosts))
        if self.certificate:
            lines.append(f"cert = {MOUNT_POINT}/ca.crt")
        if self.client_certificate:
            lines.append(f"client-cert = {MOUNT_POINT}/client.pem")
        return "\n".join(lines) + "\n"

    def _places(self) -> list[str]:
        """Return what goes into find-links: the carried wheels, then pages of links."""
        own = [f"{MOUNT_POINT}/wheels"] if self.wheels else []
        return own + [place.url.reveal() for place in self.links]


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


def _summary(
    sources: PackageSources, settings: _InnerSettings, archives: tuple[LocalArchive, ...]
) -> Iterator[str]:
    for archive in archives:
        yield f"{archive.path.name} from {archive.source} ({archive.source.origin})"
    for place in settings.links:
        yield f"links on {place} ({place.origin})"
    for place in settings.indexes:
        yield f"index {place} ({place.origin})"
    if sources.certificate is not None:
        yield f"CA bundle {sources.certificate.value} ({sources.certificate.origin})"
