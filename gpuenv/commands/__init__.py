"""The commands of ``gpuenv``, one module an area: they parse, wire and print, and decide nothing.

Every command is made with :func:`command`, which gives it the flags that all commands share, so
they may stand before or behind the command's own.
"""

from __future__ import annotations

import functools
import inspect
from dataclasses import MISSING, fields, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

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
    typer.Option(
        "--verbose", "-v", count=True, show_default=False, help="Say more.", rich_help_panel=_SHARED
    ),
]
QuietFlag = Annotated[
    int,
    typer.Option(
        "--quiet", "-q", count=True, show_default=False, help="Say less.", rich_help_panel=_SHARED
    ),
]

_SHARED_PARAMETERS = tuple(
    inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
    for name, default, annotation in (
        ("json_mode", False, JsonFlag),
        ("verbose", 0, VerboseFlag),
        ("quiet", 0, QuietFlag),
    )
)


_MAY_BE_EMPTY = frozenset({"entrypoint", "require", "skip"})
"""Parameters to which an empty text says something: no entry point, no further words."""


def _require_values(command: Any, ctx: Any, args: list[str]) -> None:
    """Refuse flags and arguments of which nothing but their name was given.

    Raises:
        UsageError: One is empty.
    """
    if ctx.resilient_parsing:
        return
    values, _, _ = command.make_parser(ctx).parse_args(args=list(args))
    for parameter in command.get_params(ctx):
        given = values.get(parameter.name)
        texts = given if isinstance(given, (list, tuple)) else (given,)
        if parameter.name in _MAY_BE_EMPTY or not any(_is_empty(text) for text in texts):
            continue
        from gpuenv.errors import UsageError

        is_flag = parameter.param_type_name == "option"
        name = parameter.opts[0] if is_flag else parameter.make_metavar(ctx).strip("[].")
        raise UsageError(
            f"{name} is empty",
            why="a value is expected; a variable of the shell that is not set gives none",
            fix=f"give it a value, or leave {name} out",
        )


def _is_empty(value: object) -> bool:
    return isinstance(value, str) and not value.strip()


class GroupedCommand(TyperCommand):
    """A command whose help lists its flags by what they are about."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse an empty value before it is a path: ``Path("")`` is the current folder."""
        _require_values(self, ctx, args)
        rest: list[str] = super().parse_args(ctx, args)
        return rest

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write one section for each panel: the command's own first, the shared ones last."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            own = "Arguments" if parameter.param_type_name == "argument" else "Options"
            title = getattr(parameter, "rich_help_panel", None) or own
            if record is not None:
                sections.setdefault(title, []).append(record)
        sections[_SHARED] = sections.pop(_SHARED, [])
        for title, rows in sections.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


class _CommandWithOthersBelow(TyperGroup):
    """A command with flags of its own that also has commands below it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse an empty value, as every other command does."""
        _require_values(self, ctx, args)
        rest: list[str] = super().parse_args(ctx, args)
        return rest


def command(
    app: typer.Typer, name: str, **settings: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function as the command ``name`` of ``app``, with the shared flags added.

    A parameter whose type is a dataclass stands for a group of flags: each of its fields becomes an
    option of the command, and the function is handed the dataclass filled in. So the many flags
    that say what an image is are written down once.

    The function's docstring is its help and must end with one example, which a test runs.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        settings.setdefault("cls", GroupedCommand)
        app.command(name, **settings)(_with_shared_flags(function))
        return function

    return decorate


def group(
    app: typer.Typer, name: str, function: Callable[..., None], **settings: Any
) -> typer.Typer:
    """Register a function as the command ``name`` that also has commands below it.

    The function gets a ``typer.Context`` first and does nothing when one of those was asked for.
    """
    settings.setdefault("cls", _CommandWithOthersBelow)
    below = typer.Typer(rich_markup_mode=None, **settings)
    below.callback(invoke_without_command=True)(_with_shared_flags(function))
    app.add_typer(below, name=name)
    return below


def subcommands(name: str, summary: str) -> typer.Typer:
    """Return a group of commands that does nothing alone but takes the shared flags as well."""
    below = typer.Typer(name=name, no_args_is_help=True, rich_markup_mode=None, help=summary)
    below.callback()(_with_shared_flags(lambda: None))
    return below


def _with_shared_flags(function: Callable[..., None]) -> Callable[..., None]:
    signature = inspect.signature(function, eval_str=True)
    groups: dict[str, Any] = {
        parameter.name: parameter.annotation
        for parameter in signature.parameters.values()
        if is_dataclass(parameter.annotation)
    }

    @functools.wraps(function)
    def with_shared_flags(json_mode: bool, verbose: int, quiet: int, **values: Any) -> None:
        out = output.current()
        out.json_mode = out.json_mode or json_mode
        out.verbosity += verbose - quiet
        for name, flags in groups.items():
            values[name] = flags(**{field.name: values.pop(field.name) for field in fields(flags)})
        function(**values)

    parameters = [
        # Keyword-only throughout: typer calls by keyword, and order says nothing then.
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for declared in signature.parameters.values()
        for parameter in (
            _parameters_of(groups[declared.name]) if declared.name in groups else (declared,)
        )
    ]
    parameters += _SHARED_PARAMETERS
    wrapper: Any = with_shared_flags
    wrapper.__signature__ = signature.replace(parameters=parameters)
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    del wrapper.__wrapped__  # typer would read the signature behind it
    with_flags: Callable[..., None] = wrapper
    return with_flags


def _parameters_of(flags: type[Any]) -> tuple[inspect.Parameter, ...]:
    """Return one parameter for each field of a group of flags."""
    hints = get_type_hints(flags, include_extras=True)
    return tuple(
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(flags)
    )
