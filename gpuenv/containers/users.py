"""Who a container runs as, so that what it writes into the workspace is the caller's.

One way fits all engines: a numeric user, a home that group 0 may write, and a passwd line put in
before the start. No root entry point, no ``chown``, no copy of the image, no rebuild.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from gpuenv.containers.values import is_number
from gpuenv.errors import ConfigurationError
from gpuenv.values import dataclass

if TYPE_CHECKING:
    from gpuenv.containers.facts import Caller, FolderOwner
    from gpuenv.engine.capabilities import EngineCapabilities

USER = "dev"
HOME = "/home/dev"
_SHELL_FIELD = 6

UserWish: TypeAlias = "Literal['caller', 'image', 'keep-id'] | tuple[int, int]"
_USER_WORDS: tuple[Literal["caller", "image", "keep-id"], ...] = ("caller", "image", "keep-id")
_MAX_ID = 2**32 - 2


@dataclass(frozen=True, slots=True, kw_only=True)
class UserPlan:
    """Who the container runs as.

    Attributes:
        user: ``UID:GID`` for the engine, ``None`` for the image's own.
        group_add: Group ids beside it.
        uid: ``None`` for the image's own user, of whom nothing is known before.
        mapped: A passwd line and a home are put in.
        env: Variables that follow from the choice.
        keep_id: Rootless Podman's mapping is asked for.
        reason: Why so, for ``--dry-run`` and ``-v``.
        warning: What the user must hear, or empty.
    """

    user: str | None
    group_add: tuple[str, ...] = ()
    uid: int | None = None
    gid: int | None = None
    mapped: bool = True
    keep_id: bool = False
    env: tuple[tuple[str, str], ...] = ()
    reason: str = ""
    warning: str = ""


def parse_user(text: str) -> UserWish:
    """Read ``--user``: ``caller``, ``image``, ``keep-id`` or ``UID[:GID]``.

    Raises:
        ConfigurationError: It is none of them.
    """
    for word in _USER_WORDS:
        if text == word:
            return word
    uid, _, gid = text.partition(":")
    if is_number(uid) and (is_number(gid) or not gid) and text[-1] != ":":
        numbers = (int(uid), int(gid or uid))
        if max(numbers) <= _MAX_ID:
            return numbers
    raise ConfigurationError(
        f"--user {text!r} is not a user",
        why="it is neither caller, image, keep-id nor numbers as in 1000:1000",
        fix="leave it out: the container then runs as you",
    )


def plan_user(
    wish: UserWish,
    caller: Caller,
    caps: EngineCapabilities,
    workspace: FolderOwner | None,
) -> UserPlan:
    """Decide who the container runs as.

    ==========================  ===========================================  =====================
    engine                      runs as                                      on the host
    ==========================  ===========================================  =====================
    rootful                     the caller's uid and gid, and group 0        the caller
    rootful, called by root     whom ``sudo`` names, else the workspace's    that user
                                owner, without any capability
    rootless                    0:0                                          the caller
    ==========================  ===========================================  =====================

    Args:
        workspace: Whose the mounted folder is, ``None`` for no folder or an unknown one.
    """
    if wish == "image":
        return UserPlan(user=None, mapped=False, reason="the image's own user, as asked")
    if isinstance(wish, tuple):
        return _mapped(*wish, (), "as asked with --user")
    if wish == "keep-id":
        plan = _mapped(caller.uid, caller.gid, (), "mapped by the engine (keep-id)")
        return UserPlan(
            user=plan.user,
            uid=plan.uid,
            gid=plan.gid,
            group_add=plan.group_add,
            keep_id=True,
            env=plan.env,
            reason=plan.reason,
            warning="keep-id copies the whole image once for this mapping"
            if caps.remap_copies_image
            else "",
        )
    if "root-is-caller" in caps.users:
        return _mapped(
            0, 0, (), "the engine is rootless: its uid 0 is you, with no right beyond yours"
        )
    warning = (
        ""
        if "caller-uid" in caps.users
        else "the engine maps user ids (userns-remap): what is made in the workspace is not yours"
    )
    if caller.uid != 0:
        plan = _mapped(caller.uid, caller.gid, caller.groups, "you")
    elif caller.sudo_uid is not None:
        gid = caller.sudo_uid if caller.sudo_gid is None else caller.sudo_gid
        plan = _mapped(caller.sudo_uid, gid, (), "the user behind sudo")
    elif workspace is not None and workspace.uid != 0:
        plan = _mapped(
            workspace.uid, workspace.gid, (), "you are root, so the owner of the workspace"
        )
    else:
        plan = _mapped(
            0, 0, (), "you are root and so is the workspace; every capability is dropped"
        )
    return UserPlan(
        user=plan.user,
        uid=plan.uid,
        gid=plan.gid,
        group_add=plan.group_add,
        env=plan.env,
        reason=plan.reason,
        warning=warning,
    )


def _mapped(uid: int, gid: int, groups: tuple[int, ...], reason: str) -> UserPlan:
    others = sorted({0, *groups} - {gid})
    env: list[tuple[str, str]] = [("HOME", HOME), ("USER", USER), ("LOGNAME", USER)]
    if uid == 0:
        # Programs that refuse or scold root: here it has no capability at all.
        env += [
            ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
            ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
            ("PIP_ROOT_USER_ACTION", "ignore"),
        ]
    return UserPlan(
        user=f"{uid}:{gid}",
        uid=uid,
        gid=gid,
        group_add=tuple(str(group) for group in others),
        env=tuple(env),
        reason=f"uid {uid}, gid {gid}: {reason}",
    )


def edit_passwd(passwd: str, *, uid: int, gid: int) -> str:
    """Return ``/etc/passwd`` with a line for the mapped user first, whose shell is root's.

    First, because the first line of a uid is the one that ``getpwuid`` answers with: so uid 1000 of
    an image that has its own user there (``ubuntu``) is ``dev`` all the same. A line of the same
    name goes; every other stays.
    """
    kept = [line for line in passwd.splitlines() if line and line.split(":", 1)[0] != USER]
    root = next((line.split(":") for line in kept if line.startswith("root:")), [])
    shell = root[_SHELL_FIELD] if len(root) > _SHELL_FIELD else "/bin/sh"
    return "\n".join([f"{USER}:x:{uid}:{gid}::{HOME}:{shell}", *kept]) + "\n"


def edit_group(group: str, *, gids: tuple[int, ...]) -> str:
    """Return ``/etc/group`` with a line for each group id that has none, so each has a name."""
    kept = [line for line in group.splitlines() if line]
    fields = [line.split(":") for line in kept]
    names = {field[0] for field in fields}
    known = {field[2] for field in fields if len(field) > 2}  # noqa: PLR2004 - name:x:GID:members
    for gid in gids:
        if str(gid) not in known:
            name = USER if USER not in names else f"host{gid}"
            names.add(name)
            kept.append(f"{name}:x:{gid}:")
    return "\n".join(kept) + "\n"
