"""Run the benchmarks named, or all of them: ``python benchmarks/run.py [NAME ...]``."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

HERE = Path(__file__).parent


def names() -> list[str]:
    """Return the benchmarks there are, cheap ones first."""
    found = {path.stem for path in HERE.glob("bench_*.py")}
    return sorted(found, key=lambda name: (name == "bench_build", name))


def main() -> None:
    """Run them one after another."""
    sys.path.insert(0, str(HERE))
    wanted = [f"bench_{name.removeprefix('bench_')}" for name in sys.argv[1:]] or names()
    for name in wanted:
        print(f"== {name}")
        importlib.import_module(name).main()


if __name__ == "__main__":
    main()
