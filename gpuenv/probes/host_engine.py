"""The container engine as its files and its socket show it; no docker package or command."""

from __future__ import annotations

import json
import os
import re
import socket

from ._common import Context, errno_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_SOCKET = "/var/run/docker.sock"
_TIMEOUT_S = 3.0
_ANSWER_LIMIT = 4 << 20
_CONTAINERS_UP_TO = 16
_DAEMON_FILES = (
    "/etc/docker/daemon.json",
    "/var/snap/docker/current/config/daemon.json",
)
_TRANSIENT = "/run/systemd/transient"


def probe(context: Context) -> dict[str, Any]:
    """Return which engine answers, how it is set, and what systemd knows of its containers.

    Keys: ``socket`` {path, errno, error}, ``info`` {server_version, name, runtimes,
    default_runtime, cgroup_driver, cgroup_version, cdi_spec_dirs, devices, rootless, root_dir,
    driver, operating_system} or ``None``, ``daemon_files`` [{path, error, runtimes,
    default_runtime, cdi, exec_opts, data_root}], ``scopes`` {container id: [devices allowed]},
    ``gpu_containers`` [{id, name, how}], ``snap``, ``podman``.
    """
    info = None
    gate = {"path": None, "errno": "ENOENT", "error": ""}
    path = _socket_path(context)
    if path is not None:
        gate["path"] = path
        try:
            info = _info(_get(path, "/info"))
            gate["errno"] = None
        except OSError as error:
            gate["errno"] = errno_name(error)
            gate["error"] = str(error)
        except ValueError as error:
            gate["errno"] = None
            gate["error"] = str(error)
    scopes = _scopes(context)
    return {
        "socket": gate,
        "info": info,
        "daemon_files": [
            entry for entry in (_daemon_file(context, path) for path in _DAEMON_FILES) if entry
        ],
        "scopes": scopes,
        "gpu_containers": _gpu_containers(path) if path and info and scopes else [],
        "snap": context.exists("/var/snap/docker"),
        "podman": any(
            context.exists(folder + "/podman") for folder in ("/usr/bin", "/usr/local/bin")
        ),
    }


def _socket_path(context: Context) -> str | None:
    if not context.is_real:
        return None
    host = os.environ.get("DOCKER_HOST", "")
    if host.startswith("unix://"):
        return host[len("unix://") :]
    if host:
        return None  # a remote engine: its host is not this machine
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    for path in (_SOCKET, runtime + "/docker.sock" if runtime else _SOCKET):
        if os.path.exists(path):
            return path
    return None


def _get(path: str, target: str) -> Any:
    """Ask the engine by HTTP/1.0, which it answers without chunks and then hangs up."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
        stream.settimeout(_TIMEOUT_S)
        stream.connect(path)
        stream.sendall("GET {} HTTP/1.0\r\nHost: engine\r\n\r\n".format(target).encode())
        raw = b""
        while len(raw) < _ANSWER_LIMIT:
            piece = stream.recv(65536)
            if not piece:
                break
            raw += piece
    head, _, body = raw.partition(b"\r\n\r\n")
    status = head.split(b" ", 2)[1:2]
    if status != [b"200"]:
        raise ValueError("answered {}".format(head[:80].decode("utf-8", "replace")))
    return json.loads(body.decode("utf-8", "replace"))


def _info(document: dict[str, Any]) -> dict[str, Any]:
    security = document.get("SecurityOptions") or []
    return {
        "server_version": document.get("ServerVersion"),
        "name": "podman" if "BuildahVersion" in document else "docker",
        "runtimes": sorted(document.get("Runtimes") or {}),
        "default_runtime": document.get("DefaultRuntime"),
        "cgroup_driver": document.get("CgroupDriver"),
        "cgroup_version": document.get("CgroupVersion"),
        "cdi_spec_dirs": document.get("CDISpecDirs") or [],
        "devices": [
            str(device.get("ID"))
            for device in document.get("DiscoveredDevices") or []
            if isinstance(device, dict)
        ][:64],
        "rootless": any("rootless" in str(option) for option in security)
        or bool(document.get("Rootless")),
        "root_dir": document.get("DockerRootDir"),
        "driver": document.get("Driver"),
        "operating_system": document.get("OperatingSystem"),
        "warnings": [str(text)[:200] for text in document.get("Warnings") or []][:20],
    }


def _daemon_file(context: Context, path: str) -> dict[str, Any] | None:
    answer = context.read_or_errno(path)
    if answer.get("errno") in ("ENOENT", "ENOTDIR"):
        return None
    entry = {"path": path, "error": answer.get("errno")}
    try:
        document = json.loads(answer.get("text") or "{}")
        if not isinstance(document, dict):
            raise ValueError("not an object")
    except ValueError as error:
        entry["error"] = "not JSON: {}".format(error)
        return entry
    features = document.get("features")
    entry["runtimes"] = sorted(document.get("runtimes") or {})
    entry["default_runtime"] = document.get("default-runtime")
    entry["cdi"] = features.get("cdi") if isinstance(features, dict) else None
    entry["exec_opts"] = document.get("exec-opts") or []
    entry["data_root"] = document.get("data-root")
    entry["shm_size"] = document.get("default-shm-size")
    entry["ulimits"] = sorted(document.get("default-ulimits") or {})
    return entry


def _scopes(context: Context) -> dict[str, list[str]]:
    """Read which devices systemd would allow each container after its next daemon-reload.

    The drop-in says ``DeviceAllow=char-195:* rwm`` or ``DeviceAllow=/dev/char/195:0 rw``.
    """
    found = {}
    for name in context.names(_TRANSIENT):
        match = re.fullmatch(r"docker-([0-9a-f]{12,64})\.scope\.d", name)
        if not match:
            continue
        text = context.read(_TRANSIENT + "/" + name + "/50-DeviceAllow.conf") or ""
        found[match[1][:12]] = [
            line.partition("=")[2].strip()
            for line in text.splitlines()
            if line.startswith("DeviceAllow=") and line.strip() != "DeviceAllow="
        ][:200]
    return found


def _gpu_containers(path: str) -> list[dict[str, str]]:
    """Return the running containers that were given a GPU, and by which way."""
    found = []
    try:
        for entry in _get(path, "/containers/json")[:_CONTAINERS_UP_TO]:
            document = _get(path, "/containers/{}/json".format(entry["Id"]))
            host = document.get("HostConfig") or {}
            how = None
            for request in host.get("DeviceRequests") or []:
                how = "cdi" if request.get("Driver") == "cdi" else "request"
            if host.get("Runtime") == "nvidia":
                how = "runtime"
            if any("nvidia" in str(device) for device in host.get("Devices") or []):
                how = "nodes"
            if how:
                found.append(
                    {
                        "id": str(entry["Id"])[:12],
                        "name": str(document.get("Name", "")).lstrip("/"),
                        "how": how,
                    }
                )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    return found


PROBES = {"host.engine": probe}
