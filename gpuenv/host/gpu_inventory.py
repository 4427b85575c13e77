"""Which GPUs this host has, who uses them and how much; asked of NVML, never of ``nvidia-smi``."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuenv.host.nvml import explain_nvml_error
from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator

_DEV = Path("/dev")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostGpu:
    """One GPU of the engine's host.

    Attributes:
        device_index: NVML's index, which is what the engine's tools count by.
        minor: Number of its device node, ``/dev/nvidia0``; ``None`` if not known.
        memory_used_bytes: By whoever uses it; ``None`` if not known.
        mig_uuids: Its MIG devices.
    """

    device_index: int
    uuid: str
    name: str = ""
    minor: int | None = None
    memory_bytes: int | None = None
    memory_used_bytes: int | None = None
    mig_uuids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuInventory:
    """The GPUs of the engine's host, as far as they are known.

    Attributes:
        known: The list is complete; ``False`` for an engine on a host we cannot look at.
        why: Why there are none, or why they are not known.
        nodes: The device nodes below ``/dev`` that exist there.
    """

    gpus: tuple[HostGpu, ...] = ()
    known: bool = True
    why: str = ""
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """What one process uses of one GPU.

    Attributes:
        pid: As this host counts, whatever container it is in.
        memory_bytes: ``None`` where the driver does not tell (some MIG and WSL set-ups).
        sm_percent: Share of the time in which a kernel of it ran; ``None`` where not told.
    """

    pid: int
    device_index: int
    memory_bytes: int | None = None
    sm_percent: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    """One reading of all GPUs.

    Attributes:
        found_via: ``NVML``, or why there is nothing.
        utilisation: Device index → percent of the time in which any kernel ran.
    """

    gpus: tuple[HostGpu, ...] = ()
    utilisation: tuple[tuple[int, int | None], ...] = ()
    processes: tuple[GpuProcess, ...] = ()
    found_via: str = ""


def probe_inventory(nvml: Any = None, *, dev: Path = _DEV) -> GpuInventory:
    """Ask NVML which GPUs this host has; where it does not answer, say why and list none.

    Args:
        nvml: The ``pynvml`` module or a stand-in, imported when not given.
        dev: Where device nodes are.
    """
    nodes = tuple(sorted(str(path) for path in dev.glob("nvidia*") if not path.is_dir()))
    with _session(nvml) as (library, why):
        if library is None:
            return GpuInventory(why=why, nodes=nodes)
        gpus = _gpus(library)
    return GpuInventory(gpus=gpus, why="" if gpus else "NVML lists no GPU", nodes=nodes)


def probe_gpu_use(nvml: Any = None, *, since_us: int = 0) -> GpuUse:
    """Ask NVML who uses which GPU now.

    Args:
        nvml: The ``pynvml`` module or a stand-in, imported when not given.
        since_us: Only samples of utilisation after this time, microseconds since 1970.
    """
    with _session(nvml) as (library, why):
        if library is None:
            return GpuUse(found_via=why)
        gpus = _gpus(library)
        utilisation: list[tuple[int, int | None]] = []
        processes: list[GpuProcess] = []
        for gpu in gpus:
            handle = library.nvmlDeviceGetHandleByIndex(gpu.device_index)
            rates = _ask(library, library.nvmlDeviceGetUtilizationRates, handle)
            utilisation.append((gpu.device_index, None if rates is None else int(rates.gpu)))
            processes += _processes(library, handle, gpu.device_index, since_us)
    return GpuUse(
        gpus=gpus,
        utilisation=tuple(utilisation),
        processes=tuple(processes),
        found_via="NVML",
    )


@contextmanager
def _session(nvml: Any) -> Iterator[tuple[Any, str]]:
    """Open NVML; gives ``(None, why)`` where it does not answer."""
    if nvml is None:
        try:
            import pynvml  # type: ignore[import-untyped]
        except ImportError as error:
            yield None, f"the Python package nvidia-ml-py cannot be imported: {error}"
            return
        nvml = pynvml
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        yield None, explain_nvml_error(error)
        return
    try:
        yield nvml, ""
    finally:
        nvml.nvmlShutdown()


def _ask(library: Any, function: Any, *arguments: Any) -> Any:
    """Return one answer of NVML, ``None`` where this GPU or driver has none to give."""
    try:
        return function(*arguments)
    except library.NVMLError:
        return None


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")


def _gpus(library: Any) -> tuple[HostGpu, ...]:
    gpus = []
    for index in range(_ask(library, library.nvmlDeviceGetCount) or 0):
        handle = _ask(library, library.nvmlDeviceGetHandleByIndex, index)
        uuid = None if handle is None else _ask(library, library.nvmlDeviceGetUUID, handle)
        if not uuid:
            continue  # a GPU that fell off the bus; the others still work
        memory = _ask(library, library.nvmlDeviceGetMemoryInfo, handle)
        gpus.append(
            HostGpu(
                device_index=index,
                uuid=_text(uuid),
                name=_text(_ask(library, library.nvmlDeviceGetName, handle)),
                minor=_ask(library, library.nvmlDeviceGetMinorNumber, handle),
                memory_bytes=None if memory is None else int(memory.total),
                memory_used_bytes=None if memory is None else int(memory.used),
                mig_uuids=_mig_uuids(library, handle),
            )
        )
    return tuple(gpus)


def _mig_uuids(library: Any, handle: Any) -> tuple[str, ...]:
    most = _ask(library, library.nvmlDeviceGetMaxMigDeviceCount, handle) or 0
    devices = (
        _ask(library, library.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)
        for index in range(most)
    )
    uuids = (_ask(library, library.nvmlDeviceGetUUID, d) for d in devices if d is not None)
    return tuple(_text(uuid) for uuid in uuids if uuid)


def _processes(library: Any, handle: Any, index: int, since_us: int) -> list[GpuProcess]:
    memory: dict[int, int | None] = {}
    for function in (
        library.nvmlDeviceGetComputeRunningProcesses,
        library.nvmlDeviceGetGraphicsRunningProcesses,
    ):
        for process in _ask(library, function, handle) or ():
            used = process.usedGpuMemory
            if used is not None or process.pid not in memory:
                memory[process.pid] = None if used is None else int(used)
    samples = _ask(library, library.nvmlDeviceGetProcessUtilization, handle, since_us) or ()
    latest: dict[int, tuple[int, int]] = {}
    for sample in samples:
        seen = (int(sample.timeStamp), int(sample.smUtil))
        if sample.pid and seen >= latest.get(sample.pid, (0, 0)):
            latest[sample.pid] = seen
    return [
        GpuProcess(
            pid=pid,
            device_index=index,
            memory_bytes=used,
            # No sample means that no kernel of it ran; where the driver tells nothing of anybody,
            # nothing is known.
            sm_percent=latest[pid][1] if pid in latest else (0 if latest else None),
        )
        for pid, used in sorted(memory.items())
    ]
