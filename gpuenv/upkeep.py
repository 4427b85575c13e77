"""Keep the matrix true: survey the indexes for its rows, and hand the survey to its judges.

This is where the matrix and the indexes meet; neither knows of the other.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpuenv.index.survey import (
    list_packages,
    list_releases,
    read_companions,
    survey_wheels,
)
from gpuenv.matrix.load import build_matrix
from gpuenv.matrix.update import new_releases
from gpuenv.matrix.verify import (
    verify_rows,
    wanted_companions,
    wanted_packages,
    wanted_wheels,
)
from gpuenv.versions import PythonVersion, TorchVersion
from gpuenv.wheelfacts import WantedWheel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gpuenv.index.simple import SimpleClient
    from gpuenv.matrix.document import Document
    from gpuenv.matrix.model import Matrix, Row
    from gpuenv.matrix.verify import Verification
    from gpuenv.wheelfacts import ReleaseListing, Survey, WheelReading

_COMPANIONS = ("torchaudio", "torchvision")
_NEWEST = 6
"""So many of the newest releases of a companion are looked at for a new release of torch."""


def select_rows(matrix: Matrix, torch: TorchVersion | None) -> tuple[Row, ...]:
    """Return the rows of one release, to any depth, or all of them."""
    return tuple(row for row in matrix.rows if torch is None or torch.is_prefix_of(row.torch))


def verify_matrix(
    matrix: Matrix,
    rows: Sequence[Row],
    client: SimpleClient,
    *,
    deep: bool = False,
    on_read: Callable[[WheelReading], None] | None = None,
) -> Verification:
    """Read the wheels of rows and compare.

    Args:
        matrix: The rows' matrix.
        rows: Those to verify.
        client: Asks the indexes.
        deep: Also read the architecture lists and the companions' requirements.
        on_read: Told about each wheel, from another thread.

    Raises:
        PackageIndexError: The main index cannot be asked.
    """
    survey = survey_wheels(
        client,
        wanted_wheels(rows),
        packages=wanted_packages(matrix),
        companions=wanted_companions(rows) if deep else (),
        deep=deep,
        on_read=on_read,
    )
    return verify_rows(matrix, rows, survey)


def survey_for_update(
    document: Document,
    client: SimpleClient,
    *,
    torch: TorchVersion | None = None,
    deep: bool = False,
    on_read: Callable[[WheelReading], None] | None = None,
) -> Survey:
    """Read the wheels of the file's rows and of the releases it lacks.

    A new release is read deeply, and also in the variants that upstream's build table names, where
    an index has them.

    Args:
        document: The matrix file.
        client: Asks the indexes.
        torch: Look at one release only, to any depth.
        deep: Read the architecture lists of known rows too.
        on_read: Told about each wheel, from another thread.

    Raises:
        PackageIndexError: The main index cannot be asked.
    """
    rows = select_rows(build_matrix(document.data), torch)
    known = survey_wheels(client, wanted_wheels(rows), deep=deep, on_read=on_read)
    fresh = [
        version
        for version in new_releases(document, list_releases(client))
        if torch is None or torch.is_prefix_of(TorchVersion.parse(version))
    ]
    if not fresh:
        return known
    defaults = survey_wheels(
        client,
        [_wanted(it, None) for it in known.releases if it.torch in fresh],
        deep=True,
        on_read=on_read,
    )
    others = survey_wheels(
        client, _other_variants(known.releases, defaults.readings), deep=True, on_read=on_read
    )
    return replace(
        known,
        readings=(
            *known.readings,
            *defaults.readings,
            *(reading for reading in others.readings if reading.facts is not None),
        ),
        companions=read_companions(client, _newest_companions(client)),
        bytes_read=client.bytes_read,
    )


def _wanted(release: ReleaseListing, variant: str | None) -> WantedWheel:
    python = "3.11" if "3.11" in release.pythons else release.pythons[-1]
    return WantedWheel(
        torch=TorchVersion.parse(release.torch),
        variant=variant,
        arch=release.arch,
        python=PythonVersion.parse(python),
        source="pypi" if variant is None else "pytorch",
    )


def _other_variants(
    releases: Iterable[ReleaseListing], readings: Iterable[WheelReading]
) -> list[WantedWheel]:
    """Return the wheels beside PyPI's default that upstream's build tables let one expect."""
    listed = {(release.torch, release.arch): release for release in releases}
    wanted = []
    for reading in readings:
        if reading.facts is None or (release := listed.get((reading.torch, reading.arch))) is None:
            continue
        planned = {
            f"cu{cuda.replace('.', '')}"
            for arch, cuda, _ in reading.facts.arch_table
            if arch == reading.arch
        }
        others = sorted({*planned, "cpu"} - {reading.facts.variant})
        wanted += [_wanted(release, variant) for variant in others]
    return wanted


def _newest_companions(client: SimpleClient) -> list[tuple[str, str]]:
    from packaging.version import Version

    pairs = []
    for listing in list_packages(client, _COMPANIONS):
        final = [
            version
            for version, withdrawn in listing.versions
            if not withdrawn and not Version(version).is_prerelease and "+" not in version
        ]
        pairs += [(listing.project, version) for version in final[-_NEWEST:]]
    return pairs
