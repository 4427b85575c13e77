"""Say whether torch computes here, and computes right: one import of torch, one step per GPU.

Without a GPU the same numerics run on the CPU and the facts say so (``device``).

===================  =============================================================================
name                 keys (``results`` holds one entry per device: device, error, ...)
===================  =============================================================================
torch.import         ok, error, version, cuda, hip, file, import_s, python, wheels {name: version}
torch.cuda           raw {cuinit, driver_cuda, device_count, load_error}, nvml {code, count,
                     load_error}, is_available, device_count, warnings [...], init_error,
                     cuda_visible_devices, nvml_based_check, built_with_cuda
torch.devices        arch_flags [...], devices [{index, name, compute_capability [major, minor],
                     memory_bytes, free_bytes, multiprocessors, uuid, pci_bus_id}]
torch.kernel         results [{wrong}]
torch.matmul         results [{wrong {dtype: count or null}, reference_wrong}]
torch.autograd       results [{loss, dx, dw, db, cube, control_flow, zero_grad, no_grad_tracks}]
torch.accumulation   results [{wrong {dtype: {chunks: count}}, largest}]
torch.tf32           results [{matmul_residue, conv_residue, matmul_precision, cudnn_allow_tf32}]
torch.cudnn          available, compiled [...], runtime, error, wheels, results [{wrong}]
torch.step           results [{losses, reference_losses, gradient_error, loss_error, peak_bytes}]
torch.nccl-versions  torch, file, paths [...], wheels, error
torch.libraries      site_packages, mapped {library: [paths]}, wheels
torch.allreduce-1p   gpus, elements, seconds, results [{wrong}]
===================  =============================================================================

``skip {reason, text}`` stands in place of the keys where there was nothing to do.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import re
import time
import warnings
from typing import TYPE_CHECKING, Any

from ._torch import (
    Skip,
    describe,
    gpu_indices,
    load_torch,
    on_each_device,
    plain,
    probe,
    ternary,
    train,
    unsupported,
)

if TYPE_CHECKING:
    from ._common import Context

MAPPED_LIBRARIES = (
    "libcuda",
    "libnvidia-ml",
    "libtorch_cuda",
    "libcudart",
    "libcublas",
    "libcublasLt",
    "libcudnn",
    "libnccl",
    "libnvJitLink",
    "libcusparse",
    "libnvrtc",
)
WHEELS = re.compile(
    r"torch|triton|pytorch-triton|nvidia-(nccl|cudnn|cuda-runtime|cublas|nvjitlink|cusparse)(-cu\d+)?"
)
FLOATS = ("float64", "float32", "float16", "bfloat16")
ACCUMULATION_CHUNKS = (1, 2, 4, 8, 32)


@probe
def import_torch(_context: Context) -> dict[str, Any]:
    """Import torch; say how long that took and which torch it was, or why it failed."""
    start = time.monotonic()
    facts: dict[str, Any] = {"python": platform.python_version(), "wheels": wheels()}
    try:
        import torch
    except Exception as error:
        return dict(facts, ok=False, error=describe(error))
    facts.update(
        ok=True,
        error="",
        version=str(torch.__version__),
        cuda=torch.version.cuda,
        hip=getattr(torch.version, "hip", None),
        file=getattr(torch, "__file__", "") or "",
        import_s=round(time.monotonic() - start, 3),
    )
    return facts


def wheels() -> dict[str, str]:
    """Return the installed distributions of torch and its CUDA libraries, name to version."""
    from importlib import metadata

    found = {}
    for dist in metadata.distributions():
        name = (dist.metadata["Name"] or "").lower().replace("_", "-")
        if WHEELS.fullmatch(name):
            found[name] = dist.version
    return found


# --- what the driver and torch say ---------------------------------------------------------------


def raw_driver() -> dict[str, Any]:
    """Ask ``libcuda.so.1`` itself, in this process.

    torch rewrites and masks the driver's answer ("driver too old" hides 802), so the raw code is
    the better evidence.
    """
    facts: dict[str, Any] = {"cuinit": None, "driver_cuda": None, "device_count": None}
    facts["load_error"] = ""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return dict(facts, load_error=str(error))
    number = ctypes.c_int(0)
    facts["cuinit"] = cuda.cuInit(0)
    if cuda.cuDriverGetVersion(ctypes.byref(number)) == 0:
        facts["driver_cuda"] = number.value
    if facts["cuinit"] == 0 and cuda.cuDeviceGetCount(ctypes.byref(number)) == 0:
        facts["device_count"] = number.value
    return facts


def nvml_count() -> dict[str, Any]:
    """Return NVML's return code and its number of GPUs, which no variable hides."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError as error:
        return {"code": None, "count": None, "load_error": str(error)}
    code = nvml.nvmlInit_v2()
    count = ctypes.c_uint(0)
    if code == 0:
        code = nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
        nvml.nvmlShutdown()
    return {"code": code, "count": count.value if code == 0 else None, "load_error": ""}


@probe
def cuda_state(context: Context) -> dict[str, Any]:
    """Say whether CUDA comes up, in torch's words and in the driver's own code."""
    torch = load_torch()
    if context.options.get("device", "auto") == "cpu":
        raise Skip("not-applicable", "the CPU was asked for")
    facts: dict[str, Any] = {"raw": raw_driver(), "nvml": nvml_count()}
    facts["built_with_cuda"] = torch.version.cuda is not None
    facts["cuda_visible_devices"] = os.environ.get("CUDA_VISIBLE_DEVICES")
    facts["nvml_based_check"] = os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK")
    context.tell(plain(facts))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        facts["is_available"] = bool(torch.cuda.is_available())
        facts["device_count"] = int(torch.cuda.device_count())
    facts["warnings"] = [str(entry.message)[:1000] for entry in caught]
    facts["init_error"] = ""
    context.tell(plain(facts))
    try:
        torch.cuda.init()
    except Exception as error:  # the text is the fact: each cause has its own
        facts["init_error"] = describe(error)
    return facts


@probe
def devices(context: Context) -> dict[str, Any]:
    """Describe each GPU as CUDA numbers them, and name the code torch carries for GPUs."""
    torch = load_torch()
    # get_arch_list() is empty without a GPU on older releases; this is the wheel's own string
    flags = getattr(torch._C, "_cuda_getArchFlags", lambda: None)()
    found = []
    for index in gpu_indices(context):
        properties = torch.cuda.get_device_properties(index)
        free_bytes, total_bytes = torch.cuda.mem_get_info(index)
        found.append(
            {
                "index": index,
                "name": properties.name,
                "compute_capability": [properties.major, properties.minor],
                "memory_bytes": total_bytes,
                "free_bytes": free_bytes,
                "multiprocessors": properties.multi_processor_count,
                "uuid": str(getattr(properties, "uuid", "")),
                "pci_bus_id": getattr(properties, "pci_bus_id", None),
            }
        )
    return {"arch_flags": flags.split() if flags else [], "devices": found}


@probe
def kernel(context: Context) -> dict[str, Any]:
    """Launch a kernel on each GPU and read its result back: the only proof that one computes."""
    torch = load_torch()
    if not gpu_indices(context):
        raise Skip("no-gpu", "torch sees no GPU")
    right = (torch.arange(4096, dtype=torch.int64) * 3 + 1) % 1009

    def launch(torch: Any, device: str) -> dict[str, Any]:
        values = torch.arange(4096, dtype=torch.int64, device=device)
        return {"wrong": int(((values * 3 + 1) % 1009).cpu().ne(right).sum())}

    return on_each_device(context, launch)


# --- which libraries were really loaded ----------------------------------------------------------


def mapped_libraries(maps: str) -> dict[str, list[str]]:
    """Return the mapped files of each CUDA library, by library name.

    Args:
        maps: Text of ``/proc/self/maps``; a line is
            ``7f1c-7f1d r-xp 00000000 08:01 393 /usr/lib/x86_64-linux-gnu/libcudart.so.13.0.96``.
    """
    found: dict[str, set[str]] = {}
    for line in maps.splitlines():
        path = line[line.find("/") :].replace(" (deleted)", "") if "/" in line else ""
        for library in MAPPED_LIBRARIES:
            pattern = re.escape(library) + r"(_[a-z_]+)?(-[0-9a-f]+)?\.so"
            if re.match(pattern, os.path.basename(path)):
                found.setdefault(library, set()).add(path)
    return {library: sorted(paths) for library, paths in sorted(found.items())}


def own_maps() -> str:
    """Return this process's memory map."""
    with open("/proc/self/maps") as stream:
        return stream.read()


@probe
def libraries(_context: Context) -> dict[str, Any]:
    """Name the file behind each CUDA library of this process, after torch has used them."""
    torch = load_torch()
    root = os.path.dirname(os.path.dirname(os.path.realpath(torch.__file__)))
    return {"site_packages": root, "mapped": mapped_libraries(own_maps()), "wheels": wheels()}


@probe
def nccl_versions(_context: Context) -> dict[str, Any]:
    """Ask three sources for the NCCL version: the wheel's metadata, the mapped file, torch."""
    torch = load_torch()
    if torch.version.cuda is None:
        raise Skip("not-applicable", "this torch is built without CUDA")
    facts: dict[str, Any] = {"torch": None, "file": None, "error": ""}
    facts["wheels"] = {k: v for k, v in wheels().items() if k.startswith("nvidia-nccl")}
    try:
        facts["torch"] = ".".join(str(part) for part in torch.cuda.nccl.version())
    except Exception as error:
        facts["error"] = describe(error)
    facts["paths"] = mapped_libraries(own_maps()).get("libnccl", [])
    if facts["paths"]:
        number = ctypes.c_int(0)
        if ctypes.CDLL(facts["paths"][0]).ncclGetVersion(ctypes.byref(number)) == 0:
            facts["file"] = nccl_version_text(number.value)
    return facts


def nccl_version_text(number: int) -> str:
    """Write NCCL's version number as text: 23007 is 2.30.7, and up to 2.8 it was 2804 for 2.8.4."""
    thousands = 1000 if number < 10000 else 10000
    return "{}.{}.{}".format(number // thousands, number % thousands // 100, number % 100)


@probe
def cudnn(context: Context) -> dict[str, Any]:
    """Compare cuDNN's versions and run a small convolution forward and backward on each device."""
    torch = load_torch()
    facts: dict[str, Any] = {"available": False, "compiled": None, "runtime": None, "error": ""}
    facts["wheels"] = {k: v for k, v in wheels().items() if k.startswith("nvidia-cudnn")}
    if torch.version.cuda is not None:
        try:
            facts["compiled"] = list(torch._C._cudnn.getCompileVersion())
            facts["available"] = bool(torch.backends.cudnn.is_available())
            facts["runtime"] = torch.backends.cudnn.version()
        except Exception as error:  # "cuDNN version incompatibility" is raised here
            facts["error"] = describe(error)
    context.tell(plain(facts))
    facts.update(on_each_device(context, convolution_on))
    return facts


def convolution_on(torch: Any, device: str) -> dict[str, Any]:
    """Return how many values of a 3x3 convolution and its gradients do not round to the right ones.

    The fast algorithms (Winograd, FFT) are allowed their rounding, a wrong whole number is not.
    """
    image = torch.tensor(ternary(2 * 6 * 6, seed=5), dtype=torch.float64).reshape(1, 2, 6, 6)
    weight = torch.tensor(ternary(3 * 2 * 3 * 3, seed=7), dtype=torch.float64).reshape(3, 2, 3, 3)
    answers = []
    for place, dtype in (("cpu", torch.float64), (device, torch.float32)):
        x = image.clone().to(place, dtype).requires_grad_()
        w = weight.clone().to(place, dtype).requires_grad_()
        y = torch.nn.functional.conv2d(x, w)
        y.sum().backward()
        answers.append([t.detach().cpu().double().round() for t in (y, x.grad, w.grad)])
    return {"wrong": sum(int(a.ne(b).sum()) for a, b in zip(*answers))}


# --- exact numerics ------------------------------------------------------------------------------


@probe
def matmul(context: Context) -> dict[str, Any]:
    """Multiply matrices of small integers, whose product is exact in every floating type."""
    return on_each_device(context, matmul_on)


def matmul_on(torch: Any, device: str) -> dict[str, Any]:
    """Return the number of wrong elements per type; the reference is the CPU in float64."""
    rows, inner = 512, 128  # |sum| <= 128, which bfloat16 still holds exactly
    a = torch.tensor(ternary(rows * inner, seed=11), dtype=torch.float64).reshape(rows, inner)
    b = torch.tensor(ternary(inner * rows, seed=13), dtype=torch.float64).reshape(inner, rows)
    right = a @ b
    whole = a[:8].to(torch.int64) @ b.to(torch.int64)
    wrong: dict[str, int | None] = {}
    for name in FLOATS:
        dtype = getattr(torch, name)
        try:
            product = (a.to(device, dtype) @ b.to(device, dtype)).cpu().double()
        except RuntimeError as error:
            if not unsupported(error):
                raise
            wrong[name] = None
        else:
            wrong[name] = int(product.ne(right).sum())
    return {"wrong": wrong, "reference_wrong": int(whole.ne(right[:8].to(torch.int64)).sum())}


@probe
def autograd(context: Context) -> dict[str, Any]:
    """Take first derivatives whose exact values are known."""
    return on_each_device(context, autograd_on)


def autograd_on(torch: Any, device: str) -> dict[str, Any]:
    """Return the gradients of small functions and what ``zero_grad`` leaves behind.

    ``y = w x + b`` and ``loss = y**2`` at x=2, w=3, b=1 have dx=42, dw=28 and db=14.
    """

    def leaf(value: Any) -> Any:
        return torch.tensor(value, dtype=torch.float32, device=device, requires_grad=True)

    x, w, b = leaf(2.0), leaf(3.0), leaf(1.0)
    loss = (w * x + b) ** 2
    loss.backward()
    facts = {"loss": loss.item(), "dx": x.grad.item(), "dw": w.grad.item(), "db": b.grad.item()}

    cube = leaf([1.0, 2.0, 3.0])
    (cube**3).sum().backward()
    facts["cube"] = cube.grad.tolist()

    facts["control_flow"] = []
    for start in (1.0, 1.5):  # doubled until it passes 100; squared only where that gave over 150
        value = leaf(start)
        grown = value
        while grown < 100:
            grown = grown * 2
        (grown**2 if grown > 150 else grown).backward()
        facts["control_flow"].append(value.grad.item())

    facts["zero_grad"] = zero_grad_on(torch, device)
    with torch.no_grad():
        facts["no_grad_tracks"] = (w * 2).requires_grad
    return facts


def zero_grad_on(torch: Any, device: str) -> list[float | None]:
    """Return one gradient after: backward, backward, zero_grad to None, backward, zero in place.

    The loss is (2 w)**2 at w=3, so one backward adds 24.
    """
    model = torch.nn.Linear(1, 1, bias=False).to(device)
    with torch.no_grad():
        model.weight.fill_(3.0)
    seen: list[float | None] = []

    def look() -> None:
        seen.append(None if model.weight.grad is None else model.weight.grad.item())

    def backward() -> None:
        (model(torch.full((1, 1), 2.0, device=device)) ** 2).sum().backward()

    for action in (
        backward,
        backward,
        functools.partial(model.zero_grad, set_to_none=True),
        backward,
        functools.partial(model.zero_grad, set_to_none=False),
    ):
        action()
        look()
    return seen


@probe
def accumulation(context: Context) -> dict[str, Any]:
    """Show that gradients of chunks add up to the gradient of the whole batch, bit for bit."""
    return on_each_device(context, accumulation_on)


def accumulation_reference() -> tuple[list[int], list[int], list[int], list[list[int]]]:
    """Return W (8x4), X (32x8), Y (32x4) and the gradient of half the squared error by W.

    In whole numbers and without torch. Every partial sum is small enough for bfloat16, so the
    order of additions cannot matter and any difference is a fault.
    """
    weight, data, target = ternary(32, seed=3), ternary(256, seed=17), ternary(128, seed=19)
    residual = [
        [
            sum(data[row * 8 + k] * weight[k * 4 + column] for k in range(8))
            - target[row * 4 + column]
            for column in range(4)
        ]
        for row in range(32)
    ]
    gradient = [
        [sum(data[row * 8 + k] * residual[row][column] for row in range(32)) for column in range(4)]
        for k in range(8)
    ]
    return weight, data, target, gradient


def accumulation_on(torch: Any, device: str) -> dict[str, Any]:
    """Return per type and number of chunks how many gradient elements differ from the integers."""
    weight, data, target, gradient = accumulation_reference()
    right = torch.tensor(gradient, dtype=torch.float64)

    def wrong_elements(dtype: Any, chunks: int) -> int:
        def place(values: list[int], *shape: int) -> Any:
            return torch.tensor(values, dtype=torch.float64).reshape(shape).to(device, dtype)

        w = place(weight, 8, 4).requires_grad_()
        parts = zip(place(data, 32, 8).chunk(chunks), place(target, 32, 4).chunk(chunks))
        for x, y in parts:
            (((x @ w - y) ** 2).sum() * 0.5).backward()
        return int(w.grad.cpu().double().ne(right).sum())

    wrong: dict[str, dict[str, int] | None] = {}
    for name in FLOATS:
        dtype = getattr(torch, name)
        try:
            wrong[name] = {str(n): wrong_elements(dtype, n) for n in ACCUMULATION_CHUNKS}
        except RuntimeError as error:
            if not unsupported(error):
                raise
            wrong[name] = None
    return {"wrong": wrong, "largest": int(right.abs().max())}


@probe
def step(context: Context) -> dict[str, Any]:
    """Train a small network for a few real steps and compare with the CPU in float64."""
    return on_each_device(context, step_on)


def step_on(torch: Any, device: str) -> dict[str, Any]:
    """Return the losses on the device and of the reference, and how far the gradients differ.

    TF32 is off for this comparison; it is measured on its own.
    """
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats(device)
    allowed = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        losses, gradients = train(torch, device, torch.float32)
    finally:
        torch.backends.cudnn.allow_tf32 = allowed
    right_losses, right_gradients = train(torch, "cpu", torch.float64)
    return {
        "losses": losses,
        "reference_losses": right_losses,
        "loss_error": max(abs(a - b) for a, b in zip(losses, right_losses)),
        "gradient_error": max(
            float((a - b).abs().max() / b.abs().max()) for a, b in zip(gradients, right_gradients)
        ),
        "peak_bytes": torch.cuda.max_memory_allocated(device) if device != "cpu" else None,
    }


@probe
def tf32(context: Context) -> dict[str, Any]:
    """Measure which precision a float32 matmul and convolution really have."""
    return on_each_device(context, tf32_on)


def tf32_on(torch: Any, device: str) -> dict[str, Any]:
    """Return what is left of 2^-12 beside 1 after a multiplication by one: TF32 loses it."""
    small = 2.0**-12
    eye = torch.eye(128, device=device)
    product = (eye * (1 + small)) @ eye
    weight = torch.eye(32, device=device).reshape(32, 32, 1, 1)
    image = torch.full((1, 32, 16, 16), 1 + small, device=device)
    return {
        "matmul_residue": float(product[0, 0] - 1),
        "conv_residue": float(torch.nn.functional.conv2d(image, weight).flatten()[0] - 1),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "cudnn_allow_tf32": bool(torch.backends.cudnn.allow_tf32),
    }


# --- all GPUs from one process -------------------------------------------------------------------


@probe
def allreduce_one_process(context: Context) -> dict[str, Any]:
    """Sum integers over all GPUs from this one process, by NCCL itself, and compare exactly."""
    torch = load_torch()
    indices = gpu_indices(context)
    if not indices:
        raise Skip("no-gpu", "torch sees no GPU")
    if not hasattr(torch.cuda, "nccl"):
        raise Skip("not-applicable", "this torch has no NCCL")
    size = 1 << 20
    base = torch.arange(size, dtype=torch.int64) % 31
    tensors = [(base + index).float().to("cuda:{}".format(index)) for index in indices]
    right = (base * len(indices) + sum(indices)).float()
    start = time.monotonic()
    torch.cuda.nccl.all_reduce(tensors)
    for index in indices:
        torch.cuda.synchronize(index)
    seconds = time.monotonic() - start
    results = [
        {"device": "cuda:{}".format(index), "wrong": int(tensor.cpu().ne(right).sum())}
        for index, tensor in zip(indices, tensors)
    ]
    return {"gpus": len(indices), "elements": size, "seconds": seconds, "results": results}


PROBES = {
    "torch.import": import_torch,
    "torch.cuda": cuda_state,
    "torch.devices": devices,
    "torch.kernel": kernel,
    "torch.matmul": matmul,
    "torch.autograd": autograd,
    "torch.accumulation": accumulation,
    "torch.tf32": tf32,
    "torch.cudnn": cudnn,
    "torch.step": step,
    "torch.nccl-versions": nccl_versions,
    "torch.libraries": libraries,
    "torch.allreduce-1p": allreduce_one_process,
}
