"""Every command on another host: a second engine behind a real sshd in its own network."""

from __future__ import annotations

import hashlib
import json
import os
import pty
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpuenv.ssh.keys import make_key
from tests.conftest import REPOSITORY, missing
from tests.fakes.libraries import build_libcuda, build_libnvidia_ml
from tests.launch_fixtures import Outcome
from tests.ssh.lab import Lab, children_of, lab, trouble_of, tunnel_of, wait_for

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


def test_the_host_may_be_named_in_every_way_there_is(laptop: Laptop) -> None:
    def found(host: str = "", **environ: str) -> tuple[str, str]:
        status = laptop.gpuenv("engine", "status", "--json", host=host, **environ).data
        assert not status["capabilities"]["local"]
        return status["address"], status["found_via"]

    url = laptop.lab.url
    assert found(host=url) == (url, "--engine")
    for name in ("GPUENV_ENGINE", "GPUENV_HOST", "DOCKER_HOST"):
        assert found(**{name: url}) == (url, name)
    docker = laptop.root / "home" / ".docker"
    meta = docker / "contexts" / "meta" / hashlib.sha256(b"there").hexdigest()
    meta.mkdir(parents=True)
    endpoint = {"Host": url, "SkipTLSVerify": False}
    (meta / "meta.json").write_text(
        json.dumps({"Name": "there", "Metadata": {}, "Endpoints": {"docker": endpoint}})
    )
    settings = laptop.root / "work" / "gpuenv.toml"
    try:
        assert found(DOCKER_CONTEXT="there") == (url, "context there")
        assert found(host="there") == (url, "context there")
        (docker / "config.json").write_text('{"currentContext": "there"}')
        assert found() == (url, "context there")
        settings.write_text('host = "ssh://banner"\n')
        assert found() == ("ssh://banner", "gpuenv.toml: host")
        assert found(GPUENV_HOST=url, DOCKER_HOST="ssh://banner") == (url, "GPUENV_HOST")
        settings.write_text('host = "gopher://gpu01"\n')
        wrong = laptop.gpuenv("ps", "--json", host="")
        assert "gpuenv.toml: host" in wrong.envelope["errors"][0]["what"]
    finally:
        settings.unlink(missing_ok=True)
        shutil.rmtree(docker)


# Who logs in and how, and what stands in the user's own configuration of that host.
HOSTS = ("loud@gpu01", "corp%5Cbob@gpu01", "[{address6}]", "banner", "behind", "forced")


@pytest.mark.parametrize("host", HOSTS)
def test_whatever_the_way_there_is_like(laptop: Laptop, host: str) -> None:
    if "address6" in host and not laptop.lab.address6:
        missing("IPv6, to reach a host by")
    url = f"ssh://{host.format(address6=laptop.lab.address6)}"
    long = laptop.root / ("x" * 120)  # a socket's path may not be that long
    long.mkdir(exist_ok=True)
    assert laptop.gpuenv("ps", "--json", host=url, TMPDIR=str(long)).exit_code == 0
    words = ("run", laptop.image, "--no-caches", "-q", "--remote-workspace", str(laptop.lab.root))
    done = laptop.gpuenv(*words, "--", "ls", host=url)
    assert "sshd_config" in done.stdout, done.stderr
    assert "looked up" not in done.stderr


def test_a_shell_that_talks_cannot_take_a_copy_and_is_told_why(laptop: Laptop) -> None:
    words = ("run", laptop.image, "--no-caches", "--sync", "--json", "--", "id")
    done = laptop.gpuenv(*words, host="ssh://loud@gpu01")
    assert done.slug == "remote-failed"
    assert "~/.bashrc" in done.envelope["errors"][0]["fix"]


def test_volumes_are_folders_of_that_host(laptop: Laptop) -> None:
    (laptop.lab.home / "data").mkdir(exist_ok=True)
    (laptop.lab.home / "data" / "here").write_text("there\n")
    words = ("run", laptop.image, "--no-caches", "--no-workspace", "-q")
    done = laptop.gpuenv(*words, "--volume", "~/data:/data", "--", "cat", "/data/here")
    assert (done.stdout, done.stderr) == ("there\n", "")
    for source in ("./data", "~/nothing"):
        done = laptop.gpuenv(*words, "--volume", f"{source}:/data", "--json", "--", "id")
        assert done.exit_code == 2, source


def test_a_user_whose_name_a_shell_would_change_gets_a_shell(laptop: Laptop) -> None:
    host = "ssh://corp%5Cbob@gpu01"
    words = ("ssh", "odd", "--no-workspace", "--no-caches", "-q")
    done = laptop.gpuenv(*words, "--image", laptop.image, "--", "echo in", host=host)
    assert done.stdout == "in\n", done.stderr
    # Another user's of the same name on the same host is not mixed up with it.
    done = laptop.gpuenv(*words, "--image", laptop.image, "--", "echo in")
    assert done.stdout == "in\n", done.stderr
    blocks = [path.read_text() for path in laptop.state.glob("environments/odd@*/ssh_config")]
    aliases = {line for block in blocks for line in block.splitlines() if line.startswith("Host ")}
    assert aliases == {"Host gpuenv-odd.gpu01", "Host gpuenv-odd.gpu01-2"}
    assert laptop.gpuenv("rm", "odd", "--yes", host=host).exit_code == 0
    assert laptop.gpuenv("rm", "odd", "--yes").exit_code == 0
    known = (laptop.state / "ssh" / "known_hosts").read_text()
    assert "gpuenv-odd" not in known


def test_the_doctor_looks_at_that_host_and_what_fits_is_for_its_gpus(laptop: Laptop) -> None:
    build_libcuda(laptop.lab.root / "driver")
    build_libnvidia_ml(laptop.lab.root / "driver")
    gpus = "ssh://gpus"
    report = laptop.gpuenv("doctor", "--level", "static", "--json", "--no-redact", host=gpus)
    assert report.envelope["data"]["where"] == {"kind": "remote host", "target": "gpus"}
    told = report.envelope["data"]["facts"]["probes"]["host.nvml"]["facts"]["gpus"]
    assert [gpu["name"] for gpu in told] == ["H100", "H100"]
    said = laptop.gpuenv("doctor", "--level", "static", host="", DOCKER_HOST=gpus)
    assert "looking at gpus (DOCKER_HOST)" in said.stderr
    inside = ("doctor", "--level", "static", "--json", "--image", laptop.image)
    assert laptop.gpuenv(*inside).envelope["data"]["where"]["kind"] == "image"
    none = laptop.gpuenv("doctor", "--python", "/no/such", "--json", host=gpus)
    assert (none.exit_code, none.slug) == (7, "probe-failed")
    words = ("build", "--torch", "2.9", "--cuda", "auto", "--dry-run")
    for_gpus, for_cpu = laptop.gpuenv(*words, host=gpus), laptop.gpuenv(*words)
    assert "H100 (9.0), driver 580.65.06 (found via NVML on gpus)" in for_gpus.stderr
    assert "H100" not in for_cpu.stderr
    assert "+cpu" in for_cpu.stdout + for_cpu.stderr, "the same host, without that driver"
    words = ("run", laptop.image, "--no-workspace", "--no-caches", "--dry-run", "--json")
    one = laptop.gpuenv(*words, "--gpus", "1", "--", "id", host=gpus)
    assert "H100" in json.dumps(one.data["plan"])
    three = laptop.gpuenv(*words, "--gpus", "3", "--", "id", host=gpus)
    assert three.slug == "no-gpu"


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


def jupyter(laptop: Laptop, name: str, *words: str) -> dict[str, Any]:
    """Start a notebook server there, or find it."""
    return laptop.gpuenv("jupyter", "--name", name, *words, "--json").data


def status_of(started: dict[str, Any]) -> str:
    return str(started["url"]).replace("/lab?", "/api/status?")


def answers(url: str) -> bool:
    try:
        return "kernels" in get(url)
    except OSError:
        return False


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


@pytest.fixture
def notebook(laptop: Laptop) -> Iterator[dict[str, Any]]:
    """Return a notebook server there; it is removed afterwards."""
    yield jupyter(laptop, "lab", "--image", laptop.image, "--no-caches", "--no-workspace")
    assert laptop.gpuenv("rm", "lab", "--yes").exit_code == 0


def test_a_notebook_server_is_reached_through_a_tunnel_that_comes_back(
    laptop: Laptop, notebook: dict[str, Any]
) -> None:
    status = status_of(notebook)
    assert "kernels" in get(status)
    keeper, port = tunnel_of(laptop.state, "lab")
    (ssh,) = children_of(keeper)
    os.kill(ssh, signal.SIGKILL)
    wait_for(lambda: children_of(keeper) not in ([], [ssh]))
    wait_for(lambda: answers(status))
    row = laptop.gpuenv("ps", "--json").data["environments"][0]
    assert (row["url"], row["trouble"]) == (f"http://127.0.0.1:{port}/lab", None)
    again = laptop.gpuenv("jupyter", "--url", "lab", "--json").data
    assert again["url"] == notebook["url"]
    assert laptop.gpuenv("stop", "lab", "--timeout", "1").exit_code == 0
    wait_for(lambda: gone(keeper))
    assert laptop.gpuenv("start", "lab").exit_code == 0
    assert "kernels" in get(status), "the same port and token after a restart"
    keeper, _ = tunnel_of(laptop.state, "lab")
    used = laptop.gpuenv("top", "--once", "--json").data["containers"]
    assert [one["name"] for one in used] == ["lab"]
    assert "Jupyter Server" in laptop.gpuenv("logs", "lab").stderr
    assert laptop.gpuenv("rm", "lab", "--yes").exit_code == 0
    wait_for(lambda: gone(keeper))
    # For the fixture, which removes it.
    jupyter(laptop, "lab", "--image", laptop.image, "--no-caches", "--no-workspace")


def test_a_tunnel_that_was_killed_is_opened_again_at_its_port(
    laptop: Laptop, notebook: dict[str, Any]
) -> None:
    keeper, port = tunnel_of(laptop.state, "lab")
    (ssh,) = children_of(keeper)
    os.kill(keeper, signal.SIGKILL)
    wait_for(lambda: gone(ssh))
    row = laptop.gpuenv("ps", "--json").data["environments"][0]
    assert row["url"] == ""
    assert "gpuenv jupyter --url lab" in row["trouble"]
    assert "lab: no tunnel leads there" in laptop.gpuenv("ps").stderr
    # Its port may be somebody else's by now.
    with socket.create_server(("127.0.0.1", port)):
        other = jupyter(laptop, "lab")
    assert other["host_port"] != port
    assert answers(status_of(other))
    assert notebook["token"] == other["token"]


def test_a_host_that_is_away_is_told_in_the_browser_and_comes_back(
    laptop: Laptop, notebook: dict[str, Any]
) -> None:
    status = status_of(notebook)
    with open_browser_at(notebook["host_port"]) as idle:
        laptop.lab.cut()
        try:
            assert idle.recv(1) == b"", "what was open ends"
            wait_for(lambda: "gpu01 cannot be reached" in unavailable(notebook["url"]))
            # Nobody else can take the port meanwhile and be shown the token.
            with pytest.raises(OSError, match="in use"):
                socket.create_server(("127.0.0.1", notebook["host_port"]), reuse_port=False)
            assert laptop.gpuenv("ps", "--json").slug == "remote-network"
        finally:
            laptop.lab.serve()
    wait_for(lambda: answers(status))


def test_a_tunnel_that_may_not_log_in_any_more_says_so_where_one_looks(
    laptop: Laptop, notebook: dict[str, Any]
) -> None:
    keeper, _ = tunnel_of(laptop.state, "lab")
    key = laptop.lab.root / "userkey"
    away = key.with_name("away")
    key.rename(away)
    try:
        os.kill(children_of(keeper)[0], signal.SIGKILL)
        wait_for(lambda: "does not let you in" in trouble_of(laptop.state, "lab"))
        os.kill(keeper, signal.SIGSTOP)  # or it might be back before we look
    finally:
        away.rename(key)
    assert "does not let you in" in laptop.gpuenv("ps").stderr
    os.kill(keeper, signal.SIGCONT)
    # Whoever looks can log in, so it is tried at once.
    assert laptop.gpuenv("jupyter", "--url", "lab", "--json").data["url"] == notebook["url"]
    assert answers(status_of(notebook))


def test_two_notebook_servers_have_two_tunnels(laptop: Laptop, notebook: dict[str, Any]) -> None:
    words = ("--image", laptop.image, "--no-caches", "--no-workspace")
    second = jupyter(laptop, "other", *words)
    assert second["host_port"] != notebook["host_port"]
    assert answers(status_of(second))
    keeper, _ = tunnel_of(laptop.state, "other")
    first, _ = tunnel_of(laptop.state, "lab")
    assert laptop.gpuenv("rm", "other", "--yes").exit_code == 0
    wait_for(lambda: gone(keeper))
    assert not gone(first)
    assert answers(status_of(notebook))


def open_browser_at(port: int) -> socket.socket:
    """Connect and ask for nothing yet."""
    one = socket.create_connection(("127.0.0.1", port), timeout=30)
    one.sendall(b"GET /api/status HTTP/1.1\r\n")
    return one


def unavailable(url: str) -> str:
    """Return the page that stands in for a server that cannot be reached, else nothing."""
    try:
        urllib.request.urlopen(url, timeout=10).close()  # noqa: S310 - one of ours
    except urllib.error.HTTPError as error:
        with error:
            return error.read().decode() if error.code == 503 else ""
    except OSError:
        return ""
    return ""


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
    bound = laptop.gpuenv("jupyter", "--bind", "10.0.0.1", "--insecure", "--json")
    assert (bound.exit_code, bound.slug) == (2, "usage")


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
        ("ssh://strange", "remote-authentication"),
        ("ssh://alice@gpu01", "remote-no-permission"),
        ("ssh://notcp", "remote-forwarding"),
        ("ssh://nolocal", "remote-forwarding"),
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


def test_an_environment_there_is_used_like_one_here(laptop: Laptop) -> None:
    words = ("ssh", "seat", "--image", laptop.image, "--no-caches", "--no-workspace")
    started = laptop.gpuenv(*words, "--detach", "--json").data
    assert (started["alias"], started["found"]) == ("gpuenv-seat.gpu01", False)
    assert "ProxyJump=gpu01" in started["command"]
    assert "seat" in laptop.gpuenv(*words, "--dry-run").stdout
    # ssh, scp and rsync by the alias.
    assert laptop.gpuenv("ssh", "config", "install", host="").exit_code == 0
    config = laptop.root / "both"
    home = laptop.root / "home" / ".ssh" / "config"
    config.write_text(home.read_text() + (laptop.lab.root / "config").read_text())
    (laptop.root / "work" / "f").write_text("data\n")

    def client(*arguments: str) -> str:
        done = subprocess.run(
            arguments, capture_output=True, text=True, check=False, cwd=laptop.root / "work",
            env={**laptop.environ, "PATH": os.environ["PATH"]}, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    client("scp", "-q", "-F", str(config), "f", "gpuenv-seat.gpu01:")
    client("rsync", "-a", "-e", f"ssh -F {config}", "f", "gpuenv-seat.gpu01:g")
    assert client("ssh", "-F", str(config), "gpuenv-seat.gpu01", "cat f g") == "data\ndata\n"
    # Keys.
    (laptop.root / "bob.pub").write_text(make_key("bob@there").public.line + "\n")
    added = laptop.gpuenv("ssh", "seat", "--add-key", str(laptop.root / "bob.pub"), "--json")
    assert [key["comment"] for key in added.data["keys"]][-1] == "bob@there"
    revoked = laptop.gpuenv("ssh", "seat", "--revoke", "bob@there", "--json").data["keys"]
    assert revoked == laptop.gpuenv("ssh", "seat", "--list-keys", "--json").data["keys"]
    assert "bob@there" not in str(revoked)
    # A port inside.
    serve = (
        "from http.server import *; "
        "HTTPServer(('127.0.0.1', 7012), SimpleHTTPRequestHandler).handle_request()"
    )
    here = free_port()
    with subprocess.Popen(
        [sys.executable, "-m", "gpuenv", "ssh", "seat", "-q", "--host", laptop.lab.url,
         "--forward", f"{here}:7012", "--", "python", "-c", serve],
        cwd=laptop.root / "work", env=laptop.environ, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as session:  # fmt: skip
        wait_for(lambda: reached(here))
        session.communicate(timeout=30)
    assert laptop.gpuenv("stop", "seat", "--timeout", "1").exit_code == 0
    assert laptop.gpuenv("start", "seat").exit_code == 0
    assert laptop.gpuenv("ssh", "seat", "-q", "--", "cat g").stdout == "data\n"
    assert laptop.gpuenv("rm", "seat", "--yes").exit_code == 0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def reached(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_tmux_goes_on_there_when_the_connection_is_lost(laptop: Laptop) -> None:
    words = ["ssh", "mux", "--image", laptop.image, "--no-caches", "--no-workspace"]
    assert laptop.gpuenv(*words, "--detach", "--json").exit_code == 0
    master, slave = pty.openpty()
    counter = "i=0; while :; do i=$((i+1)); echo $i > ~/count; sleep 0.1; done"
    with subprocess.Popen(
        [sys.executable, "-m", "gpuenv", "ssh", "mux", "--host", laptop.lab.url, "--tmux",
         "--", counter],
        stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
        cwd=laptop.root / "work", env={**laptop.environ, "TERM": "xterm"},
    ) as session:  # fmt: skip
        os.close(slave)

        def count() -> int:
            done = laptop.gpuenv("ssh", "mux", "-q", "--", "cat ~/count")
            return int(done.stdout.strip() or 0)

        wait_for(lambda: count() > 0)
        session.kill()
        session.wait()
        os.close(master)
    before = count()
    wait_for(lambda: count() > before)
    assert laptop.gpuenv("rm", "mux", "--yes").exit_code == 0


def test_a_connection_that_is_lost_meanwhile_is_told_and_leaves_no_ssh(laptop: Laptop) -> None:
    words = ("run", laptop.image, "--no-caches", "--no-workspace", "--name", "lost", "-q", "--json")
    with subprocess.Popen(
        [sys.executable, "-m", "gpuenv", *words, "--host", laptop.lab.url, "--", "sleep", "60"],
        cwd=laptop.root / "work", env=laptop.environ, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True,
    ) as running:  # fmt: skip
        wait_for(lambda: "lost" in laptop.gpuenv("ps", "--running").stdout)
        for child in children_of(running.pid):
            os.kill(child, signal.SIGKILL)
        told, _ = running.communicate(timeout=60)
    (error,) = json.loads(told)["errors"]
    assert error["slug"] == "remote-failed"
    assert "is lost" in error["what"]
    with subprocess.Popen(
        [sys.executable, "-m", "gpuenv", "logs", "lost", "--follow", "--host", laptop.lab.url],
        cwd=laptop.root / "work", env=laptop.environ, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as following:  # fmt: skip
        wait_for(lambda: len(children_of(following.pid)) == 1)
        (ssh,) = children_of(following.pid)
        following.kill()
    wait_for(lambda: gone(ssh))
    assert laptop.gpuenv("rm", "lost", "--yes").exit_code == 0
