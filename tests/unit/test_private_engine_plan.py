"""Where a private engine lives, so that it meets nobody."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

import pytest

from gpuenv.engine import private
from gpuenv.engine.errors import PrivateEngineError
from gpuenv.engine.private import PrivateEngine, is_helper, is_inside, load_record, plan_up
from gpuenv.engine.private_net import firewall_rules, parse_routes, plan_network

if TYPE_CHECKING:
    from pathlib import Path

ROUTES = """\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0
docker0\t000011AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0
vpn0\t0000D50A\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0
down0\t0000D60A\t00000000\t0000\t0\t0\t0\t0000FFFF\t0\t0\t0
"""


def test_routes_are_read_from_the_kernels_table() -> None:
    assert parse_routes(ROUTES) == (
        ("eth0", ipaddress.IPv4Network("0.0.0.0/0")),
        ("docker0", ipaddress.IPv4Network("172.17.0.0/16")),
        ("vpn0", ipaddress.IPv4Network("10.213.0.0/16")),
    )


def test_addresses_in_use_are_left_alone_and_the_mtu_is_the_way_outs() -> None:
    network = plan_network("13002cf8", parse_routes(ROUTES), mtus={"eth0": 1400, "docker0": 1500})
    assert network.bridge == "gpuenv-13002c"
    assert len(network.bridge) <= 15, "the kernel's limit"
    assert network.pool == "10.214.0.0/16"
    assert network.gateway == "10.214.0.1/20"
    assert network.networks == "10.214.128.0/17"
    assert network.mtu == 1400


def test_no_free_addresses_is_an_error() -> None:
    everything = [("x", ipaddress.IPv4Network("10.0.0.0/8"))]
    with pytest.raises(PrivateEngineError):
        plan_network("0", everything, mtus={})


def test_every_rule_carries_the_mark_and_only_our_addresses() -> None:
    network = plan_network("13002cf8", (), mtus={})
    for _, _, rule in firewall_rules(network):
        assert network.bridge in rule
        assert network.pool in rule


def test_the_daemon_shares_nothing_with_another(tmp_path: Path) -> None:
    first, second = (
        plan_up({"GPUENV_STATE_DIR": str(tmp_path / name)}, network=plan_network(name, (), mtus={}))
        for name in ("a", "b")
    )
    line = " ".join(first.arguments)
    assert "--iptables=false" in line
    assert f"--bridge={first.network.bridge}" in line
    for flag in ("--host", "--data-root", "--exec-root", "--pidfile", "--containerd-namespace",
                 "--containerd-plugins-namespace", "--config-file"):  # fmt: skip
        (one,) = [word for word in first.arguments if word.startswith(f"{flag}=")]
        assert one not in second.arguments, flag
    assert len(str(first.run_dir / "exec/containerd/containerd.sock.ttrpc")) < 108


ENGINE = PrivateEngine(
    socket="/run/gpuenv/ab/docker.sock",
    pid=1,
    start_ticks=0,
    run_dir="/run/gpuenv/ab",
    data_dir="/srv/gpuenv/data",
    log="/srv/gpuenv/docker.log",
    mark="ab",
    network=plan_network("ab", (), mtus={}),
)


@pytest.mark.parametrize(
    ("command", "ours"),
    [
        (b"/usr/bin/containerd-shim-runc-v2\0-namespace\0gpuenv-ab\0-id\0x", True),
        (b"containerd\0--config\0/run/gpuenv/ab/exec/containerd/containerd.toml", True),
        (b"/usr/bin/containerd-shim-runc-v2\0-namespace\0moby\0-id\0x", False),
        (b"/usr/bin/containerd-shim-runc-v2\0-namespace\0gpuenv-abc\0-id\0x", False),
        (b"vi\0/run/gpuenv/ab/daemon.json", False),
        (b"", False),
    ],
)
def test_helpers_of_the_engine_are_known_by_their_arguments(command: bytes, ours: bool) -> None:
    assert is_helper(command.split(b"\0"), ENGINE) is ours


@pytest.mark.parametrize(
    ("line", "ours"),
    [
        (
            (
                "9 8 0:41 / / rw - overlay overlay rw,lowerdir=l/A,"
                "upperdir=/srv/gpuenv/data/overlay2/x/diff"
            ),
            True,
        ),
        ("9 8 8:1 /srv/gpuenv/data/containers/x/hosts /etc/hosts rw - ext4 /dev/sda rw", True),
        (
            (
                "9 8 0:41 / /srv/gpuenv/data/overlay2/x/merged rw - overlay overlay rw,"
                "upperdir=/srv/gpuenv/data/overlay2/x/diff"
            ),
            False,
        ),
        ("9 8 0:41 / / rw - overlay overlay rw,upperdir=/var/lib/docker/overlay2/x/diff", False),
        ("9 8 0:41 / / rw - overlay overlay rw,upperdir=/srv/gpuenv/database/x", False),
        ("", False),
    ],
)
def test_processes_in_its_containers_are_known_by_their_root(line: str, ours: bool) -> None:
    assert is_inside(f"1 0 8:2 / /proc rw - proc proc rw\n{line}\n", ENGINE.data_dir) is ours


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"pid": 1}', '{"network": 3}'])
def test_a_broken_record_is_no_engine(tmp_path: Path, content: str) -> None:
    environ = {"GPUENV_STATE_DIR": str(tmp_path)}
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "engine.json").write_text(content)
    assert load_record(environ) is None


def test_a_state_folder_that_cannot_be_used_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(private.os, "geteuid", lambda: 0)
    monkeypatch.setattr(private, "_require_programs", lambda _say: None)
    environ = {"GPUENV_STATE_DIR": str(tmp_path / "file" / "state")}
    with pytest.raises(PrivateEngineError, match=r"cannot use .*state") as caught:
        private.up(environ, say=lambda _: None)
    assert caught.value.why == "Not a directory"
