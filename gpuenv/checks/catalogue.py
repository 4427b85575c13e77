"""Every check there is, in the order reports show them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuenv.checks import (
    compiling,
    fabric,
    hardware,
    host_driver,
    host_gpu,
    nccl,
    numerics,
    performance,
    runtime,
    soak,
    system,
    toolchain,
    torch_runtime,
    visibility,
    wheels,
)

if TYPE_CHECKING:
    from gpuenv.checks.model import Check

CHECKS: tuple[Check, ...] = (
    *host_gpu.CHECKS,
    *host_driver.CHECKS,
    *runtime.CHECKS,
    *visibility.CHECKS,
    *hardware.CHECKS,
    *wheels.CHECKS,
    *fabric.CHECKS,
    *toolchain.CHECKS,
    *system.CHECKS,
    *torch_runtime.CHECKS,
    *numerics.CHECKS,
    *compiling.CHECKS,
    *nccl.CHECKS,
    *performance.CHECKS,
    *soak.CHECKS,
)


def check_by_id(check_id: str) -> Check | None:
    """Return one check of the catalogue, ``None`` when there is none of that id."""
    return next((check for check in CHECKS if check.id == check_id), None)
