"""A cold CUDA build, a rebuild and one more package: gpuenv beside a hand-written pip Dockerfile.

Both build the same content on the same base image, each cold in an empty private engine, which is
started and thrown away here. Needs root, dockerd and about 40 GB of room.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import Candidate, command, interleave, machine, require, table, write_section
from typing_extensions import Self

from gpuenv.engine.base_image import make_base_image, plan_base_image
from gpuenv.engine.connect import connect
from gpuenv.host.apt_sources import load_apt_sources

# A row that is the default of PyPI, so that plain pip installs the same.
TORCH = os.environ.get("GPUENV_BENCH_TORCH", "2.10.0")
CUDA = os.environ.get("GPUENV_BENCH_CUDA", "12.8")
PACKAGES = ("jupyterlab", "einops")
GPUENV = str(Path(sys.executable).with_name("gpuenv"))

DOCKERFILE = """\
FROM {base}
COPY ca.crt pip.conf /etc/
ENV PIP_CONFIG_FILE=/etc/pip.conf PATH=/opt/venv/bin:$PATH
RUN apt-get update && apt-get install -y --no-install-recommends \\
    ca-certificates gcc g++ python3 python3-dev python3-venv && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/venv
RUN pip install --no-cache-dir torch=={torch} torchvision numpy {packages}
"""


class PrivateEngine:
    """An engine of our own, empty at the start and gone at the end."""

    def __init__(self, folder: Path) -> None:
        self.env = {"GPUENV_STATE_DIR": str(folder), "GPUENV_ENGINE": "private"}

    def __enter__(self) -> Self:
        command(GPUENV, "engine", "up", "--force-private", env=self.env)()
        status = self.json("engine", "status")
        self.env["DOCKER_HOST"] = str(status["address"])
        return self

    def __exit__(self, *_: object) -> None:
        command(GPUENV, "engine", "down", "--purge", "--yes", env=self.env)()

    def json(self, *arguments: str) -> dict[str, object]:
        """Run gpuenv and return its answer."""
        done = subprocess.run(
            [GPUENV, *arguments, "--json"],
            capture_output=True,
            env={**os.environ, **self.env},
            check=False,
        )
        answer = json.loads(done.stdout)
        if done.returncode:
            raise SystemExit(json.dumps(answer["errors"], indent=2))
        data: dict[str, object] = answer["data"]
        return data


def make_base(engine: PrivateEngine) -> None:
    """Make the base image of both builds from this host's package mirror."""
    with connect(environ={**os.environ, **engine.env}) as opened:
        plan = plan_base_image(
            ref="localhost/gpuenv/base:bookworm",
            distribution="debian",
            suite="bookworm",
            host_sources=load_apt_sources(Path("/")),
        )
        make_base_image(plan, opened, say=print)


def pip_context(folder: Path, base: str, packages: tuple[str, ...]) -> Path:
    """Write what someone writes by hand who uses pip behind the same settings as this host."""
    folder.mkdir(exist_ok=True)
    bundle = os.environ.get("SSL_CERT_FILE", "/etc/ssl/certs/ca-certificates.crt")
    (folder / "ca.crt").write_bytes(Path(bundle).read_bytes())
    (folder / "pip.conf").write_text("[global]\ncert = /etc/ca.crt\n")
    (folder / "Dockerfile").write_text(
        DOCKERFILE.format(base=base, torch=TORCH, packages=" ".join(packages))
    )
    return folder


def layers(engine: PrivateEngine, ref: str) -> str:
    """Return the layers of an image, largest first, as a table."""
    docker = require("docker")
    done = subprocess.run(
        [docker, "history", "--no-trunc", "--format", "{{.Size}}\t{{.CreatedBy}}", ref],
        capture_output=True,
        text=True,
        env={**os.environ, **engine.env},
        check=True,
    )
    rows = []
    for line in done.stdout.splitlines():
        size, _, created = line.partition("\t")
        if size != "0B":
            text = " ".join(created.split()).replace("|", "\\|")
            rows.append(f"| {size} | `{text[:110]}` |")
    return "\n".join(["| size | made by |", "| --- | --- |", *rows])


def main() -> None:
    """Build both ways and write the figures down."""
    docker = require("docker")
    request = ("--torch", TORCH, "--cuda", CUDA, "--python", "3.11")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with PrivateEngine(folder / "a") as engine:
            # The base, so that neither build pays for it.
            make_base(engine)
            build = (GPUENV, "build", *request, "--progress", "quiet")
            pips = [word for package in PACKAGES[:1] for word in ("--pip", package)]
            before = time.perf_counter()
            image = engine.json("build", *request, *pips, "--progress", "quiet")
            cold = time.perf_counter() - before
            before = time.perf_counter()
            engine.json("build", *request, *pips, "--pip", PACKAGES[1], "--progress", "quiet")
            one_more = time.perf_counter() - before
            ref, size = str(image["image_ref"]), int(str(image["size_bytes"]))
            ours = layers(engine, ref)

            context = pip_context(folder / "pip", "localhost/gpuenv/base:bookworm", PACKAGES[:1])
            pip_env = {**engine.env, "DOCKER_BUILDKIT": "1"}
            pip_build = command(docker, "build", "-q", "-t", "by-hand", str(context), env=pip_env)
            before = time.perf_counter()
            pip_build()
            pip_cold = time.perf_counter() - before
            theirs = layers(engine, "by-hand")
            pip_size = int(
                subprocess.run(
                    [docker, "image", "inspect", "-f", "{{.Size}}", "by-hand"],
                    capture_output=True, text=True, env={**os.environ, **pip_env}, check=True,
                ).stdout
            )  # fmt: skip
            again = [
                Candidate(
                    "docker build, nothing changed", pip_build, "DOCKER_BUILDKIT=1 docker build -q"
                ),
                Candidate(
                    "gpuenv build, nothing changed",
                    command(*build, *pips, env=engine.env),
                    "gpuenv build, the same request",
                ),
            ]
            interleave(again, rounds=7)
            pip_context(context, "localhost/gpuenv/base:bookworm", PACKAGES)
            before = time.perf_counter()
            pip_build()
            pip_one_more = time.perf_counter() - before
    rows = [
        "| what | gpuenv | pip Dockerfile | ratio |",
        "| --- | --- | --- | --- |",
        f"| cold build, s | {cold:.0f} | {pip_cold:.0f} | {cold / pip_cold:.2f} |",
        (
            f"| one more package, s | {one_more:.1f} | {pip_one_more:.1f} "
            f"| {one_more / cold:.2f} of the cold build |"
        ),
        f"| image, GB | {size / 1e9:.2f} | {pip_size / 1e9:.2f} | {size / pip_size:.2f} |",
    ]
    body = (
        f"torch {TORCH}, CUDA {CUDA}, torchvision, numpy, {PACKAGES[0]}; {machine()}.\n\n"
        + "\n".join(rows)
        + f"\n\n{table(again, baseline=again[0].name)}\n"
        + f"\nLayers of gpuenv's image:\n\n{ours}\n\nLayers of the other:\n\n{theirs}\n"
    )
    write_section(f"build-{CUDA}", f"Builds, CUDA {CUDA}", body)


if __name__ == "__main__":
    main()
