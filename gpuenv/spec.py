"""The values that travel from a request to an image: frozen, ordered, JSON-ready.

``MatrixRequest`` is what a user asks of the matrix, ``EnvironmentSpec`` is the one row that answers
it, ``ImageRequest`` adds what shall be in the image beside PyTorch, and ``ImageSpec`` is the pair
that :mod:`gpuenv.render` turns into a build context.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from gpuenv.values import dataclass

if TYPE_CHECKING:
    from pathlib import Path

    from gpuenv.versions import (
        ComputeCapability,
        CudaVersion,
        CudnnVersion,
        DriverRelease,
        NcclVersion,
        PythonVersion,
        TorchVersion,
    )

Arch: TypeAlias = Literal["x86_64", "aarch64"]
Flavor: TypeAlias = Literal["runtime", "devel"]
WheelSource: TypeAlias = Literal["pypi", "pytorch", "wheelhouse"]
PythonSource: TypeAlias = Literal["base", "managed"]
Confidence: TypeAlias = Literal["verified", "derived", "uncertain"]
Feature: TypeAlias = Literal["jupyter", "ssh"]
Companion: TypeAlias = Literal["torchvision", "torchaudio"]
CudaWish: TypeAlias = "CudaVersion | Literal['auto', 'cpu']"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTarget:
    """A GPU the environment must serve: how it was asked for, and its compute capability."""

    asked: str
    compute_capability: ComputeCapability


@dataclass(frozen=True, slots=True, kw_only=True)
class HostGpus:
    """What this host offers to ``--cuda auto``: its driver and the GPUs behind it.

    Attributes:
        found_via: The source that answered (``NVML``), or why none did.
    """

    driver_release: DriverRelease | None = None
    gpus: tuple[GpuTarget, ...] = ()
    found_via: str = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelKey:
    """One torch wheel: what a source may or may not have.

    Attributes:
        variant: ``cu128`` or ``cpu``.
    """

    torch: TorchVersion
    variant: str
    python: PythonVersion
    arch: Arch


@dataclass(frozen=True, slots=True, kw_only=True)
class Availability:
    """What is known of the sources before resolving; nothing known means trust the matrix.

    Attributes:
        wheelhouse: Wheels lying in a local directory; they are ``source: wheelhouse`` and win.
        missing: ``(wheel, source, reason)``: what a source was asked for and does not have.
        unreachable: ``(source, reason)``: sources that did not answer at all, so no row of theirs
            can be had.
        only_wheelhouse: Resolve from directories alone (``--offline``).
    """

    wheelhouse: frozenset[WheelKey] = frozenset()
    missing: tuple[tuple[WheelKey, WheelSource, str], ...] = ()
    unreachable: tuple[tuple[WheelSource, str], ...] = ()
    only_wheelhouse: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixRequest:
    """A request to the matrix. Versions are prefixes: ``2.8`` means the newest 2.8.x.

    Attributes:
        driver: A bare branch, ``580``, stands for any release of it.
        notes: How the request was read, where that was not obvious.
    """

    torch: TorchVersion | None = None
    cuda: CudaWish = "auto"
    cudnn: CudnnVersion | None = None
    nccl: NcclVersion | None = None
    python: PythonVersion | None = None
    gpus: tuple[GpuTarget, ...] = ()
    driver: DriverRelease | None = None
    arch: Arch = "x86_64"
    flavor: Flavor = "runtime"
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentSpec:
    """The row of the matrix that answers a request.

    Attributes:
        torch_variant: ``cu128`` or ``cpu``.
        cuda: Major and minor, ``None`` for ``cpu``.
        toolkit: The full toolkit version the wheels carry, ``None`` for ``cpu`` or when not known.
        nccl: ``None`` for ``cpu`` or where it is linked into torch and not known.
        triton: The requirement as the wheel states it, ``3.5.1`` or ``~=3.8.0``.
        min_driver: The oldest driver that runs it, by minor-version compatibility; the driver of
            its own toolkit where a GPU asked for needs PTX.
        cudnn: With an override, the version asked for; likewise ``nccl``.
        arch_list: What ``torch.cuda.get_arch_list()`` prints: ``sm_90``, ``compute_120``; empty for
            ``cpu``, and for an uncertain row whose list nobody could establish.
        base_image: The image the recipe starts from.
        python_source: ``base`` when the base image brings that Python, else ``managed`` by uv.
        devel_packages: Wheels that carry nvcc of the same toolkit, for ``devel`` images whose base
            has none.
        max_gcc: The newest GCC major that nvcc of the toolkit takes, where known.
        warnings: Sentences a user must see before relying on the row.
        notes: How the request was read, where that was not obvious; no property of the image.
        overrides: Wheels replaced on request by ABI-compatible ones:
            ``("nvidia-nccl-cu12", "2.28.9")``.
    """

    torch: TorchVersion
    torch_variant: str
    cuda: CudaVersion | None
    toolkit: CudaVersion | None
    cudnn: CudnnVersion | None
    nccl: NcclVersion | None
    triton: str | None
    torchvision: str | None
    torchaudio: str | None
    python: PythonVersion
    arch: Arch
    arch_list: tuple[str, ...]
    min_driver: DriverRelease | None
    base_image: str
    flavor: Flavor = "runtime"
    source: WheelSource
    confidence: Confidence
    python_source: PythonSource = "base"
    devel_packages: tuple[str, ...] = ()
    max_gcc: str | None = None
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    overrides: tuple[tuple[str, str], ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the row as ``gpuenv matrix resolve --json`` prints it."""

        def text(value: object) -> str | None:
            return None if value is None else str(value)

        return {
            "torch": str(self.torch),
            "torch_variant": self.torch_variant,
            "cuda": text(self.cuda),
            "toolkit": text(self.toolkit),
            "cudnn": text(self.cudnn),
            "nccl": text(self.nccl),
            "triton": self.triton,
            "torchvision": self.torchvision,
            "torchaudio": self.torchaudio,
            "python": str(self.python),
            "arch": self.arch,
            "arch_list": list(self.arch_list),
            "min_driver": text(self.min_driver),
            "base_image": self.base_image,
            "flavor": self.flavor,
            "source": self.source,
            "confidence": self.confidence,
            "python_source": self.python_source,
            "devel_packages": list(self.devel_packages),
            "max_gcc": self.max_gcc,
            "warnings": list(self.warnings),
            "notes": list(self.notes),
            "overrides": dict(self.overrides),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRequest:
    """What shall be in the image beside the resolved environment; all of it already validated.

    Attributes:
        apt: Debian package names, sorted.
        pip: Requirement specifiers, sorted.
        requirements: The text of the requirements files, joined, without comments or blank lines.
        env: Variables set in the image, sorted by name.
        base: Overrides the base image of the row.
        features: What ``gpuenv jupyter`` and ``gpuenv ssh`` need inside, sorted.
        companions: Packages installed together with torch, where the row's source has them.
    """

    name: str = "torch"
    features: tuple[Feature, ...] = ()
    companions: tuple[Companion, ...] = ("torchvision",)
    apt: tuple[str, ...] = ()
    pip: tuple[str, ...] = ()
    requirements: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    workdir: str = "/workspace"
    base: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSpec:
    """Everything that decides what an image is, and that its labels tell."""

    environment: EnvironmentSpec
    image: ImageRequest = field(default_factory=ImageRequest)

    def as_dict(self) -> dict[str, Any]:
        """Return the spec as the label ``org.gpuenv.spec`` and ``--json`` carry it."""
        image = self.image
        return {
            "environment": self.environment.as_dict(),
            "image": {
                "name": image.name,
                "features": list(image.features),
                "companions": list(image.companions),
                "apt": list(image.apt),
                "pip": list(image.pip),
                "requirements": list(image.requirements),
                "env": dict(image.env),
                "workdir": image.workdir,
                "base": image.base,
            },
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextFile:
    """One file of a build context: its path there, and its bytes or where they lie on this host.

    Attributes:
        path: Relative, with ``/`` between the parts.
        data: The bytes; ``None`` when ``source`` holds them (wheels are too big for memory).
        secret: Its content goes into no digest that an image keeps.
    """

    path: str
    data: bytes | None = field(default=None, repr=False)
    source: Path | None = None
    mode: int = 0o644
    secret: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """What this host lends to a build and no layer keeps: package settings, certificates, wheels.

    The files lie below ``/run/gpuenv/host`` while a step runs. Three names have a meaning:
    ``pip.conf`` and ``uv.toml`` configure the installers, ``ca.crt`` is a bundle of certificates to
    trust in place of the system's.

    Attributes:
        files: Paths are relative to that folder. A change here installs torch anew, from the
            installer's cache.
        late: Wheels that only JupyterLab and the packages asked for need, below
            ``/run/gpuenv/late``: a change here leaves the layers of torch alone.
        environ: Variables set for the steps that install; they stand in the image's history, so
            nothing secret goes here.
        apt_mirror: Stands in for the distribution's own archive,
            ``https://mirror.example.org/debian``.
        torch_index_delivered: The files already name the index that has the row's torch.
    """

    files: tuple[ContextFile, ...] = ()
    late: tuple[ContextFile, ...] = ()
    environ: tuple[tuple[str, str], ...] = ()
    apt_mirror: str | None = None
    torch_index_delivered: bool = False
