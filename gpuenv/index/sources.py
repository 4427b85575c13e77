"""The places packages come from, as frozen values: no file is read and no address is asked here."""

from __future__ import annotations

import base64
import re
from dataclasses import field
from typing import TYPE_CHECKING, Generic, Literal, TypeAlias, TypeVar
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit, urlunsplit

from gpuenv.errors import ConfigurationError
from gpuenv.secret import MASK, Secret, redact_text, redact_url
from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

SourceKind: TypeAlias = Literal["local-dir", "local-simple-index", "remote"]
IndexStrategy: TypeAlias = Literal["first-index", "unsafe-first-match", "unsafe-best-match"]

PYPI_URL = "https://pypi.org/simple"
PYTORCH_URL = "https://download.pytorch.org/whl"

_SEPARATORS = re.compile(r"[-_.]+")
_OF_THE_ROW = frozenset({"torch", "torchvision", "torchaudio", "triton", "pytorch-triton"})
_VARIANT = re.compile(r"cpu|xpu|cu[0-9]{2,3}|rocm[0-9.]+")
_SHORTEST_HIDDEN = 4
T = TypeVar("T")


class PackageSettingsError(ConfigurationError):
    """A setting of pip or uv, or a flag about package sources, cannot be used."""

    slug = "package-settings"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting(Generic[T]):
    """A value and where it was set: ``/etc/pip.conf [global]``, ``PIP_CERT``, ``--ca-bundle``."""

    value: T
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One place that packages come from; made by :meth:`remote` or :meth:`local`.

    Attributes:
        kind: ``local-dir`` (a folder, or one file, of archives), ``local-simple-index`` (a simple
            repository on disk) or ``remote``.
        location: Address or path for messages, credentials masked.
        origin: Where it was set.
        path: The folder or file; ``None`` for ``remote``.
        name: uv's name of the index.
    """

    kind: SourceKind
    location: str
    origin: str
    path: Path | None = None
    name: str | None = None
    url: Secret = field(default_factory=lambda: Secret(""))

    @classmethod
    def remote(
        cls,
        url: str,
        *,
        origin: str,
        name: str | None = None,
        login: tuple[str, Secret] | None = None,
    ) -> Source:
        """Make a remote source; a login within ``url`` wins over ``login``.

        Raises:
            PackageSettingsError: ``url`` is no http or https address.
        """
        parts = split_url(url, origin=origin)
        if login is not None and parts.username is None:
            netloc = f"{':'.join(quote(t, safe='') for t in (login[0], login[1].reveal()))}@"
            url = urlunsplit(parts._replace(netloc=netloc + parts.netloc))
        return cls(
            kind="remote", location=redact_url(url), origin=origin, name=name, url=Secret(url)
        )

    @classmethod
    def local(
        cls, path: Path, kind: Literal["local-dir", "local-simple-index"], *, origin: str
    ) -> Source:
        """Make a source of a folder or file on this host."""
        return cls(
            kind=kind, location=str(path), origin=origin, path=path, url=Secret(path.as_uri())
        )

    @property
    def host(self) -> str:
        """The host name of a remote source, else an empty text."""
        return urlsplit(self.url.reveal()).hostname or ""

    @property
    def bare_url(self) -> Secret:
        """The address without user name and password; a token in its query is still there."""
        return Secret(without_login(self.url.reveal()))

    @property
    def login(self) -> tuple[str, Secret] | None:
        """User name and password, percent-decoded, or ``None``."""
        parts = urlsplit(self.url.reveal())
        if parts.username is None:
            return None
        return unquote(parts.username), Secret(unquote(parts.password or ""))

    def secrets(self) -> Iterator[Secret]:
        """Yield each text of the address that must not be seen."""
        parts = urlsplit(self.url.reveal())
        if parts.username is not None:
            user, password = unquote(parts.username), unquote(parts.password or "")
            yield Secret(base64.b64encode(f"{user}:{password}".encode()).decode())
            # A token often stands in the user's place and then has no password beside it.
            for text in (parts.password, password) if password else (parts.username, user):
                if text:
                    yield Secret(text)
        for _, text in parse_qsl(parts.query):
            yield Secret(text)

    def __str__(self) -> str:
        return self.location


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """One line of a constraints file, ``torch<=2.14.1``, and the file it stands in."""

    requirement: str
    origin: str

    @property
    def project(self) -> str:
        """The project it is about; empty for a line that cannot be parsed."""
        parsed = self.parse()
        return "" if parsed is None else _SEPARATORS.sub("-", parsed.name).lower()

    @property
    def specifier(self) -> SpecifierSet:
        """The versions it allows; all, for a line that cannot be parsed."""
        from packaging.specifiers import SpecifierSet

        parsed = self.parse()
        return SpecifierSet() if parsed is None else parsed.specifier

    def holds_in(self, environment: Mapping[str, str]) -> bool:
        """Say whether its marker, if it has one, is true."""
        parsed = self.parse()
        if parsed is None or parsed.marker is None:
            return parsed is not None
        return parsed.marker.evaluate(dict(environment))

    @property
    def is_of_the_row(self) -> bool:
        """Say whether it is about what a matrix row pins: torch, its companions, CUDA's wheels."""
        return self.project in _OF_THE_ROW or self.project.startswith(("nvidia-", "cuda-"))

    def parse(self) -> Requirement | None:
        """Return the requirement, ``None`` for a line the installer would refuse."""
        from packaging.requirements import InvalidRequirement, Requirement

        try:
            return Requirement(self.requirement)
        except InvalidRequirement:
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageSources:
    """Everything this host says about where packages come from; see ``load_package_sources``.

    Attributes:
        index: The main index; ``None`` when pip or uv may use none (``no-index``).
        extra_indexes: Further indexes, in the order they were given.
        find_links: Folders and link pages; ``--wheelhouse`` first.
        torch_index: Root of the PyTorch indexes, or the address of one, or a pattern with
            ``{variant}``; see :meth:`torch_source`.
        certificate: The CA bundle that answers for https; ``None`` for the default.
        client_certificate: A PEM file with our own certificate and key.
        trusted_hosts: Hosts whose certificate is not checked, ``host`` or ``host:port``.
        proxies: ``(scheme, proxy address)``: ``http``, ``https`` or ``all``; ``no`` lists the
            hosts that are reached without.
        constraints: Versions the host's settings rule out.
        offline: Use local folders and indexes alone.
        timeout_s: For one answer of an index, ``None`` when the host says nothing.
        warnings: What was ignored and why, in sentences.
    """

    index: Source | None
    extra_indexes: tuple[Source, ...] = ()
    find_links: tuple[Source, ...] = ()
    torch_index: Setting[Secret] = Setting(value=Secret(PYTORCH_URL), origin="default")
    certificate: Setting[Path] | None = None
    client_certificate: Setting[Path] | None = None
    trusted_hosts: tuple[Setting[str], ...] = ()
    proxies: tuple[tuple[str, Setting[Secret]], ...] = ()
    constraints: tuple[Constraint, ...] = ()
    index_strategy: IndexStrategy = "unsafe-best-match"
    offline: bool = False
    timeout_s: float | None = None
    torch_login: tuple[str, Secret] | None = None
    warnings: tuple[str, ...] = ()

    @property
    def indexes(self) -> tuple[Source, ...]:
        """Every index that may be used, the main one first; local ones alone when offline."""
        main = () if self.index is None else (self.index,)
        every = (*main, *self.extra_indexes)
        return tuple(s for s in every if s.path is not None) if self.offline else every

    @property
    def links(self) -> tuple[Source, ...]:
        """Every find-links place that may be used; local ones alone when offline."""
        every = self.find_links
        return tuple(s for s in every if s.path is not None) if self.offline else every

    @property
    def local(self) -> tuple[Source, ...]:
        """The sources on this host: find-links first, then indexes."""
        return tuple(s for s in (*self.find_links, *self.indexes) if s.path is not None)

    @property
    def remote(self) -> tuple[Source, ...]:
        """The sources reached over the network, none when offline."""
        return tuple(s for s in (*self.indexes, *self.links) if s.path is None)

    def torch_source(self, variant: str) -> Source | None:
        """Return the index of one wheel variant, or ``None`` where there is none.

        ``https://download.pytorch.org/whl`` becomes ``…/whl/cu128``, a ``{variant}`` is filled in,
        and an address that already ends in a variant serves that one alone.
        """
        if self.offline:
            return None
        address, origin = self.torch_index.value.reveal(), self.torch_index.origin
        if "{variant}" in address:
            address = address.replace("{variant}", variant)
        else:
            parts = urlsplit(address)
            last = parts.path.rstrip("/").rpartition("/")[2]
            if _VARIANT.fullmatch(last):
                if last != variant:
                    return None
            else:
                address = urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{variant}"))
        return Source.remote(
            address, origin=origin, name=f"pytorch-{variant}", login=self.torch_login
        )

    def secrets(self) -> tuple[Secret, ...]:
        """Return every text that must not be seen, the longest first."""
        found = [s for source in (*self.indexes, *self.find_links) for s in source.secrets()]
        if (torch := self.torch_source("cpu") or self.torch_source("cu128")) is not None:
            found += torch.secrets()
        for scheme, proxy in self.proxies:
            if scheme != "no" and "@" in proxy.value.reveal():
                found += Source.remote(proxy.value.reveal(), origin=proxy.origin).secrets()
        return tuple(sorted(set(found), key=lambda s: (-len(s.reveal()), s.reveal())))

    def redact(self, text: str) -> str:
        """Return ``text``, a line of a log say, without any of our credentials."""
        for secret in self.secrets():
            # Hiding every "a" of a log helps nobody; within addresses short ones go all the same.
            if len(secret.reveal()) >= _SHORTEST_HIDDEN:
                text = text.replace(secret.reveal(), MASK)
        return redact_text(text)


def split_url(url: str, *, origin: str) -> SplitResult:
    """Split an address of packages.

    Raises:
        PackageSettingsError: It is no http or https address.
    """
    try:
        parts = urlsplit(url)
        good = parts.scheme in {"http", "https"} and bool(parts.hostname)
        _ = parts.port
    except ValueError:
        good, parts = False, urlsplit("")
    if not good or re.search(r"[\s\x00-\x1f\x7f\"'\\]", url):
        raise PackageSettingsError(
            f"{redact_url(url)!r} is not an address of packages",
            why=f"it was set by {origin}",
            fix="give https://HOST/PATH, file:///PATH or the path of a folder",
        )
    return parts


def without_login(url: str) -> str:
    """Return an address without user name and password."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
