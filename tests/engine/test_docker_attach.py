"""Open input and output: a shell with a terminal, a pipe, a command that goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpuenv.engine.protocol import ContainerSpec
from tests.engine_fixtures import BASE

if TYPE_CHECKING:
    from gpuenv.engine.protocol import Attachment, ContainerEngine

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("base_image")]


def read_until(attachment: Attachment, word: bytes) -> bytes:
    output = b""
    while word not in output:
        chunk = attachment.read()
        assert chunk is not None, output
        output += chunk.data
    return output


def rest(attachment: Attachment) -> bytes:
    return b"".join(chunk.data for chunk in iter(attachment.read, None))


def test_a_shell_on_a_terminal_knows_its_size_and_its_exit_code(
    engine: ContainerEngine, run_labels: dict[str, str]
) -> None:
    made = engine.create(ContainerSpec(image=BASE, command=("sleep", "600"), labels=run_labels))
    engine.start(made.id)
    shell = engine.exec_attached(made.id, ("sh",), env={"PS1": "ready> "}, tty=True)
    read_until(shell, b"ready> ")
    shell.resize(rows=33, columns=77)
    shell.write(b"stty size; tty\n")
    assert b"33 77\r\n/dev/pts/" in read_until(shell, b"/dev/pts/")
    shell.write(b"exit 5\n")
    rest(shell)
    assert shell.exit_code() == 5
    shell.resize(rows=1, columns=1)  # a window may change after the end
    shell.close()


def test_input_goes_through_a_pipe_to_its_end_and_streams_stay_apart(
    engine: ContainerEngine, run_labels: dict[str, str]
) -> None:
    made = engine.create(ContainerSpec(image=BASE, command=("sleep", "600"), labels=run_labels))
    engine.start(made.id)
    pipe = engine.exec_attached(made.id, ("sh", "-c", "cat; echo end >&2; exit 4"))
    assert pipe.exit_code() is None
    payload = bytes(range(256)) * 2000
    pipe.write(payload)
    pipe.close_input()
    chunks = list(iter(pipe.read, None))
    assert b"".join(c.data for c in chunks if c.stream == "stdout") == payload
    assert b"".join(c.data for c in chunks if c.stream == "stderr") == b"end\n"
    assert pipe.exit_code() == 4
    pipe.close()


def test_a_container_with_open_input_is_driven_from_outside(
    engine: ContainerEngine, run_labels: dict[str, str]
) -> None:
    script = "read name; echo hello $name; exit 6"
    made = engine.create(
        ContainerSpec(
            image=BASE, command=("sh", "-c", script), labels=run_labels, open_stdin=True, tty=True
        )
    )
    attachment = engine.attach(made.id)
    engine.start(made.id)
    attachment.resize(rows=24, columns=80)
    attachment.write(b"world\n")
    assert b"hello world" in rest(attachment)
    attachment.close()
    assert engine.wait(made.id, timeout_s=60).exit_code == 6
    assert attachment.exit_code() == 6


def test_a_command_that_does_not_end_times_out(
    engine: ContainerEngine, run_labels: dict[str, str]
) -> None:
    made = engine.create(ContainerSpec(image=BASE, command=("sleep", "600"), labels=run_labels))
    engine.start(made.id)
    with pytest.raises(TimeoutError, match="sleep"):
        engine.exec(made.id, ("sleep", "60"), timeout_s=0.3)


def test_followed_output_comes_as_it_is_written(
    engine: ContainerEngine, run_labels: dict[str, str]
) -> None:
    script = "echo one; read x; echo two"
    made = engine.create(
        ContainerSpec(image=BASE, command=("sh", "-c", script), labels=run_labels, open_stdin=True)
    )
    attachment = engine.attach(made.id)
    engine.start(made.id)
    logs = engine.logs(made.id, follow=True)
    assert next(logs).data == b"one\n"
    attachment.write(b"\n")
    assert [chunk.data for chunk in logs] == [b"two\n"]
    attachment.close()
