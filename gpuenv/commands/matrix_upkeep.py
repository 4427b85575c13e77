"""Commands that keep the matrix true: ``matrix verify`` and ``matrix update``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from gpuenv import output
from gpuenv.commands import command
from gpuenv.commands.options import MatrixOption, TorchOption, load_chosen_matrix
from gpuenv.errors import EXIT_CHECK_FAILED, EXIT_OK

if TYPE_CHECKING:
    from gpuenv.index.simple import SimpleClient
    from gpuenv.matrix.verify import Verification
    from gpuenv.wheelfacts import WheelReading

_PANEL = "Package sources"

IndexUrlOption = Annotated[
    str | None,
    typer.Option(
        "--index-url", metavar="URL", help="The main package index.", rich_help_panel=_PANEL
    ),
]
TorchIndexUrlOption = Annotated[
    str | None,
    typer.Option(
        "--torch-index-url",
        metavar="URL",
        help="Root of the PyTorch indexes, or a pattern with {variant}.",
        rich_help_panel=_PANEL,
    ),
]
CaBundleOption = Annotated[
    str | None,
    typer.Option(
        "--ca-bundle",
        metavar="FILE",
        help="Certificates to trust for https.",
        rich_help_panel=_PANEL,
    ),
]
DeepOption = Annotated[
    bool,
    typer.Option(
        "--deep",
        help="Read the architectures of the kernels too (10 MB a wheel), and the companions.",
    ),
]


def verify(
    torch: TorchOption = None,
    deep: DeepOption = False,
    index_url: IndexUrlOption = None,
    torch_index_url: TorchIndexUrlOption = None,
    ca_bundle: CaBundleOption = None,
    matrix_file: MatrixOption = None,
) -> None:
    """Re-read the wheels and say where the matrix differs from them.

    Only parts of each wheel are read, about 2 MB. Rows whose wheel cannot be read here are listed
    as unproven. Exit code 1 when a row differs.

    Example: gpuenv matrix verify --torch 2.9
    """
    from gpuenv.index.survey import survey_wheels
    from gpuenv.matrix.verify import (
        verify_rows,
        wanted_companions,
        wanted_packages,
        wanted_wheels,
    )
    from gpuenv.versions import TorchVersion

    out = output.current()
    matrix = load_chosen_matrix(matrix_file)
    prefix = TorchVersion.parse(torch) if torch else None
    rows = [row for row in matrix.rows if prefix is None or prefix.is_prefix_of(row.torch)]

    def tell(reading: WheelReading) -> None:
        result = reading.facts.filename if reading.facts else f"not read: {reading.reason}"
        out.detail(f"torch {reading.torch}+{reading.variant} {reading.arch}: {result}")

    survey = survey_wheels(
        _client(index_url, torch_index_url, ca_bundle),
        wanted_wheels(rows),
        packages=wanted_packages(matrix),
        companions=wanted_companions(rows) if deep else (),
        deep=deep,
        on_read=tell,
    )
    verification = verify_rows(matrix, rows, survey)
    out.answer(
        verification.as_dict(),
        human=lambda: _print_verification(verification),
        status="partial" if verification.has_drift else "success",
        exit_code=EXIT_CHECK_FAILED if verification.has_drift else EXIT_OK,
    )


def _client(
    index_url: str | None, torch_index_url: str | None, ca_bundle: str | None
) -> SimpleClient:
    from gpuenv.index.host_config import SourceFlags, load_package_sources
    from gpuenv.index.simple import SimpleClient
    from gpuenv.index.survey import without_constraints

    sources = load_package_sources(
        os.environ,
        flags=SourceFlags(
            index_url=index_url, torch_index_url=torch_index_url, ca_bundle=ca_bundle
        ),
    )
    for warning in sources.warnings:
        output.current().warn(warning)
    return SimpleClient(without_constraints(sources))


def _print_verification(verification: Verification) -> None:
    from rich.table import Table

    out = output.current()
    console = out.console()
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("row", no_wrap=True)
    table.add_column("CPU", no_wrap=True)
    table.add_column("status", no_wrap=True)
    table.add_column("", overflow="fold")
    for verdict in verification.verdicts:
        if verdict.status != "unproven" or out.verbosity > 0:
            said = "\n".join(map(str, verdict.differences)) or verdict.reason
            table.add_row(verdict.row.label, verdict.row.arch, verdict.status, said)
    if table.row_count:
        console.print(table, markup=False)
    console.print(
        f"{verification.count('confirmed')} rows confirmed, {verification.count('drift')} differ, "
        f"{verification.count('unproven')} cannot be proven by {verification.index}",
        markup=False,
    )
    if verification.unlisted:
        named = ", ".join(verification.unlisted)
        console.print(f"not in the matrix: torch {named}; see gpuenv matrix update", markup=False)
    if out.verbosity <= 0:
        for reason, count in verification.reasons():
            out.note(f"unproven, {count} row{'s' if count > 1 else ''}: {reason}")
    out.note(f"read {verification.bytes_read / 1e6:.1f} MB")


def register(group: typer.Typer) -> None:
    """Add the commands to the group ``matrix``."""
    command(group, "verify")(verify)
