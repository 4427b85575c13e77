"""The exception tree: every expected failure, its slug and its exit code.

====  =============================================================================
exit  meaning
====  =============================================================================
0     success
1     a check failed (``gpuenv doctor`` ran and found a failure)
2     bad usage or bad configuration
3     unsupported combination; for doctor: something required could not be diagnosed
4     no usable container engine
5     the build failed
6     the launch failed
7     a probe (driver, NVML, torch) would not answer
70    a fault of gpuenv itself
130   interrupted
====  =============================================================================

Every slug is stable, scripts may key on it, and each has a heading in ``docs/troubleshooting.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

EXIT_OK = 0
EXIT_CHECK_FAILED = 1
EXIT_NOT_DIAGNOSED = 3
EXIT_INTERNAL = 70
EXIT_INTERRUPTED = 130


_WHAT_LENGTH = 400


def _cut(text: str) -> str:
    """Cut out the middle of a text that someone pasted a whole file into."""
    if len(text) <= _WHAT_LENGTH:
        return text
    half = _WHAT_LENGTH // 2
    return f"{text[:half]}…{text[-half:]}"


class GpuenvError(Exception):
    """Base of every expected failure.

    Args:
        what: What happened, one line; cut in the middle when it is very long.
        why: The evidence, from the cause.
        fix: One thing to do now.
        data: JSON-ready facts for ``--json`` readers, put into the envelope's ``data``.
    """

    exit_code: ClassVar[int] = 1
    slug: ClassVar[str] = "error"

    def __init__(
        self, what: str, *, why: str = "", fix: str = "", data: Mapping[str, Any] | None = None
    ) -> None:
        what = _cut(what)
        super().__init__(what)
        self.what = what
        self.why = why
        self.fix = fix
        self.data: dict[str, Any] = dict(data or {})

    def as_dict(self) -> dict[str, str]:
        """Return the error as it stands in the JSON envelope."""
        return {"slug": self.slug, "what": self.what, "why": self.why, "fix": self.fix}


class CheckFailedError(GpuenvError):
    """A check ran and found a failure."""

    exit_code = EXIT_CHECK_FAILED
    slug = "check-failed"


class NotDiagnosedError(GpuenvError):
    """Something ``--require`` names was skipped or errored, so nobody knows how it is."""

    exit_code = EXIT_NOT_DIAGNOSED
    slug = "not-diagnosed"


class ConfigurationError(GpuenvError):
    """A flag, an environment variable or a file holds something gpuenv cannot take."""

    exit_code = 2
    slug = "configuration"


class UsageError(ConfigurationError):
    """The command line itself is off; raised from typer's own errors."""

    slug = "usage"


class UnsupportedCombinationError(GpuenvError):
    """A well-formed request that no row of the matrix fulfils."""

    exit_code = 3
    slug = "unsupported-combination"


class EngineUnavailableError(GpuenvError):
    """No container engine answers, or the one that does cannot do what is needed."""

    exit_code = 4
    slug = "engine-unavailable"


class BuildFailedError(GpuenvError):
    """The engine refused a build or a step of it failed."""

    exit_code = 5
    slug = "build-failed"


class LaunchFailedError(GpuenvError):
    """A container did not start or did not become ready."""

    exit_code = 6
    slug = "launch-failed"


class ProbeError(GpuenvError):
    """The driver, NVML or torch would not answer."""

    exit_code = 7
    slug = "probe-failed"


def all_error_classes() -> Iterator[type[GpuenvError]]:
    """Yield every class of the tree that is loaded, the base included."""
    stack: list[type[GpuenvError]] = [GpuenvError]
    while stack:
        cls = stack.pop()
        yield cls
        stack.extend(cls.__subclasses__())
