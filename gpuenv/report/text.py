"""Text that comes from outside, made safe to show, and the words all formats share."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpuenv.checks.model import Level, Status

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuenv.checks.model import CheckResult, Diagnosis, Side, Verdict

_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # terminal control
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # direction overrides, which hide text
    "\ud800-\udfff\ufffe\uffff]"  # not characters at all
)


def printable(text: str) -> str:
    r"""Return text with control characters and direction overrides spelt out (``\x1b``).

    What a program inside a container printed must not move the cursor, colour or reorder the
    report. Newlines and tabs stay; a carriage return before a newline goes.
    """
    return _UNSAFE.sub(_spelt, text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    """Return printable text with every run of white space made one space."""
    return " ".join(printable(text).split())


def _spelt(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code <= 0xFF else f"\\u{code:04x}"  # noqa: PLR2004 - one byte


VERDICTS: dict[Verdict, str] = {
    "pass": "PASS",
    "warn": "PASS WITH WARNINGS",
    "fail": "FAIL",
    "undiagnosed": "NOT DIAGNOSED",
    "nothing-to-diagnose": "NOTHING TO DIAGNOSE",
}


def verdict_words(diagnosis: Diagnosis) -> str:
    """Return the verdict in words; a doctor that was interrupted passes nothing."""
    if diagnosis.interrupted and diagnosis.verdict != "fail":
        return "INTERRUPTED"
    return VERDICTS[diagnosis.verdict]


_STATUS_WORDS: dict[Status, tuple[str, str]] = {
    Status.PASS: ("passed", "passed"),
    Status.INFO: ("noted", "noted"),
    Status.WARN: ("warning", "warnings"),
    Status.FAIL: ("failed", "failed"),
    Status.ERROR: ("error", "errors"),
    Status.SKIP: ("skipped", "skipped"),
}

_ON_SIDE: dict[Side, str] = {
    "host": "on the host",
    "container": "when starting the container",
    "image": "in the image",
    "engine": "in the engine's settings",
    "project": "in your project",
}

SKIP_REASONS: dict[str, str] = {
    "no-gpu": "no GPU here",
    "no-torch": "no torch here",
    "needs-root": "needs root",
    "not-applicable": "does not apply here",
    "level": "belongs to a deeper level",
    "busy": "the GPU is in use",
    "unsupported-by-driver": "the driver does not tell",
    "blocked": "blocked by a failed check",
    "not-probed": "was not probed",
    "offline": "needs the network",
    "single-gpu": "needs more than one GPU",
    "excluded": "left out by --skip",
}

_GROUPS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("driver", "Driver and GPUs", ("host",)),
    ("container", "Container runtime", ("ctk", "cdi", "cgroup", "ctr", "wsl", "k8s", "image")),
    ("torch", "CUDA and torch", ("drv", "torch", "pip", "env", "cuda")),
    ("visibility", "Visibility and modes", ("vis", "mig", "mode", "mem", "vgpu")),
    ("hardware", "Hardware health", ("hw",)),
    ("links", "Links and NCCL", ("topo", "p2p", "shm", "lim", "nccl", "gloo")),
    ("numerics", "Numerics and training", ("num",)),
    ("compile", "Compile toolchain", ("cc",)),
    ("performance", "Performance", ("perf",)),
    ("system", "System limits", ("sys",)),
    ("doctor", "The doctor itself", ("run", "probe")),
)
_EXACT_GROUPS = {"cc.mode": "visibility"}  # confidential computing, not the C compiler

GROUP_TITLES: dict[str, str] = {key: title for key, title, _ in _GROUPS}


def group_of(check_id: str) -> str:
    """Return the key of the group a check is shown in."""
    if check_id in _EXACT_GROUPS:
        return _EXACT_GROUPS[check_id]
    first = check_id.split(".", 1)[0]
    for key, _, prefixes in _GROUPS:
        if first in prefixes:
            return key
    return "doctor"


def by_group(results: Sequence[CheckResult]) -> dict[str, list[CheckResult]]:
    """Return results by group, groups in their fixed order, empty ones left out."""
    found: dict[str, list[CheckResult]] = {key: [] for key in GROUP_TITLES}
    for result in results:
        found[group_of(result.id)].append(result)
    return {key: members for key, members in found.items() if members}


def count_by_status(results: Sequence[CheckResult]) -> dict[Status, int]:
    """Return how many results have each status, worst first, zeros left out."""
    order = (Status.FAIL, Status.ERROR, Status.WARN, Status.INFO, Status.PASS, Status.SKIP)
    counts = {status: sum(result.status is status for result in results) for status in order}
    return {status: count for status, count in counts.items() if count}


def count_words(counts: Mapping[Status, int]) -> str:
    """Return counts in words: ``1 failed, 2 warnings, 7 passed``."""
    return ", ".join(
        f"{count} {_STATUS_WORDS[status][count != 1]}" for status, count in counts.items() if count
    )


def group_words(results: Sequence[CheckResult]) -> str:
    """Return the counts of a group; what only a deeper level looks at is told apart."""
    deeper = [result for result in results if result.reason == "level"]
    looked_at = [result for result in results if result.reason != "level"]
    words = [count_words(count_by_status(looked_at))] if looked_at else []
    if deeper:
        words.append(f"{len(deeper)} at a deeper level")
    return ", ".join(words)


def mark_of_group(results: Sequence[CheckResult]) -> Status:
    """Return the status a group is marked with: the worst; well only when most of it was seen."""
    counts = count_by_status([result for result in results if result.reason != "level"])
    for status in (Status.FAIL, Status.ERROR, Status.WARN):
        if counts.get(status):
            return status
    well = counts.get(Status.PASS, 0) + counts.get(Status.INFO, 0)
    return Status.PASS if well > counts.get(Status.SKIP, 0) else Status.SKIP


def skip_words(results: Sequence[CheckResult]) -> str:
    """Return why checks were skipped, with numbers, the commonest first; empty when none was.

    What only a deeper level looks at comes last: nobody asked for it.
    """
    reasons: dict[str, int] = {}
    deeper = sum(result.reason == "level" for result in results)
    for result in results:
        if result.status is Status.SKIP and result.reason != "level":
            words = skip_reason(result)
            reasons[words] = reasons.get(words, 0) + 1
    ordered = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    parts = [f"{words} ({count})" for words, count in ordered]
    if deeper:
        parts.append(f"at a deeper level ({deeper})")
    return ", ".join(parts)


def skip_reason(result: CheckResult) -> str:
    """Return the reason of a skip in words."""
    return SKIP_REASONS.get(str(result.reason), str(result.reason))


def on_side(side: Side) -> str:
    """Return where a fix has to be done, in words."""
    return _ON_SIDE.get(side, f"on the {side}")


def name_of(result: CheckResult) -> str:
    """Return the id, with the subject where there are several: ``hw.ecc [GPU 0]``."""
    return f"{result.id} [{one_line(result.subject)}]" if result.subject else result.id


def place_of(where: Mapping[str, object]) -> str:
    """Return where the facts are from, in words: ``image localhost/gpuenv/train``."""
    kind = one_line(str(where.get("kind") or "unknown place"))
    target = one_line(str(where.get("target") or ""))
    words = {"host": "this host", "python": "Python"}.get(kind, kind)
    return f"{words} {target}" if target and kind != "host" else words


def level_name(asked: Mapping[str, object]) -> str:
    """Return the level that was asked for, empty where the facts do not say a known one."""
    level = asked.get("level")
    known = {int(each): each.name.lower() for each in Level}
    return known.get(level, "") if isinstance(level, int) else ""
