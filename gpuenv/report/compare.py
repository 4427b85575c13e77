"""What differs between two places: "works there, not here".

Findings come first, the worst news first; then the facts, those first that the differing checks
read. What differs between any two machines or any two minutes (serial numbers, times, free memory)
is left out, because it explains nothing.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from gpuenv.checks.model import Status
from gpuenv.report.document import plain
from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gpuenv.checks.model import Check, CheckResult, Diagnosis, Facts

Change: TypeAlias = Literal[
    "worse", "better", "changed", "only-in-a", "only-in-b", "unseen-in-a", "unseen-in-b"
]
"""``unseen``: skipped there and well in the other place, so nobody knows whether it differs."""

FACT_GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Driver and GPUs", ("host.nvml", "host.cuda", "host.driver", "host.pci", "host.kernel-log")),
    ("torch and CUDA libraries", ("torch.",)),
    ("Driver libraries", ("host.libs",)),
    ("Container runtime", ("host.engine", "host.toolkit", "host.nodes")),
    ("Limits", ("host.limits", "host.storage")),
    ("Environment variables", ("host.env",)),
    ("User", ("host.user",)),
    ("Network", ("host.network",)),
    ("Compilers", ("host.toolchain",)),
    ("System", ("host.",)),
)
"""Groups of facts in the order they are shown; a probe belongs to the first that fits."""

_VOLATILE = re.compile(
    r"(?:^|[._])(?:\w*time_s|uptime_s|init_s|import_s|seconds|\w*duration\w*|timestamp|pid|pids|"
    r"processes|temperature|temp\w*_c|power\w*|clocks?|utili[sz]ation|free|free_\w+|used|used_\w+|"
    r"available|inodes_free|usage\w*|current|peak\w*|uuid|serial\w*|hostname|bdf|pci_bus_id|handle|"
    r"fan\w*|replay\w*|throughput|load1|samples|losses|residue|\w*_residue|reference_losses|"
    r"gradient_error|loss_error|rate\w*|gb_s|mtime|inode)(?=$|[.\[])"
)
_KEYS_OF_ROWS = ("index", "ordinal", "name", "device", "id")
_PLACES = re.compile(r"(?:^|[._])(?:path|real|prefix|executable|file|dir|folder)(?=$|[.\[])")
_MOST_OF_A_LIST = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingChange:
    """One check that ended differently; a side is ``None`` where the check gave no such result."""

    change: Change
    id: str
    subject: str
    a: CheckResult | None
    b: CheckResult | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FactChange:
    """One fact that differs.

    Attributes:
        related: A check that ended differently reads this probe.
        a: Its value in the first place, ``None`` where that has no such fact.
    """

    group: str
    probe: str
    path: str
    a: Any
    b: Any
    related: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two places side by side, ready to be shown."""

    findings: tuple[FindingChange, ...]
    facts: tuple[FactChange, ...]


def compare(
    first: tuple[Facts, Diagnosis], second: tuple[Facts, Diagnosis], checks: Sequence[Check]
) -> Comparison:
    """Return what differs between two judged places."""
    findings = tuple(_finding_changes(first[1], second[1]))
    changed = {change.id for change in findings if not change.change.startswith("unseen")}
    read = {
        probe for check in checks if check.id in changed for probe in (*check.needs, *check.uses)
    }
    facts = sorted(
        _each_once(_fact_changes(first[0], second[0], read)),
        key=lambda change: (
            not change.related,
            _group_number(change.probe),
            change.probe,
            bool(_PLACES.search(change.path)),  # where things lie differs most and says least
            change.a is None or change.b is None,
        ),
    )
    return Comparison(findings=findings, facts=tuple(facts))


def comparison_as_document(comparison: Comparison) -> dict[str, Any]:
    """Return a comparison as JSON-ready values."""

    def side(result: CheckResult | None) -> dict[str, Any] | None:
        if result is None:
            return None
        return {
            "status": result.status.value,
            "reason": result.reason,
            "summary": result.summary,
        }

    document: dict[str, Any] = plain({
        "findings": [
            {
                "change": change.change, "id": change.id, "subject": change.subject,
                "a": side(change.a), "b": side(change.b),
            }
            for change in comparison.findings
        ],
        "facts": [
            {
                "group": change.group, "probe": change.probe, "path": change.path,
                "a": change.a, "b": change.b, "related": change.related,
            }
            for change in comparison.facts
        ],
    })  # fmt: skip
    return document


# Findings.

_RANK = {
    Status.PASS: 0,
    Status.INFO: 0,
    Status.SKIP: 1,
    Status.WARN: 2,
    Status.ERROR: 3,
    Status.FAIL: 4,
}
_ORDER: tuple[Change, ...] = get_args(Change)
_WELL = (Status.PASS, Status.INFO)


def _finding_changes(first: Diagnosis, second: Diagnosis) -> Iterator[FindingChange]:
    a, b = _by_key(first), _by_key(second)
    changes = []
    for key in dict.fromkeys([*b, *a]):
        change = _change(a.get(key), b.get(key))
        if change is not None:
            changes.append(
                FindingChange(change=change, id=key[0], subject=key[1], a=a.get(key), b=b.get(key))
            )
    yield from sorted(changes, key=lambda each: (_ORDER.index(each.change), -_weight(each)))


def _by_key(diagnosis: Diagnosis) -> Mapping[tuple[str, str], CheckResult]:
    found: dict[tuple[str, str], CheckResult] = {}
    for result in diagnosis.results:
        key = (result.id, result.subject)
        if key not in found or _RANK[result.status] > _RANK[found[key].status]:
            found[key] = result
    return found


def _change(a: CheckResult | None, b: CheckResult | None) -> Change | None:
    if a is None or b is None:
        only = b if a is None else a
        if only is None or _RANK[only.status] < _RANK[Status.WARN]:
            return None
        return "only-in-b" if a is None else "only-in-a"
    before, now = _RANK[a.status], _RANK[b.status]
    if Status.SKIP in {a.status, b.status} and {a.status, b.status} & set(_WELL):
        return "unseen-in-b" if b.status is Status.SKIP else "unseen-in-a"
    if before == now:
        bad = now >= _RANK[Status.WARN]
        return "changed" if bad and a.summary != b.summary else None
    return "worse" if now > before else "better"


def _weight(change: FindingChange) -> int:
    ranks = [_RANK[side.status] for side in (change.a, change.b) if side is not None]
    return max(ranks) * 10 + (max(ranks) - min(ranks))


# Facts.


def _fact_changes(first: Facts, second: Facts, read: set[str]) -> Iterator[FactChange]:
    for probe in dict.fromkeys([*first.probes, *second.probes]):
        run_a, run_b = first.probes.get(probe), second.probes.get(probe)
        if run_a is None or run_b is None:
            continue  # the level was another; findings tell what that leaves open
        values_a = {"": run_a.status} if run_a.status != "ok" else dict(_flat(run_a.facts, ""))
        values_b = {"": run_b.status} if run_b.status != "ok" else dict(_flat(run_b.facts, ""))
        if ("" in values_a) != ("" in values_b):
            values_a, values_b = {"": run_a.status}, {"": run_b.status}
        for path in dict.fromkeys([*values_a, *values_b]):
            a, b = values_a.get(path), values_b.get(path)
            if a != b and not _VOLATILE.search(path):
                yield FactChange(
                    group=FACT_GROUPS[_group_number(probe)][0],
                    probe=probe,
                    path=path or "answer",
                    a=a,
                    b=b,
                    related=probe in read,
                )


def _each_once(changes: Iterable[FactChange]) -> Iterator[FactChange]:
    """Leave out what another probe of the group says in the same words, such as a version."""
    seen: set[tuple[str, str, str, str]] = set()
    for change in changes:
        leaf = re.split(r"[.\]]", change.path)[-1]
        key = (change.group, leaf, str(change.a), str(change.b))
        if isinstance(change.a or change.b, str) and key in seen:
            continue
        seen.add(key)
        yield change


def _group_number(probe: str) -> int:
    for number, (_, prefixes) in enumerate(FACT_GROUPS):
        if probe.startswith(prefixes):
            return number
    return len(FACT_GROUPS) - 1


def _flat(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield each leaf with its path; rows of a list are named by their index or name."""
    if hasattr(value, "items"):
        for name, inner in value.items():
            yield from _flat(inner, f"{path}.{name}" if path else str(name))
    elif isinstance(value, (list, tuple)):
        if all(hasattr(row, "items") for row in value):
            for number, row in enumerate(value):
                yield from _flat(row, f"{path}[{_row_name(row, number)}]")
        else:
            in_order = [] if all(isinstance(item, str) for item in value) else list(value)
            yield path, (in_order or sorted(map(str, value)))[:_MOST_OF_A_LIST]
    elif value is not None:
        yield path, value


def _row_name(row: Mapping[str, Any], number: int) -> str:
    for key in _KEYS_OF_ROWS:
        if isinstance(row.get(key), (str, int)):
            return str(row[key])
    return str(number)
