"""An engine that says nothing: asked after a while, told apart from one that is stuck."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING

from gpuenv.engine.events import BuildWarning, ImageId, StepStarted, build_image
from gpuenv.engine.fake import FakeEngine
from gpuenv.engine.protocol import BuildRequest
from gpuenv.engine.silence import SilenceWatch

if TYPE_CHECKING:
    from collections.abc import Generator

    import pytest

    from gpuenv.engine.events import BuildEvent


def test_a_stuck_engine_is_told_once_and_its_return_once() -> None:
    answers = iter([True, False, False, True, True, False])
    said: list[str] = []
    watch = SilenceWatch(lambda: next(answers), said.append)
    for _ in range(6):
        watch.ask()
    assert [text.partition(" for ")[0] for text in said] == [
        "the engine has said nothing",
        "the engine answers again",
        "the engine has said nothing",
    ]


def test_the_question_is_asked_only_in_a_silence() -> None:
    asked: queue.SimpleQueue[None] = queue.SimpleQueue()

    def answers() -> bool:
        asked.put(None)
        return True

    with SilenceWatch(answers, lambda _: None, quiet_s=3600) as watch:
        watch.heard()
    assert asked.empty()
    with SilenceWatch(answers, lambda _: None, quiet_s=0.001):
        asked.get(timeout=30)


def test_nothing_is_said_once_it_is_over() -> None:
    said: list[str] = []
    over = threading.Event()

    def answers() -> bool:
        over.wait(30)
        return False

    with SilenceWatch(answers, said.append, quiet_s=3600) as watch:
        asking = threading.Thread(target=watch.ask)
        asking.start()
    over.set()
    asking.join()
    assert said == []


def test_a_build_warns_of_an_engine_that_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    warned = threading.Event()
    seen: list[BuildEvent] = []

    class Stuck(FakeEngine):
        def build(self, request: BuildRequest) -> Generator[BuildEvent, None, None]:
            assert request.labels == {}
            yield StepStarted(step="1", name="first")
            assert warned.wait(30)
            yield ImageId(image_id="sha256:1")

        def responds(self, *, timeout_s: float = 10) -> bool:
            return timeout_s < 0

    def on_event(event: BuildEvent) -> None:
        seen.append(event)
        if isinstance(event, BuildWarning):
            warned.set()

    monkeypatch.setattr("gpuenv.engine.events.SilenceWatch", Impatient)
    build_image(Stuck(), BuildRequest(context=lambda: iter([bytes(1024)])), on_event)
    (warning,) = [event for event in seen if isinstance(event, BuildWarning)]
    assert "does not answer; Ctrl-C ends the wait" in warning.text


class Impatient(SilenceWatch):
    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments, quiet_s=0.001)  # type: ignore[arg-type] - passed on as they are
