"""Redaction: what must go goes, what tells nothing private stays readable."""

from __future__ import annotations

import json

import pytest

from gpuenv.checks.model import CheckResult, Evidence, Facts, Fix, ProbeRun, Status
from gpuenv.report.redact import HIDDEN, Redactor, env_is_shown

UUID = "GPU-3f9a1c22-7b1d-4c55-9e10-0a1b2c3d4e5f"


@pytest.mark.parametrize(
    ("text", "canary"),
    [
        ("connect to 10.3.7.99 refused", "10.3.7.99"),
        ("bound to fe80::1ff:fe23:4567:890a%eth0", "4567:890a"),
        ("peer 2001:db8:85a3::8a2e:370:7334.", "85a3"),
        ("link/ether 0c:42:a1:9f:00:13 up", "0c:42:a1:9f:00:13"),
        ("infiniband 00:00:10:49:fe:80:00:00:00:00:00:00:0c:42:a1:03:00:79:99:e2", "79:99:e2"),
        ("node guid 0c42:a103:0079:99e2", "0079:99e2"),
        ("from /home/mallory/src/train.py", "mallory"),
        ("from /Users/mallory/src/train.py", "mallory"),
        ("from /nfs/home/mallory/train.py", "mallory"),
        (r"C:\Users\mallory\train.py", "mallory"),
        ("write to mallory@example.org please", "mallory"),
        ("HF_TOKEN=hf_abcdefghijkl", "hf_abc"),
        ("HUGGINGFACE=notatokenshape99", "notatokenshape99"),
        ("the value hf_abcdefghijklmnop leaked", "hf_abc"),
        ("ghp_1234567890abcdef1234", "ghp_1234"),
        ("github_pat_11ABCDEFG0123456789", "11ABCDEFG"),
        ("key sk-proj-abcdefghijkl1234", "sk-proj"),
        ("AKIAIOSFODNN7EXAMPLE", "AKIA"),
        ("nvapi-abcdefgh12345678", "nvapi-abc"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIx.abc-def", "eyJhbGci"),
        ("Authorization: Bearer abc.def.ghi", "abc.def"),
        ("bearer 0123456789abcdef", "0123456789abcdef"),
        ("https://bob:hunter2@pypi.org/simple", "hunter2"),
        ("https://__token__:pypi-secretsecret1@pypi.org/", "secretsecret"),
        ("http://127.0.0.1:8888/lab?token=deadbeefcafe", "deadbeef"),
        ("https://x.s3.amazonaws.com/o?X-Amz-Signature=beef&b", "beef"),
        ("https://pypi.corp.acme.net/simple", "acme"),
        ("db password: hunter2!", "hunter2"),
        ('{"api_key": "hunter2hunter2"}', "hunter2"),
        ("jupyter --IdentityProvider.token=hunter2", "hunter2"),
        ("login --password hunter2", "hunter2"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNz\n-----END OPENSSH PRIVATE KEY-----", "b3B"),
        ("nas7.storage.corp mounted", "nas7"),
        ("board serial number: 1653921035123", "165392"),
        ("Serial=PF3X-9012", "PF3X"),
        ("Dec  1 12:00:03 zeus17 kernel: NVRM: Xid", "zeus17"),
        (f"device {UUID}", "3f9a1c22"),
        ("CUDA_VISIBLE_DEVICES=GPU-3f9a1c22", "3f9a1c22"),
        ("MIG-3f9a1c22-7b1d-4c55-9e10-0a1b2c3d4e5f", "7b1d"),
    ],
)
def test_private_text_goes(text: str, canary: str) -> None:
    assert canary not in Redactor().text(text)


@pytest.mark.parametrize(
    "text",
    [
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Release Build",
        "cuDNN 9.10.2.21 is older than the 9.13.0.50 torch was built with".replace(
            "the 9.13.0.50", "version 9.13.0.50"
        ),
        "nvidia-cublas-cu12==12.8.4.1",
        "bound to 127.0.0.1:8888 and ::1",
        "0000:3b:00.0 is NVIDIA 10de:2330",
        "00000000:3B:00.0",
        "terminate called after throwing c10::Error at 12:34:56",
        "std::bad_alloc",
        "docker run --user 1000:1000 --shm-size=8g -e NCCL_P2P_DISABLE=1 IMG",
        "TMPDIR=/var/cache python train.py",
        "CUBLAS_WORKSPACE_CONFIG=:4096:8",
        "see https://docs.nvidia.com/deploy/cuda-compatibility/index.html",
        "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "restart nvidia-persistenced.service and user@1000.service",
        "works as root and as non-root; /root/.cache",
        "torch 2.14.1+cu130 has sm_75, sm_80, sm_90",
        "max_split_size_mb:128,expandable_segments:True",
        "file /usr/lib/x86_64-linux-gnu/libcuda.so.580.65.06",
        "a keyword token is expected",
        "pid 4711 holds GPU 0",
        "serial execution of 100000 kernels",
    ],
)
def test_plain_text_stays(text: str) -> None:
    assert Redactor().text(text) == text


def test_one_uuid_keeps_one_short_name_in_every_report() -> None:
    first, second = Redactor().text(f"a {UUID}"), Redactor().text(f"b {UUID.upper()}")
    assert first.split()[1].split("#")[1] == second.split()[1].split("#")[1]
    assert first.startswith("a GPU-#")
    other = UUID.replace("3f9a", "3f9b")
    assert Redactor().text(other) != Redactor().text(UUID)


def test_addresses_are_numbered_so_that_lines_can_be_linked() -> None:
    redactor = Redactor()
    assert redactor.text("10.0.0.5 to 10.0.0.6") == "<ip-1> to <ip-2>"
    assert redactor.text("again 10.0.0.6") == "again <ip-2>"


def test_what_facts_name_is_removed_wherever_it_stands() -> None:
    facts = Facts(
        where={"kind": "image", "target": "registry.acme.example.net:5000/team/train:1"},
        probes={
            "host.system": ProbeRun(
                status="ok",
                facts={
                    "hostname": "zeus17.acme.example.net",
                    "user": "mallory",
                    "home": "/srv/people/mallory",
                    "kernel": "6.1.0 zeus17 built by mallory, trudy",
                },
            ),
            "host.user": ProbeRun(
                status="ok", facts={"name": "trudy", "home": {"path": "/mnt/people/trudy-x"}}
            ),
            "host.nvml": ProbeRun(
                status="ok",
                facts={"gpus": [{"serial": 1653921035123, "uuid": UUID, "board_serial": "0"}]},
            ),
            "host.env": ProbeRun(
                status="ok",
                facts={
                    "variables": {
                        "NCCL_DEBUG": "INFO",
                        "HOSTNAME": "pod-abc-77",
                        "CORP_THING": "hunter2",
                        "CUDA_API_TOKEN": "hunter3",
                    }
                },
            ),
        },
    )
    redactor = Redactor()
    redactor.learn({"where": facts.where, "probes": facts.probes})
    clean = redactor.apply(facts)
    text = json.dumps(
        [dict(clean.where), {name: dict(run.facts) for name, run in clean.probes.items()}]
    )
    for canary in (
        "zeus17", "acme", "mallory", "trudy", "1653921035123", "3f9a1c22", "pod-abc", "hunter2",
        "hunter3",
    ):  # fmt: skip
        assert canary not in text
    assert '"NCCL_DEBUG": "INFO"' in text
    assert redactor.text("serial 1653921035123 on zeus17") == "serial <serial-1> on <host>"
    assert clean.where["target"] == "<registry>/team/train:1"


def test_versions_that_look_like_addresses_stay_once_facts_name_them() -> None:
    redactor = Redactor()
    redactor.learn({"dists": {"nvidia-cudnn-cu12": "9.10.2.21"}, "peer": "10.9.8.7"})
    assert redactor.text("wants 9.10.2.21 from 10.9.8.7") == "wants 9.10.2.21 from <ip-1>"


def test_common_account_names_stay_readable() -> None:
    redactor = Redactor(users=["root", "cuda", "dev"], hosts=["localhost", "gpu"])
    text = "non-root dev sees cuda on the gpu of localhost in /home/dev"
    assert redactor.text(text) == text


def test_short_names_go_where_they_stand_alone_and_leave_words_alone() -> None:
    facts = {"host.machine": {"hostname": "vm"}, "host.user": {"facts": {"name": "al"}}}
    redactor = Redactor()
    redactor.learn(facts)
    assert redactor.apply(facts) == {
        "host.machine": {"hostname": "<host>"},
        "host.user": {"facts": {"name": "<user>"}},
    }
    assert redactor.text("vm.overcommit_memory") == "vm.overcommit_memory"


def test_results_are_redacted_in_every_text_and_keep_their_ids() -> None:
    result = CheckResult(
        id="host.driver.match",
        status=Status.FAIL,
        summary="mallory broke it",
        subject=UUID,
        why="see /home/mallory",
        evidence=(Evidence(source="/home/mallory/x", value="10.1.2.3"),),
        fixes=(Fix(side="host", text="ask mallory@example.org", command="ssh mallory@zeus17"),),
        alternatives=("mallory",),
    )
    clean = Redactor(users=["mallory"], hosts=["zeus17"]).apply(result)
    assert "mallory" not in repr(clean)
    assert "zeus17" not in repr(clean)
    assert "10.1.2.3" not in repr(clean)
    assert (clean.id, clean.status) == (result.id, result.status)
    assert clean.fixes[0].command == "ssh <user>@<host>"


def test_redacting_twice_changes_nothing_more() -> None:
    redactor = Redactor(users=["mallory"], hosts=["zeus17"])
    text = f"mallory@zeus17 10.1.2.3 {UUID} https://a:b@pypi.org/?t=1 X_SECRET=1 /home/mallory"
    once = redactor.text(text)
    assert redactor.text(once) == once


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("NCCL_SOCKET_IFNAME", True),
        ("CUDA_VISIBLE_DEVICES", True),
        ("LD_LIBRARY_PATH", True),
        ("HF_TOKEN", False),
        ("NVIDIA_API_KEY", False),
        ("TORCH_SECRET", False),
        ("SOMETHING", False),
    ],
)
def test_environment_is_an_allow_list(name: str, *, shown: bool) -> None:
    assert env_is_shown(name) is shown
    assert (HIDDEN in str(Redactor().apply({"env": {name: "value"}}))) is not shown
