"""What every probe may use: the root it looks below, and reading that never raises.

Sent along with every probe. Python 3.8 and the standard library only.
"""

from __future__ import annotations

import errno
import os

TYPE_CHECKING = False  # importing typing would double the start of a probe
if TYPE_CHECKING:
    from typing import Any, Callable


class Context:
    """What a probe gets.

    Args:
        root: The folder that stands for ``/``: a machine, or a test's picture of one.
        options: What the doctor asked for; ``level`` and whatever the probe's file documents.
        tell: Sends facts before the probe ends, so that a crash or a hang loses nothing.
    """

    def __init__(
        self,
        root: str = "/",
        options: dict[str, Any] | None = None,
        tell: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self.root = root
        self.options = dict(options or {})
        self._tell = tell

    @property
    def is_real(self) -> bool:
        """False when the root is a picture: then only files may be looked at."""
        return os.path.realpath(self.root) == "/"

    def tell(self, facts: dict[str, Any]) -> None:
        """Send some of the facts now; later ones of the same key replace them."""
        if self._tell is not None:
            self._tell(facts)

    def path(self, path: str) -> str:
        """Return where an absolute path of that machine lies."""
        if self.root == "/":
            return path
        return os.path.join(self.root, path.lstrip("/"))

    def read(self, path: str, limit: int = 1 << 20) -> str | None:
        """Return a file's text, or ``None`` when it cannot be read."""
        try:
            with open(self.path(path), "rb") as stream:
                return stream.read(limit).decode("utf-8", "replace")
        except OSError:
            return None

    def read_or_errno(self, path: str, limit: int = 1 << 20) -> dict[str, Any]:
        """Return ``{"text": ...}`` or ``{"errno": "EACCES"}``."""
        try:
            with open(self.path(path), "rb") as stream:
                return {"text": stream.read(limit).decode("utf-8", "replace")}
        except OSError as error:
            return {"errno": errno_name(error)}

    def word(self, path: str) -> str | None:
        """Return a one-line file's text without blanks around it, or ``None``."""
        text = self.read(path, 4096)
        return None if text is None else text.strip()

    def number(self, path: str, base: int = 10) -> int | None:
        """Return the number a one-line file holds, or ``None``."""
        text = self.word(path)
        try:
            return None if text is None else int(text, base)
        except ValueError:
            return None

    def names(self, path: str) -> list[str]:
        """Return a folder's sorted names; an empty list when it cannot be read."""
        try:
            return sorted(os.listdir(self.path(path)))
        except OSError:
            return []

    def exists(self, path: str) -> bool:
        """Say whether something is there, a dangling link included."""
        return os.path.lexists(self.path(path))

    def link(self, path: str) -> str | None:
        """Return a symbolic link's target as it is written, or ``None``."""
        try:
            return os.readlink(self.path(path))
        except OSError:
            return None


def errno_name(error: OSError) -> str:
    """Return ``EPERM`` for an operating system error."""
    return errno.errorcode.get(error.errno or 0, "E{}".format(error.errno))
