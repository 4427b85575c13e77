"""`gpuenv build` for real: built, proven, found again, interrupted, refused; nothing leaks."""

from __future__ import annotations

import io
import json
import signal
import tarfile
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from gpuenv.engine.protocol import ContainerSpec, PutFile

if TYPE_CHECKING:
    from pathlib import Path

    from gpuenv.engine.protocol import ContainerEngine
    from tests.engine.conftest import Answer, Gpuenv

pytestmark = [pytest.mark.engine, pytest.mark.network]

CPU = ("--cuda", "cpu", "--make-base")


@pytest.fixture(scope="module")
def name(gpuenv: Gpuenv) -> str:
    return gpuenv.image_name()


@pytest.fixture(scope="module")
def built(gpuenv: Gpuenv, name: str) -> Answer:
    """Build the CPU image once for the tests of this file."""
    answer = gpuenv("build", *CPU, "--name", name)
    assert answer.exit_code == 0, answer.envelope
    return answer


def run_in(engine: ContainerEngine, image: str, code: str) -> str:
    """Run Python code in a container of an image and return what it printed."""
    created = engine.create(
        ContainerSpec(
            image=image,
            command=("python", "/tmp/code.py"),
            files=(PutFile(path="/tmp/code.py", content=code.encode()),),
        )
    )
    try:
        engine.start(created.id)
        status = engine.wait(created.id, timeout_s=600)
        said = b"".join(chunk.data for chunk in engine.logs(created.id)).decode()
        assert status.exit_code == 0, said
        return said.strip()
    finally:
        engine.remove(created.id, force=True)


def test_the_image_is_what_the_row_promised(built: Answer, name: str) -> None:
    row, verified = built.data["spec"]["environment"], built.data["verified"]
    assert built.data["image_ref"].startswith(f"localhost/gpuenv/{name}:{row['torch']}-cpu-py3.")
    assert verified["torch"]["version"] == f"{row['torch']}+cpu"
    assert verified["python"].startswith(row["python"])
    assert verified["driver_files"] == []
    assert built.data["found"] is False
    assert any("torch" in step["name"] for step in built.data["steps"])


def test_the_labels_tell_the_whole_spec(built: Answer, session_engine: ContainerEngine) -> None:
    image = session_engine.image(built.data["image_id"])
    assert image is not None
    assert json.loads(image.labels["org.gpuenv.spec"]) == built.data["spec"]
    assert (
        image.labels["org.opencontainers.image.base.name"]
        == (built.data["spec"]["environment"]["base_image"])
    )
    assert image.user == "1000"  # by number: Kubernetes can tell that it is not root


def test_the_same_request_finds_the_image_and_builds_nothing(
    gpuenv: Gpuenv, built: Answer, name: str
) -> None:
    again = gpuenv("build", *CPU, "--name", name)
    assert (again.data["found"], again.data["steps"]) == (True, [])
    assert again.data["image_id"] == built.data["image_id"]
    # Sources that answer otherwise now may give another image; it has the same name and row.
    refreshed = gpuenv("build", *CPU, "--name", name, "--refresh")
    assert refreshed.data["image_ref"] == built.data["image_ref"]
    assert (
        refreshed.data["spec"]["environment"]["torch"]
        == (built.data["spec"]["environment"]["torch"])
    )


def test_one_more_package_leaves_the_torch_layers_alone(
    gpuenv: Gpuenv, built: Answer, session_engine: ContainerEngine
) -> None:
    # A name of its own: the other tests of this file look their image up by its name.
    more = gpuenv("build", *CPU, "--name", gpuenv.image_name(), "--pip", "einops")
    assert more.exit_code == 0, more.envelope
    before = session_engine.image(built.data["image_id"])
    after = session_engine.image(more.data["image_id"])
    assert before is not None
    assert after is not None
    shared = [a == b for a, b in zip(before.layers, after.layers, strict=False)]
    # All but the last one, which sets the working directory up.
    assert shared.index(False) >= len(before.layers) - 2
    assert run_in(session_engine, more.data["image_id"], "import einops; print('here')") == "here"


def test_torch_compile_works_inside(built: Answer, session_engine: ContainerEngine) -> None:
    code = (
        "import torch\n"
        "f = torch.compile(lambda x: torch.sin(x) ** 2 + torch.cos(x) ** 2)\n"
        "print(torch.allclose(f(torch.arange(8.0)), torch.ones(8)))\n"
    )
    assert run_in(session_engine, built.data["image_id"], code).endswith("True")


def test_a_requirement_cannot_swap_torch(gpuenv: Gpuenv, built: Answer) -> None:
    torch = built.data["spec"]["environment"]["torch"]
    answer = gpuenv("build", *CPU, "--name", gpuenv.image_name(), "--pip", f"torch!={torch}")
    assert answer.exit_code in {2, 5}
    assert "torch" in answer.error["what"] + answer.error["why"]


def test_a_base_that_is_nowhere_is_refused_with_the_way_out(gpuenv: Gpuenv) -> None:
    answer = gpuenv("build", *CPU, "--base", "localhost/gpuenv/nowhere:1")
    assert answer.exit_code == 4
    assert answer.error["slug"] == "base-image-unavailable"
    assert "--base" in answer.error["fix"]


def test_offline_without_a_wheel_says_so(gpuenv: Gpuenv, tmp_path: Any) -> None:
    (tmp_path / "wheels").mkdir()
    answer = gpuenv(
        "build", *CPU, "--offline", "--wheelhouse", str(tmp_path / "wheels"), "--torch", "2.5",
        HOME=str(tmp_path), PIP_FIND_LINKS="", PIP_CONFIG_FILE="/dev/null",
    )  # fmt: skip
    assert answer.exit_code == 3
    assert "--offline" in answer.error["why"]


def test_two_builds_at_once_give_one_image(
    gpuenv: Gpuenv, built: Answer, session_engine: ContainerEngine
) -> None:
    name = gpuenv.image_name()
    arguments = ("build", *CPU, "--name", name, "--env", "TWICE=1", "--json")
    both = [gpuenv.start(*arguments) for _ in range(2)]
    answers = [json.loads(process.communicate()[0]) for process in both]
    assert [answer["exit_code"] for answer in answers] == [0, 0], answers
    ids = {answer["data"]["image_id"] for answer in answers}
    image = session_engine.image(answers[0]["data"]["image_ref"])
    assert image is not None
    assert image.id in ids
    assert built.exit_code == 0


def test_ctrl_c_during_a_step_leaves_nothing_and_the_next_build_works(
    gpuenv: Gpuenv, built: Answer, session_engine: ContainerEngine
) -> None:
    assert built.exit_code == 0
    name = gpuenv.image_name()
    images = {image.id for image in session_engine.images()}
    arguments = ("build", *CPU, "--name", name, "--pip", "cowsay")
    process = gpuenv.start(*arguments, "--no-cache", "--progress", "plain")
    assert process.stderr is not None
    for line in process.stderr:
        if "RUN" in line or "apt" in line:
            break
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130
    process.communicate()
    assert {image.id for image in session_engine.images()} - images == set()
    assert session_engine.containers(labels={"org.gpuenv.kind": "verify"}) == ()
    assert gpuenv(*arguments).exit_code == 0


@pytest.mark.parametrize("written_in", ["the flag", "netrc"])
def test_planted_credentials_are_in_no_layer(
    gpuenv: Gpuenv,
    session_engine: ContainerEngine,
    private_index: Any,
    written_in: str,
    tmp_path: Path,
) -> None:
    name = gpuenv.image_name()
    url, environ = private_index.url_with_credentials, {}
    if written_in == "netrc":
        parts = urlsplit(url)
        url = url.replace(f"{private_index.username}:{private_index.password}@", "")
        netrc = tmp_path / "netrc"
        login = f"login {private_index.username} password {private_index.password}"
        netrc.write_text(f"machine {parts.hostname} {login}\n", encoding="utf-8")
        netrc.chmod(0o600)
        environ = {"NETRC": str(netrc)}
    answer = gpuenv(
        "build", *CPU, "--name", name, "-v",
        "--extra-index-url", url, "--pip", private_index.package,
        **environ,
    )  # fmt: skip
    assert answer.exit_code == 0, answer.envelope
    assert private_index.served, "the build did not use the private index"
    planted = (private_index.password.encode(), private_index.username.encode())
    assert not [word for word in planted if word in json.dumps(answer.envelope).encode()]
    assert not [word for word in planted if word in answer.stderr.encode()]
    archive = b"".join(session_engine.save((answer.data["image_ref"],)))
    found = [
        path for path, content in files_of_image(archive) if any(w in content for w in planted)
    ]
    assert found == []


def files_of_image(archive: bytes) -> Any:
    """Yield path and content of every file of an image, its configuration and layers included."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as image:
        for member in image:
            content = _read(image, member)
            if not member.name.endswith("layer.tar") and not content.startswith(b"\x1f\x8b"):
                yield member.name, content
                if not tarfile.is_tarfile(io.BytesIO(content)):
                    continue
            with tarfile.open(fileobj=io.BytesIO(content)) as layer:
                for inner in layer:
                    if inner.isfile():
                        yield f"{member.name}:{inner.name}", _read(layer, inner)


def _read(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member) if member.isfile() else None
    return b"" if file is None else file.read()


def test_a_dry_run_makes_no_base(gpuenv: Gpuenv, session_engine: ContainerEngine) -> None:
    before = {image.id for image in session_engine.images()}
    answer = gpuenv("build", *CPU, "--python", "3.13", "--dry-run")
    assert answer.exit_code in {0, 3}, answer.envelope
    assert {image.id for image in session_engine.images()} == before
    assert "making" not in answer.stderr
    assert "pulling" not in answer.stderr
