"""Is every GPU there, and does the driver still reach it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuenv.checks.model import Check, Level
from gpuenv.checks.nvml import (
    EVENT_HW_POWER_BRAKE,
    FABRIC_COMPLETED,
    FABRIC_NOT_SUPPORTED,
    FABRIC_STATES,
    GPU_IS_LOST,
    NOT_SUPPORTED,
    nvml_name,
)
from gpuenv.checks.say import (
    Results,
    Say,
    fix,
    group,
    integer,
    number,
    nvml_code,
    probe,
    rows,
    seen,
    text,
)
from gpuenv.checks.scene import (
    driver_release,
    gpu_label,
    in_container,
    is_virtual,
    is_wsl,
    nvml_gpus,
    pci_gpus,
    short_bdf,
    smi,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuenv.checks.model import Facts, Fix

_CORE_FIELDS = ("name", "uuid", "memory", "temperature_c")
_SLOW_INIT_S = 5.0
# Above what the fix below recommends.
_HUGE_NOFILE = 1 << 21


def check_pci(facts: Facts) -> Results:
    """Count the GPUs on the bus and hold them against what NVML sees."""
    say = Say("host.gpu.pci")
    pci = probe(facts, "host.pci")
    gpus = pci_gpus(facts)
    if is_wsl(facts):
        return say.skip("not-applicable", "WSL shows GPUs as /dev/dxg, not on a PCI bus")
    if not pci.get("readable"):
        return say.skip("not-applicable", "no PCI bus to be seen here")
    if not gpus:
        return say.skip("no-gpu", "no NVIDIA GPU on the PCI bus")
    names = [short_bdf(text(gpu, "bdf")) for gpu in gpus]
    nvml = probe(facts, "host.nvml")
    if nvml.get("init") != 0 or in_container(facts):
        return say.ok(f"{len(gpus)} on the PCI bus", seen("/sys/bus/pci/devices", ", ".join(names)))
    ours = [
        gpu for gpu in gpus if gpu.get("driver") == "nvidia" and not gpu.get("virtual_function")
    ]
    known = {short_bdf(text(gpu, "bdf")) for gpu in rows(nvml, "gpus")}
    gone = [bdf for bdf in (short_bdf(text(gpu, "bdf")) for gpu in ours) if bdf not in known]
    unreachable = [gpu for gpu in rows(nvml, "gpus") if gpu.get("handle")]
    if gone and len(gone) > len(unreachable):
        return say.fail(
            f"the bus has {len(ours)} GPUs of the nvidia driver, NVML sees {len(known)}",
            why="the driver could not start a GPU, or has given it up",
            evidence=[
                seen("/sys/bus/pci/devices", ", ".join(names)),
                seen("NVML", f"{len(known)} GPUs; missing: {', '.join(gone)}"),
            ],
            fixes=[
                fix("host", "read what the driver said of it", "dmesg | grep -E 'NVRM|Xid'"),
                fix("host", "switch the machine off and on (a warm reboot is not enough)"),
            ],
            alternatives=["a power cable or the slot", "the GPU is excluded in the driver"],
            confidence="likely",
        )
    return say.ok(f"{len(gpus)} on the PCI bus, all known to NVML")


def check_count(facts: Facts) -> Results:
    """Hold the number of GPUs against the number the user says there are."""
    say = Say("host.gpu.count")
    expected = integer(facts.asked, "expect_gpus")
    if expected is None:
        return say.skip("not-applicable", "no number was given (--expect-gpus N)")
    counts = {
        "PCI bus": len(pci_gpus(facts)) if not in_container(facts) else None,
        "NVML": integer(probe(facts, "host.nvml"), "count"),
        "CUDA": integer(probe(facts, "host.cuda"), "count"),
    }
    evidence = [seen(name, count) for name, count in counts.items() if count is not None]
    usable = min((count for count in counts.values() if count is not None), default=0)
    if usable < expected:
        return say.fail(
            f"{usable} of the {expected} GPUs that should be here",
            why="a GPU that never came up leaves no error behind; only the number shows it",
            evidence=evidence,
            fixes=[
                fix("host", "reseat or replace the GPU; in a cloud, replace the instance"),
                fix("container", "give the container every GPU", "docker run --gpus all ..."),
            ],
            alternatives=["CUDA_VISIBLE_DEVICES hides some", "the expectation is wrong"],
            suspects=("vis.cvd", "host.gpu.lost", "host.gpu.pci", "drv.cuinit"),
        )
    return say.ok(f"{usable} GPUs, {expected} expected", *evidence)


def check_fields(facts: Facts) -> Results:
    """Find GPUs whose core values cannot be read although NVML itself works."""
    say = Say("host.smi.err")
    gpus = rows(probe(facts, "host.nvml"), "gpus")
    if not gpus:
        return say.skip("no-gpu", "NVML knows no GPU")
    bad: list[Results] = []
    for gpu in gpus:
        codes = {
            field: code
            for field in ("handle", *_CORE_FIELDS)
            if (code := nvml_code(gpu, field)) not in (None, NOT_SUPPORTED, GPU_IS_LOST)
        }
        if codes:
            bad.append(
                say.of(gpu_label(gpu)).fail(
                    "NVML cannot read " + ", ".join(codes),
                    why="nvidia-smi shows ERR! in such fields and still ends with 0",
                    evidence=[
                        seen(f"NVML {field}", nvml_name(code or 0)) for field, code in codes.items()
                    ],
                    fixes=[
                        fix("host", "reset this GPU", smi("--gpu-reset", gpu)),
                        fix("host", "if that does not help, switch the machine off and on"),
                    ],
                )
            )
    if bad:
        return tuple(result for results in bad for result in results)
    return say.ok(f"name, UUID, memory and temperature of {len(gpus)} GPUs can be read")


def _signs_of_loss(facts: Facts) -> Iterator[tuple[str, str]]:
    """Yield ``(PCI address, what says that it is gone)``."""
    alive: set[str] = set()
    for gpu in rows(probe(facts, "host.nvml"), "gpus"):
        slot = short_bdf(text(gpu, "bdf")) if text(gpu, "bdf") else gpu_label(gpu)
        if any(nvml_code(gpu, field) == GPU_IS_LOST for field in gpu):
            yield slot, f"NVML {nvml_name(GPU_IS_LOST)}"
        elif not gpu.get("handle"):
            alive.add(slot)
    for gpu in pci_gpus(facts):
        if gpu.get("lost"):
            yield short_bdf(text(gpu, "bdf")), "its configuration space reads as ff"
    for xid in rows(probe(facts, "host.kernel-log"), "xids"):
        # The log leaves out the function, 0000:4b:00; a GPU that answers again was reset since.
        slot = short_bdf(text(xid, "bdf"))
        slot = slot if "." in slot else slot + ".0"
        if integer(xid, "code") == 79 and slot not in alive:  # noqa: PLR2004 - off the bus
            yield slot, "kernel log: Xid 79"


def check_lost(facts: Facts) -> Results:
    """Find GPUs that were there and have left the bus."""
    say = Say("host.gpu.lost")
    found: dict[str, list[str]] = {}
    for slot, sign in _signs_of_loss(facts):
        found.setdefault(slot, []).append(sign)
    if found:
        return tuple(
            result
            for subject, words in found.items()
            for result in say.of(subject).fail(
                "has fallen off the bus",
                why="power, the slot or riser, or the GPU itself; the driver cannot bring it back",
                evidence=[seen(subject, word) for word in dict.fromkeys(words)],
                fixes=[
                    fix("host", "drain it and switch the machine off and on, not a warm reboot"),
                    fix("host", "when it comes back lost, exchange the GPU or the riser"),
                ],
            )
        )
    if not pci_gpus(facts) and not nvml_gpus(facts):
        return say.skip("no-gpu", "no GPU to lose")
    return say.ok("no GPU has left the bus")


def check_persistence(facts: Facts) -> Results:
    """Warn when the driver unloads between uses and starting it is slow."""
    say = Say("host.persistence")
    gpus = nvml_gpus(facts)
    if not gpus:
        return say.skip("no-gpu", "NVML knows no GPU")
    off = [gpu_label(gpu) for gpu in gpus if integer(gpu, "persistence") == 0]
    slow_s = number(probe(facts, "host.nvml"), "init_s") or 0.0
    if not off:
        return say.ok("on")
    if slow_s >= _SLOW_INIT_S:
        return say.warn(
            f"off, and NVML took {slow_s:.0f} s to start",
            why="without it the driver starts each GPU anew for every first user",
            evidence=[seen("nvmlInit", f"{slow_s:.1f} s"), seen("persistence off", ", ".join(off))],
            fixes=[fix("host", "run the daemon", "systemctl enable --now nvidia-persistenced")],
        )
    return say.info(f"off for {len(off)} of {len(gpus)} GPUs; starting them is quick all the same")


def check_nofile_slows(facts: Facts) -> Results:
    """Find a huge limit of open files that slows the driver's helpers to a crawl."""
    say = Say("host.rlimit.nofile")
    limits = group(probe(facts, "host.limits"), "rlimits").get("nofile")
    if not isinstance(limits, (list, tuple)) or not limits:
        return say.skip("not-applicable", "the limit could not be read")
    soft = limits[0]
    slow_s = number(probe(facts, "host.nvml"), "init_s") or 0.0
    huge = isinstance(soft, int) and (soft < 0 or soft > _HUGE_NOFILE)
    if huge and slow_s > _SLOW_INIT_S:
        return say.warn(
            f"NVML took {slow_s:.0f} s to start under a limit of {soft} open files",
            why="helpers of the driver close every possible file number before they start",
            evidence=[seen("RLIMIT_NOFILE", soft), seen("nvmlInit", f"{slow_s:.1f} s")],
            fixes=[fix("container", "lower the limit", "docker run --ulimit nofile=1048576 ...")],
            confidence="likely",
        )
    return say.ok(f"{'unlimited' if soft == -1 else soft}, and the driver starts quickly")


def check_fabric(facts: Facts) -> Results:
    """Ask whether the NVSwitch fabric is ready, without which CUDA does not start at all."""
    say = Say("host.fabricmanager")
    gpus = nvml_gpus(facts)
    switches = probe(facts, "host.pci").get("nvswitches") or ()
    states = {
        gpu_label(gpu): state
        for gpu in gpus
        if (state := integer(group(gpu, "fabric"), "state")) is not None
        and state != FABRIC_NOT_SUPPORTED
    }
    if not switches and not states:
        return say.skip("not-applicable", "no NVSwitch, and no GPU is part of a fabric")
    waiting = {gpu: state for gpu, state in states.items() if state != FABRIC_COMPLETED}
    failed = {
        gpu_label(gpu): status
        for gpu in gpus
        if (status := integer(group(gpu, "fabric"), "status"))
        and integer(group(gpu, "fabric"), "state") == FABRIC_COMPLETED
    }
    services = group(probe(facts, "host.driver"), "services")
    running = services.get("nv-fabricmanager")
    if not waiting and not failed:
        if states or running or in_container(facts) or is_virtual(facts):
            return say.ok("the NVSwitch fabric is ready")
        if nvml_gpus(facts):
            return say.warn(
                "there is an NVSwitch and no fabric manager runs",
                evidence=[seen("PCI", f"{len(switches)} NVSwitches"), seen("/proc", "no process")],
                fixes=[_start_fabric(facts)],
                confidence="likely",
            )
        return say.skip("no-gpu", "NVML knows no GPU")
    release = driver_release(facts)
    return say.fail(
        "the NVSwitch fabric is not ready, so CUDA cannot start (802), not even on one GPU",
        why="the fabric manager does not run, or is not of exactly the driver's release",
        evidence=[
            *(
                seen(f"{gpu} fabric state", FABRIC_STATES.get(state, state))
                for gpu, state in waiting.items()
            ),
            *(seen(f"{gpu} fabric status", nvml_name(code)) for gpu, code in failed.items()),
            seen("nv-fabricmanager", "runs" if running else "does not run here"),
            seen("driver", release),
        ],
        fixes=[
            _start_fabric(facts),
            fix("host", f"install the fabric manager of release {release} and no other"),
        ],
        alternatives=["in a virtual machine the owner of the host must set up the partition"],
        confidence="certain" if waiting else "likely",
    )


def _start_fabric(facts: Facts) -> Fix:
    if is_virtual(facts):
        return fix("host", "ask whoever owns the host: the fabric is set up outside the VM")
    return fix("host", "start it", "systemctl enable --now nvidia-fabricmanager")


def check_inforom(facts: Facts) -> Results:
    """Find a GPU whose own small memory of settings and counters is corrupt."""
    say = Say("host.inforom")
    gpus = nvml_gpus(facts)
    if not gpus:
        return say.skip("no-gpu", "NVML knows no GPU")
    codes = {gpu_label(gpu): integer(gpu, "inforom") for gpu in gpus}
    corrupt = [label for label, code in codes.items() if code == 14]  # noqa: PLR2004 - NVML's code
    if corrupt:
        return say.warn(
            "the inforom is corrupt",
            why="ECC and power settings kept there may be wrong; the GPU computes all the same",
            evidence=[seen(label, nvml_name(14)) for label in corrupt],
            fixes=[fix("host", "have the GPU's firmware written anew by its maker")],
        )
    if not any(code == 0 for code in codes.values()):
        return say.skip("unsupported-by-driver", "these GPUs have none or hide it")
    return say.ok("whole")


def check_display(facts: Facts) -> Results:
    """Say which GPUs drive a display: less memory, and a watchdog on kernels."""
    say = Say("host.display")
    gpus = nvml_gpus(facts)
    if not gpus:
        return say.skip("no-gpu", "NVML knows no GPU")
    active = [gpu_label(gpu) for gpu in gpus if integer(gpu, "display_active") == 1]
    if active:
        return say.info(f"{', '.join(active)} drives a display: less free memory, kernels limited")
    return say.ok("no GPU drives a display")


def check_power_brake(facts: Facts) -> Results:
    """Find GPUs that an outside signal slows down at this moment, even idle."""
    say = Say("hw.brake")
    gpus = nvml_gpus(facts)
    if not gpus:
        return say.skip("no-gpu", "NVML knows no GPU")
    braked = [
        gpu_label(gpu) for gpu in gpus if (integer(gpu, "events") or 0) & EVENT_HW_POWER_BRAKE
    ]
    if braked:
        return say.warn(
            f"the power brake holds {', '.join(braked)} down",
            why="the power supply or the chassis asserts the brake line; so does a loose cable",
            evidence=[seen("clocks event reasons", "0x80")],
            fixes=[fix("host", "look at the power supplies and the cable of the GPU board")],
        )
    return say.ok("no GPU is braked from outside")


CHECKS = (
    Check(
        id="host.gpu.pci",
        title="GPUs on the PCI bus",
        level=Level.STATIC,
        run=check_pci,
        needs=("host.pci",),
        uses=("host.nvml", "host.machine"),
        explanation="""\
Lists PCI devices of vendor 10de and class 03xx, which needs no driver, and holds them against
NVML.

A GPU on the bus that NVML does not know was not started by the driver or was given up by it.
Fewer GPUs on the bus than the machine has means that one never came up at all: see
host.gpu.count. In a container the bus shows the whole machine, so a smaller number in NVML is
not a fault there.""",
    ),
    Check(
        id="host.gpu.count",
        title="Number of GPUs as expected",
        level=Level.STATIC,
        run=check_count,
        uses=("host.pci", "host.nvml", "host.cuda"),
        provides=("gpu-count",),
        explanation="""\
PCI, NVML and CUDA can agree on the wrong number: a GPU that never enumerated leaves no error,
no Xid and no gap. Say how many there should be with --expect-gpus N and this check compares.""",
    ),
    Check(
        id="host.gpu.lost",
        title="GPUs that left the bus",
        level=Level.STATIC,
        run=check_lost,
        uses=("host.nvml", "host.pci", "host.kernel-log"),
        explanation="""\
NVML says GPU_IS_LOST (15), the PCI configuration space reads as all ones, or the kernel logged
Xid 79. The link to the GPU is gone: power, slot, riser, or the GPU. A warm reboot often does
not bring it back; switching off does. If it happens again it is hardware.""",
    ),
    Check(
        id="host.smi.err",
        title="Core values readable",
        level=Level.STATIC,
        run=check_fields,
        needs=("host.nvml",),
        explanation="""\
Reads name, UUID, memory and temperature of each GPU and looks at the return code of each
question. nvidia-smi prints ERR! for such fields and still ends with exit code 0, so scripts
that trust its exit code see a healthy GPU.""",
    ),
    Check(
        id="host.fabricmanager",
        title="NVSwitch fabric ready",
        level=Level.STATIC,
        run=check_fabric,
        needs=("host.nvml",),
        uses=("host.pci", "host.driver", "host.machine"),
        explanation="""\
On HGX machines the GPUs are joined by NVSwitches, and CUDA refuses to start on any of them with
CUDA_ERROR_SYSTEM_NOT_READY (802) until the fabric manager has set them up. It must be of
exactly the driver's release. State 0 (not supported) is normal for every GPU without a fabric.
In a virtual machine the fabric belongs to the host: only its owner can mend it.""",
    ),
    Check(
        id="host.persistence",
        title="Persistence mode",
        level=Level.STATIC,
        run=check_persistence,
        needs=("host.nvml",),
        explanation="""\
Without persistence the driver shuts a GPU down when its last user leaves and starts it again
for the next, which takes seconds with many GPUs. Off is normal on a laptop or desktop.""",
    ),
    Check(
        id="host.rlimit.nofile",
        title="Open-file limit and driver start",
        level=Level.STATIC,
        run=check_nofile_slows,
        needs=("host.limits",),
        uses=("host.nvml",),
        explanation="""\
Some helpers close every possible file number one by one. With a limit of a thousand million
that took 24 seconds for one nvidia-smi (nvidia-container-toolkit issue 1053). Only reported
when the start really was slow.""",
    ),
    Check(
        id="host.inforom",
        title="Inforom",
        level=Level.STATIC,
        run=check_inforom,
        needs=("host.nvml",),
        explanation="The inforom keeps a GPU's ECC and power settings and counters on the board.",
    ),
    Check(
        id="host.display",
        title="Display on a GPU",
        level=Level.STATIC,
        run=check_display,
        needs=("host.nvml",),
        explanation="A GPU with a display has less free memory and a limit on long kernels.",
    ),
    Check(
        id="hw.brake",
        title="Power brake",
        level=Level.STATIC,
        run=check_power_brake,
        needs=("host.nvml",),
        explanation="""\
The clocks event reason 0x80 says that something outside the GPU holds its clocks down: a power
supply that failed, or a cable. It acts at once and for all kernels. Idle (0x1), application
clocks (0x2) and the software power cap (0x4) are normal and not reported.""",
    ),
)
