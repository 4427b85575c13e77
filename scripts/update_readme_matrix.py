#!/usr/bin/env python3
"""Write the matrix table of README.md anew from images/versions.yaml; --check only compares."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gpuenv.matrix.load import load_matrix
from gpuenv.matrix.table import readme_table, replace_readme_table

README = Path(__file__).resolve().parent.parent / "README.md"


def main() -> int:
    """Return 1 when ``--check`` finds another table than the matrix gives."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    arguments = parser.parse_args()
    old = README.read_text(encoding="utf-8")
    new = replace_readme_table(old, readme_table(load_matrix()))
    if new == old:
        return 0
    if arguments.check:
        print("README.md: the matrix table is out of date; run scripts/update_readme_matrix.py")
        return 1
    README.write_text(new, encoding="utf-8")
    print("README.md: matrix table written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
