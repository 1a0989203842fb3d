"""The base class of the built-in games' environment groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from headrace.config.errors import suggest
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.environments.parameters import EpisodeParameters
from headrace.stages.errors import StageError


class BuiltinGame:
    """`num_envs` instances of a built-in game; a derived class has `reset` and `step`.

    Args:
        num_envs: number of instances.
        behavior_ids: the behaviour ids of the sides.
        observation: what every agent observes.
        actions: the actions of every agent.

    Raises:
        ValueError: if there is no instance.
    """

    PARAMETERS: Mapping[str, str] = {}
    """Environment parameters, which are drawn for each game, with their descriptions."""
    on_tick: Callable[[], None] | None = None
    """Called after each tick that is worth showing, so a video may have more frames than the game has decisions."""

    def __init__(
        self, num_envs: int, behavior_ids: tuple[str, str], observation: ObservationSpec, actions: ActionSpec
    ) -> None:
        if num_envs < 1:
            raise ValueError(f"{type(self).__name__}: num_envs is {num_envs}; it must be at least 1")
        self.num_envs = num_envs
        self.behavior_ids: Final = behavior_ids
        self.behavior_specs: Mapping[str, BehaviorSpec] = {
            behavior_id: BehaviorSpec(behavior_id, (observation,), actions) for behavior_id in behavior_ids
        }
        self._env_ids = np.arange(num_envs, dtype=np.int32)
        self._episodes = np.zeros(num_envs, np.int64)
        """[num_envs] ids of the running episodes."""
        self._random = np.random.default_rng()
        self._parameters: EpisodeParameters | None = None

    def set_parameters(self, parameters: EpisodeParameters) -> None:
        """Draw these parameters at the start of each game.

        Raises:
            StageError: if a parameter is not among `PARAMETERS`.
        """
        for name in parameters.values:
            if name not in self.PARAMETERS:
                meanings = (
                    "; ".join(f"{parameter}: {meaning}" for parameter, meaning in self.PARAMETERS.items()) or "none"
                )
                raise StageError(
                    f"environment_parameters.{name}: {type(self).__name__} has no parameter of this name"
                    f"{suggest(name, self.PARAMETERS) or ';'} it accepts {meanings}"
                )
        self._parameters = parameters

    def close(self) -> None:
        """Do nothing, because there are no resources to release."""
