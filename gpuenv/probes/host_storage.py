"""The places where files are made: how full, and may a file be written, renamed, executed there.

In each of them that exists one small file is made and removed again; nothing else is touched.
"""

from __future__ import annotations

import errno
import mmap
import os

from ._common import Context, errno_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def probe(context: Context) -> dict[str, Any]:
    """Return the places.

    Keys: ``places`` {name: {path, at, variable, type, options, free, total, inodes_free, inodes,
    write, exec, rename}}: ``at`` is the nearest folder that exists; ``write``, ``exec`` and
    ``rename`` are ``None`` when it works, else the errno (``exec`` EPERM: mounted noexec).
    """
    mounts = _mounts(context)
    places = {}
    for name, path, variable in _wanted(context):
        if path:
            places[name] = _place(
                context, path, variable, mounts, test=not name.startswith("store")
            )
    return {"places": places}


def _wanted(context: Context) -> list[tuple[str, str | None, str | None]]:
    """Name the places: temporary files, caches, home, the working folder, the engine's store."""
    env = os.environ if context.is_real else context.options.get("env", {})
    home = env.get("HOME")
    cache = env.get("XDG_CACHE_HOME") or (home + "/.cache" if home else None)
    tmp = env.get("TMPDIR") or "/tmp"
    return [
        ("tmp", tmp, "TMPDIR"),
        ("shm", "/dev/shm", None),
        ("home", home, "HOME"),
        ("cache", cache, "XDG_CACHE_HOME"),
        ("inductor", env.get("TORCHINDUCTOR_CACHE_DIR") or tmp, "TORCHINDUCTOR_CACHE_DIR"),
        (
            "triton",
            env.get("TRITON_CACHE_DIR")
            or (env["TRITON_HOME"] + "/.triton" if env.get("TRITON_HOME") else None)
            or (home + "/.triton" if home else None),
            "TRITON_CACHE_DIR",
        ),
        ("work", os.getcwd() if context.is_real else None, None),
        ("store.docker", "/var/lib/docker" if context.exists("/var/lib/docker") else None, None),
        (
            "store.containerd",
            "/var/lib/containerd" if context.exists("/var/lib/containerd") else None,
            None,
        ),
    ]


def _mounts(context: Context) -> list[tuple[str, str, list[str]]]:
    """Read ``tmpfs /dev/shm tmpfs rw,nosuid,noexec 0 0``; blanks in paths are octal 040."""
    found = []
    for line in (context.read("/proc/mounts") or "").splitlines():
        words = line.split(" ")
        if len(words) > 3:
            found.append((words[1].replace("\\040", " "), words[2], words[3].split(",")))
    return found


def _place(
    context: Context,
    path: str,
    variable: str | None,
    mounts: list[tuple[str, str, list[str]]],
    *,
    test: bool,
) -> dict[str, Any]:
    at = path
    while at not in ("/", "") and not os.path.isdir(context.path(at)):
        at = os.path.dirname(at)
    at = at or "/"
    real = os.path.realpath(context.path(at)) if context.root == "/" else at
    mount = ("/", "", [])  # type: tuple[str, str, list[str]]
    for entry in mounts:
        inside = real == entry[0] or real.startswith(entry[0].rstrip("/") + "/")
        if inside and len(entry[0]) >= len(mount[0]):
            mount = entry
    place = {
        "path": path,
        "at": at,
        "variable": variable,
        "mount": mount[0],
        "type": mount[1],
        "options": [option for option in mount[2] if option in ("ro", "rw", "noexec", "nosuid")],
    }
    try:
        status = os.statvfs(context.path(at))
    except OSError as error:
        place["errno"] = errno_name(error)
        return place
    place["free"] = status.f_bavail * status.f_frsize
    place["total"] = status.f_blocks * status.f_frsize
    place["inodes"] = status.f_files
    place["inodes_free"] = status.f_favail
    if test:
        if context.is_real:
            place.update(_try(at))
        else:
            place.update(
                write="EROFS" if "ro" in place["options"] else None,
                exec="EPERM" if "noexec" in place["options"] else None,
                rename=None,
            )
    return place


def _try(folder: str) -> dict[str, str | None]:
    """Make a file, rename it over another name, map it executable, remove it."""
    path = os.path.join(folder, ".gpuenv-probe-{}-{}".format(os.getpid(), id(folder)))
    renamed = path + "-renamed"
    answer = {"write": None, "exec": None, "rename": None}  # type: dict[str, str | None]
    fd = -1
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o700)
        os.write(fd, b"\0" * mmap.PAGESIZE)
    except OSError as error:
        answer["write"] = errno_name(error)
    if fd >= 0 and answer["write"] is None:
        try:
            mmap.mmap(fd, mmap.PAGESIZE, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC).close()
        except OSError as error:
            answer["exec"] = errno_name(error)
        except ValueError:
            answer["exec"] = errno.errorcode[errno.EINVAL]
        try:
            os.replace(path, renamed)
            path = renamed
        except OSError as error:
            answer["rename"] = errno_name(error)
    if fd >= 0:
        os.close(fd)
        try:
            os.unlink(path)
        except OSError:
            pass
    return answer


PROBES = {"host.storage": probe}
