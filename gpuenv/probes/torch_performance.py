"""Measure the paths a job's data take: host to GPU, GPU memory, GPU to GPU, and the tensor cores.

Light before heavy. NVML is sampled while the load runs, because an idle link and idle clocks say
nothing. Without a GPU there is nothing to measure; with the option ``device`` set to ``cpu`` the
same code runs on the CPU, which proves the code and no hardware.

================  ================================================================================
name              keys (``results`` holds one entry per device: device, error, ...)
================  ================================================================================
torch.p2p         pairs [{from, to, peer_access, wrong, gb_per_s, error}], bytes
torch.transfer    results [{h2d, d2h (GB/s), bytes, utilization_before, fixed, load, replays}]
torch.memory-rate results [{gb_per_s (read + written), bytes, utilization_before}]
torch.matmul-rate results [{tflops, dtype, size, utilization_before, fixed, load}]
================  ================================================================================

``fixed`` and ``load`` come from NVML: ``pcie_gen_max``, ``pcie_width_max``, ``slowdown_celsius``...
and ``[lowest, highest]`` of ``pcie_gen``, ``pcie_width``, ``sm_clock``, ``celsius``, ``power_mw``,
with ``reasons`` counting the samples in which each clock event bit was set. An entry that could
not be measured for want of free memory has ``too_little_memory``.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Callable

from ._cuda import Nvml, Sampling, pci_bus_id
from ._torch import Skip, describe, gpu_indices, load_torch, on_each_device, plain, probe

if TYPE_CHECKING:
    from ._common import Context

MIB = 1 << 20
PAIR_BYTES = 64 * MIB
TRANSFER_BYTES = 256 * MIB
MEMORY_BYTES = 1024 * MIB
MATMUL_SIZE = 8192
LOAD_S = 1.0  # of matmul, long enough for power and thermal limits to show
LEAST_FREE = 512 * MIB
QUEUED = 4  # a wait costs as much as copying some MiB between GPUs


def require_gpu(context: Context) -> None:
    """Skip where there is no GPU and the CPU was not asked for by name."""
    if context.options.get("device") != "cpu" and not gpu_indices(context):
        raise Skip("no-gpu", "torch sees no GPU")


def settle(torch: Any, device: str) -> None:
    """Wait until the device has done what it was told."""
    if device != "cpu":
        torch.cuda.synchronize(device)


def seconds_of(torch: Any, device: str, action: Callable[[], Any], repeats: int = 5) -> float:
    """Return the median time of one action; several are queued before each wait."""
    action()
    samples = []
    for _ in range(repeats):
        settle(torch, device)
        start = time.perf_counter()
        for _ in range(QUEUED):
            action()
        settle(torch, device)
        samples.append((time.perf_counter() - start) / QUEUED)
    return sorted(samples)[repeats // 2]


def nvml_of(device: str) -> Nvml:
    """Return the GPU behind a CUDA device in NVML."""
    return Nvml(None if device == "cpu" else pci_bus_id(int(device.partition(":")[2])))


def free_memory(torch: Any, device: str) -> int:
    """Return the free bytes of a GPU; of the CPU what a test may take."""
    return int(torch.cuda.mem_get_info(device)[0]) if device != "cpu" else 64 * MIB


# --- GPU to GPU ----------------------------------------------------------------------------------


@probe
def peer_copies(context: Context) -> dict[str, Any]:
    """Copy random bytes between every ordered pair of GPUs and look at what arrived.

    The interface reports success for copies that arrive broken (writes on the bus are posted), so
    only the bytes count.
    """
    torch = load_torch()
    require_gpu(context)
    names = ["cuda:{}".format(index) for index in gpu_indices(context)] or ["cpu", "cpu"]
    if len(names) == 1:
        raise Skip("single-gpu", "one GPU: there is no pair to copy between")
    facts: dict[str, Any] = {"bytes": PAIR_BYTES if names[0] != "cpu" else MIB, "pairs": []}
    for a, source in enumerate(names):
        for b, target in enumerate(names):
            if a == b:
                continue
            entry: dict[str, Any] = {"from": a, "to": b, "error": "", "wrong": None}
            try:
                entry.update(copy_between(torch, source, target, facts["bytes"]))
            except Exception as error:
                entry["error"] = describe(error)
            facts["pairs"].append(plain(entry))
        context.tell(facts)
    return facts


def copy_between(torch: Any, source: str, target: str, size: int) -> dict[str, Any]:
    """Return how many bytes differ from a copy by way of the host, and the rate."""
    data = torch.randint(0, 256, (size,), dtype=torch.uint8, device=source)
    arrived = torch.zeros(size, dtype=torch.uint8, device=target)
    arrived.copy_(data)
    settle(torch, source)
    settle(torch, target)
    wrong = int(arrived.ne(data.cpu().to(target)).sum())
    facts: dict[str, Any] = {"wrong": wrong, "peer_access": None}
    if source != "cpu":
        facts["peer_access"] = bool(torch.cuda.can_device_access_peer(source, target))

    seconds = seconds_of(torch, target, lambda: arrived.copy_(data, non_blocking=True))
    facts["gb_per_s"] = size / seconds / 1e9
    return facts


# --- host to GPU ---------------------------------------------------------------------------------


@probe
def transfers(context: Context) -> dict[str, Any]:
    """Time pinned copies in both directions and sample the link meanwhile."""
    require_gpu(context)
    return on_each_device(context, transfer_on)


def transfer_on(torch: Any, device: str) -> dict[str, Any]:
    """Return both rates and what the link did under load."""
    free = free_memory(torch, device)
    if device != "cpu" and free < LEAST_FREE:
        return {"too_little_memory": free}
    size = min(TRANSFER_BYTES, free // 4)
    nvml = nvml_of(device)
    facts: dict[str, Any] = {"bytes": size, "utilization_before": nvml.utilization()}
    host = torch.zeros(size, dtype=torch.uint8)
    if device != "cpu":
        host = host.pin_memory()
    there = torch.zeros(size, dtype=torch.uint8, device=device)
    facts["fixed"] = nvml.fixed()
    with Sampling(nvml, interval_s=0.01) as sampling:
        up = seconds_of(torch, device, lambda: there.copy_(host, non_blocking=True), 11)
        down = seconds_of(torch, device, lambda: host.copy_(there, non_blocking=True), 11)
    replays = nvml.fixed()["replays"]
    before = facts["fixed"]["replays"]
    facts["replays"] = None if replays is None or before is None else replays - before
    facts.update(load=sampling.summary(), h2d=size / up / 1e9, d2h=size / down / 1e9)
    return facts


# --- GPU memory and tensor cores -----------------------------------------------------------------


@probe
def memory_rates(context: Context) -> dict[str, Any]:
    """Time copies within each GPU's memory."""
    require_gpu(context)
    return on_each_device(context, memory_rate_on)


def memory_rate_on(torch: Any, device: str) -> dict[str, Any]:
    """Return the rate of a copy, counting bytes read and bytes written."""
    free = free_memory(torch, device)
    if device != "cpu" and free < LEAST_FREE:
        return {"too_little_memory": free}
    size = min(MEMORY_BYTES, free // 4)
    facts: dict[str, Any] = {"bytes": size, "utilization_before": nvml_of(device).utilization()}
    source = torch.ones(size // 4, device=device)
    target = torch.empty_like(source)
    facts["gb_per_s"] = 2 * size / seconds_of(torch, device, lambda: target.copy_(source), 11) / 1e9
    return facts


@probe
def matmul_rates(context: Context) -> dict[str, Any]:
    """Keep each GPU's tensor cores busy for a second and sample clocks, power and heat."""
    require_gpu(context)
    return on_each_device(context, matmul_rate_on)


def matmul_rate_on(torch: Any, device: str) -> dict[str, Any]:
    """Return TFLOP/s on random data (zeros need less power and run faster) and what NVML saw."""
    free = free_memory(torch, device)
    if device != "cpu" and free < LEAST_FREE + 6 * MATMUL_SIZE**2:
        return {"too_little_memory": free}
    size = MATMUL_SIZE if device != "cpu" else 256
    dtype = torch.bfloat16
    if device == "cpu":
        dtype = torch.float32
    elif torch.cuda.get_device_capability(device)[0] < 8:
        dtype = torch.float16
    nvml = nvml_of(device)
    facts: dict[str, Any] = {
        "size": size,
        "dtype": str(dtype).replace("torch.", ""),
        "utilization_before": nvml.utilization(),
        "fixed": nvml.fixed(),
    }
    generator = torch.Generator(device).manual_seed(8)
    a, b = (torch.randn(size, size, device=device, generator=generator).to(dtype) for _ in range(2))
    out = torch.empty(size, size, device=device, dtype=dtype)
    samples: list[float] = []
    for _ in range(3):
        torch.matmul(a, b, out=out)
    settle(torch, device)
    with Sampling(nvml) as sampling:
        deadline = time.perf_counter() + (LOAD_S if device != "cpu" else 0.05)
        while time.perf_counter() < deadline:
            start = time.perf_counter()
            for _ in range(10):
                torch.matmul(a, b, out=out)
            settle(torch, device)
            samples.append((time.perf_counter() - start) / 10)
    facts["tflops"] = 2 * size**3 / sorted(samples)[len(samples) // 2] / 1e12
    facts["load"] = sampling.summary()
    return facts


PROBES = {
    "torch.p2p": peer_copies,
    "torch.transfer": transfers,
    "torch.memory-rate": memory_rates,
    "torch.matmul-rate": matmul_rates,
}
