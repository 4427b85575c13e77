"""From the command to the prompt: ``gpuenv ssh`` beside docker, sshd and ssh by hand."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from harness import (
    Candidate,
    command,
    environment,
    interleave,
    machine,
    require,
    table,
    write_section,
)

from gpuenv.ssh.keys import make_key

IMAGE = os.environ.get("GPUENV_BENCH_IMAGE", "")
PORT = 22022
CONFIG = """\
Port 2222
HostKey /keys/host
PidFile none
AuthorizedKeysFile /keys/authorized
StrictModes no
UsePAM no
PasswordAuthentication no
"""


def by_hand(folder: Path, docker: str, ssh: str) -> tuple[Candidate, Candidate]:
    """Return what a careful person types: a container with sshd, wait, log in; and log in again."""
    keys = folder / "keys"
    keys.mkdir()
    host, mine = make_key("host"), make_key("mine")
    for name, text in (
        ("host", host.private.reveal()),
        ("mine", mine.private.reveal()),
        ("authorized", mine.public.line + "\n"),
        ("config", CONFIG),
        ("known", f"[127.0.0.1]:{PORT} {host.public.line}\n"),
    ):
        (keys / name).touch(mode=0o600)
        (keys / name).write_text(text)
    log_in = (
        f"{ssh} -F /dev/null -i {keys}/mine -p {PORT} -o IdentitiesOnly=yes -o LogLevel=ERROR "
        f"-o UserKnownHostsFile={keys}/known -o StrictHostKeyChecking=yes root@127.0.0.1 true"
    )
    start = (
        f"{docker} run -d --init --user 0:0 --name gpuenv-bench-hand -p 127.0.0.1:{PORT}:2222 "
        f"-v {keys}:/keys --tmpfs /run/sshd:mode=755 --entrypoint /usr/sbin/sshd {IMAGE} "
        "-D -e -f /keys/config"
    )
    once_more = f"n=$((n + 1)); [ $n -lt 200 ] || exit 1; {log_in} 2>/dev/null && break; sleep 0.05"
    wait = f"n=0; while :; do {once_more}; done"

    def remove() -> None:
        subprocess.run([docker, "rm", "-f", "gpuenv-bench-hand"], capture_output=True, check=False)

    first = Candidate(
        "by hand",
        command("sh", "-c", f"{start} && {wait}"),
        "docker run … sshd; ssh … true",
        remove,
    )
    again = Candidate("ssh by hand, running", command("sh", "-c", log_in), "ssh … true")
    return first, again


def with_gpuenv(folder: Path) -> tuple[Candidate, Candidate]:
    """Return the same by ``gpuenv ssh``, for an environment that is new and one that runs."""
    gpuenv = [sys.executable, "-m", "gpuenv"]
    ssh_folder = folder / "home" / ".ssh"
    ssh_folder.mkdir(parents=True)
    mine = make_key("mine")
    (ssh_folder / "id_ed25519").touch(mode=0o600)
    (ssh_folder / "id_ed25519").write_text(mine.private.reveal())
    (ssh_folder / "id_ed25519.pub").write_text(mine.public.line)
    env = {"HOME": str(folder / "home"), "GPUENV_STATE_DIR": str(folder / "state")}
    flags = ["--image", IMAGE, "--no-caches", "--no-workspace"]

    def remove() -> None:
        subprocess.run(
            [*gpuenv, "rm", "bench-ssh", "--yes"],
            capture_output=True, check=False, env=environment(env),
        )  # fmt: skip

    first = Candidate(
        "gpuenv ssh, new environment",
        command(*gpuenv, "ssh", "bench-ssh", *flags, "--", "true", env=env),
        "gpuenv ssh NAME --image IMAGE -- true",
        remove,
    )
    again = Candidate(
        "gpuenv ssh, running environment",
        command(*gpuenv, "ssh", "bench-ssh", "--", "true", env=env),
        "gpuenv ssh NAME -- true",
    )
    return first, again


def main() -> None:
    """Time both ways to the prompt."""
    docker, ssh = require("docker"), require("ssh")
    if not IMAGE:
        raise SystemExit("GPUENV_BENCH_IMAGE names an image with sshd, as gpuenv ssh builds it")
    folder = Path(tempfile.mkdtemp(prefix="gpuenv-bench-"))
    try:
        hand, hand_again = by_hand(folder, docker, ssh)
        ours, ours_again = with_gpuenv(folder)
        interleave([hand, ours], rounds=7)
        interleave([hand_again, ours_again], rounds=7)
        body = (
            f"{machine()}.\n\n{table([hand, ours], baseline=hand.name)}\n\n"
            f"{table([hand_again, ours_again], baseline=hand_again.name)}\n"
        )
        write_section("ssh", "From the command to the prompt", body)
    finally:
        subprocess.run([docker, "rm", "-f", "gpuenv-bench-hand"], capture_output=True, check=False)
        ours.prepare()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
