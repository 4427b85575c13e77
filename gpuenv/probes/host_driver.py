"""The kernel side of the driver: module, flavour, rivals for the GPU, Secure Boot, services."""

from __future__ import annotations

import os
import re

from ._common import Context

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MODULES = re.compile(
    r"^(nvidia(_uvm|_modeset|_drm|_peermem|_fs)?|nv_peer_mem|nouveau|nova_core|nova_drm|vfio_pci"
    r"|ib_core|ib_uverbs|mlx5_ib|gdrdrv) ",
    re.MULTILINE,
)
_RELEASE = re.compile(r"Kernel Module(?: for \S+)?\s+([0-9]+(?:\.[0-9]+)+)")
_SECURE_BOOT = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
_PACKAGES = re.compile(
    r"^((?:libnvidia-(?:compute|ml|common)|nvidia-(?:driver|utils|kernel|dkms|open)|libcuda1"
    r"|cuda-compat|cuda-drivers|nvidia-fabricmanager|nvidia-container-toolkit)[^:]*?)(:\w+)?\.list$"
)
_SERVICES = ("nv-fabricmanager", "nvidia-persiste", "nv-hostengine", "nvidia-imex")


def probe(context: Context) -> dict[str, Any]:
    """Return the driver's kernel side.

    Keys: ``module_version`` (/sys/module), ``proc_version`` (/proc/driver), ``flavour`` (open or
    proprietary), ``modules`` (loaded ones that matter), ``kernel``, ``built_kernels`` (kernels that
    have an nvidia module), ``headers`` (for the running kernel), ``dkms`` ["550.54/6.1.0"],
    ``secure_boot``, ``modprobe`` [lines], ``rm_gpus`` [{bdf, model, uuid, minor}], ``params``,
    ``packages``, ``services`` {name: running}, ``devices`` {name: major}.
    """
    kernel = context.word("/proc/sys/kernel/osrelease") or os.uname().release
    proc_text = context.read("/proc/driver/nvidia/version")
    release = _RELEASE.search(proc_text or "")
    loaded = sorted({match[1] for match in _MODULES.finditer(context.read("/proc/modules") or "")})
    return {
        "module_version": context.word("/sys/module/nvidia/version"),
        "proc_version": release[1] if release else None,
        "flavour": _flavour(proc_text),
        "modules": loaded
        or [
            name
            for name in context.names("/sys/module")
            if name.startswith("nvidia") or name in ("nouveau", "nova_core")
        ],
        "kernel": kernel,
        "built_kernels": _built_kernels(context),
        "headers": context.exists("/lib/modules/" + kernel + "/build"),
        "dkms": _dkms(context),
        "secure_boot": _secure_boot(context),
        "lockdown": _lockdown(context),
        "modprobe": _modprobe(context),
        "rm_gpus": _rm_gpus(context),
        "params": _params(context),
        "packages": sorted(
            {
                match[1]
                for name in context.names("/var/lib/dpkg/info")
                for match in [_PACKAGES.match(name)]
                if match
            }
        ),
        "services": _services(context),
        "fabricmanager_installed": context.exists("/usr/bin/nv-fabricmanager"),
    }


def _flavour(text: str | None) -> str | None:
    """Read the flavour.

    ``NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build ...`` or
    ``NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 ...``.
    """
    if not text:
        return None
    return "open" if "Open Kernel Module" in text else "proprietary"


def _built_kernels(context: Context) -> list[str]:
    """Return the kernels whose module tree holds the driver, by their ``modules.dep``."""
    found = []
    for kernel in context.names("/lib/modules"):
        text = context.read("/lib/modules/" + kernel + "/modules.dep", 8 << 20) or ""
        if re.search(r"(^|/)nvidia(-current|-open)?\.ko(\.\w+)?:", text, re.MULTILINE):
            found.append(kernel)
    return found


def _dkms(context: Context) -> list[str]:
    found = []
    for name in context.names("/var/lib/dkms"):
        if name.startswith("nvidia"):
            for version in context.names("/var/lib/dkms/" + name):
                kernels = [
                    kernel
                    for kernel in context.names("/var/lib/dkms/" + name + "/" + version)
                    if kernel[:1].isdigit()
                ]
                found += [version + "/" + kernel for kernel in kernels] or [version]
    return found


def _secure_boot(context: Context) -> bool | None:
    """Read the efi variable: four bytes of attributes, then 1 or 0."""
    try:
        with open(context.path(_SECURE_BOOT), "rb") as stream:
            raw = stream.read(8)
    except OSError:
        return None
    return raw[4:5] == b"\x01"


def _lockdown(context: Context) -> str | None:
    """Read the chosen word of ``none [integrity] confidentiality``."""
    match = re.search(r"\[(\w+)\]", context.word("/sys/kernel/security/lockdown") or "")
    return match[1] if match else None


def _modprobe(context: Context) -> list[str]:
    lines = []
    for folder in ("/etc/modprobe.d", "/usr/lib/modprobe.d", "/lib/modprobe.d"):
        for name in context.names(folder):
            for line in (context.read(folder + "/" + name) or "").splitlines():
                words = line.split()
                if len(words) > 1 and words[0] in ("blacklist", "options", "install"):
                    if re.match(r"nvidia|nouveau|nova", words[1]):
                        lines.append(" ".join(words))
    return sorted(set(lines))


def _rm_gpus(context: Context) -> list[dict[str, Any]]:
    """Read ``Model: NVIDIA H200`` and its neighbours for each GPU the driver claims."""
    gpus = []
    for bdf in context.names("/proc/driver/nvidia/gpus"):
        text = context.read("/proc/driver/nvidia/gpus/" + bdf + "/information") or ""
        fields = {}
        for line in text.splitlines():
            key, _, value = line.partition(":")
            fields[key.strip().lower()] = value.strip()
        gpus.append(
            {
                "bdf": bdf,
                "model": fields.get("model"),
                "uuid": fields.get("gpu uuid"),
                "minor": fields.get("device minor"),
                "excluded": fields.get("gpu excluded"),
            }
        )
    return gpus


def _params(context: Context) -> dict[str, str]:
    wanted = ("ModifyDeviceFiles", "EnableMSI", "OpenRmEnableUnsupportedGpus", "DeviceFileMode")
    params = {}
    for line in (context.read("/proc/driver/nvidia/params") or "").splitlines():
        key, _, value = line.partition(":")
        if key in wanted:
            params[key] = value.strip()
    return params


def _services(context: Context) -> dict[str, bool]:
    running = dict.fromkeys(_SERVICES, False)
    for pid in context.names("/proc"):
        if pid.isdigit():
            name = context.word("/proc/" + pid + "/comm")
            if name in running:
                running[name] = True
    return running


PROBES = {"host.driver": probe}
