"""The differential runs: when a collective fails, change one thing at a time until it works.

Pure: what was tried goes in, the next thing to try comes out. First the same again (a fault that
does not come back is intermittent), then fewer GPUs (one pair, then pairs until one fails), then,
on the smallest group that fails, the user's own settings off (and which of them it was), then one
variable after the other. "Works only with X" is the
diagnosis; that everything fails is one too.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any, Mapping

# name and what it changes; None removes the variable
NCCL_ARMS: tuple[tuple[str, dict[str, str | None]], ...] = (
    ("p2p-off", {"NCCL_P2P_DISABLE": "1"}),
    ("shm-off", {"NCCL_SHM_DISABLE": "1"}),
    ("nvls-off", {"NCCL_NVLS_ENABLE": "0"}),
    ("loopback", {"NCCL_SOCKET_IFNAME": "lo"}),
    ("ib-off", {"NCCL_IB_DISABLE": "1"}),
    ("cumem-off", {"NCCL_CUMEM_ENABLE": "0"}),
)
GLOO_ARMS: tuple[tuple[str, dict[str, str | None]], ...] = (
    ("loopback", {"GLOO_SOCKET_IFNAME": "lo"}),
)
OWN_SETTINGS = ("NCCL_", "GLOO_", "TORCH_NCCL_")
VERBOSITY = ("NCCL_DEBUG", "TORCH_NCCL_DEBUG")
OWN_OFF = "own-settings-off"
LIBRARY_PATH = "LD_LIBRARY_PATH"
PAIRS_TRIED = 12


def next_arm(
    world: int, backend: str, env: Mapping[str, str], done: list[dict[str, Any]]
) -> dict[str, Any] | None:
    """Return the next run, or ``None`` when there is nothing left to learn.

    Args:
        world: Ranks of the run that failed.
        backend: ``nccl`` or ``gloo``.
        env: The environment of the run that failed.
        done: The arms so far, each as returned by this function plus ``ok``.

    Returns:
        ``{"name", "ranks": [...], "backend", "env": {name: value or None}}``.
    """
    everyone = list(range(world))
    if not done:
        return _arm("again", everyone, backend, {})
    if done[0]["ok"]:
        return None
    smallest = everyone
    if world > 2:
        pairs = [list(pair) for pair in neighbours_first(world)][:PAIRS_TRIED]
        tried = [arm for arm in done if arm["name"] == "pair"]
        failing = [arm["ranks"] for arm in tried if not arm["ok"]]
        if not failing and len(tried) < len(pairs):
            return _arm("pair", pairs[len(tried)], backend, {})
        smallest = failing[0] if failing else everyone
    variables = [arm for arm in done if arm["name"] not in ("again", "pair")]
    if variables and variables[0]["name"] == OWN_OFF and variables[0]["ok"]:
        plan = single_settings(env)  # which of them was it?
        variables = variables[1:]
    else:
        plan = variable_arms(backend, env)
    if len(variables) >= len(plan) or (variables and variables[-1]["ok"]):
        return None
    name, changes = plan[len(variables)]
    return _arm(name, smallest, "gloo" if name == "gloo" else backend, changes)


def own_settings(env: Mapping[str, str]) -> list[str]:
    """Return the user's settings of the communication libraries; verbosity alone is none."""
    return sorted(
        name for name in env if name.startswith(OWN_SETTINGS) and not name.startswith(VERBOSITY)
    )


def single_settings(env: Mapping[str, str]) -> list[tuple[str, dict[str, str | None]]]:
    """Return one arm per own setting where there are several."""
    own = own_settings(env)
    return [("without " + name, {name: None}) for name in own] if len(own) > 1 else []


def neighbours_first(world: int) -> list[tuple[int, int]]:
    """Return all pairs of ranks, those first that a ring puts side by side."""
    ring = [tuple(sorted((rank, (rank + 1) % world))) for rank in range(world)]
    rest = [pair for pair in combinations(range(world), 2) if pair not in ring]
    return [(a, b) for a, b in [*ring, *rest]]


def variable_arms(backend: str, env: Mapping[str, str]) -> list[tuple[str, dict[str, str | None]]]:
    """Return the changes worth trying here: those that change something in this environment."""
    arms: list[tuple[str, dict[str, str | None]]] = []
    own = own_settings(env)
    if own:
        arms.append((OWN_OFF, dict.fromkeys(own)))
    for name, changes in NCCL_ARMS if backend == "nccl" else GLOO_ARMS:
        if any(env.get(variable) != value for variable, value in changes.items()):
            arms.append((name, changes))
    if env.get(LIBRARY_PATH):
        arms.append(("library-path-off", {LIBRARY_PATH: None}))
    if backend == "nccl":
        arms.append(("gloo", {}))
    return arms


def changed_env(env: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    """Return the environment with the changes made."""
    changed = dict(env)
    for name, value in changes.items():
        if value is None:
            changed.pop(name, None)
        else:
            changed[name] = value
    return changed


def _arm(name: str, ranks: list[int], backend: str, env: dict[str, str | None]) -> dict[str, Any]:
    return {"name": name, "ranks": ranks, "backend": backend, "env": env}
