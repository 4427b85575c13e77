"""The machine around the GPU: users, disks, limits, memory, processes, clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuenv.checks.model import Check, Level
from gpuenv.checks.say import (
    Results,
    Say,
    fix,
    group,
    in_mib,
    integer,
    number,
    probe,
    seen,
    text,
    words,
)
from gpuenv.checks.scene import in_container, version_key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuenv.checks.model import Facts

_DISK_WARN = 10 << 30
_DISK_FAIL = 2 << 30
_FILES_FLOOR = 1024
_PIDS_FLOOR = 1024
_PIDS_LEFT = 256
_USED_UP = 0.9
_OVERSUBSCRIBED = 2.0
# torch asks the passwd file for a name up to 2.12; newer ones do not mind.
_NAMELESS_WORKS = (2, 13)
# A clock before this is wrong: seconds since 1970 of the release of this list, 2026-01-01.
_EARLIEST_S = 1_767_225_600


def check_user(facts: Facts) -> Results:
    """Ask whether the user has a name and a home it may write to."""
    say = Say("ctr.uid")
    user = probe(facts, "host.user")
    uid, home = user.get("uid"), group(user, "home")
    env = group(probe(facts, "host.env"), "variables")
    nameless = not user.get("name")
    torch = version_key(text(probe(facts, "torch.static"), "version").partition("+")[0])
    helped = bool(words(user, "user_variables")) or "TORCHINDUCTOR_CACHE_DIR" in env
    evidence = [
        seen("uid", uid),
        seen("passwd entry", user.get("name") or "none"),
        seen("HOME", f"{home.get('path')}, {'writable' if home.get('writable') else 'read-only'}"),
    ]
    fixes = [
        fix("container", "tell programs a name", "docker run -e USER=dev -e HOME=/tmp/home ..."),
        fix("image", "or let the image know the user at start (gpuenv run does)"),
    ]
    if nameless and not helped and torch and torch < _NAMELESS_WORKS:
        compile_asked = "compile" in words(facts.asked, "require")
        return (say.fail if compile_asked else say.warn)(
            f"uid {uid} has no name: torch.compile fails with getpwuid(): uid not found",
            why="the container runs with a uid that its passwd file does not know",
            evidence=evidence,
            fixes=fixes,
        )
    if nameless and not helped:
        return say.warn(
            f"uid {uid} has no name: programs that ask for it fail (getpwuid(): uid not found)",
            why="the container runs with a uid that its passwd file does not know",
            evidence=evidence,
            fixes=fixes,
            confidence="likely",
        )
    if not home.get("writable"):
        return say.warn(
            f"the home folder {home.get('path') or '(none)'} cannot be written to",
            why="caches of Triton, Hugging Face and torch go there unless told otherwise",
            evidence=evidence,
            fixes=[fix("container", "point it elsewhere", "docker run -e HOME=/tmp/home ...")],
        )
    return say.ok(f"uid {uid}" + (f" is {user.get('name')}" if user.get("name") else ""))


def check_disk(facts: Facts) -> Results:
    """Look at the free space and inodes where images, caches and temporary files go."""
    say = Say("sys.disk")
    places = group(probe(facts, "host.storage"), "places")
    tight: dict[str, tuple[str, Mapping[str, object], int]] = {}
    for name in places:
        place = group(places, name)
        free, mount = integer(place, "free"), text(place, "mount") or name
        if name == "shm" or free is None:
            continue
        no_inodes = integer(place, "inodes") and not integer(place, "inodes_free")
        if (free < _DISK_WARN or no_inodes) and text(place, "type") not in ("tmpfs", "ramfs"):
            tight.setdefault(mount, (name, place, 0 if no_inodes else free))
    if not tight:
        return say.ok("room enough where images and caches go")
    results: list[Results] = []
    for mount, (name, place, free) in tight.items():
        one = say.of(mount)
        inodes = integer(place, "inodes") and not integer(place, "inodes_free")
        what = "no inode left" if inodes else f"{in_mib(free)} free"
        evidence = [seen(f"statvfs {text(place, 'at')}", what), seen("used for", name)]
        fixes = [fix("host", "make room", "docker system df; du -xsh /var/lib/docker ~/.cache")]
        # A small partition for temporary files is a choice; full caches and stores are not.
        if free < _DISK_FAIL and name not in ("tmp", "inductor"):
            results.append(
                one.fail(
                    f"{what}: builds, caches and checkpoints fail there",
                    evidence=evidence,
                    fixes=fixes,
                )
            )
        else:
            results.append(
                one.warn(f"{what}: little for a CUDA image", evidence=evidence, fixes=fixes)
            )
    return tuple(result for found in results for result in found)


def check_inotify(facts: Facts) -> Results:
    """Ask whether this user may still watch files, which editors and Jupyter do."""
    say = Say("sys.inotify")
    inotify = group(probe(facts, "host.limits"), "inotify")
    watches, instances = (
        integer(inotify, "max_user_watches"),
        integer(inotify, "max_user_instances"),
    )
    errno = inotify.get("errno")
    evidence = [
        seen("max_user_watches", watches),
        seen("max_user_instances", instances),
        *([seen("inotify_init", errno)] if errno else []),
    ]
    if errno == "EMFILE":
        return say.fail(
            f"all {instances} inotify instances of this user are in use",
            why="the limit is the host's and is shared by all its containers; editors say: System "
            "limit for number of file watchers reached",
            evidence=evidence,
            fixes=[
                fix(
                    "host",
                    "raise it there, not in the container",
                    "sysctl fs.inotify.max_user_instances=512 fs.inotify.max_user_watches=524288",
                )
            ],
        )
    if watches is None:
        return say.skip("not-applicable", "the kernel does not tell")
    return say.ok(f"{watches} watches, {instances} instances")


def check_files(facts: Facts) -> Results:
    """Ask whether enough files may be open for DataLoader workers."""
    say = Say("sys.fd")
    limits = group(probe(facts, "host.limits"), "rlimits").get("nofile")
    if not isinstance(limits, (list, tuple)) or not limits:
        return say.skip("not-applicable", "the limit could not be read")
    soft = limits[0]
    if isinstance(soft, int) and 0 <= soft < _FILES_FLOOR:
        return say.warn(
            f"{soft} files may be open: few for DataLoader workers",
            why="each tensor handed over holds a file; torch says: received 0 items of ancdata",
            evidence=[seen("RLIMIT_NOFILE", soft)],
            fixes=[fix("container", "raise it", "docker run --ulimit nofile=65536 ...")],
        )
    return say.ok("unlimited" if soft == -1 else str(soft))


def check_cpu(facts: Facts) -> Results:
    """Compare the processors a cgroup grants with those that programs count."""
    say = Say("sys.cpu")
    limits = probe(facts, "host.limits")
    quota = number(group(limits, "cgroup"), "cpu_quota")
    counted = integer(limits, "cpus_allowed") or integer(limits, "cpus")
    env = group(probe(facts, "host.env"), "variables")
    if not counted:
        return say.skip("not-applicable", "the number of processors is not known")
    if quota and counted >= _OVERSUBSCRIBED * quota and "OMP_NUM_THREADS" not in env:
        wanted = max(1, round(quota))
        return say.warn(
            f"the cgroup grants {quota:g} CPUs, programs count {counted}",
            why="OpenMP and DataLoader start a thread for each they count and then wait for one "
            "another",
            evidence=[seen("cpu.max", f"{quota:g} CPUs"), seen("sched_getaffinity", counted)],
            fixes=[
                fix("container", "tell them", f"docker run -e OMP_NUM_THREADS={wanted} ..."),
                fix(
                    "container",
                    "or bind it to processors",
                    f"docker run --cpuset-cpus 0-{wanted - 1} ...",
                ),
            ],
        )
    return say.ok(f"{counted}" + (f", {quota:g} granted" if quota else ""))


def check_memory(facts: Facts) -> Results:
    """Look for memory kills in this cgroup, and for a limit that is nearly reached."""
    say = Say("sys.mem")
    cgroup = group(probe(facts, "host.limits"), "cgroup")
    kills, limit = integer(cgroup, "oom_kills") or 0, integer(cgroup, "memory_max")
    used = integer(cgroup, "memory_current")
    if kills and in_container(facts):
        return say.warn(
            f"{kills} processes of this container were ended for want of memory",
            why="a DataLoader worker that vanished, exit code 137: its memory limit was reached",
            evidence=[
                seen("memory.events oom_kill", kills),
                seen("memory.max", in_mib(limit) if limit else "unlimited"),
            ],
            fixes=[fix("container", "give it more", "docker run --memory 64g ...")],
        )
    if limit and used and used > _USED_UP * limit and in_container(facts):
        return say.info(f"{in_mib(used)} of {in_mib(limit)} in use, the page cache included")
    return say.ok(f"limit {in_mib(limit)}" if limit else "no limit")


def check_processes(facts: Facts) -> Results:
    """Ask whether enough processes and threads may run."""
    say = Say("sys.pid")
    cgroup = group(probe(facts, "host.limits"), "cgroup")
    limit, used = integer(cgroup, "pids_max"), integer(cgroup, "pids_current") or 0
    if limit is None:
        return say.ok("no limit")
    if limit < _PIDS_FLOOR or limit - used < _PIDS_LEFT:
        return say.warn(
            f"{limit} processes and threads are allowed, {used} run",
            why="each rank, DataLoader worker and OpenMP thread counts; then: can't start new "
            "thread",
            evidence=[seen("pids.max", limit), seen("pids.current", used)],
            fixes=[fix("container", "raise it", "docker run --pids-limit=-1 ...")],
        )
    return say.ok(f"{used} of {limit}")


def check_clock(facts: Facts) -> Results:
    """Ask whether the clock can be right."""
    say = Say("sys.clock")
    machine = probe(facts, "host.machine")
    now = number(machine, "time_s")
    if now is None:
        return say.skip("not-applicable", "the time was not told")
    if now < _EARLIEST_S:
        return say.fail(
            "the clock is years behind",
            why="certificates are not yet valid then: TLS, apt and pip fail",
            evidence=[seen("time", f"{now:.0f} s since 1970")],
            fixes=[fix("host", "set it", "timedatectl set-ntp true")],
        )
    if machine.get("clock_synchronised") is False and not in_container(facts):
        return say.info("nothing disciplines the clock (no NTP)")
    return say.ok("plausible")


CHECKS = (
    Check(
        id="ctr.uid",
        title="User has a name and a home",
        level=Level.STATIC,
        run=check_user,
        needs=("host.user",),
        uses=("torch.static", "host.env"),
        explanation="""\
A container started with --user 4321 runs as a uid that its passwd file may not know. Python's
getpass.getuser and, up to torch 2.12, torch.compile then fail with "getpwuid(): uid not found".
A variable USER or LOGNAME, TORCHINDUCTOR_CACHE_DIR, or a passwd entry placed at start cures it.""",
    ),
    Check(
        id="sys.disk",
        title="Free disk space",
        level=Level.STATIC,
        run=check_disk,
        needs=("host.storage",),
        explanation="""\
Looks at the image store, caches, temporary files, home and the working folder; memory file
systems do not count. Below 10 GiB a warning, below 2 GiB a failure, and no free inodes
likewise.""",
    ),
    Check(
        id="sys.inotify",
        title="File watches",
        level=Level.STATIC,
        run=check_inotify,
        needs=("host.limits",),
        explanation="""\
inotify instances and watches are counted per user of the host, over all containers. Low numbers
alone are no fault; this fails only when an instance cannot be made any more.""",
    ),
    Check(
        id="sys.fd",
        title="Open files",
        level=Level.STATIC,
        run=check_files,
        needs=("host.limits",),
        explanation="""\
torch hands tensors between processes by file descriptors. Too few end with "received 0 items of
ancdata" or "Too many open files".""",
    ),
    Check(
        id="sys.cpu",
        title="Processors",
        level=Level.STATIC,
        run=check_cpu,
        needs=("host.limits",),
        uses=("host.env",),
        explanation="""\
A CPU quota limits time, not the number of processors a program counts. With 4 CPUs of quota on
a machine of 128, OpenMP starts 128 threads.""",
    ),
    Check(
        id="sys.mem",
        title="Memory limit",
        level=Level.STATIC,
        run=check_memory,
        needs=("host.limits",),
        uses=("host.machine",),
        explanation="""\
memory.events counts the processes of this cgroup that the kernel ended for want of memory: the
reason behind "DataLoader worker (pid ...) is killed by signal: Killed".""",
    ),
    Check(
        id="sys.pid",
        title="Process limit",
        level=Level.STATIC,
        run=check_processes,
        needs=("host.limits",),
        explanation="Ranks, DataLoader workers and all their threads count against pids.max.",
    ),
    Check(
        id="sys.clock",
        title="Clock",
        level=Level.STATIC,
        run=check_clock,
        needs=("host.machine",),
        uses=(),
        explanation="A clock far behind makes certificates invalid: TLS, apt and pip fail.",
    ),
)
