"""One rank of a process group: what each process of ``torch.collective`` does.

Every step is announced before it begins and after it ends, so that whoever watches all ranks can
say which one did not arrive. Data are whole numbers small enough for every type, so sums are exact
and a difference is a fault, not rounding.
"""

from __future__ import annotations

import faulthandler
import signal
import sys
import time
from datetime import timedelta
from typing import Any, Callable, Iterator

from ._cuda import pci_bus_id
from ._torch import describe, load_torch, plain, ternary, unsupported

Tell = Callable[[dict], None]

EXACT_IN_BFLOAT16 = 256
WRONG_SHOWN = 4096
DTYPES = ("float32", "bfloat16", "float16", "int64")
GPU_SIZES = (1000, 65537, (8 << 20) + 1)  # elements: odd on purpose, chunks do not come out even
CPU_SIZES = (1000, 65537, (1 << 20) + 1)
GPU_SWEEP = tuple(1 << shift for shift in (15, 18, 21, 24, 27, 30))  # bytes
CPU_SWEEP = tuple(1 << shift for shift in (12, 15, 18, 21, 24))


def modulus_for(world: int) -> int:
    """Return the largest number of values whose sum over all ranks bfloat16 still holds exactly."""
    return max(2, EXACT_IN_BFLOAT16 // world + 1)


def main(arguments: dict[str, Any], tell: Tell) -> dict[str, Any]:
    """Join the group and do the parts asked for; see :mod:`gpuenv.probes.torch_collective`."""
    faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=False)
    rank = Rank(arguments, tell)
    for part in arguments["parts"]:
        for step in PARTS[part](rank):
            tell(plain(step))
    rank.leave()
    return {"done": True}


def import_ahead() -> None:
    """Import what DistributedDataParallel would import in its constructor, between collectives.

    That takes a minute on a cold network disk and would look like a rank that does not arrive.
    """
    try:
        import torch._dynamo  # noqa: F401 - for its side effect: it is loaded now, not later
    except Exception:
        return


class Rank:
    """A member of the process group and the device it owns."""

    def __init__(self, arguments: dict[str, Any], tell: Tell) -> None:
        """Import torch, take the device, join the group and complete a first small collective."""
        self.arguments = arguments
        self.rank: int = arguments["rank"]
        self.world: int = arguments["world"]
        self.backend: str = arguments["backend"]
        self._tell = tell
        self.enter("import")
        self.torch = load_torch()
        import torch.distributed

        self.dist = torch.distributed
        if "ddp" in arguments["parts"]:
            import_ahead()
        self.device = "cpu"
        if arguments["device"] is not None:
            self.device = "cuda:{}".format(arguments["device"])
            self.torch.cuda.set_device(arguments["device"])
        self.enter("device")
        tell({"identity": self.identity()})
        self.enter("store")
        limit = timedelta(seconds=arguments["limit_s"])
        self.store = self.dist.TCPStore(
            "127.0.0.1", arguments["port"], self.world, self.rank == 0, limit
        )
        self.enter("join")
        self.dist.init_process_group(
            self.backend, store=self.store, rank=self.rank, world_size=self.world, timeout=limit
        )
        self.enter("first collective")
        ones = self.torch.ones(1, device=self.device)
        self.dist.all_reduce(ones)
        self.settle()
        tell({"first": ones.item()})

    def enter(self, stage: str) -> None:
        """Announce the step that begins now; the ones before it are over."""
        self._tell({"stage": stage})

    def settle(self) -> None:
        """Wait until the device has done what it was told."""
        if self.device != "cpu":
            self.torch.cuda.synchronize()

    def identity(self) -> dict[str, Any]:
        """Say which piece of hardware this rank has, in terms no variable can shift."""
        if self.device == "cpu":
            return {"device": "cpu", "name": "CPU", "pci": None, "uuid": None}
        properties = self.torch.cuda.get_device_properties(self.device)
        return {
            "device": self.device,
            "name": properties.name,
            "pci": pci_bus_id(self.arguments["device"]),
            "uuid": str(getattr(properties, "uuid", "")) or None,
        }

    def ramp(self, elements: int, rank: int) -> Any:
        """Return what ``rank`` contributes: whole numbers that depend on rank and position."""
        index = self.torch.arange(elements, device=self.device, dtype=self.torch.int64)
        return (index * 7 + rank * 3) % modulus_for(self.world)

    def ramp_sum(self, elements: int) -> Any:
        """Return the exact sum of all ranks' contributions."""
        total = self.ramp(elements, 0)
        for rank in range(1, self.world):
            total += self.ramp(elements, rank)
        return total

    def compare(self, got: Any, right: Any) -> dict[str, Any]:
        """Return how many elements are wrong, the first one, and whose contribution is missing."""
        wrong = got.to(self.torch.int64).ne(right).nonzero().flatten()
        found: dict[str, Any] = {"wrong": int(wrong.numel())}
        if found["wrong"]:
            at = wrong[:WRONG_SHOWN]
            lacking = right[at] - got[at].to(self.torch.int64)
            first = int(at[0])
            found["first"] = {
                "index": first,
                "got": float(got[first]),
                "right": float(right[first]),
            }
            found["lost_ranks"] = [
                rank
                for rank in range(self.world)
                if bool(self.ramp(int(at[-1]) + 1, rank)[at].eq(lacking).all())
            ]
        return found

    def leave(self) -> None:
        """Wait for one another by the store alone, so that nobody hangs up on a slower rank."""
        self.enter("leave")
        self.store.set("left{}".format(self.rank), "1")
        if self.rank == 0:
            self.store.wait(["left{}".format(rank) for rank in range(self.world)])


def all_reduce(rank: Rank) -> Iterator[dict[str, Any]]:
    """Sum whole numbers over all ranks, type by type and size by size, and compare exactly."""
    sizes = CPU_SIZES if rank.device == "cpu" else GPU_SIZES
    for elements in sizes[: rank.arguments.get("sizes", len(sizes))]:
        right = rank.ramp_sum(elements)
        for name in DTYPES:
            tensor = rank.ramp(elements, rank.rank).to(getattr(rank.torch, name))
            rank.enter("all_reduce {} x {}".format(name, elements))
            entry: dict[str, Any] = {"dtype": name, "elements": elements, "wrong": None}
            try:
                rank.dist.all_reduce(tensor)
                rank.settle()
            except (RuntimeError, ValueError) as error:
                if not unsupported(error):
                    raise
                entry["unsupported"] = describe(error)
            else:
                entry.update(rank.compare(tensor, right))
            yield {"all_reduce": entry}


def scatter_gather(rank: Rank) -> Iterator[dict[str, Any]]:
    """Show that reduce_scatter followed by all_gather is all_reduce."""
    torch, share = rank.torch, 4096
    elements = share * rank.world
    contribution = rank.ramp(elements, rank.rank).float()
    part = torch.empty(share, device=rank.device)
    whole = [torch.empty(share, device=rank.device) for _ in range(rank.world)]
    entry: dict[str, Any] = {"elements": elements, "wrong": None}
    # renamed in torch 2.13, the old name warns
    reduce_scatter = getattr(
        rank.dist, "reduce_scatter_single", getattr(rank.dist, "reduce_scatter_tensor", None)
    )
    rank.enter("reduce_scatter + all_gather")
    try:
        reduce_scatter(part, contribution)
        rank.dist.all_gather(whole, part)
        rank.settle()
    except (RuntimeError, ValueError, NotImplementedError) as error:
        if not unsupported(error):
            raise
        entry["unsupported"] = describe(error)
    else:
        rank.dist.all_reduce(contribution)
        rank.settle()
        entry.update(rank.compare(torch.cat(whole), rank.ramp_sum(elements)))
        entry["differs_from_all_reduce"] = int(torch.cat(whole).ne(contribution).sum())
    yield {"scatter_gather": entry}


def bandwidth(rank: Rank) -> Iterator[dict[str, Any]]:
    """Time all-reduces of growing size; every rank's own time, the slowest one counts."""
    torch = rank.torch
    on_gpu = rank.device != "cpu"
    free = torch.cuda.mem_get_info()[0] if on_gpu else CPU_SWEEP[-1] * 4
    rank.enter("agreement on sizes")  # by the store: all ranks must make the same calls
    rank.store.set("free{}".format(rank.rank), str(free))
    limit = min(int(rank.store.get("free{}".format(other))) for other in range(rank.world)) // 4
    for size in GPU_SWEEP if on_gpu else CPU_SWEEP:
        if size > limit:
            break
        tensor = torch.zeros(size // 4, device=rank.device)
        rank.enter("timed all_reduce of {} bytes".format(size))
        rank.dist.all_reduce(tensor)
        repeats = 20 if size <= 1 << 24 else 5
        samples = []
        for _ in range(3):
            rank.dist.barrier()
            rank.settle()
            start = time.perf_counter()
            for _ in range(repeats):
                rank.dist.all_reduce(tensor)
            rank.settle()
            samples.append((time.perf_counter() - start) / repeats)
        yield {"bandwidth": {"bytes": size, "seconds": sorted(samples)[1]}}


def data_parallel(rank: Rank) -> Iterator[dict[str, Any]]:
    """Train one DistributedDataParallel step on exact data and hand in the gradients.

    Each rank starts from other weights (construction must replace them by rank 0's) and takes its
    rows of one batch. The loss is multiplied by the number of ranks because the gradients are
    averaged: the result is the gradient of the whole batch, in whole numbers.
    """
    rank.enter("DistributedDataParallel")
    torch = rank.torch
    model = torch.nn.Linear(8, 4, bias=False).to(rank.device)
    weight = torch.tensor(ternary(32, seed=3), dtype=torch.float32).reshape(4, 8)
    with torch.no_grad():
        model.weight.copy_(weight + rank.rank)
    ids = None if rank.device == "cpu" else [rank.arguments["device"]]
    parallel = torch.nn.parallel.DistributedDataParallel(model, device_ids=ids)
    synced = bool(torch.equal(model.weight.detach().cpu(), weight))
    data = torch.tensor(ternary(256, seed=17), dtype=torch.float32).reshape(32, 8)
    target = torch.tensor(ternary(128, seed=19), dtype=torch.float32).reshape(32, 4)
    x = data[rank.rank :: rank.world].to(rank.device)
    y = target[rank.rank :: rank.world].to(rank.device)
    rank.enter("backward of DistributedDataParallel")
    (((parallel(x) - y) ** 2).sum() * 0.5 * rank.world).backward()
    rank.settle()
    reference = (data @ weight.t() - target).t() @ data
    yield {
        "ddp": {
            "weights_synced": synced,
            "gradient": model.weight.grad.cpu().flatten().tolist(),
            "reference": reference.flatten().tolist(),
        }
    }


def sampler(rank: Rank) -> Iterator[dict[str, Any]]:
    """Hand in the samples that DistributedSampler gives to this rank."""
    rank.enter("DistributedSampler")
    from torch.utils.data import DistributedSampler

    for samples in (16 * rank.world, 16 * rank.world + 3):
        for drop_last in (False, True):
            chosen = DistributedSampler(
                range(samples),
                num_replicas=rank.world,
                rank=rank.rank,
                shuffle=True,
                seed=5,
                drop_last=drop_last,
            )
            epochs = []
            for epoch in range(2):
                chosen.set_epoch(epoch)
                epochs.append(list(chosen))
            yield {"sampler": {"samples": samples, "drop_last": drop_last, "epochs": epochs}}


PARTS = {
    "all_reduce": all_reduce,
    "scatter_gather": scatter_gather,
    "bandwidth": bandwidth,
    "ddp": data_parallel,
    "sampler": sampler,
}
