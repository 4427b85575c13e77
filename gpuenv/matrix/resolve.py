"""Choose the row that answers a request, or refuse with the rule and the nearest rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from gpuenv.errors import UnsupportedCombinationError
from gpuenv.matrix.bases import devel_wheels
from gpuenv.matrix.nearest import nearest_verdicts, refusal_reason
from gpuenv.matrix.rules import RULES, SOFT_RULES, judge
from gpuenv.matrix.wish import asks_host, plan_wish
from gpuenv.spec import Availability, EnvironmentSpec, HostGpus
from gpuenv.versions import CudaVersion, CudnnVersion, NcclVersion

if TYPE_CHECKING:
    from gpuenv.matrix.model import Matrix, Row
    from gpuenv.matrix.rules import Rule, Verdict
    from gpuenv.matrix.wish import Wish
    from gpuenv.spec import MatrixRequest

_NEAREST_SHOWN = 5
_Library = TypeVar("_Library", CudnnVersion, NcclVersion)


def resolve(
    matrix: Matrix,
    request: MatrixRequest,
    availability: Availability = Availability(),  # noqa: B008 - frozen
    *,
    host: HostGpus = HostGpus(),  # noqa: B008 - frozen
    local_bases: frozenset[str] = frozenset(),
) -> EnvironmentSpec:
    """Return the environment that answers a request; pure, so the same input gives the same answer.

    Among the rows that break no rule: the newest torch; in it a row without overrides, then PyPI's
    own default, then the higher CUDA. An uncertain row answers only when torch and CUDA name it.

    Args:
        matrix: The rows and the facts behind the rules.
        request: What was asked; a version is a prefix.
        availability: What is known of the wheel sources; by default the matrix is trusted.
        host: What ``--cuda auto`` finds when the request itself says nothing of GPUs.
        local_bases: Base images the engine has, or can make without a registry: when the request
            names no Python, one that comes with such a base is preferred.

    Raises:
        UnsupportedCombinationError: No row fits. ``data["nearest"]`` holds the closest rows as
            ``gpuenv matrix resolve --json`` prints a row, closest first.
    """
    wish = plan_wish(request, host)
    verdicts = judge_all(matrix, wish, availability=availability, local_bases=local_bases)
    chosen = choose(verdicts)
    if chosen is None:
        raise refusal(matrix, wish, verdicts)
    return environment_spec(matrix, wish, chosen)


def judge_all(
    matrix: Matrix,
    wish: Wish,
    *,
    availability: Availability = Availability(),  # noqa: B008 - frozen
    local_bases: frozenset[str] = frozenset(),
) -> tuple[Verdict, ...]:
    """Ask every rule of every row, in the order of the matrix."""
    return tuple(
        judge(matrix, wish, row, availability=availability, local_bases=local_bases)
        for row in matrix.rows
    )


def choose(verdicts: tuple[Verdict, ...]) -> Verdict | None:
    """Return the best of the accepted rows, ``None`` when there is none."""
    accepted = [verdict for verdict in verdicts if verdict.accepted]
    return max(accepted, key=_preference, default=None)


def _preference(verdict: Verdict) -> tuple[object, ...]:
    row = verdict.row
    return (
        row.confidence != "uncertain",
        row.torch,
        not verdict.overrides,
        row.pypi_default,
        row.cuda or CudaVersion((0,)),
    )


def environment_spec(matrix: Matrix, wish: Wish, verdict: Verdict) -> EnvironmentSpec:
    """Turn a row and what was decided around it into the value that travels."""
    row = verdict.row
    overrides = dict(verdict.overrides)
    warnings = list(verdict.warnings)
    wheels: tuple[str, ...] = ()
    if wish.request.flavor == "devel":
        wheels, patch = devel_wheels(matrix, row)
        if patch is not None and row.toolkit is None:
            warnings.append(
                f"which patch of CUDA {row.cuda} {row.label} was built with is not known; "
                f"nvcc of {patch} is installed"
            )
    return EnvironmentSpec(
        torch=row.torch,
        torch_variant=row.variant,
        cuda=row.cuda,
        toolkit=row.toolkit,
        cudnn=_replaced(row.cudnn, overrides, "cudnn"),
        nccl=_replaced(row.nccl, overrides, "nccl"),
        triton=row.triton,
        torchvision=row.torchvision,
        torchaudio=row.torchaudio,
        python=verdict.base.python,
        arch=row.arch,
        arch_list=row.arch_list or (),
        min_driver=verdict.min_driver,
        base_image=verdict.base.image,
        flavor=wish.request.flavor,
        source=verdict.source,
        confidence=row.confidence,
        python_source=verdict.base.python_source,
        devel_packages=wheels,
        max_gcc=_max_gcc(matrix, row),
        warnings=tuple(warnings),
        notes=wish.notes,
        overrides=verdict.overrides,
    )


def _replaced(version: _Library | None, overrides: dict[str, str], library: str) -> _Library | None:
    for package, wanted in overrides.items():
        if library in package and version is not None:
            return type(version).parse(wanted)
    return version


def _max_gcc(matrix: Matrix, row: Row) -> str | None:
    toolkit = matrix.toolkits.get(row.cuda) if row.cuda is not None else None
    return toolkit.max_gcc if toolkit is not None else None


def nearest_environments(
    matrix: Matrix,
    request: MatrixRequest,
    availability: Availability,
    *,
    host: HostGpus,
    local_bases: frozenset[str],
) -> tuple[EnvironmentSpec, ...]:
    """Return what a refusal suggests, closest first, for a caller who can ask the sources of it."""
    wish = plan_wish(request, host)
    verdicts = judge_all(matrix, wish, availability=availability, local_bases=local_bases)
    nearest = nearest_verdicts(matrix, wish, verdicts, limit=_NEAREST_SHOWN)
    return tuple(environment_spec(matrix, wish, it) for it in nearest if it.broken <= SOFT_RULES)


def _ways_in_words(wish: Wish, nearest: tuple[Verdict, ...]) -> str:
    """Write the two closest ways out as flags; of others only the wheel can be named."""
    ways = [_flags(wish, it) for it in nearest if it.broken <= SOFT_RULES]
    shown = list(dict.fromkeys(filter(None, ways)))[:2]
    if shown:
        return f"try {', or '.join(shown)}"
    labels = [it.row.label for it in nearest if "source" not in it.broken][:2]
    if labels:
        return f"closest is {' or '.join(labels)}"
    return "name a source that has it with --torch-index-url or --wheelhouse" if nearest else ""


def _flags(wish: Wish, verdict: Verdict) -> str:
    """Return the flags that turn a request into one that a row fulfils."""
    row = verdict.row
    named = wish.request.torch
    has_patch = named is not None and len(named.parts) > len(row.minor.parts)
    values: dict[Rule, object] = {
        "torch": row.torch if has_patch else row.minor,
        "cuda": row.cuda or "cpu",
        "python": verdict.base.python,
        "cudnn": row.cudnn,
        "nccl": row.nccl,
    }
    flags = [(rule, values[rule]) for rule in RULES if rule in verdict.broken]
    if any(value is None for _, value in flags):
        return ""  # it has no cuDNN at all, for example
    return " ".join(f"--{rule} {value}" for rule, value in flags)


def refusal(
    matrix: Matrix, wish: Wish, verdicts: tuple[Verdict, ...]
) -> UnsupportedCombinationError:
    """Put a refusal into words: what was asked, the rule that refused it, the nearest rows."""
    nearest = nearest_verdicts(matrix, wish, verdicts, limit=_NEAREST_SHOWN)
    reason = refusal_reason(matrix, wish, verdicts)
    ways = _ways_in_words(wish, nearest)
    fix = "; ".join(filter(None, (reason.instead, ways)))
    if asks_host(wish.request) and wish.gpus:
        way_out = "--gpu names the GPUs that matter, --cuda cpu does without them"
        fix = f"{fix}; {way_out}" if fix else way_out
    exists = reason.rules == ("source",)
    return UnsupportedCombinationError(
        f"no source at hand has a PyTorch wheel for {wish.in_words()}"
        if exists
        else f"no PyTorch wheel fits {wish.in_words()}",
        why=reason.why,
        fix=fix,
        data={
            "rules": list(reason.rules),
            "nearest": [
                {
                    **environment_spec(matrix, wish, verdict).as_dict(),
                    "differs": [
                        {"rule": rejection.rule, "text": f"{verdict.row.label} {rejection.text}"}
                        for rejection in verdict.rejections
                    ],
                }
                for verdict in nearest
            ],
        },
    )
