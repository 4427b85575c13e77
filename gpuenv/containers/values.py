"""Values of the command line that become part of a container's description."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpuenv.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CAPABILITY = re.compile(r"[A-Z][A-Z_]{2,24}")


def is_number(text: str) -> bool:
    """Say whether a text is digits and nothing else; ``str.isdigit`` knows many more scripts."""
    return text.isascii() and text.isdigit()


def parse_variable(text: str, *, environ: Mapping[str, str]) -> tuple[str, str] | None:
    """Read ``--set-env NAME=VALUE``; without a value it is ours, ``None`` if we have none.

    Raises:
        ConfigurationError: The name is none.
    """
    name, sign, value = text.partition("=")
    if not _VARIABLE.fullmatch(name) or "\0" in value:
        raise ConfigurationError(
            f"--set-env {text!r} sets no variable",
            why="a name has letters, digits and _, and begins with no digit",
            fix="--set-env NCCL_DEBUG=INFO",
        )
    if sign:
        return name, value
    return (name, environ[name]) if name in environ else None


def parse_capability(text: str) -> str:
    """Read ``--cap-add``, with or without ``CAP_``.

    Raises:
        ConfigurationError: It is no name of a capability.
    """
    name = text.upper().removeprefix("CAP_")
    if not _CAPABILITY.fullmatch(name) or name == "ALL":
        raise ConfigurationError(
            f"--cap-add {text!r} is not a capability",
            why="name each one that is needed, as in capabilities(7)",
            fix="--cap-add SYS_PTRACE",
        )
    return name
