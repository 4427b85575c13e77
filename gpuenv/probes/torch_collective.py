"""Run collectives as training does, one process per GPU, and say what they got and how fast.

Without a GPU the same code runs two processes on the CPU with gloo.

================  ================================================================================
name              keys
================  ================================================================================
torch.collective  backend, world, devices [...], limit_s, seconds, failure, ranks [...],
                  all_reduce [{dtype, elements, wrong, first, lost_ranks, unsupported}],
                  scatter_gather {elements, wrong, differs_from_all_reduce, unsupported},
                  bandwidth [{bytes, seconds, algbw, busbw}] in GB/s,
                  ddp {weights_synced, gradients [per rank], reference},
                  sampler [{samples, drop_last, epochs [[per rank]]}],
                  log {transports {name: channels}, warnings [...], nccl_version},
                  differential [{name, ranks, backend, env, ok, failure, seconds}],
                  differential_ended
================  ================================================================================

``failure`` is null or ``{kind, stage, rank, error, words, missing, arrived}``; its kind is
``error`` (a rank raised), ``died`` (a rank's process ended) or ``hang``. ``ranks`` holds ``{rank,
device, name, pci, uuid, stage, error, ended, where}``; ``where`` is the stack of a rank that hung.
Options: ``device`` (``cpu``), ``ranks`` (how many on the CPU), ``limit_s`` (hang limit).
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import time
from typing import TYPE_CHECKING, Any

from ._arms import changed_env, next_arm
from ._torch import Skip, plain, probe
from ._watch import Launch

if TYPE_CHECKING:
    from ._common import Context

HANG_LIMIT_S = 30.0
ARM_LIMIT_S = 12.0
DIFFERENTIAL_S = 150.0
CPU_RANKS = 2
ALL_PARTS = ["all_reduce", "scatter_gather", "bandwidth", "ddp", "sampler"]
TRANSPORT = re.compile(r"via ((?:P2P|SHM|NET|C2C|COLLNET)[\w/]*)")
NVLS = re.compile(r"NVLS multicast support is available")
WARNING = re.compile(r"NCCL WARN (.*)")
VERSION = re.compile(r"NCCL version (\S+)")
WARNINGS_KEPT = 12


@probe
def collective(context: Context) -> dict[str, Any]:
    """Run all parts on all GPUs; where that fails, run the differential arms."""
    cuda = torch_cuda_version()
    gpus = visible_gpus() if cuda and context.options.get("device", "auto") != "cpu" else 0
    backend = "nccl" if gpus else "gloo"
    devices: list[int | None] = (
        list(range(gpus)) if gpus else [None] * context.options.get("ranks", CPU_RANKS)
    )
    env = rank_env(os.environ, backend)
    limit_s = context.options.get("limit_s", HANG_LIMIT_S)
    facts: dict[str, Any] = {
        "backend": backend,
        "world": len(devices),
        "devices": devices,
        "limit_s": limit_s,
    }
    context.tell(facts)
    launch = Launch(devices, backend, ALL_PARTS, env, limit_s)
    launch.on_progress = lambda stage: context.tell({"progress": stage})
    outcome = launch.run()
    facts.update(summarise(outcome))
    context.tell(plain(facts))
    if not is_right(facts):
        facts.update(differential(context, devices, backend, env, limit_s))
    facts["progress"] = "done"
    return facts


def torch_cuda_version() -> str | None:
    """Return the CUDA version of the installed torch without importing it; skip without torch."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise Skip("no-torch", "no torch in this Python")
    values: dict[str, Any] = {}
    try:
        with open(os.path.join(os.path.dirname(spec.origin), "version.py")) as stream:
            exec(stream.read(), values)  # noqa: S102 - torch's own version.py: assignments only
    except (OSError, SyntaxError, ImportError):
        return None
    return values.get("cuda")


def visible_gpus() -> int:
    """Return the number of GPUs the driver gives to this process, 0 where it does not come up."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if cuda.cuInit(0) != 0 or cuda.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def rank_env(environ: Any, backend: str) -> dict[str, str]:
    """Return the ranks' environment: the user's own, and a log that tells what NCCL chose."""
    env = dict(environ)
    env.setdefault("OMP_NUM_THREADS", "1")
    if backend == "nccl":
        env.pop("NCCL_DEBUG_FILE", None)
        env.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,P2P,SHM,NET,NVLS,ENV")
    return env


def summarise(outcome: dict[str, Any]) -> dict[str, Any]:
    """Join what the ranks told into the facts; of times the slowest rank counts."""
    facts: dict[str, Any] = {
        "seconds": outcome["seconds"],
        "failure": outcome["failure"],
        "ranks": outcome["ranks"],
        "log": read_log(outcome["log"]),
    }
    world = len(outcome["ranks"])
    told: dict[str, list[list[Any]]] = {}
    for answers in outcome["answers"]:
        own: dict[str, list[Any]] = {}
        for answer in answers:
            for key, value in answer.items():
                own.setdefault(key, []).append(value)
        for key, values in own.items():
            told.setdefault(key, []).append(values)

    def rounds(key: str) -> list[tuple[Any, ...]]:
        return list(zip(*told[key])) if len(told.get(key, ())) == world else []

    facts["all_reduce"] = [worst(entries) for entries in rounds("all_reduce")]
    facts["scatter_gather"] = next((worst(entries) for entries in rounds("scatter_gather")), None)
    facts["bandwidth"] = [rates(entries, world) for entries in rounds("bandwidth")]
    facts["ddp"] = next((joined_gradients(entries) for entries in rounds("ddp")), None)
    facts["sampler"] = [
        dict(entries[0], epochs=[list(ranks) for ranks in zip(*(e["epochs"] for e in entries))])
        for entries in rounds("sampler")
    ]
    return facts


def worst(entries: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    """Return the entry of the rank that got most wrong, with the ranks that got any wrong."""
    bad = [rank for rank, entry in enumerate(entries) if entry["wrong"]]
    return dict(max(entries, key=lambda entry: entry["wrong"] or 0), wrong_ranks=bad)


def rates(entries: tuple[dict[str, Any], ...], world: int) -> dict[str, Any]:
    """Return algorithm and bus bandwidth in GB/s.

    Source:
        nccl-tests, doc/PERFORMANCE.md: busbw = algbw * 2(n-1)/n for all-reduce.
    """
    size, seconds = entries[0]["bytes"], max(entry["seconds"] for entry in entries)
    algbw = size / seconds / 1e9
    return {
        "bytes": size,
        "seconds": seconds,
        "algbw": algbw,
        "busbw": algbw * 2 * (world - 1) / world if world > 1 else None,
    }


def joined_gradients(entries: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    """Return every rank's gradient side by side."""
    return {
        "weights_synced": all(entry["weights_synced"] for entry in entries),
        "gradients": [entry["gradient"] for entry in entries],
        "reference": entries[0]["reference"],
    }


def read_log(log: str) -> dict[str, Any]:
    """Read what NCCL chose and complained of.

    Sample: ``host:123:456 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM``.
    """
    transports: dict[str, int] = {}
    for name in TRANSPORT.findall(log):
        transports[name] = transports.get(name, 0) + 1
    if NVLS.search(log):
        transports["NVLS"] = len(NVLS.findall(log))
    version = VERSION.search(log)
    return {
        "transports": transports,
        "warnings": sorted(set(WARNING.findall(log)))[:WARNINGS_KEPT],
        "nccl_version": version.group(1) if version else None,
    }


def is_right(facts: dict[str, Any]) -> bool:
    """Say whether the ranks ended well and every sum came out right."""
    scatter = facts["scatter_gather"] or {}
    return (
        facts["failure"] is None
        and not any(entry["wrong"] for entry in facts["all_reduce"])
        and not scatter.get("wrong")
    )


def differential(
    context: Context,
    devices: list[int | None],
    backend: str,
    env: dict[str, str],
    limit_s: float,
) -> dict[str, Any]:
    """Change one thing at a time until it works, within a time limit for all arms together."""
    deadline = time.monotonic() + DIFFERENTIAL_S
    done: list[dict[str, Any]] = []
    ended = "nothing left to try"
    while True:
        arm = next_arm(len(devices), backend, env, done)
        if arm is None:
            break
        if time.monotonic() > deadline:
            ended = "out of time"
            break
        context.tell({"progress": "differential run: {}".format(arm["name"])})
        outcome = Launch(
            [None if arm["backend"] == "gloo" else devices[rank] for rank in arm["ranks"]],
            arm["backend"],
            ["all_reduce"],
            changed_env(env, arm["env"]),
            min(limit_s, ARM_LIMIT_S),
            sizes=2,
        ).run()
        facts = summarise(outcome)
        done.append(
            dict(arm, ok=is_right(facts), failure=facts["failure"], seconds=facts["seconds"])
        )
        context.tell(plain({"differential": done}))
    return {"differential": done, "differential_ended": ended}


PROBES = {"torch.collective": collective}
