"""`gpuenv lock` for real: resolved in the engine, built and proven, refused when bytes differ."""

from __future__ import annotations

import hashlib
import json
import secrets
from typing import TYPE_CHECKING, Any

import pytest

from gpuenv.lockfile import load_lock
from tests.engine.conftest import tiny_wheel
from tests.engine.test_build import files_of_image, run_in

if TYPE_CHECKING:
    from pathlib import Path

    from gpuenv.engine.protocol import ContainerEngine
    from gpuenv.lockfile import Lock
    from tests.engine.conftest import Answer, Gpuenv

pytestmark = [pytest.mark.engine, pytest.mark.network]

CPU = ("--cuda", "cpu", "--make-base")


class Project:
    """A folder with wheels of its own, and a lock that was made with them."""

    def __init__(self, gpuenv: Gpuenv, folder: Path) -> None:
        self.name = gpuenv.image_name()
        self.path = folder / "gpuenv.lock"
        self.package = f"planted-{secrets.token_hex(4)}"
        self.wheels = folder / "wheels"
        self.wheels.mkdir()
        file, content = tiny_wheel(self.package)
        self.wheel = self.wheels / file
        self.wheel.write_bytes(content)
        self.request = (
            *CPU, "--name", self.name, "--pip", self.package, "--wheelhouse", str(self.wheels),
            "--lock-file", str(self.path),
        )  # fmt: skip

    @property
    def lock(self) -> Lock:
        return load_lock(self.path)


@pytest.fixture(scope="module")
def project(gpuenv: Gpuenv, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Lock the CPU image with one package that only a folder has."""
    project = Project(gpuenv, tmp_path_factory.mktemp("project"))
    answer = gpuenv("lock", *project.request)
    assert answer.exit_code == 0, answer.envelope
    assert answer.data["written"] is True
    return project


@pytest.fixture(scope="module")
def built(gpuenv: Gpuenv, project: Project) -> Answer:
    """Build what the lock says, once for the tests of this file."""
    answer = gpuenv("build", "--lock-file", str(project.path), "--wheelhouse", str(project.wheels))
    assert answer.exit_code == 0, answer.envelope
    return answer


def test_the_same_request_gives_the_same_bytes_and_leaves_nothing(
    gpuenv: Gpuenv, project: Project, session_engine: ContainerEngine, tmp_path: Path
) -> None:
    before = project.path.read_bytes()
    again = gpuenv("lock", *project.request)
    assert (again.data["changed"], again.data["changes"]) == (False, [])
    assert project.path.read_bytes() == before
    # From nothing as well; other versions may have come meanwhile, so those of the lock are asked.
    other = tmp_path / "other.lock"
    other.write_bytes(before)
    upgraded = gpuenv("lock", *project.request[:-1], str(other), "--upgrade")
    assert upgraded.exit_code == 0, upgraded.envelope
    if not upgraded.data["changes"]:
        assert other.read_bytes() == before
    assert session_engine.images(labels={"org.gpuenv.kind": "lock"}) == ()
    assert session_engine.containers(labels={"org.gpuenv.kind": "lock"}) == ()


def test_every_package_of_the_image_is_the_one_in_the_lock(
    built: Answer, project: Project, session_engine: ContainerEngine
) -> None:
    locked = {package.name: package.version for package in project.lock.installed}
    assert built.data["verified"]["distributions"] == locked
    said = run_in(
        session_engine,
        built.data["image_id"],
        "import json, re\nfrom importlib import metadata\n"
        "name = lambda d: re.sub('[-_.]+', '-', d.metadata['Name']).lower()\n"
        "print(json.dumps({name(d): d.version for d in metadata.distributions()}))",
    )
    assert json.loads(said) == locked


def test_the_file_on_this_host_is_the_one_that_was_digested(project: Project) -> None:
    planted = next(it for it in project.lock.packages if it.name == project.package)
    assert planted.sha256 == hashlib.sha256(project.wheel.read_bytes()).hexdigest()
    text = project.path.read_text()
    assert str(project.wheels) not in text
    assert "://" not in text


def test_the_labels_tell_which_lock(
    built: Answer, project: Project, session_engine: ContainerEngine
) -> None:
    image = session_engine.image(built.data["image_id"])
    assert image is not None
    assert image.labels["org.gpuenv.lock"] == project.lock.digest


def test_the_lock_finds_its_image_whatever_the_sources_say_now(
    gpuenv: Gpuenv, built: Answer, project: Project
) -> None:
    again = gpuenv("build", "--lock-file", str(project.path), "--offline")
    assert (again.data["found"], again.data["image_id"]) == (True, built.data["image_id"])


def test_run_takes_the_lock_as_well(gpuenv: Gpuenv, built: Answer, project: Project) -> None:
    module = project.package.replace("-", "_")
    assert built.exit_code == 0
    process = gpuenv.start(
        "run", "--lock-file", str(project.path), "--no-workspace", "--",
        "python", "-c", f"import torch, {module}; print(torch.__version__)",
    )  # fmt: skip
    stdout, stderr = process.communicate()
    assert process.returncode == 0, stderr
    torch = next(it for it in project.lock.packages if it.name == "torch")
    assert stdout.strip() == torch.version


def test_one_changed_byte_in_a_wheel_is_refused_before_anything_is_built(
    gpuenv: Gpuenv, project: Project, tmp_path: Path
) -> None:
    copy = tmp_path / project.wheel.name
    content = bytearray(project.wheel.read_bytes())
    content[-1] ^= 1
    copy.write_bytes(content)
    answer = gpuenv(
        "build", "--lock-file", str(project.path), "--wheelhouse", str(tmp_path), "--refresh"
    )
    assert answer.exit_code == 5
    assert answer.error["slug"] == "lock-unavailable"
    assert f"{project.wheel.name} in {tmp_path} is another file" in answer.error["why"]


def test_credentials_of_an_index_are_nowhere_and_other_bytes_from_it_are_refused(
    gpuenv: Gpuenv, private_index: Any, session_engine: ContainerEngine, tmp_path: Path
) -> None:
    path = tmp_path / "gpuenv.lock"
    sources = ("--extra-index-url", private_index.url_with_credentials)
    name = gpuenv.image_name()
    made = gpuenv(
        "lock", *CPU, "--name", name, "--pip", private_index.package, *sources,
        "--lock-file", str(path),
    )  # fmt: skip
    assert made.exit_code == 0, made.envelope
    planted = (private_index.password, private_index.username)
    said = path.read_text() + json.dumps(made.envelope) + made.stderr
    assert not [word for word in planted if word in said]
    assert f":{private_index.server.port}" not in path.read_text()

    right = private_index.exchange()
    refused = gpuenv("build", "--lock-file", str(path), *sources)
    assert refused.exit_code == 5, refused.envelope
    assert refused.error["slug"] == "build-hash-mismatch", refused.error
    private_index.exchange(right)
    answer = gpuenv("build", "--lock-file", str(path), *sources)
    assert answer.exit_code == 0, answer.envelope
    archive = b"".join(session_engine.save((answer.data["image_ref"],)))
    words = [word.encode() for word in planted]
    found = [file for file, content in files_of_image(archive) if any(w in content for w in words)]
    assert found == []
