"""Versions are numbers: order, prefixes, kinds and refusals."""

from __future__ import annotations

import re

import pytest

from gpuenv.errors import ConfigurationError
from gpuenv.versions import (
    ComputeCapability,
    CudaVersion,
    CudnnVersion,
    DottedVersion,
    DriverCudaVersion,
    DriverRelease,
    NcclVersion,
    PythonVersion,
    TorchVersion,
)


def test_versions_compare_as_numbers() -> None:
    assert TorchVersion.parse("2.10") > TorchVersion.parse("2.9.1")
    assert DriverRelease.parse("580.65.06") > DriverRelease.parse("580.7")


def test_missing_parts_count_as_zero_in_order_and_equality() -> None:
    assert CudaVersion.parse("12.8") == CudaVersion.parse("12.8.0")
    assert hash(CudaVersion.parse("12.8")) == hash(CudaVersion.parse("12.8.0"))
    assert CudaVersion.parse("12.8") < CudaVersion.parse("12.8.1")


def test_a_prefix_covers_only_what_starts_with_it() -> None:
    assert TorchVersion.parse("2.1").is_prefix_of(TorchVersion.parse("2.1.2"))
    assert not TorchVersion.parse("2.1").is_prefix_of(TorchVersion.parse("2.10.0"))


def test_two_kinds_do_not_compare() -> None:
    with pytest.raises(TypeError):
        assert CudaVersion.parse("12.8") < CudnnVersion.parse("9.1")
    assert CudaVersion.parse("9.1") != CudnnVersion.parse("9.1")


@pytest.mark.parametrize("text", ["", "2..8", "2.8rc1", "v2", "\uff12.8", "2.8;", "9" * 12])
def test_nonsense_is_refused_with_the_text_in_the_message(text: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a torch version"):
        TorchVersion.parse(text)


@pytest.mark.parametrize("text", ["9.0", "sm_90", "90", "SM90", "compute_90", "sm_90a"])
def test_compute_capability_spellings(text: str) -> None:
    assert ComputeCapability.parse(text) == ComputeCapability(9, 0)


def test_compute_capability_with_two_digit_major() -> None:
    assert ComputeCapability.parse("sm_120") == ComputeCapability(12, 0)
    assert ComputeCapability.parse("12.1").sm == "sm_121"


def test_driver_release_prints_two_digits_and_driver_api_number_is_converted() -> None:
    assert str(DriverRelease.parse("580.65.6")) == "580.65.06"
    assert str(DriverCudaVersion.from_driver_api(12080)) == "12.8"
    assert CudaVersion.parse("12.8.1").variant == "cu128"


@pytest.mark.parametrize(
    "kind", [TorchVersion, CudaVersion, CudnnVersion, NcclVersion, PythonVersion, DriverRelease]
)
def test_the_example_of_each_kind_is_one_of_it(kind: type[DottedVersion]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        kind.parse("new")
    shown = caught.value.fix.removeprefix("write it like ")
    for example in re.split(r", | or ", shown):
        assert str(kind.parse(example)) == example
