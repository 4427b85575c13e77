"""Where the files of ``images/`` are, in a checkout and in an installed wheel.

Nothing else in the package looks at ``__file__``.
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def images_dir() -> Path:
    """Return the directory with the template, the matrix and its schema."""
    installed = _PACKAGE / "images"
    return installed if installed.is_dir() else _PACKAGE.parent / "images"


def package_dir() -> Path:
    """Return the directory of the package's own Python files, which probes are sent from."""
    return _PACKAGE
