"""Run one probe file's probes in this process and write JSON lines to the first standard output.

The process is started with the text of ``_loader.py`` and gets its request from standard input::

    {"module": "host_pci", "probes": ["host.pci"], "options": {...}, "sources": {"_common": "..."}}

Answers, one JSON object a line: ``{"begin": NAME}``, ``{"tell": NAME, "facts": {...}}`` any number
of times, then ``{"probe": NAME, "status": "ok" | "error", "facts": {...}, "error": "..."}``.
Whatever the probe or a library prints goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys

from ._common import Context

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def main(request: dict[str, Any]) -> None:
    """Run the request's probes in their order."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(entry: dict[str, Any]) -> None:
        answers.write(json.dumps(entry, default=str) + "\n")
        answers.flush()

    module: Any | None = None
    for name in request["probes"]:
        say({"begin": name})
        told: dict[str, Any] = {}

        def tell(facts: dict[str, Any], name: str = name, told: dict[str, Any] = told) -> None:
            told.update(facts)
            say({"tell": name, "facts": facts})

        options = request.get("options", {})
        context = Context(options.get("root", "/"), options, tell)
        try:
            if module is None:
                __import__("gpuenv.probes." + request["module"])
                module = sys.modules["gpuenv.probes." + request["module"]]
            facts = module.PROBES[name](context)
        except Exception as error:
            say({"probe": name, "status": "error", "facts": told, "error": last_words(error)})
        else:
            say({"probe": name, "status": "ok", "facts": dict(told, **facts)})
    answers.flush()
    # Leave without the interpreter's own farewell: a broken driver may hang or crash in its exit
    # handlers, after the answer has been given.
    os._exit(0)


def last_words(error: BaseException) -> str:
    """Return the error and where it was raised, one line."""
    text = "{}: {}".format(type(error).__name__, error)
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    if frame is not None:
        name = os.path.basename(frame.tb_frame.f_code.co_filename)
        text += " ({}:{})".format(name, frame.tb_lineno)
    return text[:2000]
