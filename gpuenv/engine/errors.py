"""What can go wrong with an engine, each with its own slug.

The engine is not there or not fit (exit 4), refuses a build (exit 5) or a launch (exit 6), or a
name given does not exist (exit 2).
"""

from __future__ import annotations

from gpuenv.errors import (
    BuildFailedError,
    ConfigurationError,
    EngineUnavailableError,
    LaunchFailedError,
)


class EngineSocketMissingError(EngineUnavailableError):
    """There is no socket at the address, or no address to try."""

    slug = "engine-socket-missing"


class EnginePermissionError(EngineUnavailableError):
    """The socket is there and this user may not use it."""

    slug = "engine-permission-denied"


class EngineNotRunningError(EngineUnavailableError):
    """The socket is there and nobody answers behind it."""

    slug = "engine-not-running"


class EngineTimeoutError(EngineUnavailableError):
    """The engine accepted the connection and did not answer in time."""

    slug = "engine-not-answering"


class EngineTooOldError(EngineUnavailableError):
    """The engine's API is older than what gpuenv needs."""

    slug = "engine-too-old"


class EngineAddressError(EngineUnavailableError):
    """The address cannot be used: an unknown scheme, or no address at all."""

    slug = "engine-address"


class EngineContextError(EngineUnavailableError):
    """The Docker context named by the user is missing or broken."""

    slug = "engine-context"


class EngineTlsError(EngineUnavailableError):
    """The TLS handshake with the engine failed, or its files are missing."""

    slug = "engine-tls"


class DockerConfigError(EngineUnavailableError):
    """The Docker client's own settings cannot be used."""

    slug = "docker-config"


class EngineLostError(EngineUnavailableError):
    """The engine went away in the middle of an operation."""

    slug = "engine-lost"


class EngineRequestError(EngineUnavailableError):
    """The engine refused a request, for a reason gpuenv has no better word for."""

    slug = "engine-request"


class NotAnEngineError(EngineUnavailableError):
    """Something answers at the address, and it is no container engine."""

    slug = "engine-foreign"


class BuildKitMissingError(EngineUnavailableError):
    """The engine has no BuildKit."""

    slug = "buildkit-missing"


class ContainerNotFoundError(ConfigurationError):
    """There is no such container."""

    slug = "container-not-found"


class ContainerNotRunningError(ConfigurationError):
    """The container is there and does not run."""

    slug = "container-not-running"


class ImageInUseError(ConfigurationError):
    """An image, a volume or a network cannot go while something uses it."""

    slug = "in-use"


class ImageNotFoundError(LaunchFailedError):
    """The image is not on this engine."""

    slug = "image-not-found"


class SpecRefusedError(LaunchFailedError):
    """The engine cannot do what the container needs; nothing was made."""

    slug = "launch-refused"


class NameTakenError(LaunchFailedError):
    """Another container has the name."""

    slug = "name-taken"


class PortTakenError(LaunchFailedError):
    """A host port is in use by someone else."""

    slug = "port-taken"


class RlimitRefusedError(LaunchFailedError):
    """The engine may not set one of the resource limits."""

    slug = "rlimit-refused"


class GpuRefusedError(LaunchFailedError):
    """The engine cannot give the GPUs asked for."""

    slug = "gpu-refused"


class CommandNotFoundError(LaunchFailedError):
    """The image has no such program, or it may not be run."""

    slug = "command-not-found"


class MountSourceError(LaunchFailedError):
    """A folder to mount does not exist where the engine looks for it."""

    slug = "mount-source-missing"


class DiskFullError(LaunchFailedError):
    """The engine's store is full."""

    slug = "engine-disk-full"


class TransferFailedError(EngineUnavailableError):
    """An image could not be pulled or pushed."""

    slug = "transfer-failed"


class RegistryDeniedError(TransferFailedError):
    """The registry wants a login, or denies this one."""

    slug = "registry-denied"


class RegistryLoginError(TransferFailedError):
    """The credential helper that Docker's settings name gives no login."""

    slug = "registry-login"


class RegistryUnreachableError(TransferFailedError):
    """The engine cannot reach the registry."""

    slug = "registry-unreachable"


class RemoteImageMissingError(TransferFailedError):
    """The registry has no such image."""

    slug = "remote-image-missing"


class BuildContextError(BuildFailedError):
    """The engine could not read the Dockerfile or the context."""

    slug = "build-context"


class PrivateEngineError(EngineUnavailableError):
    """The private engine could not be started or stopped."""

    slug = "private-engine"
