"""The passwd and group files of an image, with the mapped user in them.

An engine takes longer to copy two small files out of a container than to make it, and an image's
never change: so they are read once and kept by the image's id.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from gpuenv.containers.users import edit_group, edit_passwd
from gpuenv.engine.protocol import PutFile
from gpuenv.state import cache_dir, write_private_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from gpuenv.containers.plan import ContainerPlan
    from gpuenv.engine.protocol import ContainerEngine

_PASSWD, _GROUP = "/etc/passwd", "/etc/group"


def account_files(
    engine: ContainerEngine, container: str, plan: ContainerPlan, *, environ: Mapping[str, str]
) -> tuple[PutFile, ...]:
    """Return both files as a container that was made and not started is to have them.

    Args:
        environ: Where the cache is looked up.
    """
    user = plan.user
    if not user.mapped or user.uid is None or user.gid is None:
        return ()
    covered = any(mount.target.startswith("/etc") for mount in plan.spec.mounts)
    keeps = plan.image_id and not covered
    path = cache_dir(environ) / "accounts" / f"{plan.image_id.rpartition(':')[2]}.json"
    texts = _kept(path) if keeps else None
    if texts is None:
        texts = (_text(engine, container, _PASSWD), _text(engine, container, _GROUP))
        if keeps:
            _keep(path, texts)
    gids = (user.gid, *(int(group) for group in user.group_add))
    passwd = edit_passwd(texts[0], uid=user.uid, gid=user.gid)
    group = edit_group(texts[1], gids=gids)
    return (
        PutFile(path=_PASSWD, content=passwd.encode("utf-8", "surrogateescape")),
        PutFile(path=_GROUP, content=group.encode("utf-8", "surrogateescape")),
    )


def _text(engine: ContainerEngine, container: str, path: str) -> str:
    return (engine.read_file(container, path) or b"").decode("utf-8", "surrogateescape")


def _kept(path: Path) -> tuple[str, str] | None:
    """Return what was kept; anything else than that is read anew."""
    try:
        data = json.loads(path.read_bytes())
        passwd, group = data[_PASSWD], data[_GROUP]
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return (passwd, group) if isinstance(passwd, str) and isinstance(group, str) else None


def _keep(path: Path, texts: tuple[str, str]) -> None:
    """Keep both texts; a cache that cannot be written costs time and nothing else."""
    content = json.dumps({_PASSWD: texts[0], _GROUP: texts[1]}).encode()
    try:
        write_private_file(path, content)
    except OSError:
        return
