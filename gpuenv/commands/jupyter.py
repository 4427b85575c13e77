"""Commands of the area: jupyter."""

from __future__ import annotations

import socket
from dataclasses import fields
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuenv import output
from gpuenv.commands import command
from gpuenv.commands.image import BuildFlags, ContentFlags, SourceFlags
from gpuenv.commands.launching import (
    DryRunOption,
    ImageFlags,
    LaunchFlags,
    complete_environment,
    default_environment,
    gather_facts,
    read_hidden,
    read_wish,
    read_workspace_at,
    require_one_name,
    say,
    say_all,
    show_plan,
)
from gpuenv.commands.options import MatrixOption, RequestFlags
from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuenv.commands.site import Site
    from gpuenv.containers.files import EnvironmentFiles
    from gpuenv.containers.mounts import Workspace
    from gpuenv.containers.plan import ContainerPlan
    from gpuenv.containers.tls import Certificate
    from gpuenv.engine.protocol import ContainerEngine, ImageInfo
    from gpuenv.jupyter import JupyterWish, PortHere, RunningJupyter

_PANEL = "Server"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFlags:
    """How the server is reached and when it ends, as the user wrote it."""

    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            metavar="N",
            help="Port on the host, 8888 by default; the next free one if it is taken.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    bind: Annotated[
        str | None,
        typer.Option(
            "--bind",
            metavar="ADDRESS",
            help="Address of the host to serve on; wider than the loopback needs --tls.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    tls: Annotated[
        str | None,
        typer.Option(
            "--tls",
            metavar="self-signed|CERT,KEY",
            help="Speak HTTPS, with a certificate made here or yours.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            help="Serve beyond the loopback without TLS all the same.",
            rich_help_panel=_PANEL,
        ),
    ] = False
    password: Annotated[
        bool,
        typer.Option(
            "--password",
            help="Ask for a password to log in with, in place of the token.",
            rich_help_panel=_PANEL,
        ),
    ] = False
    idle_stop: Annotated[
        str | None,
        typer.Option(
            "--idle-stop",
            metavar="TIME",
            help="Stop when kernels, terminals and GPUs were idle for so long: 2h.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    ready_timeout: Annotated[
        str,
        typer.Option(
            "--ready-timeout",
            metavar="TIME",
            help="How long to wait for its answer.",
            rich_help_panel=_PANEL,
        ),
    ] = "2m"

    def given(self) -> dict[str, str]:
        """Return what was written and stays with the server, flag → text."""
        texts: dict[str, str] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name not in {"ready_timeout", "insecure"} and value:
                texts[item.name.replace("_", "-")] = "yes" if value is True else str(value)
        return texts


def register(app: typer.Typer) -> None:
    """Add the area's commands to ``app``."""
    command(app, "jupyter")(jupyter)


def jupyter(
    environment: Annotated[
        str | None, typer.Argument(metavar="[NAME]", autocompletion=complete_environment)
    ] = None,
    *,
    request: RequestFlags,
    content: ContentFlags,
    sources: SourceFlags,
    how: BuildFlags,
    launch: LaunchFlags,
    server: ServerFlags,
    image: Annotated[
        str | None,
        typer.Option("--image", metavar="IMAGE", help="Use this image instead of a request."),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            metavar="NAME",
            help="The same as the argument; made from the workspace's name by default.",
            autocompletion=complete_environment,
        ),
    ] = None,
    open_browser: Annotated[bool, typer.Option("--open", help="Open it in a browser.")] = False,
    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            metavar="NAME",
            help="Show the address of a running one again, and do nothing else.",
            autocompletion=complete_environment,
        ),
    ] = None,
    rotate: Annotated[
        bool,
        typer.Option(
            "--rotate",
            help="Replace the token of a running one; the old one opens nothing any more.",
        ),
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--replace", help="End the one there is and make it anew.")
    ] = False,
    dry_run: DryRunOption = False,
    matrix_file: MatrixOption = None,
) -> None:
    """Start JupyterLab on the right GPUs for you alone, or find the one that runs.

    Builds the image of the request if it is not there, starts the server as your user with the
    workspace mounted, waits until it answers and prints its address with the token.

    Example: gpuenv jupyter --idle-stop 2h --dry-run
    """
    from gpuenv.commands.site import open_site
    from gpuenv.containers.identity import parse_name
    from gpuenv.containers.limits import parse_duration
    from gpuenv.jupyter import find_or_start, rotate_token, show_again

    named = require_one_name({"": environment, "--name": name, "--url": url})
    chosen = parse_name(named or default_environment(launch))
    timeout_s = parse_duration(server.ready_timeout, flag="--ready-timeout")
    images = ImageFlags(
        request=request, content=content, sources=sources, how=how, image=image,
        matrix_file=matrix_file, features=("jupyter", "ssh"), needs=("jupyter",),
    )  # fmt: skip
    with open_site(how.engine) as site:
        engine, files, owner, via = (
            site.engine,
            site.files(chosen),
            site.caller.uid,
            site.via(chosen),
        )
        _require_tunnelled(site, server)
        workspace = None if url else read_workspace_at(site, launch, name=chosen, dry_run=dry_run)
        if dry_run:
            wish = _read_server(server, files, keep=False)
            plan_for = _plan(
                site, images.planned(site), launch, server, wish,
                name=chosen, workspace=workspace, request=images.given(),
            )  # fmt: skip
            show_plan(engine, plan_for(_first_port(server)))
            return
        with files.locked():
            if rotate:
                rotate_token(engine, files, name=chosen, owner=owner)
                output.current().note("the token is new; the old one no longer works")
            if url or rotate:
                running, found = show_again(engine, files, name=chosen, owner=owner, via=via), True
            else:

                def start() -> RunningJupyter:
                    built = images.obtain(site)
                    wish = _read_server(server, files, keep=True)
                    plan_for = _plan(
                        site, built, launch, server, wish,
                        name=chosen, workspace=workspace, request=images.given(),
                    )  # fmt: skip
                    return _start(engine, plan_for, wish, server, timeout_s=timeout_s, via=via)

                running, found = find_or_start(
                    engine,
                    files,
                    name=chosen,
                    owner=owner,
                    asked={**launch.given(), **server.given(), **images.given()},
                    image_id=images.obtain(site).id if images.given() else None,
                    anew=fresh,
                    timeout_s=timeout_s,
                    start=start,
                    via=via,
                )
    _answer(running, chosen, found=found, asked_for_url=bool(url) or rotate)
    if open_browser:
        import webbrowser

        if not webbrowser.open(running.url):
            output.current().warn("no browser could be opened here; open the address yourself")


def _require_tunnelled(site: Site, server: ServerFlags) -> None:
    """Refuse an address of another host that its loopback does not lead to.

    Raises:
        UsageError: It is one.
    """
    from gpuenv.errors import UsageError

    if site.remote is None or server.bind in {None, "127.0.0.1", "localhost", "0.0.0.0"}:  # noqa: S104
        return
    raise UsageError(
        f"--bind {server.bind} cannot be reached through {site.remote.address.jump}",
        why="the port of a server there comes here by a tunnel to its loopback",
        fix="leave --bind out",
    )


def _plan(
    site: Site,
    image: ImageInfo,
    launch: LaunchFlags,
    server: ServerFlags,
    wish: JupyterWish,
    *,
    name: str,
    workspace: Workspace | None,
    request: dict[str, str],
) -> Callable[[int], ContainerPlan]:
    """Gather what a plan needs once, and return the plan for a host port."""
    from gpuenv.jupyter import plan_jupyter

    container = read_wish(
        launch, image=image.tags[0] if image.tags else image.id, name=name, kind="jupyter",
        workspace=workspace, request={**server.given(), **request}, remote=site.remote,
    )  # fmt: skip
    facts = gather_facts(site, image, workspace)
    return lambda port: plan_jupyter(container, facts, wish, host_port=port)


def _start(
    engine: ContainerEngine,
    plan_for: Callable[[int], ContainerPlan],
    wish: JupyterWish,
    server: ServerFlags,
    *,
    timeout_s: float,
    via: PortHere | None,
) -> RunningJupyter:
    from gpuenv.containers.facts import probe_port_free
    from gpuenv.jupyter import start_jupyter

    port = _first_port(server)
    say_all(plan_for(port).notes)
    return start_jupyter(
        engine,
        plan_for,
        wish,
        first_port=port,
        port_free=(lambda p: probe_port_free(p, wish.bind))
        if engine.capabilities.local
        else (lambda _: True),
        timeout_s=timeout_s,
        on_note=say,
        via=via,
    )


def _first_port(server: ServerFlags) -> int:
    from gpuenv.containers.ports import parse_port
    from gpuenv.jupyter import FIRST_PORT

    return FIRST_PORT if server.port is None else parse_port(server.port, flag="--port")


def _read_server(server: ServerFlags, files: EnvironmentFiles, *, keep: bool) -> JupyterWish:
    """Turn the server's flags into a wish, with its token or the hash of a password typed now.

    Args:
        keep: Make and keep what is missing; a dry run leaves the state folder alone.
    """
    from gpuenv.containers.limits import parse_duration
    from gpuenv.containers.password import hash_password
    from gpuenv.jupyter import JupyterWish, check_bind
    from gpuenv.secret import Secret

    bind = server.bind or "127.0.0.1"
    for note in check_bind(bind, tls=server.tls is not None, insecure=server.insecure):
        say(note)
    hostnames = tuple(dict.fromkeys((socket.gethostname(), bind)))
    if server.password:
        secret = Secret(hash_password(read_hidden("Password for JupyterLab")) if keep else "")
        if keep:
            files.write(files.password_path, secret.reveal() + "\n")
    else:
        secret = Secret(files.make_token() if keep else "")
    return JupyterWish(
        access="password" if server.password else "token",
        secret=secret,
        bind=bind,
        certificate=None
        if server.tls is None
        else _certificate(server.tls, files, hostnames, keep=keep),
        idle_stop_s=parse_duration(server.idle_stop, flag="--idle-stop")
        if server.idle_stop
        else 0.0,
        hostnames=hostnames,
    )


def _certificate(
    tls: str, files: EnvironmentFiles, hostnames: tuple[str, ...], *, keep: bool
) -> Certificate:
    from gpuenv.containers.tls import load_certificate, make_certificate
    from gpuenv.errors import ConfigurationError

    if tls == "self-signed":
        certificate = make_certificate(
            ("localhost", "127.0.0.1", "::1", *hostnames), now=datetime.now(timezone.utc)
        )
    else:
        cert, sign, key = tls.partition(",")
        if not sign or not cert or not key:
            raise ConfigurationError(
                f"--tls {tls!r} names no certificate",
                why="it is self-signed, or the files of a certificate and its key with a comma",
                fix="--tls self-signed",
            )
        certificate = load_certificate(Path(cert).expanduser(), Path(key).expanduser())
    if keep:
        files.write(files.certificate_path, certificate.chain)
        files.write(files.certificate_key_path, certificate.key)
    return certificate


def _answer(
    running: RunningJupyter, name: str, *, found: bool, asked_for_url: bool = False
) -> None:
    out = output.current()
    address = running.address
    data = {
        "name": name,
        "url": running.url,
        "host_port": address.port,
        "access": running.access,
        "token": None if running.token is None else running.token.reveal(),
        "found": found,
        "container": running.container.name,
        "id": running.container.id,
        "tls_fingerprint": running.fingerprint,
    }

    def human() -> None:
        if found and not asked_for_url:
            out.note(f"{name} runs already")
        if running.fingerprint:
            out.note(f"SHA-256 of its certificate: {running.fingerprint}")
        out.text(running.url)
        if not asked_for_url:
            out.note(f"gpuenv jupyter --url {name} shows it again; gpuenv stop {name} ends it")

    out.answer(data, human=human)
