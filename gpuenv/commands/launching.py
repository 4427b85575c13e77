"""The flags that ``run``, ``jupyter`` and ``ssh`` share, and how they become a wish and facts."""

from __future__ import annotations

import os
import shlex
from dataclasses import fields, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuenv import output
from gpuenv.commands import GroupedCommand
from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpuenv.commands.image import BuildFlags, ContentFlags, SourceFlags
    from gpuenv.commands.options import RequestFlags
    from gpuenv.commands.site import Site
    from gpuenv.containers.identity import Kind
    from gpuenv.containers.mounts import Workspace
    from gpuenv.containers.plan import ContainerPlan, ContainerWish, LaunchFacts, Note
    from gpuenv.engine.protocol import ContainerEngine, ImageInfo, Mount
    from gpuenv.spec import Feature
    from gpuenv.ssh.remote import RemoteHost

_PANEL = "Container"
_COMMAND_KEY = "gpuenv.command"
_NOT_COMPARED = frozenset({"set_env", "workspace", "no_workspace", "remote_workspace", "sync"})

GpusOption = Annotated[
    str | None,
    typer.Option(
        "--gpus",
        metavar="all|none|N|0,1|UUID",
        help="Which GPUs: all, none, 2 for the two least used, 0,1 or device=0 by index, UUIDs. "
        "By default all there are.",
        rich_help_panel=_PANEL,
    ),
]
RequireGpuOption = Annotated[
    bool,
    typer.Option(
        "--require-gpu",
        help="Refuse to start without a GPU instead of using the CPU.",
        rich_help_panel=_PANEL,
    ),
]
MemoryOption = Annotated[
    str | None,
    typer.Option(
        "--memory", "-m", metavar="SIZE", help="Memory limit: 16g.", rich_help_panel=_PANEL
    ),
]
CpusOption = Annotated[
    str | None,
    typer.Option("--cpus", metavar="N", help="Processor limit: 1.5.", rich_help_panel=_PANEL),
]
PidsOption = Annotated[
    int | None,
    typer.Option("--pids-limit", metavar="N", help="Process limit.", rich_help_panel=_PANEL),
]
ShmOption = Annotated[
    str | None,
    typer.Option(
        "--shm-size",
        metavar="SIZE",
        help="Size of /dev/shm: 8g; half of the memory by default.",
        rich_help_panel=_PANEL,
    ),
]
WorkspaceOption = Annotated[
    str | None,
    typer.Option(
        "--workspace",
        "-w",
        metavar="FOLDER",
        help="Mounted at /workspace; the current folder by default.",
        rich_help_panel=_PANEL,
    ),
]
RemoteWorkspaceOption = Annotated[
    str | None,
    typer.Option(
        "--remote-workspace",
        metavar="FOLDER",
        help="With --host: a folder of that host, mounted at /workspace.",
        rich_help_panel=_PANEL,
    ),
]
SyncOption = Annotated[
    bool,
    typer.Option(
        "--sync",
        help="With --host: copy the workspace there first, by rsync; nothing is ever deleted.",
        rich_help_panel=_PANEL,
    ),
]
NoWorkspaceOption = Annotated[
    bool,
    typer.Option("--no-workspace", help="Mount no workspace.", rich_help_panel=_PANEL),
]
VolumeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--volume",
        metavar="SOURCE:TARGET[:ro]",
        help="A further folder or named volume; may be given several times.",
        rich_help_panel=_PANEL,
    ),
]
NoCachesOption = Annotated[
    bool,
    typer.Option(
        "--no-caches",
        help="Leave out the volumes that keep the caches of pip, uv, torch and Hugging Face.",
        rich_help_panel=_PANEL,
    ),
]
PublishOption = Annotated[
    list[str] | None,
    typer.Option(
        "--publish",
        "-p",
        metavar="[[ADDRESS:]HOST:]PORT",
        help="Publish a port, on the loopback unless an address is given.",
        rich_help_panel=_PANEL,
    ),
]
SetEnvOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set-env",
        "-e",
        metavar="NAME[=VALUE]",
        help="A variable of this container; without a value, it is copied from here. "
        "Whoever may use the engine can read it.",
        rich_help_panel=_PANEL,
    ),
]
UserOption = Annotated[
    str | None,
    typer.Option(
        "--user",
        metavar="caller|image|keep-id|UID:GID",
        help="Who it runs as: you by default, so that files in the workspace are yours.",
        rich_help_panel=_PANEL,
    ),
]
CapAddOption = Annotated[
    list[str] | None,
    typer.Option(
        "--cap-add",
        metavar="CAPABILITY",
        help="A kernel capability (SYS_PTRACE for debuggers); none is there by default.",
        rich_help_panel=_PANEL,
    ),
]
NetworkOption = Annotated[
    str | None,
    typer.Option(
        "--network",
        metavar="NAME|host|none",
        help="Network to join; the engine's default by default.",
        rich_help_panel=_PANEL,
    ),
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Show what would be done and do nothing.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFlags:
    """What a container gets, as the user wrote it; ``None`` where nothing was written."""

    gpus: GpusOption = None
    require_gpu: RequireGpuOption = False
    memory: MemoryOption = None
    cpus: CpusOption = None
    pids_limit: PidsOption = None
    shm_size: ShmOption = None
    workspace: WorkspaceOption = None
    no_workspace: NoWorkspaceOption = False
    remote_workspace: RemoteWorkspaceOption = None
    sync: SyncOption = False
    volume: VolumeOption = None
    no_caches: NoCachesOption = False
    publish: PublishOption = None
    set_env: SetEnvOption = None
    user: UserOption = None
    cap_add: CapAddOption = None
    network: NetworkOption = None

    def given(self) -> dict[str, str]:
        """Return what was written, flag → text, without variables, which may hold a secret."""
        texts: dict[str, str] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name in _NOT_COMPARED or not value:
                continue
            name = item.name.replace("_", "-")
            if isinstance(value, list):
                texts[name] = " ".join(value)
            else:
                texts[name] = "yes" if value is True else str(value)
        return texts


class CommandAfterDashes(GroupedCommand):
    """A command whose words behind ``--`` are another program's: see :func:`words_after_dashes`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take the words behind the first ``--`` away before ours are looked at."""
        if "--" in args:
            place = args.index("--")
            ctx.meta[_COMMAND_KEY] = tuple(args[place + 1 :])
            args = args[:place]
        ctx.allow_extra_args = True  # to name the dashes in the error, not only the word
        parsed: list[str] = super().parse_args(ctx, args)
        if ctx.args and not ctx.resilient_parsing:
            from gpuenv.errors import UsageError

            raise UsageError(
                f"unexpected argument {shlex.quote(ctx.args[0])}",
                why="a command to run goes after two dashes",
                fix=f"{ctx.command_path} … -- COMMAND",
            )
        return parsed


def words_after_dashes(ctx: typer.Context) -> tuple[str, ...]:
    """Return the words that stood behind ``--``."""
    words: tuple[str, ...] = ctx.meta.get(_COMMAND_KEY, ())
    return words


# --- reading -------------------------------------------------------------------------------------


def read_workspace(flags: LaunchFlags) -> Workspace | None:
    """Return the folder to mount and say what must be heard about it."""
    from gpuenv.containers.mounts import find_workspace, workspace_warning

    if flags.no_workspace:
        return None
    workspace = find_workspace(flags.workspace, cwd=Path.cwd())
    warning = workspace_warning(workspace, home=Path.home())
    if warning:
        output.current().warn(warning)
    return workspace


def read_wish(
    flags: LaunchFlags,
    *,
    image: str,
    name: str,
    kind: Kind,
    workspace: Workspace | None,
    request: dict[str, str],
    remote: RemoteHost | None = None,
) -> ContainerWish:
    """Parse and check the flags of a launch.

    Args:
        remote: The host of the engine and its folders, where it is not this one.
        request: What else stands in the label for a second call to compare with.

    Raises:
        ConfigurationError: A value cannot be right.
    """
    from gpuenv.containers.gpus import parse_gpus
    from gpuenv.containers.limits import LimitWish, parse_cpus, parse_size
    from gpuenv.containers.plan import ContainerWish
    from gpuenv.containers.ports import parse_publish
    from gpuenv.containers.users import parse_user
    from gpuenv.containers.values import parse_capability, parse_variable

    if remote is not None and workspace is None and not flags.no_workspace:
        output.current().note(
            "no workspace: --remote-workspace FOLDER mounts one of that host, --sync copies this "
            "folder there"
        )
    return ContainerWish(
        image=image,
        name=name,
        kind=kind,
        gpus=parse_gpus(flags.gpus or "auto"),
        require_gpu=flags.require_gpu,
        limits=LimitWish(
            memory_bytes=parse_size(flags.memory, flag="--memory") if flags.memory else None,
            cpus=parse_cpus(flags.cpus) if flags.cpus else None,
            pids=flags.pids_limit,
            shm_bytes=parse_size(flags.shm_size, flag="--shm-size") if flags.shm_size else None,
        ),
        user=parse_user(flags.user or "caller"),
        workspace=workspace,
        volumes=tuple(_read_volume(text, remote) for text in flags.volume or ()),
        caches=not flags.no_caches,
        ports=tuple(parse_publish(text) for text in flags.publish or ()),
        cap_add=tuple(parse_capability(text) for text in flags.cap_add or ()),
        env=tuple(
            variable
            for text in flags.set_env or ()
            if (variable := parse_variable(text, environ=os.environ)) is not None
        ),
        network=flags.network,
        request={**flags.given(), **request},
    )


def _read_volume(text: str, remote: RemoteHost | None) -> Mount:
    """Read a volume; a folder of another host must be there.

    Raises:
        WorkspaceError: It is not.
    """
    from gpuenv.containers.errors import WorkspaceError
    from gpuenv.containers.mounts import parse_volume
    from gpuenv.engine.protocol import BindMount

    if remote is None:
        return parse_volume(text, cwd=Path.cwd())
    mount = parse_volume(text, cwd=None, home=remote.facts.home)
    if not isinstance(mount, BindMount):
        return mount
    if not remote.has(mount.source):
        raise WorkspaceError(
            f"there is no {mount.source} on {remote.address.jump}",
            why=f"--volume {text} mounts a folder of that host",
            fix=f"see what is there: ssh {remote.address.jump} ls {shlex.quote(mount.source)}",
        )
    return replace(mount, known=True)


def require_one_name(given: Mapping[str, str | None]) -> str | None:
    """Return the name of an environment, which several flags may give.

    Args:
        given: How it was given → what; the same name twice is one.

    Raises:
        UsageError: Two names were given.
    """
    from gpuenv.errors import UsageError

    names = {how: name for how, name in given.items() if name is not None}
    if len(set(names.values())) > 1:
        raise UsageError(
            "the name is given twice",
            why=" and ".join(f"{how} {name}".strip() for how, name in names.items()),
            fix="leave one out",
        )
    return next(iter(names.values()), None)


def default_environment(flags: LaunchFlags) -> str:
    """Return the name that an environment has where none is given: by its folder here."""
    from gpuenv.containers.identity import default_name
    from gpuenv.containers.mounts import find_workspace

    if flags.no_workspace or flags.remote_workspace:
        return default_name(Path.cwd())
    return default_name(Path(find_workspace(flags.workspace, cwd=Path.cwd()).source))


def read_workspace_at(
    site: Site, flags: LaunchFlags, *, name: str, dry_run: bool = False
) -> Workspace | None:
    """Return the folder of the engine's host to mount, copied there first if it was asked for.

    Args:
        name: Of the environment; a copy has its own folder.
        dry_run: Copy nothing.

    Raises:
        UsageError: It is asked for in two ways, or in one that is for another host.
        WorkspaceError: There is no such folder.
    """
    from gpuenv.errors import UsageError

    asked = [word for word, given in (
        ("--remote-workspace", flags.remote_workspace), ("--sync", flags.sync),
        ("--no-workspace", flags.no_workspace),
    ) if given]  # fmt: skip
    if len(asked) > 1:
        raise UsageError(
            f"{asked[0]} and {asked[1]} contradict each other", fix="leave one of them out"
        )
    if site.remote is None:
        if flags.remote_workspace or flags.sync:
            raise UsageError(
                f"{asked[0]} is for another host",
                why="the engine is on this one",
                fix="add --host ssh://user@host, or use --workspace",
            )
        return read_workspace(flags)
    if flags.remote_workspace is not None:
        return _folder_there(site.remote, flags.remote_workspace)
    if flags.sync:
        return _copied_there(site.remote, flags, name=name, dry_run=dry_run)
    if flags.workspace is not None:
        raise UsageError(
            "--workspace is a folder of this machine, and the engine is on another",
            why=f"it would have to be on {site.remote.address.jump}",
            fix="add --sync to copy it there, or give --remote-workspace FOLDER",
        )
    return None


def _folder_there(remote: RemoteHost, text: str) -> Workspace:
    from gpuenv.containers.errors import WorkspaceError
    from gpuenv.containers.mounts import Workspace

    folder = text.rstrip("/") or "/"
    if not folder.startswith("/"):
        folder = f"{remote.facts.home}/{folder.removeprefix('~/')}"
    if remote.folder_owner(folder) is None:
        raise WorkspaceError(
            f"there is no folder {folder} on {remote.address.jump}",
            fix=f"make it: ssh {remote.address.jump} mkdir -p {shlex.quote(folder)}",
        )
    return Workspace(source=folder, explicit=True, known=True)


def _copied_there(
    remote: RemoteHost, flags: LaunchFlags, *, name: str, dry_run: bool
) -> Workspace | None:
    from gpuenv.containers.mounts import Workspace
    from gpuenv.ssh.remote import synchronise

    here = read_workspace(flags)
    if here is None:
        return None
    there = f"{remote.facts.home}/gpuenv/{name}"
    if not dry_run:
        output.current().note(f"copying {here.source} to {remote.address.jump}:{there}")
        synchronise(remote, Path(here.source), there)
    return Workspace(source=there, explicit=True, known=True)


def gather_facts(site: Site, image: ImageInfo, workspace: Workspace | None) -> LaunchFacts:
    """Ask host and engine what a plan needs to know."""
    from gpuenv.containers.identity import new_session
    from gpuenv.containers.lifecycle import list_environments, taken_gpus
    from gpuenv.containers.plan import LaunchFacts

    engine, caps = site.engine, site.engine.capabilities
    return LaunchFacts(
        caller=site.caller,
        capabilities=caps,
        image=image,
        session=new_session(),
        now=datetime.now(timezone.utc),
        inventory=site.inventory(),
        workspace_owner=None if workspace is None else site.folder_owner(workspace.source),
        taken_gpus=taken_gpus(list_environments(engine)),
    )


@dataclass(kw_only=True)
class ImageFlags:
    """Which image a launch uses: one by name, or one that is found or built for a request."""

    request: RequestFlags
    content: ContentFlags
    sources: SourceFlags
    how: BuildFlags
    image: str | None
    matrix_file: Path | None
    features: tuple[Feature, ...]
    needs: tuple[Feature, ...] = ()
    _obtained: ImageInfo | None = None

    @property
    def _features(self) -> tuple[Feature, ...]:
        """What the image has beside PyTorch: one serves several commands, but a lock decides."""
        return self.needs if self.how.is_locked else self.features

    def __post_init__(self) -> None:
        """Refuse what names no image before it stands in the path of a request to the engine."""
        if self.image is not None:
            from gpuenv.validate import check_image_ref

            check_image_ref(self.image)

    def given(self) -> dict[str, str]:
        """Return what was written about the image, flag → text.

        Raises:
            UsageError: An image and a request are both given.
        """
        from gpuenv.errors import UsageError

        content = {item.name: getattr(self.content, item.name) for item in fields(self.content)}
        asked = {**self.request.given(), **content}
        texts = {
            name: " ".join(map(str, value)) if isinstance(value, list) else str(value)
            for name, value in asked.items()
            if value and name != "env"
        }
        if self.how.is_locked:
            texts["locked"] = self._lock_digest()
        if self.image is None:
            return texts
        if texts:
            raise UsageError(
                "an image and a request contradict each other",
                why=f"--image names one, --{next(iter(texts))} asks for one",
                fix="leave one of them out",
            )
        return {"image": self.image}

    def _lock_digest(self) -> str:
        """Return which lock it is, so that what runs is compared with the file as it is now."""
        from gpuenv.config import load_config
        from gpuenv.lockfile import load_lock, lock_path

        config = load_config(Path.cwd(), os.environ)
        return load_lock(lock_path(self.how.lock_file, config.path, Path.cwd())).digest[:19]

    def obtain(self, site: Site) -> ImageInfo:
        """Return the image, built or fetched where it is not there; asked for once only."""
        if self._obtained is None:
            if self.image is not None:
                self._obtained = local_image(site.engine, self.image)
            else:
                from gpuenv.commands.wiring import fill_order, take_order

                order, shop = take_order(
                    self.request, self.content, self.sources, self.how,
                    matrix_file=self.matrix_file, features=self._features, site=site,
                )  # fmt: skip
                built = fill_order(order, shop, progress=self.how.progress)
                self._obtained = local_image(site.engine, built.image_ref)
        return self._obtained

    def planned(self, site: Site) -> ImageInfo:
        """Return the image if it is there, else what is known of it before it is built."""
        from gpuenv.engine.protocol import ImageInfo

        if self.image is not None:
            ref, ours = self.image, self.image.startswith("localhost/gpuenv/")
        else:
            from gpuenv.commands.wiring import take_order
            from gpuenv.provision import plan_order

            order, shop = take_order(
                self.request, self.content, self.sources, self.how,
                matrix_file=self.matrix_file, features=self._features, site=site,
            )  # fmt: skip
            ref, ours = plan_order(order, shop).ref, True
        return site.engine.image(ref) or ImageInfo(
            id="",
            tags=(ref,),
            digests=(),
            size_bytes=0,
            labels={"org.gpuenv.spec": ""} if ours else {},
        )


def local_image(engine: ContainerEngine, ref: str) -> ImageInfo:
    """Return an image by its reference, fetched from its registry where it is not local.

    Raises:
        ImageNotFoundError: It is one of ours and not there.
        TransferFailedError: It cannot be fetched.
    """
    from gpuenv.engine.errors import ImageNotFoundError

    image = engine.image(ref)
    if image is None and not ref.startswith(("localhost/", "sha256:")):
        output.current().note(f"{ref} is not here yet: fetching it")
        for _ in engine.pull(ref):
            pass
        image = engine.image(ref)
    if image is None:
        raise ImageNotFoundError(
            f"there is no image {ref}",
            why=f"the engine at {engine.address} does not have it",
            fix="gpuenv build makes images; check the name for a typing mistake",
        )
    return image


def complete_environment(incomplete: str) -> list[str]:
    """Offer the names of environments to the shell; never fail, it is waiting."""
    from gpuenv.containers.facts import probe_caller
    from gpuenv.containers.lifecycle import list_environments
    from gpuenv.engine.connect import connect
    from gpuenv.errors import GpuenvError

    try:
        with connect(timeout_s=2) as engine:
            found = list_environments(engine, owner=probe_caller(os.environ).uid)
    except GpuenvError:
        return []
    names = dict.fromkeys(environment.identity.name for environment in found)
    return [name for name in names if name.startswith(incomplete)]


def read_hidden(prompt: str) -> str:
    """Ask for a secret without showing it; where nobody sits at a terminal it is the first line.

    Raises:
        UsageError: Nothing was typed, or two different things.
    """
    import getpass
    import sys

    from gpuenv.errors import UsageError

    if not sys.stdin.isatty():
        typed = sys.stdin.readline().rstrip("\n")
    else:
        typed = getpass.getpass(f"{prompt}: ")
        if typed != getpass.getpass("Again: "):
            raise UsageError("the two differ", why="a typing mistake", fix="run it again")
    return typed


# --- telling -------------------------------------------------------------------------------------


def say(note: Note) -> None:
    """Tell the user what came up."""
    out = output.current()
    if note.level == "warning":
        out.warn(note.text)
    elif note.level == "note":
        out.note(note.text)
    else:
        out.detail(note.text)


def say_all(notes: Iterable[Note]) -> None:
    """Tell the user everything of a plan."""
    for note in notes:
        say(note)


def show_plan(engine: ContainerEngine, plan: ContainerPlan) -> None:
    """Answer ``--dry-run``: the whole plan and what the engine would not do of it."""
    from gpuenv.containers.limits import format_size

    out = output.current()
    findings = engine.review(plan.spec)
    data = {"plan": plan.as_dict(), "findings": [finding.as_dict() for finding in findings]}

    def human() -> None:
        spec = plan.spec
        shm = f"{format_size(plan.limits.shm_bytes)}, {plan.limits.shm_reason}"
        lines = [
            ("container", spec.name or ""),
            ("image", spec.image),
            ("user", plan.user.reason),
            ("gpu", plan.gpu.note),
            ("shm", shm),
            *(("mount", _mount_text(mount)) for mount in spec.mounts),
            *(
                ("port", f"{port.host_ip}:{port.host_port} -> {port.container_port}")
                for port in spec.ports
            ),
            *(("file", f"{file.path} ({file.mode:04o})") for file in spec.files),
            ("command", " ".join(spec.command or ("the image's own",))),
            *((finding.severity, finding.what) for finding in findings),
        ]
        for title, text in lines:
            out.text(f"{title:<10} {text}")

    out.answer(data, human=human)


def _mount_text(mount: Mount) -> str:
    from gpuenv.engine.protocol import BindMount, VolumeMount

    if isinstance(mount, BindMount):
        source = mount.source
    else:
        source = f"volume {mount.name}" if isinstance(mount, VolumeMount) else "memory"
    return f"{source} -> {mount.target}"
