"""Value classes do what the standard library's frozen dataclasses do."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import pytest

from gpuenv.values import dataclass as value


def define(decorator: Any) -> Any:
    class Point:
        x: int
        y: int = 2
        tags: list[str] = field(default_factory=list)
        secret: str = field(default="", repr=False)
        note: str = field(default="", compare=False)

        @property
        def total(self) -> int:
            return self.x + self.y

    return decorator(frozen=True, slots=True, kw_only=True)(Point)


OURS, THEIRS = define(value), define(dataclass)


@value(frozen=True, slots=True, kw_only=True)
class Base:
    """A value."""

    first: int = 1


@value(frozen=True, slots=True, kw_only=True)
class Derived(Base):
    """A value with one field more, and a hash of its own."""

    second: str

    def __hash__(self) -> int:
        """Return a number of its own."""
        return 5


@pytest.mark.parametrize("cls", [OURS, THEIRS])
def test_fields_have_their_defaults_and_no_default_is_shared(cls: Any) -> None:
    one, other = cls(x=1), cls(x=1)
    assert (one.x, one.y, one.tags, one.total) == (1, 2, [], 3)
    assert one.tags is not other.tags
    assert [item.name for item in fields(one)] == ["x", "y", "tags", "secret", "note"]
    assert asdict(one) == {"x": 1, "y": 2, "tags": [], "secret": "", "note": ""}


@pytest.mark.parametrize("cls", [OURS, THEIRS])
def test_equal_fields_are_equal_values_of_one_class(cls: Any) -> None:
    assert cls(x=1, note="a") == cls(x=1, note="b")
    assert cls(x=1) != cls(x=2)
    assert cls(x=1, tags=()) != Base()
    assert hash(cls(x=1, tags=(), note="a")) == hash(cls(x=1, tags=(), note="b"))
    assert {cls(x=1, tags=()), cls(x=1, tags=())} == {cls(x=1, tags=())}


@pytest.mark.parametrize("cls", [OURS, THEIRS])
def test_the_text_leaves_secrets_out(cls: Any) -> None:
    told = repr(cls(x=1, secret="s3cret"))
    assert told == "define.<locals>.Point(x=1, y=2, tags=[], note='')"


@pytest.mark.parametrize("cls", [OURS, THEIRS])
def test_a_value_cannot_be_changed_only_replaced(cls: Any) -> None:
    one = cls(x=1)
    for change in (lambda: setattr(one, "x", 2), lambda: delattr(one, "x")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            change()
    with pytest.raises((dataclasses.FrozenInstanceError, TypeError)):
        one.other = 1
    assert replace(one, x=3) == cls(x=3)
    assert one.x == 1
    assert not hasattr(one, "__dict__")


@pytest.mark.parametrize("cls", [OURS, THEIRS])
@pytest.mark.parametrize("given", [{}, {"x": 1, "z": 2}, {"y": 1}])
def test_a_field_that_is_missing_or_unknown_is_refused(cls: Any, given: dict[str, int]) -> None:
    with pytest.raises(TypeError):
        cls(**given)
    with pytest.raises(TypeError):
        cls(1)


def test_a_value_is_copied_and_pickled() -> None:
    one = Derived(first=2, second="x")
    assert copy.copy(one) == copy.deepcopy(one) == pickle.loads(pickle.dumps(one)) == one  # noqa: S301 - ours


def test_a_derived_value_has_all_fields_and_keeps_its_own_methods() -> None:
    one = Derived(second="x")
    assert (one.first, one.second, hash(one)) == (1, "x", 5)
    assert one != Base()


def test_another_kind_of_class_is_the_standard_librarys() -> None:
    @value(slots=True, kw_only=True)
    class Open:
        x: int = 1

    one = Open()
    one.x = 2
    assert one == Open(x=2)
