"""The doctor: which probes to run where, running them, and judging what they found.

``plan_doctor`` decides, ``run_doctor`` asks a place, ``judge`` turns facts into a diagnosis. The
place is behind :class:`ProbePlace`: this machine, another Python, an image, a container.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from gpuenv.checks.diagnose import diagnose
from gpuenv.checks.facts import parse_probe_run
from gpuenv.checks.model import Diagnosis, Facts, Level, ProbeRun
from gpuenv.checks.probes import ProbeSpec, all_probes
from gpuenv.errors import ProbeError
from gpuenv.resources import package_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from gpuenv.matrix.model import Matrix

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
        probes=tuple(spec for spec in all_probes() if spec.level <= level and _is_read(spec, skip)),
        budget_s=BUDGET_S[level] if budget_s is None else budget_s,
        options={"root": sysroot, "level": int(level)},
        asked=asked,
    )


def probe_sources() -> dict[str, str]:
    """Return the text of every probe file by module name; what is sent into a place."""
    folder = package_dir() / "probes"
    return {
        path.stem: path.read_text(encoding="utf-8")
        for path in sorted(folder.glob("*.py"))
        if path.stem != "__init__"
    }


def render_request(
    plan: DoctorPlan,
    sources: Mapping[str, str],
    *,
    where: Mapping[str, Any],
    python: str | None = None,
) -> tuple[str, bytes]:
    """Return what starts the probes in a place: the text for ``python -c`` and its standard input.

    Args:
        plan: Which probes, and their limits.
        sources: From :func:`probe_sources`.
        where: Told back in the stream's first line.
        python: The interpreter whose environment is looked at, when it is not the one that runs.
    """
    modules = {spec.module for spec in plan.probes}
    request = {
        "entry": "_runner",
        "sources": {name: sources[name] for name in ("_runner", "_loader", "_child", "_common")},
        "probe_sources": {
            name: text
            for name, text in sources.items()
            if name in modules or (name.startswith("_") and name != "_runner")
        },
        "specs": [
            {
                "name": spec.name,
                "module": spec.module,
                "timeout_s": spec.timeout_s,
                "memory_mib": spec.memory_mib,
                "environment": spec.environment,
                "alone": spec.alone,
            }
            for spec in plan.probes
        ],
        "options": dict(plan.options),
        "budget_s": plan.budget_s,
        "where": dict(where),
        "asked": dict(plan.asked),
        "python": python,
    }
    return sources["_loader"], json.dumps(request).encode()


def read_events(lines: Iterable[str]) -> Iterator[tuple[str, ProbeRun | None]]:
    """Turn the lines of a place's answer into begin and end of each probe.

    Lines that are no JSON objects are not ours (a login banner) and are passed over.
    """
    for line in lines:
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            continue
        if not isinstance(entry, dict):
            continue
        if "begin" in entry:
            yield str(entry["begin"]), None
        elif "probe" in entry:
            yield str(entry["probe"]), parse_probe_run(entry)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPlace:
    """This machine; with ``python`` the environment of another interpreter on it."""

    python: str | None = None

    def where(self) -> Mapping[str, Any]:
        """Say that it is this machine, or which interpreter."""
        if self.python is None:
            return {"kind": "host", "target": ""}
        return {"kind": "python", "target": self.python}

    def run(self, plan: DoctorPlan) -> Iterator[tuple[str, ProbeRun | None]]:
        """Run the probes in child processes of a child process."""
        from gpuenv.process import ProgramFailedError, ProgramTimeoutError, stream_program

        code, request = render_request(
            plan, probe_sources(), where=self.where(), python=self.python
        )
        arguments = [sys.executable, "-I", "-S", "-c", code]
        try:
            yield from read_events(
                stream_program(arguments, timeout_s=plan.budget_s + _GRACE_S, stdin=request)
            )
        except (ProgramFailedError, ProgramTimeoutError) as exc:
            raise ProbeError(
                "the probes did not come to their end",
                why=str(exc) + (f": {exc.stderr[-2000:]}" if hasattr(exc, "stderr") else ""),
            ) from exc


_GRACE_S = 10.0


def _is_read(spec: ProbeSpec, skip: tuple[str, ...]) -> bool:
    """Say whether a check that was not left out reads the probe, or none reads it at all."""
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


def judge(facts: Facts, *, strict: bool = False, matrix: Matrix | None = None) -> Diagnosis:
    """Run every check on the facts and name the cause.

    Args:
        facts: From :func:`run_doctor` or a file; ``facts.asked`` holds level and requirements.
        strict: Count warnings as failures in verdict and exit code.
        matrix: Lets findings name the wheel that fits; the shipped one by default.
    """
    from gpuenv.checks.catalogue import CHECKS
    from gpuenv.matrix.load import load_matrix

    if "matrix.row" not in facts.probes:
        facts = with_matrix(facts, matrix or load_matrix())
    return diagnose(facts, CHECKS, strict=strict)
