"""How checks read facts and say what they found, in few words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from gpuenv.checks.model import CheckResult, Evidence, Fix, Status
from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuenv.checks.model import Confidence, Facts, Side, SkipReason

Results: TypeAlias = tuple[CheckResult, ...]


def seen(source: str, value: object) -> Evidence:
    """Return one observed value and where it was read."""
    return Evidence(source=source, value=str(value))


def fix(side: Side, text: str, command: str = "") -> Fix:
    """Return one way to mend a finding."""
    return Fix(side=side, text=text, command=command)


@dataclass(frozen=True, slots=True)
class Say:
    """The results of one check: ``Say("host.uvm").ok("...")`` returns a tuple of one."""

    id: str
    subject: str = ""

    def of(self, subject: str) -> Say:
        """Speak of one subject among several."""
        return Say(self.id, subject)

    def ok(self, summary: str, *evidence: Evidence) -> Results:
        """Say that all is well."""
        return self._say(Status.PASS, summary, evidence=evidence)

    def info(self, summary: str, *evidence: Evidence, why: str = "") -> Results:
        """Tell a fact that changes no verdict."""
        return self._say(Status.INFO, summary, evidence=evidence, why=why)

    def skip(self, reason: SkipReason, summary: str) -> Results:
        """Say why nothing was looked at."""
        return self._say(Status.SKIP, summary, reason=reason)

    def warn(self, summary: str, **more: Any) -> Results:
        """Say what may bite; takes the fields of :class:`CheckResult`."""
        return self._say(Status.WARN, summary, **more)

    def fail(self, summary: str, **more: Any) -> Results:
        """Say what is broken; takes the fields of :class:`CheckResult`."""
        return self._say(Status.FAIL, summary, **more)

    def error(self, summary: str, **more: Any) -> Results:
        """Say that the question could not be answered."""
        return self._say(Status.ERROR, summary, **more)

    def _say(
        self,
        status: Status,
        summary: str,
        *,
        reason: SkipReason | None = None,
        why: str = "",
        evidence: Iterable[Evidence] = (),
        fixes: Iterable[Fix] = (),
        alternatives: Iterable[str] = (),
        confidence: Confidence = "certain",
        suspects: Iterable[str] = (),
        numbers: Mapping[str, Any] | None = None,
    ) -> Results:
        return (
            CheckResult(
                id=self.id,
                subject=self.subject,
                status=status,
                summary=summary,
                reason=reason,
                why=why,
                evidence=tuple(evidence),
                fixes=tuple(fixes),
                alternatives=tuple(alternatives),
                confidence=confidence,
                suspects=tuple(suspects),
                numbers=dict(numbers or {}),
            ),
        )


def probe(facts: Facts, name: str) -> Mapping[str, Any]:
    """Return what a probe found, an empty mapping when it did not answer."""
    return facts.get(name) or {}


def group(value: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return a mapping inside facts; empty when it is not one."""
    inner = value.get(key)
    return inner if isinstance(inner, Mapping) else {}


def rows(value: Mapping[str, Any], key: str) -> tuple[Mapping[str, Any], ...]:
    """Return the mappings of a list inside facts; what is no mapping is passed over."""
    inner = value.get(key)
    if not isinstance(inner, (list, tuple)):
        return ()
    return tuple(entry for entry in inner if isinstance(entry, Mapping))


def words(value: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """Return a list of texts inside facts."""
    inner = value.get(key)
    return tuple(map(str, inner)) if isinstance(inner, (list, tuple)) else ()


def text(value: Mapping[str, Any], key: str) -> str:
    """Return a text inside facts, empty when it is missing."""
    inner = value.get(key)
    return inner if isinstance(inner, str) else ""


def number(value: Mapping[str, Any], key: str) -> float | None:
    """Return a number inside facts, ``None`` for everything else (``{"nvml": 3}``, a boolean)."""
    inner = value.get(key)
    return inner if isinstance(inner, (int, float)) and not isinstance(inner, bool) else None


def integer(value: Mapping[str, Any], key: str) -> int | None:
    """Return a whole number inside facts, ``None`` for everything else."""
    inner = value.get(key)
    return inner if isinstance(inner, int) and not isinstance(inner, bool) else None


def nvml_code(value: Mapping[str, Any], key: str) -> int | None:
    """Return the NVML code a field failed with, ``None`` where it has a value."""
    inner = value.get(key)
    code = inner.get("nvml") if isinstance(inner, Mapping) else None
    return code if isinstance(code, int) else None


def in_mib(size_bytes: float) -> str:
    """Write a size in the unit a person would use: ``64 MiB``, ``1.5 GiB``."""
    mib = size_bytes / (1 << 20)
    return f"{mib:.0f} MiB" if mib < 1024 else f"{mib / 1024:.1f} GiB"  # noqa: PLR2004 - units
