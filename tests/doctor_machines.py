"""Machines as fact documents: healthy ones, which the corpus of faults then breaks.

Each function returns what the probes would answer there, as plain data. Values are those of real
machines of the kind (names, PCI ids, limits); nothing in them identifies one.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from gpuenv.checks.facts import parse_facts

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuenv.checks.model import Facts

Document = dict[str, Any]

H100 = {
    "name": "NVIDIA H100 80GB HBM3",
    "sm": "9.0",
    "pci": "0x2330",
    "memory": 80,
    "watts": 700.0,
}
A100 = {
    "name": "NVIDIA A100-SXM4-80GB",
    "sm": "8.0",
    "pci": "0x20b2",
    "memory": 80,
    "watts": 400.0,
}
V100 = {
    "name": "Tesla V100-SXM2-32GB",
    "sm": "7.0",
    "pci": "0x1db5",
    "memory": 32,
    "watts": 300.0,
}
T4 = {"name": "Tesla T4", "sm": "7.5", "pci": "0x1eb8", "memory": 15, "watts": 70.0}
RTX4090 = {
    "name": "NVIDIA GeForce RTX 4090",
    "sm": "8.9",
    "pci": "0x2684",
    "memory": 24,
    "watts": 450.0,
}
RTX5090 = {
    "name": "NVIDIA GeForce RTX 5090",
    "sm": "12.0",
    "pci": "0x2b85",
    "memory": 32,
    "watts": 575.0,
}
B300 = {"name": "NVIDIA B300", "sm": "10.3", "pci": "0x3182", "memory": 270, "watts": 1100.0}

GIB = 1 << 30
NOT_SUPPORTED = {"nvml": 3}


def _bdf(index: int) -> str:
    return f"0000:{0x18 + 0x11 * index:02x}:00.0"


def pci_gpu(model: Document, index: int) -> Document:
    """Return a GPU as the bus shows it."""
    return {
        "bdf": _bdf(index),
        "vendor": "0x10de",
        "device": model["pci"],
        "class": "0x030200",
        "driver": "nvidia",
        "numa": index // 4,
        "lost": False,
        "display": False,
        "bars_mib": [16, model["memory"] * 1024, 32],
        "virtual_function": False,
        "link": {
            "current_link_speed": "2.5 GT/s PCIe",
            "max_link_speed": "32.0 GT/s PCIe",
            "current_link_width": "16",
            "max_link_width": "16",
        },
    }


def nvml_gpu(model: Document, index: int) -> Document:
    """Return a healthy GPU as NVML describes it, idle: PCIe generation 1, clocks down."""
    geforce = "GeForce" in model["name"]
    links = [1] * 18 if model in (H100, A100, B300) else NOT_SUPPORTED
    return {
        "index": index,
        "handle": None,
        "name": model["name"],
        "bdf": "0000" + _bdf(index),
        "uuid": f"GPU-{index:08x}-1111-4222-8333-444444444444",
        "minor": index,
        "capability": model["sm"],
        "pci_id": model["pci"] + "10de",
        "brand": 1,
        "memory": {
            "total": model["memory"] * GIB,
            "free": model["memory"] * GIB - GIB,
            "used": GIB,
        },
        "bar1": {"total": model["memory"] * GIB, "free": GIB, "used": 0},
        "persistence": 1,
        "compute_mode": 0,
        "mig": {"current": 0, "pending": 0, "instances": []}
        if model in (H100, A100)
        else NOT_SUPPORTED,
        "ecc_mode": NOT_SUPPORTED if geforce else [1, 1],
        "ecc": {
            f"{kind}_{span}": NOT_SUPPORTED if geforce else 0
            for kind in ("corrected", "uncorrected")
            for span in ("volatile", "aggregate")
        },
        "ecc_sram_uncorrected": NOT_SUPPORTED if geforce else 0,
        "remapped_rows": [0, 0, 0, 0] if model in (H100, A100, B300) else NOT_SUPPORTED,
        "retired_pages": {"single_bit": 0, "double_bit": 0, "pending": 0}
        if model == V100
        else {"single_bit": NOT_SUPPORTED, "double_bit": NOT_SUPPORTED, "pending": NOT_SUPPORTED},
        "power_limit_w": model["watts"],
        "power_default_w": model["watts"],
        "power_w": 70.0,
        "temperature_c": 34,
        "slowdown_c": 89,
        "clock_mhz": 345,
        "clock_max_mhz": 1980,
        "clock_application_mhz": NOT_SUPPORTED if geforce else 1980,
        "clock_application_default_mhz": NOT_SUPPORTED if geforce else 1980,
        "events": 0x1,
        "pcie": {"gen": 1, "gen_max": 5, "width": 16, "width_max": 16, "replays": 0},
        "nvlinks": links,
        "fabric": {"state": 3, "status": 0} if model in (H100, B300) else NOT_SUPPORTED,
        "recovery_action": 0 if model in (H100, B300) else NOT_SUPPORTED,
        "inforom": 0,
        "display_active": 0,
        "virtualization": 0,
        "processes": 0,
    }


def _pairs(count: int, *, nvlink: bool) -> list[Document]:
    return [
        {
            "a": a,
            "b": b,
            "ancestor": 50 if b - a > 3 else 40,
            "p2p_read": 0,
            "p2p_nvlink": 0 if nvlink else 5,
        }
        for a in range(count)
        for b in range(a + 1, count)
    ]


def _nodes(count: int, *, uvm: bool = True) -> Document:
    def node(major: int, minor: int) -> Document:
        return {
            "errno": None,
            "mode": "0666",
            "uid": 0,
            "gid": 0,
            "major": major,
            "minor": minor,
            "char": True,
        }

    found = {f"/dev/nvidia{index}": node(195, index) for index in range(count)}
    found["/dev/nvidiactl"] = node(195, 255) if count else {"errno": "ENOENT"}
    found["/dev/nvidia-uvm"] = node(510, 0) if count and uvm else {"errno": "ENOENT"}
    found["/dev/nvidia-uvm-tools"] = node(510, 1) if count and uvm else {"errno": "ENOENT"}
    return found


def _torch(version: str, cuda: str | None) -> Document:
    dists = {"torch": version, "numpy": "2.3.5"}
    if cuda:
        major = cuda.split(".", maxsplit=1)[0]
        dists |= {
            f"nvidia-nccl-cu{major}": "2.28.9",
            f"nvidia-cudnn-cu{major}": "9.15.1.9",
            "triton": "3.7.0",
        }
    path = "/opt/venv/lib/python3.12/site-packages/torch"
    return {
        "python": "3.12.11",
        "prefix": "/opt/venv",
        "present": True,
        "version": version,
        "cuda": cuda,
        "hip": None,
        "debug": False,
        "path": path,
        "installer": "uv",
        "cuda_library": cuda is not None,
        "copies": [{"path": path, "version": version}],
        "dists": dists,
        "duplicates": {},
        "conflicts": [],
        "overlaps": [],
        "families": {},
        "locked": {},
    }


NO_TORCH: Document = {
    "python": "3.12.11",
    "prefix": "/usr",
    "present": False,
    "dists": {},
    "duplicates": {},
    "copies": [],
    "conflicts": [],
    "overlaps": [],
    "families": {},
    "locked": {},
}


def _cuda(model: Document, count: int, driver: str, driver_cuda: int) -> Document:
    path = "/usr/lib/x86_64-linux-gnu/libcuda.so." + driver
    return {
        "load": {"path": path, "real": path, "release": driver, "error": None},
        "compat": False,
        "maps": [path],
        "driver_cuda": driver_cuda,
        "cu_init": 0,
        "cu_init_s": 0.4,
        "count": count,
        "gpus": [
            {
                "ordinal": index,
                "name": model["name"],
                "capability": model["sm"],
                "bdf": "0000" + _bdf(index),
                "memory": model["memory"] * GIB,
                "compute_mode": 0,
            }
            for index in range(count)
        ],
    }


def _libs(driver: str) -> Document:
    def copies(name: str) -> list[Document]:
        path = f"/usr/lib/x86_64-linux-gnu/{name}.{driver}"
        return [
            {"path": path, "real": path, "version": driver, "size": 40_000_000, "via": "standard"}
        ]

    return {
        "libs": {
            "libcuda.so": copies("libcuda.so"),
            "libnvidia-ml.so": copies("libnvidia-ml.so"),
            "libnvidia-ptxjitcompiler.so": copies("libnvidia-ptxjitcompiler.so"),
        },
        "cache": {"libcuda.so.1": "/usr/lib/x86_64-linux-gnu/libcuda.so.1"},
        "loader_dirs": [],
        "library_path": [],
        "stub_dirs": [],
        "preload": None,
    }


def _place(path: str, kind: str = "ext4", free: int = 400 * GIB) -> Document:
    return {
        "path": path,
        "at": path,
        "variable": None,
        "mount": "/",
        "type": kind,
        "options": ["rw"],
        "free": free,
        "total": 900 * GIB,
        "inodes": 60_000_000,
        "inodes_free": 55_000_000,
        "write": None,
        "exec": None,
        "rename": None,
    }


def host(
    model: Document = H100,
    count: int = 8,
    *,
    driver: str = "580.82.07",
    driver_cuda: int = 13000,
    torch: str | None = "2.14.1+cu130",
    nvswitches: int = 4,
    engine: str | None = "docker",
) -> Document:
    """Return a bare-metal GPU server on which everything is well."""
    cuda = None
    if torch and "+cu" in torch:
        digits = torch.partition("+cu")[2]
        cuda = f"{digits[:-1]}.{digits[-1]}"
    nvlink = model in (H100, A100, B300) and count > 1
    probes: Document = {
        "host.machine": {
            "kernel": "6.8.0-79-generic",
            "arch": "x86_64",
            "os": {"id": "ubuntu", "version": "24.04", "pretty": "Ubuntu 24.04.3 LTS"},
            "python": {"version": "3.12.11", "executable": "/usr/bin/python3"},
            "cpus": 192,
            "memory_mib": 2_000_000,
            "uptime_s": 864000.0,
            "init": "systemd",
            "container": None,
            "wsl": None,
            "k8s": None,
            "ci": None,
            "virtual": None,
            "time_s": 1796126125,
            "clock_synchronised": True,
        },
        "host.pci": {
            "readable": True,
            "gpus": [pci_gpu(model, index) for index in range(count)],
            "nvswitches": [f"0000:0{index}:00.0" for index in range(1, nvswitches + 1)],
            "bridges": [{"bdf": "0000:17:01.0", "acs": False}],
            "iommu": {"active": False, "types": [], "cmdline": []},
        },
        "host.driver": {
            "module_version": driver,
            "proc_version": driver,
            "flavour": "open",
            "modules": ["nvidia", "nvidia_modeset", "nvidia_uvm"],
            "kernel": "6.8.0-79-generic",
            "built_kernels": ["6.8.0-79-generic"],
            "headers": True,
            "dkms": [driver + "/6.8.0-79-generic"],
            "secure_boot": False,
            "lockdown": "none",
            "modprobe": ["blacklist nouveau"],
            "rm_gpus": [],
            "params": {},
            "packages": ["libnvidia-compute-580", "nvidia-driver-580-open"],
            "services": {
                "nv-fabricmanager": nvswitches > 0,
                "nvidia-persiste": True,
                "nv-hostengine": False,
                "nvidia-imex": False,
            },
            "fabricmanager_installed": nvswitches > 0,
        },
        "host.kernel-log": {
            "readable": True,
            "source": "/dev/kmsg",
            "events": [],
            "xids": [],
            "uptime_s": 864000.0,
        },
        "host.nodes": {
            "nodes": _nodes(count),
            "char_links": [],
            "selinux": False,
            "readable_majors": True,
            "majors": {"nvidia": 195, "nvidiactl": 195, "nvidia-uvm": 510, "nvidia-caps": 234},
        },
        "host.nvml": {
            "load": {
                "path": "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
                "error": None,
                "real": "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so." + driver,
            },
            "init": 0,
            "init_s": 0.2,
            "driver": driver,
            "driver_cuda": driver_cuda,
            "count": count,
            "gpus": [nvml_gpu(model, index) for index in range(count)],
            "pairs": _pairs(count, nvlink=nvlink),
            "confidential": 0,
        },
        "host.cuda": _cuda(model, count, driver, driver_cuda),
        "host.libs": _libs(driver),
        "host.toolkit": {
            "programs": {
                "nvidia-ctk": "/usr/bin/nvidia-ctk",
                "nvidia-container-cli": "/usr/bin/nvidia-container-cli",
            },
            "version": "1.18.1",
            "config": {
                "path": "/etc/nvidia-container-runtime/config.toml",
                "errno": None,
                "values": {"nvidia-container-runtime.mode": "auto"},
            },
            "cdi_folders": ["/var/run/cdi"],
            "cdi": [
                {
                    "path": "/var/run/cdi/nvidia.yaml",
                    "error": None,
                    "kind": "nvidia.com/gpu",
                    "devices": [*map(str, range(count)), "all"],
                    "paths": 40,
                    "missing": [],
                    "releases": [driver],
                    "has_uvm": True,
                }
            ],
            "hooks": [],
            "refresh_service": True,
        },
        "host.engine": {
            "socket": {"path": "/var/run/docker.sock", "errno": None, "error": ""},
            "info": {
                "server_version": "28.5.1",
                "name": "docker",
                "runtimes": ["nvidia", "runc"],
                "default_runtime": "runc",
                "cgroup_driver": "systemd",
                "cgroup_version": "2",
                "cdi_spec_dirs": ["/etc/cdi", "/var/run/cdi"],
                "devices": [],
                "rootless": False,
                "root_dir": "/var/lib/docker",
                "driver": "overlay2",
                "operating_system": "Ubuntu 24.04.3 LTS",
                "warnings": [],
            }
            if engine == "docker"
            else None,
            "daemon_files": [
                {
                    "path": "/etc/docker/daemon.json",
                    "error": None,
                    "runtimes": ["nvidia"],
                    "default_runtime": None,
                    "cdi": None,
                    "exec_opts": [],
                    "data_root": None,
                }
            ]
            if engine == "docker"
            else [],
            "scopes": {},
            "gpu_containers": [],
            "snap": False,
            "podman": engine == "podman",
        },
        "host.limits": {
            "rlimits": {
                "nofile": [1048576, 1048576],
                "memlock": [-1, -1],
                "stack": [8388608, -1],
                "nproc": [-1, -1],
                "as": [-1, -1],
                "core": [0, -1],
            },
            "cgroup": {
                "version": 2,
                "cpu_quota": None,
                "memory_max": None,
                "memory_current": 5 * GIB,
                "swap_max": None,
                "pids_max": None,
                "pids_current": 900,
                "oom_kills": 0,
            },
            "cpus_allowed": 192,
            "cpus": 192,
            "shm": {
                "size": 1000 * GIB,
                "free": 999 * GIB,
                "used": GIB,
                "options": ["rw"],
                "mounted": True,
            },
            "inotify": {"max_user_watches": 1048576, "max_user_instances": 8192, "errno": None},
            "threads_max": 4_000_000,
            "overcommit": 0,
            "file_max": 9223372036854775807,
        },
        "host.storage": {
            "places": {
                "tmp": _place("/tmp"),
                "home": _place("/home/user"),
                "cache": _place("/home/user/.cache"),
                "inductor": _place("/tmp"),
                "triton": _place("/home/user/.triton"),
                "store.docker": _place("/var/lib/docker"),
            }
        },
        "host.user": {
            "uid": 1000,
            "gid": 1000,
            "groups": [44, 1000],
            "name": "user",
            "user_variables": ["LOGNAME", "USER"],
            "home": {"path": "/home/user", "set": True, "exists": True, "writable": True},
            "uid_map": [[0, 0, 4294967295]],
            "rootless": False,
        },
        "host.env": {"variables": {}, "nccl_conf": {}},
        "host.network": {
            "interfaces": [
                {
                    "name": "docker0",
                    "up": False,
                    "loopback": False,
                    "virtual": True,
                    "ipv4": True,
                    "ipv6": False,
                    "mtu": 1500,
                },
                {
                    "name": "eno1",
                    "up": True,
                    "loopback": False,
                    "virtual": False,
                    "ipv4": True,
                    "ipv6": True,
                    "mtu": 1500,
                },
                {
                    "name": "lo",
                    "up": True,
                    "loopback": True,
                    "virtual": True,
                    "ipv4": True,
                    "ipv6": False,
                    "mtu": 65536,
                },
            ],
            "infiniband": [],
            "peermem": False,
        },
        "torch.static": _torch(torch, cuda) if torch else copy.deepcopy(NO_TORCH),
        "host.toolchain": {
            "cc": {"command": "gcc", "path": "/usr/bin/gcc", "variable": False},
            "cxx": {"command": "g++", "path": "/usr/bin/g++", "variable": False},
            "python_h": {
                "path": "/usr/include/python3.12/Python.h",
                "exists": True,
                "version": "3.12",
            },
            "triton": "/opt/venv/lib/python3.12/site-packages/triton" if cuda else None,
            "ptxas": [
                {
                    "path": "/opt/venv/.../triton/backends/nvidia/bin/ptxas",
                    "usable": True,
                    "version": "13.0",
                    "source": "triton",
                }
            ]
            if cuda
            else [],
            "nvcc": None,
            "libcuda_link": "/usr/lib/x86_64-linux-gnu/libcuda.so",
        },
    }
    return {
        "gpuenv_facts_version": "1",
        "where": {"kind": "host", "target": ""},
        "asked": {"level": 0, "require": []},
        "complete": True,
        "probes": {
            name: {"status": "ok", "facts": facts, "duration_s": 0.01}
            for name, facts in probes.items()
        },
    }


def facts_of(document: Document, probe: str) -> Document:
    """Return the facts of one probe, to be changed in place."""
    found: Document = document["probes"][probe]["facts"]
    return found


def container(
    model: Document = H100,
    count: int = 8,
    *,
    kind: str = "docker",
    given: bool = True,
    **more: Any,
) -> Document:
    """Return a container on such a server, started well: with its GPUs, shm and user."""
    document = host(model, count, **more)
    document["where"] = {"kind": "container", "target": "train"}
    facts_of(document, "host.machine").update(container={"kind": kind}, init="python")
    facts_of(document, "host.driver").update(
        built_kernels=[],
        dkms=[],
        headers=False,
        packages=[],
        modprobe=[],
        services={
            "nv-fabricmanager": False,
            "nvidia-persiste": False,
            "nv-hostengine": False,
            "nvidia-imex": False,
        },
        fabricmanager_installed=False,
    )
    facts_of(document, "host.kernel-log").update(
        readable=False, source=None, errno="ENOENT", events=[], xids=[]
    )
    facts_of(document, "host.toolkit").update(
        programs={"nvidia-ctk": None},
        version=None,
        cdi=[],
        cdi_folders=[],
        config={
            "path": "/etc/nvidia-container-runtime/config.toml",
            "errno": "ENOENT",
            "values": {},
        },
    )
    facts_of(document, "host.engine").update(
        socket={"path": None, "errno": "ENOENT", "error": ""}, info=None, daemon_files=[]
    )
    facts_of(document, "host.limits").update(
        shm={
            "size": 64 * GIB,
            "free": 64 * GIB,
            "used": 0,
            "mounted": True,
            "options": ["rw", "nosuid", "nodev", "noexec"],
        }
    )
    facts_of(document, "host.env")["variables"] = {
        "NVIDIA_VISIBLE_DEVICES": "all",
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
    }
    places = facts_of(document, "host.storage")["places"]
    places.pop("store.docker")
    for place in places.values():
        place["type"] = "overlay"
    if not given:
        facts_of(document, "host.nodes")["nodes"] = _nodes(0)
        no_library = "libnvidia-ml.so.1: cannot open shared object file: No such file or directory"
        document["probes"]["host.nvml"]["facts"] = {
            "load": {"path": None, "error": no_library},
            "init": None,
            "gpus": [],
        }
        document["probes"]["host.cuda"]["facts"] = {
            "load": {"path": None, "error": no_library.replace("nvidia-ml", "cuda")},
            "cu_init": None,
            "gpus": [],
        }
        facts_of(document, "host.libs")["libs"] = {}
        facts_of(document, "host.env")["variables"] = {}
    return document


def workstation(model: Document = RTX4090, count: int = 1, **more: Any) -> Document:
    """Return a workstation: one card with a display, no persistence, ECC and MIG unheard of."""
    document = host(model, count, nvswitches=0, **more)
    for gpu in facts_of(document, "host.nvml")["gpus"]:
        gpu.update(persistence=0, display_active=1)
    return document


def no_gpu(*, torch: str | None = None, kind: str | None = None) -> Document:
    """Return a machine without a GPU, as CI runners are."""
    document = container(H100, 0, given=False, torch=torch) if kind else host(H100, 0, torch=torch)
    if kind:
        facts_of(document, "host.machine")["container"] = {"kind": kind}
    facts_of(document, "host.pci").update(gpus=[], nvswitches=[], bridges=[])
    facts_of(document, "host.driver").update(
        module_version=None,
        proc_version=None,
        flavour=None,
        modules=[],
        built_kernels=[],
        dkms=[],
        packages=[],
        services={},
        fabricmanager_installed=False,
        modprobe=[],
    )
    facts_of(document, "host.nodes").update(nodes=_nodes(0), majors={})
    no_library = "libcuda.so.1: cannot open shared object file: No such file or directory"
    document["probes"]["host.nvml"]["facts"] = {
        "load": {"path": None, "error": no_library},
        "init": None,
        "gpus": [],
    }
    document["probes"]["host.cuda"]["facts"] = {
        "load": {"path": None, "error": no_library},
        "cu_init": None,
        "gpus": [],
    }
    facts_of(document, "host.libs")["libs"] = {}
    facts_of(document, "host.toolkit").update(
        programs={},
        version=None,
        cdi=[],
        cdi_folders=[],
        config={
            "path": "/etc/nvidia-container-runtime/config.toml",
            "errno": "ENOENT",
            "values": {},
        },
    )
    return document


def wsl() -> Document:
    """Return WSL 2 with a GPU: no PCI bus, no nodes, Windows' driver."""
    document = workstation()
    facts_of(document, "host.machine").update(
        wsl={"dxg": True, "libcuda": True},
        kernel="5.15.153.1-microsoft-standard-WSL2",
        virtual={"vendor": "", "product": ""},
    )
    facts_of(document, "host.pci").update(gpus=[], bridges=[])
    facts_of(document, "host.driver").update(
        module_version=None,
        proc_version=None,
        flavour=None,
        modules=[],
        built_kernels=[],
        dkms=[],
        packages=[],
    )
    facts_of(document, "host.nodes").update(nodes=_nodes(0), majors={})
    path = "/usr/lib/wsl/lib/libcuda.so.1"
    facts_of(document, "host.cuda")["load"].update(path=path, real=path, release=None)
    facts_of(document, "host.toolkit").update(programs={}, cdi=[], config={"values": {}})
    facts_of(document, "host.engine").update(info=None, daemon_files=[])
    return document


def virtual_machine(model: Document = H100, count: int = 8, **more: Any) -> Document:
    """Return a cloud instance: bridges that only its host sees, PCIe widths that are not told."""
    document = host(model, count, **more)
    facts_of(document, "host.machine")["virtual"] = {"vendor": "Amazon EC2", "product": "p5"}
    for gpu in facts_of(document, "host.nvml")["gpus"]:
        gpu["pcie"] = dict.fromkeys(gpu["pcie"], NOT_SUPPORTED)
    facts_of(document, "host.pci")["bridges"] = [{"bdf": "0000:00:01.0", "acs": True}]
    return document


def pod(**more: Any) -> Document:
    """Return a Kubernetes pod with two GPUs of eight."""
    document = container(H100, 8, kind="kubernetes", **more)
    facts_of(document, "host.machine")["k8s"] = {"validations": [], "pod": True}
    facts_of(document, "host.nodes")["nodes"] = _nodes(2)
    nvml = facts_of(document, "host.nvml")
    nvml.update(count=2, gpus=nvml["gpus"][:2], pairs=_pairs(2, nvlink=True))
    cuda = facts_of(document, "host.cuda")
    cuda.update(count=2, gpus=cuda["gpus"][:2])
    facts_of(document, "host.env")["variables"]["NVIDIA_VISIBLE_DEVICES"] = (
        "GPU-00000000-1111-4222-8333-444444444444,GPU-00000001-1111-4222-8333-444444444444"
    )
    return document


def rootless(**more: Any) -> Document:
    """Return a rootless Podman container with its GPU by CDI."""
    document = container(RTX4090, 1, kind="podman", nvswitches=0, **more)
    facts_of(document, "host.user").update(
        uid=0,
        gid=0,
        groups=[0, 65534],
        name="root",
        uid_map=[[0, 1000, 1], [1, 100000, 65536]],
        rootless=True,
        home={"path": "/root", "set": True, "exists": True, "writable": True},
    )
    return document


BASES: dict[str, Callable[[], Document]] = {
    "hgx": host,
    "hgx-a100": lambda: host(A100, 8, nvswitches=6),
    "v100": lambda: host(V100, 4, nvswitches=0, torch="2.14.1+cu126"),
    "t4": lambda: virtual_machine(
        T4, 1, nvswitches=0, driver="550.163.01", driver_cuda=12040, torch="2.14.1+cu126"
    ),
    "workstation": workstation,
    "two-cards": lambda: workstation(RTX4090, 2),
    "blackwell": lambda: workstation(RTX5090, 1),
    "b300": lambda: host(B300, 8, nvswitches=0),
    "vm": virtual_machine,
    "container": container,
    "container-one": lambda: container(RTX4090, 1, nvswitches=0),
    "container-t4": lambda: container(
        T4, 1, nvswitches=0, driver="550.163.01", driver_cuda=12040, torch="2.14.1+cu126"
    ),
    "container-without": lambda: container(given=False, torch="2.14.1+cpu"),
    "pod": pod,
    "rootless": rootless,
    "wsl": wsl,
    "ci": lambda: no_gpu(kind="docker"),
    "ci-torch": lambda: no_gpu(kind="docker", torch="2.14.1+cpu"),
    "laptop-cpu": lambda: no_gpu(torch="2.14.1+cpu"),
}


def as_facts(document: Document) -> Facts:
    """Return a document as facts, by the same way as ``--from`` takes."""
    import json

    return parse_facts(json.dumps(document))
