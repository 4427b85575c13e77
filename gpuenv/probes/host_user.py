"""Who runs here, and whether that user has a name, a home and its groups."""

from __future__ import annotations

import os

from ._common import Context, errno_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def probe(context: Context) -> dict[str, Any]:
    """Return uid, gid, groups, name and home.

    Keys: ``uid``, ``gid``, ``groups`` (numbers), ``name`` (``None`` when passwd has no entry),
    ``user_variables`` (the names among USER, LOGNAME and so on that are set), ``home`` ``{"path",
    "exists", "writable"}``, ``uid_map`` and ``rootless`` (root here is not root on the host).
    """
    uid = os.getuid()
    name = None
    passwd_home = None
    for line in (context.read("/etc/passwd") or "").splitlines():
        fields = line.split(":")
        if len(fields) > 5 and fields[2] == str(uid):
            name, passwd_home = fields[0], fields[5]
            break
    if name is None and context.is_real:
        # Not in the file: LDAP, sssd or nss_wrapper may still know.
        try:
            import pwd

            entry = pwd.getpwuid(uid)
            name, passwd_home = entry.pw_name, entry.pw_dir
        except (ImportError, KeyError):
            pass
    home = os.environ.get("HOME") or passwd_home
    return {
        "uid": uid,
        "gid": os.getgid(),
        "groups": sorted(os.getgroups()),
        "name": name,
        "user_variables": sorted(
            key for key in ("LNAME", "LOGNAME", "USER", "USERNAME") if os.environ.get(key)
        ),
        "home": {"path": home, "set": "HOME" in os.environ, **_folder(context, home)},
        "uid_map": _uid_map(context),
        "rootless": _rootless(_uid_map(context)),
    }


def _folder(context: Context, path: str | None) -> dict[str, Any]:
    if not path:
        return {"exists": False, "writable": False}
    place = context.path(path)
    try:
        os.stat(place)
    except OSError as error:
        return {"exists": False, "writable": False, "errno": errno_name(error)}
    return {"exists": True, "writable": os.access(place, os.W_OK | os.X_OK)}


def _uid_map(context: Context) -> list[list[int]]:
    rows = []
    for line in (context.read("/proc/self/uid_map") or "").splitlines():
        words = line.split()
        if len(words) == 3 and all(word.isdigit() for word in words):
            rows.append([int(word) for word in words])
    return rows


def _rootless(rows: list[list[int]]) -> bool | None:
    """Say whether uid 0 of this place is an ordinary uid outside."""
    if not rows:
        return None
    return not any(row[0] == 0 and row[1] == 0 for row in rows)


PROBES = {"host.user": probe}
