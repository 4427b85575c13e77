"""The environment variables that steer CUDA, torch, Triton and NCCL, and no others.

A list of what is taken, not of what is left out: a token in a variable nobody thought of stays
where it is.
"""

from __future__ import annotations

import os
import re

from ._common import Context

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_EXACT = frozenset(
    (
        "CC",
        "CXX",
        "LD_LIBRARY_PATH",
        "LD_PRELOAD",
        "LIBRARY_PATH",
        "TMPDIR",
        "LANG",
        "LC_ALL",
        "PYTHONNOUSERSITE",
        "OMP_NUM_THREADS",
        "MKL_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "CUBLAS_WORKSPACE_CONFIG",
        "GGML_CUDA_P2P",
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "DP_DISABLE_HEALTHCHECKS",
        "VIRTUAL_ENV",
        "CONDA_PREFIX",
        "MAX_JOBS",
        "GLOO_SOCKET_IFNAME",
    )
)
_PREFIXES = ("CUDA_", "NVIDIA_", "NCCL_", "TORCH_", "TORCHINDUCTOR_", "PYTORCH_", "TRITON_", "UCX_")
_SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|API_?KEY|AUTH", re.IGNORECASE)
_NCCL_FILES = ("/etc/nccl.conf",)


def probe(context: Context) -> dict[str, Any]:
    """Return ``variables`` {name: value} and ``nccl_conf`` {path: {name: value}}."""
    env = os.environ if context.is_real else context.options.get("env", {})
    variables = {
        name: value[:4096]
        for name, value in sorted(env.items())
        if (name in _EXACT or name.startswith(_PREFIXES)) and not _SECRET.search(name)
    }
    files = list(_NCCL_FILES)
    if env.get("NCCL_CONF_FILE"):
        files.append(env["NCCL_CONF_FILE"])
    elif env.get("HOME"):
        files.append(env["HOME"] + "/.nccl.conf")
    found = {}
    for path in files:
        text = context.read(path, 65536)
        if text is not None:
            found[path] = _assignments(text)
    return {"variables": variables, "nccl_conf": found}


def _assignments(text: str) -> dict[str, str]:
    """Read lines ``NCCL_DEBUG=INFO``."""
    values = {}
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals and key.strip().startswith("NCCL_"):
            values[key.strip()] = value.strip()
    return values


PROBES = {"host.env": probe}
