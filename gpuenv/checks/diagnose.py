"""From results to the one cause: run checks, fold consequences, decide verdict and exit code."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from gpuenv.checks.model import Cause, CheckResult, Diagnosis, Evidence, Level, Status
from gpuenv.errors import (
    EXIT_CHECK_FAILED,
    EXIT_INTERRUPTED,
    EXIT_NOT_DIAGNOSED,
    EXIT_OK,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gpuenv.checks.model import Check, Facts, SkipReason, Verdict

_BAD = (Status.FAIL, Status.ERROR, Status.WARN)
_SETTLED = (Status.PASS, Status.INFO, Status.WARN)

_COMPUTED = (
    "torch.kernel",
    "torch.cudnn",
    "num.*",
    "nccl.allreduce*",
    "nccl.bw",
    "perf.*",
    "p2p.*",
    "cc.compile",
)
_CUDA = ("torch.import", "torch.cuda", "torch.count", "torch.code", *_COMPUTED)

EXPLAINS: Mapping[str, tuple[str, ...]] = {
    "host.gpu.lost": (
        "host.gpu.pci",
        "host.gpu.count",
        "host.smi.err",
        "hw.*",
        "drv.cuinit",
        "host.nodes",
    ),
    "host.driver.bound": ("host.driver.module", "host.gpu.pci", "host.nodes", "drv.cuinit"),
    "host.secureboot": ("host.driver.module", "host.nodes", "drv.cuinit"),
    "host.rebar": ("host.gpu.pci", "host.driver.bound", "drv.cuinit"),
    "host.driver.module": (
        "host.uvm",
        "host.nodes",
        "host.driver.match",
        "drv.cuinit",
        "ctk.*",
        "cdi.spec",
    ),
    "host.driver.match": ("drv.cuinit", "host.smi.err", "cdi.spec"),
    "host.driver.twolibs": ("host.driver.match", "drv.cuinit", "drv.compat"),
    "host.fabricmanager": ("drv.cuinit", "hw.nvlink"),
    "host.uvm": ("drv.cuinit", "cdi.spec"),
    "host.nodes": ("drv.cuinit", "ctk.libs"),
    "hw.recovery": ("hw.remap", "hw.ecc", "hw.xid", "hw.retired"),
    "hw.ecc": ("hw.xid",),
    "hw.remap": ("hw.xid",),
    "cgroup.lost": ("host.nodes", "ctk.libs", "drv.cuinit"),
    "ctr.rootless": ("host.nodes", "drv.cuinit", "ctk.libs"),
    "ctk.installed": ("ctk.runtime", "cdi.spec"),
    "ctk.libs": ("drv.cuinit", "ctr.gpu"),
    "ctk.uvm": ("drv.cuinit",),
    "ctr.gpu": ("drv.cuinit", "k8s"),
    "vis.nvd": ("ctr.gpu",),
    "vis.cvd": ("drv.cuinit", "host.gpu.count"),
    "mig.state": ("drv.cuinit",),
    "mode.compute": ("drv.cuinit",),
    "cc.mode": ("drv.cuinit",),
    "drv.compat": ("host.driver.match", "drv.cuda", "drv.cuinit"),
    "env.ldpath": ("drv.cuinit", "host.driver.match", "torch.libs", "torch.cudnn"),
    "drv.cuinit": _CUDA,
    "drv.cuda": _CUDA,
    "torch.cpu_build": (*_CUDA, "pip.conflicts"),
    "torch.swapped": ("torch.cpu_build", "pip.conflicts", "drv.cuda", "torch.arch", "torch.row"),
    "torch.arch": _CUDA,
    "torch.nccl.dup": ("torch.nccl.which", "nccl.*", "torch.import", "pip.conflicts"),
    "pip.conflicts": ("torch.cudnn", "torch.import", "torch.libs"),
    "cc.gcc": ("cc.compile",),
    "cc.pyh": ("cc.compile",),
    "cc.ptxas": ("cc.compile",),
    "cc.tmp": ("cc.compile",),
    "ctr.uid": ("cc.compile",),
    "torch.import": ("torch.cuda", "torch.count", "torch.code", *_COMPUTED),
    "torch.kernel": ("num.*", "perf.*", "nccl.*", "p2p.*"),
    "torch.cuda": ("torch.count", *_COMPUTED),
    "torch.libs": ("torch.cudnn", "torch.nccl.which"),
    "nccl.ifname": ("nccl.allreduce.mp", "gloo.allreduce"),
    "nccl.dup_gpu": ("nccl.allreduce.mp",),
    "p2p.copy": ("nccl.allreduce.*", "num.ddp", "p2p.bw", "nccl.bw"),
    "hw.pcie.gen": ("perf.h2d", "p2p.bw", "nccl.bw"),
    "hw.throttle": ("perf.matmul", "hw.temp"),
}
"""A failing check, and the ids (or ``fnmatch`` patterns) of the failures it explains.

What only sometimes explains is a suspect of the result itself: see ``CheckResult.suspects``.
"""

_SUBJECTS_SHOWN = 4
_EVIDENCE_SHOWN = 8

PROBE_CHECK = "run.probe"
"""The id under which a probe that crashed, hung or talked nonsense is reported."""

_DIED = {
    "timeout": "did not answer in time",
    "crashed": "crashed",
    "garbage": "gave an unreadable answer",
    "error": "failed",
}


def run_checks(facts: Facts, checks: Sequence[Check]) -> tuple[CheckResult, ...]:
    """Run the checks in order; a check behind a failed one, or without facts, is not run."""
    level = Level(int(facts.asked.get("level", Level.DEEP)))
    failed: set[str] = set()
    results = list(_dead_probes(facts))
    for check in checks:
        found = _skip_for(facts, check, level, failed) or _run(facts, check)
        results.extend(found)
        if any(_stops(result) for result in found):
            failed.add(check.id)
    return tuple(results)


def _run(facts: Facts, check: Check) -> tuple[CheckResult, ...]:
    """Run one check; facts of the wrong shape (an edited file, another version) are an error."""
    try:
        return check.run(facts)
    except (TypeError, LookupError, ValueError, ArithmeticError, AttributeError) as error:
        return (
            CheckResult(
                id=check.id,
                status=Status.ERROR,
                summary=f"the facts cannot be read: {type(error).__name__}: {error}",
                why="a probe answered in a shape this gpuenv does not know",
            ),
        )


def _dead_probes(facts: Facts) -> Iterator[CheckResult]:
    for name, run in facts.probes.items():
        if run.status in _DIED:
            yield CheckResult(
                id=PROBE_CHECK,
                subject=name,
                status=Status.ERROR,
                summary=f"the probe {name} {_DIED[run.status]}: {run.error}".rstrip(": "),
                evidence=(Evidence(source=f"probe {name}", value=run.error or run.status),),
            )


def _stops(result: CheckResult) -> bool:
    return result.status in (Status.FAIL, Status.ERROR) or result.reason == "blocked"


def _skip_for(
    facts: Facts, check: Check, level: Level, failed: set[str]
) -> tuple[CheckResult, ...]:
    """Return why a check is not run, nothing when it is."""

    def skip(reason: SkipReason, summary: str, blocked_by: str = "") -> tuple[CheckResult, ...]:
        return (
            CheckResult(
                id=check.id,
                status=Status.SKIP,
                summary=summary,
                reason=reason,
                blocked_by=blocked_by,
            ),
        )

    if any(fnmatchcase(check.id, str(pattern)) for pattern in facts.asked.get("skip", ())):
        return skip("excluded", "left out by --skip")
    if check.level > level:
        return skip("level", f"needs --level {check.level.name.lower()}")
    for parent in check.after:
        if parent in failed:
            return skip("blocked", f"not looked at: {parent} failed", parent)
    for name in check.needs:
        run = facts.probes.get(name)
        if run is None or run.status == "skipped":
            why = run.error if run is not None and run.error else "was not run"
            return skip("not-probed", f"the probe {name}: {why}")
        if run.status != "ok":
            return skip("blocked", f"the probe {name} {_DIED[run.status]}", PROBE_CHECK)
    return ()


def fold(results: Iterable[CheckResult]) -> tuple[Cause, ...]:
    """Put every finding below the one that explains it; what nothing explains is a cause."""
    bad = _merged(result for result in results if result.status in _BAD)
    parents = {index: _parent(index, bad) for index in range(len(bad))}
    children: dict[int, list[CheckResult]] = {}
    roots: list[int] = []
    for index, result in enumerate(bad):
        root = _root(index, parents)
        if root == index:
            roots.append(index)
        else:
            children.setdefault(root, []).append(result)
    causes = [
        Cause(result=bad[index], consequences=tuple(children.get(index, ()))) for index in roots
    ]
    return tuple(sorted(causes, key=_rank))


def _merged(results: Iterable[CheckResult]) -> list[CheckResult]:
    """Make one finding of the same words about several subjects: ``GPU 0, GPU 1 (and 6 more)``."""
    groups: dict[tuple[str, Status, str], list[CheckResult]] = {}
    for result in results:
        groups.setdefault((result.id, result.status, result.summary), []).append(result)
    merged = []
    for same in groups.values():
        subjects = list(dict.fromkeys(result.subject for result in same if result.subject))
        shown = ", ".join(subjects[:_SUBJECTS_SHOWN])
        if len(subjects) > _SUBJECTS_SHOWN:
            shown += f" (and {len(subjects) - _SUBJECTS_SHOWN} more)"
        evidence = dict.fromkeys(item for result in same for item in result.evidence)
        merged.append(
            replace(same[0], subject=shown, evidence=tuple(evidence)[:_EVIDENCE_SHOWN])
            if len(same) > 1
            else same[0]
        )
    return merged


def _parent(index: int, bad: Sequence[CheckResult]) -> int | None:
    """Return what explains a finding: a suspect that failed, the map, a suspect that warned."""
    child = bad[index]
    others = [(other, result) for other, result in enumerate(bad) if other != index]

    def suspected(status: Status) -> int | None:
        return next(
            (
                other
                for suspect in child.suspects
                for other, result in others
                if result.status is status and fnmatchcase(result.id, suspect)
            ),
            None,
        )

    mapped = next(
        (
            other
            for other, result in others
            if result.status is Status.FAIL
            and result.id != child.id
            and any(fnmatchcase(child.id, pattern) for pattern in EXPLAINS.get(result.id, ()))
        ),
        None,
    )
    found = suspected(Status.FAIL)
    if found is None:
        found = mapped
    return suspected(Status.WARN) if found is None else found


def _root(index: int, parents: Mapping[int, int | None]) -> int:
    seen = {index}
    while (parent := parents[index]) is not None and parent not in seen:
        seen.add(parent)
        index = parent
    return index


_SURENESS = {"certain": 0, "likely": 1, "possible": 2}


def _rank(cause: Cause) -> tuple[int, int, int]:
    """Order causes: the worst first, then what explains most, then what is surest."""
    worst = min(_BAD.index(result.status) for result in (cause.result, *cause.consequences))
    return worst, -len(cause.consequences), _SURENESS[cause.result.confidence]


def diagnose(facts: Facts, checks: Sequence[Check], *, strict: bool = False) -> Diagnosis:
    """Run the checks on the facts and say what is wrong, why, and how sure that is."""
    results = run_checks(facts, checks)
    causes = fold(results)
    counts = Counter(result.status for result in results)
    require = tuple(str(word) for word in facts.asked.get("require", ()))
    unmet = tuple(word for word in require if not _is_met(word, results, checks))
    failed = counts[Status.FAIL] or (strict and counts[Status.WARN])
    verdict: Verdict
    if failed:
        verdict, exit_code = "fail", EXIT_CHECK_FAILED
    elif unmet:
        verdict, exit_code = "undiagnosed", EXIT_NOT_DIAGNOSED
    elif counts[Status.WARN] or counts[Status.ERROR]:
        verdict, exit_code = "warn", EXIT_OK
    elif not _is_anything(results, checks):
        verdict, exit_code = "nothing-to-diagnose", EXIT_OK
    else:
        verdict, exit_code = "pass", EXIT_OK
    return Diagnosis(
        verdict=verdict,
        headline=_headline(causes, counts),
        causes=causes,
        results=results,
        counts=dict(counts),
        where=facts.where,
        asked=facts.asked,
        unmet=unmet,
        timings_s={name: run.duration_s for name, run in facts.probes.items()},
        interrupted=not facts.complete,
        exit_code=exit_code if facts.complete else EXIT_INTERRUPTED,
    )


def _is_anything(results: Sequence[CheckResult], checks: Sequence[Check]) -> bool:
    """Say whether there was a GPU or a torch to look at."""
    ids = {check.id for check in checks if {"gpu", "torch"} & set(check.provides)}
    return any(result.status in _SETTLED for result in results if result.id in ids)


def _is_met(word: str, results: Sequence[CheckResult], checks: Sequence[Check]) -> bool:
    ids = {check.id for check in checks if word in check.provides}
    mine = [result.status for result in results if result.id in ids]
    return any(status in _SETTLED for status in mine) and Status.ERROR not in mine


def _headline(causes: Sequence[Cause], counts: Mapping[Status, int]) -> str:
    def number(count: int, word: str) -> str:
        return f"{count} {word}{'' if count == 1 else 's'}"

    parts = []
    if causes:
        parts.append(number(len(causes), "cause"))
        folded = sum(len(cause.consequences) for cause in causes)
        if folded:
            parts.append(number(folded, "consequence"))
    parts.append(f"{counts.get(Status.PASS, 0)} passed")
    parts.append(f"{counts.get(Status.SKIP, 0)} skipped")
    if counts.get(Status.ERROR, 0):
        parts.append(number(counts[Status.ERROR], "error"))
    return ", ".join(parts)
