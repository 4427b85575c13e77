"""Commands of the area: life."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from gpuenv import output
from gpuenv.commands import command
from gpuenv.commands.image import EngineOption
from gpuenv.commands.launching import DryRunOption, complete_environment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from gpuenv.commands.site import Site
    from gpuenv.containers.lifecycle import Environment
    from gpuenv.containers.usage import ContainerUse, UsageMeter
    from gpuenv.host.gpu_inventory import GpuUse
    from gpuenv.life import EnvironmentRow

NamesArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAME]...", autocompletion=complete_environment),
]
EverybodyOption = Annotated[bool, typer.Option("--all", "-a", help="Everybody's, not only yours.")]


def register(app: typer.Typer) -> None:
    """Add the area's commands to ``app``."""
    command(app, "ps")(ps)
    command(app, "logs")(logs)
    command(app, "stop")(stop)
    command(app, "start")(start)
    command(app, "rm")(rm)
    command(app, "top")(top)


def ps(
    *,
    everybody: EverybodyOption = False,
    running: Annotated[bool, typer.Option("--running", help="Leave out what is stopped.")] = False,
    engine_address: EngineOption = None,
) -> None:
    """List your environments, running and stopped.

    Example: gpuenv ps --json
    """
    from gpuenv.commands.site import open_site
    from gpuenv.life import describe, utc_now

    out = output.current()
    with open_site(engine_address) as site:
        found = _mine(site, everybody=everybody)
        if running:
            found = tuple(environment for environment in found if environment.running)
        rows = describe(
            found,
            files_of=site.files,
            owner=site.caller.uid,
            now=utc_now(),
            way_to=None if site.remote is None else site.way_to,
        )
    out.answer({"environments": [row.as_dict() for row in rows]}, human=lambda: _print_rows(rows))


def logs(
    name: Annotated[str, typer.Argument(metavar="NAME", autocompletion=complete_environment)],
    *,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until it ends or Ctrl-C.")
    ] = False,
    tail: Annotated[
        int | None, typer.Option("--tail", "-n", metavar="N", help="Only the last N lines.")
    ] = None,
    timestamps: Annotated[
        bool, typer.Option("--timestamps", help="Put the time before each line.")
    ] = False,
    engine_address: EngineOption = None,
) -> None:
    """Show what an environment printed.

    Example: gpuenv logs train --tail 50
    """
    from gpuenv.commands.site import open_site
    from gpuenv.containers.lifecycle import select_environments
    from gpuenv.errors import UsageError

    out = output.current()
    if follow and out.json_mode:
        raise UsageError(
            "--follow and --json cannot be had together",
            why="the one JSON object is printed at the end, and there is none",
            fix="leave one of them out",
        )
    with open_site(engine_address) as site:
        engine = site.engine
        environment, *others = select_environments(_mine(site, everybody=True), name)
        for other in others:
            identity = other.identity
            out.note(
                f"this is {environment.identity.kind}; "
                f"gpuenv logs {identity.name}-{identity.kind} shows {identity.kind}"
            )
        chunks = engine.logs(
            environment.container.id, follow=follow, tail=tail, timestamps=timestamps
        )
        if out.json_mode:
            lines = [
                {"stream": chunk.stream, "text": chunk.data.decode("utf-8", "replace")}
                for chunk in chunks
            ]
            out.answer({"name": environment.identity.name, "output": lines}, human=lambda: None)
            return
        for chunk in chunks:
            stream = sys.stdout.buffer if chunk.stream == "stdout" else sys.stderr.buffer
            stream.write(chunk.data)
            stream.flush()


def stop(
    names: NamesArgument = None,
    *,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="All of your environments.")
    ] = False,
    timeout: Annotated[
        int,
        typer.Option("--timeout", metavar="SECONDS", help="Kill it if it takes longer."),
    ] = 10,
    dry_run: DryRunOption = False,
    engine_address: EngineOption = None,
) -> None:
    """Stop environments; start brings them back with the same port, token and host key.

    Example: gpuenv stop train --dry-run
    """
    from gpuenv.commands.site import open_site

    with open_site(engine_address) as site:
        engine = site.engine
        chosen = _chosen(site, names, everything=everything)
        if not dry_run:
            for environment in chosen:
                engine.stop(environment.container.id, timeout_s=timeout)
                if environment.identity.kind == "jupyter":
                    site.leave(environment.identity.name)
    _answer("stopped", chosen, dry_run=dry_run)


def start(
    names: NamesArgument = None,
    *,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="All of your environments.")
    ] = False,
    ready_timeout: Annotated[
        str,
        typer.Option("--ready-timeout", metavar="TIME", help="How long to wait for its answer."),
    ] = "2m",
    dry_run: DryRunOption = False,
    engine_address: EngineOption = None,
) -> None:
    """Start stopped environments again, with the same port, token and host key.

    Example: gpuenv start train --dry-run
    """
    from gpuenv.commands.site import open_site
    from gpuenv.containers.limits import parse_duration
    from gpuenv.life import start_again

    timeout_s = parse_duration(ready_timeout, flag="--ready-timeout")
    urls: dict[str, str] = {}
    with open_site(engine_address) as site:
        engine = site.engine
        chosen = _chosen(site, names, everything=everything)
        for environment in () if dry_run else chosen:
            files = site.files(environment.identity.name)
            with files.locked():
                running = start_again(
                    engine,
                    environment,
                    files,
                    timeout_s=timeout_s,
                    via=site.via(environment.identity.name),
                    connect=site.connect,
                )
            if running is not None:
                urls[environment.container.id] = running.url
    _answer("started", chosen, dry_run=dry_run, urls=urls)


def rm(
    names: NamesArgument = None,
    *,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="All of your environments.")
    ] = False,
    volumes: Annotated[
        bool,
        typer.Option("--volumes", help="Your cache volumes too, where nothing uses them."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dry_run: DryRunOption = False,
    engine_address: EngineOption = None,
) -> None:
    """Remove environments with their tokens and keys; the workspace stays as it is.

    Example: gpuenv rm train --dry-run
    """
    from gpuenv.commands.site import open_site
    from gpuenv.life import remove

    removed: tuple[str, ...] = ()
    with open_site(engine_address) as site:
        engine = site.engine
        mine = _mine(site, everybody=False)
        chosen = _chosen(site, names, everything=everything)
        if chosen and not dry_run:
            _ask(chosen, volumes=volumes, yes=yes)
            aliases = {
                one.identity.name: site.alias(one.identity.name)
                for one in chosen
                if one.identity.kind == "ssh"
            }
            for one in chosen:
                if one.identity.kind == "jupyter":
                    site.leave(one.identity.name)
            removed = remove(
                engine, chosen, mine, files_of=site.files, owner=site.caller.uid, volumes=volumes
            ).volumes
            site.forget(aliases)
    _answer("removed", chosen, dry_run=dry_run, volumes=removed)


def top(
    *,
    once: Annotated[bool, typer.Option("--once", help="Print one table and exit.")] = False,
    interval: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", help="Pause between two readings.")
    ] = 2.0,
    everybody: EverybodyOption = False,
    engine_address: EngineOption = None,
) -> None:
    """Show what each environment uses now: processors, memory, network and GPUs.

    Example: gpuenv top --once --json
    """
    from gpuenv.commands.site import open_site
    from gpuenv.containers.usage import UsageMeter
    from gpuenv.errors import ConfigurationError
    from gpuenv.host.gpu_inventory import probe_gpu_use

    out = output.current()
    if not 0.2 <= interval <= 3600:  # noqa: PLR2004 - faster only burns the host
        raise ConfigurationError(
            f"--interval {interval:g} is out of range",
            why="it may be 0.2 to 3600 seconds",
            fix="--interval 2",
        )
    with open_site(engine_address) as site:
        engine = site.engine
        meter = UsageMeter(engine, gpu_use=probe_gpu_use if engine.capabilities.local else None)
        if once or out.json_mode:
            uses, gpus = meter.read_rates(
                lambda: _mine(site, everybody=everybody), apart_s=min(interval, 1.0)
            )
            out.answer(_use_data(uses, gpus), human=lambda: _print_uses(uses, gpus))
            return
        meter.read(_mine(site, everybody=everybody))
        _live(site, meter, interval=interval, everybody=everybody)


# --- below the commands --------------------------------------------------------------------------


def _mine(site: Site, *, everybody: bool) -> tuple[Environment, ...]:
    from gpuenv.containers.lifecycle import list_environments

    return list_environments(site.engine, owner=None if everybody else site.caller.uid)


def _chosen(site: Site, names: list[str] | None, *, everything: bool) -> tuple[Environment, ...]:
    from gpuenv.containers.lifecycle import select_environments
    from gpuenv.errors import UsageError

    if bool(names) == everything:
        raise UsageError(
            "which environments?" if not names else "names and --all contradict each other",
            why="name one or several, or give --all for all of yours",
            fix="gpuenv ps lists them",
        )
    mine = _mine(site, everybody=False)
    if everything:
        return mine
    found = [one for name in names or () for one in select_environments(mine, name)]
    return tuple({one.container.id: one for one in found}.values())


def _ask(chosen: tuple[Environment, ...], *, volumes: bool, yes: bool) -> None:
    from gpuenv.errors import UsageError

    listed = ", ".join(f"{e.identity.name} ({e.identity.kind})" for e in chosen)
    what = f"remove {listed}{' and your unused cache volumes' if volumes else ''}"
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(
            f"not confirmed: {what}", why="standard input is not a terminal", fix="give --yes"
        )
    typer.confirm(f"{what[0].upper()}{what[1:]}?", abort=True, err=True)


def _answer(
    done: str,
    chosen: tuple[Environment, ...],
    *,
    dry_run: bool,
    urls: dict[str, str] | None = None,
    volumes: tuple[str, ...] = (),
) -> None:
    out = output.current()
    data = {
        "dry_run": dry_run,
        done: [
            {
                "name": one.identity.name,
                "kind": one.identity.kind,
                "container": one.container.name,
                "url": (urls or {}).get(one.container.id),
            }
            for one in chosen
        ],
        "volumes": list(volumes),
    }

    def human() -> None:
        for one in chosen:
            url = (urls or {}).get(one.container.id, "")
            verb = f"would be {done}" if dry_run else done
            out.text(f"{one.identity.name} ({one.identity.kind}) {verb} {url}".rstrip())
        for volume in volumes:
            out.text(f"volume {volume} removed")
        if not chosen:
            out.note("nothing to do")

    out.answer(data, human=human)


_TITLES = ("NAME", "KIND", "STATE", "IMAGE", "GPUS", "WHERE", "AGE", "IDLE")
_SHORTENED = frozenset({"IMAGE", "GPUS"})
_LEGIBLE = 16


def shown_titles(lines: Sequence[tuple[str, ...]], width: int) -> tuple[str, ...]:
    """Return the columns of ``gpuenv ps`` that there is room for.

    The image gives way first: an address that is cut opens nothing. It is left out before so
    little of it is shown that it says nothing.
    """
    from gpuenv.matrix.table import Column, fit_columns

    columns = [
        Column(
            title=title,
            cells=tuple(cell[:_LEGIBLE] if title in _SHORTENED else cell for cell in cells),
            rank={"IMAGE": 3, "IDLE": 2, "AGE": 1}.get(title, 0),
        )
        for title, cells in zip(_TITLES, zip(*lines, strict=True), strict=True)
    ]
    return tuple(column.title for column in fit_columns(columns, width))


def _print_rows(rows: tuple[EnvironmentRow, ...]) -> None:
    from rich.table import Table

    from gpuenv.containers.limits import format_duration

    out = output.current()
    if not rows:
        out.note("nothing runs; gpuenv jupyter or gpuenv ssh starts something")
        return
    lines = [
        (
            row.environment.identity.name,
            row.environment.identity.kind,
            row.environment.container.state,
            row.environment.container.image.removeprefix("localhost/gpuenv/"),
            row.environment.identity.gpus,
            row.target or "-",
            format_duration(row.age_s),
            "-" if row.idle_s is None else format_duration(row.idle_s),
        )
        for row in rows
    ]
    shown = shown_titles(lines, out.table_width())
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in shown:
        table.add_column(title, no_wrap=title not in _SHORTENED)
    for line in lines:
        table.add_row(*(cell for title, cell in zip(_TITLES, line, strict=True) if title in shown))
    out.table(table)
    for row in rows:
        if row.trouble:
            out.warn(f"{row.environment.identity.name}: {row.trouble}")


def _use_data(uses: tuple[ContainerUse, ...], gpus: GpuUse) -> dict[str, object]:
    from gpuenv.containers.lifecycle import as_dict

    rates = dict(gpus.utilisation)
    return {
        "containers": [
            {
                **as_dict(use.environment),
                "cpu_percent": None if use.cpu_percent is None else round(use.cpu_percent, 1),
                "memory_bytes": use.memory_bytes,
                "memory_limit_bytes": use.memory_limit_bytes,
                "pids": use.pids,
                "network_rx_bytes": use.network_rx_bytes,
                "network_tx_bytes": use.network_tx_bytes,
                "gpu_use": [
                    {
                        "device_index": share.device_index,
                        "name": share.name,
                        "memory_bytes": share.memory_bytes,
                        "memory_total_bytes": share.memory_total_bytes,
                        "sm_percent": share.sm_percent,
                        "pids": list(share.pids),
                    }
                    for share in use.gpus
                ],
            }
            for use in uses
        ],
        "gpus": [
            {
                "device_index": gpu.device_index,
                "uuid": gpu.uuid,
                "name": gpu.name,
                "memory_bytes": gpu.memory_bytes,
                "memory_used_bytes": gpu.memory_used_bytes,
                "utilisation_percent": rates.get(gpu.device_index),
            }
            for gpu in gpus.gpus
        ],
        "gpus_found_via": gpus.found_via,
    }


def _use_table(uses: tuple[ContainerUse, ...], gpus: GpuUse) -> Table:
    from rich.table import Table

    from gpuenv.containers.limits import format_size

    def size(value: int | None) -> str:
        return "-" if value is None else format_size(value)

    caption = f"no GPU: {gpus.found_via}" if not gpus.gpus else None
    table = Table(
        box=None, pad_edge=False, header_style="bold", caption=caption, caption_justify="left"
    )
    for title in ("NAME", "KIND", "CPU", "MEMORY", "PIDS", "NET IN", "NET OUT", "GPU"):
        left = title in {"NAME", "KIND", "GPU"}
        table.add_column(title, justify="left" if left else "right", no_wrap=title != "GPU")
    for use in uses:
        limited = use.memory_limit_bytes is not None and use.environment.identity.request.get(
            "memory"
        )
        limit = f" / {size(use.memory_limit_bytes)}" if limited else ""
        shares = [
            f"{share.device_index}: {size(share.memory_bytes)}"
            + ("" if share.sm_percent is None else f" {share.sm_percent} %")
            for share in use.gpus
        ]
        table.add_row(
            use.environment.identity.name,
            use.environment.identity.kind,
            "-" if use.cpu_percent is None else f"{use.cpu_percent:.1f} %",
            f"{size(use.memory_bytes)}{limit}",
            "-" if use.pids is None else str(use.pids),
            size(use.network_rx_bytes),
            size(use.network_tx_bytes),
            ", ".join(shares) or "-",
        )
    return table


def _print_uses(uses: tuple[ContainerUse, ...], gpus: GpuUse) -> None:
    out = output.current()
    if not uses:
        out.note("nothing runs")
        return
    out.table(_use_table(uses, gpus))


def _live(site: Site, meter: UsageMeter, *, interval: float, everybody: bool) -> None:
    """Draw the table again and again until Ctrl-C, which is how one leaves."""
    import time

    from rich.live import Live

    console = output.current().console()
    try:
        with Live(console=console, screen=console.file.isatty(), auto_refresh=False) as live:
            while True:
                uses, gpus = meter.read(_mine(site, everybody=everybody))
                live.update(_use_table(uses, gpus), refresh=True)
                time.sleep(interval)
    except KeyboardInterrupt:
        return
