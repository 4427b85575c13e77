"""Say what is really in an image: versions, compiled architectures, and copies of CUDA libraries.

Runs inside the built image without a GPU and prints one JSON line. Standard library and torch only.
"""

import glob
import json
import os
import platform
import re
import sys
from importlib import metadata

LIBRARIES = ("libcudart", "libcublas", "libcudnn", "libnccl", "libnvrtc", "libcusparse")


def distributions():
    """Return the installed distributions, name to version."""
    found = {}
    for dist in metadata.distributions():
        name = re.sub(r"[-_.]+", "-", dist.metadata["Name"] or "").lower()
        if name:
            found[name] = dist.version
    return dict(sorted(found.items()))


def library_copies():
    """Return the real files of each CUDA library family below the usual places, by family.

    Two files of one family with different directories are two copies of CUDA in one image.
    """
    roots = [path for path in sys.path if path.endswith("-packages")]
    patterns = [
        *(os.path.join(root, "nvidia", "**") for root in roots),
        *(os.path.join(root, "torch", "lib") for root in roots),
        "/usr/local/cuda*/**",
        "/usr/lib/*-linux-gnu",
        "/usr/lib64",
    ]
    copies = {}
    for family in LIBRARIES:
        seen = set()
        for pattern in patterns:
            for path in glob.glob(os.path.join(pattern, family + ".so.*"), recursive=True):
                seen.add(os.path.dirname(os.path.realpath(path)))
        copies[family] = sorted(seen)
    return copies


def driver_files():
    """Return files of the NVIDIA driver package; an image must have none."""
    found = []
    for directory in ("/usr/lib/*-linux-gnu", "/usr/lib64", "/usr/local/lib"):
        for name in ("libcuda.so.[0-9]*", "libnvidia-ml.so.[0-9]*"):
            found += glob.glob(os.path.join(directory, name))
    return sorted(found)


def torch_facts():
    """Return what torch says of itself; works without a GPU."""
    import torch

    facts = {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "arch_flags": None,
        "cudnn": None,
        "nccl": None,
    }
    if torch.version.cuda:
        # get_arch_list() is empty without a GPU on older releases; this is the wheel's own string
        facts["arch_flags"] = (torch._C._cuda_getArchFlags() or "").split()
        facts["cudnn"] = torch.backends.cudnn.version()
        facts["nccl"] = list(torch.cuda.nccl.version())
    ones = torch.ones(4, requires_grad=True)
    (ones * ones).sum().backward()
    facts["autograd_ok"] = ones.grad.tolist() == [2.0] * 4
    return facts


def main():
    """Print the facts, or the error that stopped them."""
    answer = {"python": platform.python_version(), "machine": platform.machine()}
    try:
        answer["distributions"] = distributions()
        answer["library_copies"] = library_copies()
        answer["driver_files"] = driver_files()
        answer["torch"] = torch_facts()
    except Exception as error:
        answer["error"] = "%s: %s" % (type(error).__name__, error)
    print(json.dumps(answer))


main()
