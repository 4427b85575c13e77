"""The compatibility matrix as values: rows, toolkits, bases, GPUs and what never existed.

A :class:`Row` is one wheel family: one torch release, one variant, one CPU architecture. The file
shares what rows have in common; here every row is complete, so that a rule looks at one value.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpuenv.spec import Arch, Confidence
    from gpuenv.versions import (
        ComputeCapability,
        CudaVersion,
        CudnnVersion,
        DottedVersion,
        DriverRelease,
        NcclVersion,
        PythonVersion,
        TorchVersion,
    )

__all__ = [
    "BaseImage",
    "CubinException",
    "CudaMajor",
    "CudnnFloor",
    "GpuEntry",
    "Matrix",
    "NeverExisted",
    "Provenance",
    "Row",
    "Toolkit",
    "VersionRange",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where an entry comes from, when that was read, and how sure it is.

    Attributes:
        source: Identifiers; :attr:`Matrix.sources` says what each is.
        checked: The day, ``2026-12-01``.
    """

    source: tuple[str, ...]
    checked: str
    confidence: Confidence


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Row:
    """One torch release in one variant for one CPU architecture; a row equals only itself.

    Attributes:
        variant: ``cu128`` or ``cpu``; also the last part of the PyTorch index that carries it.
        cuda: Major and minor, ``None`` for ``cpu``.
        toolkit: ``None`` for ``cpu`` or where nobody could establish the patch.
        nccl: ``None`` for ``cpu`` or where nobody could establish it; likewise ``cudnn``.
        triton: As the wheel requires it, ``3.5.1`` or ``~=3.8.0``; ``None`` for ``cpu``.
        pythons: Every Python minor with a wheel, oldest first.
        arch_list: What ``torch.cuda.get_arch_list()`` prints; empty for ``cpu``, ``None`` where
            nobody could establish it.
        pypi_default: Whether a plain ``pip install torch`` gives this variant on this CPU.
        bundled: cuDNN and NCCL are inside the torch wheel and cannot be replaced.
        confidence: Of the row; a doubt about this CPU alone counts.
        doubt: Why the row is uncertain, else empty.
    """

    torch: TorchVersion
    variant: str
    cuda: CudaVersion | None
    toolkit: CudaVersion | None
    cudnn: CudnnVersion | None
    nccl: NcclVersion | None
    triton: str | None
    torchvision: str | None
    torchaudio: str | None
    pythons: tuple[PythonVersion, ...]
    arch: Arch
    arch_list: tuple[str, ...] | None
    pypi_default: bool
    bundled: bool = False
    released: str
    source: tuple[str, ...]
    checked: str
    confidence: Confidence
    doubt: str = ""
    note: str = ""

    @property
    def minor(self) -> TorchVersion:
        """The torch release without its patch, ``2.9``."""
        return self.torch.truncate(2)

    @property
    def python_min(self) -> PythonVersion:
        """The oldest Python with a wheel."""
        return self.pythons[0]

    @property
    def python_max(self) -> PythonVersion:
        """The newest Python with a wheel."""
        return self.pythons[-1]

    @property
    def label(self) -> str:
        """The name people use: ``2.9.1+cu128``."""
        return f"{self.torch}+{self.variant}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaMajor(Provenance):
    """What holds for every toolkit of one CUDA major.

    Attributes:
        min_driver: The oldest driver that runs any of them, by minor-version compatibility.
        cudnn_package: The wheel that carries cuDNN, ``nvidia-cudnn-cu12``.
        nccl_package: The wheel that carries NCCL.
    """

    major: int
    min_driver: DriverRelease
    cudnn_package: str
    nccl_package: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolkit(Provenance):
    """One CUDA minor.

    Attributes:
        drivers: The driver packaged with each patch, newest patch first; PTX needs it.
        max_gcc: The newest major of GCC that nvcc takes as host compiler, ``None`` if not known.
        devel_images: ``(toolkit patch, Python of the image, image)`` where wheels carry no nvcc.
        devel_wheels: ``(toolkit patch, requirements)`` where they do.
    """

    cuda: CudaVersion
    drivers: tuple[tuple[CudaVersion, DriverRelease], ...] = ()
    max_gcc: str | None = None
    devel_images: tuple[tuple[CudaVersion, PythonVersion, str], ...] = ()
    devel_wheels: tuple[tuple[CudaVersion, tuple[str, ...]], ...] = ()
    note: str = ""

    def driver_for(self, toolkit: CudaVersion | None) -> DriverRelease | None:
        """Return the driver packaged with a patch, or with the newest known when it is ``None``."""
        for patch, driver in self.drivers:
            if toolkit is None or patch == toolkit:
                return driver
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseImage(Provenance):
    """A stock image and the Python that comes with its distribution.

    Attributes:
        image: What to pull.
        distribution: ``debian`` or ``ubuntu``.
        suite: Its code name, which debootstrap takes.
        local: The name of an imported copy.
        managed: Whether it is the base for Pythons that no stock image has.
    """

    python: PythonVersion
    image: str
    distribution: str
    suite: str
    local: str
    managed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuEntry(Provenance):
    """Names of GPUs that share a compute capability.

    Attributes:
        first_toolkit: The oldest CUDA whose nvcc knows it, ``None`` if not known.
        arch: The only CPU these GPUs come with, ``None`` when they are cards.
    """

    names: tuple[str, ...]
    compute_capability: ComputeCapability
    first_toolkit: CudaVersion | None = None
    arch: Arch | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CubinException(Provenance):
    """Compiled code that does not run on a GPU although major and minor would allow it.

    Attributes:
        until_cuda: The CUDA version that lifted it, ``None`` if none did.
    """

    compute_capability: ComputeCapability
    cubins: tuple[str, ...]
    until_cuda: CudaVersion | None = None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CudnnFloor(Provenance):
    """A cuDNN from which on older GPUs have no kernels in it."""

    cudnn: CudnnVersion
    min_compute_capability: ComputeCapability


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRange:
    """A condition on a version: a prefix (``2.8``), or everything up to or from it (``>=2.8``).

    The bounds count to the depth they are given: ``<=2.8`` covers 2.8.1.
    """

    operator: str
    version: DottedVersion

    def covers(self, wanted: DottedVersion) -> bool:
        """Say whether a wanted version, itself a prefix, lies wholly inside the condition."""
        if len(wanted.parts) < len(self.version.parts):
            if not self.operator:
                return False
            # 2 may mean 2.0 or 2.15: only a prefix as deep as the bound can be inside for certain.
            return len(wanted.parts) > 1 and self._compare(wanted.parts)
        return self._compare(wanted.parts[: len(self.version.parts)])

    def _compare(self, parts: tuple[int, ...]) -> bool:
        bound = self.version.parts[: len(parts)]
        if self.operator == ">=":
            return parts >= bound
        if self.operator == "<=":
            return parts <= bound
        return parts == bound


@dataclass(frozen=True, slots=True, kw_only=True)
class NeverExisted(Provenance):
    """A combination people ask for, why it never existed, and what to take instead.

    A request matches when it states every subject that has conditions here, and for each of them
    one condition covers it.
    """

    torch: tuple[VersionRange, ...] = ()
    cuda: tuple[VersionRange, ...] = ()
    cudnn: tuple[VersionRange, ...] = ()
    python: tuple[VersionRange, ...] = ()
    why: str
    instead: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Matrix:
    """The whole compatibility matrix; a matrix equals only itself.

    Attributes:
        torch_index: The PyTorch wheel index; a variant's own index is one path part below.
        rows: Newest torch first, within it the higher CUDA first and ``cpu`` last.
        base_images: In order of preference for requests that name no Python.
        renamed_capabilities: Compute capabilities that NVIDIA renamed, old to new.
    """

    torch_index: str
    sources: Mapping[str, str]
    rows: tuple[Row, ...]
    cuda_majors: Mapping[int, CudaMajor]
    toolkits: Mapping[CudaVersion, Toolkit]
    base_images: tuple[BaseImage, ...]
    gpus: tuple[GpuEntry, ...]
    cubin_exceptions: tuple[CubinException, ...]
    renamed_capabilities: Mapping[ComputeCapability, ComputeCapability]
    cudnn_floors: tuple[CudnnFloor, ...]
    never_existed: tuple[NeverExisted, ...]

    @cached_property
    def torch_versions(self) -> tuple[TorchVersion, ...]:
        """Every torch release, newest first."""
        return tuple(dict.fromkeys(row.torch for row in self.rows))

    @cached_property
    def cuda_versions(self) -> tuple[CudaVersion, ...]:
        """Every CUDA minor that a row was built for, newest first."""
        return tuple(sorted({row.cuda for row in self.rows if row.cuda is not None}, reverse=True))

    def min_driver(self, row: Row) -> DriverRelease | None:
        """Return the oldest driver that runs a row, by minor-version compatibility."""
        return None if row.cuda is None else self.cuda_majors[row.cuda.major].min_driver

    def toolkit_driver(self, row: Row) -> DriverRelease | None:
        """Return the driver packaged with a row's own toolkit, which PTX needs."""
        if row.cuda is None or row.cuda not in self.toolkits:
            return None
        return self.toolkits[row.cuda].driver_for(row.toolkit)

    def rows_for(self, arch: Arch) -> Iterator[Row]:
        """Yield the rows of one CPU architecture."""
        return (row for row in self.rows if row.arch == arch)
