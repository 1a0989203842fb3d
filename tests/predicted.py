"""Policies of any spaces in files, and the path by which `--inference` plays them, for tests of `load_policy`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from onnx_samples import update_for

from headrace.config import BehaviorSettings, ObservationSettings
from headrace.pipeline.policies.export import OnnxExporter, export_policy
from headrace.pipeline.policies.model_files import ModelFile, read_model
from headrace.stages.environments.gymnasium.group import GymnasiumGroup
from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.memories import nothing_recalled

MEMORY = {"memory": {"memory_size": 6, "sequence_length": 4}}


class Wandering(gymnasium.Env):
    """Observes whatever its space has, and notes it, and what it is told to do; its episodes never end.

    Args:
        observation_space: what it observes.
        action_space: what it is told.
        mask: returns the action mask of each info; None: there is none.
    """

    def __init__(self, observation_space, action_space, mask=None):
        self.observation_space, self.action_space = observation_space, action_space
        self.seen, self.given, self.masks = [], [], []
        self._mask = mask

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self.observation_space.seed(seed)
        return self._observed()

    def step(self, action):
        self.given.append(action)
        seen, info = self._observed()
        return seen, 0.0, False, False, info

    def _observed(self):
        self.seen.append(self.observation_space.sample())
        if self._mask is None:
            return self.seen[-1], {}
        self.masks.append(self._mask())
        return self.seen[-1], {"action_mask": self.masks[-1]}


def group_of(observation_space, action_space, settings=None, mask=None, num_envs=3, clips=False):
    """Environments as an actor steps them, reset, and what they make: (group, [environment, …], first rows)."""
    envs = [Wandering(observation_space, action_space, mask) for _ in range(num_envs)]
    vector = SyncVectorEnv([partial(_same, env) for env in envs], autoreset_mode=AutoresetMode.SAME_STEP)
    given = {name: ObservationSettings(**value) for name, value in (settings or {}).items()}
    group = GymnasiumGroup(vector, "Test", "Env", given, clips=clips)
    return group, envs, group.reset(5)


def _same(env):
    return env


def saved(folder, spec, suffix=".pt", squashed=False, seed=0, step=700, **network):
    """The file of a policy for a behaviour, with random weights, as a run exports it."""
    settings = BehaviorSettings.model_validate(
        {
            "trainer_type": "sac" if squashed else "ppo",
            "network_settings": {"hidden_units": 16, "num_layers": 2, **network},
        }
    )
    design = PolicyDesign(spec, settings.network_settings, squashed)
    update = replace(update_for(design, seed, step), behavior_id=spec.name)
    path = export_policy(folder, update, spec, settings)
    if suffix == ".pt":
        return path
    written = OnnxExporter().write(path, design, update)
    assert written is not None
    return written


class Acting:
    """Plays a file in a group of environments as `--inference` does: all at once, in columns, deterministically."""

    def __init__(self, path, group):
        (self._spec,) = group.behavior_specs.values()
        self._group, self._random = group, np.random.default_rng(0)
        model = read_model(ModelFile(path, "Test"), self._spec)
        self._policy = model.make_policy()
        self._recall = None

    def step(self, result):
        """Decide for the rows of a tick, and make the next."""
        rows = result.steps["Test"]
        recall = self._recall or nothing_recalled(self._policy, self._spec.actions, len(rows.agent_ids))
        decision = self._policy.act(rows.observations, rows.action_masks, self._random, True, recall)
        self._recall = decision.recall
        return self._group.step({"Test": decision.actions})
