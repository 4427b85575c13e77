"""What a command prints, and where.

The answer goes to standard output; progress, notes, warnings and errors go to standard error. With
``--json`` standard output carries exactly one object, also on failure::

    {"gpuenv_result_version": "1", "command": "matrix resolve", "status": "success",
     "exit_code": 0, "data": {...}, "errors": [], "warnings": []}
"""

from __future__ import annotations

import json
import os
import re
import sys
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal, TextIO

from gpuenv.errors import EXIT_OK

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rich.console import Console
    from rich.table import Table

    from gpuenv.errors import GpuenvError

RESULT_VERSION = "1"
_UNBOUNDED = 10_000
"""Columns that no table of ours needs."""
_NARROWEST = 20
"""Columns below which a text is not broken further: a terminal that says 1 means nothing by it."""
Status = Literal["success", "partial", "error"]


def _wants_colour(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Decide on colour for one stream.

    Source:
        no-color.org, force-color.org and bixense.com/clicolors, where they differ in this order.
    """
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR") or environ.get("CLICOLOR_FORCE", "0") not in {"", "0"}:
        return True
    if environ.get("CLICOLOR") == "0":
        return False
    return stream.isatty() and environ.get("TERM") != "dumb"


def _open_stream(stream: TextIO | None) -> TextIO:
    """Return a stream, or one that takes all and keeps nothing where it was closed (``>&-``)."""
    if stream is not None:
        return stream
    return open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123 - for the whole process


def _fold(line: str, width: int, hanging: int) -> str:
    """Break a line between words; what is longer than a line, a path to copy, stays whole."""
    if len(line) <= width:
        return line
    import textwrap

    own = len(line) - len(line.lstrip())
    indent = " " * max(hanging, own)
    return textwrap.fill(
        line,
        max(width, _NARROWEST),
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
        expand_tabs=False,
    )


class Output:
    """The two streams of one command, and how much of them is wanted.

    Args:
        command: The command as the user knows it, ``matrix resolve``.
        json_mode: One object on standard output and nothing else there.
        verbosity: -1 (``-q``) drops notes, 1 (``-v``) adds detail; warnings and errors always show.
    """

    def __init__(
        self,
        *,
        command: str = "",
        json_mode: bool = False,
        verbosity: int = 0,
        stdout: TextIO | None = None,
        stderr: TextIO | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.command = command
        self.json_mode = json_mode
        self.verbosity = verbosity
        self.exit_code = EXIT_OK
        self._stdout = _open_stream(stdout or sys.stdout)
        self._stderr = _open_stream(stderr or sys.stderr)
        self._environ = os.environ if environ is None else environ
        self._warnings: list[str] = []
        self.answered = False

    def console(self, *, error: bool = False) -> Console:
        """Return a Rich console on one stream, coloured as the user and the stream allow."""
        from rich.console import Console

        stream = self._stderr if error else self._stdout
        colour = _wants_colour(stream, self._environ)
        width = self._asked_width()
        if width is None and not stream.isatty():
            width = 100
        return Console(
            file=stream,
            force_terminal=colour,
            no_color=not colour,
            # Colour that is forced counts on a dumb terminal too, which Rich would not have.
            color_system="standard" if colour and self._is_dumb() else "auto",
            highlight=False,
            width=width,
            # Rich would take any number for a width, 0 as well.
            _environ={k: v for k, v in self._environ.items() if k != "COLUMNS"},
        )

    def _is_dumb(self) -> bool:
        return self._environ.get("TERM", "dumb") in {"dumb", "unknown"}

    def table(self, table: Table) -> None:
        """Print a table on standard output, in full where no terminal sets a width."""
        console = self.console()
        console.width = self.table_width()
        console.print(table)

    def table_width(self) -> int:
        """Return how wide a table may be: as wide as it likes where no terminal sets a width."""
        if not self._stdout.isatty() and "COLUMNS" not in self._environ:
            return _UNBOUNDED
        return self.console().width

    def answer(
        self,
        data: Mapping[str, Any],
        *,
        human: Callable[[], None],
        status: Status = "success",
        exit_code: int = EXIT_OK,
        errors: Sequence[GpuenvError] = (),
    ) -> None:
        """Give the command's one answer: ``data`` as JSON, or whatever ``human`` prints.

        The process ends with ``exit_code`` once the command returns. ``errors`` are for JSON
        readers, where an answer is at the same time bad news; ``human`` tells them in its words.
        """
        self.exit_code = exit_code
        self.answered = True  # from here on: half an object and another one are not JSON
        if self.json_mode:
            self._envelope(
                data,
                status=status,
                exit_code=exit_code,
                errors=[error.as_dict() for error in errors],
            )
        else:
            human()

    def text(self, text: str) -> None:
        """Write a piece of the answer to standard output, as it is."""
        self._stdout.write(text if text.endswith("\n") else text + "\n")

    def note(self, text: str) -> None:
        """Tell something worth knowing; ``-q`` silences it."""
        if self.verbosity >= 0:
            self._say(text)

    def detail(self, text: str) -> None:
        """Tell something only ``-v`` asks for."""
        if self.verbosity > 0:
            self._say(text)

    def warn(self, text: str) -> None:
        """Tell something the user must see; it is in the JSON envelope as well."""
        if text in self._warnings:
            return
        self._warnings.append(text)
        self._say(f"warning: {text}", style="yellow")

    def fail(self, error: GpuenvError) -> None:
        """Report a failure in words, or as the one JSON object."""
        self.exit_code = error.exit_code
        if self.json_mode and not self.answered:
            self._envelope(
                error.data, status="error", exit_code=error.exit_code, errors=[error.as_dict()]
            )
            self.answered = True
            return
        self._say(f"error[{error.slug}]: {error.what}", style="bold red")
        for label, text in (("why", error.why), ("fix", error.fix)):
            if text:
                lines = text.splitlines() or [""]
                indented = "\n".join([lines[0], *(f"       {line}" for line in lines[1:])])
                self._say(f"  {label}: {indented}", hanging=7)

    def _say(self, text: str, *, style: str = "", hanging: int = 2) -> None:
        """Write lines; on a terminal no word is cut at its edge.

        Args:
            hanging: How far the continuation of a line that is too long stands in.
        """
        if (width := self._edge()) is not None:
            text = "\n".join(_fold(line, width, hanging) for line in text.split("\n"))
        codes = {"yellow": "33", "bold red": "1;31"}
        if style and _wants_colour(self._stderr, self._environ):
            text = f"\x1b[{codes[style]}m{text}\x1b[0m"
        self._stderr.write(text + "\n")
        self._stderr.flush()

    def _edge(self) -> int | None:
        """Return the width of standard error, ``None`` where that is no terminal or has none."""
        if not self._stderr.isatty():
            return None
        if (asked := self._asked_width()) is not None:
            return asked
        try:
            return os.get_terminal_size(self._stderr.fileno()).columns or None
        except (OSError, ValueError):
            return None

    def _asked_width(self) -> int | None:
        asked = self._environ.get("COLUMNS", "")
        return int(asked) if re.fullmatch(r"[1-9][0-9]{0,3}", asked) else None

    def _envelope(
        self,
        data: Mapping[str, Any],
        *,
        status: Status,
        exit_code: int,
        errors: list[dict[str, str]],
    ) -> None:
        json.dump(
            {
                "gpuenv_result_version": RESULT_VERSION,
                "command": self.command,
                "status": status,
                "exit_code": exit_code,
                "data": dict(data),
                "errors": errors,
                "warnings": self._warnings,
            },
            self._stdout,
            indent=2,
            ensure_ascii=False,
        )
        self._stdout.write("\n")
        self._stdout.flush()


_current: ContextVar[Output] = ContextVar("gpuenv_output")


def current() -> Output:
    """Return the output of the command that runs."""
    return _current.get()


def set_current(output: Output) -> None:
    """Make ``output`` the one that :func:`current` returns; only ``cli.main`` and tests do this."""
    _current.set(output)
