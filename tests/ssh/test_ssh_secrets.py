"""Where private keys are, and that they are neither in images nor in what an engine tells."""

from __future__ import annotations

import io
import json
import re
import shlex
import stat
import tarfile
from typing import TYPE_CHECKING

import pytest

from gpuenv.containers.files import EnvironmentFiles
from gpuenv.ssh.environment import make_client_key
from gpuenv.ssh.keys import make_key
from gpuenv.ssh.server import AUTHORIZED_KEYS_FILE, CONFIG_FILE, FOLDER, HOST_KEY_FILE
from tests.ssh.conftest import WORKER, changed_image

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.ssh.conftest import Seat

pytestmark = [pytest.mark.ssh, pytest.mark.engine]

# A whole key, not only the words that every program which reads keys has in it.
_KEY = re.compile(
    rb"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY-----[\s\\rn]{1,4}[A-Za-z0-9+/=\s]{100}", re.DOTALL
)
_PEOPLE_KNOW = re.compile(
    r"(?:.*/)?(?:"
    r"tornado/test/test\.key"  # published on PyPI with its tests
    r"|libgnutls\.so\.[0-9.]+"  # its self-test
    r")"
)


def secrets_of(seat: Seat) -> dict[str, bytes]:
    """Return a line of each private key there is around an environment."""
    folder = seat.state / "environments" / seat.name
    files = EnvironmentFiles(folder=folder)
    texts = {
        "host key": files.host_key_path.read_text(),
        "the user's key": seat.key.private.reveal(),
        "the key that gpuenv makes": make_client_key(files, seat.name).private.reveal(),
    }
    # The first lines say what kind of key it is, the same for all.
    return {name: text.splitlines()[3].encode() for name, text in texts.items()}


class _Stream(io.RawIOBase):
    """The pieces of an export, as a file."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        super().__init__()
        self._pieces = pieces
        self._left = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override] - of memoryviews as well
        while not self._left:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._left = piece
        count = min(len(buffer), len(self._left))
        buffer[:count], self._left = self._left[:count], self._left[count:]
        return count


def members(pieces: Iterator[bytes]) -> Iterator[tuple[str, bytes]]:
    """Yield the name and content of every file of an exported image: its texts, its layers' files.

    A name in a layer without content (a folder, a link, a file removed again) comes as well.
    """
    with tarfile.open(fileobj=io.BufferedReader(_Stream(pieces), 1 << 20), mode="r|") as export:
        for outer in export:
            file = export.extractfile(outer)
            if file is None:
                continue
            text = outer.name.endswith(("VERSION", "repositories", "oci-layout"))
            if text or file.peek(1)[:1] in b"{[":  # type: ignore[attr-defined] - a BufferedReader
                yield outer.name, file.read()
            else:
                with tarfile.open(fileobj=file, mode="r|*") as layer:
                    for inner in layer:
                        content = layer.extractfile(inner) if inner.isfile() else None
                        yield inner.name, content.read() if content else b""


def test_no_layer_of_an_image_has_a_key_also_after_launches(seat: Seat) -> None:
    secrets = secrets_of(seat)
    seen = 0
    for name, content in members(seat.engine.save((seat.image,))):
        seen += 1
        word = name.rpartition("/")[2]
        assert not word.startswith("ssh_host_") or not content, name
        assert not word.startswith("ssh_host_"), f"{name} was removed in a later layer only"
        assert word not in {"authorized_keys", "id_ed25519", "id_rsa", "id_ecdsa"}, name
        if _KEY.search(content):
            assert _PEOPLE_KNOW.fullmatch(name), name
        for what, secret in secrets.items():
            assert secret not in content, f"{what} in {name}"
    assert seen > 10_000, "the whole image"


def test_a_key_in_a_layer_would_be_found(seat: Seat, base_image: str) -> None:
    lines = make_key("careless").private.reveal().splitlines()
    step = f"RUN printf '%s\\n' {' '.join(map(shlex.quote, lines))} > /etc/careless"
    with changed_image(seat.engine, base_image, step) as careless:
        found = [n for n, content in members(seat.engine.save((careless,))) if _KEY.search(content)]
    assert "etc/careless" in found


def test_what_the_engine_tells_of_a_container_has_no_key(seat: Seat) -> None:
    container = seat.container
    inspected = seat.raw("GET", f"/containers/{container}/json")
    logs = b"".join(chunk.data for chunk in seat.engine.logs(container))
    image = seat.raw("GET", f"/images/{seat.image}/json")
    history = seat.raw("GET", f"/images/{seat.image}/history")
    for text in (inspected, logs, image, history):
        assert text
        assert b"PRIVATE KEY" not in text
        for what, secret in secrets_of(seat).items():
            assert secret not in text, what


def test_what_was_put_into_a_container_is_named_and_closed(seat: Seat) -> None:
    """Of all that differs from the image, one file holds a secret, and its owner alone reads it."""
    changes = json.loads(seat.raw("GET", f"/containers/{seat.container}/changes"))
    of_keys = {one["Path"] for one in changes if re.search(r"ssh|key", one["Path"])}
    ours = {FOLDER, HOST_KEY_FILE, AUTHORIZED_KEYS_FILE, CONFIG_FILE, "/run/sshd"}
    assert of_keys | {"/run/sshd"} == ours, "which an image may have already"
    listed = seat.engine.exec(
        seat.container, ("stat", "-c", "%n %a %u:%g", *sorted(ours)), user="0"
    ).stdout
    assert dict(line.split(" ", 1) for line in listed.decode().splitlines()) == {
        FOLDER: "755 0:0",
        CONFIG_FILE: "444 0:0",
        AUTHORIZED_KEYS_FILE: "444 0:0",
        HOST_KEY_FILE: f"400 {WORKER}:{WORKER}",
        "/run/sshd": "755 0:0",
    }


def test_what_stays_on_this_side_is_closed_to_others(seat: Seat) -> None:
    secrets_of(seat)
    environment = seat.state / "environments" / seat.name
    for folder in (seat.state / "environments", environment, seat.state / "ssh"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder
    names = {path.name for path in environment.iterdir()}
    assert names >= {
        "ssh_host_ed25519_key", "ssh_host_ed25519_key.pub", "authorized_keys", "id_ed25519",
        "id_ed25519.pub", "ssh_config",
    }  # fmt: skip
    for path in (*environment.iterdir(), *(seat.state / "ssh").iterdir()):
        if not path.is_socket() and not path.name.endswith("lock"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
