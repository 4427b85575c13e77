"""What the Docker client keeps in ``~/.docker``: its settings, and the logins of registries.

``docker login`` writes them and no docker program is needed to read them::

    {"auths": {"ghcr.io": {"auth": "dXNlcjpwYXNz"}},
     "credsStore": "secretservice", "credHelpers": {"ghcr.io": "pass"}}

A helper is a program ``docker-credential-NAME``: it gets the registry on standard input and answers
``{"ServerURL": …, "Username": …, "Secret": …}``.

Source:
    Docker CLI reference, "docker login": configuration file, credential stores and helpers.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuenv.engine.errors import DockerConfigError, RegistryLoginError
from gpuenv.process import ProgramNotFoundError, ProgramTimeoutError, run_program
from gpuenv.reading import parse_json, read_named_text, reason

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuenv.process import Completed

_HUB = "docker.io"
_HUB_KEY = "https://index.docker.io/v1/"
_HELPER_TIMEOUT_S = 60.0  # it may ask a person to unlock a keyring
_NOT_FOUND = "credentials not found"
_TOKEN = "<token>"  # noqa: S105 - what a helper calls a user that is a token


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


def registry_of(name: str) -> str:
    """Return the registry of an image: of ``ghcr.io/x/y`` ``ghcr.io``, of ``x/y`` the Hub's."""
    first, slash, _ = name.partition("/")
    named = slash and (first == "localhost" or "." in first or ":" in first)
    return first if named and first not in {_HUB, "index.docker.io"} else _HUB


def find_login(registry: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return what the engine is told of a login, by the engine's own names; empty for none.

    Raises:
        DockerConfigError: The settings cannot be used.
        RegistryLoginError: The credential helper does not answer as it should.
    """
    settings = load_docker_config(environ)
    key = _HUB_KEY if registry == _HUB else registry
    helpers = settings.get("credHelpers") or {}
    helper = helpers.get(key) or helpers.get(registry) or settings.get("credsStore")
    if helper and (found := _ask_helper(helper, key, environ)):
        return found
    for name, entry in (settings.get("auths") or {}).items():
        if _host_of(name) in {_host_of(key), registry}:
            folder = docker_folder(environ) or Path()
            return _entry_login(entry, registry, folder / "config.json")
    return {}


def login_header(login: Mapping[str, str]) -> str:
    """Return a login as the engine's API takes it: JSON in the base64 of addresses."""
    return base64.urlsafe_b64encode(json.dumps(dict(login)).encode()).decode()


def _host_of(key: str) -> str:
    """Return the host of a key of ``auths``, which may be an address: ``https://host/v1/``."""
    return re.sub(r"^https?://", "", key).partition("/")[0]


def _entry_login(entry: object, registry: str, path: Path) -> dict[str, str]:
    if not isinstance(entry, dict):
        raise _unusable(path, f"its entry for {registry} is no object")
    login = {
        ours: value
        for theirs, ours in (
            ("username", "username"),
            ("password", "password"),
            ("identitytoken", "identitytoken"),
            ("registrytoken", "registrytoken"),
        )
        if isinstance(value := entry.get(theirs), str) and value
    }
    packed = entry.get("auth")
    if packed:
        try:
            user, colon, secret = base64.b64decode(packed, validate=True).decode().partition(":")
        except (TypeError, ValueError, binascii.Error) as exc:
            raise _unusable(path, f"the login for {registry} is no base64") from exc
        if not colon:
            raise _unusable(path, f"the login for {registry} is not USER:PASSWORD in base64")
        login |= {"username": user, "password": secret.rstrip("\0")}
    return {**login, "serveraddress": registry} if login else {}


def _ask_helper(helper: object, key: str, environ: Mapping[str, str]) -> dict[str, str]:
    if not isinstance(helper, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", helper):
        raise RegistryLoginError(
            f"{helper!r} is not the name of a credential helper",
            why="Docker's config.json names it in credsStore or credHelpers",
            fix=f"take it out there, then: docker login {key}",
        )
    program = f"docker-credential-{helper}"
    try:
        said = run_program(
            (program, "get"), timeout_s=_HELPER_TIMEOUT_S, env=environ, stdin=key.encode()
        )
    except ProgramNotFoundError as exc:
        raise _mute(program, key, f"there is no program {program} in PATH") from exc
    except ProgramTimeoutError as exc:
        raise _mute(program, key, f"it said nothing for {_HELPER_TIMEOUT_S:g} s") from exc
    except OSError as exc:
        raise _mute(program, key, exc.strerror or str(exc)) from exc
    if said.exit_code != 0:
        if _NOT_FOUND in said.stdout + said.stderr:
            return {}
        words = " ".join((said.stderr or said.stdout).split())[:200]
        raise _mute(program, key, f"it ended with {said.exit_code}: {words}")
    return _helper_login(said, program, key)


def _helper_login(said: Completed, program: str, key: str) -> dict[str, str]:
    try:
        answer = parse_json(said.stdout)
    except ValueError as exc:  # whatever it printed may be a secret
        raise _mute(program, key, "its answer is no JSON") from exc
    user, secret = (
        (answer.get("Username"), answer.get("Secret")) if isinstance(answer, dict) else (None, None)
    )
    if not isinstance(user, str) or not isinstance(secret, str):
        raise _mute(program, key, "its answer has no Username and Secret")
    if user == _TOKEN:
        return {"identitytoken": secret, "serveraddress": key}
    return {"username": user, "password": secret, "serveraddress": key}


def _unusable(path: Path, why: str) -> DockerConfigError:
    return DockerConfigError(
        f"{path} cannot be used", why=why, fix="mend the file: the Docker client reads it as well"
    )


def _mute(program: str, key: str, why: str) -> RegistryLoginError:
    return RegistryLoginError(
        f"no login for {key} from {program}",
        why=why,
        fix=f"docker login {_host_of(key)}",
    )
