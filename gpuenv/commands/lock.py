"""Commands of the area: lock."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuenv import output
from gpuenv.commands import command
from gpuenv.commands.image import (
    BuildFlags,
    ContentFlags,
    EngineOption,
    MakeBaseOption,
    NameOption,
    ProgressOption,
    SourceFlags,
    WithOption,
    features_of,
)
from gpuenv.commands.options import MatrixOption, RequestFlags
from gpuenv.commands.wiring import Asked, machine_of, order_of, read_asked
from gpuenv.values import dataclass

if TYPE_CHECKING:
    from gpuenv.lockfile import Change, Lock

_PANEL = "Lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class LockFlags:
    """What is done to which lock, as the user wrote it."""

    lock_file: Annotated[
        Path | None,
        typer.Option(
            "--lock-file",
            metavar="FILE",
            help="Write there, in place of the gpuenv.lock beside gpuenv.toml.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Change nothing; exit 1 with the differences if the lock is not what is asked "
            "for. No engine and no network needed.",
            rich_help_panel=_PANEL,
        ),
    ] = False
    upgrade: Annotated[
        bool,
        typer.Option(
            "--upgrade", "-U", help="Look for newer versions of all of it.", rich_help_panel=_PANEL
        ),
    ] = False
    upgrade_package: Annotated[
        list[str] | None,
        typer.Option(
            "--upgrade-package",
            "-P",
            metavar="NAME",
            help="Look for a newer version of this one; may be given several times.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    upgrade_base: Annotated[
        bool,
        typer.Option(
            "--upgrade-base", help="Take the base image as it is now.", rich_help_panel=_PANEL
        ),
    ] = False
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Resolve and show what would change.", rich_help_panel=_PANEL
        ),
    ] = False


def register(app: typer.Typer) -> None:
    """Add the area's commands to ``app``."""

    @command(app, "lock")
    def lock(
        request: RequestFlags,
        content: ContentFlags,
        sources: SourceFlags,
        how: LockFlags,
        name: NameOption = None,
        with_feature: WithOption = None,
        engine: EngineOption = None,
        make_base: MakeBaseOption = False,
        progress: ProgressOption = "auto",
        matrix_file: MatrixOption = None,
    ) -> None:
        """Freeze a request into gpuenv.lock, for gpuenv build --locked.

        The lock names the row of the matrix, the base image by digest, and the very file of every
        Python package that will be inside. What an earlier lock has stays where it still fits;
        where nothing at all is asked for, its request is taken again.

        Example: gpuenv lock --torch 2.9 --cuda 12.8 --pip einops
        """
        from gpuenv.commands.build_progress import show_build
        from gpuenv.commands.site import open_site
        from gpuenv.lockfile import compare_locks, write_lock
        from gpuenv.locking import Upgrade, resolve_lock

        def read(machine: str | None = None) -> Asked:
            return read_asked(
                request, content, matrix_file=matrix_file, name=name, machine=machine,
                features=features_of(with_feature),
            )  # fmt: skip

        asked = read()
        path = asked.lock_path(how.lock_file)
        if how.check:
            _check(asked, path)
            return
        before = _load_if_there(path)
        flags = BuildFlags(engine=engine, make_base=make_base, progress=progress)
        with open_site(engine) as site, show_build(output.current(), progress) as on_event:
            asked = _with_earlier(read(machine_of(site)), before, path)
            order, shop = order_of(asked, sources, flags, site=site)
            made = resolve_lock(
                order, shop, on_event, before=before,
                upgrade=Upgrade(
                    everything=how.upgrade,
                    base=how.upgrade_base,
                    packages=tuple(how.upgrade_package or ()),
                ),
            )  # fmt: skip
        changes = compare_locks(before, made)
        changed = before is None or made.digest != before.digest
        if not how.dry_run:
            changed = write_lock(path, made)
        output.current().answer(
            {
                "path": str(path),
                "digest": made.digest,
                "changed": changed,
                "written": changed and not how.dry_run,
                "base_image": made.base.ref,
                "environment": made.spec.environment.as_dict(),
                "packages": {package.name: package.version for package in made.installed},
                "changes": [change.as_dict() for change in changes],
            },
            human=lambda: _print(made, () if before is None else changes, path, changed=changed),
        )


def _load_if_there(path: Path) -> Lock | None:
    """Return an earlier lock; one that is there and broken is an error, not a reason to forget it.

    Raises:
        LockFileError: It is not whole.
    """
    from gpuenv.lockfile import load_lock

    return load_lock(path) if path.exists() else None


def _with_earlier(asked: Asked, before: Lock | None, path: Path) -> Asked:
    """Add what an earlier lock says where nothing is asked: all of its request, or its features."""
    import platform

    from gpuenv.matrix.request import layer_settings, parse_request

    if before is None:
        return asked
    if not asked.is_empty:
        features = asked.image.features or before.spec.image.features
        return replace(asked, image=replace(asked.image, features=features))
    output.current().note(f"nothing else is asked for: taking the request of {path.name}")
    settings = layer_settings(
        {}, environ={}, file_settings=before.request_settings(), file_name=path.name
    )
    request = parse_request(asked.matrix, settings, machine=platform.machine())
    return replace(asked, request=request, image=before.spec.image)


def _check(asked: Asked, path: Path) -> None:
    """Say whether a lock is what is asked for.

    Raises:
        LockOutdatedError: It is not; with every difference.
    """
    from gpuenv.lockcheck import require_current
    from gpuenv.lockfile import load_lock

    found = load_lock(path)
    said = f"{path.name} is intact; no flag, variable or gpuenv.toml to compare it with"
    if not asked.is_empty:
        require_current(found, asked.request, asked.image, asked=asked.keys, origin=path.name)
        said = f"{path.name} is what is asked for"
    out = output.current()
    out.answer(
        {"path": str(path), "digest": found.digest, "changes": []}, human=lambda: out.text(said)
    )


def _print(made: Lock, changes: tuple[Change, ...], path: Path, *, changed: bool) -> None:
    out = output.current()
    for change in changes:
        out.text(str(change))
    row = made.spec.environment
    out.note(
        f"torch {row.torch}+{row.torch_variant}, Python {row.python}, "
        f"{len(made.installed)} packages on {made.base.image}"
    )
    out.text(str(path) if changed else f"{path} is as it was")
