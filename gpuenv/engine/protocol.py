"""What gpuenv asks of a container engine, and the frozen values that go in and come out.

Nothing here knows Docker or Podman: :class:`ContainerEngine` is the whole of what the layers above
may use. Names, paths and numbers are as the engine's documents have them; memory is in bytes, time
in seconds, points in time are aware and in UTC.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping
    from datetime import datetime
    from types import TracebackType

    from typing_extensions import Self

    from gpuenv.engine.capabilities import EngineCapabilities
    from gpuenv.engine.events import BuildEvent, TransferEvent
    from gpuenv.engine.review import Finding

PortProtocol: TypeAlias = Literal["tcp", "udp"]
RestartPolicy: TypeAlias = Literal["no", "on-failure", "unless-stopped", "always"]
UserMapping: TypeAlias = Literal["keep-id"]
ContainerState: TypeAlias = Literal[
    "created", "running", "paused", "restarting", "removing", "exited", "dead", "unknown"
]
StreamName: TypeAlias = Literal["stdout", "stderr"]
TarBytes: TypeAlias = "bytes | Callable[[], Iterable[bytes]]"
"""A tar archive: its bytes, or a function that starts a fresh stream of them."""


# --- building -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRequest:
    """One image to build.

    Attributes:
        context: The build context as a tar; see :func:`gpuenv.engine.archive.tar_stream`.
        dockerfile: Path of the Dockerfile inside the context.
        tags: References to give the image, ``localhost/gpuenv/NAME:TAG``.
        labels: Labels added to the ones the Dockerfile sets.
        build_args: Values for ``ARG``; they may show in the history, so never a credential.
        network_mode: ``host``, ``none`` or ``None`` for the engine's default.
        no_cache: Run every step again.
        pull: Ask the registry for a newer base image even where one is local.
        platform: ``linux/amd64``; ``None`` for the engine's own.
        extra_hosts: ``(name, address)`` lines for ``/etc/hosts`` during the build.
    """

    context: TarBytes = field(repr=False)
    dockerfile: str = "Dockerfile"
    tags: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    build_args: Mapping[str, str] = field(default_factory=dict, repr=False)
    target: str | None = None
    network_mode: str | None = None
    no_cache: bool = False
    pull: bool = False
    platform: str | None = None
    shm_bytes: int | None = None
    extra_hosts: tuple[tuple[str, str], ...] = ()


# --- containers ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class BindMount:
    """A folder or file of the host; it must exist.

    Attributes:
        known: It was found on the engine's host, so nobody need be told that it is looked up there.
    """

    source: str
    target: str
    read_only: bool = False
    known: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeMount:
    """A named volume; one that does not exist is made, with the container's own labels."""

    name: str
    target: str
    read_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TmpfsMount:
    """A folder in memory."""

    target: str
    size_bytes: int | None = None
    mode: int = 0o1777


Mount: TypeAlias = "BindMount | VolumeMount | TmpfsMount"


@dataclass(frozen=True, slots=True, kw_only=True)
class PortBinding:
    """A port to publish.

    Attributes:
        host_port: ``None`` lets the engine choose; read the choice after *every* start.
    """

    container_port: int
    host_port: int | None = None
    host_ip: str = "127.0.0.1"
    protocol: PortProtocol = "tcp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ulimit:
    """A limit of ``setrlimit``: ``memlock``, ``stack``, ``nofile``; -1 is unlimited."""

    name: str
    soft: int
    hard: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRequest:
    """The GPUs a container shall see.

    Attributes:
        devices: ``("all",)``, or indexes (``"0"``) and UUIDs (``"GPU-…"``, ``"MIG-…"``).
        driver_capabilities: What of the driver is mounted in, as in NVIDIA_DRIVER_CAPABILITIES.
    """

    devices: tuple[str, ...] = ("all",)
    driver_capabilities: tuple[str, ...] = ("compute", "utility")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMapping:
    """A device node of the host."""

    path: str
    container_path: str | None = None
    permissions: str = "rwm"


@dataclass(frozen=True, slots=True, kw_only=True)
class PutFile:
    """A file that is copied into a container, never mounted: what a token or a key travels by.

    It is not in the image, the environment or ``inspect``. Missing folders on the way are made,
    owned by root and closed for others' writing.

    Attributes:
        content: ``None`` makes a folder, or gives one that is there this mode and owner; one that
            stands above other files must come before them.
    """

    path: str
    content: bytes | None = field(repr=False)
    mode: int = 0o644
    uid: int = 0
    gid: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSpec:
    """One container, wholly described; ``None`` leaves a thing to the image or the engine.

    Attributes:
        command: Arguments to the entry point.
        entrypoint: ``()`` clears the image's own.
        env: Seen by everyone who may ``inspect``: never a token or a key, use ``files``.
        user: ``UID:GID``, numeric.
        group_add: Further group ids.
        cpus: Processors' worth of time, ``1.5``.
        gpu: ``None`` asks for none.
        cap_drop: Kernel capabilities without ``CAP_``, or ``ALL``.
        security_opt: Further ``--security-opt`` values.
        network: Name of a network, ``host``, ``none``; ``None`` is the engine's default bridge.
        network_aliases: Names this container answers to on ``network``.
        ipc: ``host`` or ``private``.
        user_mapping: ``keep-id`` maps the caller to the container's user (rootless Podman).
        log_max_bytes: The engine's log file is rotated at this size, two are kept.
        files: Put in after create and before start.
    """

    image: str
    name: str | None = None
    command: tuple[str, ...] | None = None
    entrypoint: tuple[str, ...] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    group_add: tuple[str, ...] = ()
    workdir: str | None = None
    hostname: str | None = None
    mounts: tuple[Mount, ...] = ()
    ports: tuple[PortBinding, ...] = ()
    files: tuple[PutFile, ...] = ()
    devices: tuple[DeviceMapping, ...] = ()
    gpu: GpuRequest | None = None
    shm_bytes: int | None = None
    ulimits: tuple[Ulimit, ...] = ()
    memory_bytes: int | None = None
    cpus: float | None = None
    pids_limit: int | None = None
    init: bool = False
    cap_drop: tuple[str, ...] = ()
    cap_add: tuple[str, ...] = ()
    no_new_privileges: bool = False
    security_opt: tuple[str, ...] = ()
    read_only_root: bool = False
    network: str | None = None
    network_aliases: tuple[str, ...] = ()
    extra_hosts: tuple[tuple[str, str], ...] = ()
    ipc: str | None = None
    tty: bool = False
    open_stdin: bool = False
    restart: RestartPolicy = "no"
    auto_remove: bool = False
    stop_signal: str | None = None
    stop_timeout_s: int | None = None
    user_mapping: UserMapping | None = None
    log_max_bytes: int | None = None
    platform: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedContainer:
    """A container that exists and does not run yet.

    Attributes:
        findings: What was reviewed before, the engine's own warnings, and what read back different.
    """

    id: str
    name: str
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedPort:
    """Where a container's port is reachable from outside."""

    container_port: int
    host_port: int
    host_ip: str
    protocol: PortProtocol = "tcp"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerInfo:
    """What the engine says of one container.

    Attributes:
        image: The reference it was made from.
        exit_code: ``None`` until it ended once.
        ip_addresses: Network name → address inside it.
        pid: The first process as the engine's host sees it, ``None`` when it does not run.
        oom_killed: The kernel ended it for want of memory.
        error: What the engine noted when a start failed.
    """

    id: str
    name: str
    image: str
    image_id: str
    state: ContainerState
    labels: Mapping[str, str]
    exit_code: int | None = None
    created_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    ports: tuple[PublishedPort, ...] = ()
    ip_addresses: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    user: str = ""
    pid: int | None = None
    oom_killed: bool = False
    error: str = ""
    tty: bool = False
    restart_count: int = 0

    @property
    def running(self) -> bool:
        """Whether it runs now."""
        return self.state == "running"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """How a command inside a container ended."""

    exit_code: int
    stdout: bytes
    stderr: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitStatus:
    """How a container ended."""

    exit_code: int
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogChunk:
    """A piece of a container's output; with a tty everything is ``stdout``."""

    stream: StreamName
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineEvent:
    """Something that happened at the engine: ``container`` ``die``, ``image`` ``tag``."""

    kind: str
    action: str
    id: str
    attributes: Mapping[str, str]
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageSample:
    """One reading of what a container uses; ``None`` is "unknown", never a guess.

    Attributes:
        cpu_ns: Processor time since its start; a rate needs two samples, see
            :func:`gpuenv.engine.usage.cpu_percent`.
        memory_bytes: Without the file cache that the kernel may drop.
        memory_limit_bytes: ``None`` where there is no limit.
    """

    at: datetime
    cpu_ns: int | None = None
    memory_bytes: int | None = None
    memory_limit_bytes: int | None = None
    pids: int | None = None
    network_rx_bytes: int | None = None
    network_tx_bytes: int | None = None
    disk_read_bytes: int | None = None
    disk_write_bytes: int | None = None


class Attachment(Protocol):
    """The open input and output of a container or of a command in it.

    Attributes:
        tty: One raw stream; without a tty output comes as :class:`LogChunk` of either kind.
    """

    tty: bool

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        ...

    def read(self) -> LogChunk | None:
        """Wait for the next piece of output; ``None`` at its end."""
        ...

    def write(self, data: bytes) -> None:
        """Send input."""
        ...

    def close_input(self) -> None:
        """Tell the other side that no more input comes."""
        ...

    def resize(self, *, rows: int, columns: int) -> None:
        """Tell the tty the size of the window."""
        ...

    def exit_code(self) -> int | None:
        """Return the command's exit code once it ended."""
        ...

    def close(self) -> None:
        """Let go; what runs inside goes on."""
        ...


# --- images, volumes, networks ------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageInfo:
    """What the engine says of one image.

    Attributes:
        tags: References without digest.
        digests: ``repository@sha256:…``, one for each registry it came from or went to.
        layers: Digests of its layers, lowest first.
    """

    id: str
    tags: tuple[str, ...]
    digests: tuple[str, ...]
    size_bytes: int
    labels: Mapping[str, str]
    created_at: datetime | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    workdir: str = ""
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    exposed_ports: tuple[int, ...] = ()
    os: str = "linux"
    architecture: str = ""
    layers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageHistoryEntry:
    """One line of an image's history, newest first as the engine lists them."""

    created_by: str
    size_bytes: int
    comment: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeInfo:
    """A named volume."""

    name: str
    driver: str
    labels: Mapping[str, str]
    created_at: datetime | None = None
    mountpoint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkInfo:
    """A network."""

    id: str
    name: str
    driver: str
    labels: Mapping[str, str]
    internal: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryLogin:
    """A name and a password for one registry; never printed."""

    username: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskUsage:
    """How much the engine stores, and how much room its store has.

    Attributes:
        free_bytes: Room left for an ordinary user; ``None`` where the store is not on this host.
    """

    images_bytes: int
    containers_bytes: int
    volumes_bytes: int
    build_cache_bytes: int
    store: str = ""
    free_bytes: int | None = None
    total_bytes: int | None = None


class ContainerEngine(Protocol):
    """A container engine that answers.

    Every method raises only :class:`gpuenv.errors.GpuenvError`; which ones is said where it is
    not obvious. A container is named by its id or its name. Methods that return an iterator hold
    a connection until it is used up or closed.
    """

    @property
    def address(self) -> str:
        """Where it answers: ``unix:///var/run/docker.sock``."""
        ...

    @property
    def capabilities(self) -> EngineCapabilities:
        """What it can do; asked once."""
        ...

    def close(self) -> None:
        """Give back connections and forwarded sockets."""
        ...

    def __enter__(self) -> Self:
        """Use the engine and close it at the end."""
        ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        ...

    # builds and images

    def build(self, request: BuildRequest) -> Generator[BuildEvent, None, None]:
        """Build an image and tell what happens; the last event of a good build is ``ImageId``.

        Closing the iterator, or an exception such as KeyboardInterrupt in it, cancels the build on
        the engine. Use it through :func:`gpuenv.engine.events.build_image`, which closes it.

        Raises:
            BuildFailedError: A step failed or the engine refused; a subclass where the cause is
                known. The ``Failed`` event came before it.
        """
        ...

    def image(self, ref: str) -> ImageInfo | None:
        """Return what is known of a local image, ``None`` if there is none."""
        ...

    def image_history(self, ref: str) -> tuple[ImageHistoryEntry, ...]:
        """Return the history of a local image."""
        ...

    def images(self, *, labels: Mapping[str, str | None] | None = None) -> tuple[ImageInfo, ...]:
        """List local images that carry all the labels (``None``: with any value)."""
        ...

    def tag(self, ref: str, new_ref: str) -> None:
        """Give a local image one more reference."""
        ...

    def untag(self, ref: str, *, force: bool = False) -> bool:
        """Remove a reference, and the image with its last one; ``False`` if there was none."""
        ...

    def pull(
        self, ref: str, *, login: RegistryLogin | None = None
    ) -> Generator[TransferEvent, None, None]:
        """Fetch an image from its registry."""
        ...

    def push(
        self, ref: str, *, login: RegistryLogin | None = None
    ) -> Generator[TransferEvent, None, None]:
        """Send an image to its registry; the last event is ``Pushed`` with the digest."""
        ...

    def import_image(self, tar: TarBytes, ref: str, *, changes: tuple[str, ...] = ()) -> str:
        """Make an image of one layer from the tar of a root file system; return its id."""
        ...

    def save(self, refs: tuple[str, ...]) -> Generator[bytes, None, None]:
        """Stream images as a tar that :meth:`load` takes."""
        ...

    def load(self, tar: TarBytes) -> tuple[str, ...]:
        """Load images from a tar; return their references or ids."""
        ...

    # containers

    def review(self, spec: ContainerSpec) -> tuple[Finding, ...]:
        """Say what this engine will not do as the spec asks; changes nothing."""
        ...

    def create(self, spec: ContainerSpec) -> CreatedContainer:
        """Make a container, put its files in and compare it with what was asked.

        Raises:
            SpecRefusedError: The review refuses it; nothing was made.
            NameTakenError: Another container has the name.
            ImageNotFoundError: The image is not local.
        """
        ...

    def put_files(self, container: str, files: tuple[PutFile, ...]) -> None:
        """Copy files into a container, running or not."""
        ...

    def read_file(self, container: str, path: str) -> bytes | None:
        """Return the content of one file of a container, ``None`` if it is not there."""
        ...

    def start(self, container: str) -> ContainerInfo:
        """Start a container and return it with the ports of this start.

        Raises:
            PortTakenError: A host port is in use.
            RlimitRefusedError: The engine may not set a ulimit.
            GpuRefusedError: The engine cannot give the GPUs.
            CommandNotFoundError: The image has no such program.
            LaunchFailedError: Any other reason, in the engine's words.
        """
        ...

    def stop(self, container: str, *, timeout_s: int = 10) -> None:
        """Ask a container to end and kill it after ``timeout_s``; one that ended is fine."""
        ...

    def signal(self, container: str, signal: str) -> None:
        """Send a signal to the first process: ``SIGINT``."""
        ...

    def restart(self, container: str, *, timeout_s: int = 10) -> ContainerInfo:
        """Stop and start a container; return it with its new ports."""
        ...

    def remove(self, container: str, *, force: bool = False, volumes: bool = True) -> bool:
        """Remove a container and its anonymous volumes; ``False`` if there was none."""
        ...

    def wait(self, container: str, *, timeout_s: float | None = None) -> ExitStatus:
        """Wait for a container to end.

        Raises:
            TimeoutError: It still ran after ``timeout_s``.
        """
        ...

    def container(self, container: str) -> ContainerInfo | None:
        """Return what is known of a container, ``None`` if there is none."""
        ...

    def containers(
        self, *, labels: Mapping[str, str | None] | None = None, only_running: bool = False
    ) -> tuple[ContainerInfo, ...]:
        """List containers that carry all the labels (``None``: with any value), newest first."""
        ...

    def logs(
        self,
        container: str,
        *,
        follow: bool = False,
        tail: int | None = None,
        since: datetime | None = None,
        timestamps: bool = False,
    ) -> Generator[LogChunk, None, None]:
        """Read a container's output; ``follow`` goes on until it ends."""
        ...

    def exec(
        self,
        container: str,
        command: tuple[str, ...],
        *,
        user: str | None = None,
        workdir: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        timeout_s: float | None = None,
    ) -> ExecResult:
        """Run a command in a running container to its end.

        Raises:
            TimeoutError: It did not end in time; it may still run.
        """
        ...

    def exec_attached(
        self,
        container: str,
        command: tuple[str, ...],
        *,
        user: str | None = None,
        workdir: str | None = None,
        env: Mapping[str, str] | None = None,
        tty: bool = False,
    ) -> Attachment:
        """Run a command in a running container with its input and output open."""
        ...

    def attach(self, container: str) -> Attachment:
        """Open the input and output of a container; do it before the start to miss nothing."""
        ...

    def usage(self, container: str) -> UsageSample:
        """Read what a container uses now."""
        ...

    def processes(self, container: str) -> tuple[int, ...] | None:
        """Return the process ids as the engine's host sees them, ``None`` where it cannot tell."""
        ...

    def events(
        self,
        *,
        labels: Mapping[str, str | None] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> Generator[EngineEvent, None, None]:
        """Follow what happens to things that carry the labels."""
        ...

    # volumes and networks

    def create_volume(self, name: str, *, labels: Mapping[str, str]) -> VolumeInfo:
        """Make a named volume, or return the one of that name."""
        ...

    def volumes(self, *, labels: Mapping[str, str | None] | None = None) -> tuple[VolumeInfo, ...]:
        """List volumes that carry all the labels."""
        ...

    def remove_volume(self, name: str, *, force: bool = False) -> bool:
        """Remove a volume; ``False`` if there was none."""
        ...

    def create_network(
        self, name: str, *, labels: Mapping[str, str], internal: bool = False
    ) -> NetworkInfo:
        """Make a bridge network, or return the one of that name that carries our labels."""
        ...

    def networks(
        self, *, labels: Mapping[str, str | None] | None = None
    ) -> tuple[NetworkInfo, ...]:
        """List networks that carry all the labels."""
        ...

    def remove_network(self, name: str) -> bool:
        """Remove a network; ``False`` if there was none."""
        ...

    # the engine itself

    def disk_usage(self) -> DiskUsage:
        """Sum up what the engine stores; may take seconds on a full one."""
        ...

    def free_bytes(self) -> int | None:
        """Return the room in the engine's store, ``None`` where it is not on this host."""
        ...

    def responds(self, *, timeout_s: float = 10) -> bool:
        """Say whether the engine answers the simplest request in time; never raises."""
        ...

    def raw_info(self) -> Mapping[str, Any]:
        """Return the engine's own account of itself, for the doctor."""
        ...
