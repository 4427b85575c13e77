"""From what a user ordered to a proven image: find it, or settle, plan and build it.

``gpuenv build``, ``run``, ``jupyter`` and ``ssh`` all get their image here.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from gpuenv.build import (
    check_disk,
    find_by_id,
    find_by_plan,
    find_by_request,
    plan_build,
    request_digest,
    run_build,
)
from gpuenv.engine.base_image import (
    BaseImageUnavailableError,
    make_base_image,
    plan_base_image,
)
from gpuenv.errors import EngineUnavailableError
from gpuenv.host.apt_sources import load_apt_sources
from gpuenv.lockfile import LockUnavailableError
from gpuenv.render import recipe_digest
from gpuenv.sourcing import deliver, deliver_locked, settle_environment
from gpuenv.spec import HostGpus, ImageRequest, ImageSpec
from gpuenv.state import write_private_file
from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuenv.build import BuildPlan, BuiltImage
    from gpuenv.engine.events import BuildEvent
    from gpuenv.engine.protocol import ContainerEngine
    from gpuenv.index.delivery import SourceDelivery
    from gpuenv.index.simple import SimpleClient
    from gpuenv.lockfile import Lock, LockedBase
    from gpuenv.matrix.model import BaseImage, Matrix
    from gpuenv.sourcing import Settled
    from gpuenv.spec import EnvironmentSpec, MatrixRequest

_IMAGE_ID = re.compile(r"sha256:[0-9a-f]{64}")


class Teller(Protocol):
    """Where words for the user go while an image is made ready."""

    def note(self, text: str) -> None:
        """Tell something worth knowing."""
        ...

    def warn(self, text: str) -> None:
        """Tell something that must be seen."""
        ...

    def detail(self, text: str) -> None:
        """Tell something only the curious ask for."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageOrder:
    """An image as ordered: the request, what shall be inside, and how to go about it.

    Attributes:
        tags: Names for the image; by default one is made from the row.
        make_base: Make the base image from the package mirror where no registry answers.
        refresh: Ask the sources again even if an image of this very order is there.
        no_cache: Run every step of the build again.
        lock: Build exactly this; ``request`` and ``image`` were held against it.
    """

    request: MatrixRequest
    image: ImageRequest = field(default_factory=ImageRequest)
    tags: tuple[str, ...] = ()
    apt_mirror: str | None = None
    make_base: bool = False
    refresh: bool = False
    no_cache: bool = False
    lock: Lock | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    """What is needed to fill an order.

    Attributes:
        engine: ``None`` plans without one; then nothing local is known and nothing is built.
        root: The root of the file system whose apt lists name the mirror.
        known: Folder that notes which image an order came to, where the image itself cannot say so:
            it was built for another order with the same outcome, by an earlier gpuenv for example.
    """

    matrix: Matrix
    client: SimpleClient
    tell: Teller
    engine: ContainerEngine | None = None
    host: HostGpus = field(default_factory=HostGpus)
    root: Path = Path("/")
    known: Path | None = None


def order_digest(order: ImageOrder, shop: Workshop) -> str:
    """Return the digest that an image of the same order on the same host carries."""
    if order.lock is not None:
        # It names every file: which source it comes from makes no difference.
        return request_digest(recipe_digest(), order.lock.digest, order.apt_mirror)
    sources = shop.client.sources
    return request_digest(
        recipe_digest(),
        repr(shop.matrix.rows),
        repr(order.request),
        repr(order.image),
        repr(shop.host),
        order.apt_mirror,
        [str(source) for source in (*sources.indexes, *sources.links)],
        str(sources.torch_index.value),
        sources.offline,
    )


def find_or_build(
    order: ImageOrder, shop: Workshop, on_event: Callable[[BuildEvent], None]
) -> BuiltImage:
    """Return the proven image of an order, building it only when it is not there.

    Raises:
        UnsupportedCombinationError: No row fits or can be had.
        EngineUnavailableError: There is no engine, or no base image.
        BuildFailedError: A step failed, there is no room, or the proof failed.
    """
    engine = _engine_of(shop)
    again = order.refresh or order.no_cache
    digest = order_digest(order, shop)
    if not again and (image := find_by_request(engine, digest) or _known(digest, shop)):
        wanted = order.tags or image.tags[:1]
        for tag in wanted:
            if tag not in image.tags:
                engine.tag(image.image_id, tag)
        shop.tell.detail("an image of this order is there; --refresh asks the sources again")
        return replace(
            image, image_ref=wanted[0], tags=tuple(dict.fromkeys((*wanted, *image.tags)))
        )
    plan = plan_order(order, shop, get_base=True)
    if not order.no_cache and (image := find_by_plan(engine, plan)):
        _note(digest, image, shop)
        return image
    check_disk(plan, engine.free_bytes())
    shop.tell.note(f"building {plan.ref}; later calls use it again")
    return run_build(plan, engine, on_event, no_cache=order.no_cache)


def _known(digest: str, shop: Workshop) -> BuiltImage | None:
    """Return the image that an order came to last time, if this engine still has it."""
    if shop.known is None:
        return None
    try:
        image_id = (shop.known / digest.rpartition(":")[2]).read_text("ascii")
    except (OSError, ValueError):
        return None
    if not _IMAGE_ID.fullmatch(image_id):
        return None
    return find_by_id(_engine_of(shop), image_id)


def _note(digest: str, image: BuiltImage, shop: Workshop) -> None:
    """Note what an order came to; without the note the next call is slower and nothing else."""
    if shop.known is not None:
        with suppress(OSError):
            path = shop.known / digest.rpartition(":")[2]
            write_private_file(path, image.image_id.encode())


def plan_order(order: ImageOrder, shop: Workshop, *, get_base: bool = False) -> BuildPlan:
    """Settle the row, the base and the delivery of an order, and plan its build.

    Args:
        get_base: Pull or make the base image where it is not on the engine; without it, nothing is
            changed anywhere.
    """
    if order.lock is not None:
        return _plan_locked(order, order.lock, shop, get_base=get_base)
    settled = settle_order(order, shop, get_base=get_base)
    spec = ImageSpec(environment=settled.row, image=order.image)
    return plan_build(
        spec,
        settled.delivery.delivery,
        base_id=settled.base_id,
        tags=order.tags,
        request_digest=order_digest(order, shop),
        build_args=settled.delivery.build_args,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SettledOrder:
    """What an order comes to on this host: the row, its base, and what the host lends.

    Attributes:
        base_id: The engine's id of the base image; empty where it is not there.
    """

    row: EnvironmentSpec
    base_id: str
    delivery: SourceDelivery


def settle_order(order: ImageOrder, shop: Workshop, *, get_base: bool = False) -> SettledOrder:
    """Settle the row, the base and the delivery of an order, and tell what is worth telling.

    Args:
        get_base: See :func:`plan_order`.
    """
    settled = _settle(order, shop, _own_bases(shop))
    base = None if shop.engine is None else _base_here(settled.environment, order, shop)
    if base is None and get_base:
        settled, base = _get_base(settled, order, shop)
    row = settled.environment
    if base is not None and order.image.base is None:
        row = replace(row, base_image=base.ref)
    if settled.passed_over:
        wheels = ", ".join(settled.passed_over)
        shop.tell.note(f"passing over torch {wheels}: cannot be had here (-v says why)")
    for reason in settled.reasons:
        shop.tell.detail(reason)
    for note in row.notes:
        shop.tell.note(note)
    for warning in (*settled.warnings, *row.warnings):
        shop.tell.warn(warning)
    spec = ImageSpec(environment=row, image=order.image)
    delivery = deliver(spec, settled, shop.client, apt_mirror=order.apt_mirror)
    _tell_sources(delivery, shop)
    return SettledOrder(row=row, base_id="" if base is None else base.id, delivery=delivery)


def _tell_sources(delivery: SourceDelivery, shop: Workshop) -> None:
    for line in delivery.summary:
        shop.tell.detail(f"source: {line}")


def _plan_locked(order: ImageOrder, lock: Lock, shop: Workshop, *, get_base: bool) -> BuildPlan:
    """Plan what a lock says; nothing is chosen here."""
    spec = lock.locked_spec(order.image.name)
    for warning in spec.environment.warnings:
        shop.tell.warn(warning)
    base_id = "" if shop.engine is None else require_locked_base(lock.base, shop, get_base=get_base)
    delivery = deliver_locked(lock, shop.client, apt_mirror=order.apt_mirror)
    _tell_sources(delivery, shop)
    return plan_build(
        spec,
        delivery.delivery,
        base_id=base_id,
        tags=order.tags,
        request_digest=order_digest(order, shop),
        build_args=delivery.build_args,
        lock=lock,
    )


def require_locked_base(base: LockedBase, shop: Workshop, *, get_base: bool) -> str:
    """Return the engine's id of the very base image that a lock names; empty where it is not there.

    Raises:
        LockUnavailableError: It cannot be had, or the one of that name is another.
    """
    engine = _engine_of(shop)
    info = engine.image(base.ref)
    if info is None and get_base:
        pulled = _pull_base(base.ref, shop)
        if isinstance(pulled, _NoBase):
            raise LockUnavailableError(
                f"the base image of the lock, {base.ref}, cannot be had",
                why=pulled.why,
                fix="docker save and docker load bring it here from where the lock was made"
                if base.digest is None
                else "make its registry reachable, or choose another: gpuenv lock --upgrade-base",
            )
        return pulled.id
    if info is not None and base.id is not None and info.id != base.id:
        raise LockUnavailableError(
            f"{base.image} is another image here than the one that was locked",
            why=f"the lock names {base.id[:19]}…, the engine has {info.id[:19]}…; an image that is "
            "on no registry has no digest that two engines share",
            fix="docker save and docker load bring the locked one here; with this one instead: "
            "gpuenv lock --upgrade-base",
        )
    return "" if info is None else info.id


@dataclass(frozen=True, slots=True, kw_only=True)
class _Base:
    """A base image that the engine has."""

    ref: str
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _NoBase:
    """A base image that the engine neither has nor can pull, and why."""

    ref: str
    why: str


def _settle(order: ImageOrder, shop: Workshop, bases: frozenset[str]) -> Settled:
    return settle_environment(
        shop.matrix, order.request, shop.client, host=shop.host, local_bases=bases
    )


def _engine_of(shop: Workshop) -> ContainerEngine:
    if shop.engine is None:
        raise EngineUnavailableError(
            "there is no container engine to build with", fix="gpuenv engine status"
        )
    return shop.engine


def _own_bases(shop: Workshop) -> frozenset[str]:
    """Return the home-made bases of the engine: who made one wants it used."""
    if shop.engine is None:
        return frozenset()
    engine = shop.engine
    return frozenset(
        base.local for base in shop.matrix.base_images if engine.image(base.local) is not None
    )


def _makeable_bases(shop: Workshop) -> frozenset[str]:
    """Return the bases of the distributions that this host has a package mirror of."""
    uris = [source.uri.rstrip("/") for source in load_apt_sources(shop.root)]
    return frozenset(
        base.local
        for base in shop.matrix.base_images
        if any(uri.endswith(f"/{base.distribution}") for uri in uris)
    )


def _base_here(row: EnvironmentSpec, order: ImageOrder, shop: Workshop) -> _Base | None:
    """Find the base image on the engine, under its own or its home-made name."""
    engine = _engine_of(shop)
    ref = order.image.base or row.base_image
    known = None if order.image.base else _known_base(shop.matrix, ref)
    for name in (ref,) if known is None else (ref, known.local):
        info = engine.image(name)
        if info is not None:
            return _Base(ref=name, id=info.id)
    return None


def _get_base(settled: Settled, order: ImageOrder, shop: Workshop) -> tuple[Settled, _Base]:
    """Pull the base image of a row, or make one; the row may be another one afterwards.

    Raises:
        BaseImageUnavailableError: It can neither be pulled nor made.
    """
    pulled = _pull_base(order.image.base or settled.environment.base_image, shop)
    if isinstance(pulled, _Base):
        return settled, pulled
    if order.make_base:
        shop.tell.note(f"cannot pull {pulled.ref}: {pulled.why}")
        if order.image.base is None and order.request.python is None:
            # No registry: choose again among the Pythons whose base can be made here.
            settled = _settle(order, shop, _makeable_bases(shop))
    return settled, _make_base(settled.environment, order, shop, pulled)


def _pull_base(ref: str, shop: Workshop) -> _Base | _NoBase:
    engine = _engine_of(shop)
    if ref.startswith("localhost/"):
        return _NoBase(ref=ref, why="a name under localhost/ is on no registry")
    shop.tell.note(f"pulling the base image {ref}")
    try:
        for event in engine.pull(ref):
            shop.tell.detail(str(event))
    except EngineUnavailableError as error:
        return _NoBase(ref=ref, why=error.why or error.what)
    info = engine.image(ref)
    if info is None:
        return _NoBase(ref=ref, why="the engine pulled it and does not have it")
    return _Base(ref=ref, id=info.id)


def _make_base(row: EnvironmentSpec, order: ImageOrder, shop: Workshop, missing: _NoBase) -> _Base:
    """Make the base image of a row from the package mirror, or say why it cannot be had.

    Raises:
        BaseImageUnavailableError: It was not asked for, or cannot be made here.
    """
    known = None if order.image.base else _known_base(shop.matrix, row.base_image)
    if known is None or not order.make_base:
        raise BaseImageUnavailableError(
            f"the base image {missing.ref} is not here and cannot be pulled",
            why=missing.why,
            fix=(
                "load it into the engine, or name another with --base"
                if known is None
                else "add --make-base to make one from the package mirror (needs root)"
            ),
        )
    engine = _engine_of(shop)
    info = engine.image(known.local)
    if info is not None:
        return _Base(ref=known.local, id=info.id)
    plan = plan_base_image(
        ref=known.local,
        distribution=known.distribution,
        suite=known.suite,
        host_sources=load_apt_sources(shop.root),
        mirror=order.apt_mirror,
    )
    return _Base(ref=known.local, id=make_base_image(plan, engine, say=shop.tell.note))


def _known_base(matrix: Matrix, ref: str) -> BaseImage | None:
    return next((base for base in matrix.base_images if ref in (base.image, base.local)), None)
