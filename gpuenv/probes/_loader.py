"""The text behind ``python -c``: import probe files from a request instead of from a disk.

Nothing of gpuenv needs to be installed where this runs and nothing is written there. The request
comes on standard input as one JSON object with the files' texts under ``sources``.
"""

from __future__ import annotations

import sys

# The current folder comes first for ``python -c``; a file json.py or torch.py in it is not ours.
sys.path[:] = [entry for entry in sys.path if entry]

import importlib.abc  # noqa: E402 - the path must be mended before the first real import
import importlib.machinery  # noqa: E402
import json  # noqa: E402
from typing import TYPE_CHECKING  # noqa: E402

if TYPE_CHECKING:
    import types


class Sources(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Find ``gpuenv.probes`` and its modules among texts; tracebacks and inspect see them too."""

    def __init__(self, texts: dict[str, str]) -> None:
        """Take the texts by module name, without ``gpuenv.probes.``."""
        self.texts = {"gpuenv": "", "gpuenv.probes": ""}
        self.texts.update({"gpuenv.probes." + name: text for name, text in texts.items()})

    def find_spec(
        self,
        fullname: str,
        path: object = None,  # noqa: ARG002 - the protocol's
        target: object = None,  # noqa: ARG002
    ) -> importlib.machinery.ModuleSpec | None:
        """Return how to load one of ours, ``None`` for everything else."""
        name = fullname
        if name not in self.texts:
            return None
        return importlib.machinery.ModuleSpec(
            name,
            self,
            origin="<" + name + ">",
            is_package=name in ("gpuenv", "gpuenv.probes"),
        )

    def get_source(self, fullname: str) -> str:
        """Return the text, which is where inspect, linecache and triton find it."""
        return self.texts[fullname]

    def get_code(self, fullname: str) -> types.CodeType:
        """Compile under a name that tracebacks can show."""
        return compile(self.texts[fullname], "<" + fullname + ">", "exec")


def install(texts: dict[str, str]) -> None:
    """Let ``import gpuenv.probes.NAME`` take these texts, before anything installed here."""
    sys.meta_path.insert(0, Sources(texts))


if __name__ == "__main__":
    request = json.loads(sys.stdin.buffer.read().decode("utf-8"))
    install(request.pop("sources"))
    import importlib

    importlib.import_module("gpuenv.probes." + request.get("entry", "_child")).main(request)
