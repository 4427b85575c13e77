"""``gpuenv run`` as a person calls it: exit codes, streams, terminal, signals, limits, faults."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import subprocess

    from tests.launch_fixtures import Desk

pytestmark = pytest.mark.engine


def run(desk: Desk, image: str, *words: str, **options: Any) -> Any:
    return desk.run("run", image, "--no-caches", *words, **options)


def nothing_left(desk: Desk) -> bool:
    return desk.environments() == ()


# --- as docker run -------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 1, 7, 125, 255])
def test_the_exit_code_is_the_commands_own(desk: Desk, base_image: str, code: int) -> None:
    done = run(desk, base_image, "--", "sh", "-c", f"exit {code}")
    assert done.exit_code == code
    assert nothing_left(desk)


def test_output_goes_where_the_command_sent_it_and_nothing_else_is_on_stdout(
    desk: Desk, base_image: str
) -> None:
    done = run(desk, base_image, "-q", "--", "sh", "-c", "echo out; echo err >&2")
    assert done.stdout == "out\n"
    assert done.stderr == "err\n"


def test_input_is_passed_on_and_its_end_as_well(desk: Desk, base_image: str) -> None:
    done = run(desk, base_image, "-i", "--", "wc", "-c", stdin=b"x" * 300_000)
    assert done.stdout.split() == ["300000"]


def test_without_asking_the_commands_input_is_empty(desk: Desk, base_image: str) -> None:
    done = run(desk, base_image, "--", "sh", "-c", "cat | wc -c", stdin=b"not for it")
    assert done.stdout.split() == ["0"]


def test_much_output_arrives_whole(desk: Desk, base_image: str) -> None:
    done = run(desk, base_image, "--", "sh", "-c", "seq 1 200000")
    assert done.stdout.splitlines() == [str(n) for n in range(1, 200_001)]


def test_json_keeps_the_commands_output_off_stdout(desk: Desk, base_image: str) -> None:
    done = run(desk, base_image, "--json", "--", "sh", "-c", "echo hello; exit 3")
    assert done.exit_code == 3
    assert done.envelope["data"]["command_exit_code"] == 3
    assert "hello" in done.stderr


def test_a_missing_program_is_127_and_a_missing_image_says_so(desk: Desk, base_image: str) -> None:
    for flags in ((), ("-d",), ("-t",), ("--entrypoint", "")):
        done = run(desk, base_image, *flags, "--json", "--", "no-such-program")
        assert (done.exit_code, done.slug) == (127, "program-missing"), flags
        assert "FATAL" not in done.stderr
    missing = run(desk, "localhost/gpuenv/no-such:1", "--json", "--", "true")
    assert (missing.exit_code, missing.slug) == (6, "image-not-found")
    assert nothing_left(desk)


def test_a_program_that_is_not_executable_is_126(desk: Desk, base_image: str) -> None:
    (desk.workspace / "train.py").write_text("print()\n")
    assert run(desk, base_image, "--", "./train.py").exit_code == 126


def test_the_workspace_is_where_the_command_starts(desk: Desk, base_image: str) -> None:
    (desk.workspace / "data").write_text("mine\n")
    done = run(desk, base_image, "--", "sh", "-c", "pwd; cat data; echo new > made")
    assert done.stdout == "/workspace\nmine\n"
    assert (desk.workspace / "made").read_text() == "new\n"


def test_variables_are_set_and_ours_are_passed_by_name(desk: Desk, base_image: str) -> None:
    words = ("-e", "A=1 = 2", "-e", "FROM_US", "-e", "NOT_OURS", "--")
    done = run(desk, base_image, *words, "env", FROM_US="yes")
    lines = done.stdout.splitlines()
    assert "A=1 = 2" in lines
    assert "FROM_US=yes" in lines
    assert not any(line.startswith("NOT_OURS") for line in lines)


def test_a_dry_run_makes_nothing_and_shows_the_whole_plan(desk: Desk, base_image: str) -> None:
    plan = run(desk, base_image, "--dry-run", "--json", "--memory", "1g", "--", "true").data["plan"]
    assert plan["spec"]["memory_bytes"] == 1 << 30
    assert plan["spec"]["shm_bytes"] == 1 << 29
    assert plan["spec"]["cap_drop"] == ["ALL"]
    assert plan["spec"]["command"] == ["true"]
    assert nothing_left(desk)


def test_detached_it_goes_on_and_is_found_by_its_name(desk: Desk, base_image: str) -> None:
    words = (
        "--detach",
        "--keep",
        "--name",
        desk.name("bg"),
        "--",
        "sh",
        "-c",
        "echo said; sleep 300",
    )
    assert run(desk, base_image, *words).stdout.strip() == desk.name("bg")
    (environment,) = desk.environments()
    assert environment.running
    desk.run("stop", desk.name("bg"), "--timeout", "1")
    assert desk.run("logs", desk.name("bg")).stdout == "said\n"
    listed = desk.run("ps", "--json").data["environments"]
    assert [e["state"] for e in listed if e["name"] == desk.name("bg")] == ["exited"]


def test_a_name_in_use_is_refused_and_the_first_goes_on(desk: Desk, base_image: str) -> None:
    words = ("--name", desk.name("one"), "--json")
    run(desk, base_image, *words, "--detach", "--", "sleep", "300")
    second = run(desk, base_image, *words, "--", "true")
    assert (second.exit_code, second.slug) == (6, "name-taken")
    (environment,) = desk.environments()
    assert environment.running


# --- the terminal --------------------------------------------------------------------------------


def read_until(handle: int, text: bytes, *, timeout_s: float = 60) -> bytes:
    seen = b""
    end = time.monotonic() + timeout_s
    while text not in seen and time.monotonic() < end:
        if select.select([handle], [], [], 1)[0]:
            try:
                seen += os.read(handle, 65536)
            except OSError:
                break
    assert text in seen, seen
    return seen


def test_in_a_terminal_the_command_has_one_with_its_size_and_ctrl_c_reaches_it(
    desk: Desk, base_image: str
) -> None:
    ours, theirs = pty.openpty()
    process = desk.popen(
        "run", base_image, "--no-caches", "--", "sh", "-c",
        "tty; stty size; trap 'echo got it; exit 9' INT; echo ready; while :; do sleep 0.1; done",
        stdin=theirs, stdout=theirs, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    assert b"/dev/pts/" in read_until(ours, b"ready")
    os.write(ours, b"\x03")
    read_until(ours, b"got it")
    assert process.wait(timeout=60) == 9
    os.close(ours)
    assert nothing_left(desk)


# --- signals -------------------------------------------------------------------------------------


def wait_for_line(process: subprocess.Popen[bytes], line: bytes) -> None:
    assert process.stdout is not None
    assert process.stdout.readline().strip() == line


@pytest.mark.parametrize(
    ("sent", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)]
)
def test_signals_reach_the_command_and_its_exit_code_comes_back(
    desk: Desk, base_image: str, sent: signal.Signals, code: int
) -> None:
    process = desk.popen(
        "run", base_image, "--no-caches", "--", "sh", "-c", "echo ready; exec sleep 300"
    )
    wait_for_line(process, b"ready")
    process.send_signal(sent)
    assert process.wait(timeout=60) == code
    assert nothing_left(desk)
    process.communicate()


def test_a_command_that_handles_the_signal_ends_as_it_likes(desk: Desk, base_image: str) -> None:
    script = "trap 'echo saved; exit 5' TERM; echo ready; while :; do sleep 0.1; done"
    process = desk.popen("run", base_image, "--no-caches", "--", "sh", "-c", script)
    wait_for_line(process, b"ready")
    process.terminate()
    out, _ = process.communicate(timeout=60)
    assert (out, process.returncode) == (b"saved\n", 5)


def test_the_third_ctrl_c_ends_a_command_that_ignores_it(desk: Desk, base_image: str) -> None:
    script = "trap '' INT; echo ready; while :; do sleep 0.1; done"
    process = desk.popen("run", base_image, "--no-caches", "--", "sh", "-c", script)
    wait_for_line(process, b"ready")
    for _ in range(3):
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)  # three presses, not one signal that the kernel merged
    assert process.wait(timeout=60) == 137
    assert nothing_left(desk)
    process.communicate()


@pytest.mark.parametrize("delay_s", [0.2, 0.5, 0.8, 1.1, 1.4, 1.8, 2.5])
def test_ctrl_c_at_any_stage_leaves_nothing(desk: Desk, base_image: str, delay_s: float) -> None:
    process = desk.popen("run", base_image, "--no-caches", "--", "sleep", "300")
    time.sleep(delay_s)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode in {130, -signal.SIGINT}, (out, err)
    assert b"Traceback" not in err or process.returncode == -signal.SIGINT
    assert nothing_left(desk)


def test_a_reader_that_goes_away_ends_the_command(desk: Desk, base_image: str) -> None:
    process = desk.popen("run", base_image, "--no-caches", "--", "yes")
    assert process.stdout is not None
    process.stdout.read(100)
    process.stdout.close()
    assert process.wait(timeout=60) == 128 + signal.SIGPIPE
    assert nothing_left(desk)
    process.communicate()


# --- limits --------------------------------------------------------------------------------------


def test_shared_memory_is_half_of_the_memory_inside(desk: Desk, base_image: str) -> None:
    done = run(desk, base_image, "--memory", "512m", "--", "df", "--output=size", "-BM", "/dev/shm")
    assert done.stdout.split()[-1] == "256M"
    done = run(
        desk, base_image, "--shm-size", "100m", "--", "df", "--output=size", "-BM", "/dev/shm"
    )
    assert done.stdout.split()[-1] == "100M"


def test_the_memory_limit_ends_only_the_offender_and_says_why(desk: Desk, base_image: str) -> None:
    run(desk, base_image, "--detach", "--name", desk.name("innocent"), "--", "sleep", "300")
    done = run(desk, base_image, "--memory", "64m", "--json", "--", "sh", "-c", "tail /dev/zero")
    assert done.exit_code == 137
    assert done.envelope["data"]["oom_killed"]
    assert "want of memory" in done.stderr
    assert [e.running for e in desk.environments()] == [True]


def test_processor_and_process_limits_are_in_force(desk: Desk, base_image: str) -> None:
    script = (
        "cat /sys/fs/cgroup/cpu.max 2>/dev/null || "
        "cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us /sys/fs/cgroup/cpu/cpu.cfs_period_us; "
        "cat /sys/fs/cgroup/pids.max 2>/dev/null || cat /sys/fs/cgroup/pids/pids.max"
    )
    done = run(desk, base_image, "--cpus", "0.5", "--pids-limit", "77", "--", "sh", "-c", script)
    quota, period, pids = done.stdout.split()
    assert int(quota) / int(period) == pytest.approx(0.5)
    assert pids == "77"


def test_a_limit_without_its_unit_is_refused_before_anything_starts(
    desk: Desk, base_image: str
) -> None:
    done = run(desk, base_image, "--memory", "16", "--json", "--", "true")
    assert (done.exit_code, done.slug) == (2, "configuration")
    assert "unit" in done.envelope["errors"][0]["why"]


# --- GPUs and torchrun ---------------------------------------------------------------------------


def test_without_a_gpu_it_runs_on_the_cpu_and_says_so_or_refuses(
    desk: Desk, base_image: str
) -> None:
    if list(Path("/dev").glob("nvidia*")):
        pytest.skip("this host has a GPU")
    done = run(desk, base_image, "--", "true")
    assert "on the CPU" in done.stderr
    refused = run(desk, base_image, "--require-gpu", "--json", "--", "true")
    assert (refused.exit_code, refused.slug) == (6, "no-gpu")


@pytest.mark.slow
def test_torchrun_starts_the_script_once_a_process(desk: Desk, jupyter_image: str) -> None:
    (desk.workspace / "train.py").write_text(
        "import os, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "x = torch.ones(1) * (dist.get_rank() + 1)\n"
        "dist.all_reduce(x)\n"
        "open(f'rank{dist.get_rank()}', 'w').write(f'{x.item()} {dist.get_world_size()}')\n"
        "dist.destroy_process_group()\n"
    )
    words = ("--nproc-per-node", "2", "--", "train.py")
    assert run(desk, jupyter_image, *words).exit_code == 0
    assert [(desk.workspace / f"rank{n}").read_text() for n in (0, 1)] == ["3.0 2", "3.0 2"]


# --- faults --------------------------------------------------------------------------------------


def test_two_at_once_do_not_disturb_each_other(desk: Desk, base_image: str) -> None:
    processes = [
        desk.popen("run", base_image, "--no-caches", "-q", "--", "sh", "-c", f"sleep 1; echo {n}")
        for n in range(3)
    ]
    assert [process.communicate(timeout=120)[0] for process in processes] == [
        b"0\n",
        b"1\n",
        b"2\n",
    ]
    assert nothing_left(desk)


def test_a_container_removed_behind_our_back_ends_the_command_with_words(
    desk: Desk, base_image: str
) -> None:
    process = desk.popen(
        "run", base_image, "--no-caches", "--json", "--", "sh", "-c", "echo ready >&2; sleep 300",
        stderr=None,
    )  # fmt: skip
    for _ in range(200):
        if any(environment.running for environment in desk.environments()):
            break
        time.sleep(0.1)
    (environment,) = desk.environments()
    desk.engine.remove(environment.container.id, force=True)
    out, _ = process.communicate(timeout=60)
    answer = json.loads(out)
    assert answer["exit_code"] == process.returncode == 137


def test_the_root_of_the_file_system_is_no_workspace(desk: Desk, base_image: str) -> None:
    done = desk.run("run", base_image, "--json", "--", "true", cwd=Path("/"))
    assert (done.exit_code, done.slug) == (2, "workspace")
