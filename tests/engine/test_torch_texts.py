"""What real torch says over a stand-in for the driver, and how that is read."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from gpuenv.checks.readings import read
from gpuenv.engine.protocol import BindMount, ContainerSpec
from tests.conftest import missing
from tests.fakes.libraries import build_libcuda, build_libnvidia_ml

if TYPE_CHECKING:
    from gpuenv.engine.protocol import ContainerEngine

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.cuda]

# Import once, then fork for each code: the stand-in reads its answer when it is asked.
SAY = """
import json, os, sys
import torch
for code, driver in json.loads(sys.argv[1]):
    if os.fork() == 0:
        os.environ.update(FAKE_CUINIT=str(code), FAKE_CUDA=str(driver))
        try:
            torch.cuda.init()
            text = "no error"
        except BaseException as error:
            text = "{}: {}".format(type(error).__name__, error)
        print(json.dumps([code, driver, text]), flush=True)
        os._exit(0)
    os.wait()
"""
OLD = 11040
CODES = {
    3: "CUDA driver initialization failed",
    34: "CUDA driver is a stub library",
    46: "busy or unavailable",
    100: "No CUDA GPUs are available",
    101: "invalid device ordinal",
    802: "system not yet initialized",
    803: "unsupported display driver / cuda driver combination",
    804: "forward compatibility was attempted on non supported HW",
    999: "CUDA unknown error",
}


@pytest.fixture(scope="module")
def texts(
    session_engine: ContainerEngine, tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[int, int], str]:
    """Return what torch says for each code, with a new driver and with an old one."""
    images = [
        image
        for image in session_engine.images(labels={"org.gpuenv.torch-variant": None})
        if image.labels["org.gpuenv.torch-variant"].startswith("cu")
    ]
    if not images:
        missing("an image with a CUDA build of torch: gpuenv build --cuda 13.0")
    driver = tmp_path_factory.mktemp("driver")
    build_libcuda(driver)
    build_libnvidia_ml(driver)
    driver.chmod(0o755)
    created = session_engine.create(
        ContainerSpec(
            image=images[0].id,
            entrypoint=("sleep",),
            command=("600",),
            env={"LD_LIBRARY_PATH": "/opt/driver"},
            mounts=(BindMount(source=str(driver), target="/opt/driver", read_only=True),),
        )
    )
    try:
        session_engine.start(created.id)
        asked = [[code, number] for code in CODES for number in (99000, OLD)]
        done = session_engine.exec(
            created.id, ("python", "-c", SAY, json.dumps(asked)), timeout_s=300
        )
        lines = [json.loads(line) for line in done.stdout.decode().splitlines()]
        assert len(lines) == len(asked), done.stderr.decode()[-2000:]
        return {(code, number): text for code, number, text in lines}
    finally:
        session_engine.remove(created.id, force=True)


@pytest.mark.parametrize("code", CODES)
def test_torch_says_its_text_and_it_is_read(texts: dict[tuple[int, int], str], code: int) -> None:
    said = texts[code, 99000]
    assert CODES[code].lower() in said.lower()
    reading = read(said)
    assert reading.suspects


@pytest.mark.parametrize("code", CODES)
def test_an_old_driver_makes_torch_hide_the_code(
    texts: dict[tuple[int, int], str], code: int
) -> None:
    said = texts[code, OLD]
    assert "too old (found version 11040)" in said
    reading = read(said)
    assert "drv.cuda" in reading.suspects
