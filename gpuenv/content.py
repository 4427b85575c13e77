"""What shall be in an image beside PyTorch: from flags, variables and a file to a request."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gpuenv.errors import ConfigurationError
from gpuenv.reading import read_named_text, reason
from gpuenv.spec import ImageRequest
from gpuenv.validate import (
    check_apt,
    check_env,
    check_image_name,
    check_image_ref,
    check_requirement,
    check_workdir,
    collect,
    parse_requirements,
    raise_together,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gpuenv.config import Config, Setting
    from gpuenv.spec import Feature


def parse_content(
    config: Config,
    environ: Mapping[str, str],
    *,
    apt: Sequence[str] | None = None,
    pip: Sequence[str] | None = None,
    requirements: Sequence[Path] | None = None,
    env: Sequence[str] | None = None,
    workdir: str | None = None,
    base: str | None = None,
    name: str | None = None,
    features: tuple[Feature, ...] = (),
) -> ImageRequest:
    """Put flags over variables over the file, and check every value.

    Raises:
        ConfigurationError: Values that cannot be taken; all of them are named, with their places.
    """
    default = ImageRequest()
    packages = config.texts("apt", apt, environ)
    python_packages = config.texts("pip", pip, environ)
    files = config.texts("requirements", [str(path) for path in requirements or ()], environ)
    variables = config.variables(env)
    singles = {
        "workdir": (config.text("workdir", workdir, environ), check_workdir),
        "base": (config.text("base", base, environ), check_image_ref),
        "name": (config.text("name", name, environ), check_image_name),
    }
    lines: list[str] = []

    def read(setting: Setting) -> None:
        lines.extend(read_requirements(Path(setting.text), origin=setting.origin))

    checks: list[Callable[[], object]] = [
        *(partial(check_apt, s.text, origin=s.origin) for s in packages),
        *(partial(check_requirement, s.text, origin=s.origin) for s in python_packages),
        *(partial(read, setting) for setting in files),
        *(partial(check_env, key, s.text, origin=s.origin) for key, s in variables.items()),
        *(partial(check, s.text, origin=s.origin) for s, check in singles.values() if s),
    ]
    raise_together(collect(checks))

    def single(key: str) -> str | None:
        setting = singles[key][0]
        return None if setting is None else setting.text

    return ImageRequest(
        name=single("name") or default.name,
        features=tuple(sorted(set(features))),
        apt=tuple(sorted({setting.text for setting in packages})),
        pip=tuple(sorted({setting.text for setting in python_packages})),
        requirements=tuple(dict.fromkeys(lines)),
        env=tuple(sorted((key, setting.text) for key, setting in variables.items())),
        workdir=single("workdir") or default.workdir,
        base=single("base"),
    )


def read_requirements(
    path: Path, *, origin: str = "", _above: tuple[Path, ...] = ()
) -> tuple[str, ...]:
    """Read a requirements file and the files it names with ``-r``.

    Raises:
        ConfigurationError: A file cannot be read, names itself, or has lines that cannot be taken.
    """
    _require_local(str(path), origin=origin)
    if path.resolve() in _above:
        raise ConfigurationError(
            f"{path} includes itself",
            why=" → ".join(str(p) for p in (*_above, path.resolve())),
            fix="remove the -r line that closes the circle",
        )
    try:
        text = read_named_text(path, encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigurationError(
            f"cannot read the requirements file {path}",
            why=reason(exc) + (f" (from {origin})" if origin else ""),
            fix="name a file that is there",
        ) from exc
    return parse_requirements(
        text,
        origin=str(path),
        include=lambda name: read_requirements(
            path.parent / _require_local(name, origin=str(path)),
            origin=str(path),
            _above=(*_above, path.resolve()),
        ),
    )


def _require_local(name: str, *, origin: str) -> str:
    # A path has one slash where an address had two; the address may hold a password.
    if re.match(r"[a-z][a-z0-9+.-]*:/", name, re.IGNORECASE):
        raise ConfigurationError(
            "a requirements file must lie on this machine",
            why="an address was given" + (f" (from {origin})" if origin else ""),
            fix="download it, and name the file",
        )
    return name
