"""Which GPUs a container gets, and how they are asked for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, TypeAlias

from gpuenv.containers.errors import NoGpuError
from gpuenv.containers.values import is_number
from gpuenv.engine.protocol import DeviceMapping, GpuRequest
from gpuenv.errors import ConfigurationError
from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuenv.engine.capabilities import EngineCapabilities
    from gpuenv.host.gpu_inventory import GpuInventory, HostGpu

_GPU_WORDS: tuple[Literal["auto", "all", "none"], ...] = ("auto", "all", "none")
_UUID = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z/-]{4,64}")
_CONTROL_NODES = (
    "/dev/nvidiactl",
    "/dev/nvidia-uvm",
    "/dev/nvidia-uvm-tools",
    "/dev/nvidia-modeset",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCount:
    """So many GPUs, whichever are least in use."""

    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuNames:
    """These GPUs, by index or UUID."""

    names: tuple[str, ...]


GpuWish: TypeAlias = "Literal['auto', 'all', 'none'] | GpuCount | GpuNames"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPlan:
    """What is asked of the engine.

    Attributes:
        request: ``None`` runs on the CPU.
        devices: Nodes given explicitly beside it, see :func:`plan_gpus`.
        label: For the label and ``gpuenv ps``.
        note: Why so; the user hears it.
        warn: The note is something the user did not ask for.
    """

    request: GpuRequest | None
    devices: tuple[DeviceMapping, ...] = ()
    label: str = "none"
    note: str = ""
    warn: bool = False


def parse_gpus(text: str) -> GpuWish:
    """Read ``--gpus``.

    ``all``, ``none``, ``auto``; ``2`` is two GPUs; ``0,1`` and ``device=0`` are those with these
    indexes; ``GPU-…`` and ``MIG-…`` are UUIDs, with commas between them.

    Raises:
        ConfigurationError: It is none of these, or can be read in two ways.
    """
    for word in _GPU_WORDS:
        if text == word:
            return word
    explicit = text.startswith("device=")
    body = text.removeprefix("device=")
    if is_number(body) and not explicit:
        if int(body) == 0:
            raise ConfigurationError(
                "--gpus 0 can be read in two ways",
                why="as no GPU, or as the first one",
                fix="--gpus none, or --gpus device=0",
            )
        return GpuCount(count=int(body))
    names = tuple(part.strip() for part in body.split(",") if part.strip())
    if not names or not all(is_number(name) or _UUID.fullmatch(name) for name in names):
        raise ConfigurationError(
            f"--gpus {text!r} names no GPUs",
            why="it is neither all, none, a number, indexes (0,1), device=0 nor UUIDs (GPU-…)",
            fix="--gpus all",
        )
    plain = tuple(str(int(name)) if is_number(name) else name for name in names)
    if len(set(plain)) != len(plain):
        raise ConfigurationError(
            f"--gpus {text!r} names a GPU twice", why="each can be given once", fix="--gpus 0,1"
        )
    return GpuNames(names=plain)


def plan_gpus(
    wish: GpuWish,
    inventory: GpuInventory,
    caps: EngineCapabilities,
    *,
    require: bool = False,
    taken: Iterable[str] = (),
) -> GpuPlan:
    """Decide which GPUs are asked for.

    Where the engine injects GPUs by its hook and not by CDI, the device nodes are given explicitly
    as well: without them a ``systemctl daemon-reload`` on the host takes the GPU from a running
    container (nvidia-container-toolkit#48).

    Args:
        require: Refuse instead of running on the CPU, as a count or names do in any case.
        taken: Indexes and UUIDs that other containers of ours have; a count avoids them.

    Raises:
        NoGpuError: What was asked for is not there.
    """
    if wish == "none":
        if require:
            raise NoGpuError(
                "a GPU is required and none was asked for",
                why="--require-gpu and --gpus none contradict each other",
                fix="leave one of them out",
            )
        return GpuPlan(request=None, note="no GPU, as asked")
    if not inventory.known:
        return _plan_unseen(wish, caps, require=require, why=inventory.why)
    if not inventory.gpus:
        return _without_gpu(wish, inventory.why, require=require)
    if wish in {"auto", "all"}:
        chosen = inventory.gpus
        request = GpuRequest()
        label = "all"
    elif isinstance(wish, GpuCount):
        chosen = _least_used(inventory.gpus, wish.count, frozenset(taken))
        request = GpuRequest(devices=tuple(gpu.uuid for gpu in chosen))
        label = ",".join(request.devices)
    else:
        assert isinstance(wish, GpuNames)  # noqa: S101 - the other cases are above
        chosen = tuple(_named(name, inventory.gpus) for name in wish.names)
        request = GpuRequest(
            devices=tuple(
                name if name.startswith("MIG-") else gpu.uuid
                for name, gpu in zip(wish.names, chosen, strict=True)
            )
        )
        label = ",".join(request.devices)
    named = ", ".join(f"{gpu.device_index} ({gpu.name or gpu.uuid})" for gpu in chosen)
    return GpuPlan(
        request=request,
        devices=_nodes(chosen, inventory, caps),
        label=label,
        note=f"GPU {named}",
    )


def _plan_unseen(wish: GpuWish, caps: EngineCapabilities, *, require: bool, why: str) -> GpuPlan:
    """Decide for a host whose GPUs cannot be listed: by what its engine says of itself."""
    promising = "nvidia" in caps.runtimes or any(
        name.startswith("nvidia.com/gpu=") for name in caps.cdi_devices or ()
    )
    if wish == "auto" and not promising and not require:
        return GpuPlan(request=None, note="on the CPU: the engine knows of no GPU on its host")
    if isinstance(wish, GpuNames):
        request = GpuRequest(devices=wish.names)
    elif isinstance(wish, GpuCount):
        request = GpuRequest(devices=tuple(str(index) for index in range(wish.count)))
    else:
        request = GpuRequest()
    return GpuPlan(
        request=request,
        label=",".join(request.devices),
        note=f"GPU {', '.join(request.devices)}, unseen: {why}".rstrip(": "),
    )


def _without_gpu(wish: GpuWish, why: str, *, require: bool) -> GpuPlan:
    reason = why or "this host has none"
    if isinstance(wish, GpuCount | GpuNames):
        # Who says how many or which has a computation in mind that the CPU would not end in time.
        asked = ",".join(wish.names) if isinstance(wish, GpuNames) else str(wish.count)
        raise NoGpuError(
            f"--gpus {asked} was asked for and there is no GPU",
            why=reason,
            fix="--gpus auto runs on the CPU as well; gpuenv doctor looks for the cause",
        )
    if require:
        raise NoGpuError(
            "a GPU is required and there is none",
            why=reason,
            fix="leave out --require-gpu to run on the CPU; gpuenv doctor looks for the cause",
        )
    return GpuPlan(request=None, note=f"no GPU found, so on the CPU: {reason}", warn=wish != "auto")


def _least_used(
    gpus: tuple[HostGpu, ...], count: int, taken: frozenset[str]
) -> tuple[HostGpu, ...]:
    if count > len(gpus):
        raise NoGpuError(
            f"{count} GPUs were asked for and there are {len(gpus)}",
            why="; ".join(f"{gpu.device_index}: {gpu.name} {gpu.uuid}" for gpu in gpus),
            fix=f"--gpus {len(gpus)}",
        )

    def burden(gpu: HostGpu) -> tuple[bool, int, int]:
        ours = gpu.uuid in taken or str(gpu.device_index) in taken
        return ours, gpu.memory_used_bytes or 0, gpu.device_index

    free_first = sorted(gpus, key=burden)
    return tuple(sorted(free_first[:count], key=lambda gpu: gpu.device_index))


def _named(name: str, gpus: tuple[HostGpu, ...]) -> HostGpu:
    for gpu in gpus:
        if name in {str(gpu.device_index), gpu.uuid} or name in gpu.mig_uuids:
            return gpu
    listed = "; ".join(f"{gpu.device_index}: {gpu.name} {gpu.uuid}" for gpu in gpus)
    raise NoGpuError(
        f"there is no GPU {name}", why=f"this host has {listed}", fix="name one of these"
    )


def _nodes(
    chosen: tuple[HostGpu, ...], inventory: GpuInventory, caps: EngineCapabilities
) -> tuple[DeviceMapping, ...]:
    if caps.gpu != "device-request":
        return ()
    wanted = [
        *_CONTROL_NODES,
        *(f"/dev/nvidia{gpu.minor}" for gpu in chosen if gpu.minor is not None),
    ]
    return tuple(DeviceMapping(path=path) for path in wanted if path in inventory.nodes)
