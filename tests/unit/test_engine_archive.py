"""Tar streams that every engine reads to the end."""

from __future__ import annotations

import io
import tarfile
from typing import TYPE_CHECKING

import pytest

from gpuenv.engine.archive import Member, folder, one_file, tar_bytes, tar_stream
from gpuenv.engine.hijack import split_frames
from gpuenv.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

LONG = "a/" + "ü" * 150 + "/file"


def test_the_archive_says_what_was_asked_and_is_the_same_each_time(tmp_path: Path) -> None:
    big = tmp_path / "big"
    big.write_bytes(b"x" * 3_000_000)
    members = [
        folder("etc", mode=0o750, uid=7),
        Member(path="etc/key", content=b"secret", mode=0o400, uid=1000, gid=5),
        Member(path="etc/link", link="key"),
        Member(path="etc/empty", content=b""),
        Member(path=LONG, content=b"long"),
        Member(path="big", content=big),
    ]
    data = tar_bytes(members)
    assert data == tar_bytes(members)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        infos = {info.name: info for info in tar}
        assert list(infos) == ["etc", "etc/key", "etc/link", "etc/empty", LONG, "big"]
        key = infos["etc/key"]
        assert (key.mode, key.uid, key.gid, key.mtime) == (0o400, 1000, 5, 0)
        assert (infos["etc"].isdir(), infos["etc"].mode) == (True, 0o750)
        assert infos["etc/link"].linkname == "key"
        reader = tar.extractfile("big")
        assert reader is not None
        assert reader.read() == b"x" * 3_000_000
    assert "secret" not in repr(members)


@pytest.mark.parametrize("size", [0, 1, 511, 512, 513, 10240])
def test_it_ends_with_exactly_two_zero_blocks(size: int) -> None:
    data = tar_bytes([Member(path="x", content=b"x" * size)])
    assert len(data) == 512 + -(-size // 512) * 512 + 1024
    assert data.endswith(b"\0" * 1024)
    assert one_file(data) == b"x" * size


def test_a_large_file_is_never_held_whole(tmp_path: Path) -> None:
    big = tmp_path / "big"
    big.write_bytes(b"\0" * 5_000_000)
    assert max(map(len, tar_stream([Member(path="big", content=big)]))) <= 1 << 20


def test_a_file_that_grows_while_it_is_sent_is_an_error(tmp_path: Path) -> None:
    growing = tmp_path / "log"
    growing.write_bytes(b"x" * 2_000_000)
    stream = tar_stream([Member(path="log", content=growing)])
    next(stream)
    with growing.open("ab") as file:
        file.write(b"more")
    with pytest.raises(ConfigurationError, match="changed"):
        list(stream)


def test_output_frames_come_apart_whatever_the_pieces() -> None:
    wire = b"\x01\0\0\0\0\0\0\x05hello\x02\0\0\0\0\0\0\x03err\x01\0\0\0\0\0\0\0\x01\0"
    for size in (1, 3, 8, 100):
        pieces = [wire[i : i + size] for i in range(0, len(wire), size)]
        assert [(c.stream, c.data) for c in split_frames(pieces)] == [
            ("stdout", b"hello"),
            ("stderr", b"err"),
            ("stdout", b""),
        ]
