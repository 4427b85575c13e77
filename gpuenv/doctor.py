"""The doctor: which probes to run where, running them, and judging what they found.

``plan_doctor`` decides, ``run_doctor`` asks a place, ``judge`` turns facts into a diagnosis. The
place is behind :class:`ProbePlace`: this machine, another Python, an image, a container.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from gpuenv.checks.diagnose import diagnose
from gpuenv.checks.model import Diagnosis, Facts, Level, ProbeRun
from gpuenv.checks.probes import ProbeSpec, all_probes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

OnProbe: TypeAlias = "Callable[[str, ProbeRun | None], None]"
"""Told ``(name, None)`` when a probe begins and ``(name, run)`` when it has answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorPlan:
    """What the doctor is going to do.

    Attributes:
        budget_s: For all probes together; what has not answered by then is a timeout.
        options: Handed to the probes: ``{"root": "/", "level": 1, ...}``.
    """

    level: Level
    probes: tuple[ProbeSpec, ...]
    budget_s: float
    options: Mapping[str, Any]
    asked: Mapping[str, Any]


class ProbePlace(Protocol):
    """Somewhere probes can run."""

    def where(self) -> Mapping[str, Any]:
        """Say what this place is: ``{"kind": "image", "target": "repo:tag"}``."""
        ...

    def run(self, plan: DoctorPlan) -> Iterator[tuple[str, ProbeRun | None]]:
        """Run the plan's probes; yield each one's begin (``None``) and its answer."""
        ...


BUDGET_S = {Level.STATIC: 30.0, Level.QUICK: 120.0, Level.STANDARD: 600.0, Level.DEEP: 1800.0}


def plan_doctor(
    *,
    level: Level = Level.QUICK,
    require: tuple[str, ...] = (),
    expect_gpus: int | None = None,
    sysroot: str = "/",
    budget_s: float | None = None,
) -> DoctorPlan:
    """Choose the probes of a level."""
    asked: dict[str, Any] = {"level": int(level), "require": list(require)}
    if expect_gpus is not None:
        asked["expect_gpus"] = expect_gpus
    return DoctorPlan(
        level=level,
        probes=tuple(spec for spec in all_probes() if spec.level <= level),
        budget_s=BUDGET_S[level] if budget_s is None else budget_s,
        options={"root": sysroot, "level": int(level)},
        asked=asked,
    )


def run_doctor(plan: DoctorPlan, place: ProbePlace, on_probe: OnProbe) -> Facts:
    """Run the plan's probes in a place and return what they found.

    Ctrl-C ends the probing, not the program: what is known by then is returned, ``complete`` is
    False and the probes that had not answered are ``skipped``.
    """
    answers: dict[str, ProbeRun] = {}
    complete = True
    try:
        for name, run in place.run(plan):
            on_probe(name, run)
            if run is not None:
                answers[name] = run
    except KeyboardInterrupt:
        complete = False
    left = ProbeRun(status="skipped", error="not reached" if complete else "interrupted")
    return Facts(
        where=place.where(),
        asked=plan.asked,
        probes={spec.name: answers.get(spec.name, left) for spec in plan.probes},
        complete=complete,
    )


def judge(facts: Facts, *, strict: bool = False) -> Diagnosis:
    """Run every check on the facts and name the cause.

    Args:
        facts: From :func:`run_doctor` or a file; ``facts.asked`` holds level and requirements.
        strict: Count warnings as failures in verdict and exit code.
    """
    from gpuenv.checks.catalogue import CHECKS

    return diagnose(facts, CHECKS, strict=strict)
