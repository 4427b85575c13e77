"""Every check on torch's facts: what makes it speak, and what must not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from gpuenv.checks import compiling, nccl, numerics, performance, soak, torch_runtime
from gpuenv.checks.diagnose import run_checks
from gpuenv.checks.model import Check, CheckResult, Facts, Status
from tests.torch_scenes import (
    H100,
    changed,
    cpu,
    cuda_wheel_without_a_gpu,
    failing_cuinit,
    gpus,
)

if TYPE_CHECKING:
    from collections.abc import Callable

CHECKS = (
    *torch_runtime.CHECKS,
    *numerics.CHECKS,
    *nccl.CHECKS,
    *compiling.CHECKS,
    *performance.CHECKS,
    *soak.CHECKS,
)
EIGHT = gpus()
ONE = gpus(1)
CPU = cpu()
QUIET = (Status.PASS, Status.INFO, Status.SKIP)


def judge(facts: Facts, check_id: str) -> tuple[CheckResult, ...]:
    check = next(check for check in CHECKS if check.id == check_id)
    return check.run(facts)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A change to healthy facts, and what the check must then say."""

    check: str
    name: str
    probe: str
    change: Callable[[dict[str, Any]], object]
    status: Status
    says: str = ""
    suspects: tuple[str, ...] = ()
    base: Facts = EIGHT


def first(key: str, **values: Any) -> Callable[[dict[str, Any]], object]:
    """Change the first entry of a list."""
    return lambda answer: answer[key][0].update(values)


def top(**values: Any) -> Callable[[dict[str, Any]], object]:
    """Change the answer itself."""
    return lambda answer: answer.update(values)


def inside(key: str, **values: Any) -> Callable[[dict[str, Any]], object]:
    """Change one object inside the answer."""
    return lambda answer: answer[key].update(values)


def cuda_down(code: int | None, error: str, **more: Any) -> Callable[[dict[str, Any]], object]:
    """CUDA does not come up: the driver's code and torch's words."""

    def change(answer: dict[str, Any]) -> None:
        answer["raw"].update(cuinit=code, device_count=None)
        answer.update(is_available=False, device_count=0, init_error=error, **more)

    return change


def wrong_at(dtype: str, count: int) -> Callable[[dict[str, Any]], object]:
    return lambda answer: answer["results"][3]["wrong"].update({dtype: count})


def load(**values: Any) -> Callable[[dict[str, Any]], object]:
    return lambda answer: answer["results"][0]["load"].update(values)


def failure(**values: Any) -> Callable[[dict[str, Any]], object]:
    """The process group failed and nothing was measured."""

    def change(answer: dict[str, Any]) -> None:
        answer["failure"] = {
            "kind": "error",
            "stage": "join",
            "rank": 1,
            "error": "",
            "words": [],
            "missing": [],
            "arrived": [],
            **values,
        }
        answer.update(all_reduce=[], scatter_gather=None, bandwidth=[], ddp=None, sampler=[])

    return change


OLD = "RuntimeError: The NVIDIA driver on your system is too old (found version 12080)."
SYSTEM_CUDNN = (
    "RuntimeError: cuDNN version incompatibility: PyTorch was compiled  against (9, 24, 0) but "
    "found runtime version (9, 1, 0). PyTorch already comes with bundled cuDNN."
)

MUST_FIRE = (
    Case(
        check="torch.import",
        name="missing symbol of another NCCL",
        probe="torch.import",
        change=top(
            ok=False, error="ImportError: libtorch_cuda.so: undefined symbol: ncclCommResume"
        ),
        status=Status.FAIL,
        says="cannot be imported",
        suspects=("torch.nccl.dup",),
    ),
    Case(
        check="torch.cuda",
        name="802 without masking",
        probe="torch.cuda",
        change=cuda_down(802, "RuntimeError: Error 802: system not yet initialized"),
        status=Status.FAIL,
        says="cuInit 802",
        suspects=("host.fabricmanager",),
    ),
    Case(
        check="torch.cuda",
        name="802 behind driver too old",
        probe="torch.cuda",
        change=cuda_down(802, OLD),
        status=Status.FAIL,
        says="cuInit 802",
        suspects=("host.fabricmanager", "host.driver.twolibs"),
    ),
    Case(
        check="torch.cuda",
        name="driver truly too old",
        probe="torch.cuda",
        change=cuda_down(0, OLD),
        status=Status.FAIL,
        says="too old",
        suspects=("drv.cuda",),
    ),
    Case(
        check="torch.cuda",
        name="999 by a missing uvm node",
        probe="torch.cuda",
        change=cuda_down(999, "RuntimeError: CUDA unknown error - this may be due to ..."),
        status=Status.FAIL,
        says="cuInit 999",
        suspects=("ctk.uvm", "host.uvm"),
    ),
    Case(
        check="torch.cuda",
        name="CPU wheel on a GPU machine",
        probe="torch.cuda",
        change=cuda_down(
            0, "AssertionError: Torch not compiled with CUDA enabled", built_with_cuda=False
        ),
        status=Status.FAIL,
        says="CPU build",
        suspects=("torch.cpu_build",),
    ),
    Case(
        check="torch.cuda",
        name="NVML there and libcuda not",
        probe="torch.cuda",
        change=lambda answer: (
            cuda_down(None, "RuntimeError: Found no NVIDIA driver on your system.")(answer),
            answer["raw"].update(load_error="libcuda.so.1: cannot open shared object file"),
        ),
        status=Status.FAIL,
        says="libcuda.so.1",
        suspects=("ctk.libs",),
    ),
    Case(
        check="torch.count",
        name="device_count by NVML alone",
        probe="torch.cuda",
        change=lambda answer: answer["raw"].update(cuinit=999, device_count=None),
        status=Status.WARN,
        says="counts 8 GPU(s) by NVML",
        suspects=("torch.cuda",),
    ),
    Case(
        check="torch.count",
        name="a GPU missing without CUDA_VISIBLE_DEVICES",
        probe="torch.cuda",
        change=lambda answer: (answer["raw"].update(device_count=7), answer.update(device_count=7)),
        status=Status.WARN,
        says="7 of 8",
        suspects=("mig.state",),
    ),
    Case(
        check="torch.kernel",
        name="wrong values",
        probe="torch.kernel",
        change=first("results", wrong=3),
        status=Status.FAIL,
        says="3 wrong values",
        suspects=("hw.ecc",),
    ),
    Case(
        check="torch.kernel",
        name="no code for this GPU",
        probe="torch.kernel",
        change=first(
            "results",
            wrong=None,
            error="RuntimeError: CUDA error: no kernel image is available for execution on the "
            "device",
        ),
        status=Status.FAIL,
        says="a kernel failed",
        suspects=("torch.arch",),
    ),
    Case(
        check="torch.code",
        name="Volta with a CUDA 13 wheel",
        probe="torch.devices",
        change=first("devices", compute_capability=[7, 0], name="Tesla V100-SXM2-32GB"),
        status=Status.FAIL,
        says="no code for Tesla V100-SXM2-32GB (sm_70)",
    ),
    Case(
        check="torch.code",
        name="only PTX",
        probe="torch.devices",
        change=top(arch_flags=["sm_80", "compute_80"]),
        status=Status.WARN,
        says="only PTX",
    ),
    Case(
        check="torch.libs",
        name="the system's cuDNN",
        probe="torch.libraries",
        change=inside("mapped", libcudnn=["/usr/lib/x86_64-linux-gnu/libcudnn.so.9.1.0"]),
        status=Status.WARN,
        says="libcudnn",
        suspects=("env.ldpath",),
    ),
    Case(
        check="torch.cudnn",
        name="incompatible",
        probe="torch.cudnn",
        change=top(error=SYSTEM_CUDNN),
        status=Status.FAIL,
        says="cuDNN does not load",
        suspects=("torch.libs",),
    ),
    Case(
        check="torch.cudnn",
        name="runtime older than compiled",
        probe="torch.cudnn",
        change=top(runtime=91002),
        status=Status.FAIL,
        says="cuDNN 9.10.2 was loaded, torch was built with 9.24.0",
    ),
    Case(
        check="torch.cudnn",
        name="wrong convolution",
        probe="torch.cudnn",
        change=first("results", wrong=7),
        status=Status.FAIL,
        says="7 wrong values",
    ),
    Case(
        check="torch.nccl.which",
        name="wheel 2.30.4, loaded 2.28.9",
        probe="torch.nccl-versions",
        change=top(torch="2.28.9", file="2.28.9", wheels={"nvidia-nccl-cu13": "2.30.4"}),
        status=Status.WARN,
        says="2.28.9, 2.30.4",
        suspects=("torch.nccl.dup",),
    ),
    Case(
        check="num.matmul",
        name="one wrong element on GPU 3",
        probe="torch.matmul",
        change=wrong_at("bfloat16", 1),
        status=Status.FAIL,
        says="1 in bfloat16",
        suspects=("hw.ecc",),
    ),
    Case(
        check="num.autograd",
        name="the tutorial's wrong gradient",
        probe="torch.autograd",
        change=first("results", dx=36.0),
        status=Status.FAIL,
        says="dx is 36.0, not 42.0",
    ),
    Case(
        check="num.autograd",
        name="zero_grad leaves a gradient",
        probe="torch.autograd",
        change=first("results", zero_grad=[24.0, 48.0, 48.0, 72.0, 72.0]),
        status=Status.FAIL,
        says="zero_grad",
    ),
    Case(
        check="num.accum",
        name="chunks differ in float16",
        probe="torch.accumulation",
        change=lambda answer: answer["results"][0]["wrong"]["float16"].update({"8": 2}),
        status=Status.FAIL,
        says="float16",
    ),
    Case(
        check="num.step",
        name="NaN loss",
        probe="torch.step",
        change=first("results", losses=[1.3, "nan", "nan", "nan", "nan", "nan"]),
        status=Status.FAIL,
        says="not a number",
    ),
    Case(
        check="num.step",
        name="rising loss",
        probe="torch.step",
        change=first("results", losses=[1.3, 1.4, 1.5, 1.6, 1.7, 1.8]),
        status=Status.FAIL,
        says="does not fall",
    ),
    Case(
        check="num.step",
        name="other gradients than float64",
        probe="torch.step",
        change=first("results", gradient_error=0.02),
        status=Status.FAIL,
        says="gradients differ from float64",
    ),
    Case(
        check="num.tf32",
        name="no float32 product at all",
        probe="torch.tf32",
        change=first("results", error="RuntimeError: CUBLAS_STATUS_NOT_INITIALIZED"),
        status=Status.FAIL,
        says="a float32 product failed",
        suspects=("mem.free",),
    ),
    Case(
        check="num.second",
        name="wrong Hessian",
        probe="torch.second-order",
        change=first("results", hessian=[[6.0, 0.0, 0.0], [0.0, 12.0, 0.0], [0.0, 0.0, 12.0]]),
        status=Status.FAIL,
        says="Hessian",
    ),
    Case(
        check="num.amp",
        name="infinite step taken",
        probe="torch.amp",
        change=lambda answer: answer["results"][0]["fp16"].update(moved=[True, True, True]),
        status=Status.FAIL,
        says="skip the step",
    ),
    Case(
        check="num.amp",
        name="scale kept",
        probe="torch.amp",
        change=lambda answer: answer["results"][0]["fp16"].update(scales=[1024.0] * 3),
        status=Status.FAIL,
        says="not halved",
    ),
    Case(
        check="num.amp",
        name="bfloat16 loss rises",
        probe="torch.amp",
        change=lambda answer: answer["results"][0]["bf16"].update(losses=[1.0, 2.0]),
        status=Status.FAIL,
        says="bfloat16 loss",
    ),
    Case(
        check="num.determinism",
        name="differs between runs",
        probe="torch.determinism",
        change=first("results", differing=["gradient of the convolution"]),
        status=Status.WARN,
        says="gradient of the convolution",
    ),
    Case(
        check="num.sdpa",
        name="flash attention off",
        probe="torch.sdpa",
        change=lambda answer: answer["results"][0]["backends"][4].update(max_error=0.3),
        status=Status.FAIL,
        says="flash attention in float16 is off by 0.3",
    ),
    Case(
        check="num.graph",
        name="replay with other values",
        probe="torch.graph",
        change=first("results", wrong=5),
        status=Status.FAIL,
        says="replayed graph",
    ),
    Case(
        check="num.memory",
        name="memory kept after the error",
        probe="torch.memory",
        change=first("results", left_over_bytes=64 << 20),
        status=Status.WARN,
        says="64 MiB stay allocated",
    ),
    Case(
        check="num.memory",
        name="no error at all",
        probe="torch.memory",
        change=lambda answer: answer["results"][0]["out_of_memory"].update(raised=False),
        status=Status.WARN,
        says="raised nothing",
    ),
    Case(
        check="num.memory",
        name="peak miscounted",
        probe="torch.memory",
        change=first("results", peak_bytes=64 << 20),
        status=Status.WARN,
        says="peak statistics",
    ),
    Case(
        check="num.sampler",
        name="a sample dealt to nobody",
        probe="torch.sampler",
        change=lambda answer: answer["cases"][0]["epochs"][0][0].__setitem__(
            0, answer["cases"][0]["epochs"][0][0][1]
        ),
        status=Status.FAIL,
        says="1 samples dealt to nobody",
    ),
    Case(
        check="num.sampler",
        name="the same order in every epoch",
        probe="torch.sampler",
        change=lambda answer: answer["cases"][0].update(
            epochs=[answer["cases"][0]["epochs"][0]] * 2
        ),
        status=Status.FAIL,
        says="same order in every epoch",
    ),
    Case(
        check="num.dataloader",
        name="bus error in 64 MiB",
        probe="torch.dataloader",
        change=top(
            shm_free_bytes=64 << 20,
            batches=0,
            error="RuntimeError: DataLoader worker (pid 71) is killed by signal: Bus error. It is "
            "possible that dataloader's workers are out of shared memory.",
        ),
        status=Status.FAIL,
        says="cannot deliver a batch",
        suspects=("shm.size",),
    ),
    Case(
        check="num.dataloader",
        name="mixed up samples",
        probe="torch.dataloader",
        change=top(wrong=4),
        status=Status.FAIL,
        says="mixed samples up",
    ),
    Case(
        check="nccl.allreduce.1p",
        name="wrong on one GPU",
        probe="torch.allreduce-1p",
        change=first("results", wrong=9),
        status=Status.FAIL,
        says="wrong sums on GPU 0",
        suspects=("p2p.copy",),
    ),
    Case(
        check="nccl.allreduce.mp",
        name="a rank that does not arrive",
        probe="torch.collective",
        change=failure(kind="hang", stage="all_reduce float32 x 1000", missing=[5], rank=5),
        status=Status.FAIL,
        says="rank 5 (GPU 5) did not arrive at all_reduce float32 x 1000 within 30 s",
    ),
    Case(
        check="nccl.allreduce.mp",
        name="all arrived and nothing moves",
        probe="torch.collective",
        change=failure(kind="hang", stage="first collective", missing=[], rank=None),
        status=Status.FAIL,
        says="all ranks arrived at first collective",
    ),
    Case(
        check="nccl.allreduce.mp",
        name="a killed rank",
        probe="torch.collective",
        change=failure(kind="died", stage="all_reduce float32 x 1000", rank=2, error="SIGKILL"),
        status=Status.FAIL,
        says="rank 2 (GPU 2) died in all_reduce float32 x 1000 (SIGKILL)",
    ),
    Case(
        check="nccl.allreduce.mp",
        name="no room in shared memory",
        probe="torch.collective",
        change=lambda answer: (
            failure(error="DistBackendError: NCCL error: unhandled system error")(answer),
            answer["log"].update(
                warnings=["Error while creating shared memory segment /dev/shm/nccl-AbCdEf"]
            ),
        ),
        status=Status.FAIL,
        says="rank 1 (GPU 1) failed in join",
        suspects=("shm.size",),
    ),
    Case(
        check="nccl.allreduce.mp",
        name="a lost contribution",
        probe="torch.collective",
        change=first(
            "all_reduce",
            wrong=992,
            first={"index": 0, "got": 0.0, "right": 3.0},
            lost_ranks=[1],
            wrong_ranks=[0, 1],
        ),
        status=Status.FAIL,
        says="what rank 1 (GPU 1) gave is missing",
        suspects=("p2p.copy",),
    ),
    Case(
        check="nccl.allreduce.mp",
        name="reduce_scatter differs",
        probe="torch.collective",
        change=inside("scatter_gather", wrong=4, first={"index": 1, "got": 1.0, "right": 2.0}),
        status=Status.FAIL,
        says="reduce_scatter + all_gather",
    ),
    Case(
        check="gloo.allreduce",
        name="an interface that does not exist",
        probe="torch.collective",
        change=failure(
            error="RuntimeError: [enforce fail at /__w/pytorch/third_party/gloo/gloo/transport/tcp/"
            "device.cc:84] ifa != nullptr. Unable to find "
            "address for: nope"
        ),
        status=Status.FAIL,
        says="rank 1 (CPU) failed in join: RuntimeError: Unable to find address for: nope",
        suspects=("nccl.ifname",),
        base=CPU,
    ),
    Case(
        check="nccl.dup_gpu",
        name="two ranks on one GPU",
        probe="torch.collective",
        change=lambda answer: answer["ranks"][1].update(uuid=answer["ranks"][0]["uuid"]),
        status=Status.FAIL,
        says="ranks 0 and 1 use the same GPU",
    ),
    Case(
        check="nccl.bw",
        name="a third less than usual",
        probe="torch.collective",
        change=lambda answer: answer["bandwidth"][-1].update(busbw=300.0),
        status=Status.WARN,
        says="300 GB/s bus bandwidth between 8 GPUs, 368 expected at least",
    ),
    Case(
        check="nccl.bw",
        name="over shared memory",
        probe="torch.collective",
        change=lambda answer: answer["bandwidth"][-1].update(busbw=12.0),
        status=Status.FAIL,
        says="12 GB/s",
        suspects=("hw.nvlink",),
    ),
    Case(
        check="num.ddp",
        name="ranks drift apart",
        probe="torch.collective",
        change=lambda answer: answer["ddp"]["gradients"][4].__setitem__(0, 15.000001),
        status=Status.FAIL,
        says="rank 4 has other gradients",
    ),
    Case(
        check="num.ddp",
        name="a share is missing",
        probe="torch.collective",
        change=lambda answer: answer["ddp"].update(reference=[1] * 32),
        status=Status.FAIL,
        says="not the whole batch's",
    ),
    Case(
        check="num.ddp",
        name="weights not copied",
        probe="torch.collective",
        change=inside("ddp", weights_synced=False),
        status=Status.FAIL,
        says="different weights",
    ),
    Case(
        check="cc.compile",
        name="no compiler",
        probe="torch.compile",
        change=first(
            "results",
            error="InductorError: InvalidCxxCompiler: No working C++ compiler found in "
            "torch._inductor.config.cpp.cxx: (None, 'g++')",
        ),
        status=Status.FAIL,
        says="torch.compile failed",
        suspects=("cc.gcc",),
    ),
    Case(
        check="cc.compile",
        name="switched off",
        probe="torch.compile",
        change=first("results", graphs=0),
        status=Status.FAIL,
        says="without compiling",
    ),
    Case(
        check="cc.compile",
        name="wrong gradient",
        probe="torch.compile",
        change=first("results", gradient_error=0.5),
        status=Status.FAIL,
        says="gradients differ",
    ),
    Case(
        check="p2p.copy",
        name="silent corruption",
        probe="torch.p2p",
        change=first("pairs", wrong=4096),
        status=Status.FAIL,
        says="4096 of 67108864 bytes arrived wrong",
        suspects=("topo.acs", "topo.iommu"),
    ),
    Case(
        check="p2p.bw",
        name="a pair without its bridge",
        probe="torch.p2p",
        change=first("pairs", gb_per_s=22.0),
        status=Status.FAIL,
        says="slowest pair 22 GB/s (GPU 0 to GPU 1)",
    ),
    Case(
        check="perf.h2d",
        name="half of the link",
        probe="torch.transfer",
        change=first("results", d2h=30.0),
        status=Status.WARN,
        says="30 GB/s, 48 expected at least",
    ),
    Case(
        check="hw.pcie.gen",
        name="eight of sixteen lanes",
        probe="torch.transfer",
        change=load(pcie_width=[8, 8]),
        status=Status.FAIL,
        says="8 of 16 PCIe lanes",
    ),
    Case(
        check="hw.pcie.gen",
        name="stuck at generation 2 under load",
        probe="torch.transfer",
        change=load(pcie_gen=[2, 2]),
        status=Status.WARN,
        says="generation 2 under load, 5 possible",
    ),
    Case(
        check="hw.pcie.replay",
        name="packets sent again",
        probe="torch.transfer",
        change=first("results", replays=12),
        status=Status.WARN,
        says="12 PCIe packets",
    ),
    Case(
        check="perf.hbm",
        name="half of the floor",
        probe="torch.memory-rate",
        change=first("results", gb_per_s=900.0),
        status=Status.FAIL,
        says="900 GB/s, 1905 expected at least",
    ),
    Case(
        check="perf.matmul",
        name="a third less",
        probe="torch.matmul-rate",
        change=first("results", tflops=500.0),
        status=Status.WARN,
        says="500 TFLOP/s, 636 expected at least",
        suspects=("hw.throttle",),
    ),
    Case(
        check="perf.matmul",
        name="a third of it",
        probe="torch.matmul-rate",
        change=first("results", tflops=250.0),
        status=Status.FAIL,
        says="250 TFLOP/s",
    ),
    Case(
        check="hw.throttle",
        name="power brake throughout",
        probe="torch.matmul-rate",
        change=load(reasons={"0x80": 19, "0x4": 3}),
        status=Status.FAIL,
        says="power brake in 95% of the samples",
    ),
    Case(
        check="hw.throttle",
        name="hot now and then",
        probe="torch.matmul-rate",
        change=load(reasons={"0x20": 14}),
        status=Status.WARN,
        says="software thermal limit",
    ),
    Case(
        check="hw.temp",
        name="close to the limit",
        probe="torch.matmul-rate",
        change=load(celsius=[60, 85]),
        status=Status.WARN,
        says="85 C under load, it slows down at 87",
    ),
    Case(
        check="hw.temp",
        name="over the limit",
        probe="torch.matmul-rate",
        change=load(celsius=[60, 91]),
        status=Status.FAIL,
        says="91 C",
    ),
    Case(
        check="num.memtest",
        name="a word that forgets",
        probe="torch.memtest",
        change=first("results", wrong=1, first={"pattern": "own address", "offset": 4096}),
        status=Status.FAIL,
        says="1 words of memory",
        suspects=("hw.ecc",),
    ),
    Case(
        check="num.burn",
        name="products that change",
        probe="torch.burn",
        change=first("results", wrong=17),
        status=Status.FAIL,
        says="17 elements changed between 43000 equal products",
    ),
    Case(
        check="num.burn",
        name="slower as it gets hot",
        probe="torch.burn",
        change=first("results", tflops_last=500.0),
        status=Status.WARN,
        says="790 TFLOP/s at first, 500 in the end",
        suspects=("hw.throttle",),
    ),
)

MUST_NOT_FIRE = (
    Case(
        check="torch.import",
        name="no torch at all",
        probe="torch.import",
        change=top(ok=False, error="ModuleNotFoundError: No module named 'torch'"),
        status=Status.SKIP,
    ),
    Case(
        check="torch.cuda",
        name="CPU wheel and no GPU",
        probe="torch.cuda",
        change=lambda _answer: None,
        status=Status.SKIP,
        base=CPU,
    ),
    Case(
        check="torch.cuda",
        name="CUDA wheel and no GPU",
        probe="torch.cuda",
        change=cuda_down(
            None,
            "RuntimeError: Found no NVIDIA driver on your system.",
            built_with_cuda=True,
        ),
        status=Status.SKIP,
        base=CPU,
    ),
    Case(
        check="torch.count",
        name="hidden on purpose",
        probe="torch.cuda",
        change=lambda answer: (
            answer["raw"].update(device_count=2),
            answer.update(device_count=2, cuda_visible_devices="0,1"),
        ),
        status=Status.INFO,
    ),
    Case(
        check="torch.code",
        name="sm_89 with code for sm_86",
        probe="torch.devices",
        change=first("devices", compute_capability=[8, 9]),
        status=Status.PASS,
    ),
    Case(
        check="torch.code",
        name="sm_103 with code for sm_100",
        probe="torch.devices",
        change=first("devices", compute_capability=[10, 3]),
        status=Status.PASS,
    ),
    Case(
        check="torch.code",
        name="sm_121 with code for sm_120",
        probe="torch.devices",
        change=first("devices", compute_capability=[12, 1]),
        status=Status.PASS,
    ),
    Case(
        check="torch.libs",
        name="an image whose torch has no wheels of its own",
        probe="torch.libraries",
        change=lambda answer: (
            answer.update(wheels={"torch": "2.14.0a0+nv26"}),
            answer["mapped"].update(libcublas=["/usr/local/cuda/lib64/libcublas.so.13"]),
        ),
        status=Status.PASS,
    ),
    Case(
        check="torch.libs",
        name="a CPU build",
        probe="torch.libraries",
        change=lambda _answer: None,
        status=Status.SKIP,
        base=CPU,
    ),
    Case(
        check="torch.cudnn",
        name="runtime newer than compiled",
        probe="torch.cudnn",
        change=top(runtime=92600),
        status=Status.PASS,
    ),
    Case(
        check="num.matmul",
        name="float16 without a kernel on an old CPU torch",
        probe="torch.matmul",
        change=lambda answer: answer["results"][0]["wrong"].update(float16=None),
        status=Status.PASS,
        base=CPU,
    ),
    Case(
        check="num.accum",
        name="float16 without a kernel on an old CPU torch",
        probe="torch.accumulation",
        change=lambda answer: answer["results"][0]["wrong"].update(float16=None),
        status=Status.PASS,
        base=CPU,
    ),
    Case(
        check="num.tf32",
        name="TF32 switched on",
        probe="torch.tf32",
        change=first("results", matmul_residue=0.0),
        status=Status.INFO,
    ),
    Case(
        check="num.amp",
        name="bfloat16 emulated on Turing",
        probe="torch.amp",
        change=first("results", bf16_native=False),
        status=Status.PASS,
    ),
    Case(
        check="num.amp",
        name="no GradScaler for the CPU in an old torch",
        probe="torch.amp",
        change=first("results", fp16=None, unsupported={"fp16": "not supported"}),
        status=Status.PASS,
        base=CPU,
    ),
    Case(
        check="num.sdpa",
        name="no flash attention here",
        probe="torch.sdpa",
        change=lambda answer: answer["results"][0]["backends"][3].update(
            max_error=None, unsupported="RuntimeError: No available kernel."
        ),
        status=Status.PASS,
    ),
    Case(
        check="num.graph",
        name="no GPU",
        probe="torch.graph",
        change=lambda _answer: None,
        status=Status.SKIP,
        base=CPU,
    ),
    Case(
        check="num.sampler",
        name="fewer samples than ranks and drop_last",
        probe="torch.sampler",
        change=lambda answer: answer.update(cases=answer["cases"][-1:]),
        status=Status.PASS,
    ),
    Case(
        check="nccl.allreduce.mp",
        name="one GPU",
        probe="torch.collective",
        change=lambda _answer: None,
        status=Status.PASS,
        says="no link was exercised",
        base=ONE,
    ),
    Case(
        check="nccl.allreduce.mp",
        name="gloo does not count for NCCL",
        probe="torch.collective",
        change=lambda _answer: None,
        status=Status.SKIP,
        base=CPU,
    ),
    Case(
        check="nccl.allreduce.mp",
        name="a type the back end does not know",
        probe="torch.collective",
        change=first("all_reduce", wrong=None, unsupported="RuntimeError: not supported"),
        status=Status.PASS,
    ),
    Case(
        check="nccl.bw",
        name="one GPU",
        probe="torch.collective",
        change=lambda _answer: None,
        status=Status.SKIP,
        base=ONE,
    ),
    Case(
        check="nccl.bw",
        name="1 GB/s at 32 KiB",
        probe="torch.collective",
        change=first("bandwidth", busbw=0.9),
        status=Status.PASS,
    ),
    Case(
        check="nccl.bw",
        name="faster than the wire with NVLS",
        probe="torch.collective",
        change=lambda answer: answer["bandwidth"][-1].update(busbw=482.0),
        status=Status.PASS,
    ),
    Case(
        check="nccl.bw",
        name="a model without a reference",
        probe="torch.collective",
        change=lambda _answer: None,
        status=Status.INFO,
        base=gpus(4, "NVIDIA GeForce RTX 4090", (8, 9), busbw=9.0),
    ),
    Case(
        check="num.ddp",
        name="the last bit of an average over three",
        probe="torch.collective",
        change=lambda answer: answer["ddp"].update(
            gradients=[[value * (1 + 2**-24) for value in answer["ddp"]["reference"]]] * 8
        ),
        status=Status.PASS,
    ),
    Case(
        check="cc.compile",
        name="half a minute on a cold machine",
        probe="torch.compile",
        change=first("results", seconds=28.0),
        status=Status.PASS,
        says="28 s",
    ),
    Case(
        check="cc.compile",
        name="a torch that cannot compile under this Python",
        probe="torch.compile",
        change=first(
            "results", error="RuntimeError: Python 3.11+ not yet supported for torch.compile"
        ),
        status=Status.SKIP,
    ),
    Case(
        check="p2p.copy",
        name="one GPU",
        probe="torch.p2p",
        change=lambda _answer: None,
        status=Status.SKIP,
        base=ONE,
    ),
    Case(
        check="p2p.bw",
        name="no peer access anywhere",
        probe="torch.p2p",
        change=lambda answer: [pair.update(peer_access=False) for pair in answer["pairs"]],
        status=Status.SKIP,
    ),
    Case(
        check="perf.h2d",
        name="eight lanes by design",
        probe="torch.transfer",
        change=lambda answer: [
            entry.update(h2d=27.0, d2h=26.0, fixed=dict(entry["fixed"], pcie_width_max=8))
            for entry in answer["results"]
        ],
        status=Status.PASS,
    ),
    Case(
        check="hw.pcie.gen",
        name="idle at generation 1, 5 under load",
        probe="torch.transfer",
        change=load(pcie_gen=[1, 5]),
        status=Status.PASS,
    ),
    Case(
        check="hw.pcie.gen",
        name="a virtual machine without link facts",
        probe="torch.transfer",
        change=lambda answer: [
            entry["load"].update(pcie_gen=None, pcie_width=None) for entry in answer["results"]
        ],
        status=Status.SKIP,
    ),
    Case(
        check="hw.pcie.replay",
        name="no counter",
        probe="torch.transfer",
        change=lambda answer: [entry.update(replays=None) for entry in answer["results"]],
        status=Status.SKIP,
    ),
    Case(
        check="perf.hbm",
        name="a MIG slice",
        probe="torch.memory-rate",
        change=lambda answer: [entry.update(gb_per_s=330.0) for entry in answer["results"]],
        status=Status.INFO,
        base=gpus(1, f"{H100} MIG 1g.10gb"),
    ),
    Case(
        check="perf.matmul",
        name="busy before, so no accusation",
        probe="torch.matmul-rate",
        change=first("results", tflops=250.0, utilization_before=97),
        status=Status.WARN,
        says="97 % busy before",
    ),
    Case(
        check="perf.matmul",
        name="memory taken by others",
        probe="torch.matmul-rate",
        change=lambda answer: [
            (entry.pop("tflops"), entry.update(too_little_memory=64 << 20))
            for entry in answer["results"]
        ],
        status=Status.SKIP,
    ),
    Case(
        check="hw.throttle",
        name="idle, set clocks and the power cap",
        probe="torch.matmul-rate",
        change=load(reasons={"0x1": 20, "0x2": 20, "0x4": 20}),
        status=Status.PASS,
    ),
    Case(
        check="hw.temp",
        name="no limit told",
        probe="torch.matmul-rate",
        change=lambda answer: [
            entry["fixed"].update(slowdown_celsius=None) for entry in answer["results"]
        ],
        status=Status.SKIP,
    ),
    Case(
        check="num.memtest",
        name="memory taken by others",
        probe="torch.memtest",
        change=lambda answer: [
            entry.update(too_little_memory=1 << 30) for entry in answer["results"]
        ],
        status=Status.SKIP,
    ),
    Case(
        check="num.burn",
        name="a little slower when warm",
        probe="torch.burn",
        change=first("results", tflops_last=700.0),
        status=Status.PASS,
    ),
)


@pytest.mark.parametrize("case", MUST_FIRE, ids=lambda case: f"{case.check}: {case.name}")
def test_a_fault_is_found_and_named(case: Case) -> None:
    results = judge(changed(case.base, case.probe, case.change), case.check)
    found = next((result for result in results if result.status is case.status), None)
    assert found is not None, [(result.status.value, result.summary) for result in results]
    assert case.says in found.summary
    assert set(case.suspects) <= set(found.suspects)
    assert found.evidence


@pytest.mark.parametrize("case", MUST_NOT_FIRE, ids=lambda case: f"{case.check}: {case.name}")
def test_what_is_normal_raises_no_alarm(case: Case) -> None:
    results = judge(changed(case.base, case.probe, case.change), case.check)
    assert {result.status for result in results} == {case.status}, [r.summary for r in results]
    assert case.says in results[0].summary


@pytest.mark.parametrize(
    "facts",
    [EIGHT, ONE, CPU, cuda_wheel_without_a_gpu()],
    ids=["eight GPUs", "one GPU", "no GPU", "a CUDA wheel and no GPU"],
)
def test_a_healthy_machine_raises_no_alarm(facts: Facts) -> None:
    results = run_checks(facts, CHECKS)
    assert [(r.id, r.summary) for r in results if r.status not in QUIET] == []
    assert {r.id for r in results} == {check.id for check in CHECKS}


def test_eight_healthy_gpus_leave_only_gloo_unlooked_at() -> None:
    skipped = [r.id for r in run_checks(EIGHT, CHECKS) if r.status is Status.SKIP]
    assert skipped == ["gloo.allreduce"]


def test_every_check_has_a_case_that_fires_and_one_that_does_not() -> None:
    fires = {case.check for case in MUST_FIRE}
    quiet = {case.check for case in MUST_NOT_FIRE}
    healthy = {r.id for r in run_checks(EIGHT, CHECKS) if r.status in (Status.PASS, Status.INFO)}
    healthy |= {r.id for r in run_checks(CPU, CHECKS) if r.status is Status.PASS}
    ids = {check.id for check in CHECKS}
    assert ids - fires == set()
    assert ids - quiet - healthy == set()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.id)
def test_every_check_explains_itself(check: Check) -> None:
    assert len(check.explanation) > 200
    assert not check.explanation.startswith("\n")
    assert check.title


def strip(answer: dict[str, Any]) -> None:
    """Leave devices, pairs and rounds without what was found out about them."""
    for value in answer.values():
        if isinstance(value, list):
            value[:] = [{"device": e.get("device"), "error": ""} for e in value if type(e) is dict]


@pytest.mark.parametrize("spoil", [dict.clear, strip], ids=["empty", "stripped"])
@pytest.mark.parametrize("facts", [EIGHT, CPU], ids=["eight GPUs", "no GPU"])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.id)
def test_an_answer_without_its_keys_is_no_pass(
    check: Check, facts: Facts, spoil: Callable[[dict[str, Any]], object]
) -> None:
    empty = facts
    for name in check.needs:
        empty = changed(empty, name, spoil)
    results = check.run(empty)
    assert results
    if spoil is dict.clear or check.id not in ONE_ANSWER:
        assert Status.PASS not in {result.status for result in results}


ONE_ANSWER = {
    "torch.import",
    "torch.cuda",
    "torch.count",
    "torch.libs",
    "torch.nccl.which",
    "num.dataloader",
    "num.ddp",
}
"""Checks whose probe answers once, not device by device: there is nothing to strip."""


SUSPECTS = {
    3: "host.driver.module",
    34: "env.ldpath",
    46: "mode.compute",
    101: "vis.cvd",
    802: "host.fabricmanager",
    803: "host.driver.match",
    804: "drv.compat",
    999: "ctk.uvm",
}


@pytest.mark.parametrize(
    "recorded",
    failing_cuinit(),
    ids=lambda recorded: f"{recorded['cuinit']} from a driver of CUDA {recorded['driver_cuda']}",
)
def test_the_real_torchs_words_never_hide_the_drivers_code(recorded: dict[str, Any]) -> None:
    code, too_old = recorded["cuinit"], recorded["driver_cuda"] < 13000
    facts = changed(CPU, "torch.cuda", lambda answer: answer.update(recorded["facts"]))
    (result,) = judge(facts, "torch.cuda")
    if code == 100:  # a driver and no GPU, here nor anywhere else: nothing is broken
        assert result.status is Status.SKIP
        return
    assert result.status is Status.FAIL
    assert f"cuInit {code}" in result.summary
    assert ("hides the driver's own code" in result.why) is too_old
    assert ("drv.cuda" in result.suspects) is too_old
    if code in SUSPECTS:
        assert SUSPECTS[code] in result.suspects


def test_masking_is_said_aloud() -> None:
    (result,) = judge(changed(EIGHT, "torch.cuda", cuda_down(802, OLD)), "torch.cuda")
    assert "which hides the driver's own code 802" in result.why
    values = {entry.source: entry.value for entry in result.evidence}
    assert values["cuInit"] == "802"
    assert "too old" in values["torch.cuda.init()"]


def test_gloo_meets_no_requirement_for_nccl() -> None:
    settled = (Status.PASS, Status.INFO, Status.WARN)
    ids = {check.id for check in CHECKS if "nccl" in check.provides}
    assert not [r for r in run_checks(CPU, CHECKS) if r.id in ids and r.status in settled]
    assert [r for r in run_checks(EIGHT, CHECKS) if r.id in ids and r.status in settled]


def test_the_bandwidth_curve_is_drawn_against_its_reference() -> None:
    (result,) = judge(EIGHT, "nccl.bw")
    curve = result.numbers["curve"]
    points = curve["series"][0]["points"]
    assert [size for size, _ in points] == sorted(size for size, _ in points)
    assert curve["expected"] == 460
    assert result.numbers["floor"] == 368
    assert "azurehpc" in result.numbers["source"]
