"""The likely cause of a failed build, on the texts that real failures print."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuenv.engine.causes import explain_failure, find_cause
from gpuenv.engine.events import Failed

DATA = Path(__file__).parents[1] / "data" / "build-failures"

EXPECTED = {
    "apt-404": "build-package-missing",
    "apt-disk": "build-disk-full",
    "apt-dns2": "build-dns",
    "apt-hash": "build-hash-mismatch",
    "apt-refused": "build-network",
    "apt-unknown": "build-package-missing",
    "apt-unsigned": "build-signature",
    "bad-stage": "build-base-missing",
    "base-hub": "build-base-missing",
    "base-missing": "build-base-missing",
    "copy-missing": "build-context",
    "curl-cert": "build-certificate",
    "kill9": "build-out-of-memory",
    "nofile": "build-command-missing",
    "parse": "build-context",
    "parse-mount": "build-context",
    "pip-401": "build-wheel-missing",  # pip says no more than that it found nothing
    "pip-cert": "build-certificate",
    "pip-compiler": "build-compiler-missing",
    "pip-conflict": "build-conflict",
    "pip-disk": "build-disk-full",
    "pip-dns": "build-dns",
    "pip-hash": "build-hash-mismatch",
    "pip-missing": "build-wheel-missing",
    "pip-refused": "build-wheel-missing",  # likewise
    "pip-version": "build-wheel-missing",
    "pyoom": "build-out-of-memory",
    "uv-401": "build-index-denied",
    "uv-cert": "build-certificate",
    "uv-compiler": "build-compiler-missing",
    "uv-conflict": "build-conflict",
    "uv-disk": "build-disk-full",
    "uv-dns": "build-dns",
    "uv-hash": "build-hash-mismatch",
    "uv-missing": "build-wheel-missing",
    "uv-nowheel": "build-wheel-missing",
    "uv-python": "build-wheel-missing",
    "uv-refused": "build-network",
    "uv-version": "build-wheel-missing",
}


def recorded(name: str) -> Failed:
    data = json.loads((DATA / f"{name}.json").read_text())
    return Failed(
        name=data["name"],
        message=data["message"],
        exit_code=data["exit_code"],
        log=tuple(data["log"]),
    )


def test_every_recording_has_an_expectation() -> None:
    assert {path.stem for path in DATA.glob("*.json")} == set(EXPECTED)


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_recorded_failure_gets_its_cause(name: str) -> None:
    failed = recorded(name)
    error = explain_failure(failed)
    assert error.slug == EXPECTED[name]
    assert error.exit_code == 5
    assert error.data["evidence"] in error.why
    assert error.fix


def test_words_in_the_command_itself_are_no_evidence() -> None:
    failed = Failed(
        name="[2/2] RUN echo 'no space left on device'; exit 3",
        message="executor failed running [/bin/sh -c echo 'no space left on device'; exit 3]: "
        "exit code: 3",
        exit_code=3,
        log=("all is well",),
    )
    error = explain_failure(failed)
    assert error.slug == "build-failed"
    assert error.data["exit_code"] == 3


def test_a_retry_that_went_well_later_does_not_hide_the_cause() -> None:
    retry = next(line for line in recorded("pip-dns").log if "Retrying" in line)
    log = (retry, *recorded("pip-conflict").log)
    found = find_cause(log, "", 1)
    assert found is not None
    assert found[0].error.slug == "build-conflict"


def test_the_step_in_the_headline_stays_readable() -> None:
    failed = Failed(
        name="[5/9] RUN " + "apt-get install \\\n  something && " * 40, message="exit code: 1"
    )
    assert len(explain_failure(failed).what) < 160
    assert "\n" not in explain_failure(failed).what


def test_a_step_of_the_recipe_is_named_by_its_title_and_its_script_is_not_repeated() -> None:
    script = ": 'the packages asked for'; set -eu; uv pip install gone"
    failed = Failed(
        name=f"[stage-4 3/5] RUN --mount=type=cache,id=x,target=/y {script}",
        message=f"executor failed running [/bin/sh -c {script}]: exit code: 1",
        exit_code=1,
        log=("gone was not found in the package registry",),
    )
    error = explain_failure(failed)
    assert error.what == (
        "the build failed in step 3/5 the packages asked for: "
        "no index has a fitting build of a Python package"
    )
    assert error.why == "gone was not found in the package registry\nexit code 1"
