"""What NCCL stands on before any GPU is touched: variables, interfaces, InfiniBand, ACS, shm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuenv.checks.model import Check, Level
from gpuenv.checks.say import Results, Say, fix, group, in_mib, integer, probe, rows, seen, text
from gpuenv.checks.scene import in_container, is_virtual, nvml_gpus, pci_gpus

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuenv.checks.model import Facts

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


def _variables(facts: Facts) -> dict[str, str]:
    """Return the NCCL variables: the environment's, over those of the configuration files."""
    env = probe(facts, "host.env")
    found: dict[str, str] = {}
    files = group(env, "nccl_conf")
    for path in files:
        found.update({key: str(value) for key, value in group(files, path).items()})
    variables = group(env, "variables")
    found.update({key: str(value) for key, value in variables.items() if key.startswith("NCCL_")})
    return found


def _many(facts: Facts) -> bool:
    return len(nvml_gpus(facts)) > 1 or len(pci_gpus(facts)) > 1


def matching_interfaces(
    value: str, interfaces: tuple[Mapping[str, object], ...]
) -> tuple[str, ...]:
    """Return the interfaces NCCL_SOCKET_IFNAME leaves: prefixes, ``^`` excludes, ``=`` exact."""
    names = [text(interface, "name") for interface in interfaces]
    exclude, exact = value.startswith("^"), value.lstrip("^").startswith("=")
    wanted = [part for part in value.lstrip("^").lstrip("=").split(",") if part]

    def hit(name: str) -> bool:
        return any(name == part if exact else name.startswith(part) for part in wanted)

    return tuple(name for name in names if hit(name) != exclude)


def check_interfaces(facts: Facts) -> Results:
    """Hold NCCL_SOCKET_IFNAME against the interfaces there are."""
    say = Say("nccl.ifname")
    variables = _variables(facts)
    value = variables.get("NCCL_SOCKET_IFNAME", "")
    interfaces = rows(probe(facts, "host.network"), "interfaces")
    usable = tuple(row for row in interfaces if row.get("up"))
    names = ", ".join(text(row, "name") for row in interfaces)
    if not value:
        others = [row for row in usable if not row.get("loopback")]
        if interfaces and not others:
            return say.info("no interface but loopback: training on one machine only")
        return say.ok("NCCL chooses the interface itself")
    left = matching_interfaces(value, usable)
    evidence = [seen("NCCL_SOCKET_IFNAME", value), seen("/sys/class/net", names)]
    unset = fix("container", "remove it, or name one of these", "unset NCCL_SOCKET_IFNAME")
    if not left:
        return say.fail(
            f"NCCL_SOCKET_IFNAME={value} names no interface that is up",
            why="NCCL finds no socket interface, or waits without a word",
            evidence=evidence,
            fixes=[unset],
        )
    loopback = {text(row, "name") for row in usable if row.get("loopback")}
    if value.startswith("^") and left[0] in loopback:
        return say.warn(
            f"NCCL_SOCKET_IFNAME={value} lets loopback back in, and it comes first",
            why="an own exclusion replaces the built-in one, which leaves out lo and docker",
            evidence=evidence,
            fixes=[fix("container", "exclude it too", f"export NCCL_SOCKET_IFNAME={value},lo")],
        )
    if all(name in loopback for name in left) and _ranks(facts) > _local(facts):
        return say.fail(
            f"NCCL_SOCKET_IFNAME={value} leaves loopback alone, and ranks run on other machines",
            evidence=evidence,
            fixes=[unset],
        )
    return say.ok(f"{value}: {', '.join(left)}")


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
    variables = _variables(facts)
    files = group(probe(facts, "host.env"), "nccl_conf")
    sources = [path for path in files if group(files, path)]
    left = {
        name: variables[name]
        for name in _LEFTOVERS
        if name in variables and _changes_something(facts, name, variables[name])
    }
    if left:
        return say.warn(
            "left over: " + ", ".join(f"{name}={value}" for name, value in left.items()),
            why="such settings go round a fault at the price of bandwidth, and outlive it",
            evidence=[
                seen("environment" if not sources else ", ".join(sources), name) for name in left
            ],
            fixes=[fix("container", "remove them and measure", f"unset {' '.join(left)}")],
            confidence="possible",
        )
    named = [name for name in variables if name != "NCCL_SOCKET_IFNAME"]
    if named:
        return say.info(f"set: {', '.join(sorted(named))[:100]}")
    return say.ok("nothing set")


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
                fix("host", "or until the next boot, as root", "setpci -s BDF ECAP_ACS+6.w=0000"),
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
        fix("container", "give it more", "docker run --shm-size=8g ...   (or --ipc=host)"),
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
                    "or for users, in /etc/security/limits.conf",
                    "echo '* - memlock unlimited'",
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
one, so ^docker0 lets lo back in.""",
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
