"""One ``Include`` line at the top of the user's SSH configuration, and nothing else of ours in it.

Everything gpuenv has to say to ``ssh`` stands in a file of its own in the state folder; the user's
file only includes it. Taking the line out again gives back the bytes that were there before, a file
and a folder that were not there included. Configurations are bytes here: what stands in them is
none of our business.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import stat
from typing import TYPE_CHECKING

from gpuenv.errors import ConfigurationError
from gpuenv.state import make_private_dir, write_private_file
from gpuenv.values import dataclass
from gpuenv.writing import write_whole

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Include takes a glob pattern, and quotes end at a quote: a path with these would mean another.
_UNSAFE = re.compile(r'["\\*?\[\]\x00-\x1f]')
_BLOCK = re.compile(rb"^\s*(?:host|match)[\s=\"]", re.IGNORECASE | re.MULTILINE)


class SshConfigError(ConfigurationError):
    """The user's SSH configuration cannot be read or written."""

    slug = "ssh-config"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """The user's configuration file and ours.

    Attributes:
        path: The user's own, ``~/.ssh/config``; it may be a symbolic link or not exist.
        included: Ours, which the line includes.
        record: Where it is remembered what was made, so that it can be unmade.
    """

    path: Path
    included: Path
    record: Path


def include_line(included: Path) -> bytes:
    """Return the line, without its end.

    Raises:
        SshConfigError: The path cannot stand in an ``Include``.
    """
    text = str(included)
    if _UNSAFE.search(text):
        raise SshConfigError(
            f"{text} cannot be included by ssh",
            why="Include takes a pattern, and the path has a character with a meaning in patterns",
            fix="set GPUENV_STATE_DIR to a folder with a plain name",
        )
    return f'Include "{text}"'.encode()


def with_include(content: bytes, line: bytes) -> bytes:
    """Return a configuration with the line at its top, once; pure.

    A line below a ``Host`` or ``Match`` would hold for that block alone, so it moves up.
    """
    if is_included(content, line):
        return content
    end = b"\r\n" if content.partition(b"\n")[0].endswith(b"\r") else b"\n"
    return line + end + without_include(content, line)


def without_include(content: bytes, line: bytes) -> bytes:
    """Return a configuration without the line, every other byte as it was; pure."""
    kept = [piece for piece in content.splitlines(keepends=True) if piece.rstrip(b"\r\n") != line]
    return b"".join(kept)


def is_included(content: bytes, line: bytes) -> bool:
    """Say whether the line stands where it holds for every host."""
    block = _BLOCK.search(content)
    head = content if block is None else content[: block.start()]
    return any(piece.rstrip(b"\r\n") == line for piece in head.splitlines(keepends=True))


def is_installed(config: ClientConfig) -> bool:
    """Say whether the user's configuration includes ours, as it is now.

    Raises:
        SshConfigError: It cannot be read.
    """
    content = _read(_real_path(config.path))
    return content is not None and is_included(content, include_line(config.included))


def install(config: ClientConfig) -> bool:
    """Put the line in; return whether anything had to change.

    Raises:
        SshConfigError: The file cannot be read or written; it is as it was.
    """
    line = include_line(config.included)
    with _locked(config):
        target = _real_path(config.path)
        content = _read(target)
        wanted = with_include(content or b"", line)
        if content == wanted:
            return False
        made = {"folder": not target.parent.exists(), "file": content is None}
        with writing(config.record):
            first = not config.record.exists()
            if first:
                write_private_file(config.record, json.dumps(made).encode())
        try:
            if made["folder"]:
                with writing(target.parent):
                    make_private_dir(target.parent)
            _replace(target, wanted)
        except SshConfigError:
            if first:
                config.record.unlink(missing_ok=True)
            raise
        return True


def remove(config: ClientConfig) -> bool:
    """Take the line out; return whether it was there.

    What install made goes too, if nobody has put anything else there since.

    Raises:
        SshConfigError: The file cannot be read or written; it is as it was.
    """
    line = include_line(config.included)
    with _locked(config):
        target = _real_path(config.path)
        content = _read(target)
        made = _made(config)
        if content is None or (rest := without_include(content, line)) == content:
            config.record.unlink(missing_ok=True)
            return False
        if not rest and made.get("file"):
            target.unlink()
            if made.get("folder"):
                with contextlib.suppress(OSError):  # somebody keeps a key there by now
                    target.parent.rmdir()
        else:
            _replace(target, rest)
        config.record.unlink(missing_ok=True)
        return True


def _made(config: ClientConfig) -> dict[str, bool]:
    try:
        record: dict[str, bool] = json.loads(config.record.read_bytes())
    except (OSError, ValueError):
        return {}
    return record


@contextlib.contextmanager
def _locked(config: ClientConfig) -> Iterator[None]:
    """Let one gpuenv at a time change the file."""
    path = config.record.parent / "config.lock"
    with writing(path):
        make_private_dir(path.parent)
        lock = path.open("ab")
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Say in our words that a file or folder could not be written."""
    try:
        yield
    except OSError as exc:
        raise SshConfigError(
            f"{path} cannot be written",
            why=exc.strerror or str(exc),
            fix="make room or give write permission; GPUENV_STATE_DIR names another folder for "
            "gpuenv's own files",
        ) from exc


def _real_path(path: Path) -> Path:
    """Return what a symbolic link stands for: dotfile managers keep the file elsewhere."""
    try:
        return path.resolve()
    except (OSError, RuntimeError) as exc:
        raise SshConfigError(
            f"{path} cannot be followed", why=str(exc), fix="mend the symbolic link"
        ) from exc


def _read(path: Path) -> bytes | None:
    try:
        # A link to /dev/null says that there shall be none; a pipe would be waited for.
        if not stat.S_ISREG(path.stat().st_mode):
            raise SshConfigError(
                f"{path} is no regular file",
                why="it cannot be given back as it was",
                fix='put this line where ssh reads it: Include "…" (gpuenv ssh config show)',
            )
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise SshConfigError(
            f"{path} cannot be read", why=exc.strerror or str(exc), fix="see who owns it: ls -l"
        ) from exc


def _replace(path: Path, content: bytes) -> None:
    """Write a file whole or not at all, keeping its permissions and owner."""
    mode, owner = 0o600, None
    try:
        if path.exists():
            before = path.stat()
            mode = before.st_mode & 0o7777
            if (before.st_uid, before.st_gid) != (os.geteuid(), os.getegid()):
                owner = (before.st_uid, before.st_gid)
        write_whole(path, content, mode=mode, owner=owner)
    except OSError as exc:
        raise SshConfigError(
            f"{path} cannot be written",
            why=exc.strerror or str(exc),
            fix='put this line at its top yourself: Include "…" (gpuenv ssh config show)',
        ) from exc
