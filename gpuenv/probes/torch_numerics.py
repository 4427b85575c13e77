"""The rest of a training step: second order, mixed precision, graphs, memory, data loading.

Runs on the first GPU, else on the CPU (``device`` says which). Keys:

===================  =============================================================================
name                 keys (``results`` holds one entry per device: device, error, ...)
===================  =============================================================================
torch.dataloader     workers, batch_bytes, in_flight_bytes, shm_free_bytes, batches, wrong, error
torch.sampler        cases [{samples, ranks, drop_last, epochs [[per rank]]}]
torch.second-order   results [{hessian, gradgradcheck}]
torch.amp            results [{fp16 {...} or null, bf16 {...} or null, bf16_native, unsupported}]
torch.determinism    results [{differing [...], raised, workspace}]
torch.sdpa           results [{backends [{name, dtype, max_error, unsupported}]}]
torch.graph          results [{wrong}]
torch.memory         results [{peak_expected, peak_bytes, out_of_memory {raised, text},
                     left_over_bytes, works_after}]
===================  =============================================================================

``skip {reason, text}`` stands in place of the keys where there was nothing to do.
"""

from __future__ import annotations

import functools
import os
import warnings
from typing import TYPE_CHECKING, Any

from ._torch import (
    Skip,
    describe,
    gpu_indices,
    load_torch,
    on_each_device,
    probe,
    train,
    unsupported,
)

if TYPE_CHECKING:
    from ._common import Context

LOADER_WORKERS = 2
LOADER_PREFETCH = 2
IMAGE_SHAPE = (3, 224, 224)  # a batch as people train on: 64 colour images in float32
LOADER_BATCH = 64
LOADER_BATCHES = 6
INITIAL_SCALE = 1024.0
PEAK_BLOCK = 64 << 20
OOM_HEADROOM = 256 << 20
OOM_CHUNK = 64 << 20
WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


class Images:
    """A data set whose every image holds its own number, so that a mix-up shows."""

    def __init__(self, torch: Any, length: int) -> None:
        """Remember torch and the length."""
        self.torch = torch
        self.length = length

    def __len__(self) -> int:
        """Return the number of images."""
        return self.length

    def __getitem__(self, index: int) -> Any:
        """Return image ``index``."""
        return self.torch.full(IMAGE_SHAPE, float(index))


@probe
def dataloader(context: Context) -> dict[str, Any]:
    """Load batches of ordinary size through worker processes, that is through ``/dev/shm``."""
    torch = load_torch()
    from torch.utils.data import DataLoader

    torch.set_num_threads(1)
    batch_bytes = LOADER_BATCH * IMAGE_SHAPE[0] * IMAGE_SHAPE[1] * IMAGE_SHAPE[2] * 4
    facts: dict[str, Any] = {
        "workers": LOADER_WORKERS,
        "batch_bytes": batch_bytes,
        "in_flight_bytes": batch_bytes * LOADER_WORKERS * LOADER_PREFETCH,
        "shm_free_bytes": free_bytes("/dev/shm"),
        "batches": 0,
        "wrong": 0,
        "error": "",
    }
    context.tell(facts)
    loader = DataLoader(
        Images(torch, LOADER_BATCH * LOADER_BATCHES),
        batch_size=LOADER_BATCH,
        num_workers=LOADER_WORKERS,
        prefetch_factor=LOADER_PREFETCH,
        timeout=60,
        multiprocessing_context="fork",
    )
    try:
        for number, batch in enumerate(loader):
            right = torch.arange(LOADER_BATCH, dtype=torch.float32) + number * LOADER_BATCH
            facts["wrong"] += int(batch.ne(right.reshape(-1, 1, 1, 1)).flatten(1).any(1).sum())
            facts["batches"] += 1
    except Exception as error:
        facts["error"] = describe(error)
    return facts


def free_bytes(path: str) -> int | None:
    """Return the free space below a path, ``None`` where there is no such path."""
    try:
        space = os.statvfs(path)
    except OSError:
        return None
    return space.f_bavail * space.f_frsize


@probe
def sampler(_context: Context) -> dict[str, Any]:
    """Deal samples to ranks as DistributedSampler does, for even and uneven numbers of both."""
    load_torch()
    from torch.utils.data import DistributedSampler

    cases = []
    for samples, ranks in ((16, 4), (10, 4), (103, 8), (7, 8)):
        for drop_last in (False, True):
            epochs: list[list[list[int]]] = [[], []]
            for rank in range(ranks):
                dealt = DistributedSampler(
                    range(samples), ranks, rank, shuffle=True, seed=5, drop_last=drop_last
                )
                for epoch, lists in enumerate(epochs):
                    dealt.set_epoch(epoch)
                    lists.append(list(dealt))
            cases.append(
                {"samples": samples, "ranks": ranks, "drop_last": drop_last, "epochs": epochs}
            )
    return {"cases": cases}


@probe
def second_order(context: Context) -> dict[str, Any]:
    """Differentiate gradients: an exact Hessian, and gradgradcheck in float64."""
    return on_each_device(context, second_order_on, first_only=True)


def second_order_on(torch: Any, device: str) -> dict[str, Any]:
    """Return the Hessian of the sum of cubes at 1, 2, 3, and whether gradgradcheck passes."""
    x = torch.tensor([1.0, 2.0, 3.0], device=device, requires_grad=True)
    (gradient,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    rows = [torch.autograd.grad(gradient[i], x, retain_graph=True)[0].tolist() for i in range(3)]

    generator = torch.Generator().manual_seed(2)

    def normal(*shape: int) -> Any:
        values = torch.randn(*shape, generator=generator, dtype=torch.float64)
        return values.to(device).requires_grad_()

    def layer(data: Any, weight: Any) -> Any:
        return torch.tanh(data @ weight).pow(2).sum()

    checked = torch.autograd.gradgradcheck(layer, (normal(3, 4), normal(4, 2)))
    return {"hessian": rows, "gradgradcheck": bool(checked)}


@probe
def amp(context: Context) -> dict[str, Any]:
    """Train in fp16 with a gradient scaler and in bf16 without one."""
    return on_each_device(context, amp_on, first_only=True)


def amp_on(torch: Any, device: str) -> dict[str, Any]:
    """Return what mixed precision did; a part this torch cannot do here is named, not failed."""
    facts: dict[str, Any] = {"fp16": None, "bf16": None, "bf16_native": None, "unsupported": {}}
    if device != "cpu":
        facts["bf16_native"] = torch.cuda.get_device_capability(device)[0] >= 8
    for name, function in (("fp16", scaled_steps), ("bf16", bf16_steps)):
        try:
            facts[name] = function(torch, device)
        except (RuntimeError, NotImplementedError, AttributeError, TypeError) as error:
            if device != "cpu" and not unsupported(error):
                raise
            facts["unsupported"][name] = describe(error)
    return facts


def scaled_steps(torch: Any, device: str) -> dict[str, Any]:
    """Take a clean fp16 step, one with an injected infinity, and a clean one again.

    The infinite one must leave the weights alone and halve the scale.
    """
    kind = device.split(":", maxsplit=1)[0]
    if hasattr(torch, "amp") and hasattr(torch.amp, "GradScaler"):
        scaler = torch.amp.GradScaler(kind, init_scale=INITIAL_SCALE)
    elif kind == "cuda":
        scaler = torch.cuda.amp.GradScaler(init_scale=INITIAL_SCALE)
    else:
        raise NotImplementedError("GradScaler for the CPU is not supported by this torch")
    model = torch.nn.Linear(16, 4, bias=False).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.ones(8, 16, device=device)
    facts: dict[str, Any] = {"scales": [], "moved": [], "output_dtype": "", "finite": True}
    for inject in (False, True, False):
        before = model.weight.detach().clone()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(kind, dtype=torch.float16):
            out = model(data)
        loss = out.float().pow(2).mean()
        scaler.scale(loss).backward()
        if inject:
            model.weight.grad[0, 0] = float("inf")
        scaler.step(optimizer)
        scaler.update()
        facts["moved"].append(not torch.equal(before, model.weight))
        facts["scales"].append(scaler.get_scale())
        facts["output_dtype"] = str(out.dtype).replace("torch.", "")
    facts["finite"] = bool(torch.isfinite(model.weight).all())
    facts["initial_scale"] = INITIAL_SCALE
    return facts


def bf16_steps(torch: Any, device: str) -> dict[str, Any]:
    """Take a few bf16 steps; weights stay float32, the loss falls and stays finite."""
    kind = device.split(":", maxsplit=1)[0]
    generator = torch.Generator().manual_seed(4)
    weight = torch.randn(8, 16, generator=generator).to(device).requires_grad_()
    data = torch.randn(32, 16, generator=generator).to(device)
    target = torch.randn(32, 8, generator=generator).to(device)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    losses: list[float] = []
    out_dtype = ""
    for _ in range(6):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(kind, dtype=torch.bfloat16):
            out = data @ weight.t()
        out_dtype = str(out.dtype)
        loss = (out.float() - target).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {
        "losses": losses,
        "output_dtype": out_dtype.replace("torch.", ""),
        "weight_dtype": str(weight.dtype).replace("torch.", ""),
        "gradient_dtype": str(weight.grad.dtype).replace("torch.", ""),
    }


@probe
def determinism(context: Context) -> dict[str, Any]:
    """Train the same steps twice with deterministic algorithms and compare bit for bit."""
    return on_each_device(context, determinism_on, first_only=True)


def determinism_on(torch: Any, device: str) -> dict[str, Any]:
    """Return which values differed between two equal runs, or what torch refused to run."""
    os.environ.setdefault(WORKSPACE, ":4096:8")  # torch before 2.10 demands it
    facts: dict[str, Any] = {"differing": [], "raised": "", "workspace": os.environ[WORKSPACE]}
    torch.use_deterministic_algorithms(True)
    try:
        (first_losses, first), (second_losses, second) = (
            train(torch, device, torch.float32) for _ in range(2)
        )
    except RuntimeError as error:
        facts["raised"] = describe(error)
        return facts
    finally:
        torch.use_deterministic_algorithms(False)
    if first_losses != second_losses:
        facts["differing"].append("loss")
    names = ("convolution", "first layer", "second layer")
    for name, a, b in zip(names, first, second):
        if not torch.equal(a, b):
            facts["differing"].append("gradient of the {}".format(name))
    return facts


@probe
def sdpa(context: Context) -> dict[str, Any]:
    """Compare each attention back end with attention written out in float64."""
    return on_each_device(context, sdpa_on, first_only=True)


def sdpa_on(torch: Any, device: str) -> dict[str, Any]:
    """Return the largest error of each back end and type; what is not available says so."""
    functional = torch.nn.functional
    generator = torch.Generator().manual_seed(6)
    shape = (2, 4, 128, 64)
    query, key, value = (
        torch.randn(*shape, generator=generator, dtype=torch.float64) for _ in range(3)
    )
    right = torch.softmax(query @ key.transpose(-1, -2) / shape[-1] ** 0.5, -1) @ value
    backends: list[dict[str, Any]] = []
    for name, switch in attention_switches(torch):
        for dtype in ("float32", "float16", "bfloat16"):
            entry: dict[str, Any] = {"name": name, "dtype": dtype, "max_error": None}
            inputs = [t.to(device, getattr(torch, dtype)) for t in (query, key, value)]
            try:
                # the reasons why a back end does not apply arrive as warnings
                with warnings.catch_warnings(), switch():
                    warnings.simplefilter("ignore")
                    out = functional.scaled_dot_product_attention(*inputs)
            except RuntimeError as error:
                entry["unsupported"] = describe(error)[:300]
            else:
                entry["max_error"] = float((out.double().cpu() - right).abs().max())
            backends.append(entry)
    return {"backends": backends}


def attention_switches(torch: Any) -> list[tuple[str, Any]]:
    """Return a context manager per attention back end that this torch knows."""
    attention = getattr(torch.nn, "attention", None)
    if attention is None:
        try:
            from torch.nn import attention  # not imported by ``import torch`` everywhere
        except ImportError:
            attention = None
    if attention is not None and hasattr(attention, "sdpa_kernel"):
        known = {
            "math": "MATH",
            "flash": "FLASH_ATTENTION",
            "memory-efficient": "EFFICIENT_ATTENTION",
            "cudnn": "CUDNN_ATTENTION",
        }
        return [
            (name, functools.partial(attention.sdpa_kernel, getattr(attention.SDPBackend, member)))
            for name, member in known.items()
            if hasattr(attention.SDPBackend, member)
        ]

    flags = {"math": (False, True, False), "flash": (True, False, False)}
    flags["memory-efficient"] = (False, False, True)
    return [
        (name, functools.partial(torch.backends.cuda.sdp_kernel, *switches))
        for name, switches in flags.items()
    ]


@probe
def graph(context: Context) -> dict[str, Any]:
    """Capture a step into a CUDA graph and replay it on other data."""
    if not gpu_indices(context):
        raise Skip("no-gpu", "CUDA graphs need a GPU")
    return on_each_device(context, graph_on, first_only=True)


def graph_on(torch: Any, device: str) -> dict[str, Any]:
    """Return how many values a replay gets wrong; whole numbers leave no room for rounding."""
    static = torch.zeros(1024, device=device)
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):  # the allocator must have seen the sizes before the capture
        (static * 3 + 1).relu()
    torch.cuda.current_stream(device).wait_stream(stream)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        out = (static * 3 + 1).relu()
    wrong = 0
    for offset in (-512, 100):
        data = torch.arange(1024, device=device, dtype=torch.float32) + offset
        static.copy_(data)
        captured.replay()
        torch.cuda.synchronize(device)
        wrong += int(out.ne((data * 3 + 1).relu()).sum())
    return {"wrong": wrong}


@probe
def memory(context: Context) -> dict[str, Any]:
    """Check the peak statistics against a known pattern, and provoke and survive out of memory."""
    return on_each_device(context, memory_on, first_only=True)


def memory_on(torch: Any, device: str) -> dict[str, Any]:
    """Return expected and counted peak, the error raised, and whether the device works after it."""
    facts: dict[str, Any] = {"peak_expected": None, "peak_bytes": None, "left_over_bytes": None}
    if device == "cpu":
        facts["out_of_memory"] = attempt(torch, lambda: torch.empty(1 << 50, dtype=torch.uint8))
    else:
        facts.update(cuda_peak(torch, device))
        before = torch.cuda.memory_allocated(device)
        facts["out_of_memory"] = attempt(torch, lambda: fill_cuda(torch, device))
        torch.cuda.set_per_process_memory_fraction(1.0, device)
        facts["left_over_bytes"] = torch.cuda.memory_allocated(device) - before
    values = torch.arange(4096, device=device)
    facts["works_after"] = int((values * 2).sum()) == 4095 * 4096
    return facts


def cuda_peak(torch: Any, device: str) -> dict[str, Any]:
    """Hold two blocks of known size and return what the statistics made of it."""
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    block = torch.zeros(PEAK_BLOCK, dtype=torch.uint8, device=device)
    double = block + 1
    peak = torch.cuda.max_memory_allocated(device) - before
    del block, double
    return {"peak_expected": 2 * PEAK_BLOCK, "peak_bytes": peak}


def fill_cuda(torch: Any, device: str) -> None:
    """Allocate until it fails, below a cap so that nobody else's memory on the GPU is taken."""
    total = torch.cuda.get_device_properties(device).total_memory
    cap = torch.cuda.memory_reserved(device) + OOM_HEADROOM
    torch.cuda.set_per_process_memory_fraction(min(1.0, cap / total), device)
    kept = []
    for _ in range(2 * (OOM_HEADROOM // OOM_CHUNK) + 2 * (cap // OOM_CHUNK)):
        kept.append(torch.empty(OOM_CHUNK, dtype=torch.uint8, device=device))


def attempt(torch: Any, action: Any) -> dict[str, Any]:
    """Do what must run out of memory and return which error that was."""
    typed = getattr(torch, "OutOfMemoryError", getattr(torch.cuda, "OutOfMemoryError", None))
    try:
        action()
    except (RuntimeError, MemoryError) as error:
        is_typed = typed is not None and isinstance(error, typed)
        return {"raised": True, "typed": is_typed, "text": describe(error)[:400]}
    return {"raised": False, "typed": False, "text": ""}


PROBES = {
    "torch.dataloader": dataloader,
    "torch.sampler": sampler,
    "torch.second-order": second_order,
    "torch.amp": amp,
    "torch.determinism": determinism,
    "torch.sdpa": sdpa,
    "torch.graph": graph,
    "torch.memory": memory,
}
