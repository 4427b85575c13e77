"""What the layers above rely on when they make and follow containers."""

from __future__ import annotations

import secrets
from contextlib import closing
from dataclasses import replace

import pytest

from gpuenv.engine import errors as e
from gpuenv.engine.protocol import (
    BindMount,
    ContainerEngine,
    ContainerSpec,
    PortBinding,
    PutFile,
    TmpfsMount,
    VolumeMount,
)
from tests.engine_fixtures import BASE


@pytest.fixture
def spec(run_labels: dict[str, str]) -> ContainerSpec:
    return ContainerSpec(image=BASE, labels=run_labels, command=("sleep", "600"))


def output_of(engine: ContainerEngine, container: str) -> dict[str, bytes]:
    chunks = list(engine.logs(container))
    return {
        name: b"".join(chunk.data for chunk in chunks if chunk.stream == name)
        for name in ("stdout", "stderr")
    }


def test_a_program_runs_to_its_end_and_tells_its_exit_code(
    either_engine: ContainerEngine, spec: ContainerSpec
) -> None:
    made = either_engine.create(
        replace(spec, command=("sh", "-c", "echo out; echo err >&2; exit 7"))
    )
    before = either_engine.container(made.id)
    assert before is not None
    assert (before.state, before.exit_code) == ("created", None)
    either_engine.start(made.id)
    assert either_engine.wait(made.id, timeout_s=60).exit_code == 7
    after = either_engine.container(made.id)
    assert after is not None
    assert (after.state, after.exit_code, after.running) == ("exited", 7, False)
    assert output_of(either_engine, made.id) == {"stdout": b"out\n", "stderr": b"err\n"}


def test_a_container_that_runs_is_listed_by_its_labels(
    either_engine: ContainerEngine, spec: ContainerSpec
) -> None:
    own = {**spec.labels, "org.gpuenv.name": "a=b ü"}
    first = either_engine.create(replace(spec, labels=own))
    second = either_engine.create(spec)
    either_engine.start(second.id)
    everything = either_engine.containers(labels=spec.labels)
    assert [info.id for info in everything] == [second.id, first.id]
    assert [i.id for i in either_engine.containers(labels=own)] == [first.id]
    assert [i.id for i in either_engine.containers(labels={**own, "org.gpuenv.name": None})] == [
        first.id
    ]
    running = either_engine.containers(labels=spec.labels, only_running=True)
    assert [info.id for info in running] == [second.id]
    assert either_engine.containers(labels={**own, "org.gpuenv.name": "other"}) == ()


def test_stop_ends_a_container_and_stopping_twice_is_fine(
    either_engine: ContainerEngine, spec: ContainerSpec
) -> None:
    made = either_engine.create(replace(spec, init=True))
    either_engine.start(made.id)
    either_engine.stop(made.id, timeout_s=5)
    either_engine.stop(made.id, timeout_s=5)
    info = either_engine.container(made.id)
    assert info is not None
    assert (info.state, info.exit_code) == ("exited", 143)


def test_wait_gives_up_after_its_time(either_engine: ContainerEngine, spec: ContainerSpec) -> None:
    made = either_engine.create(spec)
    either_engine.start(made.id)
    with pytest.raises(TimeoutError):
        either_engine.wait(made.id, timeout_s=0.3)


def test_a_running_container_is_removed_only_by_force(
    either_engine: ContainerEngine, spec: ContainerSpec
) -> None:
    made = either_engine.create(spec)
    either_engine.start(made.id)
    with pytest.raises(e.ImageInUseError):
        either_engine.remove(made.id)
    assert either_engine.remove(made.id, force=True) is True
    assert either_engine.remove(made.id, force=True) is False
    assert either_engine.container(made.id) is None


def test_a_taken_name_is_its_own_error(either_engine: ContainerEngine, spec: ContainerSpec) -> None:
    named = replace(spec, name=f"gpuenv-test-{secrets.token_hex(4)}")
    either_engine.create(named)
    with pytest.raises(e.NameTakenError):
        either_engine.create(named)


def test_a_missing_image_is_its_own_error(
    either_engine: ContainerEngine, spec: ContainerSpec
) -> None:
    with pytest.raises(e.ImageNotFoundError) as caught:
        either_engine.create(replace(spec, image="localhost/gpuenv/nothing:here"))
    assert "localhost/gpuenv/nothing:here" in caught.value.what
    assert either_engine.containers(labels=spec.labels) == ()


def test_a_missing_program_fails_the_start(
    either_engine: ContainerEngine, spec: ContainerSpec
) -> None:
    made = either_engine.create(replace(spec, command=("no-such-program",)))
    with pytest.raises(e.CommandNotFoundError) as caught:
        either_engine.start(made.id)
    assert "no-such-program" in caught.value.why


def test_a_missing_container_is_its_own_error(either_engine: ContainerEngine) -> None:
    name = "gpuenv-test-not-there"
    for call in (
        lambda: either_engine.start(name),
        lambda: either_engine.stop(name),
        lambda: either_engine.wait(name, timeout_s=5),
        lambda: list(either_engine.logs(name)),
        lambda: either_engine.exec(name, ("true",)),
        lambda: either_engine.attach(name),
        lambda: either_engine.read_file(name, "/etc/passwd"),
        lambda: either_engine.put_files(name, (PutFile(path="/x", content=b""),)),
        lambda: either_engine.usage(name),
        lambda: either_engine.processes(name),
    ):
        with pytest.raises(e.ContainerNotFoundError):
            call()


def test_ports_are_on_loopback_and_known_after_the_start(
    either_engine: ContainerEngine, spec: ContainerSpec
) -> None:
    made = either_engine.create(replace(spec, ports=(PortBinding(container_port=8888),)))
    info = either_engine.start(made.id)
    (port,) = info.ports
    assert (port.container_port, port.host_ip, port.protocol) == (8888, "127.0.0.1", "tcp")
    assert port.host_port > 1023
    again = either_engine.restart(made.id, timeout_s=1)
    assert [p.container_port for p in again.ports] == [8888]


def test_a_port_in_use_is_its_own_error(
    either_engine: ContainerEngine, spec: ContainerSpec
) -> None:
    first = either_engine.create(replace(spec, ports=(PortBinding(container_port=80),)))
    (taken,) = either_engine.start(first.id).ports
    binding = PortBinding(container_port=80, host_port=taken.host_port)
    second = either_engine.create(replace(spec, ports=(binding,)))
    with pytest.raises(e.PortTakenError):
        either_engine.start(second.id)


def test_files_are_inside_before_the_start_and_nowhere_else(
    either_engine: ContainerEngine, spec: ContainerSpec
) -> None:
    secret = f"token-{secrets.token_hex(8)}"
    path = "/run/gpuenv/deep/token"
    made = either_engine.create(
        replace(
            spec,
            command=("cat", path),
            files=(PutFile(path=path, content=secret.encode(), mode=0o400),),
        )
    )
    assert either_engine.read_file(made.id, path) == secret.encode()
    assert either_engine.read_file(made.id, "/run/gpuenv/other") is None
    assert secret not in repr(either_engine.container(made.id))
    assert secret not in repr(spec)
    either_engine.start(made.id)
    either_engine.wait(made.id, timeout_s=60)
    assert output_of(either_engine, made.id)["stdout"] == secret.encode()


def test_exec_tells_output_exit_code_and_takes_input(
    either_engine: ContainerEngine, spec: ContainerSpec
) -> None:
    made = either_engine.create(spec)
    either_engine.start(made.id)
    result = either_engine.exec(made.id, ("sh", "-c", "echo out; echo err >&2; exit 3"))
    assert (result.exit_code, result.stdout, result.stderr) == (3, b"out\n", b"err\n")
    payload = bytes(range(256)) * 4096
    assert either_engine.exec(made.id, ("cat",), stdin=payload).stdout == payload
    told = either_engine.exec(made.id, ("printenv", "NAME"), env={"NAME": "a b=c"})
    assert told.stdout == b"a b=c\n"
    missing = either_engine.exec(made.id, ("no-such-program",))
    assert missing.exit_code in {126, 127}


def test_exec_needs_a_container_that_runs(
    either_engine: ContainerEngine, spec: ContainerSpec
) -> None:
    made = either_engine.create(spec)
    with pytest.raises(e.ContainerNotRunningError):
        either_engine.exec(made.id, ("true",))


def test_logs_can_be_cut_to_the_last_lines(
    either_engine: ContainerEngine, spec: ContainerSpec
) -> None:
    made = either_engine.create(replace(spec, command=("sh", "-c", "echo 1; echo 2; echo 3")))
    either_engine.start(made.id)
    either_engine.wait(made.id, timeout_s=60)
    assert b"".join(chunk.data for chunk in either_engine.logs(made.id, tail=2)) == b"2\n3\n"
    followed = either_engine.logs(made.id, follow=True)
    assert b"".join(chunk.data for chunk in followed) == b"1\n2\n3\n"


def test_a_named_volume_is_made_with_our_labels_and_kept(
    either_engine: ContainerEngine, spec: ContainerSpec
) -> None:
    name = f"gpuenv-test-{secrets.token_hex(4)}"
    made = either_engine.create(replace(spec, mounts=(VolumeMount(name=name, target="/cache"),)))
    assert [volume.name for volume in either_engine.volumes(labels=spec.labels)] == [name]
    with pytest.raises(e.ImageInUseError):
        either_engine.remove_volume(name)
    either_engine.remove(made.id, force=True)
    assert [volume.name for volume in either_engine.volumes(labels=spec.labels)] == [name]
    assert either_engine.create_volume(name, labels=spec.labels).name == name
    assert either_engine.remove_volume(name) is True
    assert either_engine.remove_volume(name) is False


def test_networks_are_found_by_label_and_made_once(
    either_engine: ContainerEngine, run_labels: dict[str, str]
) -> None:
    name = f"gpuenv-test-{secrets.token_hex(4)}"
    first = either_engine.create_network(name, labels=run_labels)
    assert either_engine.create_network(name, labels=run_labels).id == first.id
    assert [n.name for n in either_engine.networks(labels=run_labels)] == [name]
    assert either_engine.remove_network(first.name) is True
    assert either_engine.remove_network(first.name) is False


def test_what_the_review_refuses_is_not_made(
    either_engine: ContainerEngine, spec: ContainerSpec
) -> None:
    hidden = replace(
        spec,
        mounts=(TmpfsMount(target="/run/gpuenv"),),
        files=(PutFile(path="/run/gpuenv/token", content=b"x"),),
    )
    assert either_engine.review(hidden)[0].severity == "refusal"
    with pytest.raises(e.SpecRefusedError):
        either_engine.create(hidden)
    assert either_engine.containers(labels=spec.labels) == ()


def test_a_container_that_removes_itself_is_gone_after_its_end(
    either_engine: ContainerEngine, spec: ContainerSpec
) -> None:
    made = either_engine.create(replace(spec, auto_remove=True))
    either_engine.start(made.id)
    either_engine.stop(made.id, timeout_s=0)
    assert either_engine.remove(made.id) in {True, False}  # the engine may still be at it
    assert either_engine.container(made.id) is None


def test_usage_grows_and_unknown_is_not_a_number(
    either_engine: ContainerEngine, spec: ContainerSpec
) -> None:
    made = either_engine.create(replace(spec, memory_bytes=256 << 20))
    stopped = either_engine.usage(made.id)
    assert stopped.memory_bytes is None
    either_engine.start(made.id)
    sample = either_engine.usage(made.id)
    assert sample.at.tzinfo is not None
    if either_engine.capabilities.stats:
        assert sample.cpu_ns is not None
        assert sample.memory_bytes is not None
        assert sample.memory_bytes < (256 << 20)
        assert sample.memory_limit_bytes == 256 << 20
    pids = either_engine.processes(made.id)
    info = either_engine.container(made.id)
    assert info is not None
    assert pids is None or info.pid in pids


def test_events_tell_the_life_of_a_container(
    either_engine: ContainerEngine, spec: ContainerSpec
) -> None:
    made = either_engine.create(replace(spec, command=("true",)))
    created = either_engine.container(made.id)
    assert created is not None
    either_engine.start(made.id)
    seen: list[str] = []
    with closing(either_engine.events(labels=spec.labels, since=created.created_at)) as told:
        for event in told:
            if event.id == made.id:
                seen.append(event.action)
            if event.action == "die":
                break
    assert {"create", "start", "die"} <= set(seen)
    assert seen[0] == "create"


def test_attach_before_the_start_misses_nothing(
    either_engine: ContainerEngine, spec: ContainerSpec
) -> None:
    made = either_engine.create(replace(spec, command=("echo", "first words")))
    attachment = either_engine.attach(made.id)
    either_engine.start(made.id)
    if either_engine.address.startswith("fake:"):
        attachment = either_engine.attach(made.id)
    chunk = attachment.read()
    assert chunk is not None
    assert chunk.data == b"first words\n"
    assert attachment.read() is None
    attachment.close()


def test_a_mounted_folder_must_exist_on_the_engines_host(
    either_engine: ContainerEngine, spec: ContainerSpec
) -> None:
    if either_engine.address.startswith("fake:"):
        pytest.skip("the fake engine has no host")
    mount = BindMount(source="/no/such/folder", target="/data")
    with pytest.raises(e.MountSourceError):
        either_engine.create(replace(spec, mounts=(mount,)))
    assert either_engine.containers(labels=spec.labels) == ()
