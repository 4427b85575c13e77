"""``gpuenv.lock`` as a value and as a file: the same bytes, nothing secret, no edit unnoticed."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuenv.lockfile import (
    Change,
    LockFileError,
    compare_locks,
    compare_request,
    load_lock,
    lock_path,
    parse_lock,
    record_request,
    render_lock,
    write_lock,
)
from gpuenv.spec import ImageRequest
from tests.lock_samples import HOME_MADE, asked, cpu_lock, cuda_lock, package

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gpuenv.lockfile import Lock

LOCKS = {"cpu": cpu_lock(), "cuda": cuda_lock(), "home-made base": cpu_lock(base=HOME_MADE)}


@pytest.mark.parametrize("lock", LOCKS.values(), ids=LOCKS)
def test_a_lock_read_back_is_the_same_lock_and_the_same_bytes(lock: Lock) -> None:
    text = render_lock(lock)
    assert parse_lock(text) == lock
    assert render_lock(parse_lock(text)) == text


@settings(deadline=None)
@given(value=st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), max_size=40))
def test_any_value_of_a_variable_comes_back(value: str) -> None:
    lock = cpu_lock()
    image = ImageRequest(env=(("GREETING", value),))
    lock = replace(lock, spec=replace(lock.spec, image=image))
    assert parse_lock(render_lock(lock)) == lock


def test_a_lock_has_no_time_no_address_and_no_path() -> None:
    text = render_lock(cuda_lock())
    assert not re.search(r"https?://|/home|/root|/tmp|[12][0-9]:[0-5][0-9]:", text)


def test_the_order_in_which_packages_were_found_makes_no_difference() -> None:
    lock = cpu_lock()
    other = cpu_lock(packages=tuple(reversed(lock.packages)))
    assert render_lock(other) == render_lock(lock)


def edits() -> dict[str, tuple[str, str]]:
    """Return what may happen to a lock: a pattern of its text, and what stands there then."""
    return {
        "another digest": (r'sha256 = "[0-9a-f]{4}', 'sha256 = "0000'),
        "another version": (r'version = "0.8.2"', 'version = "0.8.1"'),
        "another torch": (r'torch = "2.13.0"', 'torch = "2.12.0"'),
        "a package taken out": (r"\[\[packages\]\]\n(?:.+\n)+", ""),
        "another base": (r"sha256:d", "sha256:e"),
        "no digest": (r'\ndigest = "sha256:[^d].*\n', "\n"),
        "one more key": (r"\[request\]", "[request]\ncudnn = '9'"),
    }


@pytest.mark.parametrize(("pattern", "instead"), edits().values(), ids=edits())
def test_an_edited_lock_is_refused(pattern: str, instead: str) -> None:
    text = render_lock(cpu_lock())
    edited = re.sub(pattern, instead, text, count=1)
    assert edited != text
    with pytest.raises(LockFileError, match="is not as gpuenv wrote it"):
        parse_lock(edited)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no lock-version"),
        ("lock-version = 1\n", "no lock-version and packages"),
        ("{}", "Invalid"),
        ("<<<<<<< HEAD\nlock-version = 1\n=======\n", "two versions of it were merged"),
    ],
    ids=["empty", "half", "JSON", "merge conflict"],
)
def test_what_is_no_lock_is_told_from_one(text: str, why: str) -> None:
    with pytest.raises(LockFileError) as caught:
        parse_lock(text)
    assert why in caught.value.why
    assert "gpuenv lock" in caught.value.fix


def test_a_lock_of_a_newer_gpuenv_is_not_guessed_at() -> None:
    text = render_lock(cpu_lock()).replace("lock-version = 1", "lock-version = 2")
    with pytest.raises(LockFileError, match="made by a newer gpuenv") as caught:
        parse_lock(text)
    assert "version 2" in caught.value.why


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "einops'; rm -rf /; '"),
        ("version", "0.8.2 --index-url https://evil.example"),
        ("file", "../../etc/passwd"),
        ("sha256", "0" * 63),
        ("url", "https://user:secret@host.example/einops-0.8.2-py3-none-any.whl"),
        ("step", "system"),
    ],
)
def test_a_lock_whose_values_could_not_stand_in_a_dockerfile_is_refused(
    field: str, value: str
) -> None:
    # With a digest that fits, as somebody who means harm would make it.
    bad = replace(package("einops", "0.8.2", "packages"), **{field: value})
    with pytest.raises(LockFileError, match="no lock of gpuenv"):
        parse_lock(render_lock(replace(cpu_lock(), packages=(bad,))))


@pytest.mark.parametrize(
    "edit",
    [
        lambda it: it["image"].update(pip=[1]),
        lambda it: it["image"].update(apt="git"),
        lambda it: it["image"].pop("workdir"),
        lambda it: it["environment"].update(python="three"),
        lambda it: it["environment"].update(cuda=True),
        lambda it: it.update(packages={}),
        lambda it: it.update(base=[]),
        lambda it: it.update(request="torch"),
        lambda it: it.update(extra={"key": "value"}),
    ],
)
def test_a_lock_of_another_shape_is_no_lock_even_with_its_digest(
    edit: Callable[[dict[str, Any]], object],
) -> None:
    document = tomllib.loads(render_lock(cpu_lock()))
    del document["digest"]
    edit(document)
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    document["digest"] = "sha256:" + hashlib.sha256(text.encode()).hexdigest()
    with pytest.raises(LockFileError, match="no lock of gpuenv"):
        parse_lock(toml(document))


def toml(document: dict[str, Any]) -> str:
    """Write a document as TOML, nested tables as inline ones."""
    return "".join(f"{key} = {inline(value)}\n" for key, value in document.items())


def inline(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {inline(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(inline, value)) + "]"
    return json.dumps(value)


def test_what_is_left_to_gpuenv_is_not_recorded() -> None:
    assert record_request(asked()) == (("arch", ("x86_64",)),)
    assert dict(record_request(asked(torch="2.9", cuda="12.8", gpu="H100", flavor="devel"))) == {
        "arch": ("x86_64",),
        "cuda": ("12.8",),
        "flavor": ("devel",),
        "gpu": ("H100",),
        "torch": ("2.9",),
    }


def test_the_same_request_has_no_changes() -> None:
    lock = cuda_lock()
    request = record_request(asked(torch="2.14", cuda="13.0", gpu="H100"))
    image = replace(lock.spec.image, features=())  # which build has no flag for
    assert compare_request(lock, request, image) == ()


def test_every_change_of_a_request_is_named() -> None:
    lock = cuda_lock()
    request = record_request(asked(torch="2.13", cuda="13.0", driver="580"))
    image = ImageRequest(
        name="team", features=("jupyter",), pip=("einops>=1",), env=(("A", "1"),), workdir="/srv"
    )
    assert [str(change) for change in compare_request(lock, request, image)] == [
        "+ driver 580",
        "- gpu H100",
        "~ torch 2.14 -> 2.13",
        "~ workdir /workspace -> /srv",
        "- with ssh",
        "- apt git",
        "- pip einops",
        "+ pip einops>=1",
        "+ env A=1",
    ]


def test_two_locks_differ_by_package_and_by_file() -> None:
    before = cpu_lock()
    torch = package("torch", "2.13.0+cpu")  # the same version, another file
    after = cpu_lock(packages=(torch, package("einops", "0.9.0", "packages")), base=HOME_MADE)
    changes = {change.what: change for change in compare_locks(before, after)}
    assert changes["einops"] == Change(what="einops", before="0.8.2", after="0.9.0")
    assert changes["numpy"] == Change(what="numpy", before="2.4.6", after="")
    assert changes["torch"].before != changes["torch"].after
    assert changes["torch"].after == f"2.13.0+cpu (sha256:{torch.sha256[:12]})"
    assert changes["base image"].after == HOME_MADE.image
    assert compare_locks(before, before) == ()


def test_the_lock_lies_beside_the_settings_file(tmp_path: Path) -> None:
    project, folder, given_path = tmp_path / "project", tmp_path, tmp_path / "other.lock"
    assert lock_path(None, project / "gpuenv.toml", folder) == project / "gpuenv.lock"
    assert lock_path(None, None, folder) == folder / "gpuenv.lock"
    assert lock_path(given_path, project / "gpuenv.toml", folder) == given_path


def test_writing_says_whether_anything_changed_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "gpuenv.lock"
    assert write_lock(path, cpu_lock())
    assert path.stat().st_mode & 0o777 == 0o644
    stamp = path.stat().st_mtime_ns
    assert not write_lock(path, cpu_lock())
    assert path.stat().st_mtime_ns == stamp
    path.chmod(0o600)
    assert write_lock(path, cuda_lock())
    assert path.stat().st_mode & 0o777 == 0o600
    assert load_lock(path) == cuda_lock()
    assert list(tmp_path.glob(".*gpuenv*")) == []


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    real, link = tmp_path / "real.lock", tmp_path / "gpuenv.lock"
    link.symlink_to(real)
    assert write_lock(link, cpu_lock())
    assert link.is_symlink()
    assert load_lock(real) == cpu_lock()


def test_what_is_no_file_is_not_written_over(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing" / "gpuenv.lock"):
        with pytest.raises(LockFileError, match="cannot write"):
            write_lock(path, cpu_lock())


def test_a_lock_that_is_not_there_says_what_makes_one(tmp_path: Path) -> None:
    with pytest.raises(LockFileError) as caught:
        load_lock(tmp_path / "gpuenv.lock")
    assert caught.value.fix == "gpuenv lock makes it"
