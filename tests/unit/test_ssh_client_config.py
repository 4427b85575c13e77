"""The user's SSH configuration gets one line and gives it back to the byte."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from gpuenv.ssh.client_config import (
    ClientConfig,
    SshConfigError,
    include_line,
    install,
    is_included,
    remove,
)

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


def test_a_folder_in_its_place_is_a_clear_error(config: ClientConfig) -> None:
    config.path.mkdir(parents=True)
    with pytest.raises(SshConfigError, match="cannot be read"):
        install(config)


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
