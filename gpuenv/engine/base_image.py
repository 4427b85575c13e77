"""Make a base image from the distribution's package mirror where no registry answers.

``debootstrap`` fills a folder, the folder becomes an image of one layer. It needs root on a machine
that has debootstrap; the mirror is the one the host's own apt uses, unless one is named.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from gpuenv import process
from gpuenv.errors import EngineUnavailableError
from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpuenv.engine.protocol import ContainerEngine
    from gpuenv.host.apt_sources import AptSource

_TIMEOUT_S = 1800.0
_CHUNK_BYTES = 1 << 20
# What a fresh root file system holds and no image needs. Documentation, manuals and translations go
# as they do in the distributions' own slim images; licences stay.
_DROPPED = (
    "usr/share/doc/*/[!c]*",
    "usr/share/doc/*/c[!o]*",
    "usr/share/info/*",
    "usr/share/locale/*",
    "usr/share/man/*",
    "var/cache/apt/archives/*.deb",
    "var/cache/apt/*.bin",
    "var/lib/apt/lists/*_*",
    "var/log/*.log",
    "var/log/apt/*",
    "etc/machine-id",
    "etc/resolv.conf",
    "etc/hostname",
)


class BaseImageUnavailableError(EngineUnavailableError):
    """The base image is not local, cannot be pulled and could not be made."""

    slug = "base-image-unavailable"


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseImagePlan:
    """How a base image is made.

    Attributes:
        sources_list: The ``/etc/apt/sources.list`` of the image.
    """

    ref: str
    distribution: str
    suite: str
    mirror: str
    components: tuple[str, ...]
    sources_list: str


_ARCHIVES = {
    "debian": ("http://deb.debian.org/debian", ("main",)),
    "ubuntu": ("http://archive.ubuntu.com/ubuntu", ("main", "universe")),
}


def plan_base_image(
    *,
    ref: str,
    distribution: str,
    suite: str,
    host_sources: tuple[AptSource, ...] = (),
    mirror: str | None = None,
) -> BaseImagePlan:
    """Decide from which mirror a base image is made and what its apt will use.

    Args:
        mirror: Wins over the host's own; the archive's public address is the last resort.
    """
    default, components = _ARCHIVES[distribution]
    if mirror is None:
        # The host's mirror of the same distribution serves every suite of it.
        of_distribution = [
            source.uri
            for source in host_sources
            if source.uri.rstrip("/").endswith(f"/{distribution}")
        ]
        mirror = of_distribution[0] if of_distribution else default
    security = mirror
    if distribution == "debian":
        given = [s.uri for s in host_sources if s.uri.rstrip("/").endswith("/debian-security")]
        security = given[0] if given else "http://deb.debian.org/debian-security"
    parts = " ".join(components)
    lines = [
        f"deb {mirror} {suite} {parts}",
        f"deb {mirror} {suite}-updates {parts}",
        f"deb {security} {suite}-security {parts}",
    ]
    return BaseImagePlan(
        ref=ref,
        distribution=distribution,
        suite=suite,
        mirror=mirror,
        components=components,
        sources_list="\n".join(lines) + "\n",
    )


def make_base_image(
    plan: BaseImagePlan, engine: ContainerEngine, *, say: Callable[[str], None]
) -> str:
    """Run debootstrap and import the result; return the id of the image.

    Raises:
        BaseImageUnavailableError: Not root, no debootstrap, or debootstrap failed.
    """
    if os.geteuid() != 0:
        raise BaseImageUnavailableError(
            f"cannot make the base image {plan.ref}",
            why="debootstrap needs root",
            fix="run this command once with sudo, or load the image on a machine that has it",
        )
    if process.find_program("debootstrap") is None:
        raise BaseImageUnavailableError(
            f"cannot make the base image {plan.ref}",
            why="debootstrap is not installed",
            fix="apt-get install debootstrap",
        )
    workdir = Path(tempfile.mkdtemp(prefix="gpuenv-base-"))
    try:
        root = workdir / "root"
        say(f"making {plan.ref} from {plan.mirror} ({plan.suite})")
        done = process.run_program(
            [
                "debootstrap",
                "--variant=minbase",
                f"--components={','.join(plan.components)}",
                plan.suite,
                str(root),
                plan.mirror,
            ],
            timeout_s=_TIMEOUT_S,
        )
        if done.exit_code != 0:
            tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-15:])
            raise BaseImageUnavailableError(
                f"debootstrap could not make {plan.suite}",
                why=tail,
                fix="name a mirror that answers: --apt-mirror URL",
            )
        for pattern in _DROPPED:
            for path in root.glob(pattern):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()
        (root / "etc/apt/sources.list").write_text(plan.sources_list)
        archive = workdir / "root.tar"
        # One block a record: the tar ends with exactly two zero blocks, as engines like it.
        packed = process.run_program(
            ["tar", "--blocking-factor=1", "--numeric-owner", "-C", str(root), "-cf",
             str(archive), "."],
            timeout_s=_TIMEOUT_S,
        )  # fmt: skip
        if packed.exit_code != 0:
            raise BaseImageUnavailableError(
                f"cannot pack the base image {plan.ref}",
                why=packed.stderr.strip(),
                fix=f"free some space below {workdir.parent}",
            )

        def chunks() -> Iterator[bytes]:
            with archive.open("rb") as file:
                while chunk := file.read(_CHUNK_BYTES):
                    yield chunk

        return engine.import_image(chunks, plan.ref, changes=('CMD ["/bin/bash"]',))
    finally:
        shutil.rmtree(workdir, ignore_errors=True)
