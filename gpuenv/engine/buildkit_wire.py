"""BuildKit's status messages, decoded with the ``protobuf`` library and no generated code.

Source:
    ``api/services/control/control.proto`` of moby/buildkit: ``StatusResponse`` and what it holds.
    Only the fields that gpuenv reads are declared; the rest is skipped as unknown.
"""

from __future__ import annotations

import base64
import functools
from typing import TYPE_CHECKING, Any

from gpuenv.values import dataclass

if TYPE_CHECKING:
    from google.protobuf.message import Message

_STRING, _BYTES, _BOOL, _INT64, _INT32, _MESSAGE = 9, 12, 8, 3, 5, 11
_TIMESTAMP = "Timestamp"
# Message → (field, number, type, message type or "", repeated).
_MESSAGES: dict[str, tuple[tuple[str, int, int, str, bool], ...]] = {
    _TIMESTAMP: (("seconds", 1, _INT64, "", False), ("nanos", 2, _INT32, "", False)),
    "Vertex": (
        ("digest", 1, _STRING, "", False),
        ("inputs", 2, _STRING, "", True),
        ("name", 3, _STRING, "", False),
        ("cached", 4, _BOOL, "", False),
        ("started", 5, _MESSAGE, _TIMESTAMP, False),
        ("completed", 6, _MESSAGE, _TIMESTAMP, False),
        ("error", 7, _STRING, "", False),
    ),
    "VertexStatus": (
        ("ID", 1, _STRING, "", False),
        ("vertex", 2, _STRING, "", False),
        ("name", 3, _STRING, "", False),
        ("current", 4, _INT64, "", False),
        ("total", 5, _INT64, "", False),
        ("started", 7, _MESSAGE, _TIMESTAMP, False),
        ("completed", 8, _MESSAGE, _TIMESTAMP, False),
    ),
    "VertexLog": (
        ("vertex", 1, _STRING, "", False),
        ("stream", 3, _INT64, "", False),
        ("msg", 4, _BYTES, "", False),
    ),
    "VertexWarning": (
        ("vertex", 1, _STRING, "", False),
        ("short", 3, _BYTES, "", False),
        ("detail", 4, _BYTES, "", True),
        ("url", 5, _STRING, "", False),
    ),
    "StatusResponse": (
        ("vertexes", 1, _MESSAGE, "Vertex", True),
        ("statuses", 2, _MESSAGE, "VertexStatus", True),
        ("logs", 3, _MESSAGE, "VertexLog", True),
        ("warnings", 4, _MESSAGE, "VertexWarning", True),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Vertex:
    """One step as BuildKit sees it; times in seconds since 1970, ``None`` while not reached."""

    digest: str
    name: str
    cached: bool
    started: float | None
    completed: float | None
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VertexStatus:
    """How far one item of a step has come."""

    vertex: str
    id: str
    current: int
    total: int
    started: float | None
    completed: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class VertexLog:
    """Bytes that a step printed; ``stream`` is 1 for stdout and 2 for stderr."""

    vertex: str
    stream: int
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusUpdate:
    """One message of the trace."""

    vertexes: tuple[Vertex, ...] = ()
    statuses: tuple[VertexStatus, ...] = ()
    logs: tuple[VertexLog, ...] = ()
    warnings: tuple[str, ...] = ()


def decode_status(aux: str) -> StatusUpdate:
    """Decode the ``aux`` of one ``moby.buildkit.trace`` line.

    Raises:
        ValueError: It is not base64, or not such a message.
    """
    from google.protobuf.message import DecodeError

    # The classes are made at run time, so their fields are unknown to the type checker.
    message: Any = status_message()
    try:
        message.ParseFromString(base64.b64decode(aux, validate=True))
    except DecodeError as exc:
        raise ValueError(f"not a BuildKit status: {exc}") from exc
    return StatusUpdate(
        vertexes=tuple(
            Vertex(
                digest=vertex.digest,
                name=vertex.name,
                cached=vertex.cached,
                started=_time(vertex, "started"),
                completed=_time(vertex, "completed"),
                error=vertex.error,
            )
            for vertex in message.vertexes
        ),
        statuses=tuple(
            VertexStatus(
                vertex=status.vertex,
                id=status.ID,
                current=status.current,
                total=status.total,
                started=_time(status, "started"),
                completed=_time(status, "completed"),
            )
            for status in message.statuses
        ),
        logs=tuple(
            VertexLog(vertex=log.vertex, stream=log.stream, data=log.msg) for log in message.logs
        ),
        warnings=tuple(warning.short.decode("utf-8", "replace") for warning in message.warnings),
    )


def status_message() -> Message:
    """Return an empty ``StatusResponse``; tests fill one to make a trace."""
    return _status_class()()


@functools.cache
def _status_class() -> type[Message]:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    package = "gpuenv.buildkit"
    file = descriptor_pb2.FileDescriptorProto(
        name="gpuenv/buildkit_status.proto", package=package, syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field_name, number, kind, type_name, repeated in fields:
            field = message.field.add(name=field_name, number=number)
            field.type = kind  # type: ignore[assignment]  # the enum's own numbers
            field.label = 3 if repeated else 1  # type: ignore[assignment]  # likewise
            if type_name:
                field.type_name = f".{package}.{type_name}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    descriptor = pool.FindMessageTypeByName(f"{package}.StatusResponse")
    return message_factory.GetMessageClass(descriptor)


def _time(message: Any, field: str) -> float | None:
    if not message.HasField(field):
        return None
    stamp = getattr(message, field)
    return float(stamp.seconds + stamp.nanos / 1e9)
