"""``gpuenv doctor --from``: a file that somebody edited, cut or wrote with another version."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from gpuenv.cli import main
from tests.doctor_machines import BASES

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"level": 9}, "level is 9, this gpuenv knows 0 to 3"),
        ({"level": "quick"}, "level is 'quick', this gpuenv knows 0 to 3"),
        ({"level": None}, "level is None, this gpuenv knows 0 to 3"),
        ({"level": float("nan")}, "level is nan, this gpuenv knows 0 to 3"),
        ({"require": "gpu"}, "require is 'gpu' and no list of words"),
        ({"skip": [5]}, "skip is [5] and no list of words"),
        ({"expect_gpus": "8"}, "expect_gpus is '8' and no number"),
    ],
)
def test_a_file_that_asks_for_what_is_not_known_is_told(
    asked: dict[str, Any], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "facts.json"
    document = {"gpuenv_facts_version": "1", "asked": asked, "probes": {}}
    path.write_text(json.dumps(document), encoding="utf-8")
    assert main(["doctor", "--from", str(path), "--level", "static"]) == 2
    assert f"why: {why}\n" in capsys.readouterr().err


def test_a_file_nested_too_deeply_is_no_facts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "facts.json"
    path.write_text("[" * 100_000, encoding="utf-8")
    assert main(["doctor", "--from", str(path)]) == 2
    assert "holds no facts of the doctor" in capsys.readouterr().err


WRONG: tuple[Any, ...] = (
    None, 5, -1, 1.5, float("nan"), float("inf"), 10**30, True, "x", "", [], {}, [None], [5], ["x"],
    {"a": 5}, [[1]], [{}], "9" * 400, {"": None},
)  # fmt: skip


def places_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    pairs = value.items() if isinstance(value, dict) else enumerate(value[:2])
    for key, inner in pairs:
        if isinstance(inner, (dict, list)):
            yield from places_in(inner, (*path, key))
        else:
            yield (*path, key)


def with_changed(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    changed = copy.deepcopy(document)
    place = changed
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return changed


@pytest.mark.parametrize("base", ["ci", "hgx"])
@settings(max_examples=25, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(data=st.data())
def test_a_value_of_any_kind_anywhere_in_the_facts_is_no_fault_of_ours(
    base: str, data: st.DataObject
) -> None:
    document = json.loads(json.dumps(BASES[base]()))
    path = data.draw(st.sampled_from([place for place in places_in(document) if place]))
    value = data.draw(st.sampled_from(WRONG))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "facts.json"
        text = json.dumps(with_changed(document, path, value))
        file.write_text(text, encoding="utf-8")
        form = data.draw(st.sampled_from(["table", "json", "junit", "html", "tap", "github"]))
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            assert main(["doctor", "--from", str(file), "--format", form]) in {0, 1, 2, 3}
