"""What a place is made of, in two or three lines: GPUs, driver, torch, system.

Everything here reads facts that may be missing, of the wrong type or from another version, and
then says less.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuenv.checks.model import Facts


def place_facts(facts: Facts) -> tuple[str, ...]:
    """Return the lines that say what was looked at."""
    return (str(facts.where["note"]),) if facts.where.get("note") else ()
