"""Hold a ``gpuenv.lock`` against what is asked for: the rules of ``--locked``, all of them pure.

A lock fits when it gives everything that is asked for; what is not asked is the lock's own affair.
Whether anything differs at all is :func:`gpuenv.lockfile.compare_request`, which ``gpuenv lock
--check`` asks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuenv.errors import CheckFailedError, ConfigurationError
from gpuenv.index.links import normalize_name
from gpuenv.lockfile import FILE_NAME, compare_request, record_request
from gpuenv.matrix.rules import judge
from gpuenv.matrix.wish import plan_wish
from gpuenv.spec import Availability, HostGpus, ImageRequest, MatrixRequest
from gpuenv.versions import CudaVersion

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuenv.lockfile import Lock
    from gpuenv.matrix.model import Matrix, Row
    from gpuenv.versions import DottedVersion


class LockMismatchError(ConfigurationError):
    """A lock cannot give what is asked for besides."""

    slug = "lock-mismatch"


class LockOutdatedError(CheckFailedError):
    """A lock is not what would be asked for now."""

    slug = "lock-outdated"


def require_current(
    lock: Lock,
    request: MatrixRequest,
    image: ImageRequest,
    *,
    asked: frozenset[str],
    origin: str = FILE_NAME,
) -> None:
    """Refuse a lock that was made for anything else than what is asked for.

    Args:
        lock: The lock.
        request: What flags, variables and ``gpuenv.toml`` ask of the matrix.
        image: What they ask to be inside.
        asked: The keys of the request that somebody wrote; the CPU counts only if it is one.
        origin: How messages call the lock.

    Raises:
        LockOutdatedError: With every difference, as a diff from the lock to what is asked.
    """
    record = dict(record_request(request))
    if "arch" not in asked:
        record["arch"] = (lock.spec.environment.arch,)
    changes = compare_request(lock, tuple(record.items()), image)
    if changes:
        raise LockOutdatedError(
            f"{origin} is not what is asked for now",
            why="\n".join(map(str, changes)),
            fix="run gpuenv lock with the same flags, if any, and commit the file",
            data={"changes": [change.as_dict() for change in changes]},
        )


def require_fit(
    lock: Lock,
    request: MatrixRequest,
    image: ImageRequest,
    *,
    asked: frozenset[str],
    matrix: Matrix,
    origin: str = FILE_NAME,
) -> None:
    """Refuse a lock that cannot give what is asked for besides; what is not asked is the lock's.

    Args:
        lock: The lock.
        request: What flags, variables and ``gpuenv.toml`` ask of the matrix.
        image: What they ask to be inside.
        asked: The keys of the request that somebody wrote, or that the engine's host decides.
        matrix: Tells which GPUs and drivers the locked row serves.
        origin: How messages call the lock.

    Raises:
        LockMismatchError: With everything that contradicts.
    """
    problems = (*_row_problems(lock, request, asked, matrix), *_image_problems(lock, image))
    if problems:
        raise LockMismatchError(
            f"{origin} is not what is asked for",
            why="\n".join(problems),
            fix="lock again: gpuenv lock with the same flags; or leave the flags out",
            data={"problems": list(problems)},
        )


def _row_problems(
    lock: Lock, request: MatrixRequest, asked: frozenset[str], matrix: Matrix
) -> Iterator[str]:
    row = lock.spec.environment
    versions: tuple[tuple[str, DottedVersion | None, DottedVersion | None], ...] = (
        ("torch", request.torch, row.torch),
        ("cuDNN", request.cudnn, row.cudnn),
        ("NCCL", request.nccl, row.nccl),
        ("Python", request.python, row.python),
    )
    for what, wanted, has in versions:
        if not covers(wanted, has):
            yield f"{what} {wanted} is asked for, the lock has {has or 'none'}"
    if not cuda_fits(request, lock):
        yield f"CUDA {request.cuda} is asked for, the lock has {row.cuda or 'cpu'}"
    if "arch" in asked and request.arch != row.arch:
        yield f"an image for {request.arch} is asked for, the lock is for {row.arch}"
    if "flavor" in asked and request.flavor != row.flavor:
        yield f"the flavor {request.flavor} is asked for, the lock has {row.flavor}"
    if request.gpus or request.driver is not None:
        host = HostGpus(gpus=request.gpus, driver_release=request.driver)
        yield from unserved(lock, host, matrix)


def unserved(lock: Lock, host: HostGpus, matrix: Matrix) -> tuple[str, ...]:
    """Say which GPUs, and whether the driver, the locked row does not serve."""
    row = _row_of(lock, matrix)
    environment = lock.spec.environment
    if environment.cuda is None:
        return tuple(f"the lock has no CUDA for {gpu.asked}" for gpu in host.gpus)
    if row is None:
        return ("which GPUs the locked torch serves is not in this gpuenv's matrix",)
    wanted = MatrixRequest(
        cuda=environment.cuda,
        gpus=host.gpus,
        driver=host.driver_release,
        arch=environment.arch,
    )
    verdict = judge(
        matrix,
        plan_wish(wanted, HostGpus()),
        row,
        availability=Availability(),
        local_bases=frozenset(),
    )
    return tuple(
        f"the locked {row.label} {rejection.text}"
        for rejection in verdict.rejections
        if rejection.rule in {"gpu", "driver"}
    )


def _row_of(lock: Lock, matrix: Matrix) -> Row | None:
    wanted = lock.spec.environment
    return next(
        (
            row
            for row in matrix.rows
            if (row.torch, row.variant, row.arch)
            == (wanted.torch, wanted.torch_variant, wanted.arch)
        ),
        None,
    )


def _image_problems(lock: Lock, image: ImageRequest) -> Iterator[str]:
    locked = lock.spec.image
    for feature in image.features:
        if feature not in locked.features:
            yield f"{feature} is needed, the lock is without: gpuenv lock --with {feature}"
    for package in image.apt:
        if package not in locked.apt:
            yield f"the system package {package} is asked for, the lock is without"
    known = {*locked.requirements, *locked.pip}
    new = (text for text in (*image.requirements, *image.pip) if text not in known)
    yield from filter(None, (_requirement_problem(lock, text) for text in new))
    yield from _place_problems(lock, image)


def _place_problems(lock: Lock, image: ImageRequest) -> Iterator[str]:
    locked, default = lock.spec.image, ImageRequest()
    env = dict(locked.env)
    for name, value in image.env:
        if env.get(name) != value:
            has = f"{name}={env[name]}" if name in env else f"no {name}"
            yield f"{name}={value} is asked for, the lock has {has}"
    if image.workdir not in {locked.workdir, default.workdir}:
        yield f"the working folder {image.workdir} is asked for, the lock has {locked.workdir}"
    if image.base not in {locked.base, None}:
        yield f"the base image {image.base} is asked for, the lock stands on {lock.base.image}"


def _requirement_problem(lock: Lock, text: str) -> str:
    """Say why the locked packages do not answer a requirement, or nothing."""
    from packaging.requirements import Requirement

    requirement = Requirement(text.split(" --hash", 1)[0])
    name = normalize_name(requirement.name)
    version = next((it.version for it in lock.installed if it.name == name), None)
    if version is None:
        return f"{text} is asked for, the lock has no {name}"
    if not requirement.specifier.contains(version, prereleases=True):
        return f"{text} is asked for, the lock has {name} {version}"
    if requirement.extras or requirement.url is not None:
        return f"{text} is asked for, the lock was not made for it"
    return ""


def covers(asked: DottedVersion | None, has: DottedVersion | None) -> bool:
    """Say whether a version answers what was asked, which is a prefix."""
    if asked is None:
        return True
    return has is not None and asked.parts == has.parts[: len(asked.parts)]


def cuda_fits(request: MatrixRequest, lock: Lock) -> bool:
    """Say whether the locked row has the CUDA that is asked for; ``auto`` takes any."""
    row = lock.spec.environment
    if isinstance(request.cuda, CudaVersion):
        return covers(request.cuda, row.cuda) or covers(request.cuda, row.toolkit)
    return request.cuda == "auto" or row.cuda is None
