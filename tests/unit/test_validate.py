"""What may stand in a Dockerfile: injections of every kind are refused, honest values are not."""

from __future__ import annotations

import pytest

from gpuenv.errors import ConfigurationError
from gpuenv.validate import (
    check_apt,
    check_env,
    check_image_name,
    check_image_ref,
    check_mirror,
    check_requirement,
    check_tag,
    check_workdir,
    parse_requirements,
)

INJECTIONS = (
    "git\nRUN id",
    "git\r\nRUN id",
    "git; id",
    "git && id",
    "git | id",
    "$(id)",
    "git$(id)",
    "`id`",
    "git`id`",
    "git'",
    'git"',
    "git\\",
    "git \\\nid",
    "git\x00",
    "git\x1b[31m",
    "git ",
    " git",
    "",
    "-oDPkg::Pre-Invoke=id",
    "--option",
    "${PATH}",
    "git>x",
    "git<x",
    "git*",
    "git?",
    "g\u0456t",  # a Cyrillic letter in the middle
    "\uff47it",  # a full-width g
    "git\u2028RUN id",
    "git\u202eti",
    "git\u00a0id",
    "git\uff1bid",  # a full-width semicolon
    "\u0661git",  # an Arabic digit
)


@pytest.mark.parametrize("text", INJECTIONS)
@pytest.mark.parametrize(
    "check", [check_apt, check_image_name, check_image_ref, check_workdir, check_mirror]
)
def test_injection_is_refused(check: object, text: str) -> None:
    assert callable(check)
    with pytest.raises(ConfigurationError) as caught:
        check(text)
    assert caught.value.exit_code == 2
    assert caught.value.fix


@pytest.mark.parametrize("text", INJECTIONS)
def test_injection_in_a_requirement_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        check_requirement(text)


@pytest.mark.parametrize(
    "text", [text for text in INJECTIONS if not text.isprintable()] + ["a\nb", "a\tb", "x" * 5000]
)
def test_value_that_is_not_one_line_of_text_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        check_env("NAME", text)


@pytest.mark.parametrize("name", ["1A", "A-B", "A B", "", "A=B", "Ä", "A;B", "$A"])
def test_name_of_a_variable_is_checked(name: str) -> None:
    with pytest.raises(ConfigurationError, match="not the name of a variable"):
        check_env(name, "1")


@pytest.mark.parametrize("name", ["PATH", "HOME", "USER", "VIRTUAL_ENV"])
def test_variable_the_recipe_sets_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="image's own"):
        check_env(name, "x")


@pytest.mark.parametrize("name", ["HF_TOKEN", "WANDB_API_KEY", "DB_PASSWORD", "AWS_SECRET"])
def test_secret_does_not_become_a_variable_of_the_image(name: str) -> None:
    with pytest.raises(ConfigurationError, match="secret") as caught:
        check_env(name, "hf_abc")
    assert "hf_abc" not in f"{caught.value.what}{caught.value.why}{caught.value.fix}"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TOKENIZERS_PARALLELISM", "false"),
        ("GREETING", "grüß Gott"),
        ("QUOTES", "\"a\" 'b' $c `d` \\e"),
        ("EMPTY", ""),
        ("HF_TOKEN", ""),
    ],
)
def test_honest_variable_is_taken_as_it_is(name: str, value: str) -> None:
    assert check_env(name, value) == (name, value)


@pytest.mark.parametrize("text", ["git", "g++", "libc6:arm64", "vim=2:9.0.1378-2+deb12u2", "7zip"])
def test_package_name_is_taken(text: str) -> None:
    assert check_apt(text) == text


@pytest.mark.parametrize(
    "text",
    ["nvidia-driver-580", "libnvidia-compute-580", "cuda-drivers", "libcuda1", "nvidia-utils-550"],
)
def test_driver_package_is_refused_with_the_reason(text: str) -> None:
    with pytest.raises(ConfigurationError, match="driver") as caught:
        check_apt(text)
    assert "host" in caught.value.why


def test_container_toolkit_is_no_driver() -> None:
    assert check_apt("libnvidia-container-tools") == "libnvidia-container-tools"


@pytest.mark.parametrize(
    "text",
    [
        "einops",
        "transformers>=5",
        "transformers>=5,<6",
        "accelerate[testing]~=1.2",
        "tomli; python_version < '3.11'",
        "flash-attn @ https://example.org/wheels/flash_attn-2.8-cp311-cp311-linux_x86_64.whl",
        "pkg @ git+https://example.org/team/pkg.git@v1.2#subdirectory=python",
        "numpy==2.1.*",
    ],
)
def test_requirement_is_taken(text: str) -> None:
    assert check_requirement(text) == text


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("./wheels/a.whl", "--wheelhouse"),
        ("a @ file:///etc/passwd", "--wheelhouse"),
        ("a @ http://example.org/a.whl", "--wheelhouse"),
        ("-e .", "--wheelhouse"),
        ("--index-url https://example.org", "--index-url"),
        ("a @ https://me:secret@example.org/a.whl", "--index-url"),
        ("a @ git+ssh://git@example.org/a.git", "--index-url"),
        ("a @ https://example.org/$(id)/a.whl", "--wheelhouse"),
        ("a b", "einops"),
    ],
)
def test_requirement_that_a_build_cannot_use_says_what_to_do(text: str, word: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        check_requirement(text)
    assert word in caught.value.fix
    assert "secret" not in f"{caught.value.what}{caught.value.why}"


def test_requirements_file_loses_comments_and_joins_lines() -> None:
    digest = "0" * 64
    text = (
        "# a comment\n\neinops  # another\n"
        f"numpy==2.1.0 \\\n    --hash=sha256:{digest}\n"
        "requests >= 2 ; python_version > '3'\n"
    )
    assert parse_requirements(text, origin="r.txt") == (
        "einops",
        f"numpy==2.1.0 --hash=sha256:{digest}",
        "requests >= 2 ; python_version > '3'",
    )


def test_all_bad_lines_of_a_requirements_file_are_named_with_their_number() -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_requirements("einops\n-e .\n$(id)\n", origin="r.txt")
    assert "r.txt, line 2" in caught.value.why
    assert "r.txt, line 3" in caught.value.why
    assert "line 1" not in caught.value.why


@pytest.mark.parametrize(
    "text",
    [
        "debian:bookworm",
        "localhost/gpuenv/base:bookworm",
        "registry.example.org:5000/a/b__c.d-e:v1.2@sha256:" + "a" * 64,
        "ubuntu",
        "nvidia/cuda:12.8.1-devel-ubuntu24.04",
    ],
)
def test_image_reference_is_taken(text: str) -> None:
    assert check_image_ref(text) == text


@pytest.mark.parametrize(
    "text", ["Debian:bookworm:x", "debian@sha256:abc", "a//b", "debian AS x", "a" * 500]
)
def test_image_reference_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        check_image_ref(text)


@pytest.mark.parametrize("text", ["/workspace", "/home/dev/code", "/srv/app-1.x", "/data/a_b"])
def test_working_folder_is_taken(text: str) -> None:
    assert check_workdir(text) == text


@pytest.mark.parametrize(
    "text",
    ["workspace", "/", "/etc", "/usr/local", "/tmp", "/home/dev", "/opt/venv/x", "/a/../etc",
     "/a/", "//a", "/a b", "/root/x", "/home/dev/.cache/pip"],
)  # fmt: skip
def test_working_folder_of_the_system_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        check_workdir(text)


def test_mirror_with_credentials_is_refused_without_repeating_them() -> None:
    with pytest.raises(ConfigurationError) as caught:
        check_mirror("https://me:hunter2@example.org/debian")
    assert "hunter2" not in f"{caught.value.what}{caught.value.why}{caught.value.fix}"


def test_origin_is_named() -> None:
    with pytest.raises(ConfigurationError) as caught:
        check_apt("a;b", origin="gpuenv.toml: apt")
    assert "gpuenv.toml: apt" in caught.value.why


@pytest.mark.parametrize(
    "text",
    [
        "--index-url https://bob:pa55@pypi.example/simple",
        "-f https://bob:pa55@wheels.example/",
        "https://bob:pa55@pypi.example/x-1.0-py3-none-any.whl",
    ],
)
def test_a_password_in_a_refused_line_is_not_shown(text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_requirements(text, origin="requirements.txt")
    error = caught.value
    assert "pa55" not in error.what + error.why + error.fix


@pytest.mark.parametrize(
    ("line", "fix"),
    [
        ("-e .", "no project files"),
        ("--find-links=wheels", "--wheelhouse"),
        ("-c limits.txt", "its lines"),
        ("--pre", "the version itself"),
        ("git+https://example.org/x", "NAME @ git+https://example.org/x"),
        ("./x-1.0.whl", "--wheelhouse"),
        ("numpy==2 --hash=sha256:00", "64 hexadecimal digits"),
    ],
)
def test_a_line_that_is_refused_says_what_to_write_instead(line: str, fix: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_requirements(line, origin="requirements.txt")
    assert fix in caught.value.fix


@pytest.mark.parametrize(
    "line", ["-r more.txt", "-rmore.txt", "--requirement more.txt", "--requirement=more.txt"]
)
def test_every_spelling_of_an_include_is_followed(line: str) -> None:
    names: list[str] = []

    def include(name: str) -> tuple[str, ...]:
        names.append(name)
        return ("einops",)

    assert parse_requirements(line, origin="requirements.txt", include=include) == ("einops",)
    assert names == ["more.txt"]


@pytest.mark.parametrize("name", ["PIP_INDEX_URL", "HTTP_PROXY"])
def test_a_variable_with_a_password_in_an_address_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        check_env(name, "https://bob:pa55@proxy.example/")
    assert "pa55" not in caught.value.what + caught.value.why


def test_a_tag_is_a_reference_without_a_digest() -> None:
    assert check_tag("registry.example:5000/team/torch:1") == "registry.example:5000/team/torch:1"
    for text in ("Bad Tag", "", "a@sha256:" + "0" * 64, "-t", "a:b:c"):
        with pytest.raises(ConfigurationError):
            check_tag(text)


def test_a_whole_file_pasted_as_a_value_is_not_shown_in_full() -> None:
    with pytest.raises(ConfigurationError) as caught:
        check_apt("x" * 100_000)
    assert len(caught.value.what) < 500
    assert caught.value.what.endswith("is not the name of a Debian package")
