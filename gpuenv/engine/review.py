"""What an engine will not do as a container's description asks; pure, and asked before create.

An engine that leaves something out without a word is worse than one that fails: a container
without its GPU, or without the memory limit that keeps a neighbour alive. So nothing in a
:class:`~gpuenv.engine.protocol.ContainerSpec` is ever dropped silently: it is applied, or there is
a finding.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from gpuenv.engine.protocol import BindMount, TmpfsMount
from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpuenv.engine.capabilities import EngineCapabilities, Limit
    from gpuenv.engine.protocol import ContainerSpec, Ulimit

CDI_PREFIX = "nvidia.com/gpu="
Severity: TypeAlias = Literal["refusal", "warning"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that will not be as asked.

    Attributes:
        severity: A refusal stops the create, a warning is shown.
        field: The field of the spec.
    """

    severity: Severity
    field: str
    what: str
    why: str = ""
    fix: str = ""

    def as_dict(self) -> dict[str, str]:
        """Return the finding for ``--json`` and ``--dry-run``."""
        return {
            "severity": self.severity,
            "field": self.field,
            "what": self.what,
            "why": self.why,
            "fix": self.fix,
        }


def review(spec: ContainerSpec, caps: EngineCapabilities) -> tuple[Finding, ...]:
    """Return what this engine will not do as the spec asks, refusals first.

    A field without a finding is applied by :func:`gpuenv.engine.docker.plan_create` or its twin of
    another engine; a contract test holds both to that.
    """
    findings = [
        finding
        for ask in (
            _review_gpu,
            _review_limits,
            _review_ulimits,
            _review_users,
            _review_mounts,
            _review_ports,
            _review_network,
            _review_life,
        )
        for finding in ask(spec, caps)
    ]
    return tuple(sorted(findings, key=lambda finding: finding.severity != "refusal"))


def _refusal(field: str, what: str, why: str = "", fix: str = "") -> Finding:
    return Finding(severity="refusal", field=field, what=what, why=why, fix=fix)


def _warning(field: str, what: str, why: str = "", fix: str = "") -> Finding:
    return Finding(severity="warning", field=field, what=what, why=why, fix=fix)


def _review_gpu(spec: ContainerSpec, caps: EngineCapabilities) -> Iterator[Finding]:
    if spec.gpu is None:
        return
    if caps.gpu == "unknown":
        yield _refusal(
            "gpu",
            "this engine cannot give out GPUs",
            "it has no CDI, and would start the container without a GPU and without a word",
            "install the NVIDIA Container Toolkit and generate its CDI specification",
        )
    elif caps.gpu in {"cdi-request", "cdi-libpod"} and caps.cdi_devices is not None:
        unknown = [
            device for device in spec.gpu.devices if f"{CDI_PREFIX}{device}" not in caps.cdi_devices
        ]
        if unknown:
            known = sorted(caps.cdi_devices)
            yield _refusal(
                "gpu",
                f"the engine knows no GPU {', '.join(unknown)}",
                f"its CDI specifications name {', '.join(known) or 'none'}",
                "name one of those, or write the specification anew: nvidia-ctk cdi generate",
            )


def _review_limits(spec: ContainerSpec, caps: EngineCapabilities) -> Iterator[Finding]:
    asked: tuple[tuple[Limit, str, float | None], ...] = (
        ("memory", "memory_bytes", spec.memory_bytes),
        ("cpu", "cpus", spec.cpus),
        ("pids", "pids_limit", spec.pids_limit),
    )
    for limit, name, value in asked:
        if value is not None and limit not in caps.limits:
            yield _warning(
                name,
                f"the {limit} limit will not be applied",
                "the engine has no control group for it",
                "use a rootful engine, or delegate the controllers to the user's session",
            )
    if (
        spec.memory_bytes is not None
        and caps.memory_bytes is not None
        and "memory" in caps.limits
        and spec.memory_bytes > caps.memory_bytes
    ):
        yield _warning(
            "memory_bytes",
            "the memory limit is above what the engine's host has",
            f"{spec.memory_bytes} of {caps.memory_bytes} bytes: it limits nothing",
        )
    if spec.cpus is not None and caps.cpus is not None and spec.cpus > caps.cpus:
        yield _refusal(
            "cpus",
            f"{spec.cpus:g} processors are more than the engine has",
            f"its host has {caps.cpus}",
            f"ask for {caps.cpus} at most",
        )
    if spec.shm_bytes is not None and spec.ipc == "host":
        yield _warning(
            "shm_bytes",
            "the size of /dev/shm will not be applied",
            "with the host's IPC the container has the host's own /dev/shm",
        )


def _review_ulimits(spec: ContainerSpec, caps: EngineCapabilities) -> Iterator[Finding]:
    for limit in spec.ulimits:
        highest = (caps.rlimit_ceiling or {}).get(limit.name)
        if highest is not None and not 0 <= limit.hard <= highest:
            yield _warning(
                "ulimits",
                f"the start will be refused: the engine may not set ulimit {limit.name} that high",
                f"its own limit is {highest} and it lacks CAP_SYS_RESOURCE",
                f"ask for {highest} at most",
            )


def _review_users(spec: ContainerSpec, caps: EngineCapabilities) -> Iterator[Finding]:
    if spec.user_mapping is not None:
        if spec.user_mapping not in caps.users:
            yield _refusal(
                "user_mapping",
                f"this engine has no user mapping {spec.user_mapping}",
                "only rootless Podman can map the caller to a user of the container",
                "leave it out: files get the caller's owner without it",
            )
        elif caps.remap_copies_image:
            yield _warning(
                "user_mapping",
                "the first start copies the whole image",
                "a mapping on the native overlay driver needs a second copy of every file",
            )
        return
    writes = any(isinstance(mount, BindMount) and not mount.read_only for mount in spec.mounts)
    if spec.user is None or not writes:
        return
    root = spec.user.partition(":")[0] in {"0", "root"}
    if "root-is-caller" in caps.users and not root:
        yield _warning(
            "user",
            "files written to mounted folders will not belong to the caller",
            f"on a rootless engine the caller is root inside; {spec.user} is another host user",
            "run as 0:0 there",
        )
    elif not caps.users:
        yield _warning(
            "user",
            "files written to mounted folders will not belong to the caller",
            "the engine maps every container user to another host user (userns-remap)",
            "mount a named volume, or use an engine without userns-remap",
        )


def _review_mounts(spec: ContainerSpec, caps: EngineCapabilities) -> Iterator[Finding]:
    unknown = [
        mount.source for mount in spec.mounts if isinstance(mount, BindMount) and not mount.known
    ]
    if unknown and not caps.local:
        yield _warning(
            "mounts",
            f"mounted folders are looked up on the engine's host: {', '.join(unknown)}",
            f"the engine {caps.name or ''} is not on this machine".replace("  ", " "),
        )
    for file in spec.files:
        for mount in spec.mounts:
            if not PurePosixPath(file.path).is_relative_to(mount.target):
                continue
            if isinstance(mount, TmpfsMount):
                yield _refusal(
                    "files",
                    f"{file.path} cannot be put in before the start",
                    f"it would lie under the tmpfs on {mount.target}, which is empty at the start",
                    "choose another path, or put it in after the start",
                )
            elif isinstance(mount, BindMount):
                yield _warning(
                    "files",
                    f"{file.path} will be written to the host",
                    f"it lies in {mount.target}, which is the host's {mount.source}",
                )
    for device in spec.devices:
        if caps.rootless and device.container_path not in {None, device.path}:
            yield _refusal(
                "devices",
                f"{device.path} cannot have another name inside",
                "a rootless engine binds device nodes and cannot make them",
                "use the same path inside and outside",
            )


def _review_ports(spec: ContainerSpec, caps: EngineCapabilities) -> Iterator[Finding]:
    if spec.ports and spec.network in {"host", "none"}:
        yield _refusal(
            "ports",
            f"ports cannot be published with network {spec.network}",
            "the engine would drop them",
            "leave out the ports, or the network",
        )
    for port in spec.ports:
        if port.host_port is not None and port.host_port < caps.lowest_port:
            yield _refusal(
                "ports",
                f"port {port.host_port} cannot be published",
                f"a rootless engine may publish ports from {caps.lowest_port} up",
                f"choose a port from {caps.lowest_port} up",
            )


def _review_network(spec: ContainerSpec, caps: EngineCapabilities) -> Iterator[Finding]:
    if spec.network == "host" and not caps.host_network_is_host:
        yield _warning(
            "network",
            "network host is not this machine's network",
            "the engine runs elsewhere"
            if not caps.rootless
            else "a rootless engine has a network of its own, and host means that one",
        )
    if spec.network_aliases and spec.network in {None, "host", "none", "bridge", "default"}:
        yield _refusal(
            "network_aliases",
            "names on a network need a network of our own",
            f"{spec.network or 'the default bridge'} has no names",
            "create a network and name it",
        )


def _review_life(spec: ContainerSpec, caps: EngineCapabilities) -> Iterator[Finding]:
    if spec.auto_remove and spec.restart != "no":
        yield _refusal(
            "restart",
            "a container that is removed at its end cannot be restarted",
            f"restart {spec.restart} and auto_remove exclude one another",
            "choose one",
        )
    if spec.read_only_root and caps.kind == "podman":
        yield _warning(
            "read_only_root",
            "/run, /tmp and /var/tmp stay writable",
            "Podman puts a tmpfs there",
        )
    if spec.log_max_bytes is not None and caps.kind == "podman":
        yield _warning(
            "log_max_bytes",
            "the log is not limited in size",
            "Podman drops this option of its Docker API",
        )
    if spec.platform is not None and _machine(spec.platform) != caps.architecture:
        yield _warning(
            "platform",
            f"{spec.platform} is emulated",
            f"the engine's host is {caps.architecture}: expect it to be many times slower",
        )


def _machine(platform: str) -> str:
    """Return the machine of ``linux/amd64`` as the kernel names it, ``x86_64``."""
    machine = platform.split("/")[1] if "/" in platform else platform
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine)


def fit_ulimits(
    ulimits: tuple[Ulimit, ...], caps: EngineCapabilities
) -> tuple[tuple[Ulimit, ...], tuple[Finding, ...]]:
    """Lower ulimits to what the engine may set, and say which were lowered."""
    fitted: list[Ulimit] = []
    findings: list[Finding] = []
    for limit in ulimits:
        highest = (caps.rlimit_ceiling or {}).get(limit.name)
        if highest is None or 0 <= limit.hard <= highest:
            fitted.append(limit)
            continue
        soft = limit.soft if 0 <= limit.soft <= highest else highest
        fitted.append(replace(limit, soft=soft, hard=highest))
        findings.append(
            _warning(
                "ulimits",
                f"ulimit {limit.name} is {highest} instead of "
                f"{'unlimited' if limit.hard < 0 else limit.hard}",
                "the engine's own limit is no higher and it lacks CAP_SYS_RESOURCE",
                "give the engine CAP_SYS_RESOURCE or raise its own limit",
            )
        )
    return tuple(fitted), tuple(findings)


def compare_created(
    spec: ContainerSpec, inspect: Mapping[str, Any], *, known: tuple[Finding, ...] = ()
) -> tuple[Finding, ...]:
    """Compare a container that was made with what was asked; the second net against silence.

    ``inspect`` is the engine's ``GET /containers/ID/json``, and ``known`` what the review said
    already: the same field is not told twice.
    """
    host = inspect.get("HostConfig") or {}
    config = inspect.get("Config") or {}
    told = {finding.field for finding in known}
    asked_and_got: list[tuple[str, object, object]] = [
        ("memory_bytes", spec.memory_bytes, int(host.get("Memory") or 0)),
        (
            "cpus",
            None if spec.cpus is None else round(spec.cpus * 1e9),
            int(host.get("NanoCpus") or 0),
        ),
        ("pids_limit", spec.pids_limit, int(host.get("PidsLimit") or 0)),
        ("shm_bytes", spec.shm_bytes, int(host.get("ShmSize") or 0)),
        ("user", spec.user, str(config.get("User") or "")),
        ("ipc", spec.ipc, str(host.get("IpcMode") or "")),
        ("init", spec.init or None, bool(host.get("Init"))),
        (
            "ulimits",
            _ulimits(spec) or None,
            tuple(
                sorted(
                    (str(u["Name"]).lower().removeprefix("rlimit_"), u["Soft"], u["Hard"])
                    for u in host.get("Ulimits") or ()
                )
            ),
        ),
        ("cap_drop", _capabilities(spec.cap_drop) or None, _capabilities(host.get("CapDrop"))),
        (
            "group_add",
            tuple(sorted(spec.group_add)) or None,
            tuple(sorted(host.get("GroupAdd") or ())),
        ),
        (
            "gpu",
            None if spec.gpu is None else True,
            bool(host.get("DeviceRequests") or host.get("Devices")),
        ),
    ]
    return tuple(
        Finding(
            severity="warning",
            field=name,
            what=f"the engine made the container with another {name.replace('_', ' ')}",
            why=f"asked {asked}, got {got}",
        )
        for name, asked, got in asked_and_got
        if asked is not None and asked != got and name not in told
    )


def _ulimits(spec: ContainerSpec) -> tuple[tuple[str, int, int], ...]:
    return tuple(sorted((limit.name, limit.soft, limit.hard) for limit in spec.ulimits))


def _capabilities(names: object) -> tuple[str, ...]:
    listed = names if isinstance(names, (list, tuple)) else ()
    return tuple(sorted(str(name).upper().removeprefix("CAP_") for name in listed))
