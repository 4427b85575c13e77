"""The command line: put the commands together, map errors to exit codes.

Heavy libraries are imported inside the commands that need them; ``gpuenv --help`` loads typer only.
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import TYPE_CHECKING, Annotated

import typer

from gpuenv import __version__, output
from gpuenv.errors import EXIT_INTERNAL, EXIT_INTERRUPTED, EXIT_OK, GpuenvError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

app = typer.Typer(
    name="gpuenv",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _print_version(*, wanted: bool) -> None:
    if wanted:
        output.current().text(f"gpuenv {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[  # noqa: ARG001 - the callback acts
        bool,
        typer.Option(
            "--version",
            is_eager=True,
            callback=lambda value: _print_version(wanted=value),
            help="Print the version and leave.",
        ),
    ] = False,
    json_mode: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on standard output.")
    ] = False,
    verbose: Annotated[
        int, typer.Option("--verbose", "-v", count=True, show_default=False, help="Say more.")
    ] = 0,
    quiet: Annotated[
        int, typer.Option("--quiet", "-q", count=True, show_default=False, help="Say less.")
    ] = 0,
) -> None:
    """Containerised GPU development environments: resolve, build, run and diagnose."""
    out = output.current()
    out.json_mode = out.json_mode or json_mode
    out.verbosity += verbose - quiet


def _register() -> None:
    """Hang the commands of every area into the app, in the order the help shows them."""
    from gpuenv.commands import AREAS

    for register in AREAS:
        register(app)


def main(arguments: Sequence[str] | None = None) -> int:  # noqa: PLR0911 - one return a fate
    """Run one command line and return its exit code.

    Args:
        arguments: What stands behind ``gpuenv``; the process's own by default.
    """
    argv = list(sys.argv[1:] if arguments is None else arguments)
    out = output.Output(command=_command_name(argv), json_mode=_asks_for_json(argv))
    output.set_current(out)
    try:
        result = app(argv, prog_name="gpuenv", standalone_mode=False)
    except GpuenvError as error:
        out.fail(error)
        return error.exit_code
    except typer.TyperException as error:
        message = error.format_message()
        if message:
            out.fail(UsageError(message, fix=f"gpuenv {out.command} --help".replace("  ", " ")))
        return UsageError.exit_code
    except (KeyboardInterrupt, typer.Abort):
        out.fail(InterruptedByUserError("interrupted"))
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader went away (``| head``): not our fault, and nobody is left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK
    except Exception as error:  # noqa: BLE001 - the one place where our own faults become words
        out.fail(_internal(error))
        return EXIT_INTERNAL
    if isinstance(result, int) and result:
        return result
    return out.exit_code


def run() -> None:
    """Run the process's own command line: the ``gpuenv`` entry point."""
    sys.exit(main())


class InterruptedByUserError(GpuenvError):
    """The user pressed Ctrl-C or answered a question with end of file."""

    exit_code = EXIT_INTERRUPTED
    slug = "interrupted"


class InternalError(GpuenvError):
    """A fault of gpuenv itself."""

    exit_code = EXIT_INTERNAL
    slug = "internal"


def _internal(error: Exception) -> InternalError:
    from gpuenv.state import write_crash_log

    text = "".join(traceback.format_exception(error))
    log = write_crash_log(text, environ=os.environ)
    return InternalError(
        f"gpuenv has a fault: {type(error).__name__}: {error}",
        why=f"the details are in {log}" if log else text,
        fix="please report it with that text",
    )


def _asks_for_json(argv: Sequence[str]) -> bool:
    """Say whether ``--json`` is among our own flags, so that usage errors are JSON as well."""
    own = argv[: argv.index("--")] if "--" in argv else argv
    return "--json" in own


def _command_name(argv: Sequence[str]) -> str:
    """Return the command as the user knows it, ``matrix resolve``, from the words given."""
    words: list[str] = []
    node: object = _command_tree()
    for word in argv:
        if word.startswith("-"):
            continue
        children = node if isinstance(node, dict) else {}
        if word not in children:
            break
        words.append(word)
        node = children[word]
    return " ".join(words)


def _command_tree() -> dict[str, object]:
    def names(group: typer.Typer) -> dict[str, object]:
        tree: dict[str, object] = {
            str(info.name): None for info in group.registered_commands if info.name
        }
        for sub in group.registered_groups:
            if sub.typer_instance is not None:
                name = sub.name if isinstance(sub.name, str) else sub.typer_instance.info.name
                tree[str(name)] = names(sub.typer_instance)
        return tree

    return names(app)


_register()
