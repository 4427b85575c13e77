"""Which columns gpuenv ps shows on a narrow terminal."""

from __future__ import annotations

import pytest

from gpuenv.commands.life import shown_titles

IMAGE = "torch:2.13.0-cpu-py3.11-jupyter-ssh"
LINES = [
    ("resnet-3f2a", "jupyter", "running", IMAGE, "none", "http://127.0.0.1:8888/lab", "5 min", "-"),
    ("train", "ssh", "running", IMAGE, "none", "gpuenv ssh train", "37 min", "-"),
]
EVERY = ("NAME", "KIND", "STATE", "IMAGE", "GPUS", "WHERE", "AGE", "IDLE")


@pytest.mark.parametrize(
    ("width", "left_out"),
    [(200, set()), (100, set()), (80, {"IMAGE"}), (60, {"IMAGE", "IDLE", "AGE"})],
)
def test_a_narrow_terminal_loses_the_image_first_and_the_address_never(
    width: int, left_out: set[str]
) -> None:
    assert shown_titles(LINES, width) == tuple(t for t in EVERY if t not in left_out)
