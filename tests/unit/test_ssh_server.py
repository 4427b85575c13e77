"""The configuration of the server, as text; the real sshd reads it in ``tests/ssh``."""

from __future__ import annotations

import pytest

from gpuenv.ssh.server import render_sshd_config


def settings(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        assert name not in found, f"{name} twice: sshd takes the first"
        found[name] = value
    return found


def test_nothing_of_the_client_is_forwarded_unless_asked() -> None:
    told = settings(render_sshd_config({}))
    assert (told["AllowAgentForwarding"], told["X11Forwarding"]) == ("no", "no")
    assert "AddressFamily" not in told
    asked = settings(render_sshd_config({}, agent_forwarding=True, x11_forwarding=True))
    assert (asked["AllowAgentForwarding"], asked["X11Forwarding"]) == ("yes", "yes")
    assert asked["AddressFamily"] == "inet", "or sshd looks for ::1 and gives the display up"


def test_post_quantum_only_takes_the_rest_away_by_pattern() -> None:
    assert settings(render_sshd_config({}))["KexAlgorithms"].startswith("sntrup761x25519-sha512@")
    told = settings(render_sshd_config({}, post_quantum_only=True))["KexAlgorithms"]
    # sshd refuses to start with a name that it does not know, except in a list to be taken away.
    assert told == "-!sntrup*,!mlkem*,*"


@pytest.mark.parametrize(
    ("value", "written"),
    [("/a b", '"/a b"'), ('say "x"', '"say \\"x\\""'), ("c:\\d", '"c:\\\\d"'), ("#1", '"#1"')],
)
def test_variables_are_quoted(value: str, written: str) -> None:
    assert settings(render_sshd_config({"A": value}))["SetEnv"] == f"A={written}"


def test_variables_that_cannot_stand_in_a_line_are_left_out() -> None:
    bad = {"A": "x\nPermitRootLogin yes", "B": "x\r", "C": "x\0", "HOME": "/h", "D-E": "x"}
    assert settings(render_sshd_config({**bad, "F": "f"}))["SetEnv"] == 'F="f"'
