"""The edge of the command line: exit codes, the JSON envelope, what --help may load."""

from __future__ import annotations

import importlib
import io
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import typer

from gpuenv import __version__, output
from gpuenv.cli import COMMANDS, load_command, main
from gpuenv.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

HEAVY = ("docker", "paramiko", "jinja2", "yaml", "pynvml", "torch", "rich", "requests")


@pytest.mark.subprocess
@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_help_loads_no_heavy_library(flag: str) -> None:
    code = (
        "import sys; from gpuenv.cli import main; main([sys.argv[1]]); "
        f"print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, flag], capture_output=True, text=True, check=True
    )
    assert done.stderr.strip() == "[]"


def test_usage_error_is_one_json_object_with_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json", "--no-such-flag"]) == 2
    answer = json.loads(capsys.readouterr().out)
    assert answer["exit_code"] == 2
    assert answer["status"] == "error"
    assert answer["errors"][0]["slug"] == "usage"
    assert "--no-such-flag" in answer["errors"][0]["what"]


def test_usage_error_in_words_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--no-such-flag"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error[usage]: No such option: --no-such-flag")


@pytest.mark.parametrize(("name", "summary"), [(name, line) for name, _, line in COMMANDS])
def test_the_table_of_commands_says_what_the_commands_say(name: str, summary: str) -> None:
    command = load_command(name)
    assert command is not None
    assert command.help.strip().partition("\n\n")[0].replace("\n", " ") == summary


def test_no_command_of_a_module_is_left_out_of_the_table() -> None:
    listed = {name for name, _, _ in COMMANDS}
    for module in {module for _, module, _ in COMMANDS}:
        area = typer.Typer()
        importlib.import_module(f"gpuenv.commands.{module}").register(area)
        found = {info.name for info in area.registered_commands}
        assert found <= listed, module


def test_an_unknown_command_gets_a_guess(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bulid"]) == 2
    assert "did you mean build?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "what", "fix"),
    [
        (["engine", "staus"], "No such command 'staus'", "did you mean status?"),
        (["engine", "zzz"], "No such command 'zzz'", "gpuenv engine --help"),
        (["bild"], "No such command 'bild'", "did you mean build?"),
        (["zzz"], "No such command 'zzz'", "gpuenv --help"),
        (["version"], "No such command 'version'", "gpuenv --version"),
        (["help"], "No such command 'help'", "gpuenv --help"),
        (
            ["--engine", "X", "ps"],
            "No such option: --engine",
            "put it after the command: gpuenv ps --engine …",
        ),
        (
            ["--engine=X", "ps"],
            "No such option: --engine",
            "put it after the command: gpuenv ps --engine …",
        ),
        (["--zzz", "ps"], "No such option: --zzz", "gpuenv ps --help"),
        (["--torch", "2.9", "matrix", "list"], "No such option: --torch", "gpuenv --help"),
    ],
)
def test_a_word_or_flag_out_of_place_is_told_what_is_meant(
    words: list[str], what: str, fix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--json"]) == 2
    (error,) = json.loads(capsys.readouterr().out)["errors"]
    assert (error["what"], error["fix"]) == (what, fix)


def test_a_group_alone_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["matrix"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("Usage: gpuenv matrix")
    assert main(["matrix", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["errors"][0]["slug"] == "usage"


@pytest.mark.parametrize("words", [["run", "python", "train.py"], ["ssh", "train", "ls"]])
def test_a_command_without_the_dashes_is_told_of_them(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error[usage]: unexpected argument {words[2]}")
    assert f"fix: gpuenv {words[0]} … -- COMMAND" in said


SHARED_FLAGS_IN_BETWEEN = [
    ["matrix", "-q", "list", "--torch", "2.9", "--cuda", "cpu"],
    ["matrix", "--json", "list", "--torch", "2.9", "--cuda", "cpu"],
    ["doctor", "-q", "--json", "diff", "a.json", "b.json"],
    ["ssh", "-qv", "config", "show"],
    ["ssh", "config", "--json", "show"],
]


@pytest.mark.parametrize("words", SHARED_FLAGS_IN_BETWEEN)
def test_shared_flags_may_stand_at_every_level(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    facts = json.dumps({"gpuenv_facts_version": "1", "probes": {}})
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text(facts, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    command = [word for word in words if word in {"matrix", "list", "doctor", "diff", "config",
                                                  "show", "ssh"}]  # fmt: skip
    flags = [word for word in words if word in {"-q", "-qv", "--json"}]
    rest = [word for word in words if word not in {*command, *flags}]
    answers = []
    for arguments in (words, [*flags, *command, *rest], [*command, *rest, *flags]):
        assert main(arguments) == 0
        answers.append(capsys.readouterr())
    assert answers[0] == answers[1] == answers[2]


@pytest.mark.parametrize(
    "words",
    [
        ["jupyter", "train", "--name", "other"],
        ["jupyter", "train", "--url", "other"],
        ["jupyter", "--url", "train", "--name", "other", "--rotate"],
        ["ssh", "train", "--name", "other"],
    ],
)
def test_two_names_for_one_environment_are_a_mistake(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert capsys.readouterr().err.startswith("error[usage]: the name is given twice\n  why: ")


@pytest.mark.network  # the engine's socket, which is not there
@pytest.mark.parametrize("command", ["jupyter", "ssh"])
def test_the_name_may_be_an_argument_and_a_flag_at_once(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent")
    for words in (["train"], ["--name", "train"], ["train", "--name", "train"]):
        assert main([command, *words, "--dry-run", "--json"]) == 4
        assert json.loads(capsys.readouterr().out)["errors"][0]["slug"] == "engine-socket-missing"


@pytest.mark.parametrize("group", [["matrix"], ["engine"], ["ssh", "config"], []])
def test_a_group_with_nothing_but_shared_flags_asks_for_a_command(
    group: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*group, "-q"]) == 2
    assert capsys.readouterr().err == (
        f"error[usage]: no command was given\n  fix: {' '.join(['gpuenv', *group])} --help\n"
    )


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["render", "--cuda", "cpu", "-o", ""], "--output"),
        (["render", "--cuda", "cpu", "--matrix="], "--matrix"),
        (["render", "-r", " "], "--requirements"),
        (["render", "-r", "a.txt", "-r", ""], "--requirements"),
        (["doctor", "--from", ""], "--from"),
        (["doctor", "--level", "static", "--html", ""], "--html"),
        (["doctor", "diff", "a.json", ""], "B"),
        (["ssh", "--key", ""], "--key"),
        (["ssh", "", "--dry-run"], "NAME"),
        (["stop", "train", ""], "NAME"),
        (["run", "", "--", "true"], "IMAGE"),
        (["engine", "status", "--host", ""], "--engine"),
    ],
)
def test_an_empty_value_is_a_mistake_and_no_path(
    words: list[str], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    assert main(words) == 2
    assert capsys.readouterr().err.startswith(f"error[usage]: {name} is empty\n")
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    "words",
    [
        ["run", "../containers", "--", "true"],
        ["run", "x?all=1", "--", "true"],
        ["run", "--image", "/", "--", "true"],
        ["jupyter", "--image", "../info"],
        ["ssh", "--image", "..", "--dry-run"],
        ["doctor", "--image", "../info"],
        ["doctor", "--container", "../info"],
    ],
)
def test_what_names_no_image_and_no_container_never_reaches_the_engine(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--json", *words]) == 2  # 4 would be the engine that is not there
    said = json.loads(capsys.readouterr().out)["errors"][0]["what"]
    assert "is not the name of" in said


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("environ", "piped", "on_a_terminal"),
    [
        ({"TERM": "xterm"}, False, True),
        ({"TERM": "dumb"}, False, False),
        ({"TERM": "xterm", "NO_COLOR": "1", "FORCE_COLOR": "1"}, False, False),
        ({"TERM": "xterm", "NO_COLOR": ""}, False, True),
        ({"TERM": "dumb", "FORCE_COLOR": "1"}, True, True),
        ({"FORCE_COLOR": "1"}, True, True),
        ({"TERM": "xterm", "CLICOLOR_FORCE": "1"}, True, True),
        ({"TERM": "xterm", "CLICOLOR_FORCE": "0"}, False, True),
        ({"TERM": "xterm", "CLICOLOR": "0"}, False, False),
        ({"TERM": "xterm", "CLICOLOR": "0", "FORCE_COLOR": "1"}, True, True),
    ],
)
def test_colour_is_decided_alike_for_both_streams(
    environ: dict[str, str], piped: bool, on_a_terminal: bool
) -> None:
    for stream_class, coloured in ((io.StringIO, piped), (Terminal, on_a_terminal)):
        stdout, stderr = stream_class(), stream_class()
        out = output.Output(stdout=stdout, stderr=stderr, environ=environ)
        out.warn("careful")
        out.console().print("[red]red[/red]")
        assert [("\x1b[" in it.getvalue()) for it in (stdout, stderr)] == [coloured] * 2


def test_a_table_is_printed_in_full_where_no_terminal_sets_a_width() -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in ("WHERE", "AGE"):
        table.add_column(title)
    table.add_row("http://127.0.0.1:8888/" + "x" * 200, "5 s")
    for environ, shown in (({}, True), ({"COLUMNS": "80"}, False)):
        stream = io.StringIO()
        output.Output(stdout=stream, environ=environ).table(table)
        assert ("x" * 200 in stream.getvalue()) is shown


def test_the_version_is_one_json_object_when_asked_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["data"] == {"version": __version__}


@pytest.mark.parametrize("columns", ["0", "-5", "wide", "99999999999"])
def test_a_width_of_no_use_does_not_lose_the_table(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:  # undone before pytest itself asks how wide we are
        patch.setenv("COLUMNS", columns)
        assert main(["matrix", "list", "--torch", "2.9", "--cuda", "cpu"]) == 0
    assert "2.9.1" in capsys.readouterr().out


def test_render_does_not_write_over_a_dockerfile_of_the_users(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "Dockerfile"
    mine.write_text("FROM scratch\n", encoding="utf-8")
    request = ["render", "--torch", "2.9", "--cuda", "cpu"]
    assert main([*request, "--output", str(tmp_path)]) == 2
    assert "is not gpuenv's own" in capsys.readouterr().err
    assert mine.read_text(encoding="utf-8") == "FROM scratch\n"
    mine.unlink()
    for _ in range(2):
        assert main([*request, "--output", str(tmp_path)]) == 0


def test_nothing_is_pushed_without_a_name_for_a_registry(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["build", "--cuda", "cpu", "--push", "--dry-run"]) == 2
    assert "--push needs a --tag" in capsys.readouterr().err


LIST = [sys.executable, "-m", "gpuenv", "--json", "matrix", "list", "--all-patches"]


@pytest.mark.subprocess
def test_a_reader_that_leaves_is_no_failure() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(LIST, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.subprocess
def test_a_full_disk_is_told_as_one() -> None:
    with open("/dev/full", "wb") as full:  # noqa: PTH123 - a device
        done = subprocess.run(LIST, stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 2
    assert b"cannot write the output" in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.subprocess
def test_a_closed_standard_output_is_no_fault_of_ours() -> None:
    words = [part for part in LIST if part != "--json"]
    done = subprocess.run(
        ["/bin/sh", "-c", '"$@" >&-', "sh", *words], stderr=subprocess.PIPE, check=False
    )
    assert done.returncode == 0
    assert b"fault" not in done.stderr


def test_ctrl_c_in_a_command_is_one_json_object_with_exit_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gpuenv.matrix.resolve.resolve", interrupt)
    assert main(["matrix", "resolve", "--cuda", "cpu", "--json"]) == 130
    answer = json.loads(capsys.readouterr().out)
    assert (answer["status"], answer["exit_code"]) == ("error", 130)
    assert answer["errors"][0]["slug"] == "interrupted"


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _said(stream: io.StringIO, columns: str = "30") -> str:
    out = output.Output(
        stdout=io.StringIO(), stderr=stream, environ={"COLUMNS": columns, "NO_COLOR": "1"}
    )
    out.note("no GPU found, so choosing cpu: no driver")
    out.warn("the folder /a/very/long/path/that/is/wider/than/it stays whole")
    out.fail(
        UsageError("nothing was given to it", why="first of all this\nand that too, which is so")
    )
    return stream.getvalue()


def test_on_a_terminal_lines_break_between_words_and_hang() -> None:
    assert _said(_Terminal()) == (
        "no GPU found, so choosing cpu:\n"
        "  no driver\n"
        "warning: the folder\n"
        "  /a/very/long/path/that/is/wider/than/it\n"
        "  stays whole\n"
        "error[usage]: nothing was\n"
        "  given to it\n"
        "  why: first of all this\n"
        "       and that too, which is\n"
        "       so\n"
    )


def test_in_a_pipe_a_line_is_a_line() -> None:
    said = _said(io.StringIO()).splitlines()
    assert said[0] == "no GPU found, so choosing cpu: no driver"
    assert said[2] == "error[usage]: nothing was given to it"
    assert said[3:] == ["  why: first of all this", "       and that too, which is so"]


def test_colour_does_not_count_for_the_width_of_a_line() -> None:
    stream = _Terminal()
    out = output.Output(
        stdout=io.StringIO(), stderr=stream, environ={"COLUMNS": "40", "FORCE_COLOR": "1"}
    )
    out.warn("a line of forty columns is that")
    assert stream.getvalue() == "\x1b[33mwarning: a line of forty columns is that\x1b[0m\n"
