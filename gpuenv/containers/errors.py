"""What can go wrong with an environment, beyond what the engine itself refuses."""

from __future__ import annotations

from gpuenv.errors import ConfigurationError, LaunchFailedError


class EnvironmentNotFoundError(ConfigurationError):
    """There is no environment of that name."""

    slug = "environment-not-found"


class EnvironmentAmbiguousError(ConfigurationError):
    """A name stands for several environments."""

    slug = "environment-ambiguous"


class EnvironmentDiffersError(ConfigurationError):
    """The environment runs, but not as it was asked for now."""

    slug = "environment-differs"


class EnvironmentBusyError(LaunchFailedError):
    """Another gpuenv command is starting or changing the same environment."""

    slug = "environment-busy"


class NoGpuError(LaunchFailedError):
    """A GPU is required, and there is none, or not this one."""

    slug = "no-gpu"


class GpuMissingInContainerError(LaunchFailedError):
    """The engine promised a GPU and the container does not have it."""

    slug = "gpu-missing-in-container"


class NotReadyError(LaunchFailedError):
    """What should answer in the container did not, in time or at all."""

    slug = "not-ready"


class ContainerEndedError(LaunchFailedError):
    """The container ended while it was starting up."""

    slug = "container-ended"


class WorkspaceError(ConfigurationError):
    """The workspace cannot be mounted."""

    slug = "workspace"


class NoFreePortError(LaunchFailedError):
    """No free port was found."""

    slug = "no-free-port"
