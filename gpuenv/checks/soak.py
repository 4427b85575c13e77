"""What shows only under long load."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuenv.checks.devices import each_device, skipped
from gpuenv.checks.model import Check, Level
from gpuenv.checks.say import Say, fix, group, in_mib, integer, number, probe, rows, seen

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuenv.checks.model import Facts
    from gpuenv.checks.say import Results

_REPLACE = fix("host", "drain the machine, reset the GPU, and replace it if it comes back")
_HARDWARE = ("hw.ecc", "hw.remap", "hw.xid", "hw.throttle")


def check_memtest(facts: Facts) -> Results:
    """Ask whether GPU memory kept every pattern."""

    def judge(say: Say, entry: Mapping[str, Any]) -> Results | None:
        too_little = integer(entry, "too_little_memory")
        if too_little is not None:
            return say.skip("busy", f"only {in_mib(too_little)} of GPU memory are free")
        if entry.get("wrong") != 0:
            first = group(entry, "first")
            return say.fail(
                f"{entry.get('wrong')} words of memory came back wrong",
                why="the memory is damaged where error correction did not see it, or has none",
                evidence=[seen("first", f"{first.get('pattern')} at byte {first.get('offset')}")],
                fixes=[_REPLACE],
                suspects=_HARDWARE,
            )
        return None

    sizes = [
        integer(entry, "bytes") or 0 for entry in rows(probe(facts, "torch.memtest"), "results")
    ]
    least = in_mib(min(sizes, default=0))
    return each_device(
        facts,
        "torch.memtest",
        Say("num.memtest"),
        judge=judge,
        what="the memory test",
        fine=lambda where: f"{least} of memory kept nine patterns {where}",
    )


def check_burn(facts: Facts) -> Results:
    """Ask whether every product of a minute of full load was the same."""
    say = Say("num.burn")
    skip = skipped(say, probe(facts, "torch.burn"))
    if skip is not None:
        return skip

    def judge(one: Say, entry: Mapping[str, Any]) -> Results | None:
        products = integer(entry, "products") or 0
        if not products:
            return one.error("no product was computed")
        if entry.get("wrong") != 0:
            return one.fail(
                f"{entry.get('wrong')} elements changed between {products} equal products",
                why="the GPU computes wrongly under load: heat, power supply, or damage",
                evidence=[seen("load", dict(group(entry, "load")))],
                fixes=[_REPLACE],
                suspects=_HARDWARE,
            )
        first, last = number(entry, "tflops_first"), number(entry, "tflops_last")
        if first and last and last < first * 0.8:
            return one.warn(
                f"{first:.0f} TFLOP/s at first, {last:.0f} in the end",
                why="the GPU slows down as it gets hot",
                evidence=[seen("load", dict(group(entry, "load")))],
                fixes=[fix("host", "look at air flow, fans and the power limit")],
                suspects=("hw.throttle", "hw.temp", "hw.power.limit"),
                confidence="likely",
            )
        return None

    seconds = [
        number(entry, "seconds") or 0 for entry in rows(probe(facts, "torch.burn"), "results")
    ]
    return each_device(
        facts,
        "torch.burn",
        say,
        judge=judge,
        what="full load",
        fine=lambda where: f"every product the same in {min(seconds):.0f} s of full load {where}",
    )


_AFTER = ("torch.import", "torch.kernel")

CHECKS = (
    Check(
        id="num.memtest",
        title="GPU memory under patterns",
        level=Level.DEEP,
        run=check_memtest,
        needs=("torch.memtest",),
        after=_AFTER,
        explanation="""\
Nine tenths of the free memory of each GPU are filled with a pattern, read back, inverted and read
again: zeros, ones, two chequered ones, and last each word's own address. All is written before
anything is read, so every word has to be kept for a while.

Error correction mends single flipped bits silently and stops the program at double ones; what
this test finds has passed both, or the GPU has no error correction. Memory that others use is not
tested.""",
    ),
    Check(
        id="num.burn",
        title="The same product for a minute",
        level=Level.DEEP,
        run=check_burn,
        needs=("torch.burn",),
        after=_AFTER,
        explanation="""\
All GPUs multiply the same matrices together for a minute, and every product is compared with the
first one, bit for bit, on the GPU itself. Full load on all GPUs at once is what the cooling and
the power supply of a machine are built for; single tests never ask for it.

A changed element is a fault of the hardware. A rate that falls by a fifth from the first round to
the last one is a warning: look at hw.throttle and hw.temp.""",
    ),
)
