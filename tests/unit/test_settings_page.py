"""docs/settings.md names every setting and variable there is, and its sample is one that works."""

from __future__ import annotations

import re
from pathlib import Path

import gpuenv
from gpuenv.config import KEYS, read_config

PAGE = (Path(__file__).parents[2] / "docs" / "settings.md").read_text(encoding="utf-8")
HOLDS = {"text": "text", "texts": "list", "flag": "`true`/`false`", "variables": "table"}


def test_the_table_has_every_setting_with_its_variable_and_meaning() -> None:
    rows = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("| `")]
    settings = [row for row in rows if len(row) == 4]
    assert settings == [
        [
            f"`{key.name}`",
            "-" if key.kind == "variables" else f"`{key.variable}`",
            HOLDS[key.kind],
            key.meaning,
        ]
        for key in KEYS
    ]


def test_every_variable_that_gpuenv_reads_is_on_the_page() -> None:
    sources = Path(gpuenv.__file__).parent.rglob("*.py")
    read = {
        name
        for path in sources
        for name in re.findall(r'"(GPUENV_[A-Z_]*[A-Z])"', path.read_text(encoding="utf-8"))
    }
    assert read >= {"GPUENV_CONFIG", "GPUENV_STATE_DIR"}
    assert {name for name in read if f"`{name}`" not in PAGE} == set()


def test_the_sample_is_a_settings_file(tmp_path: Path) -> None:
    sample = re.search(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert sample is not None
    path = tmp_path / "gpuenv.toml"
    path.write_text(sample[1], encoding="utf-8")
    config = read_config(path)
    assert config.values["gpu"] == ["A100", "H100"]
    assert set(config.values) < {key.name for key in KEYS}
