"""From an order to an image: what is found, what is built, which base, and what is said of it."""

from __future__ import annotations

import json
import re
import zipfile
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from gpuenv.engine.base_image import BaseImageUnavailableError
from gpuenv.engine.fake import FakeEngine
from gpuenv.engine.protocol import ImageInfo
from gpuenv.errors import UnsupportedCombinationError
from gpuenv.index.host_config import SourceFlags, load_package_sources
from gpuenv.index.simple import SimpleClient
from gpuenv.matrix.load import load_matrix
from gpuenv.provision import ImageOrder, Workshop, find_or_build, order_digest, plan_order
from gpuenv.spec import ImageRequest, MatrixRequest
from gpuenv.versions import PythonVersion

if TYPE_CHECKING:
    from pathlib import Path

    from gpuenv.engine.events import BuildEvent

BOOKWORM = "localhost/gpuenv/base:bookworm"
CPU = ImageOrder(request=MatrixRequest(cuda="cpu"))


@dataclass
class Told:
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def warn(self, text: str) -> None:
        self.notes.append(f"warning: {text}")

    def detail(self, text: str) -> None:
        self.notes.append(f"detail: {text}")


def torch_wheel(folder: Path, python: str, torch: str = "2.13.0") -> None:
    """Write a torch wheel that has what its name and metadata say, and nothing else."""
    folder.mkdir(exist_ok=True)
    cp = f"cp{python.replace('.', '')}"
    path = folder / f"torch-{torch}+cpu-{cp}-{cp}-manylinux_2_28_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(
            f"torch-{torch}+cpu.dist-info/METADATA",
            f"Metadata-Version: 2.1\nName: torch\nVersion: {torch}+cpu\n",
        )


def shop(tmp_path: Path, engine: FakeEngine | None, *pythons: str) -> Workshop:
    """Return a workshop whose only source is a folder with wheels for these Pythons."""
    wheels = tmp_path / "wheels"
    wheels.mkdir(exist_ok=True)
    for python in pythons:
        torch_wheel(wheels, python)
    sources = load_package_sources(
        {"HOME": str(tmp_path)},
        flags=SourceFlags(wheelhouse=(str(wheels),), offline=True),
        cwd=tmp_path,
        root=tmp_path / "root",
        prefix=tmp_path,
    )
    return Workshop(
        matrix=load_matrix(),
        client=SimpleClient(sources),
        tell=Told(),
        engine=engine,
        root=tmp_path / "root",
    )


def never(_: BuildEvent) -> None:
    raise AssertionError("nothing was to be built")


def test_a_home_made_base_decides_the_python(tmp_path: Path) -> None:
    engine = FakeEngine()
    base = engine.add_image(BOOKWORM)
    plan = plan_order(CPU, shop(tmp_path, engine, "3.12", "3.11"))
    row = plan.spec.environment
    assert (str(row.python), row.base_image) == ("3.11", BOOKWORM)
    other = engine.add_image(BOOKWORM)
    assert other.id != base.id
    again = plan_order(CPU, shop(tmp_path, engine, "3.12", "3.11"))
    assert again.digest != plan.digest, "another base is another image"


def test_a_requirement_with_a_digest_is_looked_for_in_folders_as_well(tmp_path: Path) -> None:
    line = f"einops==0.8.2 --hash=sha256:{64 * '0'}"
    order = replace(CPU, image=ImageRequest(requirements=(line,)))
    place = shop(tmp_path, None, "3.12")
    wheel = tmp_path / "wheels" / "einops-0.8.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("einops-0.8.2.dist-info/METADATA", "Name: einops\nVersion: 0.8.2\n")
    plan = plan_order(order, place)
    assert any(file.path.endswith(wheel.name) for file in plan.context.files)
    assert line in plan.context.dockerfile


def test_without_an_engine_a_plan_is_made_all_the_same(tmp_path: Path) -> None:
    plan = plan_order(CPU, shop(tmp_path, None, "3.12"))
    assert plan.spec.environment.base_image == "ubuntu:24.04"
    assert plan.ref == "localhost/gpuenv/torch:2.13.0-cpu-py3.12"


def test_images_that_hold_other_things_have_other_names(tmp_path: Path) -> None:
    place = shop(tmp_path, None, "3.12")

    def ref(**image: Any) -> str:
        return plan_order(replace(CPU, image=ImageRequest(**image)), place).ref

    plain = "localhost/gpuenv/torch:2.13.0-cpu-py3.12"
    assert ref() == plain
    assert ref(features=("jupyter", "ssh")) == f"{plain}-jupyter-ssh"
    assert ref(name="mine") == plain.replace("/torch:", "/mine:")
    more = [
        ref(env=(("A", "1"),)),
        ref(env=(("A", "2"),)),
        ref(companions=()),
        ref(features=("ssh",), companions=()),
    ]
    assert len(set(more)) == len(more)
    assert all(re.fullmatch(re.escape(plain) + r"(-ssh)?-[0-9a-f]{8}", one) for one in more)
    assert more[-1].rpartition("-")[2] == more[-2].rpartition("-")[2], "features are told by name"


def test_planning_changes_nothing_on_the_engine(tmp_path: Path) -> None:
    engine = FakeEngine()
    plan_order(CPU, shop(tmp_path, engine, "3.12"))
    assert engine.images() == ()


def test_a_base_on_a_registry_is_pulled_before_the_build(tmp_path: Path) -> None:
    engine = FakeEngine()
    ubuntu = ImageInfo(id="sha256:" + 64 * "a", tags=(), digests=(), size_bytes=0, labels={})
    engine.registry["ubuntu:24.04"] = ubuntu
    plan = plan_order(CPU, shop(tmp_path, engine, "3.12"), get_base=True)
    assert plan.spec.environment.base_image == "ubuntu:24.04"
    assert engine.image("ubuntu:24.04") is not None


def test_a_base_that_cannot_be_had_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(BaseImageUnavailableError) as caught:
        plan_order(CPU, shop(tmp_path, FakeEngine(), "3.12"), get_base=True)
    assert "ubuntu:24.04" in caught.value.what
    assert "--make-base" in caught.value.fix


def test_a_base_of_the_users_own_is_not_replaced(tmp_path: Path) -> None:
    order = replace(CPU, image=ImageRequest(base="localhost/mine:1"), make_base=True)
    with pytest.raises(BaseImageUnavailableError) as caught:
        plan_order(order, shop(tmp_path, FakeEngine(), "3.12"), get_base=True)
    assert "localhost/mine:1" in caught.value.what
    assert "--base" in caught.value.fix


def test_offline_only_what_lies_here_counts(tmp_path: Path) -> None:
    order = replace(CPU, request=MatrixRequest(cuda="cpu", python=PythonVersion.parse("3.13")))
    with pytest.raises(UnsupportedCombinationError) as caught:
        plan_order(order, shop(tmp_path, None, "3.12"))
    assert "--offline" in caught.value.why


def test_an_image_of_the_same_order_is_found_without_asking_anybody(tmp_path: Path) -> None:
    engine = FakeEngine()
    place = shop(tmp_path, engine)  # not one wheel: resolving would refuse
    engine.add_image(
        "localhost/gpuenv/torch:known",
        labels={
            "org.gpuenv.request-digest": order_digest(CPU, place),
            "org.gpuenv.spec": json.dumps({"environment": {"torch": "2.13.0"}}),
        },
    )
    found = find_or_build(CPU, place, never)
    assert (found.image_ref, found.found) == ("localhost/gpuenv/torch:known", True)
    assert found.spec == {"environment": {"torch": "2.13.0"}}
    named = find_or_build(replace(CPU, tags=("localhost/gpuenv/mine:1",)), place, never)
    assert named.image_ref == "localhost/gpuenv/mine:1"
    assert engine.image("localhost/gpuenv/mine:1") is not None


def test_an_order_that_came_to_a_known_image_asks_nobody_again(tmp_path: Path) -> None:
    engine = FakeEngine()
    engine.add_image(BOOKWORM)
    place = replace(shop(tmp_path, engine, "3.11"), known=tmp_path / "orders")
    plan = plan_order(CPU, place)
    engine.add_image(
        plan.ref, labels={"org.gpuenv.build-digest": plan.digest, "org.gpuenv.spec": "{}"}
    )
    first = find_or_build(CPU, place, never)
    assert first.found
    for wheel in (tmp_path / "wheels").iterdir():
        wheel.unlink()  # resolving would refuse now
    again = find_or_build(CPU, place, never)
    assert (again.image_id, again.found) == (first.image_id, True)
    engine.untag(plan.ref, force=True)
    with pytest.raises(UnsupportedCombinationError):
        find_or_build(CPU, place, never)


@pytest.mark.parametrize("noted", [b"", b"../../etc/passwd", b"\xff", b"sha256:" + b"0" * 64])
def test_a_note_that_names_no_image_is_as_none(tmp_path: Path, noted: bytes) -> None:
    place = replace(shop(tmp_path, FakeEngine()), known=tmp_path / "orders")
    (tmp_path / "orders").mkdir()
    (tmp_path / "orders" / order_digest(CPU, place).rpartition(":")[2]).write_bytes(noted)
    with pytest.raises(UnsupportedCombinationError):
        find_or_build(CPU, place, never)


def test_an_image_without_a_name_was_not_proven_and_is_not_found(tmp_path: Path) -> None:
    engine = FakeEngine()
    place = shop(tmp_path, engine)
    engine.add_image(
        "localhost/gpuenv/torch:x",
        labels={"org.gpuenv.request-digest": order_digest(CPU, place)},
    )
    engine.untag("localhost/gpuenv/torch:x")
    with pytest.raises(UnsupportedCombinationError):
        find_or_build(CPU, place, never)


def test_refresh_asks_again(tmp_path: Path) -> None:
    engine = FakeEngine()
    place = shop(tmp_path, engine)
    engine.add_image(
        "localhost/gpuenv/torch:known",
        labels={"org.gpuenv.request-digest": order_digest(CPU, place)},
    )
    with pytest.raises(UnsupportedCombinationError):
        find_or_build(replace(CPU, refresh=True), place, never)


@pytest.mark.parametrize(
    "other",
    [
        ImageOrder(request=MatrixRequest(cuda="cpu", python=PythonVersion.parse("3.12"))),
        ImageOrder(request=MatrixRequest(cuda="cpu"), image=ImageRequest(pip=("einops",))),
        ImageOrder(request=MatrixRequest(cuda="cpu"), apt_mirror="http://mirror.example/debian"),
    ],
    ids=["python", "pip", "mirror"],
)
def test_another_order_has_another_digest(tmp_path: Path, other: ImageOrder) -> None:
    place = shop(tmp_path, None)
    assert order_digest(other, place) != order_digest(CPU, place)
    assert order_digest(replace(CPU, refresh=True, tags=("a:b",)), place) == order_digest(
        CPU, place
    ), "how it is gone about does not make another image"


def test_another_recipe_makes_another_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = shop(tmp_path, None)
    before = order_digest(CPU, place)
    monkeypatch.setattr("gpuenv.provision.recipe_digest", lambda: "another")
    assert order_digest(CPU, place) != before
