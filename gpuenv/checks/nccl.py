"""Collectives: are the sums right, did every rank arrive, how fast is it, and if not, why not."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpuenv.checks.devices import first_line, label, model_of, on, skipped
from gpuenv.checks.model import Check, Level
from gpuenv.checks.readings import UNREAD, Reading, read
from gpuenv.checks.say import Say, fix, group, integer, number, probe, rows, seen, text, words
from gpuenv.checks.thresholds import ALLREDUCE_GB_S, find
from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuenv.checks.model import Evidence, Facts
    from gpuenv.checks.say import Results

GIB = 1 << 30
_HARDWARE = ("p2p.copy", "topo.acs", "topo.iommu", "hw.nvlink", "hw.ecc", "hw.xid")

# --- the differential runs -----------------------------------------------------------------------

ARM_READINGS: dict[str, Reading] = {
    "p2p-off": Reading(
        fragment="NCCL_P2P_DISABLE=1",
        why="it works only without direct copies between GPUs: peer access is granted and does not "
        "work, as with ACS on the bridges, a translating IOMMU, or a driver fault",
        suspects=("p2p.copy", "topo.acs", "topo.iommu", "p2p.env"),
        fixes=(
            fix("host", "switch ACS off on the bridges above the GPUs, or set iommu=pt"),
            fix("container", "until then go by way of the host", "export NCCL_P2P_DISABLE=1"),
        ),
    ),
    "shm-off": Reading(
        fragment="NCCL_SHM_DISABLE=1",
        why="it works only without shared memory: /dev/shm is too small or not writable",
        suspects=("shm.size",),
        fixes=(fix("container", "give it more shared memory", "docker run --shm-size=8g ..."),),
    ),
    "nvls-off": Reading(
        fragment="NCCL_NVLS_ENABLE=0",
        why="it works only without NVLink SHARP: the fabric manager or the switch is not well",
        suspects=("host.fabricmanager", "hw.nvlink"),
        fixes=(
            fix("host", "restart the fabric manager", "systemctl restart nvidia-fabricmanager"),
            fix("container", "until then do without", "export NCCL_NVLS_ENABLE=0"),
        ),
    ),
    "loopback": Reading(
        fragment="the interface lo",
        why="it works only over the loopback interface: the one chosen otherwise leads nowhere",
        suspects=("nccl.ifname", "nccl.env"),
        fixes=(fix("container", "on one machine use loopback", "export NCCL_SOCKET_IFNAME=lo"),),
    ),
    "ib-off": Reading(
        fragment="NCCL_IB_DISABLE=1",
        why="it works only without InfiniBand: a port is down, or memory cannot be locked for it",
        suspects=("nccl.ib", "lim.memlock"),
        fixes=(fix("container", "until then do without", "export NCCL_IB_DISABLE=1"),),
    ),
    "cumem-off": Reading(
        fragment="NCCL_CUMEM_ENABLE=0",
        why="it works only without NCCL's use of CUDA's virtual memory interface",
        suspects=("torch.nccl.which", "host.driver.match"),
        fixes=(fix("container", "do without", "export NCCL_CUMEM_ENABLE=0"),),
    ),
    "library-path-off": Reading(
        fragment="LD_LIBRARY_PATH removed",
        why="it works only without LD_LIBRARY_PATH: another copy of a library stands in front",
        suspects=("torch.libs", "env.ldpath", "torch.nccl.which"),
        fixes=(fix("container", "unset it", "unset LD_LIBRARY_PATH"),),
    ),
    "own-settings-off": Reading(
        fragment="the environment's own NCCL and gloo settings removed",
        why="it works without the settings found in the environment, and no single one explains it",
        suspects=("nccl.ifname", "nccl.env", "p2p.env"),
        fixes=(fix("container", "remove them one by one", "env | grep -E '^(NCCL|GLOO)_'"),),
    ),
    "gloo": Reading(
        fragment="gloo in place of NCCL",
        why="processes and network are fine; the fault is in NCCL or between the GPUs",
        suspects=("torch.nccl.which", *_HARDWARE),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Differential:
    """What the differential runs taught.

    Attributes:
        ranks: The smallest group of ranks that fails.
    """

    reading: Reading
    evidence: tuple[Evidence, ...] = ()
    ranks: tuple[int, ...] = ()


def read_differential(found: Mapping[str, Any]) -> Differential:
    """Turn the arms that were run into a diagnosis: "works only with X"."""
    arms = rows(found, "differential")
    if not arms:
        return Differential(reading=UNREAD)
    evidence = tuple(
        seen(
            f"differential run {text(arm, 'name')}",
            f"ranks {arm.get('ranks')}: {'works' if arm.get('ok') else 'fails'}",
        )
        for arm in arms
    )
    failing = [tuple(arm.get("ranks") or ()) for arm in arms if not arm.get("ok")]
    smallest: tuple[int, ...] = min(failing, key=len, default=())
    if arms[0].get("ok"):
        why = "the same run again works: the fault comes and goes"
        reading = Reading(fragment="", why=why, suspects=_HARDWARE, confidence="possible")
        return Differential(reading=reading, evidence=evidence)
    cures = [arm for arm in arms if arm.get("ok") and text(arm, "name") != "pair"]
    if not cures:
        why = "no single change makes it work"
        if text(found, "differential_ended") == "out of time":
            why = "no change that there was time for makes it work"
        return Differential(
            reading=Reading(fragment="", why=why, confidence="possible"),
            evidence=evidence,
            ranks=smallest,
        )
    return Differential(reading=_cure(cures[-1]), evidence=evidence, ranks=smallest)


def _cure(arm: Mapping[str, Any]) -> Reading:
    name = text(arm, "name")
    variable = name.removeprefix("without ") if name.startswith("without ") else ""
    if name == "own-settings-off":
        removed = list(group(arm, "env"))
        variable = removed[0] if len(removed) == 1 else ""
    if variable:
        return Reading(
            fragment=variable,
            why=f"it works as soon as {variable} is removed from the environment",
            suspects=("nccl.ifname", "nccl.env", "p2p.env"),
            fixes=(fix("container", "unset it", f"unset {variable}"),),
            confidence="certain",
        )
    return ARM_READINGS.get(name, UNREAD)


# --- the all-reduce ------------------------------------------------------------------------------


def _who(found: Mapping[str, Any], rank: object) -> str:
    """Return ``rank 3 (GPU 3)``."""
    for entry in rows(found, "ranks"):
        if entry.get("rank") == rank:
            return f"rank {rank} ({label(text(entry, 'device') or 'cpu')})"
    return f"rank {rank}"


def _names(found: Mapping[str, Any], ranks: object) -> str:
    several = ranks if isinstance(ranks, (list, tuple)) else []
    return ", ".join(_who(found, rank) for rank in several)


def _failure(found: Mapping[str, Any]) -> tuple[str, list[Evidence], list[str]]:
    """Return a sentence on a failed run, its evidence, and the texts to read a cause from."""
    failure = group(found, "failure")
    kind, stage = text(failure, "kind"), text(failure, "stage")
    texts = [text(failure, "error"), *words(failure, "words")]
    texts += words(group(found, "log"), "warnings")
    evidence = [seen(f"rank {failure.get('rank')}", text(failure, "error"))]
    evidence += [seen("NCCL WARN", line) for line in words(group(found, "log"), "warnings")]
    for entry in rows(found, "ranks"):
        where = words(entry, "where")
        if where:
            evidence.append(seen(f"stack of rank {entry.get('rank')}", " < ".join(where)))
    if kind == "hang":
        missing = failure.get("missing")
        limit = number(found, "limit_s") or 0.0
        if missing:
            sentence = f"{_names(found, missing)} did not arrive at {stage} within {limit:g} s"
        else:
            sentence = f"all ranks arrived at {stage} and nothing moved for {limit:g} s"
    elif kind == "died":
        who = _who(found, failure.get("rank"))
        sentence = f"{who} died in {stage} ({text(failure, 'error')})"
    else:
        who = _who(found, failure.get("rank"))
        sentence = f"{who} failed in {stage}: {first_line(text(failure, 'error'))}"
    return sentence, evidence, texts


def _wrong_sums(found: Mapping[str, Any]) -> tuple[str, list[Evidence]] | None:
    """Return a sentence on the first wrong sum, ``None`` when all are right."""
    entries = [*rows(found, "all_reduce"), group(found, "scatter_gather")]
    for entry in entries:
        wrong = integer(entry, "wrong")
        if not wrong:
            continue
        first = group(entry, "first")
        what = text(entry, "dtype") or "reduce_scatter + all_gather"
        sentence = f"wrong sums: {wrong} of {entry.get('elements')} elements ({what})"
        lost = entry.get("lost_ranks")
        if lost:
            sentence += f"; what {_names(found, lost)} gave is missing"
        value = (
            f"element {first.get('index')} is {first.get('got')}, not {first.get('right')}; "
            f"seen by ranks {entry.get('wrong_ranks')}"
        )
        return sentence, [seen("torch.collective", value)]
    return None


def _judge_collective(say: Say, found: Mapping[str, Any], how: str) -> Results:
    """Judge one run of the process group, whatever its backend."""
    if group(found, "failure"):
        sentence, evidence, texts = _failure(found)
    else:
        wrong = _wrong_sums(found)
        if wrong is None:
            return _right(say, found, how)
        sentence, evidence = wrong
        texts = []
    learnt = read_differential(found)
    spoken = read(*texts)
    # a cure that was found by trying is better evidence than a text
    reading = learnt.reading if learnt.reading.suspects else spoken
    if reading is UNREAD:
        reading = replace(learnt.reading, suspects=_HARDWARE)
    if learnt.ranks and len(learnt.ranks) < (integer(found, "world") or 0):
        sentence += f"; ranks {' and '.join(map(str, learnt.ranks))} alone fail too"
    return say.fail(
        sentence,
        why=" ".join(part for part in (reading.why, _also(reading, spoken)) if part),
        evidence=[*evidence, *learnt.evidence],
        fixes=reading.fixes or spoken.fixes,
        alternatives=reading.alternatives,
        suspects=tuple(dict.fromkeys((*reading.suspects, *spoken.suspects))),
        confidence=reading.confidence,
    )


def _also(reading: Reading, spoken: Reading) -> str:
    if spoken is UNREAD or spoken is reading:
        return ""
    return f"(the error text: {spoken.why})"


def _right(say: Say, found: Mapping[str, Any], how: str) -> Results:
    entries = rows(found, "all_reduce")
    done = [entry for entry in entries if not text(entry, "unsupported")]
    if not done or any(entry.get("wrong") != 0 for entry in done):
        return say.error("no all-reduce was completed, and none failed")
    dtypes = ", ".join(dict.fromkeys(text(entry, "dtype") for entry in done))
    log = group(found, "log")
    evidence = [seen("seconds", found.get("seconds")), seen("backend", found.get("backend"))]
    evidence += [seen("NCCL chose", f"{k} on {v} channels") for k, v in _transports(log).items()]
    return say.ok(f"sums exact {how} ({dtypes})", *evidence)


def _transports(log: Mapping[str, Any]) -> Mapping[str, Any]:
    return group(log, "transports")


def check_allreduce(facts: Facts) -> Results:
    """Judge the all-reduce between processes on GPUs; what gloo did does not count for NCCL."""
    say = Say("nccl.allreduce.mp")
    found = probe(facts, "torch.collective")
    skip = skipped(say, found)
    if skip is not None:
        return skip
    if found.get("backend") != "nccl":
        return say.skip("no-gpu", "no GPU: the same code ran on gloo (gloo.allreduce)")
    world = integer(found, "world") or 0
    how = f"between {world} GPUs" if world > 1 else "on one GPU; no link was exercised"
    return _judge_collective(say, found, how)


def check_gloo(facts: Facts) -> Results:
    """Judge the all-reduce between processes on the CPU."""
    say = Say("gloo.allreduce")
    found = probe(facts, "torch.collective")
    skip = skipped(say, found)
    if skip is not None:
        return skip
    if found.get("backend") != "gloo":
        return say.skip("not-applicable", "NCCL was used instead (nccl.allreduce.mp)")
    results = _judge_collective(
        say, found, f"between {found.get('world')} processes on the CPU, by gloo"
    )
    curve = _curve(found, None, "gloo on the CPU: says nothing about a GPU")
    return tuple(replace(result, numbers=curve) for result in results)


def check_one_process(facts: Facts) -> Results:
    """Judge NCCL's all-reduce over all GPUs of one process."""
    say = Say("nccl.allreduce.1p")
    found = probe(facts, "torch.allreduce-1p")
    skip = skipped(say, found)
    if skip is not None:
        return skip
    results = rows(found, "results")
    bad = [entry for entry in results if entry.get("wrong")]
    if bad:
        names = ", ".join(label(text(entry, "device")) for entry in bad)
        return say.fail(
            f"wrong sums on {names}",
            why="what one GPU sends does not arrive as it was sent",
            evidence=[
                seen(text(entry, "device"), f"{entry.get('wrong')} elements wrong") for entry in bad
            ],
            suspects=_HARDWARE,
        )
    if not results or any(entry.get("wrong") != 0 for entry in results):
        return say.error("torch.allreduce-1p told of no sum")
    devices = tuple(text(entry, "device") for entry in results)
    link = "" if len(devices) > 1 else "; no link was exercised"
    return say.ok(f"sums exact from one process {on(devices)}{link}")


def check_duplicates(facts: Facts) -> Results:
    """Ask whether every rank has a GPU of its own."""
    say = Say("nccl.dup_gpu")
    found = probe(facts, "torch.collective")
    skip = skipped(say, found)
    if skip is not None:
        return skip
    if found.get("backend") != "nccl":
        return say.skip("no-gpu", "no GPU to share")
    owners: dict[str, list[str]] = {}
    for entry in rows(found, "ranks"):
        # MIG slices of one GPU share its bus id; the uuid tells them apart
        key = text(entry, "uuid") or text(entry, "pci")
        if key:
            owners.setdefault(key, []).append(str(entry.get("rank")))
    shared = [(key, ranks) for key, ranks in owners.items() if len(ranks) > 1]
    if shared:
        key, ranks = shared[0]
        return say.fail(
            f"ranks {' and '.join(ranks)} use the same GPU",
            why="a GPU is named twice, or the processes do not choose their own",
            evidence=[seen("GPU", key)],
            fixes=[
                fix("project", "bind each process to its own", "torch.cuda.set_device(local_rank)")
            ],
            suspects=("vis.cvd", "mig.nccl"),
        )
    if not owners:
        return say.error("no rank told which GPU it has")
    return say.ok(f"every rank has a GPU of its own ({len(owners)})")


def check_gradients(facts: Facts) -> Results:
    """Ask whether DistributedDataParallel gives every rank the whole batch's gradient."""
    say = Say("num.ddp")
    found = probe(facts, "torch.collective")
    skip = skipped(say, found)
    if skip is not None:
        return skip
    ddp = group(found, "ddp")
    if ddp:
        return _judge_gradients(say, ddp)
    if group(found, "failure"):
        return say.skip("blocked", "the process group failed before it")
    return say.error("torch.collective told nothing of DistributedDataParallel")


def _judge_gradients(say: Say, ddp: Mapping[str, Any]) -> Results:
    gradients = ddp.get("gradients") or []
    if ddp.get("weights_synced") is not True:
        return say.fail(
            "ranks start from different weights",
            why="DistributedDataParallel did not copy rank 0's weights to the others",
            evidence=[seen("torch.collective", "weights_synced is false")],
        )
    first = gradients[0] if gradients else None
    for rank, gradient in enumerate(gradients):
        if gradient != first:
            return say.fail(
                f"rank {rank} has other gradients than rank 0",
                why="the models drift apart from the first step on, and no error will say so",
                evidence=[seen(f"rank {rank}", gradient), seen("rank 0", first)],
                suspects=("nccl.allreduce.mp", *_HARDWARE),
            )
    # averaging over 3, 5, 6 or 7 ranks rounds in the last bit; a whole number off is a fault
    rounded = [round(value) for value in first] if first and _numbers(first) else first
    if rounded != ddp.get("reference"):
        return say.fail(
            "the averaged gradient is not the whole batch's",
            why="a rank's share is missing or counted twice",
            evidence=[seen("got", first), seen("right", ddp.get("reference"))],
            suspects=("nccl.allreduce.mp", *_HARDWARE),
        )
    return say.ok(
        f"DistributedDataParallel: equal gradients on {len(gradients)} ranks, the whole batch's"
    )


def _numbers(values: object) -> bool:
    return isinstance(values, (list, tuple)) and all(isinstance(v, (int, float)) for v in values)


# --- bandwidth -----------------------------------------------------------------------------------


def _curve(found: Mapping[str, Any], expected: float | None, title: str) -> dict[str, Any]:
    points = [[entry.get("bytes"), entry.get("busbw")] for entry in rows(found, "bandwidth")]
    if not points or points[0][1] is None:
        return {}
    return {
        "curve": {
            "title": title,
            "x": "size",
            "x_unit": "bytes",
            "y": "bus bandwidth",
            "y_unit": "GB/s",
            "log": True,
            "expected": expected,
            "series": [{"name": "float32", "points": points}],
        }
    }


def check_bandwidth(facts: Facts) -> Results:
    """Compare the bus bandwidth of large all-reduces with what such machines reach."""
    say = Say("nccl.bw")
    found = probe(facts, "torch.collective")
    skip = skipped(say, found)
    if skip is not None:
        return skip
    world = integer(found, "world") or 0
    if found.get("backend") != "nccl":
        return say.skip("no-gpu", "no GPU: nothing to measure between")
    if world == 1:
        return say.skip("single-gpu", "one GPU: there is no bus between GPUs to measure")
    entries = rows(found, "bandwidth")
    if not entries:
        return say.skip("blocked", "the process group failed before it")
    return _judge_bandwidth(say, facts, found, entries[-1])


def _judge_bandwidth(
    say: Say, facts: Facts, found: Mapping[str, Any], largest: Mapping[str, Any]
) -> Results:
    world = integer(found, "world") or 0
    models = {model_of(facts, f"cuda:{device}") for device in found.get("devices") or []}
    model = models.pop() if len(models) == 1 else "GPUs of different models"
    size, measured = integer(largest, "bytes") or 0, number(largest, "busbw") or 0.0
    row = find(ALLREDUCE_GB_S, model, gpus=world)
    evidence = [
        seen("algorithm bandwidth", f"{number(largest, 'algbw') or 0:.1f} GB/s at {size} bytes"),
        *(seen("NCCL chose", name) for name in _transports(group(found, "log"))),
    ]
    numbers: dict[str, Any] = {"value": round(measured, 2), "unit": "GB/s"}
    title = f"all-reduce over {world} GPUs"
    if row is None or size < GIB:
        numbers |= _curve(found, None, title)
        reason = f"no reference for {world} x {model}" if row is None else "too little memory"
        results = say.info(f"{measured:.1f} GB/s bus bandwidth ({reason})", *evidence)
        return tuple(replace(result, numbers=numbers) for result in results)
    numbers |= {"floor": row.floor, "expected": row.usual or row.floor, "source": row.source}
    numbers |= _curve(found, row.usual or row.floor, title)
    sentence = f"{measured:.0f} GB/s bus bandwidth between {world} GPUs"
    if measured >= row.floor:
        results = say.ok(sentence, *evidence)
        return tuple(replace(result, numbers=numbers) for result in results)
    judged = say.fail if measured < row.failing else say.warn
    return judged(
        f"{sentence}, {row.floor:g} expected at least",
        why="look at what NCCL chose first: SHM or NET where NVLink or P2P should be",
        evidence=[*evidence, seen("reference", row.source)],
        suspects=("hw.nvlink", "nccl.env", "hw.pcie.gen", "hw.throttle", "host.fabricmanager"),
        numbers=numbers,
        confidence="likely",
    )


_AFTER = ("torch.import", "torch.kernel")

CHECKS = (
    Check(
        id="nccl.allreduce.1p",
        title="All-reduce from one process",
        level=Level.QUICK,
        run=check_one_process,
        needs=("torch.allreduce-1p",),
        after=_AFTER,
        explanation="""\
One process sums whole numbers over all its GPUs by NCCL and compares every element with the exact
sum. It takes a second and finds what matters most: bytes that do not arrive as they were sent,
and links on which nothing arrives.

With one GPU the check passes and says that no link was exercised.""",
    ),
    Check(
        id="nccl.allreduce.mp",
        title="All-reduce between processes",
        level=Level.STANDARD,
        run=check_allreduce,
        needs=("torch.collective",),
        after=_AFTER,
        provides=("nccl",),
        explanation="""\
One process per GPU, as training runs: four types, three sizes, whole numbers that depend on rank
and position, so that a lost, repeated or misplaced contribution shows and is named. Then
reduce_scatter with all_gather, which must equal all_reduce, a timed sweep of sizes, one
DistributedDataParallel step and the samples each rank would get.

Every rank announces each step. When nothing moves for the hang limit, the ranks that have not
begun the furthest step are named, and every rank's stack is written down. A rank that dies or
raises is named with its last words; the others' complaints about it are not mistaken for the
cause.

When it fails, the run is repeated with one thing changed at a time: the same again, pairs of
GPUs, your own NCCL_ settings off, then P2P, shared memory, NVLink SHARP, the network interface,
InfiniBand, cuMem and LD_LIBRARY_PATH, and last gloo. "Works only with X" is the diagnosis; an
answer that does not change with P2P off speaks against P2P.

With one GPU no link is exercised; without a GPU the same code runs on gloo (gloo.allreduce),
which proves processes, network and torch, but no GPU.""",
    ),
    Check(
        id="gloo.allreduce",
        title="All-reduce on the CPU",
        level=Level.STANDARD,
        run=check_gloo,
        needs=("torch.collective",),
        after=("torch.import",),
        explanation="""\
Where there is no GPU, the code of nccl.allreduce.mp runs with two processes on the CPU and gloo.
It exercises rendezvous, sockets, shared memory limits and DistributedDataParallel, and says
nothing about GPUs or the links between them: the requirement nccl stays unmet.

gloo finds its interface by the machine's own name, or by GLOO_SOCKET_IFNAME; in a container whose
name does not resolve, set that to eth0 or lo.""",
    ),
    Check(
        id="nccl.dup_gpu",
        title="A GPU for every rank",
        level=Level.STANDARD,
        run=check_duplicates,
        needs=("torch.collective",),
        after=_AFTER,
        explanation="""\
Compares the identity (UUID and bus id) of the GPU that each rank holds. Two ranks on one GPU make
NCCL stop with "Duplicate GPU detected", or train at half speed with gloo. Bind every process to
its own: torch.cuda.set_device(local_rank), and give each MIG slice by its UUID.""",
    ),
    Check(
        id="nccl.bw",
        title="All-reduce bandwidth",
        level=Level.STANDARD,
        run=check_bandwidth,
        needs=("torch.collective",),
        uses=("torch.devices",),
        after=("nccl.allreduce.mp",),
        explanation="""\
Bus bandwidth is algorithm bandwidth times 2(n-1)/n: what each link carries, comparable between
numbers of GPUs. It is judged at 1 GiB and above, where start-up costs no longer count; at 32 KiB
1 GB/s is normal. 80 % of what such a machine usually reaches is asked for; below half of it is a
failure. A machine without a reference gets its number and no verdict.

Values above the wire's speed are right with NVLink SHARP. Too low a value mostly means another
kind of link than thought: look at what NCCL chose.""",
    ),
    Check(
        id="num.ddp",
        title="Gradients over ranks",
        level=Level.STANDARD,
        run=check_gradients,
        needs=("torch.collective",),
        after=("torch.import",),
        explanation="""\
Each rank starts from other weights, takes its rows of one batch of whole numbers and trains one
DistributedDataParallel step. Construction must replace the weights by rank 0's; the averaged
gradients must be equal on all ranks, bit for bit, and be the whole batch's gradient.

If they differ, the models drift apart from the first step on and nothing else will tell you.""",
    ),
)
