"""Compare rows of the matrix with what their wheels say; pure, the reading is done elsewhere.

A row is ``confirmed`` when its wheel was read and agrees, ``drift`` when anything disagrees, and
``unproven`` when no wheel of it could be read: PyPI has one variant of each release, so most rows
can only be proven where the PyTorch index answers.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from gpuenv.values import dataclass
from gpuenv.versions import CudaVersion, PythonVersion, TorchVersion
from gpuenv.wheelfacts import WantedWheel

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from gpuenv.matrix.model import Matrix, Row
    from gpuenv.wheelfacts import (
        CompanionReading,
        PackageListing,
        ReleaseListing,
        Survey,
        WheelFacts,
        WheelReading,
    )

RowStatus: TypeAlias = Literal["confirmed", "drift", "unproven"]
_READ_WITH = PythonVersion((3, 11))


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One field in which a row and what was read disagree."""

    field: str
    matrix: str | None
    found: str | None

    def __str__(self) -> str:
        ours, theirs = self.matrix or "nothing", self.found or "nothing"
        return f"{self.field}: the matrix has {ours}, found {theirs}"

    def as_dict(self) -> dict[str, Any]:
        """Return it for ``--json``."""
        return {"field": self.field, "matrix": self.matrix, "found": self.found}


@dataclass(frozen=True, slots=True, kw_only=True)
class RowVerdict:
    """How one row fares.

    Attributes:
        unread: Fields that this wheel does not tell.
        reason: Why nothing was proven.
    """

    row: Row
    status: RowStatus
    differences: tuple[Difference, ...] = ()
    unread: tuple[str, ...] = ()
    reason: str = ""
    wheel: str | None = None
    place: str = ""
    bytes_read: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return it for ``--json``."""
        return {
            "torch": str(self.row.torch),
            "torch_variant": self.row.variant,
            "arch": self.row.arch,
            "status": self.status,
            "differences": [difference.as_dict() for difference in self.differences],
            "unread": list(self.unread),
            "reason": self.reason,
            "wheel": self.wheel,
            "place": self.place,
            "bytes_read": self.bytes_read,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """How the whole matrix fares against one survey.

    Attributes:
        unlisted: Releases the index has and the matrix lacks, oldest first.
    """

    index: str
    verdicts: tuple[RowVerdict, ...]
    unlisted: tuple[str, ...] = ()
    bytes_read: int = 0

    def count(self, status: RowStatus) -> int:
        """Return how many rows have that status."""
        return sum(verdict.status == status for verdict in self.verdicts)

    def reasons(self) -> tuple[tuple[str, int], ...]:
        """Return why rows are unproven, and how many for each reason, the commonest first."""
        return tuple(Counter(v.reason for v in self.verdicts if v.reason).most_common())

    @property
    def has_drift(self) -> bool:
        """Say whether any row disagrees with its wheel."""
        return self.count("drift") > 0

    def as_dict(self) -> dict[str, Any]:
        """Return it for ``--json``."""
        return {
            "index": self.index,
            "confirmed": self.count("confirmed"),
            "drift": self.count("drift"),
            "unproven": self.count("unproven"),
            "unlisted_releases": list(self.unlisted),
            "bytes_read": self.bytes_read,
            "rows": [verdict.as_dict() for verdict in self.verdicts],
        }


def wanted_wheels(rows: Iterable[Row]) -> tuple[WantedWheel, ...]:
    """Return the wheel that each row has to be read from."""
    return tuple(
        WantedWheel(
            torch=row.torch,
            variant=row.variant,
            arch=row.arch,
            python=_READ_WITH if _READ_WITH in row.pythons else row.python_max,
            source="pypi" if row.pypi_default else "pytorch",
        )
        for row in rows
    )


def wanted_packages(matrix: Matrix) -> tuple[str, ...]:
    """Return the projects whose versions the rows pin."""
    wheels = (
        name
        for major in matrix.cuda_majors.values()
        for name in (major.cudnn_package, major.nccl_package)
    )
    return (*sorted(wheels), "torchaudio", "torchvision", "triton")


def wanted_companions(rows: Iterable[Row]) -> tuple[tuple[str, str], ...]:
    """Return the releases of torchvision and torchaudio that rows name."""
    named = {
        (project, version)
        for row in rows
        for project, version in (("torchvision", row.torchvision), ("torchaudio", row.torchaudio))
        if version is not None
    }
    return tuple(sorted(named))


def verify_rows(matrix: Matrix, rows: Iterable[Row], survey: Survey) -> Verification:
    """Compare rows with a survey of the indexes."""
    readings = {(it.torch, it.variant, it.arch): it for it in survey.readings}
    releases = {(it.torch, it.arch): it for it in survey.releases}
    packages = {it.project: it for it in survey.packages}
    companions = {(it.project, it.version): it for it in survey.companions}
    verdicts = tuple(
        _verify_row(
            matrix,
            row,
            reading=readings.get((str(row.torch), row.variant, row.arch)),
            release=releases.get((str(row.torch), row.arch)) if row.pypi_default else None,
            packages=packages,
            companions=companions,
        )
        for row in rows
    )
    return Verification(
        index=survey.index,
        verdicts=verdicts,
        unlisted=unlisted_releases(matrix, survey),
        bytes_read=survey.bytes_read,
    )


def unlisted_releases(matrix: Matrix, survey: Survey) -> tuple[str, ...]:
    """Return the releases on the index that the matrix lacks, from its oldest one on."""
    known = set(matrix.torch_versions)
    oldest = min(known, default=TorchVersion((0,)))
    found = {TorchVersion.parse(release.torch) for release in survey.releases}
    return tuple(str(version) for version in sorted(found - known) if version > oldest)


def _verify_row(
    matrix: Matrix,
    row: Row,
    *,
    reading: WheelReading | None,
    release: ReleaseListing | None,
    packages: Mapping[str, PackageListing],
    companions: Mapping[tuple[str, str], CompanionReading],
) -> RowVerdict:
    if reading is None or reading.facts is None:
        return RowVerdict(
            row=row,
            status="unproven",
            reason=reading.reason if reading is not None else "it was not asked for",
        )
    facts = reading.facts
    differences = [
        *compare_facts(row, facts),
        *(_compare_listing(row, release) if release is not None else ()),
        *_compare_pins(matrix, row, packages),
        *_compare_companions(row, packages, companions),
    ]
    return RowVerdict(
        row=row,
        status="drift" if differences else "confirmed",
        differences=tuple(differences),
        unread=tuple(_unread_fields(row, facts)),
        wheel=facts.filename,
        place=reading.place,
        bytes_read=facts.bytes_read,
    )


def compare_facts(row: Row, facts: WheelFacts) -> Iterator[Difference]:
    """Yield where a row and its wheel disagree."""
    if facts.variant != row.variant:
        # The rest would compare two different wheels.
        yield Difference(field="variant", matrix=row.variant, found=facts.variant)
        return
    yield from _compare_toolkit(row, facts)
    if not row.bundled:
        yield from _compare_text("cudnn", row.cudnn, facts.cudnn)
        yield from _compare_text("nccl", row.nccl, facts.nccl)
    yield from _compare_text("triton", row.triton, facts.triton)
    if facts.arch_list is not None:
        ours = None if row.arch_list is None else " ".join(row.arch_list)
        yield from _compare_text("arch_list", ours, " ".join(facts.arch_list))


def _compare_text(field: str, ours: object, theirs: str | None) -> Iterator[Difference]:
    text = None if ours is None else str(ours)
    if text != theirs:
        yield Difference(field=field, matrix=text, found=theirs)


def _compare_toolkit(row: Row, facts: WheelFacts) -> Iterator[Difference]:
    """Yield where CUDA versions disagree.

    Wheels before 2.11 pin the runtime and not the toolkit, so only its first two numbers are held
    against the row.
    """
    ours = None if row.cuda is None else str(row.cuda)
    yield from _compare_text("cuda", ours, facts.cuda)
    if facts.toolkit is not None:
        yield from _compare_text("toolkit", row.toolkit, facts.toolkit)
        return
    runtime = None if facts.cudart is None else CudaVersion.parse(facts.cudart)
    if row.cuda is not None and runtime is not None and not row.cuda.is_prefix_of(runtime):
        yield Difference(field="cudart", matrix=f"{row.cuda}.*", found=facts.cudart)


def _compare_listing(row: Row, release: ReleaseListing) -> Iterator[Difference]:
    if not release.pythons:
        return
    ours, theirs = " ".join(map(str, row.pythons)), " ".join(release.pythons)
    yield from _compare_text("python", ours, theirs)
    # A day counts once a release: that of x86_64, whose wheels come first or with the others.
    if row.arch == "x86_64" and release.released and release.released != row.released:
        yield Difference(field="released", matrix=row.released, found=release.released)


def _compare_pins(
    matrix: Matrix, row: Row, packages: Mapping[str, PackageListing]
) -> Iterator[Difference]:
    """Yield pins that cannot be installed any more: gone from the index, or withdrawn."""
    if row.cuda is None or row.bundled:
        return
    major = matrix.cuda_majors[row.cuda.major]
    for field, project, version in (
        ("cudnn", major.cudnn_package, row.cudnn),
        ("nccl", major.nccl_package, row.nccl),
    ):
        if version is not None:
            yield from _compare_pin(f"{field} wheel", packages.get(project), str(version))


def _compare_pin(field: str, listing: PackageListing | None, version: str) -> Iterator[Difference]:
    if listing is None or listing.reason or not listing.versions:
        return
    withdrawn = dict(listing.versions).get(version)
    if withdrawn is None:
        yield Difference(
            field=field, matrix=version, found=f"no {listing.project} {version} on the index"
        )
    elif withdrawn:
        yield Difference(
            field=field, matrix=version, found=f"{listing.project} {version} was withdrawn"
        )


def _compare_companions(
    row: Row,
    packages: Mapping[str, PackageListing],
    companions: Mapping[tuple[str, str], CompanionReading],
) -> Iterator[Difference]:
    from packaging.specifiers import SpecifierSet

    for project, version in (("torchvision", row.torchvision), ("torchaudio", row.torchaudio)):
        if version is None:
            continue
        yield from _compare_pin(project, packages.get(project), version)
        reading = companions.get((project, version))
        if reading is None or not reading.requires_torch:
            continue
        if not SpecifierSet(reading.requires_torch).contains(str(row.torch)):
            yield Difference(
                field=project,
                matrix=version,
                found=f"{project} {version} requires torch{reading.requires_torch}",
            )


def _unread_fields(row: Row, facts: WheelFacts) -> Iterator[str]:
    if facts.toolkit is None and row.toolkit is not None:
        yield "toolkit"
    if row.bundled:
        yield from ("cudnn", "nccl")
    if facts.arch_list is None:
        yield "arch_list"
