"""Nothing a container's description asks is dropped in silence, whatever the engine can do.

Each field, on each kind of engine: it is in the request that is sent, or the review has a finding.
On the real engine, what was sent is what the engine then says it has.
"""

from __future__ import annotations

import secrets
from dataclasses import fields, replace
from typing import Any

import pytest

from gpuenv.engine.capabilities import EngineCapabilities, EngineVersion
from gpuenv.engine.docker import plan_create
from gpuenv.engine.fake import FAKE_CAPABILITIES
from gpuenv.engine.protocol import (
    BindMount,
    ContainerEngine,
    ContainerSpec,
    DeviceMapping,
    GpuRequest,
    PortBinding,
    PutFile,
    TmpfsMount,
    Ulimit,
    VolumeMount,
)
from gpuenv.engine.review import compare_created, fit_ulimits, review
from tests.engine_fixtures import BASE

PLAIN = ContainerSpec(image=BASE)

SAMPLES: dict[str, dict[str, Any]] = {
    "image": {"image": f"{BASE}-other"},
    "name": {"name": "gpuenv-test-name"},
    "command": {"command": ("echo", "a b")},
    "entrypoint": {"entrypoint": ("/bin/sh",)},
    "env": {"env": {"A": "b=c"}},
    "labels": {"labels": {"org.gpuenv.x": "y"}},
    "user": {"user": "1000:1000", "mounts": (BindMount(source="/tmp", target="/data"),)},
    "group_add": {"group_add": ("0",)},
    "workdir": {"workdir": "/srv"},
    "hostname": {"hostname": "box"},
    "mounts": {"mounts": (BindMount(source="/tmp", target="/data", read_only=True),)},
    "ports": {"ports": (PortBinding(container_port=8888, host_port=80),)},
    "files": {"files": (PutFile(path="/run/x", content=b"x"),)},
    "devices": {"devices": (DeviceMapping(path="/dev/null", container_path="/dev/other"),)},
    "gpu": {"gpu": GpuRequest()},
    "shm_bytes": {"shm_bytes": 256 << 20},
    "ulimits": {"ulimits": (Ulimit(name="memlock", soft=-1, hard=-1),)},
    "memory_bytes": {"memory_bytes": 256 << 20},
    "cpus": {"cpus": 1.5},
    "pids_limit": {"pids_limit": 100},
    "init": {"init": True},
    "cap_drop": {"cap_drop": ("ALL",)},
    "cap_add": {"cap_add": ("CHOWN",)},
    "no_new_privileges": {"no_new_privileges": True},
    "security_opt": {"security_opt": ("apparmor=unconfined",)},
    "read_only_root": {"read_only_root": True},
    "network": {"network": "host"},
    "network_aliases": {"network": "gpuenv-test", "network_aliases": ("db",)},
    "extra_hosts": {"extra_hosts": (("mirror", "192.0.2.1"),)},
    "ipc": {"ipc": "private"},
    "tty": {"tty": True},
    "open_stdin": {"open_stdin": True},
    "restart": {"restart": "on-failure"},
    "auto_remove": {"auto_remove": True},
    "stop_signal": {"stop_signal": "SIGINT"},
    "stop_timeout_s": {"stop_timeout_s": 3},
    "user_mapping": {"user_mapping": "keep-id"},
    "log_max_bytes": {"log_max_bytes": 1 << 20},
    "platform": {"platform": "linux/arm64"},
}
# Not in the body: the query of the request, or a call of its own.
BESIDE_THE_BODY = {"name", "platform", "files"}

ENGINES: dict[str, EngineCapabilities] = {
    "docker": FAKE_CAPABILITIES,
    "docker-cdi": replace(
        FAKE_CAPABILITIES, gpu="cdi-request", cdi_devices=frozenset({"nvidia.com/gpu=0"})
    ),
    "docker-remote": replace(FAKE_CAPABILITIES, local=False, host_network_is_host=False),
    "docker-ceiling": replace(FAKE_CAPABILITIES, rlimit_ceiling={"memlock": 8 << 20}),
    "docker-userns": replace(FAKE_CAPABILITIES, userns_remap=True, users=frozenset()),
    "docker-rootless": replace(
        FAKE_CAPABILITIES,
        rootless=True,
        users=frozenset({"root-is-caller"}),
        limits=frozenset(),
        stats=False,
        host_network_is_host=False,
        lowest_port=1024,
    ),
    "podman-rootless": replace(
        FAKE_CAPABILITIES,
        kind="podman",
        version=EngineVersion((4, 3, 1)),
        build="libpod",
        gpu="unknown",
        rootless=True,
        users=frozenset({"root-is-caller", "keep-id"}),
        remap_copies_image=True,
        limits=frozenset(),
        lowest_port=1024,
    ),
}

W, R = "warning", "refusal"
ALWAYS = {"user_mapping": R, "platform": W}
EXPECTED: dict[str, dict[str, str]] = {
    "docker": ALWAYS,
    "docker-cdi": {**ALWAYS, "gpu": R},
    "docker-remote": {**ALWAYS, "mounts": W, "network": W},
    "docker-ceiling": {**ALWAYS, "ulimits": W},
    "docker-userns": {**ALWAYS, "user": W},
    "docker-rootless": {
        **ALWAYS,
        "user": W,
        "memory_bytes": W,
        "cpus": W,
        "pids_limit": W,
        "network": W,
        "ports": R,
        "devices": R,
    },
    "podman-rootless": {
        **ALWAYS,
        "user_mapping": W,
        "user": W,
        "memory_bytes": W,
        "cpus": W,
        "pids_limit": W,
        "ports": R,
        "devices": R,
        "gpu": R,
        "read_only_root": W,
        "log_max_bytes": W,
    },
}


def test_every_field_of_a_container_has_a_sample() -> None:
    assert set(SAMPLES) == {field.name for field in fields(ContainerSpec)}


@pytest.mark.parametrize("engine_name", ENGINES)
@pytest.mark.parametrize("field", SAMPLES)
def test_a_field_is_applied_warned_of_or_refused(field: str, engine_name: str) -> None:
    caps = ENGINES[engine_name]
    spec = replace(PLAIN, **SAMPLES[field])
    found = {finding.severity for finding in review(spec, caps) if finding.field == field}
    wanted = EXPECTED[engine_name].get(field)
    assert found == ({wanted} if wanted else set())
    without = replace(spec, **{field: getattr(PLAIN, field)})
    sent = plan_create(spec, caps) != plan_create(without, caps)
    if not sent and field not in BESIDE_THE_BODY:
        assert wanted == R or (engine_name, field) == ("podman-rootless", "user_mapping")


@pytest.mark.parametrize(
    ("field", "spec"),
    [
        ("ports", replace(PLAIN, network="none", ports=(PortBinding(container_port=1),))),
        ("network_aliases", replace(PLAIN, network_aliases=("db",))),
        ("restart", replace(PLAIN, restart="always", auto_remove=True)),
        ("cpus", replace(PLAIN, cpus=17.0)),
        (
            "files",
            replace(
                PLAIN,
                mounts=(TmpfsMount(target="/run"),),
                files=(PutFile(path="/run/deep/x", content=b""),),
            ),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_excludes_one_another_is_refused(field: str, spec: ContainerSpec) -> None:
    first = review(spec, FAKE_CAPABILITIES)[0]
    assert (first.field, first.severity) == (field, "refusal")


@pytest.mark.parametrize(
    ("field", "spec"),
    [
        ("shm_bytes", replace(PLAIN, shm_bytes=1 << 30, ipc="host")),
        ("memory_bytes", replace(PLAIN, memory_bytes=65 << 30)),
        (
            "files",
            replace(
                PLAIN,
                mounts=(BindMount(source="/srv", target="/data"),),
                files=(PutFile(path="/data/x", content=b""),),
            ),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_has_no_effect_is_told(field: str, spec: ContainerSpec) -> None:
    assert [f.field for f in review(spec, FAKE_CAPABILITIES)] == [field]


def test_ulimits_are_lowered_to_what_the_engine_may_set() -> None:
    caps = replace(FAKE_CAPABILITIES, rlimit_ceiling={"memlock": 8 << 20, "nofile": 20000})
    asked = (
        Ulimit(name="memlock", soft=-1, hard=-1),
        Ulimit(name="nofile", soft=1024, hard=1 << 20),
        Ulimit(name="stack", soft=1 << 26, hard=1 << 26),
    )
    fitted, findings = fit_ulimits(asked, caps)
    assert fitted == (
        Ulimit(name="memlock", soft=8 << 20, hard=8 << 20),
        Ulimit(name="nofile", soft=1024, hard=20000),
        Ulimit(name="stack", soft=1 << 26, hard=1 << 26),
    )
    assert len(findings) == 2
    assert review(replace(PLAIN, ulimits=fitted), caps) == ()


def test_a_difference_after_create_is_told_once() -> None:
    spec = replace(
        PLAIN,
        memory_bytes=1 << 30,
        user="1000:1000",
        ulimits=(Ulimit(name="nofile", soft=1, hard=2),),
    )
    answer = {"Config": {"User": "1000:1000"}, "HostConfig": {"Memory": 0, "Ulimits": None}}
    findings = compare_created(spec, answer)
    assert [finding.field for finding in findings] == ["memory_bytes", "ulimits"]
    assert compare_created(spec, answer, known=findings) == ()


# --- the real engine ------------------------------------------------------------------------------

KEPT: dict[str, tuple[str, Any]] = {
    "command": ("Config.Cmd", ["echo", "a b"]),
    "entrypoint": ("Config.Entrypoint", ["/bin/sh"]),
    "env": ("Config.Env", ["A=b=c"]),
    "user": ("Config.User", "1000:1000"),
    "group_add": ("HostConfig.GroupAdd", ["0"]),
    "workdir": ("Config.WorkingDir", "/srv"),
    "hostname": ("Config.Hostname", "box"),
    "gpu": ("HostConfig.DeviceRequests.0.Count", -1),
    "shm_bytes": ("HostConfig.ShmSize", 256 << 20),
    "ulimits": ("HostConfig.Ulimits.0", {"Name": "memlock", "Soft": -1, "Hard": -1}),
    "memory_bytes": ("HostConfig.MemorySwap", 256 << 20),
    "cpus": ("HostConfig.NanoCpus", 1_500_000_000),
    "pids_limit": ("HostConfig.PidsLimit", 100),
    "init": ("HostConfig.Init", True),
    "cap_drop": ("HostConfig.CapDrop", ["ALL"]),
    "cap_add": ("HostConfig.CapAdd.0", "CAP_CHOWN"),
    "no_new_privileges": ("HostConfig.SecurityOpt", ["no-new-privileges"]),
    "security_opt": ("HostConfig.SecurityOpt", ["apparmor=unconfined"]),
    "read_only_root": ("HostConfig.ReadonlyRootfs", True),
    "network": ("HostConfig.NetworkMode", "host"),
    "extra_hosts": ("HostConfig.ExtraHosts", ["mirror:192.0.2.1"]),
    "ipc": ("HostConfig.IpcMode", "private"),
    "tty": ("Config.Tty", True),
    "open_stdin": ("Config.OpenStdin", True),
    "restart": ("HostConfig.RestartPolicy.Name", "on-failure"),
    "auto_remove": ("HostConfig.AutoRemove", True),
    "stop_signal": ("Config.StopSignal", "SIGINT"),
    "stop_timeout_s": ("Config.StopTimeout", 3),
    "log_max_bytes": ("HostConfig.LogConfig.Config.max-size", str(1 << 20)),
    "mounts": ("HostConfig.Mounts.0.Target", "/data"),
    "ports": ("HostConfig.PortBindings.8888/tcp.0", {"HostIp": "127.0.0.1", "HostPort": "80"}),
    "devices": ("HostConfig.Devices.0.PathInContainer", "/dev/other"),
}


@pytest.mark.engine
@pytest.mark.usefixtures("base_image")
@pytest.mark.parametrize("field", KEPT)
def test_the_engine_has_what_was_sent(
    field: str,
    engine: ContainerEngine,
    run_labels: dict[str, str],
) -> None:
    caps = engine.capabilities
    spec = replace(PLAIN, labels=run_labels, **SAMPLES[field])
    if any(finding.severity == "refusal" for finding in engine.review(spec)):
        pytest.skip(f"refused by the review on {caps.kind}")
    made = engine.create(spec)
    data: Any = engine._json("GET", f"/containers/{made.id}/json", about="")  # type: ignore[attr-defined]
    path, wanted = KEPT[field]
    for part in path.split("."):
        data = data[int(part)] if isinstance(data, list) else data[part]
    if field == "cap_add":
        data = "CAP_" + data.removeprefix("CAP_")
    assert data == wanted
    assert made.findings == engine.review(spec), "read back other than asked"


@pytest.mark.engine
@pytest.mark.usefixtures("base_image")
def test_limits_hold_inside_the_container(
    engine: ContainerEngine, run_labels: dict[str, str]
) -> None:
    script = "ulimit -n; stat -f -c %b*%S /dev/shm; id -G; grep -E ^CapEff /proc/self/status"
    made = engine.create(
        replace(
            PLAIN,
            labels=run_labels,
            command=("sh", "-c", script),
            user="1234:1234",
            group_add=("0",),
            shm_bytes=128 << 20,
            ulimits=(Ulimit(name="nofile", soft=321, hard=654),),
            cap_drop=("ALL",),
        )
    )
    engine.start(made.id)
    assert engine.wait(made.id, timeout_s=60).exit_code == 0
    lines = b"".join(chunk.data for chunk in engine.logs(made.id)).decode().splitlines()
    blocks, size = map(int, lines[1].split("*"))
    assert (lines[0], blocks * size) == ("321", 128 << 20)
    assert lines[2].split() == ["1234", "0"]
    assert int(lines[3].split()[1], 16) == 0


@pytest.mark.engine
@pytest.mark.usefixtures("base_image")
def test_files_put_in_have_their_owner_and_leave_folders_alone(
    engine: ContainerEngine, run_labels: dict[str, str]
) -> None:
    made = engine.create(
        replace(
            PLAIN,
            labels=run_labels,
            command=("stat", "-c", "%n %a %u:%g", "/tmp", "/tmp/new", "/tmp/new/key", "/var/run"),
            mounts=(VolumeMount(name=f"gpuenv-test-{secrets.token_hex(4)}", target="/vol"),),
            files=(
                PutFile(path="/tmp/new/key", content=b"k", mode=0o400, uid=1234, gid=5),
                PutFile(path="/vol/x", content=b"v"),
                PutFile(path="/var/run/linked/x", content=b"l"),
            ),
        )
    )
    assert engine.read_file(made.id, "/vol/x") == b"v"
    assert engine.read_file(made.id, "/run/linked/x") == b"l"
    engine.start(made.id)
    engine.wait(made.id, timeout_s=60)
    told = b"".join(chunk.data for chunk in engine.logs(made.id)).decode().splitlines()
    assert told == [
        "/tmp 1777 0:0",
        "/tmp/new 755 0:0",
        "/tmp/new/key 400 1234:5",
        "/var/run 777 0:0",
    ]


def test_only_a_folder_that_nobody_has_seen_there_is_warned_about() -> None:
    far = replace(FAKE_CAPABILITIES, local=False)
    seen = BindMount(source="/data", target="/data", known=True)
    unseen = BindMount(source="/here", target="/here")
    (finding,) = review(replace(PLAIN, mounts=(seen, unseen)), far)
    assert finding.what == "mounted folders are looked up on the engine's host: /here"
    assert review(replace(PLAIN, mounts=(seen,)), far) == ()
