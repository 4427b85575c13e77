"""Propose changes to the matrix file from a survey of the indexes; pure, nothing is written here.

Only what a wheel or an index states is touched:

* ``released``, ``python``, ``pypi`` and ``triton`` of a patch;
* ``toolkit``, ``cudnn``, ``nccl`` and ``arch_list`` of a variant;
* ``checked`` of an entry that changes;
* whole entries, added for releases and variants the file lacks.

No entry is ever dropped, and sources, confidence and notes of existing entries belong to people.
A value that differs between the patches of one release cannot be written, since the file keeps one
for all of them: that is told instead.
"""

from __future__ import annotations

import copy
import difflib
from dataclasses import replace
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

from gpuenv.matrix.document import path_text, write_document
from gpuenv.values import dataclass
from gpuenv.versions import TorchVersion

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gpuenv.matrix.document import Document
    from gpuenv.spec import Arch
    from gpuenv.wheelfacts import CompanionReading, ReleaseListing, Survey, WheelFacts, WheelReading

Where: TypeAlias = "tuple[str, ...]"

_COMPANION_DELAY = timedelta(days=7)
_SOURCE_WHEEL = "PYPI-WHEEL"
_SOURCE_INDEX = "PYPI-INDEX"
_ARCHES: tuple[Arch, ...] = ("x86_64", "aarch64")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One value that changes, or one entry that is added.

    Attributes:
        before: ``None`` for what was not there.
    """

    where: Where
    before: Any
    after: Any

    def as_dict(self) -> dict[str, Any]:
        """Return it for ``--json``."""
        return {"where": path_text(self.where), "before": self.before, "after": self.after}


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdatePlan:
    """What would change.

    Attributes:
        text: The whole file as it would be.
        notes: What a person has to look at, in sentences.
    """

    before: str
    text: str
    changes: tuple[Change, ...]
    notes: tuple[str, ...] = ()

    @property
    def diff(self) -> str:
        """The change as a unified diff, empty when there is none."""
        lines = difflib.unified_diff(
            self.before.splitlines(keepends=True),
            self.text.splitlines(keepends=True),
            "versions.yaml",
            "versions.yaml (proposed)",
        )
        return "".join(lines)


def plan_update(document: Document, survey: Survey, *, today: str) -> UpdatePlan:
    """Propose changes to a matrix file.

    Args:
        document: The file, read with its comments; it is not changed.
        survey: Readings of the rows to refresh and of the releases to add, with the listings of
            the index and the companions that a new release could name.
        today: The day for ``checked``, ``2026-12-01``.
    """
    planner = _Planner(document, survey, today)
    planner.refresh()
    planner.add_releases()
    changed = replace(document, data=planner.data)
    return UpdatePlan(
        before=write_document(document),
        text=write_document(changed),
        changes=tuple(planner.changes),
        notes=tuple(dict.fromkeys(planner.notes)),
    )


def new_releases(document: Document, releases: Iterable[ReleaseListing]) -> tuple[str, ...]:
    """Return the releases of an index that the file lacks, from its oldest one on; oldest first."""
    known = {
        TorchVersion.parse(patch)
        for release in document.data["releases"].values()
        for patch in release["patches"]
    }
    found = {TorchVersion.parse(release.torch) for release in releases}
    return tuple(str(v) for v in sorted(found - known) if not known or v > min(known))


def choose_companion(
    torch: str, project: str, companions: Iterable[CompanionReading], *, released: str
) -> str | None:
    """Return the release of a companion that came with a torch release.

    Of those that accept it, one that names exactly this torch wins, then the newest that was there
    within a week of torch's own release, then the newest of all.

    Args:
        torch: ``2.14.1``.
        project: ``torchvision``.
        companions: The releases that were read.
        released: The day of torch's release.
    """
    from packaging.specifiers import SpecifierSet
    from packaging.version import Version

    last_day = (date.fromisoformat(released) + _COMPANION_DELAY).isoformat()
    accepted = [
        (
            requires.startswith("==") and "," not in requires,
            it.released is not None and it.released <= last_day,
            Version(it.version),
            it.version,
        )
        for it in companions
        if it.project == project
        and (requires := it.requires_torch) is not None
        and SpecifierSet(requires).contains(torch)
    ]
    return max(accepted)[-1] if accepted else None


class _Planner:
    """Applies a survey to a copy of the file's data and keeps what it changed."""

    def __init__(self, document: Document, survey: Survey, today: str) -> None:
        self.data: dict[str, Any] = copy.deepcopy(document.data)
        self.changes: list[Change] = []
        self.notes: list[str] = []
        self._survey = survey
        self._today = today
        self._known = {
            patch for release in self.data["releases"].values() for patch in release["patches"]
        }

    # Entries that exist.

    def refresh(self) -> None:
        """Change what readings of existing rows contradict."""
        by_minor: dict[str, list[WheelReading]] = {}
        for reading in self._survey.readings:
            if reading.facts is not None and reading.torch in self._known:
                by_minor.setdefault(_minor(reading.torch), []).append(reading)
        listings = {(it.torch, it.arch): it for it in self._survey.releases}
        for minor, readings in by_minor.items():
            for torch in dict.fromkeys(reading.torch for reading in readings):
                own = [reading for reading in readings if reading.torch == torch]
                self._refresh_patch(minor, torch, own, listings)
            for variant in dict.fromkeys(_facts(reading).variant for reading in readings):
                own = [reading for reading in readings if _facts(reading).variant == variant]
                if variant in self.data["releases"][minor]["variants"]:
                    self._refresh_variant(minor, variant, own)
                    continue
                for torch in dict.fromkeys(reading.torch for reading in own):
                    alike = [reading for reading in own if reading.torch == torch]
                    self._add_variant(minor, torch, variant, alike)

    def _refresh_patch(
        self,
        minor: str,
        torch: str,
        readings: Sequence[WheelReading],
        listings: Mapping[tuple[str, Arch], ReleaseListing],
    ) -> None:
        where = ("releases", minor, "patches", torch)
        patch = self._at(where)
        changed = False
        for reading in readings:
            facts, arch = _facts(reading), reading.arch
            is_default = patch["pypi"].get(arch) == reading.variant
            if is_default and facts.variant != reading.variant:
                changed |= self._set((*where, "pypi", arch), facts.variant)
            listing = listings.get((torch, arch))
            if is_default and listing is not None and listing.pythons:
                span = [listing.pythons[0], listing.pythons[-1]]
                changed |= self._set((*where, "python", arch), span)
                if arch == "x86_64" and listing.released:
                    changed |= self._set((*where, "released"), listing.released)
        triton = self._agreed(
            (*where, "triton"),
            [(r, f.triton) for r in readings if (f := _facts(r)).cuda is not None],
        )
        if triton is not None:
            changed |= self._set((*where, "triton"), triton)
        if changed:
            self._set((*where, "checked"), self._today)

    def _refresh_variant(self, minor: str, variant: str, readings: Sequence[WheelReading]) -> None:
        where = ("releases", minor, "variants", variant)
        entry = self._at(where)
        changed = False
        fields: list[tuple[Where, list[tuple[WheelReading, Any]]]] = []
        if variant != "cpu":
            fields.append((("toolkit",), [(r, _facts(r).toolkit) for r in readings]))
            if not entry.get("bundled"):
                fields.append((("cudnn",), [(r, _facts(r).cudnn) for r in readings]))
                fields.append((("nccl",), [(r, _facts(r).nccl) for r in readings]))
        for arch in _ARCHES:
            lists = [
                (r, list(arch_list))
                for r in readings
                if r.arch == arch and (arch_list := _facts(r).arch_list) is not None
            ]
            fields.append((("arch_list", arch), lists))
        for key, values in fields:
            told = [(reading, value) for reading, value in values if value is not None]
            value = self._agreed((*where, *key), told)
            if value is not None:
                changed |= self._set((*where, *key), value)
        if changed:
            self._set((*where, "checked"), self._today)

    def _agreed(self, where: Where, values: Sequence[tuple[WheelReading, Any]]) -> Any:
        """Return the one value that all readings state, or ``None`` and a note."""
        distinct: list[Any] = []
        for _, value in values:
            if value not in distinct:
                distinct.append(value)
        if len(distinct) <= 1:
            return distinct[0] if distinct else None
        told = "; ".join(
            f"{r.torch} {r.arch}: {' '.join(v) if isinstance(v, list) else v}" for r, v in values
        )
        self.notes.append(
            f"{path_text(where)} differs between wheels and the file has one place for it ({told})"
        )
        return None

    # Releases that the file lacks.

    def add_releases(self) -> None:
        """Add an entry for every new release that was read, the oldest first."""
        readings: dict[str, list[WheelReading]] = {}
        for reading in self._survey.readings:
            if reading.torch in self._known:
                continue
            if reading.facts is None:
                self.notes.append(
                    f"torch {reading.torch} for {reading.arch} is new and was not read: "
                    f"{reading.reason}"
                )
            else:
                readings.setdefault(reading.torch, []).append(reading)
        for torch in sorted(readings, key=TorchVersion.parse):
            self._add_release(torch, readings[torch])

    def _add_release(self, torch: str, readings: Sequence[WheelReading]) -> None:
        minor = _minor(torch)
        listings = {it.arch: it for it in self._survey.releases if it.torch == torch}
        is_new_minor = minor not in self.data["releases"]
        if is_new_minor:
            _insert_sorted(self.data["releases"], minor, {"patches": {}, "variants": {}})
        release = self.data["releases"][minor]
        patch = self._new_patch(torch, readings, listings)
        _insert_sorted(release["patches"], torch, patch)
        self.changes.append(
            Change(where=("releases", minor, "patches", torch), before=None, after=patch)
        )
        before = tuple(release["variants"])
        for variant in dict.fromkeys(_facts(reading).variant for reading in readings):
            own = [reading for reading in readings if _facts(reading).variant == variant]
            self._add_variant(minor, torch, variant, own)
        self._note_what_was_not_read(torch, before, readings)

    def _new_patch(
        self,
        torch: str,
        readings: Sequence[WheelReading],
        listings: Mapping[Arch, ReleaseListing],
    ) -> dict[str, Any]:
        spans = {
            arch: [listings[arch].pythons[0], listings[arch].pythons[-1]]
            for arch in _ARCHES
            if arch in listings
        }
        defaults = {
            reading.arch: _facts(reading).variant
            for reading in readings
            if not _facts(reading).filename.partition("-cp")[0].count("+")
        }
        days = [day for arch in _ARCHES if arch in listings and (day := listings[arch].released)]
        triton = self._agreed(
            ("releases", _minor(torch), "patches", torch, "triton"),
            [(r, t) for r in readings if (t := _facts(r).triton) is not None],
        )
        patch: dict[str, Any] = {
            "released": min(days, default=self._today),
            "python": spans,
            "pypi": {arch: defaults[arch] for arch in _ARCHES if arch in defaults},
            "triton": triton,
        }
        for project in ("torchvision", "torchaudio"):
            patch[project] = choose_companion(
                torch, project, self._survey.companions, released=patch["released"]
            )
            if patch[project] is None:
                self.notes.append(f"no release of {project} was found that accepts torch {torch}")
        return {
            **patch,
            "source": [_SOURCE_WHEEL, _SOURCE_INDEX],
            "checked": self._today,
            "confidence": "verified",
        }

    def _add_variant(
        self, minor: str, torch: str, variant: str, readings: Sequence[WheelReading]
    ) -> None:
        variants = self.data["releases"][minor]["variants"]
        where = ("releases", minor, "variants", variant)
        if variant not in variants:
            entry = self._new_variant(variant, readings)
            others = [p for p in self.data["releases"][minor]["patches"] if p != torch]
            if others:
                # The other patches of this release never had it.
                entry["patches"] = [torch]
            _insert_sorted(variants, variant, entry, key_of=_variant_key)
            self.changes.append(Change(where=where, before=None, after=entry))
            self._note_unknown_cuda(variant)
            return
        entry = variants[variant]
        if "patches" in entry and torch not in entry["patches"]:
            listed = sorted([torch, *entry["patches"]], key=TorchVersion.parse, reverse=True)
            self._set((*where, "patches"), listed)
        expected = self._new_variant(variant, readings)
        for field in ("toolkit", "cudnn", "nccl"):
            if field in expected and expected[field] not in {None, entry.get(field)}:
                self.notes.append(
                    f"{path_text(where)}.{field} is {entry.get(field)} in the file and "
                    f"{expected[field]} in the wheel of {torch}; the file has one place for it"
                )
        for arch, arch_list in expected["arch_list"].items():
            if arch not in entry["arch_list"]:
                self._set((*where, "arch_list", arch), arch_list)
            elif entry["arch_list"][arch] != arch_list:
                self.notes.append(
                    f"{path_text(where)}.arch_list.{arch} differs in the wheel of {torch}: "
                    f"{' '.join(arch_list)}"
                )

    def _new_variant(self, variant: str, readings: Sequence[WheelReading]) -> dict[str, Any]:
        facts = [_facts(reading) for reading in readings]
        first = facts[0]
        entry: dict[str, Any] = {}
        if variant != "cpu":
            entry |= {"toolkit": first.toolkit, "cudnn": first.cudnn, "nccl": first.nccl}
        lists = {it.arch: it.arch_list for it in facts if it.arch_list is not None}
        entry["arch_list"] = {arch: list(lists[arch]) for arch in _ARCHES if arch in lists}
        return {
            **entry,
            "source": [_SOURCE_WHEEL],
            "checked": self._today,
            "confidence": "verified",
        }

    def _note_unknown_cuda(self, variant: str) -> None:
        from gpuenv.matrix.load import cuda_of_variant

        if variant == "cpu":
            return
        cuda = cuda_of_variant(variant)
        if str(cuda.major) not in self.data["cuda_majors"]:
            self.notes.append(
                f"cuda_majors has no {cuda.major}: add its driver and wheel names by hand"
            )
        if str(cuda) not in self.data["toolkits"]:
            self.notes.append(f"toolkits has no {cuda}: add its driver by hand")

    def _note_what_was_not_read(
        self, torch: str, before: Iterable[str], readings: Sequence[WheelReading]
    ) -> None:
        read = {_facts(reading).variant for reading in readings}
        taken_over = [variant for variant in before if variant not in read]
        if taken_over:
            self.notes.append(
                f"torch {torch}: {', '.join(taken_over)} are taken over from the other patches of "
                "the release, their wheels were not read"
            )
        planned = {f"cu{c.replace('.', '')}" for r in readings for _, c, _ in _facts(r).arch_table}
        if not {*before, *read} & {"cpu"}:
            self.notes.append(
                f"torch {torch}: its cpu wheel was not read; add it by hand once it is known "
                "to be published"
            )
        unknown = sorted(planned - read - set(before))
        if unknown:
            self.notes.append(
                f"torch {torch}: upstream's build table names {', '.join(unknown)} as well; "
                "whether they were published could not be read here"
            )

    # The file's data.

    def _at(self, where: Where) -> Any:
        value: Any = self.data
        for key in where:
            value = value[key]
        return value

    def _set(self, where: Where, value: Any) -> bool:
        """Set a value and keep the change; say whether there was one."""
        holder = self._at(where[:-1])
        before = holder.get(where[-1])
        if before == value:
            return False
        holder[where[-1]] = value
        self.changes.append(Change(where=where, before=before, after=value))
        return True


def _facts(reading: WheelReading) -> WheelFacts:
    assert reading.facts is not None  # noqa: S101 - only readings with facts get here
    return reading.facts


def _minor(torch: str) -> str:
    return str(TorchVersion.parse(torch).truncate(2))


def _variant_key(variant: str) -> tuple[int, int]:
    from gpuenv.matrix.load import cuda_of_variant

    if variant == "cpu":
        return (0, 0)
    cuda = cuda_of_variant(variant)
    return (cuda.major, cuda.minor)


def _insert_sorted(
    mapping: dict[str, Any],
    key: str,
    value: Any,
    *,
    key_of: Callable[[str], Any] = TorchVersion.parse,
) -> None:
    """Insert into a mapping whose keys stand newest first, leaving the others in their order."""
    items = list(mapping.items())
    position = next(
        (n for n, (other, _) in enumerate(items) if key_of(other) < key_of(key)), len(items)
    )
    items.insert(position, (key, value))
    mapping.clear()
    mapping.update(items)
