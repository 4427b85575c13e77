"""The copies of the driver's and CUDA's libraries that the loader could pick up, and from where."""

from __future__ import annotations

import glob
import os
import re
import struct

from ._common import Context

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_STANDARD = (
    "/lib",
    "/usr/lib",
    "/lib64",
    "/usr/lib64",
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/local/lib",
    "/usr/local/nvidia/lib",
    "/usr/local/nvidia/lib64",
    "/usr/lib/wsl/lib",
    "/run/opengl-driver/lib",
)
_DRIVER = ("libcuda.so", "libnvidia-ml.so", "libnvidia-ptxjitcompiler.so", "libnvidia-nvvm.so")
_CUDA = ("libcudart.so", "libnccl.so", "libcudnn.so", "libcublas.so", "libnvJitLink.so")
_VERSION = re.compile(r"\.so\.([0-9]+(?:\.[0-9]+)*)$")
_INCLUDE_DEPTH = 4


def probe(context: Context) -> dict[str, Any]:
    """Return the copies of each library and how the loader gets at them.

    Keys: ``libs`` {``libcuda.so``: [{path, real, version, size, via}]} where ``via`` is
    ``LD_LIBRARY_PATH``, ``cache``, ``standard`` or ``compat``; ``cache`` {soname: path} from
    ld.so.cache (``None`` when there is none); ``loader_dirs`` [{dir, file}] from ld.so.conf;
    ``library_path`` [entries]; ``stub_dirs`` (entries that hold link-time stubs);
    ``preload`` (ld.so.preload).
    """
    library_path = (
        [entry for entry in os.environ.get("LD_LIBRARY_PATH", "").split(":") if entry]
        if context.is_real
        else []
    )
    if isinstance(context.options.get("library_path"), str):
        library_path = [entry for entry in context.options["library_path"].split(":") if entry]
    loader_dirs = _loader_dirs(context, "/etc/ld.so.conf", 0)
    cache = _cache(context)
    compat = sorted(
        "/" + os.path.relpath(path, context.root)
        for path in glob.glob(context.path("/usr/local/cuda*/compat"))
    )
    places = []
    for via, folders in (
        ("LD_LIBRARY_PATH", library_path),
        ("cache", [entry["dir"] for entry in loader_dirs]),
        ("standard", list(_STANDARD)),
        ("compat", compat),
    ):
        places += [(folder, via) for folder in folders]
    names = {folder: context.names(folder) for folder in {folder for folder, _ in places}}
    libs = {}
    for name in (*_DRIVER, *_CUDA):
        copies, seen = [], set()
        for folder, via in places:
            for entry in names[folder]:
                if entry == name or entry.startswith(name + "."):
                    copy = _copy(context, folder + "/" + entry, via)
                    if copy["real"] not in seen:
                        seen.add(copy["real"])
                        copies.append(copy)
        libs[name] = copies
    return {
        "libs": libs,
        "cache": None
        if cache is None
        else {
            soname: path for soname, path in cache.items() if soname.startswith((*_DRIVER, *_CUDA))
        },
        "loader_dirs": loader_dirs,
        "library_path": [{"dir": entry, "exists": context.exists(entry)} for entry in library_path],
        "stub_dirs": [
            entry
            for entry in library_path
            if entry.rstrip("/").endswith("/stubs") and context.exists(entry)
        ],
        "preload": context.word("/etc/ld.so.preload"),
    }


def _copy(context: Context, path: str, via: str) -> dict[str, Any]:
    place = context.path(path)
    real = os.path.realpath(place)
    if context.root != "/":
        real = "/" + os.path.relpath(real, os.path.realpath(context.root))
    match = _VERSION.search(real)
    try:
        size = os.stat(place).st_size
    except OSError:
        size = None
    return {
        "path": path,
        "real": real,
        "version": match[1] if match else None,
        "size": size,
        "via": via,
    }


def _loader_dirs(context: Context, path: str, depth: int) -> list[dict[str, str]]:
    """Read ld.so.conf and the files it includes."""
    found = []
    for line in (context.read(path) or "").splitlines():
        line = line.partition("#")[0].strip()
        if line.startswith("include ") and depth < _INCLUDE_DEPTH:
            pattern = line[8:].strip()
            if not pattern.startswith("/"):
                pattern = os.path.join(os.path.dirname(path), pattern)
            for entry in sorted(glob.glob(context.path(pattern))):
                inner = entry if context.root == "/" else "/" + os.path.relpath(entry, context.root)
                found += _loader_dirs(context, inner, depth + 1)
        elif line.startswith("/"):
            found.append({"dir": line.rstrip("/"), "file": path})
    return found


def _cache(context: Context) -> dict[str, str] | None:
    """Read ld.so.cache.

    The new format: magic of 20 bytes, count (u32), length of strings (u32), 20 spare bytes, then
    entries of 24 bytes: flags (i32), name and path (u32, counted from the magic), and three more.
    """
    try:
        with open(context.path("/etc/ld.so.cache"), "rb") as stream:
            raw = stream.read(8 << 20)
    except OSError:
        return None
    start = raw.find(b"glibc-ld.so.cache1.1")
    if start < 0 or len(raw) < start + 48:
        return None
    base = raw[start:]
    (count,) = struct.unpack_from("<I", base, 20)
    found = {}
    for number in range(count):
        offset = 48 + 24 * number
        if offset + 24 > len(base):
            break
        _, key, value = struct.unpack_from("<iII", base, offset)
        found.setdefault(_string(base, key), _string(base, value))
    return found


def _string(raw: bytes, offset: int) -> str:
    end = raw.find(b"\0", offset)
    return raw[offset : end if end >= 0 else None].decode("utf-8", "replace")


PROBES = {"host.libs": probe}
