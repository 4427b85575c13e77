"""What several checks need to know of the place: is there a GPU here, is this a container.

One reading of the facts for all, so that two checks never disagree on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuenv.checks.say import group, integer, probe, rows, text, words

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuenv.checks.model import Facts

CU_NO_DEVICE = 100


def in_container(facts: Facts) -> bool:
    """Say whether the probes ran in a container of any kind."""
    machine = probe(facts, "host.machine")
    return bool(machine.get("container")) or facts.where.get("kind") in ("image", "container")


def container_kind(facts: Facts) -> str:
    """Return ``docker``, ``podman``, ``kubernetes`` and so on, empty outside of containers."""
    return text(group(probe(facts, "host.machine"), "container"), "kind")


def is_wsl(facts: Facts) -> bool:
    """Say whether this is Linux under Windows, where the driver is Windows' own."""
    return bool(probe(facts, "host.machine").get("wsl"))


def is_virtual(facts: Facts) -> bool:
    """Say whether this is a virtual machine."""
    return bool(probe(facts, "host.machine").get("virtual"))


def pci_gpus(facts: Facts) -> tuple[Mapping[str, Any], ...]:
    """Return the NVIDIA GPUs on the bus; in a container these are the host's."""
    return rows(probe(facts, "host.pci"), "gpus")


def nvml_gpus(facts: Facts) -> tuple[Mapping[str, Any], ...]:
    """Return the GPUs NVML speaks of, without those it could not open."""
    return tuple(gpu for gpu in rows(probe(facts, "host.nvml"), "gpus") if not gpu.get("handle"))


def gpu_label(gpu: Mapping[str, Any]) -> str:
    """Return what a finding calls one GPU: ``GPU 3``."""
    return f"GPU {gpu.get('index', gpu.get('ordinal', '?'))}"


def smi(options: str, gpu: Mapping[str, Any]) -> str:
    """Return a command of nvidia-smi for one GPU, by its index or its address on the bus."""
    which = gpu.get("index", gpu.get("bdf"))
    if isinstance(which, str) and which.count(":") == 1:
        which = f"0000:{which}"
    elif isinstance(which, str) and which and "." not in which:
        which = f"{which}.0"
    return f"nvidia-smi {options}" + ("" if which in {None, ""} else f" -i {which}")


def nodes(facts: Facts) -> dict[str, Mapping[str, Any]]:
    """Return the device nodes by path."""
    found = group(probe(facts, "host.nodes"), "nodes")
    return {path: group(found, path) for path in found}


def gpu_nodes(facts: Facts) -> dict[str, Mapping[str, Any]]:
    """Return the nodes of GPUs, ``/dev/nvidia0`` and so on, that are there."""
    return {
        path: node
        for path, node in nodes(facts).items()
        if path.removeprefix("/dev/nvidia").isdigit() and node.get("errno") != "ENOENT"
    }


def has_driver_libraries(facts: Facts) -> bool:
    """Say whether CUDA's or NVML's driver library could be loaded, or at least lies there."""
    for name in ("host.nvml", "host.cuda"):
        load = group(probe(facts, name), "load")
        if load and load.get("error") is None:
            return True
    libs = group(probe(facts, "host.libs"), "libs")
    return any(
        copy.get("size") and "/stubs" not in text(copy, "path") and copy.get("via") != "compat"
        for name in ("libcuda.so", "libnvidia-ml.so")
        for copy in rows(libs, name)
    )


def gpu_given(facts: Facts) -> bool:
    """Say whether this place was given a GPU: nodes are there, or the driver answers with one.

    A machine's bus lists its GPUs in every container; being given one is another matter.
    """
    if gpu_nodes(facts) or nvml_gpus(facts):
        return True
    if (integer(probe(facts, "host.cuda"), "count") or 0) > 0:
        return True
    wsl = group(probe(facts, "host.machine"), "wsl")
    return bool(wsl.get("dxg"))


def gpu_expected(facts: Facts) -> bool:
    """Say whether a GPU ought to work here: given to a container, or simply there on a host.

    Where the machine has none, ``--require gpu`` breaks nothing: it cannot be confirmed (exit 3).
    """
    if gpu_given(facts) or (pci_gpus(facts) and "gpu" in words(facts.asked, "require")):
        return True
    if (integer(facts.asked, "expect_gpus") or 0) > 0:
        return True
    return bool(pci_gpus(facts)) and not in_container(facts)


def module_release(facts: Facts) -> str:
    """Return the release of the loaded kernel module, ``580.65.06``, empty when there is none."""
    driver = probe(facts, "host.driver")
    return text(driver, "proc_version") or text(driver, "module_version")


def compat_releases(facts: Facts) -> frozenset[str]:
    """Return the releases of forward-compatibility libraries that lie in their own folder here.

    The legacy container hook mounts such a library beside the driver's, where its path no longer
    tells what it is.
    """
    copies = rows(group(probe(facts, "host.libs"), "libs"), "libcuda.so")
    return frozenset(text(copy, "version") for copy in copies if copy.get("via") == "compat")


def uses_compat(facts: Facts) -> bool:
    """Say whether the loaded libcuda is a forward-compatibility one, by its path or its release."""
    cuda = probe(facts, "host.cuda")
    release = text(group(cuda, "load"), "release")
    if cuda.get("compat"):
        return True
    return bool(release) and release in compat_releases(facts) and release != module_release(facts)


def driver_release(facts: Facts) -> str:
    """Return the driver's release by the best source: the module, else NVML's word."""
    return module_release(facts) or text(probe(facts, "host.nvml"), "driver")


def driver_cuda(facts: Facts) -> tuple[int, int] | None:
    """Return the highest CUDA the driver supports: libcuda's word, else NVML's."""
    for name in ("host.cuda", "host.nvml"):
        raw = integer(probe(facts, name), "driver_cuda")
        if raw and raw > 0:
            return raw // 1000, raw % 1000 // 10
    return None


def torch_cuda(facts: Facts) -> tuple[int, int] | None:
    """Return the CUDA version torch was built for, ``None`` without torch or for a CPU build."""
    parts = text(probe(facts, "torch.static"), "cuda").split(".")
    if len(parts) > 1 and parts[0].isdigit() and parts[1].isdigit():
        return int(parts[0]), int(parts[1])
    return None


def short_bdf(bdf: str) -> str:
    """Write a PCI address in one form, ``0000:65:00.0``, whatever the length of its domain."""
    domain, _, rest = bdf.lower().partition(":")
    return f"{domain[-4:].rjust(4, '0')}:{rest}"


def version_key(release: str) -> tuple[int, ...]:
    """Return a release as numbers that compare: ``580.65.06`` is (580, 65, 6)."""
    return tuple(int(part) for part in release.split(".") if part.isdigit())
