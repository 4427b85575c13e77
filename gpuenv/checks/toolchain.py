"""What torch.compile and extension builds need on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuenv.checks.model import Check, Level
from gpuenv.checks.say import (
    Results,
    Say,
    fix,
    group,
    in_mib,
    integer,
    probe,
    rows,
    seen,
    text,
    words,
)
from gpuenv.checks.scene import gpu_expected, in_container, nvml_gpus, torch_cuda

if TYPE_CHECKING:
    from gpuenv.checks.model import Facts, Fix

# The oldest ptxas that knows an architecture. Source: CUDA release notes, "new architectures".
_PTXAS_FOR = {
    (8, 9): (11, 8),
    (9, 0): (11, 8),
    (10, 0): (12, 8),
    (12, 0): (12, 8),
    (10, 3): (12, 9),
    (12, 1): (12, 9),
    (11, 0): (13, 0),
}
_SPACE_FLOOR = 512 << 20


def _declared(facts: Facts) -> bool:
    return "compile" in words(facts.asked, "require")


def _torch_here(facts: Facts) -> bool:
    return bool(probe(facts, "torch.static").get("present"))


def _apt(facts: Facts, *packages: str) -> Fix:
    side = "image" if in_container(facts) else "host"
    return fix(
        side,  # type: ignore[arg-type]
        "install " + " and ".join(packages),
        f"apt-get install -y --no-install-recommends {' '.join(packages)}",
    )


def check_compilers(facts: Facts) -> Results:
    """Ask for a C and a C++ compiler, by the variables and names Triton and Inductor use."""
    say = Say("cc.gcc")
    toolchain = probe(facts, "host.toolchain")
    if not _torch_here(facts):
        return say.skip("no-torch", "torch is not installed for this Python")
    missing = []
    for key, what in (("cc", "C"), ("cxx", "C++")):
        if not text(group(toolchain, key), "path"):
            missing.append((what, text(group(toolchain, key), "command")))
    if not missing:
        return say.ok(
            ", ".join(text(group(toolchain, key), "command") for key in ("cc", "cxx")),
            *(seen(key, text(group(toolchain, key), "path")) for key in ("cc", "cxx")),
        )
    variables = {"C": "CC", "C++": "CXX"}
    named = [f"{variables[what]}={command}" for what, command in missing if command]
    worst = say.fail if _declared(facts) or named else say.warn
    kinds = " and ".join(what for what, _ in missing)
    return worst(
        f"no {kinds} compiler" + (f": {', '.join(named)} is not there" if named else ""),
        why="torch.compile builds C and C++ files: Failed to find C compiler, No working C++ "
        "compiler found",
        evidence=[seen("PATH", "no gcc, clang, cc" if not named else ", ".join(named))],
        fixes=[_apt(facts, "gcc", "g++")],
    )


def check_header(facts: Facts) -> Results:
    """Ask for Python.h of this interpreter."""
    say = Say("cc.pyh")
    header = group(probe(facts, "host.toolchain"), "python_h")
    if not _torch_here(facts):
        return say.skip("no-torch", "torch is not installed for this Python")
    if header.get("exists"):
        return say.ok(text(header, "path"))
    worst = say.fail if _declared(facts) else say.warn
    version = text(header, "version")
    return worst(
        f"no Python.h for Python {version}",
        why="Triton compiles its launcher against it; a virtual environment needs the headers of "
        "its base interpreter",
        evidence=[seen("sysconfig include", text(header, "path"))],
        fixes=[_apt(facts, f"python{version}-dev")],
    )


def check_ptxas(facts: Facts) -> Results:
    """Ask whether the ptxas that Triton will take knows these GPUs."""
    say = Say("cc.ptxas")
    found = rows(probe(facts, "host.toolchain"), "ptxas")
    if torch_cuda(facts) is None:
        return say.skip("no-torch", "no CUDA build of torch")
    own = [row for row in found if text(row, "source").startswith("TRITON_")]
    broken = [row for row in own if not row.get("usable")]
    if broken:
        return say.fail(
            f"{text(broken[0], 'source')} names a ptxas that cannot be run: "
            f"{text(broken[0], 'path')}",
            evidence=[seen(text(broken[0], "source"), text(broken[0], "path"))],
            fixes=[fix("container", "remove it", f"unset {text(broken[0], 'source')}")],
        )
    if not found:
        return say.skip("not-applicable", "no Triton here")
    newest = max((_release(text(row, "version")) for row in found), default=(0, 0))
    for gpu in nvml_gpus(facts):
        parts = text(gpu, "capability").split(".")
        if len(parts) < 2 or not all(part.isdigit() for part in parts[:2]):  # noqa: PLR2004
            continue
        needed = _PTXAS_FOR.get((int(parts[0]), int(parts[1])))
        if needed and newest != (0, 0) and newest < needed:
            return say.fail(
                f"ptxas {newest[0]}.{newest[1]} does not know sm_{parts[0]}{parts[1]}",
                why="Triton kernels end with: ptxas fatal: Value sm_... is not defined for option "
                "gpu-name",
                evidence=[seen(text(row, "path"), text(row, "version")) for row in found],
                fixes=[
                    fix("image", "take a newer triton with a newer torch"),
                    fix(
                        "container",
                        f"or point it to a ptxas of CUDA {needed[0]}.{needed[1]} or newer",
                        "export TRITON_PTXAS_PATH=/usr/local/cuda/bin/ptxas",
                    ),
                ],
            )
    return say.ok(f"ptxas {newest[0]}.{newest[1]}", seen("path", text(found[0], "path")))


def _release(version: str) -> tuple[int, int]:
    major, _, minor = version.partition(".")
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else (0, 0)


def check_libcuda_link(facts: Facts) -> Results:
    """Ask whether the linker finds libcuda.so, without a number."""
    say = Say("cc.libcuda")
    toolchain = probe(facts, "host.toolchain")
    if torch_cuda(facts) is None or not gpu_expected(facts):
        return say.skip("no-gpu", "no CUDA build of torch with a GPU")
    if text(toolchain, "libcuda_link"):
        return say.ok(text(toolchain, "libcuda_link"))
    return say.info(
        "no libcuda.so for the linker, only libcuda.so.1; Triton links by its own search",
        why="older Triton and some extension builds say: cannot find -lcuda. Link libcuda.so to "
        "libcuda.so.1, or put the toolkit's stubs on the linker's path, never on LD_LIBRARY_PATH",
    )


def check_temporary(facts: Facts) -> Results:
    """Ask whether compiled files can be written, renamed and executed where caches are."""
    say = Say("cc.tmp")
    places = group(probe(facts, "host.storage"), "places")
    results: list[Results] = []
    told: set[str] = set()
    for name in ("tmp", "inductor", "triton"):
        place = group(places, name)
        path, variable = text(place, "path"), text(place, "variable")
        if not place or path in told:
            continue
        told.add(path)
        one = say.of(path)
        evidence = [
            seen(text(place, "at"), f"{text(place, 'type')} {','.join(words(place, 'options'))}")
        ]
        elsewhere = {
            "tmp": "export TMPDIR=/var/tmp TORCHINDUCTOR_CACHE_DIR=/var/tmp/inductor",
            "inductor": "export TORCHINDUCTOR_CACHE_DIR=/var/tmp/inductor",
            "triton": "export TRITON_CACHE_DIR=/var/tmp/triton",
        }[name]
        move = fix("container", "put it on a file system that allows it", elsewhere)
        if place.get("exec"):
            results.append(
                one.fail(
                    f"files there cannot be executed ({place.get('exec')}, noexec)",
                    why="torch.compile loads what it built from there: failed to map segment from "
                    "shared object",
                    evidence=evidence,
                    fixes=[move],
                )
            )
        elif place.get("write"):
            worst = one.fail if name == "tmp" else one.warn
            results.append(
                worst(
                    f"cannot be written to ({place.get('write')})"
                    + (f": {variable}" if variable else ""),
                    why="nothing can be compiled or cached there",
                    evidence=evidence,
                    fixes=[move],
                    suspects=() if name == "tmp" else ("ctr.uid",),
                )
            )
        elif place.get("rename"):
            results.append(
                one.warn(
                    f"files there cannot be renamed ({place.get('rename')})",
                    why="caches are written beside and then renamed into place",
                    evidence=evidence,
                    fixes=[move],
                )
            )
        elif (integer(place, "free") or _SPACE_FLOOR) < _SPACE_FLOOR:
            results.append(
                one.warn(
                    f"{in_mib(integer(place, 'free') or 0)} free: little for compiled code",
                    evidence=evidence,
                    fixes=[move],
                )
            )
    if results:
        return tuple(result for found in results for result in found)
    return say.ok("compiled files can be written, renamed and executed")


def check_nvcc(facts: Facts) -> Results:
    """Compare nvcc with torch's CUDA; it matters for building extensions only."""
    say = Say("cc.nvcc")
    nvcc = group(probe(facts, "host.toolchain"), "nvcc")
    wheel = torch_cuda(facts)
    if wheel is None:
        return say.skip("no-torch", "no CUDA build of torch")
    version = text(nvcc, "version")
    if not version:
        return say.skip("not-applicable", "no nvcc: needed for building extensions only")
    have = _release(version)
    if have[0] != wheel[0]:
        return say.warn(
            f"nvcc {version} and torch for CUDA {wheel[0]}.{wheel[1]}: extensions cannot be built",
            why="torch's extension builder refuses another major version; running is not affected",
            evidence=[seen(text(nvcc, "path"), version)],
            fixes=[fix("image", f"install the toolkit of CUDA {wheel[0]}, or set CUDA_HOME to it")],
        )
    return say.ok(f"{version}, for building extensions")


CHECKS = (
    Check(
        id="cc.gcc",
        title="C and C++ compilers",
        level=Level.STATIC,
        run=check_compilers,
        needs=("host.toolchain",),
        uses=("torch.static",),
        explanation="""\
Triton builds a launcher in C, Inductor its CPU code in C++. Both look at CC and CXX first. A
runtime image without compilers serves everything but torch.compile, so this is a warning unless
compile is required.""",
    ),
    Check(
        id="cc.pyh",
        title="Python.h",
        level=Level.STATIC,
        run=check_header,
        needs=("host.toolchain",),
        uses=("torch.static",),
        explanation="""\
The launcher that Triton builds includes Python.h of the running interpreter. Distributions ship
it in python3.X-dev, for exactly that minor version.""",
    ),
    Check(
        id="cc.ptxas",
        title="ptxas for Triton",
        level=Level.STATIC,
        run=check_ptxas,
        needs=("host.toolchain",),
        uses=("torch.static", "host.nvml"),
        explanation="""\
Triton brings its own ptxas, which may be older than the GPU; TRITON_PTXAS_PATH replaces it.
sm_100 and sm_120 need CUDA 12.8, sm_103 and sm_121 need 12.9.""",
    ),
    Check(
        id="cc.libcuda",
        title="libcuda.so for the linker",
        level=Level.STATIC,
        run=check_libcuda_link,
        needs=("host.toolchain",),
        uses=("torch.static", "host.nodes", "host.nvml", "host.pci"),
        explanation="""\
The toolkit puts libcuda.so.1 into a container, and often no libcuda.so. Current Triton finds
its way; some extension builds do not.""",
    ),
    Check(
        id="cc.tmp",
        title="Temporary files and compile caches",
        level=Level.STATIC,
        run=check_temporary,
        needs=("host.storage",),
        explanation="""\
In each of TMPDIR, Inductor's and Triton's cache folder one small file is written, renamed,
mapped executable and removed. Docker's /dev/shm and many hardened /tmp are mounted noexec; a
library built there cannot be loaded.""",
    ),
    Check(
        id="cc.nvcc",
        title="nvcc",
        level=Level.STATIC,
        run=check_nvcc,
        needs=("host.toolchain",),
        uses=("torch.static",),
        explanation="""\
torch does not use a local CUDA toolkit. nvcc matters only when extensions are built, and then
its major version must be torch's.""",
    ),
)
