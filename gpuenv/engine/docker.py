"""Docker: what its engine can do, its container bodies, its words for failures."""

from __future__ import annotations

import os
import re
import socket
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from gpuenv.engine import errors as e
from gpuenv.engine.api import BUILD, ApiEngine, image_missing, parse_time
from gpuenv.engine.capabilities import EngineCapabilities, EngineVersion
from gpuenv.engine.protocol import (
    BindMount,
    CreatedContainer,
    GpuRequest,
    UsageSample,
    VolumeMount,
)
from gpuenv.engine.review import CDI_PREFIX, Finding, compare_created, review
from gpuenv.errors import LaunchFailedError

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from types import TracebackType

    from typing_extensions import Self

    from gpuenv.engine.capabilities import (
        BuildRoute,
        DockerfileFeature,
        GpuRoute,
        Limit,
        Storage,
    )
    from gpuenv.engine.events import BuildEvent
    from gpuenv.engine.protocol import BuildRequest, ContainerSpec, Mount
    from gpuenv.errors import GpuenvError

OLDEST_API = EngineVersion((1, 41))
NEWEST_API = EngineVersion((1, 50))
_DOCKERFILE_1_4 = EngineVersion((23, 0))  # the release whose built-in frontend is 1.4
_VERSION = re.compile(r"[0-9]+(?:\.[0-9]+)*")
_RLIMIT_NAMES = {2: "data", 3: "stack", 4: "core", 6: "nproc", 7: "nofile", 8: "memlock"}


def parse_version(text: str) -> EngineVersion:
    """Parse ``20.10.24+dfsg1``: the numbers in front, whatever a packager added."""
    match = _VERSION.match(text)
    return EngineVersion.parse(match[0] if match else "0")


def parse_capabilities(
    version: Mapping[str, Any],
    info: Mapping[str, Any],
    *,
    local: bool,
    rlimit_ceiling: Mapping[str, int] | None = None,
    cdi_files: frozenset[str] | None = None,
) -> EngineCapabilities:
    """Read the capabilities out of the answers of ``GET /version`` and ``GET /info``.

    Args:
        version: Of ``GET /version``.
        info: Of ``GET /info``.
        local: The engine is on this host.
        rlimit_ceiling: Of :func:`probe_rlimit_ceiling`.
        cdi_files: Of :func:`probe_cdi_files`, for engines that do CDI and do not list devices.
    """
    engine = parse_version(str(version.get("Version", "")))
    api = min(EngineVersion.parse(str(version["ApiVersion"])), NEWEST_API)
    security = [str(option) for option in info.get("SecurityOptions") or ()]
    rootless = any("name=rootless" in option for option in security)
    remap = any("name=userns" in option for option in security)
    no_cgroups = info.get("CgroupDriver") == "none"
    limits: dict[Limit, bool] = {
        "memory": bool(info.get("MemoryLimit")),
        "cpu": bool(info.get("CpuCfsQuota")),
        "pids": bool(info.get("PidsLimit")),
    }
    status = {str(key): str(value) for key, value in info.get("DriverStatus") or ()}
    containerd = "snapshotter" in status.get("driver-type", "")
    discovered = _discovered_cdi(info)
    cdi = cdi_files if discovered is None else discovered
    features: set[DockerfileFeature] = {"run-network"}
    if not engine < _DOCKERFILE_1_4:
        features |= {"heredoc", "copy-link"}
    linux = info.get("OSType", "linux") == "linux"
    build: BuildRoute = "buildkit" if linux else "none"
    cgroup_version = str(info.get("CgroupVersion") or "")
    return EngineCapabilities(
        kind="docker",
        version=engine,
        api=api,
        os=str(info.get("OSType") or "linux"),
        architecture=str(info.get("Architecture") or ""),
        name=str(info.get("Name") or ""),
        operating_system=str(info.get("OperatingSystem") or ""),
        kernel=str(info.get("KernelVersion") or ""),
        store=str(info.get("DockerRootDir") or ""),
        rootless=rootless,
        userns_remap=remap,
        local=local,
        build=build,
        dockerfile=frozenset(features),
        storage=_storage(str(info.get("Driver") or "")),
        image_store="containerd" if containerd else "graphdriver",
        gpu=_gpu_route(cdi),
        cdi_devices=cdi,
        runtimes=frozenset(str(name) for name in info.get("Runtimes") or ()),
        users=frozenset({"root-is-caller"} if rootless else set() if remap else {"caller-uid"}),
        limits=frozenset(name for name, works in limits.items() if works and not no_cgroups),
        cgroup_version=int(cgroup_version) if cgroup_version.isdigit() else None,
        stats=not no_cgroups,
        host_network_is_host=local and not rootless,
        lowest_port=1024 if rootless else 1,
        rlimit_ceiling=rlimit_ceiling,
        memory_bytes=int(info["MemTotal"]) if info.get("MemTotal") else None,
        cpus=int(info["NCPU"]) if info.get("NCPU") else None,
        warnings=tuple(str(line) for line in info.get("Warnings") or ()),
    )


def _storage(driver: str) -> Storage:
    if driver in {"overlay2", "overlayfs", "overlay"}:
        return "overlay"
    if driver == "fuse-overlayfs":
        return "fuse-overlay"
    return "vfs" if driver == "vfs" else "other"


def _discovered_cdi(info: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the CDI devices the engine knows; ``None`` where it does not speak of CDI."""
    if info.get("DiscoveredDevices") is None:
        return None
    return frozenset(
        str(device.get("ID"))
        for device in info["DiscoveredDevices"]
        if device.get("Source") == "cdi"
    )


def probe_cdi_files(info: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the devices in a local engine's CDI specifications; ``None`` if it does no CDI.

    Engines before API 1.50 name the folders and not the devices.

    Source:
        CDI specification: ``kind`` and ``devices[].name`` of each ``*.json`` and ``*.yaml`` file.
    """
    folders = info.get("CDISpecDirs")
    if not folders or info.get("DiscoveredDevices") is not None:
        return None
    import yaml

    names: set[str] = set()
    for folder in folders:
        for path in sorted(Path(folder).glob("*")):
            if path.suffix not in {".json", ".yaml", ".yml"}:
                continue
            try:
                spec = yaml.safe_load(path.read_text("utf-8"))  # JSON is YAML as well
                names |= {f"{spec['kind']}={device['name']}" for device in spec["devices"]}
            except (OSError, ValueError, yaml.YAMLError, KeyError, TypeError):
                continue  # the engine skips it as well
    return frozenset(names)


def _gpu_route(cdi: frozenset[str] | None) -> GpuRoute:
    if cdi and any(name.startswith(CDI_PREFIX) for name in cdi):
        return "cdi-request"
    return "device-request"


def probe_rlimit_ceiling(address: str) -> dict[str, int] | None:
    """Return the hard limits of an engine on this host that may not raise them.

    The process behind the socket is looked up; with CAP_SYS_RESOURCE it may set any limit.

    Returns:
        Ulimit name → highest value; ``None`` for no ceiling, or where it cannot be told.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.settimeout(5)
            probe.connect(address.removeprefix("unix://"))
            peer = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            process = Path("/proc") / str(int.from_bytes(peer[:4], "little", signed=True))
            if (process / "comm").read_text().strip() != "dockerd":
                return None  # a socket that systemd opened tells nothing about the engine
            status = (process / "status").read_text()
            limits = (process / "limits").read_text()
        except OSError:
            return None
    return parse_rlimit_ceiling(status, limits)


_PROC_LIMITS = {
    "Max core file size": "core",
    "Max data size": "data",
    "Max file size": "fsize",
    "Max locked memory": "memlock",
    "Max open files": "nofile",
    "Max processes": "nproc",
    "Max stack size": "stack",
}
_CAP_SYS_RESOURCE = 24


def parse_rlimit_ceiling(status: str, limits: str) -> dict[str, int] | None:
    """Read ``/proc/PID/status`` and ``/proc/PID/limits`` of an engine.

    The lines that matter::

        CapEff:	000001fffeffffff
        Max locked memory         8388608              8388608              bytes
    """
    effective = re.search(r"^CapEff:\s*([0-9a-f]+)$", status, re.MULTILINE)
    if effective is None or int(effective[1], 16) >> _CAP_SYS_RESOURCE & 1:
        return None
    ceiling = {}
    for line in limits.splitlines():
        for title, name in _PROC_LIMITS.items():
            if line.startswith(title):
                hard = line.removeprefix(title).split()[1]
                if hard != "unlimited":
                    ceiling[name] = int(hard)
    return ceiling


# --- container bodies ----------------------------------------------------------------------------


def plan_create(spec: ContainerSpec, caps: EngineCapabilities) -> dict[str, Any]:
    """Return the body of ``POST /containers/create``; what the review refuses is not looked at."""
    host: dict[str, Any] = {
        "Mounts": [_mount_body(mount, spec.labels) for mount in spec.mounts],
        "PortBindings": {
            f"{port.container_port}/{port.protocol}": [
                {
                    "HostIp": port.host_ip,
                    "HostPort": "" if port.host_port is None else str(port.host_port),
                }
            ]
            for port in spec.ports
        },
        "Init": spec.init,
        "CapDrop": list(spec.cap_drop),
        "CapAdd": list(spec.cap_add),
        "SecurityOpt": [
            *(["no-new-privileges"] if spec.no_new_privileges else []),
            *spec.security_opt,
        ],
        "ReadonlyRootfs": spec.read_only_root,
        "GroupAdd": list(spec.group_add),
        "ExtraHosts": [f"{name}:{address}" for name, address in spec.extra_hosts],
        "RestartPolicy": {"Name": spec.restart},
        "AutoRemove": spec.auto_remove,
        "Ulimits": [
            {"Name": limit.name, "Soft": limit.soft, "Hard": limit.hard} for limit in spec.ulimits
        ],
        "Devices": [
            {
                "PathOnHost": device.path,
                "PathInContainer": device.container_path or device.path,
                "CgroupPermissions": device.permissions,
            }
            for device in spec.devices
        ],
    }
    optional = {
        "ShmSize": spec.shm_bytes,
        "Memory": spec.memory_bytes,
        # Without this the engine allows as much swap again as memory.
        "MemorySwap": spec.memory_bytes,
        "NanoCpus": None if spec.cpus is None else round(spec.cpus * 1e9),
        "PidsLimit": spec.pids_limit,
        "NetworkMode": spec.network,
        "IpcMode": spec.ipc,
        "LogConfig": _log_config(spec.log_max_bytes),
        "DeviceRequests": None if spec.gpu is None else [_gpu_body(spec.gpu, caps)],
    }
    host.update({key: value for key, value in optional.items() if value is not None})
    body: dict[str, Any] = {
        "Image": spec.image,
        "Env": [f"{name}={value}" for name, value in spec.env.items()],
        "Labels": dict(spec.labels),
        "Tty": spec.tty,
        "OpenStdin": spec.open_stdin,
        "StdinOnce": spec.open_stdin,
        "AttachStdin": spec.open_stdin,
        "ExposedPorts": {f"{port.container_port}/{port.protocol}": {} for port in spec.ports},
        "HostConfig": host,
    }
    if spec.network and spec.network_aliases:
        body["NetworkingConfig"] = {
            "EndpointsConfig": {spec.network: {"Aliases": list(spec.network_aliases)}}
        }
    texts = {
        "Cmd": None if spec.command is None else list(spec.command),
        "Entrypoint": None if spec.entrypoint is None else list(spec.entrypoint) or [""],
        "User": spec.user,
        "WorkingDir": spec.workdir,
        "Hostname": spec.hostname,
        "StopSignal": spec.stop_signal,
        "StopTimeout": spec.stop_timeout_s,
    }
    body.update({key: value for key, value in texts.items() if value is not None})
    return body


def _mount_body(mount: Mount, labels: Mapping[str, str]) -> dict[str, Any]:
    if isinstance(mount, BindMount):
        return {
            "Type": "bind",
            "Source": mount.source,
            "Target": mount.target,
            "ReadOnly": mount.read_only,
        }
    if isinstance(mount, VolumeMount):
        return {
            "Type": "volume",
            "Source": mount.name,
            "Target": mount.target,
            "ReadOnly": mount.read_only,
            "VolumeOptions": {"Labels": dict(labels)},
        }
    options: dict[str, Any] = {"Mode": mount.mode}
    if mount.size_bytes is not None:
        options["SizeBytes"] = mount.size_bytes
    return {"Type": "tmpfs", "Target": mount.target, "TmpfsOptions": options}


def _log_config(max_bytes: int | None) -> dict[str, Any] | None:
    if max_bytes is None:
        return None
    return {"Type": "json-file", "Config": {"max-size": str(max_bytes), "max-file": "2"}}


def _gpu_body(gpu: GpuRequest, caps: EngineCapabilities) -> dict[str, Any]:
    if caps.gpu == "cdi-request":
        return {"Driver": "cdi", "DeviceIDs": [CDI_PREFIX + name for name in gpu.devices]}
    body: dict[str, Any] = {"Driver": "", "Capabilities": [["gpu", *gpu.driver_capabilities]]}
    if gpu.devices == ("all",):
        body["Count"] = -1
    else:
        body["DeviceIDs"] = list(gpu.devices)
    return body


# --- failures ------------------------------------------------------------------------------------


def translate(status: int, message: str, about: str, address: str) -> GpuenvError:  # noqa: PLR0911, PLR0912, C901 - one a failure
    """Return the error for a refused request, from Docker's status and words."""
    if about == BUILD:
        from gpuenv.engine.causes import explain_failure
        from gpuenv.engine.events import Failed

        return explain_failure(Failed(name="", message=message or f"HTTP {status}"))
    text = message.lower()
    first = message.splitlines()[0] if message else f"HTTP {status}"
    if "no such image" in text or (status == 404 and about.startswith("image ")):  # noqa: PLR2004 - HTTP
        found = re.search(r"no such image: (\S+)", message, re.IGNORECASE)
        return image_missing(found[1] if found else about.removeprefix("image "), address)
    if "no such container" in text:
        return e.ContainerNotFoundError(
            f"there is no {about}", why=first, fix="gpuenv ps --all lists them"
        )
    if "is already in use by container" in text:
        return e.NameTakenError(
            f"{about} cannot be made: its name is taken",
            why=first,
            fix="choose another --name, or remove the old one with gpuenv rm",
        )
    if "port is already allocated" in text or "address already in use" in text:
        return e.PortTakenError(
            f"{about} cannot start: a port is taken",
            why=first,
            fix="choose another --port, or leave it out and a free one is taken",
        )
    if "setting rlimit" in text or "setrlimit" in text:
        number = re.search(r"rlimit type (\d+)", text)
        name = _RLIMIT_NAMES.get(int(number[1]), "") if number else ""
        return e.RlimitRefusedError(
            f"{about} cannot start: the engine may not set ulimit {name}".rstrip(),
            why=first,
            fix="lower the limit, or give the engine CAP_SYS_RESOURCE",
            data={"ulimit": name or None},
        )
    if any(
        word in text
        for word in ("could not select device driver", "nvidia-container", "cdi device", "cdi:")
    ):
        return e.GpuRefusedError(
            f"{about} cannot have its GPUs",
            why=first,
            fix="install the NVIDIA Container Toolkit; gpuenv doctor says what is missing",
        )
    if "bind source path does not exist" in text:
        return e.MountSourceError(
            f"{about} cannot be made: a folder to mount is missing",
            why=first,
            fix="make the folder first; with a remote engine it must be on that host",
        )
    if "no space left on device" in text:
        return e.DiskFullError(
            f"{about}: the engine's store is full", why=first, fix="gpuenv engine status says where"
        )
    if "exec:" in text and ("not found" in text or "no such file" in text or "denied" in text):
        return e.CommandNotFoundError(
            f"{about} cannot start: its program is not there or may not be run",
            why=first,
            fix="check the command for a typing mistake; it must be inside the image",
        )
    if "paused container" in text or "is paused" in text:
        return e.ContainerNotRunningError(
            f"{about} is paused",
            why=first,
            fix="somebody froze it with docker pause or podman pause; unpause lets it go on",
        )
    if "is not running" in text:
        return e.ContainerNotRunningError(
            f"{about} does not run", why=first, fix="start it with gpuenv start"
        )
    if status == 409:  # noqa: PLR2004 - HTTP
        return e.ImageInUseError(f"{about} is in use", why=first, fix="remove what uses it first")
    if about.startswith("container "):
        return LaunchFailedError(f"the engine refuses {about}", why=message or first)
    return e.EngineRequestError(f"the engine refuses {about}", why=message or first)


def translate_transfer(message: str, ref: str) -> GpuenvError:
    """Return the error for a pull or push that failed."""
    text = message.lower()
    what = f"{ref} could not be transferred"
    if any(word in text for word in ("unauthorized", "denied", "no basic auth", "authentication")):
        return e.RegistryDeniedError(
            what, why=message, fix="log in with docker login, or ask for access"
        )
    if any(word in text for word in ("manifest unknown", "not found", "does not exist")):
        return e.RemoteImageMissingError(what, why=message, fix="check the name and the tag")
    if any(
        word in text
        for word in ("no such host", "connection refused", "timeout", "unreachable", "x509", "dial")
    ):
        return e.RegistryUnreachableError(
            what,
            why=message,
            fix="the engine itself must reach the registry: check its proxy and certificates",
        )
    return e.TransferFailedError(what, why=message)


# --- the engine ----------------------------------------------------------------------------------


class DockerEngine(ApiEngine):
    """A Docker engine; made by :func:`gpuenv.engine.connect.connect`."""

    def __init__(self, *args: Any, capabilities: EngineCapabilities, **options: Any) -> None:
        super().__init__(*args, **options)
        self._capabilities = capabilities

    def __enter__(self) -> Self:
        """Use the engine and close it at the end."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the engine."""
        self.close()

    @property
    def capabilities(self) -> EngineCapabilities:
        """What it can do; asked once."""
        return self._capabilities

    def _refuse(self, status: int, message: str, about: str) -> NoReturn:
        raise translate(status, message, about, self._address)

    def _refuse_transfer(self, message: str, ref: str) -> NoReturn:
        raise translate_transfer(message, ref)

    def review(self, spec: ContainerSpec) -> tuple[Finding, ...]:
        """Say what this engine will not do as the spec asks; changes nothing."""
        return review(spec, self._capabilities)

    def create(self, spec: ContainerSpec) -> CreatedContainer:
        """Make a container, put its files in and compare it with what was asked."""
        findings = list(self.review(spec))
        refusals = [finding for finding in findings if finding.severity == "refusal"]
        if refusals:
            raise e.SpecRefusedError(
                refusals[0].what,
                why=refusals[0].why,
                fix=refusals[0].fix,
                data={"findings": [finding.as_dict() for finding in findings]},
            )
        answer = self._json(
            "POST",
            "/containers/create",
            query={"name": spec.name, "platform": spec.platform},
            body=plan_create(spec, self._capabilities),
            about=f"container {spec.name or 'from ' + spec.image}",
        )
        made = str(answer["Id"])
        try:
            findings += [
                Finding(severity="warning", field="", what=str(line))
                for line in answer.get("Warnings") or ()
            ]
            data = self._json("GET", f"/containers/{made}/json", about=f"container {made[:12]}")
            findings += compare_created(spec, data, known=tuple(findings))
            self.put_files(made, spec.files)
        except BaseException:
            self.remove(made, force=True)
            raise
        return CreatedContainer(
            id=made, name=str(data.get("Name", "")).lstrip("/"), findings=tuple(findings)
        )

    def build(self, request: BuildRequest) -> Generator[BuildEvent, None, None]:
        """Build an image by BuildKit and tell what happens."""
        if self._capabilities.build != "buildkit":
            raise e.BuildKitMissingError(
                f"the engine at {self._address} has no BuildKit",
                why=f"it runs containers for {self._capabilities.os}",
                fix="use a Docker engine for Linux, 20.10 or newer",
            )
        from gpuenv.engine.buildkit import run_build

        return run_build(self, request)

    def usage(self, container: str) -> UsageSample:
        """Read what a container uses now."""
        data = self._json(
            "GET",
            f"/containers/{container}/stats",
            query={"stream": 0, "one-shot": 1},
            about=f"container {container}",
        )
        return parse_usage(data, trusted=self._capabilities.stats)

    def _room(self) -> tuple[int, int] | None:
        if not self._capabilities.local or not self._capabilities.store:
            return None
        try:
            room = os.statvfs(self._capabilities.store)
        except OSError:
            return None
        return room.f_bavail * room.f_frsize, room.f_blocks * room.f_frsize


def parse_usage(data: Mapping[str, Any], *, trusted: bool) -> UsageSample:
    """Turn an answer of ``stats`` into a sample; untrusted numbers are the host's, so unknown."""
    now = parse_time(data.get("read")) or datetime.now(timezone.utc)
    memory = data.get("memory_stats") or {}
    usage = memory.get("usage")
    if not trusted or usage is None:
        return UsageSample(at=now)
    details = memory.get("stats") or {}
    # The cache that the kernel drops first: v1 says total_inactive_file, v2 inactive_file.
    cache = details.get("total_inactive_file", details.get("inactive_file", 0))
    limit = int(memory.get("limit") or 0)
    networks = (data.get("networks") or {}).values()
    blocks = (data.get("blkio_stats") or {}).get("io_service_bytes_recursive") or ()

    def moved(operation: str) -> int:
        return sum(int(b["value"]) for b in blocks if str(b.get("op", "")).lower() == operation)

    return UsageSample(
        at=now,
        cpu_ns=int(((data.get("cpu_stats") or {}).get("cpu_usage") or {}).get("total_usage") or 0),
        memory_bytes=max(0, int(usage) - int(cache)),
        memory_limit_bytes=limit or None,
        pids=(data.get("pids_stats") or {}).get("current"),
        network_rx_bytes=sum(int(n.get("rx_bytes") or 0) for n in networks),
        network_tx_bytes=sum(int(n.get("tx_bytes") or 0) for n in networks),
        disk_read_bytes=moved("read"),
        disk_write_bytes=moved("write"),
    )
