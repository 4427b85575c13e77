"""Whether a lock fits what is asked for: what contradicts is named, what is left out is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuenv.lockcheck import (
    LockMismatchError,
    LockOutdatedError,
    require_current,
    require_fit,
    unserved,
)
from gpuenv.matrix.request import layer_settings
from gpuenv.spec import HostGpus, ImageRequest
from tests.lock_samples import asked, cpu_lock, cuda_lock, matrix

NOTHING = ImageRequest()


def problems(lock_name: str, image: ImageRequest = NOTHING, **settings: str) -> list[str]:
    """Return what a lock cannot give of a request."""
    lock = {"cpu": cpu_lock, "cuda": cuda_lock}[lock_name]()
    keys = frozenset(layer_settings(settings, environ={}).values)
    try:
        require_fit(lock, asked(**settings), image, asked=keys, matrix=matrix())
    except LockMismatchError as error:
        found: list[str] = error.data["problems"]
        return found
    return []


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"torch": "2"},
        {"torch": "2.14"},
        {"torch": "2.14.1", "cuda": "13"},
        {"cuda": "13.0", "cudnn": "9", "python": "3.11"},
        {"gpu": "H100", "driver": "580.65.06"},
        {"cuda": "auto", "flavor": "runtime", "arch": "x86_64"},
    ],
    ids=str,
)
def test_a_request_to_any_depth_fits_the_row(settings: dict[str, str]) -> None:
    assert problems("cuda", **settings) == []


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"torch": "2.13"}, "torch 2.13 is asked for, the lock has 2.14.1"),
        ({"torch": "2.1"}, "torch 2.1 is asked for, the lock has 2.14.1"),
        ({"cuda": "12.8"}, "CUDA 12.8 is asked for, the lock has 13.0"),
        ({"cuda": "cpu"}, "CUDA cpu is asked for, the lock has 13.0"),
        ({"python": "3.12"}, "Python 3.12 is asked for, the lock has 3.11"),
        ({"cudnn": "8"}, "cuDNN 8 is asked for"),
        ({"flavor": "devel"}, "the flavor devel is asked for, the lock has runtime"),
        ({"arch": "aarch64"}, "an image for aarch64 is asked for, the lock is for x86_64"),
        ({"gpu": "V100"}, "cannot serve V100 (7.0)"),
        ({"driver": "525.60.13"}, "does not run on driver 525.60.13"),
    ],
    ids=str,
)
def test_what_the_row_cannot_give_is_named(settings: dict[str, str], said: str) -> None:
    (problem,) = problems("cuda", **settings)
    assert said in problem


def test_a_lock_for_the_cpu_serves_no_gpu() -> None:
    found = problems("cpu", gpu="H100", cuda="12.8")
    assert found == ["CUDA 12.8 is asked for, the lock has cpu", "the lock has no CUDA for H100"]


@pytest.mark.parametrize(
    "image",
    [
        ImageRequest(),
        ImageRequest(pip=("einops",)),
        ImageRequest(pip=("einops>=0.8,<1", "numpy")),
        ImageRequest(requirements=("Torch==2.14.1",), apt=("git",)),
        ImageRequest(features=("ssh",)),
        ImageRequest(name="another"),
    ],
    ids=str,
)
def test_what_is_inside_fits(image: ImageRequest) -> None:
    assert problems("cuda", image) == []


@pytest.mark.parametrize(
    ("image", "said"),
    [
        (ImageRequest(pip=("rich",)), "rich is asked for, the lock has no rich"),
        (ImageRequest(pip=("einops>=1",)), "einops>=1 is asked for, the lock has einops 0.8.2"),
        (ImageRequest(pip=("jupyterlab[test]",)), "the lock was not made for it"),
        (ImageRequest(requirements=("einops==0.8.1",)), "the lock has einops 0.8.2"),
        (ImageRequest(apt=("ffmpeg",)), "the system package ffmpeg is asked for"),
        (ImageRequest(env=(("A", "1"),)), "A=1 is asked for, the lock has no A"),
        (ImageRequest(workdir="/srv/app"), "/srv/app is asked for, the lock has /workspace"),
        (ImageRequest(base="debian:13"), "the lock stands on debian:bookworm-slim"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_inside_is_named(image: ImageRequest, said: str) -> None:
    (problem,) = problems("cuda", image)
    assert said in problem


def test_a_feature_that_is_missing_says_how_to_lock_it() -> None:
    (problem,) = problems("cpu", ImageRequest(features=("jupyter",)))
    assert problem.endswith("gpuenv lock --with jupyter")


def test_all_contradictions_are_named_at_once() -> None:
    found = problems("cuda", ImageRequest(pip=("rich",), apt=("jq",)), torch="2.9", python="3.13")
    assert len(found) == 4


def test_a_gpu_of_this_host_that_the_lock_does_not_serve_is_told() -> None:
    host = HostGpus(gpus=asked(gpu="V100").gpus, found_via="NVML")
    (said,) = unserved(cuda_lock(), host, matrix())
    assert "cannot serve V100" in said
    assert unserved(cuda_lock(), HostGpus(gpus=asked(gpu="H100").gpus), matrix()) == ()
    assert unserved(cuda_lock(), HostGpus(), matrix()) == ()


def test_a_row_that_this_matrix_lacks_is_not_called_good() -> None:
    lock = cuda_lock()
    foreign = replace(lock.spec.environment, torch_variant="cu999")
    lock = replace(lock, spec=replace(lock.spec, environment=foreign))
    (said,) = unserved(lock, HostGpus(gpus=asked(gpu="H100").gpus), matrix())
    assert "not in this gpuenv's matrix" in said


def test_check_names_also_what_is_no_longer_asked_for() -> None:
    lock = cuda_lock()
    request = asked(torch="2.14", cuda="13.0", gpu="H100")
    keys = frozenset({"torch", "cuda", "gpu"})
    require_current(lock, request, lock.spec.image, asked=keys)
    with pytest.raises(LockOutdatedError) as caught:
        require_current(lock, request, replace(lock.spec.image, pip=()), asked=keys)
    assert caught.value.exit_code == 1
    assert caught.value.why == "- pip einops"
    assert caught.value.data["changes"] == [{"what": "pip", "before": "einops", "after": ""}]


def test_check_on_a_machine_with_another_cpu_is_no_difference_unless_it_is_asked_for() -> None:
    lock = cuda_lock()
    request = replace(asked(torch="2.14", cuda="13.0", gpu="H100"), arch="aarch64")
    require_current(lock, request, lock.spec.image, asked=frozenset({"torch", "cuda", "gpu"}))
    with pytest.raises(LockOutdatedError) as caught:
        require_current(lock, request, lock.spec.image, asked=frozenset({"arch"}))
    assert caught.value.why == "~ arch x86_64 -> aarch64"
