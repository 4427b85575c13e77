"""``--update-golden``: write what is rendered now over the files that are kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[Path, str], None]:
    """Compare a text with the file that is kept, or renew that file."""

    def compare(path: Path, text: str) -> None:
        if request.config.getoption("--update-golden"):
            path.write_text(text, encoding="utf-8")
        assert path.is_file(), (
            f"{path.name} is not kept yet: run pytest tests/golden --update-golden"
        )
        assert text == path.read_text(encoding="utf-8")

    return compare
