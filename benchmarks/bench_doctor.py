"""The doctor's static level beside torch's own collect_env, on the same environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from harness import REPOSITORY, Candidate, command, interleave, machine, table, write_section

# A Python that has torch already; without it, torch is installed into build/peers/torch.
PYTHON_VARIABLE = "GPUENV_BENCH_TORCH_PYTHON"


def python_with_torch() -> Path:
    """Return an interpreter whose environment has torch."""
    if given := os.environ.get(PYTHON_VARIABLE):
        return Path(given)
    home = REPOSITORY / "build" / "peers" / "torch"
    python = home / "bin" / "python"
    if not python.exists():
        venv.create(home, with_pip=True)
        done = subprocess.run([str(python), "-m", "pip", "install", "-q", "torch"], check=False)
        if done.returncode:
            shutil.rmtree(home)
            raise SystemExit(f"torch cannot be installed; set {PYTHON_VARIABLE}")
    return python


def main() -> None:
    """Time both, the answers going nowhere."""
    python = str(python_with_torch())
    version = subprocess.run(
        [python, "-c", "from importlib.metadata import version; print(version('torch'))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    candidates = [
        Candidate(
            "gpuenv doctor, static level",
            command(
                sys.executable, "-m", "gpuenv", "doctor", "--level", "static", "--python", python
            ),
            "gpuenv doctor --level static --python PYTHON",
        ),
        Candidate(
            "the same, as one file into that Python",
            command("sh", "-c", f"{python} - < {_bundle()}"),
            "PYTHON - < probe.py",
        ),
        Candidate(
            "torch's collect_env",
            command(python, "-m", "torch.utils.collect_env"),
            "PYTHON -m torch.utils.collect_env",
        ),
    ]
    interleave(candidates, rounds=7)
    body = (
        f"{machine()}; torch {version}.\n\n{table(candidates, baseline=candidates[0].name)}\n\n"
        "The doctor's time is from the command to its report, interpreter and imports included."
    )
    write_section("doctor", "The doctor's static level", body)


def _bundle() -> Path:
    path = REPOSITORY / "build" / "probe.py"
    path.parent.mkdir(exist_ok=True)
    arguments = ["doctor", "--level", "static", "--emit-probe"]
    done = subprocess.run(
        [sys.executable, "-m", "gpuenv", *arguments], capture_output=True, check=True
    )
    path.write_bytes(done.stdout)
    return path


if __name__ == "__main__":
    main()
