"""Whether an SSH server answers."""

from __future__ import annotations

import socket

import pytest

from gpuenv.ssh.host_key import probe_banner


@pytest.mark.parametrize(
    ("said", "missing"),
    [
        ((b"SSH-2.0-OpenSSH_9.2\r\n",), ""),
        ((b"SS", b"H-2", b".0-x"), ""),
        ((), "no SSH server answers: it said b''"),
        ((b"HTTP/1.1 200 OK\r\n",), "no SSH server answers: it said b'HTTP/1.1'"),
    ],
    ids=["banner", "pieces", "closed", "foreign"],
)
def test_a_banner_is_what_an_ssh_server_begins_with(said: tuple[bytes, ...], missing: str) -> None:
    here, there = socket.socketpair()
    with there:
        for piece in said:
            there.sendall(piece)
        there.shutdown(socket.SHUT_WR)
        assert probe_banner(lambda: here) == missing


def test_no_connection_is_what_is_missing() -> None:
    def refused() -> socket.socket:
        raise ConnectionRefusedError(111, "Connection refused")

    assert "Connection refused" in probe_banner(refused)
