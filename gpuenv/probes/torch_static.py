"""Which torch is installed and whether its set of CUDA wheels is whole; without importing torch.

Reads the names of ``*.dist-info`` folders and the metadata of the few that matter, and executes
torch's ``version.py``, five assignments. ``import torch`` would take seconds.
"""

from __future__ import annotations

import os
import platform
import re
import sys

from ._common import Context

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_RELEVANT = re.compile(
    r"torch(vision|audio|text|data)?|triton|pytorch-triton|nvidia-.*|cuda-(toolkit|bindings|python)"
    r"|numpy|cupy-.*|onnxruntime-gpu|tensorflow|jax|jaxlib|jax-cuda.*|flash-attn|xformers"
    r"|bitsandbytes|deepspeed|vllm|accelerate|transformers|apex|transformer-engine.*"
)
_PINNING = re.compile(
    r"torch(vision|audio|text|data)?|triton|nvidia-(cudnn|cublas|cusparse|cusolver|nccl).*|xformers|vllm"
)
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)\s*(?:\[[^\]]*\])?\s*\(?([^;)]*)\)?\s*(?:;(.*))?$")
_FAMILY = re.compile(r"(nvidia-[a-z0-9-]+?)(-cu[0-9]+)$")
_CONSTRAINTS = "/opt/gpuenv/constraints.txt"


def probe(context: Context) -> dict[str, Any]:
    """Return what is installed for this interpreter.

    Keys: ``present``, ``version`` (2.14.1+cu130), ``cuda`` ("13.0", ``None`` for a CPU build),
    ``hip``, ``debug``, ``path``, ``installer``, ``cuda_library`` (libtorch_cuda.so is there),
    ``copies`` [{path, version}], ``dists`` {name: version}, ``duplicates`` {name: [versions]},
    ``conflicts`` [{by, needs, found}], ``overlaps`` [{path, dists, owner}], ``families`` {family:
    [dists]}, ``locked`` {name: version} from the image's own constraints, ``python``.
    """
    folders = _search_path(context)
    dists, duplicates, places = _distributions(folders)
    copies = [
        {"path": os.path.join(folder, "torch"), "version": _version_of(folder)}
        for folder in folders
        if os.path.isfile(os.path.join(folder, "torch", "__init__.py"))
    ]
    facts = {
        "python": "{}.{}.{}".format(*sys.version_info[:3]),
        "prefix": sys.prefix,
        "present": bool(copies),
        "dists": dists,
        "duplicates": duplicates,
        "copies": copies,
        "conflicts": _conflicts(dists, places),
        "families": _families(dists),
        "locked": _locked(context),
    }
    facts["overlaps"] = _overlaps(facts["families"], places)
    if copies:
        torch = copies[0]["path"]
        facts.update(_version_file(torch))
        facts["path"] = torch
        facts["cuda_library"] = os.path.exists(os.path.join(torch, "lib", "libtorch_cuda.so"))
        folder = places.get("torch")
        facts["installer"] = _word(os.path.join(folder, "INSTALLER")) if folder else None
    return facts


def _search_path(context: Context) -> list[str]:
    wanted = context.options.get("sys_path") or sys.path
    folders = []
    for entry in wanted:
        real = os.path.realpath(entry)
        if os.path.isdir(real) and real not in folders:
            folders.append(real)
    return folders


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _distributions(
    folders: list[str],
) -> tuple[dict[str, str], dict[str, list[str]], dict[str, str]]:
    """Return name to version, names installed more than once, and each one's metadata folder."""
    dists, duplicates, places = {}, {}, {}
    for folder in folders:
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            continue
        for entry in names:
            match = re.fullmatch(r"(.+?)-([0-9][^-]*)\.(?:dist|egg)-info", entry)
            if not match:
                continue
            name = _normal(match[1])
            if not _RELEVANT.fullmatch(name):
                continue
            if name in dists:
                if dists[name] != match[2]:
                    duplicates.setdefault(name, [dists[name]]).append(match[2])
                continue
            dists[name] = match[2]
            places[name] = os.path.join(folder, entry)
    return dists, duplicates, places


def _word(path: str) -> str | None:
    text = _text(path, 4096)
    return None if text is None else text.strip()


def _text(path: str, limit: int = 4 << 20) -> str | None:
    try:
        with open(path, "rb") as stream:
            return stream.read(limit).decode("utf-8", "replace")
    except OSError:
        return None


def _version_of(folder: str) -> str | None:
    return _version_file(os.path.join(folder, "torch")).get("version")


def _version_file(torch: str) -> dict[str, Any]:
    """Execute ``torch/version.py``; it imports nothing but typing."""
    text = _text(os.path.join(torch, "version.py"))
    if text is None:
        return {"version": None, "cuda": None, "version_error": "no version.py"}
    names = {"__name__": "torch.version"}  # type: dict[str, Any]
    try:
        exec(compile(text, "torch/version.py", "exec"), names)  # noqa: S102 - torch's own, see above
    except Exception as error:
        return {"version": None, "cuda": None, "version_error": repr(error)[:200]}
    version = names.get("__version__")
    return {
        "version": None if version is None else str(version),
        "cuda": names.get("cuda"),
        "hip": names.get("hip"),
        "debug": names.get("debug"),
    }


def _requirements(folder: str) -> list[str]:
    """Return the ``Requires-Dist`` lines of a METADATA file's head."""
    head = (_text(os.path.join(folder, "METADATA")) or "").partition("\n\n")[0]
    return [
        line.partition(":")[2].strip()
        for line in head.splitlines()
        if line.startswith("Requires-Dist:")
    ]


def _conflicts(dists: dict[str, str], places: dict[str, str]) -> list[dict[str, str]]:
    """Return the requirements of torch and its set that what is installed does not meet.

    A requirement behind a marker that cannot be decided here is passed over: no alarm on a guess.
    """
    found = []
    for name, folder in sorted(places.items()):
        if not _PINNING.fullmatch(name):
            continue
        for line in _requirements(folder):
            match = _REQUIREMENT.match(line)
            if not match:
                continue
            wanted, specifier, marker = _normal(match[1]), match[2].strip(), match[3]
            if not _RELEVANT.fullmatch(wanted) or (marker and _marker(marker) is not True):
                continue
            have = dists.get(wanted)
            if have is None:
                if name == "torch" and wanted.startswith("nvidia-"):
                    found.append({"by": name, "needs": wanted + specifier, "found": ""})
            elif specifier and _meets(have, specifier) is False:
                found.append({"by": name, "needs": wanted + specifier, "found": have})
    return found


def _marker(text: str) -> bool | None:
    """Decide a marker like ``platform_system == "Linux" and ...``; ``None`` when it cannot."""
    known = {
        "platform_system": platform.system(),
        "platform_machine": platform.machine(),
        "sys_platform": sys.platform,
        "os_name": os.name,
        "implementation_name": sys.implementation.name,
        "platform_python_implementation": platform.python_implementation(),
        "python_version": "{}.{}".format(*sys.version_info[:2]),
        "python_full_version": "{}.{}.{}".format(*sys.version_info[:3]),
    }
    if "(" in text.strip().strip("()") or " or " in text:
        return None
    for clause in text.strip().strip("()").split(" and "):
        match = re.fullmatch(r"\s*(\w+)\s*(==|!=|<=|>=|<|>)\s*['\"]([^'\"]*)['\"]\s*", clause)
        if not match or match[1] not in known:
            return None
        have, sign, want = known[match[1]], match[2], match[3]
        if match[1].startswith("python_"):
            truth = _meets(have, sign + want)
        else:
            truth = (have == want) == (sign == "==") if sign in ("==", "!=") else None
        if truth is not True:
            return truth
    return True


def _numbers(version: str) -> list[int]:
    """Return the leading numbers of ``2.14.1+cu130`` as a list, trailing zeros dropped."""
    match = re.match(r"[0-9]+(\.[0-9]+)*", version)
    numbers = [int(part) for part in match[0].split(".")] if match else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return numbers


def _meets(version: str, specifier: str) -> bool | None:
    """Say whether a version meets ``>=1.2,<2``; ``None`` for what this reader does not know."""
    have = _numbers(version)
    for clause in specifier.split(","):
        match = re.fullmatch(r"\s*(===|==|~=|!=|<=|>=|<|>)\s*([0-9][^\s]*?)(\.\*)?\s*", clause)
        if not match or re.search(r"[a-z]", match[2].partition("+")[0]):
            return None
        sign, wanted, star = match[1], match[2], bool(match[3])
        want = _numbers(wanted)
        if star or sign == "~=":
            depth = wanted.partition("+")[0].count(".") + (1 if star else 0)
            padded = [*have, *[0] * depth][:depth]
            prefix = [*want, *[0] * depth][:depth]
            truth = padded == prefix and (star or have >= want)
            if sign == "!=":
                truth = not truth
        else:
            truth = {
                "==": have == want,
                "===": have == want,
                "!=": have != want,
                "<=": have <= want,
                ">=": have >= want,
                "<": have < want,
                ">": have > want,
            }[sign]
            if sign == "==" and "+" in wanted:
                truth = version == wanted
        if not truth:
            return False
    return True


def _families(dists: dict[str, str]) -> dict[str, list[str]]:
    """Return the NVIDIA wheels that are installed for more than one CUDA, by family."""
    families = {}
    for name in sorted(dists):
        match = _FAMILY.fullmatch(name)
        family = match[1] if match else name if name.startswith("nvidia-") else None
        if family:
            families.setdefault(family, []).append(name)
    return {family: names for family, names in families.items() if len(names) > 1}


def _overlaps(families: dict[str, list[str]], places: dict[str, str]) -> list[dict[str, Any]]:
    """Return libraries that two installed wheels both claim, and whose file really lies there."""
    found = []
    for names in families.values():
        claims = {}
        for name in names:
            folder = places[name]
            for line in (_text(os.path.join(folder, "RECORD")) or "").splitlines():
                path, _, rest = line.partition(",")
                if ".so" in path:
                    size = rest.rpartition(",")[2]
                    claims.setdefault(path, {})[name] = int(size) if size.isdigit() else None
        for path, sizes in sorted(claims.items()):
            if len(sizes) > 1:
                base = os.path.dirname(places[names[0]])
                try:
                    lies = os.stat(os.path.join(base, path)).st_size
                except OSError:
                    lies = None
                owners = [name for name, size in sizes.items() if size == lies]
                found.append(
                    {
                        "path": path,
                        "dists": sorted(sizes),
                        "owner": owners[0] if len(owners) == 1 else None,
                    }
                )
    return found[:20]


def _locked(context: Context) -> dict[str, str]:
    """Read ``torch==2.14.1+cu130`` lines of the constraints an image of gpuenv carries."""
    locked = {}
    for line in (context.read(_CONSTRAINTS) or "").splitlines():
        name, equals, version = line.partition("#")[0].strip().partition("==")
        if equals and _RELEVANT.fullmatch(_normal(name)):
            locked[_normal(name)] = version.partition(";")[0].strip()
    return locked


PROBES = {"torch.static": probe}
