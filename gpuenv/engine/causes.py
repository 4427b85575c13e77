"""Find the likely cause of a failed build in what the step printed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuenv.errors import BuildFailedError

if TYPE_CHECKING:
    from gpuenv.engine.events import Failed


def explain_failure(failed: Failed) -> BuildFailedError:
    """Return the error for a failed build, of the class of its likely cause."""
    return BuildFailedError("the build failed", why="\n".join([*failed.log, failed.message]))
