"""Whether torch comes up on the GPUs that are here, and with which libraries."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from gpuenv.checks.devices import each_device, failed, first_line, label, skipped
from gpuenv.checks.model import Check, Level
from gpuenv.checks.readings import read
from gpuenv.checks.say import Say, fix, group, integer, number, probe, rows, seen, text, words
from gpuenv.versions import DriverCudaVersion

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuenv.checks.model import Facts
    from gpuenv.checks.say import Results

CUINIT_NAMES = {
    2: "out of memory",
    3: "initialization error",
    34: "stub library",
    35: "driver older than this CUDA",
    46: "devices busy or unavailable",
    100: "no device",
    101: "invalid device",
    801: "not supported",
    802: "system not yet initialized",
    803: "libcuda and kernel module do not fit",
    804: "forward compatibility not possible on this GPU",
    999: "unknown error",
}
"""``CUresult`` codes that ``cuInit`` returns when it fails (cuda.h)."""

_TEXT_OF_CODE = {
    3: "CUDA driver initialization failed",
    34: "CUDA driver is a stub library",
    46: "busy or unavailable",
    100: "No CUDA GPUs are available",
    101: "invalid device ordinal",
    802: "system not yet initialized",
    803: "unsupported display driver / cuda driver combination",
    804: "forward compatibility was attempted on non supported HW",
    999: "CUDA unknown error",
}
_TOO_OLD = "driver on your system is too old"
_DRIVER_LIBRARIES = ("libcuda", "libnvidia-ml")
_WHEEL_OF = {
    "libcudart": "nvidia-cuda-runtime",
    "libcublas": "nvidia-cublas",
    "libcublasLt": "nvidia-cublas",
    "libcudnn": "nvidia-cudnn",
    "libnccl": "nvidia-nccl",
    "libnvJitLink": "nvidia-nvjitlink",
    "libcusparse": "nvidia-cusparse",
}


def gpus_expected(facts: Facts) -> int:
    """Return how many GPUs anything but CUDA knows of: the bus, the nodes, NVML."""
    nvml = group(probe(facts, "torch.cuda"), "nvml")
    return max(
        integer(nvml, "count") or 0,
        len(rows(probe(facts, "host.nvml"), "gpus")),
        len(rows(probe(facts, "host.pci"), "gpus")),
    )


def check_import(facts: Facts) -> Results:
    """Ask whether torch can be imported."""
    say = Say("torch.import")
    found = probe(facts, "torch.import")
    if found.get("ok") is True:
        seconds = number(found, "import_s") or 0.0
        return say.ok(
            f"torch {text(found, 'version')} imported in {seconds:.1f} s",
            seen("Python", text(found, "python")),
            seen("torch.__file__", text(found, "file")),
        )
    error = text(found, "error")
    if "No module named 'torch'" in error:
        return say.skip("no-torch", "no torch in this Python")
    return failed(say, "torch cannot be imported", error, source="import torch")


def check_cuda(facts: Facts) -> Results:
    """Ask whether CUDA comes up: the driver's own code first, torch's words beside it."""
    say = Say("torch.cuda")
    found = probe(facts, "torch.cuda")
    skip = skipped(say, found)
    if skip is not None:
        return skip
    raw, error = group(found, "raw"), text(found, "init_error")
    code, available = integer(raw, "cuinit"), found.get("is_available") is True
    if available and not error and code in (0, None):
        return say.ok(
            f"CUDA comes up, {found.get('device_count')} GPU(s) visible", *_evidence(found)
        )
    expected = gpus_expected(facts)
    if found.get("built_with_cuda") is not True:
        if not expected:
            return say.skip("no-gpu", "a CPU build of torch, and no GPU here")
        return say.fail(
            "this torch is a CPU build although there is a GPU",
            why="a requirement or a wheel index brought the CPU wheel",
            evidence=_evidence(found),
            fixes=[fix("image", "install a CUDA wheel that fits the driver", "gpuenv build")],
            suspects=("torch.cpu_build", "torch.swapped"),
        )
    if not expected and code in (None, 100):
        return say.skip("no-gpu", "no NVIDIA GPU here")
    hidden = code not in (0, None) and _TOO_OLD in error
    reading = read(_TEXT_OF_CODE.get(code or 0, ""), *([] if hidden else [error]))
    if code in (0, None) or code not in _TEXT_OF_CODE:
        reading = read(error, text(raw, "load_error"))
    masked = (
        f"; torch says the driver is too old, which hides the driver's own code {code}"
        if hidden
        else ""
    )
    return say.fail(
        f"CUDA does not come up: {_in_words(code, raw, error)}",
        why=(reading.why or "see the evidence") + masked,
        evidence=_evidence(found),
        fixes=reading.fixes,
        alternatives=reading.alternatives,
        suspects=(*reading.suspects, *(("drv.cuda",) if hidden else ()), "drv.cuinit"),
        confidence=reading.confidence,
    )


def _in_words(code: int | None, raw: Mapping[str, Any], error: str) -> str:
    if code:
        return f"cuInit {code} ({CUINIT_NAMES.get(code, 'unnamed')})"
    if code is None and text(raw, "load_error"):
        return "libcuda.so.1 cannot be loaded"
    return first_line(error) if error else "torch sees no GPU"


def _evidence(found: Mapping[str, Any]) -> list[Any]:
    raw, nvml = group(found, "raw"), group(found, "nvml")
    driver_cuda = integer(raw, "driver_cuda")
    entries = [
        seen("cuInit", raw.get("cuinit") if raw.get("cuinit") is not None else "not loaded"),
        seen("torch.cuda.is_available()", found.get("is_available")),
        seen("torch.cuda.device_count()", found.get("device_count")),
    ]
    if driver_cuda:
        entries.append(seen("cuDriverGetVersion", DriverCudaVersion.from_driver_api(driver_cuda)))
    if integer(nvml, "count") is not None:
        entries.append(seen("nvmlDeviceGetCount", nvml.get("count")))
    for source, key in (("torch.cuda.init()", "init_error"), ("libcuda.so.1", "load_error")):
        value = text(found, key) or text(raw, key)
        if value:
            entries.append(seen(source, value))
    entries += [seen("torch", warning) for warning in words(found, "warnings")]
    return entries


def check_count(facts: Facts) -> Results:
    """Ask whether torch, the driver and NVML speak of the same number of GPUs."""
    say = Say("torch.count")
    found = probe(facts, "torch.cuda")
    skip = skipped(say, found)
    if skip is not None:
        return skip
    raw, nvml = group(found, "raw"), group(found, "nvml")
    torch_count = integer(found, "device_count") or 0
    driver_count, nvml_number = integer(raw, "device_count"), integer(nvml, "count")
    evidence = _evidence(found)
    if driver_count is None:
        if torch_count:
            return say.warn(
                f"torch counts {torch_count} GPU(s) by NVML although CUDA does not come up",
                why="device_count() asks NVML, which answers without CUDA",
                evidence=evidence,
                suspects=("torch.cuda",),
            )
        return say.skip("no-gpu", "no GPU to count")
    if torch_count != driver_count:
        return say.warn(
            f"torch counts {torch_count} GPU(s), the driver gives {driver_count}",
            why="torch asked NVML and read CUDA_VISIBLE_DEVICES in its own way",
            evidence=evidence,
            suspects=("vis.cvd", "torch.cuda"),
        )
    if (nvml_number or 0) > driver_count:
        return _hidden(say, found, f"{driver_count} of {nvml_number}")
    return say.ok(f"torch, driver and NVML agree: {torch_count} GPU(s)", *evidence[2:])


def _hidden(say: Say, found: Mapping[str, Any], how_many: str) -> Results:
    variable = found.get("cuda_visible_devices")
    if variable is not None:
        return say.info(
            f"CUDA gives {how_many} GPUs, by CUDA_VISIBLE_DEVICES",
            seen("CUDA_VISIBLE_DEVICES", variable),
        )
    return say.warn(
        f"CUDA gives {how_many} GPUs",
        why="MIG mode, a GPU the driver gave up, or one whose device node is missing",
        evidence=_evidence(found),
        suspects=("mig.state", "host.gpu.*", "host.nodes", "vis.cvd"),
        confidence="possible",
    )


def check_kernel(facts: Facts) -> Results:
    """Ask whether a kernel's result came back right from each GPU."""

    def judge(say: Say, entry: Mapping[str, Any]) -> Results | None:
        wrong = entry.get("wrong")
        if wrong != 0:
            return say.fail(
                f"a kernel ran and gave {wrong} wrong values of 4096",
                why="the GPU or its memory is damaged: integers have one right answer",
                evidence=[seen("torch.kernel", f"{wrong} wrong")],
                suspects=("hw.ecc", "hw.remap", "hw.xid"),
            )
        return None

    return each_device(
        facts,
        "torch.kernel",
        Say("torch.kernel"),
        judge=judge,
        what="a kernel",
        fine=lambda where: f"a kernel ran and its result was read back {where}",
    )


_CUBIN = re.compile(r"sm_([0-9]+)([0-9])([af]?)")
_PTX = re.compile(r"compute_([0-9]+)([0-9])[af]?")


def code_for(capability: tuple[int, int], flags: Sequence[str]) -> str:
    """Return how code for a GPU is found: ``cubin``, ``ptx`` or ``none``.

    A cubin runs on its own major version at the same minor or a later one; one with the suffix
    ``a`` on exactly its version. PTX is compiled at first use for anything newer.

    Args:
        capability: Major and minor, ``(8, 9)``.
        flags: The wheel's list, ``["sm_80", "sm_90a", "compute_90"]``.
    """
    ptx = False
    for flag in flags:
        if match := _CUBIN.fullmatch(flag):
            built = (int(match[1]), int(match[2]))
            exact = match[3] == "a"
            if built == capability or (
                not exact and built[0] == capability[0] and built[1] < capability[1]
            ):
                return "cubin"
        elif match := _PTX.fullmatch(flag):
            ptx = ptx or (int(match[1]), int(match[2])) <= capability
    return "ptx" if ptx else "none"


def check_arch(facts: Facts) -> Results:
    """Ask whether torch carries code for each GPU that CUDA shows."""
    say = Say("torch.code")
    found = probe(facts, "torch.devices")
    skip = skipped(say, found)
    if skip is not None:
        return skip
    flags, devices = words(found, "arch_flags"), rows(found, "devices")
    if not devices:
        return say.skip("no-gpu", "no GPU to have code for")
    if not flags:
        return say.error("torch does not tell which GPUs it has code for")
    results: list[Results] = []
    for device in devices:
        major, minor = device.get("compute_capability") or (0, 0)
        one = say.of(label(f"cuda:{device.get('index')}"))
        evidence = [
            seen("compute capability", f"{major}.{minor}"),
            seen("torch carries code for", " ".join(flags)),
        ]
        how = code_for((major, minor), flags)
        name = f"{text(device, 'name')} (sm_{major}{minor})"
        if how == "none":
            results.append(
                one.fail(
                    f"torch carries no code for {name}",
                    why="this wheel was not compiled for this GPU; installing it again changes "
                    "nothing",
                    evidence=evidence,
                    suspects=("torch.arch",),
                    fixes=[
                        fix(
                            "image",
                            "choose a wheel that has it",
                            f"gpuenv matrix resolve --gpu sm_{major}{minor}",
                        )
                    ],
                )
            )
        elif how == "ptx":
            results.append(
                one.warn(
                    f"torch has only PTX for {name}: slow at first use",
                    why="the driver compiles every kernel on first use, and needs to be as new as "
                    "the toolkit that made the PTX",
                    evidence=evidence,
                    suspects=("torch.arch",),
                )
            )
    if results:
        return tuple(result for verdict in results for result in verdict)
    return say.ok(f"torch carries code for each GPU ({' '.join(flags)})")


def check_libraries(facts: Facts) -> Results:
    """Ask whether the CUDA libraries in this process are the ones torch came with."""
    say = Say("torch.libs")
    found = probe(facts, "torch.libraries")
    skip = skipped(say, found)
    if skip is not None:
        return skip
    mapped, wheels = group(found, "mapped"), group(found, "wheels")
    own = text(found, "site_packages").rstrip("/") + "/"
    strangers: list[tuple[str, str]] = []
    for library in mapped:
        paths = words(mapped, library)
        family = _WHEEL_OF.get(library, "")
        has_wheel = any(name.startswith(family) for name in wheels) if family else False
        if library not in _DRIVER_LIBRARIES and has_wheel:
            strangers += [(library, path) for path in paths if not path.startswith(own)]
    if strangers:
        names = ", ".join(sorted({library for library, _ in strangers}))
        return say.warn(
            f"not the wheel's own: {names}",
            why="another copy stands in front of the one that torch was tested with, by "
            "LD_LIBRARY_PATH, LD_PRELOAD or an ld.so.conf entry",
            evidence=[seen("/proc/self/maps", path) for _, path in strangers],
            fixes=[
                fix(
                    "container",
                    "start without it",
                    "env -u LD_LIBRARY_PATH -u LD_PRELOAD python ...",
                )
            ],
            suspects=("env.ldpath",),
        )
    loaded = [library for library in mapped if library not in _DRIVER_LIBRARIES]
    if not loaded:
        return say.skip("not-applicable", "torch loaded no CUDA library here")
    where = (
        "the wheel's own" if any(wheels.get(w) for w in wheels if w != "torch") else "the image's"
    )
    folders = sorted({path.rpartition("/")[0] for lib in loaded for path in words(mapped, lib)})
    return say.ok(
        f"{len(loaded)} CUDA libraries loaded, {where}",
        *(seen("/proc/self/maps", folder) for folder in folders),
    )


def cudnn_version(number_: int) -> tuple[int, int, int]:
    """Take cuDNN's version number apart: 92400 is 9.24.0, and up to 8.x 8902 was 8.9.2."""
    if number_ >= 10000:  # noqa: PLR2004 - the macro changed with 9.0
        return number_ // 10000, number_ % 10000 // 100, number_ % 100
    return number_ // 1000, number_ % 1000 // 100, number_ % 100


def check_cudnn(facts: Facts) -> Results:
    """Ask whether cuDNN is the one torch was built with, and whether a convolution is right."""
    say = Say("torch.cudnn")
    found = probe(facts, "torch.cudnn")
    error = text(found, "error")
    if error:
        return failed(say, "cuDNN does not load", error, source="torch.backends.cudnn")
    runtime, compiled = integer(found, "runtime"), found.get("compiled")
    if runtime is not None and isinstance(compiled, (list, tuple)) and compiled:
        loaded, built = cudnn_version(runtime), tuple(int(part) for part in compiled)
        if loaded[0] != built[0] or loaded < built:
            return say.fail(
                f"cuDNN {'.'.join(map(str, loaded))} was loaded, torch was built with "
                f"{'.'.join(map(str, built))}",
                why="another cuDNN stands in front of the wheel's own",
                evidence=[seen("torch.backends.cudnn.version()", runtime)],
                fixes=[fix("container", "start without it", "env -u LD_LIBRARY_PATH python ...")],
                suspects=("torch.libs", "env.ldpath"),
            )
    version = "" if runtime is None else f" (cuDNN {'.'.join(map(str, cudnn_version(runtime)))})"

    def judge(one: Say, entry: Mapping[str, Any]) -> Results | None:
        if entry.get("wrong") != 0:
            return one.fail(
                f"a convolution of whole numbers gave {entry.get('wrong')} wrong values",
                why="damaged hardware, or a cuDNN that does not fit",
                evidence=[seen("torch.cudnn", f"{entry.get('wrong')} wrong")],
                suspects=("torch.libs", "hw.ecc", "hw.xid"),
            )
        return None

    return each_device(
        facts,
        "torch.cudnn",
        say,
        judge=judge,
        what="a convolution",
        fine=lambda where: f"a convolution and its gradients are right {where}{version}",
    )


def check_nccl_version(facts: Facts) -> Results:
    """Ask whether the wheel's NCCL, the loaded file and torch agree on the version."""
    say = Say("torch.nccl.which")
    found = probe(facts, "torch.nccl-versions")
    skip = skipped(say, found)
    if skip is not None:
        return skip
    error = text(found, "error")
    if error:
        return failed(say, "NCCL does not load", error, source="torch.cuda.nccl.version()")
    wheels = group(found, "wheels")
    versions = {
        "torch.cuda.nccl.version()": text(found, "torch"),
        "loaded file": text(found, "file"),
        **{f"wheel {name}": str(version) for name, version in wheels.items()},
    }
    told = {source: version for source, version in versions.items() if version}
    evidence = [seen(source, version) for source, version in told.items()]
    evidence += [seen("/proc/self/maps", path) for path in words(found, "paths")]
    different = {".".join(version.split(".")[:3]) for version in told.values()}
    if len(different) > 1:
        return say.warn(
            f"different NCCL versions: {', '.join(sorted(different))}",
            why="a system NCCL or a second NCCL wheel took the place of the one torch asks for",
            evidence=evidence,
            fixes=[
                fix(
                    "image",
                    "remove the system's libnccl, or reinstall the wheel",
                    "apt-get purge -y libnccl2",
                )
            ],
            suspects=("torch.nccl.dup", "env.ldpath"),
        )
    if not different:
        return say.skip("not-applicable", "torch tells no NCCL version")
    return say.ok(f"NCCL {different.pop()}, the same by {len(told)} sources", *evidence)


CHECKS = (
    Check(
        id="torch.import",
        title="torch can be imported",
        level=Level.QUICK,
        run=check_import,
        needs=("torch.import",),
        explanation="""\
Imports torch in a process of its own, in the environment in question. When the import fails, the
loader's text names the library or symbol that is missing; the usual cause is a library of another
version in front of the wheel's own (LD_LIBRARY_PATH), two CUDA families of one wheel (cu12 and
cu13) in one environment, or a file system mounted noexec.""",
    ),
    Check(
        id="torch.cuda",
        title="CUDA comes up",
        level=Level.QUICK,
        run=check_cuda,
        needs=("torch.cuda",),
        uses=("host.nvml", "host.pci"),
        after=("torch.import",),
        provides=("gpu",),
        explanation="""\
Calls cuInit in libcuda.so.1 and then torch.cuda.init(), and shows both answers. torch rewrites
the driver's answer and says "driver too old" for every failure when the driver's CUDA is older
than the wheel's, so the driver's own code is the better evidence.

The codes: 3 the driver cannot start, 34 a stub library was loaded, 46 the GPU is held by another
process, 100 no device, 802 the NVSwitch fabric is not ready, 803 libcuda and kernel module
differ, 804 a forward-compatibility library on a GPU that does not allow it, 999 mostly the node
nvidia-uvm. 802, 803, 804 and 999 have several causes each; the checks of the static level tell
them apart.

torch.cuda.is_available() alone proves nothing: with PYTORCH_NVML_BASED_CUDA_CHECK=1 it is True as
soon as NVML answers. torch.kernel is the proof.""",
    ),
    Check(
        id="torch.count",
        title="The same number of GPUs everywhere",
        level=Level.QUICK,
        run=check_count,
        needs=("torch.cuda",),
        after=("torch.import",),
        explanation="""\
Compares torch.cuda.device_count(), cuDeviceGetCount and NVML's count. device_count() asks NVML,
so it can say 2 where CUDA does not come up at all. CUDA_VISIBLE_DEVICES hides GPUs from CUDA and
not from NVML, and its first wrong entry silently cuts the list.""",
    ),
    Check(
        id="torch.kernel",
        title="A kernel runs on each GPU",
        level=Level.QUICK,
        run=check_kernel,
        needs=("torch.kernel",),
        after=("torch.cuda",),
        provides=("gpu",),
        explanation="""\
Launches a small integer computation on each GPU, copies the result back and compares it. This is
the only proof that a GPU computes: counts and is_available() come from libraries that answer
while nothing works.

"no kernel image" means that the wheel has no code for this GPU (torch.code), "busy or
unavailable" an exclusive compute mode (mode.compute), "out of memory" that others hold the memory
(mem.free).""",
    ),
    Check(
        id="torch.code",
        title="Code for each GPU",
        level=Level.QUICK,
        run=check_arch,
        needs=("torch.devices",),
        after=("torch.cuda",),
        explanation="""\
Compares the list of architectures inside the installed torch with each GPU that CUDA shows. Code
for sm_86 runs on 8.6 and 8.9 but not on 9.0 or 8.0; PTX runs on anything newer and is compiled at
first use. Wheels of recent releases carry no PTX, so a GPU newer than the wheel needs a newer
wheel, and one that was dropped (V100 after torch 2.14) an older one. Installing the same wheel
again changes nothing.""",
    ),
    Check(
        id="torch.libs",
        title="The libraries torch came with",
        level=Level.QUICK,
        run=check_libraries,
        needs=("torch.libraries",),
        after=("torch.import",),
        explanation="""\
Reads the memory map of a process that has used torch, and so knows which files cudart, cuBLAS,
cuDNN, NCCL and nvJitLink were really loaded from. Where a wheel brings its own copy and another
file was loaded, results, speed and stability are anybody's guess.

LD_LIBRARY_PATH is the usual reason; recent wheels find their own libraries without it. Images
whose torch has no such wheels (NVIDIA's own containers) use the image's libraries rightly.""",
    ),
    Check(
        id="torch.cudnn",
        title="cuDNN fits and convolves",
        level=Level.QUICK,
        run=check_cudnn,
        needs=("torch.cudnn",),
        after=("torch.import", "torch.kernel"),
        explanation="""\
Compares the cuDNN that torch was built with and the one that was loaded, and runs a small
convolution forward and backward on each device. Data are whole numbers; results are compared
after rounding to the nearest one, because fast algorithms may round on the way. cuDNN loads its
parts late, which is why a mere version query would not notice a missing one.""",
    ),
    Check(
        id="torch.nccl.which",
        title="One NCCL version",
        level=Level.QUICK,
        run=check_nccl_version,
        needs=("torch.nccl-versions",),
        after=("torch.import",),
        explanation="""\
Asks three sources: the metadata of the NCCL wheel, the file that was loaded (ncclGetVersion), and
torch. A system package libnccl2 or a second NCCL wheel can take the place of the one torch asks
for; a symbol is then missing, or collectives behave like another release's.""",
    ),
)
