"""The index client against a real server, and each way an index can fail told apart."""

from __future__ import annotations

import io
import json
import socket
import threading
import zipfile
from typing import TYPE_CHECKING, Any

import pytest

from gpuenv.index.failures import (
    IndexRefusedError,
    IndexUnreachableError,
    NotOnIndexError,
    PackageIndexError,
)
from gpuenv.index.links import JSON_TYPE, Link
from gpuenv.index.parallel import run_in_parallel
from gpuenv.index.prepare import prepare_delivery
from gpuenv.index.simple import SimpleClient, bypasses_proxy, fetch_pages
from gpuenv.index.sources import PackageSettingsError, PackageSources, Setting, Source
from gpuenv.index.wheel import BrokenWheelError, RangeFile, read_local_wheel, read_remote_wheel
from gpuenv.index.wheels import ask_for_wheels
from gpuenv.secret import Secret
from gpuenv.spec import WheelKey
from gpuenv.versions import PythonVersion, TorchVersion
from tests.contract.index_server import IndexServer, Reply, write_certificate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TORCH = "torch-2.8.0+cu128-cp311-cp311-manylinux_2_28_x86_64.whl"
ANCHOR = f'<!DOCTYPE html><a href="../files/{TORCH.replace("+", "%2B")}">{TORCH}</a>'.encode()
KEY = WheelKey(
    torch=TorchVersion.parse("2.8.0"),
    variant="cu128",
    python=PythonVersion.parse("3.11"),
    arch="x86_64",
)


@pytest.fixture
def server() -> Iterator[IndexServer]:
    with IndexServer() as running:
        yield running


def source_of(server: IndexServer, path: str = "simple", **options: Any) -> Source:
    return Source.remote(server.url(path, **options), origin="test")


def client_for(source: Source | None, **settings: Any) -> SimpleClient:
    return SimpleClient(PackageSources(index=source, **settings))


def error_of(client: SimpleClient, source: Source) -> PackageIndexError:
    error = client.project_page(source, "torch").error
    assert error is not None
    return error


def test_json_is_asked_for_first_and_html_is_understood(server: IndexServer) -> None:
    file = {"filename": TORCH, "url": f"/files/{TORCH}", "hashes": {"sha256": "aa"}}
    page = json.dumps({"meta": {"api-version": "1.1"}, "files": [file]}).encode()
    server.replies["/simple/torch/"] = Reply(body=page, kind=JSON_TYPE)
    server.replies["/html/torch/"] = Reply(body=ANCHOR)
    source = source_of(server)
    ((link, archive),) = client_for(source).project_page(source, "Torch").files
    assert (link.filename, archive.local_tag, link.sha256) == (TORCH, "cu128", "aa")
    assert server.requests[0][1]["Accept"].startswith(JSON_TYPE)
    html = source_of(server, "html/")
    ((link, _),) = client_for(html).project_page(html, "torch").files
    assert link.url.reveal() == server.url(f"html/files/{TORCH.replace('+', '%2B')}")


def test_a_login_is_sent_to_its_host_and_a_wrong_one_is_told(server: IndexServer) -> None:
    with IndexServer(login="bob:p@ss") as guarded:
        guarded.replies["/simple/torch/"] = Reply(body=ANCHOR)
        good = source_of(guarded, login="bob:p%40ss")
        assert len(client_for(good).project_page(good, "torch").files) == 1
        anonymous = error_of(client_for(None), source_of(guarded))
        assert isinstance(anonymous, IndexRefusedError)
        assert (anonymous.status, "no login was sent" in anonymous.why) == (401, True)
        wrong = error_of(client_for(None), source_of(guarded, login="bob:sesame"))
        assert isinstance(wrong, IndexRefusedError)
        assert (wrong.status, "the login it got" in wrong.why) == (403, True)
        assert "sesame" not in f"{wrong.what}{wrong.why}{wrong.fix}"
        # Elsewhere, the password of this index stays at home.
        server.replies["/x"] = Reply(body=b"x")
        client_for(good).get(server.url("x", host="localhost"), source=good, headers={}).close()
        assert "Authorization" not in server.requests[-1][1]
        guarded.replies["/moved/torch/"] = Reply(
            status=302, headers={"Location": server.url("x", host="localhost")}
        )
        moved = source_of(guarded, "moved", login="bob:p%40ss")
        client_for(moved).project_page(moved, "torch")
        assert server.asked()[-1] == "/x"
        assert "Authorization" not in server.requests[-1][1]


def test_absence_trouble_and_nonsense_are_three_things(server: IndexServer) -> None:
    source = source_of(server)
    assert isinstance(error_of(client_for(source), source), NotOnIndexError)
    server.replies["/simple/torch/"] = Reply(status=500)
    trouble = error_of(client_for(source), source)
    assert isinstance(trouble, IndexUnreachableError)
    assert trouble.cause == "server"
    server.replies["/simple/torch/"] = Reply(body=b"{}", kind="image/png")
    assert "no page of a package index" in error_of(client_for(source), source).what
    server.replies["/simple/torch/"] = Reply(status=418)
    assert "418" in error_of(client_for(source), source).why


def test_each_way_of_not_getting_there_has_its_name(tmp_path: Path) -> None:
    def cause(source: Source, **settings: Any) -> str:
        error = error_of(client_for(source, **settings), source)
        assert isinstance(error, IndexUnreachableError)
        assert error.fix
        return error.cause

    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound and not listening: refuses
        nobody = f"http://127.0.0.1:{closed.getsockname()[1]}/simple"
        assert cause(Source.remote(nobody, origin="test")) == "connection"
        proxy = (("http", Setting(value=Secret(nobody), origin="test")),)
        assert cause(Source.remote("http://a.invalid/s", origin="test"), proxies=proxy) == "proxy"
    assert cause(Source.remote("http://gpuenv.invalid/simple", origin="t")) == "name-resolution"
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(5)
        place = Source.remote(f"http://127.0.0.1:{silent.getsockname()[1]}/s", origin="test")
        assert cause(place, timeout_s=0.05) == "timeout"
    pem = tmp_path / "server.pem"
    write_certificate(pem)
    with IndexServer(certificate=pem) as secure:
        secure.replies["/simple/torch/"] = Reply(body=ANCHOR)
        place = source_of(secure)
        assert cause(place) == "tls"
        known = Setting(value=pem, origin="--ca-bundle")
        assert client_for(place, certificate=known).project_page(place, "torch").error is None
        trusted = (Setting(value=f"127.0.0.1:{secure.port}", origin="pip.conf"),)
        assert client_for(place, trusted_hosts=trusted).project_page(place, "torch").error is None


def test_certificates_that_cannot_be_used_are_named(server: IndexServer, tmp_path: Path) -> None:
    empty = tmp_path / "ca.pem"
    empty.write_text("no certificate")
    setting = Setting(value=empty, origin="PIP_CERT")
    source = source_of(server)
    with pytest.raises(PackageSettingsError, match=r"CA bundle .*ca\.pem.* cannot be used"):
        client_for(source, certificate=setting).project_page(source, "torch")
    with pytest.raises(PackageSettingsError, match=r"client certificate .*ca\.pem"):
        client_for(source, client_certificate=setting).project_page(source, "torch")


def test_a_client_certificate_is_shown_to_the_server(tmp_path: Path) -> None:
    pem = tmp_path / "both.pem"
    write_certificate(pem)
    setting = Setting(value=pem, origin="pip.conf")
    with IndexServer(certificate=pem, client_ca=pem) as strict:
        strict.replies["/simple/torch/"] = Reply(body=ANCHOR)
        source = source_of(strict)
        known = client_for(source, certificate=setting, client_certificate=setting)
        assert known.project_page(source, "torch").error is None
        unknown = client_for(source, certificate=setting)
        assert isinstance(error_of(unknown, source), IndexUnreachableError)


def test_a_proxy_carries_requests_and_no_proxy_keeps_them_off_it(server: IndexServer) -> None:
    server.replies["/simple/torch/"] = Reply(body=ANCHOR)
    through = (("http", Setting(value=Secret(server.url()), origin="http_proxy")),)
    # A proxy is asked with the whole address; ours serves by path, so the name need not exist.
    far = Source.remote("http://gpuenv.invalid/simple", origin="test")
    client_for(far, proxies=through).project_page(far, "torch")
    assert server.asked() == ["http://gpuenv.invalid/simple/torch/"]
    aside = (*through, ("no", Setting(value=Secret(".invalid"), origin="no_proxy")))
    error = error_of(client_for(far, proxies=aside), far)
    assert isinstance(error, IndexUnreachableError)
    assert error.cause == "name-resolution"


@pytest.mark.parametrize(
    ("entry", "bypassed"),
    [
        ("index.corp.example", True),
        (".corp.example", True),
        ("*.corp.example", True),
        ("corp.example:8443", True),
        ("corp.example:443", False),
        ("orp.example", False),
        ("*", True),
        ("", False),
        ("localhost, 10.0.0.0/8", False),
    ],
)
def test_no_proxy_entries_name_hosts_domains_and_ports(entry: str, bypassed: bool) -> None:
    assert bypasses_proxy("https://index.corp.example:8443/simple", entry) is bypassed


def test_no_proxy_entries_name_networks() -> None:
    assert bypasses_proxy("http://10.1.2.3/simple", "10.0.0.0/8")


def test_a_mirror_that_is_one_flat_page_is_found_out(server: IndexServer) -> None:
    server.replies["/wheels/cu128/"] = Reply(body=ANCHOR)
    sources = PackageSources(
        index=None, torch_index=Setting(value=Secret(server.url("wheels")), origin="flag")
    )
    (answer,) = ask_for_wheels([(KEY, "pytorch")], SimpleClient(sources))
    assert (answer.state, answer.flat, answer.filename) == ("available", True, TORCH)
    assert server.asked() == ["/wheels/cu128/torch/", "/wheels/cu128/"]


def test_a_page_of_links_is_read_as_it_is(server: IndexServer) -> None:
    server.replies["/links.html"] = Reply(body=ANCHOR)
    page = source_of(server, "links.html")
    client = client_for(None, find_links=(page,))
    answers = fetch_pages(client, [(page, "torch"), (page, "torch")])
    assert [link.filename for link, _ in answers[page, "torch"].files] == [TORCH]
    assert server.asked() == ["/links.html"]


def test_a_source_that_is_silent_does_not_hold_up_the_others() -> None:
    never = threading.Event()

    def hang() -> int:
        never.wait()
        return 1

    try:
        assert run_in_parallel([hang, lambda: 2], time_limit_s=0.2) == [None, 2]
    finally:
        never.set()


def test_a_fault_in_a_thread_reaches_the_caller() -> None:
    def fail() -> int:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_in_parallel([lambda: 1, fail], time_limit_s=10)


METADATA = """Metadata-Version: 2.1
Name: torch
Version: 2.14.1
Requires-Python: >=3.10
Requires-Dist: filelock
Requires-Dist: cuda-toolkit[cudart,nvrtc]==13.0.3; platform_system == "Linux"
Requires-Dist: nvidia-cudnn-cu13==9.24.0.43; platform_system == "Linux"
Requires-Dist: nvidia-nccl-cu13==2.30.7; platform_system == "Linux"
Requires-Dist: triton~=3.8.0; platform_system == "Linux" and python_version < "3.15"
Requires-Dist: pywin32==300; platform_system == "Windows"
"""
VERSION_PY = """from typing import Optional
__version__ = '2.14.1+cu130'
cuda: Optional[str] = '13.0'
hip: Optional[str] = None
"""
CUDA_INIT = """PYTORCH_RELEASES_CODE_CC: dict[str, dict[str, set[int]]] = {
    "12.6": {"x86_64": {50, 90, 60}, "aarch64": {90, 80}},
    "13.0": {"x86_64": {75, 120}},
}
"""
WHEEL = "torch-2.14.1-cp311-cp311-manylinux_2_28_x86_64.whl"


def big_wheel() -> bytes:
    """Make a wheel of some megabytes, so that reading parts of it shows."""
    flags = b"sm_75 sm_80 sm_90a compute_120"
    noise = bytes(range(1, 255)) * 4000
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("torch/lib/libtorch_cuda.so", noise * 4)
        archive.writestr(
            "torch/lib/libtorch_python.so", noise[:262130] + flags + b"\0sm_70 " + noise
        )
        archive.writestr("torch/version.py", VERSION_PY)
        archive.writestr("torch/cuda/__init__.py", CUDA_INIT)
        archive.writestr("torch-2.14.1.dist-info/METADATA", METADATA)
        archive.writestr("torch/filler", noise * 2)
    return target.getvalue()


def link_to(server: IndexServer, path: str, **options: Any) -> Link:
    return Link(filename=WHEEL, url=Secret(server.url(path)), **options)


def test_a_remote_wheel_is_read_by_its_parts(server: IndexServer, tmp_path: Path) -> None:
    body = big_wheel()
    server.replies["/files/w.whl"] = Reply(body=body)
    source = source_of(server)
    client = client_for(source)
    facts = read_remote_wheel(client, link_to(server, "files/w.whl"), source)
    assert (facts.torch, facts.variant, facts.cuda, facts.arch) == (
        "2.14.1",
        "cu130",
        "13.0",
        "x86_64",
    )
    assert (facts.toolkit, facts.cudnn, facts.nccl) == ("13.0.3", "9.24.0.43", "2.30.7")
    assert facts.triton == "~=3.8.0"
    assert facts.requires_python == ">=3.10"
    assert facts.arch_table == (
        ("x86_64", "12.6", ("sm_50", "sm_60", "sm_90")),
        ("aarch64", "12.6", ("sm_80", "sm_90")),
        ("x86_64", "13.0", ("sm_75", "sm_120")),
    )
    assert facts.arch_list is None
    assert facts.bytes_read == client.bytes_read < len(body) / 2
    assert all("Range" in headers for _, headers in server.requests)
    deep = read_remote_wheel(client, link_to(server, "files/w.whl"), source, deep=True)
    assert deep.arch_list == ("sm_75", "sm_80", "sm_90a", "compute_120")
    assert deep.bytes_read < len(body)
    local = tmp_path / WHEEL
    local.write_bytes(body)
    assert read_local_wheel(local, deep=True).arch_list == deep.arch_list


def test_separate_metadata_is_taken_and_done_without(server: IndexServer) -> None:
    server.replies["/w.whl"] = Reply(body=big_wheel())
    changed = METADATA.replace("2.30.7", "2.30.8").encode()
    server.replies["/w.whl.metadata"] = Reply(body=changed, kind="text/plain")
    source = source_of(server)
    link = link_to(server, "w.whl", has_metadata=True)
    assert read_remote_wheel(client_for(source), link, source).nccl == "2.30.8"
    del server.replies["/w.whl.metadata"]
    assert read_remote_wheel(client_for(source), link, source).nccl == "2.30.7"


def test_a_server_without_ranges_and_a_broken_file_are_named(server: IndexServer) -> None:
    source = source_of(server)
    server.replies["/w.whl"] = Reply(body=big_wheel(), ranges=False)
    with pytest.raises(BrokenWheelError, match="in parts"):
        read_remote_wheel(client_for(source), link_to(server, "w.whl"), source)
    server.replies["/w.whl"] = Reply(body=b"no zip file at all")
    with pytest.raises(BrokenWheelError, match="no torch wheel"):
        read_remote_wheel(client_for(source), link_to(server, "w.whl"), source)
    with pytest.raises(NotOnIndexError):
        read_remote_wheel(client_for(source), link_to(server, "gone.whl"), source)


def test_a_range_file_reads_like_a_file(server: IndexServer) -> None:
    body = bytes(i % 251 for i in range(3_000_000))
    server.replies["/f"] = Reply(body=body)
    source = source_of(server)
    file = RangeFile(client_for(source), link_to(server, "f"), source)
    assert file.size == len(body)
    for start, length in (
        (0, 10),
        (5, 300_000),
        (1_900_000, 200_000),
        (2_999_990, 50),
        (0, 3_000_000),
    ):
        file.seek(start)
        assert file.read(length) == body[start : start + length]
        assert file.tell() == min(start + length, len(body))
    # Every byte came once.
    assert file.bytes_read == len(body)


def test_what_the_index_has_is_not_carried_into_the_build(
    server: IndexServer, tmp_path: Path
) -> None:
    torch = "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl"
    for name in (torch, "numpy-2.0-py3-none-any.whl"):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            project, version = name.split("-")[:2]
            archive.writestr(f"{project}-{version}.dist-info/METADATA", "Requires-Dist: numpy\n")
    server.replies["/simple/numpy/"] = Reply(
        body=b'<html><a href="numpy-2.0-py3-none-any.whl">numpy</a>'
    )
    folder = Source.local(tmp_path, "local-dir", origin="PIP_FIND_LINKS")
    client = client_for(source_of(server), find_links=(folder,))
    planned = prepare_delivery(["torch"], client, python=KEY.python, arch=KEY.arch)
    paths = [file.path for file in planned.delivery.files if file.path.startswith("wheels/")]
    assert paths == [f"wheels/{torch}"]
    # What only the packages on top need travels apart.
    planned = prepare_delivery(
        ["filelock"], client, python=KEY.python, arch=KEY.arch, later=["torch"]
    )
    assert [file.path for file in planned.delivery.files] == ["pip.conf", "uv.toml"]
    assert [file.path for file in planned.delivery.late] == [torch]
    server.replies["/simple/numpy/"] = Reply(status=503)
    planned = prepare_delivery(["torch"], client, python=KEY.python, arch=KEY.arch)
    assert "wheels/numpy-2.0-py3-none-any.whl" in [file.path for file in planned.delivery.files]
