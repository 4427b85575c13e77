"""Commands of the area: render."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuenv import output
from gpuenv.commands import command
from gpuenv.commands.image import (
    AptMirrorOption,
    ContentFlags,
    NameOption,
    SourceFlags,
    read_content,
)
from gpuenv.commands.options import (
    MatrixOption,
    RequestFlags,
    host_for,
    load_chosen_matrix,
    read_request,
)

if TYPE_CHECKING:
    from gpuenv.render import BuildContext
    from gpuenv.spec import ImageSpec


class FeatureName(str, Enum):
    """The parts of an image that a command of gpuenv needs."""

    jupyter = "jupyter"
    ssh = "ssh"


def register(app: typer.Typer) -> None:
    """Add the area's commands to ``app``."""

    @command(app, "render")
    def render(
        request: RequestFlags,
        content: ContentFlags,
        name: NameOption = None,
        apt_mirror: AptMirrorOption = None,
        with_feature: Annotated[
            list[FeatureName] | None,
            typer.Option(
                "--with",
                metavar="jupyter|ssh",
                help="Add what gpuenv jupyter and gpuenv ssh need; may be given twice.",
                rich_help_panel="Image",
            ),
        ] = None,
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
        from gpuenv.config import load_config
        from gpuenv.matrix.resolve import resolve
        from gpuenv.render import render_context
        from gpuenv.spec import Delivery, ImageSpec

        out = output.current()
        config = load_config(Path.cwd(), os.environ)
        image = read_content(
            content,
            config,
            os.environ,
            name=name,
            features=tuple(f.value for f in with_feature or ()),
        )
        mirror = SourceFlags(apt_mirror=apt_mirror).mirror(config, os.environ)
        matrix = load_chosen_matrix(matrix_file)
        wanted = read_request(
            matrix, request.given(), file_settings=config.request_settings(), file_name=config.name
        )
        row = resolve(matrix, wanted, host=host_for(wanted))
        for note in row.notes:
            out.note(note)
        for warning in row.warnings:
            out.warn(warning)
        spec = ImageSpec(environment=row, image=image)
        context = render_context(spec, Delivery(apt_mirror=mirror))
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
