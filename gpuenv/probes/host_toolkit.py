"""The NVIDIA container toolkit: its programs, its configuration, and the CDI specs on disk."""

from __future__ import annotations

import json
import re
import subprocess

from ._common import Context

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_FOLDERS = (
    "/usr/local/bin",
    "/usr/bin",
    "/usr/local/sbin",
    "/usr/sbin",
    "/usr/local/nvidia/toolkit",
)
_PROGRAMS = (
    "nvidia-ctk",
    "nvidia-cdi-hook",
    "nvidia-container-cli",
    "nvidia-container-runtime",
    "nvidia-container-runtime-hook",
)
_CONFIG = "/etc/nvidia-container-runtime/config.toml"
_CDI_FOLDERS = ("/etc/cdi", "/var/run/cdi")
_RELEASE = re.compile(r"\.so\.([0-9]{3}\.[0-9]+(?:\.[0-9]+)?)\b")


def probe(context: Context) -> dict[str, Any]:
    """Return what is installed and how it is set.

    Keys: ``programs`` {name: path or ``None``}, ``version`` (of nvidia-ctk), ``config`` {path,
    errno, values {"nvidia-container-cli.no-cgroups": true}}, ``cdi`` [{path, error, kind, devices,
    paths, missing, releases, has_uvm}], ``cdi_folders``, ``hooks`` (OCI files),
    ``refresh_service``.
    """
    programs = {name: _find(context, name) for name in _PROGRAMS}
    return {
        "programs": programs,
        "version": _version(context, programs["nvidia-ctk"]),
        "config": _config(context),
        "cdi_folders": [folder for folder in _CDI_FOLDERS if context.exists(folder)],
        "cdi": [
            _spec(context, folder + "/" + name)
            for folder in _CDI_FOLDERS
            for name in context.names(folder)
            if name.endswith((".yaml", ".yml", ".json"))
        ],
        "hooks": [
            folder + "/" + name
            for folder in ("/usr/share/containers/oci/hooks.d", "/etc/containers/oci/hooks.d")
            for name in context.names(folder)
            if "nvidia" in name
        ],
        "refresh_service": any(
            context.exists(folder + "/nvidia-cdi-refresh.service")
            for folder in ("/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")
        ),
    }


def _find(context: Context, name: str) -> str | None:
    for folder in _FOLDERS:
        if context.exists(folder + "/" + name):
            return folder + "/" + name
    return None


def _version(context: Context, program: str | None) -> str | None:
    """Read ``NVIDIA Container Toolkit CLI version 1.17.8``."""
    if program is None:
        return None
    text = context.word("/usr/share/gpuenv-picture/nvidia-ctk") or ""
    if context.is_real:
        try:
            text = subprocess.run(
                [program, "--version"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=3,
                check=False,
            ).stdout.decode("utf-8", "replace")
        except (OSError, subprocess.TimeoutExpired):
            return None
    match = re.search(r"version v?([0-9]+(?:\.[0-9]+)+\S*)", text)
    return match[1] if match else None


def _config(context: Context) -> dict[str, Any]:
    answer = context.read_or_errno(_CONFIG)
    return {
        "path": _CONFIG,
        "errno": answer.get("errno"),
        "values": parse_toml_values(answer.get("text", "")),
    }


def parse_toml_values(text: str) -> dict[str, Any]:
    """Read ``key = value`` below ``[section]``; enough for this one file, on any Python.

    Strings, booleans and integers on one line each; lists are kept as their text. What is commented
    out is not set.
    """
    values = {}
    section = ""
    for line in text.splitlines():
        line = line.strip()
        if line.startswith("[") and line.endswith("]"):
            section = line.strip("[]").strip().strip('"') + "."
        elif "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            values[section + key.strip().strip('"')] = _toml_value(value.strip())
    return values


def _toml_value(text: str) -> Any:
    if text[:1] in ("'", '"'):
        end = text.find(text[0], 1)
        return text[1 : end if end > 0 else None]
    text = text.partition("#")[0].strip()
    if text in ("true", "false"):
        return text == "true"
    return int(text) if text.lstrip("-").isdigit() else text


def _spec(context: Context, path: str) -> dict[str, Any]:
    """Read one CDI spec, JSON or YAML, as far as names and host paths go."""
    answer = context.read_or_errno(path, 4 << 20)
    text = answer.get("text", "")
    spec = {"path": path, "error": answer.get("errno"), "kind": None, "devices": []}
    if "errno" in answer:
        return spec
    names, kind, paths = [], None, []
    try:
        document = json.loads(text) if text.lstrip().startswith("{") else parse_block_yaml(text)
        names, kind, paths = _names_and_paths(document)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        spec["error"] = "unreadable: {}".format(error)
    if spec["error"] is None and (not kind or not names):
        spec["error"] = "no kind or no devices"
    spec["kind"], spec["devices"] = kind, names[:64]
    unique = sorted(set(paths))
    spec["paths"] = len(unique)
    spec["missing"] = [entry for entry in unique if not context.exists(entry)][:20]
    spec["releases"] = sorted({match for entry in unique for match in _RELEASE.findall(entry)})
    spec["has_uvm"] = any(entry == "/dev/nvidia-uvm" for entry in unique)
    return spec


def _names_and_paths(document: dict[str, Any]) -> tuple[list[str], str | None, list[str]]:
    edits = [document.get("containerEdits") or {}]
    names = []
    for device in document.get("devices") or []:
        names.append(str(device["name"]))
        edits.append(device.get("containerEdits") or {})
    paths = []
    for edit in edits:
        for node in edit.get("deviceNodes") or []:
            paths.append(node.get("hostPath") or node["path"])
        for mount in edit.get("mounts") or []:
            paths.append(mount["hostPath"])
        for hook in edit.get("hooks") or []:
            paths.append(hook["path"])
    return names, document.get("kind"), [path for path in paths if path.startswith("/")]


def parse_block_yaml(text: str) -> Any:
    """Read YAML in block style, as ``nvidia-ctk cdi generate`` writes it; every scalar is a text.

    Mappings, sequences, plain and quoted scalars, comments on lines of their own. Raises ValueError
    for everything else, flow style but for ``[]`` and ``{}`` included.
    """
    lines = []
    for raw in text.splitlines():
        stripped = raw.strip()
        if not stripped or stripped.startswith("#") or stripped == "---":
            continue
        margin = raw[: len(raw) - len(raw.lstrip())]
        if "\t" in margin:
            raise ValueError("a tab in the indentation")
        lines.append((len(margin), stripped))
    if not lines:
        raise ValueError("empty")
    value, rest = _block(lines, 0)
    if rest != len(lines):
        raise ValueError("wrong indentation: {}".format(lines[rest][1][:60]))
    return value


def _block(lines: list[tuple[int, str]], at: int) -> tuple[Any, int]:
    """Read the mapping or sequence that begins at a line; return it and the line behind it."""
    indent, first = lines[at]
    if first == "-" or first.startswith("- "):
        items = []
        while at < len(lines) and lines[at][0] == indent and lines[at][1][:2].strip() == "-":
            item = lines[at][1][1:].lstrip()
            if not item:
                value, at = _block(lines, at + 1)
            elif _splits(item):
                # The item's mapping begins on the dash's own line.
                lines[at] = (indent + len(lines[at][1]) - len(item), item)
                value, at = _block(lines, at)
            else:
                value, at = _scalar(item), at + 1
            items.append(value)
        return items, at
    mapping = {}
    while at < len(lines) and lines[at][0] == indent and not lines[at][1].startswith("- "):
        pair = _splits(lines[at][1])
        if not pair:
            raise ValueError("a line without a key: {}".format(lines[at][1][:60]))
        key, value = pair
        at += 1
        if value:
            mapping[key] = _scalar(value)
        elif at < len(lines) and (
            lines[at][0] > indent or (lines[at][0] == indent and lines[at][1].startswith("-"))
        ):
            mapping[key], at = _block(lines, at)
        else:
            mapping[key] = None
    return mapping, at


def _splits(text: str) -> tuple[str, str] | None:
    """Split ``key: value``; a colon inside a path or an image name splits nothing."""
    match = re.match(r"(\"[^\"]*\"|'[^']*'|[^\s\"'\[{][^:]*):(?:\s+(.*))?$", text)
    return (match[1].strip("\"'"), (match[2] or "").strip()) if match else None


def _scalar(text: str) -> Any:
    if text in ("[]", "{}"):
        return [] if text == "[]" else {}
    if text[:1] in "[{&*|>":
        raise ValueError("flow style: {}".format(text[:60]))
    if text[:1] in ("'", '"') and text.endswith(text[0]) and len(text) > 1:
        return text[1:-1]
    return text.partition(" #")[0].strip()


PROBES = {"host.toolkit": probe}
