"""The flags that say what is in an image beside PyTorch, and where packages come from.

The same in every command that may build: ``render``, ``build``, ``run``, ``jupyter`` and ``ssh``.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuenv.config import Config
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
        "--host",
        metavar="ADDRESS",
        help="Engine to use: a socket, ssh://user@host, tcp://…, a Docker context, or private.",
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


class FeatureName(str, Enum):
    """The parts of an image that a command of gpuenv needs."""

    jupyter = "jupyter"
    ssh = "ssh"


WithOption = Annotated[
    list[FeatureName] | None,
    typer.Option(
        "--with",
        metavar="jupyter|ssh",
        help="Add what gpuenv jupyter and gpuenv ssh need; may be given twice.",
        rich_help_panel=_CONTENT,
    ),
]


def features_of(names: list[FeatureName] | None) -> tuple[Feature, ...]:
    """Return the features that ``--with`` names."""
    return tuple(name.value for name in names or ())


LockedOption = Annotated[
    bool,
    typer.Option(
        "--locked",
        help="Build exactly what gpuenv.lock names, or find that image.",
        rich_help_panel=_CONTENT,
    ),
]
LockFileOption = Annotated[
    Path | None,
    typer.Option(
        "--lock-file",
        metavar="FILE",
        help="The lock to build, in place of the gpuenv.lock beside gpuenv.toml; means --locked.",
        rich_help_panel=_CONTENT,
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

    def load(self, config: Config, environ: Mapping[str, str]) -> PackageSources:
        """Put the flags, the settings file and this host's own settings together."""
        from gpuenv.index.host_config import SourceFlags as Flags
        from gpuenv.index.host_config import load_package_sources

        def one(name: str, flag: str | None) -> str | None:
            setting = config.text(name, flag, environ)
            return None if setting is None else setting.text

        def several(name: str, given: list[str] | None) -> tuple[str, ...]:
            return tuple(setting.text for setting in config.texts(name, given, environ))

        return load_package_sources(
            environ,
            flags=Flags(
                index_url=one("index-url", self.index_url),
                extra_index_url=several("extra-index-url", self.extra_index_url),
                torch_index_url=one("torch-index-url", self.torch_index_url),
                wheelhouse=several("wheelhouse", self.wheelhouse),
                ca_bundle=one("ca-bundle", self.ca_bundle),
                offline=config.flag("offline", environ, given=self.offline),
            ),
        )

    def mirror(self, config: Config, environ: Mapping[str, str]) -> str | None:
        """Return the apt mirror, checked.

        Raises:
            ConfigurationError: It is no address, or holds credentials.
        """
        from gpuenv.validate import check_mirror

        setting = config.text("apt-mirror", self.apt_mirror, environ)
        return None if setting is None else check_mirror(setting.text, origin=setting.origin)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildFlags:
    """How a build goes about its work."""

    locked: LockedOption = False
    lock_file: LockFileOption = None
    engine: EngineOption = None
    make_base: MakeBaseOption = False
    refresh: RefreshOption = False
    no_cache: NoCacheOption = False
    progress: ProgressOption = "auto"

    @property
    def is_locked(self) -> bool:
        """Whether the image is the one that a lock names."""
        return self.locked or self.lock_file is not None


def read_content(
    flags: ContentFlags,
    config: Config,
    environ: Mapping[str, str],
    *,
    name: str | None = None,
    features: tuple[Feature, ...] = (),
) -> ImageRequest:
    """Turn what a user wrote about an image's content into a request.

    Raises:
        ConfigurationError: Values that cannot be taken; all of them are named, with their places.
    """
    from gpuenv.content import parse_content

    return parse_content(
        config,
        environ,
        apt=flags.apt,
        pip=flags.pip,
        requirements=flags.requirements,
        env=flags.env,
        workdir=flags.workdir,
        base=flags.base,
        name=name,
        features=features,
    )
