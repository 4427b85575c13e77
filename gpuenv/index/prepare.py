"""Everything a build needs of this host's package sources, in one call.

:func:`prepare_delivery` reads local folders and asks the remote indexes what they have; what it
returns is decided by the pure :func:`~gpuenv.index.delivery.plan_delivery`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from gpuenv.index.delivery import plan_delivery
from gpuenv.index.local import collect_local_archives
from gpuenv.index.parallel import Deadline, run_in_parallel

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuenv.index.delivery import SourceDelivery, TorchChannel
    from gpuenv.index.local import LocalArchive
    from gpuenv.index.simple import SimpleClient
    from gpuenv.spec import Arch
    from gpuenv.versions import PythonVersion


def prepare_delivery(
    requirements: Sequence[str],
    client: SimpleClient,
    *,
    python: PythonVersion,
    arch: Arch,
    later: Sequence[str] = (),
    torch: TorchChannel | None = None,
    time_limit_s: float = 20.0,
) -> SourceDelivery:
    """Choose the local archives that a build needs, and plan how it gets its sources.

    An archive that a remote index has as well is not copied into the build, unless its folder was
    named by ``--wheelhouse``. Where an index does not answer, what lies here is copied.

    Args:
        requirements: What is installed first: torch and its companions as the recipe names them,
            and the installer.
        client: Asks the remote indexes; its sources are delivered.
        python: The image's Python.
        arch: The image's machine.
        later: What is installed on top. What only this needs is delivered apart, so that a change
            of it leaves the layers of torch alone.
        torch: The PyTorch index the row's wheel comes from, if it does.
        time_limit_s: For asking all remote indexes together.
    """
    sources = client.sources
    if not sources.local:
        return plan_delivery(sources, torch=torch)
    deadline = Deadline(time_limit_s)
    answers: dict[str, bool] = {}

    def elsewhere(files: Mapping[str, str]) -> frozenset[str]:
        unknown = {project: name for project, name in files.items() if name not in answers}
        offered = offered_remotely(client, unknown, time_limit_s=deadline.left_s)
        answers.update({name: project in offered for project, name in unknown.items()})
        return frozenset(project for project, name in files.items() if answers[name])

    def collect(wanted: Sequence[str]) -> tuple[LocalArchive, ...]:
        return collect_local_archives(
            wanted, sources, python=python, arch=arch, elsewhere=elsewhere
        )

    archives = collect(requirements)
    late: tuple[LocalArchive, ...] = ()
    if later:
        late = tuple(it for it in collect((*requirements, *later)) if it not in archives)
    return plan_delivery(sources, archives=archives, late=late, torch=torch)


def offered_remotely(
    client: SimpleClient, files: Mapping[str, str], *, time_limit_s: float = 20.0
) -> frozenset[str]:
    """Return the projects whose file a remote source has too; silence counts as no.

    Args:
        client: Asks them, all at once.
        files: Project to file name.
        time_limit_s: For all requests together.
    """
    questions = [
        (source, project, filename)
        for source in client.sources.remote
        for project, filename in files.items()
    ]
    answers = run_in_parallel(
        [partial(client.offers, *question) for question in questions], time_limit_s=time_limit_s
    )
    return frozenset(
        project for (_, project, _), yes in zip(questions, answers, strict=True) if yes
    )
