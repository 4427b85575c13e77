"""Deciding from answered pages which source has a row's wheel."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpuenv.index.failures import IndexRefusedError, IndexUnreachableError, NotOnIndexError
from gpuenv.index.links import parse_archive, parse_page
from gpuenv.index.simple import ProjectPage
from gpuenv.index.sources import Constraint, PackageSources, Setting, Source
from gpuenv.index.wheels import availability_of, find_wheel, scan_wheelhouse
from gpuenv.secret import Secret
from gpuenv.spec import WheelKey
from gpuenv.versions import PythonVersion, TorchVersion

if TYPE_CHECKING:
    from gpuenv.index.failures import PackageIndexError
    from gpuenv.index.wheels import WheelAnswer
    from gpuenv.spec import Arch, WheelSource

DATA = Path(__file__).parents[1] / "data" / "index"
PYPI = Source.remote("https://pypi.org/simple", origin="default")
EXTRA = Source.remote("https://extra.example/simple", origin="pip.conf")
SOURCES = PackageSources(index=PYPI)


def key(torch: str, variant: str, python: str = "3.11", arch: Arch = "x86_64") -> WheelKey:
    return WheelKey(
        torch=TorchVersion.parse(torch),
        variant=variant,
        python=PythonVersion.parse(python),
        arch=arch,
    )


def pypi_page() -> ProjectPage:
    body = (DATA / "pypi-torch.json").read_bytes()
    return page_of(PYPI, body, "application/vnd.pypi.simple.v1+json")


def page_of(source: Source, body: bytes, kind: str = "text/html") -> ProjectPage:
    links = parse_page(body, kind, "https://i.example/torch/")
    files = tuple((li, ar) for li in links if (ar := parse_archive(li.filename)) is not None)
    return ProjectPage(source=source, project="torch", files=files)


def torch_page(sources: PackageSources, variant: str, *filenames: str) -> ProjectPage:
    source = sources.torch_source(variant)
    assert source is not None
    body = "".join(f'<a href="{name.replace("+", "%2B")}">x</a>' for name in filenames)
    return page_of(source, f"<html>{body}".encode())


def failed(source: Source, error: PackageIndexError) -> ProjectPage:
    return ProjectPage(source=source, project="torch", error=error)


def ask(
    wanted: WheelKey,
    source: WheelSource,
    *pages: ProjectPage,
    sources: PackageSources = SOURCES,
) -> WheelAnswer:
    known = {(page.source, "torch"): page for page in pages}
    return find_wheel(wanted, source, pages=known, sources=sources)


def test_pypi_has_its_default_without_a_variant_in_the_name() -> None:
    answer = ask(key("2.9.1", "cu128"), "pypi", pypi_page())
    assert answer.state == "available"
    assert answer.filename == "torch-2.9.1-cp311-cp311-manylinux_2_28_x86_64.whl"
    assert answer.place == PYPI
    assert answer.link is not None
    assert answer.link.size == 899821446


def test_the_rebuilt_wheel_of_a_release_is_the_one_that_counts() -> None:
    answer = ask(key("2.0.0", "cpu", arch="aarch64"), "pypi", pypi_page())
    assert answer.filename == "torch-2.0.0-1-cp311-cp311-manylinux2014_aarch64.whl"


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        (key("2.8.0", "cu128"), "https://pypi.org/simple has no torch 2.8.0"),
        (
            key("2.0.0", "cu117", "3.12"),
            "2.0.0 for x86_64, but only for cp38, cp39, cp310, cp311",
        ),
        (key("1.0.0", "cpu", "3.7", "aarch64"), "torch 1.0.0, but not for aarch64"),
    ],
)
def test_a_missing_wheel_says_what_is_there_instead(wanted: WheelKey, reason: str) -> None:
    answer = ask(wanted, "pypi", pypi_page())
    assert answer.state == "missing"
    assert reason in answer.reason


def test_another_variant_comes_from_the_pytorch_index_by_its_name() -> None:
    name = "torch-2.9.1+cu126-cp311-cp311-manylinux_2_28_x86_64.whl"
    page = torch_page(SOURCES, "cu126", name)
    answer = ask(key("2.9.1", "cu126"), "pytorch", page, pypi_page())
    assert (answer.state, answer.filename) == ("available", name)
    # PyPI's own 2.9.1 is cu128: without the variant in its name it is no cu126.
    answer = ask(key("2.9.1", "cu126"), "pytorch", pypi_page())
    assert answer.state == "missing"


def test_cpu_wheels_of_the_pytorch_index_may_lack_the_variant() -> None:
    name = "torch-2.0.1-cp311-cp311-manylinux2014_aarch64.whl"
    page = torch_page(SOURCES, "cpu", name)
    assert ask(key("2.0.1", "cpu", arch="aarch64"), "pytorch", page).filename == name


def test_an_extra_index_may_have_what_the_main_one_lacks() -> None:
    sources = PackageSources(index=PYPI, extra_indexes=(EXTRA,))
    name = "torch-2.8.0+cu128-cp311-cp311-manylinux_2_28_x86_64.whl"
    extra = page_of(EXTRA, f'<html><a href="{name}">x</a>'.encode())
    answer = ask(key("2.8.0", "cu128"), "pypi", pypi_page(), extra, sources=sources)
    assert (answer.place, answer.filename) == (EXTRA, name)


def test_silence_is_not_absence() -> None:
    sources = PackageSources(index=PYPI, extra_indexes=(EXTRA,))
    down = failed(EXTRA, IndexUnreachableError(str(EXTRA), "name-resolution", "no such name"))
    answer = ask(key("2.8.0", "cu128"), "pypi", pypi_page(), down, sources=sources)
    assert answer.state == "unreachable"
    assert "no such name" in answer.reason
    assert not answer.silent
    alone = ask(key("2.8.0", "cu128"), "pypi", down, sources=sources)
    assert alone.silent
    known = availability_of([answer, alone], local=(), sources=sources)
    assert [(k.torch, s) for k, s, _ in known.missing] == [(TorchVersion.parse("2.8.0"), "pypi")]
    assert known.unreachable == (("pypi", alone.reason),)


def test_no_torch_and_a_refusal_are_told_apart() -> None:
    nothing = failed(PYPI, NotOnIndexError("x"))
    answer = ask(key("2.8.0", "cu128"), "pypi", nothing)
    assert (answer.state, answer.reason) == ("missing", "https://pypi.org/simple has no torch")
    refused = failed(PYPI, IndexRefusedError("https://pypi.org/simple", 401, with_login=False))
    answer = ask(key("2.8.0", "cu128"), "pypi", refused)
    assert answer.state == "unreachable"
    assert "401" in answer.reason
    # The PyTorch index itself answers 403 for a variant it never had.
    torch = SOURCES.torch_source("cu134")
    assert torch is not None
    gone = failed(torch, IndexRefusedError(str(torch), 403, with_login=False))
    assert ask(key("2.15.0", "cu134"), "pytorch", gone).state == "missing"
    mirror = PackageSources(
        index=None, torch_index=Setting(value=Secret("https://m.example/whl"), origin="flag")
    )
    torch = mirror.torch_source("cu134")
    assert torch is not None
    gone = failed(torch, IndexRefusedError(str(torch), 403, with_login=False))
    assert ask(key("2.15.0", "cu134"), "pytorch", gone, sources=mirror).state == "unreachable"


def test_a_constraint_of_the_host_rules_a_version_out_and_is_named() -> None:
    cap = Constraint(requirement="torch<=2.9.0", origin="/etc/constraints.txt")
    sources = PackageSources(index=PYPI, constraints=(cap,))
    answer = ask(key("2.9.1", "cu128"), "pypi", pypi_page(), sources=sources)
    assert answer.state == "missing"
    assert answer.reason == "this host allows only torch<=2.9.0 (/etc/constraints.txt)"


def test_a_constraint_for_another_python_does_not_count() -> None:
    cap = Constraint(requirement='torch<2; python_version < "3.9"', origin="c.txt")
    sources = PackageSources(index=PYPI, constraints=(cap,))
    answer = ask(key("2.9.1", "cu128"), "pypi", pypi_page(), sources=sources)
    assert answer.state == "available"


def test_offline_has_no_index_to_ask() -> None:
    sources = PackageSources(index=PYPI, offline=True)
    answer = ask(key("2.9.1", "cu128"), "pypi", sources=sources)
    assert (answer.state, answer.reason) == (
        "missing",
        "offline: only folders on this host are used",
    )


def torch_wheel(folder: Path, filename: str, version: str, cuda: str | None) -> None:
    folder.mkdir(exist_ok=True, parents=True)
    with zipfile.ZipFile(folder / filename, "w") as archive:
        archive.writestr("torch/version.py", f"__version__ = {version!r}\ncuda = {cuda!r}\n")


def test_wheelhouse_wheels_are_known_by_name_or_by_what_is_inside(tmp_path: Path) -> None:
    folder = tmp_path / "wheels"
    torch_wheel(folder, "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl", "x", None)
    torch_wheel(
        folder, "torch-2.14.1-cp312-cp312-manylinux_2_28_aarch64.whl", "2.14.1+cu130", "13.0"
    )
    torch_wheel(folder, "torch-2.9.0-cp314-cp314t-manylinux_2_28_x86_64.whl", "2.9.0+cu128", "12.8")
    (folder / "torch-2.8.0-cp311-cp311-manylinux_2_28_x86_64.whl").write_bytes(b"half a wheel")
    local = Source.local(folder, "local-dir", origin="--wheelhouse")
    sources = PackageSources(index=PYPI, find_links=(local,))
    found = scan_wheelhouse(sources)
    assert {k for wheel in found for k in wheel.keys} == {
        key("2.13.0", "cpu"),
        key("2.14.1", "cu130", "3.12", "aarch64"),
    }
    answer = find_wheel(key("2.13.0", "cpu"), "wheelhouse", pages={}, sources=sources, local=found)
    assert (answer.state, answer.place) == ("available", local)
    known = availability_of([], local=found, sources=sources)
    assert key("2.13.0", "cpu") in known.wheelhouse


def test_a_local_index_is_a_wheelhouse_only_when_offline(tmp_path: Path) -> None:
    torch_wheel(
        tmp_path / "simple" / "torch",
        "torch-2.14.1-cp311-cp311-manylinux_2_28_x86_64.whl",
        "2.14.1+cu130",
        "13.0",
    )
    index = Source.local(tmp_path / "simple", "local-simple-index", origin="pip.conf")
    assert scan_wheelhouse(PackageSources(index=PYPI, extra_indexes=(index,))) == ()
    (wheel,) = scan_wheelhouse(PackageSources(index=PYPI, extra_indexes=(index,), offline=True))
    assert wheel.keys == {key("2.14.1", "cu130")}
