"""What is wanted of a row: the request after ``auto`` was decided."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from gpuenv.values import dataclass
from gpuenv.versions import CudaVersion

if TYPE_CHECKING:
    from gpuenv.spec import GpuTarget, HostGpus, MatrixRequest
    from gpuenv.versions import DriverRelease


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A request after ``auto`` was decided.

    Attributes:
        request: What was asked; read the fields below, not its own, for what they cover.
        cuda: ``any`` means some CUDA, whichever.
        gpus: Asked for, or found on the host.
        driver: Asked for, or found on the host.
        notes: How the request was read, for the user.
    """

    request: MatrixRequest
    cuda: CudaVersion | Literal["any", "cpu"]
    gpus: tuple[GpuTarget, ...]
    driver: DriverRelease | None
    notes: tuple[str, ...] = ()

    @property
    def names_a_row(self) -> bool:
        """Whether torch and CUDA are both given down to their minor."""
        torch = self.request.torch
        return (
            torch is not None
            and len(torch.parts) > 1
            and isinstance(self.cuda, CudaVersion)
            and len(self.cuda.parts) > 1
        )

    def in_words(self) -> str:
        """Write the wish as a user would say it: ``torch 2.8, CUDA 11.8, x86_64``."""
        request = self.request
        named = (("torch", request.torch), ("CUDA", None), ("cuDNN", request.cudnn))
        parts = [f"{name} {value}" for name, value in named if value is not None]
        cuda = {"cpu": "without CUDA", "any": "any CUDA"}.get(str(self.cuda), f"CUDA {self.cuda}")
        parts.insert(1 if request.torch is not None else 0, cuda)
        named_later = (("NCCL", request.nccl), ("Python", request.python))
        parts += [f"{name} {value}" for name, value in named_later if value is not None]
        parts += [gpu_in_words(gpu) for gpu in dict.fromkeys(self.gpus)]
        if self.driver is not None:
            parts.append(f"driver {self.driver}")
        return ", ".join([*parts, request.arch])


def gpu_in_words(gpu: GpuTarget) -> str:
    """Name a GPU with its compute capability: ``V100 (7.0)``, ``a GPU of 9.0``."""
    if gpu.asked[:1].isdigit() or gpu.asked.lower().startswith(("sm", "compute")):
        return f"a GPU of {gpu.compute_capability}"
    return f"{gpu.asked} ({gpu.compute_capability})"


def plan_wish(request: MatrixRequest, host: HostGpus) -> Wish:
    """Decide what ``auto`` means.

    A GPU, a driver, a cuDNN or an NCCL in the request is a wish for CUDA. Without any of them the
    host decides: its GPUs and driver count as if they had been asked for, and no GPU means cpu.
    """
    wish = Wish(
        request=request,
        cuda="any" if request.cuda == "auto" else request.cuda,
        gpus=request.gpus,
        driver=request.driver,
        notes=request.notes,
    )
    if not asks_host(request):
        return wish
    if not host.gpus:
        note = f"no GPU found, so choosing cpu: {host.found_via}; --cuda or --gpu asks for CUDA"
        return replace(wish, cuda="cpu", notes=(*wish.notes, note))
    names = ", ".join(dict.fromkeys(gpu_in_words(gpu) for gpu in host.gpus))
    driver = f", driver {host.driver_release}" if host.driver_release else ""
    note = f"choosing for this host: {names}{driver} (found via {host.found_via})"
    notes = (*wish.notes, note)
    return replace(wish, gpus=host.gpus, driver=host.driver_release, notes=notes)


def asks_host(request: MatrixRequest) -> bool:
    """Say whether the request leaves the choice of CUDA to the host."""
    says_nothing = not (request.gpus or request.driver or request.cudnn or request.nccl)
    return request.cuda == "auto" and says_nothing
