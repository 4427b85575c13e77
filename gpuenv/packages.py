"""Values about packages that travel: what a build is given to install from, what a wheel says.

They stand below :mod:`gpuenv.index`, which makes them, so that rendering, the matrix and the build
can hold them without knowing how a package index is asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from gpuenv.secret import Secret


@dataclass(frozen=True, slots=True, kw_only=True)
class CarriedFile:
    """A file that one step of a build needs: in the context, mounted into that step, kept nowhere.

    Attributes:
        name: Its path below the mounted directory, ``uv.toml`` or ``wheels/x.whl``.
        content: The bytes as text, when gpuenv makes the file; they may hold credentials.
        path: The file on this host to copy, when it is not made.
    """

    name: str
    content: Secret | None = None
    path: Path | None = None

    def read_bytes(self) -> bytes:
        """Return what the file shall hold."""
        if self.path is not None:
            return self.path.read_bytes()
        return self.content.reveal().encode() if self.content is not None else b""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceDelivery:
    """How package sources reach the inside of one build step.

    A build puts ``files`` into its context below a directory of its choice and gives the step that
    installs ::

        RUN --mount=type=bind,source=<directory>,target=<mount_point>
            <NAME=value of environment ...> uv pip install ...

    Attributes:
        mount_point: Where the files must appear; their contents point at one another by it.
        files: What to mount. They may hold credentials: never ``COPY`` them.
        environment: Variables of that one step, such as ``UV_CONFIG_FILE``. Paths only, no secret.
        constraints: Files below ``mount_point`` to be given to the installer as constraints; not a
            variable, since ``--constraint`` on uv's command line would make it forget that.
        build_args: Proxy variables, to be given as build arguments: the engine knows these names
            and keeps them out of the history. They may hold credentials.
        digest: Changes when the packages offered change, not when a password does. It may stand in
            the text of the step, so that engines which leave mounts out of the cache key notice.
        summary: One line a source, credentials masked, for ``--dry-run`` and logs.
        secrets: Every text that must not show in output of the step.
    """

    mount_point: str
    files: tuple[CarriedFile, ...]
    environment: tuple[tuple[str, str], ...]
    constraints: tuple[str, ...] = ()
    build_args: tuple[tuple[str, Secret], ...] = ()
    digest: str
    summary: tuple[str, ...] = ()
    secrets: tuple[Secret, ...] = ()

    @property
    def carried_bytes(self) -> int:
        """What the files copied from this host add to the build context."""
        return sum(file.path.stat().st_size for file in self.files if file.path is not None)
