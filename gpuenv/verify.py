"""Compare what is really in an image with the row of the matrix it was built from.

The facts come from ``probes/image_verify.py``, which runs in a container of the image and needs no
GPU; :func:`compare` is pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpuenv.lockfile import Lock
    from gpuenv.spec import EnvironmentSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing in the image that is not what the row promised."""

    what: str
    promised: str
    found: str

    def __str__(self) -> str:
        return f"{self.what}: promised {self.promised}, found {self.found}"


def compare(spec: EnvironmentSpec, facts: Mapping[str, Any]) -> tuple[Difference, ...]:
    """Return every difference between the promise and the facts, empty when the image is proven.

    Args:
        facts: The JSON object of ``probes/image_verify.py``.
    """
    if "error" in facts:
        return (Difference(what="torch", promised="imports", found=str(facts["error"])),)
    return tuple(
        Difference(what=what, promised=promised, found=found)
        for what, promised, found in (
            *_python(spec, facts),
            *_torch(spec, facts["torch"]),
            *_libraries(spec, facts["torch"], facts["distributions"]),
            *_packages(spec, facts["distributions"]),
            *_copies(spec, facts["library_copies"]),
            *(
                ("driver libraries", "none, the host brings them", path)
                for path in facts["driver_files"]
            ),
        )
        if promised != found
    )


def compare_lock(lock: Lock, facts: Mapping[str, Any]) -> tuple[Difference, ...]:
    """Return every distribution that the lock and the image have differently.

    Args:
        lock: What the image was built from.
        facts: The JSON object of ``probes/image_verify.py``.
    """
    if "error" in facts:
        return ()  # which ``compare`` tells
    found: Mapping[str, str] = facts["distributions"]
    locked = {package.name: package.version for package in lock.installed}
    return tuple(
        Difference(
            what=name,
            promised=locked.get(name, "none, the lock has no such package"),
            found=found.get(name, "none"),
        )
        for name in sorted(locked.keys() | found.keys())
        if not _same_version(locked.get(name), found.get(name))
    )


def _same_version(locked: str | None, found: str | None) -> bool:
    if locked is None or found is None:
        return False
    try:
        one, other = Version(locked), Version(found)
    except InvalidVersion:
        return locked == found
    # The name of a wheel may leave out the variant that its metadata has.
    return one == other or (one.local is None and one.public == other.public)


Triple = tuple[str, str, str]


def _python(spec: EnvironmentSpec, facts: Mapping[str, Any]) -> Iterator[Triple]:
    depth = len(spec.python.parts)
    yield "Python", str(spec.python), ".".join(str(facts["python"]).split(".")[:depth])
    yield "architecture", spec.arch, {"arm64": "aarch64"}.get(facts["machine"], facts["machine"])


def _torch(spec: EnvironmentSpec, torch: Mapping[str, Any]) -> Iterator[Triple]:
    release, _, local = str(torch["version"]).partition("+")
    yield "torch", str(spec.torch), release
    # Wheels of some indexes carry no local tag; then torch.version.cuda alone tells the variant.
    if local:
        yield "torch variant", spec.torch_variant, local
    yield "CUDA of torch", str(spec.cuda), str(torch["cuda"])
    # A row that is not sure of its architectures promises none.
    if spec.cuda is not None and spec.arch_list:
        yield (
            "compiled architectures",
            " ".join(sorted(spec.arch_list)),
            " ".join(sorted(torch["arch_flags"] or ())),
        )
    yield "gradient of sum(x²) at 1", "2", "2" if torch["autograd_ok"] else "something else"


def _libraries(
    spec: EnvironmentSpec, torch: Mapping[str, Any], distributions: Mapping[str, str]
) -> Iterator[Triple]:
    if spec.cuda is None:
        return
    for name, promised, loaded in (
        ("cudnn", spec.cudnn, _cudnn_text(torch["cudnn"])),
        ("nccl", spec.nccl, ".".join(map(str, torch["nccl"] or ()))),
    ):
        if promised is None:
            continue
        version = str(promised)
        package = f"nvidia-{name}-cu{spec.cuda.major}"
        if package in distributions:
            yield package, version, distributions[package]
        # What torch loads, to the depth that the library itself tells.
        yield f"{name} loaded by torch", ".".join(version.split(".")[:3]), loaded


def _cudnn_text(number: int | None) -> str:
    """Convert cuDNN's own number: 8902 is 8.9.2, 91002 is 9.10.2."""
    if number is None:
        return "none"
    nine = 90000
    if number >= nine:
        return f"{number // 10000}.{number % 10000 // 100}.{number % 100}"
    return f"{number // 1000}.{number % 1000 // 100}.{number % 100}"


def _packages(spec: EnvironmentSpec, distributions: Mapping[str, str]) -> Iterator[Triple]:
    triton = distributions.get("triton")
    if spec.triton is not None and spec.cuda is not None:
        wanted = spec.triton if spec.triton[0] in "=~<>!" else f"=={spec.triton}"
        fits = triton is not None and SpecifierSet(wanted).contains(triton, prereleases=True)
        yield "triton", wanted, wanted if fits else str(triton)
    for name, promised in (("torchvision", spec.torchvision), ("torchaudio", spec.torchaudio)):
        if name in distributions and promised is not None:
            yield name, promised, distributions[name].partition("+")[0]


def _copies(spec: EnvironmentSpec, copies: Mapping[str, list[str]]) -> Iterator[Triple]:
    # A devel image of CUDA 11 or 12 stands on NVIDIA's devel image, whose toolkit is a second copy
    # on purpose: it is what nvcc links against.
    if spec.flavor == "devel" and spec.cuda is not None and spec.cuda.major < 13:  # noqa: PLR2004
        return
    for family, directories in copies.items():
        if len(directories) > 1:
            yield f"copies of {family}", "one", ", ".join(directories)
