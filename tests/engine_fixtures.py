"""Fixtures for tests that need a container engine; ``tests/conftest.py`` loads them for all trees.

The engine is the one that answers, as gpuenv itself finds it. Where none does and root may start
one, a private one is started for the run and ended with its data. Everything a test makes carries
``org.gpuenv.test=<this run>`` and is removed by that label: an engine shared with others is safe.
"""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING

import pytest

from gpuenv import process
from gpuenv.engine.base_image import make_base_image, plan_base_image
from gpuenv.engine.connect import connect
from gpuenv.engine.private import down, up
from gpuenv.errors import EngineUnavailableError
from tests.conftest import missing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from gpuenv.engine.private import PrivateEngine
    from gpuenv.engine.protocol import ContainerEngine

BASE = "localhost/gpuenv/base:bookworm"
LABEL = "org.gpuenv.test"
_RUN = secrets.token_hex(6)


@pytest.fixture(scope="session")
def engine_environ(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    """Return an environment in which an engine answers; start a private one if need be."""
    environ = dict(os.environ)
    try:
        connect(environ=environ).close()
    except EngineUnavailableError as error:
        if os.geteuid() != 0:
            missing(f"container engine ({error.what}: {error.why})")
    else:
        yield environ
        return
    environ["GPUENV_STATE_DIR"] = str(tmp_path_factory.mktemp("engine"))
    try:
        private = up(environ, say=lambda _: None)
    except EngineUnavailableError as error:
        missing(f"container engine (a private one cannot be started: {error.what}: {error.why})")
    try:
        yield {**environ, "DOCKER_HOST": private.address}
    finally:
        down(environ, purge=True, say=lambda _: None)


@pytest.fixture(scope="session")
def session_engine(engine_environ: Mapping[str, str]) -> Iterator[ContainerEngine]:
    """Connect for the whole run, and at its end remove what carries its label."""
    with connect(environ=engine_environ) as engine:
        yield engine
        remove_labelled(engine, {LABEL: _RUN})


@pytest.fixture(scope="session")
def base_image(session_engine: ContainerEngine) -> Iterator[str]:
    """Return the reference of a small Debian image; made by debootstrap where it is not there."""
    if session_engine.image(BASE) is not None:
        yield BASE
        return
    try:
        make_base_image(
            plan_base_image(ref=BASE, distribution="debian", suite="bookworm"),
            session_engine,
            say=lambda _: None,
        )
    except EngineUnavailableError as error:
        missing(f"base image ({error.what}: {error.why})")
    yield BASE
    session_engine.untag(BASE, force=True)


@pytest.fixture
def run_labels() -> dict[str, str]:
    """Return the labels that everything a test makes must carry."""
    return {LABEL: _RUN}


@pytest.fixture
def engine(
    session_engine: ContainerEngine, run_labels: dict[str, str]
) -> Iterator[ContainerEngine]:
    """Return the real engine; what the test made on it is gone afterwards."""
    yield session_engine
    remove_labelled(session_engine, run_labels)


@pytest.fixture
def local_engine(engine: ContainerEngine) -> ContainerEngine:
    """Return the engine if its processes are in our ``/proc``."""
    if not engine.capabilities.local:
        missing("local engine (the one that answers is on another host)")
    return engine


@pytest.fixture
def private_environ(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Return an environment whose private engine, if the test starts it, is ended afterwards."""
    if os.geteuid() != 0:
        missing("root, to start a private engine")
    for program in ("dockerd", "iptables", "ip"):
        if process.find_program(program) is None:
            missing(f"{program}, to start a private engine")
    environ = {**os.environ, "GPUENV_STATE_DIR": str(tmp_path / "state")}
    yield environ
    down(environ, purge=True, say=lambda _: None)


@pytest.fixture
def doomed(
    private_environ: dict[str, str], engine: ContainerEngine, base_image: str
) -> Iterator[tuple[PrivateEngine, ContainerEngine]]:
    """Start a private engine that a test may kill, with the base image on it."""
    record = up(private_environ, say=lambda _: None)
    with connect(record.address, environ=private_environ) as opened:
        opened.load(lambda: engine.save((base_image,)))
        yield record, opened


def remove_labelled(engine: ContainerEngine, labels: Mapping[str, str]) -> None:
    """Remove containers, images, volumes and networks that carry the labels."""
    for container in engine.containers(labels=labels):
        engine.remove(container.id, force=True)
    for image in engine.images(labels=labels):
        for ref in image.tags or (image.id,):
            engine.untag(ref, force=True)
    for volume in engine.volumes(labels=labels):
        engine.remove_volume(volume.name, force=True)
    for network in engine.networks(labels=labels):
        engine.remove_network(network.id)
