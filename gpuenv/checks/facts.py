"""Fact documents as JSON: what ``--capture`` and emitted probes write and ``--from`` reads."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast, get_args

from gpuenv.checks.model import Facts, Level, ProbeRun, ProbeStatus
from gpuenv.errors import ConfigurationError
from gpuenv.reading import MIB, parse_json, read_named, read_stream, reason

SCHEMA_VERSION = "1"
_LIMIT_BYTES = 64 * MIB
_STATUSES = frozenset(get_args(ProbeStatus))


def facts_as_document(facts: Facts) -> dict[str, Any]:
    """Return the one-object form, which ``--capture`` writes."""
    return {
        "gpuenv_facts_version": facts.schema_version,
        "where": dict(facts.where),
        "asked": dict(facts.asked),
        "complete": facts.complete,
        "probes": {name: probe_run_as_document(run) for name, run in facts.probes.items()},
    }


def probe_run_as_document(run: ProbeRun) -> dict[str, Any]:
    """Return one probe's run as it stands in a document and in a JSON line."""
    document: dict[str, Any] = {"status": run.status, "duration_s": round(run.duration_s, 4)}
    if run.facts:
        document["facts"] = dict(run.facts)
    if run.error:
        document["error"] = run.error
    return document


def load_facts(path: str) -> Facts:
    """Read a fact document from a file, or from standard input when the path is ``-``.

    Raises:
        ConfigurationError: It cannot be read, or holds no facts.
    """
    try:
        if path == "-":
            data = read_stream(sys.stdin.buffer, name=path, limit_bytes=_LIMIT_BYTES)
        else:
            data = read_named(Path(path), limit_bytes=_LIMIT_BYTES)
    except OSError as exc:
        raise ConfigurationError(
            f"cannot read {'standard input' if path == '-' else path}",
            why=reason(exc),
            fix="name what gpuenv doctor --capture or --json wrote",
        ) from exc
    origin = "standard input" if path == "-" else path
    return parse_facts(data.decode("utf-8", "replace"), origin=origin)


def parse_facts(text: str, *, origin: str = "the facts") -> Facts:
    """Parse a fact document: one object, or the JSON lines of an emitted probe.

    Args:
        text: The whole document.
        origin: What error messages call it, usually the path.

    Raises:
        ConfigurationError: It is neither, or of a version this gpuenv does not know.
    """
    text = text.lstrip("\ufeff").strip()
    try:
        document = parse_json(text)
    except ValueError:
        return _parse_lines(text, origin=origin)
    if isinstance(document, Mapping) and "gpuenv_result_version" in document:
        data = document.get("data")
        document = data.get("facts") if isinstance(data, Mapping) else None
    if not isinstance(document, Mapping):
        raise _not_facts(origin, "it is not a JSON object")
    if "probe" in document or "gpuenv_probe_stream" in document:
        return _parse_lines(text, origin=origin)
    _require_version(document.get("gpuenv_facts_version"), origin)
    probes = document.get("probes")
    if not isinstance(probes, Mapping):
        raise _not_facts(origin, "it has no object `probes`")
    return Facts(
        where=_mapping(document.get("where")),
        asked=_asked(document.get("asked"), origin),
        complete=document.get("complete") is not False,
        probes={str(name): parse_probe_run(run) for name, run in probes.items()},
    )


def _parse_lines(text: str, *, origin: str) -> Facts:
    """Parse the stream of an emitted probe: a head, one line a probe, a last line ``done``.

    Lines that are no JSON (a login banner, ``docker run`` pulling an image) are passed over.
    """
    where: Mapping[str, Any] = {}
    asked: Mapping[str, Any] = {}
    probes: dict[str, ProbeRun] = {}
    complete = headed = False
    for line in text.splitlines():
        try:
            entry = parse_json(line)
        except ValueError:
            continue
        if not isinstance(entry, Mapping):
            continue
        if "gpuenv_probe_stream" in entry:
            _require_version(entry["gpuenv_probe_stream"], origin)
            headed, where = True, _mapping(entry.get("where"))
            asked = _asked(entry.get("asked"), origin)
        elif "probe" in entry:
            probes[str(entry["probe"])] = parse_probe_run(entry)
        elif entry.get("done") is True:
            complete = True
    if not headed:
        raise _not_facts(origin, "it is neither one JSON object nor the lines of an emitted probe")
    return Facts(where=where, asked=asked, probes=probes, complete=complete)


def parse_probe_run(entry: object) -> ProbeRun:
    """Parse one probe's run; what makes no sense becomes ``garbage``, never an exception."""
    if not isinstance(entry, Mapping):
        return ProbeRun(status="garbage", error="not an object")
    status = entry.get("status")
    facts = entry.get("facts", {})
    duration_s = entry.get("duration_s", 0.0)
    if not isinstance(status, str) or status not in _STATUSES or not isinstance(facts, Mapping):
        return ProbeRun(status="garbage", error=f"unreadable answer: {str(dict(entry))[:200]}")
    return ProbeRun(
        status=cast("ProbeStatus", status),
        facts=facts,
        error=str(entry.get("error", "")),
        duration_s=float(duration_s) if isinstance(duration_s, (int, float)) else 0.0,
    )


def _asked(value: object, origin: str) -> Mapping[str, Any]:
    """Return what was asked of the doctor, whose words the checks and reports count on.

    Raises:
        ConfigurationError: A level, a number or words that this gpuenv does not know.
    """
    asked = _mapping(value)
    level, expected = asked.get("level", Level.DEEP), asked.get("expect_gpus", 0)
    levels = [int(known) for known in Level]
    faults = []
    if isinstance(level, bool) or level not in levels:
        faults.append(f"level is {level!r}, this gpuenv knows {levels[0]} to {levels[-1]}")
    if expected is not None and (isinstance(expected, bool) or not isinstance(expected, int)):
        faults.append(f"expect_gpus is {expected!r} and no number")
    for key in ("require", "skip"):
        words = asked.get(key, ())
        if not isinstance(words, (list, tuple)) or not all(isinstance(it, str) for it in words):
            faults.append(f"{key} is {words!r} and no list of words")
    if faults:
        raise ConfigurationError(
            f"{origin} asks for what this gpuenv does not know",
            why="; ".join(faults),
            fix="capture the facts again with this gpuenv, or mend `asked` in that file",
        )
    return asked


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _require_version(version: object, origin: str) -> None:
    if str(version) != SCHEMA_VERSION:
        raise ConfigurationError(
            f"{origin} holds facts of version {version!r}",
            why=f"this gpuenv reads version {SCHEMA_VERSION}",
            fix="capture them again with this gpuenv, or use the gpuenv that wrote them",
        )


def _not_facts(origin: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"{origin} holds no facts of the doctor",
        why=why,
        fix="write them with `gpuenv doctor --capture FILE` or `gpuenv doctor --emit-probe`",
    )
