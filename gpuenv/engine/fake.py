"""An engine in memory, for tests of what stands above the engine.

It holds to the same contract as the real ones (``tests/contract/test_engine_*``): what it refuses,
they refuse. Its containers can run the programs of :mod:`gpuenv.engine.fake_programs` and whatever
a test adds to ``programs``.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import tarfile
from dataclasses import field, replace
from datetime import datetime, timedelta, timezone
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from gpuenv.engine import errors as e
from gpuenv.engine.api import split_ref
from gpuenv.engine.capabilities import EngineCapabilities, EngineVersion
from gpuenv.engine.causes import explain_failure
from gpuenv.engine.events import (
    Failed,
    ImageId,
    Output,
    Pulled,
    Pushed,
    StepCached,
    StepDone,
    StepStarted,
)
from gpuenv.engine.fake_programs import PROGRAMS, Call, Ended
from gpuenv.engine.protocol import (
    ContainerInfo,
    ContainerSpec,
    CreatedContainer,
    DiskUsage,
    EngineEvent,
    ExecResult,
    ExitStatus,
    ImageInfo,
    LogChunk,
    NetworkInfo,
    PublishedPort,
    UsageSample,
    VolumeInfo,
    VolumeMount,
)
from gpuenv.engine.review import review
from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping
    from types import TracebackType

    from typing_extensions import Self

    from gpuenv.engine.events import BuildEvent, TransferEvent
    from gpuenv.engine.fake_programs import Program
    from gpuenv.engine.protocol import (
        Attachment,
        BuildRequest,
        ContainerEngine,
        ContainerState,
        ImageHistoryEntry,
        PutFile,
        RegistryLogin,
        StreamName,
        TarBytes,
    )
    from gpuenv.engine.review import Finding
    from gpuenv.errors import GpuenvError

FAKE_CAPABILITIES = EngineCapabilities(
    kind="docker",
    version=EngineVersion((28, 3, 0)),
    api=EngineVersion((1, 50)),
    name="fake",
    operating_system="Fake Linux",
    store="/var/lib/docker",
    gpu="device-request",
    runtimes=frozenset({"runc", "nvidia"}),
    memory_bytes=64 << 30,
    cpus=16,
)


@dataclass(slots=True, kw_only=True)
class FakeContainer:
    """What the fake engine keeps of one container."""

    id: str
    name: str
    spec: ContainerSpec
    image_id: str
    created_at: datetime
    state: ContainerState = "created"
    exit_code: int | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    ports: tuple[PublishedPort, ...] = ()
    files: dict[str, bytes] = field(default_factory=dict)
    output: list[LogChunk] = field(default_factory=list)


class FakeAttachment:
    """An attachment to a program that has had its say already."""

    def __init__(self, ended: Ended, *, tty: bool) -> None:
        self.tty = tty
        self.written = bytearray()
        self.size: tuple[int, int] | None = None
        self.closed = False
        self._ended = ended
        output = ended.stdout + ended.stderr if tty else ended.stdout
        self._chunks = [LogChunk(stream="stdout", data=output)] if output else []
        if ended.stderr and not tty:
            self._chunks.append(LogChunk(stream="stderr", data=ended.stderr))

    def fileno(self) -> int:
        """There is none: nothing here waits."""
        raise OSError("a fake attachment has no descriptor")

    def read(self) -> LogChunk | None:
        """Return the next piece of output; ``None`` at its end."""
        return self._chunks.pop(0) if self._chunks else None

    def write(self, data: bytes) -> None:
        """Keep what was sent, in ``written``."""
        self.written += data

    def close_input(self) -> None:
        """Take note of nothing: the program has ended already."""

    def resize(self, *, rows: int, columns: int) -> None:
        """Keep the size, in ``size``."""
        self.size = (rows, columns)

    def exit_code(self) -> int | None:
        """Return the exit code."""
        return self._ended.exit_code

    def close(self) -> None:
        """Take note."""
        self.closed = True


class FakeEngine:
    """See the module.

    Attributes:
        programs: Name → what a container does when that program is its command.
        taken_ports: Host ports that something else uses.
        fail: Method → errors to raise, one at a call, before anything else happens.
        calls: The names of the methods that changed something, in order.
        build_requests: Every request :meth:`build` was given.
        registry: Reference → image, for :meth:`pull` and :meth:`push`.
    """

    def __init__(self, capabilities: EngineCapabilities = FAKE_CAPABILITIES) -> None:
        self._capabilities = capabilities
        self._numbers = itertools.count(1)
        self._images: dict[str, ImageInfo] = {}
        self._containers: dict[str, FakeContainer] = {}
        self._volumes: dict[str, VolumeInfo] = {}
        self._networks: dict[str, NetworkInfo] = {}
        self._cached_steps: set[str] = set()
        self._events: list[EngineEvent] = []
        self._now = datetime(2026, 1, 1, tzinfo=timezone.utc)
        self.programs: dict[str, Program] = dict(PROGRAMS)
        self.taken_ports: set[int] = set()
        self.fail: dict[str, list[GpuenvError]] = {}
        self.calls: list[str] = []
        self.build_requests: list[BuildRequest] = []
        self.registry: dict[str, ImageInfo] = {}
        self.closed = False

    @property
    def address(self) -> str:
        """A name that no socket has."""
        return "fake://engine"

    @property
    def capabilities(self) -> EngineCapabilities:
        """What it was made with."""
        return self._capabilities

    def close(self) -> None:
        """Take note."""
        self.closed = True

    def __enter__(self) -> Self:
        """Use the engine."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()

    def _note(self, call: str) -> None:
        self.calls.append(call)
        pending = self.fail.get(call)
        if pending:
            raise pending.pop(0)

    def _tick(self) -> datetime:
        self._now += timedelta(seconds=1)
        return self._now

    def _new_id(self, text: str) -> str:
        return hashlib.sha256(f"{text} {next(self._numbers)}".encode()).hexdigest()

    # --- images -----------------------------------------------------------------------------

    def add_image(self, ref: str, **facts: Any) -> ImageInfo:
        """Put an image on the engine, as a test needs it."""
        plain = ImageInfo(
            id=f"sha256:{self._new_id(ref)}", tags=(), digests=(), size_bytes=0, labels={}
        )
        info = replace(plain, created_at=self._tick(), **facts)
        self._images[info.id] = info
        self.tag(info.id, ref)
        return self._images[info.id]

    def build(self, request: BuildRequest) -> Generator[BuildEvent, None, None]:
        """Walk through the Dockerfile: FROM must be local, ``RUN exit N`` fails, the rest is done.

        A step is cached when it and all before it were built.
        """
        self._note("build")
        self.build_requests.append(request)
        lines = _dockerfile(request)
        base = self.image(lines[0].split()[1]) if lines else None
        if base is None:
            failed = Failed(name="", message="failed to resolve source metadata: no such image")
            yield failed
            raise explain_failure(failed)
        labels = {**base.labels, **request.labels}
        chain = hashlib.sha256(_bytes_of(request.context)).hexdigest() + base.id
        for number, line in enumerate(lines, 1):
            chain = hashlib.sha256(f"{chain} {line}".encode()).hexdigest()
            name = f"[{number}/{len(lines)}] {line}"
            if chain in self._cached_steps and not request.no_cache:
                yield StepCached(step=chain, name=name)
                continue
            yield StepStarted(step=chain, name=name)
            if line.startswith("RUN "):
                call = Call(arguments=("sh", "-c", line[4:]), env=base.env, files={})
                ended = self.programs["sh"](call)
                log = ended.stdout.decode().splitlines()
                for text in log:
                    yield Output(step=chain, text=text)
                if ended.exit_code:
                    failed = Failed(
                        name=name,
                        message=f"process {line[4:]!r} did not complete successfully: "
                        f"exit code: {ended.exit_code}",
                        exit_code=ended.exit_code,
                        log=tuple(log),
                    )
                    yield failed
                    raise explain_failure(failed)
            self._cached_steps.add(chain)
            yield StepDone(step=chain, name=name, seconds=0.0)
        image_id = f"sha256:{chain}"
        self._images.setdefault(
            image_id,
            replace(base, id=image_id, tags=(), labels=labels, created_at=self._tick()),
        )
        for tag in request.tags:
            self.tag(image_id, tag)
        yield ImageId(image_id=image_id)

    def image(self, ref: str) -> ImageInfo | None:
        """Return an image by reference or id, or the beginning of an id."""
        full = _full_ref(ref)
        for info in self._images.values():
            digest = info.id.removeprefix("sha256:")
            bare = ref.removeprefix("sha256:")
            if full in info.tags or (len(bare) >= 12 and digest.startswith(bare)):  # noqa: PLR2004
                return info
        return None

    def _need_image(self, ref: str) -> ImageInfo:
        info = self.image(ref)
        if info is None:
            raise e.ImageNotFoundError(f"there is no image {ref}", fix="build it first")
        return info

    def image_history(self, ref: str) -> tuple[ImageHistoryEntry, ...]:
        """Return no history; fake images have none."""
        self._need_image(ref)
        return ()

    def images(self, *, labels: Mapping[str, str | None] | None = None) -> tuple[ImageInfo, ...]:
        """List images that carry all the labels."""
        return tuple(i for i in self._images.values() if _carries(i.labels, labels))

    def tag(self, ref: str, new_ref: str) -> None:
        """Give an image one more reference, taking it from another."""
        self._note("tag")
        found = self._need_image(ref)
        full = _full_ref(new_ref)
        for info in tuple(self._images.values()):
            tags = tuple(tag for tag in info.tags if tag != full)
            if info.id == found.id:
                tags = (*tags, full)
            self._images[info.id] = replace(info, tags=tags)

    def untag(self, ref: str, *, force: bool = False) -> bool:
        """Remove a reference, and the image with its last one."""
        self._note("untag")
        info = self.image(ref)
        if info is None:
            return False
        full = _full_ref(ref)
        left = tuple(tag for tag in info.tags if tag != full) if full in info.tags else ()
        users = [c.name for c in self._containers.values() if c.image_id == info.id]
        if not left and users and not force:
            raise e.ImageInUseError(f"image {ref} is in use", why=f"by {', '.join(users)}")
        if full not in info.tags and len(info.tags) > 1 and not force:
            raise e.ImageInUseError(f"image {ref} is in use", why="it has several names")
        if left:
            self._images[info.id] = replace(info, tags=left)
        else:
            del self._images[info.id]
        return True

    def pull(
        self, ref: str, *, login: RegistryLogin | None = None
    ) -> Generator[TransferEvent, None, None]:
        """Fetch from ``registry``."""
        del login
        self._note("pull")
        info = self.registry.get(_full_ref(ref))
        if info is None:
            raise e.RemoteImageMissingError(f"{ref} could not be transferred", why="not found")
        self._images[info.id] = replace(info, tags=())
        self.tag(info.id, ref)
        yield Pulled(ref=ref, image_id=info.id)

    def push(
        self, ref: str, *, login: RegistryLogin | None = None
    ) -> Generator[TransferEvent, None, None]:
        """Send to ``registry``."""
        del login
        self._note("push")
        info = self._need_image(ref)
        self.registry[_full_ref(ref)] = info
        digest = "sha256:" + hashlib.sha256(info.id.encode()).hexdigest()
        name, _ = split_ref(ref)
        self._images[info.id] = replace(info, digests=(*info.digests, f"{name}@{digest}"))
        yield Pushed(ref=ref, digest=digest)

    def import_image(self, tar: TarBytes, ref: str, *, changes: tuple[str, ...] = ()) -> str:
        """Make an image out of a tar; only its bytes count."""
        self._note("import_image")
        data = _bytes_of(tar)
        labels = dict(
            change.removeprefix("LABEL ").split("=", 1)
            for change in changes
            if change.startswith("LABEL ")
        )
        return self.add_image(ref, size_bytes=len(data), labels=labels).id

    def save(self, refs: tuple[str, ...]) -> Generator[bytes, None, None]:
        """Stream the references, which :meth:`load` understands."""
        for ref in refs:
            yield f"{self._need_image(ref).id} {_full_ref(ref)}\n".encode()

    def load(self, tar: TarBytes) -> tuple[str, ...]:
        """Load what :meth:`save` gave."""
        self._note("load")
        refs: list[str] = []
        for line in _bytes_of(tar).decode().splitlines():
            image_id, ref = line.split(" ", 1)
            if self.image(image_id) is None:
                self.add_image(ref, id=image_id)
            self.tag(image_id, ref)
            refs.append(ref)
        return tuple(refs)

    # --- containers -------------------------------------------------------------------------

    def review(self, spec: ContainerSpec) -> tuple[Finding, ...]:
        """Say what this engine will not do as the spec asks."""
        return review(spec, self._capabilities)

    def create(self, spec: ContainerSpec) -> CreatedContainer:
        """Make a container and put its files in."""
        self._note("create")
        findings = self.review(spec)
        if findings and findings[0].severity == "refusal":
            first = findings[0]
            raise e.SpecRefusedError(first.what, why=first.why, fix=first.fix)
        image = self._need_image(spec.image)
        container_id = self._new_id(spec.image)
        name = spec.name or f"fake_{container_id[:8]}"
        if any(c.name == name for c in self._containers.values()):
            raise e.NameTakenError(f"container {name} cannot be made: its name is taken")
        self._containers[container_id] = FakeContainer(
            id=container_id,
            name=name,
            spec=spec,
            image_id=image.id,
            created_at=self._tick(),
            files={"/etc/passwd": b"root:x:0:0:root:/root:/bin/sh\n", "/etc/group": b"root:x:0:\n"},
        )
        for mount in spec.mounts:
            if isinstance(mount, VolumeMount):
                self.create_volume(mount.name, labels=spec.labels)
        self.put_files(container_id, spec.files)
        self._event("container", "create", container_id)
        return CreatedContainer(id=container_id, name=name, findings=findings)

    def _find(self, container: str) -> FakeContainer | None:
        for known in self._containers.values():
            if container in {known.id, known.name} or (
                len(container) >= 12 and known.id.startswith(container)  # noqa: PLR2004
            ):
                return known
        return None

    def _need(self, container: str) -> FakeContainer:
        found = self._find(container)
        if found is None:
            raise e.ContainerNotFoundError(f"there is no container {container}")
        return found

    def spec_of(self, container: str) -> ContainerSpec:
        """Return what a container was made from."""
        return self._need(container).spec

    def put_files(self, container: str, files: tuple[PutFile, ...]) -> None:
        """Put files in."""
        found = self._need(container)
        for file in files:
            if file.content is not None:
                found.files[str(PurePosixPath(file.path))] = file.content

    def read_file(self, container: str, path: str) -> bytes | None:
        """Return a file that was put in."""
        return self._need(container).files.get(str(PurePosixPath(path)))

    def start(self, container: str) -> ContainerInfo:
        """Run the container's program to its end, or until it waits."""
        self._note("start")
        found = self._need(container)
        if found.state == "running":
            return self._info(found)
        found.ports = tuple(self._publish(found))
        image = self._images.get(found.image_id)
        default = (image.entrypoint, image.command) if image else ((), ())
        spec = found.spec
        entry = default[0] if spec.entrypoint is None else spec.entrypoint
        words = (*entry, *(default[1] if spec.command is None else spec.command))
        ended = self._run(found, words, env={})
        found.started_at = self._tick()
        if ended.stdout:
            found.output.append(LogChunk(stream="stdout", data=ended.stdout))
        if ended.stderr:
            stream: StreamName = "stdout" if spec.tty else "stderr"
            found.output.append(LogChunk(stream=stream, data=ended.stderr))
        found.state, found.exit_code = "running", None
        self._event("container", "start", found.id)
        if ended.exit_code is not None:
            self._end(found, ended.exit_code)
        return self._info(found)

    def _publish(self, found: FakeContainer) -> Iterable[PublishedPort]:
        used = self.taken_ports | {
            port.host_port
            for other in self._containers.values()
            if other.state == "running"
            for port in other.ports
        }
        for port in found.spec.ports:
            number = port.host_port
            if number is None:
                number = 32768 + next(self._numbers)
            elif number in used:
                raise e.PortTakenError(
                    f"container {found.name} cannot start: a port is taken",
                    why=f"port {number} is already allocated",
                )
            yield PublishedPort(
                container_port=port.container_port,
                host_port=number,
                host_ip=port.host_ip,
                protocol=port.protocol,
            )

    def _run(
        self,
        found: FakeContainer,
        words: tuple[str, ...],
        *,
        env: Mapping[str, str],
        stdin: bytes = b"",
    ) -> Ended:
        program = self.programs.get(PurePosixPath(words[0]).name) if words else None
        if program is None:
            raise e.CommandNotFoundError(
                f"container {found.name} cannot start: its program is not there",
                why=f'exec: "{words[0] if words else ""}": executable file not found in $PATH',
            )
        return program(
            Call(arguments=words, env={**found.spec.env, **env}, files=found.files, stdin=stdin)
        )

    def _end(self, found: FakeContainer, exit_code: int) -> None:
        found.state, found.exit_code, found.finished_at = "exited", exit_code, self._tick()
        found.ports = ()
        self._event("container", "die", found.id)
        if found.spec.auto_remove:
            del self._containers[found.id]

    def end(self, container: str, exit_code: int) -> None:
        """Let a container's program end by itself, as a test needs it."""
        self._end(self._need(container), exit_code)

    def stop(self, container: str, *, timeout_s: int = 10) -> None:
        """End a container; its program heeds SIGTERM."""
        del timeout_s
        self._note("stop")
        found = self._need(container)
        if found.state == "running":
            self._end(found, 143)

    def signal(self, container: str, signal: str) -> None:
        """End a container by a signal; the fake's programs heed all of them."""
        self._note("signal")
        found = self._need(container)
        if found.state != "running":
            raise e.ContainerNotRunningError(f"container {found.name} does not run")
        numbers = {"SIGINT": 2, "SIGKILL": 9, "SIGTERM": 15, "SIGHUP": 1, "SIGQUIT": 3}
        if signal in numbers:
            self._end(found, 128 + numbers[signal])

    def restart(self, container: str, *, timeout_s: int = 10) -> ContainerInfo:
        """Stop and start."""
        self.stop(container, timeout_s=timeout_s)
        return self.start(container)

    def remove(self, container: str, *, force: bool = False, volumes: bool = True) -> bool:
        """Remove a container."""
        del volumes
        self._note("remove")
        found = self._find(container)
        if found is None:
            return False
        if found.state == "running" and not force:
            raise e.ImageInUseError(f"container {found.name} is in use", why="it runs")
        del self._containers[found.id]
        self._event("container", "destroy", found.id)
        return True

    def wait(self, container: str, *, timeout_s: float | None = None) -> ExitStatus:
        """Return how a container ended; one that runs never ends by itself."""
        found = self._need(container)
        if found.state == "running":
            raise TimeoutError(f"{container} did not end within {timeout_s} s")
        return ExitStatus(exit_code=found.exit_code or 0)

    def container(self, container: str) -> ContainerInfo | None:
        """Return what is known of a container."""
        found = self._find(container)
        return None if found is None else self._info(found)

    def _info(self, found: FakeContainer) -> ContainerInfo:
        running = found.state == "running"
        return ContainerInfo(
            id=found.id,
            name=found.name,
            image=found.spec.image,
            image_id=found.image_id,
            state=found.state,
            labels=dict(found.spec.labels),
            exit_code=found.exit_code,
            created_at=found.created_at,
            started_at=found.started_at,
            finished_at=found.finished_at,
            ports=found.ports,
            ip_addresses={found.spec.network or "bridge": "172.17.0.2"} if running else {},
            mounts=found.spec.mounts,
            user=found.spec.user or "",
            pid=4242 if running else None,
            tty=found.spec.tty,
        )

    def containers(
        self, *, labels: Mapping[str, str | None] | None = None, only_running: bool = False
    ) -> tuple[ContainerInfo, ...]:
        """List containers that carry all the labels, newest first."""
        return tuple(
            self._info(found)
            for found in reversed(self._containers.values())
            if _carries(found.spec.labels, labels)
            and (found.state == "running" or not only_running)
        )

    def logs(
        self,
        container: str,
        *,
        follow: bool = False,
        tail: int | None = None,
        since: datetime | None = None,
        timestamps: bool = False,
    ) -> Generator[LogChunk, None, None]:
        """Read what the container printed; ``follow`` ends where the fake has no more to say."""
        del follow, since, timestamps
        lines = [
            LogChunk(stream=chunk.stream, data=line)
            for chunk in self._need(container).output
            for line in chunk.data.splitlines(keepends=True)
        ]
        yield from lines if tail is None else lines[len(lines) - min(tail, len(lines)) :]

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
        """Run a program in a running container."""
        del user, workdir
        self._note("exec")
        ended = self._exec(container, command, env=env, stdin=stdin or b"")
        if ended.exit_code is None:
            raise TimeoutError(f"{command[0]} in {container} gave no sign for {timeout_s} s")
        return ExecResult(exit_code=ended.exit_code, stdout=ended.stdout, stderr=ended.stderr)

    def _exec(
        self,
        container: str,
        command: tuple[str, ...],
        *,
        env: Mapping[str, str] | None,
        stdin: bytes = b"",
    ) -> Ended:
        found = self._need(container)
        if found.state != "running":
            raise e.ContainerNotRunningError(f"container {found.name} does not run")
        try:
            return self._run(found, command, env=env or {}, stdin=stdin)
        except e.CommandNotFoundError as error:
            return Ended(exit_code=127, stdout=error.why.encode() + b"\n")

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
        """Run a program and hand out its output."""
        del user, workdir
        return FakeAttachment(self._exec(container, command, env=env), tty=tty)

    def attach(self, container: str) -> Attachment:
        """Hand out what the container printed so far."""
        found = self._need(container)
        joined = {
            name: b"".join(c.data for c in found.output if c.stream == name)
            for name in ("stdout", "stderr")
        }
        ended = Ended(exit_code=found.exit_code, stdout=joined["stdout"], stderr=joined["stderr"])
        return FakeAttachment(ended, tty=found.spec.tty)

    def usage(self, container: str) -> UsageSample:
        """Return a sample with plain numbers for a running container."""
        found = self._need(container)
        if found.state != "running" or not self._capabilities.stats:
            return UsageSample(at=self._tick())
        return UsageSample(
            at=self._tick(),
            cpu_ns=10**9,
            memory_bytes=100 << 20,
            memory_limit_bytes=found.spec.memory_bytes or self._capabilities.memory_bytes,
            pids=1,
        )

    def processes(self, container: str) -> tuple[int, ...] | None:
        """Return the fake's one process id."""
        return (4242,) if self._need(container).state == "running" else None

    def _event(self, kind: str, action: str, container_id: str) -> None:
        found = self._containers.get(container_id)
        attributes = {"name": found.name, **found.spec.labels} if found else {}
        self._events.append(
            EngineEvent(
                kind=kind, action=action, id=container_id, attributes=attributes, at=self._tick()
            )
        )

    def events(
        self,
        *,
        labels: Mapping[str, str | None] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> Generator[EngineEvent, None, None]:
        """Tell what has happened so far."""
        for event in self._events:
            after = since is None or event.at >= since
            before = until is None or event.at <= until
            if after and before and _carries(event.attributes, labels):
                yield event

    # --- volumes, networks, the engine itself ---------------------------------------------------

    def create_volume(self, name: str, *, labels: Mapping[str, str]) -> VolumeInfo:
        """Make a volume, or return the one of that name."""
        volume = VolumeInfo(name=name, driver="local", labels=dict(labels), created_at=self._tick())
        return self._volumes.setdefault(name, volume)

    def volumes(self, *, labels: Mapping[str, str | None] | None = None) -> tuple[VolumeInfo, ...]:
        """List volumes that carry all the labels."""
        return tuple(v for v in self._volumes.values() if _carries(v.labels, labels))

    def remove_volume(self, name: str, *, force: bool = False) -> bool:
        """Remove a volume."""
        del force
        users = [
            c.name
            for c in self._containers.values()
            for mount in c.spec.mounts
            if isinstance(mount, VolumeMount) and mount.name == name
        ]
        if users:
            raise e.ImageInUseError(f"volume {name} is in use", why=f"by {', '.join(users)}")
        return self._volumes.pop(name, None) is not None

    def create_network(
        self, name: str, *, labels: Mapping[str, str], internal: bool = False
    ) -> NetworkInfo:
        """Make a network, or return the one of that name."""
        network = NetworkInfo(
            id=self._new_id(name),
            name=name,
            driver="bridge",
            labels=dict(labels),
            internal=internal,
        )
        return self._networks.setdefault(name, network)

    def networks(
        self, *, labels: Mapping[str, str | None] | None = None
    ) -> tuple[NetworkInfo, ...]:
        """List networks that carry all the labels."""
        return tuple(n for n in self._networks.values() if _carries(n.labels, labels))

    def remove_network(self, name: str) -> bool:
        """Remove a network."""
        return self._networks.pop(name, None) is not None

    def disk_usage(self) -> DiskUsage:
        """Sum up the images."""
        return DiskUsage(
            images_bytes=sum(image.size_bytes for image in self._images.values()),
            containers_bytes=0,
            volumes_bytes=0,
            build_cache_bytes=0,
            store=self._capabilities.store,
            free_bytes=self.free_bytes(),
        )

    def free_bytes(self) -> int | None:
        """Return room enough, where the engine is local."""
        return 500 << 30 if self._capabilities.local else None

    def responds(self, *, timeout_s: float = 10) -> bool:  # noqa: ARG002 - the protocol's
        """Say yes: what runs in the same process always answers."""
        return True

    def raw_info(self) -> Mapping[str, Any]:
        """Return the little the doctor asks for."""
        return {"ServerVersion": str(self._capabilities.version), "Name": self._capabilities.name}


def _carries(have: Mapping[str, str], want: Mapping[str, str | None] | None) -> bool:
    return all(
        name in have and (value is None or have[name] == value)
        for name, value in (want or {}).items()
    )


def _full_ref(ref: str) -> str:
    if ref.startswith("sha256:"):
        return ref
    name, tag = split_ref(ref)
    return f"{name}@{tag}" if "@" in ref else f"{name}:{tag}"


def _bytes_of(tar: TarBytes) -> bytes:
    return tar if isinstance(tar, bytes) else b"".join(tar())


def _dockerfile(request: BuildRequest) -> list[str]:
    """Return the instructions of the request's Dockerfile, comments and continuations resolved."""
    with tarfile.open(fileobj=io.BytesIO(_bytes_of(request.context))) as tar:
        reader = tar.extractfile(request.dockerfile)
        text = reader.read().decode() if reader else ""
    joined = text.replace("\\\n", " ")
    return [line.strip() for line in joined.splitlines() if line.strip() and line[0] != "#"]


if TYPE_CHECKING:
    _conforms: type[ContainerEngine] = FakeEngine
