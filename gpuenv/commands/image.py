"""The flags that say what is in an image beside PyTorch, and where packages come from.

The same in every command that may build: ``render``, ``build``, ``run``, ``jupyter`` and ``ssh``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from gpuenv.index.sources import PackageSources
    from gpuenv.spec import Feature, ImageRequest

_CONTENT = "Image"
_SOURCES = "Package sources"
_ENGINE = "Engine"

AptOption = Annotated[
    list[str] | None,
    typer.Option(
        "--apt",
        metavar="PACKAGE",
        help="A Debian or Ubuntu package; may be given several times.",
        rich_help_panel=_CONTENT,
    ),
]
PipOption = Annotated[
    list[str] | None,
    typer.Option(
        "--pip",
        metavar="REQUIREMENT",
        help='A Python package: einops or "transformers>=5"; may be given several times.',
        rich_help_panel=_CONTENT,
    ),
]
RequirementsOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--requirements",
        "-r",
        metavar="FILE",
        help="A requirements file; may be given several times.",
        rich_help_panel=_CONTENT,
    ),
]
EnvOption = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        metavar="NAME=VALUE",
        help="A variable set in the image; may be given several times. Not for secrets.",
        rich_help_panel=_CONTENT,
    ),
]
WorkdirOption = Annotated[
    str | None,
    typer.Option(
        "--workdir",
        metavar="PATH",
        help="Where commands start; /workspace by default.",
        rich_help_panel=_CONTENT,
    ),
]
BaseOption = Annotated[
    str | None,
    typer.Option(
        "--base",
        metavar="IMAGE",
        help="Start from this image instead of the row's.",
        rich_help_panel=_CONTENT,
    ),
]
NameOption = Annotated[
    str | None,
    typer.Option(
        "--name",
        metavar="NAME",
        help="Name of the image: localhost/gpuenv/NAME:…; torch by default.",
        rich_help_panel=_CONTENT,
    ),
]
IndexUrlOption = Annotated[
    str | None,
    typer.Option(
        "--index-url",
        metavar="URL",
        help="Package index in place of the host's own setting; may hold credentials.",
        rich_help_panel=_SOURCES,
    ),
]
ExtraIndexUrlOption = Annotated[
    list[str] | None,
    typer.Option(
        "--extra-index-url",
        metavar="URL",
        help="A further package index; may be given several times.",
        rich_help_panel=_SOURCES,
    ),
]
TorchIndexUrlOption = Annotated[
    str | None,
    typer.Option(
        "--torch-index-url",
        metavar="URL",
        help="A mirror of the PyTorch wheel index: …/whl, …/cu128 or a flat page of links.",
        rich_help_panel=_SOURCES,
    ),
]
WheelhouseOption = Annotated[
    list[str] | None,
    typer.Option(
        "--wheelhouse",
        metavar="DIR",
        help="A directory of wheels that wins over every index; may be given several times.",
        rich_help_panel=_SOURCES,
    ),
]
CaBundleOption = Annotated[
    str | None,
    typer.Option(
        "--ca-bundle",
        metavar="FILE",
        help="Certificates to trust, for a private index or a proxy that opens TLS.",
        rich_help_panel=_SOURCES,
    ),
]
AptMirrorOption = Annotated[
    str | None,
    typer.Option(
        "--apt-mirror",
        metavar="URL",
        help="A mirror in place of the distribution's own archive.",
        rich_help_panel=_SOURCES,
    ),
]
OfflineOption = Annotated[
    bool,
    typer.Option("--offline", help="Take wheels from directories only.", rich_help_panel=_SOURCES),
]
EngineOption = Annotated[
    str | None,
    typer.Option(
        "--engine",
        metavar="ADDRESS",
        help="Engine to use: a socket, tcp://…, a Docker context, or private.",
        rich_help_panel=_ENGINE,
    ),
]
MakeBaseOption = Annotated[
    bool,
    typer.Option(
        "--make-base",
        help="Make the base image from the package mirror where no registry has it (needs root).",
        rich_help_panel=_ENGINE,
    ),
]
RefreshOption = Annotated[
    bool,
    typer.Option(
        "--refresh",
        help="Ask the sources again, even if an image of this very request is there.",
        rich_help_panel=_ENGINE,
    ),
]
NoCacheOption = Annotated[
    bool,
    typer.Option("--no-cache", help="Run every step again.", rich_help_panel=_ENGINE),
]
ProgressOption = Annotated[
    str,
    typer.Option(
        "--progress",
        metavar="auto|plain|json|quiet",
        help="How to show the build.",
        rich_help_panel=_ENGINE,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentFlags:
    """What is in an image beside PyTorch, as the user wrote it."""

    apt: AptOption = None
    pip: PipOption = None
    requirements: RequirementsOption = None
    env: EnvOption = None
    workdir: WorkdirOption = None
    base: BaseOption = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFlags:
    """Where packages come from, as the user wrote it."""

    index_url: IndexUrlOption = None
    extra_index_url: ExtraIndexUrlOption = None
    torch_index_url: TorchIndexUrlOption = None
    wheelhouse: WheelhouseOption = None
    ca_bundle: CaBundleOption = None
    apt_mirror: AptMirrorOption = None
    offline: OfflineOption = False

    def load(self) -> PackageSources:
        """Put the flags and this host's own settings together."""
        import os

        from gpuenv.index.host_config import SourceFlags as Flags
        from gpuenv.index.host_config import load_package_sources

        return load_package_sources(
            os.environ,
            flags=Flags(
                index_url=self.index_url,
                extra_index_url=tuple(self.extra_index_url or ()),
                torch_index_url=self.torch_index_url,
                wheelhouse=tuple(self.wheelhouse or ()),
                ca_bundle=self.ca_bundle,
                offline=self.offline,
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildFlags:
    """How a build goes about its work."""

    engine: EngineOption = None
    make_base: MakeBaseOption = False
    refresh: RefreshOption = False
    no_cache: NoCacheOption = False
    progress: ProgressOption = "auto"


def read_content(
    flags: ContentFlags, *, name: str | None = None, features: tuple[Feature, ...] = ()
) -> ImageRequest:
    """Turn the flags about an image's content into a request."""
    from gpuenv.spec import ImageRequest

    default = ImageRequest()
    lines = [
        line.strip()
        for path in flags.requirements or ()
        for line in path.read_text().splitlines()
        if line.strip() and not line.lstrip().startswith("#")
    ]
    pairs = [pair.partition("=") for pair in flags.env or ()]
    return ImageRequest(
        name=name or default.name,
        features=tuple(sorted(features)),
        apt=tuple(sorted(set(flags.apt or ()))),
        pip=tuple(sorted(set(flags.pip or ()))),
        requirements=tuple(lines),
        env=tuple(sorted((key, value) for key, _, value in pairs)),
        workdir=flags.workdir or default.workdir,
        base=flags.base,
    )
