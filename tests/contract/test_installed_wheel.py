"""The wheel as users get it: in a fresh environment, run from a folder that is not ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.network, pytest.mark.slow]

REPOSITORY = Path(__file__).parents[2]


def run(*arguments: str | Path, cwd: Path = Path("/")) -> subprocess.CompletedProcess[str]:
    environ = {k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    done = subprocess.run(
        [str(argument) for argument in arguments],
        capture_output=True, text=True, cwd=cwd, env=environ, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, REPOSITORY)
    (built,) = folder.glob("gpuenv-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fresh")
    venv.create(folder, with_pip=True)
    run(folder / "bin" / "pip", "install", "-q", wheel)
    return folder / "bin" / "gpuenv"


def test_the_wheel_holds_the_images_folder_and_no_tests(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {
        "gpuenv/images/Dockerfile.cuda.j2",
        "gpuenv/images/versions.yaml",
        "gpuenv/images/versions.schema.json",
        "gpuenv/py.typed",
    } <= names
    assert not [name for name in names if name.startswith("tests/")]


def test_it_answers_from_the_root_folder(installed: Path) -> None:
    answer = json.loads(
        run(installed, "matrix", "resolve", "--torch", "2.8", "--cuda", "12.8", "--json").stdout
    )
    assert (answer["data"]["torch"], answer["data"]["torch_variant"]) == ("2.8.0", "cu128")
    dockerfile = run(installed, "render", "--torch", "2.8", "--cuda", "12.8").stdout
    assert dockerfile.startswith("FROM ")
    report = json.loads(run(installed, "doctor", "--level", "static", "--json").stdout)
    assert report["status"] == "success"
    assert "checked" in run(installed, "explain", "host.driver.match").stdout.lower()
