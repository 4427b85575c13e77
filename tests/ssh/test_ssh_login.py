"""Real clients against a real container: who gets in, what works there, what stays out."""

from __future__ import annotations

import os
import pty
import signal
import socket
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpuenv.ssh.keys import make_key
from gpuenv.ssh.server import AUTHORIZED_KEYS_FILE, CONFIG_FILE, HOST_KEY_FILE
from tests.conftest import missing
from tests.ssh.conftest import WORKER

if TYPE_CHECKING:
    from tests.ssh.conftest import Seat

pytestmark = [pytest.mark.ssh, pytest.mark.engine]


# --- what works ----------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 7, 254])
def test_a_command_ends_with_its_own_exit_code(seat: Seat, code: int) -> None:
    assert seat.ssh("--", f"exit {code}").exit_code == code


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_command_that_a_signal_ends_is_no_lost_connection(seat: Seat, number: int) -> None:
    """SSH has no code for it and says 255; with ``gpuenv run`` it is 128 + N as in a shell."""
    assert seat.ssh("--", "sh", "-c", f"kill -{number} $$").exit_code == 128 + number


def test_one_word_is_a_line_and_several_are_taken_as_they_are(seat: Seat) -> None:
    assert seat.inside("echo $((1 + 1)) | tr 2 two") == "t"
    done = seat.ssh("-q", "--", "printf", "%s|", "a b", "$HOME", "*", "'", "")
    assert done.stdout == "a b|$HOME|*|'||"


def test_streams_arrive_whole_and_apart(seat: Seat) -> None:
    done = seat.gpuenv("ssh", seat.name, "-q", "--", "wc -c; echo err >&2", stdin=b"x" * 300_000)
    assert done.stdout.strip() == "300000"
    assert done.stderr.strip() == "err"


def test_json_keeps_the_commands_output_off_stdout(seat: Seat) -> None:
    done = seat.ssh("--json", "--", "echo hello; exit 3")
    assert done.exit_code == 3
    assert done.envelope["data"]["command_exit_code"] == 3
    assert "hello" in done.stderr


def test_the_session_is_the_workspace_owner_without_any_capability(seat: Seat) -> None:
    assert seat.inside("id -un; id -u; pwd").split() == ["dev", str(WORKER), "/workspace"]
    seat.inside("echo result > out.txt")
    assert (seat.workspace / "out.txt").stat().st_uid == WORKER
    assert seat.inside("grep CapEff /proc/self/status").split()[1] == "0" * 16
    assert seat.inside("grep NoNewPrivs /proc/self/status").split()[1] == "1"


def test_the_images_environment_is_in_every_kind_of_session(seat: Seat) -> None:
    image = seat.engine.image(seat.image)
    assert image is not None
    path = image.env["PATH"]
    assert seat.inside("echo $PATH") == path
    assert seat.inside("bash -lc 'echo $PATH'") == path
    assert seat.client("ssh", seat.alias, "echo $PATH").stdout.strip() == path
    shell = seat.client("ssh", seat.alias, stdin=b"echo PATH=$PATH\n").stdout
    assert f"PATH={path}\n" in shell
    assert seat.inside("python -c 'import torch; print(torch.__version__)'").startswith("2.")
    inside = dict(line.partition("=")[::2] for line in seat.inside("env").splitlines())
    kept = {name: value for name, value in image.env.items() if name != "NVIDIA_VISIBLE_DEVICES"}
    assert {name: inside.get(name) for name in kept} == kept


def test_scp_sftp_and_rsync_copy_both_ways(seat: Seat, tmp_path: Path) -> None:
    content = os.urandom(200_000)
    source = tmp_path / "a file"
    source.write_bytes(content)
    back = tmp_path / "back"
    assert seat.client("scp", str(source), f"{seat.alias}:/tmp/a").exit_code == 0
    assert seat.client("scp", f"{seat.alias}:/tmp/a", str(back)).exit_code == 0
    assert back.read_bytes() == content
    batch = f'put "{source}" /tmp/b\nget /tmp/b "{back}"\n'.encode()
    back.unlink()
    assert seat.client("sftp", "-b", "-", seat.alias, stdin=batch).exit_code == 0
    assert back.read_bytes() == content
    folder = tmp_path / "tree"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "x").write_bytes(content)
    assert seat.client("rsync", "-a", f"{folder}/", f"{seat.alias}:/tmp/tree/").exit_code == 0
    assert seat.client("rsync", "-a", f"{seat.alias}:/tmp/tree/", f"{back}.d/").exit_code == 0
    assert (Path(f"{back}.d") / "deep" / "x").read_bytes() == content


def test_a_forwarded_port_reaches_a_server_inside(seat: Seat) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = (
        "python -c \"import socket as s; l = s.create_server(('127.0.0.1', 6006)); "
        "print('up', flush=True); c = l.accept()[0]; c.sendall(b'metrics'); c.close()\""
    )
    with subprocess.Popen(
        [sys.executable, "-m", "gpuenv", "ssh", seat.name, "-L", f"{port}:6006", "--", server],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=seat.workspace,
        env=dict(seat.environ),
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            assert connection.recv(100) == b"metrics"
        assert process.wait(20) == 0


def in_terminal(seat: Seat, typed: bytes, *words: str, once_seen: bytes = b"") -> tuple[int, bytes]:
    """Run ``gpuenv ssh`` in a terminal of its own and type something.

    Args:
        once_seen: Typed only when this was printed: keys that mean something to a terminal, such as
            Ctrl-C, must not come before the other side has it.
    """
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "gpuenv", "ssh", seat.name, *words],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        cwd=seat.workspace,
        env=dict(seat.environ),
        start_new_session=True,
    )
    os.close(follower)
    seen = bytearray()
    ready = threading.Event()

    def read() -> None:
        while True:
            try:
                piece = os.read(leader, 65536)
            except OSError:  # the other end was closed
                return
            if not piece:
                return
            seen.extend(piece)
            if once_seen in seen:
                ready.set()

    reader = threading.Thread(target=read)
    reader.start()
    if once_seen:
        assert ready.wait(60), bytes(seen)
    os.write(leader, typed)
    code = process.wait(60)
    reader.join(20)
    os.close(leader)
    return code, bytes(seen)


def test_without_a_command_it_is_a_login_shell_in_the_workspace(seat: Seat) -> None:
    code, seen = in_terminal(seat, b"echo A=$PWD B=$(shopt -q login_shell && echo login); exit 9\n")
    assert b"A=/workspace B=login" in seen
    assert code == 9


# The counter's file is empty for a moment each time that it is written.
_COUNT = 'n=; until [ -n "$n" ]; do n=$(cat /tmp/count); done'


def test_training_in_tmux_goes_on_when_the_client_is_killed(seat: Seat) -> None:
    count = "i=$((i+1)); echo $i > /tmp/count; sleep 0.05"
    line = f"echo $$ > /tmp/counter.pid; i=0; while :; do {count}; done"
    leader, follower = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "gpuenv", "ssh", seat.name, "--tmux", "--", line],
        stdin=follower, stdout=follower, stderr=follower, cwd=seat.workspace,
        env=dict(seat.environ), start_new_session=True,
    ) as process:  # fmt: skip
        seat.inside("until [ -s /tmp/count ]; do sleep 0.1; done")
        os.killpg(process.pid, 9)
    os.close(follower)
    os.close(leader)
    first = int(seat.inside(f"{_COUNT}; echo $n"))
    seat.inside(f"{_COUNT}; until [ $n -gt {first} ]; do sleep 0.1; {_COUNT}; done")
    assert "gpuenv:" in seat.inside("tmux list-sessions")
    code, seen = in_terminal(seat, b"\x03\x02d", "--tmux", once_seen=b"[gpuenv")
    assert b"[detached" in seen or b"[exited]" in seen
    assert code == 0
    seat.inside("kill $(cat /tmp/counter.pid) 2>/dev/null; tmux kill-server 2>/dev/null; true")


def test_training_in_screen_goes_on_without_a_client(seat: Seat) -> None:
    count = "i=0; while :; do i=$((i+1)); echo $i > /tmp/screened; sleep 0.05; done"
    seat.inside(f"screen -dmS train sh -c '{count}'")
    try:
        assert ".train" in seat.inside("screen -ls")
        read = _COUNT.replace("/tmp/count", "/tmp/screened")
        first = int(seat.inside(f"until [ -s /tmp/screened ]; do sleep 0.1; done; {read}; echo $n"))
        seat.inside(f"{read}; until [ $n -gt {first} ]; do sleep 0.1; {read}; done")
    finally:
        seat.inside("screen -S train -X quit")


def test_without_an_ssh_program_gpuenv_speaks_it_itself(seat: Seat, tmp_path: Path) -> None:
    done = seat.ssh("--", "echo out; echo err >&2; exit 5", PATH=str(tmp_path))
    assert (done.exit_code, done.stdout) == (5, "out\n")
    assert "no ssh program" in done.stderr
    assert "err\n" in done.stderr


# --- who stays out -------------------------------------------------------------------------------


def bare_ssh(seat: Seat, *options: str, user: str = "dev") -> subprocess.CompletedProcess[str]:
    """Log in with the host key checked and nothing else that gpuenv knows."""
    data = seat.start()
    return subprocess.run(
        [
            "ssh", "-F", "/dev/null", "-p", str(data["host_port"]), "-o", "BatchMode=yes",
            "-o", f"UserKnownHostsFile={seat.state}/ssh/known_hosts",
            "-o", f"HostKeyAlias={seat.alias}", "-o", "StrictHostKeyChecking=yes",
            *options, f"{user}@127.0.0.1", "echo in",
        ],
        capture_output=True, text=True, check=False, timeout=60, env=dict(seat.environ),
    )  # fmt: skip


def test_the_users_key_opens_and_nothing_else_does(seat: Seat, tmp_path: Path) -> None:
    mine = ("-i", str(seat.ssh_folder / "id_ed25519"), "-o", "IdentitiesOnly=yes")
    assert bare_ssh(seat, *mine).stdout == "in\n"
    other = tmp_path / "other"
    other.touch(mode=0o600)
    other.write_text(make_key("other").private.reveal())
    refused = {
        "another key": (("-i", str(other), "-o", "IdentitiesOnly=yes"), "dev"),
        "no key": (("-o", "IdentitiesOnly=yes", "-o", "IdentityFile=/dev/null"), "dev"),
        "a password": (("-o", "PreferredAuthentications=password"), "dev"),
        "questions": (("-o", "PreferredAuthentications=keyboard-interactive"), "dev"),
        "root": (mine, "root"),
        "nobody of that name": (mine, "nobody-of-that-name"),
    }
    for what, (options, user) in refused.items():
        done = bare_ssh(seat, *options, user=user)
        assert (done.returncode, done.stdout) == (255, ""), what
        assert "Permission denied (publickey)" in done.stderr, what


@pytest.mark.parametrize(
    "option",
    [
        "KexAlgorithms=diffie-hellman-group14-sha1",
        "KexAlgorithms=ecdh-sha2-nistp256",
        "Ciphers=aes128-cbc",
        "Ciphers=3des-cbc",
        "HostKeyAlgorithms=ssh-rsa",
        "HostKeyAlgorithms=ecdsa-sha2-nistp256",
    ],
)
def test_old_algorithms_are_not_spoken(seat: Seat, option: str) -> None:
    done = bare_ssh(seat, "-i", str(seat.ssh_folder / "id_ed25519"), "-o", option)
    assert done.returncode == 255
    assert "no matching" in done.stderr


def test_old_message_codes_are_not_taken(seat: Seat) -> None:
    mine = ("-i", str(seat.ssh_folder / "id_ed25519"))
    done = bare_ssh(seat, *mine, "-o", "Ciphers=aes256-ctr", "-o", "MACs=hmac-sha1")
    assert "no matching MAC" in done.stderr


def test_paramiko_gets_in_with_the_key_and_not_without(seat: Seat) -> None:
    import paramiko

    data = seat.start()
    with closing(paramiko.SSHClient()) as client:
        client.set_missing_host_key_policy(paramiko.RejectPolicy())
        line = (seat.state / "ssh" / "known_hosts").read_text().split()
        entry = paramiko.hostkeys.HostKeyEntry.from_line(" ".join(line[:3]))
        assert entry is not None
        assert entry.key is not None
        client.get_host_keys().add(f"[127.0.0.1]:{data['host_port']}", line[1], entry.key)
        options = {"port": data["host_port"], "username": "dev", "allow_agent": False,
                   "look_for_keys": False, "timeout": 20}  # fmt: skip
        client.connect("127.0.0.1", key_filename=str(seat.ssh_folder / "id_ed25519"), **options)
        _, out, _ = client.exec_command("id -un")
        assert out.read() == b"dev\n"
    with closing(paramiko.SSHClient()) as client:
        client.get_host_keys().add(f"[127.0.0.1]:{data['host_port']}", line[1], entry.key)
        with pytest.raises(paramiko.AuthenticationException):
            client.connect("127.0.0.1", password="", **options)


def test_ssh_audit_finds_no_failure(seat: Seat) -> None:
    audit = Path(sys.executable).with_name("ssh-audit")
    if not audit.exists():
        missing("ssh-audit")
    port = str(seat.start()["host_port"])
    done = subprocess.run(
        [str(audit), "--skip-rate-test", "--level", "warn", "--no-colors", "-p", port, "127.0.0.1"],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert "[fail]" not in done.stdout
    warned = {line.split()[1] for line in done.stdout.splitlines() if "[warn]" in line}
    # The one exchange that paramiko and the editors without a post-quantum one can speak.
    assert warned <= {"curve25519-sha256", "curve25519-sha256@libssh.org"}


def test_every_setting_is_read_back_from_the_server_itself(seat: Seat) -> None:
    text = seat.inside(f"/usr/sbin/sshd -T -f {CONFIG_FILE}")
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        found.setdefault(name, value)
    assert {name: found[name] for name in _EXPECTED} == _EXPECTED
    assert not any("cbc" in found[name] or "sha1" in found[name] for name in ("ciphers", "macs"))


_EXPECTED = {
    "port": "2222",
    "permitrootlogin": "no",
    "pubkeyauthentication": "yes",
    "passwordauthentication": "no",
    "kbdinteractiveauthentication": "no",
    "hostbasedauthentication": "no",
    "permitemptypasswords": "no",
    "authenticationmethods": "publickey",
    "authorizedkeysfile": AUTHORIZED_KEYS_FILE,
    "hostkey": HOST_KEY_FILE,
    "hostkeyalgorithms": "ssh-ed25519",
    "strictmodes": "yes",
    "usepam": "no",
    "allowagentforwarding": "no",
    "allowtcpforwarding": "yes",
    "x11forwarding": "no",
    "gatewayports": "no",
    "permittunnel": "no",
    "permituserenvironment": "no",
    "clientaliveinterval": "30",
    "clientalivecountmax": "10",
    "maxsessions": "100",
    "maxstartups": "100:30:200",
    "logingracetime": "30",
    "tcpkeepalive": "yes",
    "subsystem": "sftp internal-sftp",
}


# --- keys on a running one -----------------------------------------------------------------------


def test_a_key_is_added_listed_and_revoked_while_it_runs(seat: Seat, tmp_path: Path) -> None:
    friend = make_key("friend@there")
    private, public = tmp_path / "friend", tmp_path / "friend.pub"
    private.touch(mode=0o600)
    private.write_text(friend.private.reveal())
    public.write_text(friend.public.line + "\n")
    as_friend = ("-i", str(private), "-o", "IdentitiesOnly=yes")
    assert bare_ssh(seat, *as_friend).returncode == 255
    listed = seat.ssh("--add-key", str(public), "--json").data["keys"]
    assert [key["comment"] for key in listed] == ["me@here", "friend@there"]
    assert bare_ssh(seat, *as_friend).stdout == "in\n"
    assert friend.public.fingerprint in seat.ssh("--list-keys").stdout
    seat.ssh("--revoke", friend.public.fingerprint, "--json").data  # noqa: B018 - must succeed
    assert bare_ssh(seat, *as_friend).returncode == 255
    assert seat.ssh("--revoke", "friend@there", "--json").slug == "ssh-key"


def test_what_is_no_key_is_not_added(seat: Seat, tmp_path: Path) -> None:
    before = seat.inside(f"cat {AUTHORIZED_KEYS_FILE}")
    bad = tmp_path / "bad.pub"
    for text in ('command="id" ' + make_key("x").public.line, "nonsense", ""):
        bad.write_text(text + "\n")
        assert seat.ssh("--add-key", str(bad), "--json").slug == "ssh-key"
    bad.write_bytes(b"\0" * (2 << 20))
    assert seat.ssh("--add-key", str(bad), "--json").slug == "ssh-key"
    assert seat.inside(f"cat {AUTHORIZED_KEYS_FILE}") == before


def test_what_runs_inside_cannot_let_others_in(seat: Seat) -> None:
    for line in (f"echo x >> {AUTHORIZED_KEYS_FILE}", f"rm -f {AUTHORIZED_KEYS_FILE}",
                 f"echo x >> {CONFIG_FILE}", f"mv {HOST_KEY_FILE} /tmp"):  # fmt: skip
        assert seat.ssh("-q", "--", line).exit_code != 0, line
    seat.inside("mkdir -p ~/.ssh")
    key = make_key("planted")
    seat.inside(f"echo {key.public.line!r} > ~/.ssh/authorized_keys")
    assert key.public.blob not in seat.inside(f"cat {AUTHORIZED_KEYS_FILE}")


@pytest.mark.parametrize("name", ["a;id", "$(id)", "../x", "-oProxyCommand=id"])
def test_names_with_characters_of_a_shell_are_refused(seat: Seat, name: str) -> None:
    done = seat.gpuenv("ssh", "--name", name, "--json", "--", "true")
    assert (done.exit_code, done.slug) in {(2, "configuration"), (2, "usage")}


# --- one that is there ---------------------------------------------------------------------------


def test_as_another_request_it_is_refused_with_the_difference(seat: Seat) -> None:
    done = seat.ssh("--forward-agent", "--json", "--", "true")
    assert (done.exit_code, done.slug) == (2, "environment-differs")
    assert "forward-agent" in done.envelope["errors"][0]["why"]


def test_config_is_no_name(seat: Seat) -> None:
    done = seat.gpuenv("ssh", "--name", "config", "--json", "--", "true")
    assert (done.exit_code, done.slug) == (2, "usage")
