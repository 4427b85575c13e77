"""Whose the files are: each kind of caller, against real images and a real engine."""

from __future__ import annotations

import grp
import os
import pwd
import stat
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpuenv.containers.facts import Caller, probe_folder_owner
from gpuenv.containers.identity import new_session
from gpuenv.containers.lifecycle import start_planned
from gpuenv.containers.mounts import Workspace
from gpuenv.containers.plan import ContainerWish, LaunchFacts, plan_container
from gpuenv.engine.archive import Member, tar_bytes
from gpuenv.engine.events import build_image
from gpuenv.engine.protocol import BuildRequest
from tests.conftest import REPOSITORY, missing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpuenv.engine.protocol import ContainerEngine, ContainerInfo
    from tests.launch_fixtures import Desk

pytestmark = pytest.mark.engine

STRANGER, SHARED = 43210, 43299


@pytest.fixture(autouse=True)
def _as_root() -> None:
    if os.geteuid() != 0:
        missing("root, to make folders of other users")


@pytest.fixture
def start(
    desk: Desk, engine: ContainerEngine, no_new_volumes: None
) -> Iterator[Callable[..., ContainerInfo]]:
    """Return a function that starts a container for a caller and lets it wait."""
    del no_new_volumes
    started: list[str] = []

    def run(image: str, caller: Caller, *, caches: bool = True) -> ContainerInfo:
        info = engine.image(image)
        assert info is not None
        plan = plan_container(
            ContainerWish(
                image=image,
                name=desk.name(),
                kind="run",
                workspace=Workspace(source=str(desk.workspace)),
                caches=caches,
            ),
            LaunchFacts(
                caller=caller,
                capabilities=engine.capabilities,
                image=info,
                session=new_session(),
                now=datetime.now(timezone.utc),
                workspace_owner=probe_folder_owner(desk.workspace),
            ),
        ).adding(entrypoint=(), command=("sleep", "300"))
        container = start_planned(engine, plan, on_note=lambda _: None)
        started.append(container.id)
        return container

    yield run
    for container in started:
        engine.remove(container, force=True)


def ask(engine: ContainerEngine, container: ContainerInfo, script: str) -> str:
    done = engine.exec(container.id, ("sh", "-ec", script))
    assert done.exit_code == 0, done.stderr.decode()
    return done.stdout.decode().strip()


@pytest.fixture
def image_with_uid_1000(
    engine: ContainerEngine, base_image: str, run_labels: dict[str, str]
) -> str:
    """Return an image whose uid 1000 is somebody else, as in Ubuntu 24.04."""
    text = f"FROM {base_image}\nRUN useradd --uid 1000 --create-home ubuntu\nUSER ubuntu\n"
    ref = "localhost/gpuenv/launch-users:1000"
    context = tar_bytes([Member(path="Dockerfile", content=text.encode())])
    build_image(engine, BuildRequest(context=context, tags=(ref,), labels=run_labels))
    return ref


@pytest.mark.parametrize("uid_gid", [(STRANGER, STRANGER), (1000, 1000), (1000, 100)])
def test_files_of_an_ordinary_caller_are_theirs_whatever_the_image_knows(
    start: Callable[..., ContainerInfo],
    engine: ContainerEngine,
    desk: Desk,
    image_with_uid_1000: str,
    uid_gid: tuple[int, int],
) -> None:
    os.chown(desk.workspace, *uid_gid)
    container = start(image_with_uid_1000, Caller(uid=uid_gid[0], gid=uid_gid[1], login="alice"))
    assert ask(engine, container, "id -un; id -u; id -g") == f"dev\n{uid_gid[0]}\n{uid_gid[1]}"
    assert ask(engine, container, "getent passwd $(id -u)").split(":")[5] == "/home/dev"
    ask(engine, container, "echo x > made; mkdir -p folder/below; echo y > ~/at-home")
    for path in (desk.workspace / "made", desk.workspace / "folder" / "below"):
        assert (path.stat().st_uid, path.stat().st_gid) == uid_gid
    assert ask(engine, container, "grep ^ubuntu: /etc/passwd | cut -d: -f3") == "1000"


def test_caches_are_writable_from_the_first_start_and_outlive_the_container(
    start: Callable[..., ContainerInfo],
    engine: ContainerEngine,
    desk: Desk,
    base_image: str,
) -> None:
    os.chown(desk.workspace, STRANGER, STRANGER)
    caller = Caller(uid=STRANGER, gid=STRANGER, login="alice")
    first = start(base_image, caller)
    ask(engine, first, "for c in ~/.cache/*; do echo kept > $c/file; done; ls ~/.cache | wc -l")
    engine.remove(first.id, force=True)
    second = start(base_image, caller)
    assert ask(engine, second, "cat ~/.cache/pip/file ~/.cache/huggingface/file") == "kept\nkept"


def test_the_caches_of_two_users_are_apart(
    start: Callable[..., ContainerInfo], engine: ContainerEngine, base_image: str
) -> None:
    first = start(base_image, Caller(uid=STRANGER, gid=STRANGER, login="alice"))
    ask(engine, first, "echo secret > ~/.cache/pip/file")
    second = start(base_image, Caller(uid=STRANGER + 1, gid=STRANGER, login="bob"))
    assert ask(engine, second, "ls ~/.cache/pip") == ""


def test_an_image_of_ours_has_its_home_and_environment_open_to_any_caller(
    start: Callable[..., ContainerInfo], engine: ContainerEngine, desk: Desk, jupyter_image: str
) -> None:
    os.chown(desk.workspace, STRANGER, STRANGER)
    container = start(jupyter_image, Caller(uid=STRANGER, gid=STRANGER, login="alice"))
    assert ask(engine, container, "touch ~/x ~/.cache/torch/y && python -c 'print(6*7)'") == "42"
    # pip can add a package to the environment, which belongs to group 0.
    assert (
        ask(
            engine,
            container,
            "touch $(python -c 'import site; print(site.getsitepackages()[0])')/z && echo ok",
        )
        == "ok"
    )


def test_root_in_roots_workspace_makes_roots_files_without_any_capability(
    start: Callable[..., ContainerInfo], engine: ContainerEngine, desk: Desk, base_image: str
) -> None:
    container = start(base_image, Caller(uid=0, gid=0, login="root"))
    assert ask(engine, container, "id -un; echo x > made; grep CapEff /proc/self/status") == (
        "dev\nCapEff:\t0000000000000000"
    )
    assert (desk.workspace / "made").stat().st_uid == 0
    bounds = ask(engine, container, "grep -E 'CapBnd|NoNewPrivs' /proc/self/status")
    assert bounds.split() == ["CapBnd:", "0000000000000000", "NoNewPrivs:", "1"]


def test_root_in_somebodys_workspace_makes_files_of_that_person(
    start: Callable[..., ContainerInfo], engine: ContainerEngine, desk: Desk, base_image: str
) -> None:
    os.chown(desk.workspace, STRANGER, SHARED)
    container = start(base_image, Caller(uid=0, gid=0, login="root"))
    ask(engine, container, "echo x > made")
    made = (desk.workspace / "made").stat()
    assert (made.st_uid, made.st_gid) == (STRANGER, SHARED)


def test_root_behind_sudo_makes_files_of_who_called(
    start: Callable[..., ContainerInfo], engine: ContainerEngine, desk: Desk, base_image: str
) -> None:
    desk.workspace.chmod(0o777)
    container = start(
        base_image,
        Caller(uid=0, gid=0, login="root", sudo_uid=STRANGER, sudo_gid=STRANGER),
    )
    ask(engine, container, "echo x > made")
    assert (desk.workspace / "made").stat().st_uid == STRANGER


def test_a_group_shared_with_others_may_write_and_keeps_the_group(
    start: Callable[..., ContainerInfo], engine: ContainerEngine, desk: Desk, base_image: str
) -> None:
    os.chown(desk.workspace, 0, SHARED)
    desk.workspace.chmod(0o2775)
    caller = Caller(uid=STRANGER, gid=STRANGER, login="alice", groups=(STRANGER, SHARED))
    container = start(base_image, caller)
    ask(engine, container, "umask 002; echo x > made; id -Gn > groups 2> complaints")
    made = (desk.workspace / "made").stat()
    assert (made.st_uid, made.st_gid) == (STRANGER, SHARED)
    assert made.st_mode & stat.S_IWGRP
    assert (desk.workspace / "complaints").read_text() == ""


def test_the_command_itself_run_by_another_user(desk: Desk, base_image: str) -> None:
    try:
        docker = grp.getgrnam("docker").gr_gid
        nobody = pwd.getpwnam("nobody")
    except KeyError:
        missing("a docker group and an account without rights")
    python = python_for_everybody()
    for path in (desk.root, desk.root / "work", desk.root / "home"):
        os.chown(path, nobody.pw_uid, nobody.pw_gid)
    command = desk.command(
        "run", base_image, "--no-caches", "--", "sh", "-c", "id -u; echo x > made"
    )
    packages = [path for path in sys.path if path.endswith("site-packages")]
    done = subprocess.run(
        [python, *command[1:]],
        cwd=desk.workspace,
        env={**desk.environ, "PYTHONPATH": os.pathsep.join((str(REPOSITORY), *packages))},
        user=nobody.pw_uid,
        group=nobody.pw_gid,
        extra_groups=[docker],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{nobody.pw_uid}\n"
    assert (desk.workspace / "made").stat().st_uid == nobody.pw_uid


def python_for_everybody() -> str:
    """Return an interpreter of our version that a user without rights can start."""

    def usable(candidate: str) -> bool:
        path = Path(candidate).resolve()
        places = (path, *path.parents)
        return path.exists() and all(place.stat().st_mode & stat.S_IXOTH for place in places)

    system = f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    found = next(filter(usable, (sys.executable, system)), None)
    if found is None:
        missing("a Python that other users may run")
    return found
