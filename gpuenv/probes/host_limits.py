"""The limits this place runs under: rlimits, cgroup, shared memory, inotify."""

from __future__ import annotations

import os
import resource

from ._common import Context

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_RLIMITS = ("NOFILE", "MEMLOCK", "STACK", "NPROC", "AS", "CORE")
_CGROUP = "/sys/fs/cgroup"
_V1_UNLIMITED = 1 << 60


def probe(context: Context) -> dict[str, Any]:
    """Return the limits; bytes and counts, ``None`` for unlimited or unknown.

    Keys: ``rlimits`` {nofile: [soft, hard]} with -1 for unlimited, ``cgroup`` {version,
    cpu_quota (cores), memory_max, memory_current, swap_max, pids_max, pids_current, oom_kills},
    ``cpus_allowed``, ``cpus``, ``shm`` {size, free, used, options} of /dev/shm or ``None``, ``ipc``
    (the inode of the IPC namespace), ``inotify`` {max_user_watches, max_user_instances, errno},
    ``threads_max``, ``overcommit``.
    """
    return {
        "rlimits": {
            name.lower(): _rlimit(name) for name in _RLIMITS if hasattr(resource, "RLIMIT_" + name)
        }
        if context.is_real
        else {},
        "cgroup": _cgroup(context),
        "cpus_allowed": len(os.sched_getaffinity(0)) if context.is_real else None,
        "cpus": os.cpu_count() if context.is_real else None,
        "shm": _shm(context),
        "inotify": {
            "max_user_watches": context.number("/proc/sys/fs/inotify/max_user_watches"),
            "max_user_instances": context.number("/proc/sys/fs/inotify/max_user_instances"),
            "errno": _inotify_errno() if context.is_real else None,
        },
        "threads_max": context.number("/proc/sys/kernel/threads-max"),
        "overcommit": context.number("/proc/sys/vm/overcommit_memory"),
        "file_max": context.number("/proc/sys/fs/file-max"),
    }


def _rlimit(name: str) -> list[int]:
    soft, hard = resource.getrlimit(getattr(resource, "RLIMIT_" + name))
    return [-1 if value == resource.RLIM_INFINITY else value for value in (soft, hard)]


def _shm(context: Context) -> dict[str, Any] | None:
    options = None
    for line in (context.read("/proc/mounts") or "").splitlines():
        words = line.split()
        if len(words) > 3 and words[1] == "/dev/shm":
            options = words[3].split(",")
    try:
        status = os.statvfs(context.path("/dev/shm"))
    except OSError:
        return None
    unit = status.f_frsize
    return {
        "size": status.f_blocks * unit,
        "free": status.f_bavail * unit,
        "used": (status.f_blocks - status.f_bfree) * unit,
        "options": options,
        "mounted": options is not None,
    }


def _cgroup(context: Context) -> dict[str, Any]:
    v1, v2 = {}, None
    for line in (context.read("/proc/self/cgroup") or "").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if not controllers:
            v2 = path
        for controller in controllers.split(","):
            v1[controller] = path
    if context.exists(_CGROUP + "/cgroup.controllers"):
        return _v2(context, _ancestors(v2 or "/"))
    return _v1(context, v1)


def _ancestors(path: str) -> list[str]:
    """Return the folder and those above it: every one of them limits."""
    parts = [part for part in path.split("/") if part and part != ".."]
    return ["/" + "/".join(parts[:number]) for number in range(len(parts), -1, -1)]


def _least(values: list[Any]) -> Any:
    known = [value for value in values if value is not None]
    return min(known) if known else None


def _v2(context: Context, folders: list[str]) -> dict[str, Any]:
    def read(folder: str, name: str) -> str | None:
        return context.word(_CGROUP + folder.rstrip("/") + "/" + name)

    def limit(folder: str, name: str) -> int | None:
        word = read(folder, name)
        return int(word) if word is not None and word.isdigit() else None

    quotas = []
    for folder in folders:
        words = (read(folder, "cpu.max") or "").split()
        if len(words) == 2 and words[0].isdigit():
            quotas.append(int(words[0]) / int(words[1]))
    kills = 0
    for line in (read(folders[0], "memory.events") or "").splitlines():
        words = line.split()
        if words[:1] == ["oom_kill"]:
            kills = int(words[1])
    return {
        "version": 2,
        "cpu_quota": _least(quotas),
        "memory_max": _least([limit(folder, "memory.max") for folder in folders]),
        "memory_current": limit(folders[0], "memory.current"),
        "swap_max": _least([limit(folder, "memory.swap.max") for folder in folders]),
        "pids_max": _least([limit(folder, "pids.max") for folder in folders]),
        "pids_current": limit(folders[0], "pids.current"),
        "oom_kills": kills,
    }


def _v1(context: Context, paths: dict[str, str]) -> dict[str, Any]:
    def limit(controller: str, name: str) -> int | None:
        """Read below the path the kernel names, else (it is the host's) at the mount's top."""
        path = next((paths[key] for key in paths if key == controller), "/")
        for folder in (path.rstrip("/"), ""):
            for mount in (controller, "cpu,cpuacct" if controller == "cpu" else controller):
                value = context.number(_CGROUP + "/" + mount + folder + "/" + name)
                if value is not None:
                    return value if value < _V1_UNLIMITED else None
        return None

    quota, period = limit("cpu", "cpu.cfs_quota_us"), limit("cpu", "cpu.cfs_period_us")
    kills = 0
    for folder in (paths.get("memory", "").rstrip("/"), ""):
        for line in (
            context.read(_CGROUP + "/memory" + folder + "/memory.oom_control") or ""
        ).splitlines():
            words = line.split()
            if words[:1] == ["oom_kill"]:
                kills = max(kills, int(words[1]))
    return {
        "version": 1 if context.names(_CGROUP) else None,
        "cpu_quota": quota / period if quota and quota > 0 and period else None,
        "memory_max": limit("memory", "memory.limit_in_bytes"),
        "memory_current": limit("memory", "memory.usage_in_bytes"),
        "swap_max": None,
        "pids_max": limit("pids", "pids.max"),
        "pids_current": limit("pids", "pids.current"),
        "oom_kills": kills,
    }


def _inotify_errno() -> str | None:
    """Open one inotify instance: EMFILE means that the user's instances are used up."""
    import errno

    try:
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        fd = libc.inotify_init1(os.O_CLOEXEC)
    except (ImportError, OSError, AttributeError):
        return None
    if fd < 0:
        return errno.errorcode.get(ctypes.get_errno(), "E?")
    os.close(fd)
    return None


PROBES = {"host.limits": probe}
