"""Commands of the area: matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gpuenv import output
from gpuenv.commands import command, matrix_upkeep, subcommands
from gpuenv.commands.options import (
    MatrixOption,
    RequestFlags,
    host_for,
    load_chosen_matrix,
    read_project_request,
    read_request,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuenv.matrix.explain import Explanation
    from gpuenv.matrix.model import Matrix, Row
    from gpuenv.spec import Arch, EnvironmentSpec

group = subcommands(
    "matrix",
    "Show, resolve and check which PyTorch exists with which CUDA, cuDNN and NCCL.",
)


@command(group, "list")
def list_(
    request: RequestFlags,
    all_patches: Annotated[
        bool, typer.Option("--all-patches", help="Every patch, not only the newest of a minor.")
    ] = False,
    matrix_file: MatrixOption = None,
) -> None:
    """List the rows of the compatibility matrix, newest first.

    The flags filter: only rows that fulfil all of them are shown, whatever gpuenv.toml says. A
    narrow terminal shows fewer columns; --json has all of them.

    confidence says how sure a row is: verified was read in the wheel or in two sources, derived
    follows from upstream's rules or one good source, uncertain is not confirmed and is chosen only
    when torch and CUDA name it.

    Example: gpuenv matrix list --gpu V100 --driver 550.54.15
    """
    from gpuenv.matrix.table import row_as_dict, select_rows

    matrix = load_chosen_matrix(matrix_file)
    wanted = read_request(matrix, request.given(), environ={})
    rows = select_rows(matrix, wanted, all_patches=all_patches)
    output.current().answer(
        {"arch": wanted.arch, "rows": [row_as_dict(matrix, row) for row in rows]},
        human=lambda: _print_rows(matrix, rows, wanted.arch),
    )


@command(group, "resolve")
def resolve(
    request: RequestFlags,
    matrix_file: MatrixOption = None,
) -> None:
    """Choose the newest PyTorch and CUDA that fulfil a request.

    Flags stand above GPUENV_* variables and those above gpuenv.toml. Nothing is asked of any
    network. What cannot be had is refused with the rule that refuses it and the nearest rows (exit
    code 3).

    Example: gpuenv matrix resolve --torch 2.9 --cuda 12.8
    """
    from gpuenv.matrix.resolve import resolve as resolve_request

    matrix = load_chosen_matrix(matrix_file)
    wanted = read_project_request(matrix, request.given())
    spec = resolve_request(matrix, wanted, host=host_for(wanted))
    tell_resolved(spec)
    output.current().answer(spec.as_dict(), human=lambda: _print_spec(spec))


@command(group, "explain")
def explain(
    request: RequestFlags,
    matrix_file: MatrixOption = None,
) -> None:
    """Say which rule removed which rows, and what is left.

    Rules are applied in the order shown, and a row counts for the first rule that removes it. -v
    lists every row with every rule it breaks, as --json does.

    Example: gpuenv matrix explain --torch 2.8 --cuda 11.8
    """
    from gpuenv.matrix.explain import explain as explain_request

    matrix = load_chosen_matrix(matrix_file)
    wanted = read_project_request(matrix, request.given())
    explanation = explain_request(matrix, wanted, host=host_for(wanted))
    output.current().answer(explanation.as_dict(), human=lambda: _print_explanation(explanation))


def tell_resolved(spec: EnvironmentSpec) -> None:
    """Say how a request was read and what to know of the row; every command that resolves does."""
    out = output.current()
    for note in spec.notes:
        out.note(f"note: {note}")
    for warning in spec.warnings:
        out.warn(warning)
    if spec.confidence == "derived" and not spec.warnings:
        out.detail("this row was not read in the wheel itself; a build checks what is in the image")


def _print_rows(matrix: Matrix, rows: Sequence[Row], arch: Arch) -> None:
    from rich.table import Table

    from gpuenv.matrix.table import fit_columns, list_columns

    console = output.current().console()
    shown = fit_columns(list_columns(matrix, rows), console.width)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for column in shown:
        table.add_column(column.title, no_wrap=True, overflow="fold")
    releases = [row.torch for row in rows]
    for index, cells in enumerate(zip(*(column.cells for column in shown), strict=True)):
        if index and releases[index] != releases[index - 1]:
            table.add_row()
        table.add_row(*cells, style="dim" if "uncertain" in cells else "")
    console.print(table)
    output.current().note(f"{len(rows)} rows, {arch}")


def _print_spec(spec: EnvironmentSpec) -> None:
    from rich.table import Table

    console = output.current().console()
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for name, value in spec_lines(spec):
        table.add_row(name, value)
    console.print(table)


def spec_lines(spec: EnvironmentSpec) -> list[tuple[str, str]]:
    """Return a resolved environment as lines for a person: what, and which."""
    lines: list[tuple[str, object]] = [
        ("torch", f"{spec.torch}+{spec.torch_variant}"),
        ("CUDA", spec.toolkit or spec.cuda),
        ("cuDNN", spec.cudnn),
        ("NCCL", spec.nccl),
        ("triton", spec.triton),
        ("torchvision", spec.torchvision),
        ("torchaudio", spec.torchaudio),
        ("Python", f"{spec.python}{'' if spec.python_source == 'base' else ' (installed by uv)'}"),
        ("CPU", spec.arch),
        ("GPU code", " ".join(spec.arch_list)),
        ("driver", f"{spec.min_driver} or newer" if spec.min_driver else None),
        ("base image", spec.base_image),
        ("flavor", spec.flavor),
        ("nvcc", " ".join(spec.devel_packages)),
        ("wheels from", spec.source),
        ("confidence", spec.confidence),
    ]
    return [(name, str(value)) for name, value in lines if value]


def _print_explanation(explanation: Explanation) -> None:
    from rich.table import Table
    from rich.text import Text

    from gpuenv.matrix.explain import summarise_rows, summarise_step

    out = output.current()
    console = out.console()
    console.print(f"Request: {explanation.wish.in_words()}", markup=False)
    for note in explanation.wish.notes:
        console.print(f"  {note}", markup=False)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("rule", no_wrap=True)
    table.add_column("removes", justify="right", no_wrap=True)
    table.add_column("leaves", justify="right", no_wrap=True)
    table.add_column("the rows removed, and why the newest of them", overflow="fold")
    for step in explanation.steps:
        if step.removed:
            text = Text(summarise_step(explanation, step))
            table.add_row(step.rule, str(len(step.removed)), str(step.left), text)
    console.print()
    console.print(table)
    console.print()
    if out.verbosity > 0:
        _print_verdicts(explanation)
        console.print()
    if explanation.answer is not None:
        spec = explanation.answer
        left = summarise_rows(explanation, explanation.accepted)
        console.print(f"Left:    {left}", markup=False)
        console.print(f"Chosen:  {spec.torch}+{spec.torch_variant}", markup=False)
    if explanation.refusal is not None:
        console.print("Nothing is left.", markup=False)
        console.print(explanation.refusal.why, markup=False)
        for row in explanation.refusal.data["nearest"]:
            differs = "; ".join(it["text"] for it in row["differs"])
            console.print(f"  nearest: {differs}", markup=False)


def _print_verdicts(explanation: Explanation) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("row", no_wrap=True)
    table.add_column("breaks", overflow="fold")
    for verdict in explanation.verdicts:
        if "arch" not in verdict.broken:
            texts = [f"{it.rule}: {it.text}" for it in verdict.rejections]
            table.add_row(verdict.row.label, Text("\n".join(texts) or "nothing"))
    output.current().console().print(table)


def register(app: typer.Typer) -> None:
    """Add the area's commands to ``app``."""
    matrix_upkeep.register(group)
    app.add_typer(group, name="matrix")
