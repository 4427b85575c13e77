"""Put the adapters of a command together: matrix, sources, engine, host."""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpuenv import output
from gpuenv.commands.options import asked_keys, host_for, load_chosen_matrix, read_request
from gpuenv.state import cache_dir
from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from gpuenv.build import BuiltImage
    from gpuenv.commands.image import BuildFlags, ContentFlags, SourceFlags
    from gpuenv.commands.options import RequestFlags
    from gpuenv.commands.site import Site
    from gpuenv.config import Config
    from gpuenv.engine.protocol import ContainerEngine
    from gpuenv.lockfile import Lock
    from gpuenv.matrix.model import Matrix
    from gpuenv.provision import ImageOrder, Workshop
    from gpuenv.spec import Feature, ImageRequest, MatrixRequest


def open_engine(address: str | None) -> AbstractContextManager[ContainerEngine]:
    """Connect to the engine the user means, through SSH where it is on another host."""
    from gpuenv.commands.site import settled_host
    from gpuenv.engine.connect import connect
    from gpuenv.ssh.remote import open_remote

    return connect(address, settled=settled_host(), transport=open_remote)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What flags, variables and ``gpuenv.toml`` say of an image.

    Attributes:
        keys: The keys of the request that somebody wrote.
    """

    matrix: Matrix
    config: Config
    request: MatrixRequest
    image: ImageRequest
    keys: frozenset[str]

    @property
    def is_empty(self) -> bool:
        """Whether nobody asked for anything."""
        from gpuenv.spec import ImageRequest

        return not self.keys and self.image == ImageRequest()

    @property
    def name(self) -> str:
        """The name asked for; empty where it was left to gpuenv."""
        from gpuenv.spec import ImageRequest

        return "" if self.image.name == ImageRequest().name else self.image.name

    def lock_path(self, given: Path | None) -> Path:
        """Return where the lock of this project is."""
        from gpuenv.lockfile import lock_path

        return lock_path(given, self.config.path, Path.cwd())


def read_asked(
    request: RequestFlags,
    content: ContentFlags,
    *,
    matrix_file: Path | None = None,
    name: str | None = None,
    features: tuple[Feature, ...] = (),
    machine: str | None = None,
) -> Asked:
    """Read what is asked for, from all places where it may stand.

    Args:
        machine: The CPU architecture where none is asked for, this machine's by default.
    """
    from gpuenv.commands.image import read_content
    from gpuenv.config import load_config

    matrix = load_chosen_matrix(matrix_file)
    config = load_config(Path.cwd(), os.environ)
    settings = config.request_settings()
    return Asked(
        matrix=matrix,
        config=config,
        request=read_request(
            matrix,
            request.given(),
            file_settings=settings,
            file_name=config.name,
            machine=machine,
        ),
        image=read_content(content, config, os.environ, name=name, features=features),
        keys=asked_keys(request.given(), file_settings=settings),
    )


def read_lock(asked: Asked, given: Path | None, *, to_build: bool = False) -> Lock:
    """Read the lock to build, and hold it against what is asked for besides.

    Args:
        asked: What is asked for.
        given: The file named by a flag.
        to_build: The engine's host decides the CPU, also where nobody asked for one.

    Raises:
        LockFileError: It is not there or not whole.
        LockMismatchError: It cannot give what is asked for.
    """
    from gpuenv.lockcheck import require_fit
    from gpuenv.lockfile import load_lock

    path = asked.lock_path(given)
    lock = load_lock(path)
    require_fit(
        lock,
        asked.request,
        asked.image,
        asked=asked.keys | {"arch"} if to_build else asked.keys,
        matrix=asked.matrix,
        origin=path.name,
    )
    return lock


def take_order(
    request: RequestFlags,
    content: ContentFlags,
    sources: SourceFlags,
    build: BuildFlags,
    *,
    matrix_file: Path | None = None,
    name: str | None = None,
    tags: tuple[str, ...] = (),
    features: tuple[Feature, ...] = (),
    site: Site | None = None,
) -> tuple[ImageOrder, Workshop]:
    """Turn the flags of a command into an order and what is needed to fill it."""
    from gpuenv.lockcheck import unserved
    from gpuenv.validate import check_tag

    asked = read_asked(
        request,
        content,
        matrix_file=matrix_file,
        name=name,
        features=features,
        machine=machine_of(site),
    )
    for tag in tags:
        check_tag(tag, origin="--tag")
    order, shop = order_of(asked, sources, build, site=site)
    if build.is_locked:
        lock = read_lock(asked, build.lock_file, to_build=True)
        for text in unserved(lock, shop.host, asked.matrix):
            output.current().warn(f"for this host: {text}")
        image = lock.spec.image
        order = replace(order, lock=lock, image=replace(image, name=asked.name or image.name))
    return replace(order, tags=tags), shop


def order_of(
    asked: Asked,
    sources: SourceFlags,
    build: BuildFlags,
    *,
    site: Site | None = None,
) -> tuple[ImageOrder, Workshop]:
    """Turn what is asked for into an order, and gather what is needed to fill it."""
    from gpuenv.index.simple import SimpleClient
    from gpuenv.provision import ImageOrder, Workshop

    out = output.current()
    package_sources = sources.load(asked.config, os.environ)
    for warning in package_sources.warnings:
        out.warn(warning)
    order = ImageOrder(
        request=asked.request,
        image=asked.image,
        apt_mirror=sources.mirror(asked.config, os.environ),
        make_base=build.make_base,
        refresh=build.refresh,
        no_cache=build.no_cache,
    )
    shop = Workshop(
        matrix=asked.matrix,
        client=SimpleClient(package_sources),
        tell=out,
        engine=None if site is None else site.engine,
        host=host_for(asked.request) if site is None else site.host_gpus(asked.request),
        known=cache_dir(os.environ) / "orders",
    )
    return order, shop


def machine_of(site: Site | None) -> str | None:
    """Return the CPU architecture of another host, ``None`` where it is this one."""
    if site is None or site.remote is None:
        return None
    return site.engine.capabilities.architecture


def fill_order(order: ImageOrder, shop: Workshop, *, progress: str) -> BuiltImage:
    """Find or build the image of an order, showing the build as it goes."""
    from gpuenv.commands.build_progress import show_build
    from gpuenv.provision import find_or_build

    with show_build(output.current(), progress) as on_event:
        return find_or_build(order, shop, on_event)


@contextmanager
def try_site(address: str | None) -> Iterator[Site | None]:
    """Yield where the engine is, or ``None`` with a note where there is none."""
    from gpuenv.commands.site import open_site
    from gpuenv.errors import EngineUnavailableError

    with ExitStack() as stack:
        try:
            site = stack.enter_context(open_site(address))
        except EngineUnavailableError as error:
            output.current().note(f"planned without an engine: {error.what}")
            site = None
        yield site
