"""What ``gpuenv engine status`` knows: every address that was tried, and what the engine can do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuenv.engine.connect import (
    EngineAddress,
    closest_failure,
    find_addresses,
    open_address,
)
from gpuenv.errors import EngineUnavailableError
from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpuenv.engine.capabilities import EngineCapabilities
    from gpuenv.engine.connect import ForwardedSocket, Settled

_GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One address and what came of it."""

    address: EngineAddress
    error: EngineUnavailableError | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the attempt for ``--json``."""
        return {
            "address": self.address.url,
            "found_via": self.address.found_via,
            "answers": self.error is None,
            "slug": None if self.error is None else self.error.slug,
            "why": None if self.error is None else self.error.why or self.error.what,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    """The engine that commands will use, and the addresses that were tried for it."""

    attempts: tuple[Attempt, ...]
    capabilities: EngineCapabilities | None = None
    free_bytes: int | None = None

    @property
    def chosen(self) -> EngineAddress | None:
        """The address commands will use."""
        return next((a.address for a in self.attempts if a.error is None), None)

    def as_dict(self) -> dict[str, Any]:
        """Return the status for ``--json``."""
        return {
            "address": self.chosen.url if self.chosen else None,
            "found_via": self.chosen.found_via if self.chosen else None,
            "capabilities": self.capabilities.as_dict() if self.capabilities else None,
            "free_bytes": self.free_bytes,
            "tried": [attempt.as_dict() for attempt in self.attempts],
        }


def probe_status(
    target: str | None,
    environ: Mapping[str, str],
    *,
    settled: Settled | None = None,
    transport: Callable[[str], ForwardedSocket] | None = None,
) -> EngineStatus:
    """Try every address in order and ask the first engine that answers.

    Args:
        target: The value of ``--engine``.
        environ: Where the variables and the home folder are looked up.
        settled: What a settings file says, and which.
        transport: Opens ``ssh://`` addresses.
    """
    attempts: list[Attempt] = []
    capabilities, free_bytes = None, None
    for address in find_addresses(target, environ, settled=settled):
        try:
            engine = open_address(address, transport=transport)
        except EngineUnavailableError as error:
            attempts.append(Attempt(address=address, error=error))
            continue
        with engine:
            if capabilities is None:
                capabilities, free_bytes = engine.capabilities, engine.free_bytes()
        attempts.append(Attempt(address=address))
    return EngineStatus(attempts=tuple(attempts), capabilities=capabilities, free_bytes=free_bytes)


def require_chosen(status: EngineStatus) -> None:
    """Make sure that an engine answers.

    Raises:
        EngineUnavailableError: None does; its ``data`` has what was tried.
    """
    if status.chosen is None:
        failures = [attempt.error for attempt in status.attempts if attempt.error is not None]
        error = closest_failure(failures)
        error.data.update(status.as_dict())
        raise error


def describe(status: EngineStatus) -> tuple[tuple[str, str], ...]:
    """Return the lines of the table for people: what the engine is and what follows from it."""
    caps, chosen = status.capabilities, status.chosen
    if caps is None or chosen is None:
        return ()
    rows = [
        ("Engine", f"{caps.kind.capitalize()} {caps.version}, API {caps.api}"),
        ("Address", f"{chosen.url} ({chosen.found_via})"),
        ("Host", _host(caps)),
        ("Runs as", _runs_as(caps)),
        ("Builds with", _builds(caps)),
        ("Store", _store(caps, status.free_bytes)),
        ("GPUs by", _gpu(caps)),
        ("Files in mounts", _users(caps)),
        ("Limits", _limits(caps)),
    ]
    if caps.rlimit_ceiling:
        highest = ", ".join(
            f"{name} {value}" for name, value in sorted(caps.rlimit_ceiling.items())
        )
        rows.append(("Ulimits at most", f"{highest} (the engine lacks CAP_SYS_RESOURCE)"))
    if not caps.host_network_is_host:
        rows.append(("Host network", "not this machine's"))
    if caps.lowest_port > 1:
        rows.append(("Ports", f"from {caps.lowest_port} up"))
    rows += [("Engine warns", line) for line in caps.warnings]
    return tuple(rows)


def _host(caps: EngineCapabilities) -> str:
    size = "" if caps.memory_bytes is None else f", {caps.memory_bytes / _GIB:.1f} GiB memory"
    cpus = "" if caps.cpus is None else f", {caps.cpus} CPUs"
    where = "this machine" if caps.local else f"another machine, {caps.name}"
    return f"{where}: {caps.operating_system}, {caps.architecture}{cpus}{size}"


def _runs_as(caps: EngineCapabilities) -> str:
    if caps.rootless:
        return "an ordinary user (rootless)"
    return "root, with user namespaces (userns-remap)" if caps.userns_remap else "root"


def _builds(caps: EngineCapabilities) -> str:
    if caps.build == "none":
        return "nothing gpuenv can use: no BuildKit"
    extras = ", ".join(sorted(caps.dockerfile))
    return f"{caps.build}" + (f" ({extras})" if extras else "")


def _store(caps: EngineCapabilities, free_bytes: int | None) -> str:
    free = "room unknown" if free_bytes is None else f"{free_bytes / _GIB:.1f} GiB free"
    slow = ": every layer is a full copy, use overlay" if caps.storage == "vfs" else ""
    return f"{caps.store}, {caps.storage}{slow}, {free}"


def _gpu(caps: EngineCapabilities) -> str:
    if caps.gpu == "cdi-request":
        devices = ", ".join(sorted(caps.cdi_devices or ()))
        return f"CDI ({devices})"
    if caps.gpu == "device-request":
        return (
            "device requests, with the NVIDIA runtime registered"
            if "nvidia" in caps.runtimes
            else "device requests, if the NVIDIA Container Toolkit is installed; none is registered"
        )
    return "CDI" if caps.gpu == "cdi-libpod" else "no known way"


def _users(caps: EngineCapabilities) -> str:
    if "caller-uid" in caps.users:
        return "belong to you (your uid inside)"
    if "root-is-caller" in caps.users:
        return "belong to you (you are root inside)"
    return "belong to other users of the host"


def _limits(caps: EngineCapabilities) -> str:
    cgroup = f" (cgroup v{caps.cgroup_version})" if caps.cgroup_version else ""
    missing = {"memory", "cpu", "pids"} - caps.limits
    if not caps.limits:
        return f"none work{cgroup}"
    lacks = f"; not {', '.join(sorted(missing))}" if missing else ""
    return f"{', '.join(sorted(caps.limits))}{lacks}{cgroup}"
