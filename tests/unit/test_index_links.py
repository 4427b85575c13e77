"""Pages of package indexes and file names, as they are in the wild."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuenv.index.links import (
    UnreadablePageError,
    best_wheel,
    normalize_name,
    parse_archive,
    parse_page,
    target_tags,
)
from gpuenv.versions import PythonVersion

DATA = Path(__file__).parents[1] / "data" / "index"
HTML = "text/html; charset=utf-8"


def test_the_json_page_of_pypi_gives_every_file_with_what_is_known_of_it() -> None:
    page = (DATA / "pypi-torch.json").read_bytes()
    links = parse_page(
        page, "application/vnd.pypi.simple.v1+json", "https://pypi.org/simple/torch/"
    )
    assert len(links) == 42
    (link,) = (
        link
        for link in links
        if link.filename == "torch-2.9.1-cp311-cp311-manylinux_2_28_x86_64.whl"
    )
    assert link.url.reveal().startswith("https://files.pythonhosted.org/packages/")
    assert link.requires_python == ">=3.10"
    assert link.size == 899821446
    assert link.sha256 is not None
    assert len(link.sha256) == 64
    assert link.yanked is None


def test_a_pytorch_page_has_escaped_names_hashes_and_metadata() -> None:
    page = b"""<!DOCTYPE html><html><body><h1>Links for torch</h1>
    <a href="/whl/cu128/torch-2.8.0%2Bcu128-cp311-cp311-manylinux_2_28_x86_64.whl#sha256=AB12"
       data-dist-info-metadata="sha256=00" data-requires-python="&gt;=3.9.0">torch</a><br/>
    <a href="/whl/cu128/torch-2.7.0%2Bcu128-cp311-cp311-win_amd64.whl" data-yanked="broken">x</a>
    <a href="/whl/">up</a> <a>no target</a> <a href="http://[bad">bad</a>
    </body></html>"""
    first, second = parse_page(page, HTML, "https://download.pytorch.org/whl/cu128/torch/")
    assert first.filename == "torch-2.8.0+cu128-cp311-cp311-manylinux_2_28_x86_64.whl"
    assert first.url.reveal() == (
        "https://download.pytorch.org/whl/cu128/"
        "torch-2.8.0%2Bcu128-cp311-cp311-manylinux_2_28_x86_64.whl"
    )
    assert first.sha256 == "ab12"
    assert first.has_metadata
    assert first.requires_python == ">=3.9.0"
    assert second.yanked == "broken"


def test_a_flat_mirror_page_is_read_by_its_links_alone() -> None:
    page = b"""<html><head><title>Index of /pytorch-wheels/cu128/</title></head><body><pre>
    <a href="../">../</a>
    <a href="./torch-2.8.0+cu128-cp312-cp312-manylinux_2_28_x86_64.whl">torch-2.8.0..&gt;</a> 888M
    <a href="torchvision-0.23.0%2Bcu128-cp312-cp312-manylinux_2_28_x86_64.whl">t</a></pre>"""
    links = parse_page(page, HTML, "https://mirror.example/pytorch-wheels/cu128/")
    assert [link.filename.partition("-cp")[0] for link in links] == [
        "torch-2.8.0+cu128",
        "torchvision-0.23.0+cu128",
    ]
    assert links[0].url.reveal().startswith("https://mirror.example/pytorch-wheels/cu128/torch-2")


def test_a_base_tag_and_relative_links_of_json_are_followed() -> None:
    html = b'<base href="https://cdn.example/x/"><a href="a-1.0-py3-none-any.whl">a</a>'
    assert parse_page(html, HTML, "https://i.example/a/")[0].url.reveal() == (
        "https://cdn.example/x/a-1.0-py3-none-any.whl"
    )
    file = {"filename": "a-1.0.tar.gz", "url": "../f/a-1.0.tar.gz", "hashes": {}, "yanked": True}
    page = json.dumps({"meta": {"api-version": "1.0"}, "files": [file]}).encode()
    (link,) = parse_page(page, "application/json", "https://i.example/simple/a/")
    assert link.url.reveal() == "https://i.example/simple/f/a-1.0.tar.gz"
    assert link.yanked == ""


@pytest.mark.parametrize(
    ("body", "kind", "reason"),
    [
        (b"<html>", "application/json", "no JSON page"),
        (b'{"files": 3}', "application/json", "no JSON page"),
        (b'{"meta":{"api-version":"2.0"},"files":[]}', "application/json", "version is 2.0"),
        (b"plain words", "text/html", "no HTML"),
        (b"\x89PNG", "image/png", "neither HTML nor JSON"),
    ],
)
def test_what_is_no_page_says_why(body: bytes, kind: str, reason: str) -> None:
    with pytest.raises(UnreadablePageError, match=reason):
        parse_page(body, kind, "https://i.example/")


def test_names_are_one_to_an_index_however_they_are_spelt() -> None:
    assert normalize_name("NVIDIA_cuDNN.cu12") == "nvidia-cudnn-cu12"


def test_file_names_say_project_version_and_tags() -> None:
    wheel = parse_archive("nvidia_cudnn_cu13-9.24.0.43-py3-none-manylinux_2_27_x86_64.whl")
    assert wheel is not None
    assert (wheel.project, str(wheel.version), wheel.is_wheel) == (
        "nvidia-cudnn-cu13",
        "9.24.0.43",
        True,
    )
    assert parse_archive("README.txt") is None
    assert parse_archive("torch-banana-cp311.whl") is None
    source = parse_archive("sympy-1.14.0.tar.gz")
    assert source is not None
    assert not source.is_wheel


def pick(*filenames: str, python: str = "3.11", arch: str = "x86_64") -> str | None:
    page = "".join(f'<a href="{name}">x</a>' for name in filenames).encode()
    links = parse_page(page, HTML, "https://i.example/")
    pairs = [(link, archive) for link in links if (archive := parse_archive(link.filename))]
    best = best_wheel(pairs, target_tags(PythonVersion.parse(python), arch))  # type: ignore[arg-type]
    return best[0].filename if best else None


def test_the_best_wheel_fits_python_machine_and_c_library() -> None:
    old = "torch-2.0.0-cp311-cp311-manylinux1_x86_64.whl"
    arm = "torch-2.0.0-cp311-cp311-manylinux2014_aarch64.whl"
    rebuilt = "torch-2.0.0-1-cp311-cp311-manylinux2014_aarch64.whl"
    assert pick(old, arm) == old
    assert pick(old, arm, rebuilt, arch="aarch64") == rebuilt
    assert pick(old, python="3.12") is None
    assert pick("a-1-cp314-cp314t-manylinux_2_28_x86_64.whl", python="3.14") is None
    assert pick("a-1-cp39-abi3-manylinux_2_34_x86_64.whl") is not None
    assert pick("a-1-py3-none-manylinux_2_39_x86_64.whl") is None
    assert pick("a-1-py3-none-any.whl", "a-2-py3-none-any.whl") == "a-2-py3-none-any.whl"
    assert pick("torch-2.0.0+cu118-cp311-cp311-linux_x86_64.whl") is not None
