"""What kind of place this is: kernel, system, container, virtual machine, WSL, Kubernetes, CI."""

from __future__ import annotations

import os
import sys
import time

from ._common import Context

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_CI = {
    "GITHUB_ACTIONS": "github",
    "GITLAB_CI": "gitlab",
    "JENKINS_URL": "jenkins",
    "BUILDKITE": "buildkite",
    "CIRCLECI": "circleci",
    "TF_BUILD": "azure",
    "CI": "other",
}
_CONTAINER_MARKS = (
    ("kubepods", "kubernetes"),
    ("docker", "docker"),
    ("libpod", "podman"),
    ("containerd", "containerd"),
    ("lxc", "lxc"),
)


def probe(context: Context) -> dict[str, Any]:
    """Return the kind of place.

    Keys: ``hostname`` (so that it can be taken out of every text), ``kernel``, ``arch``, ``os``
    {id, version, pretty}, ``python`` {version, executable}, ``cpus``, ``memory_mib``,
    ``uptime_s``, ``init``, ``time_s``, ``ci``; ``None`` where it is not one: ``container``
    {kind}, ``wsl`` {dxg, libcuda}, ``k8s`` {validations, pod}, ``virtual`` {vendor, product};
    ``clock_synchronised`` (``None`` where the kernel would not say).
    """
    uname = os.uname()
    return {
        "hostname": (context.word("/proc/sys/kernel/hostname") or uname.nodename),
        "kernel": context.word("/proc/sys/kernel/osrelease") or uname.release,
        "arch": uname.machine,
        "os": _os_release(context.read("/etc/os-release") or ""),
        "python": {
            "version": "{}.{}.{}".format(*sys.version_info[:3]),
            "executable": sys.executable,
        },
        "cpus": os.cpu_count(),
        "memory_mib": _meminfo_mib(context, "MemTotal"),
        "uptime_s": _uptime_s(context),
        "container": _container(context),
        "wsl": _wsl(context),
        "k8s": _k8s(context),
        "ci": next((name for key, name in _CI.items() if os.environ.get(key)), None),
        "virtual": _virtual(context),
        "init": context.word("/proc/1/comm"),
        "time_s": int(time.time()),
        "clock_synchronised": _clock_synchronised() if context.is_real else None,
    }


def _os_release(text: str) -> dict[str, str]:
    fields = {}
    for line in text.splitlines():
        key, _, value = line.partition("=")
        fields[key.strip()] = value.strip().strip("\"'")
    return {
        "id": fields.get("ID", ""),
        "version": fields.get("VERSION_ID", ""),
        "pretty": fields.get("PRETTY_NAME", ""),
    }


def _meminfo_mib(context: Context, key: str) -> int | None:
    """Read ``MemTotal:       24689196 kB``."""
    for line in (context.read("/proc/meminfo") or "").splitlines():
        words = line.split()
        if words and words[0] == key + ":":
            return int(words[1]) >> 10
    return None


def _uptime_s(context: Context) -> float | None:
    word = (context.word("/proc/uptime") or "").split(" ")[0]
    try:
        return float(word)
    except ValueError:
        return None


def _container(context: Context) -> dict[str, str] | None:
    if context.exists("/.dockerenv"):
        return {"kind": "docker"}
    if context.exists("/run/.containerenv"):
        return {"kind": "podman"}
    if context.exists("/var/run/secrets/kubernetes.io") or (
        context.is_real and os.environ.get("KUBERNETES_SERVICE_HOST")
    ):
        return {"kind": "kubernetes"}
    texts = (context.read("/proc/1/cgroup") or "") + (context.read("/proc/self/cgroup") or "")
    for mark, kind in _CONTAINER_MARKS:
        if mark in texts:
            return {"kind": kind}
    if context.is_real and os.environ.get("container"):
        return {"kind": os.environ["container"]}
    root = next(
        (
            line
            for line in (context.read("/proc/self/mountinfo") or "").splitlines()
            if line.split(" ")[4:5] == ["/"]
        ),
        "",
    )
    if " - overlay " in root and ("/docker/" in root or "/containers/storage/" in root):
        return {"kind": "docker" if "/docker/" in root else "podman"}
    return None


def _wsl(context: Context) -> dict[str, bool] | None:
    if "microsoft" not in (context.read("/proc/version") or "").lower():
        return None
    return {
        "dxg": context.exists("/dev/dxg"),
        "libcuda": context.exists("/usr/lib/wsl/lib/libcuda.so.1"),
    }


def _k8s(context: Context) -> dict[str, Any] | None:
    validations = context.names("/run/nvidia/validations")
    inside = context.exists("/var/run/secrets/kubernetes.io")
    if not validations and not inside:
        return None
    return {"validations": validations, "pod": inside}


def _virtual(context: Context) -> dict[str, str] | None:
    if " hypervisor" not in (context.read("/proc/cpuinfo", 16384) or ""):
        return None
    return {
        "vendor": context.word("/sys/class/dmi/id/sys_vendor") or "",
        "product": context.word("/sys/class/dmi/id/product_name") or "",
    }


def _clock_synchronised() -> bool | None:
    """Ask adjtimex: state 5 (TIME_ERROR) means that nothing disciplines the clock."""
    try:
        import ctypes

        state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.create_string_buffer(512))
    except (ImportError, OSError, AttributeError):
        return None
    return None if state < 0 else state != 5


PROBES = {"host.machine": probe}
