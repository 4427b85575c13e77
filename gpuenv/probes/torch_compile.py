"""Compile one small function, forward and backward, and compare with eager execution.

``torch.compile``: results [{device, error, seconds, graphs, forward_error, gradient_error}] and
cache {variable: value}, on the first GPU, else on the CPU. The process that runs it is its time
limit. It uses the caches and temporary folders that a user's own run would use, and a constant
never seen before, so that the compiler really runs.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from ._torch import Skip, load_torch, on_each_device, probe

if TYPE_CHECKING:
    from ._common import Context

CACHE_VARIABLES = ("TMPDIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CC", "CXX")


@probe
def compiled(context: Context) -> dict[str, Any]:
    """Compile on the first device."""
    torch = load_torch()
    if not hasattr(torch, "compile"):
        raise Skip("not-applicable", "this torch has no torch.compile")
    # before the first compile: inductor itself writes some of them
    cache = {name: os.environ[name] for name in CACHE_VARIABLES if name in os.environ}
    # a pool of compile workers would outlive the answer
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    facts = on_each_device(context, compile_on, first_only=True)
    return dict(facts, cache=cache)


def compile_on(torch: Any, device: str) -> dict[str, Any]:
    """Return how far compiled values and gradients are from eager ones, and the time it took."""
    constant = 1 + (time.time_ns() % 1000003) / 1e6

    def function(x: Any) -> Any:
        return (torch.sin(x) * constant + x * x).sum()

    def run(callable_: Any) -> tuple[float, Any]:
        x = torch.linspace(-2, 2, 1000, device=device, requires_grad=True)
        out = callable_(x)
        out.backward()
        return out.item(), x.grad.cpu()

    right, right_gradient = run(function)
    start = time.monotonic()
    # fullgraph: a graph break would run eagerly and prove nothing
    out, gradient = run(torch.compile(function, fullgraph=True))
    seconds = time.monotonic() - start
    import torch._dynamo.utils

    return {
        "seconds": round(seconds, 3),
        "graphs": int(torch._dynamo.utils.counters["stats"]["unique_graphs"]),
        "forward_error": abs(out - right) / abs(right),
        "gradient_error": float((gradient - right_gradient).abs().max()),
    }


PROBES = {"torch.compile": compiled}
