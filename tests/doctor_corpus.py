"""The corpus of faults: read it, and break a healthy machine as a row says."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from tests.doctor_machines import BASES, Document, as_facts

if TYPE_CHECKING:
    from gpuenv.checks.model import Facts

DATA = Path(__file__).parent / "data" / "doctor"
GONE = "<gone>"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Case:
    """One machine with something changed.

    Attributes:
        cause: The id the doctor must name first; empty for a healthy machine.
        origin: Where people met the fault, or which false alarm it provokes.
        warns: A warning is allowed, never a failure.
    """

    id: str
    base: str
    changes: dict[str, Any]
    cause: str = ""
    origin: str = ""
    asked: dict[str, Any] = field(default_factory=dict)
    warns: bool = False

    def facts(self) -> Facts:
        """Return the machine's facts."""
        document = BASES[self.base]()
        document["asked"].update(self.asked)
        for path, value in self.changes.items():
            apply(document, path, value)
        return as_facts(document)


def apply(document: Document, path: str, value: Any) -> None:
    """Change one thing: ``host.nvml/gpus/*/fabric/state``; ``~1`` stands for a slash in a key."""
    probe, *keys = [part.replace("~1", "/") for part in path.split("/")]
    if not keys:
        document["probes"][probe] = {"status": "ok", "facts": value, "duration_s": 0.01}
        if value is None:
            del document["probes"][probe]
        return
    places = [document["probes"][probe]["facts"]]
    for key in keys[:-1]:
        places = [inner for place in places for inner in _inside(place, key)]
    for place in places:
        _put(place, keys[-1], value)


def _inside(place: Any, key: str) -> list[Any]:
    if key == "*":
        return list(place.values()) if isinstance(place, dict) else list(place)
    return [place[int(key)] if isinstance(place, list) else place[key]]


def _put(place: Any, key: str, value: Any) -> None:
    keys: list[Any] = [int(key) if isinstance(place, list) and key != "*" else key]
    if key == "*":
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
    for one in keys:
        if value == GONE:
            del place[one]
        else:
            place[one] = value


def _load(name: str) -> list[dict[str, Any]]:
    loaded: list[dict[str, Any]] = yaml.safe_load((DATA / name).read_text(encoding="utf-8"))
    return loaded


@functools.cache
def faults() -> tuple[Case, ...]:
    """Return the faults."""
    return tuple(
        Case(
            id=row["id"],
            base=row["base"],
            changes=row["set"],
            cause=row["cause"],
            origin=row["from"],
            asked=row.get("asked", {}),
        )
        for row in _load("faults.yaml")
    )


@functools.cache
def healthy() -> tuple[Case, ...]:
    """Return the healthy machines: every base, and the traps."""
    bases = tuple(Case(id=name, base=name, changes={}) for name in BASES)
    traps = tuple(
        Case(
            id=row["id"],
            base=row["base"],
            changes=row["set"],
            origin=row["trap"],
            warns=row.get("warns", False),
            asked=row.get("asked", {}),
        )
        for row in _load("healthy.yaml")
    )
    return bases + traps
