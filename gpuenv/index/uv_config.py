"""uv's own settings about package sources, read the way ``uv pip`` reads them.

A project's ``uv.toml`` or ``[tool.uv]`` (the nearest above the working directory) counts first,
then the user's file, then the system's; ``UV_CONFIG_FILE`` replaces all three, and
``UV_NO_CONFIG`` drops them. Single values come from the nearest file, lists are joined, nearest
first; ``UV_*`` variables win over files. Within a file the table ``[pip]`` wins, as it does for
``uv pip``.

Source:
    uv documentation, "Configuration files", "Package indexes", "Environment variables"; tried with
    ``uv pip install --show-settings`` of uv 0.13.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuenv.index.sources import PackageSettingsError, Setting
from gpuenv.reading import read_named_text
from gpuenv.secret import Secret
from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

_TRUE = frozenset({"1", "true", "t", "yes", "y", "on"})


@dataclass(frozen=True, slots=True, kw_only=True)
class UvIndex:
    """An index as uv names it; ``flat`` is uv's word for a page of links."""

    url: str
    name: str | None = None
    default: bool = False
    flat: bool = False
    base: Path | None = None  # what a relative path is relative to


@dataclass(frozen=True, slots=True, kw_only=True)
class UvSettings:
    """What uv would use for ``uv pip install``.

    Attributes:
        indexes: Strongest first; those that uv calls explicit are left out, since only a project's
            own ``tool.uv.sources`` may use them.
    """

    indexes: tuple[Setting[UvIndex], ...] = ()
    find_links: tuple[Setting[tuple[str, Path | None]], ...] = ()
    no_index: bool = False
    offline: bool = False
    index_strategy: Setting[str] | None = None
    trusted_hosts: tuple[Setting[str], ...] = ()
    constraint_files: tuple[Setting[str], ...] = ()
    logins: Mapping[str, tuple[str, Secret]]

    def login_of(self, index: UvIndex) -> tuple[str, Secret] | None:
        """Return user name and password from ``UV_INDEX_<NAME>_USERNAME`` and ``_PASSWORD``."""
        return self.logins.get(_variable_name(index.name)) if index.name else None


def uv_config_files(
    environ: Mapping[str, str], *, cwd: Path, root: Path = Path("/")
) -> tuple[Path, ...]:
    """Return the files uv would read, the strongest first; only those that exist."""
    own = environ.get("UV_CONFIG_FILE")
    if own:
        return (cwd / own,)
    if _is_on(environ.get("UV_NO_CONFIG")):
        return ()
    files: list[Path] = []
    for directory in (cwd, *cwd.parents):
        if (directory / "uv.toml").is_file():
            files.append(directory / "uv.toml")
            break
        if _has_tool_uv(directory / "pyproject.toml"):
            files.append(directory / "pyproject.toml")
            break
    home = environ.get("HOME")
    config = environ.get("XDG_CONFIG_HOME") or (f"{home}/.config" if home else None)
    if config:
        files.append(Path(config) / "uv" / "uv.toml")
    system = [d for d in environ.get("XDG_CONFIG_DIRS", "").split(os.pathsep) if d] or ["/etc/xdg"]
    candidates = [root / d.lstrip("/") / "uv" / "uv.toml" for d in system]
    candidates.append(root / "etc" / "uv" / "uv.toml")
    files += [path for path in candidates if path.is_file()][:1]
    return tuple(path for path in files if path.is_file())


def load_uv_settings(
    environ: Mapping[str, str], *, cwd: Path, root: Path = Path("/")
) -> UvSettings:
    """Read the files of :func:`uv_config_files` and the ``UV_*`` variables.

    Raises:
        PackageSettingsError: A file cannot be read or parsed, or holds a value of a wrong kind.
    """
    layers = [_from_environ(environ, cwd)]
    layers += [_from_file(path) for path in uv_config_files(environ, cwd=cwd, root=root)]
    # A default index of a stronger layer hides that of a weaker one.
    indexes: list[Setting[UvIndex]] = []
    for layer in layers:
        has_default = any(index.value.default for index in indexes)
        indexes += [i for i in layer.indexes if not (has_default and i.value.default)]
    return UvSettings(
        indexes=tuple(indexes),
        find_links=tuple(link for layer in layers for link in layer.find_links),
        no_index=any(layer.no_index for layer in layers),
        offline=any(layer.offline for layer in layers),
        index_strategy=next((s for layer in layers if (s := layer.index_strategy)), None),
        trusted_hosts=tuple(host for layer in layers for host in layer.trusted_hosts),
        constraint_files=layers[0].constraint_files,
        logins=layers[0].logins,
    )


def _is_on(value: str | None) -> bool:
    return (value or "").strip().lower() in _TRUE


def _variable_name(name: str) -> str:
    return re.sub(r"[^A-Z0-9]", "_", name.upper())


def _from_environ(environ: Mapping[str, str], cwd: Path) -> UvSettings:
    indexes: list[Setting[UvIndex]] = []

    def add(variable: str, *, default: bool, split: bool) -> None:
        value = environ.get(variable, "").strip()
        for text in value.split() if split else [value] * bool(value):
            if default and any(i.value.default for i in indexes):
                continue
            name, url = _named(text)
            index = UvIndex(url=url, name=name, default=default, base=cwd)
            indexes.append(Setting(value=index, origin=variable))

    add("UV_INDEX", default=False, split=True)
    add("UV_EXTRA_INDEX_URL", default=False, split=True)
    add("UV_DEFAULT_INDEX", default=True, split=False)
    add("UV_INDEX_URL", default=True, split=False)
    strategy = environ.get("UV_INDEX_STRATEGY")
    logins: dict[str, tuple[str, Secret]] = {}
    for variable, value in environ.items():
        match = re.fullmatch(r"UV_INDEX_([A-Z0-9_]+)_(USERNAME|PASSWORD)", variable)
        if match and value:
            user, password = logins.get(match[1], ("", Secret("")))
            if match[2] == "USERNAME":
                logins[match[1]] = (value, password)
            else:
                logins[match[1]] = (user, Secret(value))
    return UvSettings(
        indexes=tuple(indexes),
        find_links=tuple(
            Setting(value=(place.strip(), cwd), origin="UV_FIND_LINKS")
            for place in environ.get("UV_FIND_LINKS", "").split(",")
            if place.strip()
        ),
        no_index=_is_on(environ.get("UV_NO_INDEX")),
        offline=_is_on(environ.get("UV_OFFLINE")),
        index_strategy=Setting(value=strategy, origin="UV_INDEX_STRATEGY") if strategy else None,
        trusted_hosts=tuple(
            Setting(value=host, origin="UV_INSECURE_HOST")
            for host in environ.get("UV_INSECURE_HOST", "").split()
        ),
        constraint_files=tuple(
            Setting(value=path, origin="UV_CONSTRAINT")
            for path in environ.get("UV_CONSTRAINT", "").split()
        ),
        logins=logins,
    )


def _named(text: str) -> tuple[str | None, str]:
    """Split uv's ``name=https://…``; an address has no ``=`` before its ``://``."""
    match = re.fullmatch(r"([A-Za-z0-9._-]+)=(.+)", text)
    return (match[1], match[2]) if match else (None, text)


def _parse(path: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return dict(tomllib.loads(read_named_text(path)))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as exc:
        # A parser's message may quote what it stumbled over, and that may be a password.
        reason = exc.strerror if isinstance(exc, OSError) else "it is not a TOML file"
        raise PackageSettingsError(
            f"cannot read uv's settings in {path}",
            why=str(reason),
            fix="mend the file (uv stumbles over it as well), or set UV_NO_CONFIG=1",
        ) from exc


def _has_tool_uv(path: Path) -> bool:
    if not path.is_file():
        return False
    try:
        tool = _parse(path).get("tool")
    except PackageSettingsError:
        return False  # a broken pyproject.toml is its project's matter, not the image's
    return isinstance(tool, dict) and "uv" in tool


def _from_file(path: Path) -> UvSettings:
    content = _parse(path)
    if path.name == "pyproject.toml":
        content = content["tool"]["uv"]
    pip = content.get("pip", {})
    reader = _Reader(path, {**content, **pip} if isinstance(pip, dict) else content)
    indexes = [
        Setting(value=index, origin=str(path))
        for table in reader.tables("index")
        if (index := _index_of(table, path)) is not None
    ]
    for key, default in (("extra-index-url", False), ("index-url", True)):
        values = [reader.text(key)] if default else reader.texts(key)
        indexes += [
            Setting(
                value=UvIndex(url=url, default=default, base=path.parent), origin=f"{path} {key}"
            )
            for url in values
            if url and not (default and any(i.value.default for i in indexes))
        ]
    strategy = reader.text("index-strategy")
    return UvSettings(
        indexes=tuple(indexes),
        find_links=tuple(
            Setting(value=(place, path.parent), origin=f"{path} find-links")
            for place in reader.texts("find-links")
        ),
        no_index=reader.flag("no-index"),
        offline=reader.flag("offline"),
        index_strategy=Setting(value=strategy, origin=str(path)) if strategy else None,
        trusted_hosts=tuple(
            Setting(value=host, origin=f"{path} allow-insecure-host")
            for host in reader.texts("allow-insecure-host")
        ),
        logins={},
    )


def _index_of(table: dict[str, Any], path: Path) -> UvIndex | None:
    reader = _Reader(path, table)
    url = reader.text("url")
    if url is None or reader.flag("explicit"):
        return None
    return UvIndex(
        url=url,
        name=reader.text("name"),
        default=reader.flag("default"),
        flat=reader.text("format") == "flat",
        base=path.parent,
    )


class _Reader:
    """Typed access to a table of a settings file; a value of a wrong kind names key and file."""

    def __init__(self, path: Path, table: dict[str, Any]) -> None:
        self._path = path
        self._table = table

    def text(self, key: str) -> str | None:
        value = self._table.get(key)
        return None if value is None else self._must(isinstance(value, str), key, value)

    def flag(self, key: str) -> bool:
        value = self._table.get(key, False)
        return bool(self._must(isinstance(value, bool), key, value))

    def texts(self, key: str) -> list[str]:
        value = self._table.get(key, [])
        good = isinstance(value, list) and all(isinstance(item, str) for item in value)
        return list(self._must(good, key, value))

    def tables(self, key: str) -> list[dict[str, Any]]:
        value = self._table.get(key, [])
        good = isinstance(value, list) and all(isinstance(item, dict) for item in value)
        return list(self._must(good, key, value))

    def _must(self, good: bool, key: str, value: Any) -> Any:
        if good:
            return value
        raise PackageSettingsError(
            f"{key} has a value of a wrong kind",
            why=f"it stands in {self._path}",
            fix="write it as uv's documentation shows",
        )
