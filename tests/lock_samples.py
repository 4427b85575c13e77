"""Locks for tests: a real row, and packages whose digests are those of their names."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from gpuenv.lockfile import Lock, LockedBase, LockedPackage, record_request, sorted_packages
from gpuenv.matrix.load import load_matrix
from gpuenv.matrix.request import layer_settings, parse_request
from gpuenv.matrix.resolve import resolve
from gpuenv.spec import ImageRequest, ImageSpec

if TYPE_CHECKING:
    from gpuenv.lockfile import Step
    from gpuenv.matrix.model import Matrix
    from gpuenv.spec import EnvironmentSpec, MatrixRequest

DEBIAN = LockedBase(image="debian:bookworm-slim", digest=f"sha256:{64 * 'd'}")
HOME_MADE = LockedBase(image="localhost/gpuenv/base:bookworm", id=f"sha256:{64 * 'b'}")


def package(
    name: str, version: str, step: Step = "torch", tag: str = "py3-none-any"
) -> LockedPackage:
    file = f"{name.replace('-', '_')}-{version}-{tag}.whl"
    digest = hashlib.sha256(file.encode()).hexdigest()
    return LockedPackage(name=name, version=version, step=step, file=file, sha256=digest)


CPU_PACKAGES = (
    package("uv", "0.13.9", "installer", "py3-none-manylinux_2_17_x86_64"),
    package("torch", "2.13.0+cpu", tag="cp311-cp311-manylinux_2_28_x86_64"),
    package("numpy", "2.4.6", tag="cp311-cp311-manylinux_2_28_x86_64"),
    package("pip", "26.3"),
    package("einops", "0.8.2", "packages"),
)
CUDA_PACKAGES = (
    package("uv", "0.13.9", "installer", "py3-none-manylinux_2_17_x86_64"),
    package("torch", "2.14.1", tag="cp311-cp311-manylinux_2_28_x86_64"),
    package("torchvision", "0.29.1", tag="cp311-cp311-manylinux_2_28_x86_64"),
    package("triton", "3.8.0", tag="cp311-cp311-manylinux_2_27_x86_64"),
    package("nvidia-cublas", "13.1.1.3", tag="py3-none-manylinux_2_27_x86_64"),
    package("nvidia-cudnn-cu13", "9.20.0.48", tag="py3-none-manylinux_2_27_x86_64"),
    package("nvidia-nccl-cu13", "2.29.7", tag="py3-none-manylinux_2_18_x86_64"),
    package("cuda-bindings", "13.0.3", tag="cp311-cp311-manylinux_2_24_x86_64"),
    package("numpy", "2.4.6", tag="cp311-cp311-manylinux_2_28_x86_64"),
    package("pip", "26.3"),
    package("jupyterlab", "4.6.6", "jupyter"),
    package("einops", "0.8.2", "packages"),
)


@lru_cache
def matrix() -> Matrix:
    """Return the matrix that gpuenv carries, read once."""
    return load_matrix()


def asked(**settings: str) -> MatrixRequest:
    written = layer_settings(settings, environ={})
    return parse_request(matrix(), written, machine="x86_64")


def row(**settings: str) -> EnvironmentSpec:
    return resolve(matrix(), asked(**settings))


def cpu_lock(
    *,
    base: LockedBase = DEBIAN,
    packages: tuple[LockedPackage, ...] = CPU_PACKAGES,
    **settings: str,
) -> Lock:
    """Return a lock of torch 2.13.0 for the CPU."""
    settings = settings or {"cuda": "cpu"}
    found = row(torch="2.13.0", cuda="cpu", python="3.11")
    return Lock(
        request=record_request(asked(**settings)),
        spec=ImageSpec(
            environment=replace(found, base_image=base.image, notes=()),
            image=ImageRequest(pip=("einops",)),
        ),
        base=base,
        packages=sorted_packages(iter(packages)),
    )


def cuda_lock() -> Lock:
    """Return a lock of torch 2.14.1 for CUDA 13.0, with everything that may be in an image."""
    image = ImageRequest(name="team", features=("jupyter", "ssh"), apt=("git",), pip=("einops",))
    return Lock(
        request=record_request(asked(torch="2.14", cuda="13.0", gpu="H100")),
        spec=ImageSpec(environment=row(torch="2.14.1", cuda="13.0", python="3.11"), image=image),
        base=DEBIAN,
        packages=sorted_packages(iter(CUDA_PACKAGES)),
    )
