"""Commands of the area: ssh."""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from gpuenv import output
from gpuenv.commands import command, subcommands
from gpuenv.commands.image import BuildFlags, ContentFlags, SourceFlags
from gpuenv.commands.launching import (
    CommandAfterDashes,
    DryRunOption,
    ImageFlags,
    LaunchFlags,
    complete_environment,
    default_environment,
    gather_facts,
    read_wish,
    read_workspace_at,
    require_one_name,
    say,
    say_all,
    show_plan,
    words_after_dashes,
)
from gpuenv.commands.options import MatrixOption, RequestFlags
from gpuenv.values import dataclass

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from gpuenv.commands.site import Site
    from gpuenv.containers.files import EnvironmentFiles
    from gpuenv.containers.mounts import Workspace
    from gpuenv.containers.plan import ContainerPlan
    from gpuenv.engine.protocol import ContainerEngine, ImageInfo
    from gpuenv.ssh.client import Target
    from gpuenv.ssh.environment import RunningSsh, SshWish
    from gpuenv.ssh.keys import PublicKey
    from gpuenv.ssh.user_keys import UserKey

_PANEL = "Session"
_KEYS = "Keys"
_SESSION = "(session)"
_CONFIG = "config"
_SHARED_FLAG = re.compile(r"--json|--verbose|--quiet|-[vq]+")
_SSH_FAILED = 255
# Flags of a session that the server itself is made by.
_STAYS = frozenset({"port", "forward_agent", "forward_x11", "post_quantum_only"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFlags:
    """How one gets in and what goes through, as the user wrote it."""

    tmux: Annotated[
        bool,
        typer.Option(
            "--tmux",
            help="In a session of tmux that goes on when the connection is lost.",
            rich_help_panel=_PANEL,
        ),
    ] = False
    forward: Annotated[
        list[str] | None,
        typer.Option(
            "--forward",
            "-L",
            metavar="[HERE:]PORT",
            help="A port inside that is reached at the same port here; may be given several times.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    detach: Annotated[
        bool,
        typer.Option(
            "--detach",
            "-d",
            help="Start it and say how it is reached, without a session.",
            rich_help_panel=_PANEL,
        ),
    ] = False
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            metavar="N",
            help="Port on the host's loopback, 2222 or the next free one by default.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    forward_agent: Annotated[
        bool,
        typer.Option(
            "--forward-agent",
            help="Let what runs inside use your SSH agent.",
            rich_help_panel=_PANEL,
        ),
    ] = False
    forward_x11: Annotated[
        bool,
        typer.Option(
            "--forward-x11", help="Open windows from inside here.", rich_help_panel=_PANEL
        ),
    ] = False
    post_quantum_only: Annotated[
        bool,
        typer.Option(
            "--post-quantum-only",
            help="Refuse clients without a post-quantum key exchange, as some editors are.",
            rich_help_panel=_PANEL,
        ),
    ] = False
    ready_timeout: Annotated[
        str,
        typer.Option(
            "--ready-timeout",
            metavar="TIME",
            help="How long to wait for its answer.",
            rich_help_panel=_PANEL,
        ),
    ] = "1m"

    def given(self) -> dict[str, str]:
        """Return what was written and stays with the server, flag → text."""
        texts: dict[str, str] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name in _STAYS and value:
                texts[item.name.replace("_", "-")] = "yes" if value is True else str(value)
        return texts


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFlags:
    """Which keys get in, as the user wrote it."""

    key: Annotated[
        Path | None,
        typer.Option(
            "--key",
            "-i",
            metavar="FILE",
            help="Log in with this key; else with those of your agent and ~/.ssh, else with one "
            "that gpuenv makes.",
            rich_help_panel=_KEYS,
        ),
    ] = None
    add_key: Annotated[
        Path | None,
        typer.Option(
            "--add-key",
            metavar="FILE",
            help="Let the public keys of a file in as well, and do nothing else.",
            rich_help_panel=_KEYS,
        ),
    ] = None
    list_keys: Annotated[
        bool,
        typer.Option(
            "--list-keys", help="Show who may log in, and do nothing else.", rich_help_panel=_KEYS
        ),
    ] = False
    revoke: Annotated[
        str | None,
        typer.Option(
            "--revoke",
            metavar="KEY",
            help="Remove a key, by its fingerprint or comment, and do nothing else.",
            rich_help_panel=_KEYS,
        ),
    ] = None

    @property
    def manage(self) -> bool:
        """Whether this is about the keys alone."""
        return bool(self.add_key or self.list_keys or self.revoke)


class _SessionOrConfig(TyperGroup):
    """``gpuenv ssh NAME`` and ``gpuenv ssh config …`` side by side: ``config`` is no name."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Send everything that does not begin with ``config`` to the command of sessions."""
        leading = 0
        while leading < len(args) and _SHARED_FLAG.fullmatch(args[leading]):
            leading += 1
        if args[leading : leading + 1] == [_CONFIG]:
            args = [*args[leading:], *args[:leading]]
        else:
            args = [_SESSION, *args]
        rest: list[str] = super().parse_args(ctx, args)
        return rest


class _Session(CommandAfterDashes):
    """The command behind ``gpuenv ssh``, which is what its help calls it."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        """Stand in the place of the group, so that usage says ``gpuenv ssh [NAME]``."""
        if info_name == _SESSION and parent is not None:
            info_name, parent = parent.info_name, parent.parent
        return super().make_context(info_name, args, parent=parent, **extra)


def register(app: typer.Typer) -> None:
    """Add the area's commands to ``app``."""
    both = typer.Typer(cls=_SessionOrConfig, rich_markup_mode=None, help=ssh.__doc__)
    command(both, _SESSION, cls=_Session)(ssh)
    config = subcommands(
        _CONFIG, "Make environments known to ssh, scp, rsync and editors by their names."
    )
    command(config, "install")(config_install)
    command(config, "remove")(config_remove)
    command(config, "show")(config_show)
    both.add_typer(config)
    app.add_typer(both, name="ssh")


def ssh(
    ctx: typer.Context,
    environment: Annotated[
        str | None, typer.Argument(metavar="[NAME]", autocompletion=complete_environment)
    ] = None,
    *,
    request: RequestFlags,
    content: ContentFlags,
    sources: SourceFlags,
    how: BuildFlags,
    launch: LaunchFlags,
    session: SessionFlags,
    keys: KeyFlags,
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
    fresh: Annotated[
        bool, typer.Option("--replace", help="End the one there is and make it anew.")
    ] = False,
    dry_run: DryRunOption = False,
    matrix_file: MatrixOption = None,
) -> None:
    """Open a shell in an environment by SSH, with its host key checked.

    Finds the environment or starts it, building its image first if need be, and logs you in with
    your own SSH. What stands behind -- is run there instead, with its exit code: one word is a line
    for the shell, several are taken as they are. gpuenv ssh config install makes ssh gpuenv-NAME,
    scp, rsync and editors know it.

    Example: gpuenv ssh train --tmux --dry-run
    """
    from gpuenv.commands.site import open_site
    from gpuenv.containers.limits import parse_duration

    words = words_after_dashes(ctx)
    chosen = _name(environment, name, launch)
    timeout_s = parse_duration(session.ready_timeout, flag="--ready-timeout")
    images = ImageFlags(
        request=request, content=content, sources=sources, how=how, image=image,
        matrix_file=matrix_file, features=("jupyter", "ssh"), needs=("ssh",),
    )  # fmt: skip
    forwards = _forwards(session)
    with open_site(how.engine) as site:
        files = site.files(chosen)
        if keys.manage:
            with files.locked():
                _manage_keys(site.engine, files, keys, name=chosen, owner=site.caller.uid)
            return
        workspace = read_workspace_at(site, launch, name=chosen, dry_run=dry_run)
        if dry_run:
            _show_plan(site, images, launch, session, name=chosen, workspace=workspace)
            return
        lets_in = not session.detach and (bool(words) or not output.current().json_mode)
        with files.locked():
            mine, own = _own_keys(keys, files, chosen)
            running, found = _find_or_start(
                site, files, images, launch, session,
                name=chosen, workspace=workspace, fresh=fresh, timeout_s=timeout_s,
                mine=tuple(key.public for key in mine), ask=not lets_in,
            )  # fmt: skip
            target = _keep(site, files, running, mine, session, name=chosen, only_these=own)
        if not lets_in:
            _require_proved(running, target)
        _warn_of_no_use(site.engine, running, session)
    if not lets_in:
        _answer(running, target, files, chosen, found=found)
        return
    code = _run_session(how.engine, running, target, words, session, forwards=forwards)
    if launch.sync and workspace is not None:
        _bring_back(how.engine, launch, workspace)
    output.current().answer(
        {**_data(running, target, chosen, found=found), "command_exit_code": code},
        human=lambda: None,
        status="success" if code == 0 else "error",
        exit_code=code,
    )


def config_install() -> None:
    """Put one line at the top of your SSH configuration that includes gpuenv's.

    Example: gpuenv ssh config install
    """
    from gpuenv.ssh.access import client_config, write_included
    from gpuenv.ssh.client_config import install

    out = output.current()
    config = client_config(os.environ)
    write_included(os.environ)
    changed = install(config)
    _warn_of_another_home(config.path)
    out.answer(
        {"config": str(config.path), "included": str(config.included), "changed": changed},
        human=lambda: out.text(
            f"{config.path} includes {config.included}" + ("" if changed else " already")
        ),
    )


def config_remove() -> None:
    """Take that line out again; every other byte of your SSH configuration stays.

    Example: gpuenv ssh config remove
    """
    from gpuenv.ssh.access import client_config
    from gpuenv.ssh.client_config import remove

    out = output.current()
    config = client_config(os.environ)
    changed = remove(config)
    out.answer(
        {"config": str(config.path), "included": str(config.included), "changed": changed},
        human=lambda: out.text(
            f"{config.path} is as it was" if changed else f"{config.path} does not include gpuenv's"
        ),
    )


def config_show() -> None:
    """Show the line, and what ssh is told of your environments.

    Example: gpuenv ssh config show
    """
    from gpuenv.ssh.access import client_config, known_blocks
    from gpuenv.ssh.client_config import include_line, is_installed

    out = output.current()
    config = client_config(os.environ)
    line, blocks = include_line(config.included).decode(), known_blocks(os.environ)
    installed = is_installed(config)

    def human() -> None:
        out.note(f"{config.path} {'has' if installed else 'does not have'} this line at its top:")
        out.text(line)
        if blocks:
            out.note("and by it:")
            out.text(blocks)

    out.answer(
        {"config": str(config.path), "line": line, "installed": installed, "hosts": blocks},
        human=human,
    )


# --- below the commands --------------------------------------------------------------------------


def _warn_of_another_home(path: Path) -> None:
    """Say where ``ssh`` looks, which goes by the account and not by ``HOME``."""
    import pwd

    try:
        home = Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        return
    if home / ".ssh" / "config" != path:
        output.current().warn(f"ssh itself reads {home / '.ssh' / 'config'}: HOME is another here")


def _name(environment: str | None, name: str | None, launch: LaunchFlags) -> str:
    from gpuenv.containers.identity import parse_name
    from gpuenv.errors import UsageError

    chosen = require_one_name({"": environment, "--name": name})
    if chosen == _CONFIG:
        raise UsageError(
            "config is no name for an SSH environment",
            why="gpuenv ssh config install, remove and show are commands",
            fix="choose another name",
        )
    return parse_name(chosen or default_environment(launch))


def _forwards(session: SessionFlags) -> tuple[tuple[int, int], ...]:
    from gpuenv.ssh.client import parse_forward, require_forwards

    if not session.forward:
        return ()
    from gpuenv.containers.facts import probe_port_free

    asked = tuple(parse_forward(text) for text in session.forward)
    return require_forwards(asked, port_free=probe_port_free)


def _own_keys(
    flags: KeyFlags, files: EnvironmentFiles, name: str
) -> tuple[tuple[UserKey, ...], bool]:
    """Return the keys that the caller can log in with, and whether no others shall be tried."""
    from gpuenv.ssh.environment import make_client_key
    from gpuenv.ssh.user_keys import UserKey, find_user_keys, read_named_key

    out = output.current()
    if flags.key is not None:
        return (read_named_key(flags.key.expanduser()),), True
    found = find_user_keys(Path.home() / ".ssh", os.environ)
    for reason in found.passed_over:
        out.detail(f"passed over: {reason}")
    if found.keys:
        return found.keys, False
    if files.read(files.client_key_path) is None:
        out.note(f"you have no SSH key, so one is made for {name}: {files.client_key_path}")
    public = make_client_key(files, name).public
    return (UserKey(public=public, identity=files.client_key_path),), True


def _find_or_start(
    site: Site,
    files: EnvironmentFiles,
    images: ImageFlags,
    launch: LaunchFlags,
    session: SessionFlags,
    *,
    name: str,
    workspace: Workspace | None,
    fresh: bool,
    timeout_s: float,
    mine: tuple[PublicKey, ...],
    ask: bool,
) -> tuple[RunningSsh, bool]:
    from gpuenv.ssh.environment import admit, find_or_start, make_host_key

    engine = site.engine

    def start() -> RunningSsh:
        from gpuenv.ssh.environment import SshWish

        built = images.obtain(site)
        wish = SshWish(
            host_key=make_host_key(files, name),
            authorized=admit(files, mine),
            agent_forwarding=session.forward_agent,
            x11_forwarding=session.forward_x11,
            post_quantum_only=session.post_quantum_only,
        )
        plan_for = _plan(
            site, built, launch, session, wish,
            name=name, workspace=workspace, request=images.given(),
        )  # fmt: skip
        return _start(site, plan_for, wish, session, timeout_s=timeout_s, ask=ask)

    return find_or_start(
        engine,
        files,
        name=name,
        owner=site.caller.uid,
        asked={**launch.given(), **session.given(), **images.given()},
        image_id=images.obtain(site).id if images.given() else None,
        anew=fresh,
        timeout_s=timeout_s,
        mine=mine,
        start=start,
        ask=ask,
        reach=site.connect,
    )


def _plan(
    site: Site,
    image: ImageInfo,
    launch: LaunchFlags,
    session: SessionFlags,
    wish: SshWish,
    *,
    name: str,
    workspace: Workspace | None,
    request: dict[str, str],
) -> Callable[[int], ContainerPlan]:
    """Gather what a plan needs once, and return the plan for a host port."""
    from gpuenv.ssh.environment import plan_ssh

    container = read_wish(
        launch, image=image.tags[0] if image.tags else image.id, name=name, kind="ssh",
        workspace=workspace, request={**session.given(), **request}, remote=site.remote,
    )  # fmt: skip
    facts = gather_facts(site, image, workspace)
    return lambda port: plan_ssh(container, facts, wish, host_port=port)


def _start(
    site: Site,
    plan_for: Callable[[int], ContainerPlan],
    wish: SshWish,
    session: SessionFlags,
    *,
    timeout_s: float,
    ask: bool,
) -> RunningSsh:
    from gpuenv.containers.facts import probe_port_free
    from gpuenv.ssh.environment import start_ssh

    port = _first_port(session)
    say_all(plan_for(port).notes)
    return start_ssh(
        site.engine,
        plan_for,
        wish,
        first_port=port,
        port_free=probe_port_free if site.engine.capabilities.local else (lambda _: True),
        timeout_s=timeout_s,
        on_note=say,
        ask=ask,
        reach=site.connect,
    )


def _show_plan(
    site: Site,
    images: ImageFlags,
    launch: LaunchFlags,
    session: SessionFlags,
    *,
    name: str,
    workspace: Workspace | None,
) -> None:
    from gpuenv.ssh.environment import SshWish
    from gpuenv.ssh.keys import make_key

    wish = SshWish(
        host_key=make_key("a dry run"),  # kept nowhere: the plan shows where it goes, not what
        authorized=(),
        agent_forwarding=session.forward_agent,
        x11_forwarding=session.forward_x11,
        post_quantum_only=session.post_quantum_only,
    )
    plan_for = _plan(
        site, images.planned(site), launch, session, wish,
        name=name, workspace=workspace, request=images.given(),
    )  # fmt: skip
    show_plan(site.engine, plan_for(_first_port(session)))


def _first_port(session: SessionFlags) -> int:
    from gpuenv.containers.ports import parse_port
    from gpuenv.ssh.environment import FIRST_PORT

    return FIRST_PORT if session.port is None else parse_port(session.port, flag="--port")


def _keep(
    site: Site,
    files: EnvironmentFiles,
    running: RunningSsh,
    mine: tuple[UserKey, ...],
    session: SessionFlags,
    *,
    name: str,
    only_these: bool,
) -> Target:
    from gpuenv.ssh.access import keep_access
    from gpuenv.ssh.client import Target
    from gpuenv.ssh.known_hosts import known_hosts_path

    target = Target(
        alias=site.alias(name),
        host=running.host,
        port=running.port,
        known_hosts=known_hosts_path(os.environ),
        jump=site.jump,
        jump_command=site.jump_command,
        identities=tuple(key.identity.absolute() for key in mine if key.identity is not None),
        only_these=only_these,
        forward_agent=session.forward_agent,
        forward_x11=session.forward_x11,
    )
    keep_access(os.environ, files, target, running.host_key)
    return target


def _warn_of_no_use(engine: ContainerEngine, running: RunningSsh, session: SessionFlags) -> None:
    """Say what was asked to be forwarded and cannot be: ``ssh`` itself says nothing."""
    from gpuenv.ssh.environment import forwards_windows

    out = output.current()
    if session.forward_agent and not os.environ.get("SSH_AUTH_SOCK"):
        out.warn("--forward-agent has no agent to forward: SSH_AUTH_SOCK is not set here")
    if session.forward_x11:
        if not os.environ.get("DISPLAY"):
            out.warn("--forward-x11 has nowhere to open windows: DISPLAY is not set here")
        if not forwards_windows(engine, running.container.id):
            out.warn(
                "--forward-x11 cannot work: the image has no xauth, by which sshd forwards windows"
            )


def _run_session(
    address: str | None,
    running: RunningSsh,
    target: Target,
    words: tuple[str, ...],
    session: SessionFlags,
    *,
    forwards: tuple[tuple[int, int], ...],
) -> int:
    """Hand the terminal to ``ssh`` and return the exit code of what ran."""
    from gpuenv.process import CommandTooLongError, ProgramNotFoundError, run_in_terminal
    from gpuenv.ssh.client import command_line, session_line, ssh_arguments

    out = output.current()
    line = session_line(
        command_line(words) if words else None,
        workdir=running.workdir,
        tmux="gpuenv" if session.tmux else None,
    )
    terminal = sys.stdin.isatty() and sys.stdout.isatty() and not out.json_mode
    for here, inside in forwards:
        out.note(f"http://127.0.0.1:{here} here is port {inside} inside")
    arguments = ssh_arguments(
        target, command=line, tty=session.tmux or (terminal and bool(words)), forwards=forwards
    )
    try:
        code = run_in_terminal(arguments, output_to_stderr=out.json_mode)
    except CommandTooLongError as exc:
        from gpuenv.errors import UsageError

        raise UsageError(
            "the command is too long",
            why="this system starts no program with that much text in its arguments",
            fix="put it in a file of the workspace, or: gpuenv ssh NAME -- bash < FILE",
        ) from exc
    except ProgramNotFoundError:
        from gpuenv.ssh.fallback import run_session

        out.note("there is no ssh program here, so gpuenv speaks it itself")
        if forwards or target.forward_agent or target.forward_x11:
            out.warn("--forward, --forward-agent and --forward-x11 need an ssh program")
        return run_session(target, running.host_key, line, tty=terminal and not words)
    if code == _SSH_FAILED and target.jump is None:
        from gpuenv.ssh.host_key import connect_tcp

        _explain(running, target, connect_tcp)
    elif code == _SSH_FAILED:
        from gpuenv.commands.site import open_site

        with open_site(address) as site:
            _explain(running, target, site.connect)
            if site.remote is not None:
                site.remote.require_forwarding()
    return code


def _require_proved(running: RunningSsh, target: Target) -> None:
    """Let ``ssh`` check the host key of a server that paramiko cannot exchange keys with.

    Raises:
        HostKeyChangedError: Something else answers in its place.
        NoSharedExchangeError: Nor can ``ssh``.
        SshFailedError: It does not answer.
    """
    if running.proved:
        return
    from gpuenv.ssh.errors import SshFailedError
    from gpuenv.ssh.host_key import prove_by_ssh

    if missing := prove_by_ssh(target):
        raise SshFailedError(f"cannot tell whether it is {target.alias} that answers", why=missing)


def _explain(
    running: RunningSsh, target: Target, reach: Callable[[str, int], socket.socket]
) -> None:
    """Say what became of a server that ``ssh`` could not reach, or reached and lost.

    Raises:
        HostKeyChangedError: Something else answers in its place.
        NoSharedExchangeError: ``ssh`` is too old for it.
    """
    from gpuenv.ssh.errors import NoSharedExchangeError
    from gpuenv.ssh.host_key import probe_host_key, prove_by_ssh

    try:
        missing = probe_host_key(lambda: reach(running.host, running.port), running.host_key)
    except NoSharedExchangeError:
        missing = prove_by_ssh(target)
    if missing:
        output.current().warn(f"the environment does not answer any more: {missing}")


def _bring_back(address: str | None, launch: LaunchFlags, workspace: Workspace) -> None:
    """Copy what is newer there back into the workspace here; nothing is deleted."""
    from gpuenv.commands.site import open_site
    from gpuenv.containers.mounts import find_workspace
    from gpuenv.ssh.remote import synchronise

    here = find_workspace(launch.workspace, cwd=Path.cwd())
    with open_site(address) as site:
        if site.remote is not None:
            output.current().note(f"copying what is newer there back to {here.source}")
            synchronise(site.remote, Path(here.source), workspace.source, back=True)


def _manage_keys(
    engine: ContainerEngine, files: EnvironmentFiles, flags: KeyFlags, *, name: str, owner: int
) -> None:
    from gpuenv.ssh.environment import authorize, authorized_keys, put_keys, require_running, revoke
    from gpuenv.ssh.user_keys import read_public_keys

    out = output.current()
    container = require_running(engine, name=name, owner=owner).container
    kept = authorized_keys(files)
    if flags.add_key is not None:
        kept = authorize(files, read_public_keys(flags.add_key.expanduser()))
    if flags.revoke is not None:
        kept = revoke(files, flags.revoke)
    if flags.add_key is not None or flags.revoke is not None:
        put_keys(engine, container.id, kept)
    data = {
        "name": name,
        "keys": [
            {"type": key.type, "fingerprint": key.fingerprint, "comment": key.comment}
            for key in kept
        ],
    }

    def human() -> None:
        for key in kept:
            out.text(f"{key.fingerprint} {key.type} {key.comment}".rstrip())
        if not kept:
            out.note(f"nobody can log in to {name}")

    out.answer(data, human=human)


def _data(running: RunningSsh, target: Target, name: str, *, found: bool) -> dict[str, Any]:
    return {
        "name": name,
        "alias": target.alias,
        "host": running.host,
        "host_port": running.port,
        "user": "dev",
        "host_key": running.host_key.fingerprint,
        "found": found,
        "container": running.container.name,
        "id": running.container.id,
    }


def _answer(
    running: RunningSsh, target: Target, files: EnvironmentFiles, name: str, *, found: bool
) -> None:
    import shlex

    from gpuenv.ssh.access import client_config
    from gpuenv.ssh.client import short_arguments, ssh_arguments
    from gpuenv.ssh.client_config import SshConfigError, is_installed

    out = output.current()
    arguments = ssh_arguments(target)

    def human() -> None:
        if found:
            out.note(f"{name} runs already")
        installed = False
        with suppress(SshConfigError):  # it runs all the same
            installed = is_installed(client_config(os.environ))
        shown = short_arguments(target, config=files.ssh_config_path, installed=installed)
        out.text(shlex.join(shown))
        out.note(f"gpuenv ssh {name} opens a shell; gpuenv stop {name} ends it")

    out.answer(
        {**_data(running, target, name, found=found), "command": list(arguments)}, human=human
    )
