"""The user's SSH configuration gets one line and gives it back to the byte."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpuenv.ssh.client_config import (
    ClientConfig,
    SshConfigError,
    include_line,
    install,
    is_included,
    is_installed,
    remove,
)
from tests.conftest import missing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NASTY = {
    "empty": b"",
    "one newline": b"\n",
    "plain": b"Host a\n  User b\n",
    "no newline at the end": b"Host a\n  User b",
    "CRLF": b"Host a\r\n  User b\r\n",
    "CRLF without an end": b"Host a\r\n  User b",
    "mixed line ends": b"Host a\r\n  User b\n",
    "Match first": b"Match host x exec true\n  User m\nHost *\n  User all\n",
    "blank lines first": b"\n\n\nHost a\n",
    "comment first": b"# mine\nHost *\n",
    "another Include first": b"Include ~/.ssh/other\nHost a\n",
    "equals signs": b"Host=a\nUser = b\n",
    "tabs": b"\tHost\ta\n\t\tUser\tb\n",
    "not UTF-8": b"# \xff\xfe caf\xe9\nHost a\n",
    "byte order mark": b"\xef\xbb\xbfHost a\n",
    "NUL": b"# \0\nHost a\n",
    "other line separators": "# a\u2028b\x0cc\x1cd\x85e\nHost a\n".encode(),
    "lone carriage returns": b"Host a\r  User b\r",
    "long": b"# " + b"x" * 100_000 + b"\n" + b"Host a\n" * 5000,
    "only spaces": b"   ",
    "a line like ours": b'Include "/somewhere/gpuenv/ssh/config"\nHost a\n',
}


@pytest.fixture
def config(tmp_path: Path) -> ClientConfig:
    state = tmp_path / "state" / "ssh"
    return ClientConfig(
        path=tmp_path / ".ssh" / "config", included=state / "config", record=state / "include.json"
    )


def write(config: ClientConfig, content: bytes) -> None:
    config.path.parent.mkdir(mode=0o700, exist_ok=True)
    config.path.write_bytes(content)


@pytest.mark.parametrize("content", NASTY.values(), ids=NASTY.keys())
def test_the_line_goes_in_first_and_out_again_to_the_byte(
    config: ClientConfig, content: bytes
) -> None:
    write(config, content)
    line = include_line(config.included)
    assert install(config)
    inside = config.path.read_bytes()
    assert inside.startswith(line)
    assert inside.endswith(content)
    assert len(inside) - len(content) in {len(line) + 1, len(line) + 2}
    assert not install(config), "the second time nothing changes"
    assert config.path.read_bytes() == inside
    assert remove(config)
    assert config.path.read_bytes() == content
    assert not remove(config)


def test_a_file_and_a_folder_that_were_not_there_are_gone_again(config: ClientConfig) -> None:
    install(config)
    assert stat.S_IMODE(config.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(config.path.parent.stat().st_mode) == 0o700
    remove(config)
    assert not config.path.parent.exists()


def test_a_folder_that_somebody_uses_by_now_stays(config: ClientConfig) -> None:
    install(config)
    (config.path.parent / "id_ed25519").write_text("key")
    remove(config)
    assert [path.name for path in config.path.parent.iterdir()] == ["id_ed25519"]


def test_what_was_added_below_stays(config: ClientConfig) -> None:
    install(config)
    with config.path.open("ab") as file:
        file.write(b"Host new\n")
    remove(config)
    assert config.path.read_bytes() == b"Host new\n"


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o400])
def test_permissions_stay(config: ClientConfig, mode: int) -> None:
    write(config, b"Host a\n")
    config.path.chmod(mode)
    install(config)
    assert stat.S_IMODE(config.path.stat().st_mode) == mode
    remove(config)
    assert stat.S_IMODE(config.path.stat().st_mode) == mode


def test_a_symbolic_link_stays_one_and_its_target_is_changed(
    config: ClientConfig, tmp_path: Path
) -> None:
    dotfiles = tmp_path / "dotfiles"
    dotfiles.mkdir()
    (dotfiles / "sshconfig").write_bytes(b"Host a\n")
    config.path.parent.mkdir()
    config.path.symlink_to(Path("..") / "dotfiles" / "sshconfig")
    install(config)
    assert config.path.is_symlink()
    assert (dotfiles / "sshconfig").read_bytes().endswith(b"Host a\n")
    remove(config)
    assert (dotfiles / "sshconfig").read_bytes() == b"Host a\n"


def test_a_line_inside_a_block_moves_to_the_top(config: ClientConfig) -> None:
    line = include_line(config.included)
    write(config, b"Host a\n" + line + b"\nUser b\n")
    assert not is_included(config.path.read_bytes(), line)
    install(config)
    assert config.path.read_bytes() == line + b"\nHost a\nUser b\n"


def test_a_line_that_the_user_moved_down_a_little_counts(config: ClientConfig) -> None:
    write(config, b"# first\n" + include_line(config.included) + b"\nHost a\n")
    assert not install(config)


def test_many_at_once_leave_one_line(config: ClientConfig) -> None:
    write(config, b"Host a\n")
    threads = [threading.Thread(target=install, args=(config,)) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert config.path.read_bytes() == include_line(config.included) + b"\nHost a\n"


def test_putting_in_and_taking_out_at_once_leaves_nothing_half_done(config: ClientConfig) -> None:
    write(config, b"Host a\n")
    threads = [
        threading.Thread(target=what, args=(config,))
        for what in (install, remove)
        for _ in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    line = include_line(config.included) + b"\n"
    assert config.path.read_bytes() in {b"Host a\n", line + b"Host a\n"}
    remove(config)
    assert config.path.read_bytes() == b"Host a\n"
    assert [path.name for path in config.path.parent.iterdir()] == ["config"]


def test_a_link_to_nothing_is_one_again(config: ClientConfig, tmp_path: Path) -> None:
    config.path.parent.mkdir()
    config.path.symlink_to(tmp_path / "dotfiles" / "sshconfig")
    install(config)
    assert config.path.is_symlink()
    assert (tmp_path / "dotfiles" / "sshconfig").read_bytes().startswith(b"Include")
    remove(config)
    assert config.path.is_symlink()
    assert not (tmp_path / "dotfiles").exists()


def test_a_folder_that_is_a_link_stays_one(config: ClientConfig, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    config.path.parent.symlink_to(tmp_path / "elsewhere")
    install(config)
    remove(config)
    assert config.path.parent.is_symlink()
    assert list((tmp_path / "elsewhere").iterdir()) == []


def a_folder(path: Path) -> None:
    path.mkdir()


def a_link_to_itself(path: Path) -> None:
    path.symlink_to(path)


def a_link_to_a_device(path: Path) -> None:
    path.symlink_to("/dev/null")


NO_FILES = [a_folder, a_link_to_itself, a_link_to_a_device, os.mkfifo]


@pytest.mark.parametrize("make", NO_FILES, ids=lambda make: make.__name__)
def test_what_is_no_file_is_left_alone(config: ClientConfig, make: Callable[[Path], None]) -> None:
    config.path.parent.mkdir()
    make(config.path)
    before = config.path.lstat()
    for act in (install, remove, is_installed):
        with pytest.raises(SshConfigError, match=r"cannot be|no regular file"):
            act(config)
    assert config.path.lstat() == before
    assert [path.name for path in config.path.parent.iterdir()] == ["config"]
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def test_a_file_in_the_folders_place_is_left_alone(config: ClientConfig) -> None:
    config.path.parent.write_bytes(b"mine")
    with pytest.raises(SshConfigError, match="cannot be read"):
        install(config)
    assert config.path.parent.read_bytes() == b"mine"


def test_a_file_of_another_user_stays_theirs(config: ClientConfig) -> None:
    """As with ``sudo``, whose home is the caller's."""
    if os.geteuid() != 0:
        missing("root, to own a file in another's name")
    write(config, b"Host a\n")
    os.chown(config.path, 1234, 2345)
    config.path.chmod(0o640)
    for act in (install, remove):
        act(config)
        there = config.path.stat()
        assert (there.st_uid, there.st_gid, stat.S_IMODE(there.st_mode)) == (1234, 2345, 0o640)


@pytest.fixture
def theirs() -> Iterator[ClientConfig]:
    """Return files in a home of a user who is not root, and act as that user."""
    home = Path(tempfile.mkdtemp(prefix="gpuenv-home-"))
    config = ClientConfig(
        path=home / ".ssh" / "config",
        included=home / "state" / "config",
        record=home / "state" / "include.json",
    )
    root = os.geteuid() == 0
    try:
        if root:
            os.chown(home, 1234, 1234)
            os.setegid(1234)
            os.seteuid(1234)
        config.path.parent.mkdir(mode=0o700)
        yield config
    finally:
        if root:
            os.seteuid(0)
            os.setegid(0)
        for folder in (home, config.path.parent):
            folder.chmod(0o700)
        shutil.rmtree(home)


@pytest.mark.parametrize("there", [b"Host a\n", None], ids=["a file", "no file"])
def test_a_folder_that_cannot_be_written_is_a_clear_error(
    theirs: ClientConfig, there: bytes | None
) -> None:
    if there is not None:
        theirs.path.write_bytes(there)
    theirs.path.parent.chmod(0o500)
    with pytest.raises(SshConfigError, match="cannot be written") as caught:
        install(theirs)
    assert "Permission denied" in caught.value.why
    assert not is_installed(theirs)
    assert not theirs.record.exists(), "what was not made is not remembered"
    assert [path.read_bytes() for path in theirs.path.parent.iterdir()] == [there] * bool(there)


def test_a_home_or_a_state_folder_that_cannot_be_written_is_a_clear_error(
    theirs: ClientConfig,
) -> None:
    theirs.path.parent.rmdir()
    theirs.record.parent.mkdir(mode=0o700)
    theirs.path.parent.parent.chmod(0o500)
    with pytest.raises(SshConfigError, match="cannot be written"):
        install(theirs)
    theirs.path.parent.parent.chmod(0o700)
    theirs.path.parent.mkdir(mode=0o700)
    shutil.rmtree(theirs.record.parent)
    theirs.path.parent.parent.chmod(0o500)
    for act in (install, remove):
        with pytest.raises(SshConfigError, match="cannot be written"):
            act(theirs)
    theirs.path.parent.parent.chmod(0o700)


def test_a_file_that_cannot_be_read_is_a_clear_error(theirs: ClientConfig) -> None:
    theirs.path.write_bytes(b"Host a\n")
    theirs.path.chmod(0)
    for act in (install, remove, is_installed):
        with pytest.raises(SshConfigError, match="cannot be read"):
            act(theirs)
    assert stat.S_IMODE(theirs.path.stat().st_mode) == 0


def test_a_file_that_could_not_be_given_back_to_its_owner_is_left_alone(
    theirs: ClientConfig,
) -> None:
    """It is root's, though the folder is ours: replaced, it would be ours too."""
    if os.getuid() != 0:
        missing("root, to own a file in another's name")
    theirs.path.write_bytes(b"Host a\n")
    os.seteuid(0)
    os.chown(theirs.path, 0, 0)
    os.seteuid(1234)
    theirs.path.parent.chmod(0o755)
    with pytest.raises(SshConfigError, match="cannot be"):
        install(theirs)
    assert theirs.path.stat().st_uid == 0
    os.seteuid(0)
    assert theirs.path.read_bytes() == b"Host a\n"
    assert [path.name for path in theirs.path.parent.iterdir()] == ["config"]


def test_a_failed_write_leaves_the_file_and_no_litter(
    config: ClientConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(config, b"Host a\n")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    # The record is written the same way, so its folder is made beforehand and it exists.
    config.record.parent.mkdir(parents=True)
    config.record.write_text("{}")
    with pytest.raises(SshConfigError, match="cannot be written") as caught:
        install(config)
    assert "No space left" in caught.value.why
    assert config.path.read_bytes() == b"Host a\n"
    assert [path.name for path in config.path.parent.iterdir()] == ["config"]


@pytest.mark.parametrize("name", ['a"b', "a*b", "a?b", "a[b]", "a\nb", "a\\b"])
def test_a_state_folder_that_is_a_pattern_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SshConfigError, match="cannot be included"):
        include_line(tmp_path / name / "config")
