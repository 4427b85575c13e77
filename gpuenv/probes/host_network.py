"""The network interfaces NCCL could choose, and the InfiniBand and RoCE ports. No addresses."""

from __future__ import annotations

import os
import socket
import struct

from ._common import Context

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_UP = 0x1
_LOOPBACK = 0x8
_SIOCGIFADDR = 0x8915


def probe(context: Context) -> dict[str, Any]:
    """Return what is there.

    Keys: ``interfaces`` [{name, up, loopback, virtual, ipv4, ipv6, mtu}] with ``ipv4`` and ``ipv6``
    saying whether there is an address (link-local does not count), ``infiniband`` [{device, port,
    state, phys_state, rate, link_layer}], ``peermem``.
    """
    v6 = set()
    for line in (context.read("/proc/net/if_inet6") or "").splitlines():
        words = line.split()
        if len(words) == 6 and not words[0].startswith("fe80"):
            v6.add(words[5])
    interfaces = []
    for name in context.names("/sys/class/net"):
        folder = "/sys/class/net/" + name
        flags = context.number(folder + "/flags", 16)
        if flags is None:
            continue
        interfaces.append(
            {
                "name": name,
                "up": bool(flags & _UP) and context.word(folder + "/operstate") != "down",
                "loopback": bool(flags & _LOOPBACK),
                "virtual": "/virtual/" in (context.link(folder) or ""),
                "ipv4": _has_ipv4(name) if context.is_real else None,
                "ipv6": name in v6,
                "mtu": context.number(folder + "/mtu"),
            }
        )
    ports = []
    for device in context.names("/sys/class/infiniband"):
        for port in context.names("/sys/class/infiniband/" + device + "/ports"):
            folder = "/sys/class/infiniband/" + device + "/ports/" + port
            ports.append(
                {
                    "device": device,
                    "port": port,
                    **{
                        name: context.word(folder + "/" + name)
                        for name in ("state", "phys_state", "rate", "link_layer")
                    },
                }
            )
    return {
        "interfaces": interfaces,
        "infiniband": ports,
        "peermem": any(
            context.exists("/sys/module/" + name) for name in ("nvidia_peermem", "nv_peer_mem")
        ),
    }


def _has_ipv4(name: str) -> bool | None:
    try:
        import fcntl

        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stream:
            fcntl.ioctl(stream.fileno(), _SIOCGIFADDR, struct.pack("256s", os.fsencode(name)[:15]))
    except ImportError:
        return None
    except OSError:
        return False
    return True


PROBES = {"host.network": probe}
