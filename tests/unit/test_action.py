"""The composite action: its script runs for real, and no input can become part of it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).parents[2]
ACTION: dict[str, Any] = yaml.safe_load((REPOSITORY / "action.yml").read_text())
INSTALL, RUN = ACTION["runs"]["steps"]


def test_inputs_reach_the_script_as_variables_only() -> None:
    for step in (INSTALL, RUN):
        assert "${{" not in step["run"]
    used = set(re.findall(r"inputs\.([a-z-]+)", " ".join(RUN["env"].values())))
    assert used == set(ACTION["inputs"])


def test_page_on_ci_names_every_input_and_output() -> None:
    page = (REPOSITORY / "docs" / "ci.md").read_text()
    for name in (*ACTION["inputs"], *ACTION["outputs"]):
        assert f"`{name}`" in page or f"{name}:" in page, name


@pytest.mark.subprocess
@pytest.mark.parametrize(
    ("inputs", "expected"),
    [({}, 0), ({"CONTINUE_ON_FAILURE": "true", "REQUIRE": "gpu"}, 0), ({"REQUIRE": "gpu"}, 3)],
)
def test_script_writes_files_outputs_and_summary(
    inputs: dict[str, str], expected: int, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    (root / "proc").mkdir(parents=True)
    done, outputs = run_script(tmp_path, inputs)
    assert done.returncode == expected, done.stderr
    assert outputs["output-dir"] == "out dir"
    assert outputs["exit-code"] == ("3" if "REQUIRE" in inputs else "0")
    report = json.loads((tmp_path / "out dir" / "report.json").read_text())
    assert outputs["verdict"] == report["data"]["verdict"]
    for name in ("facts.json", "junit.xml", "report.html"):
        assert (tmp_path / "out dir" / name).stat().st_size > 0
    assert "gpuenv doctor" in (tmp_path / "summary.md").read_text()
    assert re.search(r"^::(error|warning|notice) title=", done.stdout, re.MULTILINE)


@pytest.mark.subprocess
def test_wrong_usage_fails_with_the_error_in_the_log(tmp_path: Path) -> None:
    done, outputs = run_script(tmp_path, {"LEVEL": "$(touch pwned)"})
    assert done.returncode == 2
    assert outputs["exit-code"] == "2"
    assert "usage" in done.stdout
    assert not (tmp_path / "pwned").exists()


def run_script(
    folder: Path, inputs: dict[str, str]
) -> tuple[subprocess.CompletedProcess[str], dict[str, str]]:
    program = folder / "bin" / "gpuenv"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m gpuenv "$@"\n')
    program.chmod(0o755)
    (folder / "outputs").touch()
    environ = {
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(REPOSITORY),
        "HOME": str(folder),
        "GITHUB_OUTPUT": str(folder / "outputs"),
        "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
        **dict.fromkeys(RUN["env"], ""),
        "LEVEL": "static",
        "STRICT": "false",
        "OUTPUT_DIR": "out dir",
        **inputs,
    }
    done = subprocess.run(
        ["bash", "-c", RUN["run"]],
        cwd=folder, env=environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    lines = (folder / "outputs").read_text().splitlines()
    return done, dict(line.split("=", 1) for line in lines)
