"""Start further processes of a probe: the ranks of a process group, a compile in its own cache.

They are started the way probes themselves are, so they work from a pipe, without a file on disk.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from typing import Any, Iterable

_ALWAYS = ("_loader", "_child", "_common", "_spawn", "_worker")


def source_of(name: str) -> str:
    """Return the text of a file of gpuenv.probes, wherever this process has it from."""
    spec = importlib.util.find_spec("gpuenv.probes." + name)
    text = spec.loader.get_source("gpuenv.probes." + name) if spec and spec.loader else None  # type: ignore[attr-defined]
    if text is None:
        raise ImportError("no source of gpuenv.probes." + name)
    return str(text)


def start_worker(
    module: str,
    function: str,
    arguments: dict[str, Any],
    env: dict[str, str] | None = None,
    also: Iterable[str] = (),
) -> subprocess.Popen[bytes]:
    """Start ``gpuenv.probes.MODULE.FUNCTION(arguments, tell)`` in a process of its own.

    Args:
        module: The file below ``gpuenv/probes``.
        function: Takes the arguments and ``tell``, which sends one JSON object at once; what it
            returns is sent last as ``{"result": ...}`` or ``{"error": ...}``.
        arguments: JSON-ready.
        env: The whole environment of the process, our own by default.
        also: Further files of gpuenv.probes that ``module`` imports.

    Returns:
        The process; standard output carries JSON lines and nothing else, standard error the noise.
        Whoever starts it ends it: it is in our process group and dies with the probe.
    """
    names = {*_ALWAYS, module, *also}
    request = {
        "entry": "_worker",
        "module": module,
        "function": function,
        "arguments": arguments,
        "sources": {name: source_of(name) for name in sorted(names)},
    }
    process = subprocess.Popen(
        [sys.executable, "-c", request["sources"]["_loader"]],  # type: ignore[index]
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(os.environ) if env is None else env,
    )
    if process.stdin is None:
        raise RuntimeError("a worker without a pipe")
    process.stdin.write(json.dumps(request).encode("utf-8"))
    process.stdin.close()
    process.stdin = None
    return process
