"""One contract, two engines: the fake one always, the real one where it answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpuenv.engine.fake import FakeEngine
from tests.engine_fixtures import BASE

if TYPE_CHECKING:
    from gpuenv.engine.protocol import ContainerEngine


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.engine)])
def either_engine(request: pytest.FixtureRequest) -> ContainerEngine:
    """Return an engine with the image ``BASE`` on it; the test runs once with each."""
    if request.param == "fake":
        fake = FakeEngine()
        fake.add_image(BASE, command=("bash",))
        return fake
    request.getfixturevalue("base_image")
    engine: ContainerEngine = request.getfixturevalue("engine")
    return engine
