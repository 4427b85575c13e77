"""What wheels and indexes say: the values that travel from a survey of them to the matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from gpuenv.values import dataclass

if TYPE_CHECKING:
    from gpuenv.spec import Arch, WheelSource
    from gpuenv.versions import PythonVersion, TorchVersion

ArchTable: TypeAlias = "tuple[tuple[Arch, str, tuple[str, ...]], ...]"


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelFacts:
    """Facts read from one torch wheel; ``None`` stands for what it does not say.

    Attributes:
        filename: The wheel's file name.
        torch: The release, ``2.9.1``.
        variant: ``cu128`` or ``cpu``.
        arch: The machine it is for.
        cuda: ``12.8``; ``None`` for ``cpu``.
        toolkit: The CUDA release the wheel pins, ``13.0.3``; in older wheels only its components
            are pinned, see ``cudart``.
        cudart: The pinned CUDA runtime, ``12.8.90``.
        cudnn: The pinned cuDNN, ``9.10.2.21``.
        nccl: The pinned NCCL, ``2.27.5``.
        triton: As the wheel states it, ``3.5.1`` or ``~=3.8.0``.
        requires_python: ``>=3.10``.
        requires: Every ``Requires-Dist``, as it stands.
        arch_table: ``(machine, CUDA version, architectures)`` that upstream builds for: its plan,
            and no proof that a variant was published.
        arch_list: What ``torch.cuda.get_arch_list()`` prints; read only on request.
        bytes_read: What reading all this took from the network or the disk.
    """

    filename: str
    torch: str
    variant: str
    arch: Arch
    cuda: str | None = None
    toolkit: str | None = None
    cudart: str | None = None
    cudnn: str | None = None
    nccl: str | None = None
    triton: str | None = None
    requires_python: str | None = None
    requires: tuple[str, ...] = ()
    arch_table: ArchTable = ()
    arch_list: tuple[str, ...] | None = None
    bytes_read: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseListing:
    """A torch release for one machine, as the file names of an index tell it.

    Attributes:
        pythons: Every Python with a wheel, oldest first; free-threaded builds do not count.
        released: The day its first file for that machine was uploaded; ``None`` when not said.
    """

    torch: str
    arch: Arch
    pythons: tuple[str, ...]
    released: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedWheel:
    """A wheel to read.

    Attributes:
        variant: As the matrix has it; ``None`` to take whatever PyPI's default is.
        python: One of those it was built for; any does, what is read is the same in all.
    """

    torch: TorchVersion
    variant: str | None
    arch: Arch
    python: PythonVersion
    source: WheelSource = "pypi"


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelReading:
    """The attempt to read the wheel of one row.

    Attributes:
        variant: What the row says it is.
        facts: What the wheel says; ``None`` when it could not be read.
        reason: Why not, in a sentence.
        place: Where the wheel is, for messages.
    """

    torch: str
    variant: str
    arch: Arch
    facts: WheelFacts | None = None
    reason: str = ""
    place: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageListing:
    """The versions of a project that an index has.

    Attributes:
        versions: ``(version, withdrawn)`` without a local tag, oldest first.
        reason: Why nothing is known, else empty.
    """

    project: str
    versions: tuple[tuple[str, bool], ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompanionReading:
    """What one release of torchvision or torchaudio requires of torch.

    Attributes:
        requires_torch: ``==2.9.1``, ``>=2.11``; empty when it names no version, ``None`` when it
            could not be read.
        released: The day of its upload.
    """

    project: str
    version: str
    requires_torch: str | None
    released: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What the indexes of one host say about the rows of the matrix.

    Attributes:
        index: The main index, for messages.
        deep: Whether the architecture lists were read.
        companions: Releases of torchvision and torchaudio that were read.
        bytes_read: What it all took from the network.
    """

    index: str
    deep: bool = False
    releases: tuple[ReleaseListing, ...] = ()
    readings: tuple[WheelReading, ...] = ()
    packages: tuple[PackageListing, ...] = ()
    companions: tuple[CompanionReading, ...] = ()
    bytes_read: int = 0
