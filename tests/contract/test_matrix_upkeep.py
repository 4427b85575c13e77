"""``matrix verify`` and ``matrix update`` from the command line to an index and back."""

from __future__ import annotations

import io
import json
import zipfile
from typing import TYPE_CHECKING, Any

import pytest

from gpuenv.cli import main
from gpuenv.errors import UnsupportedCombinationError
from gpuenv.index.simple import SimpleClient
from gpuenv.index.sources import Constraint, PackageSources, Setting, Source
from gpuenv.matrix.document import read_document, write_document
from gpuenv.matrix.load import load_matrix, shipped_matrix_path
from gpuenv.secret import Secret
from gpuenv.sourcing import settle_environment
from gpuenv.spec import HostGpus, MatrixRequest
from gpuenv.versions import CudaVersion, PythonVersion, TorchVersion
from tests.contract.index_server import IndexServer, Reply

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from gpuenv.sourcing import Settled

PYTHONS = ("310", "311", "312", "313", "314")
ARCHES = ("x86_64", "aarch64")


def torch_wheel(version: str, cuda: str, *requires: str) -> bytes:
    """Make the parts of a torch wheel that say what it is."""
    lines = ["Metadata-Version: 2.1", "Name: torch", f"Version: {version}"]
    lines += [f'Requires-Dist: {line}; platform_system == "Linux"' for line in requires]
    target = io.BytesIO()
    variant = "cu" + cuda.replace(".", "")
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr(
            "torch/version.py", f"__version__ = '{version}+{variant}'\ncuda = '{cuda}'\n"
        )
        archive.writestr("torch/lib/libtorch_python.so", b"\0sm_75 sm_90\0")
        archive.writestr(f"torch-{version}.dist-info/METADATA", "\n".join(lines) + "\n\n")
    return target.getvalue()


def serve(server: IndexServer, project: str, files: dict[str, tuple[bytes, str]]) -> None:
    """Put a project's page and its files on the index."""
    entries: list[dict[str, Any]] = []
    for filename, (body, day) in files.items():
        server.replies[f"/files/{filename}"] = Reply(body=body)
        entries.append(
            {
                "filename": filename,
                "url": f"/files/{filename}",
                "hashes": {},
                "upload-time": f"{day}T12:00:00Z",
            }
        )
    page = json.dumps({"meta": {"api-version": "1.1"}, "files": entries}).encode()
    server.replies[f"/simple/{project}/"] = Reply(
        body=page, kind="application/vnd.pypi.simple.v1+json"
    )


def release(version: str, day: str, wheel: bytes) -> dict[str, tuple[bytes, str]]:
    return {
        f"torch-{version}-cp{python}-cp{python}-manylinux_2_28_{arch}.whl": (wheel, day)
        for python in PYTHONS
        for arch in ARCHES
    }


@pytest.fixture
def server() -> Iterator[IndexServer]:
    pins = ("cuda-toolkit[cudart]==13.0.3", "nvidia-cudnn-cu13==9.24.0.43")
    known = torch_wheel("2.14.1", "13.0", *pins, "nvidia-nccl-cu13==2.30.7", "triton~=3.8.0")
    newer = torch_wheel("2.14.2", "13.0", *pins, "nvidia-nccl-cu13==2.30.7", "triton~=3.8.1")
    with IndexServer() as running:
        serve(
            running,
            "torch",
            {**release("2.14.1", "2026-09-30", known), **release("2.14.2", "2026-12-24", newer)},
        )
        yield running


@pytest.fixture
def gpuenv(
    server: IndexServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, dict[str, Any]]]:
    """Run a command against the index alone and return its exit code and JSON answer."""
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("UV_NO_CONFIG", "1")
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_CERT", "PIP_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str) -> tuple[int, dict[str, Any]]:
        indexes = ("--index-url", server.url("simple"), "--torch-index-url", server.url("whl"))
        code = main([*arguments, *indexes, "--json"])
        return code, dict(json.loads(capsys.readouterr().out))

    return run


def test_verify_confirms_and_says_what_it_cannot_prove(
    gpuenv: Callable[..., tuple[int, dict[str, Any]]],
) -> None:
    code, answer = gpuenv("matrix", "verify", "--torch", "2.14.1")
    assert (code, answer["status"]) == (0, "success")
    data = answer["data"]
    assert (data["confirmed"], data["drift"]) == (2, 0)
    assert data["unlisted_releases"] == ["2.14.2"]
    unproven = {row["torch_variant"] for row in data["rows"] if row["status"] == "unproven"}
    assert unproven == {"cu132", "cu126", "cpu"}
    assert 0 < data["bytes_read"] < 100_000


def test_verify_fails_on_drift_and_names_it(
    gpuenv: Callable[..., tuple[int, dict[str, Any]]], tmp_path: Path
) -> None:
    path = tmp_path / "versions.yaml"
    document = read_document(shipped_matrix_path().read_text(), keep_comments=True)
    document.data["releases"]["2.14"]["variants"]["cu130"]["nccl"] = "2.30.6"
    path.write_text(write_document(document))
    code, answer = gpuenv("matrix", "verify", "--torch", "2.14.1", "--matrix", str(path))
    assert (code, answer["exit_code"], answer["status"]) == (1, 1, "partial")
    drift = [row for row in answer["data"]["rows"] if row["status"] == "drift"]
    assert [row["arch"] for row in drift] == ["x86_64", "aarch64"]
    assert drift[0]["differences"] == [{"field": "nccl", "matrix": "2.30.6", "found": "2.30.7"}]


def test_deep_verify_reads_the_architectures(
    gpuenv: Callable[..., tuple[int, dict[str, Any]]],
) -> None:
    code, answer = gpuenv("matrix", "verify", "--torch", "2.14.1", "--deep")
    assert code == 1
    (row,) = (
        row
        for row in answer["data"]["rows"]
        if (row["torch_variant"], row["arch"]) == ("cu130", "x86_64")
    )
    assert [it["field"] for it in row["differences"]] == ["arch_list"]
    assert row["differences"][0]["found"] == "sm_75 sm_90"


def test_update_proposes_and_writes_only_when_told(
    gpuenv: Callable[..., tuple[int, dict[str, Any]]], tmp_path: Path, server: IndexServer
) -> None:
    vision = io.BytesIO()
    with zipfile.ZipFile(vision, "w") as archive:
        archive.writestr("torchvision-0.29.3.dist-info/METADATA", "Requires-Dist: torch==2.14.2\n")
    name = "torchvision-0.29.3-cp311-cp311-manylinux_2_28_x86_64.whl"
    serve(server, "torchvision", {name: (vision.getvalue(), "2026-12-24")})
    path = tmp_path / "versions.yaml"
    before = shipped_matrix_path().read_text()
    path.write_text(before)
    arguments = ("matrix", "update", "--torch", "2.14", "--matrix", str(path))
    code, answer = gpuenv(*arguments)
    assert (code, answer["data"]["written"]) == (0, False)
    assert path.read_text() == before
    code, answer = gpuenv(*arguments, "--write")
    assert (code, answer["data"].get("written"), answer["errors"]) == (0, True, [])
    patch = read_document(path.read_text()).data["releases"]["2.14"]["patches"]["2.14.2"]
    assert patch["released"] == "2026-12-24"
    assert patch["python"] == {"x86_64": ["3.10", "3.14"], "aarch64": ["3.10", "3.14"]}
    assert patch["pypi"] == {"x86_64": "cu130", "aarch64": "cu130"}
    assert (patch["triton"], patch["torchvision"]) == ("~=3.8.1", "0.29.3")
    assert patch["torchaudio"] is None
    assert any("torchaudio" in warning for warning in answer["warnings"])
    # What was written is what the next run finds, and there is nothing left to do.
    code, answer = gpuenv(*arguments)
    assert answer["data"]["changes"] == []


def settle(
    server: IndexServer, torch: str | None, cap: str, *, python: str | None = None
) -> Settled:
    index = Source.remote(server.url("simple"), origin="test")
    sources = PackageSources(
        index=index,
        torch_index=Setting(value=Secret(server.url("whl")), origin="test"),
        constraints=(Constraint(requirement=cap, origin="/etc/caps.txt"),),
    )
    request = MatrixRequest(
        torch=TorchVersion.parse(torch) if torch else None,
        cuda=CudaVersion.parse("13.0"),
        python=PythonVersion.parse(python) if python else None,
    )
    return settle_environment(load_matrix(), request, SimpleClient(sources), host=HostGpus())


def test_a_cap_of_this_host_guides_a_free_choice_and_yields_to_a_request(
    server: IndexServer,
) -> None:
    older = torch_wheel("2.13.0", "13.0")
    newer = torch_wheel("2.14.1", "13.0")
    serve(
        server,
        "torch",
        {**release("2.13.0", "2026-07-08", older), **release("2.14.1", "2026-09-30", newer)},
    )
    free = settle(server, None, "torch<2.14")
    assert (str(free.environment.torch), free.warnings) == ("2.13.0", ())
    assert any("allows only torch<2.14 (/etc/caps.txt)" in line for line in free.reasons)
    assert free.passed_over == ("2.14.1+cu130", "2.14.0+cu130")
    asked = settle(server, "2.14", "torch<2.14")
    assert str(asked.environment.torch) == "2.14.1"
    assert asked.warnings == (
        "torch<2.14 (/etc/caps.txt) is set aside: nothing within it fulfils the request",
    )


def test_a_refusal_suggests_only_what_the_sources_have(server: IndexServer) -> None:
    # 2.12 and 2.14 are nearer to 2.11 in the matrix, and no source has them.
    serve(server, "torch", release("2.13.0", "2026-07-08", torch_wheel("2.13.0", "13.0")))
    with pytest.raises(UnsupportedCombinationError) as caught:
        settle(server, "2.11", "torch<3")
    assert caught.value.what.startswith("no source at hand has a PyTorch wheel for torch 2.11")
    assert caught.value.fix == "try --torch 2.13"
    assert [row["torch"] for row in caught.value.data["nearest"]] == ["2.13.0"]


def test_a_refusal_comes_to_an_end_where_no_suggestion_can_be_had(server: IndexServer) -> None:
    # What is suggested has another Python, and of it no wheel either.
    serve(server, "torch", {})
    with pytest.raises(UnsupportedCombinationError) as caught:
        settle(server, None, "torch<3", python="3.8")
    assert caught.value.what == "no PyTorch wheel fits CUDA 13.0, Python 3.8, x86_64"


def test_an_index_that_cannot_be_asked_is_an_error_and_not_a_pass(
    gpuenv: Callable[..., tuple[int, dict[str, Any]]], server: IndexServer
) -> None:
    server.replies["/simple/torch/"] = Reply(status=403)
    code, answer = gpuenv("matrix", "verify", "--torch", "2.14.1")
    assert code == 5
    assert answer["errors"][0]["slug"] == "index-refused"
