"""The kernel module, the libraries that must match it, and what keeps it from loading."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpuenv.checks.model import Check, Level
from gpuenv.checks.nvml import VERSION_MISMATCH, nvml_name
from gpuenv.checks.say import Results, Say, fix, group, integer, probe, rows, seen, text, words
from gpuenv.checks.scene import (
    compat_releases,
    gpu_nodes,
    in_container,
    is_wsl,
    module_release,
    nodes,
    pci_gpus,
    short_bdf,
    uses_compat,
    version_key,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuenv.checks.model import Facts

_DRIVER_RELEASE = re.compile(r"[0-9]{3}\.[0-9]+(\.[0-9]+)?")
_RIVALS = ("nouveau", "nova_core", "nova_drm")


def _events(facts: Facts, *kinds: str) -> list[str]:
    return [
        text(event, "text")
        for event in rows(probe(facts, "host.kernel-log"), "events")
        if event.get("kind") in kinds
    ]


def check_bound(facts: Facts) -> Results:
    """Ask which kernel driver owns each GPU."""
    say = Say("host.driver.bound")
    gpus = pci_gpus(facts)
    if not gpus:
        return say.skip("no-gpu", "no NVIDIA GPU on the PCI bus")
    results: list[Results] = []
    for gpu in gpus:
        driver, one = gpu.get("driver"), say.of(short_bdf(text(gpu, "bdf")))
        where = seen(f"/sys/bus/pci/devices/{gpu.get('bdf')}/driver", driver or "none")
        if driver in ("nouveau", "nova", "nova_core"):
            results.append(
                one.fail(
                    f"belongs to {driver}, not to the NVIDIA driver",
                    why=f"{driver} took the GPU at boot, before the NVIDIA module could",
                    evidence=[where],
                    fixes=[
                        fix(
                            "host",
                            "forbid it, build the initramfs anew and reboot",
                            "echo 'blacklist nouveau' > /etc/modprobe.d/blacklist-nouveau.conf"
                            " && update-initramfs -u && reboot",
                        )
                    ],
                )
            )
        elif driver == "vfio-pci":
            results.append(
                one.warn(
                    "is set aside for a virtual machine (vfio-pci)",
                    evidence=[where],
                    fixes=[fix("host", "leave it, or bind it to nvidia if it is meant for here")],
                )
            )
        elif driver is None and module_release(facts):
            # An old card that this release has left behind, beside one that it serves.
            left_behind = bool(_events(facts, "unsupported-gpu")) and any(
                other.get("driver") == "nvidia" for other in gpus
            )
            results.append(
                (one.warn if left_behind else one.fail)(
                    "belongs to no driver although the NVIDIA module is loaded",
                    why="the driver refused it: too old or too new for this release, or damaged",
                    evidence=[where, *(seen("kernel log", line) for line in _refusals(facts))],
                    fixes=[fix("host", "read why it was refused", "dmesg | grep NVRM")],
                    suspects=("host.rebar", "host.gpu.lost"),
                    confidence="likely",
                )
            )
    if results:
        return tuple(result for found in results for result in found)
    if all(gpu.get("driver") is None for gpu in gpus):
        return say.skip("blocked", "no NVIDIA module is loaded that could own them")
    return say.ok(f"nvidia owns {len(gpus)}")


def _refusals(facts: Facts) -> list[str]:
    return _events(facts, "rm-init", "needs-open", "unsupported-gpu", "bar-invalid")[-3:]


def check_module(facts: Facts) -> Results:
    """Ask whether the module is loaded, and if not, why."""
    say = Say("host.driver.module")
    driver = probe(facts, "host.driver")
    release = module_release(facts)
    if is_wsl(facts):
        return say.skip("not-applicable", "under WSL the driver is Windows' own")
    if release:
        flavour = text(driver, "flavour")
        kind = f" ({flavour} modules)" if flavour else ""
        return say.ok(f"{release}{kind}", seen("/proc/driver/nvidia/version", release))
    if not pci_gpus(facts):
        return say.skip("no-gpu", "no NVIDIA GPU on the PCI bus")
    owners = {gpu.get("driver") for gpu in pci_gpus(facts)}
    if owners == {"vfio-pci"}:
        return say.skip("not-applicable", "every GPU is set aside for virtual machines")
    evidence = [seen("/proc/driver/nvidia/version", "not there")]
    if in_container(facts):
        return say.fail(
            "the host's NVIDIA module is not loaded",
            why="a container uses the host's kernel; nothing inside it can load a module",
            evidence=evidence,
            fixes=[fix("host", "find out why", "gpuenv doctor --level static")],
        )
    kernel, built = text(driver, "kernel"), words(driver, "built_kernels")
    evidence.append(seen("running kernel", kernel))
    if _events(facts, "key-rejected") or any(name in words(driver, "modules") for name in _RIVALS):
        return say.fail(
            "the NVIDIA module is not loaded",
            why="something kept it out; see the causes above",
            evidence=evidence,
            fixes=[fix("host", "mend that first, then load it", "modprobe nvidia")],
            suspects=("host.secureboot", "host.driver.bound"),
        )
    if kernel in built:
        return say.fail(
            f"a module for kernel {kernel} is there and is not loaded",
            why="it was refused, is blacklisted, or nobody loaded it since the boot",
            evidence=[
                *evidence,
                *(seen("modprobe.d", line) for line in words(driver, "modprobe")[:4]),
                *(seen("kernel log", line) for line in _refusals(facts)),
            ],
            fixes=[fix("host", "load it and read what it says", "modprobe nvidia; dmesg | tail")],
            suspects=("host.secureboot", "host.rebar"),
            confidence="likely",
        )
    if built or words(driver, "dkms"):
        have = ", ".join(built) or ", ".join(words(driver, "dkms"))
        headers = bool(driver.get("headers"))
        return say.fail(
            f"the NVIDIA module was built for another kernel ({have}), {kernel} runs",
            why="the kernel was updated and DKMS did not build the module for it"
            + ("" if headers else "; the headers of the running kernel are missing"),
            evidence=[*evidence, seen("/lib/modules", have), seen("headers", headers)],
            fixes=[
                fix(
                    "host",
                    "build it for the running kernel",
                    "apt-get install linux-headers-$(uname -r) && dkms autoinstall",
                ),
                fix("host", "or boot the kernel it was built for"),
            ],
        )
    return say.fail(
        "no NVIDIA driver is installed for this kernel",
        why="there is a GPU on the bus and no nvidia module below /lib/modules",
        evidence=[*evidence, seen("/lib/modules", "no nvidia.ko for any kernel")],
        fixes=[fix("host", "install the driver of your distribution or NVIDIA's package")],
    )


def library_releases(facts: Facts) -> dict[str, str]:
    """Return the driver's release by each library that was loaded, by file name."""
    found = {}
    cuda = probe(facts, "host.cuda")
    if not uses_compat(facts):
        found["libcuda.so.1"] = text(group(cuda, "load"), "release")
    nvml = probe(facts, "host.nvml")
    real = text(group(nvml, "load"), "real")
    found["libnvidia-ml.so.1"] = text(nvml, "driver") or real.rpartition(".so.")[2]
    return {name: release for name, release in found.items() if _DRIVER_RELEASE.fullmatch(release)}


def check_match(facts: Facts) -> Results:
    """Hold the module's release against that of the libraries: an ABI that must match exactly."""
    say = Say("host.driver.match")
    nvml = probe(facts, "host.nvml")
    module = module_release(facts)
    libraries = library_releases(facts)
    mismatch = nvml.get("init") == VERSION_MISMATCH
    if not module and not mismatch:
        return say.skip("no-gpu", "no NVIDIA module is loaded")
    if not libraries and not mismatch:
        return say.skip("no-gpu", "no driver library is loaded here")
    odd = {
        name: release
        for name, release in libraries.items()
        if module and version_key(release) != version_key(module)
    }
    evidence = [seen("kernel module", module or "unknown")]
    evidence += [seen(name, release) for name, release in libraries.items()]
    if mismatch:
        evidence.append(seen("nvmlInit", nvml_name(VERSION_MISMATCH)))
    if not odd and not mismatch:
        return say.ok(f"module and libraries are {module}")
    older = any(version_key(module) < version_key(release) for release in odd.values())
    if in_container(facts):
        return say.fail(
            f"the container's driver libraries do not fit the host's module {module}".rstrip(),
            why="the image carries its own driver libraries, or the host's driver was updated "
            "while the container ran",
            evidence=evidence,
            fixes=[
                fix("container", "start the container anew, so that it gets the host's libraries"),
                fix("image", "remove driver packages (libnvidia-compute, libcuda1) from the image"),
            ],
            suspects=("host.driver.twolibs",),
        )
    return say.fail(
        f"the libraries are {', '.join(sorted(set(odd.values()))) or 'of another release'}, "
        f"the loaded module is {module or 'another'}",
        why="the driver package was updated and the old module is still loaded"
        if older or not odd
        else "the module is newer than the libraries: two installations of the driver",
        evidence=evidence,
        fixes=[
            fix(
                "host",
                "end what uses the GPUs and load the new module, else reboot",
                "rmmod nvidia_drm nvidia_modeset nvidia_uvm nvidia && modprobe nvidia",
            ),
            fix("host", "keep unattended upgrades away from it", "apt-mark hold 'nvidia-*'"),
        ],
    )


def check_two_libraries(facts: Facts) -> Results:
    """Find several releases of the driver's libraries side by side, and empty files there."""
    say = Say("host.driver.twolibs")
    libs = group(probe(facts, "host.libs"), "libs")
    copies: dict[str, Mapping[str, object]] = {}
    empty = []
    for name in ("libcuda.so", "libnvidia-ml.so"):
        for copy in rows(libs, name):
            path, release = text(copy, "real"), text(copy, "version")
            if copy.get("via") == "compat" or "/stubs/" in path or "/compat/" in path:
                continue
            if release in compat_releases(facts) and release != module_release(facts):
                continue
            if integer(copy, "size") == 0:
                empty.append(path)
            elif _DRIVER_RELEASE.fullmatch(release):
                copies[path] = copy
    releases = {text(copy, "version") for copy in copies.values()}
    evidence = [seen(path, copy.get("version")) for path, copy in copies.items()]
    if len(releases) > 1:
        module = module_release(facts)
        wrong = [path for path, copy in copies.items() if text(copy, "version") != module]
        return say.fail(
            f"driver libraries of {len(releases)} releases: {', '.join(sorted(releases))}",
            why="one set belongs to the host's driver, the other was put into the image or left "
            "behind by an old installation; which one is loaded is a matter of luck",
            evidence=evidence,
            fixes=[
                fix(
                    "image" if in_container(facts) else "host",
                    f"remove the copy that is not {module or 'of the running module'}",
                    f"rm {' '.join(wrong)}" if module and wrong else "",
                ),
                fix("image", "never install driver packages in an image"),
            ],
        )
    if empty:
        return say.warn(
            f"empty files where driver libraries should be: {', '.join(empty[:3])}",
            why="the image was made with docker commit from a container that had a GPU",
            evidence=[seen(path, "0 bytes") for path in empty],
            fixes=[fix("image", "remove them, or build the image from a Dockerfile")],
        )
    if not copies:
        return say.skip("no-gpu", "no driver libraries here")
    return say.ok(f"one release, {next(iter(releases))}")


def check_uvm(facts: Facts) -> Results:
    """Ask whether nvidia-uvm is loaded and its node opens; ctk.uvm does so in containers."""
    say = Say("host.uvm")
    if in_container(facts) or is_wsl(facts):
        return say.skip("not-applicable", "a matter of the host")
    if not module_release(facts):
        return say.skip("no-gpu", "no NVIDIA module is loaded")
    loaded = "nvidia_uvm" in words(probe(facts, "host.driver"), "modules")
    registered = "nvidia-uvm" in group(probe(facts, "host.nodes"), "majors")
    node = nodes(facts).get("/dev/nvidia-uvm", {})
    errno = node.get("errno")
    if errno is None and node:
        return say.ok("loaded, and its node opens")
    if errno in ("EACCES", "EPERM"):
        return say.skip("not-applicable", f"there, but {errno} for this user: see host.nodes")
    majors = group(probe(facts, "host.nodes"), "majors")
    if not gpu_nodes(facts) or _stale({"/dev/nvidia-uvm": node}, majors):
        return say.skip("not-applicable", "the nodes themselves are missing or stale: host.nodes")
    return say.fail(
        "nvidia-uvm is not loaded" if not (loaded or registered) else "no working /dev/nvidia-uvm",
        why="CUDA needs it, nvidia-smi does not: everything looks well and cuInit fails with 999",
        evidence=[
            seen("/proc/modules", "nvidia_uvm" if loaded else "no nvidia_uvm"),
            seen("open /dev/nvidia-uvm", errno or "not tried"),
        ],
        fixes=[
            fix("host", "load it and make its node", "nvidia-modprobe -u -c=0"),
            fix(
                "host",
                "after suspend it may need to be loaded anew",
                "rmmod nvidia_uvm && modprobe nvidia_uvm",
            ),
        ],
    )


def check_nodes(facts: Facts) -> Results:
    """Open every device node and read the errno, which tells whose gate is shut."""
    say = Say("host.nodes")
    if is_wsl(facts):
        return say.skip("not-applicable", "WSL has /dev/dxg instead")
    found = nodes(facts)
    majors = group(probe(facts, "host.nodes"), "majors")
    there = {path: node for path, node in found.items() if node.get("errno") != "ENOENT"}
    mine = {path: node for path, node in there.items() if path.startswith("/dev/nvidia")}
    if not mine:
        if module_release(facts) and not in_container(facts):
            return say.fail(
                "the driver is loaded and there are no device nodes",
                why="nothing made them: no udev rule, no nvidia-modprobe",
                evidence=[seen("/dev/nvidiactl", "ENOENT")],
                fixes=[fix("host", "make them", "nvidia-modprobe -c=0 -u")],
            )
        return say.skip("no-gpu", "no device nodes of NVIDIA here")
    results = [*_stale_results(say, mine, majors), *_closed_results(facts, say, mine)]
    if results:
        return tuple(result for group_ in results for result in group_)
    denied = [path for path, node in mine.items() if node.get("errno")]
    if denied:
        return say.info(f"{len(mine) - len(denied)} of {len(mine)} nodes open; see cgroup.lost")
    return say.ok(f"{len(mine)} nodes open, {len(gpu_nodes(facts))} of them GPUs")


def _stale_results(
    say: Say, mine: Mapping[str, Mapping[str, object]], majors: Mapping[str, object]
) -> list[Results]:
    stale = _stale(mine, majors)
    if not stale:
        return []
    return [
        say.of("major numbers").fail(
            f"stale: {', '.join(stale)}",
            why="the node was made for a driver that registered another number",
            evidence=[seen("/proc/devices", dict(majors))],
            fixes=[
                fix("host", "remove the stale nodes and make them anew", "nvidia-modprobe -c=0")
            ],
        )
    ]


def _closed_results(
    facts: Facts, say: Say, mine: Mapping[str, Mapping[str, object]]
) -> list[Results]:
    results: list[Results] = []
    if not in_container(facts):
        # A host whose only closed node is this one has lost the module behind it: host.uvm.
        mine = {
            path: node
            for path, node in mine.items()
            if path != "/dev/nvidia-uvm" or node.get("errno") in ("EACCES", "EPERM")
        }
    for errno, paths in _by_errno(mine).items():
        if errno == "EACCES":
            results.append(_denied_by_mode(facts, say, paths))
        elif errno in ("ENXIO", "ENODEV", "EIO"):
            results.append(
                say.of(errno).fail(
                    f"{', '.join(paths)}: there is no driver behind it",
                    why="the module was unloaded, or gave this GPU up",
                    evidence=[seen(f"open {path}", errno) for path in paths],
                    fixes=[fix("host", "read what the driver said", "dmesg | grep NVRM")],
                    suspects=("host.driver.module", "host.gpu.lost"),
                )
            )
        elif errno == "EPERM" and not in_container(facts):
            results.append(
                say.of(errno).fail(
                    f"{', '.join(paths)}: denied by a device cgroup",
                    why="the service or session this runs in has a device policy",
                    evidence=[seen(f"open {path}", errno) for path in paths],
                    fixes=[
                        fix(
                            "host",
                            "allow it in the service's unit: systemctl edit the unit, and add "
                            "below [Service]",
                            "DeviceAllow=char-nvidia-frontend rw",
                        )
                    ],
                )
            )
    return results


def _by_errno(found: Mapping[str, Mapping[str, object]]) -> dict[str, list[str]]:
    """Group the nodes that matter by errno; tools' and capability nodes are for special uses."""
    groups: dict[str, list[str]] = {}
    for path, node in found.items():
        errno = node.get("errno")
        if errno and "caps" not in path and not path.endswith(("-tools", "-modeset")):
            groups.setdefault(str(errno), []).append(path)
    return groups


def _denied_by_mode(facts: Facts, say: Say, paths: list[str]) -> Results:
    found = nodes(facts)
    user = probe(facts, "host.user")
    first = found[paths[0]]
    selinux = bool(probe(facts, "host.nodes").get("selinux"))
    owned = f"mode {first.get('mode')}, uid {first.get('uid')}, gid {first.get('gid')}"
    fixes = [
        fix(
            "host",
            "let everybody open them, from the next load of the driver on",
            "echo 'options nvidia NVreg_DeviceFileMode=0666' > /etc/modprobe.d/nvidia-mode.conf",
        )
    ]
    if in_container(facts):
        fixes = [
            fix(
                "container",
                "with rootless podman, keep the caller's groups",
                "podman run --group-add keep-groups ...",
            ),
            fix(
                "container",
                "else add the nodes' group",
                f"docker run --group-add {first.get('gid')} ...",
            ),
        ]
        if selinux:
            fixes.append(
                fix("host", "let containers use devices", "setsebool -P container_use_devices 1")
            )
    return say.of("EACCES").fail(
        f"this user may not open {', '.join(paths[:4])}",
        why="mode, owner and groups of the nodes, or SELinux, keep this user out",
        evidence=[
            seen(f"open {paths[0]}", "EACCES"),
            seen("node", owned),
            seen("user", f"uid {user.get('uid')}, groups {user.get('groups')}"),
            *([seen("SELinux", "enforcing")] if selinux else []),
        ],
        fixes=fixes,
        suspects=("ctr.rootless",),
    )


def _stale(found: Mapping[str, Mapping[str, object]], majors: Mapping[str, object]) -> list[str]:
    """Return nodes whose major number is not the one the kernel registered."""
    known = {
        "/dev/nvidia-uvm": majors.get("nvidia-uvm"),
        "/dev/nvidiactl": majors.get("nvidiactl")
        or majors.get("nvidia-frontend")
        or majors.get("nvidia"),
    }
    return [
        f"{path} has {found[path].get('major')}, the kernel says {want}"
        for path, want in known.items()
        if path in found and want is not None and found[path].get("major") not in (None, want)
    ]


def check_secure_boot(facts: Facts) -> Results:
    """Find a module that Secure Boot refuses."""
    say = Say("host.secureboot")
    rejected = _events(facts, "key-rejected")
    on = probe(facts, "host.driver").get("secure_boot")
    if in_container(facts):
        return say.skip("not-applicable", "a matter of the host")
    if rejected and not module_release(facts):
        return say.fail(
            "Secure Boot refuses the NVIDIA module: its key is not enrolled",
            why="the module was built here and signed with a key the firmware does not know",
            evidence=[seen("kernel log", rejected[-1]), seen("SecureBoot", on)],
            fixes=[
                fix(
                    "host",
                    "enrol the key at the next boot",
                    "mokutil --import /var/lib/dkms/mok.pub",
                ),
                fix("host", "or install the modules your distribution has signed"),
            ],
        )
    if on is None:
        return say.skip("not-applicable", "no EFI variables to be read here")
    return say.ok("on, and nothing was refused" if on else "off")


def check_rebar(facts: Facts) -> Results:
    """Find GPUs the driver could not start for want of address space or the right modules."""
    say = Say("host.rebar")
    lines = _events(facts, "bar-invalid", "rm-init", "needs-open")
    if not pci_gpus(facts):
        return say.skip("no-gpu", "no NVIDIA GPU on the PCI bus")
    nvml = probe(facts, "host.nvml")
    known = integer(nvml, "count") or 0
    if lines and known < len(pci_gpus(facts)) and not in_container(facts):
        needs_open = _events(facts, "needs-open")
        if needs_open:
            return say.fail(
                "this GPU needs the open kernel modules, the proprietary ones are loaded",
                why="from Blackwell on NVIDIA supports the open modules only",
                evidence=[seen("kernel log", needs_open[-1])],
                fixes=[
                    fix(
                        "host",
                        "install the open flavour of the same release",
                        "apt-get install nvidia-open",
                    )
                ],
            )
        return say.fail(
            "the driver could not start a GPU (RmInitAdapter)",
            why="the firmware gave it no address space (Above 4G decoding, Resizable BAR), its "
            "power is missing, or it is damaged",
            evidence=[seen("kernel log", line) for line in lines[-3:]],
            fixes=[
                fix("host", "switch on Above 4G decoding and Resizable BAR in the firmware"),
                fix("host", "try the open kernel modules of the same release"),
            ],
            confidence="likely",
        )
    return say.ok("every GPU has its address space")


def check_hmm(facts: Facts) -> Results:
    """Find the failure of heterogeneous memory management that keeps CUDA from starting."""
    say = Say("host.hmm")
    lines = _events(facts, "hmm")
    log = probe(facts, "host.kernel-log")
    if not log.get("readable"):
        return say.skip("needs-root", "the kernel's log cannot be read here")
    if not lines and not module_release(facts):
        return say.skip("no-gpu", "no NVIDIA module is loaded")
    code = integer(probe(facts, "host.cuda"), "cu_init")
    if lines and code:
        return say.fail(
            "nvidia-uvm could not set up HMM, and CUDA does not start",
            why="kernel address randomisation left no room for the memory map of the GPU",
            evidence=[seen("kernel log", lines[-1]), seen("cuInit", code)],
            fixes=[
                fix(
                    "host",
                    "switch HMM off and load nvidia-uvm anew",
                    "echo 'options nvidia_uvm uvm_disable_hmm=1' > /etc/modprobe.d/uvm-hmm.conf",
                )
            ],
        )
    if lines:
        return say.info("nvidia-uvm could not set up HMM; CUDA starts all the same")
    return say.ok("no trouble with HMM in the kernel's log")


CHECKS = (
    Check(
        id="host.driver.bound",
        title="Kernel driver of each GPU",
        level=Level.STATIC,
        run=check_bound,
        needs=("host.pci",),
        uses=("host.driver", "host.kernel-log"),
        explanation="""\
Every PCI device has one kernel driver. nouveau or nova (the free drivers) take a GPU at boot
unless they are forbidden in the initramfs as well; vfio-pci sets it aside for a virtual
machine.""",
    ),
    Check(
        id="host.secureboot",
        title="Secure Boot lets the module in",
        level=Level.STATIC,
        run=check_secure_boot,
        needs=("host.driver",),
        uses=("host.kernel-log",),
        explanation="""\
With Secure Boot the kernel loads signed modules only. A module built by DKMS is signed with a
key of this machine, which has to be enrolled once (MOK) at the console. Until then the kernel
logs "Key was rejected by service" and nvidia-smi cannot reach the driver.""",
    ),
    Check(
        id="host.rebar",
        title="GPU address space and module flavour",
        level=Level.STATIC,
        run=check_rebar,
        needs=("host.pci",),
        uses=("host.kernel-log", "host.nvml"),
        explanation="""\
New GPUs ask for address space above 4 GB and a large BAR; where the firmware gives none, the
driver's start of the GPU fails (RmInitAdapter) and nvidia-smi says "No devices were found"
although the bus lists the GPU. Blackwell GPUs also need the open kernel modules. A small BAR
alone is no fault.""",
    ),
    Check(
        id="host.driver.module",
        title="NVIDIA kernel module",
        level=Level.STATIC,
        run=check_module,
        needs=("host.driver", "host.pci"),
        uses=("host.kernel-log", "host.machine"),
        explanation="""\
Reads /proc/driver/nvidia/version. Where it is missing, the modules below /lib/modules, DKMS,
the kernel's log and Secure Boot tell why: built for another kernel, refused, forbidden, not
installed.""",
    ),
    Check(
        id="host.driver.match",
        title="Module and libraries of one release",
        level=Level.STATIC,
        run=check_match,
        needs=("host.driver",),
        uses=("host.nvml", "host.cuda"),
        explanation="""\
libcuda, libnvidia-ml and the kernel module speak a private language that changes with every
release; all three must be exactly the same. After an unattended upgrade the new libraries meet
the old module: "Driver/library version mismatch". A forward-compatibility libcuda is meant to
differ (drv.compat).""",
    ),
    Check(
        id="host.driver.twolibs",
        title="One copy of the driver's libraries",
        level=Level.STATIC,
        run=check_two_libraries,
        needs=("host.libs",),
        uses=("host.driver",),
        explanation="""\
Driver libraries belong to the host and are put into a container at start. Baked into an image
they meet another host's module sooner or later: error 802, 803, 999 or a version mismatch.
Copies of one release in two folders are harmless.""",
    ),
    Check(
        id="host.uvm",
        title="nvidia-uvm on the host",
        level=Level.STATIC,
        run=check_uvm,
        needs=("host.nodes", "host.driver"),
        explanation="""\
CUDA reaches memory through nvidia-uvm; nvidia-smi does not need it. Missing or dead (after
suspend), cuInit answers 999 "unknown error" while nvidia-smi shows a healthy GPU.""",
    ),
    Check(
        id="host.nodes",
        title="Device nodes open",
        level=Level.STATIC,
        run=check_nodes,
        needs=("host.nodes",),
        uses=("host.driver", "host.user", "host.machine"),
        explanation="""\
Opens /dev/nvidia*, for real. EPERM: the device cgroup denies it (the node's own mode does not
matter). EACCES: mode, owner, groups or SELinux. ENOENT: not put into this container. ENXIO,
ENODEV: no driver behind it. A major number that differs from /proc/devices: a stale node.""",
    ),
    Check(
        id="host.hmm",
        title="HMM in nvidia-uvm",
        level=Level.STATIC,
        run=check_hmm,
        needs=("host.kernel-log",),
        uses=("host.cuda",),
        explanation="""\
On some kernels address randomisation leaves no room for what HMM wants to map:
"request_free_mem_region() err -34". CUDA then fails to start with 3, 802 or 999. Known issue of
the CUDA 13.2 release notes.""",
    ),
)
