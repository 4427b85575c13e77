"""Fixtures of the tests that need a Python with torch."""

from __future__ import annotations

from typing import Any

import pytest

from tests.torch_runner import DOUBLES, TorchProbes, find_torch


@pytest.fixture(scope="session")
def torch_probes() -> TorchProbes:
    """Return the runner for the Python with torch."""
    return TorchProbes(find_torch())


@pytest.fixture
def fault() -> Any:
    """Return the variables that put a fault into torch, by the double on PYTHONPATH."""
    return lambda name: {"TEST_FAULT": name, "PYTHONPATH": str(DOUBLES)}
