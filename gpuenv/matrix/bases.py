"""Which base image and which Python a row is built on."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from gpuenv.values import dataclass

if TYPE_CHECKING:
    from gpuenv.matrix.model import Matrix, Row
    from gpuenv.spec import Flavor, PythonSource
    from gpuenv.versions import CudaVersion, PythonVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """A Python, the image it is used in, and whether the image brings it or uv installs it."""

    python: PythonVersion
    python_source: PythonSource
    image: str


@lru_cache(maxsize=1024)
def bases_for(
    matrix: Matrix, row: Row, *, flavor: Flavor, local_bases: frozenset[str] = frozenset()
) -> tuple[Base, ...]:
    """Return every Python a row has wheels for with its base, the preferred ones first.

    A Python that comes with a base image goes before one that uv has to install, a base that is at
    hand before one that has to be pulled, and then the order of the matrix file decides.

    Args:
        matrix: For its base and devel images.
        row: The wheel; only its Pythons are offered.
        flavor: ``devel`` takes NVIDIA's devel image where the wheels carry no nvcc.
        local_bases: Image references the engine has, or can make without a registry.
    """
    stock = _stock_bases(matrix, row, flavor=flavor, local_bases=local_bases)
    with_python = [
        Base(python=python, python_source="base", image=image)
        for python, image in stock
        if python in row.pythons
    ]
    covered = {base.python for base in with_python}
    managed_image = _managed_image(matrix, row, flavor=flavor, local_bases=local_bases)
    managed = [
        Base(python=python, python_source="managed", image=managed_image)
        for python in reversed(row.pythons)
        if python not in covered
    ]
    return (*with_python, *managed)


def devel_images(matrix: Matrix, row: Row) -> tuple[tuple[PythonVersion, str], ...]:
    """Return NVIDIA's devel images for a row's toolkit by their Python; none where wheels do it."""
    if row.cuda is None or row.cuda not in matrix.toolkits:
        return ()
    images = matrix.toolkits[row.cuda].devel_images
    patch = row.toolkit or (images[0][0] if images else None)
    return tuple((python, image) for toolkit, python, image in images if toolkit == patch)


def devel_wheels(matrix: Matrix, row: Row) -> tuple[tuple[str, ...], CudaVersion | None]:
    """Return the wheels that carry nvcc of a row's toolkit, and the toolkit patch they are of.

    Where the row's own patch is not known, the newest patch of the same minor is taken: nvcc of it
    compiles for every driver and library of that minor.
    """
    if row.cuda is None or row.cuda not in matrix.toolkits:
        return (), None
    wheels = matrix.toolkits[row.cuda].devel_wheels
    for patch, requirements in wheels:
        if row.toolkit is None or patch == row.toolkit:
            return requirements, patch
    return (), None


def _stock_bases(
    matrix: Matrix, row: Row, *, flavor: Flavor, local_bases: frozenset[str]
) -> list[tuple[PythonVersion, str]]:
    if flavor == "devel" and (images := devel_images(matrix, row)):
        stock = list(images)
        return sorted(stock, key=lambda it: it[1] not in local_bases)
    stock = [
        (base.python, _at_hand(base.image, base.local, local_bases)) for base in matrix.base_images
    ]
    return sorted(stock, key=lambda it: it[1] not in local_bases)


def _managed_image(matrix: Matrix, row: Row, *, flavor: Flavor, local_bases: frozenset[str]) -> str:
    if flavor == "devel" and (images := devel_images(matrix, row)):
        return images[0][1]
    base = next(base for base in matrix.base_images if base.managed)
    return _at_hand(base.image, base.local, local_bases)


def _at_hand(image: str, local: str, local_bases: frozenset[str]) -> str:
    """Return the imported copy where it is there and the image itself is not."""
    return local if local in local_bases and image not in local_bases else image
