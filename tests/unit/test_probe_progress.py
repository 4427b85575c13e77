"""Progress of the probes: on standard error, and nothing of it where nobody watches."""

from __future__ import annotations

import io

from gpuenv.checks.model import ProbeRun
from gpuenv.commands.progress import ProbeProgress
from gpuenv.output import Output


def run_two(verbosity: int) -> tuple[str, str]:
    stdout, stderr = io.StringIO(), io.StringIO()
    out = Output(stdout=stdout, stderr=stderr, environ={}, verbosity=verbosity)
    with ProbeProgress(out, total=2) as progress:
        progress("host.pci", None)
        progress("host.pci", ProbeRun(status="ok", duration_s=0.25))
        progress("torch.kernel", None)
        progress("torch.kernel", ProbeRun(status="crashed", error="signal 11", duration_s=1.5))
    return stdout.getvalue(), stderr.getvalue()


def test_nothing_is_printed_where_nobody_watches() -> None:
    assert run_two(0) == ("", "")


def test_verbose_keeps_a_line_for_each_probe() -> None:
    assert run_two(1) == ("", "host.pci: ok, 0.25 s\ntorch.kernel: crashed, 1.50 s\n")
