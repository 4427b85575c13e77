"""One answer from all that this host says about packages: flags, uv, pip, netrc, proxies.

Typical use, in a command::

    sources = load_package_sources(os.environ, flags=SourceFlags(wheelhouse=("./wheels",)))

Who wins, field by field: an explicit flag, then uv's own setting (it is uv that installs), then
pip's, then the default. Single values replace one another; ``--extra-index-url`` and
``--wheelhouse`` come before what the host has, as they do for pip. Nothing is asked over the
network and no program runs.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast, get_args
from urllib.parse import unquote, urlsplit

from gpuenv.index.pip_config import load_pip_settings
from gpuenv.index.sources import (
    PYPI_URL,
    PYTORCH_URL,
    Constraint,
    IndexStrategy,
    PackageSettingsError,
    PackageSources,
    Setting,
    Source,
    split_url,
)
from gpuenv.index.uv_config import load_uv_settings
from gpuenv.reading import read_named_text
from gpuenv.secret import Secret, redact_url
from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from netrc import netrc

    from gpuenv.index.pip_config import PipSettings
    from gpuenv.index.uv_config import UvSettings

Login = tuple[str, Secret]
_CERTIFICATE_VARIABLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFlags:
    """The flags about package sources, as the user wrote them."""

    index_url: str | None = None
    extra_index_url: tuple[str, ...] = ()
    torch_index_url: str | None = None
    wheelhouse: tuple[str, ...] = ()
    ca_bundle: str | None = None
    offline: bool = False


def load_package_sources(
    environ: Mapping[str, str],
    *,
    flags: SourceFlags | None = None,
    cwd: Path | None = None,
    root: Path = Path("/"),
    prefix: Path | None = None,
) -> PackageSources:
    """Read every setting of this host about packages.

    Args:
        environ: The process's environment.
        flags: Explicit flags; what they name must exist, while a folder that a settings file names
            and that is gone is only a warning, as it is for pip.
        cwd: What relative paths are relative to; the working directory by default.
        root: Where the system's own folders (``/etc``) lie; tests move it.
        prefix: The virtual environment whose ``pip.conf`` counts; by default the active one, else
            the one gpuenv itself runs in.

    Raises:
        PackageSettingsError: A file cannot be read, or an address or a path cannot be used.
    """
    flags = flags or SourceFlags()
    if prefix is None:
        prefix = Path(environ.get("VIRTUAL_ENV") or sys.prefix)
    cwd = Path.cwd() if cwd is None else cwd
    reader = _HostReader(
        environ=environ,
        flags=flags,
        cwd=cwd,
        pip=load_pip_settings(environ, root=root, prefix=prefix),
        uv=load_uv_settings(environ, cwd=cwd, root=root),
    )
    return reader.sources()


class _HostReader:
    """Puts the settings of one host together; keeps what was odd as warnings."""

    def __init__(
        self,
        *,
        environ: Mapping[str, str],
        flags: SourceFlags,
        cwd: Path,
        pip: PipSettings,
        uv: UvSettings,
    ) -> None:
        self._environ = environ
        self._flags = flags
        self._cwd = cwd
        self._pip = pip
        self._uv = uv
        self._warnings: list[str] = []
        self._netrc = self._load_netrc()

    def sources(self) -> PackageSources:
        index, extra, flat = self._indexes()
        torch, torch_login = self._torch_index()
        certificate = self._certificate()
        timeout = self._pip.one("timeout") or self._pip.one("default-timeout")
        return PackageSources(
            index=index,
            extra_indexes=_once(extra),
            find_links=_once([*self._find_links(), *flat]),
            torch_index=torch,
            torch_login=torch_login,
            certificate=certificate,
            client_certificate=self._file("client-cert"),
            trusted_hosts=self._trusted_hosts(),
            proxies=self._proxies(),
            constraints=tuple(self._constraints()),
            index_strategy=self._strategy(),
            offline=self._flags.offline or self._uv.offline,
            timeout_s=self._seconds(timeout),
            warnings=tuple(self._warnings),
        )

    # Indexes and link pages.

    def _indexes(self) -> tuple[Source | None, list[Source], list[Source]]:
        """Return the main index, the others, and what uv calls flat indexes."""
        main: Source | None = None
        flat: list[Source] = []
        extra = [
            self._source(url, "--extra-index-url", index=True, must_exist=True)
            for url in self._flags.extra_index_url
        ]
        for setting in self._uv.indexes:
            uv_index = setting.value
            source = self._source(
                uv_index.url,
                setting.origin,
                index=not uv_index.flat,
                base=uv_index.base,
                name=uv_index.name,
                login=self._uv.login_of(uv_index),
            )
            if uv_index.flat:
                flat.append(source)
            elif uv_index.default:
                main = main or source
            else:
                extra.append(source)
        if not any(not i.value.default and not i.value.flat for i in self._uv.indexes):
            extra += [
                self._source(s.value, s.origin, index=True)
                for s in self._pip.many("extra-index-url")
            ]
        if self._flags.index_url is not None:
            main = self._source(self._flags.index_url, "--index-url", index=True, must_exist=True)
        elif self._uv.no_index or self._pip.flag("no-index"):
            return None, [s for s in extra if s.origin == "--extra-index-url"], flat
        if main is None:
            of_pip = self._pip.one("index-url") or self._pip.one("pypi-url")
            main = (
                self._source(of_pip.value, of_pip.origin, index=True)
                if of_pip
                else self._source(PYPI_URL, "default", index=True)
            )
        return main, self._that_exist(extra), self._that_exist(flat)

    def _find_links(self) -> list[Source]:
        named = [
            self._source(path, "--wheelhouse", index=False, must_exist=True)
            for path in self._flags.wheelhouse
        ]
        of_uv = [
            self._source(place, s.origin, index=False, base=base)
            for s in self._uv.find_links
            for place, base in (s.value,)
        ]
        of_pip = [
            self._source(s.value, s.origin, index=False) for s in self._pip.many("find-links")
        ]
        return named + self._that_exist(of_uv or of_pip)

    def _torch_index(self) -> tuple[Setting[Secret], Login | None]:
        if self._flags.torch_index_url is None:
            return Setting(value=Secret(PYTORCH_URL), origin="default"), None
        url, origin = self._flags.torch_index_url, "--torch-index-url"
        split_url(url.replace("{variant}", "cpu"), origin=origin)
        return Setting(value=Secret(url), origin=origin), self._login(url)

    def _source(
        self,
        place: str,
        origin: str,
        *,
        index: bool,
        base: Path | None = None,
        name: str | None = None,
        login: Login | None = None,
        must_exist: bool = False,
    ) -> Source:
        """Tell what a place is: an address, or a path in one of its spellings."""
        if place.startswith("file:"):
            parts = urlsplit(place)
            if parts.netloc not in {"", "localhost"}:
                split_url(place, origin=origin)  # names the fault
            path = Path(unquote(parts.path))
        elif _SCHEME.match(place):
            return Source.remote(place, origin=origin, name=name, login=login or self._login(place))
        else:
            path = Path(place)
            if place.startswith("~"):
                path = Path(self._environ.get("HOME", "~")) / place[1:].lstrip("/")
        path = (base or self._cwd) / path
        if must_exist and not path.exists():
            raise PackageSettingsError(
                f"{str(path)!r} does not exist",
                why=f"it was given with {origin}",
                fix="give the path of a folder that is there, or an address",
            )
        kind: Literal["local-dir", "local-simple-index"]
        kind = "local-simple-index" if index else "local-dir"
        return Source.local(path, kind, origin=origin)

    def _that_exist(self, sources: Iterable[Source]) -> list[Source]:
        found = []
        for source in sources:
            if source.path is None or source.path.exists():
                found.append(source)
            else:
                self._warnings.append(
                    f"{source.location} ({source.origin}) does not exist and is left out"
                )
        return found

    # Credentials, certificates, proxies.

    def _login(self, url: str) -> Login | None:
        host = urlsplit(url).hostname
        found = self._netrc.authenticators(host) if self._netrc and host else None
        return (found[0] or found[1] or "", Secret(found[2] or "")) if found else None

    def _load_netrc(self) -> netrc | None:
        import netrc as netrc_module

        home = self._environ.get("HOME")
        own = self._environ.get("NETRC")
        candidates = [Path(own)] if own else []
        candidates += (
            [Path(home) / name for name in (".netrc", "_netrc")] if home and not own else []
        )
        for path in candidates:
            if not path.is_file():
                continue
            try:
                return netrc_module.netrc(path)
            except (netrc_module.NetrcParseError, OSError, UnicodeDecodeError):
                self._warnings.append(f"{path} cannot be read; its passwords are not used")
        return None

    def _certificate(self) -> Setting[Path] | None:
        if self._flags.ca_bundle is not None:
            given = Setting(value=self._flags.ca_bundle, origin="--ca-bundle")
        else:
            in_environ = (
                Setting(value=value, origin=name)
                for name in _CERTIFICATE_VARIABLES
                if (value := self._environ.get(name))
            )
            given_or_none = self._pip.one("cert") or next(in_environ, None)
            if given_or_none is None:
                return None
            given = given_or_none
        path = self._cwd / Path(given.value).expanduser()
        if path.is_file():
            return Setting(value=path, origin=given.origin)
        if given.origin in _CERTIFICATE_VARIABLES:
            self._warnings.append(f"{path} ({given.origin}) is no file and is left out")
            return None
        raise PackageSettingsError(
            f"the CA bundle {str(path)!r} is no file",
            why=f"it was set by {given.origin}",
            fix="give a PEM file with the certificates to trust",
        )

    def _file(self, option: str) -> Setting[Path] | None:
        setting = self._pip.one(option)
        if setting is None:
            return None
        path = self._cwd / Path(setting.value).expanduser()
        if path.is_file():
            return Setting(value=path, origin=setting.origin)
        raise PackageSettingsError(
            f"{option} {str(path)!r} is no file",
            why=f"it was set by {setting.origin}",
            fix="correct the path or take the setting away",
        )

    def _trusted_hosts(self) -> tuple[Setting[str], ...]:
        hosts = self._uv.trusted_hosts or self._pip.many("trusted-host")
        for host in hosts:
            if not re.fullmatch(
                r"\*|[A-Za-z0-9._-]+(:[0-9]+)?|\[[0-9a-fA-F:]+\](:[0-9]+)?", host.value
            ):
                raise PackageSettingsError(
                    f"{host.value!r} is no host name",
                    why=f"it was set by {host.origin}",
                    fix="write HOST or HOST:PORT",
                )
        return hosts

    def _proxies(self) -> tuple[tuple[str, Setting[Secret]], ...]:
        own = self._pip.one("proxy")
        if own is not None:
            setting = Setting(value=Secret(own.value), origin=own.origin)
            return (("http", setting), ("https", setting))
        found = []
        for scheme in ("http", "https", "all", "no"):
            for name in (f"{scheme}_proxy", f"{scheme.upper()}_PROXY"):
                if value := self._environ.get(name):
                    found.append((scheme, Setting(value=Secret(value), origin=name)))
                    break
        return tuple(found)

    # The rest.

    def _strategy(self) -> IndexStrategy:
        setting = self._uv.index_strategy
        if setting is None:
            # Where uv has indexes of its own, uv's default is meant; else pip's way, which looks
            # for the best version in all places.
            return "first-index" if self._uv.indexes else "unsafe-best-match"
        if setting.value not in get_args(IndexStrategy):
            raise PackageSettingsError(
                f"{setting.value!r} is no index strategy",
                why=f"it was set by {setting.origin}",
                fix=f"write one of {', '.join(get_args(IndexStrategy))}",
            )
        return cast("IndexStrategy", setting.value)

    def _seconds(self, setting: Setting[str] | None) -> float | None:
        if setting is None:
            return None
        try:
            seconds = float(setting.value)
        except ValueError:
            seconds = 0.0
        if seconds > 0:
            return seconds
        self._warnings.append(f"{setting.origin} gives a time limit that is no number of seconds")
        return None

    def _constraints(self) -> Iterator[Constraint]:
        for setting in self._uv.constraint_files or self._pip.many("constraint"):
            place = setting.value
            if _SCHEME.match(place) and not place.startswith("file:"):
                self._warnings.append(
                    f"the constraints at {redact_url(place)} ({setting.origin}) are not read; "
                    "only files on this host are"
                )
                continue
            path = self._cwd / (
                unquote(urlsplit(place).path) if place.startswith("file:") else place
            )
            yield from read_constraints(path, set_by=setting.origin)


def read_constraints(
    path: Path, *, set_by: str, _read: Callable[[Path], str] = read_named_text, _depth: int = 0
) -> Iterator[Constraint]:
    """Yield the lines of a constraints file, and of those it includes with ``-c`` or ``-r``.

    Raises:
        PackageSettingsError: The file cannot be read, or files include one another in a circle.
    """
    if _depth > 10:  # noqa: PLR2004 - deeper than anybody nests
        raise PackageSettingsError(
            f"the constraints of {path} include one another in a circle",
            why=f"they were set by {set_by}",
            fix="take one of the inclusions away",
        )
    try:
        text = _read(path)
    except (OSError, UnicodeDecodeError) as exc:
        raise PackageSettingsError(
            f"cannot read the constraints in {path}",
            why=f"{exc.strerror if isinstance(exc, OSError) else exc}; set by {set_by}",
            fix="correct the path or take the setting away",
        ) from exc
    joined = re.sub(r"\\\n", " ", text)
    for line in joined.splitlines():
        content = re.sub(r"(^|\s)#.*$", "", line).strip()
        nested = re.fullmatch(r"(?:-c|--constraint|-r|--requirement)[\s=]+(\S+)", content)
        if nested:
            yield from read_constraints(
                path.parent / nested[1], set_by=set_by, _read=_read, _depth=_depth + 1
            )
        elif content and not content.startswith("-"):
            without_hashes = re.sub(r"\s+--hash[=\s]\S+", "", content)
            yield Constraint(requirement=without_hashes, origin=str(path))


def _once(sources: Iterable[Source]) -> tuple[Source, ...]:
    """Drop what is named twice; the first stays."""
    found: dict[Secret, Source] = {}
    for source in sources:
        found.setdefault(source.url, source)
    return tuple(found.values())
