"""Environments with ML-Agents' interface, as people write them: with its classes' shapes, and sloppier."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

BRAIN = "Guess?team=0"


def observation(*shape, properties=(), kind=0, name="seen"):
    return SimpleNamespace(shape=shape, dimension_property=properties, observation_type=kind, name=name)


def behavior(*observations, continuous=0, branches=()):
    actions = SimpleNamespace(continuous_size=continuous, discrete_branches=branches)
    return SimpleNamespace(observation_specs=list(observations), action_spec=actions)


def decisions(*ids, obs, reward=None, mask=None, **more):
    return SimpleNamespace(
        agent_id=[*ids],
        obs=obs,
        reward=reward or [0.0] * len(ids),
        action_mask=mask,
        **{"group_id": [0] * len(ids), **more},
    )


def endings(*ids, obs, reward=None, interrupted=None, **more):
    return SimpleNamespace(
        agent_id=[*ids],
        obs=obs,
        reward=reward or [0.0] * len(ids),
        **({"interrupted": interrupted or [False] * len(ids)} | more),
    )


class GuessEnv:
    """Agents see a sign and are paid for choosing it: choice 0 for -1, choice 1 for 1. Choice 2 is forbidden.

    Lists stand for arrays, there is one mask for all branches, and behaviours are known from the first reset on.

    Args:
        agents: how many.
        length: decisions of an episode.
        seed: of the signs.
    """

    def __init__(self, agents=2, length=3, seed=0, worker_id=0):
        self.made_with = {"agents": agents, "length": length, "seed": seed, "worker_id": worker_id}
        self.behavior_specs = {}
        self.closed = 0
        self._agents = agents
        self._length = length
        self._dice = np.random.default_rng(seed)

    def reset(self):
        self.behavior_specs[BRAIN] = behavior(observation(1), branches=(3,))
        self._age = [0] * self._agents
        self._begin()
        self._steps = self._asking(), endings(obs=[np.zeros((0, 1))])

    def get_steps(self, name):
        assert name == BRAIN
        return self._steps

    def set_actions(self, name, actions):
        assert actions.continuous.shape == (self._agents, 0)
        assert actions.discrete.shape == (self._agents, 1)
        assert (actions.discrete < 2).all(), "choice 2 is forbidden"
        self._chosen = actions.discrete[:, 0]

    def step(self):
        rewards = np.where(2 * self._chosen - 1 == self._signs, 1.0, -1.0)
        self._age = [age + 1 for age in self._age]
        over = [agent for agent, age in enumerate(self._age) if age >= self._length]
        ended = endings(*over, obs=[[[self._signs[a]] for a in over]], reward=[float(rewards[a]) for a in over])
        self._begin()
        for agent in over:
            self._age[agent] = 0
        self._steps = self._asking(rewards.tolist()), ended

    def close(self):
        self.closed += 1

    def _begin(self):
        self._signs = self._dice.choice((-1.0, 1.0), self._agents)

    def _asking(self, rewards=None):
        mask = np.array([[False, False, True]] * self._agents)
        return decisions(*range(self._agents), obs=[self._signs[:, None]], reward=rewards, mask=mask)


class ScriptedEnv:
    """Says what its test wrote: for each step, the pair of `get_steps` by behaviour, or an exception.

    Args:
        specs: of the behaviours.
        script: the steps; the first is what `reset` gives.
    """

    def __init__(self, specs, *script):
        self.behavior_specs = specs
        self.acted = []
        self.closed = 0
        self._script = iter(script)
        self._steps = {}

    def reset(self):
        self._go()

    def step(self):
        self._go()

    def get_steps(self, name):
        return self._steps[name]

    def set_actions(self, name, actions):
        self.acted.append((name, actions.continuous.tolist(), actions.discrete.tolist()))

    def close(self):
        self.closed += 1

    def _go(self):
        step = next(self._script)
        if isinstance(step, Exception):
            raise step
        self._steps = step
