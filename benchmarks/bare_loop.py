"""A bare synchronous loop: the pipeline's policy, trainer and update, without a pipeline around them.

The pipeline is compared with this loop, which is also the shortest way to check that the trainer learns a PPO example:

    python benchmarks/bare_loop.py cartpole --steps 250000 --seed 0

Prints one line of JSON, like the reference programs.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import deque
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode

from headrace.config import load_config
from headrace.queues.messages import Array, TrajectoryBatch
from headrace.queues.specs import BehaviorSpec
from headrace.stages.environments.spaces.columns import SpaceColumns
from headrace.stages.policy.design import design_of
from headrace.stages.policy.numpy_policy import NumpyPolicy
from headrace.stages.trainer.ppo import PPOTrainer
from headrace.stages.trainer.protocol import TrainerContext

EXAMPLES = Path(__file__).resolve().parents[1] / "config" / "examples"
SOLVED = {"cartpole": 475.0}
"""Mean return of the last 100 episodes at which an example counts as solved."""


def run_bare(example: str, seed: int, max_steps: int | None = None) -> dict[str, Any]:
    """Train on one thread, alternating between collecting and learning; time is measured from the first step.

    Args:
        example: name of a file in config/examples with one PPO behaviour in a Gymnasium environment.
        seed: seed for environment, policy and trainer.
        max_steps: number of steps; None for the example's own number.
    """
    config = load_config(EXAMPLES / f"{example}.yaml")
    assert config.environment is not None, "each of them has an environment"
    assert config.environment.id is not None, "and its name"
    ((name, settings),) = config.behaviors.items()
    # If the environment has its own vectorisation, that restarts only at the next step.
    own = gymnasium.spec(config.environment.id).vector_entry_point is not None
    mode = {} if own else {"autoreset_mode": AutoresetMode.SAME_STEP}
    envs = gymnasium.make_vec(config.environment.id, config.environment.num_envs, vector_kwargs=mode)
    columns = SpaceColumns(envs.single_observation_space, envs.single_action_space, example, None)
    spec = columns.spec(name)
    trainer = PPOTrainer(TrainerContext(name, settings, spec, seed=seed))
    policy = NumpyPolicy(design_of(spec, settings))
    policy.load(trainer.policy())
    collector = Collector(envs, columns, spec, policy, seed)
    solved_at = None
    clock, cpu = time.perf_counter(), time.process_time()
    while trainer.step < (max_steps or settings.max_steps):
        trainer.add(collector.collect(trainer.rows_per_update))
        trainer.learn()
        policy.load(trainer.policy())
        if solved_at is None and collector.solved(SOLVED.get(example, float("inf"))):
            solved_at = trainer.step
    took = {"seconds": time.perf_counter() - clock, "cpu_s": time.process_time() - cpu, "stages": {}}
    envs.close()
    return {"steps": trainer.step, **took, "score": collector.last_100(), "solved_at": solved_at}


class Collector:
    """Steps a vectorised environment and packs what happened into trajectories.

    Supports both autoreset modes: in the tick that ends the episode (the final observation is in `info`), or in the
    tick after it, whose row is not a decision and is left out.
    """

    def __init__(
        self,
        envs: gymnasium.vector.VectorEnv,
        columns: SpaceColumns,
        spec: BehaviorSpec,
        policy: NumpyPolicy,
        seed: int,
    ) -> None:
        self._envs = envs
        self._spec = spec
        self._policy = policy
        self._random = np.random.default_rng(seed)
        self._to_env = columns.actions(envs.num_envs).to_environment
        self._next_step = envs.metadata.get("autoreset_mode") == AutoresetMode.NEXT_STEP
        self._observations, _ = envs.reset(seed=seed)
        self._restarting = np.zeros(envs.num_envs, np.bool_)
        self._returns = np.zeros(envs.num_envs)
        self._finished: deque[float] = deque(maxlen=100)

    def collect(self, rows: int) -> TrajectoryBatch:
        """Step until there are at least `rows` decisions; trajectories are cut where the collection ends."""
        ticks: list[dict[str, Array]] = []
        decisions = 0
        while decisions < rows:
            ticks.append(self._tick())
            decisions += int(ticks[-1]["valid"].sum())
        return self._pack({name: np.stack([tick[name] for tick in ticks], axis=1) for name in ticks[0]})

    def solved(self, mark: float) -> bool:
        """Return True if the mean return of the last 100 episodes reached the mark."""
        return len(self._finished) == 100 and self.last_100() >= mark

    def last_100(self) -> float:
        """Return the mean return of the last (up to) 100 episodes."""
        return float(np.mean(self._finished)) if self._finished else float("nan")

    def _tick(self) -> dict[str, Array]:
        observations, valid = self._observations, ~self._restarting
        decision = self._policy.act((observations,), None, self._random)
        self._observations, rewards, terminated, truncated, info = self._envs.step(self._to_env(decision.actions))
        following = self._observations
        done = terminated | truncated
        if self._next_step:
            self._restarting = done
        elif done.any():
            following = following.copy()
            following[done] = np.stack(info["final_obs"][done])
        self._returns += rewards
        self._finished.extend(self._returns[done])
        self._returns[done] = 0.0
        return {
            **decision.columns,
            "obs_0": observations,
            "next_obs_0": following,
            "rewards": rewards.astype(np.float32),
            "terminated": terminated,
            "truncated": truncated,
            "valid": valid,
        }

    def _pack(self, grid: dict[str, Array]) -> TrajectoryBatch:
        """Pack columns [envs, ticks, ...] into trajectories, environment by environment."""
        cut = grid["terminated"] | grid["truncated"]
        cut[:, -1] = True
        keep = grid.pop("valid").reshape(-1)
        flat = {name: column.reshape(-1, *column.shape[2:])[keep] for name, column in grid.items()}
        last = np.flatnonzero(cut.reshape(-1)[keep])
        lengths = np.diff(last, prepend=-1).astype(np.int32)
        at_cut = {name: flat.pop(name)[last] for name in ("next_obs_0", "terminated", "truncated")}
        ids = np.arange(len(last))
        return TrajectoryBatch(
            self._spec.behavior_id,
            source=0,
            rows=flat,
            trajectories={
                **at_cut,
                "lengths": lengths,
                "agent_ids": ids,
                "episode_ids": ids,
                "credits": lengths,
            },
        )


def main() -> None:
    """Train and print the measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("example", help="cartpole, lunarlander, halfcheetah …")
    parser.add_argument("--steps", type=int, help="the example's own number by default")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print(json.dumps(run_bare(asked.example, asked.seed, asked.steps)))


if __name__ == "__main__":
    main()
