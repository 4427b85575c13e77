"""What editors do over SSH, with the clients they use.

VS Code Remote-SSH runs the user's own ``ssh``: ``ssh -T -D PORT HOST bash`` with a script on its
standard input, which puts a server into ``~/.vscode-server``, starts it and prints where it
listens; the editor comes to it by SOCKS, or by a forwarded Unix socket with
``remote.SSH.remoteServerListenOnSocket``. JetBrains Gateway brings its own client: it asks what
machine it is, uploads by SFTP, runs what it uploaded, and opens many channels on one connection.
"""

from __future__ import annotations

import socket
import stat
import struct
import subprocess
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.launch_fixtures import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import paramiko

    from tests.ssh.conftest import Seat

pytestmark = [pytest.mark.ssh, pytest.mark.engine]

# One connection is answered with the environment that the server was started in.
_SERVER = """\
import os, socket, sys
path = sys.argv[1]
listener = socket.socket(socket.AF_UNIX) if path else socket.socket()
listener.bind(path or ("127.0.0.1", 0))
listener.listen()
print(path or listener.getsockname()[1], flush=True)
connection = listener.accept()[0]
connection.sendall(f"{sys.prefix} {os.environ['PATH']} {os.environ['HOME']}".encode())
connection.close()
"""


def install_script(socket_path: str = "") -> bytes:
    """Return what VS Code would send: put a server there, start it, say where it listens."""
    return f"""\
set -e
folder="$HOME/.vscode-server/bin/0123456789abcdef"
mkdir -p "$folder"
rm -f "$folder/log"
cat > "$folder/server.py" <<'EOF'
{_SERVER}EOF
nohup python "$folder/server.py" "{socket_path}" > "$folder/log" 2>&1 < /dev/null &
until [ -s "$folder/log" ]; do sleep 0.1; done
echo "listeningOn==$(cat "$folder/log")=="
read -r stay
""".encode()


@contextmanager
def editor(seat: Seat, script: bytes, *options: str) -> Iterator[str]:
    """Run ``ssh -T … bash`` with a script on its input, and return where its server listens."""
    config = str(seat.ssh_folder / "config")
    with subprocess.Popen(
        ["ssh", "-F", config, "-T", *options, seat.alias, "bash"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=dict(seat.environ),
    ) as process:  # fmt: skip
        assert process.stdin
        assert process.stdout
        assert process.stderr
        process.stdin.write(script)
        process.stdin.flush()
        said = process.stdout.readline().decode()
        assert said.startswith("listeningOn=="), process.stderr.read()
        yield said.split("==")[1]
        process.stdin.write(b"done\n")
        process.stdin.close()
        assert process.wait(20) == 0


def read_all(connection: socket.socket) -> str:
    pieces = b""
    while piece := connection.recv(65536):
        pieces += piece
    return pieces.decode()


def by_socks(port: int, host: str, target: int) -> str:
    """Return what a server says that is reached by SOCKS 5 (RFC 1928), no authentication."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(b"\x05\x01\x00")
        assert connection.recv(2) == b"\x05\x00"
        name = host.encode()
        request = struct.pack(">4BB", 5, 1, 0, 3, len(name)) + name + struct.pack(">H", target)
        connection.sendall(request)
        assert connection.recv(10)[1] == 0, "refused"
        return read_all(connection)


def expected_environment(seat: Seat) -> str:
    image = seat.engine.image(seat.image)
    assert image is not None
    return f"/opt/venv {image.env['PATH']} /home/dev"


def test_vs_code_reaches_its_server_by_dynamic_forwarding(seat: Seat) -> None:
    port = free_port()
    with editor(seat, install_script(), "-D", f"127.0.0.1:{port}") as where:
        assert by_socks(port, "localhost", int(where)) == expected_environment(seat)


def test_vs_code_reaches_its_server_by_a_socket(seat: Seat) -> None:
    port, path = free_port(), "/home/dev/.vscode-server/server.sock"
    with editor(seat, install_script(path), "-L", f"127.0.0.1:{port}:{path}") as where:
        assert where == path
        with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
            assert read_all(connection) == expected_environment(seat)


def test_what_an_editor_installed_is_there_after_stop_and_start(seat: Seat) -> None:
    line = "mkdir -p ~/.vscode-server ~/.cache/JetBrains; echo kept | tee ~/.vscode-server/x"
    seat.inside(f"{line} > ~/.cache/JetBrains/x")
    assert seat.gpuenv("stop", seat.name, "--timeout", "1").exit_code == 0
    assert seat.gpuenv("start", seat.name).exit_code == 0
    read = seat.client("ssh", seat.alias, "cat ~/.vscode-server/x ~/.cache/JetBrains/x")
    assert read.stdout == "kept\nkept\n"


def test_what_their_scripts_call_is_there(seat: Seat) -> None:
    for program in ("wget", "tar", "gzip", "ps", "flock", "getconf", "ldd", "nohup", "uname"):
        assert seat.inside(f"command -v {program}"), program
    assert seat.inside("wget --version").startswith("GNU Wget")


def test_a_script_of_many_steps_runs_by_sh_dash_s(seat: Seat) -> None:
    script = b'set -eu\ncd "$1"\nfor i in 1 2 3; do echo "$i $PWD"; done\nexit 4\n'
    done = seat.client("ssh", seat.alias, "sh", "-s", "--", "/workspace", stdin=script)
    assert done.stdout == "1 /workspace\n2 /workspace\n3 /workspace\n"
    assert done.exit_code == 4


@contextmanager
def gateway(seat: Seat) -> Iterator[paramiko.SSHClient]:
    """Log in by a client that is not OpenSSH, with the host key known."""
    import paramiko

    data = seat.start()
    with closing(paramiko.SSHClient()) as client:
        client.set_missing_host_key_policy(paramiko.RejectPolicy())
        text = (seat.state / "ssh" / "known_hosts").read_text()
        _, kind, blob = text.split()
        entry = paramiko.hostkeys.HostKeyEntry.from_line(f"x {kind} {blob}")
        assert entry is not None
        assert entry.key is not None
        client.get_host_keys().add(f"[127.0.0.1]:{data['host_port']}", kind, entry.key)
        client.connect(
            "127.0.0.1", port=data["host_port"], username="dev", timeout=20, allow_agent=False,
            look_for_keys=False, key_filename=str(seat.ssh_folder / "id_ed25519"),
        )  # fmt: skip
        yield client


def test_gateway_uploads_a_program_and_runs_it(seat: Seat, tmp_path: Path) -> None:
    program = tmp_path / "backend.sh"
    program.write_text('#!/bin/sh\necho "$(command -v python) $PATH $HOME"\n')
    folder = "/home/dev/.cache/JetBrains/RemoteDev/dist"
    with gateway(seat) as client:

        def run(line: str) -> str:
            _, out, err = client.exec_command(line, timeout=20)
            said = out.read().decode()
            assert out.channel.recv_exit_status() == 0, err.read()
            return said

        assert run("uname -sm").startswith("Linux ")
        assert run("getconf LONG_BIT") == "64\n"
        run(f"mkdir -p {folder}")
        with closing(client.open_sftp()) as sftp:
            sftp.put(str(program), f"{folder}/backend.part")
            sftp.chmod(f"{folder}/backend.part", 0o755)
            sftp.posix_rename(f"{folder}/backend.part", f"{folder}/backend")
            mode = sftp.stat(f"{folder}/backend").st_mode
            assert mode is not None
            assert stat.S_IMODE(mode) == 0o755
        _, path, home = expected_environment(seat).split()
        assert run(f"{folder}/backend") == f"/opt/venv/bin/python {path} {home}\n"


def test_one_connection_carries_many_sessions_and_ports_at_once(seat: Seat) -> None:
    with gateway(seat) as client, ExitStack() as stack:
        transport = client.get_transport()
        assert transport is not None
        channels = [stack.enter_context(closing(transport.open_session())) for _ in range(40)]
        for channel in channels:
            channel.settimeout(20)
            channel.exec_command("cat")
        for number, channel in enumerate(channels):
            channel.sendall(f"{number}\n".encode())
        assert [channel.recv(10) for channel in channels] == [
            f"{number}\n".encode() for number in range(40)
        ]
        through = transport.open_channel("direct-tcpip", ("127.0.0.1", 2222), ("127.0.0.1", 1))
        with closing(through):
            through.settimeout(20)
            assert through.recv(8) == b"SSH-2.0-"


def test_many_that_log_in_at_once_are_all_answered(seat: Seat) -> None:
    port = seat.start()["host_port"]
    with ExitStack() as stack:
        # Each of them has not said yet who it is.
        for _ in range(60):
            waiting = socket.create_connection(("127.0.0.1", port), timeout=20)
            stack.enter_context(waiting)
            assert waiting.recv(8) == b"SSH-2.0-"
        assert seat.client("ssh", seat.alias, "echo in").stdout == "in\n"


def test_connections_are_shared_where_the_user_wants_it(seat: Seat) -> None:
    # A socket's path may have a hundred characters.
    control = ("-S", str(seat.root / "mux"))
    assert seat.client("ssh", *control, "-M", "-f", "-N", seat.alias).exit_code == 0
    try:
        assert "Master running" in seat.client("ssh", *control, "-O", "check", seat.alias).stderr
        first, second = (
            seat.client("ssh", *control, seat.alias, "echo $SSH_CONNECTION $PATH").stdout
            for _ in range(2)
        )
        assert first == second, "one connection"
        assert expected_environment(seat).split()[1] in first
        source = seat.root / "file"
        source.write_text("by the shared one")
        copied = seat.client("scp", "-o", f"ControlPath={control[1]}", str(source),
                             f"{seat.alias}:/tmp/shared")  # fmt: skip
        assert copied.exit_code == 0
        assert seat.inside("cat /tmp/shared") == "by the shared one"
    finally:
        seat.client("ssh", *control, "-O", "exit", seat.alias)


def test_the_usual_name_of_a_shared_connection_is_not_used(seat: Seat) -> None:
    """Under it, ``dev@127.0.0.1:2222`` is every environment of every host."""
    theirs = seat.root / "theirs"
    include = (seat.ssh_folder / "config").read_text()
    config = seat.root / "shared_config"
    config.write_text(
        f"{include}Host *\n  ControlMaster auto\n  ControlPersist 60\n"
        f"  ControlPath {theirs}-%r@%h:%p\n"
    )

    def shared(*words: str) -> str:
        done = subprocess.run(
            ["ssh", "-F", str(config), *words], stdin=subprocess.DEVNULL, capture_output=True,
            text=True, check=True, timeout=60, env=dict(seat.environ),
        )  # fmt: skip
        return done.stdout

    try:
        first, second = (shared(seat.alias, "echo $SSH_CONNECTION") for _ in range(2))
        assert first == second, "one connection"
        assert not list(seat.root.glob("theirs*"))
        assert (seat.state / "ssh" / f"{seat.alias}.mux").is_socket()
    finally:
        shared("-O", "exit", seat.alias)


def test_without_a_session_ports_are_forwarded_alone(seat: Seat) -> None:
    port, config = free_port(), str(seat.ssh_folder / "config")
    with subprocess.Popen(
        ["ssh", "-F", config, "-N", "-v", "-L", f"127.0.0.1:{port}:127.0.0.1:2222", seat.alias],
        stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, env=dict(seat.environ),
    ) as process:  # fmt: skip
        assert process.stderr
        said = next(line for line in process.stderr if b"pledge: " in line or b"Entering" in line)
        assert said
        with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
            assert connection.recv(8) == b"SSH-2.0-"
        process.terminate()
        process.stderr.read()
