"""Write the tables of docs/doctor.md from the catalogue and the corpus."""

from __future__ import annotations

import re
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
sys.path.insert(0, str(REPOSITORY))
PAGE = REPOSITORY / "docs" / "doctor.md"


def catalogue_table() -> str:
    """Return the checks, one a row."""
    from gpuenv.checks.catalogue import CHECKS

    rows = ["| check | looks at | level | `--require` |", "| --- | --- | --- | --- |"]
    rows += [
        f"| `{check.id}` | {check.title} | {check.level.name.lower()} | "
        f"{', '.join(check.provides)} |"
        for check in CHECKS
    ]
    return "\n".join(rows)


def probe_table() -> str:
    """Return the probes, one a row, with the first line of what each says it returns."""
    from gpuenv.checks.probes import all_probes

    rows = ["| probe | file | level | limit |", "| --- | --- | --- | --- |"]
    rows += [
        f"| `{spec.name}` | `gpuenv/probes/{spec.module}.py` | {spec.level.name.lower()} | "
        f"{spec.timeout_s:g} s, {spec.memory_mib} MiB |"
        for spec in all_probes()
    ]
    return "\n".join(rows)


def corpus_table() -> str:
    """Return the faults of the corpus, one a row."""
    from tests.doctor_corpus import faults

    rows = ["| fault | cause named | on | met at |", "| --- | --- | --- | --- |"]
    rows += [
        f"| {case.id} | `{case.cause}` | {case.base} | "
        f"{'-' if case.origin == 'none' else case.origin} |"
        for case in faults()
    ]
    return "\n".join(rows)


def traps_table() -> str:
    """Return the healthy machines that provoke other tools, one a row."""
    from tests.doctor_corpus import healthy

    rows = ["| machine | what is normal there |", "| --- | --- |"]
    rows += [f"| {case.id} | {case.origin} |" for case in healthy() if case.origin]
    return "\n".join(rows)


def render(page: str) -> str:
    """Return the page with its tables written anew."""
    for name, table in (
        ("catalogue", catalogue_table()),
        ("probes", probe_table()),
        ("corpus", corpus_table()),
        ("traps", traps_table()),
    ):
        pattern = rf"(<!-- {name}: begin -->\n).*?(<!-- {name}: end -->)"
        page = re.sub(
            pattern,
            lambda match, table=table: f"{match[1]}{table}\n{match[2]}",
            page,
            flags=re.DOTALL,
        )
    return page


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
