"""What a build is given to install from: only what it needs, and no password in its digest."""

from __future__ import annotations

import configparser
import sys
import zipfile
from typing import TYPE_CHECKING

import pytest

from gpuenv.index.delivery import MOUNT_POINT, TorchChannel, plan_delivery
from gpuenv.index.local import collect_local_archives, read_metadata
from gpuenv.index.sources import Constraint, PackageSources, Setting, Source
from gpuenv.render import HOST_MOUNT, content_digest
from gpuenv.secret import Secret
from gpuenv.versions import PythonVersion

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from pathlib import Path

    from gpuenv.index.delivery import SourceDelivery

PY311 = PythonVersion.parse("3.11")
PYPI = Source.remote("https://bob:pa55word@pypi.example/simple", origin="PIP_INDEX_URL")


def wheel(folder: Path, filename: str, *requires: str) -> Path:
    """Write a wheel that has nothing but its metadata."""
    folder.mkdir(parents=True, exist_ok=True)
    name, version = filename.split("-")[:2]
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {r}" for r in requires]
    with zipfile.ZipFile(folder / filename, "w") as archive:
        archive.writestr(f"{name}-{version}.dist-info/METADATA", "\n".join(lines) + "\n\n")
    return folder / filename


def text_of(delivery: SourceDelivery, name: str) -> str:
    (file,) = (f for f in delivery.delivery.files if f.path == name)
    assert file.data is not None
    return file.data.decode()


def names(delivery: SourceDelivery) -> list[str]:
    return [file.path for file in delivery.delivery.files]


@pytest.fixture
def links(tmp_path: Path) -> Source:
    """A folder with torch for two Pythons, what it needs, and what nobody asked for."""
    folder = tmp_path / "wheels"
    needs = (
        "filelock",
        "numpy>=2 ; extra == 'fast'",
        "pywin32 ; sys_platform == 'win32'",
        "sympy<2",
    )
    wheel(folder, "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl", *needs)
    wheel(folder, "torch-2.13.0+cpu-cp312-cp312-manylinux_2_28_x86_64.whl", *needs)
    wheel(folder, "torch-2.12.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl", *needs)
    wheel(folder, "filelock-3.0-py3-none-any.whl")
    wheel(folder, "filelock-4.0-py3-none-any.whl")
    wheel(folder, "sympy-1.14-py3-none-any.whl", "mpmath")
    wheel(folder, "sympy-2.0-py3-none-any.whl", "mpmath")
    wheel(folder, "mpmath-1.3-py3-none-any.whl")
    wheel(folder, "numpy-2.1-cp311-cp311-manylinux_2_28_x86_64.whl")
    wheel(folder, "pywin32-300-py3-none-any.whl")
    wheel(folder, "unrelated-1.0-py3-none-any.whl")
    (folder / "README.txt").write_text("not a wheel")
    return Source.local(folder, "local-dir", origin="PIP_FIND_LINKS")


def chosen(
    sources: PackageSources, *requirements: str, elsewhere: frozenset[str] = frozenset()
) -> list[str]:
    found = collect_local_archives(
        requirements,
        sources,
        python=PY311,
        arch="x86_64",
        elsewhere=lambda files: elsewhere & files.keys(),
    )
    return [archive.path.name for archive in found]


def test_only_the_wheels_that_the_requirements_lead_to_are_carried(links: Source) -> None:
    sources = PackageSources(index=PYPI, find_links=(links,))
    assert chosen(sources, "torch==2.13.0+cpu") == [
        "filelock-4.0-py3-none-any.whl",
        "mpmath-1.3-py3-none-any.whl",
        "sympy-1.14-py3-none-any.whl",
        "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl",
    ]
    assert "numpy-2.1-cp311-cp311-manylinux_2_28_x86_64.whl" in chosen(sources, "torch[fast]")
    assert chosen(sources, "pandas") == []


def test_a_later_narrower_requirement_changes_the_choice(links: Source) -> None:
    sources = PackageSources(index=PYPI, find_links=(links,))
    assert "filelock-3.0-py3-none-any.whl" in chosen(sources, "torch", "filelock<4")


def test_constraints_of_the_host_narrow_the_choice(links: Source) -> None:
    caps = (
        Constraint(requirement="filelock<4", origin="/etc/constraints.txt"),
        Constraint(requirement="sympy<1; python_version < '3'", origin="/etc/constraints.txt"),
        Constraint(requirement="torch<2.13", origin="/etc/constraints.txt"),
    )
    sources = PackageSources(index=PYPI, find_links=(links,), constraints=caps)
    found = chosen(sources, "torch==2.13.0+cpu")
    assert "filelock-3.0-py3-none-any.whl" in found
    assert "sympy-1.14-py3-none-any.whl" in found
    # The matrix row pins torch, and it is chosen by then: the cap is not held against it here.
    assert "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl" in found
    delivery = plan_delivery(sources)
    assert "torch" not in text_of(delivery, "constraints.txt")


def test_what_a_remote_index_offers_too_stays_here_unless_the_folder_was_named(
    links: Source,
) -> None:
    elsewhere = frozenset({"filelock"})
    sources = PackageSources(index=PYPI, find_links=(links,))
    assert chosen(sources, "filelock", elsewhere=elsewhere) == []
    assert links.path is not None
    named = Source.local(links.path, "local-dir", origin="--wheelhouse")
    sources = PackageSources(index=PYPI, find_links=(named,))
    assert chosen(sources, "filelock", elsewhere=elsewhere) == ["filelock-4.0-py3-none-any.whl"]


def test_what_a_remote_package_needs_is_left_to_the_remote(links: Source) -> None:
    sources = PackageSources(index=PYPI, find_links=(links,))
    assert chosen(sources, "torch", elsewhere=frozenset({"torch"})) == []


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("comment", [b"", b"a comment"])
def test_metadata_is_found_in_any_form_of_a_wheel(
    tmp_path: Path, method: int, comment: bytes
) -> None:
    path = tmp_path / "a-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("other-1.0.dist-info/METADATA.txt", "Name: no")
        archive.writestr("deep/a-1.0.dist-info/METADATA", "Name: no")
        archive.writestr("a-1.0.dist-info/METADATA", "Name: yes \u00fc")
        archive.comment = comment
    assert read_metadata(path) == "Name: yes \u00fc"


def test_a_file_without_metadata_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a-1.0-py3-none-any.whl"
    path.write_bytes(b"")
    with pytest.raises(zipfile.BadZipFile):
        read_metadata(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/METADATA", "Name: no")
    with pytest.raises(KeyError):
        read_metadata(path)


def test_an_index_on_disk_is_read_by_its_pages(tmp_path: Path) -> None:
    file = wheel(tmp_path / "files", "numpy-2.1-cp311-cp311-manylinux_2_28_x86_64.whl")
    page = tmp_path / "simple" / "numpy" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text(f'<!DOCTYPE html><a href="../../files/{file.name}#sha256=0">{file.name}</a>')
    index = Source.local(tmp_path / "simple", "local-simple-index", origin="pip.conf")
    found = collect_local_archives(
        ["NumPy"],
        PackageSources(index=PYPI, extra_indexes=(index,)),
        python=PY311,
        arch="x86_64",
    )
    assert [archive.path.resolve() for archive in found] == [file.resolve()]


def test_delivery_offers_the_same_sources_to_uv_and_pip(links: Source, tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_text("PEM")
    torch = Source.remote("https://torch.example/whl/cu128", origin="default")
    sources = PackageSources(
        index=PYPI,
        extra_indexes=(Source.remote("https://extra.example/simple", origin="pip.conf"),),
        find_links=(links, Source.remote("https://links.example/", origin="pip.conf")),
        certificate=Setting(value=ca, origin="PIP_CERT"),
        trusted_hosts=(Setting(value="extra.example", origin="pip.conf"),),
        constraints=(Constraint(requirement="numpy<3", origin="c.txt"),),
    )
    archives = collect_local_archives(["mpmath"], sources, python=PY311, arch="x86_64")
    delivery = plan_delivery(sources, archives=archives, torch=TorchChannel(source=torch))
    uv = tomllib.loads(text_of(delivery, "uv.toml"))
    assert [i["url"] for i in uv["index"]] == [
        "https://torch.example/whl/cu128",
        "https://bob:pa55word@pypi.example/simple",
        "https://extra.example/simple",
    ]
    assert [i.get("default", False) for i in uv["index"]] == [False, True, False]
    assert uv["find-links"] == ["/run/gpuenv/host/wheels", "https://links.example/"]
    assert uv["allow-insecure-host"] == ["extra.example"]
    pip = configparser.RawConfigParser()
    pip.read_string(text_of(delivery, "pip.conf"))
    assert pip["global"]["index-url"] == "https://bob:pa55word@pypi.example/simple"
    assert pip["global"]["extra-index-url"].split() == [
        "https://torch.example/whl/cu128",
        "https://extra.example/simple",
    ]
    assert pip["global"]["find-links"].split() == uv["find-links"]
    assert names(delivery) == [
        "ca.crt",
        "constraints.txt",
        "pip.conf",
        "uv.toml",
        "wheels/mpmath-1.3-py3-none-any.whl",
    ]
    assert delivery.delivery.environ == (("UV_CONSTRAINT", f"{HOST_MOUNT}/constraints.txt"),)
    assert delivery.delivery.torch_index_delivered
    assert text_of(delivery, "constraints.txt") == "numpy<3\n"


def test_offline_delivery_has_no_address_at_all(links: Source) -> None:
    sources = PackageSources(index=PYPI, find_links=(links,), offline=True)
    archives = collect_local_archives(["mpmath"], sources, python=PY311, arch="x86_64")
    delivery = plan_delivery(sources, archives=archives)
    assert tomllib.loads(text_of(delivery, "uv.toml")) == {
        "index-strategy": "unsafe-best-match",
        "no-index": True,
        "find-links": ["/run/gpuenv/host/wheels"],
    }
    assert "no-index = true" in text_of(delivery, "pip.conf")
    assert "https" not in text_of(delivery, "uv.toml") + text_of(delivery, "pip.conf")


def test_without_a_main_index_pypi_is_not_asked_behind_our_back() -> None:
    extra = Source.remote("https://extra.example/simple", origin="--extra-index-url")
    delivery = plan_delivery(PackageSources(index=None, extra_indexes=(extra,)))
    uv = tomllib.loads(text_of(delivery, "uv.toml"))
    assert uv["index"] == [{"url": "https://extra.example/simple", "default": True}]
    assert "index-url = https://extra.example/simple" in text_of(delivery, "pip.conf")


def test_a_flat_page_of_torch_wheels_is_offered_as_links() -> None:
    page = Source.remote("https://mirror.example/pytorch-wheels/cu128", origin="--torch-index-url")
    delivery = plan_delivery(PackageSources(index=PYPI), torch=TorchChannel(source=page, flat=True))
    uv = tomllib.loads(text_of(delivery, "uv.toml"))
    assert uv["find-links"] == ["https://mirror.example/pytorch-wheels/cu128"]
    assert [i["url"] for i in uv["index"]] == ["https://bob:pa55word@pypi.example/simple"]


def test_an_index_of_the_host_that_has_the_torch_wheel_is_named_once() -> None:
    extra = Source.remote("https://download.pytorch.org/whl/cu126", origin="pip.conf")
    sources = PackageSources(index=PYPI, extra_indexes=(extra,))
    delivery = plan_delivery(sources, torch=TorchChannel(source=extra))
    uv = tomllib.loads(text_of(delivery, "uv.toml"))
    assert [i["url"] for i in uv["index"]].count(extra.location) == 1


def test_no_password_shows_or_enters_the_text_of_a_step() -> None:
    other = Source.remote("https://bob:0ther@pypi.example/simple", origin="PIP_INDEX_URL")
    proxy = Setting(value=Secret("http://u:pr0xy@p.example:1"), origin="https_proxy")
    delivery = plan_delivery(PackageSources(index=PYPI, proxies=(("https", proxy),)))
    assert content_digest(delivery.delivery.files) == content_digest(
        plan_delivery(PackageSources(index=other)).delivery.files
    )
    shown = repr(delivery) + str(delivery.summary) + str(delivery.delivery.environ)
    assert "pa55word" not in shown
    assert "pr0xy" not in shown
    assert dict(delivery.build_args)["HTTPS_PROXY"].reveal() == "http://u:pr0xy@p.example:1"
    assert Secret("pa55word") in delivery.secrets


def test_the_text_of_a_step_follows_what_is_offered(links: Source) -> None:
    public = Source.remote("https://pypi.org/simple", origin="default")
    mirror = Source.remote("https://mirror.example/simple", origin="default")
    sources = PackageSources(index=public, find_links=(links,))
    archives = collect_local_archives(["mpmath"], sources, python=PY311, arch="x86_64")
    digests = {
        content_digest(plan.delivery.files)
        for plan in (
            plan_delivery(sources, archives=archives),
            plan_delivery(sources),
            plan_delivery(PackageSources(index=mirror)),
        )
    }
    assert len(digests) == 3


def test_settings_point_at_where_the_recipe_mounts_them() -> None:
    assert MOUNT_POINT == HOST_MOUNT
