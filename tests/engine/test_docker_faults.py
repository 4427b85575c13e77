"""An engine that dies, and private engines in every state."""

from __future__ import annotations

import json
import os
import secrets
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpuenv import process
from gpuenv.cli import main
from gpuenv.engine import errors as e
from gpuenv.engine.archive import Member, tar_bytes
from gpuenv.engine.connect import connect, record_path
from gpuenv.engine.events import BuildEvent, Output, build_image
from gpuenv.engine.private import down, load_record, up
from gpuenv.engine.protocol import BuildRequest, ContainerSpec, PortBinding
from tests.engine.processes import ends_within, running
from tests.engine_fixtures import BASE

if TYPE_CHECKING:
    from gpuenv.engine.private import PrivateEngine
    from gpuenv.engine.protocol import ContainerEngine

pytestmark = pytest.mark.engine


def rules() -> list[str]:
    saved = process.run_program(("iptables-save",), timeout_s=30).stdout.splitlines()
    return sorted(line for line in saved if line.startswith("-"))


def quiet(_: str) -> None:
    pass


def test_an_engine_that_is_killed_in_a_build_is_a_clear_error(
    doomed: tuple[PrivateEngine, ContainerEngine], private_environ: dict[str, str]
) -> None:
    record, engine = doomed
    word = f"86400.{secrets.randbelow(10**12):012d}"
    text = f"FROM {BASE}\nRUN echo go; sleep {word}; true\n".encode()
    request = BuildRequest(context=tar_bytes([Member(path="Dockerfile", content=text)]))
    left: list[int] = []

    def kill(event: BuildEvent) -> None:
        if isinstance(event, Output) and event.text == "go":
            while not running(word):
                pass
            left.extend(running(word))
            os.kill(record.pid, signal.SIGKILL)

    with pytest.raises(e.EngineLostError) as caught:
        build_image(engine, request, kill)
    assert caught.value.exit_code == 4
    assert "gpuenv engine status" in caught.value.fix
    with pytest.raises(e.EngineNotRunningError):
        connect(record.address, environ=private_environ)
    # What it left behind ends with ``engine down``, the orphaned step included.
    down(private_environ, purge=True, say=quiet)
    assert ends_within(tuple(left), 30)


def test_an_engine_that_is_killed_under_a_wait_is_a_clear_error(
    doomed: tuple[PrivateEngine, ContainerEngine], private_environ: dict[str, str]
) -> None:
    record, engine = doomed
    others = bridge_of_others()
    made = engine.create(ContainerSpec(image=BASE, command=("sleep", "86400")))
    info = engine.start(made.id)
    followed = engine.logs(made.id, follow=True)
    os.kill(record.pid, signal.SIGKILL)
    with pytest.raises(e.EngineLostError):
        engine.wait(made.id, timeout_s=60)
    with pytest.raises(e.EngineLostError):
        list(followed)
    # Started again it clears up first: the container of the old one is gone.
    assert info.pid is not None
    again = up(private_environ, say=quiet)
    assert again.pid != record.pid
    assert ends_within((info.pid,), 30)
    with connect(again.address, environ=private_environ) as engine_again:
        (known,) = engine_again.containers()
        assert (known.id, known.running) == (made.id, False)
        assert engine_again.image(BASE) is not None
    assert bridge_of_others() == others, "the private engine took the default bridge of another"


def bridge_of_others() -> str | None:
    """Return the kernel's number of docker0, which changes when somebody makes it anew."""
    index = Path("/sys/class/net/docker0/ifindex")
    return index.read_text() if index.exists() else None


@pytest.mark.usefixtures("engine")
def test_up_and_down_leave_the_machine_as_it_was(
    private_environ: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("GPUENV_STATE_DIR", private_environ["GPUENV_STATE_DIR"])
    own = set(rules())
    assert main(["--json", "engine", "up", "--force-private"]) == 0
    data = json.loads(capsys.readouterr().out)["data"]
    assert (data["started"], data["private"], data["alive"]) == (True, True, True)
    bridge = Path("/sys/class/net", data["network"]["bridge"])
    assert bridge.exists()
    assert len([rule for rule in rules() if bridge.name in rule]) == 3

    assert main(["--json", "engine", "up", "--force-private"]) == 0
    again = json.loads(capsys.readouterr().out)["data"]
    assert (again["started"], again["pid"]) == (False, data["pid"])

    assert main(["--json", "engine", "status", "--engine", "private"]) == 0
    status = json.loads(capsys.readouterr().out)["data"]
    assert status["address"] == data["address"]
    assert status["capabilities"]["local"] is True
    assert status["free_bytes"] > 0

    assert main(["--json", "engine", "down", "--purge", "--yes"]) == 0
    ended = json.loads(capsys.readouterr().out)["data"]
    assert (ended["stopped"], ended["purged"], ended["alive"]) == (True, True, False)
    assert not bridge.exists()
    assert not [rule for rule in rules() if bridge.name in rule]
    assert own <= set(rules())
    assert not Path(data["run_dir"]).exists()
    assert not Path(data["data_dir"]).exists()
    assert main(["engine", "down"]) == 0
    assert "no engine of its own" in capsys.readouterr().out


@pytest.mark.usefixtures("engine")
def test_up_starts_nothing_where_an_engine_answers(
    private_environ: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("GPUENV_STATE_DIR", private_environ["GPUENV_STATE_DIR"])
    assert main(["--json", "engine", "up"]) == 0
    assert json.loads(capsys.readouterr().out)["data"]["started"] is False
    assert not record_path(private_environ).exists()


def test_a_process_id_that_was_reused_is_never_ended(private_environ: dict[str, str]) -> None:
    up(private_environ, say=quiet)
    path = record_path(private_environ)
    data = json.loads(path.read_text())
    try:
        # As if the engine had died and its number had gone to this very process.
        path.write_text(json.dumps({**data, "pid": os.getpid()}))
        stale = load_record(private_environ)
        assert stale is not None
        assert not stale.alive
    finally:
        path.write_text(json.dumps(data))
    result = down(private_environ, purge=True, say=quiet)
    assert result.was_running


def test_a_daemon_that_cannot_start_says_why_and_leaves_nothing(
    private_environ: dict[str, str],
) -> None:
    state = Path(private_environ["GPUENV_STATE_DIR"])
    (state / "engine" / "data").mkdir(parents=True)
    (state / "engine" / "data" / "overlay2").write_text("in the way")
    before = rules()
    with pytest.raises(e.PrivateEngineError) as caught:
        up(private_environ, say=quiet)
    assert "overlay2" in caught.value.why
    assert load_record(private_environ) is None
    assert [rule for rule in rules() if "gpuenv-" in rule and rule not in before] == []


def test_containers_of_a_private_engine_reach_out_and_are_reached(
    doomed: tuple[PrivateEngine, ContainerEngine],
) -> None:
    _, engine = doomed
    info = engine.raw_info()
    assert info["DockerRootDir"].endswith("/engine/data")
    network = engine.create_network("gpuenv-test", labels={})
    made = engine.create(
        ContainerSpec(
            image=BASE,
            command=("sleep", "600"),
            init=True,
            network=network.name,
            ports=(PortBinding(container_port=7),),
        )
    )
    started = engine.start(made.id)
    assert started.ports[0].host_ip == "127.0.0.1"
    routes = engine.exec(made.id, ("cat", "/proc/net/route")).stdout.decode()
    assert any(line.split()[1] == "00000000" for line in routes.splitlines()[1:]), "a way out"
