"""The device nodes, each opened for real: the errno tells whose gate is shut.

EPERM: the device cgroup denies it. EACCES: mode, ownership, groups or SELinux. ENOENT: it was not
put into this place. ENXIO, ENODEV: there is no driver behind it.
"""

from __future__ import annotations

import os
import re
import stat

from ._common import Context, errno_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_WANTED = re.compile(r"nvidia[0-9]+|nvidiactl|nvidia-(uvm|uvm-tools|modeset|nvswitch.*|vgpu.*)|dxg")
_ALWAYS = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
_FOLDERS = ("/dev/nvidia-caps", "/dev/nvidia-caps-imex-channels", "/dev/infiniband")
_MAJOR = re.compile(r"^\s*([0-9]+) (nvidia\S*|infiniband\S*|nvswitch\S*)$", re.MULTILINE)


def probe(context: Context) -> dict[str, Any]:
    """Return what happens when each node is opened.

    Keys: ``nodes`` {path: {errno (``None`` when it opened), mode, uid, gid, major, minor}},
    ``majors`` {name: number} as the kernel registered them, ``char_links`` (the ``195:*`` names in
    /dev/char), ``selinux`` (enforcing), ``readable_majors``.
    """
    paths = ["/dev/" + name for name in context.names("/dev") if _WANTED.fullmatch(name)]
    for folder in _FOLDERS:
        paths += [folder + "/" + name for name in context.names(folder)][:64]
    nodes = {path: _open(context, path) for path in paths}
    for path in _ALWAYS:
        nodes.setdefault(path, {"errno": "ENOENT"})
    devices = context.read("/proc/devices")
    return {
        "nodes": nodes,
        "majors": {match[2]: int(match[1]) for match in _MAJOR.finditer(devices or "")},
        "readable_majors": devices is not None,
        "char_links": [name for name in context.names("/dev/char") if name.startswith("195:")],
        "selinux": context.word("/sys/fs/selinux/enforce") == "1",
    }


def _open(context: Context, path: str) -> dict[str, Any]:
    if not context.is_real:
        return _picture(context, path)
    place = context.path(path)
    try:
        status = os.stat(place)
    except OSError as error:
        return {"errno": errno_name(error)}
    entry = {
        "errno": None,
        "mode": "{:04o}".format(stat.S_IMODE(status.st_mode)),
        "uid": status.st_uid,
        "gid": status.st_gid,
        "major": os.major(status.st_rdev),
        "minor": os.minor(status.st_rdev),
        "char": stat.S_ISCHR(status.st_mode),
    }  # type: dict[str, Any]
    flags = os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC
    if "caps" in path:
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        os.close(os.open(place, flags))
    except OSError as error:
        entry["errno"] = errno_name(error)
    return entry


def _picture(context: Context, path: str) -> dict[str, Any]:
    """Read a node of a pictured machine, a file that says ``c 195 0 0666 EPERM``."""
    words = (context.word(path) or "").split()
    if len(words) < 4 or words[0] != "c":
        return {"errno": None, "char": False}
    return {
        "errno": words[4] if len(words) > 4 else None,
        "mode": words[3],
        "uid": 0,
        "gid": 0,
        "major": int(words[1]),
        "minor": int(words[2]),
        "char": True,
    }


PROBES = {"host.nodes": probe}
