"""The tables of what GPUs reach: sane against the vendors' figures, and found by name."""

from __future__ import annotations

import pytest

from gpuenv.checks.thresholds import (
    ALL_TABLES,
    ALLREDUCE_GB_S,
    MATMUL_TFLOPS,
    MEMORY_GB_S,
    Threshold,
    find,
    link_rate,
)

ROWS = [
    pytest.param(row, id=f"{table}: {row.model} x{row.gpus}")
    for table, rows in ALL_TABLES.items()
    for row in rows
]


@pytest.mark.parametrize("row", ROWS)
def test_a_floor_lies_between_30_and_90_percent_of_the_published_peak(row: Threshold) -> None:
    assert 0.3 <= row.floor / row.peak <= 0.9


@pytest.mark.parametrize("row", ROWS)
def test_a_failure_lies_below_the_floor_and_a_source_is_named(row: Threshold) -> None:
    assert 0 < row.failing < row.floor
    assert row.usual is None or row.usual > row.floor
    assert row.source


@pytest.mark.parametrize(
    ("name", "spec_tflops"),
    [
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA A100-SXM4-40GB", 312),
        ("NVIDIA A100 80GB PCIe", 312),
        ("NVIDIA A100-PCIE-40GB", 312),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H200", 989),
        ("NVIDIA GH200 480GB", 989),
        ("NVIDIA B200", 2250),
        ("NVIDIA GB200", 2500),
    ],
)
def test_a_gpu_is_found_by_the_name_the_driver_gives_it(name: str, spec_tflops: float) -> None:
    row = find(MATMUL_TFLOPS, name)
    assert row is not None
    assert row.peak == spec_tflops


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA H200 MIG 3g.71gb",
        "NVIDIA GeForce RTX 4090",
        "GRID A100D-40C",
        "",
    ],
)
def test_a_slice_a_virtual_gpu_and_an_unknown_model_have_no_row(name: str) -> None:
    for rows in ALL_TABLES.values():
        for gpus in (0, 2, 4, 8):
            assert find(rows, name, gpus=gpus) is None


def test_a10_and_a10g_and_l4_and_l40s_are_told_apart() -> None:
    floors = {n: find(MEMORY_GB_S, f"NVIDIA {n}") for n in ("A10", "A10G", "L4", "L40S")}
    assert {n: row.floor for n, row in floors.items() if row is not None} == {
        "A10": 480,
        "A10G": 363,
        "L4": 198,
        "L40S": 525,
    }


def test_the_number_of_gpus_chooses_the_row() -> None:
    usual = [find(ALLREDUCE_GB_S, "NVIDIA H200", gpus=n) for n in (4, 5, 6, 7, 8)]
    assert [row.usual for row in usual if row] == [363, 414, 436, 460, 473]
    assert find(ALLREDUCE_GB_S, "NVIDIA H200", gpus=3) is None


def test_half_the_lanes_ask_for_half_the_rate() -> None:
    full, half = link_rate(4, 16), link_rate(4, 8)
    assert full is not None
    assert half is not None
    assert (full.floor, half.floor) == (21, 10.5)
    assert link_rate(6, 16) is None
    assert link_rate(5, 0) is None
