"""Faults put into torch from outside: Python imports this file first when it is on PYTHONPATH.

``TEST_FAULT`` names the fault. The product has no hook for it; this patches torch as it is loaded.
"""

from __future__ import annotations

import gc
import importlib.abc
import importlib.util
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec

FAULT = os.environ.get("TEST_FAULT", "")
IS_RANK_1 = os.environ.get("RANK") == "1"
FOURTH = 4  # the first collective and the sums in two types have gone well by then


def at_the_fourth_sum(deed: Callable[[], object]) -> Callable[[Any], None]:
    """Let rank 1 do something instead of its fourth all_reduce."""

    def patch(distributed: Any) -> None:
        real, calls = distributed.all_reduce, []

        def all_reduce(*args: Any, **kwargs: Any) -> Any:
            calls.append(1)
            if IS_RANK_1 and len(calls) == FOURTH:
                deed()
            return real(*args, **kwargs)

        distributed.all_reduce = all_reduce

    return patch


def die() -> None:
    """End as the out-of-memory killer would end us."""
    os.kill(os.getpid(), signal.SIGKILL)


def complain() -> None:
    """Raise what CUDA raises for damaged memory."""
    raise RuntimeError("CUDA error: uncorrectable ECC error encountered")


def lose_a_contribution(distributed: Any) -> None:
    """Let rank 1 send zeros instead of its data."""
    real = distributed.all_reduce

    def all_reduce(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if IS_RANK_1:
            tensor.zero_()
        return real(tensor, *args, **kwargs)

    distributed.all_reduce = all_reduce


def flip_a_bit(distributed: Any) -> None:
    """Change one element of what rank 1 receives."""
    real = distributed.all_reduce

    def all_reduce(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        answer = real(tensor, *args, **kwargs)
        if IS_RANK_1 and tensor.numel() > 700:
            tensor[700] += 1
        return answer

    distributed.all_reduce = all_reduce


def stay_away(torch: Any) -> None:
    """Let rank 1 get stuck while it prepares its data, before it announces a collective."""
    real, calls = torch.arange, []

    def arange(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if IS_RANK_1 and len(calls) > 8:
            time.sleep(3600)
        return real(*args, **kwargs)

    torch.arange = arange


def spoil_gradients(torch: Any) -> None:
    """Scale every gradient so that the 42 of the text book comes out as 36."""
    real = torch.Tensor.backward

    def backward(self: Any, *args: Any, **kwargs: Any) -> None:
        real(self, *args, **kwargs)
        for leaf in [thing for thing in gc.get_objects() if type(thing) is torch.Tensor]:
            if leaf.is_leaf and leaf.requires_grad and leaf.grad is not None:
                leaf.grad = leaf.grad * 36 / 42

    torch.Tensor.backward = backward


def spoil_the_loss(torch: Any) -> None:
    """Make every cross entropy not a number."""
    real = torch.nn.functional.cross_entropy
    torch.nn.functional.cross_entropy = lambda *a, **k: real(*a, **k) * float("nan")


def spoil_a_product(torch: Any) -> None:
    """Change one element of each large bfloat16 product."""
    real = torch.Tensor.__matmul__

    def matmul(self: Any, other: Any) -> Any:
        out = real(self, other)
        if out.dtype is torch.bfloat16 and out.numel() > 1000:
            out[3, 5] += 1
        return out

    torch.Tensor.__matmul__ = matmul


def forget_a_word(torch: Any) -> None:
    """Let one word of large integer tensors keep another value than was written."""
    real = torch.Tensor.fill_

    def fill(self: Any, value: Any) -> Any:
        real(self, value)
        if self.dtype is torch.int64 and self.numel() > 1 << 20:
            self[4711] ^= 8
        return self

    torch.Tensor.fill_ = fill


def crash(torch: Any) -> None:
    """Die of a segmentation fault in the middle of one probe."""
    torch.get_float32_matmul_precision = lambda: os.kill(os.getpid(), signal.SIGSEGV)


FAULTS: dict[str, tuple[str, Callable[[Any], None]]] = {
    "lost-contribution": ("torch.distributed", lose_a_contribution),
    "flipped-bit": ("torch.distributed", flip_a_bit),
    "killed-rank": ("torch.distributed", at_the_fourth_sum(die)),
    "raising-rank": ("torch.distributed", at_the_fourth_sum(complain)),
    "absent-rank": ("torch", stay_away),
    "wrong-gradient": ("torch", spoil_gradients),
    "nan-loss": ("torch", spoil_the_loss),
    "wrong-product": ("torch", spoil_a_product),
    "forgetful-memory": ("torch", forget_a_word),
    "crash": ("torch", crash),
}


class Patcher(importlib.abc.MetaPathFinder):
    """Patch a module right after it has been executed."""

    def __init__(self, module: str, patch: Callable[[Any], None]) -> None:
        self.module, self.patch, self.busy = module, patch, False

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        if name != self.module or self.busy:
            return None
        self.busy = True
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_patch(module: Any) -> None:
            execute(module)
            self.patch(module)

        spec.loader.exec_module = execute_and_patch  # type: ignore[method-assign]
        return spec


if FAULT:
    sys.meta_path.insert(0, Patcher(*FAULTS[FAULT]))
