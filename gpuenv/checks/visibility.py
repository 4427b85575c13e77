"""Which GPUs a process sees: CUDA_VISIBLE_DEVICES, order, MIG, compute mode, free memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuenv.checks.model import Check, Level
from gpuenv.checks.nvml import COMPUTE_MODE_EXCLUSIVE, COMPUTE_MODE_PROHIBITED
from gpuenv.checks.say import (
    Results,
    Say,
    fix,
    group,
    in_mib,
    integer,
    number,
    probe,
    rows,
    seen,
    text,
)
from gpuenv.checks.scene import gpu_label, nvml_gpus, smi

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuenv.checks.model import Facts

_LITTLE_MEMORY_BYTES = 512 << 20


def visible_ordinals(value: str, uuids: Sequence[str]) -> tuple[tuple[int, ...], str]:
    """Return which GPUs CUDA would show for a value, and the token that cuts the list.

    CUDA reads from the left and stops at the first token it does not know: an index beyond the
    last GPU, a UUID that matches none or several, a word. A GPU named twice makes the whole list
    void. ``""`` and ``-1`` hide every GPU.

    Args:
        value: Of CUDA_VISIBLE_DEVICES.
        uuids: Of the GPUs there are, in CUDA's order.
    """
    chosen: list[int] = []
    for token in value.split(","):
        word = token.strip()
        if word.isdigit():
            ordinal = int(word)
        else:
            known = [number for number, uuid in enumerate(uuids) if word and uuid.startswith(word)]
            ordinal = known[0] if len(known) == 1 else len(uuids)
        if ordinal >= len(uuids):
            return tuple(chosen), word
        if ordinal in chosen:
            return (), word
        chosen.append(ordinal)
    return tuple(chosen), ""


def check_visible(facts: Facts) -> Results:
    """Explain CUDA_VISIBLE_DEVICES: what it shows, and where it is cut short."""
    say = Say("vis.cvd")
    env = group(probe(facts, "host.env"), "variables")
    value = env.get("CUDA_VISIBLE_DEVICES")
    gpus = nvml_gpus(facts)
    if value is None:
        return say.ok("not set: every GPU is visible")
    value = str(value)
    evidence = [seen("CUDA_VISIBLE_DEVICES", repr(value)), seen("NVML", f"{len(gpus)} GPUs")]
    if not gpus:
        return say.skip("no-gpu", f"CUDA_VISIBLE_DEVICES={value}, and no GPU to choose from")
    unset = fix("container", "remove it", "unset CUDA_VISIBLE_DEVICES")
    if value.strip() in ("", "-1"):
        return say.warn(
            f"CUDA_VISIBLE_DEVICES={value!r} hides every GPU",
            evidence=evidence,
            fixes=[unset],
        )
    if "MIG-" in value:
        return _visible_mig(say, value, gpus)
    shown, cut = visible_ordinals(value, [text(gpu, "uuid") for gpu in gpus])
    listed = [token.strip() for token in value.split(",")]
    if not cut and len(shown) == len(listed):
        return say.ok(f"shows GPU {', '.join(map(str, shown))}", *evidence)
    good = list(
        dict.fromkeys(
            token for token in listed if visible_ordinals(token, [text(g, "uuid") for g in gpus])[0]
        )
    )
    twice = listed.count(cut) > 1
    return say.fail(
        f"CUDA_VISIBLE_DEVICES={value}: {cut!r} "
        + (
            "stands there twice, which hides every GPU"
            if twice and not shown
            else f"cuts the list, {len(shown)} of {len(listed)} are left"
        ),
        why="CUDA reads from the left and stops at the first token it does not know, in silence",
        evidence=evidence,
        fixes=[
            fix(
                "container",
                "name GPUs that exist",
                f"export CUDA_VISIBLE_DEVICES={','.join(good)}"
                if good
                else "unset CUDA_VISIBLE_DEVICES",
            )
        ],
    )


def _visible_mig(say: Say, value: str, gpus: Sequence[Mapping[str, object]]) -> Results:
    known = [
        text(instance, "uuid") for gpu in gpus for instance in rows(group(gpu, "mig"), "instances")
    ]
    wanted = [token.strip() for token in value.split(",")]
    bad = [token for token in wanted if not any(uuid.startswith(token) for uuid in known)]
    if bad:
        return say.fail(
            f"CUDA_VISIBLE_DEVICES names a MIG instance that does not exist: {bad[0]}",
            why="instances get a new UUID whenever they are made anew",
            evidence=[seen("MIG instances", ", ".join(known) or "none")],
            fixes=[fix("container", "list them and name one", "nvidia-smi -L")],
        )
    if len(wanted) > 1:
        return say.warn(
            f"{len(wanted)} MIG instances are named and a process sees one",
            evidence=[seen("CUDA_VISIBLE_DEVICES", value)],
            fixes=[fix("container", "start one process for each instance")],
        )
    return say.ok("one MIG instance")


def check_order(facts: Facts) -> Results:
    """Warn where CUDA may number the GPUs otherwise than nvidia-smi does."""
    say = Say("vis.order")
    gpus = nvml_gpus(facts)
    if len(gpus) < 2:  # noqa: PLR2004 - one GPU has no order
        return say.skip("single-gpu" if gpus else "no-gpu", "one GPU has no order")
    env = group(probe(facts, "host.env"), "variables")
    names = sorted({text(gpu, "name") for gpu in gpus if text(gpu, "name")})
    if len(names) > 1 and env.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        return say.warn(
            f"different GPUs ({', '.join(names)}): CUDA counts the fastest first, nvidia-smi by "
            "slot",
            evidence=[seen("CUDA_DEVICE_ORDER", env.get("CUDA_DEVICE_ORDER", "not set"))],
            fixes=[fix("container", "make them agree", "export CUDA_DEVICE_ORDER=PCI_BUS_ID")],
        )
    return say.ok("CUDA and nvidia-smi number the GPUs alike")


def check_mig(facts: Facts) -> Results:
    """Find MIG mode without instances, and mode changes that wait for a reset."""
    say = Say("mig.state")
    gpus = [gpu for gpu in nvml_gpus(facts) if "current" in group(gpu, "mig")]
    if not nvml_gpus(facts):
        return say.skip("no-gpu", "NVML knows no GPU")
    if not gpus:
        return say.skip("unsupported-by-driver", "these GPUs have no MIG")
    results: list[Results] = []
    for gpu in gpus:
        mig, one = group(gpu, "mig"), say.of(gpu_label(gpu))
        current, pending = integer(mig, "current"), integer(mig, "pending")
        instances = rows(mig, "instances")
        if current == 1 and not instances:
            results.append(
                one.fail(
                    "MIG is on and no instance exists: CUDA sees no GPU",
                    evidence=[seen("MIG mode", "enabled"), seen("instances", 0)],
                    fixes=[
                        fix("host", "make one", smi("mig -cgi 0 -C", gpu)),
                        fix("host", "or switch MIG off", smi("-mig 0", gpu)),
                    ],
                )
            )
        elif current != pending:
            results.append(
                one.warn(
                    f"MIG changes to {'on' if pending else 'off'} at the next reset",
                    evidence=[seen("MIG mode", f"{current}, pending {pending}")],
                    fixes=[fix("host", "reset the GPU", smi("--gpu-reset", gpu))],
                )
            )
    if results:
        return tuple(result for found in results for result in found)
    on = sum(1 for gpu in gpus if integer(group(gpu, "mig"), "current"))
    return say.ok(f"on for {on} GPUs, with instances" if on else "off")


def check_mig_nccl(facts: Facts) -> Results:
    """Warn of several ranks on MIG instances, which NCCL joins only from 2.31.2 on."""
    say = Say("mig.nccl")
    mig = [gpu for gpu in nvml_gpus(facts) if integer(group(gpu, "mig"), "current") == 1]
    if not mig:
        return say.skip("not-applicable", "no GPU is in MIG mode")
    env = group(probe(facts, "host.env"), "variables")
    ranks = str(env.get("WORLD_SIZE", ""))
    if ranks.isdigit() and int(ranks) > 1 and env.get("NCCL_MULTI_RANK_GPU_ENABLE") != "1":
        return say.fail(
            f"{ranks} ranks on MIG instances: NCCL cannot join them",
            why="a process sees one instance, and NCCL takes two instances of a GPU for one GPU "
            "(Duplicate GPU detected)",
            evidence=[seen("WORLD_SIZE", ranks), seen("MIG", f"{len(mig)} GPUs")],
            fixes=[
                fix("host", "use whole GPUs", "nvidia-smi -mig 0"),
                fix(
                    "container",
                    "with NCCL 2.31.2 or newer, allow it",
                    "export NCCL_MULTI_RANK_GPU_ENABLE=1",
                ),
            ],
        )
    return say.info("MIG: one instance per process, and no NCCL between instances of one GPU")


def check_compute_mode(facts: Facts) -> Results:
    """Find GPUs closed to computing, or reserved for one process."""
    say = Say("mode.compute")
    gpus = nvml_gpus(facts)
    if not gpus:
        return say.skip("no-gpu", "NVML knows no GPU")
    results: list[Results] = []
    for gpu in gpus:
        mode, one = integer(gpu, "compute_mode"), say.of(gpu_label(gpu))
        users = integer(gpu, "processes") or 0
        if mode == COMPUTE_MODE_PROHIBITED:
            results.append(
                one.fail(
                    "is closed to computing (compute mode prohibited)",
                    evidence=[seen("compute mode", mode)],
                    fixes=[fix("host", "open it", smi("-c 0", gpu))],
                )
            )
        elif mode == COMPUTE_MODE_EXCLUSIVE and users:
            results.append(
                one.fail(
                    "is reserved for one process, and one has it",
                    why="others get: all CUDA-capable devices are busy or unavailable (46)",
                    evidence=[seen("compute mode", "exclusive process"), seen("processes", users)],
                    fixes=[
                        fix("host", "share it", smi("-c 0", gpu)),
                        fix("host", "or end the process that has it", "nvidia-smi"),
                    ],
                )
            )
        elif mode == COMPUTE_MODE_EXCLUSIVE:
            results.append(
                one.warn(
                    "is reserved for one process at a time",
                    evidence=[seen("compute mode", "exclusive process")],
                    fixes=[fix("host", "share it", smi("-c 0", gpu))],
                )
            )
    if results:
        return tuple(result for found in results for result in found)
    return say.ok("open to every process")


def check_free_memory(facts: Facts) -> Results:
    """Say which GPUs are nearly full; heavy checks pass them over."""
    say = Say("mem.free")
    gpus = nvml_gpus(facts)
    if not gpus:
        return say.skip("no-gpu", "NVML knows no GPU")
    full = []
    for gpu in gpus:
        memory = group(gpu, "memory")
        free = number(memory, "free")
        if free is not None and free < _LITTLE_MEMORY_BYTES:
            full.append((gpu_label(gpu), free))
    if full:
        return say.warn(
            "nearly full: " + ", ".join(f"{label} has {in_mib(free)} free" for label, free in full),
            why="somebody uses it; out-of-memory and CUBLAS_STATUS_NOT_INITIALIZED are to be "
            "expected, and no check loads it",
            evidence=[seen(label, in_mib(free)) for label, free in full],
            fixes=[fix("host", "see who has it", "nvidia-smi")],
            confidence="likely",
        )
    least = min((number(group(gpu, "memory"), "free") or 0) for gpu in gpus)
    if not least:
        return say.skip("unsupported-by-driver", "NVML does not tell the memory of these GPUs")
    return say.ok(f"{in_mib(least)} and more")


def check_confidential(facts: Facts) -> Results:
    """Ask whether a GPU in confidential computing mode has been declared ready."""
    say = Say("cc.mode")
    nvml = probe(facts, "host.nvml")
    if not nvml_gpus(facts):
        return say.skip("no-gpu", "NVML knows no GPU")
    if nvml.get("confidential") != 1:
        return say.skip("not-applicable", "confidential computing is off or unknown here")
    if integer(nvml, "confidential_ready") == 0:
        return say.fail(
            "confidential computing is on and the GPUs are not declared ready",
            why="until attestation is done CUDA answers 802, the system is not ready",
            evidence=[seen("NVML ready state", 0)],
            fixes=[fix("host", "attest, then declare ready", "nvidia-smi conf-compute -srs 1")],
        )
    return say.ok("on, and the GPUs are ready")


CHECKS = (
    Check(
        id="vis.cvd",
        title="CUDA_VISIBLE_DEVICES",
        level=Level.STATIC,
        run=check_visible,
        needs=("host.env",),
        uses=("host.nvml",),
        explanation="""\
CUDA reads the variable from the left. The first token that names no GPU ends the list in
silence; a GPU named twice makes the list void; an empty value or -1 hides every GPU. Tried with
real torch over two GPUs: '', -1, 7, '0,0' and 'GPU-0' show none; '1,9' and '0,x' show one.""",
    ),
    Check(
        id="vis.order",
        title="Order of the GPUs",
        level=Level.STATIC,
        run=check_order,
        needs=("host.nvml",),
        uses=("host.env",),
        explanation="""\
CUDA numbers the fastest GPU first unless CUDA_DEVICE_ORDER=PCI_BUS_ID; nvidia-smi goes by slot.
With equal GPUs the two agree.""",
    ),
    Check(
        id="mig.state",
        title="MIG",
        level=Level.STATIC,
        run=check_mig,
        needs=("host.nvml",),
        explanation="""\
MIG cuts a GPU into instances. With MIG on and no instance made, CUDA sees no GPU at all. A
changed mode waits for a reset of the GPU.""",
    ),
    Check(
        id="mig.nccl",
        title="NCCL on MIG",
        level=Level.STATIC,
        run=check_mig_nccl,
        needs=("host.nvml",),
        uses=("host.env",),
        explanation="""\
Instances of one GPU share its PCI address, which NCCL takes for one GPU used twice. NCCL 2.31.2
and newer allow it on request (NCCL_MULTI_RANK_GPU_ENABLE=1).""",
    ),
    Check(
        id="mode.compute",
        title="Compute mode",
        level=Level.STATIC,
        run=check_compute_mode,
        needs=("host.nvml",),
        explanation="Prohibited closes a GPU to CUDA; exclusive lets one process in at a time.",
    ),
    Check(
        id="mem.free",
        title="Free GPU memory",
        level=Level.STATIC,
        run=check_free_memory,
        needs=("host.nvml",),
        explanation="""\
A GPU with less than 512 MiB free is passed over by checks that need memory; that is no failure.
The list of processes is empty in a container although others use the GPU: it says nothing of
free.""",
    ),
    Check(
        id="cc.mode",
        title="Confidential computing",
        level=Level.STATIC,
        run=check_confidential,
        needs=("host.nvml",),
        explanation="A GPU in confidential mode refuses CUDA (802) until it is attested and ready.",
    ),
)
