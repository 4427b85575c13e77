"""A remote host: what its address may be, what the words of ssh mean, what is asked of it."""

from __future__ import annotations

import json
import os
import socket
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuenv.containers.files import EnvironmentFiles
from gpuenv.errors import ConfigurationError
from gpuenv.host.gpu_inventory import HostGpu
from gpuenv.host.told_gpus import host_gpus_told, inventory_told
from gpuenv.probing import remote_line
from gpuenv.process import run_program
from gpuenv.ssh import remote as r
from gpuenv.ssh.access import choose_alias
from gpuenv.ssh.tunnel import (
    Trouble,
    Tunnel,
    apologise,
    is_kept,
    listen_near,
    load_tunnel,
    tunnel_path,
)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("ssh://gpu01", r.RemoteAddress(host="gpu01")),
        ("ssh://alice@gpu01", r.RemoteAddress(host="gpu01", user="alice")),
        ("ssh://alice@GPU01:2200/", r.RemoteAddress(host="GPU01", user="alice", port=2200)),
        ("ssh://[fe80::1]:22", r.RemoteAddress(host="fe80::1", port=22)),
        (
            "ssh://gpu01/run/user/1000/docker.sock",
            r.RemoteAddress(host="gpu01", socket="/run/user/1000/docker.sock"),
        ),
        ("ssh://dom%5Calice@h", r.RemoteAddress(host="h", user="dom\\alice")),
    ],
)
def test_addresses_are_read(url: str, address: r.RemoteAddress) -> None:
    assert r.parse_remote(url) == address


@pytest.mark.parametrize(
    "url",
    [
        "ssh://-oProxyCommand=id", "ssh://-l@gpu01", "ssh://a b", "ssh://gpu01;id", "ssh://$(id)",
        "ssh://alice:secret@gpu01", "ssh://gpu01:0", "ssh://gpu01:99999", "ssh://gpu01:x",
        "ssh://gpu01/a b", "ssh://gpu01/$(id)", "ssh://", "ssh://alice@", "ssh://@gpu01",
    ],
)  # fmt: skip
def test_what_could_be_an_option_or_a_shells_is_no_address(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        r.parse_remote(url)
    assert "secret" not in f"{caught.value.what}{caught.value.why}"


@given(st.text(alphabet=st.characters(codec="ascii"), max_size=40))
def test_any_text_is_an_address_or_a_refusal(text: str) -> None:
    try:
        address = r.parse_remote(f"ssh://{text}")
    except (ConfigurationError, ValueError):
        return
    assert not address.host.startswith("-")
    assert not address.user.startswith("-")


@pytest.mark.parametrize(
    ("address", "command"),
    [
        (r.RemoteAddress(host="gpu01", user="a.b+c@corp", port=2200), None),
        (r.RemoteAddress(host="fe80::1", user="alice"), None),
        (
            r.RemoteAddress(host="gpu01", user="corp\\bob"),
            r"ssh -W '[%h]:%p' -l 'corp\bob' -- gpu01",
        ),
        (r.RemoteAddress(host="fe80::1%eth0"), "ssh -W '[%h]:%p' -- fe80::1%%eth0"),
    ],
)
def test_what_a_jump_would_not_pass_on_whole_is_a_command(
    address: r.RemoteAddress, command: str | None
) -> None:
    assert address.jump_command == command


def test_every_kind_of_failure_is_known_by_its_slug() -> None:
    for kind in (r.RemoteNameError, r.RemoteForwardingError, r.RemoteFailedError):
        assert r.remote_error(kind.slug) is kind
    assert r.remote_error("something else") is r.RemoteFailedError


def test_the_host_is_the_last_argument_behind_two_dashes() -> None:
    address = r.RemoteAddress(host="gpu01", user="alice", port=2200)
    words = r.login_arguments(address, Path("/tmp/x/control"))
    assert words[-6:] == ("-l", "alice", "-p", "2200", "--", "gpu01")
    assert "ClearAllForwardings=yes" in words
    assert not any("StrictHostKeyChecking" in word for word in words), "the user's own decides"
    assert address.jump == "alice@gpu01:2200"


CHANGED = """\
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
Host key for gpu01 has changed and you have requested strict checking.
Host key verification failed."""


# What OpenSSH 9.2 printed in each case.
@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("ssh: Could not resolve hostname gpu99: Name or service not known", r.RemoteNameError),
        ("ssh: connect to host gpu01 port 22: Connection refused", r.RemoteNetworkError),
        ("ssh: connect to host gpu01 port 22: No route to host", r.RemoteNetworkError),
        ("ssh: connect to host gpu01 port 22: Connection timed out", r.RemoteNetworkError),
        ("ssh: connect to host gpu01 port 22: Network is unreachable", r.RemoteNetworkError),
        ("kex_exchange_identification: Connection closed by remote host", r.RemoteNetworkError),
        ("Host key verification failed.", r.RemoteHostKeyError),
        (
            CHANGED,
            r.RemoteHostKeyError,
        ),
        ("alice@gpu01: Permission denied (publickey,password).", r.RemoteAuthenticationError),
        (
            "Received disconnect from 10.0.0.1 port 22:2: Too many authentication failures",
            r.RemoteAuthenticationError,
        ),
        (
            (
                "Permission denied (publickey) to strangers, says the banner.\n"
                "ssh: connect to host gpu01 port 22: Connection refused"
            ),
            r.RemoteNetworkError,
        ),
        (
            (
                "Host key verification failed, says the banner.\n"
                "alice@gpu01: Permission denied (publickey)."
            ),
            r.RemoteAuthenticationError,
        ),
        ("Bad configuration option: foo", r.RemoteFailedError),
        ("", r.RemoteFailedError),
    ],
)
def test_failures_are_told_apart(said: str, kind: type[Exception]) -> None:
    error = r.explain_failure(r.RemoteAddress(host="gpu01", user="alice"), said)
    assert type(error) is kind
    assert error.exit_code == 4
    assert error.fix
    if said:
        assert said.splitlines()[-1] in error.why


def facts(*sockets: str) -> str:
    return (
        "Welcome to gpu01!\ngpuenv-facts\n1000\n1001\n1001 27 998\nalice\n/home/alice\n"
        + "".join(f"{line}\n" for line in sockets)
    )


ADDRESS = r.RemoteAddress(host="gpu01")


def test_a_host_says_who_we_are_there_whatever_its_shell_greets_with() -> None:
    found = r.parse_facts(facts("usable /var/run/docker.sock", "missing /run/u"), ADDRESS)
    assert (found.caller.uid, found.caller.gid, found.caller.login) == (1000, 1001, "alice")
    assert found.caller.groups == (27, 998, 1001)
    assert found.home == "/home/alice"
    assert (found.socket, found.socket_state) == ("/var/run/docker.sock", "usable")
    r.require_engine(found, ADDRESS)


def test_the_socket_that_can_be_used_is_used() -> None:
    found = r.parse_facts(facts("denied /a", "usable /b"), ADDRESS)
    assert (found.socket, found.socket_state) == ("/b", "usable")


def test_no_engine_and_no_permission_are_two_things() -> None:
    with pytest.raises(r.RemoteNoEngineError):
        r.require_engine(r.parse_facts(facts("missing /a", "missing /b"), ADDRESS), ADDRESS)
    with pytest.raises(r.RemotePermissionError, match="alice may not"):
        r.require_engine(r.parse_facts(facts("missing /a", "denied /b"), ADDRESS), ADDRESS)


@pytest.mark.parametrize("text", ["", "This account is closed.", "gpuenv-facts\n1000\n"])
def test_a_host_without_an_ordinary_shell_says_so(text: str) -> None:
    with pytest.raises(r.RemoteFailedError, match="no ordinary shell"):
        r.parse_facts(text, ADDRESS)


# --- the tunnel that stays -----------------------------------------------------------------------


def test_a_damaged_note_of_a_tunnel_is_no_tunnel(tmp_path: Path) -> None:
    path = tmp_path / "tunnel.json"
    for text in ("", "{}", "[]", '{"pid": "x"}'):
        path.write_text(text)
        assert load_tunnel(path) is None
    assert load_tunnel(tmp_path / "none") is None


def test_a_tunnel_is_written_down_with_what_is_wrong(tmp_path: Path) -> None:
    error = r.RemoteHostKeyError("the key <changed>", why="a & b", fix="ask")
    lost = Tunnel(
        pid=7, here=1, there=2, url="ssh://gpu01", state="lost", trouble=Trouble.of(error)
    )
    path = tmp_path / "tunnel.json"
    path.write_text(json.dumps(asdict(lost)))
    assert load_tunnel(path) == lost
    again = lost.trouble.error()
    assert (type(again), again.what, again.fix) == (r.RemoteHostKeyError, error.what, "ask")


def exchange(sent: bytes) -> bytes:
    """Return what a browser gets that speaks to a tunnel which leads nowhere."""
    mine, its = socket.socketpair()
    with mine, its:
        mine.settimeout(10)
        mine.sendall(sent)
        mine.shutdown(socket.SHUT_WR)
        apologise(its, Trouble(what="the key <changed>", why="a & b", fix="ask"))
        its.shutdown(socket.SHUT_RDWR)
        return b"".join(iter(lambda: mine.recv(65536), b""))


def test_a_browser_is_told_why_and_what_is_told_is_text() -> None:
    head, _, body = exchange(b"GET /lab HTTP/1.1\r\nHost: x\r\n\r\n").partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    assert f"Content-Length: {len(body)}".encode() in head
    assert b"the key &lt;changed&gt;" in body
    assert b"a &amp; b" in body


@pytest.mark.parametrize("sent", [b"\x16\x03\x01\x02\x00\x01", b"", b"GET / HTT"])
def test_who_does_not_ask_in_http_is_hung_up_on(sent: bytes) -> None:
    assert exchange(sent) == b""


def test_a_port_that_is_taken_gives_way_to_the_next() -> None:
    with listen_near(20000) as first:
        port = first.getsockname()[1]
        with listen_near(port) as second:
            assert second.getsockname()[1] > port
    with pytest.raises(r.RemoteFailedError, match="no port from 65536"):
        listen_near(65536)


# --- what ssh calls an environment ----------------------------------------------------------------


def test_two_places_of_one_host_have_two_aliases(tmp_path: Path) -> None:
    environ = {"GPUENV_STATE_DIR": str(tmp_path)}

    def alias(place: str, host: str = "gpu01", name: str = "x") -> str:
        files = EnvironmentFiles.of(name, environ=environ, place=place)
        chosen = choose_alias(environ, files, name=name, host=host, place=place)
        files.write(files.ssh_config_path, f"# ours\nHost {chosen}\n    Port 2222\n")
        return chosen

    assert alias("alice@gpu01") == "gpuenv-x.gpu01"
    assert alias("bob@gpu01") == "gpuenv-x.bob-gpu01"
    assert alias("gpu01") == "gpuenv-x.gpu01-2"
    assert alias("bob@gpu01") == "gpuenv-x.bob-gpu01", "it stays what it is"
    assert alias("", host="") == "gpuenv-x"
    assert alias("", host="", name="x.gpu01") == "gpuenv-x.gpu01-3"


# --- its GPUs -----------------------------------------------------------------------------------

NVML = {
    "load": {"error": None},
    "init": 0,
    "driver": "580.65.06",
    "gpus": [
        {
            "index": 0, "handle": None, "uuid": "GPU-a", "name": "H100", "minor": 3,
            "capability": "9.0", "memory": {"total": 80, "used": 7},
            "mig": {"instances": [{"uuid": "MIG-1"}, {"uuid": {"nvml": 3}}]},
        },
        {"index": 1, "handle": {"nvml": 15}},
        {
            "index": 2, "handle": None, "uuid": "GPU-c", "name": {"nvml": 999},
            "capability": {"nvml": 3}, "memory": {"nvml": 3}, "mig": {"nvml": 3},
            "minor": {"nvml": 3},
        },
    ],
}  # fmt: skip


def test_what_fits_is_chosen_by_the_gpus_that_a_host_tells() -> None:
    host = host_gpus_told(NVML, place="gpu01")
    assert str(host.driver_release) == "580.65.06"
    assert [(gpu.asked, str(gpu.compute_capability)) for gpu in host.gpus] == [("H100", "9.0")]
    assert host.found_via == "NVML on gpu01; GPU 2 does not answer"


def test_an_inventory_lists_what_can_be_named() -> None:
    nodes = {"nodes": {"/dev/nvidia3": {"errno": None}, "/dev/nvidia-uvm": {"errno": "ENOENT"}}}
    told = inventory_told(NVML, nodes, place="gpu01")
    assert told.nodes == ("/dev/nvidia3",)
    first, second = told.gpus
    assert first == HostGpu(
        device_index=0, uuid="GPU-a", name="H100", minor=3, memory_bytes=80, memory_used_bytes=7,
        mig_uuids=("MIG-1",),
    )  # fmt: skip
    assert second == HostGpu(device_index=2, uuid="GPU-c")


@pytest.mark.parametrize(
    ("nvml", "why"),
    [
        ({"load": {"error": "not found"}, "gpus": []}, "gpu01: no NVIDIA driver is installed"),
        ({"load": {}, "init": 9, "gpus": []}, "gpu01: NVML does not start there (code 9)"),
        ({"load": {}, "init": 0, "gpus": []}, "gpu01: NVML lists no GPU"),
        ({}, "gpu01: NVML lists no GPU"),
    ],
)
def test_a_host_without_gpus_says_why(nvml: dict[str, object], why: str) -> None:
    assert host_gpus_told(nvml, place="gpu01").found_via == why
    assert inventory_told(nvml, {}, place="gpu01").why == why


@pytest.mark.subprocess
def test_a_python_is_found_by_a_shell_that_takes_no_line_breaks(tmp_path: Path) -> None:
    line = remote_line(None)
    assert "\n" not in line
    folder = tmp_path / "an env"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(sys.executable)
    code = b"import sys; print(sys.stdin.buffer.read().decode())".hex().encode()
    for found in (line, remote_line(str(folder)), remote_line("~/an env")):
        done = run_program(
            ("sh", "-c", found), timeout_s=30, stdin=code + b"\n{}",
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        )  # fmt: skip
        assert (done.exit_code, done.stdout) == (0, "{}\n"), done.stderr
    gone = run_program(("sh", "-c", remote_line("/no/such")), timeout_s=30)
    assert gone.exit_code == 87


def test_a_process_of_another_kind_keeps_no_tunnel(tmp_path: Path) -> None:
    files = EnvironmentFiles.of("x", environ={"GPUENV_STATE_DIR": str(tmp_path)}, place="a@b:1")
    path = tunnel_path(files)
    mine = Tunnel(pid=os.getpid(), here=1, there=2, url="ssh://a@b:1")
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"pid": mine.pid, "here": 1, "there": 2, "url": mine.url}))
    assert load_tunnel(path) == mine
    assert sys.executable
    assert not is_kept(path, mine), "this is the test and not the keeper"
