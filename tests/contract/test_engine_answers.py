"""Why an engine cannot be used: each reason is its own error, on real sockets."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typing_extensions import Self

from gpuenv.engine import errors as e
from gpuenv.engine.connect import connect
from gpuenv.engine.status import probe_status

if TYPE_CHECKING:
    from gpuenv.errors import EngineUnavailableError


def test_ssh_needs_a_transport_and_closes_it_again(tmp_path: Path) -> None:
    with pytest.raises(e.EngineAddressError, match="ssh://host"):
        connect("ssh://host", environ={})

    class Forwarded:
        path = str(tmp_path / "nothing.sock")
        closed = False

        def close(self) -> None:
            self.closed = True

        def explain(self, error: EngineUnavailableError) -> EngineUnavailableError:
            return error

    forwarded = Forwarded()
    with pytest.raises(e.EngineSocketMissingError):
        connect("ssh://host", environ={}, transport=lambda _url: forwarded)
    assert forwarded.closed


def test_no_socket_says_where_it_looked(tmp_path: Path) -> None:
    with pytest.raises(e.EngineSocketMissingError) as caught:
        connect(str(tmp_path / "no.sock"), environ={})
    assert str(tmp_path / "no.sock") in caught.value.why
    assert "gpuenv engine up" in caught.value.fix


def test_a_socket_left_behind_is_an_engine_that_does_not_run(tmp_path: Path) -> None:
    path = tmp_path / "dead.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with pytest.raises(e.EngineNotRunningError) as caught:
        connect(str(path), environ={})
    assert "refused" in caught.value.why


def test_a_plain_file_is_no_engine(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("x")
    with pytest.raises(e.EngineNotRunningError):
        connect(str(path), environ={})


def test_a_socket_of_another_group_names_the_group(tmp_path: Path) -> None:
    path = tmp_path / "closed.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        path.chmod(0o660)
        if os.geteuid() == 0:
            path.parent.chmod(0o755)
            error = _as_nobody(path)
        else:
            path.chmod(0)
            with pytest.raises(e.EnginePermissionError) as caught:
                connect(str(path), environ={})
            error = f"{caught.value.why} {caught.value.fix}"
    assert "group" in error or "sudo" in error


def _as_nobody(path: Path) -> str:
    """Connect as another user, in a child, and return what the error says."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        for folder in path.parents:
            if folder != Path("/") and folder.stat().st_uid == 0 and folder != Path("/tmp"):
                folder.chmod(folder.stat().st_mode | 0o011)
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        try:
            connect(str(path), environ={})
            told = "connected"
        except e.EnginePermissionError as error:
            told = f"{error.why} {error.fix}"
        except Exception as error:  # noqa: BLE001 - the parent's assertion shows it
            told = repr(error)
        os.write(writer, told.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        told = file.read()
    os.waitpid(child, 0)
    return told


class Answering:
    """A socket behind which someone says always the same, or nothing."""

    def __init__(self, path: Path, answer: bytes | None) -> None:
        self._answer = answer
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(path))
        self._socket.listen()
        self._held: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            self._held.append(client)
            if self._answer is not None and client.recv(65536):
                client.sendall(self._answer)
                client.shutdown(socket.SHUT_WR)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(10)
        for client in self._held:
            client.close()


def http(body: str, status: str = "200 OK") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return (head + body).encode()


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (http("<html>hello</html>"), e.NotAnEngineError),
        (http('{"some": "thing"}'), e.NotAnEngineError),
        (http("[]"), e.NotAnEngineError),
        (b"SSH-2.0-OpenSSH_9.2\r\n", e.NotAnEngineError),
        (http('{"message": "broken"}', "500 Oops"), e.EngineRequestError),
        (http('{"Version": "19.03.1", "ApiVersion": "1.40"}'), e.EngineTooOldError),
        (None, e.EngineTimeoutError),
    ],
    ids=["html", "json", "list", "ssh", "500", "old", "silent"],
)
def test_what_answers_wrongly_is_told_apart(
    tmp_path: Path, answer: bytes | None, error: type[Exception]
) -> None:
    path = tmp_path / "s.sock"
    with Answering(path, answer), pytest.raises(error):
        connect(str(path), environ={}, timeout_s=0.5 if answer is None else 20)


def test_status_tells_every_address_that_was_tried(tmp_path: Path) -> None:
    status = probe_status(str(tmp_path / "no.sock"), {})
    assert status.chosen is None
    assert status.as_dict()["tried"] == [
        {
            "address": f"unix://{tmp_path}/no.sock",
            "found_via": "--engine",
            "answers": False,
            "slug": "engine-socket-missing",
            "why": f"there is no socket {tmp_path}/no.sock",
        }
    ]


@pytest.mark.subprocess
def test_asking_an_engine_loads_no_heavy_library(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    heavy = ("docker", "requests", "paramiko", "jinja2", "yaml", "pynvml", "rich", "google")
    code = (
        "import sys\n"
        "from gpuenv.engine.connect import connect\n"
        "from gpuenv.errors import EngineUnavailableError\n"
        "try:\n    connect(sys.argv[1], environ={})\n"
        "except EngineUnavailableError as error:\n    print(error.slug)\n"
        f"print([m for m in {heavy!r} if m in sys.modules])\n"
    )
    with Answering(path, http('{"message": "broken"}', "500 Oops")):
        done = subprocess.run(
            [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
        )
    assert done.stdout.splitlines() == ["engine-request", "[]"]
