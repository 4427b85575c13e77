"""Where a command works: the engine, here or on another host, and who we are there."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuenv.values import dataclass

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator, Mapping

    from gpuenv.containers.facts import Caller, FolderOwner
    from gpuenv.containers.files import EnvironmentFiles
    from gpuenv.engine.protocol import ContainerEngine
    from gpuenv.host.gpu_inventory import GpuInventory
    from gpuenv.spec import HostGpus, MatrixRequest
    from gpuenv.ssh.remote import RemoteHost

_ASK_WITHIN_S = 25.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """An engine and who we are on its host.

    Attributes:
        caller: By the numbers that the engine's host knows us under.
        remote: The host, where it is not this one.
    """

    engine: ContainerEngine
    caller: Caller
    remote: RemoteHost | None = None
    _told: dict[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)

    @property
    def place(self) -> str:
        """What tells environments there from those here, empty for here."""
        return "" if self.remote is None else self.remote.address.place

    def alias(self, name: str) -> str:
        """Return what ``ssh`` calls an environment there."""
        from gpuenv.ssh.access import choose_alias

        host = "" if self.remote is None else self.remote.address.host
        return choose_alias(os.environ, self.files(name), name=name, host=host, place=self.place)

    @property
    def jump(self) -> str | None:
        """The host as ``ProxyJump`` takes it, ``None`` for here."""
        return None if self.remote is None else self.remote.address.jump

    @property
    def jump_command(self) -> str | None:
        """What reaches the host where ``ProxyJump`` cannot, ``None`` where it can."""
        return None if self.remote is None else self.remote.address.jump_command

    def host_gpus(self, request: MatrixRequest) -> HostGpus:
        """Return the driver and the GPUs of the engine's host, if a request leaves it to them."""
        from gpuenv.commands.options import host_for
        from gpuenv.errors import ProbeError
        from gpuenv.host.told_gpus import host_gpus_told
        from gpuenv.matrix.wish import asks_host
        from gpuenv.spec import HostGpus

        if self.remote is None or not asks_host(request):
            return host_for(request)
        place = self.remote.address.jump
        try:
            return host_gpus_told(self._tell()["host.nvml"], place=place)
        except ProbeError as error:
            return HostGpus(found_via=f"{place} cannot be asked: {error.why or error.what}")

    def inventory(self) -> GpuInventory:
        """Return which GPUs the engine's host has."""
        from gpuenv.errors import ProbeError
        from gpuenv.host.gpu_inventory import GpuInventory, probe_inventory
        from gpuenv.host.told_gpus import inventory_told

        if self.engine.capabilities.local:
            return probe_inventory()
        if self.remote is None:
            return GpuInventory(known=False, why="the engine is not on this host")
        place = self.remote.address.jump
        try:
            told = self._tell()
            return inventory_told(told["host.nvml"], told["host.nodes"], place=place)
        except ProbeError as error:
            why = f"{place} cannot be asked: {error.why or error.what}"
            return GpuInventory(known=False, why=why)

    def _tell(self) -> Mapping[str, Mapping[str, Any]]:
        """Return what the other host says of its GPUs, asked once.

        Raises:
            ProbeError: It has no Python to ask with, or did not answer.
        """
        from gpuenv.checks.model import Level
        from gpuenv.checks.probes import all_probes
        from gpuenv.errors import ProbeError
        from gpuenv.probing import DoctorPlan, RemotePlace

        if not self._told and self.remote is not None:
            names = ("host.nvml", "host.nodes")
            plan = DoctorPlan(
                level=Level.STATIC,
                probes=tuple(spec for spec in all_probes() if spec.name in names),
                budget_s=_ASK_WITHIN_S,
                options={"root": "/", "level": int(Level.STATIC)},
                asked={},
            )
            place = self.remote.address.jump
            for name, run in RemotePlace(shell=self.remote, name=place).run(plan):
                if run is not None and run.status == "ok":
                    self._told[name] = run.facts
                elif run is not None:
                    raise ProbeError(f"{place} does not say which GPUs it has", why=run.error)
            if set(self._told) != set(names):
                raise ProbeError(f"{place} does not say which GPUs it has", why="it said nothing")
        return self._told

    def via(self, name: str) -> Callable[[int], int] | None:
        """Return what makes a port of the engine's host one of this host, ``None`` for here.

        The way stays open when the command has ended.
        """
        if self.remote is None:
            return None
        from gpuenv.ssh.tunnel import keep_tunnel

        files, url = self.files(name), self.remote.address.url
        return lambda there: keep_tunnel(files, url=url, there=there, environ=os.environ)

    def leave(self, name: str) -> None:
        """Close the way to an environment elsewhere."""
        if self.remote is not None:
            from gpuenv.ssh.tunnel import end_tunnel

            end_tunnel(self.files(name))

    def forget(self, aliases: dict[str, str]) -> None:
        """Forget the host keys of environments that are gone, where no other of the name is.

        Args:
            aliases: By the environment's name.
        """
        from gpuenv.ssh.access import forget_access

        for name, alias in aliases.items():
            if not self.files(name).folder.exists():
                forget_access(os.environ, alias)

    def way_to(self, name: str, there: int) -> tuple[int | None, str]:
        """Return the port of this host that leads to one there, or why none does now."""
        from gpuenv.ssh.tunnel import open_tunnel

        tunnel = open_tunnel(self.files(name))
        if tunnel is None or tunnel.there != there:
            return None, f"no tunnel leads there now; gpuenv jupyter --url {name} opens one"
        if tunnel.state == "open":
            return tunnel.here, ""
        return None, (
            f"its tunnel is down: {tunnel.trouble.what}; it is tried again by itself, and at once "
            f"by gpuenv jupyter --url {name}"
        )

    def files(self, name: str) -> EnvironmentFiles:
        """Return the private folder of an environment there."""
        from gpuenv.containers.files import EnvironmentFiles

        return EnvironmentFiles.of(name, environ=os.environ, place=self.place)

    def connect(self, host: str, port: int) -> socket.socket:
        """Open a connection to a port of the engine's host.

        Raises:
            OSError: Nobody listens there.
        """
        from gpuenv.ssh.host_key import connect_tcp

        return connect_tcp(host, port) if self.remote is None else self.remote.connect(host, port)

    def folder_owner(self, path: str) -> FolderOwner | None:
        """Return whose a folder of the engine's host is, ``None`` where that cannot be told."""
        from gpuenv.containers.facts import probe_folder_owner

        if self.remote is not None:
            return self.remote.folder_owner(path)
        return probe_folder_owner(Path(path)) if self.engine.capabilities.local else None


@contextmanager
def open_site(address: str | None) -> Iterator[Site]:
    """Connect to the engine the user means, through SSH where it is on another host."""
    from gpuenv.containers.facts import probe_caller
    from gpuenv.engine.connect import connect
    from gpuenv.errors import EngineUnavailableError, LaunchFailedError
    from gpuenv.ssh.remote import RemoteFailedError, open_remote

    opened: list[RemoteHost] = []

    def transport(url: str) -> RemoteHost:
        opened.append(open_remote(url))
        return opened[-1]

    with connect(address, settled=settled_host(), transport=transport) as engine:
        remote = opened[-1] if opened else None
        site = Site(
            engine=engine,
            caller=probe_caller(os.environ) if remote is None else remote.facts.caller,
            remote=remote,
        )
        try:
            yield site
        except (EngineUnavailableError, LaunchFailedError) as error:
            if remote is None or isinstance(error, RemoteFailedError) or not remote.is_lost():
                raise
            raise remote.lost() from error


def settled_host() -> tuple[str, str] | None:
    """Return the engine that ``gpuenv.toml`` names, and how messages call that place."""
    from gpuenv.config import load_config

    setting = load_config(Path.cwd(), os.environ).text("host", None, {})
    return None if setting is None else (setting.text, setting.origin)
