"""Make a ``gpuenv.lock``: resolve an order to every file that its image will hold.

Resolving happens where the image is built: in a stage of the one recipe, on the very base image,
with its Python, its C library, uv and this host's sources. ``plan_lock`` is pure; ``run_lock``
carries it out and returns a :class:`~gpuenv.lockfile.Lock`.
"""

from __future__ import annotations

import re
import secrets
import zipfile
from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from gpuenv.engine.archive import Member, tar_stream
from gpuenv.engine.events import build_image
from gpuenv.engine.protocol import BuildRequest, ContainerSpec
from gpuenv.errors import (
    BuildFailedError,
    ConfigurationError,
    EngineUnavailableError,
    UnsupportedCombinationError,
)
from gpuenv.index.links import normalize_name
from gpuenv.index.local import metadata_wheel
from gpuenv.index.locked import digest_of
from gpuenv.lockcheck import covers, cuda_fits
from gpuenv.lockfile import (
    Lock,
    LockedBase,
    LockedPackage,
    check_package,
    record_request,
    sorted_packages,
)
from gpuenv.provision import require_locked_base, settle_order
from gpuenv.render import RESOLVED, render_resolver
from gpuenv.spec import ImageSpec
from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from gpuenv.engine.events import BuildEvent
    from gpuenv.engine.protocol import ContainerEngine, ImageInfo
    from gpuenv.lockfile import RequestRecord, Step
    from gpuenv.provision import ImageOrder, SettledOrder, Workshop
    from gpuenv.render import BuildContext
    from gpuenv.secret import Secret
    from gpuenv.spec import ImageRequest, MatrixRequest

_ALL, _INSTALLER = RESOLVED[:2]
_CARRIED = "file:///run/gpuenv/"
_SESSION = "org.gpuenv.session"


@dataclass(frozen=True, slots=True, kw_only=True)
class Upgrade:
    """What of an existing lock may become newer; the rest stays where it still fits.

    Attributes:
        everything: The row of the matrix, the base image and every package.
        base: The base image, under the same name.
        packages: These projects.
    """

    everything: bool = False
    base: bool = False
    packages: tuple[str, ...] = ()


_NO_UPGRADE = Upgrade()


@dataclass(frozen=True, slots=True, kw_only=True)
class LockPlan:
    """What is sent to the engine to be resolved.

    Attributes:
        spec: The row and what shall be inside, base images without digest.
        carried: Name of a file of this host that travels with the build, and where it lies.
    """

    request: RequestRecord
    spec: ImageSpec
    base: LockedBase
    context: BuildContext
    carried: tuple[tuple[str, Path], ...] = ()
    build_args: tuple[tuple[str, Secret], ...] = ()


# --- making -------------------------------------------------------------------------------------


def resolve_lock(
    order: ImageOrder,
    shop: Workshop,
    on_event: Callable[[BuildEvent], None],
    *,
    before: Lock | None = None,
    upgrade: Upgrade = _NO_UPGRADE,
) -> Lock:
    """Resolve an order to every file of its image; what an earlier lock has stays where it fits.

    Raises:
        ConfigurationError: A requirement cannot be locked, or a package to upgrade is not there.
        UnsupportedCombinationError: No row fits or can be had.
        LockUnavailableError: The base image of the earlier lock cannot be had.
        EngineUnavailableError: There is no engine, or no base image.
        BuildFailedError: The resolution failed.
    """
    if shop.engine is None:
        raise EngineUnavailableError(
            "there is no container engine to resolve in", fix="gpuenv engine status"
        )
    _require_files(order.image)
    _require_known(upgrade.packages, before)
    settled, kept = _settle(order, shop, before, upgrade)
    if kept is None:
        info = shop.engine.image(order.image.base or settled.row.base_image)
        base = locked_base(order.image.base or settled.row.base_image, info)
    else:
        require_locked_base(kept, shop, get_base=True)
        base = kept
    if base.digest is None:
        shop.tell.warn(
            f"the base image {base.image} is on no registry: the lock holds only where this very "
            "image is (docker save, docker load). Push one, and name it with --base"
        )
    plan = plan_lock(
        order, settled, base, before=before, upgrade=upgrade, nonce=secrets.token_hex(8)
    )
    lock = keep_row(run_lock(plan, shop.engine, on_event), before, upgrade)
    for package in lock.installed:
        if not package.is_wheel:
            shop.tell.warn(
                f"{package.name} {package.version} has no wheel for this Python and CPU: it is "
                "built from its locked source, with whatever its build asks for at that time"
            )
    return lock


def plan_lock(
    order: ImageOrder,
    settled: SettledOrder,
    base: LockedBase,
    *,
    before: Lock | None,
    upgrade: Upgrade,
    nonce: str,
) -> LockPlan:
    """Decide what is resolved, on which base and with what kept.

    Args:
        order: What was asked.
        settled: What it came to on this host.
        base: The base image to resolve on.
        before: The lock whose versions stay where they fit.
        upgrade: Those that need not.
        nonce: Makes the engine ask again; see :func:`gpuenv.render.render_resolver`.
    """
    spec = ImageSpec(environment=settled.row, image=order.image)
    lock = Lock(request=record_request(order.request), spec=spec, base=base, packages=())
    delivery = settled.delivery.delivery
    files = (*delivery.files, *delivery.late)
    return LockPlan(
        request=lock.request,
        spec=spec,
        base=base,
        context=render_resolver(
            lock.locked_spec(),
            delivery,
            kept=tuple(_kept(before, upgrade)),
            installer=() if before is None or upgrade.everything else before.of_step("installer"),
            nonce=nonce,
        ),
        carried=tuple(
            (PurePosixPath(file.path).name, file.source)
            for file in files
            if file.source is not None
        ),
        build_args=settled.delivery.build_args,
    )


def run_lock(
    plan: LockPlan, engine: ContainerEngine, on_event: Callable[[BuildEvent], None]
) -> Lock:
    """Resolve a plan in the engine; nothing of it is left there but the cache.

    Raises:
        BuildFailedError: The requirements contradict one another, or a source does not answer.
    """
    labels = {_SESSION: secrets.token_hex(8), "org.gpuenv.kind": "lock"}
    image_id = build_image(
        engine,
        BuildRequest(
            context=lambda: tar_stream(_members(plan.context)),
            labels=labels,
            build_args={name: value.reveal() for name, value in plan.build_args},
        ),
        on_event,
    )
    try:
        files = _read_files(engine, image_id, labels)
    finally:
        engine.untag(image_id, force=True)
    return read_resolution(
        plan, files, carried={name: digest_of(p) for name, p in _used(plan, files)}
    )


def _members(context: BuildContext) -> Iterator[Member]:
    yield Member(path="Dockerfile", content=context.dockerfile.encode())
    for file in context.files:
        content = file.data if file.data is not None else _resolved_from(file.source)
        yield Member(path=file.path, content=content, mode=file.mode)


def _resolved_from(path: Path | None) -> bytes | Path | None:
    """Return what the resolver needs of a file: of a wheel what it requires, all of any other.

    The installer is used there, and a wheel that cannot be read is left to it to name.
    """
    if path is None or path.suffix != ".whl" or path.name.startswith("uv-"):
        return path
    try:
        return metadata_wheel(path)
    except (OSError, KeyError, zipfile.BadZipFile):
        return path


def _read_files(
    engine: ContainerEngine, image_id: str, labels: Mapping[str, str]
) -> dict[str, str]:
    # The image has no program; a container of it is never started.
    created = engine.create(ContainerSpec(image=image_id, command=("none",), labels=labels))
    try:
        read = {name: engine.read_file(created.id, f"/{name}") for name in RESOLVED}
    finally:
        engine.remove(created.id, force=True)
    return {name: content.decode() for name, content in read.items() if content is not None}


def _used(plan: LockPlan, files: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    """Yield the files of this host that were chosen: the installer may know older ones by name."""
    text = unquote("".join(files.values()))
    for name, path in plan.carried:
        if f"/{name}" in text:
            yield name, path


def read_resolution(
    plan: LockPlan, files: Mapping[str, str], *, carried: Mapping[str, str] | None = None
) -> Lock:
    """Turn what the resolver wrote into a lock.

    Args:
        plan: What was resolved.
        files: By the names of :data:`gpuenv.render.RESOLVED`; ``pylock`` files as PEP 751 has them.
        carried: Digests of the files that came from this host.

    Raises:
        BuildFailedError: A package has no file with a SHA-256, or not the one that was asked for.
    """
    steps = _steps_of(files, plan.spec.image)
    packages = [
        _package(entry, steps.get(entry["name"], _last_step(plan.spec.image)), carried or {})
        for entry in _load_pylock(files[_ALL])
    ]
    packages += [_package(entry, "installer", {}) for entry in _load_pylock(files[_INSTALLER])]
    _check_asked_digests(plan.spec.image, packages)
    return Lock(
        request=plan.request,
        spec=replace(plan.spec, environment=replace(plan.spec.environment, notes=())),
        base=plan.base,
        packages=sorted_packages(iter(packages)),
    )


def _load_pylock(text: str) -> list[dict[str, Any]]:
    import sys

    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    packages: list[dict[str, Any]] = tomllib.loads(text)["packages"]
    return packages


def _steps_of(files: Mapping[str, str], image: ImageRequest) -> dict[str, Step]:
    """Tell which step brings a package, from the lists of the steps before the last one."""
    steps: dict[str, Step] = {}
    every: tuple[Step, ...] = ("torch", "jupyter")
    for step in every:
        if step == _last_step(image):
            break
        for line in files.get(f"{step}.txt", "").splitlines():
            name = re.split(r"[=@ ]", line, maxsplit=1)[0]
            steps.setdefault(normalize_name(name), step)
    return steps


def _last_step(image: ImageRequest) -> Step:
    if image.pip or image.requirements:
        return "packages"
    return "jupyter" if "jupyter" in image.features else "torch"


def _package(entry: Mapping[str, Any], step: Step, carried: Mapping[str, str]) -> LockedPackage:
    direct = entry.get("archive")
    chosen = direct or next(iter(entry.get("wheels", ())), None) or entry.get("sdist") or {}
    address = str(chosen.get("url") or chosen.get("path") or "")
    file = str(chosen.get("name") or unquote(urlsplit(address).path.rpartition("/")[2]))
    digest = chosen.get("hashes", {}).get("sha256", "")
    if address.startswith(_CARRIED):
        digest = carried.get(file, digest)
    try:
        return check_package(
            LockedPackage(
                name=entry["name"],
                version=str(entry.get("version", "")),
                step=step,
                file=file,
                sha256=digest,
                url=address if direct else None,
            )
        )
    except ValueError as exc:
        raise BuildFailedError(
            f"{entry['name']} cannot be locked",
            why=f"no file of it with a SHA-256 was found ({exc})",
            fix="put a wheel of it into a folder, and name the folder: --wheelhouse DIR",
        ) from exc


def _check_asked_digests(image: ImageRequest, packages: Iterable[LockedPackage]) -> None:
    found = {package.name: package for package in packages}
    for line in image.requirements:
        asked = re.findall(r"--hash=sha256:([0-9a-f]{64})", line)
        package = found.get(normalize_name(re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0]))
        if asked and package is not None and package.sha256 not in asked:
            raise BuildFailedError(
                f"{package.file} is not a file that the requirements allow",
                why=f"its SHA-256 is {package.sha256}, which is not behind {package.name}'s --hash",
                fix="lock from the source that has the file, or mend the requirements file",
            )


# --- what stays ---------------------------------------------------------------------------------


def _settle(
    order: ImageOrder, shop: Workshop, before: Lock | None, upgrade: Upgrade
) -> tuple[SettledOrder, LockedBase | None]:
    """Settle an order, on the row and the base of an earlier lock where they still answer it."""
    narrowed = None if before is None else narrow_request(order.request, before, upgrade)
    if before is None or narrowed is None:
        return settle_order(order, shop, get_base=True), None
    keeps_base = not (
        upgrade.everything or upgrade.base or order.image.base != before.spec.image.base
    )
    try:
        settled = settle_order(replace(order, request=narrowed), shop, get_base=not keeps_base)
    except UnsupportedCombinationError:
        return settle_order(order, shop, get_base=True), None
    if not keeps_base:
        return settled, None
    was = before.spec.environment
    row = replace(settled.row, base_image=was.base_image, python_source=was.python_source)
    return replace(settled, row=row), before.base


def narrow_request(request: MatrixRequest, before: Lock, upgrade: Upgrade) -> MatrixRequest | None:
    """Return a request that only the row of an earlier lock answers; ``None`` where it need not.

    What is asked now goes first: a lock of torch 2.9 does not narrow a request for 2.10.
    """
    row = before.spec.environment
    if upgrade.everything or "torch" in map(normalize_name, upgrade.packages):
        return None
    fits = (
        request.arch == row.arch
        and covers(request.torch, row.torch)
        and covers(request.python, row.python)
        and cuda_fits(request, before)
    )
    if not fits:
        return None
    return replace(request, torch=row.torch, cuda=row.cuda or "cpu", python=row.python)


_ROW = ("torch", "torch_variant", "python", "arch", "flavor", "overrides", "base_image")


def keep_row(lock: Lock, before: Lock | None, upgrade: Upgrade) -> Lock:
    """Return a lock with the row as an earlier one has it, where it is the same wheel for the same.

    Where this host has it from, and which GPUs stand in this host, make no other lock.
    """
    if before is None or upgrade.everything or before.request != lock.request:
        return lock
    was, row = before.spec.environment, lock.spec.environment
    torch = [
        [it for it in some.packages if it.name == "torch" and it.step == "torch"]
        for some in (before, lock)
    ]
    if torch[0] != torch[1] or any(getattr(was, key) != getattr(row, key) for key in _ROW):
        return lock
    return replace(lock, spec=replace(lock.spec, environment=was))


def _kept(before: Lock | None, upgrade: Upgrade) -> Iterator[str]:
    if before is None or upgrade.everything:
        return
    newer = {normalize_name(name) for name in upgrade.packages}
    for package in before.installed:
        if package.url is None and package.name not in newer:
            yield package.requirement


def locked_base(ref: str, info: ImageInfo | None) -> LockedBase:
    """Return how a base image is named in a lock: by a registry's digest, else by the engine's id.

    Args:
        ref: Its name, perhaps with a digest already.
        info: What the engine says of it.
    """
    name, _, digest = ref.partition("@")
    if digest:
        return LockedBase(image=name, digest=digest)
    repository = _repository(name)
    for known in info.digests if info is not None else ():
        where, _, digest = known.partition("@")
        if _repository(where) == repository:
            return LockedBase(image=name, digest=digest)
    return LockedBase(image=name, id=None if info is None else info.id)


def _repository(ref: str) -> str:
    """Return a reference without its tag and without what a short name stands for."""
    name = re.sub(r":[^/:]*$", "", ref)
    return name.removeprefix("docker.io/").removeprefix("library/")


def _require_files(image: ImageRequest) -> None:
    """Refuse requirements that no file with a digest answers.

    Raises:
        ConfigurationError: One names a git repository.
    """
    for text in (*image.pip, *image.requirements):
        if "git+" in text:
            raise ConfigurationError(
                f"{text!r} cannot be locked",
                why="a commit has no file whose digest a build could check",
                fix="make a wheel of it (pip wheel), and name its folder: --wheelhouse DIR",
            )


def _require_known(names: Iterable[str], before: Lock | None) -> None:
    """Refuse to upgrade what is not in the lock, most often a typing mistake.

    Raises:
        ConfigurationError: It is not there.
    """
    import difflib

    known = [] if before is None else [package.name for package in before.installed]
    for name in names:
        if normalize_name(name) not in known:
            near = difflib.get_close_matches(normalize_name(name), known, n=1)
            raise ConfigurationError(
                f"--upgrade-package {name}: the lock has no such package",
                why=f"it has {len(known)} others" if known else "there is no lock yet",
                fix=f"did you mean {near[0]}?" if near else "ask for it: --pip NAME",
            )
