"""What the torch probes share: which devices to use, how to skip, exact integer data.

Sent along with every probe and imported by those that need torch. ``context.options["device"]``
is ``auto`` (every GPU, else the CPU) or ``cpu``.
"""

from __future__ import annotations

import functools
import warnings
from typing import TYPE_CHECKING, Any, Callable

if TYPE_CHECKING:
    from ._common import Context

_WORDS_LIMIT = 2000


class Skip(Exception):  # noqa: N818 - it is no error
    """Nothing to do here; carries one of the doctor's skip reasons and a sentence."""

    def __init__(self, reason: str, text: str) -> None:
        """Take the reason code (``no-gpu``, ``no-torch``, ``not-applicable``) and the sentence."""
        super().__init__(text)
        self.reason = reason


def probe(function: Callable[[Context], dict[str, Any]]) -> Callable[[Context], dict[str, Any]]:
    """Let a probe raise :class:`Skip`, and make its facts fit for strict JSON."""

    @functools.wraps(function)
    def answer(context: Context) -> dict[str, Any]:
        try:
            facts: dict[str, Any] = plain(function(context))
        except Skip as skip:
            return {"skip": {"reason": skip.reason, "text": str(skip)}}
        return facts

    return answer


def plain(value: Any) -> Any:
    """Return the value with infinities and NaN as text and tuples as lists."""
    if isinstance(value, float) and value - value != 0:  # true for infinities and NaN
        return str(value)
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def describe(error: BaseException) -> str:
    """Return an exception as text, its type first, short enough for a report."""
    text = "{}: {}".format(type(error).__name__, error)
    half = _WORDS_LIMIT // 2
    return text if len(text) <= _WORDS_LIMIT else text[:half] + " [...] " + text[-half:]


def load_torch() -> Any:
    """Return torch, or skip where it cannot be imported; ``torch.import`` reports why."""
    try:
        import torch
    except Exception as error:
        raise Skip("no-torch", describe(error)) from error
    return torch


def gpu_indices(context: Context) -> list[int]:
    """Return the CUDA ordinals to use: all of them, none where CUDA does not come up."""
    torch = load_torch()
    if context.options.get("device", "auto") == "cpu":
        return []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if not torch.cuda.is_available():
            return []
    return list(range(torch.cuda.device_count()))


def compute_devices(context: Context) -> list[str]:
    """Return the names of the devices to compute on: every GPU, else the CPU."""
    return ["cuda:{}".format(index) for index in gpu_indices(context)] or ["cpu"]


def on_each_device(
    context: Context, function: Callable[[Any, str], dict[str, Any]], first_only: bool = False
) -> dict[str, Any]:
    """Run ``function(torch, device)`` on every compute device; one that fails hides no other.

    Returns:
        ``{"results": [{"device", "error", ...}]}``, told after each device already.
    """
    torch = load_torch()
    results: list[dict[str, Any]] = []
    for device in compute_devices(context)[: 1 if first_only else None]:
        entry: dict[str, Any] = {"device": device, "error": ""}
        try:
            entry.update(function(torch, device))
        except Exception as error:
            entry["error"] = describe(error)
        results.append(plain(entry))
        context.tell({"results": results})
    return {"results": results}


def ternary(count: int, seed: int) -> list[int]:
    """Return ``count`` numbers drawn from -1, 0 and 1, the same on every machine and release."""
    state, values = seed, []
    for _ in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        values.append((state >> 33) % 3 - 1)
    return values


def train(torch: Any, place: str, dtype: Any, steps: int = 6) -> tuple[list[float], list[Any]]:
    """Train a convolution and two layers; return the losses and the first step's gradients.

    The activations are smooth on purpose: at the kink of a ReLU rounding alone may flip a sign.
    """
    functional = torch.nn.functional
    generator = torch.Generator().manual_seed(7)

    def normal(*shape: int) -> Any:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    image, label = normal(16, 1, 8, 8), torch.arange(16) % 4
    start = (normal(4, 1, 3, 3) * 0.3, normal(16, 144) * 0.1, normal(4, 16) * 0.3)
    weights = [w.to(place, dtype).requires_grad_() for w in start]
    optimizer = torch.optim.AdamW(weights, lr=1e-2)
    x, target = image.to(place, dtype), label.to(place)
    losses: list[float] = []
    first: list[Any] = []
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=True)
        hidden = functional.gelu(functional.conv2d(x, weights[0])).flatten(1)
        out = functional.gelu(hidden @ weights[1].t()) @ weights[2].t()
        loss = functional.cross_entropy(out, target)
        loss.backward()
        first = first or [w.grad.detach().cpu().double() for w in weights]
        optimizer.step()
        losses.append(loss.item())
    return losses, first


UNSUPPORTED = ("not implemented for", "not supported", "Invalid scalar type", "does not support")


def unsupported(error: BaseException) -> bool:
    """Say whether torch has nothing for this type or operation here: older releases, on the CPU."""
    return isinstance(error, (NotImplementedError, RuntimeError, ValueError)) and any(
        words in str(error) for words in UNSUPPORTED
    )
