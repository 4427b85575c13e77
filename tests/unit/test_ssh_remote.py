"""A remote host: what its address may be, what the words of ssh mean, what is asked of it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuenv.containers.files import EnvironmentFiles
from gpuenv.errors import ConfigurationError
from gpuenv.ssh import remote as r
from gpuenv.ssh.tunnel import Tunnel, is_kept, load_tunnel, tunnel_path


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


def test_a_process_of_another_kind_keeps_no_tunnel(tmp_path: Path) -> None:
    files = EnvironmentFiles.of("x", environ={"GPUENV_STATE_DIR": str(tmp_path)}, place="a@b:1")
    path = tunnel_path(files)
    mine = Tunnel(pid=os.getpid(), here=1, there=2, url="ssh://a@b:1")
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"pid": mine.pid, "here": 1, "there": 2, "url": mine.url}))
    assert load_tunnel(path) == mine
    assert sys.executable
    assert not is_kept(path, mine), "this is the test and not the keeper"
