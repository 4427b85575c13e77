#!/usr/bin/env bash
# Make a virtual environment and install into it: make-venv.sh PYTHON VENV PIP-ARGUMENTS...
set -euo pipefail
python=$1 venv=$2
shift 2

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
    echo "error: $python is missing or older than 3.10" >&2
    echo "  fix: install Python 3.10 or newer, or name one: make PYTHON=python3.12 …" >&2
    exit 2
fi
if [ ! -x "$venv/bin/python" ]; then
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        # Debian and Ubuntu split venv off; as root that is one package away.
        if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
            echo "installing python3-venv" >&2
            apt-get update -qq && apt-get install -y -qq --no-install-recommends python3-venv >/dev/null
        else
            echo "error: $python cannot make virtual environments" >&2
            echo "  fix: sudo apt-get install python3-venv" >&2
            exit 2
        fi
    fi
    "$python" -m venv "$venv"
fi
# Dependency groups need pip 25.1.
"$venv/bin/python" -c 'import pip, sys; sys.exit(tuple(map(int, pip.__version__.split(".")[:2])) < (25, 1))' ||
    "$venv/bin/python" -m pip install -q --disable-pip-version-check --upgrade pip
"$venv/bin/python" -m pip install -q --disable-pip-version-check "$@"
