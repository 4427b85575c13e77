"""Everything that engines with Docker's API have in common.

Paths, bodies and answers are handled here and not by the docker SDK, whose higher layers drop the
warnings of ``create`` and the names of the output streams.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
from contextlib import closing, contextmanager
from datetime import datetime, timezone
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import quote, urlencode

from gpuenv.engine import archive
from gpuenv.engine.errors import (
    ContainerNotFoundError,
    EngineLostError,
    EngineTimeoutError,
    ImageNotFoundError,
)
from gpuenv.engine.hijack import RawAttachment, UpgradedStream, split_frames
from gpuenv.engine.protocol import (
    BindMount,
    ContainerInfo,
    ContainerState,
    DiskUsage,
    EngineEvent,
    ExecResult,
    ExitStatus,
    ImageHistoryEntry,
    ImageInfo,
    LogChunk,
    NetworkInfo,
    PublishedPort,
    TmpfsMount,
    VolumeInfo,
    VolumeMount,
)
from gpuenv.engine.transport import TransportError, open_socket, translated

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping

    from gpuenv.engine.events import TransferEvent, TransferProgress
    from gpuenv.engine.protocol import (
        Attachment,
        Mount,
        PortProtocol,
        PutFile,
        RegistryLogin,
        TarBytes,
    )
    from gpuenv.engine.transport import Answer, Transport

BUILD = "the build"  # what a build request is for, in the words of ``about``
_NOT_FOUND = 404
_CONFLICT = 409
_FIRST_ERROR = 400
_DISK_USAGE_TIMEOUT_S = 600.0
_CHUNK = 1 << 16
_STATES: tuple[ContainerState, ...] = (
    "created", "running", "paused", "restarting", "removing", "exited", "dead"
)  # fmt: skip
_FULL_ID = re.compile(r"[0-9a-f]{64}")
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?(Z|[+-]\d\d:\d\d)")


def parse_time(text: str | None) -> datetime | None:
    """Parse the engine's time, ``2026-12-01T11:43:05.762616369Z``; year 1 means never."""
    match = _TIME.fullmatch(text or "")
    if match is None or match[1].startswith("0001-"):
        return None
    zone = "+00:00" if match[3] == "Z" else match[3]
    micro = (match[2] or "0")[:6].ljust(6, "0")
    return datetime.fromisoformat(f"{match[1]}.{micro}{zone}").astimezone(timezone.utc)


def label_filters(labels: Mapping[str, str | None] | None) -> list[str]:
    """Return labels as the engine's filters take them."""
    return [key if value is None else f"{key}={value}" for key, value in (labels or {}).items()]


def split_ref(ref: str) -> tuple[str, str]:
    """Split ``host:5000/name:tag`` into name and tag (``latest`` if none)."""
    if "@" in ref:
        name, _, digest = ref.partition("@")
        return name, digest
    name, colon, tag = ref.rpartition(":")
    return (name, tag) if colon and "/" not in tag else (ref, "latest")


def parse_container(data: Mapping[str, Any]) -> ContainerInfo:
    """Turn the answer of ``GET /containers/ID/json`` into ours."""
    state = data.get("State") or {}
    config = data.get("Config") or {}
    network = data.get("NetworkSettings") or {}
    status = str(state.get("Status", ""))
    ended = state.get("FinishedAt") and parse_time(state["FinishedAt"]) is not None
    return ContainerInfo(
        id=str(data["Id"]),
        name=str(data.get("Name", "")).lstrip("/"),
        image=str(config.get("Image", "")),
        image_id=str(data.get("Image", "")),
        state=next((known for known in _STATES if known == status), "unknown"),
        labels=dict(config.get("Labels") or {}),
        exit_code=int(state["ExitCode"]) if ended else None,
        created_at=parse_time(data.get("Created")),
        started_at=parse_time(state.get("StartedAt")),
        finished_at=parse_time(state.get("FinishedAt")),
        ports=_published(network.get("Ports") or {}),
        ip_addresses={
            name: str(entry.get("IPAddress") or "")
            for name, entry in (network.get("Networks") or {}).items()
            if entry.get("IPAddress")
        },
        mounts=tuple(_mount(entry) for entry in data.get("Mounts") or ()),
        user=str(config.get("User", "")),
        pid=int(state.get("Pid") or 0) or None,
        oom_killed=bool(state.get("OOMKilled")),
        error=str(state.get("Error") or ""),
        tty=bool(config.get("Tty")),
        restart_count=int(data.get("RestartCount") or 0),
    )


def _published(ports: Mapping[str, Any]) -> tuple[PublishedPort, ...]:
    found: list[PublishedPort] = []
    for key, bindings in ports.items():
        number, _, protocol = key.partition("/")
        kind: PortProtocol = "udp" if protocol == "udp" else "tcp"
        found.extend(
            PublishedPort(
                container_port=int(number),
                host_port=int(binding["HostPort"]),
                host_ip=str(binding.get("HostIp", "")),
                protocol=kind,
            )
            for binding in bindings or ()
            if binding.get("HostPort")
        )
    return tuple(sorted(found, key=lambda port: (port.container_port, port.host_ip)))


def _mount(data: Mapping[str, Any]) -> Mount:
    target, read_only = str(data.get("Destination", "")), not data.get("RW", True)
    if data.get("Type") == "bind":
        return BindMount(source=str(data.get("Source", "")), target=target, read_only=read_only)
    if data.get("Type") == "tmpfs":
        return TmpfsMount(target=target)
    return VolumeMount(name=str(data.get("Name", "")), target=target, read_only=read_only)


def parse_image(data: Mapping[str, Any]) -> ImageInfo:
    """Turn the answer of ``GET /images/REF/json`` into ours."""
    config = data.get("Config") or {}
    env = (entry.partition("=") for entry in config.get("Env") or ())
    return ImageInfo(
        id=str(data["Id"]),
        tags=tuple(tag for tag in data.get("RepoTags") or () if tag != "<none>:<none>"),
        digests=tuple(d for d in data.get("RepoDigests") or () if not d.startswith("<none>")),
        size_bytes=int(data.get("Size") or 0),
        labels=dict(config.get("Labels") or {}),
        created_at=parse_time(data.get("Created")),
        env={name: value for name, _, value in env},
        user=str(config.get("User") or ""),
        workdir=str(config.get("WorkingDir") or ""),
        entrypoint=tuple(config.get("Entrypoint") or ()),
        command=tuple(config.get("Cmd") or ()),
        exposed_ports=tuple(
            sorted(int(port.partition("/")[0]) for port in config.get("ExposedPorts") or ())
        ),
        os=str(data.get("Os") or "linux"),
        architecture=str(data.get("Architecture") or ""),
        layers=tuple((data.get("RootFS") or {}).get("Layers") or ()),
    )


class ApiEngine:
    """The operations that are the same on every engine with Docker's API.

    Args:
        transport: Carries the requests.
        api: The API version to speak, ``1.41``.
        on_close: Called once at the end, gives back a forwarded socket.
        timeout_s: For requests that the engine answers at once.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        api: str,
        on_close: Callable[[], None] | None = None,
        timeout_s: float = 120,
    ) -> None:
        self._transport = transport
        self._address = transport.base_url
        self._on_close = on_close
        self._timeout_s = timeout_s
        self._prefix = f"/v{api}"

    @property
    def address(self) -> str:
        """Where the engine answers."""
        return self._address

    def close(self) -> None:
        """Give back a forwarded socket."""
        if self._on_close is not None:
            on_close, self._on_close = self._on_close, None
            on_close()

    # --- requests ---------------------------------------------------------------------------

    def _send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        data: bytes | Iterable[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        stream: bool = False,
        timeout_s: float | None = -1,
    ) -> Answer:
        """Send a request and return its answer, whatever the status.

        Args:
            stream: The body is read as it comes, by :meth:`_pieces`, and not at once.

        Raises:
            EngineLostError: The connection broke.
            EngineTimeoutError: No answer in time.
        """
        words = {key: value for key, value in (query or {}).items() if value is not None}
        all_headers = dict(headers or {})
        if body is not None:
            data = json.dumps(body).encode()
            all_headers["Content-Type"] = "application/json"
        limit_s = self._timeout_s if timeout_s == -1 else timeout_s
        with self._lost(limit_s):
            answer = self._transport.send(
                method,
                self._prefix + (f"{path}?{urlencode(words)}" if words else path),
                headers=all_headers,
                data=data,
                timeout_s=limit_s,
            )
            if not stream or answer.status >= _FIRST_ERROR:
                answer.fetch()
            return answer

    @contextmanager
    def _lost(self, limit_s: float | None) -> Generator[None, None, None]:
        """Say in our words that no answer came, or a part of it, within a time if it has one."""
        try:
            yield
        except TransportError as exc:
            if exc.kind == "timeout":
                raise EngineTimeoutError(
                    "the container engine does not answer",
                    why=f"{self._address} gave no answer"
                    + ("" if limit_s is None else f" within {limit_s:g} s"),
                    fix="see what it is busy with, or restart it",
                ) from exc
            raise EngineLostError(
                "the connection to the container engine broke",
                why=f"{self._address}: {exc}",
                fix="see whether the engine still runs: gpuenv engine status",
            ) from exc

    def _call(self, method: str, path: str, *, about: str, **options: Any) -> Answer:
        """Send a request and return a good answer; anything else becomes an error of ours.

        ``about`` is what the request is for, ``container x``, for the error's words.
        """
        response = self._send(method, path, **options)
        if response.status >= _FIRST_ERROR:
            with closing(response):
                self._refuse(response.status, message_of(response), about)
        return response

    def _json(self, method: str, path: str, *, about: str, **options: Any) -> Any:
        with closing(self._call(method, path, about=about, **options)) as response:
            return response.json()

    def _maybe(self, path: str, *, about: str) -> Any:
        """Return the JSON of a GET, ``None`` for 404."""
        with closing(self._send("GET", path)) as response:
            if response.status == _NOT_FOUND:
                return None
            if response.status >= _FIRST_ERROR:
                self._refuse(response.status, message_of(response), about)
            return response.json()

    def _refuse(self, status: int, message: str, about: str) -> NoReturn:
        """Raise what a refused request means; each engine has its own words for it."""
        raise NotImplementedError(about, status, message)

    def _pieces(self, response: Answer) -> Generator[bytes, None, None]:
        """Yield the body of a streamed answer as it comes."""
        with closing(response), self._lost(None):
            yield from response.pieces()

    def _json_lines(self, response: Answer) -> Generator[dict[str, Any], None, None]:
        """Yield the objects of a stream of JSON objects, one a line or back to back."""
        buffer = b""
        with closing(self._pieces(response)) as pieces:
            for piece in pieces:
                buffer += piece
                *lines, buffer = buffer.split(b"\n")
                for line in lines:
                    if line.strip():
                        yield json.loads(line)
        if buffer.strip():
            yield json.loads(buffer)

    # --- builds, for the modules that know an engine's way of building ------------------------

    def send_build(self, query: str, body: Iterable[bytes]) -> Answer:
        """Send a build request with its context; the answer is a stream of JSON objects."""
        return self._call(
            "POST",
            f"/build?{query}",
            data=body,
            headers={"Content-Type": "application/x-tar"},
            stream=True,
            timeout_s=None,
            about=BUILD,
        )

    def build_lines(self, response: Answer) -> Generator[dict[str, Any], None, None]:
        """Yield the objects of a build's answer."""
        return self._json_lines(response)

    def cancel_build(self, build_id: str, *, timeout_s: float) -> None:
        """End a build that runs; one that has ended is fine."""
        self._send("POST", "/build/cancel", query={"id": build_id}, timeout_s=timeout_s).close()

    # --- images -----------------------------------------------------------------------------

    def image(self, ref: str) -> ImageInfo | None:
        """Return what is known of a local image, ``None`` if there is none."""
        data = self._maybe(f"/images/{_path(ref)}/json", about=f"image {ref}")
        return None if data is None else parse_image(data)

    def image_history(self, ref: str) -> tuple[ImageHistoryEntry, ...]:
        """Return the history of a local image, newest first."""
        lines = self._json("GET", f"/images/{_path(ref)}/history", about=f"image {ref}")
        return tuple(
            ImageHistoryEntry(
                created_by=str(line.get("CreatedBy") or ""),
                size_bytes=int(line.get("Size") or 0),
                comment=str(line.get("Comment") or ""),
            )
            for line in lines
        )

    def images(self, *, labels: Mapping[str, str | None] | None = None) -> tuple[ImageInfo, ...]:
        """List local images that carry all the labels."""
        query = {"filters": json.dumps({"label": label_filters(labels)})} if labels else None
        found = self._json("GET", "/images/json", query=query, about="images")
        return tuple(
            ImageInfo(
                id=str(entry["Id"]),
                tags=tuple(t for t in entry.get("RepoTags") or () if t != "<none>:<none>"),
                digests=tuple(
                    d for d in entry.get("RepoDigests") or () if not d.startswith("<none>")
                ),
                size_bytes=int(entry.get("Size") or 0),
                labels=dict(entry.get("Labels") or {}),
                created_at=datetime.fromtimestamp(int(entry.get("Created") or 0), timezone.utc),
            )
            for entry in found
        )

    def tag(self, ref: str, new_ref: str) -> None:
        """Give a local image one more reference."""
        repo, tag = split_ref(new_ref)
        self._json(
            "POST",
            f"/images/{_path(ref)}/tag",
            query={"repo": repo, "tag": tag},
            about=f"image {ref}",
        )

    def untag(self, ref: str, *, force: bool = False) -> bool:
        """Remove a reference, and the image with its last one; ``False`` if there was none."""
        response = self._send("DELETE", f"/images/{_path(ref)}", query={"force": int(force)})
        return self._removed(response, f"image {ref}")

    def _removed(self, response: Answer, about: str) -> bool:
        with closing(response):
            if response.status == _NOT_FOUND:
                return False
            if response.status >= _FIRST_ERROR:
                self._refuse(response.status, message_of(response), about)
            return True

    def pull(
        self, ref: str, *, login: RegistryLogin | None = None
    ) -> Generator[TransferEvent, None, None]:
        """Fetch an image from its registry."""
        from gpuenv.engine.events import Pulled

        name, tag = split_ref(ref)
        query = {"fromImage": name, "tag": tag}
        with closing(self._transfer("/images/create", query, ref, login)) as lines:
            for line in lines:
                yield _transfer_progress(line)
        found = self.image(ref)
        if found is None:
            self._refuse_transfer("the engine does not list it after the pull", ref)
        yield Pulled(ref=ref, image_id=found.id)

    def push(
        self, ref: str, *, login: RegistryLogin | None = None
    ) -> Generator[TransferEvent, None, None]:
        """Send an image to its registry; the last event is ``Pushed`` with the digest."""
        from gpuenv.engine.events import Pushed

        name, tag = split_ref(ref)
        digest = ""
        path = f"/images/{_path(name)}/push"
        with closing(self._transfer(path, {"tag": tag}, ref, login)) as lines:
            for line in lines:
                digest = (line.get("aux") or {}).get("Digest") or digest
                if line.get("status"):
                    yield _transfer_progress(line)
        if not digest:
            self._refuse_transfer("the registry named no digest", ref)
        yield Pushed(ref=ref, digest=digest)

    def _transfer(
        self, path: str, query: Mapping[str, str], ref: str, login: RegistryLogin | None
    ) -> Generator[dict[str, Any], None, None]:
        response = self._send(
            "POST",
            path,
            query=query,
            headers=self._registry_headers(split_ref(ref)[0], login),
            stream=True,
            timeout_s=None,
        )
        if response.status >= _FIRST_ERROR:
            with closing(response):
                self._refuse_transfer(message_of(response), ref)
        with closing(self._json_lines(response)) as lines:
            for line in lines:
                if line.get("error"):
                    self._refuse_transfer(str(line["error"]), ref)
                yield line

    def _refuse_transfer(self, message: str, ref: str) -> NoReturn:
        """Raise what a failed pull or push means."""
        raise NotImplementedError(message, ref)

    def _registry_headers(self, name: str, login: RegistryLogin | None) -> dict[str, str]:
        from gpuenv.engine.docker_config import find_login, login_header

        if login is not None:
            found = {"username": login.username, "password": login.password}
        else:
            found = find_login(name, os.environ)
        return {"X-Registry-Auth": login_header(found)}

    def import_image(self, tar: TarBytes, ref: str, *, changes: tuple[str, ...] = ()) -> str:
        """Make an image of one layer from the tar of a root file system; return its id."""
        query = [("fromSrc", "-"), *(("changes", change) for change in changes)]
        response = self._call(
            "POST",
            f"/images/create?{urlencode(query)}",
            data=_stream_of(tar),
            stream=True,
            timeout_s=None,
            about=f"import of {ref}",
        )
        image_id = ""
        with closing(self._json_lines(response)) as lines:
            for line in lines:
                if line.get("error"):
                    self._refuse(500, str(line["error"]), f"import of {ref}")
                status = str(line.get("status") or line.get("stream") or "").strip()
                if status.startswith("sha256:"):
                    image_id = status
        if not image_id:
            self._refuse(500, "the engine named no image", f"import of {ref}")
        # The import's own name is ignored by some engines, a tag on the id is not.
        self.tag(image_id, ref)
        return image_id

    def save(self, refs: tuple[str, ...]) -> Generator[bytes, None, None]:
        """Stream images as a tar that ``load`` takes."""
        query = urlencode([("names", ref) for ref in refs])
        response = self._call(
            "GET", f"/images/get?{query}", stream=True, timeout_s=None, about="save of images"
        )
        yield from self._pieces(response)

    def load(self, tar: TarBytes) -> tuple[str, ...]:
        """Load images from a tar; return their references or ids."""
        response = self._call(
            "POST",
            "/images/load",
            query={"quiet": 1},
            data=_stream_of(tar),
            headers={"Content-Type": "application/x-tar"},
            stream=True,
            timeout_s=None,
            about="load of images",
        )
        loaded: list[str] = []
        with closing(self._json_lines(response)) as lines:
            for line in lines:
                if line.get("error"):
                    self._refuse(500, str(line["error"]), "load of images")
                _, sign, ref = str(line.get("stream", "")).partition(": ")
                if sign and line["stream"].startswith("Loaded image"):
                    loaded.extend(part.strip() for part in ref.split(",") if part.strip())
        return tuple(loaded)

    # --- containers -------------------------------------------------------------------------

    def put_files(self, container: str, files: tuple[PutFile, ...]) -> None:
        """Copy files into a container, running or not; missing folders on the way are made.

        One archive, since each costs the engine a process in the container's own root. An existing
        folder on the way is never named in it: the engine would set its mode and owner.
        """
        if not files:
            return
        there: dict[PurePosixPath, bool] = {PurePosixPath("/"): True}
        members: dict[PurePosixPath, archive.Member] = {}
        for file in files:
            target = PurePosixPath(posixpath.normpath(file.path))
            for folder in reversed(target.parents):
                if folder not in members and not self._is_there(container, folder, there):
                    members[folder] = archive.folder(_inside(folder))
            members[target] = archive.Member(
                path=_inside(target),
                content=file.content,
                mode=file.mode,
                uid=file.uid,
                gid=file.gid,
            )
        self._json(
            "PUT",
            f"/containers/{_path(container)}/archive",
            query={"path": "/"},
            data=archive.tar_bytes(tuple(members.values())),
            headers={"Content-Type": "application/x-tar"},
            about=_called(container),
        )

    def _is_there(
        self, container: str, path: PurePosixPath, known: dict[PurePosixPath, bool]
    ) -> bool:
        """Say whether a container has a path; what is missing has nothing below it."""
        if path not in known:
            above = self._is_there(container, path.parent, known)
            known[path] = above and self._answers(container, path)
        return known[path]

    def _answers(self, container: str, path: PurePosixPath) -> bool:
        answer = self._send(
            "HEAD", f"/containers/{_path(container)}/archive", query={"path": str(path)}
        )
        return answer.status < _FIRST_ERROR

    def read_file(self, container: str, path: str) -> bytes | None:
        """Return the content of one file of a container, ``None`` if it is not there."""
        response = self._send(
            "GET", f"/containers/{_path(container)}/archive", query={"path": path}
        )
        with closing(response):
            if response.status == _NOT_FOUND:
                if self.container(container) is None:
                    self._no_container(container)
                return None
            if response.status >= _FIRST_ERROR:
                self._refuse(response.status, message_of(response), _called(container))
            return archive.one_file(response.content)

    def _no_container(self, container: str) -> NoReturn:
        raise ContainerNotFoundError(
            f"there is no container {container}",
            why=f"the engine at {self._address} does not know it",
            fix="gpuenv ps --all lists them",
        )

    def start(self, container: str) -> ContainerInfo:
        """Start a container and return it with the ports of this start."""
        self._json("POST", f"/containers/{_path(container)}/start", about=_called(container))
        return self._known(container)

    def _known(self, container: str) -> ContainerInfo:
        found = self.container(container)
        if found is None:
            self._no_container(container)
        return found

    def stop(self, container: str, *, timeout_s: int = 10) -> None:
        """Ask a container to end and kill it after ``timeout_s``; one that ended is fine."""
        self._json(
            "POST",
            f"/containers/{_path(container)}/stop",
            query={"t": timeout_s},
            timeout_s=self._timeout_s + timeout_s,
            about=_called(container),
        )

    def signal(self, container: str, signal: str) -> None:
        """Send a signal to the first process."""
        self._json(
            "POST",
            f"/containers/{_path(container)}/kill",
            query={"signal": signal},
            about=_called(container),
        )

    def restart(self, container: str, *, timeout_s: int = 10) -> ContainerInfo:
        """Stop and start a container; return it with its new ports."""
        self.stop(container, timeout_s=timeout_s)
        return self.start(container)

    def remove(self, container: str, *, force: bool = False, volumes: bool = True) -> bool:
        """Remove a container and its anonymous volumes; ``False`` if there was none."""
        with closing(
            self._send(
                "DELETE",
                f"/containers/{_path(container)}",
                query={"force": int(force), "v": int(volumes)},
            )
        ) as response:
            if response.status < _FIRST_ERROR:
                return True
            if response.status == _NOT_FOUND:
                return False
            message = message_of(response)
            if "is already in progress" not in message:
                self._refuse(response.status, message, _called(container))
        # Someone else, or the engine itself, is at it: gone means gone when this returns.
        self._send(
            "POST", f"/containers/{_path(container)}/wait", query={"condition": "removed"}
        ).close()
        return True

    def wait(self, container: str, *, timeout_s: float | None = None) -> ExitStatus:
        """Wait for a container to end."""
        try:
            data = self._json(
                "POST",
                f"/containers/{_path(container)}/wait",
                timeout_s=timeout_s,
                about=_called(container),
            )
        except EngineTimeoutError as exc:
            raise TimeoutError(f"{container} did not end within {timeout_s:g} s") from exc
        return ExitStatus(
            exit_code=int(data["StatusCode"]),
            error=str((data.get("Error") or {}).get("Message") or ""),
        )

    def container(self, container: str) -> ContainerInfo | None:
        """Return what is known of a container, ``None`` if there is none."""
        data = self._maybe(f"/containers/{_path(container)}/json", about=_called(container))
        return None if data is None else parse_container(data)

    def containers(
        self, *, labels: Mapping[str, str | None] | None = None, only_running: bool = False
    ) -> tuple[ContainerInfo, ...]:
        """List containers that carry all the labels, newest first."""
        query: dict[str, Any] = {"all": int(not only_running)}
        if labels:
            query["filters"] = json.dumps({"label": label_filters(labels)})
        listed = self._json("GET", "/containers/json", query=query, about="containers")
        found = (self.container(str(entry["Id"])) for entry in listed)
        # One that was removed between the list and the look is not there any more.
        return tuple(info for info in found if info is not None)

    def logs(
        self,
        container: str,
        *,
        follow: bool = False,
        tail: int | None = None,
        since: datetime | None = None,
        timestamps: bool = False,
    ) -> Generator[LogChunk, None, None]:
        """Read a container's output; ``follow`` goes on until it ends."""
        tty = self._known(container).tty
        response = self._call(
            "GET",
            f"/containers/{_path(container)}/logs",
            query={
                "stdout": 1,
                "stderr": 1,
                "follow": int(follow),
                "tail": "all" if tail is None else tail,
                "since": None if since is None else f"{since.timestamp():.6f}",
                "timestamps": int(timestamps),
            },
            stream=True,
            timeout_s=None if follow else self._timeout_s,
            about=_called(container),
        )
        with closing(self._pieces(response)) as pieces:
            if tty:
                for piece in pieces:
                    yield LogChunk(stream="stdout", data=piece)
            else:
                yield from split_frames(pieces)

    def exec(
        self,
        container: str,
        command: tuple[str, ...],
        *,
        user: str | None = None,
        workdir: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        timeout_s: float | None = None,
    ) -> ExecResult:
        """Run a command in a running container to its end."""
        exec_id = self._new_exec(
            container, command, user=user, workdir=workdir, env=env, stdin=stdin is not None
        )
        stream = self._open_exec(exec_id, tty=False, container=container)
        output: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
        try:
            stream.settimeout(timeout_s)
            if stdin is not None:
                stream.write(stdin)
                stream.close_input()
            for chunk in split_frames(iter(stream.read, b"")):
                output[chunk.stream].append(chunk.data)
        except TimeoutError as exc:
            raise TimeoutError(
                f"{command[0]} in {container} gave no sign for {timeout_s:g} s"
            ) from exc
        except BrokenPipeError:
            pass  # the command ended without reading its input
        finally:
            stream.close()
        return ExecResult(
            exit_code=self._exec_exit_code(exec_id) or 0,
            stdout=b"".join(output["stdout"]),
            stderr=b"".join(output["stderr"]),
        )

    def exec_attached(
        self,
        container: str,
        command: tuple[str, ...],
        *,
        user: str | None = None,
        workdir: str | None = None,
        env: Mapping[str, str] | None = None,
        tty: bool = False,
    ) -> Attachment:
        """Run a command in a running container with its input and output open."""
        exec_id = self._new_exec(
            container, command, user=user, workdir=workdir, env=env, stdin=True, tty=tty
        )
        stream = self._open_exec(exec_id, tty=tty, container=container)
        return RawAttachment(
            stream,
            tty=tty,
            resize=lambda rows, columns: self._resize(f"/exec/{exec_id}", rows, columns),
            exit_code=lambda: self._exec_exit_code(exec_id),
        )

    def _new_exec(
        self,
        container: str,
        command: tuple[str, ...],
        *,
        user: str | None,
        workdir: str | None,
        env: Mapping[str, str] | None,
        stdin: bool,
        tty: bool = False,
    ) -> str:
        answer = self._json(
            "POST",
            f"/containers/{_path(container)}/exec",
            body={
                "AttachStdin": stdin,
                "AttachStdout": True,
                "AttachStderr": True,
                "Tty": tty,
                "Cmd": list(command),
                "User": user or "",
                "WorkingDir": workdir or "",
                "Env": [f"{name}={value}" for name, value in (env or {}).items()],
            },
            about=_called(container),
        )
        return str(answer["Id"])

    def _open_exec(self, exec_id: str, *, tty: bool, container: str) -> UpgradedStream:
        return self._upgrade(
            f"/exec/{exec_id}/start", {"Detach": False, "Tty": tty}, _called(container)
        )

    def _exec_exit_code(self, exec_id: str) -> int | None:
        data = self._json("GET", f"/exec/{exec_id}/json", about="command")
        code = data.get("ExitCode")
        return None if data.get("Running") or code is None else int(code)

    def _resize(self, path: str, rows: int, columns: int) -> None:
        # A command that has ended has no window any more; that is no error.
        self._send("POST", f"{path}/resize", query={"h": rows, "w": columns}).close()

    def _upgrade(self, path: str, body: Mapping[str, Any] | None, about: str) -> UpgradedStream:
        with self._lost(self._timeout_s), translated():
            sock = open_socket(self._address, self._transport.tls, self._timeout_s)
            stream = UpgradedStream(sock, self._prefix + path, body)
        if stream.status >= _FIRST_ERROR:
            with closing(stream):
                self._refuse(stream.status, stream.error_text(), about)
        return stream

    def attach(self, container: str) -> Attachment:
        """Open the input and output of a container; do it before the start to miss nothing."""
        info = self._known(container)
        name = _path(container)
        stream = self._upgrade(
            f"/containers/{name}/attach?stream=1&stdin=1&stdout=1&stderr=1",
            None,
            _called(container),
        )

        def exit_code() -> int | None:
            now = self.container(container)
            return None if now is None or now.running else now.exit_code

        return RawAttachment(
            stream,
            tty=info.tty,
            resize=lambda rows, columns: self._resize(f"/containers/{name}", rows, columns),
            exit_code=exit_code,
        )

    def processes(self, container: str) -> tuple[int, ...] | None:
        """Return the process ids as the engine's host sees them, ``None`` where it cannot tell."""
        response = self._send(
            "GET", f"/containers/{_path(container)}/top", query={"ps_args": "-eo pid,args"}
        )
        with closing(response):
            if response.status == _NOT_FOUND:
                self._no_container(container)
            if response.status >= _FIRST_ERROR:
                return None
            table = response.json()
        titles = [str(title).upper() for title in table.get("Titles") or ()]
        if "PID" not in titles:
            return None
        column = titles.index("PID")
        return tuple(int(row[column]) for row in table.get("Processes") or ())

    def events(
        self,
        *,
        labels: Mapping[str, str | None] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> Generator[EngineEvent, None, None]:
        """Follow what happens to things that carry the labels."""
        response = self._call(
            "GET",
            "/events",
            query={
                "filters": json.dumps({"label": label_filters(labels)}) if labels else None,
                "since": None if since is None else f"{since.timestamp():.6f}",
                "until": None if until is None else f"{until.timestamp():.6f}",
            },
            stream=True,
            timeout_s=None,
            about="events",
        )
        with closing(self._json_lines(response)) as lines:
            for line in lines:
                actor = line.get("Actor") or {}
                stamp = int(line.get("timeNano") or int(line.get("time") or 0) * 10**9)
                yield EngineEvent(
                    kind=str(line.get("Type", "")),
                    action=str(line.get("Action", "")),
                    id=str(actor.get("ID", "")),
                    attributes=dict(actor.get("Attributes") or {}),
                    at=datetime.fromtimestamp(stamp / 1e9, timezone.utc),
                )

    # --- volumes and networks -----------------------------------------------------------------

    def create_volume(self, name: str, *, labels: Mapping[str, str]) -> VolumeInfo:
        """Make a named volume, or return the one of that name."""
        return _volume(
            self._json(
                "POST",
                "/volumes/create",
                body={"Name": name, "Labels": dict(labels)},
                about=f"volume {name}",
            )
        )

    def volumes(self, *, labels: Mapping[str, str | None] | None = None) -> tuple[VolumeInfo, ...]:
        """List volumes that carry all the labels."""
        query = {"filters": json.dumps({"label": label_filters(labels)})} if labels else None
        found = self._json("GET", "/volumes", query=query, about="volumes")
        return tuple(_volume(entry) for entry in found.get("Volumes") or ())

    def remove_volume(self, name: str, *, force: bool = False) -> bool:
        """Remove a volume; ``False`` if there was none."""
        if self._maybe(f"/volumes/{_path(name)}", about=f"volume {name}") is None:
            return False
        response = self._send("DELETE", f"/volumes/{_path(name)}", query={"force": int(force)})
        return self._removed(response, f"volume {name}")

    def create_network(
        self, name: str, *, labels: Mapping[str, str], internal: bool = False
    ) -> NetworkInfo:
        """Make a bridge network, or return the one of that name that carries the labels."""
        for known in self.networks(labels=labels):
            if known.name == name:
                return known
        answer = self._json(
            "POST",
            "/networks/create",
            body={
                "Name": name,
                "CheckDuplicate": True,
                "Driver": "bridge",
                "Internal": internal,
                "Labels": dict(labels),
            },
            about=f"network {name}",
        )
        return NetworkInfo(
            id=str(answer["Id"]),
            name=name,
            driver="bridge",
            labels=dict(labels),
            internal=internal,
        )

    def networks(
        self, *, labels: Mapping[str, str | None] | None = None
    ) -> tuple[NetworkInfo, ...]:
        """List networks that carry all the labels."""
        query = {"filters": json.dumps({"label": label_filters(labels)})} if labels else None
        found = self._json("GET", "/networks", query=query, about="networks")
        return tuple(
            NetworkInfo(
                id=str(entry["Id"]),
                name=str(entry["Name"]),
                driver=str(entry.get("Driver") or ""),
                labels=dict(entry.get("Labels") or {}),
                internal=bool(entry.get("Internal")),
            )
            for entry in found
        )

    def remove_network(self, name: str) -> bool:
        """Remove a network; ``False`` if there was none."""
        return self._removed(self._send("DELETE", f"/networks/{_path(name)}"), f"network {name}")

    # --- the engine itself --------------------------------------------------------------------

    def disk_usage(self) -> DiskUsage:
        """Sum up what the engine stores; may take seconds on a full one."""
        data = self._json("GET", "/system/df", timeout_s=_DISK_USAGE_TIMEOUT_S, about="disk usage")
        info = self.raw_info()
        store = str(info.get("DockerRootDir") or "")
        room = self._room()
        return DiskUsage(
            images_bytes=int(data.get("LayersSize") or 0),
            containers_bytes=sum(int(c.get("SizeRw") or 0) for c in data.get("Containers") or ()),
            volumes_bytes=sum(
                max(0, int((v.get("UsageData") or {}).get("Size") or 0))
                for v in data.get("Volumes") or ()
            ),
            build_cache_bytes=sum(
                int(entry.get("Size") or 0)
                for entry in data.get("BuildCache") or ()
                if not entry.get("Shared")
            ),
            store=store,
            free_bytes=room[0] if room else None,
            total_bytes=room[1] if room else None,
        )

    def free_bytes(self) -> int | None:
        """Return the room in the engine's store, ``None`` where it is not on this host."""
        room = self._room()
        return room[0] if room else None

    def _room(self) -> tuple[int, int] | None:
        raise NotImplementedError

    def responds(self, *, timeout_s: float = 10) -> bool:
        """Say whether the engine answers the simplest request in time; never raises."""
        try:
            return self._send("GET", "/_ping", timeout_s=timeout_s).status < _FIRST_ERROR
        except (EngineTimeoutError, EngineLostError):
            return False

    def raw_info(self) -> Mapping[str, Any]:
        """Return the engine's own account of itself."""
        answer: dict[str, Any] = self._json("GET", "/info", about="the engine")
        return answer


def _path(ref: str) -> str:
    return quote(ref, safe="/:@")


def _inside(path: PurePosixPath) -> str:
    """Return a path as it stands in an archive of the root."""
    return str(path.relative_to("/"))


def _called(container: str) -> str:
    """Return how messages name a container; a full id is cut as the engine's own lists cut it."""
    return f"container {container[:12] if _FULL_ID.fullmatch(container) else container}"


def _stream_of(tar: TarBytes) -> bytes | Iterable[bytes]:
    return tar if isinstance(tar, bytes) else tar()


def _volume(data: Mapping[str, Any]) -> VolumeInfo:
    return VolumeInfo(
        name=str(data["Name"]),
        driver=str(data.get("Driver") or ""),
        labels=dict(data.get("Labels") or {}),
        created_at=parse_time(data.get("CreatedAt")),
        mountpoint=str(data.get("Mountpoint") or ""),
    )


def _transfer_progress(line: Mapping[str, Any]) -> TransferProgress:
    from gpuenv.engine.events import TransferProgress

    detail = line.get("progressDetail") or {}
    return TransferProgress(
        item=str(line.get("id") or ""),
        status=str(line.get("status") or ""),
        current=int(detail.get("current") or 0),
        total=int(detail.get("total") or 0),
    )


def message_of(response: Answer) -> str:
    """Return the engine's words in a refusal: ``{"message": …}``, else the text as it is."""
    text = response.text.strip()
    try:
        data = json.loads(text)
    except ValueError:
        return text
    return str(data.get("message") or data.get("cause") or text) if isinstance(data, dict) else text


def image_missing(ref: str, address: str) -> ImageNotFoundError:
    """Return the error for an image that is not local."""
    return ImageNotFoundError(
        f"there is no image {ref}",
        why=f"the engine at {address} does not have it",
        fix="build it with gpuenv build, or pull it",
    )
