"""Ports that are published beside the kind's own."""

from __future__ import annotations

import ipaddress
import re

from gpuenv.containers.values import is_number
from gpuenv.engine.protocol import PortBinding
from gpuenv.errors import ConfigurationError

_PUBLISH = re.compile(
    r"(?:(?P<ip>\[[0-9a-fA-F:.]+\]|[0-9]+(?:\.[0-9]+)+):)?(?:(?P<host>[0-9]+):)?(?P<container>[0-9]+)"
)
_HIGHEST = 65535


def parse_port(text: str | int, *, flag: str) -> int:
    """Read a port number.

    Raises:
        ConfigurationError: It is none.
    """
    if not is_number(str(text)) or not 0 < int(text) <= _HIGHEST:
        raise ConfigurationError(
            f"{flag} {text} is not a port",
            why="a port is a number from 1 to 65535",
            fix=f"{flag} 8888",
        )
    return int(text)


def parse_publish(text: str) -> PortBinding:
    """Read ``--publish [ADDRESS:][HOST:]CONTAINER``; the loopback, and the same port, by default.

    Raises:
        ConfigurationError: It has not that form.
    """
    match = _PUBLISH.fullmatch(text)
    if match is None:
        raise ConfigurationError(
            f"--publish {text!r} is not a port",
            why="it is [ADDRESS:][HOST-PORT:]CONTAINER-PORT",
            fix="--publish 6006",
        )
    container = parse_port(match["container"], flag="--publish")
    host = parse_port(match["host"], flag="--publish") if match["host"] else container
    address = (match["ip"] or "127.0.0.1").strip("[]")
    try:
        ipaddress.ip_address(address)
    except ValueError as exc:
        raise ConfigurationError(
            f"--publish {text!r} names no address",
            why=str(exc),
            fix=f"--publish 127.0.0.1:{host}:{container}",
        ) from exc
    return PortBinding(container_port=container, host_port=host, host_ip=address)
