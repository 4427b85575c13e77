"""Run one function of a probe file in this process; the other end of ``_spawn.start_worker``."""

from __future__ import annotations

import importlib
import json
import os
from typing import Any

from ._child import last_words


def main(request: dict[str, Any]) -> None:
    """Call the function and send what it tells and returns as JSON lines."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def tell(entry: dict[str, Any]) -> None:
        answers.write(json.dumps(entry, default=str) + "\n")
        answers.flush()

    try:
        module = importlib.import_module("gpuenv.probes." + request["module"])
        result = getattr(module, request["function"])(request["arguments"], tell)
    except Exception as error:
        tell({"error": last_words(error)})
    else:
        tell({"result": result})
    answers.flush()
    os._exit(0)
