"""What the kernel said about GPUs: Xids, rejected modules, failed adapters, memory kills."""

from __future__ import annotations

import os
import re

from ._common import Context, errno_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterator

_KINDS = (
    ("key-rejected", re.compile(r"Key was rejected by service|module verification failed.*nvidia")),
    ("hmm", re.compile(r"request_free_mem_region.*-34|nvidia.*HMM.*-34")),
    ("api-mismatch", re.compile(r"NVRM: API mismatch")),
    ("bar-invalid", re.compile(r"NVRM: This PCI I/O region assigned to your NVIDIA device is inv")),
    (
        "needs-open",
        re.compile(
            r"NVRM: .*requires use of the NVIDIA open kernel modules|"
            r"NVRM: installed in this system requires use of the"
        ),
    ),
    ("unsupported-gpu", re.compile(r"NVRM: .*(not supported by|is not supported)")),
    ("rm-init", re.compile(r"NVRM: .*RmInitAdapter failed|NVRM: .*rm_init_adapter failed")),
    ("off-the-bus", re.compile(r"NVRM: .*fallen off the bus")),
    ("nouveau", re.compile(r"NVRM: .*(nouveau|already bound|conflicting)")),
    ("aer", re.compile(r"(AER|PCIe Bus Error): .*(10de|nvidia)", re.IGNORECASE)),
    (
        "oom-kill",
        re.compile(r"Out of memory: Killed process|oom-kill:|Memory cgroup out of memory"),
    ),
    ("uvm", re.compile(r"nvidia-uvm: .*(fail|error)", re.IGNORECASE)),
    ("segfault", re.compile(r"segfault at .*(libcuda|libnvidia|libtorch|libnccl)")),
)
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): ([0-9]+)(.*)")
_LIMIT = 200


def probe(context: Context) -> dict[str, Any]:
    """Return what the kernel's log holds about GPUs.

    Keys: ``readable``, ``source``, ``errno`` (why not), ``events`` [{kind, text, at_s}] and
    ``xids`` [{code, bdf, text, at_s}], the newest 200 of each; ``at_s`` counts from the boot, and
    ``uptime_s`` is now.
    """
    source, records, error = _records(context)
    if source is None:
        return {"readable": False, "source": None, "errno": error, "events": [], "xids": []}
    events, xids = [], []
    for at_s, text in records:
        match = _XID.search(text)
        if match:
            xids.append(
                {
                    "code": int(match[2]),
                    "bdf": match[1],
                    "text": match[3].lstrip(", ")[:200],
                    "at_s": at_s,
                }
            )
            continue
        for kind, pattern in _KINDS:
            if pattern.search(text):
                events.append({"kind": kind, "text": text[:300], "at_s": at_s})
                break
    uptime = (context.word("/proc/uptime") or "").split(" ")[0]
    return {
        "readable": True,
        "source": source,
        "events": events[-_LIMIT:],
        "xids": xids[-_LIMIT:],
        "uptime_s": float(uptime) if uptime.replace(".", "", 1).isdigit() else None,
    }


def _records(context: Context) -> tuple[str | None, list[tuple[float | None, str]], str]:
    error = "ENOENT"
    try:
        return "/dev/kmsg", list(_kmsg(context.path("/dev/kmsg"))), ""
    except OSError as problem:
        error = errno_name(problem)
    for path in ("/var/log/kern.log", "/var/log/dmesg", "/var/log/messages"):
        try:
            with open(context.path(path), "rb") as stream:
                stream.seek(max(0, os.fstat(stream.fileno()).st_size - (1 << 20)))
                lines = stream.read().decode("utf-8", "replace").splitlines()
        except OSError:
            continue
        return path, [(_stamp(line), line) for line in lines], ""
    return None, [], error


def _kmsg(path: str) -> Iterator[tuple[float | None, str]]:
    """Read records ``6,1234,98765432,-;text`` until there is none left; the time is in us."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        rest = b""
        while True:
            try:
                piece = os.read(fd, 8192)
            except BlockingIOError:
                break
            except BrokenPipeError:  # overwritten while we read: go on with the next record
                continue
            if not piece:
                break
            rest += piece
            *lines, rest = rest.split(b"\n")
            for line in lines:
                head, _, text = line.decode("utf-8", "replace").partition(";")
                fields = head.split(",")
                if len(fields) > 2 and fields[2].isdigit():
                    yield int(fields[2]) / 1e6, text
    finally:
        os.close(fd)


def _stamp(line: str) -> float | None:
    """Read the seconds since boot of ``... kernel: [ 1234.567890] text``."""
    match = re.search(r"\[\s*([0-9]+\.[0-9]+)\]", line)
    return float(match[1]) if match else None


PROBES = {"host.kernel-log": probe}
