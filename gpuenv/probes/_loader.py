"""The text behind ``python -c``: import probe files from a request instead of from a disk.

Nothing of gpuenv needs to be installed where this runs and nothing is written there. The request
comes on standard input as one JSON object with the files' texts under ``sources``.
"""

from __future__ import annotations

import sys

# The current folder comes first for ``python -c``; a file json.py or torch.py in it is not ours.
sys.path[:] = [entry for entry in sys.path if entry]

import json  # noqa: E402 - the path must be mended before the first real import

TYPE_CHECKING = False  # importing typing would double the start of a probe
if TYPE_CHECKING:
    import types

ModuleSpec = type(sys.__spec__)


class Sources:
    """Find ``gpuenv.probes`` and its modules among texts; tracebacks and inspect see them too.

    A meta path finder and loader by its methods: the base classes cost 15 ms to import.
    """

    def __init__(self, texts: dict[str, str]) -> None:
        """Take the texts by module name, without ``gpuenv.probes.``."""
        self.texts = {"gpuenv": "", "gpuenv.probes": ""}
        self.texts.update({"gpuenv.probes." + name: text for name, text in texts.items()})

    def find_spec(
        self,
        fullname: str,
        path: object = None,  # noqa: ARG002 - the protocol's
        target: object = None,  # noqa: ARG002
    ) -> object:
        """Return how to load one of ours, ``None`` for everything else."""
        if fullname not in self.texts:
            return None
        return ModuleSpec(
            fullname,
            self,
            origin="<" + fullname + ">",
            is_package=fullname in ("gpuenv", "gpuenv.probes"),
        )

    def create_module(self, spec: object) -> None:  # noqa: ARG002 - the protocol's
        """Leave making the module to the import system."""
        return

    def exec_module(self, module: types.ModuleType) -> None:
        """Run the text in the new module."""
        exec(self.get_code(module.__name__), module.__dict__)  # noqa: S102 - that is importing

    def get_source(self, fullname: str) -> str:
        """Return the text, which is where inspect, linecache and triton find it."""
        return self.texts[fullname]

    def get_code(self, fullname: str) -> types.CodeType:
        """Compile under a name that tracebacks can show."""
        return compile(self.texts[fullname], "<" + fullname + ">", "exec", dont_inherit=True)


def install(texts: dict[str, str]) -> None:
    """Let ``import gpuenv.probes.NAME`` take these texts, before anything installed here."""
    sys.meta_path.insert(0, Sources(texts))


if __name__ == "__main__":
    request = json.loads(sys.stdin.buffer.read().decode("utf-8"))
    install(request.pop("sources"))
    entry = "gpuenv.probes." + request.get("entry", "_child")
    __import__(entry)
    sys.modules[entry].main(request)
