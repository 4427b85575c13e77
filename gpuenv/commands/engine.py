"""Commands of the area: engine."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from gpuenv import output
from gpuenv.commands import command, subcommands

if TYPE_CHECKING:
    from gpuenv.engine.private import DownResult, PrivateEngine
    from gpuenv.engine.status import EngineStatus

group = subcommands(
    "engine",
    "Show the container engine in use; start and stop one of gpuenv's own where none runs.",
)

EngineOption = Annotated[
    str | None,
    typer.Option(
        "--engine",
        "--host",
        metavar="ADDRESS",
        help="Address, socket or Docker context; 'private' is gpuenv's own.",
    ),
]


@command(group, "status")
def status(engine: EngineOption = None) -> None:
    """Show which container engine answers and what it can do.

    Without --engine the order is GPUENV_ENGINE, GPUENV_HOST, DOCKER_HOST, DOCKER_CONTEXT, host in
    gpuenv.toml, the current Docker context, then the usual sockets and that of gpuenv engine up.

    Example: gpuenv engine status
    """
    from gpuenv.commands.site import settled_host
    from gpuenv.engine.status import probe_status, require_chosen
    from gpuenv.ssh.remote import open_remote

    out = output.current()
    found = probe_status(engine, os.environ, settled=settled_host(), transport=open_remote)
    require_chosen(found)
    out.answer(found.as_dict(), human=lambda: _print_status(found))


def _print_status(found: EngineStatus) -> None:
    from rich.table import Table

    from gpuenv.engine.errors import EngineSocketMissingError
    from gpuenv.engine.status import describe

    out = output.current()
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in describe(found):
        table.add_row(name, value)
    for attempt in found.attempts:
        missing = isinstance(attempt.error, EngineSocketMissingError)
        if missing or attempt.address == found.chosen:
            continue
        state = "answers too" if attempt.error is None else attempt.error.why or attempt.error.what
        table.add_row("Also tried", f"{attempt.address.url}: {state}")
    out.console().print(table)


@command(group, "up")
def up(
    force_private: Annotated[
        bool,
        typer.Option("--force-private", help="Start one even where another engine answers."),
    ] = False,
) -> None:
    """Start an engine of gpuenv's own where none answers.

    It needs root and uses the distribution's docker.io, which is installed from the package mirror
    where it is missing. An engine that runs already is used and never touched.

    Example: gpuenv engine up
    """
    from gpuenv.commands.site import settled_host
    from gpuenv.engine.private import load_record
    from gpuenv.engine.private import up as start
    from gpuenv.engine.status import probe_status
    from gpuenv.ssh.remote import open_remote

    out = output.current()
    known = load_record(os.environ)
    if not force_private and not (known and known.alive):
        found = probe_status(None, os.environ, settled=settled_host(), transport=open_remote)
        if found.chosen is not None:
            chosen = found.chosen
            out.answer(
                {"started": False, "private": False, "address": chosen.url},
                human=lambda: out.text(
                    f"{chosen.url} answers already ({chosen.found_via}); nothing was started"
                ),
            )
            return
    engine = start(os.environ, say=out.note)
    started = known is None or known.pid != engine.pid
    out.answer(
        {"started": started, "private": True, **engine.as_dict()},
        human=lambda: _print_up(engine, started=started),
    )


def _print_up(engine: PrivateEngine, *, started: bool) -> None:
    from gpuenv.engine.connect import find_addresses

    out = output.current()
    out.text(f"{engine.address} {'answers now' if started else 'answers already'}")
    first = find_addresses(None, os.environ)[0]
    if first.url != engine.address:
        out.note(
            "gpuenv uses it when nothing else answers; to prefer it: export GPUENV_ENGINE=private"
        )
    out.note(f"for other programs: export DOCKER_HOST={engine.address}")


@command(group, "down")
def down(
    purge: Annotated[
        bool, typer.Option("--purge", help="Delete its images, containers and volumes as well.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Stop gpuenv's own engine, and only that one.

    Its containers stop with it. Images and volumes stay for the next start, unless --purge is
    given.

    Example: gpuenv engine down --purge --yes
    """
    from gpuenv.engine.private import down as stop

    out = output.current()
    if purge and not yes:
        _confirm_purge()
    result = stop(os.environ, purge=purge, say=out.note)
    engine = result.engine
    out.answer(
        {
            "stopped": result.was_running,
            "purged": result.purged,
            **(engine.as_dict() if engine else {}),
        },
        human=lambda: out.text(_down_words(result)),
    )


def _down_words(result: DownResult) -> str:
    if result.engine is None:
        gone = "; the data of an earlier one is deleted" if result.purged else ""
        return f"gpuenv runs no engine of its own{gone}"
    words = "stopped" if result.was_running else "had ended already; what it left is cleared up"
    kept = "its data is deleted" if result.purged else f"its data stays in {result.engine.data_dir}"
    return f"the private engine {words}; {kept}"


def _confirm_purge() -> None:
    import sys

    from gpuenv.errors import UsageError

    if not sys.stdin.isatty():
        raise UsageError(
            "--purge deletes images and volumes and there is nobody to ask",
            why="standard input is not a terminal",
            fix="gpuenv engine down --purge --yes",
        )
    typer.confirm("Delete all images, containers and volumes of it?", abort=True, err=True)


def register(app: typer.Typer) -> None:
    """Add the area's commands to ``app``."""
    app.add_typer(group)
