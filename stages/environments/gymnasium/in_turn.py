"""Steps single environments one after another, as a vector environment that names the source of an invalid value.

The messages are in `checks`. Results are unpacked without checks; if unpacking or batching fails, the environment's
layers are called again, innermost first, to find the faulty wrapper.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import iterate

from headrace.stages.environments.checks import addresses_of, column, stack
from headrace.stages.environments.gymnasium.mask_infos import MISSING, add_mask, hints_of_masks
from headrace.stages.environments.gymnasium.single import (
    RAISED,
    AnyEnv,
    blame,
    culprit,
    itself,
    layers,
    prepared,
    wrapper_name,
)
from headrace.stages.environments.spaces.masks import MASK
from headrace.stages.errors import BrokenEnvironmentError, StageError

_FALSE: Any = np.False_


class InTurnVectorEnv(SyncVectorEnv):  # no type arguments: it takes none before Gymnasium 1.4
    """A `SyncVectorEnv` in SAME_STEP mode that checks its environments' return values.

    Rewards and flags are arrays of raw values; the caller checks the dtype. The infos contain only masks (a list),
    `final_obs` and `final_info` (an info or None for each instance). Other contents are left out because they could
    break the batching. Final observations are copies, because many environments return the same array each time.

    Args:
        envs: the environments.
        name: the environment's name, used in messages.
    """

    def __init__(self, envs: Sequence[AnyEnv], name: str) -> None:
        self._name = name
        envs = [prepared(env, name) for env in envs]
        for i, env in enumerate(envs):
            for which in ("observation_space", "action_space"):
                if (one := getattr(env, which)) != (first := getattr(envs[0], which)):
                    raise StageError(
                        f"{name}: instance {i} has the {which} {one}, but instance 0 has {first}; expected the same in "
                        "all instances"
                    )
        self._shared: bool | None = None
        """True if instances return the same array, in which case each observation is copied; None while unknown."""
        self._all_false = np.zeros(len(envs), np.bool_)
        super().__init__([partial(itself, env) for env in envs], copy=False, autoreset_mode=AutoresetMode.SAME_STEP)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all environments; environment i is seeded with seed + i.

        Raises:
            BrokenEnvironmentError: if an environment raises or returns an invalid value; the message names the
                instance.
        """
        seeds = seed if isinstance(seed, list) else [None if seed is None else seed + i for i in range(self.num_envs)]
        observations, infos = [], dict[str, Any]()
        for i, each in enumerate(seeds):
            observation, info = self._begin(i, {"seed": each, "options": options})
            observations.append(_apart(observation))
            if MASK in info:
                add_mask(infos, info[MASK], i, self.num_envs)
            infos.update(dict.fromkeys(hints_of_masks(layers(self.envs[i]), info)))
        return self._batched(observations, "reset"), infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all environments, and reset those whose episodes end. Raises the same errors as `reset`."""
        # Literals, because a call to `list[Any]` takes longer than many environments' steps.
        observations: list[Any] = []
        rewards: list[Any] = []
        flags: list[tuple[int, Any, Any]] = []  # only those other than False
        endings: list[tuple[int, Any, Any]] = []
        infos: dict[str, Any] = {}
        own: list[Any] = []  # raw observations; keeping them alive keeps their addresses distinct
        shared, result = self._shared, RAISED
        each_action = iter(actions) if isinstance(actions, np.ndarray) else iterate(self.action_space, actions)
        try:
            for env, action in zip(self.envs, each_action, strict=True):
                result = RAISED
                result = observation, reward, terminated, truncated, info = env.step(action)
                rewards.append(reward)
                if (terminated is not False and terminated is not _FALSE) or (
                    truncated is not False and truncated is not _FALSE
                ):
                    i = len(observations)
                    flags.append((i, terminated, truncated))
                    if terminated or truncated:
                        endings.append((i, _apart(observation), _copied(info)))
                        observation, info = self._begin(i, {})
                if shared is not False:
                    own.append(observation)
                    observation = _apart(observation)
                if (mask := info.get(MASK, MISSING)) is not MISSING:
                    add_mask(infos, mask, len(observations), self.num_envs)
                observations.append(observation)
        except Exception as error:
            i = len(observations)
            blame(self.envs[i], self._label(i), "step", result, error, {})
        if shared is None:
            places = addresses_of(tuple(own))
            self._shared = len({*places}) < len(places)
        if endings:
            infos["final_obs"], infos["final_info"] = np.empty((2, self.num_envs), object)
            for i, observation, info in endings:
                infos["final_obs"][i], infos["final_info"][i] = observation, info
        return self._batched(observations, "step"), column(rewards, "biuf"), *self._flag_columns(flags), infos

    def who(self, i: int | None) -> str:
        """Return the start of a message about an instance's last result.

        The text names the instance and the faulty wrapper.
        """
        if i is None:
            return self._name
        env = self.envs[i]
        ours = [layer for layer in layers(env) if not type(layer).__module__.startswith("gymnasium.wrappers.")]
        found = culprit(env, "step", {}) if len(ours) > 1 else None
        return self._label(i) if found is None else f"{self._label(i)}{wrapper_name(found[0])}"

    def _flag_columns(self, flags: Sequence[tuple[int, Any, Any]]) -> tuple[Any, Any]:
        if not flags:
            return self._all_false, self._all_false
        terminated, truncated = ([False] * self.num_envs for _ in range(2))
        for i, *both in flags:
            terminated[i], truncated[i] = both
        return column(terminated, "b"), column(truncated, "b")

    def _begin(self, i: int, arguments: Mapping[str, Any]) -> tuple[Any, Any]:
        result = RAISED
        try:
            result = _, info = self.envs[i].reset(**arguments)
            info.get(MASK)
        except Exception as error:
            blame(self.envs[i], self._label(i), "reset", result, error, arguments)
        return result

    def _batched(self, observations: list[Any], call: str) -> Any:
        try:
            return stack(self.single_observation_space, observations, f"{call}()", self.who)
        except BrokenEnvironmentError as error:
            space = self.single_observation_space
            for i, env in enumerate(self.envs):
                if env.observation_space != space:
                    raise BrokenEnvironmentError(
                        f"{self._label(i)}: its observation_space was {space} at first, and is now "
                        f"{env.observation_space}; set it only once, in __init__"
                    ) from error
            raise

    def _label(self, i: int) -> str:
        return f"{self._name}, instance {i}" if self.num_envs > 1 else self._name


def _apart(observation: Any) -> Any:
    """Return a copy of an observation."""
    return observation.copy() if type(observation) is np.ndarray else copy.deepcopy(observation)


def _copied(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the info with its arrays copied, because a reset may overwrite the originals."""
    return {key: value.copy() if isinstance(value, np.ndarray) else value for key, value in info.items()}
