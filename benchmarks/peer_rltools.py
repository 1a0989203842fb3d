"""Runs RLtools (C++) on workloads of `benchmarks/compare.py`, through its Python interface, without Headrace code.

    RLTOOLS benchmarks/peer_rltools.py W4 --steps 250000 --seed 0      RLTOOLS: a Python with rltools, mkl and mkl-devel

W3 is SAC and W4 is PPO on Gymnasium's Pendulum-v1, with actions scaled to [-1, 1] because RLtools supports no other
range. RLtools is compiled at its first use (g++ or clang++), which is not counted. It has one thread. The program
prints one line of JSON, as the references do; the rate leaves out SAC's first 1,000 steps, and the first fifth of
PPO's. The score is the mean return of the final policy's deterministic episodes.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
import rltools
from gymnasium.wrappers import RescaleAction

SAC_FIRST = 1000
ENVS, HORIZON = 64, 32
# A constant of the compiled program: one value for all lengths of a run, because each value needs a new compilation.
LIMIT = 1_000_000
EPISODES = 10


def pendulum() -> gymnasium.Env:
    """Return one environment."""
    return RescaleAction(gymnasium.make("Pendulum-v1"), -1.0, 1.0)


def sac() -> Any:
    """Return SAC as in `peer_sb3.py`; one of its steps is one environment step."""
    return rltools.SAC(
        pendulum, interface_name="compare_W3", enable_evaluation=False, ACTOR_BATCH_SIZE=256, CRITIC_BATCH_SIZE=256,
        N_WARMUP_STEPS=SAC_FIRST, STEP_LIMIT=LIMIT, REPLAY_BUFFER_CAP=100_000, ACTOR_HIDDEN_DIM=256,
        CRITIC_HIDDEN_DIM=256, ALPHA=1.0, OPTIMIZER_ALPHA=3e-4,
    )  # fmt: skip


def ppo() -> Any:
    """Return PPO as in benchmarks/pendulum_ppo.yaml; one of its steps is one update."""
    return rltools.PPO(
        pendulum, interface_name="compare_W4", enable_evaluation=False, N_ENVIRONMENTS=ENVS,
        ON_POLICY_RUNNER_STEPS_PER_ENV=HORIZON, BATCH_SIZE=256, N_EPOCHS=4, GAMMA=0.9, LAMBDA=0.95, EPSILON_CLIP=0.2,
        INITIAL_ACTION_STD=1.0, ACTION_ENTROPY_COEFFICIENT=0.0, ACTOR_ACTIVATION_FUNCTION="TANH",
        CRITIC_ACTIVATION_FUNCTION="TANH", OPTIMIZER_ALPHA=1e-3, STEP_LIMIT=LIMIT,
    )  # fmt: skip


WORKLOADS: dict[str, tuple[Callable[[], Any], int]] = {"W3": (sac, 1), "W4": (ppo, ENVS * HORIZON)}
"""By workload: the function that compiles the program, and the environment steps in one of the program's steps."""


def score(state: Any) -> float:
    """Return the mean return of deterministic episodes."""
    env, returns = pendulum(), []
    for seed in range(EPISODES):
        seen, total, done = env.reset(seed=seed)[0], 0.0, False
        while not done:
            seen, reward, terminated, truncated, _ = env.step(state.action(seen))
            total, done = total + float(reward), terminated or truncated
        returns.append(total)
    return float(np.mean(returns))


def main(arguments: Sequence[str] | None = None) -> None:
    """Train and print the measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--steps", type=int, default=250_000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(arguments)
    compiled, each = WORKLOADS[asked.workload]
    state = compiled().State(asked.seed)
    first = SAC_FIRST if asked.workload == "W3" else asked.steps // 5
    for _ in range(-(-first // each)):
        state.step()
    rounds = -(-(asked.steps - first) // each)
    clock, cpu = time.perf_counter(), time.process_time()
    for _ in range(rounds):
        state.step()
    told = {
        "steps": rounds * each,
        "seconds": time.perf_counter() - clock,
        "cpu_s": time.process_time() - cpu,
        "stages": {},
        "solved_at": None,
    }
    print(json.dumps({**told, "score": score(state)}))


if __name__ == "__main__":
    main()
