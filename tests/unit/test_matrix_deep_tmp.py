"""What holds of every request: the solver keeps every constraint and refuses only for a reason.

The checks here are written against the words of the rules, not against the code of the solver: a
row is looked at by itself, with plain numbers.
"""

from __future__ import annotations

import dataclasses
from random import Random  # noqa: TC003 - hypothesis reads the annotation
from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuenv.errors import UnsupportedCombinationError
from gpuenv.matrix.explain import explain
from gpuenv.matrix.load import load_matrix
from gpuenv.matrix.resolve import resolve
from gpuenv.spec import Availability, GpuTarget, HostGpus, MatrixRequest, WheelKey
from gpuenv.versions import (
    CudaVersion,
    CudnnVersion,
    DriverRelease,
    NcclVersion,
    PythonVersion,
    TorchVersion,
)

if TYPE_CHECKING:
    from gpuenv.matrix.model import Row
    from gpuenv.spec import EnvironmentSpec

MATRIX = load_matrix()


def _versions(kind: Any, attribute: str) -> st.SearchStrategy[Any]:
    """Draw versions that rows have, at any depth, and now and then one that no row has."""
    known = sorted({value for row in MATRIX.rows if (value := getattr(row, attribute)) is not None})
    at_depth = st.builds(
        lambda value, depth: value.truncate(depth), st.sampled_from(known), st.integers(1, 4)
    )
    numbers = st.lists(st.integers(0, 30), min_size=1, max_size=3)
    made_up = st.builds(lambda parts: kind(tuple(parts)), numbers)
    return st.one_of(at_depth, at_depth, at_depth, made_up)


CAPABILITIES = sorted({entry.compute_capability for entry in MATRIX.gpus})
DRIVERS = [
    DriverRelease.parse(text)
    for text in (
        "440.33",
        "450.80.02",
        "470",
        "525.60.13",
        "535.104.05",
        "570.26",
        "580",
        "595.58.03",
    )
]
GPUS = st.lists(
    st.builds(
        lambda capability: GpuTarget(asked=str(capability), compute_capability=capability),
        st.sampled_from(CAPABILITIES),
    ),
    max_size=3,
).map(tuple)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "torch": _versions(TorchVersion, "torch"),
    "cuda": st.one_of(
        st.just("cpu"), _versions(CudaVersion, "cuda"), _versions(CudaVersion, "toolkit")
    ),
    "cudnn": _versions(CudnnVersion, "cudnn"),
    "nccl": _versions(NcclVersion, "nccl"),
    "python": st.integers(7, 16).map(lambda minor: PythonVersion((3, minor))),
    "gpus": GPUS,
    "driver": st.sampled_from(DRIVERS),
    "arch": st.sampled_from(["x86_64", "aarch64"]),
    "flavor": st.sampled_from(["runtime", "devel"]),
}


@st.composite
def requests(draw: st.DrawFn) -> MatrixRequest:
    names = draw(st.sets(st.sampled_from(sorted(FIELDS)), max_size=5))
    return MatrixRequest(**{name: draw(FIELDS[name]) for name in sorted(names)})


HOSTS = st.builds(
    lambda gpus, driver: HostGpus(gpus=gpus, driver_release=driver, found_via="NVML"),
    GPUS,
    st.one_of(st.none(), st.sampled_from(DRIVERS)),
)


def answer(request: MatrixRequest, host: HostGpus) -> EnvironmentSpec | None:
    try:
        return resolve(MATRIX, request, host=host)
    except UnsupportedCombinationError:
        return None


def row_of(spec: EnvironmentSpec) -> Row:
    return next(
        row
        for row in MATRIX.rows
        if (row.torch, row.variant, row.arch) == (spec.torch, spec.torch_variant, spec.arch)
    )


# The rules once more, on a row by itself.

NOT_ON = {  # code that does not run although the numbers would allow it, below CUDA 13.2
    ((8, 7), "sm_80"), ((8, 7), "sm_86"), ((7, 2), "sm_70"),
}  # fmt: skip
NEVER_ON = {((6, 2), "sm_60"), ((6, 2), "sm_61"), ((5, 3), "sm_50"), ((5, 3), "sm_52")}


def runs(code: str, gpu: tuple[int, int], cuda: tuple[int, ...]) -> bool:
    kind, digits = code.split("_")
    major, minor = int(digits[:-1]), int(digits[-1])
    if kind == "compute":
        return (major, minor) <= gpu
    if (gpu, code) in NEVER_ON or ((gpu, code) in NOT_ON and cuda < (13, 2)):
        return False
    return major == gpu[0] and minor <= gpu[1]


def serves(row: Row, gpu: GpuTarget) -> bool:
    capability = (gpu.compute_capability.major, gpu.compute_capability.minor)
    if row.cuda is None:
        return False
    if row.arch_list is None:
        return True  # only reached for rows that the request names
    return any(runs(code, capability, row.cuda.parts) for code in row.arch_list)


FLOORS = {11: (450, 80, 2), 12: (525, 60, 13), 13: (580, 65, 6)}


def driver_runs(row: Row, gpus: tuple[GpuTarget, ...], driver: DriverRelease) -> bool:
    if row.cuda is None:
        return True
    floor = FLOORS[row.cuda.major]
    for gpu in gpus:
        capability = (gpu.compute_capability.major, gpu.compute_capability.minor)
        cubins = [code for code in row.arch_list or () if code.startswith("sm")]
        if row.arch_list and not any(runs(code, capability, row.cuda.parts) for code in cubins):
            floor = (
                dict(MATRIX.toolkits[row.cuda].drivers)[row.toolkit].parts if row.toolkit else floor
            )
    return driver.parts >= floor[: len(driver.parts)]


def starts_with(version: Any, prefix: Any) -> bool:
    return bool(version.parts[: len(prefix.parts)] == prefix.parts)


def library_fits(wanted: Any, has: Any, *, depth: int, bundled: bool) -> bool:
    if wanted is None:
        return True
    if has is None:
        return False
    if starts_with(has, wanted):
        return True
    same_major = wanted.parts[0] == has.parts[0]
    return len(wanted.parts) >= depth and same_major and wanted.parts > has.parts and not bundled


def fits(row: Row, request: MatrixRequest, host: HostGpus) -> bool:
    """Say whether a row fulfils a request, cuDNN overrides on old GPUs aside."""
    gpus, driver = request.gpus, request.driver
    wants_cuda = bool(gpus or driver or request.cudnn or request.nccl)
    if request.cuda == "auto":
        if not wants_cuda:
            gpus, driver = host.gpus, host.driver_release if host.gpus else None
            wants_cuda = bool(gpus)
        cuda_fits = (row.cuda is not None) == wants_cuda
    elif request.cuda == "cpu":
        cuda_fits = row.cuda is None
    else:
        whole = row.cuda if len(request.cuda.parts) <= 2 else row.toolkit
        cuda_fits = (
            whole is not None and whole.parts[: len(request.cuda.parts)] == request.cuda.parts
        )
    named = (
        request.torch is not None
        and len(request.torch.parts) > 1
        and isinstance(request.cuda, CudaVersion)
        and len(request.cuda.parts) > 1
    )
    return (
        row.arch == request.arch
        and cuda_fits
        and (
            request.torch is None
            or row.torch.parts[: len(request.torch.parts)] == request.torch.parts
        )
        and all(serves(row, gpu) for gpu in gpus)
        and (driver is None or driver_runs(row, gpus, driver))
        and (request.python is None or row.python_min <= request.python <= row.python_max)
        and library_fits(request.cudnn, row.cudnn, depth=4, bundled=row.bundled)
        and library_fits(request.nccl, row.nccl, depth=3, bundled=row.bundled)
        and (row.confidence != "uncertain" or named)
    )


def breaks_old_gpus(row: Row, request: MatrixRequest) -> bool:
    """Say whether a cuDNN override would take away the kernels of a GPU before Turing."""
    wanted = request.cudnn
    if wanted is None or row.cudnn is None or starts_with(row.cudnn, wanted):
        return False
    old = any(
        gpu.compute_capability.major < 7 or str(gpu.compute_capability) < "7.5"
        for gpu in request.gpus
    )
    return old and wanted.parts >= (9, 15, 1)


@settings(max_examples=4000, deadline=None)
@given(requests(), HOSTS)
def test_an_answer_breaks_no_constraint(request: MatrixRequest, host: HostGpus) -> None:
    spec = answer(request, host)
    if spec is not None:
        row = row_of(spec)
        assert fits(row, request, host)
        assert not breaks_old_gpus(row, request)
        assert spec.python in row.pythons
        assert request.python in {None, spec.python}
        assert bool(spec.overrides) == ((spec.nccl, spec.cudnn) != (row.nccl, row.cudnn))
        for library, wanted in (("cudnn", request.cudnn), ("nccl", request.nccl)):
            has = getattr(spec, library)
            assert wanted is None or starts_with(has, wanted)


@settings(max_examples=4000, deadline=None)
@given(requests(), HOSTS)
def test_it_never_refuses_when_a_row_fits_and_never_misses_a_newer_torch(
    request: MatrixRequest, host: HostGpus
) -> None:
    spec = answer(request, host)
    fitting = [
        row for row in MATRIX.rows if fits(row, request, host) and not breaks_old_gpus(row, request)
    ]
    if not fitting:
        assert spec is None
        return
    assert spec is not None
    certain = [row for row in fitting if row.confidence != "uncertain"]
    best = certain or fitting
    assert spec.torch == max(row.torch for row in best)
    if not spec.overrides:
        same = [row for row in best if row.torch == spec.torch]
        if not row_of(spec).pypi_default and not (request.cudnn or request.nccl):
            assert not any(row.pypi_default for row in same)
            assert row_of(spec).cuda == max(
                (row.cuda for row in same if row.cuda is not None), default=None
            )


@settings(max_examples=4000, deadline=None)
@given(requests(), HOSTS, st.data())
def test_one_more_constraint_never_yields_a_newer_torch(
    request: MatrixRequest, host: HostGpus, data: st.DataObject
) -> None:
    """No narrowing is it to take the choice from the host, or to say cpu where CUDA was meant."""
    free = [
        name
        for name in sorted(FIELDS)
        if name not in {"arch", "flavor"} and getattr(request, name) in {None, (), "auto"}
    ]
    if not free:
        return
    name = data.draw(st.sampled_from(free))
    host = host if name in {"torch", "python"} else HostGpus()
    narrowed = dataclasses.replace(request, **{name: data.draw(FIELDS[name])})
    before, after = answer(request, host), answer(narrowed, host)
    if before is None or after is None or after.confidence == "uncertain":
        # Naming torch and CUDA also lets in rows that a free choice never takes.
        return
    if narrowed.cuda == "cpu" and before.cuda is not None:
        return
    assert after.torch <= before.torch


@settings(max_examples=4000, deadline=None)
@given(requests(), HOSTS, st.randoms(use_true_random=False))
def test_the_order_of_gpus_does_not_matter(
    request: MatrixRequest, host: HostGpus, shuffle: Random
) -> None:
    gpus = list(request.gpus)
    shuffle.shuffle(gpus)
    one = answer(request, host)
    other = answer(dataclasses.replace(request, gpus=tuple(gpus)), host)
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        assert dataclasses.replace(one, warnings=()) == dataclasses.replace(other, warnings=())
        assert set(one.warnings) == set(other.warnings)


@settings(max_examples=4000, deadline=None)
@given(requests(), HOSTS)
def test_asking_for_the_answer_by_name_gives_the_answer_again(
    request: MatrixRequest, host: HostGpus
) -> None:
    spec = answer(request, host)
    if spec is None:
        return
    again = answer(
        dataclasses.replace(request, torch=spec.torch, cuda=spec.cuda or "cpu", python=spec.python),
        host,
    )
    assert again is not None
    assert (again.torch, again.torch_variant, again.python) == (
        spec.torch,
        spec.torch_variant,
        spec.python,
    )


@settings(max_examples=4000, deadline=None)
@given(requests(), HOSTS)
def test_a_refusal_says_why_and_what_is_near(request: MatrixRequest, host: HostGpus) -> None:
    told = explain(MATRIX, request, host=host)
    assert (told.answer is None) == (answer(request, host) is None)
    assert sum(len(step.removed) for step in told.steps) + len(told.accepted) == len(MATRIX.rows)
    if told.refusal is not None:
        assert told.refusal.why
        assert told.refusal.data["rules"]
        for row in told.refusal.data["nearest"]:
            assert row["differs"]
            assert row["arch"] == request.arch
            assert row["confidence"] != "uncertain"


KEYS = st.sets(
    st.builds(
        lambda row, index: WheelKey(
            torch=row.torch,
            variant=row.variant,
            python=row.pythons[index % len(row.pythons)],
            arch=row.arch,
        ),
        st.sampled_from(MATRIX.rows),
        st.integers(0, 9),
    ),
    max_size=40,
)


@settings(max_examples=4000, deadline=None)
@given(requests(), KEYS, KEYS, st.booleans())
def test_sources_decide_only_what_they_speak_of(
    request: MatrixRequest, at_hand: set[WheelKey], gone: set[WheelKey], offline: bool
) -> None:
    missing = tuple(
        (key, source, "404") for key in sorted(gone, key=str) for source in ("pypi", "pytorch")
    )
    availability = Availability(
        wheelhouse=frozenset(at_hand), missing=missing, only_wheelhouse=offline
    )
    try:
        spec = resolve(MATRIX, request, availability)
    except UnsupportedCombinationError:
        return
    key = WheelKey(torch=spec.torch, variant=spec.torch_variant, python=spec.python, arch=spec.arch)
    if spec.source == "wheelhouse":
        assert key in at_hand
    else:
        assert not offline
        assert key not in gone
        assert key not in at_hand
