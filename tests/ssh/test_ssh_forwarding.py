"""The client's agent and windows: they stay where they are unless asked for."""

from __future__ import annotations

import secrets
import shutil
import socket
import struct
import subprocess
import threading
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import pytest

from gpuenv.ssh.keys import make_key
from tests.conftest import missing
from tests.launch_fixtures import PREFIX
from tests.ssh.conftest import changed_image, open_seat

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from gpuenv.engine.protocol import ContainerEngine
    from tests.ssh.conftest import Seat

pytestmark = [pytest.mark.ssh, pytest.mark.engine]

_ASKED = ("--forward-agent", "--forward-x11")


@pytest.fixture(scope="module")
def open_handed(
    session_engine: ContainerEngine, engine_environ: Mapping[str, str], jupyter_image: str
) -> Iterator[Seat]:
    """Return a seat whose environment may use the client's agent and windows."""
    word = f"{PREFIX}-open"
    with open_seat(session_engine, engine_environ, jupyter_image, word, *_ASKED) as seat:
        yield seat


# --- the agent -----------------------------------------------------------------------------------


@contextmanager
def agent(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Run an agent with one key; return its socket and the key's fingerprint."""
    for program in ("ssh-agent", "ssh-add"):
        if shutil.which(program) is None:
            missing(program)
    path = str(tmp_path / "agent")
    with subprocess.Popen(
        ["ssh-agent", "-D", "-a", path], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        try:
            process.stdout.readline()  # said once it listens
            key = make_key("in the agent")
            subprocess.run(
                ["ssh-add", "-q", "-"], input=key.private.reveal(), text=True, check=True,
                env={"SSH_AUTH_SOCK": path, "PATH": "/usr/bin:/bin"},
            )  # fmt: skip
            yield path, key.public.fingerprint
        finally:
            process.terminate()


def test_the_agent_is_used_from_inside_when_asked(open_handed: Seat, tmp_path: Path) -> None:
    with agent(tmp_path) as (path, fingerprint):
        done = open_handed.ssh(*_ASKED, "--", "ssh-add -l", SSH_AUTH_SOCK=path)
        assert done.exit_code == 0, done.stderr
        assert fingerprint in done.stdout


def test_the_agent_stays_here_otherwise(seat: Seat, open_handed: Seat, tmp_path: Path) -> None:
    line = "echo agent=$SSH_AUTH_SOCK; ssh-add -l"
    with agent(tmp_path) as (path, _):
        for which in (seat, open_handed):
            assert which.ssh("--", line, SSH_AUTH_SOCK=path).stdout == "agent=\n"
        # Nor does the server of an environment that was not asked give in to its client.
        environ = {**seat.environ, "SSH_AUTH_SOCK": path}
        pressed = subprocess.run(
            ["ssh", "-F", str(seat.ssh_folder / "config"), "-A", seat.alias, line],
            capture_output=True, text=True, check=False, timeout=60, env=environ,
        )  # fmt: skip
        assert pressed.stdout == "agent=\n"


def test_asking_for_an_agent_that_is_not_there_is_said(open_handed: Seat) -> None:
    done = open_handed.ssh(*_ASKED, "--", "true", SSH_AUTH_SOCK="")
    assert done.exit_code == 0
    assert "--forward-agent" in done.stderr
    assert "SSH_AUTH_SOCK" in done.stderr


# --- windows -------------------------------------------------------------------------------------

# What every program with a window says first (X Window System Protocol, section 8), with the secret
# that sshd has put beside its display.
_PROGRAM = """\
import os, socket, struct, subprocess
listed = subprocess.run(["xauth", "list", os.environ["DISPLAY"]], capture_output=True, text=True)
name, cookie = listed.stdout.split()[1:3]
data = bytes.fromhex(cookie)
port = 6000 + int(os.environ["DISPLAY"].rpartition(":")[2].partition(".")[0])
connection = socket.create_connection(("127.0.0.1", port), timeout=20)
head = struct.pack("<BxHHHHxx", ord("l"), 11, 0, len(name), len(data))
connection.sendall(head + name.encode() + bytes(-len(name) % 4) + data + bytes(-len(data) % 4))
print(cookie, connection.recv(100))
"""


class Display:
    """A display that lets in who knows its secret, and says so."""

    def __init__(self, tmp_path: Path) -> None:
        if shutil.which("xauth") is None:
            missing("xauth")
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(60)
        self.cookie = secrets.token_hex(16)
        self.heard = ""
        port: int = self._listener.getsockname()[1]
        # Displays count from port 6000 on, beyond any that is there.
        self.name = f"127.0.0.1:{port - 6000}"
        self.authority = tmp_path / "authority"
        self.authority.touch()
        subprocess.run(
            ["xauth", "-q", "-f", str(self.authority), "add", self.name, ".", self.cookie],
            check=True,
        )
        self._thread = threading.Thread(target=self._answer)
        self._thread.start()

    def _answer(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # closed, since nobody came
            return
        with connection:
            _, _, _, name_length, length = struct.unpack("<BxHHHHxx", connection.recv(12))
            rest = connection.recv(name_length + -name_length % 4 + length)
            self.heard = rest[-length:].hex()
            connection.sendall(b"welcome" if self.heard == self.cookie else b"stranger")

    def close(self) -> None:
        """Take the display away."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(60)


def test_a_window_from_inside_opens_here_when_asked(open_handed: Seat, tmp_path: Path) -> None:
    with closing(Display(tmp_path)) as display:
        done = open_handed.ssh(
            *_ASKED, "--", "python", "-c", _PROGRAM,
            DISPLAY=display.name, XAUTHORITY=str(display.authority),
        )  # fmt: skip
        assert done.exit_code == 0, done.stderr
        inside, answer = done.stdout.split()
        assert answer == "b'welcome'"
        assert inside != display.cookie, "the secret itself does not leave this machine"


def test_windows_stay_away_otherwise(seat: Seat, open_handed: Seat) -> None:
    for which in (seat, open_handed):
        assert which.ssh("--", "echo display=$DISPLAY", DISPLAY=":7").stdout == "display=\n"
    environ = {**seat.environ, "DISPLAY": ":7"}
    pressed = subprocess.run(
        ["ssh", "-F", str(seat.ssh_folder / "config"), "-Y", seat.alias, "echo display=$DISPLAY"],
        capture_output=True, text=True, check=False, timeout=60, env=environ,
    )  # fmt: skip
    assert pressed.stdout == "display=\n"


def test_asking_for_windows_without_a_display_is_said(open_handed: Seat) -> None:
    done = open_handed.ssh(*_ASKED, "--", "true", DISPLAY="")
    assert done.exit_code == 0
    assert "--forward-x11" in done.stderr
    assert "DISPLAY" in done.stderr


def test_an_image_without_xauth_is_told_of(
    session_engine: ContainerEngine, engine_environ: Mapping[str, str], jupyter_image: str
) -> None:
    with (
        changed_image(session_engine, jupyter_image, "USER 0", "RUN rm /usr/bin/xauth") as bare,
        open_seat(session_engine, engine_environ, bare, f"{PREFIX}-bare", "--forward-x11") as seat,
    ):
        done = seat.ssh("--forward-x11", "--", "true", DISPLAY=":7")
        assert done.exit_code == 0
        assert "the image has no xauth" in done.stderr


def test_without_an_ssh_program_it_is_said_what_is_not_forwarded(
    open_handed: Seat, tmp_path: Path
) -> None:
    done = open_handed.ssh(*_ASKED, "-L", "6006", "--", "echo in", PATH=str(tmp_path))
    assert done.stdout == "in\n"
    assert "--forward, --forward-agent and --forward-x11 need an ssh program" in done.stderr
