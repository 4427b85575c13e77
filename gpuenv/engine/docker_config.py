"""What the Docker client keeps in ``~/.docker``: its settings, and the logins of registries.

``docker login`` writes them and no docker program is needed to read them::

    {"auths": {"ghcr.io": {"auth": "dXNlcjpwYXNz"}},
     "credsStore": "secretservice", "credHelpers": {"ghcr.io": "pass"}}

A helper is a program ``docker-credential-NAME``. The docker SDK knows how logins are written and
how helpers are asked; nonsense in either becomes an error of ours here.

Source:
    Docker CLI reference, "docker login": configuration file, credential stores and helpers.
"""

from __future__ import annotations

import base64
import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuenv.engine.errors import DockerConfigError, RegistryLoginError
from gpuenv.reading import parse_json, read_named_text, reason

if TYPE_CHECKING:
    from collections.abc import Mapping

_NO_LOGIN = "its answer is no JSON with Username and Secret"


def docker_folder(environ: Mapping[str, str]) -> Path | None:
    """Return the folder of the Docker client's settings, ``None`` without a home."""
    if environ.get("DOCKER_CONFIG"):
        return Path(environ["DOCKER_CONFIG"])
    return Path(environ["HOME"]) / ".docker" if environ.get("HOME") else None


def load_docker_config(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the Docker client's settings; empty where there are none.

    Raises:
        DockerConfigError: The file cannot be read, or is not what the client writes.
    """
    folder = docker_folder(environ)
    if folder is None:
        return {}
    path = folder / "config.json"
    try:
        settings = parse_json(read_named_text(path))
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return {}  # PermissionError: HOME is somebody else's, as after su without a dash
    except (OSError, UnicodeDecodeError) as exc:
        raise _unusable(path, reason(exc)) from exc
    except ValueError as exc:
        raise _unusable(path, str(exc)) from exc
    if not isinstance(settings, dict):
        raise _unusable(path, "it holds no JSON object")
    for key, kind, words in (
        ("auths", dict, "an object"),
        ("credHelpers", dict, "an object"),
        ("credsStore", str, "text"),
        ("currentContext", str, "text"),
    ):
        if not isinstance(settings.get(key) or kind(), kind):
            raise _unusable(path, f"{key} is not {words}")
    return settings


def find_login(name: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return what the engine is told of the login for an image's registry; empty for none.

    Args:
        name: Of the image, without its tag: ``ghcr.io/team/image``.

    Raises:
        DockerConfigError: The settings cannot be used.
        RegistryLoginError: The credential helper does not answer as it should.
    """
    settings = load_docker_config(environ)
    if not settings:
        return {}
    from docker import auth
    from docker.errors import DockerException

    path = (docker_folder(environ) or Path()) / "config.json"
    try:
        known = auth.AuthConfig.load_config(None, settings, credstore_env=dict(environ))
    except (DockerException, ValueError, TypeError) as exc:
        raise _unusable(path, f"a login in it cannot be read: {exc}") from exc
    registry, _ = auth.resolve_repository_name(name)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a helper that is missing: told below
            found = known.resolve_authconfig(registry) or {}
    except DockerException as exc:
        raise _mute(registry, str(exc.__cause__ or exc)) from exc
    except (ValueError, TypeError, KeyError) as exc:  # whatever it printed may be a secret
        raise _mute(registry, _NO_LOGIN) from exc
    login = {key: value for key, value in found.items() if value is not None}
    if not all(isinstance(value, str) for value in login.values()):
        raise _mute(registry, _NO_LOGIN)
    return login


def login_header(login: Mapping[str, str]) -> str:
    """Return a login as the engine's API takes it: JSON in the base64 of addresses."""
    return base64.urlsafe_b64encode(json.dumps(dict(login)).encode()).decode()


def _unusable(path: Path, why: str) -> DockerConfigError:
    return DockerConfigError(
        f"{path} cannot be used", why=why, fix="mend the file: the Docker client reads it as well"
    )


def _mute(registry: str, why: str) -> RegistryLoginError:
    return RegistryLoginError(
        f"the credential helper gives no login for {registry}",
        why=why,
        fix=f"docker login {registry}",
    )
