"""gpuenv.toml and [tool.gpuenv]: which file counts, what wins, what a mistake is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuenv.config import KEYS, load_config, read_config, schema
from gpuenv.content import parse_content, read_requirements
from gpuenv.errors import ConfigurationError
from gpuenv.resources import images_dir


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_no_file_is_an_empty_config(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    config = load_config(tmp_path, {})
    assert config.path is None
    assert config.request_settings() == {}


def test_nearest_file_upwards_counts_and_the_repository_ends_the_search(tmp_path: Path) -> None:
    write(tmp_path / "gpuenv.toml", 'torch = "2.1"\n')
    repository = tmp_path / "repo"
    (repository / ".git").mkdir(parents=True)
    below = repository / "a" / "b"
    below.mkdir(parents=True)
    assert load_config(below, {}).path is None
    write(repository / "gpuenv.toml", 'torch = "2.2"\n')
    assert load_config(below, {}).request_settings() == {"torch": "2.2"}
    write(repository / "a" / "pyproject.toml", '[tool.gpuenv]\ntorch = "2.3"\n')
    assert load_config(below, {}).request_settings() == {"torch": "2.3"}


def test_pyproject_without_our_table_does_not_stop_the_search(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    write(tmp_path / "gpuenv.toml", 'cuda = "12.8"\n')
    write(tmp_path / "pkg" / "pyproject.toml", "[project]\nname = 'x'\n")
    assert load_config(tmp_path / "pkg", {}).request_settings() == {"cuda": "12.8"}


def test_gpuenv_toml_goes_before_pyproject_beside_it(tmp_path: Path) -> None:
    write(tmp_path / "gpuenv.toml", 'torch = "2.1"\n')
    write(tmp_path / "pyproject.toml", '[tool.gpuenv]\ntorch = "2.2"\n')
    assert load_config(tmp_path, {}).request_settings() == {"torch": "2.1"}


def test_variable_names_the_file_or_none(tmp_path: Path) -> None:
    write(tmp_path / "gpuenv.toml", 'torch = "2.1"\n')
    other = write(tmp_path / "other" / "team.toml", 'torch = "2.2"\n')
    assert load_config(tmp_path, {"GPUENV_CONFIG": str(other)}).values["torch"] == "2.2"
    assert load_config(tmp_path, {"GPUENV_CONFIG": ""}).path is None


def test_unknown_key_gets_a_guess_and_all_faults_are_told_together(tmp_path: Path) -> None:
    path = write(tmp_path / "gpuenv.toml", 'tourch = "2.1"\npython = 3.10\nzzz = 1\napt = [1]\n')
    with pytest.raises(ConfigurationError) as caught:
        read_config(path)
    told = f"{caught.value.what}\n{caught.value.why}\n{caught.value.fix}"
    assert "4 values" in caught.value.what
    assert "did you mean torch?" in told
    assert "3.10 would be read as 3.1" in told
    assert "unknown setting zzz" in told
    assert "apt must be a list of text" in told


def test_underscore_is_guessed_to_be_a_dash(tmp_path: Path) -> None:
    path = write(tmp_path / "gpuenv.toml", 'index_url = "https://example.org"\n')
    with pytest.raises(ConfigurationError) as caught:
        read_config(path)
    assert caught.value.fix == "did you mean index-url?"


@pytest.mark.parametrize("text", ["torch = \n", "a = 1\na = 2\n", "\x00"])
def test_broken_toml_names_file_and_place(tmp_path: Path, text: str) -> None:
    path = write(tmp_path / "gpuenv.toml", text)
    with pytest.raises(ConfigurationError, match=r"gpuenv\.toml is not TOML") as caught:
        read_config(path)
    assert "at " in caught.value.why


def test_table_that_is_none_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "pyproject.toml", "[tool]\ngpuenv = 1\n")
    with pytest.raises(ConfigurationError, match="not a table"):
        read_config(path)


def test_flag_goes_before_variable_before_file_for_a_single_value(tmp_path: Path) -> None:
    config = read_config(write(tmp_path / "gpuenv.toml", 'workdir = "/file"\n'))
    environ = {"GPUENV_WORKDIR": "/variable"}
    flagged = config.text("workdir", "/flag", environ)
    assert flagged is not None
    assert (flagged.text, flagged.origin) == ("/flag", "--workdir")
    varied = config.text("workdir", None, environ)
    assert varied is not None
    assert (varied.text, varied.origin) == ("/variable", "GPUENV_WORKDIR")
    filed = config.text("workdir", None, {})
    assert filed is not None
    assert (filed.text, filed.origin) == ("/file", "gpuenv.toml: workdir")


def test_lists_of_content_add_up(tmp_path: Path) -> None:
    config = read_config(
        write(tmp_path / "gpuenv.toml", 'apt = ["git"]\npip = "einops"\n[env]\nA = "1"\nB = "2"\n')
    )
    image = parse_content(config, {"GPUENV_APT": "jq vim"}, apt=["git"], pip=["numpy"], env=["B=3"])
    assert image.apt == ("git", "jq", "vim")
    assert image.pip == ("einops", "numpy")
    assert image.env == (("A", "1"), ("B", "3"))


def test_paths_of_the_file_count_from_its_folder(tmp_path: Path) -> None:
    write(tmp_path / "deps" / "r.txt", "einops\n-r more.txt\n")
    write(tmp_path / "deps" / "more.txt", "jaxtyping>=0.2\n")
    config = read_config(write(tmp_path / "gpuenv.toml", 'requirements = "deps/r.txt"\n'))
    assert parse_content(config, {}).requirements == ("einops", "jaxtyping>=0.2")


def test_requirements_file_that_includes_itself_is_told(tmp_path: Path) -> None:
    loop = write(tmp_path / "r.txt", "-r r.txt\n")
    config = read_config(write(tmp_path / "gpuenv.toml", ""))
    with pytest.raises(ConfigurationError, match="includes itself"):
        parse_content(config, {}, requirements=[loop])


def test_bad_values_of_all_places_are_told_with_their_places(tmp_path: Path) -> None:
    config = read_config(write(tmp_path / "gpuenv.toml", 'apt = ["a;b"]\n[env]\n"1X" = "1"\n'))
    with pytest.raises(ConfigurationError) as caught:
        parse_content(
            config,
            {"GPUENV_PIP": "-e"},
            workdir="/etc",
            base="Up:per:x",
            requirements=[tmp_path / "missing.txt"],
        )
    for place in (
        "gpuenv.toml: apt", "gpuenv.toml: env.1X", "GPUENV_PIP", "--workdir", "--base",
        "missing.txt",
    ):  # fmt: skip
        assert place in f"{caught.value.what} {caught.value.why}", place


@pytest.mark.parametrize(("word", "value"), [("1", True), ("no", False), ("ON", True)])
def test_switch_is_read_from_the_environment(tmp_path: Path, word: str, value: bool) -> None:
    config = read_config(write(tmp_path / "gpuenv.toml", "offline = true\n"))
    assert config.flag("offline", {"GPUENV_OFFLINE": word}, given=False) is value
    assert config.flag("offline", {}, given=False) is True


def test_switch_that_is_neither_names_the_variable(tmp_path: Path) -> None:
    config = load_config(tmp_path, {"GPUENV_CONFIG": ""})
    with pytest.raises(ConfigurationError, match="GPUENV_OFFLINE"):
        config.flag("offline", {"GPUENV_OFFLINE": "maybe"}, given=False)


def test_shipped_schema_is_the_one_of_the_keys() -> None:
    shipped = json.loads((images_dir() / "gpuenv.schema.json").read_text(encoding="utf-8"))
    assert shipped == schema()
    assert set(shipped["properties"]) == {key.name for key in KEYS}


def test_schema_accepts_what_the_reader_accepts(tmp_path: Path) -> None:
    import jsonschema

    path = write(
        tmp_path / "gpuenv.toml",
        'torch = "2.9"\ngpu = ["A100"]\napt = "git"\noffline = false\n[env]\nA = "1"\n',
    )
    read_config(path)
    import sys

    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    document = tomllib.loads(path.read_text())
    jsonschema.validate(document, schema())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**document, "tourch": "2"}, schema())


@pytest.mark.parametrize("text", ["tool = 3", "[tool]\nother = 1", "tool = []"])
def test_pyproject_whose_tool_is_no_table_has_no_settings(tmp_path: Path, text: str) -> None:
    write(tmp_path / "pyproject.toml", text)
    (tmp_path / ".git").mkdir()
    assert load_config(tmp_path, {}).path is None
    assert read_config(tmp_path / "pyproject.toml").values == {}


def test_a_byte_order_mark_is_no_part_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "gpuenv.toml"
    path.write_bytes(b'\xef\xbb\xbftorch = "2.9"\r\n')
    assert read_config(path).values == {"torch": "2.9"}


@pytest.mark.parametrize("value", ["2.9", '["2.9"]'])
def test_the_fix_for_an_unquoted_text_is_what_was_meant(tmp_path: Path, value: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_config(write(tmp_path / "gpuenv.toml", f"torch = {value}"))
    assert caught.value.fix == 'quote it: torch = "2.9"'


def test_a_requirements_file_elsewhere_is_told_without_its_password(tmp_path: Path) -> None:
    listed = write(tmp_path / "requirements.txt", "-r https://bob:pa55@example.org/more.txt")
    for path in (listed, Path("https://bob:pa55@example.org/more.txt")):
        with pytest.raises(ConfigurationError) as caught:
            read_requirements(path)
        assert caught.value.what == "a requirements file must lie on this machine"
        assert "pa55" not in caught.value.why


@pytest.mark.parametrize(
    "line", ['requirements = [""]', 'ca-bundle = " "', 'wheelhouse = ""', 'host = ""', 'pip = [""]']
)
def test_an_empty_value_in_the_file_is_no_path(tmp_path: Path, line: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_config(write(tmp_path / "gpuenv.toml", line))
    assert caught.value.what == f"gpuenv.toml: {line.partition(' ')[0]} is empty"


def test_a_variable_that_is_empty_is_as_good_as_not_set(tmp_path: Path) -> None:
    config = read_config(write(tmp_path / "gpuenv.toml", 'ca-bundle = "ca.pem"'))
    setting = config.text("ca-bundle", None, {"GPUENV_CA_BUNDLE": ""})
    assert setting is not None
    assert setting.text == str(tmp_path / "ca.pem")
    assert config.texts("requirements", None, {"GPUENV_REQUIREMENTS": " "}) == ()


def test_a_variable_of_the_image_may_be_empty(tmp_path: Path) -> None:
    config = read_config(write(tmp_path / "gpuenv.toml", '[env]\nPROXY = ""'))
    assert config.variables(None)["PROXY"].text == ""
