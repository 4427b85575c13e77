"""Settle which row of the matrix is built, by asking the sources whether they have its wheel.

The matrix says what exists; a mirror, a wheel directory or a machine without a network says what
can be had here. Resolving stays pure: what a source answered is put into the next ``resolve``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpuenv.errors import UnsupportedCombinationError
from gpuenv.index.delivery import TorchChannel
from gpuenv.index.locked import deliver_lock
from gpuenv.index.prepare import prepare_delivery
from gpuenv.index.simple import fetch_pages
from gpuenv.index.wheels import (
    availability_of,
    find_wheel,
    places_of,
    scan_wheelhouse,
    torch_constraints,
)
from gpuenv.matrix.resolve import nearest_environments, resolve
from gpuenv.render import UV_REQUIREMENT, later_requirements, torch_requirements
from gpuenv.spec import WheelKey
from gpuenv.values import dataclass

if TYPE_CHECKING:
    from gpuenv.index.delivery import SourceDelivery
    from gpuenv.index.simple import ProjectPage, SimpleClient
    from gpuenv.index.sources import PackageSources, Source
    from gpuenv.index.wheels import WheelAnswer
    from gpuenv.lockfile import Lock
    from gpuenv.matrix.model import Matrix
    from gpuenv.spec import EnvironmentSpec, HostGpus, ImageSpec, MatrixRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The row that will be built, and the source that said it has the wheel.

    Attributes:
        answer: ``None`` when the wheel lies in a directory of this host.
        passed_over: Which better wheels could not be had.
        reasons: Why, one line a reason.
        warnings: What had to be set aside to fulfil the request.
    """

    environment: EnvironmentSpec
    answer: WheelAnswer | None = None
    passed_over: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def settle_environment(
    matrix: Matrix,
    request: MatrixRequest,
    client: SimpleClient,
    *,
    host: HostGpus,
    local_bases: frozenset[str] = frozenset(),
) -> Settled:
    """Resolve a request to the best row whose wheel can really be had.

    A constraint of this host on torch (``torch<=2.14.1``) guides the choice like a wheel that is
    missing. Where nothing within it fulfils the request, the request wins and a warning says so:
    the constraint was written for this host, the request for the image.

    Args:
        client: Asks the sources; it holds this host's package settings.
        local_bases: See :func:`gpuenv.matrix.resolve.resolve`.

    Raises:
        UnsupportedCombinationError: No row fits, or none of those that fit can be had; ``why`` has
            what the sources answered.
    """
    pages: dict[tuple[Source, str], ProjectPage] = {}

    def settle(sources: PackageSources) -> Settled:
        return _settle(matrix, request, client, sources, pages, host=host, local_bases=local_bases)

    try:
        return settle(client.sources)
    except UnsupportedCombinationError:
        caps = torch_constraints(client.sources)
        if not caps:
            raise
    others = tuple(it for it in client.sources.constraints if it not in caps)
    settled = settle(replace(client.sources, constraints=others))
    warnings = (
        f"{cap.requirement} ({cap.origin}) is set aside: nothing within it fulfils the request"
        for cap in caps
    )
    return replace(settled, warnings=tuple(warnings))


def _settle(
    matrix: Matrix,
    request: MatrixRequest,
    client: SimpleClient,
    sources: PackageSources,
    pages: dict[tuple[Source, str], ProjectPage],
    *,
    host: HostGpus,
    local_bases: frozenset[str],
) -> Settled:
    local = scan_wheelhouse(sources)
    answers: list[WheelAnswer] = []

    def ask(row: EnvironmentSpec) -> WheelAnswer | None:
        """Return what the row's source says of its wheel, ``None`` for one that lies here."""
        if row.source == "wheelhouse":
            return None
        key = WheelKey(torch=row.torch, variant=row.torch_variant, python=row.python, arch=row.arch)
        places = [(place, "torch") for place in places_of(key, row.source, sources)]
        pages.update(fetch_pages(client, [place for place in places if place not in pages]))
        return find_wheel(key, row.source, pages=pages, sources=sources, local=local)

    while True:
        availability = availability_of(answers, local=local, sources=sources)
        try:
            row = resolve(matrix, request, availability, host=host, local_bases=local_bases)
        except UnsupportedCombinationError:
            # What is suggested instead shall be there as well.
            others = nearest_environments(
                matrix, request, availability, host=host, local_bases=local_bases
            )
            missing = [it for it in map(ask, others) if it is not None and it.state != "available"]
            # A row without a fitting Python is judged without its source: it stays.
            if all(it in answers for it in missing):
                raise
            answers += missing
            continue
        answer = ask(row)
        if answer is None or answer.state == "available":
            return Settled(
                environment=row,
                answer=answer,
                passed_over=tuple(dict.fromkeys(_wheel(it) for it in answers)),
                reasons=_reasons(answers),
            )
        # Each answer takes away a row or a whole source, so this comes to an end.
        answers.append(answer)


def _wheel(answer: WheelAnswer) -> str:
    return f"{answer.key.torch}+{answer.key.variant}"


def _reasons(answers: list[WheelAnswer]) -> tuple[str, ...]:
    """Return one line for each reason why wheels could not be had."""
    by_reason: dict[str, dict[str, None]] = {}
    for answer in answers:
        by_reason.setdefault(answer.reason, {})[_wheel(answer)] = None
    return tuple(f"{', '.join(wheels)}: {reason}" for reason, wheels in by_reason.items())


def deliver(
    spec: ImageSpec, settled: Settled, client: SimpleClient, *, apt_mirror: str | None = None
) -> SourceDelivery:
    """Plan how this host's package sources reach the inside of the build.

    Of local folders and indexes only the archives that the image needs travel, and of those only
    what no remote index offers as well: a build downloads faster than it is sent a context.
    """
    channel = None
    answer = settled.answer
    if answer is not None and answer.source == "pytorch" and answer.place is not None:
        channel = TorchChannel(source=answer.place, flat=answer.flat)
    planned = prepare_delivery(
        (*_torch(spec), UV_REQUIREMENT),
        client,
        # A digest behind a requirement is for the installer to check.
        later=tuple(line.split(" --hash", 1)[0] for line in later_requirements(spec)),
        python=spec.environment.python,
        arch=spec.environment.arch,
        torch=channel,
    )
    return replace(planned, delivery=replace(planned.delivery, apt_mirror=apt_mirror))


def deliver_locked(
    lock: Lock, client: SimpleClient, *, apt_mirror: str | None = None
) -> SourceDelivery:
    """Plan how the files of a lock reach the inside of the build.

    Raises:
        LockUnavailableError: One is not to be had here, or is another one.
    """
    planned = deliver_lock(lock, client)
    return replace(planned, delivery=replace(planned.delivery, apt_mirror=apt_mirror))


def _torch(spec: ImageSpec) -> tuple[str, ...]:
    """Return the requirements of the row with the variant said, which local wheels need."""
    row = spec.environment
    exact = f"torch=={row.torch}"
    return tuple(
        f"{exact}+{row.torch_variant}" if line == exact and row.source == "wheelhouse" else line
        for line in torch_requirements(spec)
    )
