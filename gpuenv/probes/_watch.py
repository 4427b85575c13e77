"""Start the ranks of a process group, watch all of them, and say which one did not arrive.

A rank announces each step before it begins. When nothing has moved for the hang limit, the ranks
that have not begun the furthest step are the missing ones; when all have begun it, the step itself
does not complete. Either way all are asked for their stack, ended, and what they had told stands.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import time
from typing import TYPE_CHECKING, Any, Callable

from ._spawn import start_worker

if TYPE_CHECKING:
    import subprocess

IMPORT_LIMIT_S = 120.0  # torch from a cold network disk, all ranks at once
GRACE_S = 3.0  # after the first rank failed: long enough for the others to say how they noticed
STACK_S = 0.5
NOISE_LIMIT = 256 << 10  # NCCL says at start which links it chose, some hundred lines
STACK_HEAD = "(most recent call first):"
STACK_LINES = 4
_STARTING = ("", "import")


class RankProcess:
    """One rank's process and what it has said."""

    def __init__(self, rank: int, process: subprocess.Popen) -> None:
        """Take a started process."""
        self.rank = rank
        self.process = process
        self.stages: list[str] = [""]
        self.answers: list[dict[str, Any]] = []
        self.error: str | None = None
        self.ended: str | None = None
        self.done = False
        self.noise = b""
        self.pending = b""

    def take(self, piece: bytes, clock: Callable[[], float]) -> float | None:
        """Take a piece of the answers; return when the rank last moved, if it did."""
        lines = (self.pending + piece).split(b"\n")
        self.pending = lines.pop()
        moved = None
        for line in lines:
            entry = json.loads(line.decode("utf-8"))
            moved = clock()
            if "stage" in entry:
                self.stages.append(entry["stage"])
            elif "result" in entry:
                self.done = True
            elif "error" in entry:
                self.error = entry["error"]
            else:
                self.answers.append(entry)
        return moved

    def manner_of_death(self) -> str:
        """Return how the process ended: a signal's name or an exit code."""
        code = self.process.returncode
        if code is not None and code < 0:
            return signal.Signals(-code).name
        return "exit code {}".format(code)

    def where(self) -> list[str]:
        """Return the innermost lines of the stack that faulthandler wrote, if it was asked."""
        text = self.noise.decode("utf-8", "replace")
        lines = text.rpartition(STACK_HEAD)[2].splitlines() if STACK_HEAD in text else []
        return [line.strip() for line in lines if line.lstrip().startswith("File ")][:STACK_LINES]

    def words(self) -> list[str]:
        """Return the last lines of standard error."""
        return self.noise.decode("utf-8", "replace").strip().splitlines()[-12:]


class Launch:
    """One run of a process group: ``run`` starts it, watches it and returns what happened.

    Args:
        devices: CUDA ordinal of each rank; ``None`` for the CPU.
        backend: ``nccl`` or ``gloo``.
        parts: What each rank does, names of ``_ranks.PARTS``.
        env: The ranks' environment.
        limit_s: How long nothing may move.
        on_progress: Told each stage once, by the rank that reaches it first.
    """

    def __init__(
        self,
        devices: list[int | None],
        backend: str,
        parts: list[str],
        env: dict[str, str],
        limit_s: float,
        sizes: int = 3,
        on_progress: Callable[[str], None] = lambda _stage: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Remember what to run."""
        self.devices, self.backend, self.env = devices, backend, env
        self.parts, self.sizes = parts, sizes
        self.limit_s = limit_s
        self.on_progress = on_progress
        self.clock = clock
        self.ranks: list[RankProcess] = []
        self.furthest = 0
        self.first_to_fail: RankProcess | None = None

    def run(self) -> dict[str, Any]:
        """Return ``{"seconds", "failure", "ranks": [...], "answers": {key: [per rank lists]}}``."""
        start = self.clock()
        with selectors.DefaultSelector() as selector:
            try:
                self._start(selector)
                failure = self._watch(selector)
            finally:
                for rank in self.ranks:
                    rank.process.kill()
                for rank in self.ranks:
                    rank.process.wait()
                    for stream in (rank.process.stdout, rank.process.stderr):
                        if stream is not None:
                            stream.close()
        return {
            "seconds": round(self.clock() - start, 3),
            "failure": failure,
            "ranks": [self._describe(rank) for rank in self.ranks],
            "log": b"\n".join(rank.noise for rank in self.ranks).decode("utf-8", "replace"),
            "answers": [rank.answers for rank in self.ranks],
        }

    def _start(self, selector: selectors.BaseSelector) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        world = len(self.devices)
        for rank, device in enumerate(self.devices):
            arguments = {
                "rank": rank,
                "world": world,
                "device": device,
                "backend": self.backend,
                "port": port,
                "parts": self.parts,
                "sizes": self.sizes,
                # torch's own limit comes second: ours knows which rank is missing
                "limit_s": self.limit_s * 1.5 + 5,
            }
            # what torchrun sets; libraries that look for it find the truth
            env = dict(self.env, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
            process = start_worker("_ranks", "main", arguments, env=env, also=("_cuda", "_torch"))
            member = RankProcess(rank, process)
            self.ranks.append(member)
            for stream, kind in ((process.stdout, "answers"), (process.stderr, "noise")):
                if stream is not None:
                    os.set_blocking(stream.fileno(), False)
                    selector.register(stream, selectors.EVENT_READ, (member, kind))

    def _watch(self, selector: selectors.BaseSelector) -> dict[str, Any] | None:
        moved = self.clock()
        failed_at: float | None = None
        while True:
            moved = self._listen(selector, 0.1) or moved
            now = self.clock()
            if self.first_to_fail is not None and failed_at is None:
                failed_at = now
            over = all(rank.done or rank.error or rank.ended for rank in self.ranks)
            if failed_at is not None and (over or now - failed_at > GRACE_S):
                return self._blame_first()
            if over:
                return None
            starting = any(rank.stages[-1] in _STARTING for rank in self.ranks)
            limit_s = max(IMPORT_LIMIT_S, self.limit_s) if starting else self.limit_s
            if failed_at is None and now - moved > limit_s:
                return self._blame_missing(selector)

    def _listen(self, selector: selectors.BaseSelector, wait_s: float) -> float | None:
        moved = None
        for key, _ in selector.select(wait_s):
            rank, kind = key.data
            try:
                piece = os.read(key.fd, 1 << 16)
            except BlockingIOError:
                continue
            if not piece:
                selector.unregister(key.fileobj)
                if kind == "answers" and not rank.done:
                    rank.process.wait()
                    rank.ended = rank.manner_of_death()
                    if rank.error is None:
                        self._note_failure(rank)
            elif kind == "noise":
                rank.noise = (rank.noise + piece)[-NOISE_LIMIT:]
            else:
                moved = rank.take(piece, self.clock) or moved
                if rank.error is not None:
                    self._note_failure(rank)
                if len(rank.stages) > self.furthest:
                    self.furthest = len(rank.stages)
                    self.on_progress(rank.stages[-1])
        return moved

    def _note_failure(self, rank: RankProcess) -> None:
        if self.first_to_fail is None:
            self.first_to_fail = rank

    def _blame_first(self) -> dict[str, Any]:
        """A rank that died is the cause even when another noticed before we read of the death."""
        dead = [rank for rank in self.ranks if rank.ended and rank.error is None and not rank.done]
        culprit = dead[0] if dead else self.first_to_fail
        if culprit is None:
            raise RuntimeError("nobody failed")
        return {
            "kind": "died" if culprit in dead else "error",
            "stage": culprit.stages[-1],
            "rank": culprit.rank,
            "error": culprit.ended if culprit in dead else culprit.error,
            "words": culprit.words(),
            "missing": [],
            "arrived": [],
        }

    def _blame_missing(self, selector: selectors.BaseSelector) -> dict[str, Any]:
        for rank in self.ranks:
            if rank.process.poll() is None and rank.stages[-1] not in _STARTING:
                rank.process.send_signal(signal.SIGUSR1)  # faulthandler writes the stack
        until = self.clock() + STACK_S
        while self.clock() < until:
            self._listen(selector, 0.05)
        depth = [len(rank.stages) for rank in self.ranks]
        furthest = max(depth)
        behind = [rank for rank in self.ranks if len(rank.stages) < furthest]
        front = self.ranks[depth.index(furthest)]
        return {
            "kind": "hang",
            "stage": front.stages[-1],
            "rank": behind[0].rank if behind else None,
            "error": "nothing moved for {:g} s".format(self.limit_s),
            "words": (behind[0] if behind else front).words(),
            "missing": [rank.rank for rank in behind],
            "arrived": [rank.rank for rank in self.ranks if rank not in behind],
        }

    def _describe(self, rank: RankProcess) -> dict[str, Any]:
        described = {
            "rank": rank.rank,
            "stage": rank.stages[-1],
            "error": rank.error or "",
            "ended": rank.ended if not rank.done else None,
            "where": rank.where(),
        }
        for answer in rank.answers:
            described.update(answer.get("identity", {}))
        return described
