"""Files that a user names: pipes, devices, folders and endless ones end in words."""

from __future__ import annotations

import io
import os
import threading
from pathlib import Path

import pytest

from gpuenv import reading
from gpuenv.cli import main
from gpuenv.reading import MIB, read_named, read_named_text, read_stream, reason


@pytest.fixture
def pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a named pipe that nobody writes to, and do not wait for anybody."""
    monkeypatch.setattr(reading, "WRITER_GRACE_S", 0.0)
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


def refused(path: Path, limit_bytes: int = MIB) -> str:
    with pytest.raises(OSError, match=r".") as caught:
        read_named(path, limit_bytes=limit_bytes)
    return reason(caught.value)


def test_a_pipe_without_a_writer_is_not_waited_for(pipe: Path) -> None:
    assert refused(pipe) == "nobody writes to this pipe"


def test_a_pipe_is_read_as_long_as_somebody_writes(pipe: Path) -> None:
    whole = b"torch = '2.9'\n" * 10_000  # more than a pipe holds, so that it is written in turns
    keep = os.open(pipe, os.O_RDWR)  # a writer is there before the reader looks

    def write() -> None:
        with pipe.open("wb") as file:
            file.write(whole)
            os.close(keep)

    writer = threading.Thread(target=write)
    writer.start()
    assert read_named(pipe) == whole
    writer.join()


def test_what_the_shell_puts_in_place_of_a_command_is_read() -> None:
    reading_end, writing_end = os.pipe()
    os.write(writing_end, b"einops\n")
    os.close(writing_end)
    try:
        assert read_named(Path(f"/dev/fd/{reading_end}")) == b"einops\n"
    finally:
        os.close(reading_end)


def test_an_endless_pipe_ends_at_the_limit(pipe: Path) -> None:
    keep = os.open(pipe, os.O_RDWR)
    os.write(keep, b"x" * 4096)
    try:
        assert refused(pipe, limit_bytes=1000) == "it holds more than 0 MiB"
    finally:
        os.close(keep)


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/full"])
def test_an_endless_device_ends_at_the_limit(device: str) -> None:
    assert refused(Path(device)) == "it holds more than 1 MiB"


def test_a_file_of_three_gigabytes_is_not_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "huge"
    with path.open("wb") as file:
        file.truncate(3 * 1024 * MIB)
    assert refused(path) == "it holds more than 1 MiB"


def test_a_folder_is_named_as_one(tmp_path: Path) -> None:
    assert refused(tmp_path) == "it is a folder"


def test_the_empty_device_is_an_empty_file() -> None:
    assert read_named_text(Path("/dev/null")) == ""


def test_bytes_that_are_no_text_are_named_by_their_place(tmp_path: Path) -> None:
    path = tmp_path / "latin"
    path.write_bytes(b"name = \xe9")
    with pytest.raises(UnicodeDecodeError) as caught:
        read_named_text(path)
    assert reason(caught.value) == "it is no text in UTF-8: byte 7 is 0xe9"


def test_a_stream_of_just_the_limit_is_read() -> None:
    assert read_stream(io.BytesIO(b"x" * MIB), name="-", limit_bytes=MIB) == b"x" * MIB


OFFLINE = ["build", "--cuda", "cpu", "--dry-run", "--offline"]


@pytest.mark.parametrize("name", ["pipe", "/dev/full", "."])
@pytest.mark.parametrize(
    ("words", "variable"),
    [
        (["matrix", "resolve", "--cuda", "cpu"], "GPUENV_CONFIG"),
        (["matrix", "resolve", "--cuda", "cpu", "--matrix"], None),
        (["matrix", "update", "--matrix"], None),
        (["render", "--cuda", "cpu", "-r"], None),
        (["doctor", "--from"], None),
        pytest.param(OFFLINE, "PIP_CONSTRAINT", marks=pytest.mark.network),
        pytest.param(OFFLINE, "PIP_CONFIG_FILE", marks=pytest.mark.network),
        pytest.param(OFFLINE, "UV_CONFIG_FILE", marks=pytest.mark.network),
    ],
)
def test_every_file_that_a_user_names_is_read_so(
    words: list[str], variable: str | None, name: str, pipe: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    path = {"pipe": str(pipe), ".": str(pipe.parent)}.get(name, name)
    said = {
        "pipe": "nobody writes to this pipe",
        ".": "it is a folder",
        "/dev/full": "it holds more than",
    }
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent")
    if variable is not None:
        monkeypatch.setenv(variable, path)
    assert main([*words, *([] if variable else [path])]) == 2
    assert f"why: {said[name]}" in capsys.readouterr().err
