"""A bare synchronous loop: the pipeline's policy, trainer and update, with no pipeline around them.

What the pipeline is measured against, and the shortest way to see whether the trainer learns:

    python benchmarks/bare_loop.py cartpole --seeds 0 1 2 3 4
    python benchmarks/bare_loop.py halfcheetah --seeds 0 --evaluate 30
"""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from headrace.config import BehaviorSettings
from headrace.queues.messages import ActionBatch, Array, TrajectoryBatch
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.policy import ActingPolicy, NumpyPolicy, design_of
from headrace.stages.trainer import TrainerContext
from headrace.stages.trainer.ppo import PPOTrainer


@dataclass(frozen=True)
class Task:
    """A Gymnasium environment and how to learn it."""

    env_id: str
    num_envs: int
    settings: dict[str, Any]
    """A behaviour's block, as in the YAML."""
    solved: float = float("inf")
    """Mean return of the last 100 episodes at which the task counts as solved."""
    vector_kwargs: dict[str, Any] | None = None


def _settings(max_steps: int, gamma: float, network: dict[str, Any], **hyperparameters: Any) -> dict[str, Any]:
    constant = {f"{name}_schedule": "constant" for name in ("learning_rate", "beta", "epsilon")}
    return {
        "trainer_type": "ppo",
        "hyperparameters": {"max_grad_norm": 0.5, "epsilon": 0.2, **constant, **hyperparameters},
        "network_settings": {"num_layers": 2, "activation": "tanh", **network},
        "reward_signals": {"extrinsic": {"gamma": gamma}},
        "max_steps": max_steps,
    }


_SAME_STEP = {"autoreset_mode": AutoresetMode.SAME_STEP}
TASKS = {
    "cartpole": Task(
        "CartPole-v1",
        64,
        _settings(
            250_000,
            0.99,
            {"hidden_units": 64},
            batch_size=256,
            buffer_size=2048,
            num_epoch=4,
            learning_rate=1e-3,
            beta=0.0,
            lambd=0.95,
        ),
        solved=475.0,
    ),
    "lunarlander": Task(
        "LunarLander-v3",
        16,
        _settings(
            500_000,
            0.999,
            {"hidden_units": 64},
            batch_size=512,
            buffer_size=8192,
            num_epoch=4,
            learning_rate=1e-3,
            beta=0.01,
            lambd=0.98,
        ),
        vector_kwargs=_SAME_STEP,
    ),
    "halfcheetah": Task(
        "HalfCheetah-v5",
        16,
        _settings(
            500_000,
            0.99,
            {"hidden_units": 256, "normalize": True},
            batch_size=512,
            buffer_size=2048,
            num_epoch=10,
            learning_rate=3e-4,
            beta=0.0,
            lambd=0.95,
        ),
        vector_kwargs=_SAME_STEP,
    ),
}
"""Hyperparameters of Stable-Baselines3's reference runs; Adam's ε is our default (it has 1e-5)."""


@dataclass(frozen=True)
class BareResult:
    """What a run brought."""

    seed: int
    steps: int
    seconds: float
    steps_per_s: float
    last_100: float
    """Mean return of the last 100 training episodes."""
    solved_at: int | None
    """Step at which that mean first reached the task's mark."""
    evaluation: float | None = None
    """Mean return of deterministic episodes of the final policy."""


def run_bare(
    task: Task, seed: int, max_steps: int | None = None, evaluate: int = 0, stop_when_solved: bool = False
) -> BareResult:
    """Train on one thread, collecting and learning in turn; the clock runs from the first step.

    Args:
        task: environment and settings.
        seed: of environment, policy and trainer.
        max_steps: steps to make; the settings' own number by default.
        evaluate: deterministic episodes of the final policy.
        stop_when_solved: end as soon as the task is solved.
    """
    settings = BehaviorSettings.model_validate(task.settings)
    envs = gymnasium.make_vec(task.env_id, num_envs=task.num_envs, vector_kwargs=task.vector_kwargs)
    spec = behavior_spec(task.env_id, envs.single_observation_space, envs.single_action_space)
    trainer = PPOTrainer(TrainerContext(spec.name, settings, spec, seed=seed))
    policy = NumpyPolicy(design_of(spec, settings))
    policy.load(trainer.policy())
    collector = Collector(envs, spec, policy, seed)
    solved_at = None
    begin = perf_counter()
    while trainer.step < (max_steps or settings.max_steps):
        trainer.add(collector.collect(trainer.rows_per_update))
        trainer.learn()
        policy.load(trainer.policy())
        if solved_at is None and collector.solved(task.solved):
            solved_at = trainer.step
            if stop_when_solved:
                break
    seconds = perf_counter() - begin
    envs.close()
    score = evaluate_policy(task.env_id, policy, evaluate, seed) if evaluate else None
    return BareResult(seed, trainer.step, seconds, trainer.step / seconds, collector.last_100(), solved_at, score)


class Collector:
    """Steps a vectorised environment and packs what happened into trajectories.

    Serves both ways of restarting: within the tick of the ending (the final observation is in `info`), or at
    the tick after it, whose row is no decision and is left out.
    """

    def __init__(self, envs: gymnasium.vector.VectorEnv, spec: BehaviorSpec, policy: NumpyPolicy, seed: int) -> None:
        self._envs = envs
        self._spec = spec
        self._policy = policy
        self._random = np.random.default_rng(seed)
        self._to_env = action_writer(envs.single_action_space)
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
        """Whether the last 100 episodes reached the mark."""
        return len(self._finished) == 100 and self.last_100() >= mark

    def last_100(self) -> float:
        """Mean return of up to 100 episodes that ended last."""
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
        """Columns [envs, ticks, ...] to trajectories, environment by environment."""
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


def behavior_spec(env_id: str, observations: gymnasium.Space[Any], actions: gymnasium.Space[Any]) -> BehaviorSpec:
    """The spec of one agent with a vector observation and a Discrete or bounded Box action."""
    observation = ObservationSpec("observation", observations.shape or (), str(observations.dtype))
    if isinstance(actions, gymnasium.spaces.Discrete):
        action_spec = ActionSpec(discrete_branches=(int(actions.n),))
    else:
        action_spec = ActionSpec(continuous_size=int(np.prod(actions.shape or ())))
    return BehaviorSpec(env_id.partition("-")[0], (observation,), action_spec)


def action_writer(space: gymnasium.Space[Any]) -> Callable[[ActionBatch], NDArray[Any]]:
    """From the policy's actions to the environment's: [-1, 1] is scaled to the Box's bounds."""
    if isinstance(space, gymnasium.spaces.Discrete):
        return lambda actions: actions.discrete[:, 0].astype(np.int64)
    assert isinstance(space, gymnasium.spaces.Box)
    middle, half = (space.high + space.low) / 2, (space.high - space.low) / 2
    return lambda actions: middle + half * actions.continuous


def evaluate_policy(env_id: str, policy: ActingPolicy, episodes: int, seed: int) -> float:
    """Mean return of deterministic episodes in a fresh environment."""
    env = gymnasium.make(env_id)
    write, random = action_writer(env.action_space), np.random.default_rng(seed)
    returns = []
    for episode in range(episodes):
        observation, _ = env.reset(seed=10_000 + 1000 * seed + episode)
        total, done, recall = 0.0, False, None
        while not done:
            decision = policy.act((observation[None],), None, random, deterministic=True, recall=recall)
            action, recall = write(decision.actions)[0], decision.recall
            observation, reward, terminated, truncated, _ = env.step(action)
            total += float(reward)
            done = terminated or truncated
        returns.append(total)
    env.close()
    return float(np.mean(returns))


def main() -> None:
    """Run the seeds one after the other and print one line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--steps", type=int, help="steps to make; the task's own number by default")
    parser.add_argument("--evaluate", type=int, default=0, help="deterministic episodes of the final policy")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for seed in arguments.seeds:
        result = run_bare(TASKS[arguments.task], seed, arguments.steps, arguments.evaluate)
        print(arguments.task, " ".join(f"{name}={value}" for name, value in asdict(result).items()), flush=True)


if __name__ == "__main__":
    main()
