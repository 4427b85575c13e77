"""Our reading of pip's settings against what ``pip install`` itself would use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpuenv.index.pip_config import load_pip_settings
from tests.conftest import missing

ASK_PIP = """
import json
from pip._internal.commands import create_command
values = create_command("install").parser.get_default_values()
names = ("index_url", "extra_index_urls", "find_links", "trusted_hosts", "no_index", "timeout")
print(json.dumps({name: getattr(values, name) for name in names}))
"""


def pip_uses(environ: dict[str, str]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", ASK_PIP], env=environ, capture_output=True, text=True, check=False
    )
    if done.returncode:
        missing("a pip in this Python that tells its defaults")
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("variable", ["", "own.conf", "gone.conf", "/dev/null"])
def test_we_use_what_pip_install_uses(tmp_path: Path, variable: str) -> None:
    files = {
        "xdg/pip/pip.conf": "[global]\nindex-url = https://xdg.example/s\ntimeout = 3\n",
        "home/.pip/pip.conf": "[global]\nindex_url = https://old.example/s\n[install]\nno-index=1\n",
        "home/.config/pip/pip.conf": "[global]\nFind-Links =\n  /a\n  /b\nextra-index-url = /%x\n",
        "own.conf": "[install]\nindex-url = https://own.example/s\n[freeze]\nindex-url = no\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    environ = {n: v for n, v in os.environ.items() if not n.startswith(("PIP_", "XDG_"))}
    environ |= {
        "HOME": str(tmp_path / "home"),
        "XDG_CONFIG_DIRS": str(tmp_path / "xdg"),
        "PIP_TRUSTED_HOST": "a.example b.example",
        "PIP_EXTRA_INDEX_URL": "",
    }
    if variable:
        environ["PIP_CONFIG_FILE"] = (
            variable if variable.startswith("/") else str(tmp_path / variable)
        )
    pip = load_pip_settings(environ, prefix=Path(sys.prefix))
    index, timeout = pip.one("index-url"), pip.one("timeout")
    assert {
        "index_url": index.value if index else "https://pypi.org/simple",
        "extra_index_urls": [s.value for s in pip.many("extra-index-url")],
        "find_links": [s.value for s in pip.many("find-links")],
        "trusted_hosts": [s.value for s in pip.many("trusted-host")],
        "no_index": pip.flag("no-index"),
        "timeout": float(timeout.value) if timeout else 15,
    } == pip_uses(environ)
