"""The health counters of each GPU: rows, pages, ECC, Xids, limits, NVLinks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuenv.checks.model import Check, Level
from gpuenv.checks.nvml import RECOVERY_ACTIONS
from gpuenv.checks.say import Results, Say, fix, group, integer, number, probe, rows, seen, text
from gpuenv.checks.scene import gpu_label, in_container, nvml_gpus, smi

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpuenv.checks.model import Facts, Fix

_EXCHANGE = fix("host", "have the GPU exchanged")

# Source: Azure HPC health checks (remapped rows, retired pages, ECC), conf of 2026-05.
_REMAPPED_LIMIT = 512
_RETIRED_LIMIT = 62
_CORRECTED_LIMIT = 20_000_000
_POWER_FLOOR = 0.9
_XID_WINDOW_S = 7200.0

# What an Xid asks for. Source: NVIDIA, "Xid errors" catalogue; buckets as gpud groups them.
XID_APPLICATION = frozenset({13, 31, 43, 45, 68, 69})
XID_RESET = frozenset({46, 48, 62, 64, 74, 95, 109, 119, 120, 136, 140, 143, 154})
XID_POWER = frozenset({79})
XID_NOTICE = frozenset({63, 92, 94})


def _reset(gpu: Mapping[str, object]) -> Fix:
    return fix("host", "end what uses it and reset it", smi("--gpu-reset", gpu))


def _each(facts: Facts, say: Say) -> tuple[tuple[Mapping[str, object], Say], ...]:
    return tuple((gpu, say.of(gpu_label(gpu))) for gpu in nvml_gpus(facts))


def _join(results: list[Results]) -> Results:
    return tuple(result for found in results for result in found)


def _no_gpu(say: Say) -> Results:
    return say.skip("no-gpu", "NVML knows no GPU")


def check_remap(facts: Facts) -> Results:
    """Read the remapped memory rows: pending ones need a reset, failed ones a new GPU."""
    say = Say("hw.remap")
    found: list[Results] = []
    known = 0
    for gpu, one in _each(facts, say):
        counts = gpu.get("remapped_rows")
        if not isinstance(counts, (list, tuple)) or len(counts) < 4:  # noqa: PLR2004 - NVML's four
            continue
        known += 1
        corrected, uncorrected, pending, failed = (int(count) for count in counts[:4])
        evidence = [
            seen(
                "remapped rows",
                f"{corrected} corrected, {uncorrected} uncorrected, pending {pending}, "
                f"failed {failed}",
            )
        ]
        if failed or uncorrected > _REMAPPED_LIMIT:
            found.append(
                one.fail(
                    "a row of its memory is broken and could not be replaced"
                    if failed
                    else f"{uncorrected} rows of its memory were replaced",
                    why="the spare rows of the bank are used up",
                    evidence=evidence,
                    fixes=[_EXCHANGE],
                )
            )
        elif pending:
            found.append(
                one.warn(
                    "a row of its memory waits to be replaced at the next reset",
                    why="until then the broken row is in use",
                    evidence=evidence,
                    fixes=[_reset(gpu)],
                )
            )
    if found:
        return _join(found)
    if not nvml_gpus(facts):
        return _no_gpu(say)
    if not known:
        return say.skip("unsupported-by-driver", "these GPUs do not remap rows")
    return say.ok(f"no row is pending or failed on {known} GPUs")


def check_retired(facts: Facts) -> Results:
    """Read the retired pages of older GPUs."""
    say = Say("hw.retired")
    found: list[Results] = []
    known = 0
    for gpu, one in _each(facts, say):
        pages = group(gpu, "retired_pages")
        single, double = integer(pages, "single_bit"), integer(pages, "double_bit")
        if single is None or double is None:
            continue
        known += 1
        evidence = [seen("retired pages", f"{single} single bit, {double} double bit")]
        if single + double >= _RETIRED_LIMIT:
            found.append(
                one.fail(
                    f"{single + double} pages of its memory are retired",
                    why=f"from {_RETIRED_LIMIT} on NVIDIA exchanges the GPU",
                    evidence=evidence,
                    fixes=[_EXCHANGE],
                )
            )
        elif integer(pages, "pending"):
            found.append(
                one.warn(
                    "a page of its memory waits to be retired at the next reset",
                    evidence=evidence,
                    fixes=[_reset(gpu)],
                )
            )
    if found:
        return _join(found)
    if not nvml_gpus(facts):
        return _no_gpu(say)
    if not known:
        return say.skip("unsupported-by-driver", "these GPUs do not retire pages")
    return say.ok("no page is pending, and few are retired")


def check_ecc(facts: Facts) -> Results:
    """Read the counters of memory errors."""
    say = Say("hw.ecc")
    found: list[Results] = []
    known = 0
    for gpu, one in _each(facts, say):
        ecc = group(gpu, "ecc")
        volatile = integer(ecc, "uncorrected_volatile")
        corrected = integer(ecc, "corrected_aggregate") or 0
        if volatile is None:
            continue
        known += 1
        evidence = [
            seen("ECC since the driver's start", f"{volatile} uncorrected"),
            seen(
                "ECC ever",
                f"{integer(ecc, 'uncorrected_aggregate')} uncorrected, {corrected} corrected",
            ),
        ]
        if volatile:
            found.append(
                one.fail(
                    f"{volatile} memory errors that could not be corrected since the driver "
                    "started",
                    why="results computed since may be wrong, and processes were ended by it",
                    evidence=evidence,
                    fixes=[_reset(gpu), _EXCHANGE],
                )
            )
        elif corrected > _CORRECTED_LIMIT:
            found.append(
                one.warn(
                    f"{corrected} corrected memory errors in its life",
                    why="corrected errors do no harm; that many announce others",
                    evidence=evidence,
                    fixes=[_EXCHANGE],
                    confidence="possible",
                )
            )
    if found:
        return _join(found)
    if not nvml_gpus(facts):
        return _no_gpu(say)
    if not known:
        return say.skip("unsupported-by-driver", "these GPUs count no memory errors")
    return say.ok(f"no uncorrected memory error on {known} GPUs")


def check_ecc_mode(facts: Facts) -> Results:
    """Warn where ECC is off on a GPU that has it by default, or waits for a reset."""
    say = Say("hw.ecc.mode")
    found: list[Results] = []
    known = 0
    for gpu, one in _each(facts, say):
        mode = gpu.get("ecc_mode")
        if not isinstance(mode, (list, tuple)) or len(mode) < 2:  # noqa: PLR2004 - now and pending
            continue
        known += 1
        name = text(gpu, "name")
        if mode[0] != mode[1]:
            found.append(
                one.warn(
                    f"ECC is switched {'on' if mode[1] else 'off'} at the next reset",
                    evidence=[seen("ECC", f"now {mode[0]}, pending {mode[1]}")],
                    fixes=[_reset(gpu)],
                )
            )
        elif not mode[0] and not any(word in name for word in ("GeForce", "RTX", "Quadro")):
            found.append(
                one.warn(
                    "ECC is off on a data-center GPU: a flipped bit goes unnoticed",
                    evidence=[seen("ECC", "off"), seen("name", name)],
                    fixes=[fix("host", "switch it on and reset", smi("-e 1", gpu))],
                )
            )
    if found:
        return _join(found)
    if not nvml_gpus(facts):
        return _no_gpu(say)
    if not known:
        return say.skip("unsupported-by-driver", "these GPUs have no ECC")
    return say.ok("as it should be")


def check_xid(facts: Facts) -> Results:
    """Read recent Xids from the kernel's log and say what each asks for."""
    say = Say("hw.xid")
    log = probe(facts, "host.kernel-log")
    if not log.get("readable"):
        return say.skip("needs-root", "the kernel's log cannot be read here")
    uptime = number(log, "uptime_s")
    recent: dict[tuple[int, str], Mapping[str, object]] = {}
    older = 0
    for xid in rows(log, "xids"):
        at_s = number(xid, "at_s")
        if uptime is not None and at_s is not None and uptime - at_s > _XID_WINDOW_S:
            older += 1
            continue
        recent[integer(xid, "code") or 0, text(xid, "bdf")] = xid
    results = [
        found
        for (code, bdf), xid in recent.items()
        if (found := _judge_xid(say.of(f"Xid {code} {bdf}".strip()), code, text(xid, "text"), bdf))
    ]
    if results:
        return _join(results)
    if older:
        return say.info(f"{older} Xids since the boot, none in the last two hours")
    return say.ok("no Xid in the kernel's log")


def _judge_xid(one: Say, code: int, words: str, bdf: str) -> Results:
    gpu = {"bdf": bdf}
    evidence = [seen("kernel log", f"NVRM: Xid {code}: {words}")]
    if code in XID_APPLICATION:
        return one.warn(
            "a program made a fault on the GPU",
            why="an access outside its memory, or it was ended: mostly the program's own error",
            evidence=evidence,
            fixes=[fix("project", "run it with CUDA_LAUNCH_BLOCKING=1 or compute-sanitizer")],
            confidence="likely",
        )
    if code in XID_NOTICE:
        return one.warn(
            "a memory error was contained; restart the program it ended",
            evidence=evidence,
            fixes=[fix("project", "start the program again"), _reset(gpu)],
            confidence="likely",
        )
    if code in XID_POWER:
        return one.fail(
            "the GPU fell off the bus",
            evidence=evidence,
            fixes=[fix("host", "switch the machine off and on")],
            suspects=("host.gpu.lost",),
        )
    if code in XID_RESET:
        return one.fail(
            "the GPU needs a reset",
            why="the driver, its firmware or the memory ran into an error it cannot mend in use",
            evidence=evidence,
            fixes=[_reset(gpu), fix("host", "when it comes again, reboot, then exchange the GPU")],
            confidence="likely",
        )
    return one.warn(
        "the driver reported an error",
        evidence=evidence,
        fixes=[fix("host", "look it up in NVIDIA's Xid catalogue")],
        confidence="possible",
    )


def check_recovery(facts: Facts) -> Results:
    """Ask the driver itself what a GPU needs to be well again."""
    say = Say("hw.recovery")
    found: list[Results] = []
    known = 0
    for gpu, one in _each(facts, say):
        action = integer(gpu, "recovery_action")
        if action is None:
            continue
        known += 1
        if action:
            words = RECOVERY_ACTIONS.get(action, f"action {action}")
            found.append(
                one.fail(
                    f"the driver asks to {words}",
                    evidence=[seen("GPU recovery action", f"{action} ({words})")],
                    fixes=[fix("host", words)],
                )
            )
    if found:
        return _join(found)
    if not nvml_gpus(facts):
        return _no_gpu(say)
    if not known:
        return say.skip("unsupported-by-driver", "this driver does not tell")
    return say.ok("the driver asks for nothing")


def check_power_limit(facts: Facts) -> Results:
    """Warn where the power limit was lowered."""
    say = Say("hw.power.limit")
    found: list[Results] = []
    known = 0
    for gpu, one in _each(facts, say):
        limit, usual = number(gpu, "power_limit_w"), number(gpu, "power_default_w")
        if not limit or not usual:
            continue
        known += 1
        if limit < _POWER_FLOOR * usual:
            found.append(
                one.warn(
                    f"limited to {limit:.0f} W of {usual:.0f} W: slower under load",
                    evidence=[seen("enforced power limit", f"{limit:.0f} W, usual {usual:.0f} W")],
                    fixes=[
                        fix("host", "give it back", smi(f"-pl {usual:.0f}", gpu)),
                    ],
                )
            )
    if found:
        return _join(found)
    if not nvml_gpus(facts):
        return _no_gpu(say)
    if not known:
        return say.skip("unsupported-by-driver", "these GPUs tell no power limit")
    return say.ok("the usual one")


def check_clocks(facts: Facts) -> Results:
    """Warn where application clocks were set below the usual ones."""
    say = Say("hw.clocks")
    found: list[Results] = []
    known = 0
    for gpu, one in _each(facts, say):
        clock = number(gpu, "clock_application_mhz")
        usual = number(gpu, "clock_application_default_mhz")
        if not clock or not usual:
            continue
        known += 1
        if clock < usual:
            found.append(
                one.warn(
                    f"application clocks are set to {clock:.0f} MHz, {usual:.0f} MHz is usual",
                    evidence=[seen("application clocks", f"{clock:.0f} MHz")],
                    fixes=[fix("host", "give them back", smi("-rac", gpu))],
                )
            )
    if found:
        return _join(found)
    if not nvml_gpus(facts):
        return _no_gpu(say)
    if not known:
        return say.skip("unsupported-by-driver", "these GPUs have no application clocks")
    return say.ok("not lowered")


def check_nvlink(facts: Facts) -> Results:
    """Find GPUs with fewer NVLinks up than their equals in this machine."""
    say = Say("hw.nvlink")
    up: dict[str, tuple[str, int, int]] = {}
    for gpu in nvml_gpus(facts):
        links = gpu.get("nvlinks")
        if isinstance(links, (list, tuple)) and links:
            up[gpu_label(gpu)] = (text(gpu, "name"), sum(1 for link in links if link), len(links))
    if not nvml_gpus(facts):
        return _no_gpu(say)
    if not any(count for _, count, _ in up.values()):
        return say.skip("not-applicable", "no NVLink is up: cards without a bridge, or none")
    found: list[Results] = []
    for label, (name, count, total) in up.items():
        best = max(other for model, other, _ in up.values() if model == name)
        if count < best:
            found.append(
                say.of(label).fail(
                    f"{count} NVLinks are up, {best} on its equals",
                    why="a bridge, a cable or a tray that sits badly, or a switch that is down",
                    evidence=[seen("NVLinks up", f"{count} of {total}")],
                    fixes=[fix("host", "look at the links", "nvidia-smi nvlink --status")],
                    suspects=("host.fabricmanager",),
                )
            )
    if found:
        return _join(found)
    counts = sorted({count for _, count, _ in up.values()})
    return say.ok(f"{', '.join(map(str, counts))} up on each of {len(up)} GPUs")


def check_pcie_width(facts: Facts) -> Results:
    """Find GPUs on fewer PCIe lanes than they could have; the width does not change when idle."""
    say = Say("hw.pcie.width")
    found: list[Results] = []
    known = 0
    for gpu, one in _each(facts, say):
        link = group(gpu, "pcie")
        width, most = integer(link, "width"), integer(link, "width_max")
        if not width or not most:
            continue
        known += 1
        if width < most:
            found.append(
                one.warn(
                    f"PCIe x{width} of x{most}: copies to and from it are that much slower",
                    why="the slot has fewer lanes, a riser, or the card sits badly",
                    evidence=[seen("link width", f"x{width} of x{most}")],
                    fixes=[
                        fix("host", "reseat the card; look at the slot's bifurcation in the BIOS")
                    ],
                    confidence="likely",
                )
            )
    if found:
        return _join(found)
    if not nvml_gpus(facts):
        return _no_gpu(say)
    if not known:
        return say.skip("unsupported-by-driver", "the width is not told, as in most VMs")
    return say.ok("every GPU has all its lanes")


def check_topology(facts: Facts) -> Results:
    """Say how the GPUs are joined, by the worst pair."""
    say = Say("topo.matrix")
    pairs = rows(probe(facts, "host.nvml"), "pairs")
    if not pairs:
        return say.skip("single-gpu" if nvml_gpus(facts) else "no-gpu", "no pair of GPUs")
    nvlink = sum(1 for pair in pairs if integer(pair, "p2p_nvlink") == 0)
    ways = sorted({integer(pair, "ancestor") or 0 for pair in pairs})
    if nvlink == len(pairs):
        return say.info(f"NVLink between all {len(pairs)} pairs")
    peer = sum(1 for pair in pairs if integer(pair, "p2p_read") == 0)
    return say.info(
        f"{len(pairs)} pairs: {nvlink} by NVLink, {peer} with peer access",
        seen("common ancestors (NVML)", ways),
    )


def check_where_log(facts: Facts) -> Results:
    """Tell of memory kills the kernel logged."""
    say = Say("sys.oom")
    log = probe(facts, "host.kernel-log")
    if not log.get("readable"):
        return say.skip("needs-root", "the kernel's log cannot be read here")
    if in_container(facts):
        return say.skip("not-applicable", "the log speaks of the whole machine; see sys.mem")
    kills = [row for row in rows(log, "events") if row.get("kind") == "oom-kill"]
    if kills:
        return say.warn(
            f"the kernel ended {len(kills)} programs for want of memory since the boot",
            evidence=[seen("kernel log", text(row, "text")) for row in kills[-2:]],
            fixes=[fix("host", "give them more memory, or use fewer DataLoader workers")],
            confidence="likely",
        )
    return say.ok("no program was ended for want of memory")


def _check(
    id_: str, title: str, run: Callable[[Facts], Results], explanation: str, *needs: str
) -> Check:
    return Check(
        id=id_,
        title=title,
        level=Level.STATIC,
        run=run,
        needs=needs or ("host.nvml",),
        explanation=explanation,
    )


CHECKS = (
    _check(
        "hw.recovery",
        "Driver's own verdict",
        check_recovery,
        """\
Newer drivers say what a GPU needs: nothing, a reset, a reboot, draining. It is the same word
that the kernel logs with Xid 154.""",
    ),
    _check(
        "hw.remap",
        "Remapped memory rows",
        check_remap,
        """\
From Ampere on, broken memory rows are replaced by spare ones at the next reset. Pending means
that the reset is still to come; failed means that no spare row was left. More than 512
uncorrected remaps is Azure's limit for exchange.""",
    ),
    _check(
        "hw.retired",
        "Retired memory pages",
        check_retired,
        """\
Up to Volta, broken pages are taken out of use. From 62 on NVIDIA exchanges the GPU (Azure uses
the same limit).""",
    ),
    _check(
        "hw.ecc",
        "Memory errors",
        check_ecc,
        """\
Uncorrected errors since the driver's start mean that data was lost. Corrected ones do no harm;
from 20 million on (Azure's limit) they are worth watching.""",
    ),
    _check(
        "hw.ecc.mode",
        "ECC mode",
        check_ecc_mode,
        "Data-center GPUs have ECC on by default. GeForce and workstation cards may have none.",
    ),
    _check(
        "hw.xid",
        "Recent Xids",
        check_xid,
        """\
The driver writes its errors to the kernel's log as Xid numbers. 13, 31, 43 and their kin are
mostly a program's own fault; 48, 62, 64, 74, 95, 119, 120 and others ask for a reset; 79 means
that the GPU is gone; 63, 92, 94 tell of errors that were contained. In a container, or without
root, the log cannot be read: then this is skipped and says nothing.""",
        "host.kernel-log",
    ),
    _check(
        "hw.power.limit",
        "Power limit",
        check_power_limit,
        "Warns when the enforced limit is below 90 % of the GPU's usual one.",
    ),
    _check(
        "hw.clocks",
        "Application clocks",
        check_clocks,
        "Warns when application clocks were set below the GPU's usual ones.",
    ),
    _check(
        "hw.pcie.width",
        "PCIe lanes",
        check_pcie_width,
        """\
The number of lanes does not change when idle, unlike the generation: an idle GPU shows
generation 1, which is no fault and is looked at under load (hw.pcie.gen).""",
    ),
    _check(
        "hw.nvlink",
        "NVLinks",
        check_nvlink,
        """\
Compares the links that are up with GPUs of the same model in this machine. A PCIe card without
a bridge has all its links down, which is normal.""",
    ),
    _check(
        "topo.matrix",
        "Links between GPUs",
        check_topology,
        "What nvidia-smi topo -m shows, in one line.",
    ),
    _check(
        "sys.oom",
        "Memory kills on this machine",
        check_where_log,
        "Programs that the kernel ended because the machine or a cgroup ran out of memory.",
        "host.kernel-log",
    ),
)
