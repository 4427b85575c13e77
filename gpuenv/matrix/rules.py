"""The rules of the matrix: which of them a row breaks for a request, in words.

Every rule is asked of every row, so that an explanation is complete and a refusal can name the rows
that miss by one rule only. Nothing here chooses; :mod:`gpuenv.matrix.resolve` does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from gpuenv.matrix.bases import Base, bases_for
from gpuenv.matrix.gpus import bound_arch, first_toolkit, serve
from gpuenv.matrix.wish import gpu_in_words
from gpuenv.spec import WheelKey
from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuenv.matrix.gpus import Service
    from gpuenv.matrix.model import Matrix, Row
    from gpuenv.matrix.wish import Wish
    from gpuenv.spec import Availability, GpuTarget, WheelSource
    from gpuenv.versions import CudnnVersion, DriverRelease, NcclVersion, PythonVersion

Rule: TypeAlias = Literal[
    "arch", "torch", "cuda", "gpu", "driver", "python", "cudnn", "nccl", "confidence", "source"
]
#: In the order explanations show them.
RULES: tuple[Rule, ...] = get_args(Rule)
#: What a user may ask otherwise; the other rules are facts about hardware and sources.
SOFT_RULES: frozenset[Rule] = frozenset({"torch", "cuda", "python", "cudnn", "nccl"})

_Services: TypeAlias = "list[tuple[GpuTarget, Service]]"

# An exact version has this many numbers: 2.28.9 and 9.10.2.21.
_NCCL_DEPTH = 3
_CUDNN_DEPTH = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """One rule that a row breaks; ``text`` is the second half of a sentence about the row."""

    rule: Rule
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the rules say of one row.

    Attributes:
        rejections: In the order of :data:`RULES`; none means the row answers the request.
        base: The Python and the base image the row would be built with.
        source: Where its wheel would come from.
        min_driver: The oldest driver that runs the row on the GPUs asked for.
        overrides: Wheels to replace, by package.
        warnings: What to tell the user if the row is chosen.
    """

    row: Row
    rejections: tuple[Rejection, ...]
    base: Base
    source: WheelSource
    min_driver: DriverRelease | None
    overrides: tuple[tuple[str, str], ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def accepted(self) -> bool:
        """Whether the row answers the request."""
        return not self.rejections

    @property
    def broken(self) -> frozenset[Rule]:
        """The rules the row breaks."""
        return frozenset(rejection.rule for rejection in self.rejections)


def judge(
    matrix: Matrix,
    wish: Wish,
    row: Row,
    *,
    availability: Availability,
    local_bases: frozenset[str],
) -> Verdict:
    """Ask every rule of one row; a row for another CPU breaks that rule and is not looked into."""
    arch_problem = _arch_problem(wish, row)
    if arch_problem:
        return _foreign(matrix, row, arch_problem)
    services = [(gpu, serve(matrix, row, gpu)) for gpu in dict.fromkeys(wish.gpus)]
    by_ptx = any(service.how == "ptx" for _, service in services)
    floor = matrix.min_driver(row)
    min_driver = (matrix.toolkit_driver(row) or floor) if by_ptx else floor
    cudnn = _judge_library(row, "cuDNN", wish.request.cudnn, row.cudnn, exact_depth=_CUDNN_DEPTH)
    nccl = _judge_library(row, "NCCL", wish.request.nccl, row.nccl, exact_depth=_NCCL_DEPTH)
    placed = _place(matrix, wish, row, availability=availability, local_bases=local_bases)
    overrides = _overrides(matrix, row, cudnn=cudnn.override, nccl=nccl.override)
    texts: tuple[tuple[Rule, str], ...] = (
        ("torch", _torch_problem(wish, row)),
        ("cuda", _cuda_problem(wish, row)),
        *(("gpu", text) for text in _gpu_problems(matrix, row, services, cudnn=cudnn.override)),
        ("driver", _driver_problem(wish, row, min_driver, by_ptx=by_ptx)),
        ("python", _python_problem(wish, row)),
        ("cudnn", cudnn.problem),
        ("nccl", nccl.problem),
        ("confidence", _confidence_problem(wish, row)),
        ("source", placed.problem),
    )
    return Verdict(
        row=row,
        rejections=tuple(Rejection(rule=rule, text=text) for rule, text in texts if text),
        base=placed.base,
        source=placed.source,
        min_driver=min_driver,
        overrides=overrides,
        warnings=tuple(dict.fromkeys(_warnings(matrix, wish, row, services, overrides))),
    )


def _foreign(matrix: Matrix, row: Row, problem: str) -> Verdict:
    return Verdict(
        row=row,
        rejections=(Rejection(rule="arch", text=problem),),
        base=bases_for(matrix, row, flavor="runtime")[0],
        source="pypi" if row.pypi_default else "pytorch",
        min_driver=matrix.min_driver(row),
    )


def _arch_problem(wish: Wish, row: Row) -> str:
    wanted = wish.request.arch
    return "" if row.arch == wanted else f"is a wheel for {row.arch}, not for {wanted}"


def _torch_problem(wish: Wish, row: Row) -> str:
    wanted = wish.request.torch
    if wanted is None or wanted.is_prefix_of(row.torch):
        return ""
    return f"is not torch {wanted}"


def _cuda_problem(wish: Wish, row: Row) -> str:
    if wish.cuda == "cpu":
        return "" if row.cuda is None else f"is built for CUDA {row.cuda}, not for the cpu alone"
    if row.cuda is None:
        return "is built without CUDA"
    if wish.cuda == "any":
        return ""
    whole = row.cuda if len(wish.cuda.parts) <= len(row.cuda.parts) else row.toolkit
    if whole is None:
        return f"is built for a patch of CUDA {row.cuda} that is not known"
    return "" if wish.cuda.is_prefix_of(whole) else f"is built for CUDA {whole}, not {wish.cuda}"


def _gpu_problems(
    matrix: Matrix, row: Row, services: _Services, *, cudnn: CudnnVersion | NcclVersion | None
) -> Iterator[str]:
    for gpu, service in services:
        if service.how is None:
            yield f"cannot serve {gpu_in_words(gpu)}: it {service.why}"
            continue
        arch = bound_arch(matrix, gpu)
        if arch not in {None, row.arch}:
            yield f"cannot serve {gpu_in_words(gpu)}: that comes with an {arch} CPU"
            continue
        for floor in matrix.cudnn_floors:
            too_old = gpu.compute_capability < floor.min_compute_capability
            if cudnn is not None and too_old and cudnn.parts >= floor.cudnn.parts:
                yield (
                    f"would not serve {gpu_in_words(gpu)} with cuDNN {cudnn}: from {floor.cudnn} "
                    f"on it has no kernels below {floor.min_compute_capability}"
                )


def _driver_problem(wish: Wish, row: Row, min_driver: DriverRelease | None, *, by_ptx: bool) -> str:
    if wish.driver is None or min_driver is None:
        return ""
    # A bare branch stands for any release of it: 580 is enough where 580.65.06 is needed.
    if wish.driver.parts >= min_driver.parts[: len(wish.driver.parts)]:
        return ""
    if by_ptx:
        reason = f"PTX needs the driver of its own toolkit, {min_driver}"
    else:
        reason = f"CUDA {row.cuda.major if row.cuda else ''} needs {min_driver} or newer"
    return f"does not run on driver {wish.driver}: {reason}"


def _python_problem(wish: Wish, row: Row) -> str:
    wanted = wish.request.python
    if wanted is None or any(wanted.is_prefix_of(python) for python in row.pythons):
        return ""
    return f"has wheels for Python {row.python_min} to {row.python_max}, none for {wanted}"


def _confidence_problem(wish: Wish, row: Row) -> str:
    if row.confidence != "uncertain" or wish.names_a_row:
        return ""
    doubt = row.doubt.rstrip(".") or "nobody confirmed it"
    return f"is uncertain and used only when torch and CUDA are both named ({doubt})"


@dataclass(frozen=True, slots=True, kw_only=True)
class _LibraryVerdict:
    problem: str = ""
    override: CudnnVersion | NcclVersion | None = None


def _judge_library(
    row: Row,
    name: str,
    wanted: CudnnVersion | NcclVersion | None,
    has: CudnnVersion | NcclVersion | None,
    *,
    exact_depth: int,
) -> _LibraryVerdict:
    """Take a version as a constraint, or an exact newer one of the same major as an override."""
    if wanted is None or (has is not None and wanted.parts == has.parts[: len(wanted.parts)]):
        return _LibraryVerdict()
    if has is None:
        carried = "a version that is not known" if row.cuda else "none, as it is built without CUDA"
        return _LibraryVerdict(problem=f"carries {carried}, not {name} {wanted}")
    problem = f"carries {name} {has}, not {wanted}"
    if len(wanted.parts) < exact_depth or wanted.major != has.major:
        return _LibraryVerdict(problem=problem)
    if wanted.parts < has.parts:
        return _LibraryVerdict(problem=f"{problem}, and an older one may lack what torch uses")
    if row.bundled:
        return _LibraryVerdict(problem=f"{problem}, and it is inside the wheel, so not replaceable")
    return _LibraryVerdict(override=wanted)


def _overrides(
    matrix: Matrix,
    row: Row,
    *,
    cudnn: CudnnVersion | NcclVersion | None,
    nccl: CudnnVersion | NcclVersion | None,
) -> tuple[tuple[str, str], ...]:
    if row.cuda is None:
        return ()
    major = matrix.cuda_majors[row.cuda.major]
    asked = ((major.cudnn_package, cudnn), (major.nccl_package, nccl))
    return tuple((package, str(version)) for package, version in asked if version is not None)


def _warnings(
    matrix: Matrix,
    wish: Wish,
    row: Row,
    services: _Services,
    overrides: tuple[tuple[str, str], ...],
) -> Iterator[str]:
    for gpu, service in services:
        if service.how == "ptx":
            yield (
                f"{row.label} has no compiled code for {gpu_in_words(gpu)}: its PTX is compiled on "
                "first use, which takes minutes and needs the driver of its own toolkit"
            )
        elif service.how == "unknown":
            yield (
                f"which GPUs {row.label} was compiled for is not known; whether it serves "
                f"{gpu_in_words(gpu)} shows only when it runs"
            )
        toolkit = first_toolkit(matrix, gpu.compute_capability)
        if row.cuda is not None and toolkit is not None and row.cuda < toolkit:
            yield (
                f"{gpu_in_words(gpu)} is newer than CUDA {row.cuda}: PyTorch's own kernels run, "
                f"but compiling for it (torch.compile, extensions) needs CUDA {toolkit}"
            )
    floor = matrix.min_driver(row)
    if wish.driver is not None and floor is not None and wish.driver < floor:
        yield f"{row.label} needs {floor} or newer; driver {wish.driver} was taken to be one"
    if row.confidence == "uncertain":
        yield f"{row.label} is uncertain: {row.doubt or 'nobody confirmed it'}"
    if row.confidence == "derived" and row.cuda is not None:  # a cpu row claims nothing but itself
        yield (
            f"{row.label} was not read in the wheel itself but derived ({', '.join(row.source)}); "
            "what is in the image is checked after the build"
        )
    for package, version in overrides:
        tested = row.cudnn if "cudnn" in package else row.nccl
        yield (
            f"{package} {version} replaces {tested}, which {row.label} was built and tested with; "
            "within a major version the two are ABI-compatible"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placement:
    base: Base
    source: WheelSource
    problem: str = ""


def _place(
    matrix: Matrix,
    wish: Wish,
    row: Row,
    *,
    availability: Availability,
    local_bases: frozenset[str],
) -> _Placement:
    """Choose Python, base and wheel source: a wheel at hand first, then the preferred Python."""
    wanted = wish.request.python
    bases = bases_for(matrix, row, flavor=wish.request.flavor, local_bases=local_bases)
    fitting = [base for base in bases if wanted is None or wanted.is_prefix_of(base.python)]
    remote: tuple[WheelSource, ...] = ("pypi", "pytorch") if row.pypi_default else ("pytorch",)
    # Without a fitting Python the placement is only shown, in the list of nearest rows.
    shown = _Placement(base=(fitting or bases)[0], source=remote[0])
    for base in fitting:
        if _wheel(row, base.python) in availability.wheelhouse:
            return _Placement(base=base, source="wheelhouse")
    if availability.only_wheelhouse:
        return replace(shown, problem="has no wheel in the directories given, and --offline is set")
    reasons: list[str] = []
    for base in fitting:
        key = _wheel(row, base.python)
        missing: dict[WheelSource, str] = dict(availability.unreachable)
        missing |= {source: why for wheel, source, why in availability.missing if wheel == key}
        for source in remote:
            if source not in missing:
                return _Placement(base=base, source=source)
        reasons += [f"{source}: {missing[source]}" for source in remote]
    unique = "; ".join(dict.fromkeys(reasons))
    return replace(shown, problem=f"cannot be had ({unique})" if unique else "")


def _wheel(row: Row, python: PythonVersion) -> WheelKey:
    return WheelKey(torch=row.torch, variant=row.variant, python=python, arch=row.arch)
