"""Put the adapters of a command together: matrix, sources, engine, host."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gpuenv import output
from gpuenv.commands.options import host_for, load_chosen_matrix, read_request

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from gpuenv.build import BuiltImage
    from gpuenv.commands.image import BuildFlags, ContentFlags, SourceFlags
    from gpuenv.commands.options import RequestFlags
    from gpuenv.engine.protocol import ContainerEngine
    from gpuenv.provision import ImageOrder, Workshop
    from gpuenv.spec import Feature


def open_engine(address: str | None) -> AbstractContextManager[ContainerEngine]:
    """Connect to the engine the user means, through SSH where it is on another host."""
    from gpuenv.commands.site import settled_host
    from gpuenv.engine.connect import connect
    from gpuenv.ssh.remote import open_remote

    return connect(address, settled=settled_host(), transport=open_remote)


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
    engine: ContainerEngine | None = None,
) -> tuple[ImageOrder, Workshop]:
    """Turn the flags of a command into an order and what is needed to fill it."""
    from gpuenv.commands.image import read_content
    from gpuenv.config import load_config
    from gpuenv.index.simple import SimpleClient
    from gpuenv.provision import ImageOrder, Workshop
    from gpuenv.validate import check_tag

    out = output.current()
    matrix = load_chosen_matrix(matrix_file)
    config = load_config(Path.cwd(), os.environ)
    wanted = read_request(
        matrix, request.given(), file_settings=config.request_settings(), file_name=config.name
    )
    image = read_content(content, config, os.environ, name=name, features=features)
    for tag in tags:
        check_tag(tag, origin="--tag")
    package_sources = sources.load(config, os.environ)
    for warning in package_sources.warnings:
        out.warn(warning)
    order = ImageOrder(
        request=wanted,
        image=image,
        tags=tags,
        apt_mirror=sources.mirror(config, os.environ),
        make_base=build.make_base,
        refresh=build.refresh,
        no_cache=build.no_cache,
    )
    shop = Workshop(
        matrix=matrix,
        client=SimpleClient(package_sources),
        tell=out,
        engine=engine,
        host=host_for(wanted),
    )
    return order, shop


def fill_order(order: ImageOrder, shop: Workshop, *, progress: str) -> BuiltImage:
    """Find or build the image of an order, showing the build as it goes."""
    from gpuenv.commands.build_progress import show_build
    from gpuenv.provision import find_or_build

    with show_build(output.current(), progress) as on_event:
        return find_or_build(order, shop, on_event)


@contextmanager
def try_engine(address: str | None) -> Iterator[ContainerEngine | None]:
    """Yield the engine, or ``None`` with a note where there is none."""
    from gpuenv.errors import EngineUnavailableError

    try:
        engine = open_engine(address)
    except EngineUnavailableError as error:
        output.current().note(f"planned without an engine: {error.what}")
        yield None
        return
    with engine as opened:
        yield opened
