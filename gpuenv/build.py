"""Build an image from its spec, prove it, and only then give it its name.

``plan_build`` is pure: a spec, what the host lends and the base image's id become a context, a name
and a digest. ``run_build`` carries the plan out. An image that carries our digest *and* a name was
proven once, so the same plan again finds it instead of building.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from dataclasses import field
from typing import TYPE_CHECKING, Any

from gpuenv.containers.lifecycle import removing_on_failure
from gpuenv.engine.archive import Member, tar_stream
from gpuenv.engine.events import Pushed, StepCached, StepDone, build_image
from gpuenv.engine.protocol import BuildRequest, ContainerSpec, PutFile
from gpuenv.errors import BuildFailedError
from gpuenv.process import ended_by_signals
from gpuenv.render import render_context
from gpuenv.resources import package_dir
from gpuenv.spec import ImageRequest
from gpuenv.values import dataclass
from gpuenv.verify import compare, compare_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from gpuenv.engine.events import BuildEvent, TransferEvent
    from gpuenv.engine.protocol import ContainerEngine, ImageInfo
    from gpuenv.lockfile import Lock
    from gpuenv.render import BuildContext
    from gpuenv.secret import Secret
    from gpuenv.spec import Delivery, EnvironmentSpec, ImageSpec
    from gpuenv.verify import Difference

REPOSITORY = "localhost/gpuenv"
"""Image names begin so: a bare ``gpuenv/…`` would be looked up on a public registry."""

BUILD_DIGEST = "org.gpuenv.build-digest"
REQUEST_DIGEST = "org.gpuenv.request-digest"
SESSION = "org.gpuenv.session"

_VERIFY_TIMEOUT_S = 600.0
_GB = 1_000_000_000


class DiskSpaceError(BuildFailedError):
    """The engine's store has too little room for the image."""

    slug = "disk-space"


class VerificationError(BuildFailedError):
    """What is in the built image is not what its row of the matrix promised."""

    slug = "verification-failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildPlan:
    """What is sent to the engine, and what the result will be called.

    Attributes:
        tags: The names the proven image gets, the first one being *the* name.
        digest: Of everything that decides the image; two equal plans give one image.
        needed_bytes: Room the build takes at its peak in the engine's store.
        lock: What the image must hold to the last package; ``None`` where only the row counts.
    """

    spec: ImageSpec
    context: BuildContext
    tags: tuple[str, ...]
    digest: str
    labels: tuple[tuple[str, str], ...]
    build_args: tuple[tuple[str, Secret], ...] = field(default=(), repr=False)
    needed_bytes: int = 0
    lock: Lock | None = None

    @property
    def ref(self) -> str:
        """The name of the image."""
        return self.tags[0]

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as ``gpuenv build --dry-run --json`` prints it."""
        return {
            "image_ref": self.ref,
            "tags": list(self.tags),
            "digest": self.digest,
            "spec": self.spec.as_dict(),
            "needed_bytes": self.needed_bytes,
            "dockerfile": self.context.dockerfile,
            "files": [file.path for file in self.context.files],
            "lock": None if self.lock is None else self.lock.digest,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """How long one step of a build took."""

    name: str
    seconds: float
    cached: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltImage:
    """A proven image.

    Attributes:
        found: It was there already; nothing was built.
        facts: What the image said of itself when it was verified; empty for a found one.
    """

    image_ref: str
    image_id: str
    tags: tuple[str, ...]
    size_bytes: int
    spec: dict[str, Any]
    found: bool = False
    steps: tuple[StepTime, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the image as ``gpuenv build --json`` prints it."""
        return {
            "image_ref": self.image_ref,
            "image_id": self.image_id,
            "tags": list(self.tags),
            "size_bytes": self.size_bytes,
            "found": self.found,
            "spec": self.spec,
            "steps": [
                {"name": step.name, "seconds": round(step.seconds, 3), "cached": step.cached}
                for step in self.steps
            ],
            "verified": dict(self.facts),
        }


def default_ref(spec: ImageSpec, lock: Lock | None = None) -> str:
    """Return the name an image gets by default: ``localhost/gpuenv/torch:2.8.0-cu128-py3.12``.

    What is asked for beside the row and its features, and a lock, make a name of its own, by a
    digest at its end: images that hold different things do not take the name from one another.
    """
    row, image = spec.environment, spec.image
    tag = f"{row.torch}-{row.torch_variant}-py{row.python.truncate(2)}"
    parts = [tag, *(["devel"] if row.flavor == "devel" else []), *image.features]
    plain = ImageRequest(name=image.name, features=image.features)
    if lock is not None or row.overrides or image != plain:
        content = spec.as_dict()["image"]
        told = {key: value for key, value in content.items() if key not in {"name", "features"}}
        locked = "" if lock is None else lock.digest
        parts.append(request_digest(told, row.overrides, locked).removeprefix("sha256:")[:8])
    return f"{REPOSITORY}/{image.name}:{'-'.join(parts)}"


def plan_build(
    spec: ImageSpec,
    delivery: Delivery,
    *,
    base_id: str,
    tags: tuple[str, ...] = (),
    request_digest: str = "",
    build_args: tuple[tuple[str, Secret], ...] = (),
    lock: Lock | None = None,
) -> BuildPlan:
    """Decide everything about a build.

    Args:
        spec: With a lock, its :meth:`~gpuenv.lockfile.Lock.locked_spec`.
        delivery: What this host lends to the build and no layer keeps.
        base_id: The engine's id of the base image, so that a new base gives a new image.
        tags: Names beside or instead of the default one; with any, the first is the name.
        request_digest: See :func:`find_by_request`.
        build_args: Proxy variables; the engine keeps them out of the history.
        lock: Build exactly this.
    """
    context = render_context(spec, delivery, lock=lock)
    digest = _digest(
        context.dockerfile,
        base_id,
        *(f"{file.path} {_content_digest(file.data)}" for file in context.files if not file.secret),
    )
    labels = [*context.labels, (BUILD_DIGEST, digest)]
    if request_digest:
        labels.append((REQUEST_DIGEST, request_digest))
    return BuildPlan(
        spec=spec,
        context=context,
        tags=tags or (default_ref(spec, lock),),
        digest=digest,
        labels=tuple(sorted(labels)),
        build_args=build_args,
        needed_bytes=needed_bytes(spec.environment),
        lock=lock,
    )


def _content_digest(data: bytes | None) -> str:
    # A file on disk is a wheel, and its name says what it is.
    return "" if data is None else hashlib.sha256(data).hexdigest()


def _digest(*parts: str) -> str:
    return "sha256:" + hashlib.sha256("\0".join(parts).encode()).hexdigest()


def needed_bytes(row: EnvironmentSpec) -> int:
    """Return the room a cold build takes at its peak, in bytes.

    Source: cold builds of torch 2.13.0+cpu, 2.9.1+cu128 and 2.14.1+cu130, what the engine's store
    grew by: layers, and the installer's cache with the same wheels unpacked once more.
    """
    if row.cuda is None:
        return 3 * _GB
    return (18 if row.cuda.major < 13 else 15) * _GB  # noqa: PLR2004 - CUDA 13 wheels are smaller


def request_digest(*parts: object) -> str:
    """Return the digest of a request: everything the user and the host said, before resolving."""
    return _digest(json.dumps(parts, sort_keys=True, default=str))


def find_by_request(engine: ContainerEngine, digest: str) -> BuiltImage | None:
    """Return the newest proven image that was built for the same request."""
    return _found(engine.images(labels={REQUEST_DIGEST: digest}))


def find_by_id(engine: ContainerEngine, image_id: str) -> BuiltImage | None:
    """Return a proven image by its id, if it is still there under a name."""
    image = engine.image(image_id)
    return None if image is None or BUILD_DIGEST not in image.labels else _found((image,))


def find_by_plan(engine: ContainerEngine, plan: BuildPlan) -> BuiltImage | None:
    """Return the proven image of this plan, under all its names, if there is one."""
    found = _found(engine.images(labels={BUILD_DIGEST: plan.digest}))
    if found is None:
        return None
    for tag in plan.tags:
        if tag not in found.tags:
            engine.tag(found.image_id, tag)
    return BuiltImage(
        image_ref=plan.ref,
        image_id=found.image_id,
        tags=tuple(dict.fromkeys((*plan.tags, *found.tags))),
        size_bytes=found.size_bytes,
        spec=plan.spec.as_dict(),
        found=True,
    )


def _found(images: Iterable[ImageInfo]) -> BuiltImage | None:
    # An image without a name was not proven: it is what an interrupted build left in the cache.
    named = [image for image in images if image.tags]
    if not named:
        return None
    newest = max(named, key=lambda image: (image.created_at is not None, image.created_at))
    return BuiltImage(
        image_ref=newest.tags[0],
        image_id=newest.id,
        tags=newest.tags,
        size_bytes=newest.size_bytes,
        spec=json.loads(newest.labels.get("org.gpuenv.spec", "{}")),
        found=True,
    )


def check_disk(plan: BuildPlan, free_bytes: int | None) -> None:
    """Refuse a build that the engine's store has no room for.

    Raises:
        DiskSpaceError: With both numbers.
    """
    if free_bytes is not None and free_bytes < plan.needed_bytes:
        raise DiskSpaceError(
            "the engine's store has too little room for this image",
            why=(
                f"about {plan.needed_bytes / _GB:.0f} GB are needed at the peak, "
                f"{free_bytes / _GB:.1f} GB are free"
            ),
            fix="docker system df shows what fills it; docker builder prune empties old caches",
        )


def run_build(
    plan: BuildPlan,
    engine: ContainerEngine,
    on_event: Callable[[BuildEvent], None],
    *,
    no_cache: bool = False,
) -> BuiltImage:
    """Build, prove and name the image of a plan.

    The image gets its names only after it was proven. However this ends, the engine holds nothing
    of it beside its cache unless it ended well.

    Raises:
        BuildFailedError: A step failed.
        VerificationError: The image is not what the row promised; it is removed.
    """
    steps: list[StepTime] = []

    def watch(event: BuildEvent) -> None:
        if isinstance(event, StepDone) and not event.internal:
            steps.append(StepTime(name=event.name, seconds=event.seconds, cached=False))
        elif isinstance(event, StepCached) and not event.internal:
            steps.append(StepTime(name=event.name, seconds=0.0, cached=True))
        on_event(event)

    image_id = build_image(
        engine,
        BuildRequest(
            context=lambda: tar_stream(_members(plan)),
            labels=dict(plan.labels),
            build_args={name: value.reveal() for name, value in plan.build_args},
            no_cache=no_cache,
        ),
        watch,
    )
    with ended_by_signals():  # a closed terminal must not leave an image that was not proven
        try:
            facts = verify_image(engine, image_id, plan.spec.environment, lock=plan.lock)
        except BaseException:
            if not _named(engine, image_id):
                engine.untag(image_id, force=True)
            raise
    for tag in plan.tags:
        engine.tag(image_id, tag)
    info = engine.image(image_id)
    return BuiltImage(
        image_ref=plan.ref,
        image_id=image_id,
        tags=plan.tags,
        size_bytes=info.size_bytes if info is not None else 0,
        spec=plan.spec.as_dict(),
        steps=tuple(steps),
        facts=facts,
    )


def push_image(
    engine: ContainerEngine, refs: tuple[str, ...], on_event: Callable[[TransferEvent], None]
) -> dict[str, str]:
    """Push an image under the names given; return the digest each one has at its registry.

    Names that the image has besides are left alone: another build or another user gave them.

    Raises:
        EngineUnavailableError: A registry does not answer or refuses.
    """
    digests: dict[str, str] = {}
    for ref in refs:
        for event in engine.push(ref):
            on_event(event)
            if isinstance(event, Pushed):
                digests[ref] = event.digest
    return digests


def _named(engine: ContainerEngine, image_id: str) -> bool:
    info = engine.image(image_id)
    return info is None or bool(info.tags)


def _members(plan: BuildPlan) -> Iterator[Member]:
    yield Member(path="Dockerfile", content=plan.context.dockerfile.encode())
    for file in plan.context.files:
        content = file.data if file.data is not None else file.source
        yield Member(path=file.path, content=content, mode=file.mode)


def verify_image(
    engine: ContainerEngine, image: str, row: EnvironmentSpec, *, lock: Lock | None = None
) -> Mapping[str, Any]:
    """Ask an image what is in it and hold that against its row, and against its lock.

    Returns:
        What ``probes/image_verify.py`` found.

    Raises:
        VerificationError: It differs; ``data["differences"]`` lists how.
    """
    facts = _ask_image(engine, image)
    differences = compare(row, facts)
    if lock is not None:
        differences += compare_lock(lock, facts)
    if differences:
        raise VerificationError(
            "the image is not what its row of the matrix promised"
            if lock is None
            else "the image is not what its lock says",
            why="\n".join(str(difference) for difference in differences),
            fix=_advice(differences),
            data={
                "differences": [
                    {"what": d.what, "promised": d.promised, "found": d.found} for d in differences
                ],
                "facts": facts,
            },
        )
    return facts


def _advice(differences: tuple[Difference, ...]) -> str:
    if any(d.what in {"torch", "torch variant", "triton"} for d in differences):
        return "look for a requirement that pins another torch; gpuenv matrix verify checks the row"
    return "gpuenv matrix verify checks the row against the wheels' own metadata"


def _ask_image(engine: ContainerEngine, image: str) -> dict[str, Any]:
    probe = (package_dir() / "probes" / "image_verify.py").read_bytes()
    path = "/tmp/gpuenv_verify.py"  # noqa: S108 - inside a container of our own
    session = secrets.token_hex(8)
    with removing_on_failure(engine, session):
        created = engine.create(
            ContainerSpec(
                name=f"gpuenv-verify-{session}",
                image=image,
                entrypoint=(),
                command=("python", path),
                network="none",
                cap_drop=("ALL",),
                no_new_privileges=True,
                labels={SESSION: session, "org.gpuenv.kind": "verify"},
                files=(PutFile(path=path, content=probe),),
            )
        )
        engine.start(created.id)
        try:
            status = engine.wait(created.id, timeout_s=_VERIFY_TIMEOUT_S)
        except TimeoutError as exc:
            raise VerificationError(
                "the image did not say what is in it",
                why=f"importing torch took longer than {_VERIFY_TIMEOUT_S:.0f} s",
                fix="run the build again on a machine that is less busy",
            ) from exc
        chunks = list(engine.logs(created.id))
        engine.remove(created.id, force=True)
    printed = b"".join(chunk.data for chunk in chunks if chunk.stream == "stdout")
    try:
        answer = json.loads(printed.decode("utf-8", "replace").strip().splitlines()[-1])
    except (ValueError, IndexError) as exc:
        said = b"".join(chunk.data for chunk in chunks).decode("utf-8", "replace").strip()
        raise VerificationError(
            "the image did not say what is in it",
            why=f"its Python ended with exit code {status.exit_code}: {said[-2000:]}",
            fix="gpuenv render shows the recipe; run python -c 'import torch' in the image",
        ) from exc
    return dict(answer)
