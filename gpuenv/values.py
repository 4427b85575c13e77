"""Value classes: :func:`dataclasses.dataclass`, frozen and with slots, made in a tenth of the time.

The standard library writes and compiles seven functions for every such class, half a millisecond on
Python 3.11, and a command defines more than a hundred classes before it does anything: that was a
third of its time. Here the classes share their methods, which look up the fields of theirs. Fields,
slots, ``replace``, ``fields`` and ``asdict`` stay the standard library's, and a class of any other
kind is left to it altogether.
"""

from __future__ import annotations

import dataclasses
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import dataclass as dataclass  # noqa: PLC0414 - what a type checker sees
else:

    def dataclass(**options: bool) -> Callable[[type], type]:
        """Return the decorator for these options, which are the standard library's."""
        return _make_value if options == _OURS else dataclasses.dataclass(**options)


_OURS = {"frozen": True, "slots": True, "kw_only": True}


def _make_value(plain: type) -> type:
    """Return a class of values, as the decorator of the standard library would."""
    made: Any = dataclasses.dataclass(init=False, repr=False, eq=False, slots=True, kw_only=True)(
        plain
    )
    fields = dataclasses.fields(made)
    compared = tuple(field.name for field in fields if field.compare)
    methods = {
        "__init__": _init_for(made.__name__, fields),
        "__eq__": _eq_for(compared),
        "__hash__": _hash_for(compared),
        "__repr__": _repr_for(tuple(field.name for field in fields if field.repr)),
        "__setattr__": _refuse_assignment,
        "__delattr__": _refuse_deletion,
        "__getstate__": _get_state,
        "__setstate__": _set_state,
    }
    for name, method in methods.items():
        if name not in plain.__dict__:
            setattr(made, name, method)
    cls: type = made
    return cls


def _init_for(name: str, fields: tuple[dataclasses.Field[Any], ...]) -> Callable[..., None]:
    names = tuple(field.name for field in fields)
    defaults = {f.name: f.default for f in fields if f.default is not dataclasses.MISSING}
    factories: dict[str, Callable[[], Any]] = {
        f.name: f.default_factory for f in fields if f.default_factory is not dataclasses.MISSING
    }

    def init(self: object, **values: Any) -> None:
        for field in names:
            if field in values:
                value = values.pop(field)
            elif field in defaults:
                value = defaults[field]
            elif field in factories:
                value = factories[field]()
            else:
                raise TypeError(f"{name}() is missing {field}")
            object.__setattr__(self, field, value)
        if values:
            raise TypeError(f"{name}() has no {', '.join(values)}")

    return init


def _eq_for(names: tuple[str, ...]) -> Callable[[Any, Any], Any]:
    key = _key_of(names)

    def eq(self: Any, other: Any) -> Any:
        return key(self) == key(other) if other.__class__ is self.__class__ else NotImplemented

    return eq


def _hash_for(names: tuple[str, ...]) -> Callable[[Any], int]:
    key = _key_of(names)
    return lambda self: hash(key(self))


def _key_of(names: tuple[str, ...]) -> Callable[[Any], Any]:
    return attrgetter(*names) if names else lambda _: ()


def _repr_for(names: tuple[str, ...]) -> Callable[[Any], str]:
    def text(self: Any) -> str:
        told = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{self.__class__.__qualname__}({told})"

    return text


def _refuse_assignment(_self: object, name: str, _value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_deletion(_self: object, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _get_state(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)
