"""The commands of ``gpuenv``, one module an area: they parse, wire and print, and decide nothing.

Every command is made with :func:`command`, which gives it the flags that all commands share, so
they may stand before or behind the command's own.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuenv import output

if TYPE_CHECKING:
    from collections.abc import Callable

_SHARED = "Output"

JsonFlag = Annotated[
    bool,
    typer.Option(
        "--json", help="Print one JSON object on standard output.", rich_help_panel=_SHARED
    ),
]
VerboseFlag = Annotated[
    int,
    typer.Option("--verbose", "-v", count=True, help="Say more.", rich_help_panel=_SHARED),
]
QuietFlag = Annotated[
    int,
    typer.Option("--quiet", "-q", count=True, help="Say less.", rich_help_panel=_SHARED),
]

_SHARED_PARAMETERS = tuple(
    inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
    for name, default, annotation in (
        ("json_mode", False, JsonFlag),
        ("verbose", 0, VerboseFlag),
        ("quiet", 0, QuietFlag),
    )
)


def command(
    app: typer.Typer, name: str, **settings: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function as the command ``name`` of ``app``, with the shared flags added.

    The function's docstring is its help and must end with one example, which a test runs.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        app.command(name, **settings)(_with_shared_flags(function))
        return function

    return decorate


def group(
    app: typer.Typer, name: str, function: Callable[..., None], **settings: Any
) -> typer.Typer:
    """Register a function as the command ``name`` that also has commands below it.

    The function gets a ``typer.Context`` first and does nothing when one of those was asked for.
    """
    below = typer.Typer(rich_markup_mode=None, **settings)
    below.callback(invoke_without_command=True)(_with_shared_flags(function))
    app.add_typer(below, name=name)
    return below


def _with_shared_flags(function: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(function)
    def with_shared_flags(
        *args: Any, json_mode: bool, verbose: int, quiet: int, **kwargs: Any
    ) -> None:
        out = output.current()
        out.json_mode = out.json_mode or json_mode
        out.verbosity += verbose - quiet
        function(*args, **kwargs)

    signature = inspect.signature(function, eval_str=True)
    own = tuple(signature.parameters.values())
    wrapper: Any = with_shared_flags
    wrapper.__signature__ = signature.replace(parameters=[*own, *_SHARED_PARAMETERS])
    wrapper.__annotations__ = {
        **{parameter.name: parameter.annotation for parameter in own},
        **{parameter.name: parameter.annotation for parameter in _SHARED_PARAMETERS},
    }
    del wrapper.__wrapped__  # typer would read the signature behind it
    with_flags: Callable[..., None] = wrapper
    return with_flags


def _areas() -> tuple[Callable[[typer.Typer], None], ...]:
    from gpuenv.commands import build, doctor, engine, jupyter, life, matrix, ssh

    return (
        build.register,
        jupyter.register,
        ssh.register,
        doctor.register,
        life.register,
        matrix.register,
        engine.register,
    )


AREAS = _areas()
