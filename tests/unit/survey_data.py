"""The recorded survey as the value it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gpuenv.wheelfacts import (
    CompanionReading,
    PackageListing,
    ReleaseListing,
    Survey,
    WheelFacts,
    WheelReading,
)

SURVEY = Path(__file__).parents[1] / "data" / "matrix" / "survey.json"


def recorded_survey() -> Survey:
    data = json.loads(SURVEY.read_text())
    return Survey(
        index=data["index"],
        deep=data["deep"],
        releases=tuple(ReleaseListing(**_tuples(it)) for it in data["releases"]),
        readings=tuple(
            WheelReading(**{**it, "facts": it["facts"] and WheelFacts(**_tuples(it["facts"]))})
            for it in data["readings"]
        ),
        packages=tuple(PackageListing(**_tuples(it)) for it in data["packages"]),
        companions=tuple(CompanionReading(**it) for it in data["companions"]),
        bytes_read=data["bytes_read"],
    )


def _tuples(value: Any) -> Any:
    """Turn lists back into the tuples that JSON does not know."""
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
