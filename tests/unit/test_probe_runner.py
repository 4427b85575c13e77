"""Probes in their own processes: crash, hang, garbage, growth and noise are one error each."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpuenv.checks.facts import parse_facts
from gpuenv.checks.model import Level
from gpuenv.checks.probes import ProbeSpec, all_probes
from gpuenv.doctor import plan_doctor, run_doctor
from gpuenv.probing import (
    DoctorPlan,
    LocalPlace,
    probe_sources,
    read_events,
    render_bundle,
    render_request,
)
from gpuenv.process import ProgramFailedError, ProgramTimeoutError, stream_program

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuenv.checks.model import ProbeRun

pytestmark = pytest.mark.subprocess

HEAD = "from ._common import Context\nimport os, sys, time\n"
GOOD = HEAD + "PROBES = {'test.good': lambda context: {'answer': 42}}\n"


def run(
    texts: dict[str, str], specs: list[ProbeSpec], *, budget_s: float = 30.0, root: str = "/"
) -> dict[str, ProbeRun]:
    """Run made-up probe files by the real loader and runner."""
    sources = {name: text for name, text in probe_sources().items() if name.startswith("_")}
    plan = DoctorPlan(
        level=Level.STATIC,
        probes=tuple(specs),
        budget_s=budget_s,
        options={"root": root},
        asked={},
    )
    code, request = render_request(plan, {**sources, **texts}, where={"kind": "host"})
    lines = stream_program([sys.executable, "-I", "-c", code], timeout_s=60, stdin=request)
    return {name: run for name, run in read_events(lines) if run is not None}


def spec(name: str, module: str, **more: Any) -> ProbeSpec:
    return ProbeSpec(name=f"test.{name}", module=module, **more)


@pytest.mark.parametrize("environment", [False, True], ids=["forked", "own interpreter"])
@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ("os.abort()", "crashed", "SIGABRT"),
        ("os.kill(os.getpid(), 11)", "crashed", "SIGSEGV"),
        ("os._exit(3)", "crashed", "exit code 3"),
        ("os._exit(0)", "garbage", "without an answer"),
        ("raise ValueError('no such thing')", "error", "ValueError: no such thing"),
        ("time.sleep(60)", "timeout", "killed after 0.5 s"),
        ("while True: pass", "timeout", "killed after 0.5 s"),
    ],
)
def test_a_bad_probe_is_its_own_error_and_the_others_answer(
    body: str, status: str, words: str, environment: bool
) -> None:
    bad = HEAD + f"def probe(context):\n    {body}\nPROBES = {{'test.bad': probe}}\n"
    answers = run(
        {"good": GOOD, "bad": bad},
        [
            spec("bad", "bad", timeout_s=0.5, environment=environment),
            spec("good", "good", environment=environment),
        ],
    )
    assert answers["test.bad"].status == status
    assert words in answers["test.bad"].error
    assert dict(answers["test.good"].facts) == {"answer": 42}


def test_what_a_probe_told_before_it_crashed_is_kept() -> None:
    text = HEAD + (
        "def probe(context):\n    context.tell({'path': '/lib/x', 'code': 1})\n"
        "    context.tell({'code': 2})\n    os.abort()\nPROBES = {'test.bad': probe}\n"
    )
    answers = run({"bad": text}, [spec("bad", "bad")])
    assert answers["test.bad"].status == "crashed"
    assert dict(answers["test.bad"].facts) == {"path": "/lib/x", "code": 2}


def test_probes_of_one_file_go_on_in_a_new_process_after_a_crash() -> None:
    text = HEAD + (
        "PROBES = {'test.first': lambda c: {'pid': os.getpid()}, 'test.crash': lambda c: "
        "os.abort(), 'test.last': lambda c: {'pid': os.getpid()}}\n"
    )
    answers = run({"three": text}, [spec(name, "three") for name in ("first", "crash", "last")])
    assert [answers[f"test.{name}"].status for name in ("first", "crash", "last")] == [
        "ok",
        "crashed",
        "ok",
    ]
    assert answers["test.first"].facts["pid"] != answers["test.last"].facts["pid"]


def test_the_last_words_of_a_crash_are_in_its_error() -> None:
    text = HEAD + (
        "def probe(context):\n    os.write(2, b'the driver is on fire\\n'); os.abort()\n"
        "PROBES = {'test.bad': probe}\n"
    )
    assert "the driver is on fire" in run({"bad": text}, [spec("bad", "bad")])["test.bad"].error


def test_noise_on_standard_output_does_not_disturb_the_answer() -> None:
    text = HEAD + (
        'def probe(context):\n    print(\'{"probe": "test.good", "status": "ok"}\')\n'
        "    sys.stdout.flush()\n    os.write(1, b'NCCL INFO Bootstrap\\n')\n"
        "    return {'answer': 42}\nPROBES = {'test.good': probe}\n"
    )
    answers = run({"noisy": text}, [spec("good", "noisy")])
    assert dict(answers["test.good"].facts) == {"answer": 42}


def test_a_probe_that_grows_is_ended() -> None:
    text = HEAD + (
        "def probe(context):\n    held = []\n    while True:\n"
        "        held.append(bytearray(8 << 20)); time.sleep(0.01)\nPROBES = {'test.fat': probe}\n"
    )
    answers = run(
        {"fat": text, "good": GOOD},
        [spec("fat", "fat", memory_mib=96, timeout_s=20), spec("good", "good")],
    )
    assert answers["test.fat"].status == "error"
    assert "96 MiB are allowed" in answers["test.fat"].error
    assert answers["test.good"].status == "ok"


def test_processes_a_probe_started_die_with_it(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    text = HEAD + (
        "import subprocess\ndef probe(context):\n"
        "    child = subprocess.Popen(['sleep', '600'])\n"
        f"    open({str(mark)!r}, 'w').write(str(child.pid))\n"
        "    time.sleep(60)\nPROBES = {'test.bad': probe}\n"
    )
    run({"bad": text}, [spec("bad", "bad", timeout_s=1.0)])
    status = Path(f"/proc/{mark.read_text()}/stat")
    assert not status.exists() or " Z " in status.read_text()


def test_what_the_whole_time_does_not_suffice_for_is_a_timeout() -> None:
    slow = HEAD + "PROBES = {'test.slow': lambda context: time.sleep(60)}\n"
    answers = run(
        {"slow": slow, "good": GOOD},
        [
            spec("slow", "slow", alone=True, timeout_s=50),
            spec("good", "good", alone=True, timeout_s=50),
        ],
        budget_s=1.0,
    )
    assert {name: run.status for name, run in answers.items()} == {
        "test.slow": "timeout",
        "test.good": "timeout",
    }


def test_a_probe_does_not_import_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')")
    (tmp_path / "errno.py").write_text("raise SystemExit('the wrong errno')")
    monkeypatch.chdir(tmp_path)
    answers = run({"good": GOOD}, [spec("good", "good", environment=True)])
    assert answers["test.good"].status == "ok"


def test_a_python_that_is_none_is_an_error_of_its_probes_only() -> None:
    sources = {**probe_sources(), "good": GOOD}
    plan = DoctorPlan(
        level=Level.STATIC,
        probes=(spec("good", "good", environment=True),),
        budget_s=10,
        options={"root": "/"},
        asked={},
    )
    code, request = render_request(plan, sources, where={}, python="/no/such/python")
    lines = stream_program([sys.executable, "-I", "-c", code], timeout_s=30, stdin=request)
    answers = {name: run for name, run in read_events(lines) if run is not None}
    assert answers["test.good"].status == "error"
    assert "/no/such/python" in answers["test.good"].error


def test_the_static_probes_answer_on_this_machine() -> None:
    facts = run_doctor(plan_doctor(level=Level.STATIC), LocalPlace(), lambda *_: None)
    assert {name: run.error for name, run in facts.probes.items() if run.status != "ok"} == {}
    assert facts.complete


def test_the_probes_work_in_one_file_from_standard_input(tmp_path: Path) -> None:
    plan = plan_doctor(level=Level.STATIC, require=("gpu",))
    text = render_bundle(plan, probe_sources(), version="0")
    here = tmp_path / "here"
    here.mkdir()
    done = subprocess.run(
        [sys.executable, "-"],
        input=text.encode(),
        capture_output=True,
        cwd=here,
        env={"PATH": os.environ["PATH"]},
        timeout=60,
        check=True,
    )
    facts = parse_facts(done.stdout.decode())
    assert set(facts.probes) == {spec.name for spec in plan.probes}
    assert {run.status for run in facts.probes.values()} == {"ok"}
    assert facts.asked["require"] == ["gpu"]
    assert list(here.iterdir()) == []


def test_the_one_file_says_what_it_is_and_refuses_an_old_python() -> None:
    text = render_bundle(plan_doctor(level=Level.STATIC), probe_sources(), version="1.2.3")
    assert "gpuenv 1.2.3" in text.split("\n", maxsplit=2)[1]
    ast.parse(text, feature_version=(3, 8))
    assert 'sys.exit("gpuenv probes need Python 3.8 or newer")' in text


@pytest.mark.parametrize("name", sorted(probe_sources()))
def test_a_probe_file_is_syntax_of_python_3_8_and_fits_the_one_file(name: str) -> None:
    text = probe_sources()[name]
    tree = ast.parse(text, feature_version=(3, 8))
    assert "'''" not in text, "it would end the raw string of the one file"
    later = {
        "removeprefix",
        "removesuffix",
        "is_relative_to",
        "pairwise",
        "bit_count",
        "exception_note",
    }
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert used & later == set()
    imported = {
        alias.name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    } | {
        str(node.module).split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and not node.level
    }
    allowed = set(sys.stdlib_module_names) | {"torch", "triton", "numpy"}
    assert imported <= allowed, imported - allowed


def test_every_probe_of_the_catalogue_is_in_its_file() -> None:
    sources = probe_sources()
    for probe in all_probes():
        assert f'"{probe.name}"' in sources[probe.module], probe.name


def test_ctrl_c_keeps_what_is_known_and_marks_the_rest() -> None:
    class Interrupted:
        def where(self) -> dict[str, str]:
            return {"kind": "host"}

        def run(self, plan: DoctorPlan) -> Iterator[tuple[str, ProbeRun | None]]:
            events = LocalPlace().run(plan)
            for event in events:
                yield event
                if event[1] is not None:
                    raise KeyboardInterrupt

    facts = run_doctor(plan_doctor(level=Level.STATIC), Interrupted(), lambda *_: None)
    known = [run for run in facts.probes.values() if run.status == "ok"]
    assert len(known) == 1
    assert not facts.complete
    assert {run.error for run in facts.probes.values() if run.status == "skipped"} == {
        "interrupted"
    }


def test_a_stream_ends_with_its_reader(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    script = f"echo $$ > {mark}; echo line; sleep 600"
    lines = stream_program(["sh", "-c", script], timeout_s=60)
    assert next(lines) == "line"
    lines.close()  # type: ignore[attr-defined]
    status = Path(f"/proc/{mark.read_text().strip()}/stat")
    assert not status.exists() or " Z " in status.read_text()


def test_a_stream_that_fails_says_so_with_its_last_words() -> None:
    with pytest.raises(ProgramFailedError) as caught:
        list(stream_program(["sh", "-c", "echo out; echo err >&2; exit 5"], timeout_s=20))
    assert (caught.value.exit_code, caught.value.stderr) == (5, "err\n")


def test_a_stream_that_hangs_is_ended() -> None:
    with pytest.raises(ProgramTimeoutError):
        list(stream_program(["sh", "-c", "exec sleep 600"], timeout_s=0.3))


def test_a_stream_feeds_a_program_that_does_not_read() -> None:
    text = "x" * (1 << 20)
    assert list(stream_program(["true"], timeout_s=20, stdin=text.encode())) == []
    cat = list(stream_program(["cat"], timeout_s=20, stdin=text.encode()))
    assert cat == [text]


def test_lines_that_are_not_ours_are_passed_over() -> None:
    lines = [
        "Welcome to the cluster!",
        "[1, 2]",
        '{"hello": 1}',
        '{"begin": "a"}',
        json.dumps({"probe": "a", "status": "ok", "facts": {"x": 1}}),
    ]
    events = list(read_events(lines))
    assert [name for name, _ in events] == ["a", "a"]
    assert events[1][1] is not None
    assert dict(events[1][1].facts) == {"x": 1}


def test_the_doctor_needs_none_of_the_heavy_libraries() -> None:
    code = (
        "import sys\n"
        "away = {'docker', 'paramiko', 'pynvml', 'torch', 'requests', 'jsonschema', 'google'}\n"
        "class Away:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in away:\n"
        "            raise ImportError(name + ' is not installed')\n"
        "sys.meta_path.insert(0, Away())\n"
        "from gpuenv.cli import main\n"
        "sys.exit(main(['doctor', '--level', 'static', '--json']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, timeout=60, check=False
    )
    envelope = json.loads(done.stdout)
    assert envelope["errors"] == []
    assert envelope["exit_code"] == done.returncode
