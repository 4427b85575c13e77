"""``gpuenv.toml`` and ``[tool.gpuenv]``: what an image of a project is made of, written down once.

The nearest of the two counts, from the working folder upwards to the root of the repository::

    torch = "2.9"
    cuda = "12.8"
    gpu = ["A100", "H100"]
    apt = ["git"]
    pip = ["einops"]
    requirements = ["requirements.txt"]

    [env]
    HF_HUB_DISABLE_TELEMETRY = "1"

A value is overridden by ``GPUENV_*`` and that by a flag; a variable that is empty is as good as not
set, a flag or a line of the file that is empty is an error. Lists of content and of package sources
(``apt``, ``pip``, ``requirements``, ``wheelhouse``, ``extra-index-url``) and ``env`` are added to.
"""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from gpuenv.errors import ConfigurationError
from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Kind: TypeAlias = Literal["text", "texts", "flag", "variables"]

FILE_NAME = "gpuenv.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A setting: its name in the file, what it holds, and what it means.

    Attributes:
        path: A path, or several, which count from the file's own folder.
        request: Read by the matrix; see :mod:`gpuenv.matrix.request`.
    """

    name: str
    kind: Kind
    meaning: str
    path: bool = False
    request: bool = False

    @property
    def variable(self) -> str:
        """The environment variable that overrides it."""
        return f"GPUENV_{self.name.upper().replace('-', '_')}"


KEYS: tuple[Key, ...] = (
    Key(name="torch", kind="text", request=True, meaning="PyTorch: 2.9, 2.9.1 or 2.9.1+cu128."),
    Key(name="cuda", kind="text", request=True, meaning="CUDA: 12.8, cpu or auto."),
    Key(name="cudnn", kind="text", request=True, meaning="cuDNN: 9 or 9.10."),
    Key(name="nccl", kind="text", request=True, meaning="NCCL: 2.27."),
    Key(name="python", kind="text", request=True, meaning="Python: 3.12."),
    Key(name="gpu", kind="texts", request=True, meaning="GPUs that must be served."),
    Key(name="driver", kind="text", request=True, meaning="The driver that must run it."),
    Key(name="arch", kind="text", request=True, meaning="CPU architecture: x86_64 or aarch64."),
    Key(name="flavor", kind="text", request=True, meaning="runtime, or devel with compilers."),
    Key(name="name", kind="text", meaning="Name of the image: localhost/gpuenv/NAME:…"),
    Key(name="apt", kind="texts", meaning="Debian or Ubuntu packages."),
    Key(name="pip", kind="texts", meaning="Python packages, as requirements."),
    Key(name="requirements", kind="texts", path=True, meaning="Requirements files."),
    Key(name="env", kind="variables", meaning="Variables set in the image; not for secrets."),
    Key(name="workdir", kind="text", meaning="Where commands start."),
    Key(name="base", kind="text", meaning="Start from this image instead of the row's."),
    Key(name="index-url", kind="text", meaning="Package index in place of the host's own."),
    Key(name="extra-index-url", kind="texts", meaning="Further package indexes."),
    Key(name="torch-index-url", kind="text", meaning="A mirror of the PyTorch wheel index."),
    Key(name="wheelhouse", kind="texts", path=True, meaning="Directories of wheels that win."),
    Key(name="ca-bundle", kind="text", path=True, meaning="Certificates to trust in a build."),
    Key(name="apt-mirror", kind="text", meaning="Mirror of the distribution's archive."),
    Key(name="host", kind="text", meaning="The engine's host: ssh://user@gpu01."),
    Key(name="offline", kind="flag", meaning="Take wheels from directories only."),
)
_BY_NAME = {key.name: key for key in KEYS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One value and where it was written: ``--apt``, ``GPUENV_APT``, ``gpuenv.toml: apt``."""

    text: str
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A file's settings, checked for their form; what they mean is checked by who uses them.

    Attributes:
        path: The file, ``None`` when there is none.
        values: By the key's name.
    """

    path: Path | None = None
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """How messages call the file."""
        if self.path is None:
            return FILE_NAME
        return f"{self.path.name}{' [tool.gpuenv]' if self.path.name != FILE_NAME else ''}"

    def request_settings(self) -> dict[str, Any]:
        """Return the keys that ``gpuenv.matrix.request.layer_settings`` reads."""
        return {key.name: self.values[key.name] for key in KEYS if key.request and key.name in self}

    def __contains__(self, name: object) -> bool:
        return name in self.values

    def text(self, name: str, flag: str | None, environ: Mapping[str, str]) -> Setting | None:
        """Return the value of a text that decides: flag, then environment, then file."""
        key = _BY_NAME[name]
        if flag is not None:
            return Setting(text=flag, origin=f"--{name}")
        if environ.get(key.variable, "").strip():
            return Setting(text=environ[key.variable].strip(), origin=key.variable)
        if name in self:
            return Setting(text=self._located(key, self.values[name]), origin=self._origin(name))
        return None

    def texts(
        self, name: str, flags: Sequence[str] | None, environ: Mapping[str, str]
    ) -> tuple[Setting, ...]:
        """Return every value of a list: the file's, then the environment's, then the flags'."""
        key = _BY_NAME[name]
        found = [
            Setting(text=self._located(key, text), origin=self._origin(name))
            for text in self.values.get(name, ())
        ]
        found += [
            Setting(text=text, origin=key.variable)
            for text in environ.get(key.variable, "").split()
        ]
        found += [Setting(text=text, origin=f"--{name}") for text in flags or ()]
        return tuple(dict.fromkeys(found))

    def flag(self, name: str, environ: Mapping[str, str], *, given: bool) -> bool:
        """Return a switch.

        Raises:
            ConfigurationError: The environment says neither yes nor no.
        """
        variable = _BY_NAME[name].variable
        word = environ.get(variable, "").strip().lower()
        if given:
            return True
        if word in {"1", "true", "yes", "on"}:
            return True
        if word in {"0", "false", "no", "off"}:
            return False
        if word:
            raise ConfigurationError(
                f"{variable} is neither yes nor no", why=f"it is {word!r}", fix=f"{variable}=1"
            )
        return bool(self.values.get(name, False))

    def variables(self, pairs: Sequence[str] | None) -> dict[str, Setting]:
        """Return the image's variables: the file's, and ``NAME=VALUE`` flags over them.

        Raises:
            ConfigurationError: A flag without ``=``.
        """
        found = {
            name: Setting(text=value, origin=self._origin(f"env.{name}"))
            for name, value in self.values.get("env", {}).items()
        }
        for pair in pairs or ():
            name, equals, value = pair.partition("=")
            if not equals:
                raise ConfigurationError(
                    f"--env {pair!r} has no value",
                    why="a variable is written NAME=VALUE; none is taken from this shell",
                    fix=f'--env {name}="${name}"',
                )
            found[name] = Setting(text=value, origin="--env")
        return found

    def _origin(self, name: str) -> str:
        return f"{self.name}: {name}"

    def _located(self, key: Key, text: str) -> str:
        """Make a path of the file count from the file's folder."""
        if not key.path or self.path is None:
            return text
        return str(self.path.parent / Path(text).expanduser())


def load_config(directory: Path, environ: Mapping[str, str]) -> Config:
    """Read the settings file that counts in a folder; an empty config when there is none.

    Args:
        directory: Where the command was called.
        environ: ``GPUENV_CONFIG`` names a file, or nothing to use none.

    Raises:
        ConfigurationError: The file cannot be read or holds what no setting is; all of it is named.
    """
    if "GPUENV_CONFIG" in environ:
        named = environ["GPUENV_CONFIG"]
        if not named:
            return Config()
        return read_config(Path(named).expanduser())
    for path in _candidates(directory):
        if path.name == FILE_NAME:
            return read_config(path)
        table = _own_table(_load_toml(path))
        if table is not None:
            return _checked(path, table)
    return Config()


def _candidates(directory: Path) -> Iterator[Path]:
    for folder in (directory, *directory.parents):
        for name in (FILE_NAME, "pyproject.toml"):
            if (folder / name).is_file():
                yield folder / name
        if (folder / ".git").exists():
            return


def read_config(path: Path) -> Config:
    """Read one settings file.

    Raises:
        ConfigurationError: See :func:`load_config`.
    """
    document: object = _load_toml(path)
    if path.name == "pyproject.toml":
        document = _own_table(document)
    return _checked(path, {} if document is None else document)


def _own_table(pyproject: object) -> object:
    """Return ``[tool.gpuenv]``, ``None`` where a pyproject.toml has no such table."""
    tool = pyproject.get("tool") if isinstance(pyproject, dict) else None
    return tool.get("gpuenv") if isinstance(tool, dict) else None


def _load_toml(path: Path) -> dict[str, Any]:
    import sys

    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    from gpuenv.reading import read_named_text, reason

    try:
        return tomllib.loads(read_named_text(path, encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigurationError(
            f"cannot read {path}",
            why=reason(exc),
            fix="mend the file, or set GPUENV_CONFIG to another",
        ) from exc
    except tomllib.TOMLDecodeError as exc:
        raise ConfigurationError(
            f"{path} is not TOML", why=str(exc), fix="mend that line; https://toml.io has the rules"
        ) from exc


def _checked(path: Path, document: object) -> Config:
    from gpuenv.validate import raise_together

    config = Config(path=path)
    if not isinstance(document, dict):
        raise ConfigurationError(
            f"{config.name} is not a table", why=f"it is {document!r}", fix="write key = value"
        )
    problems = []
    for name, value in document.items():
        key = _BY_NAME.get(name)
        if key is None:
            problems.append(_unknown(config, name))
        elif (fault := _fault(key, value)) is not None:
            problems.append(_misshapen(config, key, value, fault))
        elif key.kind != "variables" and _has_empty(value):
            problems.append(_empty(config, key))
    raise_together(problems)
    return Config(path=path, values=_normalised(document))


def _normalised(document: dict[str, Any]) -> dict[str, Any]:
    return {
        name: [value] if _BY_NAME[name].kind == "texts" and isinstance(value, str) else value
        for name, value in document.items()
    }


def _unknown(config: Config, name: str) -> ConfigurationError:
    import difflib

    close = difflib.get_close_matches(name.replace("_", "-"), _BY_NAME, n=1)
    return ConfigurationError(
        f"{config.name}: unknown setting {name}",
        why="known are " + ", ".join(_BY_NAME),
        fix=f"did you mean {close[0]}?" if close else "remove it",
    )


def _has_empty(value: object) -> bool:
    texts = value if isinstance(value, list) else [value]
    return any(isinstance(text, str) and not text.strip() for text in texts)


def _empty(config: Config, key: Key) -> ConfigurationError:
    return ConfigurationError(
        f"{config.name}: {key.name} is empty",
        why="an empty path would be the folder of the file" if key.path else key.meaning,
        fix="give it a value, or remove it",
    )


def _fault(key: Key, value: object) -> str | None:
    """Say what a value should be, ``None`` when it is."""
    if key.kind == "text":
        return None if isinstance(value, str) else "text"
    if key.kind == "flag":
        return None if isinstance(value, bool) else "true or false"
    if key.kind == "texts":
        several = isinstance(value, list) and all(isinstance(item, str) for item in value)
        return None if several or isinstance(value, str) else "a list of text"
    one_level = isinstance(value, dict) and all(isinstance(item, str) for item in value.values())
    return None if one_level else "a table of text"


def _misshapen(config: Config, key: Key, value: object, fault: str) -> ConfigurationError:
    single = isinstance(value, list) and len(value) == 1 and isinstance(value[0], str)
    text = value[0] if isinstance(value, list) and single else value
    simple = isinstance(text, (str, int, float))
    fixes: dict[Kind, str] = {
        "text": f'quote it: {key.name} = "{text if simple else "…"}"',
        "texts": f'write a list: {key.name} = ["…", "…"]',
        "flag": f"write {key.name} = true",
        "variables": f'quote the values: [{key.name}] NAME = "1"',
    }
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return ConfigurationError(
        f"{config.name}: {key.name} must be {fault}, not {value!r}",
        why="a number loses digits: 3.10 would be read as 3.1" if number else key.meaning,
        fix=fixes[key.kind],
    )


def schema() -> dict[str, Any]:
    """Return the JSON Schema of ``gpuenv.toml``, as ``images/gpuenv.schema.json`` ships it."""
    text = {"type": "string", "pattern": r"\S"}
    shapes: dict[Kind, dict[str, Any]] = {
        "text": text,
        "texts": {"anyOf": [text, {"type": "array", "items": text}]},
        "flag": {"type": "boolean"},
        "variables": {"type": "object", "additionalProperties": {"type": "string"}},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "gpuenv.toml",
        "description": "What an image of this project is made of; also [tool.gpuenv].",
        "type": "object",
        "additionalProperties": False,
        "properties": {key.name: {"description": key.meaning, **shapes[key.kind]} for key in KEYS},
    }
