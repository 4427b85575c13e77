"""The network of a private engine: a bridge and three firewall rules of its own.

A second Docker engine that manages the firewall itself would flush the chains of the first. So the
private one is started with ``--iptables=false`` and gets what its containers need to reach the
outside from here, each rule marked with a comment by which exactly those are removed again.
"""

from __future__ import annotations

import ipaddress
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from gpuenv import process
from gpuenv.engine.errors import PrivateEngineError
from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable

_TIMEOUT_S = 30.0
_BRIDGE_PREFIX = 20
_ROUTE_UP = 1
_CANDIDATES = tuple(ipaddress.IPv4Network(f"10.{second}.0.0/16") for second in range(213, 255))


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateNetwork:
    """Names and addresses.

    Attributes:
        pool: All addresses of the engine: its bridge's and those of the networks made on it.
        gateway: The host's own address on the bridge, with its prefix: ``10.213.0.1/20``.
        networks: What networks made on the engine are cut from.
        mtu: Of the way out, so that nothing has to be cut up.
    """

    bridge: str
    pool: str
    gateway: str
    networks: str
    mtu: int


def parse_routes(text: str) -> tuple[tuple[str, ipaddress.IPv4Network], ...]:
    """Read ``/proc/net/route``: interface and destination, numbers in hex and little endian.

    ::

        Iface   Destination  Gateway   Flags  RefCnt  Use  Metric  Mask      MTU  Window  IRTT
        eth0    00000000     010200C0  0003   0       0    0       00000000  0    0       0
    """
    routes: list[tuple[str, ipaddress.IPv4Network]] = []
    for line in text.splitlines()[1:]:
        words = line.split()
        if len(words) < 8 or not int(words[3], 16) & _ROUTE_UP:  # noqa: PLR2004 - Mask is the 8th
            continue
        address, mask = (
            int.from_bytes(bytes.fromhex(words[column]), "little") for column in (1, 7)
        )
        routes.append((words[0], ipaddress.IPv4Network((address, mask.bit_count()))))
    return tuple(routes)


def plan_network(
    mark: str, routes: Iterable[tuple[str, ipaddress.IPv4Network]], *, mtus: dict[str, int]
) -> PrivateNetwork:
    """Choose addresses that no route of this host uses.

    Args:
        mark: Tells this engine from others, a few hex digits.
        routes: Of this host.
        mtus: Interface → MTU.

    Raises:
        PrivateEngineError: All candidates are in use.
    """
    routes = tuple(routes)
    used = [network for _, network in routes if network.prefixlen > 0]
    for pool in _CANDIDATES:
        if not any(pool.overlaps(network) for network in used):
            break
    else:
        raise PrivateEngineError(
            "no network is free for a private engine",
            why=f"routes cover all of {_CANDIDATES[0]} to {_CANDIDATES[-1]}",
            fix="use the engine that is there, or remove a route",
        )
    halves = tuple(pool.subnets(prefixlen_diff=1))
    ways_out = [mtus[name] for name, network in routes if network.prefixlen == 0 and name in mtus]
    return PrivateNetwork(
        bridge=f"gpuenv-{mark[:6]}",
        pool=str(pool),
        gateway=f"{pool.network_address + 1}/{_BRIDGE_PREFIX}",
        networks=str(halves[1]),
        mtu=min(ways_out, default=1500),
    )


def probe_network(mark: str) -> PrivateNetwork:
    """Read this host's routes and plan with them."""
    routes = parse_routes(Path("/proc/net/route").read_text("ascii"))
    mtus = {
        path.name: int((path / "mtu").read_text())
        for path in Path("/sys/class/net").iterdir()
        if (path / "mtu").is_file()
    }
    return plan_network(mark, routes, mtus=mtus)


def firewall_rules(network: PrivateNetwork) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    """Return table, chain and rule of what lets the containers out and the answers back in."""
    pool = network.pool
    comment = ("-m", "comment", "--comment", network.bridge)
    return (
        ("nat", "POSTROUTING", ("-s", pool, "!", "-d", pool, *comment, "-j", "MASQUERADE")),
        ("filter", "FORWARD", ("-s", pool, *comment, "-j", "ACCEPT")),
        (
            "filter",
            "FORWARD",
            ("-d", pool, "-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED", *comment,
             "-j", "ACCEPT"),
        ),
    )  # fmt: skip


def set_up(network: PrivateNetwork) -> None:
    """Make the bridge and the rules; what is there already stays as it is.

    Raises:
        PrivateEngineError: A command failed; nothing is left of the attempt.
    """
    try:
        if not _bridge_exists(network.bridge):
            _run("ip", "link", "add", network.bridge, "type", "bridge")
            _run("ip", "addr", "add", network.gateway, "dev", network.bridge)
            _run("ip", "link", "set", network.bridge, "mtu", str(network.mtu), "up")
        for table, chain, rule in firewall_rules(network):
            if not _works("iptables", "-w", "-t", table, "-C", chain, *rule):
                _run("iptables", "-w", "-t", table, "-I", chain, "1", *rule)
    except BaseException:
        tear_down(network)
        raise


def tear_down(network: PrivateNetwork) -> None:
    """Remove the rules and the bridge, as far as they are there."""
    for table, chain, rule in firewall_rules(network):
        while _works("iptables", "-w", "-t", table, "-D", chain, *rule):
            pass
    if _bridge_exists(network.bridge):
        _works("ip", "link", "del", network.bridge)


def _bridge_exists(name: str) -> bool:
    # Not by /sys: it may show the interfaces of another network namespace.
    return name in {interface for _, interface in socket.if_nameindex()}


def _works(*arguments: str) -> bool:
    try:
        return process.run_program(arguments, timeout_s=_TIMEOUT_S).exit_code == 0
    except process.ProgramNotFoundError:
        return False


def _run(*arguments: str) -> None:
    try:
        done = process.run_program(arguments, timeout_s=_TIMEOUT_S)
    except process.ProgramNotFoundError as exc:
        raise PrivateEngineError(
            "the network of a private engine cannot be made",
            why=f"there is no program {arguments[0]}",
            fix="apt-get install iproute2 iptables",
        ) from exc
    if done.exit_code != 0:
        raise PrivateEngineError(
            "the network of a private engine cannot be made",
            why=f"{' '.join(arguments)}: {done.stderr.strip()}",
            fix="run as root, in a network namespace that may be changed",
        )
