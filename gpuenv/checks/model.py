"""The doctor's vocabulary: facts in, findings out.

A *probe* writes facts, a *check* reads facts and returns a :class:`CheckResult`, a *diagnosis*
folds consequences under their cause, and a *report* shows the whole. ``skip`` and ``error`` never
count as ``pass``: a skip carries the reason code why nothing was looked at, an error says that the
doctor's own probe crashed, timed out or could not tell.
"""

from __future__ import annotations

from dataclasses import field
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Status(str, Enum):
    """How a check ended."""

    PASS = "pass"  # noqa: S105 - a status, not a password
    INFO = "info"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"
    ERROR = "error"


class Level(int, Enum):
    """How deep a check goes; a level includes the ones before it."""

    STATIC = 0
    QUICK = 1
    STANDARD = 2
    DEEP = 3


SkipReason: TypeAlias = Literal[
    "no-gpu",
    "no-torch",
    "needs-root",
    "not-applicable",
    "level",
    "busy",
    "unsupported-by-driver",
    "blocked",
    "not-probed",
    "offline",
    "single-gpu",
    "excluded",
]
Side: TypeAlias = Literal["host", "container", "image", "engine", "project"]
Confidence: TypeAlias = Literal["certain", "likely", "possible"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One observed value and where it was read."""

    source: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """One way to mend a finding, printed and never run.

    Attributes:
        side: Where it has to be done.
        text: One imperative sentence.
        command: What to type, empty where there is no one command.
    """

    side: Side
    text: str
    command: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """What one check found.

    Attributes:
        id: Stable: ``host.driver.match``. ``gpuenv explain ID`` knows it.
        subject: What it speaks of where there are several: ``GPU 0``, ``mlx5_0``; else empty.
        summary: One line for the table.
        reason: The skip reason; set exactly when the status is ``skip``.
        why: The likely cause, in words.
        blocked_by: The id of the failed check that made this one meaningless.
        suspects: Ids of checks that explain this one when they found something themselves, the
            likeliest first: a failed all-reduce whose text speaks of shared memory names
            ``shm.size``. The diagnosis folds this result under the first that warned or failed.
        numbers: Measured values for curves, gauges and thresholds, JSON-ready, any of: ``value``,
            ``unit``, ``floor`` and ``expected`` (what it was held against), ``source`` (of the
            threshold); ``curve``: ``{"title", "x", "x_unit", "y", "y_unit", "log": True,
            "expected": 473.0, "series": [{"name": "float32", "points": [[1048576, 12.5], ...]}]}``
            with x in ascending order; ``bars``: ``{"title", "unit", "floor": 48.0, "expected":
            55.0, "bars": [["GPU 0", 55.1], ...]}``. The HTML page draws the last two.
    """

    id: str
    status: Status
    summary: str
    subject: str = ""
    reason: SkipReason | None = None
    why: str = ""
    evidence: tuple[Evidence, ...] = ()
    fixes: tuple[Fix, ...] = ()
    alternatives: tuple[str, ...] = ()
    confidence: Confidence = "certain"
    blocked_by: str = ""
    suspects: tuple[str, ...] = ()
    numbers: Mapping[str, Any] = field(default_factory=dict)


ProbeStatus: TypeAlias = Literal["ok", "error", "timeout", "crashed", "garbage", "skipped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRun:
    """One probe's answer, or how it failed to give one.

    Attributes:
        facts: JSON-ready values. Of a probe that crashed or hung: what it had told before.
        error: What went wrong, with the signal or exit code.
        duration_s: Wall time in seconds.
    """

    status: ProbeStatus
    facts: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The fact document of one place: what ``--capture`` writes and ``--from`` reads.

    Attributes:
        where: Kind of place and how it was reached: ``{"kind": "host" | "container" | "image" |
            "python" | "remote host" | "file", "target": ...}``.
        asked: What the user asked for, as far as checks depend on it: ``{"level": 1,
            "require": ["gpu"], "expect_gpus": 8, "skip": ["hw.*"]}``.
        probes: By probe name; :mod:`gpuenv.checks.probes` lists the names and their keys.
        complete: False when the probing was cut short (Ctrl-C, a stream that broke off).
    """

    schema_version: str = "1"
    where: Mapping[str, Any] = field(default_factory=dict)
    asked: Mapping[str, Any] = field(default_factory=dict)
    probes: Mapping[str, ProbeRun] = field(default_factory=dict)
    complete: bool = True

    def get(self, probe: str) -> Mapping[str, Any] | None:
        """Return what a probe found, or ``None`` when it did not run or did not answer."""
        run = self.probes.get(probe)
        return run.facts if run is not None and run.status == "ok" else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One entry of the catalogue.

    Attributes:
        run: Facts to results; more than one where there are several subjects, none never.
        needs: Probes whose facts it reads. Where one of them did not run or did not answer the
            check is a ``skip`` and ``run`` is not called; the dead probe itself is one ``error``.
        after: Ids of checks that must not have failed; else this one is ``skip(blocked)``.
        uses: Probes it also reads where they answered; their absence changes nothing.
        provides: The ``--require`` words it answers to: ``gpu``, ``nccl``, ``compile``.
        explanation: Several paragraphs for ``gpuenv explain``: what, why it matters, what else.
    """

    id: str
    title: str
    level: Level
    run: Callable[[Facts], tuple[CheckResult, ...]]
    needs: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    provides: tuple[str, ...] = ()
    explanation: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One primary cause and what follows from it.

    Attributes:
        result: The finding that explains the others: its evidence, fixes and confidence.
        consequences: Findings that would go away with it, in catalogue order.
    """

    result: CheckResult
    consequences: tuple[CheckResult, ...] = ()


Verdict: TypeAlias = Literal["pass", "warn", "fail", "undiagnosed", "nothing-to-diagnose"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What the doctor says in the end; every report format shows this one value.

    Attributes:
        verdict: ``undiagnosed`` when something required was skipped or errored,
            ``nothing-to-diagnose`` when there is neither a GPU nor a torch to look at.
        headline: ``1 cause, 4 consequences, 61 passed, 9 skipped``.
        causes: Failures first, then errors, then warnings; the primary one is ``causes[0]``.
        results: All results in catalogue order, consequences included.
        unmet: The ``--require`` words that could not be confirmed.
        timings_s: Wall time by probe, in seconds.
        exit_code: 0, 1, 3 or 130, as in :mod:`gpuenv.errors`.
    """

    verdict: Verdict
    headline: str
    causes: tuple[Cause, ...] = ()
    results: tuple[CheckResult, ...] = ()
    counts: Mapping[Status, int] = field(default_factory=dict)
    where: Mapping[str, Any] = field(default_factory=dict)
    asked: Mapping[str, Any] = field(default_factory=dict)
    unmet: tuple[str, ...] = ()
    timings_s: Mapping[str, float] = field(default_factory=dict)
    interrupted: bool = False
    exit_code: int = 0
