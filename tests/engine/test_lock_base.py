"""The base image of a lock by the digest of its registry: kept while its tag moves on."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import pytest

from gpuenv.engine.archive import Member, tar_bytes
from gpuenv.engine.events import Pushed, build_image
from gpuenv.engine.protocol import BuildRequest
from gpuenv.lockfile import load_lock
from tests.engine.test_docker_registry import Registry, registry

if TYPE_CHECKING:
    from pathlib import Path

    from gpuenv.engine.protocol import ContainerEngine
    from tests.engine.conftest import Gpuenv

__all__ = ["registry"]

pytestmark = [pytest.mark.engine, pytest.mark.network]


def push(engine: ContainerEngine, ref: str) -> str:
    """Push an image and return its digest."""
    pushed = list(engine.push(ref))[-1]
    assert isinstance(pushed, Pushed)
    return pushed.digest


def another(engine: ContainerEngine, base: str, labels: dict[str, str]) -> str:
    """Make an image that differs from a base in a label alone; return its id."""
    dockerfile = f"FROM {base}\nLABEL another={secrets.token_hex(4)}\n"
    context = tar_bytes([Member(path="Dockerfile", content=dockerfile.encode())])
    return build_image(engine, BuildRequest(context=context, labels=labels))


def test_a_base_stays_by_its_digest_while_its_tag_moves(
    gpuenv: Gpuenv,
    local_engine: ContainerEngine,
    base_image: str,
    registry: Registry,
    run_labels: dict[str, str],
    tmp_path: Path,
) -> None:
    ref = f"{registry.host}/gpuenv/test-{secrets.token_hex(4)}:bookworm"
    path = tmp_path / "gpuenv.lock"
    request = ("--cuda", "cpu", "--base", ref, "--lock-file", str(path))
    local_engine.tag(base_image, ref)
    first = push(local_engine, ref)
    try:
        made = gpuenv("lock", *request)
        assert made.exit_code == 0, made.envelope
        assert not [text for text in made.envelope["warnings"] if "registry" in text]
        lock = load_lock(path)
        assert (lock.base.image, lock.base.digest, lock.base.id) == (ref, first, None)

        local_engine.tag(another(local_engine, base_image, run_labels), ref)
        second = push(local_engine, ref)
        again = gpuenv("lock", *request)
        assert (again.exit_code, again.data["changed"]) == (0, False), again.envelope
        newer = gpuenv("lock", *request, "--upgrade-base", "--dry-run")
        (change,) = newer.data["changes"]
        assert change["what"] == "base image"
        assert (first[:19] in change["before"], second[:19] in change["after"]) == (True, True)
        assert newer.data["written"] is False
        assert load_lock(path) == lock
    finally:
        local_engine.untag(ref, force=True)
        local_engine.untag(f"{ref.rpartition(':')[0]}@{first}", force=True)
