"""What lies on the client's side so that ``ssh``, ``scp`` and editors reach an environment.

::

    STATE/ssh/known_hosts                       every environment's host key, by alias
    STATE/ssh/config                            includes the next one of every environment
    STATE/environments/NAME[@PLACE]/ssh_config  how this one is reached; gone with it
"""

from __future__ import annotations

import re
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING

from gpuenv.containers.files import EnvironmentFiles
from gpuenv.ssh.client import Target, alias_of, render_block
from gpuenv.ssh.client_config import ClientConfig, include_line, writing
from gpuenv.ssh.known_hosts import forget_host, known_hosts_path, pin_host_key
from gpuenv.state import state_dir, write_private_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuenv.ssh.keys import PublicKey

_HEADER = "# Written by gpuenv, which also removes it; changes here are lost.\n"


def client_config(environ: Mapping[str, str]) -> ClientConfig:
    """Return which files ``gpuenv ssh config`` is about."""
    folder = state_dir(environ) / "ssh"
    return ClientConfig(
        path=Path(environ.get("HOME") or Path.home()) / ".ssh" / "config",
        included=folder / "config",
        record=folder / "include.json",
    )


def keep_access(
    environ: Mapping[str, str], files: EnvironmentFiles, target: Target, host_key: PublicKey
) -> None:
    """Pin a host key and write down how its environment is reached.

    Raises:
        SshConfigError: The state folder has a name that ``ssh`` cannot include.
    """
    pin_host_key(target.known_hosts, target.alias, host_key)
    block = _HEADER + render_block(target)
    if files.read(files.ssh_config_path) != block:
        files.write(files.ssh_config_path, block)
    write_included(environ)


def write_included(environ: Mapping[str, str]) -> None:
    """Write the file that the user's configuration includes.

    Raises:
        SshConfigError: It cannot be written.
    """
    environments = state_dir(environ) / "environments"
    line = include_line(environments).decode().rstrip('"') + '/*/ssh_config"'
    path = client_config(environ).included
    content = f"{_HEADER}{line}\n".encode()
    try:
        if path.read_bytes() == content:
            return
    except OSError:
        pass
    with writing(path):
        write_private_file(path, content)


def alias_in(files: EnvironmentFiles) -> str | None:
    """Return what ``ssh`` calls an environment, ``None`` if it does not know it yet."""
    for line in (files.read(files.ssh_config_path) or "").splitlines():
        if line.startswith("Host "):
            return line.removeprefix("Host ").strip()
    return None


def choose_alias(
    environ: Mapping[str, str], files: EnvironmentFiles, *, name: str, host: str, place: str
) -> str:
    """Return what ``ssh`` shall call an environment: what it does already, or a name that is free.

    Args:
        name: The environment's.
        host: Of its engine, empty for this one; two users or ports of it are two places.
        place: The whole of it.
    """
    known = alias_in(files)
    if known is not None:
        return known
    others = (state_dir(environ) / "environments").glob("*/ssh_config")
    taken = {
        alias_in(EnvironmentFiles(folder=path.parent))
        for path in others
        if path.parent != files.folder
    }
    short, whole = alias_of(name, _as_host(host)), alias_of(name, _as_host(place))
    numbered = (f"{short}-{number}" for number in count(2))
    return next(alias for alias in chain((short, whole), numbered) if alias not in taken)


def _as_host(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.-]", "-", text)


def forget_access(environ: Mapping[str, str], alias: str) -> None:
    """Forget the host key of an environment that is gone."""
    forget_host(known_hosts_path(environ), alias)


def known_blocks(environ: Mapping[str, str]) -> str:
    """Return what ``ssh`` is told of all environments."""
    paths = sorted((state_dir(environ) / "environments").glob("*/ssh_config"))
    return "\n".join(path.read_text("utf-8", "replace").removeprefix(_HEADER) for path in paths)
