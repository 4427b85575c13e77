"""The matrix as a table: which rows, which columns, and the part of the README made from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuenv.matrix.gpus import parse_code
from gpuenv.matrix.resolve import judge_all
from gpuenv.matrix.wish import Wish
from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpuenv.matrix.model import Matrix, Row
    from gpuenv.spec import MatrixRequest
    from gpuenv.versions import ComputeCapability

README_BEGIN = "<!-- matrix:begin -->"
README_END = "<!-- matrix:end -->"
_GAP = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of the list.

    Attributes:
        rank: Narrow terminals drop the column with the highest rank first.
    """

    title: str
    cells: tuple[str, ...]
    rank: int

    @property
    def width(self) -> int:
        """The widest cell, or the title."""
        return max(map(len, (self.title, *self.cells)))


def select_rows(matrix: Matrix, request: MatrixRequest, *, all_patches: bool) -> tuple[Row, ...]:
    """Return the rows that a filter lets through, newest first, ``cpu`` last within a release.

    The same rules as for ``resolve`` apply, except that uncertain rows are shown and that ``auto``
    means any variant, ``cpu`` included.

    Args:
        matrix: The whole of it.
        request: Its torch, CUDA, Python, GPUs, driver, cuDNN and NCCL filter; its CPU decides.
        all_patches: Show every patch, not only the newest of each minor and variant.
    """
    anything = request.cuda == "auto" and not (
        request.gpus or request.driver or request.cudnn or request.nccl
    )
    wish = Wish(
        request=request,
        cuda="any" if request.cuda == "auto" else request.cuda,
        gpus=request.gpus,
        driver=request.driver,
    )
    ignored = {"confidence", "cuda"} if anything else {"confidence"}
    fitting = [it.row for it in judge_all(matrix, wish) if it.broken <= ignored]
    if all_patches:
        return tuple(fitting)
    newest: dict[tuple[object, str], Row] = {}
    for row in fitting:
        newest.setdefault((row.minor, row.variant), row)
    return tuple(newest.values())


def row_as_dict(matrix: Matrix, row: Row) -> dict[str, Any]:
    """Return a row as ``gpuenv matrix list --json`` prints it."""

    def text(value: object) -> str | None:
        return None if value is None else str(value)

    return {
        "torch": str(row.torch),
        "torch_variant": row.variant,
        "cuda": text(row.cuda),
        "toolkit": text(row.toolkit),
        "cudnn": text(row.cudnn),
        "nccl": text(row.nccl),
        "triton": row.triton,
        "torchvision": row.torchvision,
        "torchaudio": row.torchaudio,
        "python_min": str(row.python_min),
        "python_max": str(row.python_max),
        "arch": row.arch,
        "arch_list": None if row.arch_list is None else list(row.arch_list),
        "min_driver": text(matrix.min_driver(row)),
        "toolkit_driver": text(matrix.toolkit_driver(row)),
        "source": "pypi" if row.pypi_default else "pytorch",
        "released": row.released,
        "confidence": row.confidence,
        "checked": row.checked,
        "evidence": list(row.source),
        "note": row.note,
    }


def list_columns(matrix: Matrix, rows: Sequence[Row]) -> tuple[Column, ...]:
    """Return the columns of the list for a person."""

    def column(title: str, values: Iterable[object], rank: int) -> Column:
        cells = tuple(
            str(value) if value is not None else "-" if row.cuda is None else "?"
            for row, value in zip(rows, values, strict=True)
        )
        return Column(title=title, cells=cells, rank=rank)

    return (
        column("torch", (row.torch for row in rows), 0),
        column("variant", (row.variant for row in rows), 0),
        column("CUDA", (row.toolkit or row.cuda for row in rows), 5),
        column("cuDNN", (row.cudnn for row in rows), 2),
        column("NCCL", (row.nccl for row in rows), 2),
        column("Python", (f"{row.python_min}-{row.python_max}" for row in rows), 1),
        column("GPUs", (gpu_span(row) for row in rows), 1),
        column("driver", (matrix.min_driver(row) for row in rows), 4),
        column("wheels", ("PyPI" if row.pypi_default else "PyTorch" for row in rows), 6),
        column("confidence", (row.confidence for row in rows), 3),
    )


def fit_columns(columns: Sequence[Column], width: int) -> tuple[Column, ...]:
    """Drop columns by rank until the rest fits; those of rank 0 stay."""
    kept = list(columns)
    while sum(column.width + _GAP for column in kept) - _GAP > width:
        droppable = [column for column in kept if column.rank > 0]
        if not droppable:
            break
        kept.remove(max(droppable, key=lambda column: column.rank))
    return tuple(kept)


def gpu_span(row: Row) -> str | None:
    """Write the compiled architectures shortly: ``7.0-12.0``, with ``+PTX`` where there is any."""
    if row.cuda is None:
        return None
    if row.arch_list is None:
        return "?"
    cubins = _cubins(row)
    span = f"{cubins[0]}-{cubins[-1]}" if len(cubins) > 1 else "".join(map(str, cubins))
    return f"{span}+PTX" if len(cubins) < len(row.arch_list) else span


def readme_table(matrix: Matrix) -> str:
    """Return the table of the README: one line a torch minor, its newest patch, on x86_64."""
    lines = [
        "| torch | CUDA variants | cuDNN | NCCL | GPUs | Python | driver from |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    by_minor: dict[object, list[Row]] = {}
    for row in matrix.rows_for("x86_64"):
        if row.confidence != "uncertain" and row.cuda is not None:
            by_minor.setdefault(row.minor, []).append(row)
    for rows in by_minor.values():
        current = [row for row in rows if row.torch == rows[0].torch]
        cells = (
            str(rows[0].torch),
            ", ".join(f"**{row.variant}**" if row.pypi_default else row.variant for row in current),
            _span(row.cudnn for row in current),
            _span(row.nccl for row in current),
            _span(cubin for row in current for cubin in _cubins(row)),
            _span(rows[0].pythons),
            str(min(filter(None, map(matrix.min_driver, current)))),
        )
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "The newest patch of each minor on x86_64; each exists as `cpu` too. Bold is what PyPI",
        "gives. GPUs are compute capabilities, oldest to newest over all variants; `gpuenv matrix",
        "list` tells them apart.",
    ]
    return "\n".join(lines) + "\n"


def _cubins(row: Row) -> list[ComputeCapability]:
    codes = map(parse_code, row.arch_list or ())
    return sorted(code.capability for code in codes if code.kind == "sm")


def _span(values: Iterable[Any]) -> str:
    known = sorted({value for value in values if value is not None})
    return str(known[0]) if len(known) == 1 else f"{known[0]} to {known[-1]}"


def replace_readme_table(readme: str, table: str) -> str:
    """Return the README with the table between its two markers replaced.

    Raises:
        ValueError: A marker is missing.
    """
    before, begin, rest = readme.partition(README_BEGIN)
    _, end, after = rest.partition(README_END)
    if not begin or not end:
        raise ValueError(f"the README lacks {README_BEGIN} or {README_END}")
    return f"{before}{begin}\n{table}{end}{after}"
