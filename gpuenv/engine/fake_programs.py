"""The few programs that the fake engine's containers can run."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, TypeAlias

from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, MutableMapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One start of a program inside a fake container."""

    arguments: tuple[str, ...]
    env: Mapping[str, str]
    files: MutableMapping[str, bytes]
    stdin: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a program ended; ``exit_code`` ``None`` means that it goes on until it is stopped."""

    exit_code: int | None = 0
    stdout: bytes = b""
    stderr: bytes = b""


Program: TypeAlias = "Callable[[Call], Ended]"


def _echo(call: Call) -> Ended:
    return Ended(stdout=" ".join(call.arguments[1:]).encode() + b"\n")


def _cat(call: Call) -> Ended:
    if len(call.arguments) == 1:
        return Ended(stdout=call.stdin)
    output = b""
    for path in call.arguments[1:]:
        if path not in call.files:
            text = f"cat: {path}: No such file or directory\n"
            return Ended(exit_code=1, stdout=output, stderr=text.encode())
        output += call.files[path]
    return Ended(stdout=output)


def _printenv(call: Call) -> Ended:
    name = call.arguments[1]
    if name not in call.env:
        return Ended(exit_code=1)
    return Ended(stdout=call.env[name].encode() + b"\n")


def _exit(call: Call) -> Ended:
    return Ended(exit_code=int(call.arguments[1]))


def _shell(call: Call) -> Ended:
    """Run ``sh -c``: simple commands joined by ``;``, a redirection of all output to stderr."""
    stdout = stderr = b""
    code: int | None = 0
    for line in call.arguments[2].split(";"):
        words = shlex.split(line)
        to_stderr = words[-1:] == [">&2"]
        words = words[:-1] if to_stderr else words
        if not words:
            continue
        program = PROGRAMS.get(words[0])
        if program is None:
            return Ended(
                exit_code=127,
                stdout=stdout,
                stderr=stderr + f"sh: 1: {words[0]}: not found\n".encode(),
            )
        ended = program(
            Call(arguments=tuple(words), env=call.env, files=call.files, stdin=call.stdin)
        )
        stdout += b"" if to_stderr else ended.stdout
        stderr += ended.stderr + (ended.stdout if to_stderr else b"")
        code = ended.exit_code
        if words[0] == "exit" or code is None:
            break
    return Ended(exit_code=code, stdout=stdout, stderr=stderr)


PROGRAMS: dict[str, Program] = {
    "true": lambda _: Ended(),
    "false": lambda _: Ended(exit_code=1),
    "sleep": lambda _: Ended(exit_code=None),
    "echo": _echo,
    "cat": _cat,
    "printenv": _printenv,
    "exit": _exit,
    "sh": _shell,
}
