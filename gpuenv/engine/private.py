"""A Docker engine of gpuenv's own, for machines where none runs: start it, find it, end it.

It shares nothing with another engine on the machine: socket, data, run-time folder, bridge,
addresses, firewall rules and containerd namespace are its own. What identifies it is a record in
the state folder, and the process in it is trusted only while its start time is the recorded one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuenv import process
from gpuenv.engine import private_net
from gpuenv.engine.connect import connect, record_path
from gpuenv.engine.errors import PrivateEngineError
from gpuenv.engine.private_net import PrivateNetwork
from gpuenv.errors import EngineUnavailableError
from gpuenv.state import make_private_dir, state_dir, write_private_file
from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_RUN = Path("/run/gpuenv")
_READY_TIMEOUT_S = 90.0
_STOP_TIMEOUT_S = 60.0
_POLL_S = 0.1
_LOG_LINES = 15
_PACKAGES = ("docker.io", "iptables", "iproute2")
_INSTALL_TIMEOUT_S = 900.0
_START_TIME_FIELD = 19  # of what stands behind the program's name in /proc/PID/stat


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivatePlan:
    """Where a private engine lives and how it is started.

    Attributes:
        mark: Tells it from other private engines on the machine.
        run_dir: Socket, pid file and run-time state; short, since a socket's path may be 107 bytes.
    """

    mark: str
    run_dir: Path
    data_dir: Path
    log: Path
    record: Path
    network: PrivateNetwork

    @property
    def socket(self) -> Path:
        """Where it will answer."""
        return self.run_dir / "docker.sock"

    @property
    def arguments(self) -> tuple[str, ...]:
        """The daemon's command line."""
        return (
            "dockerd",
            f"--host=unix://{self.socket}",
            f"--data-root={self.data_dir}",
            f"--exec-root={self.run_dir / 'exec'}",
            f"--pidfile={self.run_dir / 'docker.pid'}",
            f"--config-file={self.run_dir / 'daemon.json'}",
            f"--bridge={self.network.bridge}",
            f"--default-address-pool=base={self.network.networks},size=24",
            f"--mtu={self.network.mtu}",
            # The other engine's chains are flushed by whoever manages the firewall as well.
            "--iptables=false",
            "--ip6tables=false",
            # The system's containerd may be shared, its containers never.
            f"--containerd-namespace=gpuenv-{self.mark}",
            f"--containerd-plugins-namespace=gpuenv-plugins-{self.mark}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateEngine:
    """The record of a private engine that was started.

    Attributes:
        start_ticks: When the process started, since boot; ``pid`` alone may be reused.
    """

    socket: str
    pid: int
    start_ticks: int
    run_dir: str
    data_dir: str
    log: str
    mark: str
    network: PrivateNetwork

    @property
    def address(self) -> str:
        """The engine's address."""
        return f"unix://{self.socket}"

    @property
    def alive(self) -> bool:
        """Whether the recorded process still is."""
        return process_started(self.pid) == self.start_ticks

    def as_dict(self) -> dict[str, Any]:
        """Return the record for ``--json``."""
        return {**asdict(self), "address": self.address, "alive": self.alive}


def plan_up(environ: Mapping[str, str], network: PrivateNetwork | None = None) -> PrivatePlan:
    """Decide where a private engine of this state folder lives."""
    folder = state_dir(environ).absolute() / "engine"
    mark = engine_mark(environ)
    return PrivatePlan(
        mark=mark,
        run_dir=_RUN / mark,
        data_dir=data_dir(environ),
        log=folder / "docker.log",
        record=record_path(environ),
        network=network or private_net.probe_network(mark),
    )


def engine_mark(environ: Mapping[str, str]) -> str:
    """Return the eight hex digits that tell the engine of one state folder from another's."""
    folder = state_dir(environ).absolute()
    return hashlib.sha256(str(folder).encode()).hexdigest()[:8]


def load_record(environ: Mapping[str, str]) -> PrivateEngine | None:
    """Return the record of this state folder, whether or not the engine still lives."""
    try:
        data = json.loads(record_path(environ).read_text("utf-8"))
        network = PrivateNetwork(**data.pop("network"))
        return PrivateEngine(**data, network=network)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def process_started(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; ``None`` if it is not alive."""
    try:
        text = Path("/proc", str(pid), "stat").read_text("utf-8", "replace")
    except OSError:
        return None
    words = text.rpartition(")")[2].split()
    return None if words[0] in {"Z", "X"} else int(words[_START_TIME_FIELD])


# --- up -------------------------------------------------------------------------------------------


def up(environ: Mapping[str, str], *, say: Callable[[str], None]) -> PrivateEngine:
    """Start the private engine of this state folder, or return it if it runs.

    Raises:
        PrivateEngineError: It cannot be started; nothing of the attempt is left but its log.
    """
    known = load_record(environ)
    if known is not None and known.alive:
        _require_answer(known.address, environ)
        return known
    if os.geteuid() != 0:
        raise PrivateEngineError(
            "a private engine needs root",
            why=f"this is user {os.geteuid()}",
            fix="sudo gpuenv engine up; without root use rootless Docker and set DOCKER_HOST",
        )
    if known is not None:
        say(f"the engine started earlier (process {known.pid}) has ended; clearing up after it")
        _end_processes(known)
        _clear(known)
    _require_programs(say)
    plan = plan_up(environ)
    try:
        return _start(plan, environ, say)
    except OSError as exc:
        raise PrivateEngineError(
            f"the private engine cannot use {exc.filename or plan.record.parent}",
            why=exc.strerror or str(exc),
            fix="make room or give write permission; GPUENV_STATE_DIR names another folder",
        ) from exc


def _start(
    plan: PrivatePlan, environ: Mapping[str, str], say: Callable[[str], None]
) -> PrivateEngine:
    make_private_dir(plan.data_dir.parent)
    make_private_dir(plan.run_dir)
    plan.data_dir.mkdir(mode=0o711, exist_ok=True)
    for stale in ("docker.sock", "docker.pid"):
        (plan.run_dir / stale).unlink(missing_ok=True)
    (plan.run_dir / "daemon.json").write_text("{}\n")
    # With its memory of networks a daemon that starts again deletes docker0, the default bridge of
    # every *other* engine here, before it takes up its own (seen with 20.10, after a clean stop and
    # after a crash). The networks made on this engine are lost with it.
    (plan.data_dir / "network" / "files" / "local-kv.db").unlink(missing_ok=True)
    began = plan.log.stat().st_size if plan.log.exists() else 0
    private_net.set_up(plan.network)
    engine: PrivateEngine | None = None
    try:
        pid = process.start_daemon(plan.arguments, log=plan.log, env=_daemon_environment(environ))
        engine = PrivateEngine(
            socket=str(plan.socket),
            pid=pid,
            start_ticks=process_started(pid) or 0,
            run_dir=str(plan.run_dir),
            data_dir=str(plan.data_dir),
            log=str(plan.log),
            mark=plan.mark,
            network=plan.network,
        )
        # Before it is ready, so that it can be found and ended even if we are killed now.
        write_private_file(plan.record, json.dumps(asdict(engine), indent=2).encode())
        say(f"starting a private engine (process {pid}), log in {plan.log}")
        _wait_ready(engine, environ, log_from=began)
    except BaseException:
        if engine is not None:
            _end_processes(engine)
            _clear(engine)
            plan.record.unlink(missing_ok=True)
        else:
            private_net.tear_down(plan.network)
        raise
    return engine


def _daemon_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what the daemon needs of our environment: its PATH, proxies and certificates."""
    kept = {"PATH", "SSL_CERT_FILE", "SSL_CERT_DIR", "TMPDIR", "LANG"}
    proxies = {"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"}
    path = environ.get("PATH", "")
    wanted = {name: value for name, value in environ.items() if name in kept | proxies}
    return {**wanted, "PATH": ":".join(filter(None, (path, "/usr/local/sbin:/usr/sbin:/sbin")))}


def _require_programs(say: Callable[[str], None]) -> None:
    if process.find_program("dockerd") is not None:
        return
    release = _os_release()
    family = {release.get("ID", ""), *release.get("ID_LIKE", "").split()}
    if not family & {"debian", "ubuntu"} or process.find_program("apt-get") is None:
        raise PrivateEngineError(
            "there is no dockerd to start",
            why=f"this is {release.get('PRETTY_NAME', 'an unknown system')}, and gpuenv installs "
            "it only on Debian and Ubuntu",
            fix="install Docker with the distribution's own tools",
        )
    say(f"dockerd is missing: installing {', '.join(_PACKAGES)} with apt-get")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for arguments in (
        ("apt-get", "update", "-qq"),
        ("apt-get", "install", "-y", "-qq", "--no-install-recommends", *_PACKAGES),
    ):
        done = process.run_program(arguments, timeout_s=_INSTALL_TIMEOUT_S, env=environment)
        if done.exit_code != 0:
            raise PrivateEngineError(
                "dockerd cannot be installed",
                why="\n".join((done.stdout + done.stderr).strip().splitlines()[-_LOG_LINES:]),
                fix=f"install {_PACKAGES[0]} by hand, then run this again",
            )


def _os_release() -> dict[str, str]:
    try:
        text = Path("/etc/os-release").read_text("utf-8")
    except OSError:
        return {}
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {name: value.strip('"') for name, _, value in pairs}


def _wait_ready(engine: PrivateEngine, environ: Mapping[str, str], *, log_from: int) -> None:
    deadline = time.monotonic() + _READY_TIMEOUT_S
    while True:
        process.reap(engine.pid)
        if not engine.alive:
            raise PrivateEngineError(
                "the private engine ended while it started",
                why=_last_words(Path(engine.log), log_from),
                fix=f"the whole log is in {engine.log}",
            )
        try:
            connect(engine.address, environ=environ).close()
        except EngineUnavailableError as error:
            if time.monotonic() > deadline:
                raise PrivateEngineError(
                    f"the private engine is not ready after {_READY_TIMEOUT_S:g} s",
                    why=_last_words(Path(engine.log), log_from),
                    fix=f"the whole log is in {engine.log}",
                ) from error
            time.sleep(_POLL_S)
        else:
            return


def _require_answer(address: str, environ: Mapping[str, str]) -> None:
    connect(address, environ=environ).close()


def _last_words(log: Path, start: int) -> str:
    """Return the errors among the daemon's last lines, or just the last lines."""
    try:
        with log.open("rb") as file:
            file.seek(start)
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError as error:
        return f"its log cannot be read: {error}"
    telling = [
        line
        for line in lines
        if "level=error" in line or "level=fatal" in line or not line.startswith("time=")
    ]
    return "\n".join((telling or lines)[-_LOG_LINES:]) or "it left no log"


# --- down -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DownResult:
    """What ``engine down`` found and did.

    Attributes:
        engine: ``None`` where none was recorded.
        was_running: The engine ran until now.
        purged: Its images, volumes and containers are gone.
    """

    engine: PrivateEngine | None
    was_running: bool
    purged: bool


def down(environ: Mapping[str, str], *, purge: bool, say: Callable[[str], None]) -> DownResult:
    """End the private engine of this state folder, if there is one, and undo its network.

    Args:
        environ: Tells the state folder.
        purge: Delete images, containers and volumes as well.
        say: Told what happens.

    Raises:
        PrivateEngineError: It would not end, or its data cannot be deleted.
    """
    engine = load_record(environ)
    if engine is None:
        there = purge and data_dir(environ).is_dir()
        if there:
            _purge(data_dir(environ))
        return DownResult(engine=None, was_running=False, purged=there)
    if os.geteuid() != 0:
        raise PrivateEngineError(
            "ending the private engine needs root",
            why=f"process {engine.pid} is root's",
            fix="sudo gpuenv engine down",
        )
    was_running = engine.alive
    if was_running:
        say(f"ending the private engine (process {engine.pid})")
    _end_processes(engine)
    _clear(engine)
    record_path(environ).unlink(missing_ok=True)
    if purge:
        _purge(Path(engine.data_dir))
        Path(engine.log).unlink(missing_ok=True)
    return DownResult(engine=engine, was_running=was_running, purged=purge)


def data_dir(environ: Mapping[str, str]) -> Path:
    """Return the data folder of this state folder's engine."""
    return state_dir(environ).absolute() / "engine" / "data"


def _end_processes(engine: PrivateEngine) -> None:
    """End the daemon, then whatever of its containers outlived it."""
    if engine.alive:
        with contextlib.suppress(ProcessLookupError):
            os.kill(engine.pid, signal.SIGTERM)
        if not _gone(engine, _STOP_TIMEOUT_S):
            with contextlib.suppress(ProcessLookupError):
                os.kill(engine.pid, signal.SIGKILL)
            if not _gone(engine, _STOP_TIMEOUT_S):
                raise PrivateEngineError(
                    f"process {engine.pid} of the private engine does not end",
                    why="it was sent SIGTERM and SIGKILL",
                    fix="it waits for a disk that does not answer; see dmesg",
                )
    for pid in tuple(_left_behind(engine)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _gone(engine: PrivateEngine, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while engine.alive:
        process.reap(engine.pid)
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    process.reap(engine.pid)
    return True


def _left_behind(engine: PrivateEngine) -> Iterator[int]:
    """Yield the processes of an engine that was killed: its containerd, shims and containers."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            command = (entry / "cmdline").read_bytes().split(b"\0")
            mounts = (entry / "mountinfo").read_text("utf-8", "replace")
        except OSError:
            continue
        if is_helper(command, engine) or is_inside(mounts, engine.data_dir):
            yield int(entry.name)


def is_helper(command: list[bytes], engine: PrivateEngine) -> bool:
    """Say whether a command line is containerd, a shim or a proxy of this engine.

    They name its run-time folder or its containerd namespace.
    """
    program = command[0].rpartition(b"/")[2]
    return program.startswith((b"containerd", b"docker")) and any(
        word == f"gpuenv-{engine.mark}".encode() or f"{engine.run_dir}/".encode() in word
        for word in command[1:]
    )


def is_inside(mountinfo: str, data_dir: str) -> bool:
    """Say whether a process lives in a container of the engine that keeps its data there.

    Its root, or the files that engines mount into every container, come from that folder. Further
    mounts prove nothing: other processes of the host may have copies of them.
    """
    telling = {"/", "/etc/resolv.conf", "/etc/hosts", "/etc/hostname"}
    return any(
        words[4] in telling and f"{data_dir}/" in line
        for line in mountinfo.splitlines()
        if len(words := line.split()) > 4  # noqa: PLR2004 - the mount point is the fifth
    )


def _clear(engine: PrivateEngine) -> None:
    """Remove what an engine leaves outside its data folder, whether it ended well or not."""
    private_net.tear_down(engine.network)
    for mount in reversed(mounts_below(Path(engine.run_dir), Path(engine.data_dir))):
        process.run_program(("umount", "-l", mount), timeout_s=30)
    shutil.rmtree(engine.run_dir, ignore_errors=True)
    with contextlib.suppress(OSError):
        _RUN.rmdir()


def mounts_below(*folders: Path) -> list[str]:
    """Return the mount points below some folders, in the order they were mounted."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text("utf-8", "replace").splitlines():
        point = line.split()[4].encode().decode("unicode_escape")
        if any(Path(point).is_relative_to(folder) for folder in folders):
            found.append(point)
    return found


def _purge(folder: Path) -> None:
    if mounts_below(folder):
        raise PrivateEngineError(
            f"{folder} is still in use",
            why=f"mounted: {', '.join(mounts_below(folder))}",
            fix="see which process holds it, end it and run this again",
        )
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return
    except OSError as exc:
        raise PrivateEngineError(f"{folder} cannot be deleted", why=str(exc)) from exc
