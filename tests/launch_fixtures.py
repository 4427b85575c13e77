"""Fixtures for tests of what gpuenv starts; ``tests/conftest.py`` loads them for all trees.

They use the command itself, in a process of its own, with a state folder of its own. What a test
starts has a name that begins with this run's prefix and is gone afterwards.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpuenv import output
from gpuenv.containers.identity import VOLUME
from gpuenv.containers.lifecycle import list_environments
from gpuenv.errors import GpuenvError
from tests.conftest import REPOSITORY, missing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpuenv.containers.lifecycle import Environment
    from gpuenv.engine.protocol import ContainerEngine

PREFIX = f"t{secrets.token_hex(3)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one command line ended."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def envelope(self) -> dict[str, Any]:
        """The one JSON object on standard output."""
        answer: dict[str, Any] = json.loads(self.stdout)
        return answer

    @property
    def data(self) -> dict[str, Any]:
        """Its ``data``; the command must have succeeded."""
        assert self.exit_code == 0, self.stderr + self.stdout
        data: dict[str, Any] = self.envelope["data"]
        return data

    @property
    def slug(self) -> str:
        """The slug of its one error."""
        (error,) = self.envelope["errors"]
        return str(error["slug"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """A user's place of work: a workspace, a home, a state folder, and the command."""

    root: Path
    engine: ContainerEngine
    environ: Mapping[str, str]

    @property
    def workspace(self) -> Path:
        """The folder commands are called in."""
        return self.root / "work"

    @property
    def state(self) -> Path:
        """The state folder."""
        return self.root / "state"

    def name(self, word: str = "env") -> str:
        """Return a name of this run for an environment."""
        return f"{PREFIX}-{self.root.name[-6:].lower().replace('_', 'x')}-{word}"

    def command(self, *words: str) -> list[str]:
        """Return the argument list of a command."""
        return [sys.executable, "-m", "gpuenv", *words]

    def run(
        self,
        *words: str,
        stdin: bytes = b"",
        timeout_s: float = 240,
        cwd: Path | None = None,
        **environ: str,
    ) -> Outcome:
        """Run a command to its end."""
        done = subprocess.run(
            self.command(*words),
            input=stdin,
            capture_output=True,
            cwd=cwd or self.workspace,
            env={**self.environ, **environ},
            timeout=timeout_s,
            check=False,
        )
        return Outcome(
            exit_code=done.returncode,
            stdout=done.stdout.decode("utf-8", "replace"),
            stderr=done.stderr.decode("utf-8", "replace"),
        )

    def popen(self, *words: str, **options: Any) -> subprocess.Popen[bytes]:
        """Start a command and go on."""
        options.setdefault("stdout", subprocess.PIPE)
        options.setdefault("stderr", subprocess.PIPE)
        options.setdefault("stdin", subprocess.DEVNULL)
        return subprocess.Popen(
            self.command(*words), cwd=self.workspace, env=dict(self.environ), **options
        )

    def jupyter(self, image: str, *words: str, name: str | None = None) -> dict[str, Any]:
        """Start a server on a port of its own and return what ``--json`` says of it."""
        if not self.environments() and "--port" not in words:
            words = (*words, "--port", str(free_port()))
        return self.run(
            "jupyter", "--json", "--image", image, "--name", name or self.name(), *words
        ).data

    def listed(self) -> list[dict[str, Any]]:
        """Return what ``gpuenv ps`` says of this desk's environments."""
        listed = self.run("ps", "--json").data["environments"]
        return [one for one in listed if one["name"].startswith(self.name("")[:-1])]

    def environments(self) -> tuple[Environment, ...]:
        """Return what this desk started and is still there."""
        return tuple(
            environment
            for environment in list_environments(self.engine)
            if environment.identity.name.startswith(self.name("")[:-1])
            or environment.identity.workspace.startswith(str(self.root))
        )


def free_port() -> int:
    """Return a port of the loopback that nobody uses now, above those that the kernel lends."""
    while True:
        port = 61_000 + secrets.randbelow(4_000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port


@pytest.fixture
def desk(engine: ContainerEngine, engine_environ: Mapping[str, str]) -> Iterator[Desk]:
    """Return a desk; what is started at it is removed afterwards, its caches as well."""
    root = Path(tempfile.mkdtemp(prefix="gpuenv-test-"))
    root.chmod(0o755)
    for name in ("work", "home"):
        (root / name).mkdir()
    environ = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("GPUENV_", "XDG_"))
    }
    environ |= {
        "HOME": str(root / "home"),
        "GPUENV_STATE_DIR": str(root / "state"),
        "PYTHONPATH": str(REPOSITORY),
        "NO_COLOR": "1",
        "TERM": "dumb",
    }
    if "DOCKER_HOST" in engine_environ:
        environ["DOCKER_HOST"] = engine_environ["DOCKER_HOST"]
    desk = Desk(root=root, engine=engine, environ=environ)
    try:
        yield desk
    finally:
        for environment in desk.environments():
            engine.remove(environment.container.id, force=True)
        shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def no_new_volumes(engine: ContainerEngine) -> Iterator[None]:
    """Remove the cache volumes that a test made."""
    before = {volume.name for volume in engine.volumes(labels={VOLUME: None})}
    yield
    for volume in engine.volumes(labels={VOLUME: None}):
        if volume.name not in before:
            engine.remove_volume(volume.name, force=True)


@pytest.fixture(scope="session")
def jupyter_image(session_engine: ContainerEngine, base_image: str) -> str:
    """Return an image with PyTorch for the CPU, JupyterLab and sshd, as gpuenv itself builds it.

    It is kept for the next run: the same order finds it again.
    """
    del base_image
    from gpuenv.commands.image import BuildFlags, ContentFlags, SourceFlags
    from gpuenv.commands.launching import ImageFlags
    from gpuenv.commands.options import RequestFlags
    from gpuenv.commands.site import Site
    from gpuenv.containers.facts import probe_caller

    output.set_current(output.Output(command="jupyter", verbosity=-1))
    flags = ImageFlags(
        request=RequestFlags(torch="2.13", cuda="cpu"),
        content=ContentFlags(),
        sources=SourceFlags(),
        how=BuildFlags(make_base=True, progress="quiet"),
        image=None,
        matrix_file=None,
        features=("jupyter", "ssh"),
    )
    try:
        image = flags.obtain(Site(engine=session_engine, caller=probe_caller(os.environ)))
    except GpuenvError as error:
        missing(f"an image with JupyterLab ({error.what}: {error.why})")
    return image.tags[0]
