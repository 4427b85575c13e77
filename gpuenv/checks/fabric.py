"""What NCCL stands on before any GPU is touched: variables, interfaces, InfiniBand, ACS, shm."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from gpuenv.checks.model import Check, Level
from gpuenv.checks.say import Results, Say, fix, group, in_mib, integer, probe, rows, seen, text
from gpuenv.checks.scene import in_container, is_virtual, nvml_gpus, pci_gpus
from gpuenv.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuenv.checks.model import Evidence, Facts, Fix

_SHM_FLOOR = 512 << 20
# What one NCCL communicator of two ranks was seen to allocate per segment, in bytes.
_SHM_SEGMENT = 9_637_888
_LEFTOVERS = (
    "NCCL_P2P_DISABLE",
    "NCCL_SHM_DISABLE",
    "NCCL_IB_DISABLE",
    "NCCL_NVLS_ENABLE",
    "NCCL_ALGO",
    "NCCL_PROTO",
    "NCCL_MAX_NCHANNELS",
    "NCCL_P2P_LEVEL",
)
_HARMLESS = ("", "0")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setting:
    """A variable's value and the configuration file it stands in, empty for the environment."""

    value: str
    file: str = ""

    def seen(self, name: str) -> Evidence:
        return seen(f"{name} in {self.file}" if self.file else name, self.value)

    def remove(self, name: str, text: str) -> Fix:
        """Return how to take it away, where it stands."""
        if self.file:
            return fix("container", text, f"sed -i '/^{name}=/d' {shlex.quote(self.file)}")
        return fix("container", text, f"unset {name}")


def _settings(facts: Facts) -> dict[str, _Setting]:
    """Return the NCCL variables: the environment's, over those of the configuration files.

    Source:
        NCCL User Guide, "Environment Variables": the user's file stands above /etc/nccl.conf, the
        environment above both.
    """
    env = probe(facts, "host.env")
    found: dict[str, _Setting] = {}
    files = group(env, "nccl_conf")
    for path in files:
        found |= {
            key: _Setting(value=str(value), file=path) for key, value in group(files, path).items()
        }
    variables = group(env, "variables")
    found |= {
        key: _Setting(value=str(value))
        for key, value in variables.items()
        if key.startswith(("NCCL_", "GLOO_"))
    }
    return found


def _many(facts: Facts) -> bool:
    return len(nvml_gpus(facts)) > 1 or len(pci_gpus(facts)) > 1


def matching_interfaces(
    value: str, interfaces: tuple[Mapping[str, object], ...]
) -> tuple[str, ...]:
    """Return the interfaces NCCL_SOCKET_IFNAME leaves: prefixes, ``^`` excludes, ``=`` exact."""
    names = [text(interface, "name") for interface in interfaces]
    return tuple(name for name in names if _is_left(value, name))


def _is_left(value: str, *names: str) -> bool:
    """Say whether a value leaves something that has these names."""
    exclude, exact = value.startswith("^"), value.lstrip("^").startswith("=")
    wanted = [part for part in value.lstrip("^").lstrip("=").split(",") if part]

    hit = any(name == part if exact else name.startswith(part) for part in wanted for name in names)
    return hit != exclude


def check_interfaces(facts: Facts) -> Results:
    """Hold the variables that name interfaces and adapters against those there are."""
    say = Say("nccl.ifname")
    settings = _settings(facts)
    network = probe(facts, "host.network")
    interfaces = rows(network, "interfaces")
    nccl = settings.get("NCCL_SOCKET_IFNAME")
    found = [
        _nccl_interface(facts, say, nccl, interfaces) if nccl and nccl.value else (),
        _gloo_interface(say.of("gloo"), settings.get("GLOO_SOCKET_IFNAME"), interfaces),
        _adapters(say.of("adapters"), settings.get("NCCL_IB_HCA"), rows(network, "infiniband")),
    ]
    results = tuple(result for each in found for result in each)
    if results:
        return results
    others = [row for row in interfaces if row.get("up") and not row.get("loopback")]
    if interfaces and not others:
        return say.info("no interface but loopback: training on one machine only")
    return say.ok("NCCL chooses the interface itself")


def _nccl_interface(
    facts: Facts, say: Say, setting: _Setting, interfaces: tuple[Mapping[str, object], ...]
) -> Results:
    name, value = "NCCL_SOCKET_IFNAME", setting.value
    usable = tuple(row for row in interfaces if row.get("up"))
    left = matching_interfaces(value, usable)
    evidence = [setting.seen(name), _interfaces_seen(interfaces)]
    unset = setting.remove(name, "remove it, or name one of these")
    if not left:
        return say.fail(
            f"{name}={value} names no interface that is up",
            why="NCCL finds no socket interface, or waits without a word",
            evidence=evidence,
            fixes=[unset],
        )
    loopback = {text(row, "name") for row in usable if row.get("loopback")}
    if value.startswith("^") and left[0] in loopback:
        return say.warn(
            f"{name}={value} lets loopback back in, and it comes first",
            why="an own exclusion replaces the built-in one, which leaves out lo and docker",
            evidence=evidence,
            fixes=[fix("container", "exclude it too", f"export {name}={value},lo")],
        )
    if all(one in loopback for one in left) and _ranks(facts) > _local(facts):
        return say.fail(
            f"{name}={value} leaves loopback alone, and ranks run on other machines",
            evidence=evidence,
            fixes=[unset],
        )
    return say.ok(f"{value}: {', '.join(left)}")


def _gloo_interface(
    say: Say, setting: _Setting | None, interfaces: tuple[Mapping[str, object], ...]
) -> Results:
    """Hold GLOO_SOCKET_IFNAME against the interfaces: whole names with commas, each used."""
    if setting is None or not setting.value or setting.file or not interfaces:
        return ()  # a file of NCCL's may come too late for gloo
    up = {text(row, "name") for row in interfaces if row.get("up")}
    lacking = [name for name in setting.value.split(",") if name not in up]
    if not lacking:
        return ()
    return say.fail(
        f"GLOO_SOCKET_IFNAME={setting.value} names no interface that is up: {', '.join(lacking)}",
        why="gloo takes whole names, and each of them: it ends with 'Unable to find address for'",
        evidence=[setting.seen("GLOO_SOCKET_IFNAME"), _interfaces_seen(interfaces)],
        fixes=[setting.remove("GLOO_SOCKET_IFNAME", "remove it, or name one of these")],
    )


def _adapters(
    say: Say, setting: _Setting | None, ports: tuple[Mapping[str, object], ...]
) -> Results:
    """Hold NCCL_IB_HCA against the adapters: as NCCL_SOCKET_IFNAME, each with ``:PORT`` or not."""
    if setting is None or not setting.value or setting.value in {"^", "="}:
        return ()
    named = {f"{text(row, 'device')}:{row.get('port')}": text(row, "device") for row in ports}
    if any(_is_left(setting.value, name, device) for name, device in named.items()):
        return ()
    here = ", ".join(named) or "none"
    return say.warn(
        f"NCCL_IB_HCA={setting.value} leaves no InfiniBand adapter: NCCL goes by the network",
        why="NCCL does not say so, and the network is many times slower",
        evidence=[setting.seen("NCCL_IB_HCA"), seen("/sys/class/infiniband", here)],
        fixes=[setting.remove("NCCL_IB_HCA", "remove it, or name one of these")],
        confidence="likely" if ports else "possible",
    )


def _interfaces_seen(interfaces: tuple[Mapping[str, object], ...]) -> Evidence:
    return seen("/sys/class/net", ", ".join(text(row, "name") for row in interfaces))


def _number(facts: Facts, name: str) -> int:
    value = str(group(probe(facts, "host.env"), "variables").get(name, ""))
    return int(value) if value.isdigit() else 0


def _ranks(facts: Facts) -> int:
    return _number(facts, "WORLD_SIZE")


def _local(facts: Facts) -> int:
    return _number(facts, "LOCAL_WORLD_SIZE") or _ranks(facts)


def check_environment(facts: Facts) -> Results:
    """Find NCCL variables left over from a hunt for an old fault."""
    say = Say("nccl.env")
    settings = {
        name: setting for name, setting in _settings(facts).items() if name.startswith("NCCL_")
    }
    left = {
        name: settings[name]
        for name in _LEFTOVERS
        if name in settings and _changes_something(facts, name, settings[name].value)
    }
    if left:
        return say.warn(
            "left over: " + ", ".join(f"{name}={left[name].value}" for name in left),
            why="such settings go round a fault at the price of bandwidth, and outlive it",
            evidence=[seen(setting.file or "environment", name) for name, setting in left.items()],
            fixes=_removals(left),
            confidence="possible",
        )
    named = [name for name in settings if name != "NCCL_SOCKET_IFNAME"]
    if named:
        return say.info(f"set: {', '.join(sorted(named))[:100]}")
    return say.ok("nothing set")


def _removals(left: Mapping[str, _Setting]) -> list[Fix]:
    """Return the commands that take settings away: one for the environment, one for each line."""
    in_environment = [name for name, setting in left.items() if not setting.file]
    fixes = []
    if in_environment:
        unset = f"unset {' '.join(in_environment)}"
        fixes.append(fix("container", "remove them and measure", unset))
    return fixes + [
        setting.remove(name, "remove the line and measure")
        for name, setting in left.items()
        if setting.file
    ]


def _changes_something(facts: Facts, name: str, value: str) -> bool:
    """Say whether a value takes away what this machine has: links between GPUs, InfiniBand."""
    if name == "NCCL_IB_DISABLE":
        return value not in _HARMLESS and bool(rows(probe(facts, "host.network"), "infiniband"))
    if not _many(facts):
        return False
    # NVLS is on where it can be; the others are off.
    return value == "0" if name == "NCCL_NVLS_ENABLE" else value not in _HARMLESS


def check_forced_peers(facts: Facts) -> Results:
    """Find variables whose mere presence forces peer access."""
    say = Say("p2p.env")
    env = group(probe(facts, "host.env"), "variables")
    if "GGML_CUDA_P2P" in env:
        return say.warn(
            f"GGML_CUDA_P2P={env['GGML_CUDA_P2P']} switches peer access on, whatever its value",
            why="the program looks for the variable, not at its value",
            evidence=[seen("environment", "GGML_CUDA_P2P")],
            fixes=[fix("container", "remove it", "unset GGML_CUDA_P2P")],
        )
    return say.ok("nothing forces peer access")


def _is_up(port: Mapping[str, object]) -> bool:
    return "ACTIVE" in text(port, "state") and "LinkUp" in text(port, "phys_state")


def check_infiniband(facts: Facts) -> Results:
    """Look at the InfiniBand and RoCE ports, and at the way from them to GPU memory."""
    say = Say("nccl.ib")
    network = probe(facts, "host.network")
    ports = rows(network, "infiniband")
    if not ports:
        return say.skip("not-applicable", "no InfiniBand or RoCE device")
    # RDMA over Ethernet shows the same devices as a plain network card that nobody uses for RDMA.
    native = [port for port in ports if text(port, "link_layer") == "InfiniBand"]
    if not native:
        up = sum(1 for port in ports if _is_up(port))
        return say.info(f"{up} of {len(ports)} Ethernet ports that could do RDMA are up")
    down = [port for port in native if not _is_up(port)]
    active = len(native) - len(down)
    results: list[Results] = []
    if active:
        for port in down:
            name = f"{text(port, 'device')} port {text(port, 'port')}"
            results.append(
                say.of(name).warn(
                    f"is {text(port, 'state') or 'in no known state'}",
                    why="no cable, a switch that is off, or no subnet manager",
                    evidence=[
                        seen("state", text(port, "state")),
                        seen("phys_state", text(port, "phys_state")),
                    ],
                    fixes=[fix("host", "look at the link", "ibstat; ibdev2netdev")],
                    confidence="likely",
                )
            )
    else:
        results.append(say.info(f"{len(native)} ports, none of them up: NCCL uses the network"))
    if active and not network.get("peermem") and nvml_gpus(facts) and not in_container(facts):
        results.append(
            say.of("peermem").warn(
                "InfiniBand without nvidia-peermem: data goes through host memory",
                why="unless this kernel and driver use dma-buf, which is not seen from here",
                evidence=[seen("/sys/module/nvidia_peermem", "not there")],
                fixes=[fix("host", "load it", "modprobe nvidia-peermem")],
                confidence="possible",
            )
        )
    if results:
        return tuple(result for found in results for result in found)
    return say.ok(f"{active} of {len(native)} ports are up")


def check_acs(facts: Facts) -> Results:
    """Find PCIe bridges that send traffic between GPUs through the processor."""
    say = Say("topo.acs")
    pci = probe(facts, "host.pci")
    bridges = rows(pci, "bridges")
    if len(pci_gpus(facts)) < 2:  # noqa: PLR2004 - it takes two
        return say.skip("single-gpu" if pci_gpus(facts) else "no-gpu", "no pair of GPUs")
    if is_virtual(facts):
        return say.skip("not-applicable", "a virtual machine needs ACS on its host")
    if pci.get("nvswitches"):
        return say.skip("not-applicable", "the GPUs talk through NVSwitches")
    known = [row for row in bridges if row.get("acs") is not None]
    if not known:
        return say.skip("needs-root", "only root may read a bridge's ACS control")
    on = [text(row, "bdf") for row in known if row.get("acs")]
    if on:
        return say.warn(
            f"ACS redirects traffic between GPUs at {len(on)} bridges",
            why="peer copies go up to the processor and back: slower, and with some chipsets they "
            "hang NCCL",
            evidence=[seen("ACS control", ", ".join(on[:6]))],
            fixes=[
                fix("host", "switch ACS off in the BIOS"),
                fix(
                    "host",
                    "or until the next boot, as root",
                    " && ".join(f"setpci -s {bdf} ECAP_ACS+6.w=0000" for bdf in on),
                ),
            ],
            confidence="likely",
        )
    return say.ok(f"off at {len(known)} bridges")


def check_iommu(facts: Facts) -> Results:
    """Say whether the IOMMU translates, which peer copies do not always survive."""
    say = Say("topo.iommu")
    iommu = group(probe(facts, "host.pci"), "iommu")
    if len(pci_gpus(facts)) < 2:  # noqa: PLR2004 - it takes two
        return say.skip("single-gpu" if pci_gpus(facts) else "no-gpu", "no pair of GPUs")
    kinds = iommu.get("types") or ()
    translating = bool(iommu.get("active")) and any("DMA" in str(kind) for kind in kinds)
    if translating and not probe(facts, "host.pci").get("nvswitches"):
        return say.info(
            "translates (not passthrough): no fault unless peer copies come out wrong",
            seen("/sys/kernel/iommu_groups", ", ".join(map(str, kinds))),
        )
    return say.ok("off or passing through" if not translating else "on, behind NVSwitches")


def check_shm(facts: Facts) -> Results:
    """Ask whether /dev/shm is large enough for NCCL and DataLoader workers."""
    say = Say("shm.size")
    shm = group(probe(facts, "host.limits"), "shm")
    size, free = integer(shm, "size"), integer(shm, "free")
    if size is None or free is None:
        return say.warn(
            "there is no /dev/shm",
            why="DataLoader workers and NCCL exchange data there",
            evidence=[seen("statvfs /dev/shm", "not there")],
            fixes=[fix("container", "give it one", "docker run --shm-size=8g ...")],
        )
    evidence = [seen("statvfs /dev/shm", f"{in_mib(free)} free of {in_mib(size)}")]
    more = [
        fix("container", "give it more", "docker run --shm-size=8g ..."),
        fix("container", "in Kubernetes, mount an emptyDir with medium: Memory at /dev/shm"),
    ]
    if free < _SHM_SEGMENT:
        return say.warn(
            f"shared memory is full: {in_mib(free)} free of {in_mib(size)}",
            why="the next DataLoader batch or NCCL segment ends with Bus error or No space left",
            evidence=evidence,
            fixes=[
                fix("container", "remove what crashed runs left behind", "ls -l /dev/shm"),
                *more,
            ],
        )
    if size < _SHM_FLOOR:
        kind = "Docker's default of 64 MiB" if size == 64 << 20 else in_mib(size)
        return say.warn(
            f"shared memory is {kind}: too little for DataLoader workers and NCCL",
            why="batches of workers and NCCL's segments between GPUs live there; DeepSpeed asks "
            "for 512 MiB at least",
            evidence=evidence,
            fixes=more,
        )
    return say.ok(f"{in_mib(free)} free of {in_mib(size)}", *evidence)


def check_memlock(facts: Facts) -> Results:
    """Ask whether memory may be pinned, which InfiniBand needs."""
    say = Say("lim.memlock")
    limits = group(probe(facts, "host.limits"), "rlimits").get("memlock")
    if not isinstance(limits, (list, tuple)) or not limits:
        return say.skip("not-applicable", "the limit could not be read")
    soft = limits[0]
    if soft == -1:
        return say.ok("unlimited")
    amount = in_mib(soft) if isinstance(soft, int) else str(soft)
    ports = rows(probe(facts, "host.network"), "infiniband")
    if any(text(port, "link_layer") == "InfiniBand" and _is_up(port) for port in ports):
        return say.fail(
            f"{amount} of memory may be pinned, and there is InfiniBand",
            why="ibv_reg_mr fails with Cannot allocate memory as soon as NCCL registers buffers",
            evidence=[seen("RLIMIT_MEMLOCK", soft)],
            fixes=[
                fix("container", "lift it", "docker run --ulimit memlock=-1 ..."),
                fix(
                    "host",
                    "or for all users, from their next login on",
                    "echo '* - memlock unlimited' > /etc/security/limits.d/memlock.conf",
                ),
            ],
        )
    return say.info(f"{amount}; it matters with InfiniBand only", seen("RLIMIT_MEMLOCK", soft))


CHECKS = (
    Check(
        id="shm.size",
        title="Shared memory",
        level=Level.STATIC,
        run=check_shm,
        needs=("host.limits",),
        explanation="""\
Docker gives a container 64 MiB of /dev/shm. DataLoader workers hand batches over there (Bus
error, insufficient shared memory), and NCCL puts segments of about 10 MB for each pair of GPUs
there when it cannot use peer access (Error while creating shared memory segment).""",
    ),
    Check(
        id="lim.memlock",
        title="Pinned memory limit",
        level=Level.STATIC,
        run=check_memlock,
        needs=("host.limits",),
        uses=("host.network",),
        explanation="""\
Registering memory for InfiniBand pins it. Docker's limit is 8 MiB or less; without InfiniBand
it does not matter.""",
    ),
    Check(
        id="nccl.ifname",
        title="NCCL's network interface",
        level=Level.STATIC,
        run=check_interfaces,
        needs=("host.env", "host.network"),
        explanation="""\
NCCL_SOCKET_IFNAME takes prefixes, ^ to exclude and = for exact names. Where it names nothing,
NCCL says "no socket interface found" or waits for ever. An own exclusion replaces the built-in
one, so ^docker0 lets lo back in. It may stand in /etc/nccl.conf, ~/.nccl.conf or the file of
NCCL_CONF_FILE. GLOO_SOCKET_IFNAME takes whole names only. NCCL_IB_HCA names InfiniBand
adapters in the same way, and where it names none NCCL goes by the slow network in silence.""",
    ),
    Check(
        id="nccl.env",
        title="NCCL variables",
        level=Level.STATIC,
        run=check_environment,
        needs=("host.env",),
        explanation="""\
NCCL_P2P_DISABLE=1, NCCL_SHM_DISABLE=1 and their kin go round a fault and cost bandwidth ever
after. They may also stand in /etc/nccl.conf or ~/.nccl.conf, where nobody looks.""",
    ),
    Check(
        id="p2p.env",
        title="Forced peer access",
        level=Level.STATIC,
        run=check_forced_peers,
        needs=("host.env",),
        explanation="GGML_CUDA_P2P counts as set even with the value 0.",
    ),
    Check(
        id="nccl.ib",
        title="InfiniBand and RoCE",
        level=Level.STATIC,
        run=check_infiniband,
        needs=("host.network",),
        uses=("host.nvml", "host.machine"),
        explanation="""\
A port must be ACTIVE and LinkUp. nvidia-peermem (or dma-buf) lets the adapter reach GPU memory
without a copy through the host.""",
    ),
    Check(
        id="topo.acs",
        title="ACS between GPUs",
        level=Level.STATIC,
        run=check_acs,
        needs=("host.pci",),
        uses=("host.machine",),
        explanation="""\
Access Control Services on a PCIe bridge can send traffic between two devices below it up to the
processor. On bare metal with several GPUs it slows peer copies and has hung NCCL; a virtual
machine's host needs it on.""",
    ),
    Check(
        id="topo.iommu",
        title="IOMMU",
        level=Level.STATIC,
        run=check_iommu,
        needs=("host.pci",),
        explanation="""\
A translating IOMMU is no fault by itself. Where peer copies come out wrong (p2p.copy), iommu=pt
or switching it off is the usual cure.""",
    ),
)
