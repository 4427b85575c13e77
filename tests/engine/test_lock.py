"""`gpuenv lock` for real: resolved in the engine, built and proven, refused when bytes differ."""

from __future__ import annotations

import hashlib
import json
import secrets
from typing import TYPE_CHECKING

import pytest

from gpuenv.lockfile import load_lock
from tests.engine.conftest import serve_privately, tiny_wheel
from tests.engine.test_build import files_of_image, run_in

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gpuenv.engine.protocol import ContainerEngine
    from gpuenv.lockfile import Lock
    from tests.engine.conftest import Answer, Gpuenv, PrivateIndex

pytestmark = [pytest.mark.engine, pytest.mark.network]

CPU = ("--cuda", "cpu", "--make-base")


class Project:
    """A folder with wheels of its own, an index with a password, and a lock made with both."""

    def __init__(self, gpuenv: Gpuenv, folder: Path, index: PrivateIndex) -> None:
        self.index = index
        self.path = folder / "gpuenv.lock"
        self.package = f"planted-{secrets.token_hex(4)}"
        self.wheels = folder / "wheels"
        self.wheels.mkdir()
        file, content = tiny_wheel(self.package)
        self.wheel = self.wheels / file
        self.wheel.write_bytes(content)
        self.sources = (
            "--wheelhouse", str(self.wheels), "--extra-index-url", index.url_with_credentials,
        )  # fmt: skip
        self.request = (
            *CPU, "--name", gpuenv.image_name(), "--pip", self.package, "--pip", index.package,
            *self.sources,
        )  # fmt: skip

    @property
    def lock(self) -> Lock:
        return load_lock(self.path)

    @property
    def secrets(self) -> tuple[str, str]:
        return self.index.password, self.index.username


@pytest.fixture(scope="module")
def project(gpuenv: Gpuenv, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """Lock the CPU image with a package that only a folder has, and one of an index."""
    with serve_privately() as index:
        project = Project(gpuenv, tmp_path_factory.mktemp("project"), index)
        answer = gpuenv("lock", *project.request, "--lock-file", str(project.path))
        assert answer.exit_code == 0, answer.envelope
        assert answer.data["written"] is True
        said = json.dumps(answer.envelope) + answer.stderr
        assert not [word for word in project.secrets if word in said]
        yield project


@pytest.fixture(scope="module")
def built(gpuenv: Gpuenv, project: Project) -> Answer:
    """Build what the lock says, once for the tests of this file."""
    answer = gpuenv("build", "--lock-file", str(project.path), *project.sources)
    assert answer.exit_code == 0, answer.envelope
    return answer


def test_the_same_request_gives_the_same_bytes(
    gpuenv: Gpuenv, project: Project, tmp_path: Path
) -> None:
    before = project.path.read_bytes()
    again = gpuenv("lock", *project.request, "--lock-file", str(project.path))
    assert (again.data["changed"], again.data["changes"]) == (False, [])
    assert project.path.read_bytes() == before
    # Looked for anew as well, unless something newer has come meanwhile.
    other = tmp_path / "gpuenv.lock"
    other.write_bytes(before)
    upgraded = gpuenv("lock", *project.request, "--lock-file", str(other), "--upgrade")
    assert upgraded.exit_code == 0, upgraded.envelope
    assert (other.read_bytes() == before) == (upgraded.data["changes"] == [])


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
    assert not [word for word in (*project.secrets, str(project.index.server.port)) if word in text]


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
        "build",
        "--lock-file",
        str(project.path),
        "--wheelhouse",
        str(tmp_path),
        "--refresh",
    )
    assert answer.exit_code == 5
    assert answer.error["slug"] == "lock-unavailable"
    assert f"{project.wheel.name} in {tmp_path} is another file" in answer.error["why"]


def test_other_bytes_from_an_index_are_refused(
    gpuenv: Gpuenv, built: Answer, project: Project, tmp_path: Path
) -> None:
    assert built.exit_code == 0
    path = tmp_path / "gpuenv.lock"
    former = project.index.exchange()
    made = gpuenv("lock", *project.request, "--lock-file", str(path))
    project.index.exchange(former)
    assert made.exit_code == 0, made.envelope
    answer = gpuenv("build", "--lock-file", str(path), *project.sources)
    assert answer.exit_code == 5, answer.envelope
    assert answer.error["slug"] == "build-hash-mismatch", answer.error


def test_credentials_of_an_index_are_in_no_layer(
    built: Answer, project: Project, session_engine: ContainerEngine
) -> None:
    archive = b"".join(session_engine.save((built.data["image_ref"],)))
    words = [word.encode() for word in project.secrets]
    found = [file for file, content in files_of_image(archive) if any(w in content for w in words)]
    assert found == []
