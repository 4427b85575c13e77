"""Files that go into a container before it starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpuenv.engine.protocol import ContainerSpec, PutFile
from tests.engine_fixtures import BASE

if TYPE_CHECKING:
    from gpuenv.engine.protocol import ContainerEngine

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("base_image")]


def test_files_keep_their_modes_and_owners_and_folders_that_are_there_theirs(
    engine: ContainerEngine, run_labels: dict[str, str]
) -> None:
    made = engine.create(
        ContainerSpec(
            image=BASE,
            command=("stat", "-c", "%n %a %u:%g", "/tmp", "/tmp/new", "/tmp/new/deep",
                     "/tmp/new/deep/secret", "/root", "/bin/tool", "/srv"),
            labels=run_labels,
        )
    )  # fmt: skip
    engine.put_files(
        made.id,
        (
            PutFile(path="/tmp/new/deep/secret", content=b"x", mode=0o400, uid=7, gid=8),
            PutFile(path="/root/../bin/tool", content=b"x", mode=0o755),  # a link to usr/bin
            PutFile(path="/srv", content=None, mode=0o770, uid=1, gid=2),
        ),
    )
    engine.put_files(made.id, ())
    engine.start(made.id)
    assert engine.wait(made.id).exit_code == 0
    printed = b"".join(chunk.data for chunk in engine.logs(made.id)).decode().splitlines()
    assert printed == [
        "/tmp 1777 0:0",
        "/tmp/new 755 0:0",
        "/tmp/new/deep 755 0:0",
        "/tmp/new/deep/secret 400 7:8",
        "/root 700 0:0",
        "/bin/tool 755 0:0",
        "/srv 770 1:2",
    ]


def test_a_link_on_the_way_stays_a_link(
    engine: ContainerEngine, run_labels: dict[str, str]
) -> None:
    made = engine.create(
        ContainerSpec(image=BASE, command=("readlink", "/bin", "/lib"), labels=run_labels)
    )
    engine.put_files(made.id, (PutFile(path="/bin/tool", content=b"x", mode=0o755),))
    engine.start(made.id)
    engine.wait(made.id)
    printed = b"".join(chunk.data for chunk in engine.logs(made.id)).decode()
    assert printed == "usr/bin\nusr/lib\n"
