"""Each slug a script may key on is explained in the documentation."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

import gpuenv
from gpuenv.errors import all_error_classes

PAGE = Path(__file__).parents[2] / "docs" / "troubleshooting.md"


def test_every_slug_has_a_heading() -> None:
    for module in pkgutil.walk_packages(gpuenv.__path__, "gpuenv."):
        if not module.name.startswith(("gpuenv.probes", "gpuenv.inside", "gpuenv.__main__")):
            importlib.import_module(module.name)
    slugs = {cls.slug for cls in all_error_classes()} - {"error"}
    headings = set(re.findall(r"^## `?([a-z0-9-]+)`?$", PAGE.read_text(), re.MULTILINE))
    assert slugs <= headings, f"without a heading: {sorted(slugs - headings)}"
