"""BuildKit's trace, decoded from the wire and turned into events."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from gpuenv.engine.buildkit import LOG_LINES, TraceReader, plan_query, readable_line
from gpuenv.engine.buildkit_wire import decode_status, status_message
from gpuenv.engine.errors import BuildKitMissingError
from gpuenv.engine.events import (
    BuildEvent,
    BuildWarning,
    Failed,
    ImageId,
    Output,
    Progress,
    StepCached,
    StepDone,
    StepStarted,
)
from gpuenv.engine.protocol import BuildRequest
from gpuenv.errors import BuildFailedError

# One message as Docker 20.10.24 sent it: a vertex named "[internal] load remote build context".
RECORDED = (
    "Cn0KR3NoYTI1NjpjNzEyYWZlYWI2ZTI5NDU3YTU2NDBhMzg2NGRkNTEwOTg4YTQ3MDMwNTk3Mzg0MGVhNDgxN2I3MmE4"
    "ZmM3YTc2GiRbaW50ZXJuYWxdIGxvYWQgcmVtb3RlIGJ1aWxkIGNvbnRleHQqDAio+brYBhCb19uzAw=="
)


class Wire:
    """Writes trace lines as the engine does."""

    def __init__(self) -> None:
        self.message: Any = status_message()

    def vertex(
        self,
        digest: str,
        name: str,
        *,
        started: float | None = None,
        completed: float | None = None,
        cached: bool = False,
        error: str = "",
    ) -> Wire:
        vertex = self.message.vertexes.add(digest=digest, name=name, cached=cached, error=error)
        for field, value in (("started", started), ("completed", completed)):
            if value is not None:
                stamp = getattr(vertex, field)
                stamp.seconds, stamp.nanos = int(value), round(value % 1 * 1e9)
        return self

    def log(self, digest: str, data: bytes, stream: int = 1) -> Wire:
        self.message.logs.add(vertex=digest, msg=data, stream=stream)
        return self

    def line(self) -> dict[str, Any]:
        aux = base64.b64encode(self.message.SerializeToString()).decode()
        return {"id": "moby.buildkit.trace", "aux": aux}


def read(*lines: dict[str, Any], reader: TraceReader | None = None) -> list[BuildEvent]:
    reader = reader or TraceReader()
    return [event for line in lines for event in reader.feed(line)]


def test_a_message_of_a_real_engine_is_read() -> None:
    (vertex,) = decode_status(RECORDED).vertexes
    assert vertex.name == "[internal] load remote build context"
    assert vertex.digest.startswith("sha256:c712afea")
    assert vertex.started == pytest.approx(1796127912.9137633)
    assert vertex.completed is None


@pytest.mark.parametrize("aux", ["%%%", base64.b64encode(b"\x0a\xff\xff").decode()])
def test_what_is_no_message_is_a_value_error(aux: str) -> None:
    with pytest.raises(ValueError, match=r"base64|BuildKit|Only base64"):
        decode_status(aux)


def test_a_step_starts_and_ends_once_with_its_own_time() -> None:
    name = "[2/3] RUN true"
    events = read(
        Wire().vertex("b", name).line(),
        Wire().vertex("b", name, started=10.5).line(),
        Wire().vertex("b", name, started=10.5, completed=12.75).line(),
        Wire().vertex("b", name, started=10.5, completed=12.75).line(),
    )
    assert events == [
        StepStarted(step="b", name=name),
        StepDone(step="b", name=name, seconds=2.25),
    ]


def test_a_cached_step_never_started() -> None:
    line = Wire().vertex("a", "[1/3] FROM x", started=1.0, completed=1.0, cached=True).line()
    assert read(line) == [StepCached(step="a", name="[1/3] FROM x")]


def test_output_is_whole_lines_whatever_the_pieces() -> None:
    name = "[2/2] RUN x"
    events = read(
        Wire().vertex("b", name, started=1.0).line(),
        Wire().log("b", b"eins\nzw").log("b", b"err\n", 2).line(),
        Wire().log("b", "ei ü".encode()[:-1]).line(),
        Wire().log("b", "ü".encode()[-1:] + b"\n\x1b[31mred\x1b[0m 10%\r\x1b[K 99%\nrest").line(),
        Wire().vertex("b", name, started=1.0, completed=2.0).line(),
    )
    assert [(e.text, e.stream) for e in events if isinstance(e, Output)] == [
        ("eins", "stdout"),
        ("err", "stderr"),
        ("zwei ü", "stdout"),
        (" 99%", "stdout"),
        ("rest", "stdout"),
    ]
    assert isinstance(events[-1], StepDone)


def test_a_failure_names_the_step_that_failed_not_the_cancelled_ones() -> None:
    reader = TraceReader()
    read(
        Wire().vertex("a", "[one 1/1] RUN sleep 9", started=1.0).line(),
        Wire().vertex("b", "[two 1/1] RUN exit 7", started=1.0).line(),
        Wire().log("b", b"".join(b"line %d\n" % n for n in range(LOG_LINES + 10))).line(),
        Wire()
        .vertex("a", "[one 1/1] RUN sleep 9", started=1.0, completed=2.0, error="context canceled")
        .vertex("b", "[two 1/1] RUN exit 7", started=1.0, completed=2.0, error="exit code: 7")
        .line(),
        reader=reader,
    )
    told: list[BuildEvent] = []
    with pytest.raises(BuildFailedError) as caught:
        told.extend(reader.feed({"errorDetail": {"message": "exit code: 7"}, "error": "x"}))
    (failed,) = told
    assert isinstance(failed, Failed)
    assert (failed.name, failed.exit_code) == ("[two 1/1] RUN exit 7", 7)
    assert failed.log == tuple(f"line {n}" for n in range(10, LOG_LINES + 10))
    assert reader.refused
    assert caught.value.data["step"] == "[two 1/1] RUN exit 7"


def test_progress_of_an_item_ends_once() -> None:
    wire = Wire()
    status = wire.message.statuses.add(ID="layer", vertex="a", current=5, total=9)
    status.started.seconds = 1
    done = Wire()
    last = done.message.statuses.add(ID="layer", vertex="a", current=9, total=9)
    last.started.seconds, last.completed.seconds = 1, 3
    assert read(wire.line(), done.line(), done.line()) == [
        Progress(step="a", item="layer", current=5, total=9),
        Progress(step="a", item="layer", current=9, total=9, done=True, seconds=2.0),
    ]


def test_warnings_and_the_image_come_out() -> None:
    wire = Wire()
    wire.message.warnings.add(vertex="a", short=b"use JSON for CMD")
    reader = TraceReader()
    assert read(wire.line(), reader=reader) == [BuildWarning(text="use JSON for CMD")]
    assert read({"id": "moby.image.id", "aux": {"ID": "sha256:1"}}, reader=reader) == []
    assert list(reader.end()) == [ImageId(image_id="sha256:1")]


def test_the_classic_builder_is_not_mistaken_for_buildkit() -> None:
    with pytest.raises(BuildKitMissingError):
        read({"stream": "Step 1/2 : FROM x\n"})


def test_terminal_noise_is_taken_out_of_a_line() -> None:
    assert readable_line("\x1b]0;title\x07a\x1b[1;32mb\x1b[m\x00c\td\r") == "abc\td"


def test_the_query_is_whole_and_in_order() -> None:
    request = BuildRequest(
        context=b"",
        tags=("localhost/gpuenv/x:1", "localhost/gpuenv/x:2"),
        labels={"b": "2", "a": "1"},
        build_args={"HTTP_PROXY": "http://p"},
        target="final",
        network_mode="host",
        no_cache=True,
        pull=True,
        platform="linux/amd64",
        shm_bytes=64,
        extra_hosts=(("m", "192.0.2.1"),),
    )
    assert plan_query(request, "id1") == [
        ("version", "2"),
        ("buildid", "id1"),
        ("dockerfile", "Dockerfile"),
        ("t", "localhost/gpuenv/x:1"),
        ("t", "localhost/gpuenv/x:2"),
        ("buildargs", '{"HTTP_PROXY": "http://p"}'),
        ("labels", '{"a": "1", "b": "2"}'),
        ("target", "final"),
        ("networkmode", "host"),
        ("platform", "linux/amd64"),
        ("shmsize", "64"),
        ("nocache", "1"),
        ("pull", "1"),
        ("extrahosts", "m:192.0.2.1"),
    ]
    assert "http://p" not in repr(request)
