"""An environment that is reached by SSH, started once for a whole file of tests."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import shutil
import subprocess
import sys
import tempfile
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpuenv.engine.archive import Member, tar_bytes
from gpuenv.engine.events import build_image
from gpuenv.engine.protocol import BuildRequest
from gpuenv.ssh.keys import make_key
from tests.conftest import REPOSITORY, missing
from tests.launch_fixtures import PREFIX, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpuenv.engine.protocol import ContainerEngine
    from gpuenv.ssh.keys import KeyPair

WORKER = 1234


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """A user with an SSH key, a workspace of their own, and one environment."""

    root: Path
    image: str
    engine: ContainerEngine
    environ: Mapping[str, str]
    key: KeyPair
    name: str

    @property
    def workspace(self) -> Path:
        """The folder that is mounted."""
        return self.root / "work"

    @property
    def ssh_folder(self) -> Path:
        """``~/.ssh``."""
        return self.root / "home" / ".ssh"

    @property
    def state(self) -> Path:
        """The state folder."""
        return self.root / "state"

    @property
    def alias(self) -> str:
        """What ``ssh`` calls the environment."""
        return f"gpuenv-{self.name}"

    def gpuenv(self, *words: str, stdin: bytes = b"", **environ: str) -> Outcome:
        """Run a command of gpuenv to its end."""
        done = subprocess.run(
            [sys.executable, "-m", "gpuenv", *words],
            input=stdin,
            capture_output=True,
            cwd=self.workspace,
            env={**self.environ, **environ},
            timeout=120,
            check=False,
        )
        return Outcome(
            exit_code=done.returncode,
            stdout=done.stdout.decode("utf-8", "replace"),
            stderr=done.stderr.decode("utf-8", "replace"),
        )

    def ssh(self, *words: str, **environ: str) -> Outcome:
        """Call ``gpuenv ssh`` for the environment."""
        return self.gpuenv("ssh", self.name, *words, **environ)

    def inside(self, line: str) -> str:
        """Return what a shell line prints inside; it must succeed."""
        done = self.ssh("-q", "--", line)
        assert done.exit_code == 0, done.stderr
        return done.stdout.strip()

    def client(self, program: str, *words: str, stdin: bytes = b"") -> Outcome:
        """Run ``ssh``, ``scp``, ``sftp`` or ``rsync`` with the user's own configuration."""
        config = str(self.ssh_folder / "config")
        options = ["-e", f"ssh -F {shlex.quote(config)}"] if program == "rsync" else ["-F", config]
        done = subprocess.run(
            [program, *options, *words],
            input=stdin,
            capture_output=True,
            timeout=60,
            env=dict(self.environ),
            check=False,
        )
        return Outcome(
            exit_code=done.returncode,
            stdout=done.stdout.decode("utf-8", "replace"),
            stderr=done.stderr.decode("utf-8", "replace"),
        )

    def start(self, *words: str) -> dict[str, Any]:
        """Start the environment, or find it, and return what ``--json`` says."""
        return self.ssh("--json", "--detach", *words).data

    def raw(self, method: str, path: str) -> bytes:
        """Return what the engine itself answers: all that it tells of a container or an image."""
        with closing(self.engine._call(method, path, about="this")) as answer:  # type: ignore[attr-defined]
            content: bytes = answer.content
            return content

    @property
    def container(self) -> str:
        """The id of its container."""
        listed = json.loads(self.gpuenv("ps", "--json").stdout)["data"]["environments"]
        (found,) = [one["id"] for one in listed if one["name"] == self.name]
        return str(found)


@pytest.fixture(scope="module")
def seat(
    session_engine: ContainerEngine,
    engine_environ: Mapping[str, str],
    jupyter_image: str,
    request: pytest.FixtureRequest,
) -> Iterator[Seat]:
    """Return a seat whose environment runs; it is removed when the file of tests is done."""
    word = f"{PREFIX}-{request.node.name[:9]}"
    with open_seat(session_engine, engine_environ, jupyter_image, word) as seat:
        yield seat


@contextmanager
def open_seat(
    engine: ContainerEngine,
    engine_environ: Mapping[str, str],
    image: str,
    word: str,
    *flags: str,
) -> Iterator[Seat]:
    """Start an environment and take the seat before it; both are gone afterwards.

    Args:
        word: Its name, once it is made fit for one.
        flags: What is asked of ``gpuenv ssh`` beside the image.
    """
    for program in ("ssh", "scp", "sftp", "rsync", "ssh-keygen"):
        if shutil.which(program) is None:
            missing(f"{program}, to log in with")
    root = Path(tempfile.mkdtemp(prefix="gpuenv-ssh-"))
    root.chmod(0o755)
    seat = make_seat(root, engine, engine_environ, image, word)
    try:
        seat.start("--image", image, "--no-caches", *flags)
        assert seat.gpuenv("ssh", "config", "install").exit_code == 0
        yield seat
    finally:
        for container in engine.containers(labels={"org.gpuenv.name": seat.name}):
            engine.remove(container.id, force=True)
        shutil.rmtree(root, ignore_errors=True)


@contextmanager
def changed_image(engine: ContainerEngine, image: str, *lines: str) -> Iterator[str]:
    """Build an image that differs by some lines of a Dockerfile; return its name."""
    ref = f"localhost/gpuenv/{PREFIX}:{secrets.token_hex(3)}"
    dockerfile = "\n".join((f"FROM {image}", *lines, ""))
    context = tar_bytes([Member(path="Dockerfile", content=dockerfile.encode())])
    build_image(engine, BuildRequest(context=context, tags=(ref,)))
    try:
        yield ref
    finally:
        engine.untag(ref, force=True)


def make_seat(
    root: Path,
    engine: ContainerEngine,
    engine_environ: Mapping[str, str],
    image: str,
    word: str,
) -> Seat:
    """Make a user's folders, with a key of theirs in ``~/.ssh``."""
    name = "".join(c if c.isalnum() else "-" for c in word.lower()).strip("-")
    ssh_folder = root / "home" / ".ssh"
    ssh_folder.mkdir(parents=True, mode=0o700)
    (root / "work").mkdir()
    if os.geteuid() == 0:
        os.chown(root / "work", WORKER, WORKER)
    key = make_key("me@here")
    private = ssh_folder / "id_ed25519"
    private.touch(mode=0o600)
    private.write_text(key.private.reveal())
    (ssh_folder / "id_ed25519.pub").write_text(key.public.line + "\n")
    environ = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("GPUENV_", "XDG_", "SSH_"))
    }
    environ |= {
        "HOME": str(root / "home"),
        "GPUENV_STATE_DIR": str(root / "state"),
        "PYTHONPATH": str(REPOSITORY),
        "NO_COLOR": "1",
        "TERM": "xterm",
    }
    if "DOCKER_HOST" in engine_environ:
        environ["DOCKER_HOST"] = engine_environ["DOCKER_HOST"]
    return Seat(root=root, image=image, engine=engine, environ=environ, key=key, name=name)
