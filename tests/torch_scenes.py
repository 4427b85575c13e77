"""Fact documents of torch probes: one recorded on a machine without a GPU, others constructed.

``cpu()`` was recorded with torch 2.13.0+cpu, Python 3.11, two cores. ``gpus(...)`` is constructed
after the probes' own key tables, with values from the sources that ``gpuenv/checks/thresholds.py``
names; it was not recorded on a GPU.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuenv.checks.facts import parse_facts
from gpuenv.checks.model import Facts, ProbeRun

if TYPE_CHECKING:
    from collections.abc import Callable

TESTS = Path(__file__).parent
H100 = "NVIDIA H100 80GB HBM3"
GIB = 1 << 30
FLAGS = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"]
SITE = "/opt/venv/lib/python3.11/site-packages"


def cpu() -> Facts:
    """Return the recorded facts."""
    path = TESTS / "data" / "doctor" / "torch-cpu.json"
    return parse_facts(path.read_text(), origin=path.name)


def cuda_wheel_without_a_gpu() -> Facts:
    """Return the recorded facts of a CUDA wheel where there is no driver."""
    path = TESTS / "data" / "doctor" / "torch-cu130-no-gpu.json"
    return parse_facts(path.read_text(), origin=path.name)


def failing_cuinit() -> list[dict[str, Any]]:
    """Return what the real torch 2.14.1+cu130 said to each code of ``cuInit``, recorded."""
    path = TESTS / "data" / "doctor" / "torch-cuinit.json"
    recorded: list[dict[str, Any]] = json.loads(path.read_text())
    return recorded


def _load(gen: int = 5, lanes: int = 16) -> dict[str, Any]:
    return {
        "samples": 20,
        "pcie_gen": [1, gen],  # idle at first, as links are
        "pcie_width": [lanes, lanes],
        "sm_clock": [345, 1755],
        "celsius": [34, 52],
        "power_mw": [120000, 640000],
        "reasons": {"0x4": 12, "0x1": 2},
    }


_FIXED = {
    "pcie_gen_max": 5,
    "pcie_width_max": 16,
    "sm_clock_max": 1980,
    "slowdown_celsius": 87,
    "replays": 0,
    "power_limit_mw": 700000,
}


def _mapped() -> dict[str, list[str]]:
    return {
        "libcuda": ["/usr/lib/x86_64-linux-gnu/libcuda.so.580.65.06"],
        "libcudart": [f"{SITE}/nvidia/cu13/lib/libcudart.so.13"],
        "libcublas": [f"{SITE}/nvidia/cu13/lib/libcublas.so.13"],
        "libcudnn": [f"{SITE}/nvidia/cudnn/lib/libcudnn.so.9"],
        "libnccl": [f"{SITE}/nvidia/nccl/lib/libnccl.so.2"],
    }


def gpus(
    count: int = 8, model: str = H100, capability: tuple[int, int] = (9, 0), busbw: float = 455.0
) -> Facts:
    """Return the facts of a healthy machine with ``count`` equal GPUs."""
    names = [f"cuda:{index}" for index in range(count)]
    document = {name: copy.deepcopy(dict(run.facts)) for name, run in cpu().probes.items()}
    for facts in document.values():  # what the CPU computed right, each GPU computes right
        if facts.get("results"):
            facts["results"] = [dict(facts["results"][0], device=name) for name in names]
    wheels = {"torch": "2.14.1", "nvidia-nccl-cu13": "2.30.7", "nvidia-cudnn-cu13": "9.24.0.43"}
    wheels |= {"nvidia-cuda-runtime": "13.0.96", "nvidia-cublas": "13.1.0.3"}
    raw = {"cuinit": 0, "driver_cuda": 13000, "device_count": count, "load_error": ""}
    document["torch.import"] |= {"version": "2.14.1+cu130", "cuda": "13.0", "wheels": wheels}
    document["torch.cuda"] = {
        "raw": raw,
        "nvml": {"code": 0, "count": count, "load_error": ""},
        "built_with_cuda": True,
        "is_available": True,
        "device_count": count,
        "warnings": [],
        "init_error": "",
        "cuda_visible_devices": None,
        "nvml_based_check": None,
    }
    document["torch.devices"] = {
        "arch_flags": FLAGS,
        "devices": [
            {
                "index": index,
                "name": model,
                "compute_capability": list(capability),
                "memory_bytes": 80 * GIB,
                "free_bytes": 79 * GIB,
                "multiprocessors": 132,
                "uuid": f"GPU-{index:08d}",
                "pci_bus_id": index,
            }
            for index in range(count)
        ],
    }
    document["torch.kernel"] = {"results": [_right(name, wrong=0) for name in names]}
    document["torch.cudnn"] |= {"available": True, "compiled": [9, 24, 0], "runtime": 92400}
    for entry in document["torch.step"]["results"]:
        entry["peak_bytes"] = 12 << 20
    document["torch.tf32"]["results"] = [
        _right(
            name,
            matmul_residue=2.0**-12,
            conv_residue=0.0,
            matmul_precision="highest",
            cudnn_allow_tf32=True,
        )
        for name in names
    ]
    document["torch.nccl-versions"] = {
        "torch": "2.30.7",
        "file": "2.30.7",
        "paths": _mapped()["libnccl"],
        "wheels": {"nvidia-nccl-cu13": "2.30.7"},
        "error": "",
    }
    document["torch.libraries"] = {"site_packages": SITE, "mapped": _mapped(), "wheels": wheels}
    document["torch.allreduce-1p"] = {
        "gpus": count,
        "elements": 1 << 20,
        "seconds": 0.01,
        "results": [{"device": name, "wrong": 0} for name in names],
    }
    document["torch.graph"] = {"results": [_right(names[0], wrong=0)]}
    document["torch.memory"] = {
        "results": [
            _right(
                names[0],
                peak_expected=128 << 20,
                peak_bytes=128 << 20,
                left_over_bytes=0,
                out_of_memory={
                    "raised": True,
                    "typed": True,
                    "text": "OutOfMemoryError: CUDA out of memory.",
                },
                works_after=True,
            )
        ]
    }
    document["torch.collective"] |= _collective(count, busbw)
    document |= _performance(names, model)
    document["torch.memtest"] = {
        "results": [_right(name, bytes=70 * GIB, rounds=9, wrong=0, first=None) for name in names]
    }
    document["torch.burn"] = {
        "results": [
            _right(
                name,
                seconds=60.1,
                products=43000,
                wrong=0,
                tflops_first=790.0,
                tflops_last=741.0,
                load=_load(),
            )
            for name in names
        ]
    }
    return Facts(
        where={"kind": "python", "target": "python"},
        asked={"level": 3, "require": []},
        probes={name: ProbeRun(status="ok", facts=facts) for name, facts in document.items()},
    )


def _right(device: str, **more: Any) -> dict[str, Any]:
    return {"device": device, "error": "", **more}


def _collective(count: int, busbw: float) -> dict[str, Any]:
    sizes = (1 << 15, 1 << 18, 1 << 21, 1 << 24, 1 << 27, 1 << 30)
    share = (0.002, 0.02, 0.1, 0.4, 0.8, 1.0)
    gradient = cpu().probes["torch.collective"].facts["ddp"]["reference"]
    factor = 2 * (count - 1) / count
    return {
        "backend": "nccl",
        "world": count,
        "devices": list(range(count)),
        "ranks": [
            {
                "rank": rank,
                "stage": "leave",
                "error": "",
                "ended": None,
                "where": [],
                "device": f"cuda:{rank}",
                "name": H100,
                "pci": f"0000:{rank + 1:02X}:00.0",
                "uuid": f"GPU-{rank:08d}",
            }
            for rank in range(count)
        ],
        "log": {
            "transports": {"P2P/CUMEM": 16 * count},
            "warnings": [],
            "nccl_version": "2.30.7+cuda13.0",
        },
        "bandwidth": [
            {
                "bytes": size,
                "seconds": 1e-3,
                "algbw": busbw * part / factor if factor else busbw * part,
                "busbw": busbw * part if count > 1 else None,
            }
            for size, part in zip(sizes, share, strict=True)
        ],
        "ddp": {"weights_synced": True, "gradients": [gradient] * count, "reference": gradient},
    }


def _performance(names: list[str], model: str) -> dict[str, Any]:
    matmul = 800.0 if model == H100 else 100.0
    fixed = dict(_FIXED)
    return {
        "torch.p2p": {
            "bytes": 64 << 20,
            "pairs": [
                {
                    "from": a,
                    "to": b,
                    "error": "",
                    "wrong": 0,
                    "peer_access": True,
                    "gb_per_s": 360.0,
                }
                for a in range(len(names))
                for b in range(len(names))
                if a != b
            ],
        }
        if len(names) > 1
        else {"skip": {"reason": "single-gpu", "text": "one GPU: there is no pair"}},
        "torch.transfer": {
            "results": [
                _right(
                    name,
                    bytes=256 << 20,
                    utilization_before=0,
                    fixed=fixed,
                    load=_load(),
                    replays=0,
                    h2d=55.4,
                    d2h=55.1,
                )
                for name in names
            ]
        },
        "torch.memory-rate": {
            "results": [
                _right(name, bytes=GIB, utilization_before=0, gb_per_s=2700.0) for name in names
            ]
        },
        "torch.matmul-rate": {
            "results": [
                _right(
                    name,
                    size=8192,
                    dtype="bfloat16",
                    utilization_before=0,
                    fixed=fixed,
                    load=_load(),
                    tflops=matmul,
                )
                for name in names
            ]
        },
    }


def changed(facts: Facts, probe: str, change: Callable[[dict[str, Any]], object]) -> Facts:
    """Return the facts with one probe's answer changed by a function that edits it in place."""
    answer = json.loads(json.dumps(dict(facts.probes[probe].facts)))
    change(answer)
    run = ProbeRun(status="ok", facts=answer)
    return Facts(where=facts.where, asked=facts.asked, probes={**facts.probes, probe: run})
