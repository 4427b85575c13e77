"""Every check there is, in the order reports show them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuenv.checks.model import Check

CHECKS: tuple[Check, ...] = ()
