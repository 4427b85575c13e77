"""One host key for the life of an environment, and nobody else's is taken for it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from gpuenv.engine.protocol import PutFile
from gpuenv.ssh.environment import put_keys
from gpuenv.ssh.keys import make_key, parse_public_key
from gpuenv.ssh.server import HOST_KEY_FILE
from tests.ssh.conftest import WORKER, changed_image

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.ssh.conftest import Seat

pytestmark = [pytest.mark.ssh, pytest.mark.engine]


def test_stop_and_start_keep_the_host_key(seat: Seat) -> None:
    before = seat.start()["host_key"]
    assert seat.gpuenv("stop", seat.name, "--timeout", "1").exit_code == 0
    assert seat.gpuenv("start", seat.name).exit_code == 0
    assert seat.client("ssh", seat.alias, "echo back").stdout == "back\n"
    assert seat.gpuenv("stop", seat.name, "--timeout", "1").exit_code == 0
    assert seat.inside("echo started by ssh") == "started by ssh"
    assert seat.start()["host_key"] == before


def test_another_image_keeps_the_host_key(seat: Seat) -> None:
    """As after a rebuild: other content, another image id, the same environment."""
    before = seat.start()
    for line in ("RUN touch /first", "RUN touch /second"):
        with changed_image(seat.engine, seat.image, "USER 0", line) as changed:
            refused = seat.ssh("--json", "--detach", "--image", changed)
            assert refused.slug == "environment-differs"
            anew = seat.start("--image", changed, "--no-caches", "--replace")
            container = seat.engine.container(anew["id"])
            image = seat.engine.image(changed)
            assert container is not None
            assert image is not None
            assert container.image_id == image.id
            assert anew["id"] != before["id"]
            assert anew["host_key"] == before["host_key"]
            assert seat.client("ssh", seat.alias, f"ls {line.split()[-1]}").exit_code == 0
            back = seat.start("--image", seat.image, "--no-caches", "--replace")
            assert back["host_key"] == before["host_key"]


def test_a_rebuild_by_gpuenv_keeps_the_host_key(seat: Seat) -> None:
    """The same request with one more package: another image under the same name."""
    before = seat.start()
    kept = seat.engine.image(seat.image)
    assert kept is not None
    request = ("--torch", "2.13", "--cuda", "cpu", "--make-base", "--pip", "iniconfig")
    rebuilt = None
    try:
        anew = seat.start(*request, "--no-caches", "--replace")
        container = seat.engine.container(anew["id"])
        assert container is not None
        rebuilt = container.image_id
        assert rebuilt != kept.id
        assert seat.inside("python -c 'import iniconfig; print(iniconfig.__name__)'") == "iniconfig"
        assert anew["host_key"] == before["host_key"]
        assert seat.client("ssh", seat.alias, "echo in").stdout == "in\n"
    finally:
        seat.engine.tag(kept.id, seat.image)
        back = seat.start("--image", seat.image, "--no-caches", "--replace")
        if rebuilt is not None:
            seat.engine.untag(rebuilt, force=True)
    assert back["host_key"] == before["host_key"]


@contextmanager
def stranger(seat: Seat) -> Iterator[None]:
    """Let the server show another host key meanwhile."""
    container = seat.container
    good = seat.engine.read_file(container, HOST_KEY_FILE)
    assert good is not None

    def plant(content: bytes) -> None:
        put = PutFile(path=HOST_KEY_FILE, content=content, mode=0o400, uid=WORKER, gid=WORKER)
        seat.engine.put_files(container, (put,))
        seat.engine.restart(container, timeout_s=1)

    plant(make_key("mallory").private.reveal().encode())
    try:
        yield
    finally:
        plant(good)
    assert seat.inside("echo good") == "good"


def test_a_planted_host_key_is_refused_by_every_client(seat: Seat, tmp_path: Path) -> None:
    with stranger(seat):
        for what, environ in (("ssh", {}), ("no ssh program", {"PATH": str(tmp_path)})):
            done = seat.ssh("--json", "--", "touch /tmp/was-here", **environ)
            assert (done.exit_code, done.slug) == (6, "host-key-changed"), what
            said = seat.ssh("--", "touch /tmp/was-here", **environ)
            assert said.exit_code == 6, what
            assert "nothing was sent" in said.stderr, what
        by_ssh = seat.client("ssh", seat.alias, "touch /tmp/was-here")
        assert by_ssh.exit_code == 255
        assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in by_ssh.stderr
        scp = seat.client("scp", "/etc/hostname", f"{seat.alias}:/tmp/was-here")
        assert scp.exit_code == 255
        assert seat.engine.read_file(seat.container, "/tmp/was-here") is None
        detached = seat.ssh("--json", "--detach")
        assert (detached.exit_code, detached.slug) == (6, "host-key-changed")


def test_a_planted_host_key_is_refused_after_a_stop(seat: Seat) -> None:
    with stranger(seat):
        assert seat.gpuenv("stop", seat.name, "--timeout", "1").exit_code == 0
        done = seat.ssh("--json", "--", "touch /tmp/was-here")
        assert (done.exit_code, done.slug) == (6, "host-key-changed")
        assert seat.engine.read_file(seat.container, "/tmp/was-here") is None


def test_a_state_folder_that_was_lost_is_made_good_from_the_container(seat: Seat) -> None:
    path = seat.state / "environments" / seat.name / "ssh_host_ed25519_key"
    kept = path.read_text()
    path.unlink()
    assert seat.inside("echo in") == "in"
    assert path.read_text() == kept
    everybody = (seat.state / "environments" / seat.name / "authorized_keys").read_text()
    put_keys(seat.engine, seat.container, (parse_public_key(everybody, origin="x"),))
