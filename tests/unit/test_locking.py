"""Making a lock: what stays, what is read from the resolver, and what is left on the engine."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from gpuenv.engine.fake import FakeEngine
from gpuenv.engine.fake_programs import Ended
from gpuenv.engine.protocol import ImageInfo
from gpuenv.errors import BuildFailedError, ConfigurationError, EngineUnavailableError
from gpuenv.index.host_config import SourceFlags, load_package_sources
from gpuenv.index.simple import SimpleClient
from gpuenv.lockfile import LockedBase, LockUnavailableError, record_request, render_lock
from gpuenv.locking import Upgrade, keep_row, locked_base, narrow_request, resolve_lock
from gpuenv.provision import ImageOrder, Workshop, find_or_build, order_digest, plan_order
from gpuenv.spec import ImageRequest, MatrixRequest
from gpuenv.versions import TorchVersion
from tests.lock_samples import HOME_MADE, asked, cpu_lock, cuda_lock, matrix, package
from tests.unit.test_provision import BOOKWORM, Told, torch_wheel

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from gpuenv.engine.events import BuildEvent
    from gpuenv.lockfile import Lock

CPU = ImageOrder(request=MatrixRequest(cuda="cpu"), image=ImageRequest(pip=("einops",)))
ZEROS = 64 * "0"


def entry(name: str, version: str, *, url: str = "", kind: str = "wheels") -> str:
    """Write a package as uv writes it into a pylock.toml."""
    file = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    url = url or f"https://files.example.org/{file}"
    digest = hashlib.sha256(name.encode()).hexdigest()
    source = f'{{ url = "{url}", hashes = {{ sha256 = "{digest}" }} }}'
    value = f"[{source}]" if kind == "wheels" else source
    return f'[[packages]]\nname = "{name}"\nversion = "{version}"\n{kind} = {value}\n'


TORCH_URL = (
    "file:///run/gpuenv/host/wheels/torch-2.13.0%2Bcpu-cp311-cp311-manylinux_2_28_x86_64.whl"
)
RESOLVED = {
    "/pylock.all.toml": 'lock-version = "1.0"\n'
    + entry("torch", "2.13.0+cpu", url=TORCH_URL)
    + entry("numpy", "2.4.6")
    + entry("einops", "0.8.2"),
    "/pylock.installer.toml": 'lock-version = "1.0"\n' + entry("uv", "0.13.9"),
    "/torch.txt": "numpy==2.4.6\ntorch==2.13.0+cpu\n",
}


@dataclass
class Resolver(FakeEngine):
    """An engine whose containers hold what the resolver would have written."""

    files: Mapping[str, str] = field(default_factory=lambda: RESOLVED)

    def __post_init__(self) -> None:
        super().__init__()
        self.programs["sh"] = lambda _: Ended(exit_code=0)

    def read_file(self, container: str, path: str) -> bytes | None:
        super().read_file(container, path)
        text = self.files.get(path)
        return None if text is None else text.encode()

    @property
    def dockerfile(self) -> str:
        """What was built last."""
        context: Any = self.build_requests[-1].context
        with tarfile.open(fileobj=io.BytesIO(b"".join(context()))) as tar:
            file = tar.extractfile("Dockerfile")
            assert file is not None
            return file.read().decode()


def shop(tmp_path: Path, engine: FakeEngine | None, **flags: Any) -> Workshop:
    """Return a workshop whose only source is a folder with a wheel of torch."""
    wheels = tmp_path / "wheels"
    if not wheels.exists():
        torch_wheel(wheels, "3.11")
    sources = load_package_sources(
        {"HOME": str(tmp_path)},
        flags=SourceFlags(wheelhouse=(str(wheels),), offline=True, **flags),
        cwd=tmp_path,
        root=tmp_path / "root",
        prefix=tmp_path,
    )
    return Workshop(
        matrix=matrix(),
        client=SimpleClient(sources),
        tell=Told(),
        engine=engine,
        root=tmp_path / "root",
    )


def ignore(_: BuildEvent) -> None:
    """Take an event and do nothing."""


def make(
    tmp_path: Path, *, order: ImageOrder = CPU, engine: Resolver | None = None, **how: Any
) -> tuple[Lock, Resolver]:
    """Resolve an order on an engine that has the base image."""
    if engine is None:
        engine = Resolver()
        engine.add_image(BOOKWORM)
    return resolve_lock(order, shop(tmp_path, engine), ignore, **how), engine


def test_a_lock_holds_the_row_the_base_and_every_file(tmp_path: Path) -> None:
    lock, engine = make(tmp_path)
    base = engine.image(BOOKWORM)
    assert base is not None
    assert lock.base == LockedBase(image=BOOKWORM, id=base.id)
    assert str(lock.spec.environment.torch) == "2.13.0"
    assert [(it.name, it.version, it.step) for it in lock.packages] == [
        ("uv", "0.13.9", "installer"),
        ("numpy", "2.4.6", "torch"),
        ("torch", "2.13.0+cpu", "torch"),
        ("einops", "0.8.2", "packages"),
    ]
    assert dict(lock.request)["cuda"] == ("cpu",)


def test_a_file_of_this_host_is_digested_here(tmp_path: Path) -> None:
    lock, _ = make(tmp_path)
    torch = next(it for it in lock.packages if it.name == "torch")
    path = tmp_path / "wheels" / torch.file
    assert torch.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert "/run/gpuenv" not in render_lock(lock)


def test_nothing_is_left_on_the_engine(tmp_path: Path) -> None:
    _, engine = make(tmp_path)
    assert [image.tags for image in engine.images()] == [(BOOKWORM,)]
    assert engine.containers() == ()


def test_nothing_is_left_on_the_engine_when_what_it_wrote_cannot_be_read(tmp_path: Path) -> None:
    engine = Resolver(files={**RESOLVED, "/pylock.all.toml": entry("einops", "not a version")})
    engine.add_image(BOOKWORM)
    with pytest.raises(BuildFailedError, match="einops cannot be locked"):
        make(tmp_path, engine=engine)
    assert [image.tags for image in engine.images()] == [(BOOKWORM,)]
    assert engine.containers() == ()


def test_the_base_image_of_nobody_elses_is_told(tmp_path: Path) -> None:
    engine = Resolver()
    engine.add_image(BOOKWORM)
    place = shop(tmp_path, engine)
    resolve_lock(CPU, place, ignore)
    assert isinstance(place.tell, Told)
    assert any("on no registry" in note for note in place.tell.notes)


def test_all_is_one_resolution_and_each_step_its_own_list(tmp_path: Path) -> None:
    order = replace(CPU, image=ImageRequest(pip=("einops",), features=("jupyter",)))
    _, engine = make(tmp_path, order=order)
    text = engine.dockerfile
    assert "compile --output-file /lock/all.txt /lock/packages.in" in text
    for step in ("torch", "jupyter"):
        assert f"--output-file /lock/{step}.txt /lock/{step}.in" in text
    assert "FROM scratch" in text
    assert "useradd" not in text, "the image itself is not built"


def test_each_resolution_asks_again(tmp_path: Path) -> None:
    _, engine = make(tmp_path)
    first = engine.dockerfile
    make(tmp_path, engine=engine)
    assert engine.dockerfile != first


def test_what_an_earlier_lock_has_stays(tmp_path: Path) -> None:
    before, engine = make(tmp_path)
    again, _ = make(tmp_path, engine=engine, before=before)
    assert again == before
    for line in ("einops==0.8.2", "numpy==2.4.6", "uv==0.13.9 --hash=sha256:"):
        assert line in engine.dockerfile


def test_upgrade_lets_go_of_all_of_it(tmp_path: Path) -> None:
    before, engine = make(tmp_path)
    make(tmp_path, engine=engine, before=before, upgrade=Upgrade(everything=True))
    for line in ("einops==0.8.2", "numpy==2.4.6", "--require-hashes"):
        assert line not in engine.dockerfile


def test_upgrade_package_lets_go_of_that_one(tmp_path: Path) -> None:
    before, engine = make(tmp_path)
    make(tmp_path, engine=engine, before=before, upgrade=Upgrade(packages=("Einops",)))
    assert "einops==0.8.2" not in engine.dockerfile
    assert "numpy==2.4.6" in engine.dockerfile


def test_a_package_to_upgrade_that_is_not_there_is_guessed_at(tmp_path: Path) -> None:
    before, engine = make(tmp_path)
    with pytest.raises(ConfigurationError) as caught:
        make(tmp_path, engine=engine, before=before, upgrade=Upgrade(packages=("einop",)))
    assert caught.value.fix == "did you mean einops?"


def test_the_base_stays_until_it_is_to_be_another(tmp_path: Path) -> None:
    before, engine = make(tmp_path)
    newer = engine.add_image(BOOKWORM)
    with pytest.raises(LockUnavailableError) as caught:
        make(tmp_path, engine=engine, before=before)
    assert "gpuenv lock --upgrade-base" in caught.value.fix
    lock, _ = make(tmp_path, engine=engine, before=before, upgrade=Upgrade(base=True))
    assert lock.base.id == newer.id
    assert lock.packages == before.packages


def test_a_commit_has_no_file_to_lock(tmp_path: Path) -> None:
    image = ImageRequest(pip=("thing @ git+https://host.example/thing@v1",), apt=("git",))
    with pytest.raises(ConfigurationError, match="cannot be locked"):
        make(tmp_path, order=replace(CPU, image=image))


def test_a_requirement_that_names_digests_gets_none_other(tmp_path: Path) -> None:
    image = ImageRequest(requirements=(f"einops==0.8.2 --hash=sha256:{ZEROS}",))
    with pytest.raises(BuildFailedError, match="not a file that the requirements allow"):
        make(tmp_path, order=replace(CPU, image=image))


def test_an_address_that_was_asked_for_stays_one(tmp_path: Path) -> None:
    url = "https://host.example/einops-0.8.2-py3-none-any.whl"
    files = dict(RESOLVED)
    files["/pylock.all.toml"] = files["/pylock.all.toml"].replace(
        entry("einops", "0.8.2"), entry("einops", "0.8.2", url=url, kind="archive")
    )
    engine = Resolver(files=files)
    engine.add_image(BOOKWORM)
    lock, _ = make(tmp_path, engine=engine)
    einops = next(it for it in lock.packages if it.name == "einops")
    assert einops.requirement == f"einops @ {url}"


def test_a_source_archive_is_locked_with_a_warning(tmp_path: Path) -> None:
    url = "https://host.example/einops-0.8.2.tar.gz"
    files = dict(RESOLVED)
    files["/pylock.all.toml"] = files["/pylock.all.toml"].replace(
        entry("einops", "0.8.2"), entry("einops", "0.8.2", url=url, kind="sdist")
    )
    engine = Resolver(files=files)
    engine.add_image(BOOKWORM)
    place = shop(tmp_path, engine)
    lock = resolve_lock(CPU, place, ignore)
    assert next(it for it in lock.packages if it.name == "einops").file == "einops-0.8.2.tar.gz"
    assert isinstance(place.tell, Told)
    assert any("einops 0.8.2 has no wheel" in note for note in place.tell.notes)


def test_without_an_engine_nothing_is_locked(tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailableError):
        resolve_lock(CPU, shop(tmp_path, None), ignore)


# --- what is narrowed ---------------------------------------------------------------------------


def test_a_request_that_the_lock_answers_is_narrowed_to_its_row() -> None:
    narrowed = narrow_request(asked(gpu="H100"), cuda_lock(), Upgrade())
    assert narrowed is not None
    row = cuda_lock().spec.environment
    assert (narrowed.torch, narrowed.cuda, narrowed.python) == (row.torch, row.cuda, row.python)
    assert narrowed.gpus == asked(gpu="H100").gpus


@pytest.mark.parametrize(
    ("settings", "upgrade"),
    [
        ({"torch": "2.13"}, Upgrade()),
        ({"cuda": "12.6"}, Upgrade()),
        ({"cuda": "cpu"}, Upgrade()),
        ({"python": "3.12"}, Upgrade()),
        ({"arch": "aarch64"}, Upgrade()),
        ({}, Upgrade(everything=True)),
        ({}, Upgrade(packages=("torch",))),
    ],
    ids=str,
)
def test_what_is_asked_now_goes_before_the_lock(settings: dict[str, str], upgrade: Upgrade) -> None:
    assert narrow_request(asked(**settings), cuda_lock(), upgrade) is None


def test_another_host_and_another_source_make_no_other_lock() -> None:
    before = cuda_lock()
    row = replace(before.spec.environment, source="wheelhouse", warnings=("of this host",))
    elsewhere = replace(before, spec=replace(before.spec, environment=row))
    assert keep_row(elsewhere, before, Upgrade()) == before
    assert keep_row(elsewhere, before, Upgrade(everything=True)) == elsewhere
    assert keep_row(elsewhere, None, Upgrade()) == elsewhere
    asked_anew = replace(elsewhere, request=record_request(asked(torch="2")))
    assert keep_row(asked_anew, before, Upgrade()) == asked_anew
    other = package("torch", "2.14.1", tag="cp311-cp311-linux_x86_64")
    rebuilt = replace(
        elsewhere, packages=tuple(other if it.name == "torch" else it for it in before.packages)
    )
    assert keep_row(rebuilt, before, Upgrade()) == rebuilt


def test_of_a_wheel_here_only_its_metadata_goes_to_the_resolver(tmp_path: Path) -> None:
    _, engine = make(tmp_path)
    context: Any = engine.build_requests[-1].context
    with tarfile.open(fileobj=io.BytesIO(b"".join(context()))) as tar:
        (name,) = (name for name in tar.getnames() if name.endswith(".whl"))
        file = tar.extractfile(name)
        assert file is not None
        with zipfile.ZipFile(io.BytesIO(file.read())) as wheel:
            assert wheel.namelist() == [
                f"torch-2.13.0+cpu.dist-info/{it}" for it in ("METADATA", "WHEEL", "RECORD")
            ]
            assert b"Version: 2.13.0+cpu" in wheel.read("torch-2.13.0+cpu.dist-info/METADATA")


# --- the base image -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ref", "digests", "expected"),
    [
        ("ubuntu:24.04", (f"ubuntu@sha256:{ZEROS}",), f"ubuntu:24.04@sha256:{ZEROS}"),
        (
            "docker.io/library/ubuntu:24.04",
            (f"ubuntu@sha256:{ZEROS}",),
            f"docker.io/library/ubuntu:24.04@sha256:{ZEROS}",
        ),
        (
            "registry.example.org:5000/team/base:1",
            (
                f"other/base@sha256:{64 * '1'}",
                f"registry.example.org:5000/team/base@sha256:{ZEROS}",
            ),
            f"registry.example.org:5000/team/base:1@sha256:{ZEROS}",
        ),
        (f"ubuntu:24.04@sha256:{ZEROS}", (), f"ubuntu:24.04@sha256:{ZEROS}"),
        ("localhost/gpuenv/base:bookworm", (), "localhost/gpuenv/base:bookworm"),
        ("ubuntu:24.04", (f"elsewhere/ubuntu@sha256:{ZEROS}",), "ubuntu:24.04"),
    ],
)
def test_a_base_is_named_by_the_digest_its_own_registry_gave(
    ref: str, digests: tuple[str, ...], expected: str
) -> None:
    info = ImageInfo(id=f"sha256:{64 * 'a'}", tags=(), digests=digests, size_bytes=1, labels={})
    base = locked_base(ref, info)
    assert base.ref == expected
    assert (base.id is None) == (base.digest is not None)


# --- building from it ---------------------------------------------------------------------------


def locked_order(tmp_path: Path, engine: FakeEngine) -> tuple[ImageOrder, Workshop, Lock]:
    """Return an order of a lock whose torch lies in the folder, the rest as well."""
    base = engine.add_image(BOOKWORM)
    place = shop(tmp_path, engine)
    packages = []
    for it in cpu_lock().packages:
        path = tmp_path / "wheels" / it.file
        if not path.exists():
            path.write_bytes(it.name.encode())
        packages.append(replace(it, sha256=hashlib.sha256(path.read_bytes()).hexdigest()))
    lock = cpu_lock(base=replace(HOME_MADE, id=base.id), packages=tuple(packages))
    return replace(CPU, lock=lock), place, lock


def test_a_lock_is_built_as_it_is(tmp_path: Path) -> None:
    order, place, lock = locked_order(tmp_path, FakeEngine())
    plan = plan_order(order, place)
    assert plan.lock == lock
    for it in lock.packages:
        assert it.pin in plan.context.dockerfile
    assert "pip compile" not in plan.context.dockerfile
    assert dict(plan.labels)["org.gpuenv.lock"] == lock.digest
    carried = {file.path.rpartition("/")[2] for file in plan.context.files}
    assert {it.file for it in lock.packages} <= carried


def test_where_the_files_come_from_makes_no_other_image(tmp_path: Path) -> None:
    order, place, _ = locked_order(tmp_path, FakeEngine())
    elsewhere = replace(
        place, client=SimpleClient(replace(place.client.sources, find_links=(), offline=False))
    )
    assert order_digest(order, place) == order_digest(order, elsewhere)


def test_one_changed_byte_in_a_wheel_here_is_refused(tmp_path: Path) -> None:
    order, place, lock = locked_order(tmp_path, FakeEngine())
    einops = next(it for it in lock.packages if it.name == "einops")
    (tmp_path / "wheels" / einops.file).write_bytes(b"einopt")
    with pytest.raises(LockUnavailableError) as caught:
        plan_order(order, place)
    assert f"{einops.file} in {tmp_path / 'wheels'} is another file" in caught.value.why
    assert caught.value.exit_code == 5


def test_offline_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    order, place, lock = locked_order(tmp_path, FakeEngine())
    gone = [it.file for it in lock.packages if it.name in {"numpy", "torch"}]
    for file in gone:
        (tmp_path / "wheels" / file).unlink()
    with pytest.raises(LockUnavailableError) as caught:
        plan_order(order, place)
    assert all(f"{file}: no folder on this host has it" in caught.value.why for file in gone)


def test_a_base_that_was_made_anew_is_refused(tmp_path: Path) -> None:
    engine = FakeEngine()
    order, place, _ = locked_order(tmp_path, engine)
    engine.add_image(BOOKWORM)
    with pytest.raises(LockUnavailableError, match="another image here"):
        plan_order(order, place)


def test_a_base_that_cannot_be_had_is_refused(tmp_path: Path) -> None:
    engine = FakeEngine()
    order, place, lock = locked_order(tmp_path, engine)
    away = replace(lock, base=LockedBase(image="debian:bookworm-slim", digest=f"sha256:{ZEROS}"))
    with pytest.raises(LockUnavailableError, match="cannot be had"):
        find_or_build(replace(order, lock=away), place, ignore)


def test_constraints_of_this_host_do_not_reach_a_locked_build(tmp_path: Path) -> None:
    order, place, _ = locked_order(tmp_path, FakeEngine())
    (tmp_path / "constraints.txt").write_text("numpy<2\n")
    (tmp_path / "pip.conf").write_text(f"[global]\nconstraint = {tmp_path}/constraints.txt\n")
    sources = load_package_sources(
        {"HOME": str(tmp_path), "PIP_CONFIG_FILE": str(tmp_path / "pip.conf")},
        flags=SourceFlags(wheelhouse=(str(tmp_path / "wheels"),), offline=True),
        cwd=tmp_path,
        root=tmp_path / "root",
        prefix=tmp_path,
    )
    assert sources.constraints
    plan = plan_order(order, replace(place, client=SimpleClient(sources)))
    assert not [file for file in plan.context.files if file.path.endswith("constraints.txt")]
    assert "UV_CONSTRAINT=/run" not in plan.context.dockerfile


def test_a_torch_that_no_source_has_any_more_is_refused_before_the_build(tmp_path: Path) -> None:
    order, place, lock = locked_order(tmp_path, FakeEngine())
    other = package("torch", "2.13.0+cpu", tag="cp311-cp311-manylinux_2_28_x86_64")
    moved = replace(
        lock, packages=tuple(other if it.name == "torch" else it for it in lock.packages)
    )
    with pytest.raises(LockUnavailableError) as caught:
        plan_order(replace(order, lock=moved), place)
    assert "torch-2.13.0+cpu" in caught.value.why
    assert lock.spec.environment.torch == TorchVersion((2, 13, 0))
