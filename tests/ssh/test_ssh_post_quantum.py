"""``--post-quantum-only``: who can exchange keys with such a server, and who is told that not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpuenv.ssh.server import CONFIG_FILE
from tests.conftest import missing
from tests.launch_fixtures import PREFIX
from tests.ssh.conftest import open_seat
from tests.ssh.test_ssh_identity import stranger

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpuenv.engine.protocol import ContainerEngine
    from tests.ssh.conftest import Seat

pytestmark = [pytest.mark.ssh, pytest.mark.engine]

_FLAG = "--post-quantum-only"


@pytest.fixture(scope="module")
def strict(
    session_engine: ContainerEngine, engine_environ: Mapping[str, str], jupyter_image: str
) -> Iterator[Seat]:
    """Return a seat whose environment takes post-quantum key exchanges alone."""
    word = f"{PREFIX}-pq"
    with open_seat(session_engine, engine_environ, jupyter_image, word, _FLAG) as seat:
        yield seat


@pytest.fixture
def old_ssh(tmp_path: Path) -> str:
    """Return a PATH whose ``ssh`` knows but the exchanges of before."""
    folder = tmp_path / "old"
    folder.mkdir()
    real = shutil.which("ssh")
    wrapper = folder / "ssh"
    wrapper.write_text(f'#!/bin/sh\nexec {real} -o KexAlgorithms=curve25519-sha256 "$@"\n')
    wrapper.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def test_the_server_offers_nothing_else(strict: Seat) -> None:
    text = strict.inside(f"/usr/sbin/sshd -T -f {CONFIG_FILE}")
    (offered,) = [
        line.split()[1].split(",") for line in text.splitlines() if line.startswith("kexalg")
    ]
    assert offered
    assert all(name.startswith(("sntrup761x25519-", "mlkem768x25519-")) for name in offered)


def test_a_session_a_command_and_files_go_through(strict: Seat, tmp_path: Path) -> None:
    assert strict.inside("echo in") == "in"
    assert strict.start()["found"], "proved by ssh, where paramiko cannot"
    source = tmp_path / "file"
    source.write_text("content")
    assert strict.client("scp", str(source), f"{strict.alias}:/tmp/file").exit_code == 0
    assert strict.inside("cat /tmp/file") == "content"


def test_ssh_audit_has_nothing_to_say(strict: Seat) -> None:
    audit = Path(sys.executable).with_name("ssh-audit")
    if not audit.exists():
        missing("ssh-audit")
    port = str(strict.start()["host_port"])
    done = subprocess.run(
        [str(audit), "--skip-rate-test", "--no-colors", "-p", port, "127.0.0.1"],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert "(kex) sntrup761x25519-sha512@openssh.com" in done.stdout
    assert "[fail]" not in done.stdout
    assert "[warn]" not in done.stdout
    assert done.returncode == 0


def test_an_ssh_without_such_an_exchange_is_told(strict: Seat, old_ssh: str) -> None:
    for words in (("--", "true"), ("--detach",)):
        done = strict.ssh("--json", *words, PATH=old_ssh)
        assert (done.exit_code, done.slug) == (6, "ssh-failed"), words
        (error,) = done.envelope["errors"]
        assert error["what"] == "your ssh cannot exchange keys with this environment"
        assert _FLAG in error["fix"]


def test_where_nothing_can_speak_it_that_is_said(strict: Seat, tmp_path: Path) -> None:
    """Paramiko has another post-quantum exchange than the server of Debian 12."""
    done = strict.ssh("--json", "--", "true", PATH=str(tmp_path))
    if done.exit_code == 0:
        missing("a paramiko that has no exchange in common with the server")
    assert (done.exit_code, done.slug) == (6, "ssh-failed")
    (error,) = done.envelope["errors"]
    assert "cannot exchange keys" in error["what"]
    assert strict.ssh("--json", "--detach", PATH=str(tmp_path)).slug == "ssh-failed"


def test_a_planted_host_key_is_refused_here_as_well(strict: Seat) -> None:
    with stranger(strict):
        for words in (("--", "touch /tmp/was-here"), ("--detach",)):
            done = strict.ssh("--json", *words)
            assert (done.exit_code, done.slug) == (6, "host-key-changed"), words


def test_it_is_made_anew_to_be_as_asked(seat: Seat, strict: Seat) -> None:
    assert seat.ssh("--json", "--detach", _FLAG).slug == "environment-differs"
    assert strict.ssh("--json", "--detach", _FLAG).data["found"]
