"""Run gpuenv as ``python -m gpuenv``."""

from gpuenv.cli import run

run()
