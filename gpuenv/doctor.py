"""The doctor: which probes to run where, running them, and judging what they found.

``plan_doctor`` decides, ``run_doctor`` asks a place (:mod:`gpuenv.probing`), ``judge`` turns facts
into a diagnosis.
"""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from gpuenv.checks.diagnose import diagnose
from gpuenv.checks.model import Diagnosis, Facts, Level, ProbeRun
from gpuenv.checks.probes import all_probes
from gpuenv.probing import DoctorPlan, LocalPlace, ProbePlace

if TYPE_CHECKING:
    from gpuenv.checks.probes import ProbeSpec
    from gpuenv.matrix.model import Matrix
    from gpuenv.probing import OnProbe

__all__ = ["DoctorPlan", "LocalPlace", "ProbePlace", "judge", "plan_doctor", "run_doctor"]

BUDGET_S = {Level.STATIC: 30.0, Level.QUICK: 120.0, Level.STANDARD: 600.0, Level.DEEP: 1800.0}


def plan_doctor(
    *,
    level: Level = Level.QUICK,
    require: tuple[str, ...] = (),
    skip: tuple[str, ...] = (),
    expect_gpus: int | None = None,
    sysroot: str = "/",
    budget_s: float | None = None,
) -> DoctorPlan:
    """Choose the probes of a level, without those that only checks left out by ``skip`` read."""
    asked: dict[str, Any] = {"level": int(level), "require": list(require)}
    if skip:
        asked["skip"] = list(skip)
    if expect_gpus is not None:
        asked["expect_gpus"] = expect_gpus
    return DoctorPlan(
        level=level,
        probes=tuple(
            spec
            for spec in all_probes()
            if spec.level <= level and _is_read(spec, skip) and not (spec.live and sysroot != "/")
        ),
        budget_s=BUDGET_S[level] if budget_s is None else budget_s,
        options={"root": sysroot, "level": int(level)},
        asked=asked,
    )


def _is_read(spec: ProbeSpec, skip: tuple[str, ...]) -> bool:
    """Say whether a check that was not left out reads the probe, or none reads it at all."""
    if not skip:
        return True
    from gpuenv.checks.catalogue import CHECKS

    readers = [check.id for check in CHECKS if spec.name in (*check.needs, *check.uses)]
    left_out = [any(fnmatchcase(name, pattern) for pattern in skip) for name in readers]
    return not readers or not all(left_out)


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


def with_matrix(facts: Facts, matrix: Matrix) -> Facts:
    """Add what the compatibility matrix knows of the torch that was found, and what would fit.

    Args:
        facts: From :func:`run_doctor` or a file.
        matrix: The rows.

    Returns:
        The facts with a probe ``matrix.row``: ``known``, ``arch_list``, ``min_driver`` of the torch
        here, and ``fits``, the newest row that this driver and these GPUs take.
    """
    from gpuenv.checks.scene import driver_release, nvml_gpus

    static = facts.get("torch.static") or {}
    version, _, variant = str(static.get("version") or "").partition("+")
    found: dict[str, Any] = {"known": False}
    rows = [
        row
        for row in matrix.rows_for("aarch64" if _is_arm(facts) else "x86_64")
        if str(row.torch) == version
        and (row.variant == variant or (not variant and row.pypi_default))
    ]
    if rows:
        floor = matrix.min_driver(rows[0])
        found = {
            "known": True,
            "label": rows[0].label,
            "arch_list": list(rows[0].arch_list or ()),
            "min_driver": str(floor) if floor else "",
        }
    capabilities = sorted({str(gpu.get("capability")) for gpu in nvml_gpus(facts)})
    found["fits"] = _fitting_row(matrix, capabilities, driver_release(facts))
    probes = {**facts.probes, "matrix.row": ProbeRun(status="ok", facts=found)}
    return replace(facts, probes=probes)


def _is_arm(facts: Facts) -> bool:
    return (facts.get("host.machine") or {}).get("arch") in ("aarch64", "arm64")


def _fitting_row(matrix: Matrix, capabilities: list[str], driver: str) -> dict[str, str]:
    """Return the newest torch for these GPUs and this driver; empty when none is known or fits."""
    from gpuenv.errors import ConfigurationError, UnsupportedCombinationError
    from gpuenv.matrix.resolve import resolve
    from gpuenv.spec import GpuTarget, MatrixRequest
    from gpuenv.versions import ComputeCapability, DriverRelease

    if not capabilities:
        return {}
    try:
        request = MatrixRequest(
            gpus=tuple(
                GpuTarget(asked=text, compute_capability=ComputeCapability.parse(text))
                for text in capabilities
            ),
            driver=DriverRelease.parse(driver) if driver else None,
        )
        row = resolve(matrix, request)
    except (ConfigurationError, UnsupportedCombinationError):
        return {}
    return {"torch": str(row.torch), "torch_variant": row.torch_variant}


def _has_torch_or_gpu(facts: Facts) -> bool:
    """Say whether the matrix can have anything to add; reading it takes a tenth of a second."""
    static = facts.get("torch.static") or {}
    return bool(static.get("present")) or bool((facts.get("host.nvml") or {}).get("gpus"))


def judge(facts: Facts, *, strict: bool = False, matrix: Matrix | None = None) -> Diagnosis:
    """Run every check on the facts and name the cause.

    Args:
        facts: From :func:`run_doctor` or a file; ``facts.asked`` holds level and requirements.
        strict: Count warnings as failures in verdict and exit code.
        matrix: Lets findings name the wheel that fits; the shipped one by default.
    """
    from gpuenv.checks.catalogue import CHECKS
    from gpuenv.matrix.load import load_matrix

    if "matrix.row" not in facts.probes and _has_torch_or_gpu(facts):
        facts = with_matrix(facts, matrix or load_matrix())
    return diagnose(facts, CHECKS, strict=strict)
