"""Which probes exist, how deep they go, and how long and how large each may get.

A probe is a function in a file of :mod:`gpuenv.probes`. Probes that share a file share a process
(one ``import torch`` serves several); when that process dies, the probe that had begun is blamed
and the rest run again in a new one. What each probe's facts hold is written at the head of its
file; ``docs/doctor.md`` has the list.
"""

from __future__ import annotations

from gpuenv.checks.model import Level
from gpuenv.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSpec:
    """One probe of the catalogue.

    Attributes:
        name: What its facts are filed under, ``host.pci``.
        module: The file below ``gpuenv/probes``, without ``.py``.
        timeout_s: From the moment it begins; importing what its file needs counts with the first.
        memory_mib: Resident memory of its processes, sampled; beyond it they are killed.
        environment: True when it must see the Python environment in question (site-packages,
            ``PYTHONPATH``); the others run with the bare standard library, which starts faster.
        alone: True when it loads the GPU or the CPU, so that nothing else may run beside it.
        live: True when it asks the machine itself, so that a picture of one (a captured root
            folder) cannot answer it.
    """

    name: str
    module: str
    level: Level = Level.STATIC
    timeout_s: float = 5.0
    memory_mib: int = 512
    environment: bool = False
    alone: bool = False
    live: bool = False


STATIC_PROBES = (
    ProbeSpec(name="host.nvml", module="host_nvml", timeout_s=20.0, live=True),
    ProbeSpec(name="torch.static", module="torch_static", environment=True, live=True),
    ProbeSpec(name="host.cuda", module="host_cuda", timeout_s=20.0, live=True),
    ProbeSpec(name="host.machine", module="host_machine"),
    ProbeSpec(name="host.pci", module="host_pci"),
    ProbeSpec(name="host.driver", module="host_driver"),
    ProbeSpec(name="host.kernel-log", module="host_kernel_log"),
    ProbeSpec(name="host.nodes", module="host_nodes"),
    ProbeSpec(name="host.libs", module="host_libs"),
    ProbeSpec(name="host.toolkit", module="host_toolkit"),
    ProbeSpec(name="host.engine", module="host_engine"),
    ProbeSpec(name="host.limits", module="host_limits"),
    ProbeSpec(name="host.storage", module="host_storage"),
    ProbeSpec(name="host.user", module="host_user"),
    ProbeSpec(name="host.env", module="host_env"),
    ProbeSpec(name="host.network", module="host_network"),
    ProbeSpec(name="host.toolchain", module="host_toolchain", environment=True, live=True),
)


def _torch(
    module: str, *names: str, level: Level, timeout_s: float = 60.0, memory_mib: int = 16384
) -> tuple[ProbeSpec, ...]:
    """Return the probes of one file that imports torch; each file loads the machine by itself.

    A cold ``import torch`` from a network disk takes a minute, hence the patience of the first.
    """
    return tuple(
        ProbeSpec(
            name=f"torch.{name}",
            module=module,
            level=level,
            timeout_s=max(timeout_s, 150.0) if number == 0 else timeout_s,
            memory_mib=memory_mib,
            environment=True,
            alone=True,
            live=True,
        )
        for number, name in enumerate(names)
    )


TORCH_PROBES = (
    *_torch(
        "torch_quick",
        "import",
        "cuda",
        "devices",
        "kernel",
        "matmul",
        "autograd",
        "accumulation",
        "tf32",
        "cudnn",
        "step",
        "nccl-versions",
        "libraries",
        "allreduce-1p",
        level=Level.QUICK,
    ),
    *_torch(
        "torch_numerics",
        "dataloader",
        "sampler",
        "second-order",
        "amp",
        "determinism",
        "sdpa",
        "graph",
        "memory",
        level=Level.STANDARD,
    ),
    *_torch("torch_compile", "compile", level=Level.STANDARD, timeout_s=240.0),
    *_torch("torch_collective", "collective", level=Level.STANDARD, timeout_s=480.0),
    *_torch(
        "torch_performance",
        "p2p",
        "transfer",
        "memory-rate",
        "matmul-rate",
        level=Level.STANDARD,
        timeout_s=90.0,
    ),
    *_torch("torch_soak", "memtest", "burn", level=Level.DEEP, timeout_s=300.0),
)
"""Probes that import torch, in the order they run: light before heavy."""


def all_probes() -> tuple[ProbeSpec, ...]:
    """Return the catalogue of probes in running order."""
    return (*STATIC_PROBES, *TORCH_PROBES)
