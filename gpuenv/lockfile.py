"""``gpuenv.lock``: what an image is made of, exactly, as a value and as a file.

A :class:`Lock` to text and back is pure; reading and writing files stands at the end. The same
lock gives the same bytes, with no time, address or path of the machine in it::

    lock-version = 1
    digest = "sha256:…"                  # of all the rest: a lock that was edited is refused

    [request]                            # what was asked, as a flag or gpuenv.toml writes it
    torch = "2.9"
    [image]                              # what shall be inside beside PyTorch
    pip = ["einops"]
    [base]                               # the image it stands on, by digest
    image = "ubuntu:24.04"
    digest = "sha256:…"
    [environment]                        # the row of the matrix
    torch = "2.9.1"
    [[packages]]                         # each distribution inside, by the file it comes from
    name = "einops"
    version = "0.8.2"
    step = "packages"
    file = "einops-0.8.2-py3-none-any.whl"
    sha256 = "…"
"""

from __future__ import annotations

import hashlib
import json
import re
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast, get_args

from gpuenv.errors import BuildFailedError, ConfigurationError
from gpuenv.reading import read_named_text, reason
from gpuenv.spec import EnvironmentSpec, ImageRequest, ImageSpec
from gpuenv.values import dataclass
from gpuenv.versions import (
    CudaVersion,
    CudnnVersion,
    DriverRelease,
    NcclVersion,
    PythonVersion,
    TorchVersion,
)
from gpuenv.writing import write_whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from gpuenv.spec import MatrixRequest

LOCK_VERSION = 1
FILE_NAME = "gpuenv.lock"

Step: TypeAlias = Literal["installer", "torch", "jupyter", "packages"]
"""What a package is installed with: uv itself, PyTorch, JupyterLab, or what the user asked for."""
STEPS: tuple[Step, ...] = get_args(Step)
RequestRecord: TypeAlias = "tuple[tuple[str, tuple[str, ...]], ...]"
"""A request as it was written, key to texts; a key that was left to gpuenv is absent."""

_HEADER = """\
# What an image is made of, exactly: made by gpuenv lock, not by hand.
#   gpuenv build --locked     builds this and nothing else
#   gpuenv lock --check       says whether it still is what gpuenv.toml and the flags ask for
#   gpuenv lock --upgrade     looks for newer versions
"""

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,98}[a-z0-9])?")
_VERSION = re.compile(r"[0-9][0-9A-Za-z.!_-]{0,63}(?:\+[0-9A-Za-z._-]{1,64})?")
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]{0,254}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_URL = re.compile(
    r"https://[A-Za-z0-9.-]+(?::[0-9]{1,5})?(?:/[A-Za-z0-9._~%+-]+)+(?:#[A-Za-z0-9._=&:-]+)?"
)


class LockFileError(ConfigurationError):
    """A lock file is not there, is not whole, or comes from a newer gpuenv."""

    slug = "lock-file"


class LockUnavailableError(BuildFailedError):
    """A wheel or the base image of a lock cannot be had here, or is another one."""

    slug = "lock-unavailable"


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedPackage:
    """One Python distribution, by the very file that it is installed from.

    Attributes:
        name: The project, in the one spelling that indexes use.
        file: Name of the wheel; of the source archive where there is no fitting wheel.
        url: Only where a requirement itself named an address.
    """

    name: str
    version: str
    step: Step
    file: str
    sha256: str
    url: str | None = None

    @property
    def is_wheel(self) -> bool:
        """Whether it is installed as it is, and not built from source."""
        return self.file.endswith(".whl")

    @property
    def requirement(self) -> str:
        """The requirement that names it alone."""
        return f"{self.name}=={self.version}" if self.url is None else f"{self.name} @ {self.url}"

    @property
    def pin(self) -> str:
        """The requirement with the digest of its file, for ``--require-hashes``."""
        return f"{self.requirement} --hash=sha256:{self.sha256}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedBase:
    """The base image: by the digest a registry knows it by, else by the engine's own id.

    Attributes:
        image: Its name, without a digest.
        id: Only of an image that never was on a registry: no other engine has the same one unless
            it was copied there.
    """

    image: str
    digest: str | None = None
    id: str | None = None

    @property
    def ref(self) -> str:
        """What stands behind FROM."""
        return self.image if self.digest is None else f"{self.image}@{self.digest}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """Everything that decides an image.

    Attributes:
        request: What was asked of the matrix.
        spec: The row that answered, and what shall be inside beside it; base images without digest.
        packages: Sorted by step and name.
    """

    request: RequestRecord
    spec: ImageSpec
    base: LockedBase
    packages: tuple[LockedPackage, ...]

    @property
    def digest(self) -> str:
        """The digest of all of it."""
        return _digest(_document(self))

    def locked_spec(self, name: str = "") -> ImageSpec:
        """Return what is built: the base image by its digest.

        Args:
            name: Of the image, in place of the one in the lock.
        """
        image = replace(self.spec.image, name=name or self.spec.image.name)
        if image.base is not None:
            return replace(self.spec, image=replace(image, base=self.base.ref))
        row = replace(self.spec.environment, base_image=self.base.ref)
        return replace(self.spec, environment=row, image=image)

    def of_step(self, step: Step) -> tuple[LockedPackage, ...]:
        """Return what one step installs."""
        return tuple(package for package in self.packages if package.step == step)

    @property
    def installed(self) -> tuple[LockedPackage, ...]:
        """What is in the image; the installer runs beside it."""
        return tuple(package for package in self.packages if package.step != "installer")

    def request_settings(self) -> dict[str, Any]:
        """Return the request as ``gpuenv.toml`` would have it."""
        return {key: list(texts) if key == "gpu" else texts[0] for key, texts in self.request}


def record_request(request: MatrixRequest) -> RequestRecord:
    """Write a request down; what was left to gpuenv is not there, the CPU always is."""
    texts: dict[str, tuple[str, ...]] = {}
    for key in ("torch", "cudnn", "nccl", "python", "driver"):
        value = getattr(request, key)
        if value is not None:
            texts[key] = (str(value),)
    if request.cuda != "auto":
        texts["cuda"] = (str(request.cuda),)
    if request.gpus:
        texts["gpu"] = tuple(gpu.asked for gpu in request.gpus)
    if request.flavor != "runtime":
        texts["flavor"] = (request.flavor,)
    texts["arch"] = (request.arch,)
    return tuple(sorted(texts.items()))


def sorted_packages(packages: Iterator[LockedPackage]) -> tuple[LockedPackage, ...]:
    """Return packages in the order of the file."""
    return tuple(sorted(packages, key=lambda it: (STEPS.index(it.step), it.name)))


# --- to text ------------------------------------------------------------------------------------


def render_lock(lock: Lock) -> str:
    """Return the text of the file; the same lock gives the same bytes."""
    document = _document(lock)
    tables = {key: value for key, value in document.items() if isinstance(value, dict)}
    lines = [f"lock-version = {LOCK_VERSION}", f"digest = {_toml(_digest(document))}"]
    for name, table in tables.items():
        lines += ["", f"[{name}]", *_table(table)]
        for inner, values in table.items():
            if isinstance(values, dict):
                lines += ["", f"[{name}.{inner}]", *_table(values)]
    for package in document["packages"]:
        lines += ["", "[[packages]]", *_table(package)]
    return _HEADER + "\n" + "\n".join(lines) + "\n"


def _document(lock: Lock) -> dict[str, Any]:
    image = lock.spec.image
    environment = lock.spec.environment.as_dict()
    del environment["notes"]  # how a request was read says nothing of the image
    return {
        "lock-version": LOCK_VERSION,
        "request": {key: list(texts) if key == "gpu" else texts[0] for key, texts in lock.request},
        "image": _without_none(
            {
                "name": image.name,
                "with": list(image.features),
                "companions": list(image.companions),
                "apt": list(image.apt),
                "pip": list(image.pip),
                "requirements": list(image.requirements),
                "workdir": image.workdir,
                "base": image.base,
                "env": dict(image.env),
            }
        ),
        "base": _without_none(
            {"image": lock.base.image, "digest": lock.base.digest, "id": lock.base.id}
        ),
        "environment": _without_none(environment),
        "packages": [
            _without_none(
                {
                    "name": package.name,
                    "version": package.version,
                    "step": package.step,
                    "file": package.file,
                    "sha256": package.sha256,
                    "url": package.url,
                }
            )
            for package in lock.packages
        ],
    }


def _without_none(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if value is not None and value != {}}


def _digest(document: Mapping[str, Any]) -> str:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def _table(table: Mapping[str, Any]) -> Iterator[str]:
    for key, value in table.items():
        if isinstance(value, dict):
            continue
        if isinstance(value, list) and len(value) > 1:
            # One a line: a review shows what came and what went.
            yield f"{_key(key)} = ["
            yield from (f"    {_toml(item)}," for item in value)
            yield "]"
        else:
            yield f"{_key(key)} = {_toml(value)}"


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _toml(key)


def _toml(value: object) -> str:
    """Write text or a list of text; JSON's escapes are a subset of TOML's."""
    return json.dumps(value, ensure_ascii=False)


# --- from text ----------------------------------------------------------------------------------


def parse_lock(text: str, *, origin: str = FILE_NAME) -> Lock:
    """Read a lock file.

    Args:
        text: The whole of it.
        origin: How messages call it.

    Raises:
        LockFileError: It is no lock, is not as it was written, or is of a newer gpuenv.
    """
    document = _load(text, origin)
    version = document.get("lock-version")
    if not isinstance(version, int) or "packages" not in document:
        raise _broken(origin, "it has no lock-version and packages")
    if version > LOCK_VERSION:
        raise LockFileError(
            f"{origin} was made by a newer gpuenv",
            why=f"its form is version {version}; this gpuenv reads {LOCK_VERSION}",
            fix="install the gpuenv that made it, or remove the file and lock again: gpuenv lock",
        )
    digest = document.pop("digest", None)
    if digest != _digest(document):
        raise LockFileError(
            f"{origin} is not as gpuenv wrote it",
            why=f"its digest says {digest}, its content has {_digest(document)}",
            fix="take the file back from version control, or remove it and lock again: gpuenv lock",
        )
    if not all(_is_text(value) for key, value in document.items() if key != "lock-version"):
        raise _broken(origin, "it holds a value that is no text")
    try:
        lock = _read(document)
    except (KeyError, TypeError, ValueError, AttributeError, ConfigurationError) as exc:
        raise _broken(origin, str(exc)) from exc
    if _document(lock) != document:
        raise _broken(origin, "it holds what this gpuenv does not know")
    return lock


def _is_text(value: object) -> bool:
    """Say whether a value is text, or tables and lists of text alone."""
    if isinstance(value, dict):
        return all(map(_is_text, value.values()))
    if isinstance(value, list):
        return all(map(_is_text, value))
    return isinstance(value, str)


def _broken(origin: str, why: str) -> LockFileError:
    return LockFileError(
        f"{origin} is no lock of gpuenv",
        why=why,
        fix="take the file back from version control, or remove it and lock again: gpuenv lock",
    )


def _load(text: str, origin: str) -> dict[str, Any]:
    import sys

    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        conflict = re.search(r"^<{7} ", text, re.MULTILINE)
        why = "two versions of it were merged: it holds <<<<<<<" if conflict else str(exc)
        raise _broken(origin, why) from exc


def _read(document: Mapping[str, Any]) -> Lock:
    base = document["base"]
    return Lock(
        request=tuple(
            sorted(
                (key, tuple(value) if isinstance(value, list) else (value,))
                for key, value in document["request"].items()
            )
        ),
        spec=ImageSpec(
            environment=_read_environment(document["environment"]),
            image=_read_image(document["image"]),
        ),
        base=LockedBase(
            image=base["image"],
            digest=_checked(base.get("digest"), _DIGEST),
            id=_checked(base.get("id"), _DIGEST),
        ),
        packages=tuple(_read_package(package) for package in document["packages"]),
    )


def _checked(text: str | None, pattern: re.Pattern[str]) -> str | None:
    if text is not None and not pattern.fullmatch(text):
        raise ValueError(f"{text!r} has a form that is not expected")
    return text


def _read_package(table: Mapping[str, str]) -> LockedPackage:
    return check_package(
        LockedPackage(
            name=table["name"],
            version=table["version"],
            step=cast("Step", table["step"]),
            file=table["file"],
            sha256=table["sha256"],
            url=table.get("url"),
        )
    )


def check_package(package: LockedPackage) -> LockedPackage:
    """Return a package whose every text may stand in a Dockerfile.

    Raises:
        ValueError: One may not.
    """
    for text, pattern in (
        (package.name, _NAME),
        (package.version, _VERSION),
        (package.file, _FILE),
        (package.sha256, _SHA256),
        (package.url, _URL),
    ):
        _checked(text, pattern)
    if package.step not in STEPS:
        raise ValueError(f"{package.step!r} is no step of a build")
    return package


def _read_image(table: Mapping[str, Any]) -> ImageRequest:
    return ImageRequest(
        name=table["name"],
        features=tuple(table["with"]),
        companions=tuple(table["companions"]),
        apt=tuple(table["apt"]),
        pip=tuple(table["pip"]),
        requirements=tuple(table["requirements"]),
        env=tuple(sorted(table.get("env", {}).items())),
        workdir=table["workdir"],
        base=table.get("base"),
    )


def _read_environment(table: Mapping[str, Any]) -> EnvironmentSpec:
    def version(kind: Any, key: str) -> Any:
        return kind.parse(table[key]) if key in table else None

    return EnvironmentSpec(
        torch=TorchVersion.parse(table["torch"]),
        torch_variant=table["torch_variant"],
        cuda=version(CudaVersion, "cuda"),
        toolkit=version(CudaVersion, "toolkit"),
        cudnn=version(CudnnVersion, "cudnn"),
        nccl=version(NcclVersion, "nccl"),
        triton=table.get("triton"),
        torchvision=table.get("torchvision"),
        torchaudio=table.get("torchaudio"),
        python=PythonVersion.parse(table["python"]),
        arch=table["arch"],
        arch_list=tuple(table["arch_list"]),
        min_driver=version(DriverRelease, "min_driver"),
        base_image=table["base_image"],
        flavor=table["flavor"],
        source=table["source"],
        confidence=table["confidence"],
        python_source=table["python_source"],
        devel_packages=tuple(table["devel_packages"]),
        max_gcc=table.get("max_gcc"),
        warnings=tuple(table["warnings"]),
        overrides=tuple(sorted(table.get("overrides", {}).items())),
    )


# --- what changed -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One thing that two locks, or a lock and a request, have differently.

    Attributes:
        what: ``torch``, ``pip``, ``base image``, or a package's name.
        before: In the lock; empty where it is new.
        after: What is asked, or in the newer lock; empty where it goes.
    """

    what: str
    before: str
    after: str

    def __str__(self) -> str:
        if not self.before:
            return f"+ {self.what} {self.after}"
        if not self.after:
            return f"- {self.what} {self.before}"
        return f"~ {self.what} {self.before} -> {self.after}"

    def as_dict(self) -> dict[str, str]:
        """Return it as ``--json`` prints it."""
        return {"what": self.what, "before": self.before, "after": self.after}


def compare_request(lock: Lock, request: RequestRecord, image: ImageRequest) -> tuple[Change, ...]:
    """Return how what is asked now differs from what the lock was made for.

    Features that nobody asked for here do not count: ``gpuenv build`` has no flag for them.
    """
    before, after = dict(lock.request), dict(request)
    changes = [
        Change(what=key, before=", ".join(before.get(key, ())), after=", ".join(after.get(key, ())))
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    ]
    locked = lock.spec.image
    for what, old, new in (
        ("name", locked.name, image.name),
        ("workdir", locked.workdir, image.workdir),
        ("base", locked.base or "", image.base or ""),
    ):
        if old != new:
            changes.append(Change(what=what, before=old, after=new))
    for what, olds, news in (
        ("with", locked.features, image.features or locked.features),
        ("apt", locked.apt, image.apt),
        ("pip", locked.pip, image.pip),
        ("requirements", locked.requirements, image.requirements),
        ("env", _assignments(locked), _assignments(image)),
    ):
        changes += [Change(what=what, before=old, after="") for old in olds if old not in news]
        changes += [Change(what=what, before="", after=new) for new in news if new not in olds]
    return tuple(changes)


def _assignments(image: ImageRequest) -> tuple[str, ...]:
    return tuple(f"{name}={value}" for name, value in image.env)


def compare_locks(before: Lock | None, after: Lock) -> tuple[Change, ...]:
    """Return what a newer lock has otherwise: the row, the base image, every package."""
    old = {} if before is None else _facts(before)
    new = _facts(after)
    return tuple(
        Change(what=what, before=_said(old, new, what), after=_said(new, old, what))
        for what in dict.fromkeys((*new, *old))
        if old.get(what) != new.get(what)
    )


_Fact: TypeAlias = "tuple[str, str]"
"""A short text, and what tells two things apart that have the same short text."""


def _facts(lock: Lock) -> dict[str, _Fact]:
    row = lock.spec.environment
    facts = {
        "environment": (
            f"torch {row.torch}+{row.torch_variant}, Python {row.python}, {row.arch}, {row.flavor}",
            "",
        ),
        "base image": (lock.base.image, lock.base.digest or lock.base.id or ""),
    }
    for package in lock.packages:
        facts[package.name] = (package.version, f"sha256:{package.sha256}")
    return facts


def _said(facts: Mapping[str, _Fact], others: Mapping[str, _Fact], what: str) -> str:
    if what not in facts:
        return ""
    text, exact = facts[what]
    same = what in others and others[what][0] == text
    return f"{text} ({exact[:19]})" if same else text


# --- files --------------------------------------------------------------------------------------


def lock_path(given: Path | None, config: Path | None, folder: Path) -> Path:
    """Return where the lock is: as given, else beside the settings file, else in the folder."""
    if given is not None:
        return given
    return (config.parent if config is not None else folder) / FILE_NAME


def load_lock(path: Path) -> Lock:
    """Read a lock file.

    Raises:
        LockFileError: It is not there, cannot be read or is not as it was written.
    """
    try:
        text = read_named_text(path)
    except FileNotFoundError as exc:
        raise LockFileError(
            f"there is no {path}", why="nothing was locked here", fix="gpuenv lock makes it"
        ) from exc
    except (OSError, UnicodeDecodeError) as exc:
        raise LockFileError(
            f"cannot read {path}", why=reason(exc), fix="name a lock: --lock-file FILE"
        ) from exc
    return parse_lock(text, origin=path.name)


def write_lock(path: Path, lock: Lock) -> bool:
    """Write a lock file, whole or not at all; say whether it is another one than before.

    Raises:
        LockFileError: It cannot be written.
    """
    text = render_lock(lock)
    target = path.resolve()  # a link stays one
    if target.exists() and not target.is_file():
        raise LockFileError(
            f"cannot write {path}",
            why="it is there and is no file",
            fix="name a file: --lock-file FILE",
        )
    mode: int | None = None
    with suppress(OSError):
        if target.read_bytes() == text.encode():
            return False
        mode = target.stat().st_mode & 0o777
    try:
        write_whole(target, text.encode(), mode=mode)
    except OSError as exc:
        raise LockFileError(
            f"cannot write {path}",
            why=exc.strerror or str(exc),
            fix="name a file in a folder that can be written: --lock-file FILE",
        ) from exc
    return True
