"""A file is written whole or not at all."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from gpuenv.writing import write_whole

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(("mode", "expected"), [(0o600, 0o600), (0o664, 0o664), (None, 0o640)])
def test_a_file_has_the_mode_asked_for_or_that_of_a_new_one(
    tmp_path: Path, mode: int | None, expected: int
) -> None:
    path = tmp_path / "file"
    path.write_text("before")
    mask = os.umask(0o027)
    try:
        write_whole(path, b"after", mode=mode)
        assert os.umask(0o027) == 0o027, "the umask is as it was"
    finally:
        os.umask(mask)
    assert path.read_bytes() == b"after"
    assert stat.S_IMODE(path.stat().st_mode) == expected
    assert not list(tmp_path.glob(".*")), "nothing temporary is left"


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_what_was_there_stays_when_it_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    path = tmp_path / "file"
    path.write_text("before")

    def fail(_: int) -> None:
        raise error

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(type(error)):
        write_whole(path, b"after")
    assert path.read_text() == "before"
    assert not list(tmp_path.glob(".*")), "nothing temporary is left"
