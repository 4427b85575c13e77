"""What ``ssh`` is told of an environment."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpuenv.errors import UsageError
from gpuenv.ssh.client import (
    Target,
    render_block,
    require_forwards,
    settings,
    short_arguments,
    ssh_arguments,
)
from gpuenv.ssh.server import render_sshd_config

TARGET = Target(
    alias="gpuenv-train",
    host="127.0.0.1",
    port=2222,
    known_hosts=Path("/home/alice/.local/state/gpuenv/ssh/known_hosts"),
)


def test_host_keys_are_checked_whatever_the_users_configuration_says() -> None:
    told = dict(settings(TARGET))
    assert told["StrictHostKeyChecking"] == "yes"
    assert told["HostKeyAlias"] == "gpuenv-train"
    assert told["UserKnownHostsFile"] == str(TARGET.known_hosts)
    assert told["GlobalKnownHostsFile"] == "/dev/null"
    assert (told["NoHostAuthenticationForLocalhost"], told["VerifyHostKeyDNS"]) == ("no", "no")


def test_a_lost_connection_is_noticed_within_two_minutes_and_a_silent_one_is_kept() -> None:
    told = dict(settings(TARGET))
    assert (told["ServerAliveInterval"], told["ServerAliveCountMax"]) == ("15", "8")


def test_command_line_and_file_say_the_same() -> None:
    block = render_block(TARGET)
    for word in ssh_arguments(TARGET)[2:-2:2]:
        assert f"    {word.replace('=', ' ', 1)}\n" in block


@pytest.mark.parametrize(("line", "quiet"), [("ls", True), (None, False)])
def test_a_command_on_a_terminal_ends_without_words_of_ssh_and_a_session_with_them(
    line: str | None, quiet: bool
) -> None:
    assert ("LogLevel=ERROR" in ssh_arguments(TARGET, command=line, tty=True)) == quiet
    assert "LogLevel=ERROR" not in ssh_arguments(TARGET, command=line)


def test_what_is_shown_is_the_shortest_command_that_leads_there() -> None:
    config = Path("/home/alice/.local/state/gpuenv/environments/train/ssh_config")
    with_key = replace(TARGET, identities=(Path("/home/alice/.ssh/id_ed25519"),))
    remote = replace(with_key, jump="alice@gpu01")
    for target in (TARGET, with_key, remote):
        assert short_arguments(target, config=config, installed=True) == ("ssh", "gpuenv-train")
    assert short_arguments(with_key, config=config, installed=False) == (
        "ssh", "-F", str(config), "gpuenv-train",
    )  # fmt: skip
    # The user's own file, which -F leaves out, tells of the agent and of the other host.
    for target in (TARGET, remote):
        assert short_arguments(target, config=config, installed=False) == ssh_arguments(target)


def test_a_host_is_jumped_to_by_what_passes_its_name_on_whole() -> None:
    plain = replace(TARGET, jump="alice@gpu01")
    assert dict(settings(plain))["ProxyJump"] == "alice@gpu01"
    odd = replace(TARGET, jump="corp\\bob@gpu01", jump_command="ssh -W '[%h]:%p' -- gpu01")
    assert "ProxyJump" not in dict(settings(odd))
    assert dict(settings(odd))["ProxyCommand"] == "ssh -W '[%h]:%p' -- gpu01"


def test_settings_of_the_user_for_every_host_do_not_keep_one_out() -> None:
    """``Host *`` in ``~/.ssh/config`` means the hosts of a company, not a port of this machine."""
    told = dict(settings(TARGET))
    assert told["ProxyCommand"] == "none"
    assert "ProxyJump" not in told, "ssh 9.2 takes the user's ProxyCommand in spite of it"
    assert told["RemoteCommand"] == "none"
    assert told["PubkeyAuthentication"] == "yes"
    assert told["PreferredAuthentications"] == "publickey"
    assert told["Ciphers"].removeprefix("^") in render_sshd_config({})
    assert "RemoteCommand none" in render_block(replace(TARGET, jump="alice@gpu01"))


def test_no_two_environments_share_a_connection() -> None:
    """Both are dev@127.0.0.1:2222 as their last hop sees them."""
    elsewhere = replace(TARGET, alias="gpuenv-train.gpu01", jump="alice@gpu01")
    here, there = (dict(settings(target))["ControlPath"] for target in (TARGET, elsewhere))
    assert here == "/home/alice/.local/state/gpuenv/ssh/gpuenv-train.mux"
    assert here != there


def test_a_socket_that_cannot_have_its_name_is_not_used() -> None:
    for folder in ("a" * 60, "a b", "100%"):
        deep = replace(TARGET, known_hosts=Path("/home/alice") / folder / "ssh" / "known_hosts")
        expected = {
            "a" * 60: "none",
            "a b": '"/home/alice/a b/ssh/gpuenv-train.mux"',
            "100%": "/home/alice/100%%/ssh/gpuenv-train.mux",
        }
        assert dict(settings(deep))["ControlPath"] == expected[folder]


def test_a_forward_is_made_once_however_often_it_is_asked_for() -> None:
    asked = ((6006, 6006), (8080, 80), (6006, 6006))
    assert require_forwards(asked, port_free=lambda _: True) == ((6006, 6006), (8080, 80))


def test_a_port_here_that_another_program_has_is_told_with_a_way_out() -> None:
    with pytest.raises(UsageError, match="cannot have port 6006 here") as told:
        require_forwards(((8080, 80), (6006, 6007)), port_free=lambda port: port != 6006)
    assert "--forward 16006:6007" in (told.value.fix or "")


def test_one_port_here_cannot_lead_to_two_inside() -> None:
    with pytest.raises(UsageError, match="port 60000 here twice") as told:
        require_forwards(((60000, 1), (60000, 2)), port_free=lambda _: True)
    assert "--forward 50000:2" in (told.value.fix or "")


def test_nothing_of_the_users_goes_along_unless_asked() -> None:
    told = dict(settings(TARGET))
    assert (told["ForwardAgent"], told["ForwardX11"]) == ("no", "no")
    asked = dict(settings(replace(TARGET, forward_agent=True, forward_x11=True)))
    assert (asked["ForwardAgent"], asked["ForwardX11"]) == ("yes", "yes")
