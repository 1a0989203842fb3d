"""Measures a step of single environments for `benchmarks/compare.py`: alone, in our group, and in `SyncVectorEnv`.

Costs are CPU time in this process, the minimum of several passes, because other work can only add time. The same
actions are repeated, and an episode that ends is reset.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from headrace.queues.messages import ActionBatch
from headrace.stages.environments.gymnasium.group import GymnasiumGroup
from headrace.stages.environments.gymnasium.singles import make_vector

ENVIRONMENTS = ("Pendulum-v1", "CartPole-v1")
COUNTS = (16, 64, 256)
STEPS, BAR_US = 12_800, 1.5
BARE, GROUP, SYNC = "env.step", "our group", "SyncVectorEnv"
Costs = Mapping[str, float]
"""Microseconds of CPU per step, by stepper."""


def steppers(env_id: str, count: int) -> dict[str, Callable[[], Any]]:
    """Return functions that step `count` environments once, by stepper."""
    random = np.random.default_rng(0)
    envs = [gymnasium.make(env_id, disable_env_checker=True) for _ in range(count)]
    same_step = {"autoreset_mode": AutoresetMode.SAME_STEP}
    sync = gymnasium.make_vec(env_id, count, vectorization_mode="sync", vector_kwargs=same_step)
    group = GymnasiumGroup(make_vector(env_id, count, {"vectorization_mode": "sync"}, env_id), env_id, env_id)
    for i, env in enumerate(envs):
        env.reset(seed=i)
    sync.reset(seed=0)
    group.reset(0)
    sync.action_space.seed(0)
    taken = sync.action_space.sample()
    spec = group.behavior_specs[env_id].actions
    continuous = random.uniform(-1, 1, (count, spec.continuous_size)).astype(np.float32)
    discrete = random.integers(0, 2, (count, len(spec.discrete_branches))).astype(np.int32)
    batch = {env_id: ActionBatch(continuous, discrete)}

    def bare() -> None:
        for env, action in zip(envs, taken, strict=True):
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()

    return {BARE: bare, GROUP: lambda: group.step(batch), SYNC: lambda: sync.step(taken)}


def costs(env_id: str, count: int, rounds: int) -> Costs:
    """Return each stepper's minimum cost per step."""
    found = {name: float("inf") for name in (BARE, GROUP, SYNC)}
    by_name = steppers(env_id, count)
    for _ in range(rounds):
        for name, step in by_name.items():
            began = time.process_time()
            for _ in range(STEPS // count):
                step()
            found[name] = min(found[name], 1e6 * (time.process_time() - began) / (STEPS // count * count))
    return found


def table(found: Mapping[tuple[str, int], Costs]) -> list[str]:
    """Return a table of costs by environment and count, with Headrace's overhead and whether it is within the bar."""
    rows = [f"| single environments | {BARE} | {GROUP} | beyond | {SYNC} | beyond |", "|---|---|---|---|---|---|"]
    for (env_id, count), took in found.items():
        ours, sync = took[GROUP] - took[BARE], took[SYNC] - took[BARE]
        missed = "" if ours <= BAR_US else ", missed"
        cells = f"{took[BARE]:.1f} | {took[GROUP]:.1f} | {ours:.1f} (at most {BAR_US:g}{missed}) | {took[SYNC]:.1f}"
        rows.append(f"| {count} × {env_id} | {cells} | {sync:.1f} |")
    return rows


def measured(quick: bool) -> dict[tuple[str, int], Costs]:
    """Return the costs for each environment and count."""
    counts: Sequence[int] = COUNTS[:1] if quick else COUNTS
    return {(env_id, count): costs(env_id, count, 3 if quick else 15) for env_id in ENVIRONMENTS for count in counts}
