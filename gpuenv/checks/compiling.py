"""Whether ``torch.compile`` makes code here, and code that computes the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuenv.checks.devices import each_device, first_line
from gpuenv.checks.model import Check, Level
from gpuenv.checks.say import Say, number, probe, rows, seen, text

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from gpuenv.checks.model import Facts
    from gpuenv.checks.say import Results

NOT_OFFERED = ("Dynamo is not supported on", "not yet supported for torch.compile")
"""How torch says that it cannot compile under this Python; nothing is broken then."""

TOLERANCE = 1e-5
"""Compiled float32 code may fuse a multiplication with an addition, which rounds once less."""


def check_compile(facts: Facts) -> Results:
    """Compare a compiled function and its gradient with eager execution."""
    say = Say("cc.compile")

    def judge(one: Say, entry: Mapping[str, Any]) -> Results | None:
        if entry.get("graphs") != 1:
            return one.fail(
                "torch.compile returned without compiling",
                why="compilation is switched off, by TORCHDYNAMO_DISABLE or TORCH_COMPILE_DISABLE",
                evidence=[seen("torch.compile", f"{entry.get('graphs')} graphs compiled")],
            )
        for key, what in (("forward_error", "values"), ("gradient_error", "gradients")):
            error = number(entry, key)
            if error is None or error > TOLERANCE:
                return one.fail(
                    f"compiled {what} differ from eager ones by {error}",
                    why="the compiler, or the Triton it uses, makes wrong code here",
                    evidence=[seen("torch.compile", f"{key} {error}")],
                    suspects=("torch.swapped", "cc.ptxas", "hw.ecc"),
                )
        return None

    for entry in rows(probe(facts, "torch.compile"), "results"):
        if any(words in text(entry, "error") for words in NOT_OFFERED):
            return say.skip("not-applicable", first_line(text(entry, "error")))
    seconds = [number(e, "seconds") for e in rows(probe(facts, "torch.compile"), "results")]
    slowest = max((s for s in seconds if s is not None), default=0.0)
    return each_device(
        facts,
        "torch.compile",
        say,
        judge=judge,
        what="torch.compile",
        fine=lambda where: f"a function and its gradient compile in {slowest:.0f} s {where}",
    )


CHECKS = (
    Check(
        id="cc.compile",
        title="torch.compile",
        level=Level.STANDARD,
        run=check_compile,
        needs=("torch.compile",),
        after=("torch.import", "torch.kernel"),
        provides=("compile",),
        explanation="""\
Compiles one small function with fullgraph=True, so that nothing can quietly run eagerly, and
compares values and gradients with eager execution. It uses the caches and temporary folders that
your own run would use, and a constant never seen before, so the compiler really runs.

On a GPU that is Triton with ptxas and a C compiler; on the CPU a C++ compiler. What is missing is
read from the error: a compiler (cc.gcc), Python.h (cc.pyh), libcuda.so for the linker
(cc.libcuda), a ptxas that knows the GPU (cc.ptxas), a folder from which code may be mapped
(cc.tmp), a user with a name (ctr.uid).

A first compile on a cold machine takes half a minute on the CPU; the limit is four.""",
    ),
)
