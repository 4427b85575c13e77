"""Commands of the area: run."""

from __future__ import annotations

import os
import sys
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated

import typer

from gpuenv import output
from gpuenv.commands import command
from gpuenv.commands.image import BuildFlags, ContentFlags, SourceFlags
from gpuenv.commands.launching import (
    CommandAfterDashes,
    DryRunOption,
    ImageFlags,
    LaunchFlags,
    gather_facts,
    read_wish,
    read_workspace_at,
    say,
    say_all,
    show_plan,
    words_after_dashes,
)
from gpuenv.commands.options import MatrixOption, RequestFlags

if TYPE_CHECKING:
    from gpuenv.launch import RunWish


def register(app: typer.Typer) -> None:
    """Add the area's commands to ``app``."""
    command(app, "run", cls=CommandAfterDashes)(run)


def run(
    ctx: typer.Context,
    request: RequestFlags,
    content: ContentFlags,
    sources: SourceFlags,
    how: BuildFlags,
    launch: LaunchFlags,
    image: Annotated[
        str | None,
        typer.Argument(
            metavar="[IMAGE]",
            help="Any image; without one, what the request asks for, built if it is not there.",
            show_default=False,
        ),
    ] = None,
    *,
    image_ref: Annotated[
        str | None, typer.Option("--image", metavar="IMAGE", help="The same as the argument.")
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Name of the environment.")
    ] = None,
    interactive: Annotated[
        bool | None,
        typer.Option(
            "--interactive/--no-interactive",
            "-i",
            help="Pass standard input to the command; the default in a terminal.",
        ),
    ] = None,
    tty: Annotated[
        bool | None,
        typer.Option(
            "--tty/--no-tty", "-t", help="Allocate a terminal; the default in a terminal."
        ),
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Leave it running in the background.")
    ] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the container when the command has ended.")
    ] = False,
    entrypoint: Annotated[
        str | None,
        typer.Option(
            "--entrypoint", metavar="PROGRAM", help='In place of the image\'s; "" for none.'
        ),
    ] = None,
    nproc_per_node: Annotated[
        str | None,
        typer.Option(
            "--nproc-per-node",
            metavar="N|gpu",
            help="Start N processes with torchrun --standalone; gpu: one for each GPU.",
        ),
    ] = None,
    dry_run: DryRunOption = False,
    matrix_file: MatrixOption = None,
) -> None:
    """Run a command in a container with the right GPUs, memory, user and mounts.

    Without IMAGE the image is the one that fits the request, or this host where nothing is asked.
    The exit code is the command's own; 127 and 126 say that it is not there or may not be run.

    Example: gpuenv run -- python -c "import torch; print(torch.__version__)"
    """
    from gpuenv.commands.site import open_site
    from gpuenv.containers.foreground import Streams
    from gpuenv.containers.identity import parse_name
    from gpuenv.containers.plan import Note
    from gpuenv.errors import UsageError
    from gpuenv.launch import plan_run, run_attached, run_detached

    out = output.current()
    if image and image_ref:
        raise UsageError(
            "the image is given twice",
            why=f"{image} and --image {image_ref}",
            fix="leave one of them out",
        )
    images = ImageFlags(
        request=request, content=content, sources=sources, how=how, image=image or image_ref,
        matrix_file=matrix_file, features=(),
    )  # fmt: skip
    asked = images.given()
    name = parse_name(name or _default_name(launch))
    wanted = _run_wish(
        words_after_dashes(ctx),
        entrypoint=entrypoint,
        nproc_per_node=nproc_per_node,
        interactive=interactive,
        tty=tty,
        detach=detach,
        keep=keep,
    )
    with open_site(how.engine) as site:
        engine = site.engine
        found = images.planned(site) if dry_run else images.obtain(site)
        workspace = read_workspace_at(site, launch, name=name, dry_run=dry_run)
        wish = read_wish(
            launch,
            image=images.image or found.tags[0],
            name=name,
            kind="run",
            workspace=workspace,
            request=asked,
            remote=site.remote,
        )
        plan = plan_run(wish, gather_facts(site, found, workspace), wanted)
        if dry_run:
            show_plan(engine, plan)
            return
        say_all(plan.notes)
        if detach:
            info = run_detached(engine, plan, on_note=say)
            data = {"name": name, "container": info.name, "id": info.id}
            out.answer(data, human=lambda: out.text(name))
            return
        streams = Streams(stdin=0 if wanted.interactive else None, stdout=2 if out.json_mode else 1)
        result = run_attached(engine, plan, streams=streams, keep=keep, on_note=say)
    if result.oom_killed:
        limit = launch.memory or "the host's memory"
        say(Note(level="warning", text=f"the kernel ended it for want of memory ({limit})"))
    out.answer(
        {
            "name": name,
            "container": result.container,
            "kept": keep,
            "command_exit_code": result.exit_code,
            "oom_killed": result.oom_killed,
        },
        human=lambda: None,
        status="success" if result.exit_code == 0 else "error",
        exit_code=result.exit_code,
    )


def _default_name(launch: LaunchFlags) -> str:
    from gpuenv.containers.identity import default_name, new_session

    folder = Path(launch.remote_workspace or launch.workspace or ".").expanduser()
    source = "run" if launch.no_workspace else str(Path.cwd() / folder)
    return f"{default_name(PurePath(source))}-{new_session()[:4]}"


def _run_wish(
    words: tuple[str, ...],
    *,
    entrypoint: str | None,
    nproc_per_node: str | None,
    interactive: bool | None,
    tty: bool | None,
    detach: bool,
    keep: bool,
) -> RunWish:
    """Decide what the command gets of our terminal: all of it in one, nothing outside."""
    from gpuenv.launch import RunWish, parse_processes_per_node

    out = output.current()
    terminal = sys.stdin.isatty() and sys.stdout.isatty() and not detach and not out.json_mode
    return RunWish(
        command=words,
        entrypoint=None if entrypoint is None else ((entrypoint,) if entrypoint else ()),
        processes_per_node=None
        if nproc_per_node is None
        else parse_processes_per_node(nproc_per_node),
        interactive=(terminal if interactive is None else interactive) and not detach,
        tty=terminal if tty is None else tty,
        detach=detach,
        keep=keep,
        term=os.environ.get("TERM", ""),
    )
