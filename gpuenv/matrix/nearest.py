"""When nothing fits: why, and which rows come closest."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING

from gpuenv.matrix.rules import RULES, SOFT_RULES
from gpuenv.values import dataclass
from gpuenv.versions import CudaVersion

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gpuenv.matrix.model import Matrix, NeverExisted, Row, VersionRange
    from gpuenv.matrix.rules import Rule, Verdict
    from gpuenv.matrix.wish import Wish
    from gpuenv.versions import DottedVersion, TorchVersion

_REASONS_SHOWN = 4
_WEIGHTS = (1000.0, 1.0, 0.01, 0.0001)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why a request was refused.

    Attributes:
        rules: The rules that refused the rows closest to it.
        why: In words.
        instead: What to take instead, where the matrix has an answer written down; else empty.
    """

    rules: tuple[Rule, ...]
    why: str
    instead: str = ""


def nearest_verdicts(
    matrix: Matrix, wish: Wish, verdicts: Iterable[Verdict], *, limit: int
) -> tuple[Verdict, ...]:
    """Return the rows closest to a wish, closest first.

    Versions can be asked otherwise, hardware and sources cannot: rows that break a rule of the
    latter kind are named only when there are no others. Rows are grouped by the rules they break;
    the best of every group comes before the second of any, so that each way out is shown.
    """
    possible = [
        verdict
        for verdict in verdicts
        if "arch" not in verdict.broken and verdict.row.confidence != "uncertain"
    ]
    for allowed in (SOFT_RULES, SOFT_RULES | {"gpu", "driver", "source"}):
        rows = [verdict for verdict in possible if verdict.broken <= allowed]
        if rows:
            return _interleaved(_ways_out(matrix, wish, rows))[:limit]
    return ()


def _ways_out(matrix: Matrix, wish: Wish, verdicts: list[Verdict]) -> list[list[Verdict]]:
    """Group rows by what they break, without groups that break more than another; nearest first.

    Within a group one row stands for all that differ from the wish in the same way.
    """
    groups: dict[frozenset[str], list[Verdict]] = {}
    for verdict in verdicts:
        # To go without CUDA is more than to take another one.
        without_cuda = verdict.row.cuda is None and wish.cuda != "cpu"
        broken: set[str] = {*verdict.broken, *(("without CUDA",) if without_cuda else ())}
        groups.setdefault(frozenset(broken), []).append(verdict)
    minimal = [rules for rules in groups if not any(other < rules for other in groups)]
    ways: list[list[tuple[float, Verdict]]] = []
    for rules in minimal:
        best: dict[tuple[object, ...], tuple[float, Verdict]] = {}
        for verdict in groups[rules]:
            entry = (_distance(matrix, wish, verdict), verdict)
            key = _difference(verdict, rules)
            if key not in best or _order(entry) < _order(best[key]):
                best[key] = entry
        ways.append(sorted(best.values(), key=_order))
    ways.sort(key=lambda way: _order(way[0]))
    return [[verdict for _, verdict in way] for way in ways]


def _interleaved(ways: list[list[Verdict]]) -> tuple[Verdict, ...]:
    return tuple(verdict for rank in zip_longest(*ways) for verdict in rank if verdict is not None)


def _order(entry: tuple[float, Verdict]) -> tuple[object, ...]:
    distance, verdict = entry
    row = verdict.row
    return (
        distance,
        tuple(-part for part in row.torch.parts),
        not row.pypi_default,
        tuple(-part for part in row.cuda.parts) if row.cuda else (),
    )


def _difference(verdict: Verdict, rules: frozenset[str]) -> tuple[object, ...]:
    row = verdict.row
    values: dict[Rule, object] = {
        "torch": row.minor,
        "cuda": row.variant,
        "python": row.pythons,
        "cudnn": row.cudnn,
        "nccl": row.nccl,
    }
    hard = tuple(it.text for it in verdict.rejections if it.rule not in SOFT_RULES)
    return (*(values[rule] for rule in RULES if rule in rules and rule in values), *hard)


def _distance(matrix: Matrix, wish: Wish, verdict: Verdict) -> float:
    """Sum how far a row is from the wish, over the rules it breaks; a step of a minor counts 1."""
    row, request = verdict.row, wish.request
    measures: dict[Rule, Callable[[], float]] = {
        "torch": lambda: _torch_distance(matrix, request.torch, row),
        "cuda": lambda: _cuda_distance(matrix, wish, row),
        "python": lambda: _python_distance(request.python, row),
        "cudnn": lambda: _between(request.cudnn, row.cudnn),
        "nccl": lambda: _between(request.nccl, row.nccl),
        "driver": lambda: _between(wish.driver, verdict.min_driver),
    }
    total = 0.0
    for rejection in verdict.rejections:
        measure = measures.get(rejection.rule)
        total += measure() if measure is not None else _WEIGHTS[0]
    return total


def _between(wanted: DottedVersion | None, has: DottedVersion | None) -> float:
    if wanted is None or has is None:
        return _WEIGHTS[0]
    pairs = zip(wanted.parts, has.parts, _WEIGHTS, strict=False)
    return sum(abs(a - b) * weight for a, b, weight in pairs)


def _torch_distance(matrix: Matrix, wanted: TorchVersion | None, row: Row) -> float:
    """Count the torch minors between two; patches only tell rows of one minor apart."""
    if wanted is None:
        return _WEIGHTS[0]
    minor = wanted.truncate(2)
    known = sorted({*(version.truncate(2) for version in matrix.torch_versions), minor})
    steps = abs(known.index(minor) - known.index(row.minor))
    names_patch = len(wanted.parts) > len(minor.parts)
    patches = abs(wanted.patch - row.torch.patch) / 100 if names_patch else 0
    return steps + patches


def _cuda_distance(matrix: Matrix, wish: Wish, row: Row) -> float:
    """Count the CUDA releases between two; another major is a step more, no CUDA comes last."""
    if row.cuda is None or not isinstance(wish.cuda, CudaVersion):
        return _WEIGHTS[0]
    known = sorted({*matrix.cuda_versions, wish.cuda.truncate(2)})
    steps = abs(known.index(wish.cuda.truncate(2)) - known.index(row.cuda))
    return steps + abs(wish.cuda.major - row.cuda.major)


def _python_distance(wanted: DottedVersion | None, row: Row) -> float:
    return min((_between(wanted, python) for python in row.pythons), default=_WEIGHTS[0])


def refusal_reason(matrix: Matrix, wish: Wish, verdicts: tuple[Verdict, ...]) -> Reason:
    """Say why nothing fits: first what never existed, then which rule refused the rows meant."""
    here = [verdict for verdict in verdicts if "arch" not in verdict.broken]
    known = _never_existed(matrix, wish)
    meant = [it for it in here if not it.broken & {"torch", "cuda"}]
    if not meant:
        why = known.why if known is not None else _pairing(wish, here)
        rules: tuple[Rule, ...] = ("torch", "cuda") if wish.request.torch else ("cuda",)
        return Reason(rules=rules, why=why, instead=known.instead if known is not None else "")
    closest = min(len(verdict.broken) for verdict in meant)
    texts: dict[str, list[Verdict]] = {}
    broken: set[Rule] = set()
    for verdict in meant:
        if len(verdict.broken) == closest:
            broken |= verdict.broken
            for rejection in verdict.rejections:
                texts.setdefault(rejection.text, []).append(verdict)
    sentences = [f"{_labels(rows)} {text}" for text, rows in texts.items()]
    if len(sentences) > _REASONS_SHOWN:
        more = len(sentences) - _REASONS_SHOWN
        sentences[_REASONS_SHOWN:] = [f"and {more} more; gpuenv matrix explain tells all"]
    instead = ""
    if known is not None:
        sentences.insert(0, known.why)
        instead = known.instead
    elif "driver" in broken:
        enough = min(filter(None, (it.min_driver for it in meant if len(it.broken) == closest)))
        instead = f"update the driver to {enough} or newer"
    return Reason(
        rules=tuple(rule for rule in RULES if rule in broken),
        why="\n".join(sentences),
        instead=instead,
    )


def _labels(verdicts: list[Verdict]) -> str:
    labels = [verdict.row.label for verdict in verdicts]
    if len(labels) == 1:
        return labels[0]
    return f"{labels[0]} (and {len(labels) - 1} more, to {labels[-1]})"


def _pairing(wish: Wish, here: list[Verdict]) -> str:
    """Say for which CUDA a torch exists and for which torch a CUDA, when the two do not meet."""
    torch, cuda = wish.request.torch, wish.cuda
    here = [it for it in here if it.row.confidence != "uncertain"]
    of_torch = [it.row for it in here if torch is not None and "torch" not in it.broken]
    of_cuda = [it.row for it in here if "cuda" not in it.broken]
    parts = []
    if torch is not None and not of_torch:
        newest, oldest = here[0].row.torch, here[-1].row.torch
        parts.append(f"the matrix knows torch {oldest} to {newest}, and no {torch} among them")
    elif torch is not None:
        variants = dict.fromkeys(row.variant for row in of_torch)
        parts.append(f"torch {torch} was built for {', '.join(variants)}")
    if cuda not in {"any", "cpu"}:
        if of_cuda:
            parts.append(
                f"CUDA {cuda} was built for torch {of_cuda[-1].torch} to {of_cuda[0].torch}"
            )
        else:
            known = sorted({it.row.cuda for it in here if it.row.cuda is not None}, reverse=True)
            arch = wish.request.arch
            parts.append(
                f"no wheel for {arch} was built for CUDA {cuda}; there are "
                f"{', '.join(map(str, known))}"
            )
    elif cuda == "any" and of_torch:
        parts.append(f"none of them is a wheel with CUDA for {wish.request.arch}")
    return "; ".join(parts)


def _never_existed(matrix: Matrix, wish: Wish) -> NeverExisted | None:
    request = wish.request
    stated = (
        ("torch", request.torch),
        ("cuda", wish.cuda if isinstance(wish.cuda, CudaVersion) else None),
        ("cudnn", request.cudnn),
        ("python", request.python),
    )
    for entry in matrix.never_existed:
        conditions: dict[str, tuple[VersionRange, ...]] = {
            "torch": entry.torch,
            "cuda": entry.cuda,
            "cudnn": entry.cudnn,
            "python": entry.python,
        }
        if all(
            not conditions[name]
            or (version is not None and any(it.covers(version) for it in conditions[name]))
            for name, version in stated
        ):
            return entry
    return None
