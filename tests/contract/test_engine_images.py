"""What the layers above rely on when they build and keep images."""

from __future__ import annotations

import secrets

import pytest

from gpuenv.engine import errors as e
from gpuenv.engine.archive import Member, tar_bytes
from gpuenv.engine.events import (
    BuildEvent,
    Failed,
    ImageId,
    Output,
    StepCached,
    StepDone,
    StepStarted,
    build_image,
)
from gpuenv.engine.protocol import BuildRequest, ContainerEngine
from gpuenv.errors import BuildFailedError
from tests.engine_fixtures import BASE


@pytest.fixture
def ref() -> str:
    return f"localhost/gpuenv/test-{secrets.token_hex(4)}:1"


def request_for(*lines: str, labels: dict[str, str], **more: object) -> BuildRequest:
    text = "\n".join((f"FROM {BASE}", *lines)) + "\n"
    context = tar_bytes([Member(path="Dockerfile", content=text.encode())])
    return BuildRequest(context=context, labels=labels, **more)  # type: ignore[arg-type]


def test_a_build_tells_its_steps_and_ends_with_the_image(
    either_engine: ContainerEngine, run_labels: dict[str, str], ref: str
) -> None:
    word = secrets.token_hex(8)
    events: list[BuildEvent] = []
    image_id = build_image(
        either_engine,
        request_for(f"RUN echo {word}", labels=run_labels, tags=(ref,)),
        events.append,
    )
    assert events[-1] == ImageId(image_id=image_id)
    (run,) = [ev for ev in events if isinstance(ev, StepStarted) and word in ev.name]
    assert [ev.text for ev in events if isinstance(ev, Output) and ev.step == run.step] == [word]
    (done,) = [ev for ev in events if isinstance(ev, StepDone) and ev.step == run.step]
    assert events.index(run) < events.index(done)
    info = either_engine.image(ref)
    assert info is not None
    assert info.id == image_id
    assert run_labels.items() <= info.labels.items()


def test_the_second_build_comes_from_the_cache(
    either_engine: ContainerEngine, run_labels: dict[str, str], ref: str
) -> None:
    request = request_for(f"RUN echo {secrets.token_hex(8)}", labels=run_labels, tags=(ref,))
    first = build_image(either_engine, request)
    events: list[BuildEvent] = []
    second = build_image(either_engine, request, events.append)
    assert second == first
    assert [ev.name for ev in events if isinstance(ev, StepCached) and "RUN" in ev.name]
    assert not [ev for ev in events if isinstance(ev, StepStarted) and "RUN" in ev.name]


def test_a_failing_step_is_named_with_its_exit_code_and_last_words(
    either_engine: ContainerEngine, run_labels: dict[str, str]
) -> None:
    word = secrets.token_hex(8)
    events: list[BuildEvent] = []
    with pytest.raises(BuildFailedError) as caught:
        build_image(
            either_engine, request_for(f"RUN echo {word}; exit 9", labels=run_labels), events.append
        )
    failed = events[-1]
    assert isinstance(failed, Failed)
    assert failed.exit_code == 9
    assert "RUN echo" in failed.name
    assert failed.log == (word,)
    assert word in caught.value.why
    assert caught.value.data["exit_code"] == 9
    assert either_engine.images(labels=run_labels) == ()


def test_a_missing_base_is_its_own_error(
    either_engine: ContainerEngine, run_labels: dict[str, str]
) -> None:
    text = b"FROM localhost/gpuenv/no-such-base:1\nRUN true\n"
    request = BuildRequest(
        context=tar_bytes([Member(path="Dockerfile", content=text)]), labels=run_labels
    )
    with pytest.raises(BuildFailedError) as caught:
        build_image(either_engine, request)
    assert caught.value.slug == "build-base-missing"


def test_references_come_and_go_and_the_image_with_the_last_one(
    either_engine: ContainerEngine, run_labels: dict[str, str], ref: str
) -> None:
    image_id = build_image(
        either_engine,
        request_for(f"LABEL x={secrets.token_hex(4)}", labels=run_labels, tags=(ref,)),
    )
    other = f"{ref}-other"
    either_engine.tag(ref, other)
    assert [info.id for info in either_engine.images(labels=run_labels)] == [image_id]
    assert either_engine.untag(ref) is True
    assert either_engine.image(ref) is None
    assert either_engine.image(other) is not None
    assert either_engine.untag(other) is True
    assert either_engine.image(image_id) is None
    assert either_engine.untag(other) is False


def test_an_import_has_the_name_and_the_labels_it_was_given(
    either_engine: ContainerEngine, run_labels: dict[str, str], ref: str
) -> None:
    archive = tar_bytes([Member(path="hello", content=secrets.token_bytes(16))])
    changes = tuple(f"LABEL {name}={value}" for name, value in run_labels.items())
    image_id = either_engine.import_image(archive, ref, changes=changes)
    info = either_engine.image(ref)
    assert info is not None
    assert info.id == image_id
    assert info.labels == run_labels


def test_a_saved_image_can_be_loaded_again(
    either_engine: ContainerEngine, run_labels: dict[str, str], ref: str
) -> None:
    changes = tuple(f"LABEL {name}={value}" for name, value in run_labels.items())
    archive = tar_bytes([Member(path="hello", content=secrets.token_bytes(16))])
    image_id = either_engine.import_image(archive, ref, changes=changes)
    saved = b"".join(either_engine.save((ref,)))
    either_engine.untag(ref)
    assert either_engine.image(ref) is None
    assert either_engine.load(lambda: (saved[i : i + 999] for i in range(0, len(saved), 999))) == (
        ref,
    )
    loaded = either_engine.image(ref)
    assert loaded is not None
    assert loaded.id == image_id
    either_engine.untag(ref)


def test_an_image_in_use_stays(
    either_engine: ContainerEngine, run_labels: dict[str, str], ref: str
) -> None:
    from gpuenv.engine.protocol import ContainerSpec

    build_image(
        either_engine,
        request_for(f"LABEL x={secrets.token_hex(4)}", labels=run_labels, tags=(ref,)),
    )
    either_engine.create(ContainerSpec(image=ref, command=("true",), labels=run_labels))
    with pytest.raises(e.ImageInUseError):
        either_engine.untag(ref)


def test_the_store_is_known_where_the_engine_is_local(either_engine: ContainerEngine) -> None:
    usage = either_engine.disk_usage()
    assert usage.store == either_engine.capabilities.store
    assert (either_engine.free_bytes() is not None) == either_engine.capabilities.local
    if either_engine.capabilities.local:
        assert either_engine.free_bytes() > 0  # type: ignore[operator]
