"""The edge of the command line: exit codes, the JSON envelope, what --help may load."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from gpuenv.cli import main

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
    assert captured.err.startswith("error: No such option: --no-such-flag")
