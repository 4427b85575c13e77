"""The ``Example:`` line that ends each command's help, called as it stands there."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from gpuenv.cli import COMMANDS, load_command
from tests.launch_fixtures import PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

pytestmark = [pytest.mark.engine, pytest.mark.network]

NAME = f"{PREFIX}-train"
"""What the environment of the examples is called here, so that nobody's own ``train`` is met."""

CHANGES_THE_MACHINE = {
    "engine up": "starts a daemon and changes the firewall",
    "engine down": "deletes every image of that daemon",
}
"""Not called; ``tests/engine/test_docker_faults.py`` does both with an engine of its own."""

EXIT_CODES: dict[str, frozenset[int]] = {
    # 1 is a failure on this machine, or a difference: what the two are there to tell.
    "doctor": frozenset({0, 1}),
}


def examples() -> dict[str, str]:
    """Return command → its example, for every command that has a help of its own."""

    def walk(words: tuple[str, ...], command: Any) -> Iterator[tuple[str, str]]:
        below = getattr(command, "commands", {})
        if not below or command.invoke_without_command:
            found = re.search(r"Example: (.+?)(?:\n\n|\Z)", command.help, re.DOTALL)
            yield " ".join(words), " ".join(found[1].split()) if found else ""
        for name, sub in below.items():
            yield from walk((*words, name), sub)

    return {
        command: example
        for name, _, _ in COMMANDS
        for command, example in walk((name,), load_command(name))
    }


EXAMPLES = examples()


@pytest.fixture(scope="module")
def place(
    gpuenv_environ: Mapping[str, str], base_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """Return a folder with what the examples take for granted: ``train`` and two fact files."""
    folder = tmp_path_factory.mktemp("examples")
    for file in ("there.json", "here.json"):
        call(["doctor", "--level", "static", "--capture", file], folder, gpuenv_environ)
    started = call(
        ["run", base_image, "--detach", "--name", NAME, "--no-caches", "--", "sleep", "900"],
        folder,
        gpuenv_environ,
    )
    assert started.returncode == 0, started.stderr
    yield folder
    call(["rm", NAME, "--yes"], folder, gpuenv_environ)


def call(
    words: list[str], folder: Path, environ: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run gpuenv as a program."""
    return subprocess.run(
        [sys.executable, "-m", "gpuenv", *words],
        cwd=folder,
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=840,
        check=False,
    )


@pytest.mark.parametrize("command", [pytest.param(name, id=name) for name in EXAMPLES])
@pytest.mark.usefixtures("no_new_volumes")
def test_the_example_in_the_help_works(
    command: str, place: Path, gpuenv_environ: Mapping[str, str]
) -> None:
    example = EXAMPLES[command]
    assert f"{example} ".startswith(f"gpuenv {command.removesuffix(' (session)')} ")
    if command in CHANGES_THE_MACHINE:
        pytest.skip(CHANGES_THE_MACHINE[command])
    words = [NAME if word == "train" else word for word in shlex.split(example)[1:]]
    done = call(words, place, gpuenv_environ)
    said = f"{example}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    assert done.returncode in EXIT_CODES.get(command, frozenset({0})), said
    assert "Traceback" not in done.stderr
    assert done.stdout.strip() or done.stderr.strip() or command == "logs", said
