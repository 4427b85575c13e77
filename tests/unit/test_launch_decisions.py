"""What a container gets and why: users, GPUs, limits, mounts, names; all pure."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuenv.containers.errors import NoGpuError, WorkspaceError
from gpuenv.containers.facts import Caller, FolderOwner
from gpuenv.containers.gpus import GpuCount, GpuNames, parse_gpus, plan_gpus
from gpuenv.containers.identity import (
    Identity,
    default_name,
    differences,
    identity_of,
    parse_name,
)
from gpuenv.containers.limits import (
    LimitWish,
    format_duration,
    parse_cpus,
    parse_duration,
    parse_size,
    plan_limits,
)
from gpuenv.containers.mounts import Workspace, find_workspace, parse_volume, workspace_warning
from gpuenv.containers.plan import ContainerWish, LaunchFacts, plan_container
from gpuenv.containers.ports import parse_publish
from gpuenv.containers.users import edit_group, edit_passwd, parse_user, plan_user
from gpuenv.containers.values import parse_capability, parse_variable
from gpuenv.engine.fake import FAKE_CAPABILITIES, FakeEngine
from gpuenv.engine.protocol import BindMount, ContainerInfo, PortBinding, VolumeMount
from gpuenv.errors import ConfigurationError
from gpuenv.host.gpu_inventory import GpuInventory, HostGpu

if TYPE_CHECKING:
    from collections.abc import Callable

NOW = datetime(2026, 12, 1, 12, tzinfo=timezone.utc)
ALICE = Caller(uid=1234, gid=1200, login="alice", groups=(1200, 2000))
ROOT = Caller(uid=0, gid=0, login="root", groups=(0,))
CAPS = FAKE_CAPABILITIES
ROOTLESS = replace(CAPS, rootless=True, users=frozenset({"root-is-caller"}))
TWO_GPUS = GpuInventory(
    gpus=(
        HostGpu(device_index=0, uuid="GPU-aaaa", name="H200", minor=0, memory_used_bytes=9 << 30),
        HostGpu(
            device_index=1, uuid="GPU-bbbb", name="H200", minor=1, memory_used_bytes=0,
            mig_uuids=("MIG-cccc",),
        ),
    ),
    nodes=("/dev/nvidia-uvm", "/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl"),
)  # fmt: skip
NO_GPU = GpuInventory(why="NVML: Driver Not Loaded")


# --- users ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("caller", "workspace", "user", "groups"),
    [
        (ALICE, None, "1234:1200", ("0", "2000")),
        (ALICE, FolderOwner(uid=7, gid=7), "1234:1200", ("0", "2000")),
        (ROOT, None, "0:0", ()),
        (ROOT, FolderOwner(uid=0, gid=5), "0:0", ()),
        (ROOT, FolderOwner(uid=7, gid=8), "7:8", ("0",)),
        (replace(ROOT, sudo_uid=10, sudo_gid=11), FolderOwner(uid=7, gid=8), "10:11", ("0",)),
        (replace(ROOT, sudo_uid=1000), None, "1000:1000", ("0",)),
    ],
)  # fmt: skip
def test_on_a_rootful_engine_files_are_the_callers(
    caller: Caller, workspace: FolderOwner | None, user: str, groups: tuple[str, ...]
) -> None:
    plan = plan_user("caller", caller, CAPS, workspace)
    assert (plan.user, plan.group_add, plan.warning) == (user, groups, "")
    assert ("HOME", "/home/dev") in plan.env


def test_on_a_rootless_engine_uid_0_is_the_caller() -> None:
    plan = plan_user("caller", ALICE, ROOTLESS, None)
    assert plan.user == "0:0"
    assert ("OMPI_ALLOW_RUN_AS_ROOT", "1") in plan.env


def test_remapped_users_are_warned_about() -> None:
    plan = plan_user("caller", ALICE, replace(CAPS, users=frozenset()), None)
    assert "not yours" in plan.warning


def test_keep_id_says_what_it_costs() -> None:
    dear = replace(ROOTLESS, remap_copies_image=True)
    assert "copies" in plan_user("keep-id", ALICE, dear, None).warning
    assert plan_user("keep-id", ALICE, ROOTLESS, None).keep_id


@pytest.mark.parametrize(
    ("text", "wish"),
    [("caller", "caller"), ("image", "image"), ("7", (7, 7)), ("1000:100", (1000, 100))],
)
def test_users_are_read(text: str, wish: object) -> None:
    assert parse_user(text) == wish


@pytest.mark.parametrize("text", ["", "alice", "-1", "1000:", ":1", "1:2:3", "4294967295", "1 "])
def test_what_is_no_user_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a user"):
        parse_user(text)


PASSWD = "root:x:0:0:root:/root:/bin/bash\nubuntu:x:1000:1000::/home/ubuntu:/bin/sh\n"


def test_the_mapped_user_comes_first_and_everybody_else_stays() -> None:
    lines = edit_passwd(PASSWD, uid=1000, gid=100).splitlines()
    assert lines[0] == "dev:x:1000:100::/home/dev:/bin/bash"
    assert lines[1:] == PASSWD.splitlines()


def test_a_second_edit_replaces_the_line_and_an_empty_image_gets_one() -> None:
    once = edit_passwd(PASSWD, uid=1000, gid=100)
    assert edit_passwd(once, uid=5, gid=6).splitlines()[1:] == PASSWD.splitlines()
    assert edit_passwd("", uid=5, gid=6) == "dev:x:5:6::/home/dev:/bin/sh\n"


def test_every_group_has_a_name_and_none_is_given_twice() -> None:
    group = "root:x:0:\ndev:x:1000:\n"
    lines = edit_group(group, gids=(0, 1200, 2000)).splitlines()
    assert lines == ["root:x:0:", "dev:x:1000:", "host1200:x:1200:", "host2000:x:2000:"]
    names = [line.split(":")[0] for line in lines]
    assert len(set(names)) == len(names)


# --- GPUs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "wish"),
    [
        ("all", "all"),
        ("none", "none"),
        ("auto", "auto"),
        ("2", GpuCount(count=2)),
        ("0,1", GpuNames(names=("0", "1"))),
        ("device=0", GpuNames(names=("0",))),
        ("01,2", GpuNames(names=("1", "2"))),
        ("GPU-aaaa", GpuNames(names=("GPU-aaaa",))),
        ("MIG-1/2/3", GpuNames(names=("MIG-1/2/3",))),
    ],
)
def test_gpu_wishes_are_read(text: str, wish: object) -> None:
    assert parse_gpus(text) == wish


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "one", "0,0", "0,00", "GPU-", "0;1", "all,0", "1.5"]
)
def test_what_names_no_gpus_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_gpus(text)


def test_a_count_takes_the_least_used_and_avoids_what_others_hold() -> None:
    one = plan_gpus(GpuCount(count=1), TWO_GPUS, CAPS)
    assert one.request is not None
    assert one.request.devices == ("GPU-bbbb",)
    other = plan_gpus(GpuCount(count=1), TWO_GPUS, CAPS, taken=("GPU-bbbb",))
    assert other.label == "GPU-aaaa"


def test_indexes_become_uuids_and_a_mig_device_stays_itself() -> None:
    plan = plan_gpus(GpuNames(names=("0", "MIG-cccc")), TWO_GPUS, CAPS)
    assert plan.label == "GPU-aaaa,MIG-cccc"


def test_by_the_hook_the_nodes_are_given_explicitly_and_by_cdi_not() -> None:
    plan = plan_gpus(GpuNames(names=("1",)), TWO_GPUS, replace(CAPS, gpu="device-request"))
    assert [device.path for device in plan.devices] == [
        "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia1",
    ]  # fmt: skip
    assert plan_gpus("all", TWO_GPUS, replace(CAPS, gpu="cdi-request")).devices == ()


@pytest.mark.parametrize(("wish", "warn"), [("auto", False), ("all", True)])
def test_without_a_gpu_it_is_the_cpu_said_aloud(wish: Any, warn: bool) -> None:
    plan = plan_gpus(wish, NO_GPU, CAPS)
    assert plan.request is None
    assert "CPU" in plan.note
    assert "Driver Not Loaded" in plan.note
    assert plan.warn == warn


@pytest.mark.parametrize(
    ("wish", "asked"),
    [(GpuCount(count=2), "--gpus 2 "), (GpuNames(names=("7", "8")), "--gpus 7,8 ")],
)
def test_a_number_or_names_without_a_gpu_are_refused_and_not_run_on_the_cpu(
    wish: Any, asked: str
) -> None:
    with pytest.raises(NoGpuError) as caught:
        plan_gpus(wish, NO_GPU, CAPS)
    assert caught.value.what.startswith(asked)
    assert "Driver Not Loaded" in caught.value.why


@pytest.mark.parametrize(
    ("wish", "inventory"),
    [
        ("auto", NO_GPU),
        ("none", TWO_GPUS),
        (GpuCount(count=3), TWO_GPUS),
        (GpuNames(names=("2",)), TWO_GPUS),
        (GpuNames(names=("GPU-zzzz",)), TWO_GPUS),
    ],
)
def test_a_required_or_named_gpu_that_is_not_there_is_refused(
    wish: Any, inventory: GpuInventory
) -> None:
    with pytest.raises(NoGpuError):
        plan_gpus(wish, inventory, CAPS, require=True)


def test_of_an_unseen_host_the_engine_is_believed() -> None:
    unseen = GpuInventory(known=False, why="another host")
    assert plan_gpus("auto", unseen, replace(CAPS, runtimes=frozenset({"nvidia"}))).label == "all"
    assert plan_gpus("auto", unseen, replace(CAPS, runtimes=frozenset({"runc"}))).label == "none"
    plain = replace(CAPS, runtimes=frozenset())
    assert plan_gpus(GpuNames(names=("GPU-aaaa",)), unseen, plain).label == "GPU-aaaa"


# --- limits --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("512m", 512 << 20), ("16g", 16 << 30), ("1.5GiB", 3 << 29), ("2 TB", 2 << 40)],
)
def test_sizes_are_powers_of_1024(text: str, size: int) -> None:
    assert parse_size(text, flag="--memory") == size


@pytest.mark.parametrize(
    "text", ["", "g", "-1g", "0", "1x", "1e9", "nan", "16 gb ram", "\u0661\u0666g"]
)
def test_what_is_no_size_is_refused_and_names_the_flag(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--shm-size"):
        parse_size(text, flag="--shm-size")


@given(st.text(max_size=12))
def test_any_text_is_a_size_or_a_configuration_error(text: str) -> None:
    with contextlib.suppress(ConfigurationError):
        assert parse_size(text, flag="--memory") >= 0


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "x", "0.001"])
def test_what_is_no_number_of_processors_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_cpus(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("45", 45), ("45s", 45), ("90m", 5400), ("1h30m", 5400), ("2d", 172800)]
)
def test_times_are_read(text: str, seconds: float) -> None:
    assert parse_duration(text, flag="--idle-stop") == seconds


@pytest.mark.parametrize("text", ["", "0", "0h", "h", "-1m", "1m1h", "2 hours"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_duration(text, flag="--idle-stop")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (2e5, "2 days")],
)
def test_times_are_told(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("wish", "shm", "reason"),
    [
        (LimitWish(), 32 << 30, "half of the 64 GiB of the engine's host"),
        (LimitWish(memory_bytes=8 << 30), 4 << 30, "half of --memory 8 GiB"),
        (LimitWish(memory_bytes=80 << 20), 64 << 20, "half of --memory 80 MiB"),
        (LimitWish(shm_bytes=1 << 30), 1 << 30, "as asked with --shm-size"),
        (LimitWish(memory_bytes=1 << 40), 32 << 30, "half of the 64 GiB of the engine's host"),
    ],
)
def test_shared_memory_is_a_share_of_what_there_is_and_says_why(
    wish: LimitWish, shm: int, reason: str
) -> None:
    plan = plan_limits(wish, CAPS)
    assert (plan.shm_bytes, plan.shm_reason) == (shm, reason)


def test_ulimits_are_as_training_needs_them_or_the_engines_ceiling_said() -> None:
    plan = plan_limits(LimitWish(), CAPS)
    assert {u.name: (u.soft, u.hard) for u in plan.ulimits} == {
        "memlock": (-1, -1), "stack": (64 << 20, 64 << 20),
    }  # fmt: skip
    assert plan.notes == ()
    poor = replace(CAPS, rlimit_ceiling={"memlock": 8 << 20, "stack": 1 << 30})
    plan = plan_limits(LimitWish(), poor)
    assert {u.name: u.hard for u in plan.ulimits} == {"memlock": 8 << 20, "stack": 64 << 20}
    (note,) = plan.notes
    assert "8 MiB instead of unlimited" in note


@pytest.mark.parametrize(
    "wish", [LimitWish(memory_bytes=1000), LimitWish(pids=0), LimitWish(cpus=17)]
)
def test_limits_that_cannot_be_right_are_refused(wish: LimitWish) -> None:
    with pytest.raises(ConfigurationError):
        plan_limits(wish, CAPS)


@pytest.mark.parametrize(
    "wish",
    [
        LimitWish(memory_bytes=1 << 40),
        LimitWish(memory_bytes=1 << 30, shm_bytes=2 << 30),
        LimitWish(shm_bytes=1 << 20),
    ],
)
def test_limits_that_are_odd_are_warned_about(wish: LimitWish) -> None:
    assert len(plan_limits(wish, CAPS).warnings) == 1


# --- names and labels ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a", "train-resnet", "a.b_c-1", "x" * 48])
def test_names_are_taken(name: str) -> None:
    assert parse_name(name) == name


@pytest.mark.parametrize(
    "name",
    ["", "A", "-a", "a-", "a..b", "a/b", "../x", "a b", "a\n", "ä", "x" * 49, "$(id)", "a;b"],
)
def test_what_could_harm_a_shell_or_a_path_is_no_name(name: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_name(name)


@given(st.text(min_size=1).map(lambda text: PurePosixPath("/home/a") / text.replace("\0", "")))
def test_every_folder_has_a_name_of_its_own(folder: PurePosixPath) -> None:
    name = default_name(folder)
    assert parse_name(name) == name
    assert name == default_name(folder)
    assert name != default_name(PurePosixPath("/elsewhere") / folder.name)


def identity(**changes: Any) -> Identity:
    values = {
        "session": "0123456789abcdef", "name": "train", "kind": "jupyter", "owner": 1234,
        "login": "alice", "created": NOW, "gpus": "GPU-aaaa", "workspace": "/home/alice/t ä",
        "request": {"gpus": "1", "memory": "8g"},
    }  # fmt: skip
    return Identity(**{**values, **changes})


def container(labels: dict[str, str], **changes: Any) -> ContainerInfo:
    values: dict[str, Any] = {
        "id": "f" * 64, "name": "n", "image": "i", "image_id": "sha256:1", "state": "running",
        "labels": labels,
    }  # fmt: skip
    return ContainerInfo(**{**values, **changes})


def test_labels_say_who_a_container_is() -> None:
    assert identity_of(container(identity().labels())) == identity()


@pytest.mark.parametrize("missing", ["org.gpuenv.session", "org.gpuenv.name", "org.gpuenv.kind"])
def test_a_container_without_our_labels_is_not_ours(missing: str) -> None:
    labels = identity().labels()
    del labels[missing]
    assert identity_of(container(labels)) is None


def test_labels_of_an_image_of_ours_do_not_make_a_container_ours() -> None:
    assert identity_of(container({"org.gpuenv.spec": "{}", "org.gpuenv.torch": "2.9.1"})) is None


def test_damaged_labels_still_tell_what_they_can() -> None:
    labels = {
        **identity().labels(), "org.gpuenv.request": "{", "org.gpuenv.created": "yesterday",
        "org.gpuenv.owner": "alice",
    }  # fmt: skip
    found = identity_of(container(labels, created_at=NOW))
    assert found is not None
    assert (found.name, found.request, found.created, found.owner) == ("train", {}, NOW, -1)


@pytest.mark.parametrize(
    ("login", "name"),
    [("alice", "gpuenv-alice-train-jupyter"), ("A b", "gpuenv-1234-train-jupyter")],
)
def test_container_names_are_one_users(login: str, name: str) -> None:
    assert identity(login=login).container_name == name


def test_only_what_was_asked_for_must_be_the_same() -> None:
    running = {"gpus": "1", "memory": "8g"}
    assert differences({}, running) == ()
    assert differences({"gpus": "1"}, running) == ()
    assert differences({"gpus": "2", "cpus": "4"}, running) == (
        "--cpus 4 is asked for; there it is not set",
        "--gpus 2 is asked for; there it is 1",
    )


# --- mounts, ports, variables --------------------------------------------------------------------


def test_the_workspace_is_where_we_are_or_what_is_named(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    assert find_workspace(None, cwd=tmp_path).source == str(tmp_path)
    assert find_workspace("data", cwd=tmp_path).source == str(tmp_path / "data")


@pytest.mark.parametrize("path", ["nowhere", "file"])
def test_what_is_no_folder_is_no_workspace(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WorkspaceError):
        find_workspace(path, cwd=tmp_path)


def test_the_root_is_a_workspace_only_when_named() -> None:
    with pytest.raises(WorkspaceError):
        find_workspace(None, cwd=Path("/"))
    assert find_workspace("/", cwd=Path("/")).source == "/"


def test_a_whole_home_is_warned_about(tmp_path: Path) -> None:
    for source, warned in ((tmp_path, True), (tmp_path.parent, True), (tmp_path / "p", False)):
        text = workspace_warning(Workspace(source=str(source)), home=tmp_path)
        assert bool(text) == warned


def test_a_folder_of_another_host_counts_from_no_folder_here() -> None:
    there = parse_volume("~/data:/data:ro", cwd=None, home="/home/alice")
    assert there == BindMount(source="/home/alice/data", target="/data", read_only=True)
    with pytest.raises(ConfigurationError, match="another host is given by its whole path"):
        parse_volume("./data:/data", cwd=None, home="/home/alice")


def test_volumes_are_read(tmp_path: Path) -> None:
    read = lambda text: parse_volume(text, cwd=tmp_path)  # noqa: E731
    assert read("/data:/data:ro") == BindMount(source="/data", target="/data", read_only=True)
    assert read("./x:/x") == BindMount(source=f"{tmp_path}/x", target="/x")
    assert read("scratch:/s:rw") == VolumeMount(name="scratch", target="/s")
    assert read("/a:b:/c") == BindMount(source="/a:b", target="/c")


@pytest.mark.parametrize("text", ["", "/a", "/a:", ":/a", "/a:b", "/a:/", "a b:/x", "x/y:/z"])
def test_what_is_no_mount_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_volume(text, cwd=tmp_path)


def test_ports_are_published_on_the_loopback_unless_said() -> None:
    assert parse_publish("6006") == PortBinding(container_port=6006, host_port=6006)
    assert parse_publish("80:8080").host_port == 80
    assert parse_publish("[::1]:1:2").host_ip == "::1"


@pytest.mark.parametrize("text", ["", "x", "0", "65536", "1:2:3", "999.1.1.1:1:1", "1-2"])
def test_what_is_no_port_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_publish(text)


def test_variables_are_read_and_ours_are_looked_up() -> None:
    assert parse_variable("A=b=c", environ={}) == ("A", "b=c")
    assert parse_variable("A=", environ={"A": "1"}) == ("A", "")
    assert parse_variable("A", environ={"A": "1"}) == ("A", "1")
    assert parse_variable("A", environ={}) is None
    for text in ("", "=x", "1A=x", "A B=x", "A\n=x", "A=\0"):
        with pytest.raises(ConfigurationError):
            parse_variable(text, environ={})


def test_capabilities_are_read() -> None:
    assert parse_capability("cap_sys_ptrace") == "SYS_PTRACE"
    for text in ("", "ALL", "x;y", "SYS PTRACE"):
        with pytest.raises(ConfigurationError):
            parse_capability(text)


# --- the whole plan ------------------------------------------------------------------------------


@pytest.fixture
def plan_of() -> Callable[..., Any]:
    """Return a function that plans a container of an image of ours."""
    engine = FakeEngine()
    image = engine.add_image("localhost/gpuenv/torch:1", labels={"org.gpuenv.spec": "{}"})

    def plan(*, caps: Any = CAPS, foreign: bool = False, **wish: Any) -> Any:
        return plan_container(
            ContainerWish(**{"image": "i", "name": "train", "kind": "jupyter", **wish}),
            LaunchFacts(
                caller=ALICE,
                capabilities=caps,
                image=replace(image, labels={}) if foreign else image,
                session="s",
                now=NOW,
                inventory=TWO_GPUS,
            ),
        )

    return plan


def test_a_plan_is_hardened_and_its_own_proof(plan_of: Callable[..., Any]) -> None:
    plan = plan_of(workspace=Workspace(source="/w"))
    spec = plan.spec
    assert spec.cap_drop == ("ALL",)
    assert spec.no_new_privileges
    assert spec.init
    assert spec.ports == ()
    assert spec.user == "1234:1200"
    assert BindMount(source="/w", target="/workspace") in spec.mounts
    assert json.loads(json.dumps(plan.as_dict()))["spec"]["user"] == "1234:1200"


def test_the_same_wish_and_facts_give_the_same_plan(plan_of: Callable[..., Any]) -> None:
    assert plan_of() == plan_of()


def test_a_foreign_image_gets_a_home_and_ours_has_one(plan_of: Callable[..., Any]) -> None:
    assert plan_of().folders == ()
    folders = plan_of(foreign=True).folders
    assert folders[0].path == "/home/dev"
    assert all(folder.content is None and folder.uid == 1234 for folder in folders)
    assert plan_of(foreign=True, user="image").folders == ()


def test_a_default_runtime_of_nvidias_adds_no_gpu_on_its_own(plan_of: Callable[..., Any]) -> None:
    assert plan_of(gpus="none").spec.env["NVIDIA_VISIBLE_DEVICES"] == "void"
    cdi = plan_of(caps=replace(CAPS, gpu="cdi-request"))
    assert cdi.spec.env["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert plan_of(gpus=GpuCount(count=1)).spec.env["NVIDIA_VISIBLE_DEVICES"] == "GPU-bbbb"


def test_the_users_own_variables_win(plan_of: Callable[..., Any]) -> None:
    plan = plan_of(env=(("HOME", "/elsewhere"),)).adding(env={"HOME": "/ours", "X": "1"})
    assert plan.spec.env["HOME"] == "/elsewhere"
    assert plan.spec.env["X"] == "1"


def test_no_variable_of_the_user_is_in_the_labels(plan_of: Callable[..., Any]) -> None:
    plan = plan_of(env=(("HF_TOKEN", "hf_secret"),))
    assert "hf_secret" not in json.dumps(dict(plan.spec.labels))
