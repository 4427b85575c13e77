"""What happens during a build, a pull or a push, in the same words for every engine."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import TYPE_CHECKING, Literal, TypeAlias

from gpuenv.engine.silence import SilenceWatch
from gpuenv.errors import BuildFailedError
from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuenv.engine.protocol import BuildRequest, ContainerEngine


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStarted:
    """A step began to run.

    Attributes:
        step: Identifies the step within this build.
        name: As the engine names it: ``[2/7] RUN apt-get update``.
        internal: The engine's own housekeeping (reading the context, exporting).
    """

    step: str
    name: str
    internal: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCached:
    """A step was answered from the cache."""

    step: str
    name: str
    internal: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """One line that a step printed, without its line end and without terminal escapes."""

    step: str
    text: str
    stream: Literal["stdout", "stderr"] = "stdout"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far one item of a step has come.

    Attributes:
        item: ``exporting layers``, or the digest of a layer that is fetched.
        current: Bytes, 0 where the item is not counted.
        total: 0 where it is not known.
        seconds: How long it took, once it is done.
    """

    step: str
    item: str
    current: int
    total: int
    done: bool = False
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDone:
    """A step ended well."""

    step: str
    name: str
    seconds: float
    internal: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildWarning:
    """A remark of the builder on the Dockerfile."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageId:
    """The build is done and this is the image."""

    image_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The build ended badly; a BuildFailedError follows.

    Attributes:
        name: The step that failed, empty when none did.
        message: The engine's own words.
        exit_code: Of the command in the step, ``None`` where none ran.
        log: The last lines the step printed.
    """

    name: str
    message: str
    exit_code: int | None = None
    log: tuple[str, ...] = ()


BuildEvent: TypeAlias = (
    "StepStarted | StepCached | Output | Progress | StepDone | BuildWarning | ImageId | Failed"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferProgress:
    """How far one layer has come on its way to or from a registry."""

    item: str
    status: str
    current: int = 0
    total: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulled:
    """The image is here."""

    ref: str
    image_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    """The image is in the registry, under this digest."""

    ref: str
    digest: str


TransferEvent: TypeAlias = "TransferProgress | Pulled | Pushed"


def build_image(
    engine: ContainerEngine,
    request: BuildRequest,
    on_event: Callable[[BuildEvent], None] | None = None,
) -> str:
    """Build an image, hand every event to ``on_event`` and return the image's id.

    However this ends, the build on the engine has ended too: an exception in ``on_event`` or a
    KeyboardInterrupt anywhere cancels it. An engine that says nothing for long and answers no
    other request either is told by a :class:`BuildWarning`.

    Raises:
        BuildFailedError: The build failed.
    """
    image_id = ""
    one_at_a_time = threading.Lock()

    def tell(event: BuildEvent) -> None:
        if on_event is not None:
            with one_at_a_time:
                on_event(event)

    watch = SilenceWatch(engine.responds, lambda text: tell(BuildWarning(text=text)))
    with closing(engine.build(request)) as events, watch:
        for event in events:
            watch.heard()
            tell(event)
            if isinstance(event, ImageId):
                image_id = event.image_id
    if not image_id:
        raise BuildFailedError(
            "the engine ended the build without naming an image",
            why="its event stream has no image id",
            fix="run again; if it stays, look into the engine's own log",
        )
    return image_id
