"""Builds by the engine's own BuildKit: ``POST /build?version=2`` with the context as the body.

No ``docker`` program, no buildx and no session are needed. What a session would bring is missing on
purpose: secrets travel in the context and reach one RUN by a bind mount, and a private base image
is pulled before the build.
"""

from __future__ import annotations

import codecs
import json
import queue
import re
import secrets
import threading
import time
from collections import deque
from contextlib import closing, suppress
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlencode

from gpuenv.engine.buildkit_wire import decode_status
from gpuenv.engine.causes import explain_failure
from gpuenv.engine.errors import BuildKitMissingError
from gpuenv.engine.events import (
    BuildWarning,
    Failed,
    ImageId,
    Output,
    Progress,
    StepCached,
    StepDone,
    StepStarted,
)
from gpuenv.errors import GpuenvError
from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from gpuenv.engine.api import ApiEngine
    from gpuenv.engine.buildkit_wire import StatusUpdate, Vertex, VertexLog, VertexStatus
    from gpuenv.engine.events import BuildEvent
    from gpuenv.engine.protocol import BuildRequest, TarBytes
    from gpuenv.engine.transport import Answer

LOG_LINES = 50
UPLOAD_STEP = "gpuenv:context"
_UPLOAD_NAME = "[internal] send the build context"
_REPORT_EVERY = 1 << 22
_CANCEL_TIMEOUT_S = 10.0
_EXIT_CODE = re.compile(r"exit code: (\d+)")
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


def plan_query(request: BuildRequest, build_id: str) -> list[tuple[str, str]]:
    """Return the query of the build request, in a fixed order."""
    query = [("version", "2"), ("buildid", build_id), ("dockerfile", request.dockerfile)]
    query += [("t", tag) for tag in request.tags]
    for name, values in (("buildargs", request.build_args), ("labels", request.labels)):
        if values:
            query.append((name, json.dumps(dict(values), sort_keys=True)))
    optional = {
        "target": request.target,
        "networkmode": request.network_mode,
        "platform": request.platform,
        "shmsize": None if request.shm_bytes is None else str(request.shm_bytes),
        "nocache": "1" if request.no_cache else None,
        "pull": "1" if request.pull else None,
    }
    query += [(name, value) for name, value in optional.items() if value]
    query += [("extrahosts", f"{name}:{address}") for name, address in request.extra_hosts]
    return query


# --- the trace ------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class _Step:
    name: str = ""
    started: float | None = None
    done: bool = False
    error: str = ""
    log: deque[str] = field(default_factory=lambda: deque(maxlen=LOG_LINES))
    pending: dict[str, str] = field(default_factory=dict)
    decoders: dict[str, codecs.IncrementalDecoder] = field(default_factory=dict)


class TraceReader:
    """Turns the lines of a build's answer into events; holds what is known of each step.

    Attributes:
        refused: The engine has said that the build is over and failed.
    """

    def __init__(self) -> None:
        self.refused = False
        self._steps: dict[str, _Step] = {}
        self._finished_items: set[tuple[str, str]] = set()
        self._image_id = ""

    def feed(self, line: dict[str, Any]) -> Iterator[BuildEvent]:
        """Yield the events of one line.

        Raises:
            BuildFailedError: The line says that the build failed; ``Failed`` came before it.
            BuildKitMissingError: The classic builder answers.
        """
        if "error" in line:
            detail = line.get("errorDetail") or {}
            yield from self._fail(str(detail.get("message") or line["error"]))
        elif line.get("id") == "moby.buildkit.trace":
            yield from self._update(decode_status(line["aux"]))
        elif line.get("id") == "moby.image.id":
            self._image_id = str(line["aux"]["ID"])
        elif str(line.get("stream", "")).startswith(("Step 1/", "STEP 1")):
            raise BuildKitMissingError(
                "the engine has no BuildKit",
                why="it answers with its classic builder, which knows no cache mounts",
                fix="use a Docker engine for Linux, 20.10 or newer",
            )

    def end(self) -> Iterator[BuildEvent]:
        """Yield what is left when the answer has ended well."""
        for digest, step in self._steps.items():
            yield from self._flush(digest, step)
        if self._image_id:
            yield ImageId(image_id=self._image_id)

    def _update(self, update: StatusUpdate) -> Iterator[BuildEvent]:
        for vertex in update.vertexes:
            yield from self._started(vertex)
        for log in update.logs:
            yield from self._output(log)
        for status in update.statuses:
            yield from self._progress(status)
        for vertex in update.vertexes:
            yield from self._completed(vertex)
        for text in update.warnings:
            yield BuildWarning(text=text)

    def _started(self, vertex: Vertex) -> Iterator[BuildEvent]:
        step = self._steps.setdefault(vertex.digest, _Step())
        step.name = vertex.name
        step.error = vertex.error or step.error
        if vertex.started is not None and step.started is None and not vertex.cached:
            step.started = vertex.started
            yield StepStarted(
                step=vertex.digest, name=vertex.name, internal=_is_internal(vertex.name)
            )

    def _completed(self, vertex: Vertex) -> Iterator[BuildEvent]:
        step = self._steps[vertex.digest]
        if vertex.completed is None or step.done:
            return
        # A vertex may be reported complete more than once; the first time counts.
        step.done = True
        yield from self._flush(vertex.digest, step)
        if vertex.error:
            return
        if vertex.cached:
            yield StepCached(
                step=vertex.digest, name=vertex.name, internal=_is_internal(vertex.name)
            )
            return
        yield StepDone(
            step=vertex.digest,
            name=vertex.name,
            seconds=max(0.0, vertex.completed - (step.started or vertex.completed)),
            internal=_is_internal(vertex.name),
        )

    def _output(self, log: VertexLog) -> Iterator[BuildEvent]:
        step = self._steps.setdefault(log.vertex, _Step())
        stream: Literal["stdout", "stderr"] = "stderr" if log.stream == 2 else "stdout"  # noqa: PLR2004 - the wire's number
        decoder = step.decoders.setdefault(
            stream, codecs.getincrementaldecoder("utf-8")(errors="replace")
        )
        text = step.pending.get(stream, "") + decoder.decode(log.data)
        *lines, step.pending[stream] = text.split("\n")
        for line in lines:
            yield self._line(log.vertex, step, line, stream)

    def _flush(self, digest: str, step: _Step) -> Iterator[BuildEvent]:
        for stream, rest in sorted(step.pending.items()):
            if rest:
                yield self._line(digest, step, rest, "stderr" if stream == "stderr" else "stdout")
        step.pending.clear()

    def _line(
        self, digest: str, step: _Step, line: str, stream: Literal["stdout", "stderr"]
    ) -> Output:
        text = readable_line(line)
        step.log.append(text)
        return Output(step=digest, text=text, stream=stream)

    def _progress(self, status: VertexStatus) -> Iterator[BuildEvent]:
        key = (status.vertex, status.id)
        if key in self._finished_items:
            return
        done = status.completed is not None
        if done:
            self._finished_items.add(key)
        seconds = (
            max(0.0, status.completed - status.started)
            if status.completed is not None and status.started is not None
            else None
        )
        yield Progress(
            step=status.vertex,
            item=status.id,
            current=status.current,
            total=status.total,
            done=done,
            seconds=seconds,
        )

    def _fail(self, message: str) -> Iterator[BuildEvent]:
        # Steps that ran at the same time are cancelled and have an error as well.
        broken = [
            (digest, step)
            for digest, step in self._steps.items()
            if step.error and "context canceled" not in step.error
        ]
        digest, step = broken[0] if broken else ("", _Step(error=message))
        yield from self._flush(digest, step)
        code = _EXIT_CODE.search(step.error)
        failed = Failed(
            name=step.name,
            message=message,
            exit_code=int(code[1]) if code else None,
            log=tuple(step.log),
        )
        self.refused = True
        yield failed
        raise explain_failure(failed)


def _is_internal(name: str) -> bool:
    return name.startswith(("[internal]", "[auth]", "copy /context"))


def readable_line(line: str) -> str:
    """Return what a terminal would show of a line: no escapes, and after the last return."""
    text = _ESCAPES.sub("", line).rstrip("\r")
    text = text.rsplit("\r", 1)[-1]
    return "".join(char for char in text if char >= " " or char == "\t")


# --- the request ----------------------------------------------------------------------------------


class _Upload:
    """Sends the request on a thread, so that a large context shows how far it has come."""

    def __init__(self, send: Callable[[Iterable[bytes]], Answer], tar: TarBytes) -> None:
        self._send = send
        self._tar = tar
        self._stopped = threading.Event()
        self._taken: Answer | None = None
        self._news: queue.Queue[int | Answer | BaseException] = queue.Queue()
        self._thread = threading.Thread(target=self._run, daemon=True, name="gpuenv-context")
        self._thread.start()

    def _run(self) -> None:
        try:
            self._news.put(self._send(self._body()))
        except BaseException as exc:  # noqa: BLE001 - raised again on the caller's own thread
            self._news.put(exc)

    def _body(self) -> Iterator[bytes]:
        sent = reported = 0
        for piece in (self._tar,) if isinstance(self._tar, bytes) else self._tar():
            if self._stopped.is_set():
                raise _UploadStoppedError
            yield piece
            sent += len(piece)
            if sent - reported >= _REPORT_EVERY:
                reported = sent
                self._news.put(sent)
        self._news.put(sent)

    def events(self) -> Generator[BuildEvent, None, Answer]:
        """Tell how much is sent, and return the engine's answer once it begins."""
        began = time.monotonic()
        yield StepStarted(step=UPLOAD_STEP, name=_UPLOAD_NAME, internal=True)
        while True:
            news = self._news.get()
            if isinstance(news, BaseException):
                raise news
            if not isinstance(news, int):
                break
            yield Progress(step=UPLOAD_STEP, item="context", current=news, total=0)
        self._taken = news
        yield StepDone(
            step=UPLOAD_STEP, name=_UPLOAD_NAME, seconds=time.monotonic() - began, internal=True
        )
        return news

    def stop(self) -> None:
        """Stop sending and close the answer, taken or not."""
        self._stopped.set()
        self._thread.join(_CANCEL_TIMEOUT_S)
        answers = [self._taken]
        while not self._news.empty():
            news = self._news.get()
            answers.append(None if isinstance(news, (int, BaseException)) else news)
        for answer in answers:
            if answer is not None:
                answer.close()


class _UploadStoppedError(Exception):
    """Ends the body of a request that is not wanted any more."""


def run_build(engine: ApiEngine, request: BuildRequest) -> Generator[BuildEvent, None, None]:
    """Build and yield events; leaving early, for whatever reason, cancels it on the engine."""
    build_id = secrets.token_hex(16)
    query = urlencode(plan_query(request, build_id))

    def send(body: Iterable[bytes]) -> Answer:
        return engine.send_build(query, body)

    upload = _Upload(send, request.context)
    reader = TraceReader()
    over = False
    try:
        response = yield from upload.events()
        with closing(engine.build_lines(response)) as lines:
            for line in lines:
                yield from reader.feed(line)
        over = True
        yield from reader.end()
    finally:
        if not over and not reader.refused:
            with suppress(GpuenvError):
                engine.cancel_build(build_id, timeout_s=_CANCEL_TIMEOUT_S)
        upload.stop()
