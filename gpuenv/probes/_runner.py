"""Run probes, each file in a process of its own, with limits on time and memory.

Used on this machine in gpuenv's own process, and inside images and containers as the head of the
file that is piped in. A probe that crashes, hangs or grows is its own misfortune: the others run.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time

from ._loader import install

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterator

_TICK_S = 0.05
_REAP_S = 2.0
_ANSWER_LIMIT = 32 << 20
_NOISE_LIMIT = 16 << 10


class Fork:
    """A copy of this process that runs probes; what ``Popen`` is, in a fiftieth of the time.

    Safe here because nothing but the standard library is loaded and no thread was ever started.
    """

    stdin = None

    def __init__(self, request: dict[str, Any]) -> None:
        """Fork, and in the copy run the probes and leave."""
        self.returncode = None
        answers, answers_in = os.pipe()
        noise, noise_in = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self._become(request, answers_in, noise_in)
        os.close(answers_in)
        os.close(noise_in)
        self.stdout = os.fdopen(answers, "rb", 0)
        self.stderr = os.fdopen(noise, "rb", 0)

    def _become(self, request: dict[str, Any], answers: int, noise: int) -> None:
        try:
            os.setsid()
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            nothing = os.open(os.devnull, os.O_RDONLY)
            for fd, wanted in ((nothing, 0), (answers, 1), (noise, 2)):
                os.dup2(fd, wanted)
            os.closerange(3, _highest_fd() + 1)
            request["install"](request["sources"])
            __import__("gpuenv.probes._child")
            sys.modules["gpuenv.probes._child"].main(request)
        except BaseException as error:
            os.write(2, repr(error).encode("utf-8", "replace"))
        finally:
            os._exit(70)

    def poll(self) -> int | None:
        """Return how it ended, ``None`` while it runs."""
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                pid, status = self.pid, 0
            if pid:
                ended = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
                self.returncode = -ended if ended else os.WEXITSTATUS(status)
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Wait for its end as ``Popen.wait`` does."""
        until = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired("probe", timeout)
            time.sleep(0.002)
        return self.returncode or 0


class Child:
    """One running process and what it has said so far."""

    def __init__(
        self, specs: list[dict[str, Any]], python: str, request: dict[str, Any], env: dict[str, str]
    ) -> None:
        """Start the process for the probes of one file."""
        self.specs = {spec["name"]: spec for spec in specs}
        self.waiting = [spec["name"] for spec in specs]
        self.begun: str | None = None
        self.told: dict[str, Any] = {}
        self.noise = b""
        self.pending = b""
        self.size = 0
        self.since = time.monotonic()
        self.feed = b""
        if not specs[0].get("environment") and hasattr(os, "fork"):
            self.process = Fork(request)
            return
        self.feed = json.dumps(request).encode("utf-8")
        self.process = subprocess.Popen(
            [python, "-c", request["sources"]["_loader"]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            start_new_session=True,
        )

    @property
    def current(self) -> dict[str, Any]:
        """The probe that runs, or the one that will run first."""
        return self.specs[self.begun or self.waiting[0]]

    def take_noise(self, piece: bytes) -> None:
        """Keep the end of standard error, which is where the last words of a crash are."""
        self.noise = (self.noise + piece)[-_NOISE_LIMIT:]

    def take(self, piece: bytes) -> Iterator[tuple[str, dict[str, Any] | None]]:
        """Turn a piece of standard output into events."""
        self.size += len(piece)
        lines = (self.pending + piece).split(b"\n")
        self.pending = lines.pop()
        for line in lines:
            try:
                entry = json.loads(line.decode("utf-8"))
            except ValueError:
                self.take_noise(line + b"\n")
                continue
            if isinstance(entry, dict):
                yield from self._take_entry(entry)

    def _take_entry(self, entry: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any] | None]]:
        if entry.get("begin") in self.waiting:
            self.begun = entry["begin"]
            self.told = {}
            if len(self.specs) > len(self.waiting):
                self.since = time.monotonic()
            yield self.begun, None
        elif "tell" in entry and entry["tell"] == self.begun:
            self.told.update(entry.get("facts") or {})
        elif "probe" in entry and entry["probe"] in self.waiting:
            name = entry["probe"]
            answer = {
                "status": entry.get("status", "garbage"),
                "facts": entry.get("facts") or {},
                "duration_s": round(time.monotonic() - self.since, 4),
            }
            if entry.get("error"):
                answer["error"] = entry["error"]
            self.waiting.remove(name)
            self.begun = None
            self.told = {}
            self.since = time.monotonic()
            yield name, answer

    def blame(self, status: str, error: str) -> tuple[str, dict[str, Any] | None]:
        """Charge the probe that runs, or the first one when none had begun."""
        name = self.begun or self.waiting[0]
        self.waiting.remove(name)
        words = self.noise.decode("utf-8", "replace").strip().splitlines()[-6:]
        if words and status != "timeout":
            error = "; ".join([error, *words])
        answer = {
            "status": status,
            "facts": self.told,
            "error": error[:2000],
            "duration_s": round(time.monotonic() - self.since, 4),
        }
        return name, answer

    def kill(self) -> bool:
        """Kill the process and all it started; False when the kernel will not let it go."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except OSError:
            pass
        try:
            self.process.wait(_REAP_S)
        except subprocess.TimeoutExpired:
            return False
        return True

    def close(self) -> None:
        """Let go of the pipes."""
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                try:
                    stream.close()
                except OSError:
                    pass


def run(
    specs: list[dict[str, Any]],
    sources: dict[str, str],
    options: dict[str, Any],
    budget_s: float,
    python: str | None = None,
    env: dict[str, str] | None = None,
) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """Run probes and yield ``(name, None)`` when one begins and ``(name, answer)`` when it ends.

    Args:
        specs: ``{"name", "module", "timeout_s", "memory_mib", "environment", "alone"}``, in order.
        sources: Text of each file of gpuenv.probes by module name.
        options: Handed to every probe.
        budget_s: For all together.
        python: The interpreter for probes with ``environment``; our own for the others.
        env: Environment of the processes.
    """
    deadline = time.monotonic() + budget_s
    environ = dict(os.environ if env is None else env)
    environ.update(LC_ALL="C", PYTHONDONTWRITEBYTECODE="1")
    groups = []  # type: list[list[dict[str, Any]]]
    for spec in specs:
        if groups and groups[-1][0]["module"] == spec["module"]:
            groups[-1].append(spec)
        else:
            groups.append([spec])
    crew = _Crew(sources, options, python or sys.executable, environ, deadline)
    try:
        together = [group for group in groups if not group[0].get("alone")]
        yield from crew.work(together, at_once=max(2, min(8, os.cpu_count() or 1)))
        for group in groups:
            if group[0].get("alone"):
                yield from crew.work([group], at_once=1)
    finally:
        crew.dismiss()


class _Crew:
    """The processes that run now."""

    def __init__(
        self,
        sources: dict[str, str],
        options: dict[str, Any],
        python: str,
        environ: dict[str, str],
        deadline: float,
    ) -> None:
        self.sources = sources
        self.shared = {name: text for name, text in sources.items() if name.startswith("_")}
        self.shared.pop("_runner", None)
        self.options = options
        self.python = python
        self.environ = environ
        self.deadline = deadline
        self.selector = selectors.DefaultSelector()
        self.children: list[Child] = []

    def work(
        self, groups: list[list[dict[str, Any]]], at_once: int
    ) -> Iterator[tuple[str, dict[str, Any] | None]]:
        """Run groups of probes, a process each, not more than ``at_once`` at a time."""
        queue = list(groups)
        while queue or self.children:
            while queue and len(self.children) < at_once:
                group = queue.pop(0)
                if time.monotonic() >= self.deadline:
                    for spec in group:
                        yield spec["name"], _no_time()
                    continue
                yield from self._start(group)
            yield from self._listen(queue)

    def dismiss(self) -> None:
        """Kill whatever still runs."""
        for child in self.children:
            child.kill()
            child.close()
        self.children = []
        self.selector.close()

    def _start(self, group: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any] | None]]:
        module = group[0]["module"]
        texts = dict(self.shared)
        if module in self.sources:
            texts[module] = self.sources[module]
        request = {
            "module": module,
            "probes": [spec["name"] for spec in group],
            "options": self.options,
            "sources": texts,
        }
        if not group[0].get("environment"):
            request["install"] = install
        python = self.python if group[0].get("environment") else sys.executable
        try:
            child = Child(group, python, request, self.environ)
        except OSError as error:
            for spec in group:
                yield (
                    spec["name"],
                    {"status": "error", "error": "cannot start {}: {}".format(python, error)},
                )
            return
        self.children.append(child)
        for stream, kind in (
            (child.process.stdin, "feed"),
            (child.process.stdout, "answers"),
            (child.process.stderr, "noise"),
        ):
            if stream is not None:
                os.set_blocking(stream.fileno(), False)
                wanted = selectors.EVENT_WRITE if kind == "feed" else selectors.EVENT_READ
                self.selector.register(stream, wanted, (child, kind))

    def _listen(
        self, queue: list[list[dict[str, Any]]]
    ) -> Iterator[tuple[str, dict[str, Any] | None]]:
        for key, _ in self.selector.select(_TICK_S):
            child, kind = key.data
            if kind == "feed":
                self._feed(child)
                continue
            piece = os.read(key.fd, 1 << 16)
            if not piece:
                self.selector.unregister(key.fileobj)
            elif kind == "noise":
                child.take_noise(piece)
            else:
                yield from child.take(piece)
        for child in list(self.children):
            yield from self._look_after(child, queue)

    def _feed(self, child: Child) -> None:
        stream = child.process.stdin
        if stream is None:
            return
        try:
            child.feed = child.feed[os.write(stream.fileno(), child.feed) :]
        except BlockingIOError:
            return
        except OSError:  # it died before it had read its request
            child.feed = b""
        if not child.feed:
            self.selector.unregister(stream)
            stream.close()

    def _look_after(
        self, child: Child, queue: list[list[dict[str, Any]]]
    ) -> Iterator[tuple[str, dict[str, Any] | None]]:
        """End what is over, over time or over size; put the probes left over back in the queue."""
        if not child.waiting:
            self._part_with(child, kill=True)
            return
        now = time.monotonic()
        limit_s = child.current["timeout_s"]
        if child.process.poll() is not None:
            self._drain(child)
            yield from child.take(b"")
            if child.waiting:
                yield child.blame(*_manner_of_death(child))
        elif now - child.since > limit_s or now > self.deadline:
            why = (
                "after {:g} s".format(limit_s)
                if now <= self.deadline
                else "when the whole time was up"
            )
            stuck = "" if child.kill() else ", stuck in the kernel and cannot be killed"
            yield child.blame("timeout", "killed " + why + stuck)
        elif child.size > _ANSWER_LIMIT:
            yield child.blame("garbage", "its answer is larger than 32 MiB")
        else:
            used_mib = resident_mib(child.process.pid)
            if used_mib <= child.current["memory_mib"]:
                return
            text = "used {} MiB of memory, {} MiB are allowed"
            yield child.blame("error", text.format(used_mib, child.current["memory_mib"]))
        self._part_with(child, kill=True)
        if child.waiting:
            queue.insert(0, [child.specs[name] for name in child.waiting])

    def _drain(self, child: Child) -> None:
        """Read what a dead process left in its pipes."""
        for stream, answers in ((child.process.stdout, True), (child.process.stderr, False)):
            while stream is not None:
                try:
                    piece = os.read(stream.fileno(), 1 << 16)
                except OSError:
                    break
                if not piece:
                    break
                if answers:
                    child.pending += piece
                else:
                    child.take_noise(piece)

    def _part_with(self, child: Child, *, kill: bool) -> None:
        if kill:
            child.kill()
        for stream in (child.process.stdin, child.process.stdout, child.process.stderr):
            if stream is not None and not stream.closed:
                try:
                    self.selector.unregister(stream)
                except (KeyError, ValueError):
                    pass
        child.close()
        self.children.remove(child)


def _no_time() -> dict[str, Any]:
    return {"status": "timeout", "error": "the whole time was up before it began"}


def _manner_of_death(child: Child) -> tuple[str, str]:
    code = child.process.returncode
    if code is not None and code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = "signal {}".format(-code)
        return "crashed", "died of " + name
    if code == 0:
        return "garbage", "ended without an answer"
    return "crashed", "ended with exit code {}".format(code)


def _highest_fd() -> int:
    """Return the highest file number in use, as far as it can be told."""
    try:
        return max(int(name) for name in os.listdir("/proc/self/fd"))
    except (OSError, ValueError):
        return 1024


def resident_mib(pid: int) -> int:
    """Return the resident memory of a process and of all it started, in MiB; 0 when unknown."""
    total, waiting = 0, [pid]
    while waiting:
        one = waiting.pop()
        try:
            with open("/proc/{}/statm".format(one)) as stream:
                total += int(stream.read().split()[1])
            with open("/proc/{0}/task/{0}/children".format(one)) as stream:
                waiting += [int(word) for word in stream.read().split()]
        except (OSError, ValueError, IndexError):
            continue
    return total * os.sysconf("SC_PAGE_SIZE") >> 20


def main(request: dict[str, Any]) -> None:
    """Run probes and print the lines that ``gpuenv doctor --from`` reads.

    Args:
        request: ``{"specs", "probe_sources", "options", "budget_s", "where", "asked", "python"}``.
    """

    def say(entry: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(entry) + "\n")
        sys.stdout.flush()

    say(
        {
            "gpuenv_probe_stream": "1",
            "where": request.get("where", {}),
            "asked": request.get("asked", {}),
        }
    )
    signal.signal(signal.SIGTERM, _stop)
    try:
        for name, answer in run(
            request["specs"],
            request["probe_sources"],
            request["options"],
            request["budget_s"],
            python=request.get("python"),
        ):
            say({"begin": name} if answer is None else dict(answer, probe=name))
    except (KeyboardInterrupt, BrokenPipeError):
        return
    say({"done": True})


def _stop(*_: object) -> None:
    """Turn a polite end into the one Python knows, so that no child is left behind."""
    raise KeyboardInterrupt
