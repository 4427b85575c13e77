"""Writing a file whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_whole(
    path: Path, content: bytes, *, mode: int | None = 0o600, owner: tuple[int, int] | None = None
) -> None:
    """Put a file in place of what is there, or leave that as it is.

    The content goes to a temporary neighbour first, so neither a crash, nor a full disk, nor a
    reader in between sees half of it. A link is replaced by the file.

    Args:
        mode: ``None`` for what a new file has by the umask.
        owner: Uid and gid, where they are to be others than ours.

    Raises:
        OSError: It cannot be written.
    """
    if mode is None:
        os.umask(mask := os.umask(0o077))
        mode = 0o666 & ~mask
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            if owner is not None:
                os.fchown(file.fileno(), *owner)
            os.fchmod(file.fileno(), mode)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
