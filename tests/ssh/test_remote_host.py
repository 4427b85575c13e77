"""Every command on another host: a second engine behind a real sshd in its own network."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpuenv.ssh.keys import make_key
from tests.conftest import REPOSITORY
from tests.launch_fixtures import Outcome
from tests.ssh.lab import Lab, children_of, lab, tunnel_of, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuenv.engine.protocol import ContainerEngine

pytestmark = [pytest.mark.ssh, pytest.mark.engine, pytest.mark.slow]


class Laptop:
    """A user's machine from which the host is reached by SSH alone."""

    def __init__(self, made: Lab, root: Path, image: str) -> None:
        self.lab, self.root, self.image = made, root, image
        for name in ("home", "work"):
            (root / name).mkdir()
        self.state = root / "state"
        self.environ = {
            **{k: v for k, v in made.environ.items() if not k.startswith(("DOCKER_", "GPUENV_"))},
            "HOME": str(root / "home"),
            "GPUENV_STATE_DIR": str(self.state),
            "PYTHONPATH": str(REPOSITORY),
            "TERM": "dumb",
        }

    def gpuenv(self, *words: str, host: str | None = None, **environ: str) -> Outcome:
        """Run a command there."""
        own, sign, behind = list(words), [], []
        if "--" in own:
            place = own.index("--")
            own, sign, behind = own[:place], ["--"], own[place + 1 :]
        address = self.lab.url if host is None else host
        flags = ["--host", address] if address else []
        done = subprocess.run(
            [sys.executable, "-m", "gpuenv", *own, *flags, *sign, *behind],
            capture_output=True, text=True, check=False, cwd=self.root / "work", timeout=200,
            env={**self.environ, **environ},
        )  # fmt: skip
        return Outcome(exit_code=done.returncode, stdout=done.stdout, stderr=done.stderr)


@pytest.fixture(scope="module")
def laptop(session_engine: ContainerEngine, jupyter_image: str) -> Iterator[Laptop]:
    root = Path(tempfile.mkdtemp(prefix="gpuenv-laptop-"))
    with lab() as made:
        from gpuenv.engine.connect import connect

        with connect(made.socket) as there:
            there.load(lambda: session_engine.save((jupyter_image,)))
        one = Laptop(made, root, jupyter_image)
        try:
            yield one
        finally:
            one.gpuenv("stop", "--all", "--timeout", "1")
            shutil.rmtree(root, ignore_errors=True)


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - one of ours
        return json.loads(answer.read())


def test_a_command_runs_there_with_its_exit_code(laptop: Laptop) -> None:
    done = laptop.gpuenv(
        "run", laptop.image, "--no-caches", "-q", "--", "sh", "-c", "id -u; exit 3"
    )
    assert (done.exit_code, done.stdout) == (3, f"{os.getuid()}\n")


def test_the_address_may_come_from_docker_host_or_the_settings_file(laptop: Laptop) -> None:
    listed = laptop.gpuenv("ps", "--json", host="", DOCKER_HOST=laptop.lab.url)
    assert listed.data == {"environments": []}
    settings = laptop.root / "work" / "gpuenv.toml"
    settings.write_text(f'host = "{laptop.lab.url}"\n')
    try:
        status = laptop.gpuenv("ps", "--json", host="")
    finally:
        settings.unlink()
    assert status.data == {"environments": []}


def test_ssh_goes_by_a_jump_with_the_host_key_checked(laptop: Laptop) -> None:
    (laptop.root / "work" / "train.py").write_text("print(6 * 7)\n")
    first = laptop.gpuenv(
        "ssh", "far", "--image", laptop.image, "--no-caches", "--sync", "--", "python", "train.py"
    )
    assert first.exit_code == 0, first.stderr
    assert first.stdout == "42\n"
    back = laptop.gpuenv("ssh", "far", "--sync", "--", "echo result > out.txt; exit 5")
    assert back.exit_code == 5
    assert (laptop.root / "work" / "out.txt").read_text() == "result\n"
    listed = laptop.gpuenv("ps", "--json").data["environments"]
    assert [(one["name"], one["target"]) for one in listed] == [("far", "gpuenv ssh far")]
    assert laptop.gpuenv("ps", "--json", host="unix:///nonexistent").exit_code == 4
    known = laptop.state / "ssh" / "known_hosts"
    good = known.read_text()
    (block,) = (laptop.state / "environments").glob("far@*/ssh_config")
    words = ["ssh", "-F", str(block), "-o", "BatchMode=yes", "gpuenv-far.gpu01", "echo by name"]
    user = f"ProxyCommand {laptop.lab.bin}/ssh -W %h:%p gpu01"
    block.write_text(block.read_text().replace("ProxyJump gpu01", user))
    environ = {**laptop.environ, "PATH": os.environ["PATH"]}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environ)
    assert done.stdout == "by name\n", done.stderr
    planted = make_key("mallory").public
    known.write_text(f"gpuenv-far.gpu01 {planted.type} {planted.blob}\n")
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environ)
    assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in done.stderr
    known.write_text(good)
    laptop.gpuenv("rm", "far", "--yes")


def test_a_notebook_server_is_reached_through_a_tunnel_that_comes_back(laptop: Laptop) -> None:
    started = laptop.gpuenv(
        "jupyter", "--name", "lab", "--image", laptop.image, "--no-caches", "--json"
    ).data
    status = started["url"].replace("/lab?", "/api/status?")
    assert "kernels" in get(status)
    keeper, port = tunnel_of(laptop.state, "lab")
    (ssh,) = children_of(keeper)
    os.kill(ssh, signal.SIGKILL)
    wait_for(lambda: children_of(keeper) not in ([], [ssh]))

    def answers() -> bool:
        try:
            return "kernels" in get(status)
        except OSError:
            return False

    wait_for(answers)
    row = laptop.gpuenv("ps", "--json").data["environments"][0]
    assert row["url"] == f"http://127.0.0.1:{port}/lab"
    again = laptop.gpuenv("jupyter", "--url", "lab", "--json").data
    assert again["url"] == started["url"]
    assert laptop.gpuenv("stop", "lab", "--timeout", "1").exit_code == 0
    wait_for(lambda: not Path(f"/proc/{keeper}").exists())
    assert laptop.gpuenv("start", "lab").exit_code == 0
    assert "kernels" in get(status), "the same port and token after a restart"
    keeper, _ = tunnel_of(laptop.state, "lab")
    used = laptop.gpuenv("top", "--once", "--json").data["containers"]
    assert [one["name"] for one in used] == ["lab"]
    assert laptop.gpuenv("rm", "lab", "--yes").exit_code == 0
    wait_for(lambda: not Path(f"/proc/{keeper}").exists())


def test_a_folder_of_that_host_is_the_workspace(laptop: Laptop, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "data").write_text("there\n")
    done = laptop.gpuenv(
        "run", laptop.image, "--no-caches", "-q", "--remote-workspace", str(tmp_path),
        "--", "cat", "data",
    )  # fmt: skip
    assert done.stdout == "there\n"
    gone = laptop.gpuenv(
        "run", laptop.image, "--remote-workspace", "/no/such", "--json", "--", "id"
    )
    assert (gone.exit_code, gone.slug) == (2, "workspace")
    here = laptop.gpuenv("run", laptop.image, "--workspace", ".", "--json", "--", "id")
    assert (here.exit_code, here.slug) == (2, "usage")


def test_synchronising_deletes_nothing(laptop: Laptop) -> None:
    kept = laptop.root / "work" / "kept"
    kept.write_text("first")
    words = ("run", laptop.image, "--name", "sync", "--no-caches", "-q", "--sync", "--")
    assert laptop.gpuenv(*words, "touch", "there-only").exit_code == 0
    kept.unlink()
    done = laptop.gpuenv(*words, "ls")
    assert {"kept", "there-only"} <= set(done.stdout.split())


@pytest.mark.parametrize(
    ("host", "slug"),
    [
        ("ssh://no-such-host.invalid", "remote-name"),
        ("ssh://closed", "remote-network"),
        ("ssh://nokey", "remote-authentication"),
        ("ssh://noshell", "remote-failed"),
        ("ssh://gpu01/no/such/docker.sock", "remote-no-engine"),
        ("ssh://-oProxyCommand=id", "configuration"),
    ],
)
def test_failures_are_told_apart(laptop: Laptop, host: str, slug: str) -> None:
    done = laptop.gpuenv("ps", "--json", host=host)
    assert done.slug == slug
    assert done.envelope["errors"][0]["fix"]


def test_an_unknown_and_a_changed_host_key_are_refused(laptop: Laptop) -> None:
    try:
        laptop.lab.known_hosts.write_text("")
        assert laptop.gpuenv("ps", "--json").slug == "remote-host-key"
        planted = make_key("mallory").public
        laptop.lab.known_hosts.write_text(
            f"gpu01,{laptop.lab.address} {planted.type} {planted.blob}\n"
        )
        changed = laptop.gpuenv("ps", "--json")
        assert changed.slug == "remote-host-key"
        assert "has changed" in changed.envelope["errors"][0]["what"]
    finally:
        laptop.lab.trust()


def test_nothing_of_a_command_stays_on_this_machine(laptop: Laptop) -> None:
    before = set(Path(tempfile.gettempdir()).glob("gpuenv-????????"))
    assert laptop.gpuenv("ps").exit_code == 0
    assert laptop.gpuenv("ps", host="ssh://gpu01/no/such.sock").exit_code == 4
    assert set(Path(tempfile.gettempdir()).glob("gpuenv-????????")) <= before
