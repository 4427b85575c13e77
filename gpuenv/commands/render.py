"""Commands of the area: render."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuenv import output
from gpuenv.commands import command
from gpuenv.commands.image import (
    AptMirrorOption,
    ContentFlags,
    LockedOption,
    LockFileOption,
    NameOption,
    SourceFlags,
    WithOption,
    features_of,
)
from gpuenv.commands.options import MatrixOption, RequestFlags, host_for
from gpuenv.commands.wiring import read_asked, read_lock
from gpuenv.values import dataclass

if TYPE_CHECKING:
    from gpuenv.render import BuildContext
    from gpuenv.spec import ImageSpec


def register(app: typer.Typer) -> None:
    """Add the area's commands to ``app``."""

    @command(app, "render")
    def render(
        request: RequestFlags,
        content: ContentFlags,
        name: NameOption = None,
        apt_mirror: AptMirrorOption = None,
        with_feature: WithOption = None,
        locked: LockedOption = False,
        lock_file: LockFileOption = None,
        output_dir: Annotated[
            Path | None,
            typer.Option(
                "--output", "-o", metavar="DIR", help="Write the build context into this folder."
            ),
        ] = None,
        matrix_file: MatrixOption = None,
    ) -> None:
        """Print the Dockerfile of a request; no engine and no network needed.

        It holds all of the recipe, so any BuildKit builds it: gpuenv render … | docker build -.
        What only this host knows (mirrors, certificates, wheel folders) is not in it.

        Example: gpuenv render --torch 2.9 --cuda 12.8 --pip einops
        """
        from gpuenv.matrix.resolve import resolve
        from gpuenv.render import render_context
        from gpuenv.spec import Delivery, ImageSpec

        out = output.current()
        asked = read_asked(
            request, content, matrix_file=matrix_file, name=name,
            features=features_of(with_feature),
        )  # fmt: skip
        mirror = SourceFlags(apt_mirror=apt_mirror).mirror(asked.config, os.environ)
        lock = read_lock(asked, lock_file) if locked or lock_file is not None else None
        if lock is None:
            row = resolve(asked.matrix, asked.request, host=host_for(asked.request))
            spec = ImageSpec(environment=row, image=asked.image)
        else:
            spec = lock.locked_spec(asked.name)
        for note in spec.environment.notes:
            out.note(note)
        for warning in spec.environment.warnings:
            out.warn(warning)
        context = render_context(spec, Delivery(apt_mirror=mirror), lock=lock)
        written = () if output_dir is None else write_context(context, output_dir)
        answer = _Answer(spec=spec, context=context, written=written)
        out.answer(answer.as_dict(), human=answer.print)


def write_context(context: BuildContext, folder: Path) -> tuple[Path, ...]:
    """Write a build context into a folder and return the files written.

    Raises:
        ConfigurationError: The folder cannot be written.
    """
    from gpuenv.errors import ConfigurationError

    if not str(folder).strip() or folder.is_file():
        raise ConfigurationError(
            f"--output {str(folder)!r} is not a folder",
            why="the build context is written into one",
            fix="name a folder that can be written: --output DIR",
        )
    _require_own(folder / "Dockerfile")
    files = {"Dockerfile": context.dockerfile.encode()}
    files |= {file.path: file.data for file in context.files if file.data is not None}
    written = []
    try:
        for path, data in files.items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
            written.append(target)
    except OSError as exc:
        raise ConfigurationError(
            f"cannot write {exc.filename or folder}",
            why=exc.strerror or str(exc),
            fix="name a folder that can be written: --output DIR",
        ) from exc
    return tuple(written)


def _require_own(dockerfile: Path) -> None:
    """Refuse to write over a Dockerfile that gpuenv did not write.

    Raises:
        ConfigurationError: There is one.
    """
    from gpuenv.errors import ConfigurationError

    try:
        text = dockerfile.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return  # none there, or writing it tells why not
    if text and "org.gpuenv.version" not in text:
        raise ConfigurationError(
            f"{dockerfile} is not gpuenv's own",
            why="it would be written over, and it lacks the label org.gpuenv.version",
            fix="move it away, or name another folder: --output DIR",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """What ``gpuenv render`` says."""

    spec: ImageSpec
    context: BuildContext
    written: tuple[Path, ...]

    def as_dict(self) -> dict[str, object]:
        return {
            "spec": self.spec.as_dict(),
            "dockerfile": self.context.dockerfile,
            "labels": dict(self.context.labels),
            "written": [str(path) for path in self.written],
        }

    def print(self) -> None:
        out = output.current()
        if not self.written:
            out.text(self.context.dockerfile)
            return
        for path in self.written:
            out.text(str(path))
