"""The import map of the package: imports point down, and importing does nothing."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "gpuenv"

# Layer by layer from the bottom; a module may import its own area and everything above its line.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors", "values"),
    ("versions", "secret", "writing"),
    ("spec", "state", "resources", "process", "reading"),
    ("wheelfacts", "validate", "lockfile"),
    ("matrix", "index", "config", "render", "checks", "verify"),
    ("host", "content"),
    ("engine", "sourcing", "upkeep", "lockcheck"),
    ("report",),
    ("containers", "probing"),
    ("ssh",),
    ("build", "launch", "jupyter", "doctor"),
    ("provision", "life"),
    ("locking",),
    ("output", "commands", "cli", "__main__"),
)
# Outside the map: sent to where they run, and may import nothing of the package.
STANDALONE = ("probes", "inside")


def _layer(area: str) -> int:
    for number, areas in enumerate(LAYERS):
        if area in areas:
            return number
    pytest.fail(f"gpuenv/{area} is in no layer of the map; add it to LAYERS on purpose")


def _area(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def _imports(path: Path) -> set[str]:
    """Return the areas of gpuenv that a file imports, wherever in the file."""
    areas: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = (
                [f"gpuenv.{alias.name}" for alias in node.names]
                if node.module == "gpuenv"
                else [node.module]
            )
        else:
            continue
        areas |= {name.split(".")[1] for name in names if name.startswith("gpuenv.")}
    return areas - {"__version__"}


FILES = sorted(
    path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py" or path.parent != PACKAGE
)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    area = _area(path)
    if area in STANDALONE:
        assert _imports(path) == set()
        return
    own = _layer(area)
    for imported in _imports(path) - {area}:
        assert imported not in STANDALONE, "probes are sent as files, not imported"
        assert _layer(imported) < own or (own == len(LAYERS) - 1), f"{area} imports {imported}"


def test_only_process_and_the_probe_runner_start_programs() -> None:
    allowed = {"process.py"}
    users = {
        str(path.relative_to(PACKAGE))
        for path in FILES
        if _area(path) not in STANDALONE
        for node in ast.walk(ast.parse(path.read_text()))
        if (isinstance(node, ast.Import) and any(a.name == "subprocess" for a in node.names))
        or (isinstance(node, ast.ImportFrom) and node.module == "subprocess")
    }
    assert users <= allowed, users - allowed


def test_only_resources_looks_at_its_own_file_name() -> None:
    users = {
        str(path.relative_to(PACKAGE))
        for path in FILES
        if _area(path) not in STANDALONE
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Name) and node.id == "__file__"
    }
    assert users == {"resources.py"}
