"""The command line: put the commands together, map errors to exit codes.

A command's module is imported when the command is called, and heavy libraries inside the functions
that need them: ``gpuenv --help`` loads typer and nothing else.
"""

from __future__ import annotations

import errno
import functools
import gc
import importlib
import os
import re
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from gpuenv import __version__, output
from gpuenv.errors import (
    EXIT_INTERNAL,
    EXIT_INTERRUPTED,
    EXIT_OK,
    ConfigurationError,
    GpuenvError,
    UsageError,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMANDS: tuple[tuple[str, str, str], ...] = (
    ("build", "build", "Build an image that fits, and prove what is in it."),
    ("render", "render", "Print the Dockerfile of a request; no engine and no network needed."),
    ("lock", "lock", "Freeze a request into gpuenv.lock, for gpuenv build --locked."),
    ("run", "run", "Run a command in a container with the right GPUs, memory, user and mounts."),
    (
        "jupyter",
        "jupyter",
        "Start JupyterLab on the right GPUs for you alone, or find the one that runs.",
    ),
    ("ssh", "ssh", "Open a shell in an environment by SSH, with its host key checked."),
    ("doctor", "doctor", "Find out what keeps GPUs from working here, and how to mend it."),
    (
        "explain",
        "doctor",
        "Explain a finding of the doctor: what was checked, why it matters, causes, fixes.",
    ),
    ("ps", "life", "List your environments, running and stopped."),
    ("logs", "life", "Show what an environment printed."),
    (
        "stop",
        "life",
        "Stop environments; start brings them back with the same port, token and host key.",
    ),
    ("start", "life", "Start stopped environments again, with the same port, token and host key."),
    ("rm", "life", "Remove environments with their tokens and keys; the workspace stays as it is."),
    ("top", "life", "Show what each environment uses now: processors, memory, network and GPUs."),
    (
        "matrix",
        "matrix",
        "Show, resolve and check which PyTorch exists with which CUDA, cuDNN and NCCL.",
    ),
    (
        "engine",
        "engine",
        "Show the container engine in use; start and stop one of gpuenv's own where none runs.",
    ),
)
"""Name, module below ``gpuenv.commands``, and the line in ``gpuenv --help``."""


class _CommandsByName(TyperGroup):
    """The commands of ``gpuenv``, each imported when it is called."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - typer's signature
        """Return the names in the order of the help."""
        return [name for name, _, _ in COMMANDS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 - typer's signature
        """Return a command by its name, ``None`` if there is no such."""
        return load_command(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - likewise
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, _, line in COMMANDS])


@functools.cache
def load_command(name: str) -> Any:
    """Import the module of a command and return the command, ``None`` if there is no such."""
    module = next((module for known, module, _ in COMMANDS if known == name), None)
    if module is None:
        return None
    area = typer.Typer(rich_markup_mode=None)
    area.callback()(lambda: None)  # a group, even with one command in it
    importlib.import_module(f"gpuenv.commands.{module}").register(area)
    commands: dict[str, Any] = getattr(typer.main.get_command(area), "commands", {})
    return commands.get(name)


_COLLECT_AFTER = 50_000  # objects
_UNKNOWN_COMMAND = re.compile(r"No such command '(.+?)'\.?(?: Did you mean (.+)\?)?")
_UNKNOWN_OPTION = re.compile(r"No such option: (--?[\w-]+).*")
_FLAGS_FOR_WORDS = {"version": "gpuenv --version", "help": "gpuenv --help"}

app = typer.Typer(
    name="gpuenv",
    cls=_CommandsByName,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _print_version(*, wanted: bool) -> None:
    if wanted:
        out = output.current()
        out.answer({"version": __version__}, human=lambda: out.text(f"gpuenv {__version__}"))
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[  # noqa: ARG001 - the callback acts
        bool,
        typer.Option(
            "--version",
            is_eager=True,
            callback=lambda value: _print_version(wanted=value),
            help="Print the version and exit.",
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
        return _usage(out, error.format_message(), argv)
    except (KeyboardInterrupt, typer.Abort):
        out.fail(InterruptedByUserError("interrupted"))
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        return _reader_left()
    except SystemExit as leaving:
        if isinstance(leaving.__context__, BrokenPipeError):  # typer saw it first
            return _reader_left()
        raise
    except Exception as error:  # noqa: BLE001 - the one place where our own faults become words
        failure = _no_space(error) or _internal(error)
        if isinstance(failure, NoSpaceError) and out.answered:
            _reader_left()  # what is left in the buffer would fail again at the very end
        out.fail(failure)
        return failure.exit_code
    return _exit_code(out, result)


def _exit_code(out: output.Output, result: object) -> int:
    """Return the exit code of a command that came back, whatever it came back with."""
    if result == EXIT_INTERRUPTED:  # what typer makes of Ctrl-C, without a word
        out.fail(InterruptedByUserError("interrupted"))
    return result if isinstance(result, int) and result else out.exit_code


def _reader_left() -> int:
    """Leave in silence when the reader went away (``| head``): nobody is left to tell."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_OK


def _usage(out: output.Output, message: str, argv: Sequence[str]) -> int:
    """Report what typer says of the command line; a group without a command shows its help."""
    asked_help = f"gpuenv {out.command} --help".replace("  ", " ")
    if message.startswith("Usage: ") and not out.json_mode:
        sys.stderr.write(message + "\n")
    elif message.startswith("Usage: ") or message == "Missing command.":
        out.fail(UsageError("no command was given", fix=asked_help))
    elif unknown := _UNKNOWN_COMMAND.fullmatch(message):
        guess = _guess_command(unknown[1], unknown[2], at_top=not out.command)
        out.fail(UsageError(f"No such command '{unknown[1]}'", fix=guess or asked_help))
    elif option := _UNKNOWN_OPTION.fullmatch(message):
        out.fail(UsageError(message, fix=_place_of(option[1], argv) or asked_help))
    else:
        out.fail(UsageError(message, fix=asked_help))
    return UsageError.exit_code


def _guess_command(word: str, guess: str | None, *, at_top: bool) -> str:
    """Say which command may have been meant, with typer's own guess below a group."""
    if at_top:
        import difflib

        if word in _FLAGS_FOR_WORDS:
            return _FLAGS_FOR_WORDS[word]
        near = difflib.get_close_matches(word, [name for name, _, _ in COMMANDS], n=2)
    else:
        near = [] if guess is None else [it.strip(" '") for it in guess.split(",")]
    return f"did you mean {' or '.join(near)}?" if near else ""


def _place_of(flag: str, argv: Sequence[str]) -> str:
    """Say where a flag belongs that stands before its command, empty if it is not one of it."""
    names = {name for name, _, _ in COMMANDS}
    word = next((word for word in argv if word in names), None)
    command = None if word is None else load_command(word)
    if command is None or all(flag not in it.opts for it in command.params):
        return ""
    return f"put it after the command: gpuenv {word} {flag} …"


def run() -> None:
    """Run the process's own command line: the ``gpuenv`` entry point."""
    # Most commands live for less than a second, and what they import is not garbage: looking
    # through it again and again, and once more at the end, took a tenth of that.
    gc.set_threshold(_COLLECT_AFTER)
    code = main()
    gc.freeze()
    sys.exit(code)


class InterruptedByUserError(GpuenvError):
    """The user pressed Ctrl-C or answered a question with end of file."""

    exit_code = EXIT_INTERRUPTED
    slug = "interrupted"


class InternalError(GpuenvError):
    """A fault of gpuenv itself."""

    exit_code = EXIT_INTERNAL
    slug = "internal"


class NoSpaceError(ConfigurationError):
    """A disk is full or read-only, where the output or one of gpuenv's own files goes."""

    slug = "no-space"


def _no_space(error: Exception) -> NoSpaceError | None:
    if not isinstance(error, OSError) or error.errno not in {
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EROFS,
    }:
        return None
    return NoSpaceError(
        f"cannot write {error.filename or 'the output'}",
        why=error.strerror or str(error),
        fix="make room there, or write elsewhere",
    )


def _internal(error: Exception) -> InternalError:
    import traceback

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
    children: Any = {name for name, _, _ in COMMANDS}
    for word in argv:
        if word.startswith("-"):
            continue
        if word not in children:
            break
        words.append(word)
        command = children[word] if words[1:] else load_command(word)
        children = getattr(command, "commands", {})
    return " ".join(words)
