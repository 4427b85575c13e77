"""Read ``images/versions.yaml`` into a :class:`~gpuenv.matrix.model.Matrix`.

The shipped file was checked against its schema by the tests, so a command only reads it (the check
costs more than all the rest of ``gpuenv render``). Any other file is checked, and so is the shipped
one as soon as reading it trips: then every problem of the file is told at once, with its line.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, cast

from gpuenv.errors import ConfigurationError
from gpuenv.matrix.document import Document, Problem, read_document
from gpuenv.matrix.model import (
    BaseImage,
    CubinException,
    CudaMajor,
    CudnnFloor,
    GpuEntry,
    Matrix,
    NeverExisted,
    Row,
    Toolkit,
    VersionRange,
)
from gpuenv.reading import read_named_text, reason
from gpuenv.resources import images_dir
from gpuenv.versions import (
    ComputeCapability,
    CudaVersion,
    CudnnVersion,
    DottedVersion,
    DriverRelease,
    NcclVersion,
    PythonVersion,
    TorchVersion,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from gpuenv.spec import Arch, Confidence

_ARCHES: tuple[Arch, ...] = ("x86_64", "aarch64")
_CONDITION = re.compile(r"(>=|<=|)([0-9.]+)", re.ASCII)


class MatrixFileError(ConfigurationError):
    """The matrix file cannot be used; every problem of it is in the message."""

    slug = "matrix-file"


def shipped_matrix_path() -> Path:
    """Return the path of the matrix that gpuenv carries."""
    return images_dir() / "versions.yaml"


def load_matrix(path: Path | None = None) -> Matrix:
    """Load the shipped matrix, or check and load another file.

    Raises:
        MatrixFileError: The file cannot be read, or holds problems; all of them are told.
    """
    shipped = path is None
    path = shipped_matrix_path() if path is None else path
    document = read_document(_read_text(path))
    if not document.data and document.problems:
        # Nothing could be read: what such a file lacks besides is no news.
        raise _file_error(path, tuple(document.problems))
    if document.problems or not shipped:
        problems = find_problems(document)
        if problems:
            raise _file_error(path, problems)
    try:
        return build_matrix(document.data)
    except (KeyError, TypeError, ValueError, AttributeError, ConfigurationError) as error:
        problems = find_problems(document)
        if not problems:
            problems = (Problem(line=0, where="", text=f"{type(error).__name__}: {error}"),)
        raise _file_error(path, problems) from error


def _read_text(path: Path) -> str:
    try:
        return read_named_text(path)
    except (OSError, UnicodeDecodeError) as exc:
        raise MatrixFileError(
            f"cannot read the matrix {path}", why=reason(exc), fix="check the path and its rights"
        ) from exc


def _file_error(path: Path, problems: tuple[Problem, ...]) -> MatrixFileError:
    count = len(problems)
    return MatrixFileError(
        f"{path} has {count} problem{'s' if count != 1 else ''}",
        why="\n".join(map(str, problems)),
        fix="mend the lines named; versions.schema.json beside it describes the form",
        data={
            "problems": [
                {"line": problem.line, "where": problem.where, "text": problem.text}
                for problem in problems
            ]
        },
    )


def find_problems(document: Document) -> tuple[Problem, ...]:
    """Check a document against the schema and against itself; return every problem, by line."""
    from gpuenv.matrix.validate import schema_problems, semantic_problems

    problems = [*document.problems, *schema_problems(document, load_schema())]
    if not problems:  # what follows counts on the form
        problems = list(semantic_problems(document))
    return tuple(sorted(problems, key=lambda problem: (problem.line, problem.where)))


def load_schema() -> dict[str, Any]:
    """Return the JSON Schema of the matrix file."""
    text = (images_dir() / "versions.schema.json").read_text(encoding="utf-8")
    return cast("dict[str, Any]", json.loads(text))


def build_matrix(data: Mapping[str, Any]) -> Matrix:
    """Turn checked data into the matrix."""
    return Matrix(
        torch_index=data["torch_index"],
        sources=data["sources"],
        rows=_rows(data["releases"]),
        cuda_majors={
            int(major): _cuda_major(major, it) for major, it in data["cuda_majors"].items()
        },
        toolkits={
            CudaVersion.parse(cuda): _toolkit(cuda, it) for cuda, it in data["toolkits"].items()
        },
        base_images=tuple(map(_base_image, data["base_images"])),
        gpus=tuple(map(_gpu, data["gpus"])),
        cubin_exceptions=tuple(map(_cubin_exception, data["cubin_exceptions"])),
        renamed_capabilities={
            ComputeCapability.parse(old): ComputeCapability.parse(new)
            for old, new in data["renamed_capabilities"].items()
        },
        cudnn_floors=tuple(map(_cudnn_floor, data["cudnn_floors"])),
        never_existed=tuple(map(_never_existed, data["never_existed"])),
    )


def _provenance(it: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "source": tuple(it["source"]),
        "checked": it["checked"],
        "confidence": it["confidence"],
    }


def _rows(releases: Mapping[str, Any]) -> tuple[Row, ...]:
    rows: list[Row] = []
    for release in releases.values():
        for torch, patch in release["patches"].items():
            for variant, it in release["variants"].items():
                if torch in it.get("patches", release["patches"]):
                    rows.extend(_rows_of_wheel(torch, patch, variant, it))
    newest_first = sorted(
        rows,
        key=lambda row: (row.torch, row.cuda or CudaVersion((0,)), row.arch == "x86_64"),
        reverse=True,
    )
    return tuple(newest_first)


def _rows_of_wheel(
    torch: str, patch: Mapping[str, Any], variant: str, it: Mapping[str, Any]
) -> list[Row]:
    is_cpu = variant == "cpu"
    doubts: Mapping[str, str] = it.get("uncertain", {})
    rows = []
    for arch in _ARCHES:
        if arch not in it["arch_list"] or arch not in patch["python"]:
            continue
        arch_list = it["arch_list"][arch]
        first, last = map(PythonVersion.parse, patch["python"][arch])
        confidence: Confidence = it["confidence"]
        doubt = doubts.get(arch, it.get("note", "") if confidence == "uncertain" else "")
        rows.append(
            Row(
                torch=TorchVersion.parse(torch),
                variant=variant,
                cuda=None if is_cpu else cuda_of_variant(variant),
                toolkit=_optional(CudaVersion, it.get("toolkit")),
                cudnn=_optional(CudnnVersion, it.get("cudnn")),
                nccl=_optional(NcclVersion, it.get("nccl")),
                triton=None if is_cpu else patch["triton"],
                torchvision=patch["torchvision"],
                torchaudio=patch["torchaudio"],
                pythons=tuple(
                    PythonVersion((first.major, minor))
                    for minor in range(first.minor, last.minor + 1)
                ),
                arch=arch,
                arch_list=None if arch_list is None else tuple(arch_list),
                pypi_default=patch["pypi"].get(arch) == variant,
                bundled=it.get("bundled", False),
                released=patch["released"],
                source=tuple(it["source"]),
                checked=it["checked"],
                confidence="uncertain" if arch in doubts else confidence,
                doubt=doubt,
                note=it.get("note", ""),
            )
        )
    return rows


def cuda_of_variant(variant: str) -> CudaVersion:
    """Return the CUDA version of a variant: ``cu128`` is 12.8.

    Raises:
        ConfigurationError: It is not written that way.
    """
    match = re.fullmatch(r"cu([0-9]{2})([0-9]{1,2})", variant, re.ASCII)
    if match is None:
        raise ConfigurationError(
            f"{variant!r} is not a CUDA variant",
            why="a variant is cu, the CUDA major and the minor",
            fix="write it like cu128",
        )
    return CudaVersion((int(match[1]), int(match[2])))


def _optional(kind: type[Any], text: str | None) -> Any:
    return None if text is None else kind.parse(text)


def _cuda_major(major: str, it: Mapping[str, Any]) -> CudaMajor:
    return CudaMajor(
        major=int(major),
        min_driver=DriverRelease.parse(it["min_driver"]),
        cudnn_package=it["cudnn_package"],
        nccl_package=it["nccl_package"],
        **_provenance(it),
    )


def _toolkit(cuda: str, it: Mapping[str, Any]) -> Toolkit:
    return Toolkit(
        cuda=CudaVersion.parse(cuda),
        drivers=tuple(
            (CudaVersion.parse(patch), DriverRelease.parse(driver))
            for patch, driver in it.get("drivers", {}).items()
        ),
        max_gcc=it.get("max_gcc"),
        devel_images=tuple(
            (CudaVersion.parse(patch), PythonVersion.parse(python), image)
            for patch, images in it.get("devel_images", {}).items()
            for python, image in images.items()
        ),
        devel_wheels=tuple(
            (CudaVersion.parse(patch), tuple(wheels))
            for patch, wheels in it.get("devel_wheels", {}).items()
        ),
        note=it.get("note", ""),
        **_provenance(it),
    )


def _base_image(it: Mapping[str, Any]) -> BaseImage:
    return BaseImage(
        python=PythonVersion.parse(it["python"]),
        image=it["image"],
        distribution=it["distribution"],
        suite=it["suite"],
        local=it["local"],
        managed=it.get("managed", False),
        **_provenance(it),
    )


def _gpu(it: Mapping[str, Any]) -> GpuEntry:
    return GpuEntry(
        names=tuple(it["names"]),
        compute_capability=ComputeCapability.parse(it["compute_capability"]),
        first_toolkit=_optional(CudaVersion, it.get("first_toolkit")),
        arch=it.get("arch"),
        **_provenance(it),
    )


def _cubin_exception(it: Mapping[str, Any]) -> CubinException:
    return CubinException(
        compute_capability=ComputeCapability.parse(it["compute_capability"]),
        cubins=tuple(it["cubins"]),
        until_cuda=_optional(CudaVersion, it.get("until_cuda")),
        why=it["why"],
        **_provenance(it),
    )


def _cudnn_floor(it: Mapping[str, Any]) -> CudnnFloor:
    return CudnnFloor(
        cudnn=CudnnVersion.parse(it["cudnn"]),
        min_compute_capability=ComputeCapability.parse(it["min_compute_capability"]),
        **_provenance(it),
    )


def _never_existed(it: Mapping[str, Any]) -> NeverExisted:
    def conditions(subject: str, kind: type[DottedVersion]) -> tuple[VersionRange, ...]:
        return tuple(_condition(text, kind) for text in it.get(subject, ()))

    return NeverExisted(
        torch=conditions("torch", TorchVersion),
        cuda=conditions("cuda", CudaVersion),
        cudnn=conditions("cudnn", CudnnVersion),
        python=conditions("python", PythonVersion),
        why=it["why"],
        instead=it["instead"],
        **_provenance(it),
    )


def _condition(text: str, kind: type[DottedVersion]) -> VersionRange:
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise ConfigurationError(
            f"{text!r} is not a condition", why="it is a version, or >= or <= and a version"
        )
    return VersionRange(operator=match[1], version=kind.parse(match[2]))
