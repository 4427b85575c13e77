"""From what a user wrote to a :class:`~gpuenv.spec.MatrixRequest`, with words for every mistake.

The same values come from three places, each overriding the one before: a ``gpuenv.toml``, the
``GPUENV_*`` variables, the flags. A message names the place the bad value came from.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal, cast

from gpuenv.errors import ConfigurationError
from gpuenv.matrix.gpus import bound_arch, find_gpu
from gpuenv.spec import MatrixRequest
from gpuenv.values import dataclass
from gpuenv.versions import (
    CudaVersion,
    CudnnVersion,
    DottedVersion,
    DriverRelease,
    NcclVersion,
    PythonVersion,
    TorchVersion,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuenv.matrix.model import Matrix
    from gpuenv.spec import Arch, CudaWish, Flavor, GpuTarget

#: The settings a request has, as they are called in ``gpuenv.toml``; ``gpu`` may hold several.
REQUEST_KEYS = (*("torch", "cuda", "cudnn", "nccl", "python", "gpu", "driver", "arch", "flavor"),)
_ARCH_NAMES: dict[str, Arch] = {
    "x86_64": "x86_64",
    "amd64": "x86_64",
    "aarch64": "aarch64",
    "arm64": "aarch64",
}
_FLAVORS: tuple[Flavor, ...] = ("runtime", "devel")
_TORCH = re.compile(r"([0-9.]+)(?:\+([a-z0-9]+))?", re.ASCII)
_PYTHON_NOISE = re.compile(r"(?:python|cpython|py|cp)[-_ ]?", re.ASCII | re.IGNORECASE)
_OLDEST_DRIVER_BRANCH = 100  # CUDA versions are far below it, drivers far above


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One value as it was written, and where: ``--torch``, ``GPUENV_TORCH``, ``gpuenv.toml``.

    Attributes:
        layer: A higher one overrides a lower: 0 the file, 1 the environment, 2 the flags.
    """

    text: str
    origin: str
    layer: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSettings:
    """What was written about a request, by key; a key that nobody set is absent."""

    values: Mapping[str, tuple[Setting, ...]] = field(default_factory=dict)

    def one(self, key: str) -> Setting | None:
        """Return a key's only value."""
        settings = self.values.get(key, ())
        return settings[-1] if settings else None

    def all(self, key: str) -> tuple[Setting, ...]:
        """Return every value of a key."""
        return self.values.get(key, ())


def layer_settings(
    flags: Mapping[str, str | Sequence[str] | None],
    *,
    environ: Mapping[str, str],
    file_settings: Mapping[str, Any] | None = None,
    file_name: str = "gpuenv.toml",
) -> RequestSettings:
    """Put the three sources over one another: file, then environment, then flags.

    Args:
        flags: By key; ``None`` and an empty list mean not given.
        environ: The process's environment; ``GPUENV_GPU`` may hold several names, split by commas.
        file_settings: The request keys of ``gpuenv.toml``, or of ``[tool.gpuenv]``.
        file_name: How messages call that file.

    Raises:
        ConfigurationError: A value of the file is neither text nor a list of text.
    """
    values: dict[str, tuple[Setting, ...]] = {}
    for key in REQUEST_KEYS:
        given = _from_flags(key, flags.get(key))
        given = given or _from_environment(key, environ)
        given = given or _from_file(key, (file_settings or {}).get(key), file_name)
        if given:
            values[key] = given
    return RequestSettings(values=values)


def _from_flags(key: str, value: str | Sequence[str] | None) -> tuple[Setting, ...]:
    if value is None:
        return ()
    texts = (value,) if isinstance(value, str) else tuple(value)
    return tuple(Setting(text=text, origin=f"--{key}", layer=2) for text in texts)


def _from_environment(key: str, environ: Mapping[str, str]) -> tuple[Setting, ...]:
    name = f"GPUENV_{key.upper()}"
    value = environ.get(name, "").strip()
    if not value:
        return ()
    texts = value.split(",") if key == "gpu" else [value]
    return tuple(Setting(text=text.strip(), origin=name, layer=1) for text in texts)


def _from_file(key: str, value: object, file_name: str) -> tuple[Setting, ...]:
    if value is None:
        return ()
    origin = f"{file_name}: {key}"
    settings = []
    for text in value if isinstance(value, list) and key == "gpu" else [value]:
        if not isinstance(text, str):
            raise ConfigurationError(
                f"{origin} must be text, not {text!r}",
                why="a number loses digits: 3.10 would be read as 3.1",
                fix=f'quote it: {key} = "{text}"',
            )
        settings.append(Setting(text=text, origin=origin, layer=0))
    return tuple(settings)


def parse_request(
    matrix: Matrix, settings: RequestSettings, *, machine: str = "x86_64"
) -> MatrixRequest:
    """Turn settings into a request.

    Args:
        matrix: For GPU names and for guesses.
        settings: What was written.
        machine: This machine's CPU as ``platform.machine()`` says it, used when none was asked for.

    Raises:
        ConfigurationError: A value cannot be right; the message names it, its place and a guess.
    """
    torch, torch_cuda = _parse_torch(settings.one("torch"))
    cuda = _parse_cuda(matrix, settings.one("cuda"))
    if torch_cuda is not None:
        cuda = _agreeing(settings, torch_cuda, cuda)
    settings, dropped = _without_what_cpu_overrides(settings, cuda)
    found = [_at(setting, find_gpu, matrix, setting.text) for setting in settings.all("gpu")]
    gpus = tuple(dict.fromkeys(found))
    arch, notes = _parse_arch(matrix, settings.one("arch"), gpus, machine)
    return MatrixRequest(
        torch=torch,
        cuda="auto" if cuda is None else cuda,
        cudnn=_parse_version(CudnnVersion, settings.one("cudnn")),
        nccl=_parse_version(NcclVersion, settings.one("nccl")),
        python=_parse_python(settings.one("python")),
        gpus=gpus,
        driver=_parse_driver(settings.one("driver")),
        arch=arch,
        flavor=_parse_flavor(settings.one("flavor")),
        notes=(*dropped, *notes),
    )


def _at(setting: Setting, parse: Any, *arguments: Any) -> Any:
    """Parse, and put the place of the value in front of what goes wrong."""
    try:
        return parse(*arguments)
    except ConfigurationError as error:
        what = error.what if error.what.startswith("--") else f"{setting.origin}: {error.what}"
        what = re.sub(r"^--[a-z]+", setting.origin, what)
        raise ConfigurationError(what, why=error.why, fix=error.fix) from error


def _parse_version(kind: type[DottedVersion], setting: Setting | None) -> Any:
    return None if setting is None else _at(setting, kind.parse, setting.text)


def _parse_torch(setting: Setting | None) -> tuple[TorchVersion | None, CudaWish | None]:
    """Parse ``2.9``, ``2.9.1`` or ``2.9.1+cu128``; the latter names the CUDA as well."""
    if setting is None:
        return None, None
    text = setting.text.strip()
    match = _TORCH.fullmatch(text)
    if match is None:
        guess = re.search(r"[0-9]+(?:\.[0-9]+)+", text, re.ASCII)
        raise ConfigurationError(
            f"{setting.origin}: {text!r} is not a torch version",
            why="it is numbers joined by dots, and may name its variant: 2.9, 2.9.1, 2.9.1+cu128",
            fix=f"did you mean {guess[0]}?" if guess else "leave it out for the newest that fits",
        )
    torch = _at(setting, TorchVersion.parse, match[1])
    if match[2] is None:
        return torch, None
    return torch, _variant_cuda(setting, match[2])


def _variant_cuda(setting: Setting, variant: str) -> CudaWish:
    from gpuenv.matrix.load import cuda_of_variant

    if variant == "cpu":
        return "cpu"
    return cast("CudaVersion", _at(setting, cuda_of_variant, variant))


def _parse_cuda(matrix: Matrix, setting: Setting | None) -> CudaWish | None:
    if setting is None:
        return None
    text = setting.text.strip().lower()
    if text in {"auto", "cpu"}:
        return cast("Literal['auto', 'cpu']", text)
    if re.fullmatch(r"cu[0-9]+", text, re.ASCII):
        return _variant_cuda(setting, text)
    try:
        return CudaVersion.parse(text)
    except ConfigurationError as error:
        known = ["auto", "cpu", *(str(cuda) for cuda in matrix.cuda_versions)]
        guess = "cpu" if text in {"none", "no", "off", "false"} else None
        number = re.search(r"[0-9]+\.[0-9]+", text, re.ASCII)
        guess = guess or (number[0] if number else None)
        guess = guess or next(iter(difflib.get_close_matches(text, known, n=1)), None)
        raise ConfigurationError(
            f"{setting.origin}: {setting.text!r} is not a CUDA version",
            why=f"it is one of {', '.join(known)}, to any depth",
            fix=f"did you mean {guess}?" if guess else "leave it out to have it chosen",
        ) from error


def _agreeing(settings: RequestSettings, named: CudaWish, cuda: CudaWish | None) -> CudaWish:
    """Return the CUDA that ``2.9.1+cu128`` names, if ``--cuda`` does not say otherwise."""
    torch, other = settings.one("torch"), settings.one("cuda")
    if torch is None or other is None or cuda is None or cuda == "auto":
        return named
    if isinstance(cuda, CudaVersion) and isinstance(named, CudaVersion):
        if cuda.is_prefix_of(named) or named.is_prefix_of(cuda):
            return max(cuda, named, key=lambda it: len(it.parts))
    elif cuda == named:
        return named
    if torch.layer != other.layer:
        return named if torch.layer > other.layer else cuda
    raise ConfigurationError(
        f"{torch.origin} {torch.text} and {other.origin} {other.text} name different CUDAs",
        why=f"the part behind + names {named}",
        fix="give the CUDA once",
    )


def _without_what_cpu_overrides(
    settings: RequestSettings, cuda: CudaWish | None
) -> tuple[RequestSettings, tuple[str, ...]]:
    """Drop the GPUs of a project when a flag asks for the same without CUDA.

    What is asked for in the same place as ``cpu`` stays, and contradicts it.
    """
    by = settings.one("cuda") or settings.one("torch")
    if cuda != "cpu" or by is None:
        return settings, ()
    dropped = {
        key: values[-1].origin
        for key in ("gpu", "driver", "cudnn", "nccl")
        if (values := settings.all(key)) and values[-1].layer < by.layer
    }
    if not dropped:
        return settings, ()
    kept = {key: values for key, values in settings.values.items() if key not in dropped}
    note = f"{by.origin} {by.text} leaves out {', '.join(dropped.values())}"
    return RequestSettings(values=kept), (note,)


def _parse_python(setting: Setting | None) -> PythonVersion | None:
    if setting is None:
        return None
    text = setting.text.strip()
    bare = _PYTHON_NOISE.sub("", text)
    if re.fullmatch(r"3[0-9]{1,2}", bare, re.ASCII):
        bare = f"3.{bare[1:]}"
    free_threaded = re.fullmatch(r"([0-9.]+)t", bare, re.ASCII)
    if free_threaded:
        raise ConfigurationError(
            f"{setting.origin}: {text} is a free-threaded Python, which the matrix has no rows for",
            why="few wheels beside torch itself are built for it",
            fix=f"did you mean {free_threaded[1]}?",
        )
    if bare != text and re.fullmatch(r"[0-9.]+", bare, re.ASCII):
        raise ConfigurationError(
            f"{setting.origin}: {text!r} is not a Python version",
            why="it is the numbers alone",
            fix=f"did you mean {bare}?",
        )
    version: PythonVersion = _at(setting, PythonVersion.parse, text)
    if len(version.parts) > 2:  # noqa: PLR2004 - major and minor
        raise ConfigurationError(
            f"{setting.origin}: {version} names a patch of Python",
            why="wheels are built for a minor, and the patch comes with the base image",
            fix=f"did you mean {version.truncate(2)}?",
        )
    return version


def _parse_driver(setting: Setting | None) -> DriverRelease | None:
    if setting is None:
        return None
    driver: DriverRelease = _at(setting, DriverRelease.parse, setting.text)
    if driver.branch < _OLDEST_DRIVER_BRANCH:
        raise ConfigurationError(
            f"{setting.origin}: {setting.text} is no driver release",
            why="it looks like the CUDA version that nvidia-smi prints beside it",
            fix="give what nvidia-smi calls Driver Version, for example 580.65.06",
        )
    return driver


def _parse_arch(
    matrix: Matrix, setting: Setting | None, gpus: tuple[GpuTarget, ...], machine: str
) -> tuple[Arch, tuple[str, ...]]:
    """Take the CPU asked for, else the only one the GPUs come with, else this machine's."""
    if setting is not None:
        return _arch_named(setting.text, origin=setting.origin), ()
    fixed = {gpu.asked: bound_arch(matrix, gpu) for gpu in gpus}
    bound = {arch for arch in fixed.values() if arch is not None}
    here = _ARCH_NAMES.get(machine.lower())
    if len(bound) == 1 and (arch := bound.pop()) != here:
        name = next(asked for asked, its in fixed.items() if its == arch)
        return arch, (f"{name} comes with an {arch} CPU: choosing for {arch}",)
    return (here, ()) if here else (_arch_named(machine, origin="this machine"), ())


def _arch_named(text: str, *, origin: str) -> Arch:
    arch = _ARCH_NAMES.get(text.strip().lower())
    if arch is None:
        close = difflib.get_close_matches(text.lower(), _ARCH_NAMES, n=1)
        raise ConfigurationError(
            f"{origin}: there is no torch wheel with CUDA for the CPU architecture {text!r}",
            why="the matrix has x86_64 and aarch64 (Linux)",
            fix=f"did you mean {close[0]}?" if close else "give --arch x86_64 or --arch aarch64",
        )
    return arch


def _parse_flavor(setting: Setting | None) -> Flavor:
    if setting is None:
        return "runtime"
    for flavor in _FLAVORS:
        if setting.text == flavor:
            return flavor
    close = difflib.get_close_matches(setting.text, _FLAVORS, n=1)
    raise ConfigurationError(
        f"{setting.origin}: {setting.text!r} is not a flavor",
        why="runtime runs PyTorch, devel adds compilers and nvcc",
        fix=f"did you mean {close[0]}?" if close else "give runtime or devel",
    )
