"""From the command to a kernel's first answer: gpuenv beside docker run and Jupyter's own start.

Both use the same image, which must be there: ``gpuenv build`` makes it, and ``GPUENV_BENCH_IMAGE``
names it. The image, and with it the page cache, is warm for both.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import secrets
import socket
import struct
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

from harness import Candidate, interleave, machine, require, table, write_section

IMAGE = os.environ.get("GPUENV_BENCH_IMAGE", "localhost/gpuenv/torch:2.13.0-cpu-py3.11-jupyter-ssh")
ROUNDS = int(os.environ.get("GPUENV_BENCH_ROUNDS", "5"))
DEADLINE_S = 120


def request(port: int, token: str, method: str, path: str) -> dict[str, object] | None:
    """Ask the server once; ``None`` while it does not answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(method, path, headers={"Authorization": f"token {token}"})
        answer = connection.getresponse()
        body = answer.read()
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    if answer.status >= 300:  # noqa: PLR2004 - HTTP
        return None
    data: dict[str, object] = json.loads(body)
    return data


def first_kernel_reply(port: int, token: str) -> None:
    """Wait for the server, start a kernel and wait until it has computed 6 * 7."""
    end = time.monotonic() + DEADLINE_S
    while request(port, token, "GET", "/api/status") is None:
        if time.monotonic() > end:
            raise SystemExit("the server did not answer")
        time.sleep(0.02)
    kernel = request(port, token, "POST", "/api/kernels")
    if kernel is None:
        raise SystemExit("no kernel could be started")
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as connection:
        handshake(connection, port, f"/api/kernels/{kernel['id']}/channels", token)
        send(connection, execute_request("print(6 * 7)"))
        while True:
            message = json.loads(receive(connection))
            if message["msg_type"] == "stream" and message["content"]["text"].strip() == "42":
                return


def execute_request(code: str) -> str:
    """Return a message of Jupyter's protocol that runs code."""
    header = {
        "msg_id": uuid.uuid4().hex, "session": uuid.uuid4().hex, "username": "",
        "msg_type": "execute_request", "version": "5.3",
    }  # fmt: skip
    content = {"code": code, "silent": False, "store_history": False, "user_expressions": {}}
    return json.dumps(
        {
            "header": header, "parent_header": {}, "metadata": {}, "content": content,
            "channel": "shell", "buffers": [],
        }
    )  # fmt: skip


def handshake(connection: socket.socket, port: int, path: str, token: str) -> None:
    """Open a WebSocket (RFC 6455)."""
    key = base64.b64encode(secrets.token_bytes(16)).decode()
    lines = (
        f"GET {path} HTTP/1.1", f"Host: 127.0.0.1:{port}", "Upgrade: websocket",
        "Connection: Upgrade", f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13",
        f"Authorization: token {token}", "", "",
    )  # fmt: skip
    connection.sendall("\r\n".join(lines).encode())
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += connection.recv(1)
    if b" 101 " not in head:
        raise SystemExit(f"no WebSocket: {head[:80]!r}")


def send(connection: socket.socket, text: str) -> None:
    """Send one text frame, masked as a client must."""
    data = text.encode()
    mask = secrets.token_bytes(4)
    masked = bytes(byte ^ mask[i % 4] for i, byte in enumerate(data))
    connection.sendall(struct.pack("!BBH", 0x81, 0x80 | 126, len(data)) + mask + masked)


def receive(connection: socket.socket) -> str:
    """Return the next text frame."""

    def exactly(count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = connection.recv(count - len(data))
            if not piece:
                raise SystemExit("the WebSocket was closed")
            data += piece
        return data

    while True:
        kind, length = exactly(2)
        if length == 126:  # noqa: PLR2004 - RFC 6455
            (length,) = struct.unpack("!H", exactly(2))
        elif length == 127:  # noqa: PLR2004 - RFC 6455
            (length,) = struct.unpack("!Q", exactly(8))
        data = exactly(length)
        if kind & 0x0F == 1:
            return data.decode()


def free_port() -> int:
    """Return a port nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def main() -> None:
    """Time both and write the section."""
    docker = require("docker")
    folder = Path(tempfile.mkdtemp(prefix="gpuenv-bench-"))
    (folder / "work").mkdir()
    env = {**os.environ, "GPUENV_STATE_DIR": str(folder / "state")}
    name = "gpuenv-bench"

    def quiet(*arguments: str, check: bool = True) -> bytes:
        done = subprocess.run(
            arguments, capture_output=True, env=env, cwd=folder / "work", check=False
        )
        if check and done.returncode:
            raise SystemExit(done.stderr.decode())
        return done.stdout

    def clean() -> None:
        quiet(docker, "rm", "-f", name, check=False)
        quiet(sys.executable, "-m", "gpuenv", "rm", name, "--yes", check=False)

    def raw() -> None:
        port, token = free_port(), secrets.token_hex(32)
        quiet(
            docker, "run", "-d", "--name", name, "-p", f"127.0.0.1:{port}:8888",
            "-v", f"{folder / 'work'}:/workspace", IMAGE,
            "jupyter", "lab", "--ip=0.0.0.0", "--port=8888", "--no-browser", "--allow-root",
            f"--IdentityProvider.token={token}",
        )  # fmt: skip
        first_kernel_reply(port, token)

    def ours() -> None:
        answer = json.loads(
            quiet(
                sys.executable, "-m", "gpuenv", "jupyter", "--json", "--image", IMAGE,
                "--name", name, "--port", str(free_port()),
            )
        )["data"]  # fmt: skip
        first_kernel_reply(answer["host_port"], answer["token"])

    candidates = [
        Candidate("docker run + jupyter lab", raw, "docker run … jupyter lab", clean),
        Candidate("gpuenv jupyter", ours, "gpuenv jupyter --image …", clean),
    ]
    interleave(candidates, rounds=ROUNDS)
    clean()
    body = (
        "From the command to the first answer of a kernel (`print(6 * 7)`), the image being there. "
        "The baseline has its token on the command line and runs as the image's user.\n\n"
        f"{table(candidates, baseline='docker run + jupyter lab')}\n\n{machine()}"
    )
    write_section("jupyter-start", "JupyterLab: command to first kernel answer", body)


if __name__ == "__main__":
    main()
