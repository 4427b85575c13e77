"""Reports of places that are well, broken, without a GPU, and hostile, for the report tests."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from gpuenv.checks.model import (
    Cause,
    CheckResult,
    Diagnosis,
    Evidence,
    Facts,
    Fix,
    ProbeRun,
    Status,
)
from gpuenv.report.report import Report

if TYPE_CHECKING:
    from collections.abc import Mapping

CREATED = "2026-12-01T12:00:00Z"
_HEALTHY_WORDS = """
    host.gpu.pci host.gpu.count host.smi.err host.driver.bound host.driver.module host.driver.match
    host.driver.twolibs host.uvm host.nodes host.secureboot host.persistence host.rlimit.nofile
    host.fabricmanager ctk.installed ctk.runtime ctk.config cdi.spec ctk.libs ctk.require
    cgroup.lost cgroup.risk ctr.uid torch.present torch.cpu_build drv.cuda drv.compat torch.arch
    torch.kernel torch.libs torch.cudnn torch.nccl.which torch.nccl.dup pip.conflicts env.ldpath
    vis.cvd vis.nvd vis.order mig.state mode.compute mem.free hw.remap hw.ecc hw.xid hw.nvlink
    topo.matrix topo.acs shm.size shm.exec lim.memlock nccl.env nccl.version nccl.allreduce.mp
    num.matmul num.autograd num.accum num.step cc.gcc cc.pyh cc.ptxas cc.tmp sys.disk sys.inotify
    sys.fd sys.cpu sys.mem sys.pid
"""
_HEALTHY_IDS = _HEALTHY_WORDS.split()


def diagnosis_of(
    *results: CheckResult, causes: tuple[Cause, ...] = (), **more: object
) -> Diagnosis:
    counts = Counter(result.status for result in results)
    failed = counts[Status.FAIL]
    values: dict[str, object] = {
        "verdict": "fail" if failed else "warn" if counts[Status.WARN] else "pass",
        "headline": f"{len(causes)} causes, {counts[Status.PASS]} passed",
        "causes": causes,
        "results": results,
        "counts": dict(counts),
        "where": {"kind": "host", "target": ""},
        "asked": {"level": 1, "require": []},
        "exit_code": 1 if failed else 0,
    }
    return Diagnosis(**{**values, **more})  # type: ignore[arg-type]


def report_of(
    diagnosis: Diagnosis,
    facts: Facts | None = None,
    *,
    provides: Mapping[str, tuple[str, ...]] | None = None,
    strict: bool = False,
) -> Report:
    return Report(
        diagnosis=diagnosis,
        facts=facts if facts is not None else Facts(where={"kind": "host"}),
        titles={"host.driver.match": "Driver library equals kernel module"},
        provides=provides or {},
        strict=strict,
        created=CREATED,
        elapsed_s=3.25,
        gpuenv_version="1.2.3",
    )


def healthy() -> Report:
    results = [
        CheckResult(id=name, status=Status.PASS, summary="as it should be")
        for name in _HEALTHY_IDS
        if name not in {"host.fabricmanager", "hw.xid"}
    ]
    results += [
        CheckResult(
            id="host.fabricmanager",
            status=Status.SKIP,
            reason="not-applicable",
            summary="no NVSwitch in this machine",
        ),
        CheckResult(
            id="hw.xid", status=Status.SKIP, reason="needs-root", summary="the kernel log is closed"
        ),
        CheckResult(
            id="drv.cuda", status=Status.INFO, summary="driver CUDA 13.0 runs the CUDA 12.8 wheel"
        ),
    ]
    return report_of(diagnosis_of(*results, timings_s={"host.nvml": 0.4, "torch.kernel": 2.25}))


MISMATCH = CheckResult(
    id="host.driver.match",
    status=Status.FAIL,
    summary="the driver library is 580.65.06, the loaded kernel module 575.57.08",
    why="the driver package was upgraded under a running kernel module, often by unattended "
    "upgrades; library and module must be of exactly the same release",
    evidence=(
        Evidence(source="/proc/driver/nvidia/version", value="575.57.08"),
        Evidence(source="libnvidia-ml.so.1", value="580.65.06"),
        Evidence(source="nvmlInit", value="18 (driver/library version mismatch)"),
    ),
    fixes=(
        Fix(
            side="host",
            text="stop what uses the GPUs and load the new module",
            command="sudo rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia && sudo modprobe nvidia"
            " && sudo nvidia-modprobe -u -c=0",
        ),
        Fix(side="host", text="or restart the machine", command="sudo reboot"),
    ),
    alternatives=("a container image that carries its own copy of the driver libraries",),
)
NVML = CheckResult(
    id="host.nvml.init",
    status=Status.FAIL,
    summary="NVML does not start: driver/library version mismatch",
)
KERNEL = CheckResult(
    id="torch.kernel",
    status=Status.SKIP,
    reason="blocked",
    blocked_by="host.driver.match",
    summary="not looked at: host.driver.match failed",
)
SHM = CheckResult(
    id="shm.size",
    status=Status.WARN,
    summary="/dev/shm has 64 MiB",
    evidence=(Evidence(source="statvfs /dev/shm", value="67108864"),),
    fixes=(
        Fix(
            side="container",
            text="start it with more shared memory",
            command="docker run --shm-size=8g ...",
        ),
    ),
    confidence="likely",
)
CRASH = CheckResult(
    id="run.probe",
    subject="torch.kernel",
    status=Status.ERROR,
    summary="the probe torch.kernel crashed: signal 11",
)


def faulty() -> Report:
    passed = [
        CheckResult(id=name, status=Status.PASS, summary="as it should be")
        for name in _HEALTHY_IDS[6:20]
    ]
    return report_of(
        diagnosis_of(
            MISMATCH, NVML, KERNEL, SHM, *passed,
            causes=(Cause(result=MISMATCH, consequences=(NVML,)), Cause(result=SHM)),
            where={"kind": "container", "target": "train"},
            headline="2 causes, 1 consequence, 14 passed, 1 skipped",
        )
    )  # fmt: skip


def undiagnosed() -> Report:
    skip = CheckResult(
        id="host.gpu.pci", status=Status.SKIP, reason="no-gpu", summary="no NVIDIA GPU here"
    )
    return report_of(
        diagnosis_of(
            skip, CRASH,
            causes=(Cause(result=CRASH),),
            verdict="undiagnosed",
            unmet=("gpu",),
            asked={"level": 0, "require": ["gpu"]},
            exit_code=3,
        )
    )  # fmt: skip


def nothing() -> Report:
    skip = CheckResult(
        id="host.gpu.pci", status=Status.SKIP, reason="no-gpu", summary="no NVIDIA GPU here"
    )
    return report_of(diagnosis_of(skip, verdict="nothing-to-diagnose"))


HOSTILE = (
    "</pre><script>alert(1)</script> <!-- ]]> & \" ' \x00\x1b[31mred\x1b[0m \x08 \ud800 \u202eoops "
    "%0A::error::pwned \r\n::warning file=x::y, a:b | `c` {{d}} <img src=x onerror=alert(1)>"
)


def hostile() -> Report:
    bad = CheckResult(
        id="torch.libs",
        subject=HOSTILE,
        status=Status.FAIL,
        summary=HOSTILE,
        why=HOSTILE,
        evidence=(Evidence(source=HOSTILE, value=HOSTILE),),
        fixes=(Fix(side="image", text=HOSTILE, command=HOSTILE),),
        alternatives=(HOSTILE,),
        numbers={HOSTILE: [HOSTILE, float("nan"), float("inf")]},
    )
    skip = CheckResult(id="hw.xid", status=Status.SKIP, reason="needs-root", summary=HOSTILE)
    error = CheckResult(id="run.probe", subject=HOSTILE, status=Status.ERROR, summary=HOSTILE)
    warn = CheckResult(id="shm.size", status=Status.WARN, summary=HOSTILE)
    facts = Facts(
        where={"kind": "image", "target": HOSTILE},
        probes={
            HOSTILE: ProbeRun(status="ok", facts={HOSTILE: [HOSTILE, float("nan")]}),
            "host.env": ProbeRun(status="garbage", error=HOSTILE),
        },
    )
    return report_of(
        diagnosis_of(
            bad, skip, error, warn,
            causes=(Cause(result=bad, consequences=(error,)), Cause(result=warn)),
            headline=HOSTILE,
            where=facts.where,
            timings_s={HOSTILE: 1.0},
        ),
        facts,
    )  # fmt: skip


CANARIES = (
    "mallory", "zeus17", "acme-internal", "10.77.3.99", "8a2e:370:7334", "0c:42:a1:9f:00:13",
    "1653921035123", "3f9a1c22", "hunter2", "hf_canarycanary", "mallory@", "sekritvalue",
)  # fmt: skip
"""Private values planted by :func:`with_canaries`; none may be in any output."""

PRIVATE = (
    "mallory on zeus17.acme-internal.example.net at 10.77.3.99 and 2001:db8:85a3::8a2e:370:7334, "
    "ether 0c:42:a1:9f:00:13, serial 1653921035123, GPU-3f9a1c22-7b1d-4c55-9e10-0a1b2c3d4e5f, "
    "/home/mallory/run.py, https://bob:hunter2@pypi.org/simple?token=hunter2, "
    "HF_TOKEN=hf_canarycanary, mallory@acme-internal.example.net, ACME_THING=sekritvalue"
)


def canary_facts() -> Facts:
    """Return facts with every kind of private value in them."""
    return Facts(
        where={"kind": "image", "target": "registry.acme-internal.net:5000/mallory/train"},
        probes={
            "host.machine": ProbeRun(
                status="ok",
                facts={
                    "hostname": "zeus17.acme-internal.example.net",
                    "user": "mallory",
                    "home": "/home/mallory",
                    "note": PRIVATE,
                },
            ),
            "host.nvml": ProbeRun(
                status="ok",
                facts={
                    "gpus": [
                        {
                            "serial": "1653921035123",
                            "uuid": "GPU-3f9a1c22-7b1d-4c55-9e10-0a1b2c3d4e5f",
                        }
                    ]
                },
            ),
            "host.env": ProbeRun(
                status="ok", facts={"env": {"ACME_THING": "sekritvalue", "NCCL_DEBUG": "INFO"}}
            ),
            "torch.kernel": ProbeRun(status="crashed", error=PRIVATE),
        },
    )


def canary_diagnosis() -> Diagnosis:
    """Return a diagnosis with the same values in every text."""
    bad = CheckResult(
        id="torch.libs",
        subject=PRIVATE,
        status=Status.FAIL,
        summary=PRIVATE,
        why=PRIVATE,
        evidence=(Evidence(source=PRIVATE, value=PRIVATE),),
        fixes=(Fix(side="host", text=PRIVATE, command=PRIVATE),),
        alternatives=(PRIVATE,),
        numbers={"note": PRIVATE},
    )
    return diagnosis_of(
        bad, causes=(Cause(result=bad),), where=canary_facts().where, asked={"note": PRIVATE}
    )


def eight_gpus() -> Report:
    """Return a healthy report of a machine with eight GPUs, with everything there is to draw."""
    sizes = [2**power for power in range(15, 35)]
    curves = [
        {
            "name": f"{dtype}, 8 GPUs",
            "points": [[size, round(peak / (1 + (26e6 * scale) / size), 3)] for size in sizes],
        }
        for dtype, peak, scale in (("float32", 471.0, 1.0), ("bfloat16", 466.0, 1.2))
    ]
    bandwidth = CheckResult(
        id="nccl.bw",
        status=Status.PASS,
        summary="all-reduce over 8 GPUs: 471 GB/s bus bandwidth at 16 GiB, 98 % of the expectation",
        numbers={
            "value": 471.0,
            "unit": "GB/s",
            "expected": 480.0,
            "source": "stas00/ml-engineering, 8x H200",
            "curve": {
                "title": "NCCL all-reduce, 8 GPUs",
                "x": "message size",
                "x_unit": "B",
                "y": "bus bandwidth",
                "y_unit": "GB/s",
                "expected": 480.0,
                "series": curves,
            },
        },
    )
    matmul = CheckResult(
        id="perf.matmul",
        status=Status.WARN,
        summary="GPU 5 reaches 341 TFLOP/s in bfloat16, the others 760",
        numbers={
            "bars": {
                "title": "Matrix product, bfloat16",
                "unit": "TFLOP/s",
                "floor": 395.0,
                "expected": 788.0,
                "bars": [[f"GPU {n}", 341.0 if n == 5 else 755.0 + n] for n in range(8)],
            }
        },
    )
    copies = CheckResult(
        id="perf.h2d",
        status=Status.PASS,
        summary="host to device 55 GB/s on each GPU",
        numbers={
            "bars": {
                "title": "Host to device, pinned",
                "unit": "GB/s",
                "floor": 48.0,
                "bars": [[f"GPU {n}", 55.0 + n / 10] for n in range(8)],
            }
        },
    )
    base = healthy().diagnosis
    devices = [
        {"index": n, "memory_bytes": 150_754_820_096, "free_bytes": 149_000_000_000 - n * 3 * 2**30}
        for n in range(8)
    ]
    step = {
        "results": [
            {"device": "cuda:0", "losses": [1.31, 0.94, 0.71, 0.55, 0.45, 0.37, 0.31, 0.26]}
        ]
    }
    facts = Facts(
        where={"kind": "host"},
        probes={
            "torch.devices": ProbeRun(status="ok", facts={"devices": devices}, duration_s=0.8),
            "torch.step": ProbeRun(status="ok", facts=step, duration_s=2.2),
        },
    )
    return report_of(
        diagnosis_of(
            *base.results, bandwidth, matmul, copies,
            causes=(Cause(result=matmul),),
            headline="1 cause, 66 passed, 2 skipped",
            asked={"level": 2},
            timings_s={
                "torch.import": 4.1, "torch.allreduce": 21.4, "torch.compile": 17.9,
                "torch.matmul": 3.3, "host.nvml": 0.41, "host.pci": 0.02, "host.nodes": 0.01,
            },
        ),
        facts,
    )  # fmt: skip
