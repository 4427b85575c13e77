"""``gpuenv run``: one command in a container, with the right GPUs, memory, user and mounts.

The container is gone when the command has ended, unless it shall stay or runs in the background.
"""

from __future__ import annotations

import re
import shlex
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, TypeAlias

from gpuenv.containers.foreground import InitWatch, Streams, run_in_foreground
from gpuenv.containers.lifecycle import removing_on_failure, start_planned
from gpuenv.containers.plan import ContainerPlan, ContainerWish, LaunchFacts, Note, plan_container
from gpuenv.containers.values import is_number
from gpuenv.engine.errors import CommandNotFoundError
from gpuenv.errors import ConfigurationError
from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpuenv.engine.protocol import Attachment, ContainerEngine, ContainerInfo

ProcessesPerNode: TypeAlias = "int | Literal['gpu']"

_FIRST_MOMENT_S = 0.3
_MODULE_OR_SCRIPT = re.compile(r".+\.py|-m|--module")


class ProgramMissingError(CommandNotFoundError):
    """The command is not in the image: exit code 127, as a shell and ``docker run`` have it."""

    exit_code = 127
    slug = "program-missing"


class ProgramNotExecutableError(CommandNotFoundError):
    """The command is in the image and may not be run: exit code 126."""

    exit_code = 126
    slug = "program-not-executable"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWish:
    """What is run and how it is connected.

    Attributes:
        command: Empty runs the image's own.
        processes_per_node: Starts the command so many times with ``torchrun``.
        interactive: Our standard input is the command's.
        tty: It has a terminal.
        detach: It runs on in the background.
        keep: The container stays when the command has ended.
        term: The kind of terminal we have.
    """

    command: tuple[str, ...] = ()
    entrypoint: tuple[str, ...] | None = None
    processes_per_node: ProcessesPerNode | None = None
    interactive: bool = False
    tty: bool = False
    detach: bool = False
    keep: bool = False
    term: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """How a command ended.

    Attributes:
        exit_code: The command's own; 128 and the signal's number where a signal ended it.
        oom_killed: The kernel ended something in it for want of memory.
    """

    exit_code: int
    container: str
    oom_killed: bool = False


def parse_processes_per_node(text: str) -> ProcessesPerNode:
    """Read ``--nproc-per-node``: a number, or ``gpu`` for one process a GPU.

    Raises:
        ConfigurationError: It is neither.
    """
    if text == "gpu":
        return "gpu"
    if is_number(text) and int(text) > 0:
        return int(text)
    raise ConfigurationError(
        f"--nproc-per-node {text!r} is not a number of processes",
        why="it is 1 or more, or gpu for one process a GPU",
        fix="--nproc-per-node gpu",
    )


def plan_run(wish: ContainerWish, facts: LaunchFacts, run: RunWish) -> ContainerPlan:
    """Decide the container of one command; pure.

    Raises:
        ConfigurationError: What was asked for contradicts itself.
    """
    if run.processes_per_node is not None and not run.command:
        raise ConfigurationError(
            "--nproc-per-node needs a command",
            why="torchrun must know what to start",
            fix="put it behind two dashes: -- train.py --epochs 3",
        )
    plan = plan_container(wish, facts)
    notes: tuple[Note, ...] = ()
    command: tuple[str, ...] | None = run.command or None
    if run.processes_per_node is not None:
        command, notes = _torchrun(run.command, run.processes_per_node, plan)
    return plan.adding(
        command=command,
        entrypoint=run.entrypoint,
        tty=run.tty,
        open_stdin=run.interactive,
        auto_remove=run.detach and not run.keep,
        env={"TERM": run.term} if run.tty and run.term else {},
        notes=notes,
    )


def _torchrun(
    command: tuple[str, ...], processes: ProcessesPerNode, plan: ContainerPlan
) -> tuple[tuple[str, ...], tuple[Note, ...]]:
    """Wrap a command; a script or ``-m module`` runs in torchrun's Python, else as a program."""
    notes: tuple[Note, ...] = ()
    if processes == "gpu" and plan.gpu.request is None:
        notes = (Note(level="note", text="one process, since there is no GPU to count"),)
        processes = 1
    direct = () if _MODULE_OR_SCRIPT.fullmatch(command[0]) else ("--no-python",)
    return (
        "torchrun",
        "--standalone",
        f"--nproc-per-node={processes}",
        *direct,
        *command,
    ), notes


def run_attached(
    engine: ContainerEngine,
    plan: ContainerPlan,
    *,
    streams: Streams,
    keep: bool,
    on_note: Callable[[Note], None],
) -> RunResult:
    """Run a command to its end with our streams; Ctrl-C at any point leaves nothing behind.

    Raises:
        ProgramMissingError: The image has no such program.
        ProgramNotExecutableError: It may not be run.
        LaunchFailedError: The container did not start.
    """
    watch = InitWatch()
    with removing_on_failure(engine, plan.identity.session):
        with _started(engine, plan, on_note) as (info, attachment):
            status = run_in_foreground(engine, info.id, attachment, streams, watch=watch)
        after = engine.container(info.id)
        if not keep:
            engine.remove(info.id, force=True)
    if watch.refused is not None and status.exit_code != 0:
        raise _refused(*watch.refused, plan)
    return RunResult(
        exit_code=status.exit_code,
        container=info.name,
        oom_killed=after is not None and after.oom_killed,
    )


def run_detached(
    engine: ContainerEngine, plan: ContainerPlan, *, on_note: Callable[[Note], None]
) -> ContainerInfo:
    """Start a command in the background and return its container.

    A container with an init starts even if it cannot run the command, and is gone at once, so its
    first moment is listened to.

    Raises:
        ProgramMissingError: The image has no such program.
        ProgramNotExecutableError: It may not be run.
        LaunchFailedError: The container did not start.
    """
    watch = InitWatch()
    with _started(engine, plan, on_note) as (info, attachment):
        watch.listen(attachment, timeout_s=_FIRST_MOMENT_S)
    if watch.refused is not None:
        raise _refused(*watch.refused, plan)
    return info


@contextmanager
def _started(
    engine: ContainerEngine, plan: ContainerPlan, on_note: Callable[[Note], None]
) -> Iterator[tuple[ContainerInfo, Attachment]]:
    """Start a container that is listened to from before its start, and let go of it at the end."""
    attachments: list[Attachment] = []

    def attach(container: str) -> None:
        while attachments:
            attachments.pop().close()
        attachments.append(engine.attach(container))

    try:
        try:
            info = start_planned(engine, plan, on_note=on_note, before_start=attach)
        except CommandNotFoundError as missing:
            raise _as_a_shell_says(missing, plan) from missing
        yield info, attachments[-1]
    finally:
        for attachment in attachments:
            attachment.close()


def _as_a_shell_says(missing: CommandNotFoundError, plan: ContainerPlan) -> CommandNotFoundError:
    program = (plan.spec.command or ("the image's own command",))[0]
    not_there = "permission denied" not in missing.why.lower()
    return _refusal(program, missing.why, plan, not_there=not_there)


def _refused(program: str, reason: str, plan: ContainerPlan) -> CommandNotFoundError:
    """Return what the words of a container's init mean."""
    not_there = reason == "No such file or directory"
    if not_there and "/" in program:
        reason += "; of a script that is there, the interpreter in its first line is missing"
    return _refusal(shlex.quote(program), reason, plan, not_there=not_there)


def _refusal(
    program: str, why: str, plan: ContainerPlan, *, not_there: bool
) -> CommandNotFoundError:
    if not_there:
        return ProgramMissingError(
            f"there is no program {program} in {plan.spec.image}",
            why=why,
            fix="check the command for a typing mistake; it must be inside the image",
        )
    return ProgramNotExecutableError(
        f"{program} may not be run",
        why=why,
        fix="make it an executable file, or give a script its interpreter: -- python train.py",
    )
