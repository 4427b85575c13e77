"""One container, decided: wish and facts go in, a frozen plan with its reasons comes out."""

from __future__ import annotations

import re
from dataclasses import field, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from gpuenv.containers.gpus import GpuPlan, GpuWish, plan_gpus
from gpuenv.containers.identity import Identity, Kind
from gpuenv.containers.limits import LimitPlan, LimitWish, format_size, plan_limits
from gpuenv.containers.mounts import CACHES, WORKSPACE, CacheVolume, Workspace
from gpuenv.containers.users import HOME, UserPlan, UserWish, plan_user
from gpuenv.engine.protocol import (
    BindMount,
    ContainerSpec,
    Mount,
    PortBinding,
    PutFile,
    VolumeMount,
)
from gpuenv.host.gpu_inventory import GpuInventory
from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from gpuenv.containers.facts import Caller, FolderOwner
    from gpuenv.engine.capabilities import EngineCapabilities
    from gpuenv.engine.protocol import ImageInfo

Level: TypeAlias = Literal["detail", "note", "warning"]

_OUR_IMAGE = "org.gpuenv.spec"
_VARIANT = "org.gpuenv.torch-variant"
_HOME_MODE = 0o775
_LOG_BYTES = 32 << 20
_STOP_TIMEOUT_S = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Something a user may want to know, should know, or must know."""

    level: Level
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerWish:
    """What was asked for, parsed and checked; the same for every kind.

    Attributes:
        image: Reference or id of a local image.
        env: Variables for the container; visible to whoever may inspect it.
        volumes: Mounts beside the workspace and the caches.
        ports: Published beside the kind's own.
        request: Flag → value as it stands in the label, for a second call to compare with.
    """

    image: str
    name: str
    kind: Kind
    gpus: GpuWish = "auto"
    require_gpu: bool = False
    limits: LimitWish = field(default_factory=LimitWish)
    user: UserWish = "caller"
    workspace: Workspace | None = None
    volumes: tuple[Mount, ...] = ()
    caches: bool = True
    ports: tuple[PortBinding, ...] = ()
    cap_add: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    network: str | None = None
    request: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFacts:
    """What the plan needs to know of the world.

    Attributes:
        image: The image as the engine has it.
        taken_gpus: Indexes and UUIDs that running containers of ours have.
        session: A fresh id for this launch.
        now: Aware, UTC.
    """

    caller: Caller
    capabilities: EngineCapabilities
    image: ImageInfo
    session: str
    now: datetime
    inventory: GpuInventory = field(default_factory=GpuInventory)
    workspace_owner: FolderOwner | None = None
    taken_gpus: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerPlan:
    """One container, wholly decided.

    Attributes:
        image_id: Of the image; empty where it is not there yet.
        volumes: Cache volumes to make before it.
        folders: Folders that must be the user's own, put in before the start.
        notes: What the user hears, in this order.
    """

    identity: Identity
    spec: ContainerSpec
    user: UserPlan
    gpu: GpuPlan
    limits: LimitPlan
    image_id: str = ""
    volumes: tuple[CacheVolume, ...] = ()
    folders: tuple[PutFile, ...] = ()
    notes: tuple[Note, ...] = ()

    def adding(
        self, *, env: Mapping[str, str] | None = None, notes: tuple[Note, ...] = (), **changes: Any
    ) -> ContainerPlan:
        """Return the plan with more in its spec.

        Args:
            env: Added to the variables; one that the user set wins.
            notes: Added behind the others.
            changes: Fields of the spec, replaced.
        """
        spec = replace(self.spec, **changes)
        if env:
            spec = replace(spec, env={**env, **spec.env})
        return replace(self, spec=spec, notes=(*self.notes, *notes))

    def as_dict(self) -> dict[str, Any]:
        """Return the plan for ``--dry-run``; of files only where they go, never what is in them."""
        return {
            "container": self.spec.name,
            "session": self.identity.session,
            "spec": _plain(self.spec),
            "volumes": [volume.name for volume in self.volumes],
            "user": self.user.reason,
            "gpu": self.gpu.note,
            "shm": f"{format_size(self.limits.shm_bytes)}: {self.limits.shm_reason}",
            "notes": [{"level": note.level, "text": note.text} for note in self.notes],
        }


def plan_container(wish: ContainerWish, facts: LaunchFacts) -> ContainerPlan:
    """Decide everything about a container that does not depend on its kind.

    Hardened: no capability, no new privileges, an init that reaps, nothing published.

    Raises:
        ConfigurationError: Something asked for cannot be right.
        NoGpuError: The GPUs asked for are not there.
    """
    caps = facts.capabilities
    user = plan_user(wish.user, facts.caller, caps, facts.workspace_owner)
    gpu = plan_gpus(
        wish.gpus,
        facts.inventory,
        caps,
        require=wish.require_gpu,
        taken=facts.taken_gpus,
    )
    limits = plan_limits(wish.limits, caps)
    volumes = (
        tuple(CacheVolume(cache=cache, owner=facts.caller.uid) for cache in CACHES)
        if wish.caches and user.mapped
        else ()
    )
    workspace = () if wish.workspace is None else (_bind(wish.workspace),)
    identity = Identity(
        session=facts.session,
        name=wish.name,
        kind=wish.kind,
        owner=facts.caller.uid,
        login=facts.caller.login,
        created=facts.now,
        gpus=gpu.label,
        workspace="" if wish.workspace is None else wish.workspace.source,
        request=wish.request,
    )
    spec = ContainerSpec(
        image=wish.image,
        name=identity.container_name,
        labels=identity.labels(),
        env={**dict(user.env), **_gpu_env(gpu, caps), **dict(wish.env)},
        user=user.user,
        group_add=user.group_add,
        user_mapping="keep-id" if user.keep_id else None,
        workdir=None if wish.workspace is None else WORKSPACE,
        hostname=re.sub(r"[^a-z0-9-]", "-", wish.name)[:63],
        mounts=(
            *workspace,
            *(VolumeMount(name=volume.name, target=volume.target) for volume in volumes),
            *wish.volumes,
        ),
        devices=gpu.devices,
        gpu=gpu.request,
        shm_bytes=limits.shm_bytes,
        ulimits=limits.ulimits,
        memory_bytes=limits.memory_bytes,
        cpus=limits.cpus,
        pids_limit=limits.pids,
        init=True,
        ports=wish.ports,
        cap_drop=("ALL",),
        cap_add=wish.cap_add,
        no_new_privileges=True,
        network=wish.network,
        log_max_bytes=_LOG_BYTES,
        stop_timeout_s=_STOP_TIMEOUT_S,
    )
    return ContainerPlan(
        identity=identity,
        spec=spec,
        user=user,
        gpu=gpu,
        limits=limits,
        image_id=facts.image.id,
        volumes=volumes,
        folders=_folders(user, volumes, facts.image),
        notes=_notes(facts.image, user, gpu, limits),
    )


def _bind(workspace: Workspace) -> BindMount:
    return BindMount(source=workspace.source, target=WORKSPACE, known=workspace.known)


def _gpu_env(gpu: GpuPlan, caps: EngineCapabilities) -> dict[str, str]:
    """Return what keeps a default runtime of NVIDIA's from adding GPUs on its own.

    Images of ours ask for all by ``NVIDIA_VISIBLE_DEVICES``, as NVIDIA's do; with CDI, or without a
    GPU, that must not be obeyed as well.
    """
    if gpu.request is None or caps.gpu == "cdi-request":
        return {"NVIDIA_VISIBLE_DEVICES": "void"}
    return {"NVIDIA_VISIBLE_DEVICES": ",".join(gpu.request.devices)}


def _folders(
    user: UserPlan, volumes: tuple[CacheVolume, ...], image: ImageInfo
) -> tuple[PutFile, ...]:
    """Return the folders that an image which is not ours lacks: a home, and its caches."""
    if not user.mapped or _OUR_IMAGE in image.labels:
        return ()
    paths = [HOME, *([f"{HOME}/.cache"] if volumes else []), *(v.target for v in volumes)]
    return tuple(
        PutFile(path=path, content=None, mode=_HOME_MODE, uid=user.uid or 0, gid=0)
        for path in paths
    )


def _notes(image: ImageInfo, user: UserPlan, gpu: GpuPlan, limits: LimitPlan) -> tuple[Note, ...]:
    said: list[Note] = []
    if gpu.note:
        # An image without CUDA runs on the CPU everywhere: nothing is missing then.
        level: Level = "detail" if image.labels.get(_VARIANT) == "cpu" else "note"
        said.append(Note(level="warning" if gpu.warn else level, text=gpu.note))
    said.append(Note(level="detail", text=f"user: {user.reason}"))
    if user.warning:
        said.append(Note(level="warning", text=user.warning))
    said.append(
        Note(
            level="detail",
            text=f"shared memory: {format_size(limits.shm_bytes)}, {limits.shm_reason}",
        )
    )
    said += [Note(level="detail", text=text) for text in limits.notes]
    said += [Note(level="warning", text=text) for text in limits.warnings]
    return tuple(said)


def _plain(value: Any) -> Any:
    """Return a value as JSON has it; the content of a file becomes its length."""
    if isinstance(value, PutFile):
        size = None if value.content is None else len(value.content)
        return {
            "path": value.path,
            "mode": f"{value.mode:04o}",
            "uid": value.uid,
            "gid": value.gid,
            "size_bytes": size,
        }
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: _plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return value
