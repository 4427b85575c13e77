"""The request flags, the same in every command that takes a request.

A command lists the ``…Option`` types it takes, hands what it got to :func:`read_request`, and has a
:class:`~gpuenv.spec.MatrixRequest`.
"""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gpuenv.matrix.model import Matrix
    from gpuenv.spec import HostGpus, MatrixRequest

_PANEL = "Request"


def _complete_torch() -> Iterator[str]:
    matrix = load_chosen_matrix(None)
    minors = dict.fromkeys(str(version.truncate(2)) for version in matrix.torch_versions)
    yield from minors
    yield from map(str, matrix.torch_versions)


def _complete_cuda() -> Iterator[str]:
    yield from ("auto", "cpu")
    yield from map(str, load_chosen_matrix(None).cuda_versions)


def _complete_gpu() -> Iterator[str]:
    from gpuenv.matrix.gpus import gpu_names

    yield from gpu_names(load_chosen_matrix(None))


def _complete_python() -> Iterator[str]:
    rows = load_chosen_matrix(None).rows
    pythons = sorted({python for row in rows for python in row.pythons}, reverse=True)
    yield from map(str, pythons)


def _starting_with(texts: Iterator[str], incomplete: str) -> list[str]:
    """Offer what begins with the letters typed; never fail, a shell is waiting."""
    from gpuenv.errors import GpuenvError

    try:
        return [text for text in texts if text.lower().startswith(incomplete.lower())]
    except GpuenvError:
        return []


def complete_torch(incomplete: str) -> list[str]:
    """Offer torch versions to the shell."""
    return _starting_with(_complete_torch(), incomplete)


def complete_cuda(incomplete: str) -> list[str]:
    """Offer CUDA versions to the shell."""
    return _starting_with(_complete_cuda(), incomplete)


def complete_gpu(incomplete: str) -> list[str]:
    """Offer GPU names to the shell."""
    return _starting_with(_complete_gpu(), incomplete)


def complete_python(incomplete: str) -> list[str]:
    """Offer Python versions to the shell."""
    return _starting_with(_complete_python(), incomplete)


TorchOption = Annotated[
    str | None,
    typer.Option(
        "--torch",
        metavar="VERSION",
        help="PyTorch: 2.9, 2.9.1 or 2.9.1+cu128.",
        autocompletion=complete_torch,
        rich_help_panel=_PANEL,
    ),
]
CudaOption = Annotated[
    str | None,
    typer.Option(
        "--cuda",
        metavar="VERSION|cpu|auto",
        help="CUDA: 12.8, cpu, or auto for what the GPUs here need.",
        autocompletion=complete_cuda,
        rich_help_panel=_PANEL,
    ),
]
CudnnOption = Annotated[
    str | None,
    typer.Option(
        "--cudnn",
        metavar="VERSION",
        help="cuDNN: 9 or 9.10; an exact newer one replaces the row's.",
        rich_help_panel=_PANEL,
    ),
]
NcclOption = Annotated[
    str | None,
    typer.Option(
        "--nccl",
        metavar="VERSION",
        help="NCCL: 2.27; an exact newer one (2.28.9) replaces the row's.",
        rich_help_panel=_PANEL,
    ),
]
PythonOption = Annotated[
    str | None,
    typer.Option(
        "--python",
        metavar="VERSION",
        help="Python: 3.12.",
        autocompletion=complete_python,
        rich_help_panel=_PANEL,
    ),
]
GpuOption = Annotated[
    list[str] | None,
    typer.Option(
        "--gpu",
        metavar="NAME|9.0|sm_90",
        help="A GPU the image must support; may be given several times.",
        autocompletion=complete_gpu,
        rich_help_panel=_PANEL,
    ),
]
DriverOption = Annotated[
    str | None,
    typer.Option(
        "--driver",
        metavar="RELEASE",
        help="The driver it must run on: 580.65.06 or 580.",
        rich_help_panel=_PANEL,
    ),
]
ArchOption = Annotated[
    str | None,
    typer.Option(
        "--arch",
        metavar="x86_64|aarch64",
        help="CPU architecture; this machine's by default.",
        rich_help_panel=_PANEL,
    ),
]
FlavorOption = Annotated[
    str | None,
    typer.Option(
        "--flavor",
        metavar="runtime|devel",
        help="devel adds compilers and nvcc of the same CUDA.",
        rich_help_panel=_PANEL,
    ),
]
MatrixOption = Annotated[
    Path | None,
    typer.Option(
        "--matrix",
        metavar="FILE",
        envvar="GPUENV_MATRIX",
        show_envvar=False,
        help="Use another compatibility matrix than the one gpuenv carries.",
        rich_help_panel=_PANEL,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFlags:
    """The flags of a request to the matrix, as the user wrote them."""

    torch: TorchOption = None
    cuda: CudaOption = None
    cudnn: CudnnOption = None
    nccl: NcclOption = None
    python: PythonOption = None
    gpu: GpuOption = None
    driver: DriverOption = None
    arch: ArchOption = None
    flavor: FlavorOption = None

    def given(self) -> dict[str, Any]:
        """Return the flags by name, ``None`` where one was not given."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def load_chosen_matrix(path: Path | None) -> Matrix:
    """Load the matrix of ``--matrix``, of ``GPUENV_MATRIX``, or the one gpuenv carries."""
    from gpuenv.matrix.load import load_matrix

    if path is None and os.environ.get("GPUENV_MATRIX"):
        path = Path(os.environ["GPUENV_MATRIX"])
    return load_matrix(path)


def read_request(
    matrix: Matrix,
    flags: Mapping[str, str | Sequence[str] | None],
    *,
    file_settings: Mapping[str, Any] | None = None,
    file_name: str = "gpuenv.toml",
    environ: Mapping[str, str] | None = None,
    machine: str | None = None,
) -> MatrixRequest:
    """Turn the request flags of a command into a request.

    Args:
        matrix: For GPU names and guesses.
        flags: By the flag's name without dashes: ``torch``, ``cuda``, ``cudnn``, ``nccl``,
            ``python``, ``gpu``, ``driver``, ``arch``, ``flavor``; ``None`` where not given.
        file_settings: The same keys from ``gpuenv.toml``, which flags and ``GPUENV_*`` override.
        file_name: How messages call that file.
        environ: In place of the process's environment.
        machine: The CPU architecture where none is asked for, this machine's by default.

    Raises:
        ConfigurationError: A value cannot be right; the message says which, where it came from and
            what was probably meant.
    """
    from gpuenv.matrix.request import layer_settings, parse_request

    settings = layer_settings(
        flags,
        environ=os.environ if environ is None else environ,
        file_settings=file_settings,
        file_name=file_name,
    )
    return parse_request(matrix, settings, machine=machine or os.uname().machine)


def asked_keys(
    flags: Mapping[str, str | Sequence[str] | None], *, file_settings: Mapping[str, Any]
) -> frozenset[str]:
    """Return the keys of a request that somebody wrote, in a flag, a variable or the file."""
    from gpuenv.matrix.request import layer_settings

    settings = layer_settings(flags, environ=os.environ, file_settings=file_settings)
    return frozenset(settings.values)


def read_project_request(
    matrix: Matrix, flags: Mapping[str, str | Sequence[str] | None]
) -> MatrixRequest:
    """Turn request flags into a request, on top of what ``gpuenv.toml`` and ``GPUENV_*`` say."""
    from gpuenv.config import load_config

    config = load_config(Path.cwd(), os.environ)
    return read_request(
        matrix, flags, file_settings=config.request_settings(), file_name=config.name
    )


def host_for(request: MatrixRequest) -> HostGpus:
    """Probe the host's GPUs when the request leaves the choice to them, else nothing."""
    from gpuenv.matrix.wish import asks_host
    from gpuenv.spec import HostGpus

    if not asks_host(request):
        return HostGpus(found_via="not asked")
    from gpuenv.host.nvml import probe_host_gpus

    return probe_host_gpus()
