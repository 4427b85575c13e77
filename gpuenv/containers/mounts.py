"""The workspace and the cache volumes of a container."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from gpuenv.containers.errors import WorkspaceError
from gpuenv.containers.identity import CREATED, OWNER, VOLUME
from gpuenv.containers.users import HOME
from gpuenv.engine.protocol import BindMount, VolumeMount
from gpuenv.errors import ConfigurationError
from gpuenv.values import dataclass

if TYPE_CHECKING:
    from datetime import datetime

    from gpuenv.engine.protocol import Mount

WORKSPACE = "/workspace"
CACHES: tuple[str, ...] = (
    "huggingface",
    "nv",
    "pip",
    "torch",
    "torchinductor",
    "triton",
    "uv",
)
"""Folders below ``~/.cache`` that outlive a container, as the images of ours have them."""

_VOLUME_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """The folder of the engine's host that is mounted.

    Attributes:
        explicit: It was named, and not just where the command was called.
        known: It was found on the engine's host, which is another one.
    """

    source: str
    explicit: bool = False
    known: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheVolume:
    """A named volume of one user for one cache."""

    cache: str
    owner: int

    @property
    def name(self) -> str:
        """The volume's name; a user has their own, for what one writes there another would run."""
        return f"gpuenv-cache-{self.owner}-{self.cache}"

    @property
    def target(self) -> str:
        """Where it is mounted."""
        return f"{HOME}/.cache/{self.cache}"

    def labels(self, created: datetime) -> dict[str, str]:
        """Return the labels of the volume."""
        return {
            VOLUME: self.cache,
            OWNER: str(self.owner),
            CREATED: created.isoformat(timespec="seconds"),
        }


def find_workspace(path: str | None, *, cwd: Path) -> Workspace:
    """Return the workspace on this host: the folder named, or the one we are in.

    Raises:
        WorkspaceError: It is no folder, may not be entered, or is the root of the file system and
            was not named.
    """
    explicit = path is not None
    folder = Path(path).expanduser() if path is not None else cwd
    try:
        folder = (cwd / folder).resolve(strict=True)
        os.scandir(folder).close()
    except OSError as exc:
        raise WorkspaceError(
            f"cannot use {folder} as the workspace",
            why=exc.strerror or str(exc),
            fix="--workspace FOLDER names another one",
        ) from exc
    if folder == folder.parent and not explicit:
        raise WorkspaceError(
            "this is the root of the file system, and the current folder becomes the workspace",
            why="the container could write to the whole host",
            fix="change to your project's folder, or --workspace FOLDER",
        )
    return Workspace(source=str(folder), explicit=explicit)


def workspace_warning(workspace: Workspace, *, home: Path) -> str:
    """Return what a user must hear about a workspace, or nothing.

    Whatever runs in the container can read the keys and tokens below a whole home folder.
    """
    source = Path(workspace.source)
    if source == home or source in home.parents:
        return (
            f"the workspace {workspace.source} holds your home folder with its keys and tokens, "
            "and everything in the container can read it; a project's folder is enough"
        )
    return ""


def parse_volume(text: str, *, cwd: Path | None, home: str | None = None) -> Mount:
    """Read ``--volume SOURCE:TARGET[:ro]``; a source with a slash or a dot is a folder.

    Args:
        text: As the user wrote it.
        cwd: What a relative folder counts from; ``None`` where it is one of another host.
        home: What a tilde stands for, the caller's home here by default.

    Raises:
        ConfigurationError: It has not that form.
    """
    body, read_only = text, False
    for suffix in (":ro", ":rw"):
        if body.endswith(suffix):
            body, read_only = body.removesuffix(suffix), suffix == ":ro"
    source, sign, target = body.rpartition(":")
    if not sign or not source or not PurePosixPath(target).is_absolute() or target == "/":
        raise ConfigurationError(
            f"--volume {text!r} is not a mount",
            why="it is SOURCE:TARGET or SOURCE:TARGET:ro, and TARGET is an absolute path",
            fix="--volume /data/imagenet:/data:ro",
        )
    if source.startswith(("/", ".", "~")):
        if home is not None and (source == "~" or source.startswith("~/")):
            source = home + source[1:]
        if cwd is None and not source.startswith("/"):
            raise ConfigurationError(
                f"--volume {text!r}: a folder of another host is given by its whole path",
                why=f"{source} would count from the folder we are in, which is on this one",
                fix=f"--volume /data/imagenet:{target}, or ~/… for your home there",
            )
        folder = (cwd or Path("/")) / Path(source).expanduser()
        return BindMount(source=os.path.normpath(folder), target=target, read_only=read_only)
    if not _VOLUME_NAME.fullmatch(source):
        raise ConfigurationError(
            f"--volume {text!r}: {source!r} is neither a folder nor the name of a volume",
            why="a folder is given by a path that begins with /, . or ~",
            fix=f"--volume ./{source}:{target}",
        )
    return VolumeMount(name=source, target=target, read_only=read_only)
