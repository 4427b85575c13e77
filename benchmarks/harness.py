"""Measure things side by side in one run, and write what was measured into docs/benchmarks.md.

Runs of the candidates are interleaved (a b c a b c …), so that a busy moment hits all of them; the
median is reported with the fastest and the slowest, and the load of the machine stands beside it.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import statistics
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

REPOSITORY = Path(__file__).resolve().parents[1]
PAGE = REPOSITORY / "docs" / "benchmarks.md"


@dataclass
class Candidate:
    """One thing to time.

    Attributes:
        run: Does it once. What has to be put back before each run is ``prepare``, not timed.
        note: What it was: the command line, as a reader can repeat it.
    """

    name: str
    run: Callable[[], None]
    note: str = ""
    prepare: Callable[[], None] = lambda: None
    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """The median of all runs, in seconds."""
        return statistics.median(self.seconds)


def environment(more: dict[str, str] | None = None) -> dict[str, str]:
    """Return our environment, in which Python keeps its bytecode as an installed program has it."""
    ours = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return {**ours, **(more or {})}


def command(
    *arguments: str, env: dict[str, str] | None = None, cwd: Path | None = None
) -> Callable[[], None]:
    """Return a function that runs a command to its end and fails loudly when it fails."""

    def run() -> None:
        done = subprocess.run(
            arguments, capture_output=True, env=environment(env), cwd=cwd, check=False
        )
        if done.returncode:
            tail = (done.stdout + done.stderr).decode("utf-8", "replace")[-2000:]
            raise SystemExit(f"{' '.join(arguments)} ended with {done.returncode}:\n{tail}")

    return run


def interleave(candidates: Sequence[Candidate], *, rounds: int, warm_up: int = 1) -> None:
    """Run every candidate ``rounds`` times, in turns, after ``warm_up`` runs that do not count."""
    for number in range(-warm_up, rounds):
        for candidate in candidates:
            candidate.prepare()
            before = time.perf_counter()
            candidate.run()
            if number >= 0:
                candidate.seconds.append(time.perf_counter() - before)


def table(candidates: Sequence[Candidate], *, baseline: str | None = None) -> str:
    """Return the figures as a Markdown table; ``baseline`` names the candidate to compare with."""
    base = next((c.median for c in candidates if c.name == baseline), None)
    head = ["what", "median s", "least..most s", "runs", *(["ratio"] if base else []), "command"]
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    for candidate in candidates:
        cells = [
            candidate.name,
            f"{candidate.median:.3f}",
            f"{min(candidate.seconds):.3f}..{max(candidate.seconds):.3f}",
            str(len(candidate.seconds)),
            *([f"{candidate.median / base:.2f}"] if base else []),
            f"`{candidate.note}`" if candidate.note else "",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def machine() -> str:
    """Return one line on the machine and how busy it is."""
    load = ", ".join(f"{value:.2f}" for value in os.getloadavg())
    return (
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}, load average {load}, "
        f"{time.strftime('%Y-%m-%d', time.gmtime())}"
    )


def write_section(slug: str, title: str, body: str) -> None:
    """Put one section into the page, in place of the one of the same slug."""
    text = PAGE.read_text() if PAGE.exists() else HEAD
    begin, end = f"<!-- {slug}:begin -->", f"<!-- {slug}:end -->"
    section = f"{begin}\n## {title}\n\n{body.strip()}\n{end}"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if pattern.search(text):
        text = pattern.sub(lambda _: section, text)
    else:
        text = f"{text.rstrip()}\n\n{section}\n"
    PAGE.write_text(text)
    print(f"\n{title}\n\n{body}\n")


HEAD = """# Benchmarks

Measured by hand with `make bench`, never in tests. In each table the candidates ran in turns in one
run, so compare within a table only.
"""


def require(program: str) -> str:
    """Return the full path of a program, or leave with a word."""
    path = shutil.which(program)
    if path is None:
        raise SystemExit(f"this benchmark needs {program} on PATH")
    return path
