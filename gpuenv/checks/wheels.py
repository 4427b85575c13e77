"""The torch that is installed, the driver it meets, and the set of CUDA wheels around it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuenv.checks.model import Check, Level
from gpuenv.checks.nvml import cuda_name
from gpuenv.checks.say import Results, Say, fix, group, integer, probe, rows, seen, text, words
from gpuenv.checks.scene import (
    CU_NO_DEVICE,
    driver_cuda,
    driver_release,
    gpu_expected,
    in_container,
    is_wsl,
    nvml_gpus,
    torch_cuda,
    uses_compat,
    version_key,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuenv.checks.model import Evidence, Facts, Fix, Side

# The oldest driver of each CUDA family, by minor-version compatibility. Source: NVIDIA, "CUDA
# Compatibility", table "CUDA Toolkit and minimum required driver version".
DRIVER_FLOORS = {13: "580.65.06", 12: "525.60.13", 11: "450.80.02"}
# The driver API's number for an old driver, and what cuDriverGetVersion-free code still says.
_STUB_LIBRARY = 34

_SUSPECTS: dict[int, tuple[str, ...]] = {
    3: ("host.hmm", "host.driver.module", "host.driver.match", "host.nodes", "ctk.libs"),
    34: ("env.ldpath",),
    35: ("drv.cuda",),
    46: ("mode.compute", "mig.state", "host.gpu.lost"),
    100: (
        "vis.cvd",
        "mig.state",
        "cgroup.lost",
        "host.nodes",
        "ctr.rootless",
        "ctk.libs",
        "host.gpu.lost",
        "host.driver.bound",
        "host.rebar",
        "host.driver.module",
        "vis.nvd",
    ),
    101: ("vis.cvd", "mode.compute"),
    802: ("host.fabricmanager", "host.driver.twolibs", "host.hmm", "cc.mode", "host.driver.match"),
    803: ("host.driver.twolibs", "host.driver.match", "drv.compat"),
    804: ("drv.compat", "host.driver.match"),
    999: (
        "ctk.uvm",
        "host.uvm",
        "cgroup.lost",
        "host.nodes",
        "host.driver.twolibs",
        "host.driver.match",
        "host.hmm",
        "host.fabricmanager",
    ),
}
_ANY_CAUSE = (
    "env.ldpath",
    "host.driver.twolibs",
    "host.driver.match",
    "drv.compat",
    "host.gpu.lost",
    "hw.recovery",
    "ctr.rootless",
    "cgroup.lost",
    "ctk.uvm",
    "host.uvm",
    "host.nodes",
    "ctk.libs",
    "host.fabricmanager",
    "host.hmm",
    "host.secureboot",
    "host.driver.bound",
    "host.rebar",
    "host.driver.module",
    "mig.state",
    "vis.cvd",
    "mode.compute",
    "wsl",
    "ctr.gpu",
)
_WORDS = {
    3: "the driver cannot be initialised",
    34: "a stub library for the linker was loaded instead of the driver's",
    46: "a GPU is busy, or reserved for another process",
    100: "CUDA sees no GPU",
    101: "a GPU number that does not exist",
    802: "the system is not ready: an NVSwitch fabric or confidential computing is not set up",
    803: "libcuda and the kernel module are of different releases",
    804: "a forward-compatibility libcuda on a GPU it does not support",
    999: "unknown error: mostly a missing or closed /dev/nvidia-uvm",
}


def check_cuinit(facts: Facts) -> Results:
    """Ask the driver library itself whether CUDA starts and how many GPUs it counts."""
    say = Say("drv.cuinit")
    cuda = probe(facts, "host.cuda")
    load = group(cuda, "load")
    expected = gpu_expected(facts)
    if load.get("error") is not None:
        if not expected:
            return say.skip("no-gpu", "no CUDA driver library, and no GPU that would need one")
        return say.fail(
            "libcuda.so.1 cannot be loaded: CUDA does not exist here",
            why="the driver's user-space part is missing or not where the loader looks",
            evidence=[seen("dlopen libcuda.so.1", load.get("error"))],
            fixes=[_driver_fix(facts)],
            suspects=_ANY_CAUSE,
        )
    code, count = integer(cuda, "cu_init"), integer(cuda, "count")
    if code is None:
        return say.error("libcuda.so.1 was loaded and cuInit gave no answer")
    evidence = [seen("cuInit (raw)", cuda_name(code)), seen("libcuda.so.1", load.get("real"))]
    if code == 0 and count:
        release = text(load, "release") or driver_release(facts)
        return say.ok(
            f"CUDA starts and counts {count} GPU{'s' if count > 1 else ''}",
            *evidence,
            seen("driver", release),
        )
    if not expected and code in (CU_NO_DEVICE, 0):
        return say.skip("no-gpu", "CUDA's driver library is here and there is no GPU")
    code = CU_NO_DEVICE if code == 0 else code
    evidence += _differential(cuda)
    return say.fail(
        f"CUDA does not start: {_WORDS.get(code, 'cuInit failed')} ({code})",
        why="the number comes from the driver library itself; torch's text may hide or rename it",
        evidence=evidence,
        fixes=[_driver_fix(facts)] if code in (3, 999) else (),
        suspects=(*_SUSPECTS.get(code, ()), *_ANY_CAUSE),
        confidence="possible",
    )


def _differential(cuda: Mapping[str, object]) -> list[Evidence]:
    found = []
    again = group(cuda, "again")
    for change in again:
        answer = group(again, change)
        code = integer(answer, "cu_init")
        if code is not None:
            found.append(seen(f"cuInit {change}", f"{cuda_name(code)}, {answer.get('count')} GPUs"))
    return found


def _driver_fix(facts: Facts) -> Fix:
    if in_container(facts):
        return fix("container", "start it with the GPU", "docker run --gpus all ...")
    return fix("host", "look at the driver", "dmesg | grep -E 'NVRM|nvidia'")


def works_without(facts: Facts, variable: str) -> bool:
    """Say whether CUDA started once this variable was taken away."""
    answer = group(group(probe(facts, "host.cuda"), "again"), f"without {variable}")
    return integer(answer, "cu_init") == 0 and (integer(answer, "count") or 0) > 0


def check_present(facts: Facts) -> Results:
    """Say which torch is installed, and warn when there are two."""
    say = Say("torch.present")
    static = probe(facts, "torch.static")
    copies = rows(static, "copies")
    if not static.get("present"):
        return say.skip("no-torch", "torch is not installed for this Python")
    version = text(static, "version")
    if not version:
        return say.fail(
            "torch is there and its version.py cannot be read",
            why="the installation was cut short or files were removed",
            evidence=[
                seen(text(static, "path") + "/version.py", static.get("version_error", "missing"))
            ],
            fixes=[fix(_side(facts), "install it anew", "pip install --force-reinstall torch")],
        )
    if len(copies) > 1:
        return say.warn(
            f"{len(copies)} copies on the path; {version} from {text(copies[0], 'path')} is taken",
            why="often one in the user's ~/.local and one in the environment",
            evidence=[seen(text(copy, "path"), copy.get("version")) for copy in copies],
            fixes=[
                fix(_side(facts), "remove the other", "pip uninstall torch"),
                fix(_side(facts), "or keep ~/.local out", "export PYTHONNOUSERSITE=1"),
            ],
        )
    return say.ok(version, seen("torch/version.py", version), seen("path", text(static, "path")))


def _side(facts: Facts) -> Side:
    return "image" if in_container(facts) else "project"


def check_cpu_build(facts: Facts) -> Results:
    """Find a CPU build of torch where a GPU is waiting."""
    say = Say("torch.cpu_build")
    static = probe(facts, "torch.static")
    version = text(static, "version")
    if not static.get("present") or not version:
        return say.skip("no-torch", "torch is not installed for this Python")
    if torch_cuda(facts) is not None:
        return say.ok(f"built for CUDA {text(static, 'cuda')}")
    if static.get("hip"):
        return say.info(f"{version} is built for AMD GPUs (ROCm)")
    if not gpu_expected(facts):
        return say.info(f"{version} is a CPU build, and there is no GPU here")
    evidence = [seen("torch.version.cuda", "None"), seen("torch.__version__", version)]
    if static.get("cuda_library") is False:
        evidence.append(seen("torch/lib/libtorch_cuda.so", "not there"))
    return say.fail(
        f"torch {version} is a CPU build and this place has a GPU",
        why="the wheel came from an index without CUDA builds, or a requirement replaced it",
        evidence=evidence,
        fixes=[_wheel_fix(facts)],
        alternatives=[
            f"{row.get('by')} asks for {row.get('needs')}" for row in rows(static, "conflicts")
        ],
    )


def _wheel_fix(facts: Facts) -> Fix:
    """Name the wheel that fits this driver and these GPUs, as the matrix sees it."""
    fits = group(probe(facts, "matrix.row"), "fits")
    if fits.get("torch") and fits.get("torch_variant"):
        variant = fits["torch_variant"]
        return fix(
            _side(facts),
            f"install torch {fits['torch']} for {variant}, the newest this driver and GPU take",
            f"pip install torch=={fits['torch']} --index-url "
            f"https://download.pytorch.org/whl/{variant}",
        )
    release = driver_release(facts)
    asked = f" --driver {release}" if release else ""
    return fix(_side(facts), "find the wheel that fits", f"gpuenv matrix resolve{asked}")


def check_swapped(facts: Facts) -> Results:
    """Hold what is installed against what the image was built with."""
    say = Say("torch.swapped")
    static = probe(facts, "torch.static")
    locked, dists = group(static, "locked"), group(static, "dists")
    if not locked:
        return say.skip("not-applicable", "not an image of gpuenv: no lock to compare with")
    changed = {
        name: (want, str(dists.get(name, "missing")))
        for name, want in locked.items()
        if not _same_version(str(want), str(dists.get(name, "missing")))
    }
    if not changed:
        return say.ok(f"{len(locked)} locked packages are as the image was built")
    torch = changed.get("torch")
    evidence = [
        seen(name, f"locked {want}, found {have}")
        for name, (want, have) in list(changed.items())[:8]
    ]
    if torch:
        return say.fail(
            f"torch was changed after the build: {torch[0]} became {torch[1]}",
            why="a later pip install replaced it, past the image's constraints",
            evidence=evidence,
            fixes=[
                fix("image", "put the requirement into gpuenv.toml and build anew", "gpuenv build"),
                fix(
                    "image",
                    "or bring it back",
                    "pip install --constraint /opt/gpuenv/constraints.txt torch",
                ),
            ],
        )
    return say.warn(
        f"{len(changed)} of {len(locked)} locked packages were changed after the build",
        evidence=evidence,
        fixes=[fix("image", "build the image anew", "gpuenv build")],
    )


def _same_version(want: str, have: str) -> bool:
    """Compare without the local tag where only one side has it: metadata may leave it out."""
    if "+" in want and "+" in have:
        return want == have
    return want.partition("+")[0] == have.partition("+")[0]


def check_driver_cuda(facts: Facts) -> Results:
    """Hold the CUDA version of torch against what the driver supports."""
    say = Say("drv.cuda")
    wheel, have = torch_cuda(facts), driver_cuda(facts)
    if wheel is None:
        present = probe(facts, "torch.static").get("present")
        return say.skip(
            "not-applicable" if present else "no-torch",
            "torch is a CPU build" if present else "torch is not installed for this Python",
        )
    if have is None:
        return say.skip("no-gpu", "no driver to compare with")
    release = driver_release(facts)
    evidence = [
        seen("cuDriverGetVersion", f"{have[0]}.{have[1]}"),
        seen("torch.version.cuda", f"{wheel[0]}.{wheel[1]}"),
        seen("driver", release or "unknown"),
    ]
    if have >= wheel:
        return say.ok(
            f"the driver serves CUDA {have[0]}.{have[1]}, torch wants {wheel[0]}.{wheel[1]}",
            *evidence,
        )
    floor = DRIVER_FLOORS.get(wheel[0], "")
    if have[0] == wheel[0] and (
        not release or not floor or version_key(release) >= version_key(floor)
    ):
        return say.info(
            f"CUDA {wheel[0]}.{wheel[1]} on a driver of {have[0]}.{have[1]}: runs by minor-version "
            "compatibility",
            *evidence,
            why="compiled kernels run; code that must be compiled at run time from PTX, and a few "
            "new features, need the newer driver",
        )
    return say.fail(
        f"the driver serves CUDA {have[0]}.{have[1]} at most, torch was built for "
        f"{wheel[0]}.{wheel[1]}",
        why=f"CUDA {wheel[0]}.x needs driver {floor or 'of its own line'} or newer; torch says: "
        "the NVIDIA driver on your system is too old",
        evidence=evidence,
        fixes=[
            _wheel_fix(facts),
            fix("host", f"or update the driver to {floor or 'a newer line'} or newer"),
        ],
    )


def check_compat(facts: Facts) -> Results:
    """Look at a forward-compatibility libcuda: is it in use, and may it be."""
    say = Say("drv.compat")
    cuda = probe(facts, "host.cuda")
    libs = probe(facts, "host.libs")
    if group(cuda, "load").get("error") is not None:
        return say.skip("no-gpu", "no libcuda is loaded")
    if not uses_compat(facts):
        lines = [row for row in rows(libs, "loader_dirs") if "/compat" in text(row, "dir")]
        if lines:
            return say.info(
                f"a compat folder is in {text(lines[0], 'file')}, another libcuda is taken"
            )
        return say.ok("the driver's own libcuda is in use")
    load = group(cuda, "load")
    path, release = text(load, "path"), text(load, "release")
    module, code = driver_release(facts), integer(cuda, "cu_init")
    consumer = [text(gpu, "name") for gpu in nvml_gpus(facts) if "GeForce" in text(gpu, "name")]
    evidence = [
        seen("loaded libcuda.so.1", path),
        seen("its release", release),
        seen("kernel module", module or "unknown"),
        seen("cuInit (raw)", cuda_name(code) if code is not None else "no answer"),
    ]
    fixes = [
        fix(
            "image",
            "take it out of the image",
            "apt-get purge 'cuda-compat-*' && rm -f /etc/ld.so.conf.d/*compat* && ldconfig",
        ),
        fix("container", "or out of the path: LD_LIBRARY_PATH must not name .../compat"),
    ]
    if code == 804 or consumer:  # noqa: PLR2004 - CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE
        return say.fail(
            f"a forward-compatibility libcuda on {consumer[0] if consumer else 'this GPU'}, which "
            "does not support it",
            why="forward compatibility is for data-center GPUs",
            evidence=evidence,
            fixes=fixes,
        )
    if module and release and version_key(release) < version_key(module):
        return say.fail(
            f"a forward-compatibility libcuda of {release} hides the driver's newer {module}",
            why="the compat package of an old image; the host's driver has moved past it",
            evidence=evidence,
            fixes=fixes,
        )
    if code:
        return say.fail(
            f"a forward-compatibility libcuda is loaded and CUDA does not start ({code})",
            evidence=evidence,
            fixes=fixes,
            confidence="likely",
        )
    return say.info(f"forward compatibility: libcuda {release} on driver {module}", *evidence)


def check_arch(facts: Facts) -> Results:
    """Ask whether the wheel has compiled code for each GPU, before anything is imported."""
    say = Say("torch.arch")
    capabilities = {
        f"GPU {gpu.get('index', gpu.get('ordinal'))}": text(gpu, "capability")
        for gpu in (nvml_gpus(facts) or rows(probe(facts, "host.cuda"), "gpus"))
        if text(gpu, "capability")
    }
    if torch_cuda(facts) is None:
        return say.skip("no-torch", "no CUDA build of torch")
    if not capabilities:
        return say.skip("no-gpu", "no GPU whose compute capability is known")
    arch_list, source = _arch_list(facts)
    if not arch_list:
        return say.skip("not-probed", "the architectures of this torch are not known")
    results: list[Results] = []
    for label, capability in capabilities.items():
        major, _, minor = capability.partition(".")
        device = (int(major), int(minor or 0))
        verdict = _serves(arch_list, device)
        one, sm = say.of(label), f"sm_{device[0]}{device[1]}"
        evidence = [seen("compute capability", capability), seen(source, " ".join(arch_list))]
        if verdict == "ptx":
            results.append(
                one.warn(
                    f"torch has no compiled code for {sm}, only PTX: the first run compiles it",
                    evidence=evidence,
                    fixes=[_wheel_fix(facts)],
                )
            )
        elif verdict == "none":
            results.append(
                one.fail(
                    f"torch has no code for {sm}",
                    why="no kernel image is available for execution on the device",
                    evidence=evidence,
                    fixes=[_wheel_fix(facts)],
                )
            )
    if results:
        return tuple(result for found in results for result in found)
    named = ", ".join(sorted(set(capabilities.values())))
    return say.ok(f"compiled code for {named}", seen(source, " ".join(arch_list)))


def _arch_list(facts: Facts) -> tuple[tuple[str, ...], str]:
    """Return the architectures by torch's own word where it was imported, else by the matrix."""
    own = words(probe(facts, "torch.cuda"), "arch_list")
    if own:
        return own, "torch.cuda.get_arch_list()"
    return words(probe(facts, "matrix.row"), "arch_list"), "compatibility matrix"


def _serves(arch_list: tuple[str, ...], device: tuple[int, int]) -> str:
    """Return ``binary``, ``ptx`` or ``none``.

    sm_XY runs on the same major with a minor of Y or more; compute_XY (PTX) on anything newer. A
    suffix a or f ties code to its own architecture or family.
    """
    ptx = False
    for entry in arch_list:
        kind, _, digits = entry.partition("_")
        suffix = digits[-1:] if digits[-1:] in ("a", "f") else ""
        digits = digits.rstrip("af")
        if not digits.isdigit():
            continue
        have = (int(digits[:-1]), int(digits[-1]))
        if kind == "sm" and have[0] == device[0] and have[1] <= device[1]:
            if suffix != "a" or have == device:
                return "binary"
        elif kind == "compute" and have <= device and not suffix:
            ptx = True
    return "ptx" if ptx else "none"


def check_duplicates(facts: Facts) -> Results:
    """Find one library family installed for two CUDA versions, the files on top of one another."""
    say = Say("torch.nccl.dup")
    static = probe(facts, "torch.static")
    if not static.get("present"):
        return say.skip("no-torch", "torch is not installed for this Python")
    overlaps = rows(static, "overlaps")
    families = group(static, "families")
    if overlaps:
        first = overlaps[0]
        dists = ", ".join(words(first, "dists"))
        owner = first.get("owner")
        wheel = torch_cuda(facts)
        wrong = [
            name for name in words(first, "dists") if wheel and not name.endswith(f"-cu{wheel[0]}")
        ]
        both = words(first, "dists")
        right = [name for name in both if name not in wrong]
        return say.fail(
            f"{dists} are both installed and own the same file",
            why="whichever was installed last has overwritten the other's library: undefined "
            "symbol, or a version nobody asked for",
            evidence=[
                seen(text(row, "path"), f"claimed by {', '.join(words(row, 'dists'))}")
                for row in overlaps[:4]
            ]
            + [seen("the file lying there is of", owner or "unknown origin")],
            fixes=[
                fix(
                    _side(facts),
                    "remove the wrong one and install the right one anew",
                    f"pip uninstall --yes {' '.join(wrong or both)} && "
                    f"pip install --force-reinstall --no-deps {' '.join(right or both)}",
                )
            ],
        )
    if families:
        named = "; ".join(", ".join(words(families, family)) for family in families)
        return say.info(f"for two CUDA versions, without files in common: {named[:120]}")
    return say.ok("one wheel of each CUDA library")


def check_conflicts(facts: Facts) -> Results:
    """Find requirements of torch and its companions that are not met."""
    say = Say("pip.conflicts")
    static = probe(facts, "torch.static")
    if not static.get("present"):
        return say.skip("no-torch", "torch is not installed for this Python")
    conflicts = rows(static, "conflicts")
    if not conflicts:
        return say.ok("torch's own requirements are met")
    lines = [
        f"{row.get('by')} needs {row.get('needs')}, "
        + (f"{row.get('found')} is installed" if row.get("found") else "which is missing")
        for row in conflicts
    ]
    missing = [row for row in conflicts if row.get("by") == "torch" and not row.get("found")]
    severe = missing or [row for row in conflicts if str(row.get("needs")).startswith("torch")]
    say_it = say.fail if severe else say.warn
    return say_it(
        lines[0] + (f" (and {len(lines) - 1} more)" if len(lines) > 1 else ""),
        why="a later installation changed the set that torch was built and tested with",
        evidence=[seen("metadata", line) for line in lines[:6]],
        fixes=[
            fix(
                _side(facts),
                "bring the set back",
                "pip install --force-reinstall " + f"torch=={text(static, 'version')}",
            )
        ],
    )


def check_library_path(facts: Facts) -> Results:
    """Look at LD_LIBRARY_PATH and LD_PRELOAD: stubs, and whether CUDA starts without them."""
    say = Say("env.ldpath")
    libs = probe(facts, "host.libs")
    env = group(probe(facts, "host.env"), "variables")
    value = str(env.get("LD_LIBRARY_PATH", ""))
    stubs = words(libs, "stub_dirs")
    code = integer(probe(facts, "host.cuda"), "cu_init")
    unset = fix(
        "container" if in_container(facts) else "host",
        "take it out of the variable",
        "unset LD_LIBRARY_PATH",
    )
    loaded = text(group(probe(facts, "host.cuda"), "load"), "path")
    if stubs or "/stubs/" in loaded:
        return say.fail(
            f"LD_LIBRARY_PATH holds a folder of link-time stubs: {(stubs or (loaded,))[0]}",
            why="a stub has the names of the driver's functions and none of their work; it is for "
            "the linker only",
            evidence=[
                seen("LD_LIBRARY_PATH", value or ":".join(stubs)),
                *([seen("cuInit (raw)", cuda_name(code))] if code is not None else []),
            ],
            fixes=[unset],
            confidence="certain" if code == _STUB_LIBRARY else "likely",
        )
    if code and works_without(facts, "LD_LIBRARY_PATH"):
        return say.fail(
            "CUDA starts without LD_LIBRARY_PATH and not with it",
            why=f"it leads to {loaded or 'another libcuda'} instead of the driver's",
            evidence=[
                seen("LD_LIBRARY_PATH", value),
                seen("cuInit (raw)", cuda_name(code)),
                seen("cuInit without LD_LIBRARY_PATH", cuda_name(0)),
            ],
            fixes=[unset],
        )
    parts = [f"{name} is set" for name in ("LD_LIBRARY_PATH", "LD_PRELOAD") if env.get(name)]
    if parts:
        return say.info(", ".join(parts) + "; no fault by itself")
    return say.ok("not set")


def check_row(facts: Facts) -> Results:
    """Say whether the matrix knows this build of torch, and what it says of it."""
    say = Say("torch.row")
    row = probe(facts, "matrix.row")
    version = text(probe(facts, "torch.static"), "version")
    if not version:
        return say.skip("no-torch", "torch is not installed for this Python")
    if not row.get("known"):
        return say.info(f"{version} is not in the compatibility matrix")
    floor = text(row, "min_driver")
    release = driver_release(facts)
    if floor and release and not is_wsl(facts) and version_key(release) < version_key(floor):
        return say.info(f"the matrix asks for driver {floor}, {release} runs: see drv.cuda")
    return say.ok(
        f"{version} is a row of the matrix" + (f", driver {floor} and up" if floor else "")
    )


CHECKS = (
    Check(
        id="drv.compat",
        title="Forward-compatibility libcuda",
        level=Level.STATIC,
        run=check_compat,
        needs=("host.cuda",),
        uses=("host.libs", "host.nvml", "host.driver"),
        explanation="""\
The packages cuda-compat-* bring a newer libcuda for an older kernel module. It works on
data-center GPUs only; elsewhere CUDA refuses with 804. A compat library older than the host's
driver hides the better one. Whether it is in use shows the path of the mapped file, not the
presence of a package.""",
    ),
    Check(
        id="env.ldpath",
        title="LD_LIBRARY_PATH and LD_PRELOAD",
        level=Level.STATIC,
        run=check_library_path,
        needs=("host.env",),
        uses=("host.libs", "host.cuda"),
        explanation="""\
Set, it is no fault: wheels find their own libraries by RPATH. It is one when it leads to the
toolkit's stubs (cuInit 34), or when CUDA starts without it and not with it, which is tried.""",
    ),
    Check(
        id="drv.cuinit",
        title="CUDA starts (raw cuInit)",
        level=Level.STATIC,
        run=check_cuinit,
        needs=("host.cuda",),
        uses=("host.nodes", "host.nvml", "host.pci", "host.machine"),
        provides=("gpu", "cuda"),
        explanation="""\
Calls cuInit of libcuda.so.1 directly. Its code is better evidence than torch's text: with an
old driver torch prints "driver too old" for every code, 802 and 804 included, and with working
NVML its device count says 2 where nothing works. Each code has several causes; the findings
above this one tell which.""",
    ),
    Check(
        id="drv.cuda",
        title="Driver new enough for torch",
        level=Level.STATIC,
        run=check_driver_cuda,
        needs=("torch.static",),
        uses=("host.cuda", "host.nvml", "host.driver", "matrix.row"),
        explanation="""\
torch carries its CUDA; the driver must support its major version: 13.x needs 580.65.06, 12.x
needs 525.60.13, 11.x needs 450.80.02. A lower minor of the same major works (minor-version
compatibility). The version in nvidia-smi's corner is this driver's highest, not an installed
toolkit.""",
    ),
    Check(
        id="torch.present",
        title="torch installed",
        level=Level.STATIC,
        run=check_present,
        needs=("torch.static",),
        provides=("torch",),
        explanation="Reads torch/version.py without importing torch, and looks for second copies.",
    ),
    Check(
        id="torch.cpu_build",
        title="CUDA build of torch",
        level=Level.STATIC,
        run=check_cpu_build,
        needs=("torch.static",),
        uses=("host.pci", "host.nodes", "host.nvml", "matrix.row"),
        explanation="""\
A CPU build says "Torch not compiled with CUDA enabled". It gets in by an index without CUDA
builds, or by a requirement that pip resolved to another torch.""",
    ),
    Check(
        id="torch.swapped",
        title="torch as the image was built",
        level=Level.STATIC,
        run=check_swapped,
        needs=("torch.static",),
        explanation="""\
An image of gpuenv carries the versions it was resolved to. A pip install without constraints
can replace torch and leave its CUDA libraries behind.""",
    ),
    Check(
        id="torch.row",
        title="torch in the matrix",
        level=Level.STATIC,
        run=check_row,
        needs=("torch.static", "matrix.row"),
        uses=("host.driver",),
        explanation="Whether the compatibility matrix of gpuenv knows this version and variant.",
    ),
    Check(
        id="torch.arch",
        title="Compiled code for each GPU",
        level=Level.STATIC,
        run=check_arch,
        needs=("torch.static",),
        uses=("host.nvml", "host.cuda", "torch.cuda", "matrix.row"),
        explanation="""\
A wheel holds machine code for certain architectures. sm_86 runs on 8.6 and 8.9, not on 9.0; PTX
(compute_XY) runs on anything newer after a slow first compilation. Recent wheels hold no PTX.
sm_100 does not run on 11.0. V100 (7.0) is served by cu126 wheels up to torch 2.14.1, RTX 50
(12.0) needs cu128 or newer.""",
    ),
    Check(
        id="torch.nccl.dup",
        title="One wheel per CUDA library",
        level=Level.STATIC,
        run=check_duplicates,
        needs=("torch.static",),
        explanation="""\
nvidia-nccl-cu12 and nvidia-nccl-cu13 install to the same folder. The second overwrites the
first's library and pip notices nothing; removing one then removes the other's file.""",
    ),
    Check(
        id="pip.conflicts",
        title="torch's requirements met",
        level=Level.STATIC,
        run=check_conflicts,
        needs=("torch.static",),
        explanation="""\
torch pins the CUDA libraries it was built with, and torchvision pins torch. Requirements behind
markers that cannot be decided here are passed over.""",
    ),
)
