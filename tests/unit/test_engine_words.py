"""Docker's answers in our words: refusals, capabilities, usage, times."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest

from gpuenv.engine import errors as e
from gpuenv.engine.api import parse_container, parse_time, split_ref
from gpuenv.engine.capabilities import EngineVersion
from gpuenv.engine.docker import (
    parse_capabilities,
    parse_rlimit_ceiling,
    parse_usage,
    probe_cdi_files,
    translate,
    translate_transfer,
)
from gpuenv.engine.protocol import UsageSample
from gpuenv.engine.usage import bytes_per_second, cpu_percent
from gpuenv.errors import LaunchFailedError

if TYPE_CHECKING:
    from pathlib import Path

# Status and words as Docker 20.10.24 sent them; those on GPUs as users of Docker 25 to 28 report
# them, since they need the hardware.
REFUSALS: tuple[tuple[int, str, type[Exception]], ...] = (
    (404, "No such image: localhost/gpuenv/x:1", e.ImageNotFoundError),
    (404, "No such container: x", e.ContainerNotFoundError),
    (
        409,
        (
            'Conflict. The container name "/x" is already in use by container "ab12". You have to '
            "remove (or rename) that container to be able to reuse that name."
        ),
        e.NameTakenError,
    ),
    (
        500,
        (
            "driver failed programming external connectivity on endpoint x (ab12): Bind for "
            "127.0.0.1:8888 failed: port is already allocated"
        ),
        e.PortTakenError,
    ),
    (
        500,
        (
            "driver failed programming external connectivity on endpoint x (ab12): Error starting "
            "userland proxy: listen tcp4 127.0.0.1:8888: bind: address already in use"
        ),
        e.PortTakenError,
    ),
    (
        500,
        'could not select device driver "" with capabilities: [[gpu compute utility]]',
        e.GpuRefusedError,
    ),
    (
        500,
        (
            "failed to create task for container: failed to create shim task: OCI runtime create "
            "failed: runc create failed: unable to start container process: error during container "
            "init: error running hook #0: error running hook: exit status 1, stdout: , stderr: "
            "nvidia-container-cli: initialization error: load library failed: libnvidia-ml.so.1: "
            "cannot open shared object file: no such file or directory: unknown"
        ),
        e.GpuRefusedError,
    ),
    (
        500,
        "CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=9",
        e.GpuRefusedError,
    ),
    (
        400,
        (
            "failed to create shim task: OCI runtime create failed: runc create failed: unable to "
            "start container process: error during container init: error setting rlimits for ready "
            "process: error setting rlimit type 8: operation not permitted: unknown"
        ),
        e.RlimitRefusedError,
    ),
    (
        400,
        (
            "failed to create shim task: OCI runtime create failed: runc create failed: unable to "
            'start container process: exec: "nope": executable file not found in $PATH: unknown'
        ),
        e.CommandNotFoundError,
    ),
    (
        400,
        'invalid mount config for type "bind": bind source path does not exist: /nonex',
        e.MountSourceError,
    ),
    (500, "mkdir /var/lib/docker/overlay2/x: no space left on device", e.DiskFullError),
    (409, "Container ab12 is not running", e.ContainerNotRunningError),
    (409, "cannot start a paused container, try unpause instead", e.ContainerNotRunningError),
    (
        409,
        (
            "conflict: unable to delete 7d8527a2cce7 (cannot be forced) - image is being used by "
            "running container 38cd"
        ),
        e.ImageInUseError,
    ),
    (409, "remove x: volume is in use - [ab12]", e.ImageInUseError),
    (500, "something new that went wrong", LaunchFailedError),
)


@pytest.mark.parametrize(("status", "words", "error"), REFUSALS, ids=lambda v: str(v)[:40])
def test_a_refusal_becomes_its_own_error(status: int, words: str, error: type[Exception]) -> None:
    found = translate(status, words, "container x", "unix:///s")
    assert type(found) is error
    assert found.why


@pytest.mark.parametrize(
    "words", ["cannot start a paused container, try unpause instead", "Container x is paused"]
)
def test_what_is_paused_is_not_to_be_started_but_unpaused(words: str) -> None:
    found = translate(409, words, "container x", "")
    assert found.what == "container x is paused"
    assert "unpause" in (found.fix or "")


def test_the_refused_ulimit_is_named_for_whoever_asks_again() -> None:
    words = "error setting rlimit type 8: operation not permitted"
    assert translate(500, words, "container x", "").data == {"ulimit": "memlock"}


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("unauthorized: authentication required", e.RegistryDeniedError),
        ("denied: requested access to the resource is denied", e.RegistryDeniedError),
        ("manifest unknown: manifest unknown", e.RemoteImageMissingError),
        (
            "Get https://r.invalid/v2/: dial tcp: lookup r.invalid: no such host",
            e.RegistryUnreachableError,
        ),
        ("x509: certificate signed by unknown authority", e.RegistryUnreachableError),
        ("received unexpected HTTP status: 500", e.TransferFailedError),
    ],
)
def test_a_failed_transfer_becomes_its_own_error(words: str, error: type[Exception]) -> None:
    assert type(translate_transfer(words, "x:1")) is error


# --- capabilities ------------------------------------------------------------------------------

VERSION: dict[str, Any] = {"Version": "28.3.2", "ApiVersion": "1.51", "MinAPIVersion": "1.24"}
INFO: dict[str, Any] = {
    "OSType": "linux",
    "Architecture": "x86_64",
    "Driver": "overlay2",
    "MemoryLimit": True,
    "CpuCfsQuota": True,
    "PidsLimit": True,
    "CgroupDriver": "systemd",
    "CgroupVersion": "2",
    "SecurityOptions": ["name=seccomp,profile=builtin", "name=cgroupns"],
    "Runtimes": {"runc": {"path": "runc"}},
    "MemTotal": 1 << 34,
    "NCPU": 8,
}


def test_an_ordinary_engine() -> None:
    caps = parse_capabilities(VERSION, INFO, local=True)
    assert str(caps.version) == "28.3.2"
    assert caps.api == EngineVersion((1, 50)), "no newer than what gpuenv knows"
    assert caps.limits == {"memory", "cpu", "pids"}
    assert caps.users == {"caller-uid"}
    assert caps.dockerfile == {"heredoc", "copy-link", "run-network"}
    assert (caps.gpu, caps.cdi_devices) == ("device-request", None)
    assert (caps.cgroup_version, caps.lowest_port, caps.host_network_is_host) == (2, 1, True)


def test_a_packagers_version_is_read() -> None:
    caps = parse_capabilities({"Version": "20.10.24+dfsg1", "ApiVersion": "1.41"}, INFO, local=True)
    assert str(caps.version) == "20.10.24"
    assert caps.dockerfile == {"run-network"}


def test_a_rootless_engine_without_cgroups_has_no_limits_and_no_stats() -> None:
    info = {
        **INFO,
        "SecurityOptions": ["name=seccomp", "name=rootless"],
        "CgroupDriver": "none",
    }
    caps = parse_capabilities(VERSION, info, local=True)
    assert caps.rootless
    assert caps.limits == frozenset()
    assert not caps.stats
    assert caps.users == {"root-is-caller"}
    assert (caps.lowest_port, caps.host_network_is_host) == (1024, False)


def test_user_namespaces_keep_files_from_the_caller() -> None:
    caps = parse_capabilities(VERSION, {**INFO, "SecurityOptions": ["name=userns"]}, local=True)
    assert caps.userns_remap
    assert caps.users == frozenset()


def test_gpus_come_by_cdi_where_the_engine_knows_nvidias_devices() -> None:
    devices = [
        {"Source": "cdi", "ID": "nvidia.com/gpu=0"},
        {"Source": "cdi", "ID": "nvidia.com/gpu=all"},
    ]
    caps = parse_capabilities(VERSION, {**INFO, "DiscoveredDevices": devices}, local=True)
    assert caps.gpu == "cdi-request"
    assert caps.cdi_devices == {"nvidia.com/gpu=0", "nvidia.com/gpu=all"}
    other = [{"Source": "cdi", "ID": "vendor.com/nic=0"}]
    caps = parse_capabilities(VERSION, {**INFO, "DiscoveredDevices": other}, local=True)
    assert caps.gpu == "device-request"


def test_cdi_files_are_read_where_the_engine_lists_no_devices(tmp_path: Path) -> None:
    spec = {"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu"}
    devices = [{"name": "0"}, {"name": "all"}]
    (tmp_path / "nvidia.json").write_text(json.dumps({**spec, "devices": devices}))
    (tmp_path / "more.yaml").write_text("kind: vendor.com/nic\ndevices:\n  - name: eth\n")
    (tmp_path / "broken.yaml").write_text("{")
    (tmp_path / "other.yaml").write_text("- 1")
    (tmp_path / "notes.txt").write_text("kind: x")
    info = {**INFO, "CDISpecDirs": [str(tmp_path), str(tmp_path / "none")]}
    found = probe_cdi_files(info)
    assert found == {"nvidia.com/gpu=0", "nvidia.com/gpu=all", "vendor.com/nic=eth"}
    assert parse_capabilities(VERSION, info, local=True, cdi_files=found).gpu == "cdi-request"
    assert probe_cdi_files(INFO) is None
    assert probe_cdi_files({**info, "DiscoveredDevices": []}) is None


@pytest.mark.parametrize(
    ("driver", "storage"),
    [("overlay2", "overlay"), ("overlayfs", "overlay"), ("fuse-overlayfs", "fuse-overlay"),
     ("vfs", "vfs"), ("btrfs", "other")],
)  # fmt: skip
def test_storage_drivers(driver: str, storage: str) -> None:
    assert parse_capabilities(VERSION, {**INFO, "Driver": driver}, local=True).storage == storage


def test_an_engine_for_windows_builds_nothing() -> None:
    caps = parse_capabilities(VERSION, {**INFO, "OSType": "windows"}, local=False)
    assert caps.build == "none"


LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units
Max cpu time              unlimited            unlimited            seconds
Max stack size            8388608              unlimited            bytes
Max processes             96549                96549                processes
Max open files            20000                20000                files
Max locked memory         8388608              8388608              bytes
"""


def test_the_ceiling_of_an_engine_that_may_not_raise_limits() -> None:
    without = "Name:\tdockerd\nCapEff:\t000001fffeffffff\n"
    assert parse_rlimit_ceiling(without, LIMITS) == {
        "nproc": 96549,
        "nofile": 20000,
        "memlock": 8388608,
    }
    with_it = without.replace("1fffeffffff", "1ffffffffff")
    assert parse_rlimit_ceiling(with_it, LIMITS) is None


# --- answers -----------------------------------------------------------------------------------


def test_usage_leaves_the_cache_out_and_unknown_is_none() -> None:
    stats: dict[str, Any] = {
        "read": "2026-12-01T11:43:05.762616369Z",
        "cpu_stats": {"cpu_usage": {"total_usage": 5_000_000_000}},
        "memory_stats": {"usage": 900, "limit": 1000, "stats": {"inactive_file": 300}},
        "pids_stats": {"current": 7},
        "networks": {"eth0": {"rx_bytes": 1, "tx_bytes": 2}, "eth1": {"rx_bytes": 10}},
        "blkio_stats": {
            "io_service_bytes_recursive": [
                {"op": "Read", "value": 5},
                {"op": "write", "value": 6},
                {"op": "Read", "value": 50},
            ]
        },
    }
    sample = parse_usage(stats, trusted=True)
    assert sample == UsageSample(
        at=datetime(2026, 12, 1, 11, 43, 5, 762616, tzinfo=timezone.utc),
        cpu_ns=5_000_000_000,
        memory_bytes=600,
        memory_limit_bytes=1000,
        pids=7,
        network_rx_bytes=11,
        network_tx_bytes=2,
        disk_read_bytes=55,
        disk_write_bytes=6,
    )
    v1 = {**stats, "memory_stats": {"usage": 900, "stats": {"total_inactive_file": 100}}}
    assert parse_usage(v1, trusted=True).memory_bytes == 800
    assert parse_usage(stats, trusted=False) == UsageSample(at=sample.at)
    assert parse_usage({}, trusted=True).memory_bytes is None


def test_rates_need_two_samples_of_one_life() -> None:
    at = datetime(2026, 1, 1, tzinfo=timezone.utc)
    first = UsageSample(at=at, cpu_ns=0, network_rx_bytes=100)
    later = UsageSample(at=at + timedelta(seconds=2), cpu_ns=3_000_000_000, network_rx_bytes=300)
    assert cpu_percent(first, later) == pytest.approx(150.0)
    assert bytes_per_second(first, later, "network_rx_bytes") == pytest.approx(100.0)
    assert cpu_percent(later, first) is None
    assert cpu_percent(first, first) is None
    assert cpu_percent(first, UsageSample(at=later.at)) is None
    assert bytes_per_second(later, first, "network_rx_bytes") is None


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("2026-12-01T11:43:05.762616369Z", datetime(2026, 12, 1, 11, 43, 5, 762616, timezone.utc)),
        ("2026-12-01T12:43:05+01:00", datetime(2026, 12, 1, 11, 43, 5, 0, timezone.utc)),
        ("2026-12-01T11:43:05.5Z", datetime(2026, 12, 1, 11, 43, 5, 500000, timezone.utc)),
        ("0001-01-01T00:00:00Z", None),
        ("", None),
        (None, None),
    ],
)
def test_times_of_the_engine(text: str | None, wanted: datetime | None) -> None:
    assert parse_time(text) == wanted


@pytest.mark.parametrize(
    ("ref", "parts"),
    [
        ("localhost/gpuenv/x:1", ("localhost/gpuenv/x", "1")),
        ("127.0.0.1:5000/x", ("127.0.0.1:5000/x", "latest")),
        ("127.0.0.1:5000/x:y", ("127.0.0.1:5000/x", "y")),
        ("x@sha256:ab", ("x", "sha256:ab")),
        ("x", ("x", "latest")),
    ],
)
def test_references_are_split(ref: str, parts: tuple[str, str]) -> None:
    assert split_ref(ref) == parts


def test_a_container_that_never_ran_has_no_exit_code() -> None:
    data = {
        "Id": "ab",
        "Name": "/x",
        "State": {"Status": "created", "ExitCode": 0, "FinishedAt": "0001-01-01T00:00:00Z"},
        "Config": {},
    }
    info = parse_container(data)
    assert (info.name, info.state, info.exit_code, info.pid) == ("x", "created", None, None)
