"""Facts about this host: NVML, device nodes, cgroups, CDI, below a root that tests can move."""
