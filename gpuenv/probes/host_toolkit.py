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
    if "errno" not in answer:
        try:
            names, kind, paths = (
                _from_json(text) if text.lstrip().startswith("{") else _from_yaml(text)
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            spec["error"] = "unreadable: {}".format(error)
            names, kind, paths = [], None, []
        if spec["error"] is None and (not kind or not names):
            spec["error"] = "no kind or no devices"
        spec["kind"], spec["devices"] = kind, names[:64]
        unique = sorted(set(paths))
        spec["paths"] = len(unique)
        spec["missing"] = [entry for entry in unique if not context.exists(entry)][:20]
        spec["releases"] = sorted({match for entry in unique for match in _RELEASE.findall(entry)})
        spec["has_uvm"] = any(entry == "/dev/nvidia-uvm" for entry in unique)
    return spec


def _from_json(text: str) -> tuple[list[str], str | None, list[str]]:
    document = json.loads(text)
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
    return names, document.get("kind"), paths


def _from_yaml(text: str) -> tuple[list[str], str | None, list[str]]:
    """Read the lines of a spec.

    As ``nvidia-ctk cdi generate`` writes it::

        kind: nvidia.com/gpu
        devices:
        - name: "0"
          containerEdits:
            deviceNodes:
            - path: /dev/nvidia0
            mounts:
            - hostPath: /usr/lib/libcuda.so.550.54.15
              containerPath: /usr/lib/libcuda.so.550.54.15

    A node's ``path`` counts unless its ``hostPath`` stands beside it; a hook's ``path`` counts.
    """
    names, paths = [], []
    kind, top, section = None, "", ""
    for raw in text.splitlines():
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        if "\t" in raw[: len(raw) - len(raw.lstrip())]:
            raise ValueError("a tab in the indentation")
        item = line[2:].strip() if line.startswith("- ") else line
        key, colon, value = item.partition(":")
        value = value.strip().strip("\"'")
        if not colon and not line.startswith("- "):
            raise ValueError("a line without a key: {}".format(line[:60]))
        if not raw.startswith((" ", "-")):
            top = key
            if key == "kind":
                kind = value
        if key in ("deviceNodes", "mounts", "hooks", "env", "additionalGids"):
            section = key
        elif key == "name" and top == "devices" and raw.lstrip().startswith("- "):
            names.append(value)
        elif key == "hostPath" or (key == "path" and section in ("deviceNodes", "hooks")):
            paths.append(value)
    return names, kind, [path for path in paths if path.startswith("/")]


PROBES = {"host.toolkit": probe}
