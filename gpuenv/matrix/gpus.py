"""GPU names and compute capabilities, and which compiled code runs on which GPU."""

from __future__ import annotations

import difflib
import re
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from gpuenv.errors import ConfigurationError
from gpuenv.spec import GpuTarget
from gpuenv.values import dataclass
from gpuenv.versions import ComputeCapability, CudaVersion

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpuenv.matrix.model import GpuEntry, Matrix, Row
    from gpuenv.spec import Arch

_CAPABILITY = re.compile(r"[0-9]{1,2}\.[0-9]|(?:sm_?|compute_?)[0-9]{2,3}[af]?", re.ASCII)
_CODE = re.compile(r"(sm|compute)_([0-9]{1,2})([0-9])([af]?)", re.ASCII)
#: Words of a marketing name that say nothing about the architecture: maker, line, form, memory.
_NOISE = re.compile(
    r"nvidia|geforce|quadro|tesla|graphics|gpu|device|generation|edition|workstation|server|"
    r"max|q|laptop|mobile|notebook|desktop|sff|super|ti|d|pcie|sxm[0-9]?|nvl[0-9]*|hbm[0-9]e?|"
    r"dgx|mig|[0-9]+gb|[0-9]+g\.[0-9]+gb|[0-9]+g",
    re.ASCII,
)
_ERA = frozenset({"ada", "blackwell", "turing", "ampere", "hopper"})
#: Words that many GPUs share: a name made of them alone tells no GPU.
_LINE = frozenset({"rtx", "gtx", "titan", "jetson", "pro", "v"})


def find_gpu(matrix: Matrix, text: str) -> GpuTarget:
    """Find a GPU by name (``A100``, ``NVIDIA H100 80GB HBM3``) or capability (``9.0``, ``sm_90``).

    Raises:
        ConfigurationError: The matrix does not know it, or the name fits GPUs that differ.
    """
    wanted = text.strip()
    if _CAPABILITY.fullmatch(wanted.lower()):
        return _by_capability(matrix, wanted)
    found = _matches(matrix, wanted)
    capabilities = {entry.compute_capability for entry, _ in found}
    if len(capabilities) == 1:
        return GpuTarget(asked=wanted, compute_capability=capabilities.pop())
    if capabilities:
        fitting = [f"{name} ({entry.compute_capability})" for entry, name in found]
        raise ConfigurationError(
            f"--gpu {wanted!r} fits GPUs that differ",
            why=f"it could be {_either(fitting)}",
            fix="give the full name, or the compute capability, for example "
            f"--gpu {found[-1][0].compute_capability}",
        )
    raise _unknown_gpu(matrix, wanted)


@lru_cache(maxsize=256)
def first_toolkit(matrix: Matrix, capability: ComputeCapability) -> CudaVersion | None:
    """Return the oldest CUDA whose nvcc knows a capability, ``None`` where that is not known."""
    known = [
        entry.first_toolkit
        for entry in matrix.gpus
        if entry.compute_capability == capability and entry.first_toolkit is not None
    ]
    return min(known, default=None)


@lru_cache(maxsize=256)
def bound_arch(matrix: Matrix, gpu: GpuTarget) -> Arch | None:
    """Return the only CPU a GPU comes with, ``None`` for cards.

    Only a name tells: a compute capability asked for speaks of code, not of a machine.
    """
    for entry in matrix.gpus:
        if entry.arch is not None and any(_core(name) == _core(gpu.asked) for name in entry.names):
            return entry.arch
    return None


def gpu_names(matrix: Matrix) -> Iterator[str]:
    """Yield every GPU name of the matrix, in its order."""
    for entry in matrix.gpus:
        yield from entry.names


def _by_capability(matrix: Matrix, text: str) -> GpuTarget:
    capability = ComputeCapability.parse(text)
    known = {entry.compute_capability for entry in matrix.gpus} | set(matrix.renamed_capabilities)
    if capability in known:
        return GpuTarget(asked=text, compute_capability=capability)
    near = sorted(
        known,
        key=lambda it: (abs(it.major - capability.major), abs(it.minor - capability.minor)),
    )
    raise ConfigurationError(
        f"--gpu {text}: no GPU with compute capability {capability} is known",
        why=f"known are {', '.join(map(str, sorted(known)))}",
        fix=f"did you mean {_either([str(it) for it in near[:2]])}?",
    )


def _unknown_gpu(matrix: Matrix, wanted: str) -> ConfigurationError:
    names = list(gpu_names(matrix))
    by_form: dict[str, str] = {}
    for name in names:
        for form in (name.lower(), " ".join(_core(name))):
            by_form.setdefault(form, name)
    close = difflib.get_close_matches(wanted.lower(), by_form, n=6, cutoff=0.6)
    close += difflib.get_close_matches(" ".join(_core(wanted)), by_form, n=6, cutoff=0.6)
    guesses = list(dict.fromkeys(by_form[form] for form in close))[:3]
    return ConfigurationError(
        f"--gpu {wanted!r} is not a GPU the matrix knows",
        why="the matrix lists GPU names with their compute capability",
        fix=(f"did you mean {_either(guesses)}? Otherwise " if guesses else "")
        + "any GPU can be given by its compute capability, for example --gpu 9.0; "
        "nvidia-smi --query-gpu=compute_cap --format=csv prints it",
    )


def _either(texts: list[str]) -> str:
    texts = list(dict.fromkeys(texts))
    if len(texts) < 2:  # noqa: PLR2004 - a list of one needs no "or"
        return "".join(texts)
    return ", ".join(texts[:-1]) + " or " + texts[-1]


def _words(name: str) -> tuple[str, ...]:
    return tuple(word for word in re.split(r"[^a-z0-9.]+", name.lower()) if word)


def _core(name: str) -> tuple[str, ...]:
    """Return the words of a name that tell the architecture; all of them when none would stay."""
    words = _words(name)
    core = tuple(word for word in words if not _NOISE.fullmatch(word))
    return core or words


def _forms(name: str) -> tuple[tuple[str, ...], ...]:
    """Return a name's telling words, and the same without its era: RTX 6000 Ada is RTX 6000 too."""
    core = _core(name)
    without_era = tuple(word for word in core if word not in _ERA)
    return (core, without_era) if without_era != core and without_era else (core,)


def _matches(matrix: Matrix, wanted: str) -> list[tuple[GpuEntry, str]]:
    """Return the names of the best kind of match that has any: exact, telling words, last words."""
    words, core = _words(wanted), _core(wanted)
    if not words:
        return []
    tests: tuple[Callable[[str], bool], ...] = (
        lambda name: _words(name) == words,
        lambda name: core in _forms(name),
        lambda name: "".join(core) in {"".join(form) for form in _forms(name)},
        lambda name: any(form[-len(core) :] == core for form in _forms(name)),
    )
    if set(core) <= _ERA | _LINE:
        tests = tests[:1]
    for fits in tests:
        found = [(entry, name) for entry in matrix.gpus for name in entry.names if fits(name)]
        if found:
            return found
    return []


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """How a row serves a GPU.

    Attributes:
        how: ``cubin`` is compiled code, ``ptx`` is compiled on the GPU's first use, ``None`` is not
            at all, ``unknown`` where nobody could establish the row's code.
        why: Why it does not, as the second half of a sentence about the row.
    """

    how: Literal["cubin", "ptx", "unknown"] | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Code:
    """One entry of an architecture list: ``sm_90`` is a cubin, ``compute_90`` is PTX.

    Attributes:
        suffix: ``a`` for code that runs on that very capability alone, ``f`` on its family.
    """

    kind: str
    capability: ComputeCapability
    suffix: str
    name: str


@lru_cache(maxsize=256)
def parse_code(name: str) -> Code:
    """Parse ``sm_90``, ``sm_121a`` or ``compute_120``.

    Raises:
        ConfigurationError: It is none of these.
    """
    match = _CODE.fullmatch(name)
    if match is None:
        raise ConfigurationError(
            f"{name!r} names no compiled code",
            why="code is named sm_90 or compute_90",
            fix="correct the arch_list",
        )
    capability = ComputeCapability(int(match[2]), int(match[3]))
    return Code(match[1], capability, match[4], name)


def serve(matrix: Matrix, row: Row, gpu: GpuTarget) -> Service:
    """Say whether the compiled code of a row runs on a GPU.

    A cubin runs on GPUs of its own major with the same or a higher minor, except where the matrix
    names an exception; PTX runs on anything as new or newer. Code with the suffix ``a`` runs on
    that very capability alone, with ``f`` on its family.

    Source:
        CUDA C++ Programming Guide, "Binary Compatibility" and "PTX Compatibility"; exceptions as in
        ``torch/cuda/__init__.py``.
    """
    if row.cuda is None:
        return Service(how=None, why="has no GPU code at all, being built for the cpu")
    if row.arch_list is None:
        return Service(how="unknown")
    renamed = matrix.renamed_capabilities
    capability = renamed.get(gpu.compute_capability, gpu.compute_capability)
    codes = [
        replace(code, capability=renamed.get(code.capability, code.capability))
        for code in map(parse_code, row.arch_list)
    ]
    barred = _barred_cubins(matrix, gpu.compute_capability, row.cuda)
    for code in codes:
        if code.kind == "sm" and code.name not in barred and _cubin_runs(code, capability):
            return Service(how="cubin")
    for code in codes:
        if code.kind == "compute" and _ptx_runs(code, capability):
            return Service(how="ptx")
    return Service(how=None, why=_why_not(matrix, row.cuda, capability, codes))


def _barred_cubins(
    matrix: Matrix, capability: ComputeCapability, cuda: CudaVersion
) -> frozenset[str]:
    return frozenset(
        cubin
        for exception in matrix.cubin_exceptions
        if exception.compute_capability == capability
        and (exception.until_cuda is None or cuda < exception.until_cuda)
        for cubin in exception.cubins
    )


def _cubin_runs(code: Code, gpu: ComputeCapability) -> bool:
    if code.suffix == "a":
        return code.capability == gpu
    return code.capability.major == gpu.major and code.capability.minor <= gpu.minor


def _ptx_runs(code: Code, gpu: ComputeCapability) -> bool:
    if code.suffix == "a":
        return code.capability == gpu
    if code.suffix == "f":
        return code.capability.major == gpu.major and code.capability.minor <= gpu.minor
    return code.capability <= gpu


def _why_not(matrix: Matrix, cuda: CudaVersion, gpu: ComputeCapability, codes: list[Code]) -> str:
    for exception in matrix.cubin_exceptions:
        lifted = exception.until_cuda is not None and cuda >= exception.until_cuda
        if exception.compute_capability == gpu and not lifted:
            return f"has no code for {gpu} ({exception.why})"
    cubins = sorted(code.capability for code in codes if code.kind == "sm")
    if not cubins:
        return f"has no code for {gpu}"
    if gpu < cubins[0]:
        return f"has no code older than {cubins[0].sm}, and {gpu} is older"
    if gpu > cubins[-1]:
        return (
            f"has no code newer than {cubins[-1].sm} and no PTX for newer GPUs, and {gpu} is newer"
        )
    return f"has no code for {gpu}"
