"""What an engine will not do as a container's description asks; pure, and asked before create.

An engine that leaves something out without a word is worse than one that fails: a container
without its GPU, or without the memory limit that keeps a neighbour alive. So nothing in a
:class:`~gpuenv.engine.protocol.ContainerSpec` is ever dropped silently: it is applied, or there is
a finding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuenv.engine.capabilities import EngineCapabilities
    from gpuenv.engine.protocol import ContainerSpec

Severity: TypeAlias = Literal["refusal", "warning"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that will not be as asked.

    Attributes:
        severity: A refusal stops the create, a warning is shown.
        field: The field of the spec.
    """

    severity: Severity
    field: str
    what: str
    why: str = ""
    fix: str = ""

    def as_dict(self) -> dict[str, str]:
        """Return the finding for ``--json`` and ``--dry-run``."""
        return {
            "severity": self.severity,
            "field": self.field,
            "what": self.what,
            "why": self.why,
            "fix": self.fix,
        }


def review(spec: ContainerSpec, caps: EngineCapabilities) -> tuple[Finding, ...]:
    """Return what this engine will not do as the spec asks, refusals first."""
    findings: list[Finding] = []
    for limit, name, asked in (
        ("memory", "memory_bytes", spec.memory_bytes),
        ("cpu", "cpus", spec.cpus),
        ("pids", "pids_limit", spec.pids_limit),
    ):
        if asked is not None and limit not in caps.limits:
            findings.append(
                Finding(
                    severity="warning",
                    field=name,
                    what=f"the {limit} limit will not be applied",
                    why="the engine has no control group for it",
                    fix="use a rootful engine, or delegate the controllers to the user's session",
                )
            )
    return tuple(sorted(findings, key=lambda finding: finding.severity != "refusal"))


def compare_created(
    spec: ContainerSpec, inspect: Mapping[str, Any], *, known: tuple[Finding, ...] = ()
) -> tuple[Finding, ...]:
    """Compare a container that was made with what was asked; the second net against silence.

    ``inspect`` is the engine's ``GET /containers/ID/json``, and ``known`` what the review said
    already: the same field is not told twice.
    """
    host = inspect.get("HostConfig") or {}
    config = inspect.get("Config") or {}
    told = {finding.field for finding in known}
    asked_and_got: list[tuple[str, object, object]] = [
        ("memory_bytes", spec.memory_bytes, int(host.get("Memory") or 0)),
        (
            "cpus",
            None if spec.cpus is None else round(spec.cpus * 1e9),
            int(host.get("NanoCpus") or 0),
        ),
        ("pids_limit", spec.pids_limit, int(host.get("PidsLimit") or 0)),
        ("shm_bytes", spec.shm_bytes, int(host.get("ShmSize") or 0)),
        ("user", spec.user, str(config.get("User") or "")),
        ("ipc", spec.ipc, str(host.get("IpcMode") or "")),
        ("init", spec.init or None, bool(host.get("Init"))),
        (
            "ulimits",
            _ulimits(spec) or None,
            tuple(
                sorted(
                    (str(u["Name"]).lower().removeprefix("rlimit_"), u["Soft"], u["Hard"])
                    for u in host.get("Ulimits") or ()
                )
            ),
        ),
        ("cap_drop", _capabilities(spec.cap_drop) or None, _capabilities(host.get("CapDrop"))),
        (
            "group_add",
            tuple(sorted(spec.group_add)) or None,
            tuple(sorted(host.get("GroupAdd") or ())),
        ),
        (
            "gpu",
            None if spec.gpu is None else True,
            bool(host.get("DeviceRequests") or host.get("Devices")),
        ),
    ]
    return tuple(
        Finding(
            severity="warning",
            field=name,
            what=f"the engine made the container with another {name.replace('_', ' ')}",
            why=f"asked {asked}, got {got}",
        )
        for name, asked, got in asked_and_got
        if asked is not None and asked != got and name not in told
    )


def _ulimits(spec: ContainerSpec) -> tuple[tuple[str, int, int], ...]:
    return tuple(sorted((limit.name, limit.soft, limit.hard) for limit in spec.ulimits))


def _capabilities(names: object) -> tuple[str, ...]:
    listed = names if isinstance(names, (list, tuple)) else ()
    return tuple(sorted(str(name).upper().removeprefix("CAP_") for name in listed))
