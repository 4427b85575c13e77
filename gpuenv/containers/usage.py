"""What the containers of ours use now: processor, memory, network, and of which GPU how much.

A GPU's use is NVML's, by process id of the host; which container a process belongs to is read off
its control group, or asked of the engine where the groups do not tell.
"""

from __future__ import annotations

import queue
import re
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from gpuenv.engine.errors import ContainerNotFoundError, ContainerNotRunningError
from gpuenv.engine.usage import cpu_percent
from gpuenv.errors import GpuenvError
from gpuenv.host.gpu_inventory import GpuUse
from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from gpuenv.containers.lifecycle import Environment
    from gpuenv.engine.protocol import ContainerEngine, UsageSample

_CONTAINER_ID = re.compile(r"(?<![0-9a-f])([0-9a-f]{64})(?![0-9a-f])")
_PROC = Path("/proc")
_READERS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuShare:
    """What one container uses of one GPU.

    Attributes:
        memory_bytes: ``None`` where the driver does not tell.
        sm_percent: Sum over its processes; ``None`` where the driver does not tell.
    """

    device_index: int
    name: str
    memory_bytes: int | None
    memory_total_bytes: int | None
    sm_percent: int | None
    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerUse:
    """What one container uses now; ``None`` is "unknown", never a guess.

    Attributes:
        cpu_percent: 100 is one processor; needs two readings.
    """

    environment: Environment
    cpu_percent: float | None = None
    memory_bytes: int | None = None
    memory_limit_bytes: int | None = None
    pids: int | None = None
    network_rx_bytes: int | None = None
    network_tx_bytes: int | None = None
    gpus: tuple[GpuShare, ...] = ()


def parse_cgroup(text: str) -> str | None:
    """Return the container id in ``/proc/PID/cgroup``.

    Samples, of cgroup v1, v2 with systemd, and Podman::

        12:memory:/docker/4b825d…64 digits…
        0::/system.slice/docker-4b825d….scope
        0::/machine.slice/libpod-4b825d….scope/container
    """
    found = _CONTAINER_ID.findall(text)
    return found[-1] if found else None


def probe_containers_of(pids: Iterable[int], *, proc: Path = _PROC) -> dict[int, str]:
    """Return the container id of each process of this host that is in one."""
    owners: dict[int, str] = {}
    for pid in pids:
        try:
            owner = parse_cgroup((proc / str(pid) / "cgroup").read_text("utf-8", "replace"))
        except OSError:
            continue  # it has ended meanwhile
        if owner is not None:
            owners[pid] = owner
    return owners


def share_gpus(use: GpuUse, owners: Mapping[int, str]) -> dict[str, tuple[GpuShare, ...]]:
    """Return which container uses how much of which GPU, container id → shares."""
    gpus = {gpu.device_index: gpu for gpu in use.gpus}
    shares: dict[str, list[GpuShare]] = {}
    groups: dict[tuple[str, int], list[int]] = {}
    by_key = {(process.pid, process.device_index): process for process in use.processes}
    for pid, index in by_key:
        if pid in owners:
            groups.setdefault((owners[pid], index), []).append(pid)
    for (owner, index), pids in sorted(groups.items()):
        memory = [by_key[pid, index].memory_bytes for pid in pids]
        percents = [by_key[pid, index].sm_percent for pid in pids]
        known = [value for value in memory if value is not None]
        rates = [value for value in percents if value is not None]
        gpu = gpus[index]
        shares.setdefault(owner, []).append(
            GpuShare(
                device_index=index,
                name=gpu.name,
                memory_bytes=sum(known) if known else None,
                memory_total_bytes=gpu.memory_bytes,
                sm_percent=min(100, sum(rates)) if rates else None,
                pids=tuple(sorted(pids)),
            )
        )
    return {owner: tuple(found) for owner, found in shares.items()}


class UsageMeter:
    """Reads again and again; each reading compares with the one before it.

    Args:
        gpu_use: Asks the GPUs of the engine's host; ``None`` where that host is another one.
    """

    def __init__(
        self, engine: ContainerEngine, *, gpu_use: Callable[[], GpuUse] | None, proc: Path = _PROC
    ) -> None:
        self._engine = engine
        self._gpu_use = gpu_use
        self._proc = proc
        self._before: dict[str, UsageSample] = {}

    def read(self, environments: Iterable[Environment]) -> tuple[tuple[ContainerUse, ...], GpuUse]:
        """Return what each running environment uses, and the reading of the GPUs."""
        running = [environment for environment in environments if environment.running]
        use = GpuUse(found_via="the engine is not on this host")
        if self._gpu_use is not None:
            use = self._gpu_use()
        shares = share_gpus(use, self._owners(use, running))
        uses = []
        now = self._samples([environment.container.id for environment in running])
        for environment in running:
            container = environment.container.id
            sample = now.get(container)
            if sample is None:
                continue  # it ended between the list and now
            before = self._before.get(container)
            uses.append(
                ContainerUse(
                    environment=environment,
                    cpu_percent=None if before is None else cpu_percent(before, sample),
                    memory_bytes=sample.memory_bytes,
                    memory_limit_bytes=sample.memory_limit_bytes,
                    pids=sample.pids,
                    network_rx_bytes=sample.network_rx_bytes,
                    network_tx_bytes=sample.network_tx_bytes,
                    gpus=shares.get(container, ()),
                )
            )
        self._before = now
        return tuple(uses), use

    def read_rates(
        self,
        listed: Callable[[], Iterable[Environment]],
        *,
        apart_s: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> tuple[tuple[ContainerUse, ...], GpuUse]:
        """Read twice, which a rate needs, and return the second reading.

        Args:
            listed: Lists the environments, for each reading anew.
            apart_s: From one reading to the next. Docker before 23 holds an answer back until its
                own next measurement, up to 1 s; what it took so is not waited for again.
        """
        begun = clock()
        self.read(listed())
        sleep(max(0.0, apart_s - (clock() - begun)))
        return self.read(listed())

    def _samples(self, containers: list[str]) -> dict[str, UsageSample]:
        """Read containers at the same time, since an engine may take a second for each.

        Each request has a connection of its own, so the readers share nothing. They are daemons:
        Ctrl-C does not wait for an engine that does not answer.

        Returns:
            Container id → sample, without those that have ended.
        """
        waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
        for container in containers:
            waiting.put(container)
        samples: dict[str, UsageSample] = {}
        failures: list[GpuenvError] = []

        def read_waiting() -> None:
            with suppress(queue.Empty):
                while not failures:
                    container = waiting.get_nowait()
                    try:
                        samples[container] = self._engine.usage(container)
                    except (ContainerNotFoundError, ContainerNotRunningError):
                        continue
                    except GpuenvError as failure:
                        failures.append(failure)

        readers = [
            threading.Thread(target=read_waiting, name="usage", daemon=True)
            for _ in range(min(_READERS, len(containers)))
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        if failures:
            raise failures[0]
        return samples

    def _owners(self, use: GpuUse, running: list[Environment]) -> dict[int, str]:
        pids = {process.pid for process in use.processes}
        owners = probe_containers_of(pids, proc=self._proc)
        if pids - owners.keys():
            # A control group of another naming, as with --cgroup-parent: the engine is asked.
            for environment in running:
                for pid in self._engine.processes(environment.container.id) or ():
                    if pid in pids:
                        owners.setdefault(pid, environment.container.id)
        return owners
