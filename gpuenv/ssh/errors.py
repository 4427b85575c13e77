"""What can go wrong between the client and the SSH server of an environment."""

from __future__ import annotations

from gpuenv.errors import LaunchFailedError


class NoSshServerError(LaunchFailedError):
    """The image has no SSH server."""

    slug = "no-ssh-server"


class HostKeyChangedError(LaunchFailedError):
    """What answers is not the environment that it should be."""

    slug = "host-key-changed"


class SshFailedError(LaunchFailedError):
    """``ssh`` itself failed, not what it ran."""

    slug = "ssh-failed"
