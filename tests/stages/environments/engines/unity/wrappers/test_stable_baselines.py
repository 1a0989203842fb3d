"""Stable-Baselines3 learns from Unity through each of the environments; where it is not installed, nothing is tried."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from unity_runs import BUILD

from headrace.unity import UnityAECEnv, UnityEnvironment, UnityParallelEnv, UnityToGymWrapper

sb3 = pytest.importorskip("stable_baselines3", reason="needs stable-baselines3")
pytestmark = pytest.mark.slow
SETTINGS = {"n_steps": 256, "batch_size": 64, "learning_rate": 1e-3, "gamma": 0.9, "device": "cpu", "seed": 1}
SOLVED = 0.9
"""Mean return of an episode of the scene `simple`, of 1.06 at most; the shortest way earns some 1."""


@pytest.fixture
def unity(tmp_path):
    """Starts programs."""
    begun = []

    def start(*arguments):
        args = [*map(str, arguments)]
        begun.append(UnityEnvironment(str(BUILD), base_port=0, additional_args=args, log_folder=str(tmp_path)))
        return begun[-1]

    yield start
    for env in begun:
        env.close()


def learned(algorithm, env, steps, policy="MlpPolicy", **settings):
    """The mean return of the last episodes."""
    model = algorithm(policy, env, **{**SETTINGS, **settings})
    model.learn(steps)
    return np.mean([episode["r"] for episode in model.ep_info_buffer])


@pytest.mark.parametrize(
    ("arguments", "options", "policy"),
    [
        (("--continuous", 1), {}, "MlpPolicy"),
        (("--branches", 2), {}, "MlpPolicy"),
        (("--branches", 2, 2), {}, "MlpPolicy"),
        (("--branches", 2, 2), {"flatten_branched": True}, "MlpPolicy"),
        (("--scene", "visual", "--branches", 2, "--visuals", 1, "--vectors", 0), {}, "MlpPolicy"),
    ],
    ids=["numbers", "a branch", "branches", "flattened", "pictures"],
)
def test_ppo_learns_through_the_gymnasium_environment(unity, arguments, options, policy):
    env = UnityToGymWrapper(unity("--agents", 1, *arguments), **options)
    assert learned(sb3.PPO, env, 5_000, policy) > SOLVED


def test_maskable_ppo_learns_and_chooses_nothing_that_is_forbidden(unity):
    """The stand-in ends with an error at a choice that it has forbidden."""
    contrib = pytest.importorskip("sb3_contrib")
    env = UnityToGymWrapper(unity("--agents", 1, "--branches", 4, 3, "--mask"))
    assert learned(contrib.MaskablePPO, env, 8_000) > SOLVED


def test_ppo_learns_through_the_parallel_environment(unity):
    env = Slots(UnityParallelEnv(unity("--agents", 4, "--continuous", 1, "--new-ids")), 4)
    assert learned(sb3.PPO, sb3.common.vec_env.VecMonitor(env), 16_000, n_steps=64) > SOLVED


def test_ppo_learns_through_the_environment_by_turns(unity):
    env = Turns(UnityAECEnv(unity("--agents", 1, "--continuous", 1, "--new-ids")))
    assert learned(sb3.PPO, env, 8_000) > SOLVED


VecEnv: Any = sb3.common.vec_env.VecEnv


class Slots(VecEnv):  # type: ignore[misc]  # may not be installed
    """As many agents at a time as there are slots: where one ends, another takes its slot."""

    def __init__(self, env: Any, slots: int) -> None:
        self.env = env
        self.observations, _ = env.reset()
        self.agents = list(env.agents)
        assert len(self.agents) == slots
        agent = self.agents[0]
        super().__init__(slots, env.observation_space(agent), env.action_space(agent))

    def reset(self) -> Any:
        self.observations, _ = self.env.reset()
        self.agents = list(self.env.agents)
        return self._seen()

    def step_async(self, actions: Any) -> None:
        self.actions = dict(zip(self.agents, actions, strict=True))

    def step_wait(self) -> Any:
        observations, rewards, terminated, truncated, infos = self.env.step(self.actions)
        own = self.agents
        done = np.array([terminated[agent] or truncated[agent] for agent in own])
        told = [dict(infos[agent]) for agent in own]
        for info, agent, over in zip(told, own, done, strict=True):
            if over:
                info["terminal_observation"] = observations[agent]
                info["TimeLimit.truncated"] = truncated[agent]
        newcomers = [agent for agent in self.env.agents if agent not in own]
        self.agents = [newcomers.pop(0) if over else agent for agent, over in zip(own, done, strict=True)]
        self.observations = observations
        return self._seen(), np.array([rewards[agent] for agent in own], np.float32), done, told

    def _seen(self) -> Any:
        return np.stack([self.observations[agent] for agent in self.agents])

    def close(self) -> None:
        self.env.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> Any:
        return [None] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise NotImplementedError

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **options: Any) -> Any:
        raise NotImplementedError

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> Any:
        return [False] * self.num_envs


class Turns(gymnasium.Env[Any, Any]):
    """The one agent whose turn it is, as PettingZoo's tutorials show it."""

    def __init__(self, env: Any) -> None:
        self.env = env
        env.reset()
        self.observation_space = env.observation_space(env.agent_selection)
        self.action_space = env.action_space(env.agent_selection)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.env.reset()
        return self.env.last()[0], {}

    def step(self, action: Any) -> Any:
        self.env.step(action)
        return self.env.last()
