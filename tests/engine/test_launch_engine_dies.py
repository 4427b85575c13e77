"""An engine that dies under what gpuenv started on it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from gpuenv.engine.connect import connect
from gpuenv.engine.private import up
from tests.engine_fixtures import BASE

if TYPE_CHECKING:
    from gpuenv.engine.private import PrivateEngine
    from gpuenv.engine.protocol import ContainerEngine
    from tests.launch_fixtures import Desk

pytestmark = pytest.mark.engine


def test_environments_of_an_engine_that_was_killed_are_found_and_started_again(
    doomed: tuple[PrivateEngine, ContainerEngine],
    private_environ: dict[str, str],
    desk: Desk,
) -> None:
    record, _ = doomed
    engine = ("--engine", record.address)
    kept = ("--no-caches", "--keep", "--name", "kept", "--network", "none")
    started = desk.run("run", BASE, *engine, *kept, "--detach", "--", "sleep", "86400")
    assert started.exit_code == 0, started.stderr
    attached = desk.popen(
        "run", BASE, *engine, "--no-caches", "--network", "none", "--json", "--name", "attached",
        "--", "sh", "-c", "echo ready; sleep 86400",
        stderr=subprocess.PIPE,
    )  # fmt: skip
    assert attached.stderr is not None
    while b"ready" not in attached.stderr.readline():
        assert attached.poll() is None

    os.kill(record.pid, signal.SIGKILL)
    out, _ = attached.communicate(timeout=60)
    assert attached.returncode == 4
    assert json.loads(out)["errors"][0]["slug"] in {"engine-lost", "engine-not-running"}
    gone = desk.run("ps", *engine, "--json")
    assert (gone.exit_code, gone.slug) == (4, "engine-not-running")

    again = up(private_environ, say=lambda _: None)
    engine = ("--engine", again.address)
    listed = desk.run("ps", *engine, "--json").data["environments"]
    assert {one["name"]: one["state"] for one in listed}["kept"] == "exited"
    assert desk.run("start", "kept", *engine, "--json").exit_code == 0
    (one,) = [
        one
        for one in desk.run("ps", *engine, "--json").data["environments"]
        if one["name"] == "kept"
    ]
    assert one["state"] == "running"
    assert desk.run("rm", "--all", *engine, "--yes").exit_code == 0
    with connect(again.address, environ=private_environ) as engine_again:
        assert engine_again.containers() == ()
