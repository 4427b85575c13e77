"""The small rules inside the static checks, each held against what the real programs do."""

from __future__ import annotations

from typing import Any

import pytest

from gpuenv.checks.fabric import check_interfaces, matching_interfaces
from gpuenv.checks.model import Facts, ProbeRun, Status
from gpuenv.checks.scene import short_bdf, version_key
from gpuenv.checks.visibility import visible_ordinals
from gpuenv.checks.wheels import DRIVER_FLOORS, _serves

UUIDS = ("GPU-0aaa1111-2222", "GPU-0bbb1111-2222")


@pytest.mark.parametrize(
    ("value", "shown", "cut"),
    [
        # Seen with real torch over two stand-in GPUs.
        ("", (), ""),
        ("-1", (), "-1"),
        ("7", (), "7"),
        ("0,0", (), "0"),
        ("GPU-0", (), "GPU-0"),
        ("1,9", (1,), "9"),
        ("0,x", (0,), "x"),
        # By the same reading.
        ("1,0", (1, 0), ""),
        ("0", (0,), ""),
        (" 0 , 1 ", (0, 1), ""),
        ("GPU-0b", (1,), ""),
        ("GPU-0bbb1111-2222,0", (1, 0), ""),
        ("0,-1,1", (0,), "-1"),
        ("0,1,0", (), "0"),
        ("all", (), "all"),
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_reads_it(
    value: str, shown: tuple[int, ...], cut: str
) -> None:
    assert visible_ordinals(value, UUIDS) == (shown, cut)


INTERFACES = tuple({"name": name} for name in ("lo", "eth0", "eth1", "docker0", "ib0"))


@pytest.mark.parametrize(
    ("value", "left"),
    [
        ("eth", ("eth0", "eth1")),
        ("eth0", ("eth0",)),
        ("=eth", ()),
        ("=eth0,ib0", ("eth0", "ib0")),
        ("^docker", ("lo", "eth0", "eth1", "ib0")),
        ("^docker0,lo", ("eth0", "eth1", "ib0")),
        ("^=eth0", ("lo", "eth1", "docker0", "ib0")),
        ("enp", ()),
    ],
)
def test_nccl_interface_names_are_prefixes_exclusions_or_exact(
    value: str, left: tuple[str, ...]
) -> None:
    assert matching_interfaces(value, INTERFACES) == left


@pytest.mark.parametrize(
    ("arch_list", "device", "verdict"),
    [
        ("sm_80 sm_86", (8, 9), "binary"),
        ("sm_86", (8, 0), "none"),
        ("sm_100 sm_120", (10, 3), "binary"),
        ("sm_120", (12, 1), "binary"),
        ("sm_100", (11, 0), "none"),
        ("sm_75 compute_75", (12, 0), "ptx"),
        ("sm_90a", (9, 0), "binary"),
        ("sm_100a", (10, 3), "none"),
        ("compute_90a", (12, 0), "none"),
        ("sm_75 sm_80 sm_86 sm_90 sm_100 sm_120", (7, 0), "none"),
        ("garbage sm_", (8, 0), "none"),
    ],
)
def test_compiled_code_runs_where_nvidia_says_it_does(
    arch_list: str, device: tuple[int, int], verdict: str
) -> None:
    assert _serves(tuple(arch_list.split()), device) == verdict


def test_driver_floors_are_those_of_the_matrix() -> None:
    from gpuenv.matrix.load import load_matrix

    matrix = load_matrix()
    for row in matrix.rows_for("x86_64"):
        floor = matrix.min_driver(row)
        if row.cuda is not None and floor is not None:
            assert version_key(DRIVER_FLOORS[row.cuda.major]) == floor.parts, row.label


@pytest.mark.parametrize(
    ("bdf", "short"),
    [
        ("00000000:65:00.0", "0000:65:00.0"),
        ("0000:65:00.0", "0000:65:00.0"),
        ("0001:3B:00.0", "0001:3b:00.0"),
    ],
)
def test_pci_addresses_have_one_form(bdf: str, short: str) -> None:
    assert short_bdf(bdf) == short


@pytest.mark.parametrize(
    ("found", "command"),
    [
        ({"variables": {"NCCL_SOCKET_IFNAME": "ib0"}}, "unset NCCL_SOCKET_IFNAME"),
        (
            {"nccl_conf": {"/home/a b/.nccl.conf": {"NCCL_SOCKET_IFNAME": "ib0"}}},
            "sed -i '/^NCCL_SOCKET_IFNAME=/d' '/home/a b/.nccl.conf'",
        ),
        ({"variables": {"GLOO_SOCKET_IFNAME": "eth0,ib0"}}, "unset GLOO_SOCKET_IFNAME"),
        ({"variables": {"NCCL_IB_HCA": "^mlx5"}}, "unset NCCL_IB_HCA"),
    ],
)
def test_an_interface_is_taken_away_where_it_is_named(found: dict[str, Any], command: str) -> None:
    facts = Facts(
        probes={
            "host.env": ProbeRun(status="ok", facts=found),
            "host.network": ProbeRun(
                status="ok",
                facts={
                    "interfaces": [{"name": "eth0", "up": True, "loopback": False}],
                    "infiniband": [{"device": "mlx5_0", "port": "1"}],
                },
            ),
        }
    )
    (result,) = check_interfaces(facts)
    assert [fix.command for fix in result.fixes] == [command]


@pytest.mark.parametrize(
    ("value", "left"),
    [
        ("mlx5_0", True),
        ("mlx5_0:1", True),
        ("mlx5", True),
        ("=mlx5_0", True),
        ("=mlx5_0:1", True),
        ("^mlx5_1", True),
        ("^mlx5_0:2", True),
        ("mlx5_0:2", False),
        ("=mlx5", False),
        ("=mlx5_0:2", False),
        ("^mlx5_0:1", False),
        ("^=mlx5_0", False),
        ("^mlx5", False),
        ("bnxt", False),
    ],
)
def test_adapters_are_named_with_their_port_or_without(value: str, left: bool) -> None:
    facts = Facts(
        probes={
            "host.env": ProbeRun(status="ok", facts={"variables": {"NCCL_IB_HCA": value}}),
            "host.network": ProbeRun(
                status="ok", facts={"infiniband": [{"device": "mlx5_0", "port": "1"}]}
            ),
        }
    )
    (result,) = check_interfaces(facts)
    assert (result.status is Status.PASS) is left
