"""What every test may rely on: its own folders, no network and no programs unless it asks.

A test that needs a capability takes the fixture of that name (``engine``, ``chromium``); where the
capability is missing the test is skipped with that reason, or fails with ``GPUENV_TEST_STRICT=1``.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any, NoReturn

import pytest

pytest_plugins = ["tests.engine_fixtures", "tests.launch_fixtures"]

TESTS = Path(__file__).parent
REPOSITORY = TESTS.parent
_OFFLINE_TREES = ("unit", "golden")


def pytest_configure() -> None:
    """Let programs that tests start be interrupted, also where we ourselves run in the background.

    A shell starts background jobs with SIGINT ignored, and what is ignored stays so in children;
    what has a handler is reset to the default in them.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)


def missing(capability: str) -> NoReturn:
    """Skip for want of a capability, or fail where the run promised to have it."""
    if os.environ.get("GPUENV_TEST_STRICT") == "1":
        pytest.fail(f"promised but missing: {capability}")
    pytest.skip(f"missing: {capability}")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="Write the rendered files over the kept ones; read the diff before committing.",
    )


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test a home of its own and an environment without the user's GPUENV_* settings."""
    home = tmp_path / "home"
    home.mkdir()
    for name in list(os.environ):
        if name.startswith(("GPUENV_", "XDG_")) and name != "GPUENV_TEST_STRICT":
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")


@pytest.fixture(autouse=True)
def _offline(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let unit and golden tests start no program and open no connection, unless marked so."""
    tree = Path(str(request.node.path)).relative_to(TESTS).parts[0]
    marks = {mark.name for mark in request.node.iter_markers()}
    if tree in _OFFLINE_TREES and not marks & {"subprocess", "network"}:

        def refuse(*args: Any, **_: Any) -> NoReturn:
            raise AssertionError(f"a unit test reached outside: {args!r:.200}")

        monkeypatch.setattr(subprocess, "Popen", refuse)
        monkeypatch.setattr(socket.socket, "connect", refuse)
