"""What a user sees of a build that runs."""

from __future__ import annotations

import io
import json
import threading

import pytest

from gpuenv.commands.build_progress import _Running, _settled_text, show_build
from gpuenv.engine.events import (
    BuildEvent,
    Failed,
    ImageId,
    Output,
    Progress,
    StepCached,
    StepDone,
    StepStarted,
)
from gpuenv.engine.progress import (
    BuildView,
    format_amount,
    format_seconds,
    split_name,
)
from gpuenv.errors import UsageError
from gpuenv.output import Output as CommandOutput

RUN = "[stage-0 2/3] RUN --mount=type=cache,target=/c : sha256:ab12;  uv pip     install torch"
EVENTS: tuple[BuildEvent, ...] = (
    StepStarted(step="ctx", name="[internal] send the build context", internal=True),
    Progress(step="ctx", item="context", current=5_000_000, total=0),
    StepDone(step="ctx", name="[internal] send the build context", seconds=2.5, internal=True),
    StepCached(step="a", name="[stage-0 1/3] FROM localhost/gpuenv/base:bookworm"),
    StepStarted(step="b", name=RUN),
    Output(step="b", text="Downloading torch"),
    Progress(step="b", item="layer", current=12_300_000, total=45_600_000),
    StepDone(step="b", name=RUN, seconds=65.4),
    ImageId(image_id="sha256:1"),
)


def shown(mode: str, events: tuple[BuildEvent, ...], **settings: object) -> str:
    stderr = io.StringIO()
    out = CommandOutput(stderr=stderr, stdout=io.StringIO(), environ={}, **settings)  # type: ignore[arg-type]
    with show_build(out, mode) as on_event:
        for event in events:
            on_event(event)
    return stderr.getvalue()


def test_plain_lines_tell_number_bytes_and_time() -> None:
    lines = shown("auto", EVENTS).splitlines()
    assert lines[:5] == [
        "done send the build context in 2.5 s (5.0 MB)",
        "[1/3] cached FROM localhost/gpuenv/base:bookworm",
        "[2/3] RUN uv pip install torch",
        "[2/3] | Downloading torch",
        "[2/3] done in 1 min 05 s (12.3 of 45.6 MB)",
    ]
    assert lines[5].startswith("1 step run, 1 from the cache, ")


def test_a_failed_step_is_marked() -> None:
    events = (*EVENTS[:6], Failed(name=RUN, message="exit code: 3", exit_code=3))
    assert shown("plain", events).splitlines()[4] == "[2/3] FAILED"


def test_json_has_one_object_an_event_and_nothing_else() -> None:
    told = [json.loads(line) for line in shown("json", EVENTS).splitlines()]
    assert [line["event"] for line in told][-3:] == ["progress", "step-done", "image-id"]
    assert told[-1]["image_id"] == "sha256:1"
    assert len(told) == len(EVENTS)


@pytest.mark.parametrize("settings", [{"mode": "quiet"}, {"mode": "auto", "verbosity": -1}])
def test_quiet_says_nothing(settings: dict[str, object]) -> None:
    mode = str(settings.pop("mode"))
    assert shown(mode, EVENTS, **settings) == ""


def test_an_unknown_mode_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="fancy"):
        shown("fancy", ())


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_forced_colour_makes_no_live_display_in_a_pipe() -> None:
    stderr = io.StringIO()
    out = CommandOutput(stderr=stderr, environ={"TERM": "xterm", "FORCE_COLOR": "1"})
    with show_build(out, "auto") as on_event:
        for event in EVENTS:
            on_event(event)
    assert "\x1b" not in stderr.getvalue()
    assert "RUN uv pip install torch" in stderr.getvalue()


def test_a_terminal_keeps_one_line_a_step() -> None:
    stderr = Terminal()
    out = CommandOutput(stderr=stderr, environ={"COLUMNS": "80", "TERM": "xterm", "NO_COLOR": "1"})
    console = out.console(error=True)
    view = BuildView(lambda: 0.0)
    for event in EVENTS:
        for line in view.feed(event):
            if line.mark in {"done", "cached"}:
                console.print(_settled_text(line, width=40, plain=False))
    assert stderr.getvalue().splitlines() == [
        "✓       send the build …  5.0 MB  2.5 s",
        "=   1/3 FROM localhost/gpuenv/base:boo…",
        "✓   2/3 RUN uv pi…  12.3 of 45.6 MB  1 min 05 s",
    ]


def test_a_terminal_shows_what_runs_with_its_last_words() -> None:
    stderr = Terminal()
    out = CommandOutput(stderr=stderr, environ={"COLUMNS": "60", "TERM": "xterm", "NO_COLOR": "1"})
    now = [0.0]
    view = BuildView(lambda: now[0])
    for event in EVENTS[:7]:
        view.feed(event)
    now[0] = 7.0
    out.console(error=True).print(_Running(view, threading.Lock(), plain=True))
    assert stderr.getvalue().splitlines() == [
        "-   2/3 RUN uv pip install torch  12.3 of 45.6 MB  7.0 s",
        "        Downloading torch",
    ]


def test_the_live_display_leaves_the_settled_lines_behind() -> None:
    stderr = Terminal()
    out = CommandOutput(stderr=stderr, environ={"COLUMNS": "80", "TERM": "xterm"})
    with show_build(out, "auto") as on_event:
        for event in EVENTS:
            on_event(event)
    assert "✓" in stderr.getvalue()
    assert "1 step run, 1 from the cache" in stderr.getvalue()


def test_running_steps_leave_the_display_when_they_end() -> None:
    now = [100.0]
    view = BuildView(lambda: now[0])
    for event in EVENTS[:7]:
        view.feed(event)
    now[0] = 103.5
    ((ran, seconds),) = view.running()
    assert (ran.step, ran.amount, ran.last, seconds) == (
        "2/3",
        "12.3 of 45.6 MB",
        "Downloading torch",
        3.5,
    )
    view.feed(EVENTS[7])
    assert view.running() == ()


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("[2/7] RUN true", ("2/7", "RUN true")),
        ("[stage-3 2/7] RUN true", ("2/7", "RUN true")),
        ("[wheels 2/7] COPY a b", ("wheels 2/7", "COPY a b")),
        ("exporting to image", ("", "exporting to image")),
        ("[3/5] RUN --mount=type=cache,target=/c : 'PyTorch 2'; set -eu; x", ("3/5", "PyTorch 2")),
        ("[3/5] RUN : JupyterLab; set -eu", ("3/5", "JupyterLab")),
        ("[4/6] RUN : 'a server; its key'; set -eu", ("4/6", "a server; its key")),
        (
            """[stage-4 1/5] RUN : 'the toolkit'"'"'s libraries'; set""",
            ("1/5", "the toolkit's libraries"),
        ),
        ("[internal] load metadata for x", ("", "load metadata for x")),
    ],
)
def test_step_names_are_split(name: str, parts: tuple[str, str]) -> None:
    assert split_name(name) == parts


def test_numbers_are_written_for_people() -> None:
    assert [format_seconds(s) for s in (0.04, 59.94, 60, 3599.6)] == [
        "0.0 s",
        "59.9 s",
        "1 min 00 s",
        "60 min 00 s",
    ]
    assert format_amount(0, 0) == ""
    assert format_amount(1_500_000, 0) == "1.5 MB"
