"""Probes: files that run where torch is and answer with facts as JSON lines.

They may import the standard library, torch and one another (relatively), nothing else of gpuenv,
and must run on Python 3.8: annotations are never evaluated (``from __future__ import
annotations``), the rest is plain syntax. A file's ``PROBES`` maps probe names to functions::

    def probe(context: Context) -> dict[str, Any]: ...

    PROBES = {"host.pci": probe}

``context.root`` is the folder that stands for ``/``, ``context.read`` and its kin never raise,
``context.tell`` sends facts early. An exception becomes the probe's ``error``. A new probe needs
a row in :mod:`gpuenv.checks.probes`. Files whose name begins with ``_`` travel with every probe.

What the probes without torch find out (values are ``None`` where not to be had):

=================  ===============================================================================
name               keys
=================  ===============================================================================
host.machine       kernel, arch, os {id, version, pretty}, python, cpus, container {kind}, wsl, k8s,
                   ci, virtual, time_s
host.pci           gpus [{bdf, vendor, device, class, driver, numa, lost, link {...}, bar1_mib}],
                   nvswitches [...], bridges [{bdf, acs}], iommu {groups, types}
host.driver        module_version, proc_version, flavour, modules [...], params, secure_boot,
                   built_kernels [...], kernel, dkms [...], blacklist [...], rm_gpus [...]
host.kernel-log    readable, source, events [{kind, text}], xids [{code, bdf, text}]
host.nodes         nodes {path: {open, errno, mode, uid, gid, major, minor}}, majors {name: n},
                   char_links [...], groups [...]
host.nvml          load {path, error}, init, driver, cuda, count, gpus [{index, uuid, name, bdf,
                   capability, memory {...}, ...}]; a field is its value or ``{"nvml": code}``
host.cuda          load {path, error}, cu_init, driver_cuda, count, gpus [...], maps [...], compat
host.libs          libs {soname: [{path, version, dir, cached}]}, stub_dirs [...], loader_dirs [...]
host.toolkit       ctk {path, version}, cli {...}, hook {...}, config {...}, cdi [{path, error,
                   devices [...], missing [...], driver}]
host.engine        docker {socket, version, runtimes, cgroup_driver, cdi, rootless, ...},
                   daemon_json, scopes [...], podman {...}
host.limits        rlimits {name: [soft, hard]}, cgroup {cpu, memory, pids, ...}, shm {...},
                   inotify {...}, affinity
host.storage       mounts [...], places {name: {path, free, total, inodes, writable, exec, ...}}
host.user          uid, gid, groups, name, home {path, writable}, uid_map, rootless
host.env           variables {allowed name: value}, nccl_conf {path: text}
host.network       interfaces [{name, up, type, addresses}], infiniband [{device, port, state, ...}]
torch.static       present, version, cuda, dists {name: version}, copies [...], conflicts [...],
                   overlaps [...], built {...}, arch_list
host.toolchain     cc, cxx, python_h, ptxas [...], nvcc, libcuda_link, triton
=================  ===============================================================================
"""
