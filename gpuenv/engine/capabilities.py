"""What an engine can do: measured once when the connection is made, then only read."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from gpuenv.values import dataclass
from gpuenv.versions import DottedVersion

if TYPE_CHECKING:
    from collections.abc import Mapping

Kind: TypeAlias = Literal["docker", "podman"]
BuildRoute: TypeAlias = Literal["buildkit", "libpod", "none"]
Cancel: TypeAlias = Literal["close", "kill-by-mark", "none"]
Storage: TypeAlias = Literal["overlay", "fuse-overlay", "vfs", "other"]
ImageStore: TypeAlias = Literal["graphdriver", "containerd", "containers-storage"]
GpuRoute: TypeAlias = Literal["cdi-request", "cdi-libpod", "device-request", "unknown"]
UserRoute: TypeAlias = Literal["caller-uid", "root-is-caller", "keep-id"]
Limit: TypeAlias = Literal["memory", "cpu", "pids"]
DockerfileFeature: TypeAlias = Literal["heredoc", "copy-link", "run-network"]


class EngineVersion(DottedVersion):
    """The version of an engine or of its API; Docker's and Podman's never compare."""

    __slots__ = ()
    kind = "engine version"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCapabilities:
    """What one engine can do.

    Attributes:
        api: The API version spoken, at most the engine's own.
        local: The engine runs on this host and in this mount namespace, so its paths and process
            ids are ours.
        rootless: Its root is an ordinary user of the host.
        userns_remap: A rootful engine that maps container users to other host users.
        build: How images are built.
        bind_in_cache_key: A changed file in a bind mount of a RUN step runs the step again.
        dockerfile: Features of the Dockerfile language beyond the template's common ground.
        cancel: What ends a build that nobody wants any more.
        remap_copies_image: ``keep-id`` copies the whole image once per mapping.
        gpu: How GPUs are asked for.
        cdi_devices: Names in the engine's CDI specifications, ``None`` where it does not tell.
        users: Which mappings give files on the host to the caller.
        limits: The limits that the engine really applies.
        stats: ``stats`` shows the container, and not the host or nothing.
        healthchecks: A HEALTHCHECK is run.
        host_network_is_host: ``network=host`` is the host's own network.
        lowest_port: The lowest host port it may publish.
        rlimit_ceiling: Name → highest value it may set, ``None`` where it may set any or where
            that is not known.
    """

    kind: Kind
    version: EngineVersion
    api: EngineVersion
    os: str = "linux"
    architecture: str = "x86_64"
    name: str = ""
    operating_system: str = ""
    kernel: str = ""
    store: str = ""
    rootless: bool = False
    userns_remap: bool = False
    local: bool = True
    build: BuildRoute = "buildkit"
    bind_in_cache_key: bool = True
    dockerfile: frozenset[DockerfileFeature] = frozenset()
    cancel: Cancel = "close"
    storage: Storage = "overlay"
    image_store: ImageStore = "graphdriver"
    remap_copies_image: bool = False
    gpu: GpuRoute = "unknown"
    cdi_devices: frozenset[str] | None = None
    runtimes: frozenset[str] = frozenset()
    users: frozenset[UserRoute] = frozenset({"caller-uid"})
    limits: frozenset[Limit] = frozenset({"memory", "cpu", "pids"})
    cgroup_version: int | None = None
    stats: bool = True
    healthchecks: bool = True
    host_network_is_host: bool = True
    lowest_port: int = 1
    rlimit_ceiling: Mapping[str, int] | None = None
    memory_bytes: int | None = None
    cpus: int | None = None
    libpod: EngineVersion | None = None
    buildah: EngineVersion | None = None
    warnings: tuple[str, ...] = field(default=())

    def as_dict(self) -> dict[str, Any]:
        """Return the capabilities as ``gpuenv engine status --json`` prints them."""

        def text(value: object) -> str | None:
            return None if value is None else str(value)

        return {
            "kind": self.kind,
            "version": str(self.version),
            "api": str(self.api),
            "os": self.os,
            "architecture": self.architecture,
            "name": self.name,
            "operating_system": self.operating_system,
            "kernel": self.kernel,
            "store": self.store,
            "rootless": self.rootless,
            "userns_remap": self.userns_remap,
            "local": self.local,
            "build": self.build,
            "bind_in_cache_key": self.bind_in_cache_key,
            "dockerfile": sorted(self.dockerfile),
            "cancel": self.cancel,
            "storage": self.storage,
            "image_store": self.image_store,
            "remap_copies_image": self.remap_copies_image,
            "gpu": self.gpu,
            "cdi_devices": None if self.cdi_devices is None else sorted(self.cdi_devices),
            "runtimes": sorted(self.runtimes),
            "users": sorted(self.users),
            "limits": sorted(self.limits),
            "cgroup_version": self.cgroup_version,
            "stats": self.stats,
            "healthchecks": self.healthchecks,
            "host_network_is_host": self.host_network_is_host,
            "lowest_port": self.lowest_port,
            "rlimit_ceiling": None if self.rlimit_ceiling is None else dict(self.rlimit_ceiling),
            "memory_bytes": self.memory_bytes,
            "cpus": self.cpus,
            "libpod": text(self.libpod),
            "buildah": text(self.buildah),
            "warnings": list(self.warnings),
        }
