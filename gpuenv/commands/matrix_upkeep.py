"""Commands that keep the matrix true: ``matrix verify`` and ``matrix update``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from gpuenv import output
from gpuenv.commands import command
from gpuenv.commands.image import CaBundleOption, IndexUrlOption, TorchIndexUrlOption
from gpuenv.commands.options import MatrixOption, TorchOption, load_chosen_matrix
from gpuenv.errors import EXIT_CHECK_FAILED, EXIT_OK

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuenv.index.simple import SimpleClient
    from gpuenv.matrix.verify import Verification
    from gpuenv.wheelfacts import WheelReading

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
    from gpuenv.upkeep import select_rows, verify_matrix
    from gpuenv.versions import TorchVersion

    out = output.current()
    matrix = load_chosen_matrix(matrix_file)
    verification = verify_matrix(
        matrix,
        select_rows(matrix, TorchVersion.parse(torch) if torch else None),
        _client(index_url, torch_index_url, ca_bundle),
        deep=deep,
        on_read=_teller(out),
    )
    out.answer(
        verification.as_dict(),
        human=lambda: _print_verification(verification),
        status="partial" if verification.has_drift else "success",
        exit_code=EXIT_CHECK_FAILED if verification.has_drift else EXIT_OK,
    )


def update(
    torch: TorchOption = None,
    write: Annotated[
        bool, typer.Option("--write", help="Change the file; without it only the diff is shown.")
    ] = False,
    deep: DeepOption = False,
    index_url: IndexUrlOption = None,
    torch_index_url: TorchIndexUrlOption = None,
    ca_bundle: CaBundleOption = None,
    matrix_file: MatrixOption = None,
) -> None:
    """Propose changes to the matrix file from published wheels.

    New releases are added with what their wheels say; rows that differ from their wheel are
    corrected. Nothing is dropped, and a person reads the diff.

    Example: gpuenv matrix update --torch 2.14
    """
    from datetime import datetime, timezone

    from gpuenv.matrix.file import load_document, save_document
    from gpuenv.matrix.load import shipped_matrix_path
    from gpuenv.matrix.update import plan_update
    from gpuenv.upkeep import survey_for_update
    from gpuenv.versions import TorchVersion

    out = output.current()
    path = matrix_file or shipped_matrix_path()
    document = load_document(path)
    survey = survey_for_update(
        document,
        _client(index_url, torch_index_url, ca_bundle),
        torch=TorchVersion.parse(torch) if torch else None,
        deep=deep,
        on_read=_teller(out),
    )
    plan = plan_update(document, survey, today=datetime.now(timezone.utc).date().isoformat())
    written = write and bool(plan.changes)
    if written:
        save_document(path, plan.text)
    for note in plan.notes:
        out.warn(note)
    out.note(
        f"nothing to change in {path}"
        if not plan.changes
        else f"wrote {path}"
        if written
        else f"{len(plan.changes)} changes proposed; --write puts them into {path}"
    )
    out.answer(
        {
            "path": str(path),
            "changes": [change.as_dict() for change in plan.changes],
            "notes": list(plan.notes),
            "diff": plan.diff,
            "written": written,
        },
        human=lambda: out.text(plan.diff) if plan.diff else None,
    )


def _teller(out: output.Output) -> Callable[[WheelReading], None]:
    """Return what tells about each wheel under ``-v``; it is called from other threads."""

    def tell(reading: WheelReading) -> None:
        result = reading.facts.filename if reading.facts else f"not read: {reading.reason}"
        out.detail(f"torch {reading.torch}+{reading.variant} {reading.arch}: {result}")

    return tell


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
    command(group, "update")(update)
