"""Another GPU host on this machine: own network, own accounts, own sshd and keys, own engine.

The engine is a private one of gpuenv's in the network namespace of that host, so that a port
published on its loopback can be reached from there alone, as on a real second machine. Its sshd
sees accounts and a ``/run`` of its own: there the engine's socket lies where Docker has it.
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

DOCKER_GROUP = 61999
# Who has an account there: uid, and whether the engine's group is one of theirs.
ACCOUNTS = {
    "root": (0, True),
    "alice": (61001, False),
    "loud": (61002, True),
    "corp\\bob": (61003, True),
}
# What is another at a port of its own.
PORTS = {
    2201: "AllowTcpForwarding no\n  AllowStreamLocalForwarding yes",
    2202: "AllowStreamLocalForwarding no",
    2203: "Banner {root}/banner",
    # Two GPUs that only the stand-ins for the driver's libraries know of.
    2204: "SetEnv LD_LIBRARY_PATH={root}/driver FAKE_GPUS=2 FAKE_SM=90 FAKE_NAME=H100",
}
BANNER = "Permission denied (publickey) to strangers.\nHost key verification failed, they say.\n"
_GREETING = "echo Welcome to gpu01; echo and mind the step >&2\n"
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
        address6: The same by IPv6, empty where the kernel has none.
        socket: Its engine's socket.
        namespace: Its network's name.
        bin: A folder with an ``ssh`` that reads the user's configuration of the lab.
    """

    root: Path
    address: str
    address6: str
    socket: str
    namespace: str
    bin: Path

    @property
    def url(self) -> str:
        """The engine, as ``--host`` takes it."""
        return "ssh://gpu01"

    @property
    def home(self) -> Path:
        """Where root's home is there."""
        return self.root / "homes" / "root"

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
        names = ["gpu01", self.address, *([self.address6] if self.address6 else [])]
        names += [f"[{self.address}]:{port}" for port in PORTS]
        self.known_hosts.write_text(f"{','.join(names)} {key[0]} {key[1]}\n")

    def run(self, *words: str) -> str:
        """Run ``ssh`` as the user does, and return what it prints."""
        done = subprocess.run(
            [str(self.bin / "ssh"), *words], capture_output=True, text=True, check=False
        )
        return done.stdout + done.stderr

    def sshd_pid(self) -> int:
        """Return the process that listens for logins."""
        return int((self.root / "sshd.pid").read_text())

    def cut(self) -> None:
        """End its sshd with every session, as a reboot does."""
        pid = self.sshd_pid()
        sessions = [leaf for child in children_of(pid) for leaf in (child, *children_of(child))]
        for one in (pid, *sessions):
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
        wait_for(lambda: not Path(f"/proc/{pid}").exists())
        (self.root / "sshd.pid").unlink()

    def serve(self) -> None:
        """Let its sshd listen."""
        script = "\n".join([
            "mount --make-rprivate /",
            *(f"mount --bind {self.root}/etc/{name} /etc/{name}" for name in _TABLES),
            f"touch {self.root}/docker.sock; mount --bind {self.socket} {self.root}/docker.sock",
            "mount -t tmpfs tmpfs /run",
            "mkdir -m 755 /run/sshd",
            f"touch /run/docker.sock; mount --bind {self.root}/docker.sock /run/docker.sock",
            f"exec /usr/sbin/sshd -f {self.root}/sshd_config",
        ])  # fmt: skip
        done = subprocess.run(
            ["nsenter", f"--net=/run/netns/{self.namespace}", "unshare", "--mount",
             "sh", "-ec", script],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            missing(f"a host with its own accounts ({done.stderr[-300:]})")
        wait_for((self.root / "sshd.pid").exists)


_TABLES = ("passwd", "group", "shadow")


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
    ours, address, address6 = f"10.99.{third}.1", f"10.99.{third}.2", f"fd99:{third:x}::2"
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
        for where, host in (((), outer), (("-n", namespace), "eth0")):
            six = f"fd99:{third:x}::{1 if host == outer else 2}/64"
            words = ["ip", *where, "-6", "addr", "add", six, "dev", host, "nodad"]
            if subprocess.run(words, capture_output=True, check=False).returncode:
                address6 = ""  # a kernel without IPv6
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
        socket = call(*inside, sys.executable, "-c", _PRIVATE, "up")
        made = Lab(
            root=root, address=address, address6=address6, socket=socket, namespace=namespace,
            bin=root / "bin",
        )  # fmt: skip
        _make_host(made)
        made.serve()
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


def _make_host(made: Lab) -> None:
    """Write the accounts there, and what its sshd allows at which port."""
    os.chown(made.socket, 0, DOCKER_GROUP)
    Path(made.socket).chmod(0o660)
    tables = dict.fromkeys(_TABLES, "")
    members = ",".join(name for name, (_, may) in ACCOUNTS.items() if may)
    tables["group"] = f"root:x:0:\nnogroup:x:65534:\ndocker:x:{DOCKER_GROUP}:{members}\n"
    for name, (uid, _) in ACCOUNTS.items():
        home = made.root / "homes" / name.replace("\\", "_")
        home.mkdir(parents=True)
        os.chown(home, uid, uid)
        tables["passwd"] += f"{name}:x:{uid}:{uid}::{home}:/bin/bash\n"
        if uid:
            tables["group"] += f"g{uid}:x:{uid}:\n"
        if name == "loud":
            (home / ".bashrc").write_text(_GREETING)
    for name in ("sshd", "nobody"):
        tables["passwd"] += f"{name}:x:65534:65534::/run/sshd:/usr/sbin/nologin\n"
    for name in (*ACCOUNTS, "sshd", "nobody"):
        tables["shadow"] += f"{name}:*:19000:0:99999:7:::\n"
    (made.root / "etc").mkdir()
    for name, text in tables.items():
        (made.root / "etc" / name).write_text(text)
    (made.root / "banner").write_text(BANNER)
    listen = [f"ListenAddress {made.address}:22"]
    listen += [f"ListenAddress [{made.address6}]:22"] if made.address6 else []
    listen += [f"ListenAddress {made.address}:{port}" for port in PORTS]
    matches = [
        f"Match LocalPort {port}\n  {text.format(root=made.root)}" for port, text in PORTS.items()
    ]
    (made.root / "sshd_config").write_text(
        "\n".join([
            *listen,
            f"HostKey {made.root}/hostkey",
            f"PidFile {made.root}/sshd.pid",
            f"AuthorizedKeysFile {made.root}/userkey.pub",
            "StrictModes no",
            "UsePAM no",
            "PermitRootLogin prohibit-password",
            "PasswordAuthentication no",
            "Subsystem sftp internal-sftp",
            *matches,
            "",
        ])
    )  # fmt: skip


def _make_client(made: Lab) -> None:
    """Write the user's side: ``ssh`` goes by the account's home, so it is given another file."""
    there = f"HostName {made.address}\n  User root"
    (made.root / "config").write_text(
        f"Host gpu01\n  {there}\n"
        f"Host closed\n  HostName {made.address}\n  Port 1\n"
        f"Host nokey\n  {there}\n  PubkeyAuthentication no\n"
        f"Host noshell\n  HostName {made.address}\n  User nobody\n"
        f"Host notcp\n  {there}\n  Port 2201\n"
        f"Host nolocal\n  {there}\n  Port 2202\n"
        f"Host banner\n  {there}\n  Port 2203\n"
        f"Host gpus\n  {there}\n  Port 2204\n"
        f"Host strange\n  HostName {made.address}\n  User mallory\n  Port 2203\n"
        f"Host behind\n  {there}\n  ProxyJump gpu01\n"
        f"Host forced\n  {there}\n  RequestTTY force\n  RemoteCommand sh -c 'echo hello; exec sh'\n"
        f"  ControlMaster auto\n  ControlPath {made.root}/cm-%C\n  ControlPersist 60\n"
        "  LocalForward 127.0.0.1:1 127.0.0.1:1\n  ForwardAgent yes\n  LogLevel QUIET\n"
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


def trouble_of(state: Path, name: str) -> str:
    """Return what the tunnel of an environment says is wrong."""
    (path,) = (state / "environments").glob(f"{name}@*/tunnel.json")
    return str(json.loads(path.read_text())["trouble"]["what"])


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
