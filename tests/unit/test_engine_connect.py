"""Which engine the user means."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import pytest

from gpuenv.engine import errors as e
from gpuenv.engine.connect import EngineAddress, TlsFiles, find_addresses, record_path

if TYPE_CHECKING:
    from pathlib import Path


def one(target: str | None, environ: dict[str, str]) -> EngineAddress:
    (address,) = find_addresses(target, environ)
    return address


def make_context(home: Path, name: str, host: str, *, tls: bool = False) -> None:
    digest = hashlib.sha256(name.encode()).hexdigest()
    meta = home / ".docker" / "contexts" / "meta" / digest
    meta.mkdir(parents=True)
    endpoint = {"Host": host, "SkipTLSVerify": False}
    (meta / "meta.json").write_text(
        json.dumps({"Name": name, "Metadata": {}, "Endpoints": {"docker": endpoint}})
    )
    if tls:
        folder = home / ".docker" / "contexts" / "tls" / digest / "docker"
        folder.mkdir(parents=True)
        for file in ("ca.pem", "cert.pem", "key.pem"):
            (folder / file).write_text("x")


def test_the_flag_wins_over_every_variable() -> None:
    environ = {"GPUENV_ENGINE": "/b.sock", "DOCKER_HOST": "unix:///c.sock"}
    assert one("/a.sock", environ).url == "unix:///a.sock"
    assert one(None, environ).url == "unix:///b.sock"
    del environ["GPUENV_ENGINE"]
    assert one(None, environ) == EngineAddress(url="unix:///c.sock", found_via="DOCKER_HOST")


def test_what_decides_where_the_flag_says_nothing(tmp_path: Path) -> None:
    make_context(tmp_path, "work", "ssh://context")
    config = tmp_path / ".docker" / "config.json"
    config.write_text('{"currentContext": "work"}')
    settled = ("ssh://file", "gpuenv.toml: host")
    environ = {
        "HOME": str(tmp_path),
        "GPUENV_ENGINE": "ssh://engine",
        "GPUENV_HOST": "ssh://host",
        "DOCKER_HOST": "ssh://docker",
        "DOCKER_CONTEXT": "work",
    }
    found = []
    for name in (*list(environ)[1:], ""):
        (address,) = find_addresses(None, environ, settled=settled)
        found.append((address.url, address.found_via))
        environ.pop(name, None)
    assert found == [
        ("ssh://engine", "GPUENV_ENGINE"),
        ("ssh://host", "GPUENV_HOST"),
        ("ssh://docker", "DOCKER_HOST"),
        ("ssh://context", "context work"),
        ("ssh://file", "gpuenv.toml: host"),
    ]
    assert find_addresses(None, environ)[0].url == "ssh://context"


def test_without_a_wish_the_usual_sockets_are_tried_in_order(tmp_path: Path) -> None:
    environ = {
        "XDG_RUNTIME_DIR": "/run/user/7",
        "HOME": str(tmp_path),
        "GPUENV_STATE_DIR": str(tmp_path / "state"),
    }
    record = record_path(environ)
    record.parent.mkdir(parents=True)
    record.write_text('{"socket": "/run/gpuenv/1/docker.sock"}')
    assert [address.url for address in find_addresses(None, environ)] == [
        "unix:///var/run/docker.sock",
        "unix:///run/user/7/docker.sock",
        f"unix://{tmp_path}/.docker/run/docker.sock",
        "unix:///run/gpuenv/1/docker.sock",
    ]
    assert one("private", environ).url == "unix:///run/gpuenv/1/docker.sock"


def test_the_chosen_docker_context_is_read_without_docker(tmp_path: Path) -> None:
    make_context(tmp_path, "work", "tcp://192.0.2.7:2376", tls=True)
    (tmp_path / ".docker" / "config.json").write_text('{"currentContext": "work"}')
    environ = {"HOME": str(tmp_path)}
    address = one(None, environ)
    assert (address.url, address.found_via) == ("tcp://192.0.2.7:2376", "context work")
    assert address.tls is not None
    assert address.tls.verify
    assert address.tls.key is not None
    assert address.tls.key.name == "key.pem"
    assert one("work", {"HOME": str(tmp_path), "DOCKER_HOST": "unix:///x"}) == address
    first = find_addresses(None, {**environ, "DOCKER_CONTEXT": "default"})[0]
    assert first.url == "unix:///var/run/docker.sock"


def test_an_unknown_context_lists_the_known_ones(tmp_path: Path) -> None:
    make_context(tmp_path, "work", "unix:///w.sock")
    with pytest.raises(e.EngineContextError, match="wrk") as caught:
        find_addresses("wrk", {"HOME": str(tmp_path)})
    assert "work" in caught.value.why


@pytest.mark.parametrize("content", ["{", "{}", '{"Endpoints": {"docker": {}}}', "[]"])
def test_a_broken_context_is_told_with_its_file(tmp_path: Path, content: str) -> None:
    make_context(tmp_path, "work", "unix:///w.sock")
    (meta,) = (tmp_path / ".docker" / "contexts" / "meta").glob("*/meta.json")
    meta.write_text(content)
    with pytest.raises(e.EngineContextError) as caught:
        find_addresses("work", {"HOME": str(tmp_path)})
    assert str(meta) in caught.value.why


def test_a_broken_docker_configuration_is_told(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{nonsense")
    with pytest.raises(e.DockerConfigError, match=r"config\.json"):
        find_addresses(None, {"DOCKER_CONFIG": str(tmp_path)})


@pytest.mark.parametrize(
    "url",
    [
        "npipe:////./pipe/x",
        "fd://",
        "unix://relative",
        "tcp://",
        "tcp://h:99999",
        "://",
    ],
)
def test_an_address_of_no_use_is_told_by_its_origin(url: str) -> None:
    with pytest.raises(e.EngineAddressError, match="DOCKER_HOST"):
        find_addresses(None, {"DOCKER_HOST": url})


@pytest.mark.parametrize(
    ("url", "clean"),
    [
        ("tcp://host", "tcp://host:2375"),
        ("https://host:2376", "tcp://host:2376"),
        ("tcp://[::1]:5", "tcp://[::1]:5"),
        ("ssh://me@host", "ssh://me@host"),
    ],
)
def test_addresses_are_brought_into_one_form(url: str, clean: str) -> None:
    assert one(url, {}).url == clean


def test_tls_follows_dockers_variables(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("x")
    environ = {
        "DOCKER_HOST": "tcp://h:2376",
        "DOCKER_TLS_VERIFY": "1",
        "DOCKER_CERT_PATH": str(tmp_path),
    }
    assert one(None, environ).tls == TlsFiles(ca=tmp_path / "ca.pem")
    assert one(None, {"DOCKER_HOST": "tcp://h:2375"}).tls is None


def test_a_docker_configuration_that_holds_no_object_is_told(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[]", encoding="utf-8")
    with pytest.raises(e.DockerConfigError, match=r"config\.json cannot be used"):
        find_addresses(None, {"DOCKER_CONFIG": str(tmp_path)})
