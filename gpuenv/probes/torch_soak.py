"""Look for what shows only under long load: memory that forgets, arithmetic that slips when hot.

================  ================================================================================
name              keys (``results`` holds one entry per device: device, error, ...)
================  ================================================================================
torch.memtest     results [{bytes, rounds, wrong, first {pattern, offset}, too_little_memory}]
torch.burn        results [{seconds, products, wrong, tflops_first, tflops_last, load}]
================  ================================================================================

Options: ``memory_share`` of the free memory (0.9), ``burn_s`` (60). On the CPU both take little
memory and a second, which proves the code and no hardware.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ._cuda import Nvml, Sampling, pci_bus_id
from ._torch import Skip, describe, gpu_indices, load_torch, on_each_device, plain, probe

if TYPE_CHECKING:
    from ._common import Context

MIB = 1 << 20
CHUNK_BYTES = 1024 * MIB
CPU_BYTES = 32 * MIB
SIZE = 8192
CPU_SIZE = 256
FEW = 5  # rounds
ODD = 0x9E3779B1  # mixes an address into a word, so that a stuck address line shows
PATTERNS = (0, -1, 0x5555555555555555, -0x5555555555555556)


def require_gpu(context: Context) -> None:
    """Skip where there is no GPU and the CPU was not asked for by name."""
    if context.options.get("device") != "cpu" and not gpu_indices(context):
        raise Skip("no-gpu", "torch sees no GPU")


@probe
def memtest(context: Context) -> dict[str, Any]:
    """Write patterns over the free memory of each GPU, read them back, invert and read again."""
    require_gpu(context)
    share = float(context.options.get("memory_share", 0.9))
    return on_each_device(context, lambda torch, device: memtest_on(torch, device, share))


def memtest_on(torch: Any, device: str, share: float) -> dict[str, Any]:
    """Fill first and look afterwards, so that every word has to be kept for a while."""
    size = CPU_BYTES
    if device != "cpu":
        size = int(torch.cuda.mem_get_info(device)[0] * share) // CHUNK_BYTES * CHUNK_BYTES
        if size < 2 * CHUNK_BYTES:  # a comparison needs a chunk of its own
            return {"too_little_memory": size}
    words = CHUNK_BYTES // 8 if device != "cpu" else size // 8
    count = size // CHUNK_BYTES - 1 if device != "cpu" else 1
    chunks = [torch.empty(words, dtype=torch.int64, device=device) for _ in range(count)]
    addresses = torch.arange(words, dtype=torch.int64, device=device) * ODD
    facts: dict[str, Any] = {"bytes": count * words * 8, "rounds": 0, "wrong": 0, "first": None}

    def look(expect: Any, name: str) -> None:
        for number, chunk in enumerate(chunks):
            bad = chunk.ne(expect(number))
            wrong = int(bad.sum())
            if wrong and facts["first"] is None:
                offset = (number * words + int(bad.nonzero()[0])) * 8
                facts["first"] = {"pattern": name, "offset": offset}
            facts["wrong"] += wrong

    for pattern in PATTERNS:
        for chunk in chunks:
            chunk.fill_(pattern)
        look(lambda _number, value=pattern: value, hex(pattern))
        for chunk in chunks:
            torch.bitwise_not(chunk, out=chunk)
        look(lambda _number, value=~pattern: value, "inverse of " + hex(pattern))
        facts["rounds"] += 2
    for number, chunk in enumerate(chunks):
        torch.add(addresses, number, out=chunk)
    look(lambda number: addresses + number, "own address")
    facts["rounds"] += 1
    return facts


@probe
def burn(context: Context) -> dict[str, Any]:
    """Keep all GPUs at full load together and compare every product with the first one."""
    torch = load_torch()
    require_gpu(context)
    devices = ["cuda:{}".format(index) for index in gpu_indices(context)] or ["cpu"]
    duration_s = float(context.options.get("burn_s", 60.0 if devices != ["cpu"] else 1.0))
    loads = []
    results = []
    for device in devices:
        try:
            loads.append(Load(torch, device))
        except Exception as error:
            results.append({"device": device, "error": describe(error)})
    start = time.monotonic()
    told = start
    while time.monotonic() - start < duration_s:
        for load in loads:
            load.push()
        for load in loads:
            load.wait()
        if time.monotonic() - told > 1:
            told = time.monotonic()
            context.tell({"progress": "{:.0f} of {:.0f} s".format(told - start, duration_s)})
    results += [load.facts(time.monotonic() - start) for load in loads]
    return {"results": plain(results), "progress": "done"}


class Load:
    """One GPU's share of the burn."""

    def __init__(self, torch: Any, device: str) -> None:
        """Make the data and the product that all later ones must equal, bit for bit."""
        self.torch, self.device = torch, device
        self.size = CPU_SIZE if device == "cpu" else SIZE
        dtype = torch.float32 if device == "cpu" else torch.float16
        generator = torch.Generator(device).manual_seed(9)
        self.a, self.b = (
            torch.randn(self.size, self.size, device=device, generator=generator).to(dtype)
            for _ in range(2)
        )
        self.out = torch.empty(self.size, self.size, device=device, dtype=dtype)
        # by the same call as all later ones: another entry may choose another algorithm
        self.right = torch.matmul(self.a, self.b, out=self.out).clone()
        self.wrong = torch.zeros((), dtype=torch.int64, device=device)
        self.rounds: list[float] = []
        self.per_round = 50
        self.pushed = 0.0
        ordinal = None if device == "cpu" else pci_bus_id(int(device.partition(":")[2]))
        self.sampling = Sampling(Nvml(ordinal), interval_s=0.5)
        self.sampling.start()

    def push(self) -> None:
        """Queue a round of products; the GPU works while the others are given theirs."""
        self.pushed = time.perf_counter()
        for _ in range(self.per_round):
            self.torch.matmul(self.a, self.b, out=self.out)
            self.wrong += self.out.ne(self.right).sum()

    def wait(self) -> None:
        """Wait for the round to end."""
        if self.device != "cpu":
            self.torch.cuda.synchronize(self.device)
        self.rounds.append(time.perf_counter() - self.pushed)

    def facts(self, seconds: float) -> dict[str, Any]:
        """Return what came of it."""
        self.sampling.stop()
        work = 2 * self.size**3 * self.per_round / 1e12
        return {
            "device": self.device,
            "error": "",
            "seconds": round(seconds, 1),
            "products": len(self.rounds) * self.per_round,
            "wrong": int(self.wrong),
            # the very first round waits for libraries to load
            "tflops_first": work / min(self.rounds[:FEW]) if self.rounds else None,
            "tflops_last": work / min(self.rounds[-FEW:]) if self.rounds else None,
            "load": self.sampling.summary(),
        }


PROBES = {"torch.memtest": memtest, "torch.burn": burn}
