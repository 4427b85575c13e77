"""Make, find, stop and remove environments; whatever interrupts, nothing half-made stays."""

from __future__ import annotations

import contextlib
import os
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpuenv.containers.accounts import account_files
from gpuenv.containers.errors import (
    EnvironmentAmbiguousError,
    EnvironmentDiffersError,
    EnvironmentNotFoundError,
    GpuMissingInContainerError,
    NoFreePortError,
)
from gpuenv.containers.identity import (
    KIND,
    NAME,
    OWNER,
    SESSION,
    VOLUME,
    Identity,
    differences,
    identity_of,
)
from gpuenv.containers.plan import Note
from gpuenv.engine.errors import (
    ContainerNotRunningError,
    EngineTimeoutError,
    ImageInUseError,
    NameTakenError,
    PortTakenError,
    RlimitRefusedError,
)
from gpuenv.process import ended_by_signals
from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from gpuenv.containers.plan import ContainerPlan
    from gpuenv.engine.protocol import ContainerEngine, ContainerInfo

_PORT_TRIES = 64
_CLEAN_TRIES = 5
_GPU_PROBE_TIMEOUT_S = 60.0
_GPU_NODES = "/dev/nvidia[0-9]* /dev/nvidiactl /dev/dxg"
_NO_SUCH_PROGRAM = (126, 127)


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """A container of ours and who it is."""

    identity: Identity
    container: ContainerInfo

    @property
    def running(self) -> bool:
        """Whether it runs now."""
        return self.container.running

    @property
    def cut_off(self) -> bool:
        """Whether gpuenv was killed before it was started: files may be missing in it."""
        return self.container.state == "created"


# --- making --------------------------------------------------------------------------------------


@contextmanager
def removing_on_failure(engine: ContainerEngine, session: str) -> Iterator[None]:
    """Remove what a launch made if it does not come to its end, by Ctrl-C or by an error.

    By label, since a container may exist whose id never reached us.
    """
    with ended_by_signals():
        try:
            yield
        except BaseException as failure:
            if isinstance(failure, EngineTimeoutError) and not engine.responds(timeout_s=5):
                raise  # it would not answer this either
            for _ in range(_CLEAN_TRIES):
                try:
                    for container in engine.containers(labels={SESSION: session}):
                        engine.remove(container.id, force=True)
                    break
                except KeyboardInterrupt:
                    continue  # an impatient second Ctrl-C must not leave half of it
            raise


def start_planned(
    engine: ContainerEngine,
    plan: ContainerPlan,
    *,
    on_note: Callable[[Note], None],
    before_start: Callable[[str], None] | None = None,
) -> ContainerInfo:
    """Make and start the container of a plan.

    Where the engine turns out not to be allowed to set a ulimit, it is made again without that one,
    so that it has the engine's own, and the user is told.

    Args:
        on_note: Told what comes up on the way, beyond ``plan.notes``.
        before_start: Called with the id of each container made, to attach to it.

    Raises:
        LaunchFailedError: In one of its kinds; nothing is left behind.
    """
    with removing_on_failure(engine, plan.identity.session):
        while True:
            created = _create(engine, plan, on_note)
            if before_start is not None:
                before_start(created)
            try:
                info = engine.start(created)
            except RlimitRefusedError as refused:
                engine.remove(created, force=True)
                plan = _without_ulimit(plan, refused, on_note)
                continue
            break
        if plan.gpu.request is not None:
            require_gpu_inside(engine, info)
        return info


def start_on_free_port(
    engine: ContainerEngine,
    plan_for: Callable[[int], ContainerPlan],
    *,
    first_port: int,
    port_free: Callable[[int], bool],
    on_note: Callable[[Note], None],
) -> tuple[ContainerInfo, int]:
    """Start a container on ``first_port`` or the next free one, and tell which.

    Args:
        plan_for: The plan with a host port in it; each with a session of its own or the same one.
        port_free: Asked first, which is cheaper than a start that fails.

    Raises:
        NoFreePortError: None of the next ports was free.
    """
    last = min(first_port + _PORT_TRIES, 65536)
    for port in range(first_port, last):
        if not port_free(port):
            continue
        if port != first_port:
            on_note(Note(level="note", text=f"port {first_port} is taken, so it is {port}"))
        try:
            return start_planned(engine, plan_for(port), on_note=on_note), port
        except PortTakenError:
            continue
    raise NoFreePortError(
        f"no free port from {first_port} to {last - 1}",
        why="each of them is in use on the engine's host",
        fix="--port NUMBER, with a free one",
    )


def _create(engine: ContainerEngine, plan: ContainerPlan, on_note: Callable[[Note], None]) -> str:
    for volume in plan.volumes:
        engine.create_volume(volume.name, labels=volume.labels(plan.identity.created))
    try:
        # All files go in by one copy, below: each costs as much as making the container does.
        created = engine.create(replace(plan.spec, files=()))
    except NameTakenError as taken:
        raise _name_taken(engine, plan, taken) from taken
    for finding in created.findings:
        level = "warning" if finding.severity == "refusal" else finding.severity
        on_note(Note(level=level, text=". ".join(t for t in (finding.what, finding.why) if t)))
    accounts = account_files(engine, created.id, plan, environ=os.environ)
    files = (*plan.spec.files, *plan.folders, *accounts)
    if files:
        engine.put_files(created.id, files)
    return created.id


def _name_taken(
    engine: ContainerEngine, plan: ContainerPlan, taken: NameTakenError
) -> NameTakenError:
    name = plan.identity.name
    holder = engine.container(plan.spec.name or "")
    if holder is not None and identity_of(holder) is not None:
        return NameTakenError(
            f"there is an environment {name} already",
            why=f"its container {holder.name} is {holder.state}",
            fix=f"choose another --name, or remove it with gpuenv rm {name}",
        )
    return NameTakenError(
        f"the name {plan.spec.name} is taken by a container that gpuenv did not make",
        why=taken.why,
        fix="choose another --name, or remove that container",
    )


def _without_ulimit(
    plan: ContainerPlan, refused: RlimitRefusedError, on_note: Callable[[Note], None]
) -> ContainerPlan:
    name = refused.data.get("ulimit")
    kept = tuple(limit for limit in plan.spec.ulimits if name and limit.name != name)
    if len(kept) == len(plan.spec.ulimits):
        raise refused
    dropped = name or ", ".join(limit.name for limit in plan.spec.ulimits)
    on_note(
        Note(
            level="note",
            text=f"ulimit {dropped} stays as the engine has it: it may not set it ({refused.why})",
        )
    )
    return replace(plan, spec=replace(plan.spec, ulimits=kept))


def require_gpu_inside(engine: ContainerEngine, info: ContainerInfo) -> None:
    """Make sure that a container which was asked for a GPU has one, whatever the engine answered.

    Raises:
        GpuMissingInContainerError: It runs and has no GPU.
    """
    probe = engine.exec(
        info.id,
        (
            "sh",
            "-c",
            "ls -d /dev/nvidia[0-9]* /dev/nvidiactl /dev/dxg /dev/nvidia-caps/* 2>/dev/null",
        ),
        timeout_s=_GPU_PROBE_TIMEOUT_S,
    )
    if probe.exit_code in _NO_SUCH_PROGRAM or probe.stdout.strip():
        return  # an image without a shell can hide it, but not refuse it
    raise GpuMissingInContainerError(
        f"{info.name} was asked for a GPU and has none",
        why="the engine started it, and there is no device node of a GPU inside",
        fix="gpuenv doctor says what keeps the engine from giving it; --gpus none runs on the CPU",
    )


# --- finding -------------------------------------------------------------------------------------


def list_environments(
    engine: ContainerEngine, *, owner: int | None = None, kind: str | None = None
) -> tuple[Environment, ...]:
    """List what gpuenv started on this engine, newest first.

    Args:
        owner: Only what belongs to this uid; ``None`` for everybody's.
    """
    labels: dict[str, str | None] = {SESSION: None}
    if owner is not None:
        labels[OWNER] = str(owner)
    if kind is not None:
        labels[KIND] = kind
    return tuple(
        Environment(identity=identity, container=container)
        for container in engine.containers(labels=labels)
        if (identity := identity_of(container)) is not None
    )


def find_environment(
    engine: ContainerEngine, name: str, *, kind: str, owner: int
) -> Environment | None:
    """Return the environment of exactly that name and kind, running or not."""
    environments = [
        Environment(identity=identity, container=container)
        for container in engine.containers(
            labels={SESSION: None, NAME: name, KIND: kind, OWNER: str(owner)}
        )
        if (identity := identity_of(container)) is not None
    ]
    environments.sort(key=lambda one: (one.running, one.identity.created), reverse=True)
    return environments[0] if environments else None


def require_as_asked(
    environment: Environment, asked: Mapping[str, str], *, image_id: str | None
) -> None:
    """Refuse an environment that is there and not as a second call asks for it.

    Args:
        asked: What was asked for explicitly, flag to text.
        image_id: The image that was asked for, ``None`` for whichever it has.

    Raises:
        EnvironmentDiffersError: It differs; the message says how.
    """
    unlike = differences(asked, environment.identity.request)
    if image_id is not None and image_id != environment.container.image_id:
        unlike = (*unlike, "the image for this request has been rebuilt since it was started")
    if unlike:
        state = "is already running" if environment.running else "already exists"
        raise EnvironmentDiffersError(
            f"{environment.identity.name} {state}, with other settings",
            why="\n".join(unlike),
            fix="leave those flags out to use it, or give --replace, or another --name",
        )


def select_environments(
    environments: tuple[Environment, ...], word: str
) -> tuple[Environment, ...]:
    """Return the environments a user means by a word.

    A name (all its kinds), ``NAME-KIND``, the container's name or id, or the beginning of a name
    that only one has. A command's container (``run``) has the name of its folder's environment and
    more; it is not meant where that environment is.

    Raises:
        EnvironmentNotFoundError: None is meant.
        EnvironmentAmbiguousError: Several begin so.
    """
    for matches in (
        [e for e in environments if e.identity.name == word],
        [e for e in environments if f"{e.identity.name}-{e.identity.kind}" == word],
        [e for e in environments if e.container.name == word],
        [e for e in environments if len(word) >= 8 and e.container.id.startswith(word)],  # noqa: PLR2004
    ):
        if matches:
            return tuple(matches)
    begun = [e for e in environments if word and e.identity.name.startswith(word)]
    folders = tuple(f"{e.identity.name}-" for e in begun if e.identity.kind != "run")
    begun = [
        e for e in begun if e.identity.kind != "run" or not e.identity.name.startswith(folders)
    ]
    names = sorted({e.identity.name for e in begun})
    if len(names) == 1:
        return tuple(begun)
    if names:
        raise EnvironmentAmbiguousError(
            f"{word!r} stands for {len(names)} environments",
            why=", ".join(names),
            fix=f"give the whole name: {names[0]}",
        )
    known = sorted({e.identity.name for e in environments})
    raise EnvironmentNotFoundError(
        f"there is no environment {word!r}",
        why=f"yours here: {', '.join(known)}" if known else "gpuenv has started none here",
        fix="gpuenv ps lists them",
        data={"environments": known},
    )


def taken_gpus(environments: tuple[Environment, ...]) -> tuple[str, ...]:
    """Return the indexes and UUIDs of GPUs that running environments hold by name."""
    return tuple(
        name
        for environment in environments
        if environment.running and environment.identity.gpus not in {"none", "all"}
        for name in environment.identity.gpus.split(",")
    )


def start_stopped(engine: ContainerEngine, environment: Environment) -> ContainerInfo:
    """Start a stopped environment as it was, on the port it had.

    Raises:
        ContainerNotRunningError: It never ran.
        PortTakenError: Somebody else has its port by now.
    """
    name, kind = environment.identity.name, environment.identity.kind
    if environment.cut_off:
        raise ContainerNotRunningError(
            f"the start of {name} was cut off",
            why="its container was made and never ran, so files may be missing in it",
            fix=f"gpuenv rm {name}"
            if kind == "run"
            else f"gpuenv {kind} --name {name} makes it anew",
        )
    try:
        return engine.start(environment.container.id)
    except PortTakenError as taken:
        raise PortTakenError(
            f"{name} cannot start: its port is in use by something else now",
            why=taken.why,
            fix=f"end what has the port; or gpuenv {kind} --name {name} --replace makes the "
            "environment anew on a free one",
        ) from taken


# --- ending --------------------------------------------------------------------------------------


def remove_environment(engine: ContainerEngine, environment: Environment) -> bool:
    """Remove a container, running or not; ``False`` if it was gone already."""
    return engine.remove(environment.container.id, force=True)


def remove_caches(engine: ContainerEngine, *, owner: int) -> tuple[str, ...]:
    """Remove the cache volumes of a user that nothing uses; return their names."""
    removed = []
    for volume in engine.volumes(labels={VOLUME: None, OWNER: str(owner)}):
        with contextlib.suppress(ImageInUseError):
            if engine.remove_volume(volume.name):
                removed.append(volume.name)
    return tuple(removed)


def as_dict(environment: Environment) -> dict[str, Any]:
    """Return an environment for ``--json``."""
    identity, container = environment.identity, environment.container
    return {
        "name": identity.name,
        "kind": identity.kind,
        "container": container.name,
        "id": container.id,
        "session": identity.session,
        "state": container.state,
        "exit_code": container.exit_code if not environment.running else None,
        "image": container.image,
        "image_id": container.image_id,
        "gpus": identity.gpus,
        "workspace": identity.workspace,
        "owner": identity.owner,
        "login": identity.login,
        "created": identity.created.isoformat(),
        "ports": [
            {
                "container_port": port.container_port,
                "host_port": port.host_port,
                "host_ip": port.host_ip,
            }
            for port in container.ports
        ],
    }
