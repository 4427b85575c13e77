"""Docker's own settings and logins: what is found, and what nonsense is told."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import stat
from typing import TYPE_CHECKING

import pytest

from gpuenv.engine.connect import find_addresses
from gpuenv.engine.docker_config import (
    find_login,
    load_docker_config,
    login_header,
)
from gpuenv.engine.errors import DockerConfigError, EngineContextError, RegistryLoginError

if TYPE_CHECKING:
    from pathlib import Path

REGISTRY = "registry.lab:5000"
_LOCKED = 'Credentials store docker-credential-test exited with "the keyring is locked\n".'
_NO_LOGIN = "its answer is no JSON with Username and Secret"
IMAGE = f"{REGISTRY}/team/image"


def environ_with(folder: Path, settings: object) -> dict[str, str]:
    text = settings if isinstance(settings, str) else json.dumps(settings)
    (folder / "config.json").write_text(text, encoding="utf-8")
    return {"DOCKER_CONFIG": str(folder)}


@pytest.fixture(autouse=True)
def _helpers_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


def helper(folder: Path, lines: str) -> None:
    program = folder / "docker-credential-test"
    program.write_text(f"#!/bin/sh\n{lines}\n", encoding="utf-8")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


def packed(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize("key", [REGISTRY, f"https://{REGISTRY}", f"http://{REGISTRY}/v1/"])
def test_a_login_is_found_under_a_host_and_under_an_address(tmp_path: Path, key: str) -> None:
    environ = environ_with(tmp_path, {"auths": {"other": {}, key: {"auth": packed("me:pa:ss")}}})
    found = find_login(IMAGE, environ)
    assert (found["username"], found["password"]) == ("me", "pa:ss")
    assert find_login("ghcr.io/team/image", environ) == {}


def test_the_hub_has_a_key_of_its_own(tmp_path: Path) -> None:
    key = "https://index.docker.io/v1/"
    environ = environ_with(tmp_path, {"auths": {key: {"auth": packed("me:secret")}}})
    assert find_login("debian", environ)["username"] == "me"


def test_the_header_is_json_in_the_base64_of_addresses() -> None:
    login = {"username": "a?b>c~", "password": "ÿ"}
    header = login_header(login)
    assert not {"+", "/"} & set(header)
    assert json.loads(base64.urlsafe_b64decode(header)) == login


def test_no_settings_are_no_login(tmp_path: Path) -> None:
    assert load_docker_config({"DOCKER_CONFIG": str(tmp_path)}) == {}
    assert load_docker_config({}) == {}
    assert find_login(IMAGE, {"HOME": str(tmp_path)}) == {}


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ("[]", "it holds no JSON object"),
        ("5", "it holds no JSON object"),
        ("null", "it holds no JSON object"),
        ("{", "Expecting property name"),
        ("", "Expecting value"),
        ("[" * 100_000, "it is nested too deeply"),
        ({"auths": [1]}, "auths is not an object"),
        ({"credsStore": 5}, "credsStore is not text"),
        ({"currentContext": 5}, "currentContext is not text"),
        ({"auths": {REGISTRY: 5}}, f"Invalid configuration for registry {REGISTRY}"),
        ({"auths": {REGISTRY: {"auth": "!!"}}}, "a login in it cannot be read"),
        ({"auths": {REGISTRY: {"auth": [1]}}}, "a login in it cannot be read"),
        ({"auths": {REGISTRY: {"auth": packed("me")}}}, "a login in it cannot be read"),
    ],
)
def test_nonsense_in_the_settings_is_told(tmp_path: Path, settings: object, why: str) -> None:
    environ = environ_with(tmp_path, settings)
    with pytest.raises(DockerConfigError) as caught:
        find_login(IMAGE, environ)
    assert caught.value.what == f"{tmp_path / 'config.json'} cannot be used"
    assert why in caught.value.why


def test_the_context_reads_the_same_file_with_the_same_words(tmp_path: Path) -> None:
    environ = environ_with(tmp_path, "[]")
    with pytest.raises(DockerConfigError, match="cannot be used"):
        find_addresses(None, environ)


@pytest.mark.parametrize(
    ("meta", "why"),
    [
        ("[]", "list indices"),
        ('{"Endpoints": {"docker": []}}', "list indices"),
        ('{"Endpoints": {}}', "it has no 'docker'"),
        ("{", "Expecting property name"),
    ],
)
def test_a_broken_context_says_what_is_missing(tmp_path: Path, meta: str, why: str) -> None:
    work = hashlib.sha256(b"work").hexdigest()
    folder = tmp_path / "contexts" / "meta" / work
    folder.mkdir(parents=True)
    (folder / "meta.json").write_text(meta, encoding="utf-8")
    with pytest.raises(EngineContextError) as caught:
        find_addresses("work", {"DOCKER_CONFIG": str(tmp_path)})
    assert why in caught.value.why


@pytest.mark.subprocess
@pytest.mark.parametrize(
    ("answer", "login"),
    [
        (
            '{"Username": "me", "Secret": "s3"}',
            {"Username": "me", "Password": "s3", "ServerAddress": REGISTRY},
        ),
        (
            '{"Username": "<token>", "Secret": "s3"}',
            {"IdentityToken": "s3", "ServerAddress": REGISTRY},
        ),
    ],
)
@pytest.mark.parametrize("key", ["credsStore", "credHelpers"])
def test_a_helper_is_asked_for_the_registry(
    tmp_path: Path, answer: str, login: dict[str, str], key: str
) -> None:
    helper(tmp_path, f"read asked; [ \"$1 $asked\" = 'get {REGISTRY}' ] || exit 9; echo '{answer}'")
    named: object = "test" if key == "credsStore" else {REGISTRY: "test"}
    assert find_login(IMAGE, environ_with(tmp_path, {key: named})) == login


@pytest.mark.subprocess
def test_what_the_helper_does_not_know_may_stand_in_the_file(tmp_path: Path) -> None:
    helper(tmp_path, "cat > /dev/null; echo 'credentials not found in native keychain'; exit 1")
    auths = {REGISTRY: {"auth": packed("me:secret")}}
    environ = environ_with(tmp_path, {"credsStore": "test", "auths": auths})
    assert find_login(IMAGE, environ)["password"] == "secret"


@pytest.mark.subprocess
@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ("echo s3cret", _NO_LOGIN),
        ("echo '[\"s3cret\"]'", _NO_LOGIN),
        ('echo \'{"Username": 5, "Secret": "s3cret"}\'', _NO_LOGIN),
        ("echo 'the keyring is locked'; exit 3", _LOCKED),
    ],
)
def test_a_helper_that_answers_nonsense_is_told_without_its_answer(
    tmp_path: Path, lines: str, why: str
) -> None:
    helper(tmp_path, f"cat > /dev/null\n{lines}")
    with pytest.raises(RegistryLoginError) as caught:
        find_login(IMAGE, environ_with(tmp_path, {"credsStore": "test"}))
    assert caught.value.why == why
    assert "s3cret" not in str(caught.value.as_dict())


@pytest.mark.subprocess
def test_a_helper_that_is_not_there_or_no_program_is_named(tmp_path: Path) -> None:
    environ = environ_with(tmp_path, {"credsStore": "test"})
    with pytest.raises(RegistryLoginError) as caught:
        find_login(IMAGE, environ)
    assert caught.value.why == "docker-credential-test not installed or not available in PATH"
    (tmp_path / "docker-credential-test").write_bytes(b"garbage\n")
    (tmp_path / "docker-credential-test").chmod(0o700)
    with pytest.raises(RegistryLoginError) as caught:
        find_login(IMAGE, environ)
    assert "Exec format error" in caught.value.why
