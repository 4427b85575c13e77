"""Builds on a real engine: what is cached, what is cancelled, and what is left behind."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from gpuenv.engine.archive import Member, tar_bytes, tar_stream
from gpuenv.engine.buildkit import UPLOAD_STEP
from gpuenv.engine.events import (
    BuildEvent,
    Output,
    Progress,
    StepCached,
    StepStarted,
    build_image,
)
from gpuenv.engine.protocol import BuildRequest
from gpuenv.errors import BuildFailedError
from tests.engine.processes import ends_within, running
from tests.engine_fixtures import BASE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpuenv.engine.protocol import ContainerEngine

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("base_image")]


def context(dockerfile: str, **files: bytes) -> bytes:
    members = [Member(path="Dockerfile", content=dockerfile.encode())]
    return tar_bytes([*members, *(Member(path=name, content=data) for name, data in files.items())])


def sleeper() -> tuple[str, str]:
    """Return a Dockerfile whose last step sleeps, and the word its process is known by."""
    word = f"86400.{secrets.randbelow(10**12):012d}"
    return f"FROM {BASE}\nRUN echo {word} > /first\nRUN echo go; exec sleep {word}\n", word


def run_until_go(events: Iterator[BuildEvent], word: str) -> tuple[int, ...]:
    for event in events:
        if isinstance(event, Output) and event.text == "go":
            break
    pids = running(word)
    while not pids:  # the shell has printed and is about to become sleep
        pids = running(word)
    return pids


def test_leaving_a_build_ends_its_step_and_keeps_the_cache(
    local_engine: ContainerEngine, run_labels: dict[str, str]
) -> None:
    dockerfile, word = sleeper()
    request = BuildRequest(context=context(dockerfile), labels=run_labels)
    with closing(local_engine.build(request)) as events:
        pids = run_until_go(events, word)
    assert ends_within(pids, 30)
    assert local_engine.images(labels=run_labels) == ()
    shorter = "\n".join(dockerfile.splitlines()[:2])
    told: list[BuildEvent] = []
    build_image(
        local_engine, BuildRequest(context=context(shorter), labels=run_labels), told.append
    )
    assert [event.name for event in told if isinstance(event, StepCached) and word in event.name]


def test_an_exception_in_the_listener_ends_the_build(
    local_engine: ContainerEngine, run_labels: dict[str, str]
) -> None:
    dockerfile, word = sleeper()
    pids: list[int] = []

    def interrupt(event: BuildEvent) -> None:
        if isinstance(event, Output) and event.text == "go":
            pids.extend(run_until_go(iter(()), word))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_image(
            local_engine,
            BuildRequest(context=context(dockerfile), labels=run_labels),
            interrupt,
        )
    assert ends_within(tuple(pids), 30)


CLIENT = """
import sys
from gpuenv.engine.archive import Member, tar_bytes
from gpuenv.engine.connect import connect
from gpuenv.engine.events import Output, build_image
from gpuenv.engine.protocol import BuildRequest

def show(event):
    if isinstance(event, Output):
        print(event.text, flush=True)

context = tar_bytes([Member(path="Dockerfile", content=sys.argv[1].encode())])
with connect() as engine:
    try:
        build_image(engine, BuildRequest(context=context), show)
    except KeyboardInterrupt:
        sys.exit(130)
"""


@pytest.mark.parametrize(
    ("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)], ids=["ctrl-c", "kill"]
)
def test_a_build_ends_with_its_client(
    local_engine: ContainerEngine,
    engine_environ: Mapping[str, str],
    number: signal.Signals,
    exit_code: int,
) -> None:
    dockerfile, word = sleeper()
    with subprocess.Popen(
        [sys.executable, "-c", CLIENT, dockerfile],
        stdout=subprocess.PIPE,
        text=True,
        env={**engine_environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    ) as client:
        assert client.stdout is not None
        assert "go\n" in iter(client.stdout.readline, "")
        pids = run_until_go(iter(()), word)
        client.send_signal(number)
        assert client.wait(30) == exit_code
    assert ends_within(pids, 30)
    assert local_engine.containers(only_running=False) is not None


def test_a_changed_file_in_a_bind_mount_runs_the_step_again(
    engine: ContainerEngine, run_labels: dict[str, str]
) -> None:
    dockerfile = f"FROM {BASE}\nRUN --mount=type=bind,source=r.txt,target=/r cat /r > /out\n"
    first, second = secrets.token_hex(8), secrets.token_hex(8)

    def printed(content: str) -> tuple[bool, str]:
        told: list[BuildEvent] = []
        image = build_image(
            engine,
            BuildRequest(
                context=context(dockerfile, **{"r.txt": content.encode()}), labels=run_labels
            ),
            told.append,
        )
        ran = any(isinstance(e, StepStarted) and "RUN" in e.name for e in told)
        return ran, image

    ran, image = printed(first)
    assert ran
    assert printed(first) == (False, image)
    ran, other = printed(second)
    assert ran
    assert other != image


def test_a_cache_mount_lives_on_between_builds(
    engine: ContainerEngine, run_labels: dict[str, str]
) -> None:
    key = secrets.token_hex(6)

    def step(text: str) -> list[str]:
        mount = f"--mount=type=cache,id=gpuenv-test-{key},target=/cache"
        told: list[BuildEvent] = []
        build_image(
            engine,
            BuildRequest(context=context(f"FROM {BASE}\nRUN {mount} {text}\n"), labels=run_labels),
            told.append,
        )
        return [event.text for event in told if isinstance(event, Output)]

    step(f"echo {key} > /cache/x")
    assert step("cat /cache/x") == [key]


def test_a_large_context_shows_how_far_it_is_and_arrives_whole(
    engine: ContainerEngine, run_labels: dict[str, str]
) -> None:
    size = 32 << 20
    piece = secrets.token_bytes(1 << 20)
    dockerfile = f"FROM {BASE}\nRUN --mount=type=bind,source=big,target=/b stat -c %s /b\n"

    def stream() -> Iterator[bytes]:
        big = Member(path="big", content=piece * (size // len(piece)))
        return tar_stream([Member(path="Dockerfile", content=dockerfile.encode()), big])

    told: list[BuildEvent] = []
    build_image(engine, BuildRequest(context=stream, labels=run_labels), told.append)
    assert [event.text for event in told if isinstance(event, Output)] == [str(size)]
    sent = [e.current for e in told if isinstance(e, Progress) and e.step == UPLOAD_STEP]
    assert sent == sorted(sent)
    assert sent[-1] > size


def test_a_context_that_breaks_off_fails_with_its_own_error(
    engine: ContainerEngine, run_labels: dict[str, str]
) -> None:
    class DiskBrokeError(Exception):
        pass

    def stream() -> Iterator[bytes]:
        yield from tar_stream([Member(path="Dockerfile", content=f"FROM {BASE}\n".encode())])
        raise DiskBrokeError

    with pytest.raises(DiskBrokeError):
        build_image(engine, BuildRequest(context=stream, labels=run_labels))


@pytest.mark.parametrize("data", [b"no tar at all" * 100, b""], ids=["noise", "nothing"])
def test_a_broken_context_is_refused(
    engine: ContainerEngine, run_labels: dict[str, str], data: bytes
) -> None:
    with pytest.raises(BuildFailedError):
        build_image(engine, BuildRequest(context=data, labels=run_labels))


def test_a_bad_tag_is_refused_before_anything_runs(
    engine: ContainerEngine, run_labels: dict[str, str]
) -> None:
    request = BuildRequest(
        context=context(f"FROM {BASE}\n"), labels=run_labels, tags=("NOT A TAG",)
    )
    with pytest.raises(BuildFailedError) as caught:
        build_image(engine, request)
    assert "invalid reference format" in caught.value.why


def test_two_builds_at_once_do_not_mix(engine: ContainerEngine, run_labels: dict[str, str]) -> None:
    words = [secrets.token_hex(6) for _ in range(2)]
    streams = [
        engine.build(
            BuildRequest(context=context(f"FROM {BASE}\nRUN echo {word}\n"), labels=run_labels)
        )
        for word in words
    ]
    told: list[list[str]] = [[], []]
    with closing(streams[0]), closing(streams[1]):
        for number, stream in enumerate(streams):
            for event in stream:
                if isinstance(event, Output):
                    told[number].append(event.text)
    assert told == [[words[0]], [words[1]]]
