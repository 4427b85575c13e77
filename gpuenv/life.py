"""Life with what runs: list it, stop and start it, remove it, see what it uses."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from gpuenv.containers.lifecycle import as_dict, remove_caches, remove_environment, start_stopped
from gpuenv.containers.ready import wait_ready
from gpuenv.jupyter import RunningJupyter, address_of, probe_status, running_jupyter
from gpuenv.jupyter import wait_until_answers as wait_for_jupyter
from gpuenv.ssh.host_key import connect_tcp
from gpuenv.values import dataclass

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from gpuenv.containers.files import EnvironmentFiles
    from gpuenv.containers.lifecycle import Environment
    from gpuenv.engine.protocol import ContainerEngine, ContainerInfo
    from gpuenv.jupyter import PortHere

_BANNER_TIMEOUT_S = 3.0
_AT_ONCE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentRow:
    """One line of ``gpuenv ps``.

    Attributes:
        target: How it is reached: an address without its token, ``gpuenv ssh NAME``, or nothing.
        idle_s: Since somebody last used it; ``None`` where that cannot be told.
        kernels: How many are alive; ``None`` where that cannot be told.
        trouble: Why it cannot be reached from here although it runs, or nothing.
    """

    environment: Environment
    target: str
    age_s: float
    idle_s: float | None = None
    kernels: int | None = None
    trouble: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the line for ``--json``."""
        return {
            **as_dict(self.environment),
            "url": self.target if self.environment.identity.kind == "jupyter" else None,
            "target": self.target,
            "age_s": round(self.age_s, 1),
            "idle_s": None if self.idle_s is None else round(self.idle_s, 1),
            "kernels": self.kernels,
            "trouble": self.trouble or None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """What was removed."""

    environments: tuple[str, ...]
    volumes: tuple[str, ...] = ()


def describe(
    environments: Sequence[Environment],
    *,
    files_of: Callable[[str], EnvironmentFiles],
    owner: int,
    now: datetime,
    way_to: Callable[[str, int], tuple[int | None, str]] | None = None,
) -> tuple[EnvironmentRow, ...]:
    """Return a line for each environment; the servers are asked at the same time.

    Args:
        files_of: The private folder of an environment of ours, by name.
        owner: Whose servers we have the tokens of.
        way_to: Where the engine is on another host, the port of this one that leads to an
            environment's, by its name; ``None`` if none does, and why.
    """

    def row(environment: Environment) -> EnvironmentRow:
        identity, container = environment.identity, environment.container
        started = container.started_at if environment.running else None
        age_s = (now - (started or identity.created)).total_seconds()
        if identity.kind == "ssh":
            target = f"gpuenv ssh {identity.name}" if environment.running else ""
            return EnvironmentRow(environment=environment, target=target, age_s=age_s)
        if identity.kind != "jupyter" or not environment.running:
            return EnvironmentRow(environment=environment, target="", age_s=age_s)
        files = files_of(identity.name)
        chain = files.read(files.certificate_path) if identity.request.get("tls") else None
        address = address_of(container, chain=chain)
        trouble = ""
        if address is not None and way_to is not None:
            mine = identity.owner == owner
            here, trouble = way_to(identity.name, address.port) if mine else (None, "")
            address = None if here is None else replace(address, host="127.0.0.1", port=here)
        if address is None:
            return EnvironmentRow(environment=environment, target="", age_s=age_s, trouble=trouble)
        token = files.secret_token() if identity.owner == owner else None
        status = probe_status(address, token)
        idle_s = None
        if status is not None and status.last_activity is not None:
            idle_s = max(0.0, (now - status.last_activity).total_seconds())
        return EnvironmentRow(
            environment=environment,
            target=address.url,
            age_s=age_s,
            idle_s=idle_s,
            kernels=None if status is None else status.kernels,
        )

    with ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
        return tuple(pool.map(row, environments))


def start_again(
    engine: ContainerEngine,
    environment: Environment,
    files: EnvironmentFiles,
    *,
    timeout_s: float,
    via: PortHere | None = None,
    connect: Callable[[str, int], socket.socket] = connect_tcp,
) -> RunningJupyter | None:
    """Start a stopped environment with its port, token and host key, and wait until it answers.

    Args:
        via: Where the engine is on another host.
        connect: Opens a connection to a port of the engine's host.

    Returns:
        The server, for an environment of that kind.

    Raises:
        PortTakenError: Somebody else has its port by now.
        LaunchFailedError: It did not start or does not answer.
    """
    info = environment.container
    if not environment.running:
        info = start_stopped(engine, environment)
    if environment.identity.kind == "jupyter":
        running = running_jupyter(engine, files, environment, info, via=via)
        wait_for_jupyter(engine, running, timeout_s=timeout_s)
        return running
    if environment.identity.kind == "ssh":
        _wait_for_banner(engine, info, timeout_s=timeout_s, connect=connect)
    return None


def _wait_for_banner(
    engine: ContainerEngine,
    info: ContainerInfo,
    *,
    timeout_s: float,
    connect: Callable[[str, int], socket.socket],
) -> None:
    published = next((port for port in info.ports if port.protocol == "tcp"), None)
    if published is None:
        return

    def probe() -> str:
        host = published.host_ip if published.host_ip not in {"", "0.0.0.0", "::"} else "127.0.0.1"  # noqa: S104
        return probe_banner(host, published.host_port, connect=connect)

    wait_ready(engine, info.id, probe, what="the SSH server", timeout_s=timeout_s)


def probe_banner(
    host: str, port: int, *, connect: Callable[[str, int], socket.socket] = connect_tcp
) -> str:
    """Ask an SSH server for its first line; return what is missing, nothing when it answers."""
    try:
        with connect(host, port) as connection:
            connection.settimeout(_BANNER_TIMEOUT_S)
            line = connection.recv(64)
    except OSError as error:
        return f"{host}:{port}: {error}"
    return "" if line.startswith(b"SSH-2.0-") else f"{host}:{port} answers {line[:32]!r}"


def remove(
    engine: ContainerEngine,
    chosen: Sequence[Environment],
    everything: Sequence[Environment],
    *,
    files_of: Callable[[str], EnvironmentFiles],
    owner: int,
    volumes: bool,
) -> Removal:
    """Remove environments, and with the last container of a name its tokens and keys.

    Args:
        everything: All environments of the owner, the chosen ones among them.
        volumes: The owner's cache volumes go too, as far as nothing uses them.
    """
    gone = {environment.container.id for environment in chosen}
    for environment in chosen:
        remove_environment(engine, environment)
    left = {e.identity.name for e in everything if e.container.id not in gone}
    for environment in chosen:
        if environment.identity.owner == owner and environment.identity.name not in left:
            files_of(environment.identity.name).forget()
    return Removal(
        environments=tuple(dict.fromkeys(e.identity.name for e in chosen)),
        volumes=remove_caches(engine, owner=owner) if volumes else (),
    )


def utc_now() -> datetime:
    """Return the time, aware."""
    return datetime.now(timezone.utc)
