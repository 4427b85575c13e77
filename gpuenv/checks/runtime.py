"""How GPUs get into containers: toolkit, CDI, device cgroups, rootless engines, WSL, pods."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuenv.checks.model import Check, Level
from gpuenv.checks.nvml import nvml_name
from gpuenv.checks.say import Results, Say, fix, group, integer, probe, rows, seen, text, words
from gpuenv.checks.scene import (
    container_kind,
    driver_cuda,
    gpu_expected,
    gpu_given,
    gpu_nodes,
    has_driver_libraries,
    in_container,
    is_wsl,
    module_release,
    nodes,
    pci_gpus,
    torch_cuda,
    version_key,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuenv.checks.model import Facts

_CDI_BY_DEFAULT = (28, 2)
_CDI_POSSIBLE = (25,)
_JIT_CDI = (1, 18)


def _variables(facts: Facts) -> Mapping[str, object]:
    return group(probe(facts, "host.env"), "variables")


def _engine_info(facts: Facts) -> Mapping[str, object]:
    return group(probe(facts, "host.engine"), "info")


def _toolkit(facts: Facts) -> Mapping[str, object]:
    return probe(facts, "host.toolkit")


def _programs(facts: Facts) -> list[str]:
    found = group(_toolkit(facts), "programs")
    return [name for name, path in found.items() if path]


def _is_gpu_host(facts: Facts) -> bool:
    return not in_container(facts) and bool(pci_gpus(facts)) and bool(module_release(facts))


def check_installed(facts: Facts) -> Results:
    """Ask whether the container toolkit is there on a host that runs an engine."""
    say = Say("ctk.installed")
    engine = probe(facts, "host.engine")
    if in_container(facts):
        return say.skip("not-applicable", "a matter of the host")
    version = text(_toolkit(facts), "version")
    if _programs(facts):
        if version and version_key(version) < _JIT_CDI:
            return say.info(
                f"{version}: docker --gpus goes through the legacy hook",
                seen("nvidia-ctk --version", version),
            )
        return say.ok(f"{version or 'there'}", seen("programs", ", ".join(_programs(facts))))
    has_engine = bool(_engine_info(facts)) or bool(engine.get("podman"))
    if not has_engine:
        return say.skip("not-applicable", "no container engine on this machine")
    if not _is_gpu_host(facts):
        return say.skip("no-gpu", "no working GPU on this machine that containers could use")
    return say.fail(
        "there is a container engine and no NVIDIA container toolkit",
        why="without it no container gets a GPU: could not select device driver",
        evidence=[seen("nvidia-ctk", "not found"), seen("nvidia-container-runtime", "not found")],
        fixes=[
            fix(
                "host",
                "install it and tell the engine",
                "apt-get install nvidia-container-toolkit"
                " && nvidia-ctk runtime configure --runtime=docker && systemctl restart docker",
            )
        ],
    )


def check_runtime(facts: Facts) -> Results:
    """Ask whether the Docker daemon knows a way to GPUs: the runtime, or CDI."""
    say = Say("ctk.runtime")
    engine, info = probe(facts, "host.engine"), _engine_info(facts)
    if in_container(facts) or not _is_gpu_host(facts):
        return say.skip("not-applicable", "no GPU host")
    gate = group(engine, "socket")
    if not info:
        if gate.get("errno") in ("EACCES", "EPERM"):
            return say.skip("needs-root", "this user may not ask the Docker daemon")
        return say.skip("not-applicable", "no Docker daemon answers")
    if info.get("name") == "podman":
        return say.skip("not-applicable", "Podman needs no runtime entry, it uses CDI")
    runtimes = words(info, "runtimes")
    cdi_dirs = words(info, "cdi_spec_dirs")
    usable = [spec for spec in rows(_toolkit(facts), "cdi") if not spec.get("error")]
    if "nvidia" in runtimes or (cdi_dirs and usable):
        how = "runtime nvidia" if "nvidia" in runtimes else "CDI"
        return say.ok(f"the daemon gives GPUs by {how}", seen("docker info", ", ".join(runtimes)))
    if not _programs(facts):
        return say.skip("blocked", "the toolkit itself is missing: ctk.installed")
    files = rows(engine, "daemon_files")
    written = [entry for entry in files if "nvidia" in words(entry, "runtimes")]
    if written:
        return say.fail(
            "the runtime is in daemon.json and the running daemon does not know it",
            why="the daemon was not restarted since, or reads another file (snap, rootless)",
            evidence=[
                seen(text(written[0], "path"), "runtimes: nvidia"),
                seen("docker info", ", ".join(runtimes)),
            ],
            fixes=[fix("host", "restart the daemon", "systemctl restart docker")],
        )
    snap = bool(engine.get("snap"))
    return say.fail(
        "the Docker daemon knows neither the nvidia runtime nor CDI",
        why="the toolkit is installed and the daemon was never told"
        + ("; snap's Docker keeps its configuration elsewhere" if snap else ""),
        evidence=[seen("docker info", f"runtimes {', '.join(runtimes)}; CDI off")],
        fixes=[
            fix(
                "host",
                "write the entry and restart",
                "nvidia-ctk runtime configure --runtime=docker && systemctl restart docker",
            )
        ],
    )


def check_config(facts: Facts) -> Results:
    """Look for settings of the toolkit that do not go with this engine."""
    say = Say("ctk.config")
    config = group(_toolkit(facts), "config")
    values = group(config, "values")
    if in_container(facts):
        return say.skip("not-applicable", "a matter of the host")
    if not values:
        return say.skip("not-applicable", "no configuration of the toolkit here")
    no_cgroups = values.get("nvidia-container-cli.no-cgroups") is True
    mode = values.get("nvidia-container-runtime.mode")
    info = _engine_info(facts)
    where = text(config, "path")
    if info and no_cgroups and not info.get("rootless"):
        return say.fail(
            "no-cgroups = true with a rootful daemon: containers get GPUs they may not open",
            why="the setting is for rootless engines; the device cgroup then denies every node "
            "and NVML says Unknown Error",
            evidence=[seen(where, "no-cgroups = true"), seen("docker info", "not rootless")],
            fixes=[
                fix(
                    "host",
                    "take it back, and use CDI for rootless engines",
                    "nvidia-ctk config --set nvidia-container-cli.no-cgroups=false --in-place",
                )
            ],
        )
    if info and info.get("rootless") and not no_cgroups and mode != "cdi":
        return say.fail(
            "a rootless daemon with no-cgroups = false: containers with GPUs do not start",
            why="a rootless engine may not touch device cgroups (bpf_prog_query: not permitted)",
            evidence=[seen(where, "no-cgroups is not set"), seen("docker info", "rootless")],
            fixes=[
                fix(
                    "host",
                    "use CDI for rootless engines",
                    "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
                ),
                fix("host", "or set no-cgroups = true, which breaks rootful engines"),
            ],
        )
    version = version_key(text(info, "server_version"))
    if info and mode == "cdi" and version and version < _CDI_POSSIBLE:
        return say.fail(
            "mode = cdi with a daemon that knows --gpus by the hook only",
            why="invoking the NVIDIA Container Runtime Hook directly is refused in this mode",
            evidence=[
                seen(where, 'mode = "cdi"'),
                seen("docker version", info.get("server_version")),
            ],
            fixes=[
                fix("host", "set mode = auto, or update Docker to 28.2 or newer"),
                fix("container", "or start with --runtime nvidia instead of --gpus"),
            ],
        )
    debug = [key for key in values if key.endswith(".debug")]
    if debug:
        return say.info(f"writes debug logs ({', '.join(debug)})")
    return say.ok("nothing unusual", seen(where, f"mode {mode or 'auto'}"))


def check_cdi(facts: Facts) -> Results:
    """Hold the CDI specs on disk against the running driver and the files they name."""
    say = Say("cdi.spec")
    toolkit = _toolkit(facts)
    specs = [spec for spec in rows(toolkit, "cdi") if _is_nvidia(spec)]
    if in_container(facts):
        return say.skip("not-applicable", "a matter of the host")
    if not specs:
        engine = probe(facts, "host.engine")
        wants = bool(engine.get("podman")) or bool(words(_engine_info(facts), "cdi_spec_dirs"))
        if _is_gpu_host(facts) and wants and _programs(facts):
            return say.warn(
                "no CDI spec for the GPUs",
                why="podman, and docker with --device nvidia.com/gpu=..., look for one",
                evidence=[seen("/etc/cdi, /var/run/cdi", "no spec of nvidia.com/gpu")],
                fixes=[
                    fix("host", "write it", "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml")
                ],
            )
        return say.skip("not-applicable", "no CDI specs here, and nothing that wants them")
    running = module_release(facts)
    results: list[Results] = []
    for spec in specs:
        path = text(spec, "path")
        one = say.of(path)
        again = fix("host", "write it anew", f"nvidia-ctk cdi generate --output={path}")
        error = text(spec, "error")
        releases = [
            release
            for release in words(spec, "releases")
            if running and version_key(release) != version_key(running)
        ]
        missing = words(spec, "missing")
        if error:
            results.append(
                one.fail(
                    f"cannot be used: {error}",
                    why="an engine that cannot read a spec says: unresolvable CDI devices",
                    evidence=[seen(path, error)],
                    fixes=[again],
                )
            )
        elif releases:
            results.append(
                one.fail(
                    f"was made for driver {', '.join(releases)}, {running} runs",
                    why="the driver was updated and the spec was not",
                    evidence=[
                        seen(path, ", ".join(releases)),
                        seen("/proc/driver/nvidia/version", running),
                    ],
                    fixes=[
                        again,
                        fix(
                            "host",
                            "or let the toolkit's service do it",
                            "systemctl enable --now nvidia-cdi-refresh.path",
                        ),
                    ],
                )
            )
        elif missing:
            results.append(
                one.fail(
                    f"names files that are not there: {', '.join(missing[:3])}",
                    why="they went with an update or a GPU; the engine refuses the whole container",
                    evidence=[seen(path, f"{len(missing)} missing")],
                    fixes=[again],
                )
            )
        elif spec.get("has_uvm") is False:
            results.append(
                one.warn(
                    "grants no /dev/nvidia-uvm",
                    why="nvidia-uvm was not loaded when the spec was written; CUDA will not start "
                    "in containers (999)",
                    evidence=[seen(path, "no /dev/nvidia-uvm")],
                    fixes=[fix("host", "load it first", "nvidia-modprobe -u -c=0"), again],
                )
            )
    if results:
        return tuple(result for found in results for result in found)
    names = sorted({name for spec in specs for name in words(spec, "devices")})
    return say.ok(f"current; devices {', '.join(names[:10])}")


def _is_nvidia(spec: Mapping[str, object]) -> bool:
    kind = text(spec, "kind")
    return kind.startswith("nvidia.com/") or (not kind and "nvidia" in text(spec, "path"))


def check_given(facts: Facts) -> Results:
    """Ask whether this container was given a GPU at all."""
    say = Say("ctr.gpu")
    if not in_container(facts):
        return say.skip("not-applicable", "not in a container")
    if gpu_given(facts):
        return say.ok(f"{len(gpu_nodes(facts)) or 'WSL'} GPU node(s) in this container")
    host_gpus = pci_gpus(facts)
    wanted = torch_cuda(facts) is not None or "gpu" in words(facts.asked, "require")
    if not host_gpus:
        return say.skip("no-gpu", "no NVIDIA GPU on this machine")
    if not wanted:
        return say.info(f"the machine has {len(host_gpus)} GPUs, this container was given none")
    visible = _variables(facts).get("NVIDIA_VISIBLE_DEVICES")
    return say.warn(
        f"the machine has {len(host_gpus)} GPUs, this container was given none",
        why="it was started without --gpus or --device nvidia.com/gpu=..., or the engine dropped "
        "the request silently (Podman's Docker socket does)",
        evidence=[
            seen("/sys/bus/pci/devices", f"{len(host_gpus)} NVIDIA GPUs"),
            seen("/dev", "no /dev/nvidia0 and so on"),
            seen("NVIDIA_VISIBLE_DEVICES", visible if visible is not None else "not set"),
        ],
        fixes=[
            fix("container", "ask for them", "docker run --gpus all ..."),
            fix("container", "or by CDI", "podman run --device nvidia.com/gpu=all ..."),
        ],
        suspects=("vis.nvd",),
    )


def check_libraries(facts: Facts) -> Results:
    """Find containers with nodes and no libraries, and the other way round."""
    say = Say("ctk.libs")
    if not in_container(facts):
        return say.skip("not-applicable", "not in a container")
    have_nodes = bool(gpu_nodes(facts)) or bool(is_wsl(facts) and gpu_given(facts))
    cuda = group(probe(facts, "host.cuda"), "load")
    nvml = group(probe(facts, "host.nvml"), "load")
    loaded = {
        "libcuda.so.1": bool(cuda) and cuda.get("error") is None,
        "libnvidia-ml.so.1": bool(nvml) and nvml.get("error") is None,
    }
    if not have_nodes and not any(loaded.values()):
        return say.skip("no-gpu", "neither nodes nor driver libraries: no GPU was given")
    capabilities = _variables(facts).get("NVIDIA_DRIVER_CAPABILITIES")
    asked = seen("NVIDIA_DRIVER_CAPABILITIES", capabilities or "not set")
    missing = [name for name, there in loaded.items() if not there]
    if have_nodes and missing:
        lies_there = has_driver_libraries(facts)
        return say.fail(
            f"GPU nodes are here, {' and '.join(missing)} cannot be loaded",
            why="the files are here and the loader's cache does not know them"
            if lies_there
            else "the driver's libraries were not put into the container",
            evidence=[
                *(
                    seen(f"dlopen {name}", text(load, "error"))
                    for name, load in (("libcuda.so.1", cuda), ("libnvidia-ml.so.1", nvml))
                    if name in missing
                ),
                asked,
            ],
            fixes=[
                fix("container", "run ldconfig as root when it starts", "ldconfig")
                if lies_there
                else fix(
                    "image",
                    "ask for the libraries",
                    "ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility",
                ),
                fix("container", "start it with --gpus or CDI, not with bare --device nodes"),
            ],
        )
    if not have_nodes and any(loaded.values()):
        baked = module_release(facts) == "" or bool(words(probe(facts, "host.driver"), "packages"))
        return say.fail(
            "driver libraries are here and no GPU node is",
            why="the libraries are baked into the image"
            if baked
            else "the nodes were not granted: the request for GPUs was lost",
            evidence=[
                seen("loaded", ", ".join(name for name, there in loaded.items() if there)),
                seen("/dev", "no /dev/nvidia0 and so on"),
            ],
            fixes=[
                fix("container", "ask for GPUs", "docker run --gpus all ..."),
                fix("image", "remove driver packages from the image"),
            ],
            confidence="likely",
        )
    return say.ok("nodes and driver libraries are both here")


def check_uvm_granted(facts: Facts) -> Results:
    """Find containers that may manage the GPU and not compute on it."""
    say = Say("ctk.uvm")
    if not in_container(facts):
        return say.skip("not-applicable", "not in a container")
    found = nodes(facts)
    control, uvm = found.get("/dev/nvidiactl", {}), found.get("/dev/nvidia-uvm", {})
    if not gpu_nodes(facts) or control.get("errno"):
        return say.skip("no-gpu", "no GPU was given, or even /dev/nvidiactl does not open")
    errno = uvm.get("errno")
    if errno in ("EPERM", "ENOENT"):
        return say.fail(
            f"/dev/nvidiactl opens and /dev/nvidia-uvm gives {errno}: nvidia-smi works, CUDA does "
            "not (999)",
            why="the start method granted the management nodes and not the compute node; some "
            "toolkit releases do that",
            evidence=[seen("open /dev/nvidiactl", "ok"), seen("open /dev/nvidia-uvm", errno)],
            fixes=[
                fix(
                    "container",
                    "pass the nodes explicitly",
                    "docker run --gpus all "
                    "--device /dev/nvidia-uvm --device /dev/nvidia-uvm-tools ...",
                ),
                fix("container", "or use CDI", "docker run --device nvidia.com/gpu=all ..."),
                fix("host", "make sure it is loaded before", "nvidia-modprobe -u -c=0"),
            ],
        )
    if errno:
        return say.info(f"/dev/nvidia-uvm gives {errno}; see host.nodes")
    return say.ok("/dev/nvidia-uvm opens")


def check_require(facts: Facts) -> Results:
    """Read NVIDIA_REQUIRE_CUDA and the switch that turns it off."""
    say = Say("ctk.require")
    env = _variables(facts)
    require = str(env.get("NVIDIA_REQUIRE_CUDA", ""))
    if not in_container(facts):
        return say.skip("not-applicable", "not in a container")
    if "NVIDIA_DISABLE_REQUIRES" in env and "NVIDIA_DISABLE_REQUIRE" not in env:
        return say.warn(
            "NVIDIA_DISABLE_REQUIRES does nothing: the toolkit reads NVIDIA_DISABLE_REQUIRE",
            evidence=[seen("environment", "NVIDIA_DISABLE_REQUIRES")],
            fixes=[fix("container", "remove it, or spell it without the S")],
        )
    if str(env.get("NVIDIA_DISABLE_REQUIRE", "")).lower() in ("1", "true", "t"):
        return say.warn(
            "the image's demand on the driver is switched off",
            why="a driver that is too old is then found out by CUDA, not at the start",
            evidence=[seen("NVIDIA_DISABLE_REQUIRE", env.get("NVIDIA_DISABLE_REQUIRE"))],
            fixes=[fix("container", "remove NVIDIA_DISABLE_REQUIRE")],
        )
    if not require:
        return say.skip("not-applicable", "the image asks for no particular driver")
    wanted = _required_cuda(require)
    have = driver_cuda(facts)
    if wanted and have and have < wanted and "driver" not in require:
        return say.warn(
            f"asks for CUDA {wanted[0]}.{wanted[1]}, this driver has {have[0]}.{have[1]}, and no "
            "clause lets older data-center drivers in",
            why="the value of NVIDIA's base image lists the driver branches that serve as well; "
            "an own value without them shuts them out",
            evidence=[seen("NVIDIA_REQUIRE_CUDA", require)],
            fixes=[fix("image", "keep the value of the base image")],
        )
    return say.ok(f"{require[:60]}")


def _required_cuda(require: str) -> tuple[int, int] | None:
    for clause in require.replace(",", " ").split():
        if clause.startswith("cuda>="):
            parts = clause.removeprefix("cuda>=").split(".")
            if parts[0].isdigit():
                return int(parts[0]), int(parts[1]) if parts[1:] and parts[1].isdigit() else 0
    return None


def check_lost_cgroup(facts: Facts) -> Results:
    """Find a container whose device cgroup has lost, or never had, the GPUs."""
    say = Say("cgroup.lost")
    if not in_container(facts):
        return say.skip("not-applicable", "not in a container")
    found = nodes(facts)
    denied = [
        path
        for path in ("/dev/nvidiactl", *gpu_nodes(facts))
        if found.get(path, {}).get("errno") == "EPERM"
    ]
    if not gpu_nodes(facts) and not denied:
        return say.skip("no-gpu", "no GPU was given to this container")
    if not denied:
        return say.ok("the device cgroup lets the GPUs in")
    nvml = probe(facts, "host.nvml")
    return say.fail(
        f"the nodes are here and the device cgroup denies them: {', '.join(denied[:3])}",
        why="systemd reloaded (daemon-reload, docker update) and wrote the container's device "
        "rules anew, without the GPUs the legacy hook had added; or it was started with "
        "no-cgroups = true and never could",
        evidence=[
            *(seen(f"open {path}", "EPERM") for path in denied[:3]),
            seen("nvmlInit", nvml_name(integer(nvml, "init") or 0)),
        ],
        fixes=[
            fix("container", "restart the container: that helps at once", "docker restart NAME"),
            fix(
                "container",
                "start it with CDI, or with --device for each node, which survives",
                "docker run --device nvidia.com/gpu=all ...",
            ),
            fix(
                "host",
                "or make the links systemd looks for",
                "nvidia-ctk system create-dev-char-symlinks --create-all",
            ),
        ],
        alternatives=["no-cgroups = true in the toolkit's configuration: then it never worked"],
        confidence="likely",
    )


def check_cgroup_risk(facts: Facts) -> Results:
    """Say which running containers will lose their GPUs at the next daemon-reload."""
    say = Say("cgroup.risk")
    if in_container(facts):
        return say.skip("not-applicable", "a matter of the host")
    engine = probe(facts, "host.engine")
    info = _engine_info(facts)
    if info.get("cgroup_driver") != "systemd":
        return say.skip("not-applicable", "no engine with the systemd cgroup driver")
    majors = {
        str(number)
        for name, number in group(probe(facts, "host.nodes"), "majors").items()
        if name.startswith("nvidia")
    } | {"195"}
    scopes = group(engine, "scopes")
    exposed = []
    for container in rows(engine, "gpu_containers"):
        allowed = scopes.get(text(container, "id"))
        if not isinstance(allowed, (list, tuple)) or container.get("how") in ("nodes", "cdi"):
            continue
        if not any(_names_major(str(rule), majors) for rule in allowed):
            exposed.append(text(container, "name") or text(container, "id"))
    if exposed:
        return say.warn(
            f"will lose their GPUs at the next systemctl daemon-reload: {', '.join(exposed)}",
            why="their systemd scope does not list the GPU nodes that the legacy hook added; a "
            "reload, or docker update, applies the scope as it is written",
            evidence=[
                seen("/run/systemd/transient", "no 195:* in their DeviceAllow"),
                seen("/dev/char", words(probe(facts, "host.nodes"), "char_links") or "no 195:*"),
            ],
            fixes=[
                fix(
                    "container", "start them with CDI", "docker run --device nvidia.com/gpu=all ..."
                ),
                fix(
                    "host",
                    "make the links systemd looks for",
                    "nvidia-ctk system create-dev-char-symlinks --create-all",
                ),
            ],
        )
    if not rows(engine, "gpu_containers"):
        return say.skip("not-applicable", "no container with a GPU runs")
    return say.ok("every running container keeps its GPUs over a daemon-reload")


def _names_major(rule: str, majors: set[str]) -> bool:
    return (
        any(
            f"char-{major}:" in rule or f"/{major}:" in rule or f" {major}:" in f" {rule}"
            for major in majors
        )
        or "char-nvidia" in rule
        or "/dev/nvidia" in rule
    )


def check_rootless(facts: Facts) -> Results:
    """Find a rootless container whose nodes need a group it does not have."""
    say = Say("ctr.rootless")
    if not in_container(facts):
        return say.skip("not-applicable", "not in a container")
    user = probe(facts, "host.user")
    if not user.get("rootless"):
        return say.ok("not rootless")
    denied = [path for path, node in nodes(facts).items() if node.get("errno") == "EACCES"]
    denied = [path for path in denied if path.startswith("/dev/nvidia")]
    if denied:
        return say.fail(
            f"rootless, and the groups that may open {denied[0]} were dropped",
            why="the nodes belong to a group of the host; a user namespace drops such groups",
            evidence=[
                seen("/proc/self/uid_map", user.get("uid_map")),
                *(seen(f"open {path}", "EACCES") for path in denied[:3]),
            ],
            fixes=[
                fix("container", "keep them (crun)", "podman run --group-add keep-groups ..."),
                fix("host", "with SELinux: allow devices", "setsebool -P container_use_devices 1"),
                fix("host", "or let everybody open the nodes: NVreg_DeviceFileMode=0666"),
            ],
        )
    return say.ok("rootless, and no node is closed to it")


def check_wsl(facts: Facts) -> Results:
    """Look at the ways of WSL: the driver is Windows', its library lies in /usr/lib/wsl/lib."""
    say = Say("wsl")
    if not is_wsl(facts):
        return say.skip("not-applicable", "not WSL")
    wsl = group(probe(facts, "host.machine"), "wsl")
    if not wsl.get("dxg"):
        return say.warn(
            "WSL without /dev/dxg: no GPU reaches it",
            evidence=[seen("/dev/dxg", "not there")],
            fixes=[fix("host", "install NVIDIA's Windows driver and run wsl --update")],
        )
    path = text(group(probe(facts, "host.cuda"), "load"), "path")
    if path and "/wsl/" not in path and not in_container(facts):
        return say.fail(
            f"{path} shadows WSL's own libcuda",
            why="a Linux driver package was installed inside WSL; it cannot work there",
            evidence=[seen("loaded libcuda.so.1", path)],
            fixes=[
                fix(
                    "host",
                    "remove the Linux driver packages from WSL",
                    "apt-get purge 'libnvidia-*' 'nvidia-*'",
                ),
                fix(
                    "host",
                    "put WSL's folder first",
                    "echo /usr/lib/wsl/lib > /etc/ld.so.conf.d/ld.wsl.conf && ldconfig",
                ),
            ],
        )
    return say.ok("/dev/dxg and WSL's libcuda are in place")


def check_k8s(facts: Facts) -> Results:
    """Look at what the device plugin left in a pod's environment."""
    say = Say("k8s")
    kind = container_kind(facts)
    pod = bool(group(probe(facts, "host.machine"), "k8s").get("pod"))
    env = _variables(facts)
    if kind != "kubernetes" and not pod:
        return say.skip("not-applicable", "not in a pod")
    if "DP_DISABLE_HEALTHCHECKS" in env:
        return say.warn(
            "the device plugin's health checks are switched off",
            evidence=[seen("DP_DISABLE_HEALTHCHECKS", env["DP_DISABLE_HEALTHCHECKS"])],
            fixes=[fix("host", "remove it from the device plugin")],
        )
    if not gpu_given(facts) and torch_cuda(facts) is not None:
        return say.warn(
            "this pod has a CUDA build of torch and no GPU",
            why="no nvidia.com/gpu in its limits, or the runtime class is not nvidia",
            evidence=[seen("NVIDIA_VISIBLE_DEVICES", env.get("NVIDIA_VISIBLE_DEVICES", "not set"))],
            fixes=[
                fix("container", "ask for one", "resources: {limits: {nvidia.com/gpu: 1}}"),
                fix("container", "and use runtimeClassName: nvidia where it is not the default"),
            ],
        )
    return say.ok("pod" + (" with GPUs" if gpu_given(facts) else " without GPUs"))


def check_visible_devices(facts: Facts) -> Results:
    """Read NVIDIA_VISIBLE_DEVICES, which says what the container was meant to get."""
    say = Say("vis.nvd")
    env = _variables(facts)
    if not in_container(facts):
        return say.skip("not-applicable", "not in a container")
    value = env.get("NVIDIA_VISIBLE_DEVICES")
    if value is None:
        return say.skip("not-applicable", "not set")
    if str(value) in ("void", "none", "") and not gpu_given(facts) and gpu_expected(facts):
        return say.warn(
            f"NVIDIA_VISIBLE_DEVICES={value}: the toolkit was told to give no GPU",
            evidence=[seen("NVIDIA_VISIBLE_DEVICES", repr(value))],
            fixes=[fix("container", "set it", "docker run -e NVIDIA_VISIBLE_DEVICES=all ...")],
        )
    listed = [word for word in str(value).split(",") if word]
    if all(word.isdigit() for word in listed) and listed and gpu_nodes(facts):
        count = len(gpu_nodes(facts))
        if count < len(set(listed)):
            return say.fail(
                f"{value} was asked for and {count} GPU nodes are here",
                why="the engine gave fewer than asked: an index beyond the host's GPUs",
                evidence=[seen("NVIDIA_VISIBLE_DEVICES", value), seen("/dev", count)],
                fixes=[fix("container", "ask for GPUs the host has", "nvidia-smi -L")],
            )
    return say.ok(f"{value}")


CHECKS = (
    Check(
        id="ctk.installed",
        title="NVIDIA container toolkit",
        level=Level.STATIC,
        run=check_installed,
        needs=("host.toolkit",),
        uses=("host.engine", "host.pci", "host.driver"),
        explanation="""\
Container engines get GPUs through the NVIDIA container toolkit. From 1.18 the nvidia runtime
uses CDI made on the spot; the hook behind docker --gpus still goes the legacy way (see
cgroup.risk).""",
    ),
    Check(
        id="ctk.runtime",
        title="Docker daemon knows a way to GPUs",
        level=Level.STATIC,
        run=check_runtime,
        needs=("host.engine", "host.toolkit"),
        uses=("host.pci", "host.driver"),
        after=("ctk.installed",),
        explanation="""\
The toolkit may be installed and the daemon not know it: the entry in daemon.json is missing,
the daemon was not restarted, or it is another daemon (snap, rootless, Docker Desktop). Docker
then says: could not select device driver "" with capabilities: [[gpu]], or: Unknown runtime
specified nvidia.""",
    ),
    Check(
        id="ctk.config",
        title="Toolkit settings fit the engine",
        level=Level.STATIC,
        run=check_config,
        needs=("host.toolkit",),
        uses=("host.engine",),
        explanation="""\
One file, /etc/nvidia-container-runtime/config.toml, serves rootful and rootless engines and
cannot suit both: no-cgroups = true lets a rootless engine start containers and closes the GPUs
of a rootful one. CDI needs neither.""",
    ),
    Check(
        id="cdi.spec",
        title="CDI specs current",
        level=Level.STATIC,
        run=check_cdi,
        needs=("host.toolkit",),
        uses=("host.driver", "host.engine", "host.pci"),
        explanation="""\
A CDI spec lists device nodes and library files by their full names, the driver's release
included. After a driver update it names files that are gone. The toolkit's nvidia-cdi-refresh
service writes it anew; without it, nvidia-ctk cdi generate does.""",
    ),
    Check(
        id="ctr.gpu",
        title="GPU given to this container",
        level=Level.STATIC,
        run=check_given,
        needs=("host.nodes",),
        uses=("host.machine", "host.pci", "host.nvml", "host.cuda", "host.env", "torch.static"),
        explanation="""\
The PCI bus shows the host's GPUs in every container, so their presence says nothing. Given
means: device nodes are in /dev. A container that never asked for a GPU is no fault, unless it
holds a CUDA build of torch or a GPU is required.""",
    ),
    Check(
        id="vis.nvd",
        title="NVIDIA_VISIBLE_DEVICES",
        level=Level.STATIC,
        run=check_visible_devices,
        needs=("host.env",),
        uses=("host.nodes", "host.machine"),
        explanation="""\
The toolkit reads this variable at the start: all, none, void, indices or UUIDs. CDI sets it to
void on purpose, which is no fault when the nodes are there.""",
    ),
    Check(
        id="cgroup.lost",
        title="Device cgroup lets the GPUs in",
        level=Level.STATIC,
        run=check_lost_cgroup,
        needs=("host.nodes",),
        uses=("host.machine", "host.nvml"),
        explanation="""\
A container's device cgroup decides which nodes may be opened, whatever their mode says; refusal
is EPERM. The legacy hook adds the GPUs behind systemd's back, and systemd takes them away again
when it reloads: a container that has trained for days then says "Failed to initialize NVML:
Unknown Error".""",
    ),
    Check(
        id="ctk.uvm",
        title="Compute node granted",
        level=Level.STATIC,
        run=check_uvm_granted,
        needs=("host.nodes",),
        uses=("host.machine",),
        after=("cgroup.lost",),
        explanation="""\
nvidia-smi needs /dev/nvidiactl and /dev/nvidiaN, CUDA needs /dev/nvidia-uvm as well. Where only
that one is missing or denied, everything looks well and cuInit answers 999.""",
    ),
    Check(
        id="ctk.libs",
        title="Driver libraries in the container",
        level=Level.STATIC,
        run=check_libraries,
        needs=("host.nodes", "host.cuda", "host.nvml"),
        uses=("host.machine", "host.env", "host.libs", "host.driver"),
        explanation="""\
The toolkit puts libcuda and libnvidia-ml of the host's driver into a container. Nodes without
libraries: the wrong capabilities, or bare --device. Libraries without nodes: baked into the
image, or the request for a GPU was lost.""",
    ),
    Check(
        id="ctk.require",
        title="Image's demand on the driver",
        level=Level.STATIC,
        run=check_require,
        needs=("host.env",),
        uses=("host.cuda", "host.nvml", "host.machine"),
        explanation="""\
NVIDIA_REQUIRE_CUDA lets the toolkit refuse a container whose CUDA the driver cannot serve.
NVIDIA's base images list which data-center driver branches serve as well; an image that
overwrites the value must keep those clauses.""",
    ),
    Check(
        id="cgroup.risk",
        title="Containers that would lose their GPUs",
        level=Level.STATIC,
        run=check_cgroup_risk,
        needs=("host.engine",),
        uses=("host.nodes", "host.machine"),
        explanation="""\
Reads the systemd scope of every running container with a GPU. Where its DeviceAllow does not
name the GPU's major number, the next daemon-reload takes the GPU away (see cgroup.lost).""",
    ),
    Check(
        id="ctr.rootless",
        title="Rootless container and node groups",
        level=Level.STATIC,
        run=check_rootless,
        needs=("host.user", "host.nodes"),
        uses=("host.machine",),
        explanation="""\
In a user namespace the host's supplementary groups are dropped. Nodes of mode 0660 then answer
EACCES although the same user opens them on the host.""",
    ),
    Check(
        id="wsl",
        title="WSL",
        level=Level.STATIC,
        run=check_wsl,
        needs=("host.machine",),
        uses=("host.cuda",),
        explanation="""\
Under WSL the driver is Windows' own; Linux sees /dev/dxg and a libcuda in /usr/lib/wsl/lib. A
Linux driver package inside WSL shadows it and breaks CUDA.""",
    ),
    Check(
        id="k8s",
        title="Kubernetes pod",
        level=Level.STATIC,
        run=check_k8s,
        needs=("host.machine",),
        uses=("host.env", "host.nodes", "torch.static"),
        explanation="""\
A pod gets GPUs by asking for nvidia.com/gpu in its limits, on a node whose runtime class or
default runtime is nvidia.""",
    ),
)
