"""What torch.compile and extension builds need: compilers, Python.h, ptxas, libcuda.so, nvcc."""

from __future__ import annotations

import glob
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig

from ._common import Context

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_LIBRARY_DIRS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
    "/usr/lib/wsl/lib",
    "/run/opengl-driver/lib",
)


def probe(context: Context) -> dict[str, Any]:
    """Return what is there for this interpreter.

    Keys: ``cc`` {command, path}, ``cxx`` {command, path}, ``python_h`` {path, exists, version},
    ``ptxas`` [{path, version, source}] in the order Triton looks, ``nvcc`` {path, version} or
    ``None``, ``libcuda_link`` (a ``libcuda.so`` for the linker or ``None``), ``triton`` (folder).
    """
    include = sysconfig.get_path("include") or ""
    header = os.path.join(include, "Python.h")
    triton = _package("triton")
    return {
        "cc": _compiler("CC", ("gcc", "clang", "cc")),
        "cxx": _compiler("CXX", ("g++", "clang++", "c++")),
        "python_h": {
            "path": header,
            "exists": os.path.isfile(header),
            "version": "{}.{}".format(*sys.version_info[:2]),
        },
        "triton": triton,
        "ptxas": _ptxas(triton),
        "nvcc": _nvcc(),
        "libcuda_link": _libcuda_link(),
    }


def _package(name: str) -> str | None:
    """Return a package's folder without importing it."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    locations = list(spec.submodule_search_locations or []) if spec else []
    return locations[0] if locations else None


def _compiler(variable: str, names: tuple[str, ...]) -> dict[str, Any]:
    """Look where Inductor looks: the variable's first word, else the usual names."""
    wanted = (os.environ.get(variable) or "").split()
    for name in wanted[:1] or names:
        path = shutil.which(name)
        if path:
            return {"command": name, "path": path, "variable": bool(wanted)}
    return {"command": wanted[0] if wanted else None, "path": None, "variable": bool(wanted)}


def _first_line(pattern: str, arguments: list[str]) -> str | None:
    try:
        done = subprocess.run(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=3,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(pattern, done.stdout.decode("utf-8", "replace"))
    return match[1] if match else None


def _ptxas(triton: str | None) -> list[dict[str, Any]]:
    """Read ``Cuda compilation tools, release 12.8, V12.8.93`` of each candidate."""
    candidates = []
    for variable in ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH"):
        if os.environ.get(variable):
            candidates.append((os.environ[variable], variable))
    if triton:
        for path in sorted(glob.glob(os.path.join(triton, "backends", "nvidia", "bin", "ptxas*"))):
            candidates.append((path, "triton"))
    found = []
    for path, source in candidates:
        usable = os.path.isfile(path) and os.access(path, os.X_OK)
        version = _first_line(r"release ([0-9]+\.[0-9]+)", [path, "--version"]) if usable else None
        found.append({"path": path, "version": version, "source": source, "usable": usable})
    return found


def _nvcc() -> dict[str, Any] | None:
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    path = os.path.join(home, "bin", "nvcc") if home else shutil.which("nvcc")
    if not path or not os.path.exists(path):
        path = "/usr/local/cuda/bin/nvcc"
    if not os.path.exists(path):
        return None
    return {"path": path, "version": _first_line(r"release ([0-9]+\.[0-9]+)", [path, "--version"])}


def _libcuda_link() -> str | None:
    """Find what ``-lcuda`` needs: a ``libcuda.so`` without a number."""
    folders = [entry for entry in os.environ.get("TRITON_LIBCUDA_PATH", "").split(":") if entry]
    folders += [entry for entry in os.environ.get("LIBRARY_PATH", "").split(":") if entry]
    folders += [*_LIBRARY_DIRS, *sorted(glob.glob("/usr/local/cuda*/compat"))]
    for folder in folders:
        path = os.path.join(folder, "libcuda.so")
        if os.path.exists(path):
            return path
    return None


PROBES = {"host.toolchain": probe}
