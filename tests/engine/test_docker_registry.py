"""Images go to a registry and come back under the same digest."""

from __future__ import annotations

import base64
import json
import os
import secrets
import socket
import subprocess
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

import pytest

from gpuenv import process
from gpuenv.engine import errors as e
from gpuenv.engine.archive import Member, tar_bytes
from gpuenv.engine.events import Pulled, Pushed, TransferProgress
from gpuenv.engine.protocol import RegistryLogin
from tests.conftest import missing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gpuenv.engine.protocol import ContainerEngine

pytestmark = pytest.mark.engine

PASSWORD = "secret-pw"
# bcrypt of it, as ``htpasswd -B`` writes it.
HTPASSWD = "user:$2y$05$abcdefghijklmnopqrstuutaz/SHXsrvqy/ChnunBIcMuq4PCR.gG\n"


class Registry:
    """A docker-registry of our own on 127.0.0.1."""

    def __init__(self, folder: Path, *, closed: bool) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        (folder / "htpasswd").write_text(HTPASSWD)
        auth = f"auth:\n  htpasswd:\n    realm: test\n    path: {folder}/htpasswd\n"
        config = folder / "config.yml"
        config.write_text(
            "version: 0.1\nlog:\n  level: error\n"
            f"storage:\n  filesystem:\n    rootdirectory: {folder}/data\n"
            f"http:\n  addr: 127.0.0.1:{self.port}\n{auth if closed else ''}"
        )
        self.log = (folder / "log").open("wb")
        self.process = subprocess.Popen(
            ["docker-registry", "serve", str(config)], stdout=self.log, stderr=self.log
        )

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def wait_ready(self) -> None:
        while self.process.poll() is None:
            try:
                urllib.request.urlopen(f"http://{self.host}/v2/", timeout=5).close()
            except urllib.error.HTTPError as answer:
                answer.close()
                return
            except OSError:
                continue
            return
        pytest.fail("docker-registry ended while it started")

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(30)
        self.log.close()


@pytest.fixture(params=[False], ids=["open"])
def registry(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Registry]:
    if process.find_program("docker-registry") is None:
        missing("docker-registry (Debian package of that name)")
    started = Registry(tmp_path, closed=request.param)
    try:
        started.wait_ready()
        yield started
    finally:
        started.close()


@pytest.fixture
def image(local_engine: ContainerEngine, run_labels: dict[str, str], registry: Registry) -> str:
    """Make a small image that is named for the registry; return the name."""
    ref = f"{registry.host}/gpuenv/test-{secrets.token_hex(4)}:1"
    changes = tuple(f"LABEL {name}={value}" for name, value in run_labels.items())
    archive = tar_bytes([Member(path="hello", content=secrets.token_bytes(2_000_000))])
    local_engine.import_image(archive, ref, changes=changes)
    return ref


def test_a_push_tells_the_digest_and_a_pull_by_it_brings_the_image_back(
    local_engine: ContainerEngine, image: str
) -> None:
    before = local_engine.image(image)
    assert before is not None
    told = list(local_engine.push(image))
    pushed = told[-1]
    assert isinstance(pushed, Pushed)
    assert pushed.digest.startswith("sha256:")
    assert any(isinstance(step, TransferProgress) and step.total for step in told)
    name = image.rpartition(":")[0]
    after = local_engine.image(image)
    assert after is not None
    assert after.digests == (f"{name}@{pushed.digest}",)
    local_engine.untag(image)
    assert local_engine.image(before.id) is None
    by_digest = f"{name}@{pushed.digest}"
    pulled = list(local_engine.pull(by_digest))[-1]
    assert pulled == Pulled(ref=by_digest, image_id=before.id)
    assert list(local_engine.pull(image))[-1] == Pulled(ref=image, image_id=before.id)


@pytest.mark.parametrize("registry", [True], indirect=True, ids=["closed"])
def test_a_login_opens_a_closed_registry_and_shows_nowhere(
    local_engine: ContainerEngine, image: str
) -> None:
    with pytest.raises(e.RegistryDeniedError):
        list(local_engine.push(image))
    wrong = RegistryLogin(username="user", password="wrong-pw")
    with pytest.raises(e.RegistryDeniedError) as caught:
        list(local_engine.push(image, login=wrong))
    assert "wrong-pw" not in f"{caught.value.what} {caught.value.why} {wrong!r}"
    right = RegistryLogin(username="user", password=PASSWORD)
    assert isinstance(list(local_engine.push(image, login=right))[-1], Pushed)


@pytest.mark.parametrize("registry", [True], indirect=True, ids=["closed"])
@pytest.mark.parametrize("way", ["auths", "credHelpers", "credsStore"])
def test_the_login_of_the_docker_client_is_used(
    local_engine: ContainerEngine,
    image: str,
    registry: Registry,
    way: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    helper = tmp_path / "docker-credential-test"
    helper.write_text(
        f'#!/bin/sh\ncat > /dev/null\necho \'{{"Username": "user", "Secret": "{PASSWORD}"}}\'\n',
        encoding="utf-8",
    )
    helper.chmod(0o700)
    login = {"auth": base64.b64encode(f"user:{PASSWORD}".encode()).decode()}
    settings = {
        "auths": {"auths": {registry.host: login}},
        "credHelpers": {"credHelpers": {registry.host: "test"}},
        "credsStore": {"credsStore": "test"},
    }[way]
    (tmp_path / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    pushed = list(local_engine.push(image))[-1]
    assert isinstance(pushed, Pushed)
    by_digest = f"{image.rpartition(':')[0]}@{pushed.digest}"
    assert isinstance(list(local_engine.pull(by_digest))[-1], Pulled)


def test_what_the_registry_does_not_have_is_its_own_error(
    local_engine: ContainerEngine, registry: Registry
) -> None:
    with pytest.raises(e.RemoteImageMissingError):
        list(local_engine.pull(f"{registry.host}/gpuenv/nothing:1"))


def test_a_registry_that_does_not_answer_is_its_own_error(
    local_engine: ContainerEngine, image: str, registry: Registry
) -> None:
    registry.close()
    with pytest.raises(e.RegistryUnreachableError):
        list(local_engine.push(image))
    with pytest.raises(e.RegistryUnreachableError):
        list(local_engine.pull(f"{registry.host}/gpuenv/nothing:1"))


def test_an_image_that_is_not_here_cannot_be_pushed(
    local_engine: ContainerEngine, registry: Registry
) -> None:
    with pytest.raises(e.TransferFailedError) as caught:
        list(local_engine.push(f"{registry.host}/gpuenv/nothing:1"))
    assert "does not exist locally" in caught.value.why
