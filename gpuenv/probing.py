"""Where probes run and how they get there: this machine, another Python, an image, a container.

Probes travel as text: ``python -c LOADER`` with one JSON object on standard input, or as one file
that carries everything. Nothing is installed or written where they run.
"""

from __future__ import annotations

import json
import os
import select
import shlex
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from gpuenv.checks.facts import parse_probe_run
from gpuenv.errors import ConfigurationError, ProbeError
from gpuenv.resources import package_dir
from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from gpuenv.checks.model import Level, ProbeRun
    from gpuenv.checks.probes import ProbeSpec
    from gpuenv.engine.protocol import Attachment, ContainerEngine, GpuRequest

OnProbe: TypeAlias = "Callable[[str, ProbeRun | None], None]"
"""Told ``(name, None)`` when a probe begins and ``(name, run)`` when it has answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorPlan:
    """What the doctor is going to do.

    Attributes:
        budget_s: For all probes together; what has not answered by then is a timeout.
        options: Handed to the probes: ``{"root": "/", "level": 1, ...}``.
    """

    level: Level
    probes: tuple[ProbeSpec, ...]
    budget_s: float
    options: Mapping[str, Any]
    asked: Mapping[str, Any]


class ProbePlace(Protocol):
    """Somewhere probes can run."""

    def where(self) -> Mapping[str, Any]:
        """Say what this place is: ``{"kind": "image", "target": "repo:tag"}``."""
        ...

    def run(self, plan: DoctorPlan) -> Iterator[tuple[str, ProbeRun | None]]:
        """Run the plan's probes; yield each one's begin (``None``) and its answer."""
        ...


def probe_sources() -> dict[str, str]:
    """Return the text of every probe file by module name; what is sent into a place."""
    folder = package_dir() / "probes"
    return {
        path.stem: path.read_text(encoding="utf-8")
        for path in sorted(folder.glob("*.py"))
        if path.stem != "__init__"
    }


def render_request(
    plan: DoctorPlan,
    sources: Mapping[str, str],
    *,
    where: Mapping[str, Any],
    python: str | None = None,
) -> tuple[str, bytes]:
    """Return what starts the probes in a place: the text for ``python -c`` and its standard input.

    Args:
        plan: Which probes, and their limits.
        sources: From :func:`probe_sources`.
        where: Told back in the stream's first line.
        python: The interpreter whose environment is looked at, when it is not the one that runs.
    """
    modules = {spec.module for spec in plan.probes}
    request = {
        "entry": "_runner",
        "sources": {name: sources[name] for name in ("_runner", "_loader", "_child", "_common")},
        "probe_sources": {
            name: text
            for name, text in sources.items()
            if name in modules or (name.startswith("_") and name != "_runner")
        },
        "specs": [
            {
                "name": spec.name,
                "module": spec.module,
                "timeout_s": spec.timeout_s,
                "memory_mib": spec.memory_mib,
                "environment": spec.environment,
                "alone": spec.alone,
            }
            for spec in plan.probes
        ],
        "options": dict(plan.options),
        "budget_s": plan.budget_s,
        "where": dict(where),
        "asked": dict(plan.asked),
        "python": python,
    }
    return sources["_loader"], json.dumps(request).encode()


def read_events(lines: Iterable[str]) -> Iterator[tuple[str, ProbeRun | None]]:
    """Turn the lines of a place's answer into begin and end of each probe.

    Lines that are no JSON objects are not ours (a login banner) and are passed over.
    """
    for line in lines:
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            continue
        if not isinstance(entry, dict):
            continue
        if "begin" in entry:
            yield str(entry["begin"]), None
        elif "probe" in entry:
            yield str(entry["probe"]), parse_probe_run(entry)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPlace:
    """This machine.

    Attributes:
        python: The interpreter the user named; its environment is what is looked at.
        environment: The interpreter of the environment the user has activated; likewise, but the
            place is still called this host.
    """

    python: str | None = None
    environment: str | None = None

    def where(self) -> Mapping[str, Any]:
        """Say that it is this machine, or which interpreter."""
        if self.python is not None:
            return {"kind": "python", "target": self.python}
        if self.environment is not None:
            return {"kind": "host", "target": "", "python": self.environment}
        return {"kind": "host", "target": ""}

    def run(self, plan: DoctorPlan) -> Iterator[tuple[str, ProbeRun | None]]:
        """Run the probes in child processes of a child process.

        Raises:
            ProbeError: That process itself failed.
        """
        from gpuenv.process import ProgramFailedError, ProgramTimeoutError, stream_program

        code, request = render_request(
            plan, probe_sources(), where=self.where(), python=self.python or self.environment
        )
        arguments = [sys.executable, "-I", "-S", "-c", code]
        try:
            yield from read_events(
                stream_program(arguments, timeout_s=plan.budget_s + _GRACE_S, stdin=request)
            )
        except ProgramTimeoutError as exc:
            raise ProbeError("the probes did not come to their end", why=str(exc)) from exc
        except ProgramFailedError as exc:
            raise ProbeError(
                "the probes did not come to their end", why=f"{exc}: {exc.stderr[-2000:]}"
            ) from exc


_GRACE_S = 10.0
_LABEL = "org.gpuenv.doctor"
_SHM_BYTES = 1 << 30
_NO_PYTHON = 87
# The environment's own Python comes first on PATH as `python`; distributions have only `python3`.
_FIND_PYTHON = (
    'for name in python python3; do if command -v "$name" >/dev/null 2>&1; then '
    f'exec "$name" -c "$1"; fi; done; exit {_NO_PYTHON}'
)


# The loader comes as the first line of standard input: a shell there may take no line breaks.
_BOOTSTRAP = "import sys;exec(bytes.fromhex(sys.stdin.buffer.readline().decode()))"
_IS_NEW_ENOUGH = "import sys;sys.exit(sys.version_info<(3,8))"


class RemoteShell(Protocol):
    """A host that has been logged in to."""

    def stream(self, line: str, *, stdin: bytes, timeout_s: float) -> Iterator[str]:
        """Run a shell line there and yield the lines it prints."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RemotePlace:
    """Another host, by SSH.

    Attributes:
        name: What the user calls it.
        python: The interpreter or the environment's folder there, whose environment is looked at.
    """

    shell: RemoteShell
    name: str
    python: str | None = None

    def where(self) -> Mapping[str, Any]:
        """Say which host."""
        where = {"kind": "remote host", "target": self.name}
        return where if self.python is None else {**where, "python": self.python}

    def run(self, plan: DoctorPlan) -> Iterator[tuple[str, ProbeRun | None]]:
        """Run the probes with a Python of that host.

        Raises:
            ProbeError: It has none, or they did not come to their end.
        """
        from gpuenv.process import ProgramFailedError, ProgramTimeoutError

        code, request = render_request(plan, probe_sources(), where=self.where())
        try:
            yield from read_events(
                self.shell.stream(
                    remote_line(self.python),
                    stdin=code.encode().hex().encode() + b"\n" + request,
                    timeout_s=plan.budget_s + _GRACE_S,
                )
            )
        except ProgramTimeoutError as exc:
            raise ProbeError("the probes did not come to their end", why=str(exc)) from exc
        except ProgramFailedError as exc:
            if exc.exit_code == _NO_PYTHON:
                raise ProbeError(
                    f"{self.name} has no Python to run the probes with",
                    why="there is no Python 3.8 or newer at "
                    + (self.python or "python or python3 on its PATH"),
                    fix="install python3 there, or name one: --python PATH",
                ) from exc
            raise ProbeError(
                f"the probes did not come to their end on {self.name}",
                why=f"exit code {exc.exit_code}: {exc.stderr.strip()[-2000:]}",
                fix="try by hand: gpuenv doctor --emit-probe | ssh HOST python3 -",
            ) from exc


def remote_line(python: str | None) -> str:
    """Return the shell line that finds a Python on another host and lets it load what comes; pure.

    Args:
        python: An interpreter or the folder of an environment, an absolute path or one from the
            home there; ``None`` for the one on ``PATH``.
    """
    if python is None:
        names = "python python3"
    else:
        home = python.startswith("~/")
        quoted = ('"$HOME"/' if home else "") + shlex.quote(python.removeprefix("~/"))
        names = f"{quoted}/bin/python {quoted}/bin/python3 {quoted}"
    script = (
        f'for p in {names}; do if command -v "$p" >/dev/null 2>&1 && '
        f'"$p" -c "{_IS_NEW_ENOUGH}" 2>/dev/null; then exec "$p" -c "{_BOOTSTRAP}"; fi; done; '
        f"exit {_NO_PYTHON}"
    )
    return f"sh -c {shlex.quote(script)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePlace:
    """An image: a container is started for the probes and removed afterwards.

    Attributes:
        image: Its reference.
        gpu: What of the GPUs the container gets, ``None`` for none.
        user: ``UID:GID`` to run as, ``None`` for the image's own.
    """

    engine: ContainerEngine
    image: str
    gpu: GpuRequest | None = None
    user: str | None = None

    def where(self) -> Mapping[str, Any]:
        """Say which image."""
        return {"kind": "image", "target": self.image, "gpu": self.gpu is not None}

    def run(self, plan: DoctorPlan) -> Iterator[tuple[str, ProbeRun | None]]:
        """Start a container whose only program is the probes, and read what they answer."""
        from gpuenv.engine.protocol import ContainerSpec

        code, request = render_request(plan, probe_sources(), where=self.where())
        created = self.engine.create(
            ContainerSpec(
                image=self.image,
                entrypoint=("sh", "-c", _FIND_PYTHON, "gpuenv-probe"),
                command=(code,),
                labels={_LABEL: "probe"},
                user=self.user,
                gpu=self.gpu,
                shm_bytes=_SHM_BYTES,
                open_stdin=True,
                init=True,
            )
        )
        try:
            attachment = self.engine.attach(created.id)
            try:
                self.engine.start(created.id)
                yield from _converse(attachment, request, plan, self.image)
            finally:
                attachment.close()
        finally:
            self.engine.remove(created.id, force=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerPlace:
    """A running container: the probes run beside what runs there, as its user."""

    engine: ContainerEngine
    container: str
    user: str | None = None

    def where(self) -> Mapping[str, Any]:
        """Say which container."""
        return {"kind": "container", "target": self.container}

    def run(self, plan: DoctorPlan) -> Iterator[tuple[str, ProbeRun | None]]:
        """Run the probes with the engine's exec."""
        code, request = render_request(plan, probe_sources(), where=self.where())
        attachment = self.engine.exec_attached(
            self.container, ("sh", "-c", _FIND_PYTHON, "gpuenv-probe", code), user=self.user
        )
        try:
            yield from _converse(attachment, request, plan, self.container)
        finally:
            attachment.close()


def _converse(
    attachment: Attachment, request: bytes, plan: DoctorPlan, target: str
) -> Iterator[tuple[str, ProbeRun | None]]:
    """Hand the request over and turn the answer's lines into events.

    Raises:
        ProbeError: The place has no Python, or the answer broke off.
    """
    noise = bytearray()
    answered = False
    attachment.write(request)
    attachment.close_input()
    for event in read_events(_attached_lines(attachment, noise, plan.budget_s + _GRACE_S)):
        answered = True
        yield event
    if answered:
        return
    words = noise.decode("utf-8", "replace").strip()
    if attachment.exit_code() == _NO_PYTHON or "not found" in words:
        raise ProbeError(
            f"{target} has no Python to run the probes with",
            why=words[-500:] or "neither python nor python3 is on its PATH",
            fix="check the host instead, or an image with Python 3.8 or newer",
        )
    raise ProbeError(
        f"the probes gave no answer in {target}",
        why=words[-2000:] or "the program ended without a word",
        fix="try by hand: gpuenv doctor --emit-probe | docker run -i --rm IMAGE python3 -",
    )


def _attached_lines(attachment: Attachment, noise: bytearray, timeout_s: float) -> Iterator[str]:
    """Yield the lines of standard output until its end or the time is up; the rest is noise."""
    deadline = time.monotonic() + timeout_s
    pending = b""
    while True:
        remaining_s = deadline - time.monotonic()
        if remaining_s <= 0:
            noise += b" the time was up"
            break
        ready, _, _ = select.select([attachment.fileno()], [], [], min(remaining_s, 1.0))
        if not ready:
            continue
        chunk = attachment.read()
        if chunk is None:
            break
        if chunk.stream == "stderr":
            noise += chunk.data
            del noise[:-65536]
            continue
        *lines, pending = (pending + chunk.data).split(b"\n")
        yield from (line.decode("utf-8", "replace") for line in lines)
    if pending:
        yield pending.decode("utf-8", "replace")


def find_python(path: str) -> str:
    """Return the interpreter behind what a user calls a Python: a program, a virtualenv's folder.

    Raises:
        ConfigurationError: There is none.
    """
    given = Path(path).expanduser()
    for candidate in (given / "bin" / "python", given / "bin" / "python3", given):
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return str(candidate.absolute())
    found = shutil.which(path) if "/" not in path else None
    if found:
        return found
    raise ConfigurationError(
        f"{path} is no Python and no virtual environment",
        why="there is no such program, and no bin/python below it",
        fix="name the interpreter, for example .venv/bin/python",
    )


def active_python(environ: Mapping[str, str]) -> str | None:
    """Return the interpreter of the environment the user has activated, when it is not our own."""
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        folder = environ.get(variable)
        if folder and Path(folder).resolve() != Path(sys.prefix).resolve():
            candidate = Path(folder) / "bin" / "python"
            if candidate.is_file():
                return str(candidate)
    return None


def render_bundle(plan: DoctorPlan, sources: Mapping[str, str], *, version: str) -> str:
    """Return one Python file that carries the probes of a plan as readable text and runs them.

    It needs Python 3.8 and nothing else, and prints the lines that ``--from`` reads.
    """
    _, raw = render_request(plan, sources, where={"kind": "file", "target": ""})
    request = json.loads(raw)
    texts = {**request.pop("probe_sources"), **request.pop("sources")}
    parts = [_BUNDLE_HEAD.format(version=version)]
    parts += [f"SOURCES[{name!r}] = r'''{text}'''\n" for name, text in sorted(texts.items())]
    parts.append(f"REQUEST = json.loads({json.dumps(request)!r})\n")
    parts.append(_BUNDLE_TAIL)
    return "\n".join(parts)


_BUNDLE_HEAD = '''\
#!/usr/bin/env python3
"""The probes of gpuenv {version} in one file: facts on GPUs, CUDA, torch and limits as JSON lines.

    docker run -i --rm IMAGE python3 - < this-file > facts.jsonl
    gpuenv doctor --from facts.jsonl

Reads only; in the folders of temporary files and caches one small file is made and removed again.
"""
import json
import sys
import types

if sys.version_info < (3, 8):
    sys.exit("gpuenv probes need Python 3.8 or newer")
SOURCES = {{}}
'''
_BUNDLE_TAIL = """\
if __name__ == "__main__":
    loader = types.ModuleType("gpuenv_loader")
    exec(compile(SOURCES["_loader"], "<gpuenv.probes._loader>", "exec"), loader.__dict__)
    loader.install(SOURCES)
    REQUEST["probe_sources"] = SOURCES
    import gpuenv.probes._runner

    gpuenv.probes._runner.main(REQUEST)
"""
