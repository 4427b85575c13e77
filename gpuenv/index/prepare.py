"""Everything a build needs of this host's package sources, in one call.

:func:`prepare_delivery` reads local folders and asks the remote indexes what they have; what it
returns is decided by the pure :func:`~gpuenv.index.delivery.plan_delivery`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuenv.index.delivery import plan_delivery
from gpuenv.index.local import collect_local_archives
from gpuenv.index.parallel import Deadline
from gpuenv.index.simple import fetch_pages

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpuenv.index.delivery import SourceDelivery, TorchChannel
    from gpuenv.index.simple import SimpleClient
    from gpuenv.spec import Arch
    from gpuenv.versions import PythonVersion


def prepare_delivery(
    requirements: Sequence[str],
    client: SimpleClient,
    *,
    python: PythonVersion,
    arch: Arch,
    torch: TorchChannel | None = None,
    time_limit_s: float = 20.0,
) -> SourceDelivery:
    """Choose the local archives that a build needs, and plan how it gets its sources.

    An archive that a remote index has as well is not copied into the build, unless its folder was
    named by ``--wheelhouse``. Where an index does not answer, what lies here is copied.

    Args:
        requirements: What will be installed: torch and its companions as the recipe names them,
            then the user's own.
        client: Asks the remote indexes; its sources are delivered.
        python: The image's Python.
        arch: The image's machine.
        torch: The PyTorch index the row's wheel comes from, if it does.
        time_limit_s: For asking all remote indexes together.
    """
    sources = client.sources
    if not sources.local:
        return plan_delivery(sources, torch=torch)
    deadline = Deadline(time_limit_s)

    def elsewhere(projects: frozenset[str]) -> dict[str, frozenset[str]]:
        return remote_files(client, projects, time_limit_s=deadline.left_s)

    archives = collect_local_archives(
        requirements, sources, python=python, arch=arch, elsewhere=elsewhere
    )
    return plan_delivery(sources, archives=archives, torch=torch)


def remote_files(
    client: SimpleClient, projects: Iterable[str], *, time_limit_s: float = 20.0
) -> dict[str, frozenset[str]]:
    """Return the file names that remote sources offer, by project; silence counts as nothing."""
    names = sorted(set(projects))
    pages = fetch_pages(
        client,
        [(source, name) for source in client.sources.remote for name in names],
        time_limit_s=time_limit_s,
    )
    return {
        name: frozenset(
            link.filename
            for (_, project), page in pages.items()
            if project == name
            for link, _ in page.files
        )
        for name in names
    }
