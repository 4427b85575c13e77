"""Commands of the area: doctor and explain."""

from __future__ import annotations

import os
import threading
import time
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from gpuenv import output
from gpuenv.commands import command, group
from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpuenv.checks.model import Facts, Level
    from gpuenv.doctor import DoctorPlan, ProbePlace
    from gpuenv.report.redact import Redactor
    from gpuenv.report.report import Report
    from gpuenv.ssh.remote import RemoteAddress


class LevelName(str, Enum):
    """How deep the doctor looks."""

    STATIC = "static"
    QUICK = "quick"
    STANDARD = "standard"
    DEEP = "deep"


class Format(str, Enum):
    """What the report looks like on standard output."""

    TABLE = "table"
    JSON = "json"
    GITHUB = "github"
    JUNIT = "junit"
    HTML = "html"
    TAP = "tap"


_WHERE = "Where"
_WHAT = "What"
_REPORT = "Report"

LevelOption = Annotated[
    LevelName | None,
    typer.Option(
        help="static: under a second, no torch import. quick (default): computes on each GPU. "
        "standard: NCCL, bandwidth, compile. deep: soak.",
        rich_help_panel=_WHAT,
        show_default=False,
    ),
]
PythonOption = Annotated[
    str | None,
    typer.Option(
        metavar="PATH", help="Look at the environment of this Python.", rich_help_panel=_WHERE
    ),
]
ImageOption = Annotated[
    str | None,
    typer.Option(
        metavar="REF",
        help="Look inside this image: a container is started and removed.",
        rich_help_panel=_WHERE,
    ),
]
ContainerOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Look inside this running container.", rich_help_panel=_WHERE
    ),
]
EmitOption = Annotated[
    bool,
    typer.Option(
        "--emit-probe",
        help="Print the probes as one Python file, to be piped into any place; "
        "--from judges what it answers.",
        rich_help_panel=_WHERE,
    ),
]
EngineOption = Annotated[
    str | None,
    typer.Option(
        "--engine",
        "--host",
        metavar="ADDRESS",
        help="ssh://user@host: look at that host. With --image and --container: the engine.",
        rich_help_panel=_WHERE,
    ),
]
FromOption = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="FILE",
        help="Check facts captured earlier (- for standard input) instead of probing.",
        rich_help_panel=_WHERE,
    ),
]
RequireOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="WORDS",
        help="What must be confirmed, comma-separated: gpu,nccl,compile... Exit code 3 if it "
        "cannot be checked.",
        rich_help_panel=_WHAT,
    ),
]
SkipOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="IDS",
        help="Checks to leave out, with commas; * stands for anything.",
        rich_help_panel=_WHAT,
    ),
]
StrictOption = Annotated[
    bool, typer.Option("--strict", help="Count warnings as failures.", rich_help_panel=_WHAT)
]
ExpectOption = Annotated[
    int | None,
    typer.Option(min=0, metavar="N", help="How many GPUs there must be.", rich_help_panel=_WHAT),
]
TimeoutOption = Annotated[
    float | None,
    typer.Option(
        min=1.0, metavar="SECONDS", help="For all probes together.", rich_help_panel=_WHAT
    ),
]
FormatOption = Annotated[
    Format,
    typer.Option(
        "--format", help="Format of the report on standard output.", rich_help_panel=_REPORT
    ),
]
JunitOption = Annotated[
    str | None,
    typer.Option("--junit", metavar="FILE", help="Also write JUnit XML.", rich_help_panel=_REPORT),
]
HtmlOption = Annotated[
    str | None,
    typer.Option(
        "--html", metavar="FILE", help="Also write one HTML page.", rich_help_panel=_REPORT
    ),
]
CaptureOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE", help="Also write the facts, for --from and diff.", rich_help_panel=_REPORT
    ),
]
NoRedactOption = Annotated[
    bool,
    typer.Option(
        "--no-redact",
        help="Keep host and user names, addresses, serial numbers and secrets.",
        rich_help_panel=_REPORT,
    ),
]
SysrootOption = Annotated[str, typer.Option(hidden=True, metavar="DIR")]


def doctor(  # noqa: PLR0917 - typer calls it by keyword
    ctx: typer.Context,
    level: LevelOption = None,
    python: PythonOption = None,
    image: ImageOption = None,
    container: ContainerOption = None,
    engine: EngineOption = None,
    from_file: FromOption = None,
    emit_probe: EmitOption = False,
    require: RequireOption = None,
    skip: SkipOption = None,
    strict: StrictOption = False,
    expect_gpus: ExpectOption = None,
    timeout: TimeoutOption = None,
    format: FormatOption = Format.TABLE,  # noqa: A002 - the flag's name
    junit: JunitOption = None,
    html: HtmlOption = None,
    capture: CaptureOption = None,
    no_redact: NoRedactOption = False,
    sysroot: SysrootOption = "/",
) -> None:
    """Find out what keeps GPUs from working here, and how to mend it.

    Looks at driver, container runtime, CUDA, torch, NCCL, numerics and limits, on this host or
    inside an image, a container or a virtualenv, and names the one cause with its fix. Exit code
    0: no failure, 1: a failure, 3: something --require names could not be checked.

    Example: gpuenv doctor --level static
    """
    if ctx.invoked_subcommand is not None:
        return
    from gpuenv.checks.asked import require_known_ids, require_known_words, split_words
    from gpuenv.checks.catalogue import CHECKS
    from gpuenv.checks.model import Level

    out = output.current()
    out.json_mode = out.json_mode or format is Format.JSON
    _only_one_place(
        {"--python": python, "--image": image, "--container": container, "--from": from_file}
    )
    asked = _Asked(
        level=None if level is None else Level[level.name],
        require=split_words(require or ()),
        skip=split_words(skip or ()),
        expect_gpus=expect_gpus,
        timeout_s=timeout,
        sysroot=sysroot,
    )
    require_known_words(asked.require, CHECKS)
    require_known_ids(asked.skip, CHECKS)
    if emit_probe:
        _emit(asked)
        return
    elapsed_s, names = None, ("", "", "")
    if from_file is not None:
        facts = _read(from_file, asked)
    else:
        begun = time.monotonic()
        with _place(python=python, image=image, container=container, engine=engine) as place:
            facts = _probe(asked, place)
            names = _names_of(place)
        elapsed_s = time.monotonic() - begun
    redactor = None if no_redact else _redactor(*names)
    report = _judge(facts, redactor=redactor, strict=strict, elapsed_s=elapsed_s)
    _write_files(report, capture=capture, junit=junit, html=html)
    _show(report, format)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """The flags that say what is asked, once parsed."""

    level: Level | None
    require: tuple[str, ...]
    skip: tuple[str, ...]
    expect_gpus: int | None
    timeout_s: float | None
    sysroot: str

    def plan(self) -> DoctorPlan:
        """Return the plan for probing."""
        from gpuenv.checks.model import Level
        from gpuenv.doctor import plan_doctor

        return plan_doctor(
            level=Level.QUICK if self.level is None else self.level,
            require=self.require,
            skip=self.skip,
            expect_gpus=self.expect_gpus,
            sysroot=self.sysroot,
            budget_s=self.timeout_s,
        )


def _only_one_place(places: Mapping[str, str | None]) -> None:
    named = [flag for flag, value in places.items() if value is not None]
    if len(named) > 1:
        from gpuenv.errors import UsageError

        raise UsageError(f"{' and '.join(named)} exclude one another", fix="name one place")


def _read(from_file: str, asked: _Asked) -> Facts:
    from gpuenv.checks.asked import ask_again
    from gpuenv.checks.facts import load_facts

    return ask_again(
        load_facts(from_file),
        level=asked.level,
        require=asked.require,
        expect_gpus=asked.expect_gpus,
        skip=asked.skip,
    )


def _emit(asked: _Asked) -> None:
    from gpuenv import __version__
    from gpuenv.probing import probe_sources, render_bundle

    out = output.current()
    text = render_bundle(asked.plan(), probe_sources(), version=__version__)
    out.answer({"python": text}, human=lambda: out.text(text))


@contextmanager
def _place(
    *, python: str | None, image: str | None, container: str | None, engine: str | None
) -> Iterator[ProbePlace]:
    """Yield the place the flags name; an engine is opened only for an image or a container."""
    from gpuenv import probing

    if image is None and container is None:
        remote = _remote_host(engine)
        if remote is not None:
            from gpuenv.ssh.remote import log_in

            with log_in(remote) as host:
                yield probing.RemotePlace(shell=host, name=remote.jump, python=python)
            return
        chosen = probing.active_python(os.environ)
        if python is not None:
            yield probing.LocalPlace(python=probing.find_python(python))
        else:
            yield probing.LocalPlace(environment=chosen)
        return
    from gpuenv.commands.wiring import open_engine
    from gpuenv.engine.protocol import GpuRequest
    from gpuenv.validate import check_container, check_image_ref

    if container is not None:
        check_container(container, origin="--container")
    else:
        check_image_ref(image or "", origin="--image")
    with open_engine(engine) as opened:
        if container is not None:
            yield probing.ContainerPlace(engine=opened, container=container)
            return
        can = opened.capabilities
        gives_gpus = bool(can.cdi_devices) or "nvidia" in can.runtimes
        yield probing.ImagePlace(
            engine=opened, image=image or "", gpu=GpuRequest() if gives_gpus else None
        )


def _remote_host(engine: str | None) -> RemoteAddress | None:
    """Return the host that the user works on, if it is another one, and say so if it is not new.

    Raises:
        EngineUnavailableError: The address on the command line is none.
    """
    from gpuenv.commands.site import settled_host
    from gpuenv.engine.connect import find_addresses
    from gpuenv.errors import EngineUnavailableError
    from gpuenv.ssh.remote import parse_remote

    try:
        address = find_addresses(engine, os.environ, settled=settled_host())[0]
    except EngineUnavailableError:
        if engine is not None:
            raise
        return None  # what is wrong with the engine's address is a finding, not the end
    if not address.url.startswith("ssh://"):
        return None
    remote = parse_remote(address.url)
    if engine is None:
        output.current().note(f"looking at {remote.jump} ({address.found_via})")
    return remote


def _names_of(place: ProbePlace) -> tuple[str, str, str]:
    """Return the names of a remote host, of the user there and of the home, to be redacted."""
    from gpuenv.probing import RemotePlace
    from gpuenv.ssh.remote import RemoteHost

    if not isinstance(place, RemotePlace) or not isinstance(place.shell, RemoteHost):
        return "", "", ""
    host = place.shell
    return host.address.host, host.facts.caller.login, host.facts.home


def _probe(asked: _Asked, place: ProbePlace) -> Facts:
    from gpuenv.commands.progress import ProbeProgress
    from gpuenv.doctor import run_doctor

    plan = asked.plan()
    # While the probes run, which are other processes, load what judging and showing will need.
    threading.Thread(target=_load_the_rest, daemon=True).start()
    with ProbeProgress(output.current(), total=len(plan.probes)) as progress:
        return run_doctor(plan, place, progress)


def _load_the_rest() -> None:
    import gpuenv.checks.catalogue
    import gpuenv.matrix.load
    import gpuenv.matrix.resolve
    import gpuenv.report.report  # noqa: F401 - the import is the purpose


def _redactor(host: str = "", user: str = "", home: str = "") -> Redactor:
    import os
    import platform

    from gpuenv.report.redact import Redactor

    names = ("USER", "LOGNAME", "SUDO_USER")
    return Redactor(
        hosts=[platform.node(), host],
        users=[*(os.environ.get(name, "") for name in names), user],
        homes=[os.environ.get("HOME", ""), home],
    )


def _judge(
    facts: Facts,
    *,
    redactor: Redactor | None,
    strict: bool = False,
    elapsed_s: float | None = None,
) -> Report:
    from datetime import datetime, timezone

    from gpuenv.checks.catalogue import CHECKS
    from gpuenv.doctor import judge
    from gpuenv.report.report import make_report

    return make_report(
        judge(facts, strict=strict),
        facts,
        CHECKS,
        redactor=redactor,
        strict=strict,
        elapsed_s=elapsed_s,
        created=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )


def _write_files(
    report: Report, *, capture: str | None, junit: str | None, html: str | None
) -> None:
    from pathlib import Path

    from gpuenv.report.deliver import render_facts, render_text, write_text

    out = output.current()
    if capture is not None:
        write_text(Path(capture), render_facts(report.facts))
        out.note(f"facts written to {capture}")
    if junit is not None:
        write_text(Path(junit), render_text(report, "junit"))
        out.note(f"JUnit written to {junit}")
    if html is not None:
        write_text(Path(html), render_text(report, "html"))
        out.note(f"page written to {html}")


def _show(report: Report, form: Format) -> None:
    import os
    from pathlib import Path

    from gpuenv.report.deliver import append_step_summary, render_text
    from gpuenv.report.document import envelope_errors, report_as_document

    out = output.current()
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if form is Format.GITHUB and summary:
        append_step_summary(Path(summary), report)

    def human() -> None:
        if form is Format.TABLE or form is Format.JSON:
            _print_table(report)
        else:
            out.text(render_text(report, form.value))

    code = report.diagnosis.exit_code
    out.answer(
        report_as_document(report),
        human=human,
        status="success" if code == 0 else "partial" if report.diagnosis.interrupted else "error",
        exit_code=code,
        errors=envelope_errors(report),
    )


def _print_table(report: Report) -> None:
    from gpuenv.report.table import as_text, render_lines, symbols_for

    out = output.current()
    console = out.console()
    lines = render_lines(
        report,
        width=console.width,
        verbosity=out.verbosity,
        symbols=symbols_for(console.encoding),
    )
    console.print(as_text(lines), soft_wrap=True)


def doctor_diff(
    first: Annotated[str, typer.Argument(metavar="A", help="Facts or report of one place.")],
    second: Annotated[str, typer.Argument(metavar="B", help="Facts or report of the other.")],
    no_redact: NoRedactOption = False,
) -> None:
    """Show what differs between two places: "works there, not here".

    Takes what --capture or --json wrote. Differing findings come first, then the facts that matter
    for them; -v shows the rest.

    Example: gpuenv doctor diff there.json here.json
    """
    from gpuenv.checks.catalogue import CHECKS
    from gpuenv.checks.facts import load_facts
    from gpuenv.report.compare import compare, comparison_as_document
    from gpuenv.report.compare_text import render_comparison
    from gpuenv.report.table import as_text, symbols_for

    out = output.current()
    redactor = None if no_redact else _redactor()
    a, b = (_judge(load_facts(path), redactor=redactor) for path in (first, second))
    compared = compare((a.facts, a.diagnosis), (b.facts, b.diagnosis), CHECKS)

    def human() -> None:
        console = out.console()
        lines = render_comparison(
            compared,
            [(first, a.diagnosis), (second, b.diagnosis)],
            width=console.width,
            verbosity=out.verbosity,
            symbols=symbols_for(console.encoding),
        )
        console.print(as_text(lines), soft_wrap=True)

    out.answer(comparison_as_document(compared), human=human)


def explain(
    word: Annotated[
        str | None,
        typer.Argument(
            metavar="ID", help="A check's id, or a piece of an error message.", show_default=False
        ),
    ] = None,
) -> None:
    """Explain a finding of the doctor: what was checked, why it matters, causes, fixes.

    Without ID it lists them all. Needs no network.

    Example: gpuenv explain host.driver.match
    """
    from gpuenv.checks.catalogue import CHECKS
    from gpuenv.report.explain import (
        explanation_as_document,
        find_explanations,
        load_explanations,
        render_explanation,
        render_list,
    )

    out = output.current()
    known = load_explanations(CHECKS)
    width = out.console().width
    if word is None:
        out.answer(
            {"explanations": [{"id": entry.id, "title": entry.title} for entry in known.values()]},
            human=lambda: out.text(render_list(known, width=width)),
        )
        return
    found = find_explanations(word, known)
    out.answer(
        {"explanations": [explanation_as_document(entry) for entry in found]},
        human=lambda: out.text(
            "\n".join(render_explanation(entry, width=width) for entry in found)
        ),
    )


def register(app: typer.Typer) -> None:
    """Add the area's commands to ``app``."""
    below = group(app, "doctor", doctor)
    command(below, "diff")(doctor_diff)
    command(app, "explain")(explain)
