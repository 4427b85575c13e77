"""How fast the paths of a job are, and what held them back while they were measured."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpuenv.checks.devices import failed, label, model_of, skipped, span
from gpuenv.checks.model import Check, Level
from gpuenv.checks.say import Say, fix, group, in_mib, integer, number, probe, rows, seen, text
from gpuenv.checks.thresholds import (
    MATMUL_TFLOPS,
    MEMORY_GB_S,
    PEER_GB_S,
    Threshold,
    find,
    link_rate,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpuenv.checks.model import Evidence, Facts
    from gpuenv.checks.say import Results

BUSY_PERCENT = 10
"""Above this a GPU was at work before the measurement, so a low number accuses nobody."""

THROTTLED_SHARE = 0.5
MARGIN_CELSIUS = 5

REASONS = {
    0x8: "hardware slowdown",
    0x20: "software thermal limit",
    0x40: "hardware thermal limit",
    0x80: "power brake",
}
"""Clock event bits that tell of trouble; 0x1 idle, 0x2 set clocks and 0x4 power cap are normal."""


def _entries(say: Say, facts: Facts, name: str) -> tuple[tuple[Mapping[str, Any], ...], Results]:
    """Return a probe's device entries; or none of them and the result that ends the check."""
    found = probe(facts, name)
    entries = rows(found, "results")
    if entries:
        return entries, ()
    return (), skipped(say, found) or say.error(f"{name} told of no device")


def _measure(
    facts: Facts,
    name: str,
    say: Say,
    *,
    key: str,
    unit: str,
    title: str,
    row_of: Callable[[Mapping[str, Any]], Threshold | None],
    suspects: tuple[str, ...],
) -> Results:
    """Judge one rate per device against its row; a rate without a row is told, not judged."""
    entries, ended = _entries(say, facts, name)
    if ended:
        return ended
    bad: list[Results] = []
    bars: list[list[Any]] = []
    told: list[str] = []
    used: list[Threshold] = []
    for entry in entries:
        device = text(entry, "device")
        one = say.of(label(device))
        measured = number(entry, key)
        if measured is None:
            bad.append(_unmeasured(one, entry, name, title))
            continue
        bars.append([label(device), round(measured, 1)])
        told.append(f"{measured:.0f}")
        row = row_of(entry)
        if row is not None:
            used.append(row)
            verdict = _below(one, entry, measured, row, unit=unit, suspects=suspects)
            if verdict is not None:
                bad.append(verdict)
    numbers: dict[str, Any] = {"bars": {"title": title, "unit": unit, "bars": bars}}
    if used:
        numbers["bars"] |= {"floor": used[0].floor, "expected": used[0].usual or used[0].floor}
        numbers["source"] = used[0].source
    spread = f"{min(told, key=float)} to {max(told, key=float)}" if len(set(told)) > 1 else ""
    sentence = f"{spread or ''.join(told[:1])} {unit}"
    if bad:
        results = tuple(result for verdict in bad for result in verdict)
    elif used:
        results = say.ok(f"{sentence} ({used[0].floor:g} asked for)")
    else:
        results = say.info(f"{sentence} (no reference for this hardware)")
    return tuple(
        replace(result, numbers={**numbers, **result.numbers} if index == 0 else result.numbers)
        for index, result in enumerate(results)
    )


def _unmeasured(say: Say, entry: Mapping[str, Any], name: str, title: str) -> Results:
    error, too_little = text(entry, "error"), integer(entry, "too_little_memory")
    if error:
        return failed(say, f"{title} failed", error, source=name)
    if too_little is not None:
        return say.skip("busy", f"only {in_mib(too_little)} of GPU memory are free")
    return say.error(f"{name} told no rate")


def _below(
    say: Say,
    entry: Mapping[str, Any],
    measured: float,
    row: Threshold,
    *,
    unit: str,
    suspects: tuple[str, ...],
) -> Results | None:
    if measured >= row.floor:
        return None
    busy = integer(entry, "utilization_before") or 0
    evidence: list[Evidence] = [
        seen("measured", f"{measured:.1f} {unit}"),
        seen("reference", row.source),
    ]
    evidence += _load_evidence(entry)
    numbers = {"value": round(measured, 2), "unit": unit, "floor": row.floor, "source": row.source}
    sentence = f"{measured:.0f} {unit}, {row.floor:g} expected at least"
    if busy > BUSY_PERCENT:
        return say.warn(
            f"{sentence}; the GPU was {busy} % busy before",
            why="another process uses this GPU: measure again when it is idle",
            evidence=evidence,
            numbers=numbers,
            confidence="possible",
        )
    judged = say.fail if measured < row.failing else say.warn
    return judged(
        sentence,
        why="clocks, link or memory are held back; the evidence says what NVML saw meanwhile",
        evidence=evidence,
        suspects=suspects,
        numbers=numbers,
        confidence="likely",
    )


def _load_evidence(entry: Mapping[str, Any]) -> list[Evidence]:
    load = group(entry, "load")
    told = []
    for key, what, unit, share in (
        ("sm_clock", "SM clock", "MHz", 1.0),
        ("celsius", "temperature", "C", 1.0),
        ("power_mw", "power", "W", 0.001),
        ("pcie_gen", "PCIe generation", "", 1.0),
        ("pcie_width", "PCIe lanes", "", 1.0),
    ):
        pair = span(load, key)
        if pair is not None:
            low, high = pair[0] * share, pair[1] * share
            told.append(seen(f"{what} under load", f"{low:.0f} to {high:.0f} {unit}".rstrip()))
    return told


def check_matmul_rate(facts: Facts) -> Results:
    """Compare dense matmul with what this model usually reaches."""
    return _measure(
        facts,
        "torch.matmul-rate",
        Say("perf.matmul"),
        key="tflops",
        unit="TFLOP/s",
        title="16-bit matrix products",
        row_of=lambda entry: find(MATMUL_TFLOPS, model_of(facts, text(entry, "device"))),
        suspects=("hw.throttle", "hw.power.limit", "hw.clocks", "hw.temp"),
    )


def check_memory_rate(facts: Facts) -> Results:
    """Compare a copy within GPU memory with the floor of this model."""
    return _measure(
        facts,
        "torch.memory-rate",
        Say("perf.hbm"),
        key="gb_per_s",
        unit="GB/s",
        title="copies within GPU memory, read and written",
        row_of=lambda entry: find(MEMORY_GB_S, model_of(facts, text(entry, "device"))),
        suspects=("hw.remap", "hw.ecc", "hw.throttle"),
    )


def _link_row(entry: Mapping[str, Any]) -> Threshold | None:
    fixed = group(entry, "fixed")
    generation, lanes = integer(fixed, "pcie_gen_max"), integer(fixed, "pcie_width_max")
    return None if generation is None or lanes is None else link_rate(generation, lanes)


def check_transfer(facts: Facts) -> Results:
    """Compare pinned copies, the slower direction, with the floor of the link."""
    slower = _with_slower_direction(facts)
    return _measure(
        slower,
        "torch.transfer",
        Say("perf.h2d"),
        key="slower",
        unit="GB/s",
        title="pinned copies between host and GPU",
        row_of=_link_row,
        suspects=("hw.pcie.gen", "hw.pcie.replay", "topo.*"),
    )


def _with_slower_direction(facts: Facts) -> Facts:
    run = facts.probes.get("torch.transfer")
    if run is None or run.status != "ok":
        return facts
    entries = []
    for entry in rows(run.facts, "results"):
        rates = [rate for rate in (number(entry, "h2d"), number(entry, "d2h")) if rate is not None]
        entries.append({**entry, "slower": min(rates)} if rates else entry)
    changed = replace(run, facts={**run.facts, "results": entries} if entries else run.facts)
    return replace(facts, probes={**facts.probes, "torch.transfer": changed})


# --- the link and the clocks under load ----------------------------------------------------------


def check_link(facts: Facts) -> Results:
    """Ask whether the PCIe link ran at its full width and generation while it was loaded."""
    say = Say("hw.pcie.gen")
    entries, ended = _entries(say, facts, "torch.transfer")
    if ended:
        return ended
    results: list[Results] = []
    known = 0
    for entry in entries:
        fixed, load = group(entry, "fixed"), group(entry, "load")
        width, generation = span(load, "pcie_width"), span(load, "pcie_gen")
        width_max, generation_max = integer(fixed, "pcie_width_max"), integer(fixed, "pcie_gen_max")
        if width is None or generation is None or not width_max or not generation_max:
            continue
        known += 1
        one = say.of(label(text(entry, "device")))
        evidence = [
            seen("link under load", f"generation {generation[1]:.0f}, {width[1]:.0f} lanes"),
            seen("link at best", f"generation {generation_max}, {width_max} lanes"),
        ]
        reseat = fix("host", "reseat the card, check riser and BIOS, look at its AER counters")
        if width[1] < width_max:
            results.append(
                one.fail(
                    f"{width[1]:.0f} of {width_max} PCIe lanes",
                    why="a bad contact, a riser, or a slot wired or split that way",
                    evidence=evidence,
                    fixes=[reseat],
                )
            )
        elif generation[1] < generation_max:
            results.append(
                one.warn(
                    f"PCIe generation {generation[1]:.0f} under load, {generation_max} possible",
                    why="the link fell back because of errors, or the BIOS limits the slot",
                    evidence=evidence,
                    fixes=[reseat],
                )
            )
    if results:
        return tuple(result for verdict in results for result in verdict)
    if not known:
        return say.skip("unsupported-by-driver", "NVML tells no link here")
    return say.ok(f"full PCIe width and generation under load on {known} GPU(s)")


def check_replays(facts: Facts) -> Results:
    """Ask whether PCIe packets had to be sent again while the link was loaded."""
    say = Say("hw.pcie.replay")
    entries, ended = _entries(say, facts, "torch.transfer")
    if ended:
        return ended
    counted = [(text(e, "device"), integer(e, "replays")) for e in entries]
    known = [(device, replays) for device, replays in counted if replays is not None]
    if not known:
        return say.skip("unsupported-by-driver", "NVML counts no replays here")
    results = [
        say.of(label(device)).warn(
            f"{replays} PCIe packets were sent again during the test",
            why="the link has bit errors: contact, riser or cable",
            evidence=[seen("nvmlDeviceGetPcieReplayCounter", f"+{replays}")],
            fixes=[fix("host", "reseat the card and look at its AER counters")],
        )
        for device, replays in known
        if replays > 0
    ]
    if results:
        return tuple(result for verdict in results for result in verdict)
    return say.ok(f"no PCIe packet was sent again on {len(known)} GPU(s)")


def check_throttle(facts: Facts) -> Results:
    """Ask whether heat or power held the clocks back under load."""
    say = Say("hw.throttle")
    entries, ended = _entries(say, facts, "torch.matmul-rate")
    if ended:
        return ended
    results: list[Results] = []
    known = 0
    for entry in entries:
        load = group(entry, "load")
        samples = integer(load, "samples") or 0
        if load.get("reasons") is None or not samples:
            continue
        known += 1
        bits = {int(name, 16): count for name, count in group(load, "reasons").items()}
        told = {name: bits[bit] / samples for bit, name in REASONS.items() if bits.get(bit)}
        if not told:
            continue
        one = say.of(label(text(entry, "device")))
        names = ", ".join(f"{name} in {share:.0%} of the samples" for name, share in told.items())
        # a software limit is the driver doing its work; the others are the board's own alarm
        hard = [share for name, share in told.items() if name != REASONS[0x20]]
        judged = one.fail if hard and max(hard) > THROTTLED_SHARE else one.warn
        results.append(
            judged(
                f"clocks held back under load: {names}",
                why="cooling for the thermal ones; power supply and its cables for the brake",
                evidence=_load_evidence(entry),
                fixes=[fix("host", "look at air flow, fans, power cables and the power supply")],
            )
        )
    if results:
        return tuple(result for verdict in results for result in verdict)
    if not known:
        return say.skip("unsupported-by-driver", "NVML tells no clock events here")
    return say.ok(f"neither heat nor power supply holds the clocks back on {known} GPU(s)")


def check_temperature(facts: Facts) -> Results:
    """Ask how near the GPU came to the temperature at which it slows itself down."""
    say = Say("hw.temp")
    entries, ended = _entries(say, facts, "torch.matmul-rate")
    if ended:
        return ended
    results: list[Results] = []
    hottest: float | None = None
    for entry in entries:
        pair = span(group(entry, "load"), "celsius")
        limit = integer(group(entry, "fixed"), "slowdown_celsius")
        if pair is None or not limit:
            continue
        hottest = max(pair[1], hottest or 0.0)
        if pair[1] <= limit - MARGIN_CELSIUS:
            continue
        one = say.of(label(text(entry, "device")))
        judged = one.fail if pair[1] > limit else one.warn
        results.append(
            judged(
                f"{pair[1]:.0f} C under load, it slows down at {limit}",
                evidence=_load_evidence(entry),
                fixes=[fix("host", "look at air flow, fans and the room's temperature")],
            )
        )
    if results:
        return tuple(result for verdict in results for result in verdict)
    if hottest is None:
        return say.skip("unsupported-by-driver", "NVML tells no temperature or no limit")
    return say.ok(f"at most {hottest:.0f} C after a second of full load")


# --- GPU to GPU ----------------------------------------------------------------------------------


def _pair(entry: Mapping[str, Any]) -> str:
    return f"GPU {entry.get('from')} to GPU {entry.get('to')}"


def check_peer_copy(facts: Facts) -> Results:
    """Ask whether bytes survive a copy between every ordered pair of GPUs."""
    say = Say("p2p.copy")
    found = probe(facts, "torch.p2p")
    skip = skipped(say, found)
    if skip is not None:
        return skip
    pairs = rows(found, "pairs")
    results: list[Results] = []
    for entry in pairs:
        one, wrong = say.of(_pair(entry)), entry.get("wrong")
        if text(entry, "error"):
            results.append(failed(one, "the copy failed", text(entry, "error"), source="torch.p2p"))
        elif wrong:
            results.append(
                one.fail(
                    f"{wrong} of {found.get('bytes')} bytes arrived wrong, without an error",
                    why="peer access is granted and corrupts: ACS or IOMMU on the way, or a driver "
                    "fault; NCCL would train on these bytes",
                    evidence=[seen("peer access", entry.get("peer_access"))],
                    fixes=[
                        fix("host", "switch ACS off above the GPUs, or set iommu=pt"),
                        fix("container", "until then avoid it", "export NCCL_P2P_DISABLE=1"),
                    ],
                    suspects=("topo.acs", "topo.iommu", "host.driver.match"),
                )
            )
    if results:
        return tuple(result for verdict in results for result in verdict)
    if not pairs or any(entry.get("wrong") != 0 for entry in pairs):
        return say.error("torch.p2p told of no bytes")
    direct = sum(1 for entry in pairs if entry.get("peer_access"))
    return say.ok(
        f"{len(pairs)} ordered pairs copy every byte right, {direct} of them directly",
        seen("bytes for each pair", found.get("bytes")),
    )


def check_peer_rate(facts: Facts) -> Results:
    """Compare copies between GPUs with what this model's link carries."""
    say = Say("p2p.bw")
    found = probe(facts, "torch.p2p")
    skip = skipped(say, found)
    if skip is not None:
        return skip
    rates = [(e, number(e, "gb_per_s")) for e in rows(found, "pairs") if e.get("peer_access")]
    measured = [(entry, rate) for entry, rate in rates if rate is not None]
    if not measured:
        return say.skip("not-applicable", "no pair of GPUs copies directly")
    slowest, rate = min(measured, key=lambda pair: pair[1])
    row = find(PEER_GB_S, model_of(facts, f"cuda:{slowest.get('from')}"))
    bars: dict[str, Any] = {
        "title": "copies between GPUs",
        "unit": "GB/s",
        "bars": [[_pair(entry), round(value, 1)] for entry, value in measured],
    }
    sentence = f"slowest pair {rate:.0f} GB/s ({_pair(slowest)})"
    if row is None:
        results = say.info(f"{sentence} (no reference for this model)")
        return tuple(replace(result, numbers={"bars": bars}) for result in results)
    bars |= {"floor": row.floor, "expected": row.usual or row.floor}
    numbers = {
        "bars": bars,
        "value": rate,
        "unit": "GB/s",
        "floor": row.floor,
        "source": row.source,
    }
    if rate >= row.floor:
        return tuple(replace(result, numbers=numbers) for result in say.ok(sentence))
    judged = say.fail if rate < row.failing else say.warn
    return judged(
        f"{sentence}, {row.floor:g} expected at least",
        why="the pair is joined by another link than its model has: a missing bridge, a link down, "
        "or a way across two sockets",
        evidence=[seen("reference", row.source)],
        suspects=("hw.nvlink", "topo.*", "hw.pcie.gen"),
        numbers=numbers,
        confidence="likely",
    )


_AFTER = ("torch.import", "torch.kernel")

CHECKS = (
    Check(
        id="p2p.copy",
        title="Bytes survive copies between GPUs",
        level=Level.STANDARD,
        run=check_peer_copy,
        needs=("torch.p2p",),
        after=_AFTER,
        explanation="""\
Random bytes are copied from every GPU to every other one and compared with a copy by way of the
host. The copying interface reports success for bytes that arrive broken, because writes on the
bus are not answered; so only the bytes count. Peer access is switched on for the pairs that have
it, otherwise the runtime would copy by way of the host and prove nothing.

ACS redirection on PCIe bridges, an IOMMU that translates, and driver faults break such copies.
Until that is mended, NCCL_P2P_DISABLE=1 avoids them.

The check ends with the copy. A kernel that stores into another GPU's memory while it runs is a
stronger promise, which NCCL needs and only the all-reduce exercises.""",
    ),
    Check(
        id="p2p.bw",
        title="Rate of copies between GPUs",
        level=Level.STANDARD,
        run=check_peer_rate,
        needs=("torch.p2p",),
        uses=("torch.devices",),
        after=("p2p.copy",),
        explanation="""\
The slowest pair with direct access is compared with what its model's link carries in one
direction. A pair far below the others mostly has no bridge, a link that is down, or a way across
two sockets. A model without a reference gets its number and no verdict.""",
    ),
    Check(
        id="perf.h2d",
        title="Rate of copies between host and GPU",
        level=Level.STANDARD,
        run=check_transfer,
        needs=("torch.transfer",),
        after=_AFTER,
        explanation="""\
256 MiB of pinned memory are copied both ways; the slower direction is compared with the floor of
the link's generation and width: 48 GB/s for generation 5 with 16 lanes, 21 for 4, 9 for 3.

A slow copy on a full link points at memory of another socket: bind the process to the GPU's own
NUMA node.""",
    ),
    Check(
        id="hw.pcie.gen",
        title="The PCIe link under load",
        level=Level.STANDARD,
        run=check_link,
        needs=("torch.transfer",),
        after=_AFTER,
        explanation="""\
Generation and width of the link are sampled while data flow, because an idle link drops to
generation 1 to save power and that is no fault. Fewer lanes than the card has are a failure, a
lower generation under load a warning.""",
    ),
    Check(
        id="hw.pcie.replay",
        title="PCIe packets sent again",
        level=Level.STANDARD,
        run=check_replays,
        needs=("torch.transfer",),
        after=_AFTER,
        explanation="""\
The replay counter is read before and after the copies. A packet sent again means that the link
has bit errors; a link that has many falls back to a lower generation. Contacts, risers and cables
are the usual reason.""",
    ),
    Check(
        id="perf.hbm",
        title="Rate of GPU memory",
        level=Level.STANDARD,
        run=check_memory_rate,
        needs=("torch.memory-rate",),
        uses=("torch.devices",),
        after=_AFTER,
        explanation="""\
One GiB is copied within the GPU's memory, counting bytes read and written, and compared with the
floor that NVIDIA's own diagnostics use for this model: three quarters of its reference. A low
value points at remapped rows or held-back memory clocks. A MIG slice has no row and gets no
verdict.""",
    ),
    Check(
        id="perf.matmul",
        title="Rate of matrix products",
        level=Level.STANDARD,
        run=check_matmul_rate,
        needs=("torch.matmul-rate",),
        uses=("torch.devices",),
        after=_AFTER,
        explanation="""\
A product of 8192 x 8192 matrices of random bfloat16 numbers runs for a second. Random, because
zeros need less power and run a tenth faster. 80 % of what people measured on this model is asked
for, below half of it is a failure. Differences of 5 % between equal GPUs are normal.

If it is low, look at hw.throttle, hw.power.limit and hw.clocks first. A GPU that was busy before
the measurement gets a warning and no accusation.""",
    ),
    Check(
        id="hw.throttle",
        title="Clocks held back under load",
        level=Level.STANDARD,
        run=check_throttle,
        needs=("torch.matmul-rate",),
        after=_AFTER,
        explanation="""\
The reasons why clocks are lowered are sampled while the matrix products run. Hardware slowdown,
thermal limits and the power brake are trouble; they are a failure when set in more than half of
the samples. Idle, application clocks and the software power cap are normal and not mentioned.""",
    ),
    Check(
        id="hw.temp",
        title="Distance to the temperature limit",
        level=Level.STANDARD,
        run=check_temperature,
        needs=("torch.matmul-rate",),
        after=_AFTER,
        explanation="""\
The highest temperature under load is compared with the GPU's own slow-down temperature: less than
5 degrees from it is a warning, above it a failure. A second of load does not heat a GPU through;
a long job will get hotter.""",
    ),
)
