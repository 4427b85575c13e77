"""What can go wrong between the client and the SSH server of an environment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuenv.errors import LaunchFailedError

if TYPE_CHECKING:
    from typing_extensions import Self


class NoSshServerError(LaunchFailedError):
    """The image has no SSH server."""

    slug = "no-ssh-server"


class HostKeyChangedError(LaunchFailedError):
    """What answers is not the environment that it should be."""

    slug = "host-key-changed"


class SshFailedError(LaunchFailedError):
    """``ssh`` itself failed, not what it ran."""

    slug = "ssh-failed"


class NoSharedExchangeError(SshFailedError):
    """A client and the server know no key exchange in common."""

    @classmethod
    def between(cls, client: str, why: str) -> Self:
        """Return the error for a client of ours."""
        return cls(
            f"{client} cannot exchange keys with this environment",
            why=why,
            fix="an environment made with --post-quantum-only takes OpenSSH 9.0 or newer and what "
            "else has one of its exchanges; --replace without that flag takes the others too",
        )
