"""What a torch wheel says of itself: the value that travels from the wheel to the matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from gpuenv.spec import Arch

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
