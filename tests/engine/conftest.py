"""gpuenv as a program against the real engine, and what it built removed again."""

from __future__ import annotations

import io
import json
import os
import secrets
import socket
import subprocess
import sys
import zipfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from tests.contract.index_server import IndexServer, Reply

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpuenv.engine.protocol import ContainerEngine


@dataclass
class Answer:
    """How one run of gpuenv ended."""

    exit_code: int
    envelope: dict[str, Any]
    stderr: str

    @property
    def data(self) -> dict[str, Any]:
        """The answer's data."""
        data: dict[str, Any] = self.envelope["data"]
        return data

    @property
    def error(self) -> dict[str, str]:
        """The one error of a failed run."""
        (error,) = self.envelope["errors"]
        return dict(error)


@dataclass
class Gpuenv:
    """Runs gpuenv as a user does: as a program, with its own home and this run's engine."""

    environ: Mapping[str, str]
    names: list[str] = field(default_factory=list)

    def __call__(self, *arguments: str, **environ: str) -> Answer:
        """Run a command with ``--json`` to its end."""
        done = subprocess.run(
            [sys.executable, "-m", "gpuenv", *arguments, "--json"],
            capture_output=True,
            text=True,
            env={**self.environ, **environ},
            check=False,
        )
        assert done.stdout, done.stderr
        return Answer(done.returncode, json.loads(done.stdout), done.stderr)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command and return it while it runs."""
        return subprocess.Popen(
            [sys.executable, "-m", "gpuenv", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=dict(self.environ),
        )

    def image_name(self) -> str:
        """Return a name for an image; whatever is built under it goes after the test."""
        name = f"test-{secrets.token_hex(4)}"
        self.names.append(name)
        return name


@pytest.fixture(scope="module")
def gpuenv_environ(
    engine_environ: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """Return the environment of a user of their own, on the engine of this run."""
    home = tmp_path_factory.mktemp("home")
    # The pip settings of whoever runs the tests say where packages are to be had here.
    own = os.environ.get("HOME", "/root")
    environ = {k: v for k, v in engine_environ.items() if not k.startswith("XDG_")}
    environ |= {"HOME": str(home), "PYTHONPATH": os.pathsep.join(sys.path), "NO_COLOR": "1"}
    for name in ("pip", "uv"):
        settings = f"{own}/.config/{name}"
        if os.path.isdir(settings):  # noqa: PTH112 - of the real home, before it is replaced
            (home / ".config").mkdir(exist_ok=True)
            (home / ".config" / name).symlink_to(settings)
    return environ


@pytest.fixture(scope="module")
def gpuenv(
    gpuenv_environ: dict[str, str], session_engine: ContainerEngine, base_image: str
) -> Iterator[Gpuenv]:
    """Return gpuenv as a program; images built under its names are removed afterwards."""
    assert base_image
    program = Gpuenv(gpuenv_environ)
    yield program
    for image in session_engine.images(labels={"org.gpuenv.spec": None}):
        for tag in image.tags:
            if any(tag.startswith(f"localhost/gpuenv/{name}:") for name in program.names):
                session_engine.untag(tag, force=True)


@dataclass(frozen=True)
class PrivateIndex:
    """A package index behind a password, which containers reach."""

    package: str
    username: str
    password: str
    server: IndexServer

    @property
    def url_with_credentials(self) -> str:
        """The address as a user writes it on the command line."""
        return self.server.url(
            "simple", login=f"{self.username}:{self.password}", host=_address_of_this_host()
        )

    @property
    def served(self) -> bool:
        """Whether the package was fetched."""
        return any(path.endswith(".whl") for path in self.server.asked())

    def exchange(self, content: bytes | None = None) -> bytes:
        """Serve another wheel under the same name, by default a new one; return the former."""
        path = next(path for path in self.server.replies if path.endswith(".whl"))
        former = self.server.replies[path].body
        other = tiny_wheel(self.package, text="mine = False\n")[1]
        self.server.replies[path] = Reply(body=content or other, kind="application/zip")
        return former


@pytest.fixture
def private_index() -> Iterator[PrivateIndex]:
    """Serve one small package to whoever knows the password."""
    with serve_privately() as index:
        yield index


@contextmanager
def serve_privately() -> Iterator[PrivateIndex]:
    """Serve one small package to whoever knows the password, for as long as it is needed."""
    package = f"planted-{secrets.token_hex(4)}"
    username, password = secrets.token_hex(12), secrets.token_hex(12)
    wheel, content = tiny_wheel(package)
    with IndexServer(login=f"{username}:{password}", address=_address_of_this_host()) as server:
        page = f'<a href="/files/{wheel}">{wheel}</a>'.encode()
        server.replies[f"/simple/{package}/"] = Reply(body=page)
        server.replies[f"/files/{wheel}"] = Reply(body=content, kind="application/zip")
        yield PrivateIndex(package, username, password, server)


def tiny_wheel(name: str, text: str = "") -> tuple[str, bytes]:
    """Return the file name and the bytes of a wheel that holds one module, empty by default."""
    module = name.replace("-", "_")
    info = f"{module}-1.0.dist-info"
    members = {
        f"{module}.py": text,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    members[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in (*members, f"{info}/RECORD"))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, content in members.items():
            archive.writestr(path, content)
    return f"{module}-1.0-py3-none-any.whl", buffer.getvalue()


def _address_of_this_host() -> str:
    """Return an address of this host that containers reach; nothing is sent to find it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # TEST-NET-1: only the routing table is asked
        return str(probe.getsockname()[0])
