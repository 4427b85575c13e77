"""How long the command line takes to answer, beside peers that can be installed from PyPI."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from pathlib import Path

from harness import REPOSITORY, Candidate, command, interleave, machine, table, write_section

PEERS = {
    "envd": ("envd", ("--version",)),
    "jupyter-repo2docker": ("jupyter-repo2docker", ("--version",)),
    "rocker": ("rocker", ("--version",)),
}


def peer(package: str, folder: Path) -> Path | None:
    """Install a peer into a virtual environment of its own; ``None`` when it cannot be had."""
    home = folder / package
    if not (home / "bin").exists():
        venv.create(home, with_pip=True)
        pip = [str(home / "bin" / "pip"), "install", "-q", package]
        if subprocess.run(pip, capture_output=True, check=False).returncode:
            shutil.rmtree(home)
            return None
    return home / "bin"


def main() -> None:
    """Time ``--version``, ``--help`` and ``render``."""
    gpuenv = str(Path(sys.executable).with_name("gpuenv"))
    folder = REPOSITORY / "build" / "peers"
    candidates = [
        Candidate("python -c pass", command(sys.executable, "-c", "pass"), "python -c pass"),
        Candidate("gpuenv --version", command(gpuenv, "--version"), "gpuenv --version"),
        Candidate("gpuenv --help", command(gpuenv, "--help"), "gpuenv --help"),
        Candidate(
            "gpuenv matrix resolve",
            command(gpuenv, "matrix", "resolve", "--torch", "2.9", "--cuda", "12.8"),
            "gpuenv matrix resolve --torch 2.9 --cuda 12.8",
        ),
        Candidate(
            "gpuenv render",
            command(gpuenv, "render", "--torch", "2.9", "--cuda", "12.8"),
            "gpuenv render --torch 2.9 --cuda 12.8",
        ),
    ]
    left_out = []
    for package, (program, arguments) in PEERS.items():
        binaries = peer(package, folder)
        if binaries is None:
            left_out.append(package)
            continue
        note = f"{program} {' '.join(arguments)}"
        candidates.append(Candidate(note, command(str(binaries / program), *arguments), note))
    interleave(candidates, rounds=15)
    body = f"{machine()}.\n\n{table(candidates)}\n"
    if left_out:
        body += f"\nNot measured, since they could not be installed: {', '.join(left_out)}.\n"
    write_section("start", "Start of the command line", body)


if __name__ == "__main__":
    main()
