"""What a launch does to an engine, step by step, with a fake one that keeps the contract."""

from __future__ import annotations

import os
import queue
import signal
import threading
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from gpuenv.build import verify_image
from gpuenv.containers.errors import (
    ContainerEndedError,
    EnvironmentAmbiguousError,
    EnvironmentBusyError,
    EnvironmentNotFoundError,
    GpuMissingInContainerError,
    NoFreePortError,
    NotReadyError,
)
from gpuenv.containers.facts import Caller
from gpuenv.containers.files import EnvironmentFiles, new_token
from gpuenv.containers.foreground import InitWatch, _pump_input, _serve
from gpuenv.containers.identity import OWNER, VOLUME
from gpuenv.containers.lifecycle import (
    find_environment,
    list_environments,
    remove_caches,
    select_environments,
    start_on_free_port,
    start_planned,
    start_stopped,
    taken_gpus,
)
from gpuenv.containers.plan import ContainerPlan, ContainerWish, LaunchFacts, plan_container
from gpuenv.containers.ready import wait_ready
from gpuenv.containers.usage import UsageMeter, parse_cgroup, probe_containers_of, share_gpus
from gpuenv.engine.errors import (
    ContainerNotRunningError,
    EngineTimeoutError,
    NameTakenError,
    PortTakenError,
    RlimitRefusedError,
)
from gpuenv.engine.fake import FAKE_CAPABILITIES, FakeEngine
from gpuenv.engine.fake_programs import Ended
from gpuenv.engine.protocol import ContainerSpec, ExitStatus, PortBinding, UsageSample, VolumeMount
from gpuenv.errors import ConfigurationError, LaunchFailedError
from gpuenv.host.gpu_inventory import GpuInventory, HostGpu, probe_gpu_use, probe_inventory
from gpuenv.jupyter import (
    Address,
    JupyterWish,
    UnsafeBindError,
    check_bind,
    plan_jupyter,
)
from gpuenv.launch import RunWish, parse_processes_per_node, plan_run
from gpuenv.secret import Secret
from gpuenv.state import cache_dir

if TYPE_CHECKING:
    from pathlib import Path

    from gpuenv.containers.plan import Note

NOW = datetime(2026, 12, 1, 12, tzinfo=timezone.utc)
ONE_GPU = GpuInventory(gpus=(HostGpu(device_index=0, uuid="GPU-aaaa", name="H200", minor=0),))


@pytest.fixture
def engine() -> FakeEngine:
    engine = FakeEngine()
    engine.add_image("localhost/gpuenv/torch:1", labels={"org.gpuenv.spec": "{}"})
    engine.programs["sleep"] = lambda _: Ended(exit_code=None)
    return engine


def plan(
    engine: FakeEngine, *, inventory: GpuInventory | None = None, session: str = "s1", **wish: Any
) -> ContainerPlan:
    image = engine.image("localhost/gpuenv/torch:1")
    assert image is not None
    return plan_container(
        ContainerWish(
            **{"image": "localhost/gpuenv/torch:1", "name": "train", "kind": "run", **wish}
        ),
        LaunchFacts(
            caller=Caller(uid=1000, gid=1000, login="alice"),
            capabilities=engine.capabilities,
            image=image,
            session=session,
            now=NOW,
            inventory=inventory or GpuInventory(why="none"),
        ),
    ).adding(command=("sleep", "9"))


def silent(_: Note) -> None:
    return None


@pytest.mark.parametrize(("variant", "level"), [("cpu", "detail"), ("cu128", "note")])
def test_that_there_is_no_gpu_is_told_where_the_image_could_use_one(
    engine: FakeEngine, variant: str, level: str
) -> None:
    labels = {"org.gpuenv.spec": "{}", "org.gpuenv.torch-variant": variant}
    engine.add_image("localhost/gpuenv/torch:1", labels=labels)
    notes = plan(engine, inventory=GpuInventory(why="no driver")).notes
    assert [it.level for it in notes if it.text == "no GPU found, so on the CPU: no driver"] == [
        level
    ]
    asked = plan(engine, inventory=GpuInventory(why="no driver"), gpus="all").notes
    assert [it.level for it in asked if it.text.startswith("no GPU found")] == ["warning"]


# --- starting ------------------------------------------------------------------------------------


def test_a_start_puts_the_user_in_and_makes_the_caches(engine: FakeEngine) -> None:
    info = start_planned(engine, plan(engine), on_note=silent)
    assert info.running
    passwd = engine.read_file(info.id, "/etc/passwd")
    assert passwd is not None
    assert passwd.startswith(b"dev:x:1000:1000::/home/dev:")
    assert {volume.name for volume in engine.volumes()} >= {"gpuenv-cache-1000-pip"}


def test_an_image_is_read_once_for_its_accounts(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    read_file = engine.read_file

    def recording(container: str, path: str) -> bytes | None:
        read.append(path)
        return read_file(container, path)

    monkeypatch.setattr(engine, "read_file", recording)
    first = start_planned(engine, plan(engine), on_note=silent)
    second = start_planned(engine, plan(engine, name="tune", session="s2"), on_note=silent)
    assert read == ["/etc/passwd", "/etc/group"]
    assert read_file(first.id, "/etc/passwd") == read_file(second.id, "/etc/passwd")
    assert read_file(first.id, "/etc/group") == read_file(second.id, "/etc/group")


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"/etc/passwd": 5, "/etc/group": ""}'])
def test_nonsense_in_the_cache_of_accounts_is_read_anew(engine: FakeEngine, content: str) -> None:
    start_planned(engine, plan(engine), on_note=silent)
    (kept,) = (cache_dir(os.environ) / "accounts").iterdir()
    kept.write_text(content)
    info = start_planned(engine, plan(engine, name="tune", session="s2"), on_note=silent)
    passwd = engine.read_file(info.id, "/etc/passwd") or b""
    assert passwd.splitlines()[1] == b"root:x:0:0:root:/root:/bin/sh"


def test_a_mount_over_etc_is_looked_into_each_time(engine: FakeEngine) -> None:
    over = (VolumeMount(name="etc", target="/etc"),)
    start_planned(engine, plan(engine, volumes=over), on_note=silent)
    assert not (cache_dir(os.environ) / "accounts").exists()


def test_a_refused_ulimit_is_left_to_the_engine_and_said(engine: FakeEngine) -> None:
    engine.fail["start"] = [
        RlimitRefusedError("no", why="operation not permitted", data={"ulimit": "memlock"})
    ]
    notes: list[Note] = []
    info = start_planned(engine, plan(engine), on_note=notes.append)
    assert [limit.name for limit in engine.spec_of(info.id).ulimits] == ["stack"]
    assert any("memlock" in note.text for note in notes)
    assert len(engine.containers()) == 1


def test_an_engine_that_refuses_every_ulimit_ends_the_launch(engine: FakeEngine) -> None:
    engine.fail["start"] = [
        RlimitRefusedError("no", data={"ulimit": name}) for name in ("memlock", "stack", "nofile")
    ]
    with pytest.raises(RlimitRefusedError):
        start_planned(engine, plan(engine), on_note=silent)
    assert engine.containers() == ()


@pytest.mark.parametrize("call", ["create", "start"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), LaunchFailedError("no"), OSError("gone")])
def test_whatever_interrupts_a_launch_nothing_of_it_stays(
    engine: FakeEngine, call: str, error: BaseException
) -> None:
    bystander = start_planned(engine, plan(engine, name="other", session="s0"), on_note=silent)
    engine.fail[call] = [error]  # type: ignore[list-item]
    with pytest.raises(type(error)):
        start_planned(engine, plan(engine), on_note=silent)
    assert [container.id for container in engine.containers()] == [bystander.id]


def test_a_name_of_somebody_else_is_told_apart(engine: FakeEngine) -> None:
    engine.create(
        ContainerSpec(
            image="localhost/gpuenv/torch:1", name="gpuenv-alice-train-run", command=("sleep", "1")
        )
    )
    with pytest.raises(NameTakenError, match="did not make"):
        start_planned(engine, plan(engine), on_note=silent)
    assert len(engine.containers()) == 1


def test_a_gpu_that_the_engine_did_not_give_ends_the_launch(engine: FakeEngine) -> None:
    engine.programs["sh"] = lambda _: Ended(exit_code=2)
    with pytest.raises(GpuMissingInContainerError):
        start_planned(engine, plan(engine, inventory=ONE_GPU), on_note=silent)
    assert engine.containers() == ()
    engine.programs["sh"] = lambda _: Ended(exit_code=2, stdout=b"/dev/nvidia0\n")
    assert start_planned(engine, plan(engine, inventory=ONE_GPU), on_note=silent).running


def with_port(engine: FakeEngine, port: int) -> ContainerPlan:
    return plan(engine).adding(ports=(PortBinding(container_port=1, host_port=port),))


def test_a_taken_port_gives_the_next_one_and_says_so(engine: FakeEngine) -> None:
    engine.taken_ports.add(8888)
    notes: list[Note] = []
    info, port = start_on_free_port(
        engine,
        lambda port: with_port(engine, port),
        first_port=8888,
        port_free=lambda port: port != 8889,
        on_note=notes.append,
    )
    assert (port, info.ports[0].host_port) == (8890, 8890)
    assert [note.text for note in notes][-1] == "port 8888 is taken, so it is 8890"
    assert len(engine.containers()) == 1


def test_no_free_port_at_all_is_told(engine: FakeEngine) -> None:
    with pytest.raises(NoFreePortError, match="65530"):
        start_on_free_port(
            engine,
            lambda port: with_port(engine, port),
            first_port=65530,
            port_free=lambda _: False,
            on_note=silent,
        )


def test_another_launch_failure_is_no_taken_port(engine: FakeEngine) -> None:
    engine.fail["start"] = [LaunchFailedError("no"), PortTakenError("no")]
    with pytest.raises(LaunchFailedError, match="no"):
        start_on_free_port(
            engine,
            lambda port: with_port(engine, port),
            first_port=1,
            port_free=lambda _: True,
            on_note=silent,
        )
    assert len(engine.fail["start"]) == 1


# --- finding -------------------------------------------------------------------------------------


def test_environments_are_found_by_name_kind_and_owner(engine: FakeEngine) -> None:
    start_planned(engine, plan(engine, kind="jupyter"), on_note=silent)
    start_planned(engine, plan(engine, kind="ssh", session="s2"), on_note=silent)
    start_planned(engine, plan(engine, name="tune", session="s3"), on_note=silent)
    engine.create(ContainerSpec(image="localhost/gpuenv/torch:1", command=("sleep",)))
    everything = list_environments(engine)
    assert len(everything) == 3
    assert list_environments(engine, owner=1) == ()
    found = find_environment(engine, "train", kind="ssh", owner=1000)
    assert found is not None
    assert found.identity.kind == "ssh"
    assert find_environment(engine, "trai", kind="ssh", owner=1000) is None

    def kinds(word: str) -> set[str]:
        return {
            f"{e.identity.name} {e.identity.kind}" for e in select_environments(everything, word)
        }

    assert kinds("train") == {"train jupyter", "train ssh"}
    assert kinds("train-ssh") == {"train ssh"}
    assert kinds("tr") == {"train jupyter", "train ssh"}
    assert kinds("gpuenv-alice-tune-run") == {"tune run"}
    with pytest.raises(EnvironmentAmbiguousError, match="2 environments"):
        kinds("t")
    for word in ("", "x", "training"):
        with pytest.raises(EnvironmentNotFoundError):
            kinds(word)


def test_the_beginning_of_a_name_means_the_environment_and_not_a_command_of_its_folder(
    engine: FakeEngine,
) -> None:
    start_planned(engine, plan(engine, name="proj-3f2a", kind="ssh"), on_note=silent)
    start_planned(
        engine, plan(engine, name="proj-3f2a-abe9", kind="run", session="s2"), on_note=silent
    )
    start_planned(engine, plan(engine, name="lone-11aa-0b0b", session="s3"), on_note=silent)
    everything = list_environments(engine)

    def names(word: str) -> list[str]:
        return [e.identity.name for e in select_environments(everything, word)]

    assert names("proj") == ["proj-3f2a"]
    assert names("proj-3f2a") == ["proj-3f2a"]
    assert names("proj-3f2a-abe9") == ["proj-3f2a-abe9"]
    assert names("lone") == ["lone-11aa-0b0b"]


def test_one_whose_start_was_cut_off_is_not_started_as_it_is(engine: FakeEngine) -> None:
    """Gpuenv was killed between making the container and putting its files in."""
    for kind, fix in (("ssh", "gpuenv ssh --name train"), ("run", "gpuenv rm train")):
        engine.create(plan(engine, kind=kind).spec)
        cut_off = find_environment(engine, "train", kind=kind, owner=1000)
        assert cut_off is not None
        assert cut_off.cut_off
        with pytest.raises(ContainerNotRunningError, match="cut off") as caught:
            start_stopped(engine, cut_off)
        assert caught.value.fix.startswith(fix)
    start_planned(engine, plan(engine, kind="jupyter"), on_note=silent)
    whole = find_environment(engine, "train", kind="jupyter", owner=1000)
    assert whole is not None
    assert not whole.cut_off


def test_gpus_of_running_environments_are_taken(engine: FakeEngine) -> None:
    engine.programs["sh"] = lambda _: Ended(exit_code=0, stdout=b"/dev/nvidia0\n")
    from gpuenv.containers.gpus import GpuNames

    wish = GpuNames(names=("0",))
    info = start_planned(engine, plan(engine, gpus=wish, inventory=ONE_GPU), on_note=silent)
    assert taken_gpus(list_environments(engine)) == ("GPU-aaaa",)
    engine.stop(info.id)
    assert taken_gpus(list_environments(engine)) == ()


def test_caches_in_use_stay_and_those_of_others_as_well(engine: FakeEngine) -> None:
    info = start_planned(engine, plan(engine), on_note=silent)
    engine.create_volume("gpuenv-cache-1000-old", labels={VOLUME: "old", OWNER: "1000"})
    engine.create_volume("gpuenv-cache-7-pip", labels={VOLUME: "pip", OWNER: "7"})
    assert remove_caches(engine, owner=1000) == ("gpuenv-cache-1000-old",)
    engine.remove(info.id, force=True)
    assert "gpuenv-cache-1000-pip" in remove_caches(engine, owner=1000)
    assert [volume.name for volume in engine.volumes()] == ["gpuenv-cache-7-pip"]


# --- readiness -----------------------------------------------------------------------------------


def clocked(answers: list[str]) -> tuple[Any, dict[str, Any]]:
    """Return a probe and a clock that moves a second at each pause."""
    time = [0.0]

    def pause(_: float) -> None:
        time[0] += 1

    return lambda: answers.pop(0) if len(answers) > 1 else answers[0], {
        "clock": lambda: time[0],
        "pause": pause,
    }


def test_waiting_ends_as_soon_as_it_answers(engine: FakeEngine) -> None:
    info = start_planned(engine, plan(engine), on_note=silent)
    probe, timing = clocked(["refused", "refused", ""])
    wait_ready(engine, info.id, probe, what="X", timeout_s=60, **timing)


def test_what_never_answers_is_told_with_the_containers_logs(engine: FakeEngine) -> None:
    engine.programs["sleep"] = lambda _: Ended(exit_code=None, stderr=b"cannot bind\n")
    info = start_planned(engine, plan(engine), on_note=silent)
    probe, timing = clocked(["refused"])
    with pytest.raises(NotReadyError, match="within 5 s") as caught:
        wait_ready(engine, info.id, probe, what="X", timeout_s=5, **timing)
    assert caught.value.why == "refused\ncannot bind"


def test_a_container_that_ends_meanwhile_is_told_at_once(engine: FakeEngine) -> None:
    info = start_planned(engine, plan(engine), on_note=silent)
    engine.end(info.id, 3)
    probe, timing = clocked(["refused"])
    with pytest.raises(ContainerEndedError, match="exit code 3"):
        wait_ready(engine, info.id, probe, what="X", timeout_s=5000, **timing)
    engine.remove(info.id)
    with pytest.raises(ContainerEndedError, match="is gone"):
        wait_ready(engine, info.id, probe, what="X", timeout_s=5000, **timing)


# --- private files -------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path) -> EnvironmentFiles:
    return EnvironmentFiles.of("train", environ={"GPUENV_STATE_DIR": str(tmp_path / "state")})


def test_a_token_is_256_bits_kept_and_private(files: EnvironmentFiles) -> None:
    token = files.make_token()
    assert len(bytes.fromhex(token)) == 32
    assert files.make_token() == token
    assert files.token_path.stat().st_mode & 0o777 == 0o600
    assert files.folder.stat().st_mode & 0o777 == 0o700
    assert files.renew_token() != token
    assert len({new_token() for _ in range(50)}) == 50


@pytest.mark.parametrize("content", ["", "\n", "0" * 63, "z" * 64, "0" * 65])
def test_what_is_no_token_is_replaced_never_used(files: EnvironmentFiles, content: str) -> None:
    files.write(files.token_path, content)
    assert files.token() is None
    assert files.secret_token() is None
    assert len(files.make_token()) == 64


def test_a_file_that_others_could_read_is_closed(files: EnvironmentFiles) -> None:
    token = files.make_token()
    files.token_path.chmod(0o644)
    assert files.token() == token
    assert files.token_path.stat().st_mode & 0o777 == 0o600


def test_one_command_at_a_time_holds_an_environment(files: EnvironmentFiles) -> None:
    with files.locked(), pytest.raises(EnvironmentBusyError), files.locked(wait=False):
        pass
    with files.locked(wait=False):
        pass


def test_the_same_name_elsewhere_is_another_environment(tmp_path: Path) -> None:
    environ = {"GPUENV_STATE_DIR": str(tmp_path)}
    here = EnvironmentFiles.of("train", environ=environ)
    there = EnvironmentFiles.of("train", environ=environ, place="ssh://me@gpu01/../x")
    assert here.folder != there.folder
    assert there.folder.parent == here.folder.parent


def test_a_state_folder_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    files = EnvironmentFiles.of("t", environ={"GPUENV_STATE_DIR": str(tmp_path / "file")})
    with pytest.raises(ConfigurationError), files.locked():
        pass
    with pytest.raises(ConfigurationError):
        files.make_token()


# --- run -----------------------------------------------------------------------------------------


def run_plan(engine: FakeEngine, run: RunWish, *, inventory: GpuInventory) -> ContainerPlan:
    image = engine.image("localhost/gpuenv/torch:1")
    assert image is not None
    return plan_run(
        ContainerWish(image="localhost/gpuenv/torch:1", name="t", kind="run"),
        LaunchFacts(
            caller=Caller(uid=1000, gid=1000, login="alice"),
            capabilities=FAKE_CAPABILITIES,
            image=image,
            session="s",
            now=NOW,
            inventory=inventory,
        ),
        run,
    )


def test_the_third_ctrl_c_leaves_an_engine_that_takes_no_signal(engine: FakeEngine) -> None:
    answering = threading.Event()
    engine.signal = lambda *_: answering.wait(30)  # type: ignore[method-assign, assignment, return-value] - stuck
    events: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for _ in range(3):
        events.put(("signal", "SIGINT"))
    with pytest.raises(EngineTimeoutError, match="does not answer"):
        _serve(engine, "c", SimpleNamespace(tty=False), events)  # type: ignore[arg-type] - no more is asked of it
    answering.set()


def signals_sent(
    engine: FakeEngine, *, tty: bool, first: str, patience_s: float
) -> tuple[list[str], ExitStatus]:
    """Return what a container is sent that only SIGKILL, or SIGTERM, ends."""
    sent: list[str] = []
    events: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def take(_container: str, name: str) -> None:
        sent.append(name)
        if name in {"SIGKILL", "SIGTERM"}:
            events.put(("exit", ExitStatus(exit_code=137)))
        elif not tty:
            events.put(("signal", "SIGTERM"))

    engine.signal = take  # type: ignore[method-assign, assignment] - what it was sent
    events.put(("signal", first))
    attachment = SimpleNamespace(tty=tty, resize=lambda **_: None)
    status = _serve(engine, "c", attachment, events, hangup_patience_s=patience_s)  # type: ignore[arg-type] - no more is asked of it
    return sent, status


def test_a_container_whose_terminal_was_closed_is_killed_if_sighup_does_not_end_it(
    engine: FakeEngine,
) -> None:
    sent, status = signals_sent(engine, tty=True, first="SIGHUP", patience_s=0.01)
    assert sent == ["SIGHUP", "SIGKILL"]
    assert status.exit_code == 137


def test_without_a_terminal_a_command_may_outlive_sighup(engine: FakeEngine) -> None:
    sent, _ = signals_sent(engine, tty=False, first="SIGHUP", patience_s=0.0)
    assert sent == ["SIGHUP", "SIGTERM"]


def test_the_end_of_the_terminal_is_a_hangup_even_where_no_signal_says_so() -> None:
    terminal, ours = os.openpty()
    stop_read, stop_write = os.pipe()
    events: queue.SimpleQueue[Any] = queue.SimpleQueue()
    attachment = SimpleNamespace(tty=True, close_input=lambda: None)
    pump = threading.Thread(
        target=_pump_input, args=(attachment, ours, stop_read, events), daemon=True
    )
    pump.start()
    os.close(terminal)
    assert events.get(timeout=20) == ("signal", "SIGHUP")
    pump.join(20)
    for descriptor in (ours, stop_read, stop_write):
        os.close(descriptor)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_signal_while_an_image_is_verified_leaves_no_container(
    engine: FakeEngine, number: signal.Signals
) -> None:
    names: list[str] = []

    def wait(container: str, **_: Any) -> None:
        found = engine.container(container)
        assert found is not None
        names.append(found.name)
        os.kill(os.getpid(), number)
        threading.Event().wait(20)  # the signal is taken here

    engine.wait = wait  # type: ignore[method-assign, assignment] - never comes to its end
    engine.programs["python"] = lambda _: Ended(exit_code=0)
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt):
        verify_image(engine, "localhost/gpuenv/torch:1", SimpleNamespace())  # type: ignore[arg-type] - is not compared
    assert [name.startswith("gpuenv-verify-") for name in names] == [True]
    assert engine.containers() == ()
    assert signal.getsignal(number) == before


INIT_WORDS = b"[FATAL tini (7)] exec ./my prog failed: Permission denied\r\n"


@pytest.mark.parametrize(
    "pieces", [[INIT_WORDS], [INIT_WORDS[:1], INIT_WORDS[1:20], INIT_WORDS[20:]]]
)
def test_the_words_of_an_init_that_cannot_run_the_command_are_taken_out(
    pieces: list[bytes],
) -> None:
    watch = InitWatch()
    assert [watch.pass_on(piece) for piece in pieces] == [b""] * len(pieces)
    assert watch.rest() == b""
    assert watch.refused == ("./my prog", "Permission denied")


@pytest.mark.parametrize(
    "pieces",
    [
        [b"hello\n", INIT_WORDS],
        [INIT_WORDS, b"and more\n"],
        [INIT_WORDS[:-2]],
        [b"[FATAL tini (7)] Unexpected error\n"],
        [b"[FAT", b"AL] of the program itself\n"],
        [b"["],
        [],
    ],
)
def test_any_other_output_is_the_commands_and_comes_whole(pieces: list[bytes]) -> None:
    watch = InitWatch()
    assert b"".join([*map(watch.pass_on, pieces), watch.rest()]) == b"".join(pieces)
    assert watch.refused is None


def test_output_is_not_held_back_once_it_is_the_commands() -> None:
    watch = InitWatch()
    assert watch.pass_on(b"$ ") == b"$ "
    assert watch.pass_on(INIT_WORDS) == INIT_WORDS


@pytest.mark.parametrize(
    ("command", "processes", "inventory", "expected"),
    [
        (("train.py", "--lr", "1"), 4, ONE_GPU,
         "torchrun --standalone --nproc-per-node=4 train.py --lr 1"),
        (("-m", "pkg.train"), "gpu", ONE_GPU,
         "torchrun --standalone --nproc-per-node=gpu -m pkg.train"),
        (("python", "train.py"), 2, ONE_GPU,
         "torchrun --standalone --nproc-per-node=2 --no-python python train.py"),
        (("train.py",), "gpu", GpuInventory(),
         "torchrun --standalone --nproc-per-node=1 train.py"),
    ],
)  # fmt: skip
def test_torchrun_wraps_scripts_modules_and_programs(
    engine: FakeEngine,
    command: tuple[str, ...],
    processes: Any,
    inventory: GpuInventory,
    expected: str,
) -> None:
    made = run_plan(
        engine, RunWish(command=command, processes_per_node=processes), inventory=inventory
    )
    assert " ".join(made.spec.command or ()) == expected


def test_processes_without_a_command_or_a_number_are_refused(engine: FakeEngine) -> None:
    with pytest.raises(ConfigurationError):
        run_plan(engine, RunWish(processes_per_node=2), inventory=ONE_GPU)
    for text in ("0", "-1", "x", "", "2.0"):
        with pytest.raises(ConfigurationError):
            parse_processes_per_node(text)


def test_no_command_is_the_images_own(engine: FakeEngine) -> None:
    spec = run_plan(engine, RunWish(), inventory=ONE_GPU).spec
    assert (spec.command, spec.entrypoint) == (None, None)


# --- jupyter -------------------------------------------------------------------------------------

TOKEN = "f0" * 32


def jupyter_plan(engine: FakeEngine, **wish: Any) -> ContainerPlan:
    image = engine.image("localhost/gpuenv/torch:1")
    assert image is not None
    container = {key: wish.pop(key) for key in ("user", "workspace", "ports") if key in wish}
    return plan_jupyter(
        ContainerWish(image="i", name="train", kind="jupyter", **container),
        LaunchFacts(
            caller=Caller(uid=1000, gid=100, login="alice"),
            capabilities=FAKE_CAPABILITIES,
            image=image,
            session="s",
            now=NOW,
        ),
        JupyterWish(**{"access": "token", "secret": Secret(TOKEN), **wish}),
        host_port=9999,
    )


def test_the_token_is_a_file_of_the_user_and_nowhere_else_in_the_plan(engine: FakeEngine) -> None:
    made = jupyter_plan(engine)
    (holder,) = [f for f in made.spec.files if f.content and TOKEN.encode() in f.content]
    assert (holder.path, holder.mode, holder.uid, holder.gid) == (
        "/etc/gpuenv/jupyter/token", 0o400, 1000, 100,
    )  # fmt: skip
    for text in (repr(made), str(made.as_dict()), repr(made.spec.env), repr(made.spec.labels)):
        assert TOKEN not in text
    assert made.spec.ports == (
        PortBinding(container_port=8888, host_port=9999, host_ip="127.0.0.1"),
    )


def test_the_images_own_user_is_refused_for_a_server(engine: FakeEngine) -> None:
    with pytest.raises(ConfigurationError, match="--user image"):
        jupyter_plan(engine, user="image")


@pytest.mark.parametrize("bind", ["127.0.0.1", "::1", "127.9.9.9"])
def test_the_loopback_needs_no_tls(bind: str) -> None:
    assert check_bind(bind, tls=False, insecure=False) == ()


@pytest.mark.parametrize("bind", ["0.0.0.0", "::", "192.0.2.7"])  # noqa: S104 - what is tested
def test_anything_wider_needs_tls_or_insecure(bind: str) -> None:
    with pytest.raises(UnsafeBindError):
        check_bind(bind, tls=False, insecure=False)
    assert check_bind(bind, tls=True, insecure=False) == ()
    (note,) = check_bind(bind, tls=False, insecure=True)
    assert note.level == "warning"


def test_a_bind_that_is_no_address_is_refused() -> None:
    for text in ("", "localhost", "example.org", "127.0.0.1:80"):
        with pytest.raises(ConfigurationError):
            check_bind(text, tls=True, insecure=True)


def test_addresses_are_urls() -> None:
    assert Address(host="127.0.0.1", port=1).url == "http://127.0.0.1:1/lab"
    v6 = Address(host="::1", port=1, tls=True)
    assert v6.url_with(Secret("a/b")) == "https://[::1]:1/lab?token=a%2Fb"


# --- GPU use per container -----------------------------------------------------------------------

A, B = "a" * 64, "b" * 64


@pytest.mark.parametrize(
    ("text", "owner"),
    [
        (f"12:memory:/docker/{A}\n1:name=systemd:/docker/{A}\n", A),
        (f"0::/system.slice/docker-{A}.scope\n", A),
        (f"0::/machine.slice/libpod-{A}.scope/container\n", A),
        (f"0::/kubepods.slice/x/cri-containerd-{A}.scope\n", A),
        (f"0::/docker/{A}/docker/{B}\n", B),  # an engine inside a container: the inner one
        ("0::/user.slice/user-1000.slice/session-1.scope\n", None),
        (f"0::/docker/{A}ff\n", None),
        ("", None),
    ],
)
def test_control_groups_name_the_container(text: str, owner: str | None) -> None:
    assert parse_cgroup(text) == owner


class FakeNvmlError(Exception):
    pass


def fake_nvml(**changes: Any) -> Any:
    """Return a stand-in for pynvml: two GPUs, three processes, one that tells no memory."""

    def silent_gpu(*_: Any) -> Any:
        raise FakeNvmlError("Not Supported")

    processes = {
        0: [
            SimpleNamespace(pid=11, usedGpuMemory=4 << 30),
            SimpleNamespace(pid=12, usedGpuMemory=1 << 30),
        ],
        1: [SimpleNamespace(pid=21, usedGpuMemory=None)],
    }  # fmt: skip
    samples = {
        0: [
            SimpleNamespace(pid=11, timeStamp=1, smUtil=90),
            SimpleNamespace(pid=11, timeStamp=2, smUtil=40),
            SimpleNamespace(pid=12, timeStamp=2, smUtil=30),
        ]
    }
    return SimpleNamespace(
        NVMLError=FakeNvmlError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        **{
            "nvmlDeviceGetCount": lambda: 2,
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetUUID": lambda h: f"GPU-{h}",
            "nvmlDeviceGetName": lambda _: b"NVIDIA H200",
            "nvmlDeviceGetMinorNumber": lambda h: h,
            "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(total=141 << 30, used=5 << 30),
            "nvmlDeviceGetUtilizationRates": lambda _: SimpleNamespace(gpu=70),
            "nvmlDeviceGetMaxMigDeviceCount": silent_gpu,
            "nvmlDeviceGetComputeRunningProcesses": lambda h: processes[h],
            "nvmlDeviceGetGraphicsRunningProcesses": lambda h: processes[h][:1],
            "nvmlDeviceGetProcessUtilization": lambda h, _: samples.get(h) or silent_gpu(),
            **changes,
        },
    )  # fmt: skip


def test_gpu_use_is_summed_up_by_container(tmp_path: Path) -> None:
    for pid, owner in ((11, A), (12, A), (21, B)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cgroup").write_text(f"0::/system.slice/docker-{owner}.scope\n")
    use = probe_gpu_use(fake_nvml())
    owners = probe_containers_of([11, 12, 21, 99], proc=tmp_path)
    assert owners == {11: A, 12: A, 21: B}
    shares = share_gpus(use, owners)
    (first,) = shares[A]
    assert (first.device_index, first.memory_bytes, first.sm_percent) == (0, 5 << 30, 70)
    assert first.pids == (11, 12)
    (second,) = shares[B]
    assert (second.device_index, second.memory_bytes, second.sm_percent) == (1, None, None)


def test_the_inventory_leaves_out_a_gpu_that_fell_off_the_bus(tmp_path: Path) -> None:
    def lost(index: int) -> int:
        if index == 0:
            raise FakeNvmlError("GPU is lost")
        return index

    for name in ("nvidia0", "nvidiactl", "null"):
        (tmp_path / name).write_text("")
    (tmp_path / "nvidia-caps").mkdir()
    found = probe_inventory(fake_nvml(nvmlDeviceGetHandleByIndex=lost), dev=tmp_path)
    assert [gpu.device_index for gpu in found.gpus] == [1]
    assert found.nodes == (str(tmp_path / "nvidia0"), str(tmp_path / "nvidiactl"))


def test_no_driver_is_told_in_nvmls_words(tmp_path: Path) -> None:
    def init() -> None:
        raise FakeNvmlError("Driver Not Loaded")

    nvml = SimpleNamespace(NVMLError=FakeNvmlError, nvmlInit=init)
    assert probe_inventory(nvml, dev=tmp_path).why == "NVML: Driver Not Loaded"
    assert probe_gpu_use(nvml).found_via == "NVML: Driver Not Loaded"


def test_the_meter_joins_engine_and_gpus_and_asks_the_engine_where_groups_are_silent(
    engine: FakeEngine, tmp_path: Path
) -> None:
    info = start_planned(engine, plan(engine), on_note=silent)
    asked: list[str] = []

    class Engine:
        usage = engine.usage

        def processes(self, container: str) -> tuple[int, ...]:
            asked.append(container)
            return (11, 12)

    meter = UsageMeter(Engine(), gpu_use=lambda: probe_gpu_use(fake_nvml()), proc=tmp_path)  # type: ignore[arg-type]
    environments = list_environments(engine)
    meter.read(environments)
    (use,), gpus = meter.read(environments)
    assert asked == [info.id, info.id]
    assert use.environment.container.id == info.id
    assert [(share.device_index, share.sm_percent) for share in use.gpus] == [(0, 70)]
    assert gpus.found_via == "NVML"


def test_containers_are_read_at_the_same_time(engine: FakeEngine) -> None:
    """An engine takes up to a second for each: one after the other, five would take five."""
    everyone = threading.Barrier(3, timeout=20)
    usage = engine.usage

    class Engine:
        def usage(self, container: str) -> UsageSample:
            everyone.wait()
            return usage(container)

    for number in range(3):
        start_planned(
            engine, plan(engine, name=f"train-{number}", session=f"s{number}"), on_note=silent
        )
    meter = UsageMeter(Engine(), gpu_use=None)  # type: ignore[arg-type]
    uses, _ = meter.read(list_environments(engine))
    assert {use.environment.identity.name for use in uses} == {"train-0", "train-1", "train-2"}
    assert {use.memory_bytes for use in uses} == {100 << 20}


def test_an_engine_that_fails_while_it_is_read_is_told(engine: FakeEngine) -> None:
    class Engine:
        def usage(self, container: str) -> UsageSample:
            raise EngineTimeoutError("the container engine does not answer", why=container)

    start_planned(engine, plan(engine), on_note=silent)
    meter = UsageMeter(Engine(), gpu_use=None)  # type: ignore[arg-type]
    with pytest.raises(EngineTimeoutError):
        meter.read(list_environments(engine))


@pytest.mark.parametrize(("took_s", "paused_s"), [(0.0, 1.0), (0.75, 0.25), (1.5, 0.0)])
def test_what_an_engine_itself_waited_is_not_waited_for_again(
    engine: FakeEngine, took_s: float, paused_s: float
) -> None:
    start_planned(engine, plan(engine), on_note=silent)
    pauses: list[float] = []
    times = iter((10.0, 10.0 + took_s))
    (use,), _ = UsageMeter(engine, gpu_use=None).read_rates(
        lambda: list_environments(engine),
        apart_s=1.0,
        clock=lambda: next(times),
        sleep=pauses.append,
    )
    assert pauses == [paused_s]
    assert use.cpu_percent == 0.0


def test_a_container_that_ends_between_two_readings_is_left_out(engine: FakeEngine) -> None:
    info = start_planned(engine, plan(engine), on_note=silent)
    environments = list_environments(engine)
    engine.stop(info.id)
    engine.remove(info.id)
    uses, _ = UsageMeter(engine, gpu_use=None).read(environments)
    assert uses == ()
