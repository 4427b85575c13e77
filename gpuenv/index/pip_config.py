"""pip's own settings on this host, read the way pip reads them and without running pip.

The order is pip's: the system's files, the user's, the virtual environment's, ``PIP_CONFIG_FILE``,
then ``PIP_*``. In files the section ``[install]`` wins over ``[global]`` wherever either stands. A
later value replaces an earlier one, lists too; an empty value counts as none.

Source:
    pip 25, ``_internal/configuration.py`` and ``_internal/cli/parser.py``.
"""

from __future__ import annotations

import configparser
import os
from pathlib import Path
from typing import TYPE_CHECKING

from gpuenv.index.sources import PackageSettingsError, Setting
from gpuenv.reading import read_named_text
from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_SECTIONS = ("global", "install")
_NOT_OPTIONS = ("version", "help", "config-file")


@dataclass(frozen=True, slots=True, kw_only=True)
class PipSettings:
    """What pip would use for ``pip install``: option name to value and origin."""

    values: Mapping[str, Setting[str]]

    def one(self, option: str) -> Setting[str] | None:
        """Return a single value, ``index-url`` or ``cert``."""
        return self.values.get(option)

    def many(self, option: str) -> tuple[Setting[str], ...]:
        """Return a list, ``extra-index-url`` or ``find-links``: pip splits those at white space."""
        setting = self.values.get(option)
        if setting is None:
            return ()
        return tuple(Setting(value=v, origin=setting.origin) for v in setting.value.split())

    def flag(self, option: str) -> bool:
        """Say whether a switch is on, ``no-index``."""
        setting = self.values.get(option)
        if setting is None:
            return False
        word = setting.value.strip().lower()
        if word in {"y", "yes", "t", "true", "on", "1"}:
            return True
        if word in {"n", "no", "f", "false", "off", "0"}:
            return False
        raise PackageSettingsError(
            f"{option} = {setting.value!r} is neither yes nor no",
            why=f"it was set by {setting.origin}, and pip would refuse it as well",
            fix="write true or false",
        )


def pip_config_files(
    environ: Mapping[str, str], *, root: Path = Path("/"), prefix: Path | None = None
) -> tuple[Path, ...]:
    """Return the files pip would look for, the strongest last; none needs to exist.

    Args:
        environ: For ``PIP_CONFIG_FILE``, ``HOME`` and the XDG variables.
        root: Where the system's own folders lie; tests move it.
        prefix: The virtual environment whose ``pip.conf`` counts.
    """
    own = environ.get("PIP_CONFIG_FILE")
    if own == os.devnull:
        return ()
    system = [root / d.lstrip("/") for d in _dirs(environ.get("XDG_CONFIG_DIRS"), "/etc/xdg")]
    files = [*(directory / "pip" / "pip.conf" for directory in system), root / "etc" / "pip.conf"]
    home = environ.get("HOME")
    # pip reads the user's files only where PIP_CONFIG_FILE names none that exists.
    if home and not (own and Path(own).exists()):
        config = Path(environ.get("XDG_CONFIG_HOME") or Path(home) / ".config")
        files += [Path(home) / ".pip" / "pip.conf", config / "pip" / "pip.conf"]
    if prefix is not None:
        files.append(prefix / "pip.conf")
    if own:
        files.append(Path(own))
    return tuple(files)


def load_pip_settings(
    environ: Mapping[str, str], *, root: Path = Path("/"), prefix: Path | None = None
) -> PipSettings:
    """Read the files of :func:`pip_config_files` and the ``PIP_*`` variables.

    Raises:
        PackageSettingsError: A file is there but cannot be read or parsed.
    """
    by_section: dict[str, dict[str, Setting[str]]] = {section: {} for section in _SECTIONS}
    for path in pip_config_files(environ, root=root, prefix=prefix):
        for section, option, value in _read(path):
            by_section[section][option] = Setting(value=value, origin=f"{path} [{section}]")
    from_environ = {
        option: Setting(value=value, origin=name)
        for name, value in environ.items()
        if name.startswith("PIP_") and (option := _normalise(name[4:])) not in _NOT_OPTIONS
    }
    merged: dict[str, Setting[str]] = {}
    for layer in (*by_section.values(), from_environ):
        merged.update({option: setting for option, setting in layer.items() if setting.value})
    return PipSettings(values=merged)


def _dirs(variable: str | None, default: str) -> list[str]:
    return [d for d in (variable or "").split(os.pathsep) if d] or [default]


def _normalise(option: str) -> str:
    return option.lower().replace("_", "-").removeprefix("--")


def _read(path: Path) -> Iterator[tuple[str, str, str]]:
    parser = configparser.RawConfigParser()
    try:
        text = read_named_text(path)
    except (FileNotFoundError, NotADirectoryError):
        return
    except (OSError, UnicodeDecodeError) as exc:
        raise _unreadable(path, exc) from exc
    try:
        parser.read_string(text, source=str(path))
    except configparser.Error as exc:
        raise _unreadable(path, exc) from exc
    for section in _SECTIONS:
        if parser.has_section(section):
            for option, value in parser.items(section):
                yield section, _normalise(option), (value or "").strip()


def _unreadable(path: Path, exc: Exception) -> PackageSettingsError:
    # A parser's message may quote the line, and the line may hold a password.
    reason = exc.strerror if isinstance(exc, OSError) else type(exc).__name__
    line = getattr(exc, "lineno", None) or next(
        (number for number, _ in getattr(exc, "errors", ())), None
    )
    return PackageSettingsError(
        f"cannot read pip's settings in {path}",
        why=f"{reason}" + (f" in line {line}" if line else ""),
        fix="mend the file (pip stumbles over it as well), or set PIP_CONFIG_FILE=/dev/null",
    )
