"""A Python with torch, and the torch probes run in it the way the doctor runs them.

``GPUENV_TEST_TORCH`` names the interpreter; by default it is our own when torch is installed there.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuenv.checks.catalogue import CHECKS
from gpuenv.checks.diagnose import diagnose
from gpuenv.checks.facts import parse_probe_run
from gpuenv.checks.model import CheckResult, Diagnosis, Facts, Level, ProbeRun
from gpuenv.checks.probes import TORCH_PROBES
from gpuenv.probes import _runner
from gpuenv.resources import package_dir
from tests.conftest import missing

if TYPE_CHECKING:
    from collections.abc import Mapping

# Read now: the tests themselves see no GPUENV_ variable.
_PYTHON = os.environ.get("GPUENV_TEST_TORCH", "")
DOUBLES = Path(__file__).parent / "compute" / "doubles"
BUDGET_S = 600.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Findings:
    """What the probes told and what the checks made of it."""

    runs: Mapping[str, ProbeRun]
    diagnosis: Diagnosis

    def facts(self, probe: str) -> Mapping[str, Any]:
        """Return one probe's facts; it must have answered."""
        run = self.runs[probe]
        assert run.status == "ok", run
        return run.facts

    def result(self, check_id: str) -> CheckResult:
        """Return the one result of a check."""
        found = [result for result in self.diagnosis.results if result.id == check_id]
        assert len(found) == 1, found
        return found[0]


class TorchProbes:
    """Run torch probes in a Python of choice, with variables and options of choice."""

    def __init__(self, python: str) -> None:
        self.python = python

    def run(
        self, *names: str, env: Mapping[str, str] | None = None, wrap: str = "", **options: Any
    ) -> Findings:
        """Run the named probes, all of them when none is named, and judge what they told.

        Args:
            env: Variables to add to the environment.
            wrap: An executable that starts the interpreter in some other surroundings.
        """
        sources = {path.stem: path.read_text() for path in (package_dir() / "probes").glob("*.py")}
        sources.pop("__init__")
        specs = [
            {**dataclasses.asdict(spec), "level": int(spec.level)}
            for spec in TORCH_PROBES
            if not names or spec.name in names
        ]
        answers = {
            name: parse_probe_run(answer)
            for name, answer in _runner.run(
                specs,
                sources,
                {"root": "/", "level": int(Level.DEEP), **options},
                BUDGET_S,
                python=wrap or self.python,
                env={**os.environ, **(env or {})},
            )
            if answer is not None
        }
        wanted = {spec["name"] for spec in specs}
        assert set(answers) == wanted
        facts = Facts(
            where={"kind": "python"},
            asked={"level": int(Level.DEEP), "require": []},
            probes=answers,
        )
        checks = [check for check in CHECKS if check.needs and set(check.needs) <= wanted]
        return Findings(runs=answers, diagnosis=diagnose(facts, checks))


def find_torch() -> str:
    """Return a Python with torch."""
    if _PYTHON:
        return _PYTHON
    if importlib.util.find_spec("torch") is None:
        missing("a Python with torch (set GPUENV_TEST_TORCH)")
    return sys.executable
