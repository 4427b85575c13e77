"""The pure parts of the torch probes: arms, memory maps, versions, logs, rates."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

import pytest

from gpuenv.checks.nccl import read_differential
from gpuenv.checks.probes import TORCH_PROBES
from gpuenv.probes import _arms, _ranks, torch_collective, torch_quick
from gpuenv.resources import package_dir

if TYPE_CHECKING:
    from collections.abc import Callable

PROBE_FILES = sorted((package_dir() / "probes").glob("*.py"))


def play(
    world: int,
    backend: str,
    works: Callable[[dict[str, Any]], bool],
    env: dict[str, str] | None = None,
) -> list[dict[str, Any]]:
    """Run the planner to its end in a world where ``works`` decides each arm."""
    done: list[dict[str, Any]] = []
    while len(done) < 60:
        arm = _arms.next_arm(world, backend, env or {}, done)
        if arm is None:
            return done
        done.append(dict(arm, ok=works(arm)))
    pytest.fail("the planner does not come to an end")


def names(arms: list[dict[str, Any]]) -> list[str]:
    return [arm["name"] for arm in arms]


def test_a_fault_that_does_not_come_back_ends_the_search() -> None:
    arms = play(8, "nccl", lambda _arm: True)
    assert names(arms) == ["again"]
    learnt = read_differential({"differential": arms})
    assert "comes and goes" in learnt.reading.why


def test_peer_copies_are_blamed_when_only_their_absence_helps() -> None:
    arms = play(8, "nccl", lambda arm: "NCCL_P2P_DISABLE" in arm["env"])
    assert names(arms) == ["again", "pair", "p2p-off"]
    learnt = read_differential({"differential": arms})
    assert learnt.reading.suspects[:2] == ("p2p.copy", "topo.acs")
    assert learnt.ranks == (0, 1)


def test_the_one_broken_pair_is_found_and_named() -> None:
    arms = play(4, "nccl", lambda arm: not {2, 3} <= set(arm["ranks"]))
    assert names(arms)[:4] == ["again", "pair", "pair", "pair"]
    learnt = read_differential({"differential": arms})
    assert learnt.ranks == (2, 3)
    assert learnt.reading.why == "no single change makes it work"


def test_pairs_that_all_work_leave_the_whole_group_to_try_changes_on() -> None:
    arms = play(4, "nccl", lambda arm: len(arm["ranks"]) == 2 or arm["name"] == "nvls-off")
    assert names(arms).count("pair") == 6
    assert arms[-1]["name"] == "nvls-off"
    assert arms[-1]["ranks"] == [0, 1, 2, 3]
    assert "host.fabricmanager" in read_differential({"differential": arms}).reading.suspects


def test_shared_memory_is_blamed_before_the_network() -> None:
    arms = play(2, "nccl", lambda arm: "NCCL_SHM_DISABLE" in arm["env"])
    assert names(arms) == ["again", "p2p-off", "shm-off"]
    assert read_differential({"differential": arms}).reading.suspects == ("shm.size",)


def test_the_users_own_settings_come_first_and_the_guilty_one_is_named() -> None:
    env = {"NCCL_ALGO": "Ring", "NCCL_SOCKET_IFNAME": "nope", "NCCL_DEBUG": "INFO"}
    arms = play(2, "nccl", lambda arm: "NCCL_SOCKET_IFNAME" in arm["env"], env)
    assert names(arms) == [
        "again",
        "own-settings-off",
        "without NCCL_ALGO",
        "without NCCL_SOCKET_IFNAME",
    ]
    assert arms[1]["env"] == {"NCCL_ALGO": None, "NCCL_SOCKET_IFNAME": None}
    learnt = read_differential({"differential": arms})
    assert learnt.reading.confidence == "certain"
    assert learnt.reading.fixes[0].command == "unset NCCL_SOCKET_IFNAME"


def test_one_own_setting_needs_no_second_run() -> None:
    arms = play(2, "gloo", lambda arm: bool(arm["env"]), {"GLOO_SOCKET_IFNAME": "nope"})
    assert names(arms) == ["again", "own-settings-off"]
    assert read_differential({"differential": arms}).reading.fragment == "GLOO_SOCKET_IFNAME"


def test_settings_that_only_fail_together_are_said_to_do_so() -> None:
    env = {"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL"}
    arms = play(2, "nccl", lambda arm: len(arm["env"]) == 2, env)
    assert names(arms)[-2:] == ["without NCCL_ALGO", "without NCCL_PROTO"]
    assert "no single one explains it" in read_differential({"differential": arms}).reading.why


def test_a_change_that_changes_nothing_is_not_tried() -> None:
    env = {"NCCL_P2P_DISABLE": "1"}
    assert "p2p-off" not in [name for name, _ in _arms.variable_arms("nccl", env)]


def test_the_library_path_and_gloo_come_last() -> None:
    arms = play(2, "nccl", lambda _arm: False, {"LD_LIBRARY_PATH": "/usr/local/cuda/lib64"})
    assert names(arms)[-2:] == ["library-path-off", "gloo"]
    assert arms[-1]["backend"] == "gloo"
    assert len(arms) == 9


def test_the_changed_environment_leaves_the_given_one_alone() -> None:
    env = {"A": "1", "B": "2"}
    assert _arms.changed_env(env, {"A": None, "C": "3"}) == {"B": "2", "C": "3"}
    assert env == {"A": "1", "B": "2"}


@pytest.mark.parametrize("world", [2, 3, 4, 8, 16, 72])
def test_a_sum_over_all_ranks_is_exact_in_bfloat16(world: int) -> None:
    largest = (_ranks.modulus_for(world) - 1) * world
    assert largest <= 256
    assert _ranks.modulus_for(world) >= 2


MAPS = f"""\
7f10-7f11 r-xp 00000000 08:01 1 /opt/v/nvidia/cublas/lib/libcublas.so.12
7f11-7f12 r--p 00000000 08:01 1 /opt/v/nvidia/cublas/lib/libcublas.so.12
7f12-7f13 r-xp 00000000 08:01 2 /opt/v/nvidia/cublas/lib/libcublasLt.so.12
7f13-7f14 r-xp 00000000 08:01 3 /opt/v/nvidia/cudnn/lib/libcudnn_graph.so.9
7f14-7f15 r-xp 00000000 08:01 4 /opt/v/torch/lib/libcudart-d0da41ae.so.11.0
7f15-7f16 r-xp 00000000 08:01 5 /usr/lib/x86_64-linux-gnu/libcuda.so.580.65.06 (deleted)
7f16-7f17 rw-p 00000000 00:00 0 [heap]
7f17-7f18 r-xp 00000000 08:01 6 /opt/{"v" * 3}/libcudadebugger.so.1
"""


def test_libraries_are_read_from_the_memory_map() -> None:
    assert torch_quick.mapped_libraries(MAPS) == {
        "libcublas": ["/opt/v/nvidia/cublas/lib/libcublas.so.12"],
        "libcublasLt": ["/opt/v/nvidia/cublas/lib/libcublasLt.so.12"],
        "libcuda": ["/usr/lib/x86_64-linux-gnu/libcuda.so.580.65.06"],
        "libcudart": ["/opt/v/torch/lib/libcudart-d0da41ae.so.11.0"],
        "libcudnn": ["/opt/v/nvidia/cudnn/lib/libcudnn_graph.so.9"],
    }


@pytest.mark.parametrize(
    ("number", "text"), [(23007, "2.30.7"), (22905, "2.29.5"), (2804, "2.8.4"), (21403, "2.14.3")]
)
def test_nccl_numbers_become_versions(number: int, text: str) -> None:
    assert torch_quick.nccl_version_text(number) == text


def test_the_accumulation_reference_fits_into_bfloat16() -> None:
    weight, data, target, gradient = torch_quick.accumulation_reference()
    assert (len(weight), len(data), len(target)) == (32, 256, 128)
    assert set(weight) | set(data) | set(target) == {-1, 0, 1}
    # the largest partial sum any order of additions can meet
    partial = [
        sum(
            abs(data[row * 8 + k])
            * abs(
                sum(data[row * 8 + i] * weight[i * 4 + c] for i in range(8)) - target[row * 4 + c]
            )
            for row in range(32)
        )
        for k in range(8)
        for c in range(4)
    ]
    assert max(partial) <= 256
    assert max(abs(value) for row in gradient for value in row) > 8


LOG = """\
h:1:2 [0] NCCL INFO NCCL version 2.30.7+cuda13.0
h:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
h:1:2 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM
h:1:3 [1] NCCL INFO Channel 00 : 1[1] -> 0[0] via SHM/direct/direct
h:1:3 [1] NCCL INFO Channel 00/0 : 1[0] -> 2[0] [send] via NET/IB/0/GDRDMA
h:1:3 [1] misc/shmutils.cc:87 NCCL WARN Error: failed to extend /dev/shm/nccl-Ab12 to 9637892 bytes
h:1:3 [1] NCCL INFO NVLS multicast support is available on dev 1
"""


def test_the_log_tells_what_nccl_chose_and_complained_of() -> None:
    read = torch_collective.read_log(LOG)
    assert read["nccl_version"] == "2.30.7+cuda13.0"
    assert read["transports"] == {
        "P2P/CUMEM": 2,
        "SHM/direct/direct": 1,
        "NET/IB/0/GDRDMA": 1,
        "NVLS": 1,
    }
    assert read["warnings"] == ["Error: failed to extend /dev/shm/nccl-Ab12 to 9637892 bytes"]


def test_the_slowest_rank_counts_and_bus_bandwidth_follows_nccl_tests() -> None:
    entries = tuple({"bytes": 8 << 20, "seconds": s} for s in (0.001, 0.002, 0.001, 0.001))
    rates = torch_collective.rates(entries, 4)
    assert rates["algbw"] == pytest.approx((8 << 20) / 0.002 / 1e9)
    assert rates["busbw"] == pytest.approx(rates["algbw"] * 1.5)
    assert torch_collective.rates(entries[:1], 1)["busbw"] is None


@pytest.mark.parametrize("path", PROBE_FILES, ids=lambda path: path.name)
def test_probe_files_are_valid_python_3_8(path: Any) -> None:
    ast.parse(path.read_text(), feature_version=(3, 8))


def test_every_torch_probe_is_in_the_catalogue_and_the_other_way_round() -> None:
    listed: dict[str, set[str]] = {}
    for spec in TORCH_PROBES:
        listed.setdefault(spec.module, set()).add(spec.name)
    for module, probes in listed.items():
        tree = ast.parse((package_dir() / "probes" / f"{module}.py").read_text())
        (table,) = (
            node.value
            for node in tree.body
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "PROBES"
        )
        assert isinstance(table, ast.Dict)
        keys = {key.value for key in table.keys if isinstance(key, ast.Constant)}
        assert keys == probes
