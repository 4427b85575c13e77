"""What the CUDA driver library itself answers: the raw ``cuInit`` code, before torch rewrites it.

torch says "driver too old" for whatever ``cuInit`` returned once the driver is old, and "unknown
error" for much else; the number from the library is evidence of a better grade.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
import time

from ._common import Context

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_AGAIN_S = 6.0
_NAMES = ("libcuda.so", "libnvidia-ptxjitcompiler", "libnvidia-nvvm", "libnvidia-gpucomp")
_AGAIN = """
import ctypes
try:
    cuda = ctypes.CDLL("libcuda.so.1")
except OSError as error:
    print("load", error)
else:
    n = ctypes.c_int(-1)
    code = cuda.cuInit(0)
    if code == 0:
        cuda.cuDeviceGetCount(ctypes.byref(n))
    print(code, n.value)
"""


def probe(context: Context) -> dict[str, Any]:
    """Return what ``libcuda.so.1`` is and says.

    Keys: ``load`` {path, real, release, error}, ``cu_init`` (code), ``cu_init_s``, ``driver_cuda``
    (13000), ``count``, ``gpus`` [{ordinal, name, capability, bdf, memory}], ``maps`` [paths],
    ``compat`` (the library comes from a forward-compatibility package), ``again`` {what was
    changed: [code, count]}: the same question with one thing in the environment removed, asked
    only when the first answer was bad.
    """
    if not context.is_real:
        return {"load": {"path": None, "error": "not this machine"}, "cu_init": None, "gpus": []}
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        facts = {"load": {"path": None, "error": str(error)}, "cu_init": None, "gpus": []}
        facts["again"] = _again(bool(os.environ.get("LD_LIBRARY_PATH")), False)
        return facts
    maps = _mapped(_NAMES)
    path = next((entry for entry in maps if os.path.basename(entry).startswith("libcuda.so")), None)
    real = os.path.realpath(path) if path else None
    release = re.search(r"\.so\.([0-9]+(?:\.[0-9]+)+)$", real or "")
    facts = {
        "load": {
            "path": path,
            "real": real,
            "release": release[1] if release else None,
            "error": None,
        },
        "compat": any("/compat/" in (entry or "") for entry in (path, real)),
        "maps": maps,
    }
    version = ctypes.c_int(-1)
    code = _call(cuda, "cuDriverGetVersion", ctypes.byref(version))
    facts["driver_cuda"] = version.value if code == 0 else {"cuda": code}
    context.tell(facts)
    begun = time.monotonic()
    facts["cu_init"] = _call(cuda, "cuInit", ctypes.c_uint(0))
    facts["cu_init_s"] = round(time.monotonic() - begun, 4)
    facts["count"] = None
    facts["gpus"] = []
    context.tell(facts)
    if facts["cu_init"] == 0:
        count = ctypes.c_int(-1)
        code = _call(cuda, "cuDeviceGetCount", ctypes.byref(count))
        facts["count"] = count.value if code == 0 else {"cuda": code}
        context.tell(facts)
        for ordinal in range(count.value if code == 0 else 0):
            facts["gpus"].append(_gpu(cuda, ordinal))
    if facts["cu_init"] or not facts["count"]:
        facts["again"] = _again(
            bool(os.environ.get("LD_LIBRARY_PATH")), "CUDA_VISIBLE_DEVICES" in os.environ
        )
    return facts


def _call(cuda: ctypes.CDLL, name: str, *arguments: Any) -> int:
    """Return the code of a call, -1 when the library has no such function."""
    try:
        function = getattr(cuda, name)
    except AttributeError:
        return -1
    function.restype = ctypes.c_int
    return int(function(*arguments))


def _gpu(cuda: ctypes.CDLL, ordinal: int) -> dict[str, Any]:
    device = ctypes.c_int(-1)
    code = _call(cuda, "cuDeviceGet", ctypes.byref(device), ctypes.c_int(ordinal))
    if code:
        return {"ordinal": ordinal, "error": {"cuda": code}}
    name = ctypes.create_string_buffer(128)
    _call(cuda, "cuDeviceGetName", name, ctypes.c_int(len(name)), device)
    memory = ctypes.c_size_t(0)
    _call(cuda, "cuDeviceTotalMem_v2", ctypes.byref(memory), device)

    def attribute(number: int) -> int | None:
        value = ctypes.c_int(-1)
        code = _call(
            cuda, "cuDeviceGetAttribute", ctypes.byref(value), ctypes.c_int(number), device
        )
        return value.value if code == 0 else None

    major, minor = attribute(75), attribute(76)
    domain, bus, slot = attribute(50), attribute(33), attribute(34)
    bdf = None
    if domain is not None and bus is not None and slot is not None:
        bdf = "{:08x}:{:02x}:{:02x}.0".format(domain, bus, slot)
    return {
        "ordinal": ordinal,
        "name": name.value.decode("utf-8", "replace"),
        "capability": None if major is None else "{}.{}".format(major, minor),
        "bdf": bdf,
        "memory": memory.value,
        "compute_mode": attribute(20),
    }


def _again(library_path: bool, visible: bool) -> dict[str, Any]:
    """Ask a fresh process with one variable removed: what changes the answer is the cause."""
    answers = {}
    for name, wanted in (("LD_LIBRARY_PATH", library_path), ("CUDA_VISIBLE_DEVICES", visible)):
        if not wanted:
            continue
        env = {key: value for key, value in os.environ.items() if key != name}
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-S", "-c", _AGAIN],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=_AGAIN_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            answers["without " + name] = {"error": type(error).__name__}
            continue
        words = done.stdout.decode("utf-8", "replace").split()
        if len(words) == 2 and words[0].isdigit():
            answers["without " + name] = {"cu_init": int(words[0]), "count": int(words[1])}
        else:
            answers["without " + name] = {"error": " ".join(words)[:200] or "crashed"}
    return answers


def _mapped(names: tuple[str, ...]) -> list[str]:
    """Return the mapped files whose names begin so: what the loader really took."""
    found = []
    try:
        with open("/proc/self/maps") as stream:
            for line in stream:
                path = "/" + line.rstrip("\n").partition("/")[2]
                if os.path.basename(path).startswith(names) and path not in found:
                    found.append(path)
    except OSError:
        pass
    return found


PROBES = {"host.cuda": probe}
