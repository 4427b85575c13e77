"""Another GPU host on this machine: own network, own sshd with its own keys, own engine.

The engine is a private one of gpuenv's in the network namespace of that host, so that a port
published on its loopback can be reached from there alone, as on a real second machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpuenv.ssh.keys import make_key
from tests.conftest import REPOSITORY, missing

if TYPE_CHECKING:
    from collections.abc import Iterator

_PRIVATE = """
import os, sys
from gpuenv.engine.private import down, up
if sys.argv[1] == "up":
    print(up(os.environ, say=lambda text: print(text, file=sys.stderr)).socket)
else:
    down(os.environ, purge=True, say=lambda _: None)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """A host that answers to ``ssh gpu01`` of whoever takes :attr:`config` and :attr:`bin`.

    Attributes:
        root: Its folder.
        address: Its address.
        socket: Its engine's socket.
        namespace: Its network's name.
        bin: A folder with an ``ssh`` that reads the user's configuration of the lab.
    """

    root: Path
    address: str
    socket: str
    namespace: str
    bin: Path

    @property
    def url(self) -> str:
        """The engine, as ``--host`` takes it."""
        return f"ssh://gpu01{self.socket}"

    @property
    def known_hosts(self) -> Path:
        """The user's file of host keys."""
        return self.root / "known_hosts"

    @property
    def environ(self) -> dict[str, str]:
        """An environment in which ``ssh`` is the lab's."""
        return {**os.environ, "PATH": f"{self.bin}:{os.environ['PATH']}"}

    def trust(self) -> None:
        """Make the host's key known to the user."""
        key = (self.root / "hostkey.pub").read_text().split()
        self.known_hosts.write_text(f"gpu01,{self.address} {key[0]} {key[1]}\n")


def require_lab() -> None:
    """Skip where a lab cannot be made."""
    if os.geteuid() != 0:
        missing("root, to make a host with its own network")
    for program in ("ip", "nsenter", "dockerd", "iptables", "ssh"):
        if shutil.which(program) is None:
            missing(f"{program}, to make a host with its own network")
    if not Path("/usr/sbin/sshd").exists():
        missing("sshd, for a host to log in to")


@contextlib.contextmanager
def lab() -> Iterator[Lab]:
    """Make the host, and end everything of it afterwards."""
    require_lab()
    root = Path(tempfile.mkdtemp(prefix="gpuenv-lab-"))
    root.chmod(0o755)
    word = secrets.token_hex(3)
    namespace, outer = f"gpuenv-{word}", f"glab{word}"
    third = 1 + secrets.randbelow(250)
    ours, address = f"10.99.{third}.1", f"10.99.{third}.2"
    environ = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("GPUENV_", "DOCKER_"))},
        "GPUENV_STATE_DIR": str(root / "engine"),
        "PYTHONPATH": str(REPOSITORY),
    }
    inside = ["nsenter", f"--net=/run/netns/{namespace}"]

    def call(*words: str) -> str:
        done = subprocess.run(words, capture_output=True, text=True, check=False, env=environ)
        if done.returncode:
            missing(f"a host with its own network ({' '.join(words[:4])}: {done.stderr[-300:]})")
        return done.stdout.strip()

    try:
        call("ip", "netns", "add", namespace)
        call("ip", "-n", namespace, "link", "set", "lo", "up")
        call("ip", "link", "add", outer, "type", "veth", "peer", "name", "eth0",
             "netns", namespace)  # fmt: skip
        call("ip", "addr", "add", f"{ours}/24", "dev", outer)
        call("ip", "link", "set", outer, "up")
        call("ip", "-n", namespace, "addr", "add", f"{address}/24", "dev", "eth0")
        call("ip", "-n", namespace, "link", "set", "eth0", "up")
        call("ip", "-n", namespace, "route", "add", "default", "via", ours)
        for name in ("hostkey", "userkey"):
            pair = make_key(name)
            path = root / name
            path.touch(mode=0o600)
            path.write_text(pair.private.reveal())
            path.with_suffix(".pub").write_text(pair.public.line + "\n")
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        (root / "sshd_config").write_text(
            f"ListenAddress {address}\nHostKey {root}/hostkey\nPidFile {root}/sshd.pid\n"
            f"AuthorizedKeysFile {root}/userkey.pub\nStrictModes no\nUsePAM no\n"
            "PermitRootLogin prohibit-password\nPasswordAuthentication no\n"
            "Subsystem sftp internal-sftp\n"
        )
        call(*inside, "/usr/sbin/sshd", "-f", str(root / "sshd_config"))
        socket = call(*inside, sys.executable, "-c", _PRIVATE, "up")
        made = Lab(root=root, address=address, socket=socket, namespace=namespace, bin=root / "bin")
        _make_client(made)
        yield made
    finally:
        subprocess.run(
            [*inside, sys.executable, "-c", _PRIVATE, "down"],
            capture_output=True, check=False, env=environ,
        )  # fmt: skip
        pid = root / "sshd.pid"
        if pid.exists():
            with contextlib.suppress(ProcessLookupError, ValueError):
                os.kill(int(pid.read_text()), signal.SIGTERM)
        subprocess.run(["ip", "link", "del", outer], capture_output=True, check=False)
        subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)
        shutil.rmtree(root, ignore_errors=True)


def _make_client(made: Lab) -> None:
    """Write the user's side: ``ssh`` goes by the account's home, so it is given another file."""
    (made.root / "config").write_text(
        f"Host gpu01\n  HostName {made.address}\n  User root\n"
        f"Host closed\n  HostName {made.address}\n  Port 1\n"
        f"Host nokey\n  HostName {made.address}\n  User root\n  PubkeyAuthentication no\n"
        f"Host noshell\n  HostName {made.address}\n  User nobody\n"
        f"Host *\n  UserKnownHostsFile {made.known_hosts}\n  IdentityFile {made.root}/userkey\n"
        "  StrictHostKeyChecking yes\n"
    )
    made.bin.mkdir()
    program = made.bin / "ssh"
    program.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {made.root}/config "$@"\n')
    program.chmod(0o755)
    made.trust()


def tunnel_of(state: Path, name: str) -> tuple[int, int]:
    """Return the process that keeps the tunnel of an environment, and its port here."""
    (path,) = (state / "environments").glob(f"{name}@*/tunnel.json")
    data = json.loads(path.read_text())
    return int(data["pid"]), int(data["here"])


def children_of(pid: int) -> list[int]:
    """Return the processes that a process started."""
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(word) for word in listed]


def wait_for(condition: object, *, seconds: float = 40) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.1)
