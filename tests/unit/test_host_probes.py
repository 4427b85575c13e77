"""The probes that read files, each on a folder that pictures a machine."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

import pytest

from gpuenv.checks.model import Facts, ProbeRun
from gpuenv.probes import (
    host_driver,
    host_engine,
    host_env,
    host_kernel_log,
    host_libs,
    host_limits,
    host_machine,
    host_network,
    host_nodes,
    host_pci,
    host_storage,
    host_toolkit,
    host_user,
    torch_static,
)
from gpuenv.probes._common import Context

if TYPE_CHECKING:
    from pathlib import Path


class Machine:
    """A folder that stands for ``/``."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def file(self, path: str, content: str | bytes = "") -> None:
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content if isinstance(content, bytes) else content.encode())

    def link(self, path: str, target: str) -> None:
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(target)

    def ask(self, module: Any, **options: Any) -> dict[str, Any]:
        (probe,) = module.PROBES.values()
        answer: dict[str, Any] = probe(Context(str(self.root), options))
        json.dumps(answer)
        return answer


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    root = tmp_path / "root"
    root.mkdir()
    return Machine(root)


def pci_device(machine: Machine, bdf: str, kind: str, **files: str | bytes) -> None:
    folder = f"/sys/devices/pci0000:00/0000:00:01.0/{bdf}"
    machine.file(folder + "/vendor", "0x10de\n")
    machine.file(folder + "/class", kind + "\n")
    for name, content in files.items():
        machine.file(f"{folder}/{name}", content)
    machine.link(f"/sys/bus/pci/devices/{bdf}", f"../../../devices/pci0000:00/0000:00:01.0/{bdf}")


EVERY_PROBE = (
    host_driver, host_engine, host_env, host_kernel_log, host_libs, host_limits, host_machine,
    host_network, host_nodes, host_pci, host_storage, host_toolkit, host_user,
)  # fmt: skip


@pytest.mark.parametrize("module", EVERY_PROBE, ids=lambda module: module.__name__.split(".")[-1])
def test_an_empty_folder_is_a_machine_without_anything(machine: Machine, module: Any) -> None:
    assert machine.ask(module)


@pytest.mark.parametrize("module", EVERY_PROBE, ids=lambda module: module.__name__.split(".")[-1])
def test_unreadable_garbage_is_read_as_nothing(machine: Machine, module: Any) -> None:
    for path in (
        "/proc/driver/nvidia/version", "/proc/mounts", "/proc/self/cgroup", "/proc/meminfo",
        "/proc/modules", "/proc/devices", "/etc/docker/daemon.json", "/etc/cdi/nvidia.yaml",
        "/etc/nvidia-container-runtime/config.toml", "/etc/ld.so.cache", "/etc/ld.so.conf",
        "/etc/passwd", "/etc/os-release", "/proc/self/uid_map", "/proc/uptime",
        "/var/log/kern.log", "/sys/class/net/eth0/flags", "/proc/self/mountinfo",
    ):  # fmt: skip
        machine.file(path, b"\xff\xfe\x00 : = [ { ;;; \n" * 3)
    assert machine.ask(module)


def test_pci_gpus_their_driver_and_bars(machine: Machine) -> None:
    pci_device(
        machine, "0000:01:00.0", "0x030200", device="0x2330\n", numa_node="1\n",
        resource="0x00000000fa000000 0x00000000faffffff 0x40200\n"
        "0x0000004000000000 0x0000005fffffffff 0x14220c\n", config=b"\xde\x10\x30\x23",
    )  # fmt: skip
    machine.link("/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/driver", "/x/drivers/nouveau")
    pci_device(machine, "0000:02:00.0", "0x068000", device="0x22a3\n")
    pci_device(machine, "0000:03:00.0", "0x040300", device="0x10f0\n")  # its sound card
    facts = machine.ask(host_pci)
    (gpu,) = facts["gpus"]
    assert (gpu["bdf"], gpu["driver"], gpu["numa"], gpu["lost"]) == (
        "0000:01:00.0", "nouveau", 1, False)  # fmt: skip
    assert gpu["bars_mib"] == [16, 131072]
    assert facts["nvswitches"] == ["0000:02:00.0"]
    assert [bridge["bdf"] for bridge in facts["bridges"]] == ["0000:00:01.0"]


def test_a_gpu_whose_configuration_reads_as_ones_has_left_the_bus(machine: Machine) -> None:
    pci_device(machine, "0000:01:00.0", "0x030000", config=b"\xff" * 64)
    assert machine.ask(host_pci)["gpus"][0]["lost"] is True


@pytest.mark.parametrize(("control", "redirects"), [(0x1D, True), (0x00, False), (0x01, False)])
def test_acs_is_read_from_the_extended_capability(
    machine: Machine, control: int, redirects: bool
) -> None:
    pci_device(machine, "0000:01:00.0", "0x030200")
    config = bytearray(4096)
    # An AER capability at 0x100 that points to ACS at 0x148.
    config[0x100:0x104] = struct.pack("<I", 0x0001 | 1 << 16 | 0x148 << 20)
    config[0x148:0x14C] = struct.pack("<I", 0x000D | 1 << 16)
    config[0x14E:0x150] = struct.pack("<H", control)
    machine.file("/sys/bus/pci/devices/0000:00:01.0/config", bytes(config))
    assert machine.ask(host_pci)["bridges"] == [{"bdf": "0000:00:01.0", "acs": redirects}]


def test_acs_of_a_bridge_that_shows_64_bytes_is_unknown(machine: Machine) -> None:
    pci_device(machine, "0000:01:00.0", "0x030200")
    machine.file("/sys/bus/pci/devices/0000:00:01.0/config", b"\0" * 64)
    assert machine.ask(host_pci)["bridges"][0]["acs"] is None


@pytest.mark.parametrize(
    ("text", "release", "flavour"),
    [
        ("Open Kernel Module for x86_64  580.65.06  Release Build\nGCC version: 13.3.0\n",
         "580.65.06", "open"),
        ("x86_64 Kernel Module  535.183.01  Sun May 12 2024\n", "535.183.01", "proprietary"),
        ("x86_64 Kernel Module  565.77  Wed Nov 27\n", "565.77", "proprietary"),
    ],
)  # fmt: skip
def test_the_driver_says_its_release_and_flavour(
    machine: Machine, text: str, release: str, flavour: str
) -> None:
    machine.file("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX " + text)
    facts = machine.ask(host_driver)
    assert (facts["proc_version"], facts["flavour"]) == (release, flavour)


def test_a_module_for_another_kernel_is_found(machine: Machine) -> None:
    machine.file("/proc/sys/kernel/osrelease", "6.8.0-85-generic\n")
    machine.file("/lib/modules/6.8.0-79-generic/modules.dep",
                 "updates/dkms/nvidia.ko.zst: kernel/drivers/acpi/video.ko.zst\n")  # fmt: skip
    machine.file("/lib/modules/6.8.0-85-generic/modules.dep", "kernel/fs/ext4/ext4.ko:\n")
    machine.file("/var/lib/dkms/nvidia/580.65.06/6.8.0-79-generic/log", "")
    facts = machine.ask(host_driver)
    assert facts["kernel"] == "6.8.0-85-generic"
    assert facts["built_kernels"] == ["6.8.0-79-generic"]
    assert facts["dkms"] == ["580.65.06/6.8.0-79-generic"]
    assert facts["headers"] is False


def test_secure_boot_services_rivals_and_packages_are_seen(machine: Machine) -> None:
    machine.file(
        "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c",
        b"\x06\0\0\0\x01",
    )
    machine.file("/proc/modules", "nouveau 2400256 1 - Live 0x0\next4 9 1 - Live 0x0\n")
    machine.file("/proc/4242/comm", "nv-fabricmanager\n")
    machine.file("/etc/modprobe.d/gpu.conf", "# note\nblacklist nouveau\nblacklist floppy\n")
    machine.file("/var/lib/dpkg/info/libnvidia-compute-535:amd64.list", "")
    machine.file("/var/lib/dpkg/info/zlib1g:amd64.list", "")
    facts = machine.ask(host_driver)
    assert facts["secure_boot"] is True
    assert facts["modules"] == ["nouveau"]
    assert facts["services"]["nv-fabricmanager"] is True
    assert facts["modprobe"] == ["blacklist nouveau"]
    assert facts["packages"] == ["libnvidia-compute-535"]


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("Loading of module with unavailable key is rejected: Key was rejected by service",
         "key-rejected"),
        ("nvidia-uvm: request_free_mem_region() err -34", "hmm"),
        ("NVRM: API mismatch: the client has the version 580.95.05", "api-mismatch"),
        ("NVRM: This PCI I/O region assigned to your NVIDIA device is invalid", "bar-invalid"),
        ("NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x22:0x56:742)", "rm-init"),
        ("NVRM: GPU at PCI:0000:4b:00: GPU has fallen off the bus.", "off-the-bus"),
        ("Out of memory: Killed process 42 (python) total-vm:1kB", "oom-kill"),
    ],
)  # fmt: skip
def test_the_kernel_log_is_read_for_what_it_means(machine: Machine, line: str, kind: str) -> None:
    machine.file("/var/log/kern.log", f"Dec  1 12:00:00 host kernel: [ 1234.567890] {line}\n")
    facts = machine.ask(host_kernel_log)
    assert [event["kind"] for event in facts["events"]] == [kind]
    assert facts["events"][0]["at_s"] == pytest.approx(1234.56789)


def test_xids_are_read_with_their_code_and_address(machine: Machine) -> None:
    machine.file("/dev/kmsg", "4,900,1234567890,-;NVRM: Xid (PCI:0000:4b:00): 119, pid=1, Timeout\n"
                 "6,901,1234567999,-;usb 1-1: new device\n")  # fmt: skip
    machine.file("/proc/uptime", "2000.50 100.00\n")
    facts = machine.ask(host_kernel_log)
    assert facts["source"] == "/dev/kmsg"
    assert facts["uptime_s"] == 2000.5
    (xid,) = facts["xids"]
    assert (xid["code"], xid["bdf"], xid["at_s"]) == (119, "0000:4b:00", pytest.approx(1234.56789))


def test_an_unreadable_kernel_log_says_why(machine: Machine) -> None:
    facts = machine.ask(host_kernel_log)
    assert (facts["readable"], facts["errno"]) == (False, "ENOENT")


def test_nodes_are_read_with_what_opening_them_gave(machine: Machine) -> None:
    machine.file("/dev/nvidia0", "c 195 0 0666 EPERM\n")
    machine.file("/dev/nvidiactl", "c 195 255 0666\n")
    machine.file("/dev/nvidia-caps/nvidia-cap1", "c 234 1 0400 EACCES\n")
    machine.file("/dev/nvidiabogus", "c 1 1 0666\n")
    machine.file("/proc/devices", "Character devices:\n195 nvidia\n195 nvidiactl\n510 nvidia-uvm\n")
    facts = machine.ask(host_nodes)
    assert facts["nodes"]["/dev/nvidia0"]["errno"] == "EPERM"
    assert facts["nodes"]["/dev/nvidiactl"]["errno"] is None
    assert facts["nodes"]["/dev/nvidia-uvm"] == {"errno": "ENOENT"}
    assert facts["nodes"]["/dev/nvidia-caps/nvidia-cap1"]["errno"] == "EACCES"
    assert "/dev/nvidiabogus" not in facts["nodes"]
    assert facts["majors"] == {"nvidia": 195, "nvidiactl": 195, "nvidia-uvm": 510}


def ld_so_cache(entries: dict[str, str]) -> bytes:
    """Write a cache in glibc's new format."""
    strings, offsets = b"", []
    base = 48 + 24 * len(entries)
    for soname, path in entries.items():
        offsets.append((base + len(strings), base + len(strings) + len(soname) + 1))
        strings += soname.encode() + b"\0" + path.encode() + b"\0"
    head = b"glibc-ld.so.cache1.1" + struct.pack("<II", len(entries), len(strings)) + b"\0" * 20
    rows = b"".join(struct.pack("<iIIIQ", 3, key, value, 0, 0) for key, value in offsets)
    return head + rows + strings


def test_two_copies_of_libcuda_and_how_the_loader_reaches_them(machine: Machine) -> None:
    libs = "/usr/lib/x86_64-linux-gnu/"
    machine.file(libs + "libcuda.so.580.82.07", "driver")
    machine.link(libs + "libcuda.so.1", "libcuda.so.580.82.07")
    machine.file("/usr/local/cuda-12.4/compat/libcuda.so.550.54.15", "compat")
    machine.file("/opt/old/libcuda.so.535.54.03", "old")
    machine.file("/etc/ld.so.conf", "include /etc/ld.so.conf.d/*.conf\n")
    machine.file("/etc/ld.so.conf.d/old.conf", "/opt/old # left behind\n")
    machine.file("/etc/ld.so.cache", ld_so_cache({
        "libcuda.so.1": "/opt/old/libcuda.so.1", "libc.so.6": "/lib/libc.so.6"}))  # fmt: skip
    facts = machine.ask(host_libs)
    found = {copy["version"]: copy["via"] for copy in facts["libs"]["libcuda.so"]}
    assert found == {"535.54.03": "cache", "580.82.07": "standard", "550.54.15": "compat"}
    assert facts["cache"] == {"libcuda.so.1": "/opt/old/libcuda.so.1"}
    assert facts["loader_dirs"] == [{"dir": "/opt/old", "file": "/etc/ld.so.conf.d/old.conf"}]


def test_stub_folders_on_the_library_path_are_named(machine: Machine) -> None:
    machine.file("/usr/local/cuda/lib64/stubs/libcuda.so", "stub")
    facts = machine.ask(host_libs, library_path="/opt/none:/usr/local/cuda/lib64/stubs")
    assert facts["stub_dirs"] == ["/usr/local/cuda/lib64/stubs"]
    assert facts["library_path"][0] == {"dir": "/opt/none", "exists": False}


CDI = """\
---
cdiVersion: 0.5.0
containerEdits:
  deviceNodes:
  - path: /dev/nvidia-uvm
  - path: /dev/nvidiactl
  hooks:
  - args:
    - nvidia-cdi-hook
    - create-symlinks
    hookName: createContainer
    path: /usr/bin/nvidia-cdi-hook
  mounts:
  - containerPath: /usr/lib/x86_64-linux-gnu/libcuda.so.550.54.15
    hostPath: /usr/lib/x86_64-linux-gnu/libcuda.so.550.54.15
    options:
    - ro
devices:
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
  name: "0"
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
  name: all
kind: nvidia.com/gpu
"""


def test_a_cdi_spec_is_read_with_its_devices_and_missing_files(machine: Machine) -> None:
    machine.file("/var/run/cdi/nvidia.yaml", CDI)
    for path in ("/dev/nvidia-uvm", "/dev/nvidiactl", "/dev/nvidia0", "/usr/bin/nvidia-cdi-hook"):
        machine.file(path)
    (spec,) = machine.ask(host_toolkit)["cdi"]
    assert spec["error"] is None
    assert (spec["kind"], spec["devices"]) == ("nvidia.com/gpu", ["0", "all"])
    assert spec["missing"] == ["/usr/lib/x86_64-linux-gnu/libcuda.so.550.54.15"]
    assert spec["releases"] == ["550.54.15"]
    assert spec["has_uvm"] is True


def test_the_same_cdi_spec_as_json_reads_the_same(machine: Machine) -> None:
    import yaml

    machine.file("/etc/cdi/a.yaml", CDI)
    machine.file("/etc/cdi/b.json", json.dumps(yaml.safe_load(CDI)))
    first, second = machine.ask(host_toolkit)["cdi"]
    assert {**first, "path": ""} == {**second, "path": ""}


@pytest.mark.parametrize("text", ["kind: nvidia.com/gpu\n\tdevices:\n", "no colon here\n", "{", ""])
def test_a_broken_cdi_spec_is_an_error_of_that_spec(machine: Machine, text: str) -> None:
    machine.file("/etc/cdi/nvidia.yaml", text)
    (spec,) = machine.ask(host_toolkit)["cdi"]
    assert spec["error"]


def test_the_toolkit_configuration_is_read_without_its_comments(machine: Machine) -> None:
    machine.file("/etc/nvidia-container-runtime/config.toml", """\
#accept-nvidia-visible-devices-envvar-when-unprivileged = true
[nvidia-container-cli]
no-cgroups = true
#debug = "/var/log/x.log"
ldconfig = "@/sbin/ldconfig.real"
[nvidia-container-runtime]
mode = "cdi" # since the update
runtimes = ["runc", "crun"]
[nvidia-container-runtime.modes.cdi]
annotation-prefixes = ["cdi.k8s.io/"]
""")  # fmt: skip
    values = machine.ask(host_toolkit)["config"]["values"]
    assert values["nvidia-container-cli.no-cgroups"] is True
    assert values["nvidia-container-runtime.mode"] == "cdi"
    assert values["nvidia-container-cli.ldconfig"] == "@/sbin/ldconfig.real"
    assert not [key for key in values if key.endswith("debug")]


def test_the_daemon_file_and_the_scopes_of_systemd(machine: Machine) -> None:
    machine.file("/etc/docker/daemon.json", json.dumps({
        "runtimes": {"nvidia": {"path": "nvidia-container-runtime"}},
        "features": {"cdi": True}, "exec-opts": ["native.cgroupdriver=systemd"]}))  # fmt: skip
    scope = "0123456789ab" + "c" * 52
    machine.file(f"/run/systemd/transient/docker-{scope}.scope.d/50-DeviceAllow.conf",
                 "[Scope]\nDeviceAllow=\nDeviceAllow=/dev/char/195:0 rw\n")  # fmt: skip
    facts = machine.ask(host_engine)
    (entry,) = facts["daemon_files"]
    assert (entry["runtimes"], entry["cdi"]) == (["nvidia"], True)
    assert facts["scopes"] == {"0123456789ab": ["/dev/char/195:0 rw"]}
    assert facts["info"] is None


def test_a_daemon_file_that_is_no_json_says_so(machine: Machine) -> None:
    machine.file("/etc/docker/daemon.json", '{"runtimes": }')
    assert "not JSON" in machine.ask(host_engine)["daemon_files"][0]["error"]


def test_cgroup_v2_limits_are_those_of_the_strictest_ancestor(machine: Machine) -> None:
    machine.file("/proc/self/cgroup", "0::/user.slice/job.scope\n")
    machine.file("/sys/fs/cgroup/cgroup.controllers", "cpu memory pids\n")
    machine.file("/sys/fs/cgroup/user.slice/cpu.max", "400000 100000\n")
    machine.file("/sys/fs/cgroup/user.slice/job.scope/cpu.max", "max 100000\n")
    machine.file("/sys/fs/cgroup/user.slice/job.scope/memory.max", "8589934592\n")
    machine.file("/sys/fs/cgroup/user.slice/job.scope/memory.events", "low 0\noom_kill 3\n")
    machine.file("/sys/fs/cgroup/user.slice/job.scope/pids.max", "max\n")
    cgroup = machine.ask(host_limits)["cgroup"]
    assert (cgroup["version"], cgroup["cpu_quota"]) == (2, 4.0)
    assert (cgroup["memory_max"], cgroup["oom_kills"], cgroup["pids_max"]) == (8 << 30, 3, None)


def test_cgroup_v1_limits_inside_a_container(machine: Machine) -> None:
    machine.file("/proc/self/cgroup", "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n")
    machine.file("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "250000\n")
    machine.file("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n")
    machine.file("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    machine.file("/sys/fs/cgroup/memory/memory.oom_control", "under_oom 0\noom_kill 2\n")
    machine.file("/sys/fs/cgroup/pids/pids.max", "512\n")
    cgroup = machine.ask(host_limits)["cgroup"]
    assert (cgroup["version"], cgroup["cpu_quota"], cgroup["memory_max"]) == (1, 2.5, None)
    assert (cgroup["oom_kills"], cgroup["pids_max"]) == (2, 512)


def test_the_mount_of_each_place_decides_whether_files_may_run_there(machine: Machine) -> None:
    machine.file("/proc/mounts", "overlay / overlay rw 0 0\n"
                 "tmpfs /tmp tmpfs rw,nosuid,noexec 0 0\n")  # fmt: skip
    (machine.root / "tmp").mkdir()
    (machine.root / "home").mkdir()
    places = machine.ask(host_storage, env={"HOME": "/home", "TRITON_CACHE_DIR": "/tmp/deep/er"})[
        "places"]  # fmt: skip
    assert places["tmp"]["exec"] == "EPERM"
    assert places["home"]["exec"] is None
    assert (places["triton"]["at"], places["triton"]["exec"]) == ("/tmp", "EPERM")


def test_only_listed_variables_are_read_and_none_that_sounds_secret(machine: Machine) -> None:
    machine.file("/etc/nccl.conf", "# tuned\nNCCL_DEBUG=INFO\nPASSWORD=x\n")
    env = {"NCCL_SOCKET_IFNAME": "eth0", "NVIDIA_API_KEY": "canary", "AWS_SECRET_ACCESS_KEY":
           "canary", "HF_TOKEN": "canary", "TORCH_AUTH": "canary", "HOME": "/root",
           "CUDA_VISIBLE_DEVICES": "0"}  # fmt: skip
    facts = machine.ask(host_env, env=env)
    assert facts["variables"] == {"CUDA_VISIBLE_DEVICES": "0", "NCCL_SOCKET_IFNAME": "eth0"}
    assert facts["nccl_conf"] == {"/etc/nccl.conf": {"NCCL_DEBUG": "INFO"}}
    assert "canary" not in json.dumps(facts)


def test_interfaces_and_infiniband_ports(machine: Machine) -> None:
    for name, flags, state in (("lo", "0x9", "unknown"), ("eth0", "0x1003", "up"),
                               ("docker0", "0x1003", "down")):  # fmt: skip
        machine.file(f"/sys/class/net/{name}/flags", flags + "\n")
        machine.file(f"/sys/class/net/{name}/operstate", state + "\n")
    port = "/sys/class/infiniband/mlx5_0/ports/1/"
    machine.file(port + "state", "1: DOWN\n")
    machine.file(port + "phys_state", "2: Polling\n")
    machine.file("/sys/module/nvidia_peermem/refcnt", "0\n")
    facts = machine.ask(host_network)
    assert {row["name"]: (row["up"], row["loopback"]) for row in facts["interfaces"]} == {
        "lo": (True, True), "eth0": (True, False), "docker0": (False, False)}  # fmt: skip
    assert facts["infiniband"][0]["state"] == "1: DOWN"
    assert facts["peermem"] is True


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        ({"/.dockerenv": ""}, "docker"),
        ({"/run/.containerenv": ""}, "podman"),
        ({"/proc/1/cgroup": "0::/kubepods/besteffort/pod1\n"}, "kubernetes"),
        ({"/proc/self/mountinfo": "1 0 0:1 / / rw - overlay overlay rw,lowerdir=/var/lib/docker/"
          "overlay2/l/A,upperdir=/var/lib/docker/overlay2/b/diff\n"}, "docker"),
        ({"/proc/1/cgroup": "0::/init.scope\n"}, None),
    ],
)  # fmt: skip
def test_a_container_is_known_by_its_marks(
    machine: Machine, files: dict[str, str], kind: str | None
) -> None:
    for path, text in files.items():
        machine.file(path, text)
    found = machine.ask(host_machine)["container"]
    assert (found or {}).get("kind") == kind


def test_a_uid_without_a_passwd_entry_has_no_name(machine: Machine) -> None:
    machine.file("/etc/passwd", "someone:x:987654:987654::/home/someone:/bin/sh\n")
    assert machine.ask(host_user)["name"] is None


def test_a_user_namespace_is_known_by_its_map(machine: Machine) -> None:
    machine.file("/proc/self/uid_map", "         0       1000          1\n")
    assert machine.ask(host_user)["rootless"] is True


# --- torch without importing it -------------------------------------------------------------------


class Packages:
    """A site-packages folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)

    def add(self, name: str, version: str, *requires: str, files: tuple[str, ...] = ()) -> None:
        info = self.folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        lines = "".join(f"Requires-Dist: {line}\n" for line in requires)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\n{lines}\nText\n")
        (info / "INSTALLER").write_text("uv\n")
        rows = []
        for path in files:
            place = self.folder / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(name)
            rows.append(f"{path},sha256=x,{len(name)}")
        (info / "RECORD").write_text("\n".join(rows))

    def torch(self, version: str, cuda: str | None, *requires: str) -> None:
        self.add("torch", version, *requires, files=("torch/__init__.py",))
        (self.folder / "torch" / "version.py").write_text(
            f"from typing import Optional\n__version__ = {version!r}\ndebug = False\n"
            f"cuda: Optional[str] = {cuda!r}\nhip: Optional[str] = None\n"
        )


def look(*folders: Packages, root: str = "/nowhere") -> dict[str, Any]:
    options = {"sys_path": [str(packages.folder) for packages in folders]}
    return torch_static.PROBES["torch.static"](Context(root, options))


def test_torch_is_read_without_importing_it(tmp_path: Path) -> None:
    packages = Packages(tmp_path / "site")
    packages.torch("2.14.1+cu130", "13.0")
    facts = look(packages)
    assert (facts["version"], facts["cuda"], facts["installer"]) == ("2.14.1+cu130", "13.0", "uv")
    assert facts["cuda_library"] is False


def test_a_second_torch_on_the_path_is_seen(tmp_path: Path) -> None:
    first, second = Packages(tmp_path / "user"), Packages(tmp_path / "site")
    first.torch("2.9.1+cu128", "12.8")
    second.torch("2.14.1+cu130", "13.0")
    facts = look(first, second)
    assert [copy["version"] for copy in facts["copies"]] == ["2.9.1+cu128", "2.14.1+cu130"]
    assert facts["version"] == "2.9.1+cu128"
    assert facts["duplicates"] == {"torch": ["2.9.1+cu128", "2.14.1+cu130"]}


@pytest.mark.parametrize(
    ("requirement", "installed", "conflict"),
    [
        ("nvidia-nccl-cu12==2.27.3; platform_system == 'Linux'", "2.27.5", True),
        ("nvidia-nccl-cu12==2.27.3; platform_system == 'Linux'", "2.27.3", False),
        ("nvidia-nccl-cu12==2.27.3; platform_system == 'Windows'", "2.27.5", False),
        ("nvidia-nccl-cu12==2.27.3; extra == 'opt'", "2.27.5", False),
        ("nvidia-nccl-cu12 (>=2.27,<3)", "2.28.9", False),
        ("nvidia-nccl-cu12 (>=2.27,<3)", "2.26", True),
        ("nvidia-nccl-cu12~=2.27.1", "2.27.9", False),
        ("nvidia-nccl-cu12~=2.27.1", "2.28.0", True),
        ("nvidia-nccl-cu12==2.27.*", "2.27.9", False),
        ("nvidia-nccl-cu12!=2.27.3", "2.27.3", True),
        ("nvidia-nccl-cu12==2.27", "2.27.0", False),
        ("nvidia-nccl-cu12==2.10", "2.9", True),
        ("nvidia-nccl-cu12==2.27.3rc1", "2.27.3", False),
        ("nvidia-nccl-cu12==2.27.3; python_version < '3.0' or python_version > '2.7'", "1", False),
    ],
)
def test_a_requirement_is_held_against_what_is_installed(
    tmp_path: Path, requirement: str, installed: str, conflict: bool
) -> None:
    packages = Packages(tmp_path / "site")
    packages.torch("2.9.1+cu128", "12.8", requirement)
    packages.add("nvidia-nccl-cu12", installed)
    assert bool(look(packages)["conflicts"]) is conflict


def test_a_cuda_library_that_torch_needs_and_is_gone(tmp_path: Path) -> None:
    packages = Packages(tmp_path / "site")
    packages.torch("2.9.1+cu128", "12.8", "nvidia-cudnn-cu12==9.10.2.21")
    assert look(packages)["conflicts"] == [
        {"by": "torch", "needs": "nvidia-cudnn-cu12==9.10.2.21", "found": ""}]  # fmt: skip


def test_torchvision_for_another_torch(tmp_path: Path) -> None:
    packages = Packages(tmp_path / "site")
    packages.torch("2.14.1+cu130", "13.0")
    packages.add("torchvision", "0.24.1", "torch==2.9.1")
    assert look(packages)["conflicts"] == [
        {"by": "torchvision", "needs": "torch==2.9.1", "found": "2.14.1+cu130"}]  # fmt: skip


def test_two_wheels_that_own_one_library_and_who_was_last(tmp_path: Path) -> None:
    packages = Packages(tmp_path / "site")
    packages.torch("2.14.1+cu130", "13.0")
    library = ("nvidia/nccl/lib/libnccl.so.2",)
    packages.add("nvidia-nccl-cu13", "2.28.9", files=library)
    packages.add("nvidia-nccl-cu12-long", "2.27.3", files=())
    packages.add("nvidia-nccl-cu12", "2.27.3", files=library)
    facts = look(packages)
    (overlap,) = facts["overlaps"]
    assert overlap["path"] == library[0]
    assert overlap["dists"] == ["nvidia-nccl-cu12", "nvidia-nccl-cu13"]
    # Same length of name, hence of file: it cannot be told whose it is, and is not guessed.
    assert overlap["owner"] is None


def test_the_lock_of_an_image_is_read(tmp_path: Path, machine: Machine) -> None:
    packages = Packages(tmp_path / "site")
    packages.torch("2.14.1+cu130", "13.0")
    machine.file("/opt/gpuenv/constraints.txt", "torch==2.14.1+cu130\n# note\nrequests==2.32.0\n")
    assert look(packages, root=str(machine.root))["locked"] == {"torch": "2.14.1+cu130"}


def test_no_torch_is_an_answer(tmp_path: Path) -> None:
    facts = look(Packages(tmp_path / "site"))
    assert facts["present"] is False


def test_a_version_file_that_breaks_is_told(tmp_path: Path) -> None:
    packages = Packages(tmp_path / "site")
    packages.torch("2.14.1+cu130", "13.0")
    (packages.folder / "torch" / "version.py").write_text("raise RuntimeError('half')\n")
    facts = look(packages)
    assert facts["version"] is None
    assert "half" in facts["version_error"]


def test_a_pictured_machine_is_diagnosed_without_asking_this_one(machine: Machine) -> None:
    from gpuenv.checks.model import Level
    from gpuenv.doctor import judge, plan_doctor

    pci_device(machine, "0000:01:00.0", "0x030000", device="0x2684\n")
    machine.link("/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/driver", "/x/nouveau")
    machine.file("/proc/modules", "nouveau 2400256 1 - Live 0x0\n")
    plan = plan_doctor(level=Level.STATIC, sysroot=str(machine.root))
    asked = {spec.name for spec in plan.probes}
    assert {"host.nvml", "host.cuda", "torch.static"} & asked == set()
    probes = {
        name: ProbeRun(status="ok", facts=machine.ask(module))
        for module in EVERY_PROBE
        for name in module.PROBES
    }
    diagnosis = judge(Facts(where={"kind": "host"}, asked=plan.asked, probes=probes))
    assert diagnosis.causes[0].result.id == "host.driver.bound"
    assert "drv.cuinit" not in [c.id for c in diagnosis.causes[0].consequences]
