"""Which mirror a home-made base image comes from, and what its own apt will use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpuenv.engine.base_image import plan_base_image
from gpuenv.host.apt_sources import AptSource, load_apt_sources

if TYPE_CHECKING:
    from pathlib import Path

DEB822 = """\
# a comment
Types: deb deb-src
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main
 contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main

Enabled: no
Types: deb
URIs: http://off.example/debian
Suites: sid
Components: main
"""


@pytest.fixture
def etc_apt(tmp_path: Path) -> Path:
    parts = tmp_path / "etc" / "apt" / "sources.list.d"
    parts.mkdir(parents=True)
    return tmp_path


def test_deb822_stanzas_give_one_source_a_suite(etc_apt: Path) -> None:
    (etc_apt / "etc/apt/sources.list.d/debian.sources").write_text(DEB822)
    sources = load_apt_sources(etc_apt)
    assert [(s.uri, s.suite) for s in sources] == [
        ("http://mirror.example/debian", "bookworm"),
        ("http://mirror.example/debian", "bookworm-updates"),
        ("http://mirror.example/debian-security", "bookworm-security"),
    ]
    assert sources[0].components == ("main", "contrib")


def test_one_line_form_with_options_and_comments(etc_apt: Path) -> None:
    (etc_apt / "etc/apt/sources.list").write_text(
        "# deb http://old.example/debian buster main\n"
        "deb [arch=amd64 signed-by=/k.gpg] http://m.example/debian bookworm main # here\n"
        "deb-src http://m.example/debian bookworm main\n"
    )
    assert load_apt_sources(etc_apt) == (
        AptSource(uri="http://m.example/debian", suite="bookworm", components=("main",)),
    )


def test_no_apt_means_no_sources(tmp_path: Path) -> None:
    assert load_apt_sources(tmp_path) == ()


def _plan(*uris: str, distribution: str = "debian", mirror: str | None = None) -> str:
    plan = plan_base_image(
        ref="localhost/gpuenv/base:x",
        distribution=distribution,
        suite="trixie",
        host_sources=tuple(
            AptSource(uri=uri, suite="bookworm", components=("main",)) for uri in uris
        ),
        mirror=mirror,
    )
    return plan.sources_list


def test_the_hosts_mirror_of_that_distribution_serves_the_other_suite_too() -> None:
    assert _plan("http://other.example/apt", "http://m.example/debian") == (
        "deb http://m.example/debian trixie main\n"
        "deb http://m.example/debian trixie-updates main\n"
        "deb http://deb.debian.org/debian-security trixie-security main\n"
    )


def test_an_ubuntu_base_on_a_debian_host_uses_the_public_archive() -> None:
    assert _plan("http://m.example/debian", distribution="ubuntu").startswith(
        "deb http://archive.ubuntu.com/ubuntu trixie main universe\n"
    )


def test_a_named_mirror_wins() -> None:
    text = _plan("http://m.example/debian", mirror="http://named.example/debian")
    assert "deb http://named.example/debian trixie main\n" in text
