"""``gpuenv explain``: every finding and every known error text has an explanation, offline."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from gpuenv.checks.catalogue import CHECKS
from gpuenv.checks.diagnose import PROBE_CHECK
from gpuenv.cli import main
from gpuenv.errors import ConfigurationError
from gpuenv.report.explain import (
    find_explanations,
    load_explanations,
    render_explanation,
    render_list,
)
from gpuenv.resources import package_dir

KNOWN = load_explanations(CHECKS)
TEXTS = {
    name: entry
    for path in sorted((package_dir() / "report" / "explanations").glob("*.yaml"))
    for name, entry in yaml.safe_load(path.read_text()).items()
}
SIDES = {"host", "container", "image", "engine", "project"}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.id)
def test_every_check_has_a_full_explanation(check: object) -> None:
    entry = KNOWN[check.id]  # type: ignore[attr-defined]
    assert entry.title
    for part in (entry.what, entry.why, entry.causes, entry.fixes, entry.look, entry.see):
        assert part, f"{entry.id} says nothing of one of its parts"


def test_a_dead_probe_has_an_explanation() -> None:
    assert KNOWN[PROBE_CHECK].causes


@pytest.mark.parametrize("name", TEXTS)
def test_every_entry_is_well_formed(name: str) -> None:
    entry = TEXTS[name]
    assert set(entry) <= {"title", "text", "what", "why", "causes", "fix", "look", "see"}
    assert {"what", "why", "causes", "fix", "look", "see"} <= set(entry)
    assert set(entry["fix"]) <= SIDES
    lists = [entry["causes"], entry["look"], entry["see"], *entry["fix"].values()]
    lists.append(entry.get("text", ["x"]))
    for texts in lists:
        assert isinstance(texts, list)
        assert texts
        assert all(isinstance(text, str) and text for text in texts)
    assert isinstance(entry["what"], str)
    assert isinstance(entry["why"], str)
    assert ("text" in entry) == name.startswith("message.")


def test_ids_named_in_a_text_exist() -> None:
    prefixes = "|".join(sorted({name.split(".")[0] for name in TEXTS} - {"message", "torch"}))
    pattern = re.compile(rf"(?<![\w./-])(?:{prefixes})(?:\.[a-z0-9_]+)+(?![\w(/-]|\.[a-z])")
    for name, entry in TEXTS.items():
        prose = yaml.safe_dump({key: entry[key] for key in ("why", "causes", "fix")})
        for found in pattern.findall(prose):
            assert found in TEXTS or found.split(".")[-1] in {"sh", "io"}, f"{name}: {found}"


# Lines as the programs print them, with the diagnosis a person should be led to.
MESSAGES = {
    "message.nvml-unknown": ("Failed to initialize NVML: Unknown Error",),
    "message.blocked-by-os": (
        "Failed to initialize NVML: GPU access blocked by the operating system",
    ),
    "message.nvml-permissions": ("Failed to initialize NVML: Insufficient Permissions",),
    "message.nvml-mismatch": (
        "Failed to initialize NVML: Driver/library version mismatch\nNVML library",
    ),
    "message.nvml-no-driver": (
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
    ),
    "message.nvml-not-found": (
        "libnvidia-ml.so.1: cannot open shared object file: No such file or directory",
    ),
    "message.no-device-driver": (
        'docker: Error response from daemon: could not select device driver "" with',
    ),
    "message.no-cdi-driver": (
        'docker: Error response from daemon: could not select device driver "cdi" with',
    ),
    "message.unknown-runtime": (
        "docker: Error response from daemon: Unknown runtime specified nvidia.",
    ),
    "message.unresolvable-cdi": ("unresolvable CDI devices nvidia.com/gpu=all",),
    "message.require-cuda": (
        "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.8,",
    ),
    "message.driver-rpc": ("initialization error: driver rpc error: timed out",),
    "message.no-driver-torch": (
        "RuntimeError: Found no NVIDIA driver on your system. Please check that you have",
    ),
    "message.driver-too-old": (
        "The NVIDIA driver on your system is too old (found version 12080). Please update",
    ),
    "message.cpu-wheel": ("AssertionError: Torch not compiled with CUDA enabled",),
    "message.cuda-100": ("RuntimeError: No CUDA GPUs are available",),
    "message.cuda-3": (
        "RuntimeError: CUDA driver initialization failed, you might not have a CUDA gpu.",
    ),
    "message.cuda-34": ("Error 34: CUDA driver is a stub library",),
    "message.cuda-46": ("CUDA error: CUDA-capable device(s) is/are busy or unavailable",),
    "message.cuda-101": ("CUDA error: invalid device ordinal",),
    "message.cuda-802": ("Error 802: system not yet initialized (Triggered internally at",),
    "message.cuda-803": (
        "Error 803: system has unsupported display driver / cuda driver combination",
    ),
    "message.cuda-804": ("Error 804: forward compatibility was attempted on non supported HW",),
    "message.cuda-999": (
        "CUDA unknown error - this may be due to an incorrectly set up environment, e.g.",
    ),
    "message.no-kernel-image": (
        "CUDA error: no kernel image is available for execution on the device",
        "CUDA capability sm_120 is not compatible with the current PyTorch installation.",
    ),
    "message.ptx-toolchain": (
        "RuntimeError: CUDA error: provided PTX was compiled with an unsupported toolchain.",
    ),
    "message.out-of-memory": ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate",),
    "message.cudnn-incompatible": (
        "RuntimeError: cuDNN version incompatibility: PyTorch was compiled  against (9,",
    ),
    "message.nvjitlink": (
        "ImportError: libcusparse.so.12: undefined symbol: __nvJitLinkAddData_12_1,",
    ),
    "message.nccl-symbol": ("libtorch_cuda.so: undefined symbol: ncclCommRegister",),
    "message.shm-segment": (
        "Error while creating shared memory segment /dev/shm/nccl-AbC (size 9637888)",
        "This might be caused by insufficient shared memory (shm).",
    ),
    "message.ancdata": ("RuntimeError: received 0 items of ancdata",),
    "message.ibv-reg-mr": ("Call to ibv_reg_mr failed with error Cannot allocate memory",),
    "message.nccl-interface": ("Bootstrap : no socket interface found",),
    "message.duplicate-gpu": (
        "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 4000",
    ),
    "message.c-compiler": (
        "RuntimeError: Failed to find C compiler. Please specify via CC environment",
    ),
    "message.python-h": ("fatal error: Python.h: No such file or directory",),
    "message.lcuda": ("/usr/bin/ld: cannot find -lcuda: No such file or directory",),
    "message.noexec": ("ImportError: /dev/shm/x.so: failed to map segment from shared object",),
    "message.getpwuid": ("KeyError: 'getpwuid(): uid not found: 4321'",),
    "message.ptxas-gpu-name": (
        "ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'",
    ),
    "message.key-rejected": (
        "modprobe: ERROR: could not insert 'nvidia': Key was rejected by service",
    ),
    "message.no-devices-found": ("No devices were found",),
    "message.watchers": (
        "Error: ENOSPC: System limit for number of file watchers reached, watch '/w'",
    ),
}
PRINTED = [(line, name) for name, lines in MESSAGES.items() for line in lines]


@pytest.mark.parametrize(("line", "expected"), PRINTED)
def test_a_printed_line_leads_to_its_diagnosis(line: str, expected: str) -> None:
    assert [entry.id for entry in find_explanations(line, KNOWN)] == [expected]


def test_every_message_is_led_to_by_a_printed_line() -> None:
    untried = {"message.bpf-query", "message.hook-direct", "message.arch-flags"}
    names = {name for name in KNOWN if name.startswith("message.")}
    assert names - set(MESSAGES) == untried


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("CUDA error: no kernel image is available", "message.no-kernel-image"),
        ("RuntimeError: CUDA error: no kernel image", "message.no-kernel-image"),
        ("E: fatal error: Python.h: No such", "message.python-h"),
    ],
)
def test_a_line_that_was_cut_off_leads_there_as_well(line: str, expected: str) -> None:
    assert [entry.id for entry in find_explanations(line, KNOWN)] == [expected]


def test_the_last_part_of_an_id_is_enough() -> None:
    assert find_explanations("getpwuid", KNOWN)[0].id == "message.getpwuid"


@pytest.mark.parametrize(
    ("word", "near"), [("run.prob", "run.probe"), ("mesage.cuda-804", "message.cuda-804")]
)
def test_a_typing_error_is_told_the_nearest_id(word: str, near: str) -> None:
    if word in "run.probe":
        assert find_explanations(word, KNOWN)[0].id == near
        return
    with pytest.raises(ConfigurationError) as caught:
        find_explanations(word, KNOWN)
    assert near in caught.value.fix


@pytest.mark.parametrize("word", ["", "zzzzzzzz", "no such text is in there"])
def test_what_nobody_knows_is_refused(word: str) -> None:
    with pytest.raises(ConfigurationError):
        find_explanations(word, KNOWN)


@pytest.mark.parametrize("width", [80, 100])
def test_prose_keeps_the_width_and_commands_stay_whole(width: int) -> None:
    for entry in KNOWN.values():
        text = render_explanation(entry, width=width)
        for command in entry.look:
            assert f"\n    {command}\n" in text
        prose = [line for line in text.splitlines()[1:] if line.strip() not in entry.look]
        too_long = [line for line in prose if len(line) > width and " " in line.strip()]
        assert all(line.strip() in entry.see or len(line.split()) < 3 for line in too_long)


def test_list_names_everything(capsys: pytest.CaptureFixture[str]) -> None:
    text = render_list(KNOWN, width=100)
    assert all(f"  {name} " in text for name in KNOWN)
    assert main(["explain"]) == 0
    assert "message.cuda-802" in capsys.readouterr().out


def test_command_answers_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "message.cuda-34", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    (entry,) = answer["data"]["explanations"]
    assert entry["id"] == "message.cuda-34"
    assert set(entry["fixes"]) == {"container", "image"}


def test_command_refuses_the_unknown_with_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "mesage.cuda-804"]) == 2
    assert "message.cuda-804" in capsys.readouterr().err


def test_no_text_is_left_of_a_check_that_is_gone() -> None:
    ids = {check.id for check in CHECKS} | {PROBE_CHECK}
    assert [name for name in TEXTS if name not in ids and not name.startswith("message.")] == []


def test_every_gpuenv_command_a_text_names_exists(capsys: pytest.CaptureFixture[str]) -> None:
    advice = json.dumps([[e["why"], e["causes"], e["fix"], e["look"]] for e in TEXTS.values()])
    named = set(re.findall(r"\bgpuenv ((?:matrix |engine )?[a-z]+)", advice))
    assert {"doctor", "run", "build", "matrix resolve"} <= named
    for words in sorted(named):
        assert main([*words.split(), "--help"]) == 0, words
    capsys.readouterr()
