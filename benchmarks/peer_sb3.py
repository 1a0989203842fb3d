"""Runs Stable-Baselines3 on the workloads of `benchmarks/compare.py`, in its own style, without Headrace code.

    PEER benchmarks/peer_sb3.py W1 --steps 250000 --seed 0      PEER: a Python with headrace's extra `peers`
    SBX benchmarks/peer_sb3.py W4 --sbx                         SBX: a Python with sbx-rl, the same algorithms in JAX

W1 is PPO on CartPole-v1, W2 is PPO on HalfCheetah-v5 (with normalised observations), W3 is SAC and W4 PPO on
Pendulum-v1, and Pong is PPO from pixels, on ale-py's vectorised game, which this file wraps as a VecEnv. There is one
process with one torch thread; JAX chooses its number of threads. The program prints one line of JSON, like the
reference programs; the rate leaves out SAC's first 1,050 steps, and the first fifth in the other workloads.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import gymnasium
import numpy as np
import stable_baselines3
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv, VecMonitor, VecNormalize

SOLVED = {"W1": 475.0}
SAC_FIRST, COMPILING = 1000, 50


class VectorGames(VecEnv):
    """A VecEnv around a Gymnasium vector environment that restarts ended games within the step."""

    def __init__(self, games: Any, seed: int) -> None:
        super().__init__(games.num_envs, games.single_observation_space, games.single_action_space)
        self._games, self._seed_first = games, seed

    def reset(self) -> Any:
        """Restart all games."""
        return self._games.reset(seed=self._seed_first)[0]

    def step_async(self, actions: np.ndarray) -> None:
        """Store the actions for `step_wait`."""
        self._actions = actions

    def step_wait(self) -> Any:
        """Step all games; report how each ended game has ended."""
        observations, rewards, terminated, truncated, info = self._games.step(self._actions)
        done = terminated | truncated
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for n in np.flatnonzero(done):
            infos[n] = {"terminal_observation": info["final_obs"][n], "TimeLimit.truncated": not terminated[n]}
        return observations, rewards, done, infos

    def close(self) -> None:
        """Close the games."""
        self._games.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Return None for each game; Stable-Baselines3 asks for `render_mode`."""
        return [None] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Ignore the attribute."""

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        """Return nothing, because there are no single games to call."""
        return []

    def env_is_wrapped(self, wrapper_class: type, indices: Any = None) -> list[bool]:
        """Return False for each game."""
        return [False] * self.num_envs


class Watch(BaseCallback):
    """Records when the first steps are over, and when the last 100 episodes first reach the mark."""

    def __init__(self, first: int, solved: float) -> None:
        super().__init__()
        self._first, self._solved = first, solved
        self.mark: tuple[int, float, float] | None = None
        self.solved_at: int | None = None

    def _on_rollout_start(self) -> None:
        if self.mark is None and self.num_timesteps >= self._first:
            self.mark = (self.num_timesteps, time.perf_counter(), time.process_time())
        if self.solved_at is None and len(self.model.ep_info_buffer) == 100 and score(self.model) >= self._solved:
            self.solved_at = self.num_timesteps

    def _on_step(self) -> bool:
        return True


def score(model: BaseAlgorithm) -> float:
    """Return the mean return of the last 100 episodes."""
    episodes = [episode["r"] for episode in model.ep_info_buffer or ()]
    return float(np.mean(episodes)) if episodes else float("nan")


def cartpole(library: Any, seed: int) -> BaseAlgorithm:
    """Return PPO with the settings of config/examples/cartpole.yaml."""
    envs = make_vec_env("CartPole-v1", 64, seed=seed)
    return library.PPO(
        "MlpPolicy", envs, n_steps=32, batch_size=256, n_epochs=4, learning_rate=1e-3, gae_lambda=0.95,
        clip_range=0.2, ent_coef=0.0, policy_kwargs={"net_arch": [64, 64]}, seed=seed, device="cpu",
    )  # fmt: skip


def halfcheetah(library: Any, seed: int) -> BaseAlgorithm:
    """Return PPO with the settings of config/examples/halfcheetah.yaml."""
    envs = VecNormalize(make_vec_env("HalfCheetah-v5", 16, seed=seed), norm_reward=False)
    return library.PPO(
        "MlpPolicy", envs, n_steps=128, batch_size=512, n_epochs=10, learning_rate=3e-4, gae_lambda=0.95,
        clip_range=0.2, ent_coef=0.0, policy_kwargs={"net_arch": [256, 256]}, seed=seed, device="cpu",
    )  # fmt: skip


def pendulum(library: Any, seed: int) -> BaseAlgorithm:
    """Return SAC with the library's defaults, which are one update per step."""
    return library.SAC(
        "MlpPolicy", make_vec_env("Pendulum-v1", 1, seed=seed), buffer_size=100_000, learning_starts=SAC_FIRST,
        batch_size=256, policy_kwargs={"net_arch": [256, 256]}, seed=seed, device="cpu",
    )  # fmt: skip


def pendulums(library: Any, seed: int) -> BaseAlgorithm:
    """Return PPO with the settings of benchmarks/pendulum_ppo.yaml."""
    envs = make_vec_env("Pendulum-v1", 64, seed=seed)
    return library.PPO(
        "MlpPolicy", envs, n_steps=32, batch_size=256, n_epochs=4, learning_rate=1e-3, gamma=0.9, gae_lambda=0.95,
        clip_range=0.2, ent_coef=0.0, policy_kwargs={"net_arch": [64, 64]}, seed=seed, device="cpu",
    )  # fmt: skip


def pong(library: Any, seed: int) -> BaseAlgorithm:
    """Return PPO with the settings of config/examples/pong.yaml."""
    import ale_py

    gymnasium.register_envs(ale_py)
    mode = gymnasium.vector.AutoresetMode.SAME_STEP
    games = gymnasium.make_vec("ALE/Pong-v5", num_envs=8, repeat_action_probability=0.0, autoreset_mode=mode)
    return library.PPO(
        "CnnPolicy", VecMonitor(VectorGames(games, seed)), n_steps=128, batch_size=256, n_epochs=4,
        learning_rate=2.5e-4, gae_lambda=0.95, clip_range=0.1, ent_coef=0.01, seed=seed, device="cpu",
    )  # fmt: skip


WORKLOADS: dict[str, Callable[[Any, int], BaseAlgorithm]] = {
    "W1": cartpole,
    "W2": halfcheetah,
    "W3": pendulum,
    "W4": pendulums,
    "Pong": pong,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Train and print the measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--steps", type=int, default=250_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sbx", action="store_true", help="sbx in place of Stable-Baselines3")
    asked = parser.parse_args(arguments)
    torch.set_num_threads(1)
    library = import_module("sbx") if asked.sbx else stable_baselines3
    model = WORKLOADS[asked.workload](library, asked.seed)
    # JAX compiles during the first update.
    first = SAC_FIRST + COMPILING if asked.workload == "W3" else asked.steps // 5
    watch = Watch(first, SOLVED.get(asked.workload, float("inf")))
    model.learn(asked.steps, callback=watch)
    assert watch.mark is not None, "there are more steps than the first"
    steps, clock, cpu = watch.mark
    told = {
        "steps": model.num_timesteps - steps,
        "seconds": time.perf_counter() - clock,
        "cpu_s": time.process_time() - cpu,
        "stages": {},
        "solved_at": watch.solved_at,
        "score": score(model),
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
