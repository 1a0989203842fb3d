"""One behaviour's Gymnasium spaces as columns, for groups of Gymnasium and PettingZoo environments."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from headrace.config import ObservationSettings
from headrace.queues.messages import Array
from headrace.queues.specs import BehaviorSpec
from headrace.stages.environments.spaces.actions import ActionMapping, action_mapping
from headrace.stages.environments.spaces.agent_masks import AgentMasks
from headrace.stages.environments.spaces.doubts import doubts
from headrace.stages.environments.spaces.masks import MASK, MaskReader
from headrace.stages.environments.spaces.observations import observation_parts
from headrace.stages.environments.spaces.own_space import ComposedSpace, own_space, plain_spaces, with_clipped_boxes
from headrace.stages.errors import Who

log = logging.getLogger(__name__)


class SpaceColumns:
    """Agents' observations and actions as columns.

    Args:
        observation_space: one agent's Gymnasium space; `action_mask` in a Dict is a mask, not an observation.
        action_space: one agent's Gymnasium space.
        owner: the environment's name, used in messages.
        settings: kinds of observations whose spaces are ambiguous, keyed by name (`environment.observations`).
        exact: see `observation_parts`.
        clips: True if `environment.action_bounds` is `clip`.

    Attributes:
        observation_space: the observation space as plain data, without the mask.
        parts: the conversion of observations to columns.
        mask_observed: True if the observations contain a mask.
        masks: the masks of the actions.

    Raises:
        StageError: if a space is not supported, or the settings do not fit it.
    """

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        owner: str,
        settings: Mapping[str, ObservationSettings] | None,
        exact: bool = False,
        clips: bool = False,
    ) -> None:
        seen, done = own_space(observation_space), own_space(action_space)
        self._action_space = with_clipped_boxes(done) if clips else done
        self.mask_observed = isinstance(seen, ComposedSpace) and seen.kind == "Dict" and MASK in seen.parts
        if isinstance(seen, ComposedSpace) and self.mask_observed:
            seen = replace(seen, parts={key: part for key, part in seen.parts.items() if key != MASK})
        self.observation_space = seen
        self.parts = observation_parts(self.observation_space, owner, settings, exact)
        for doubt in doubts(self.observation_space, tuple(part.spec for part in self.parts), settings):
            log.warning("%s: %s", owner, doubt)
        self._owner = owner
        self._mappings = lru_cache(maxsize=64)(self._make_mapping)
        self._actions = self.actions(1).spec
        self.masks = AgentMasks(MaskReader(self._action_space, self._actions.branch_names), self.mask_observed, owner)

    def actions(self, count: int) -> ActionMapping:
        """Return the conversion for the actions of `count` agents."""
        return self._mappings(count)

    def spec(self, behavior_id: str, grouped: bool = False) -> BehaviorSpec:
        """Return the spec for a behaviour id; `grouped` is as in `BehaviorSpec`."""
        return BehaviorSpec(
            behavior_id,
            tuple(part.spec for part in self.parts),
            replace(self._actions, masked=self.masks.masked),
            grouped,
            spaces=plain_spaces(self.observation_space, self._action_space),
        )

    def extract(self, batch: Any, who: Who) -> tuple[Array, ...]:
        """Convert k observations, batched as `gymnasium.vector` does, to a new array [k, *shape] for each part.

        Raises:
            BrokenEnvironmentError: if an integer is outside its space; `who` names the row's agent.
        """
        return tuple([part.extract(batch, who) for part in self.parts])

    def _make_mapping(self, count: int) -> ActionMapping:
        return action_mapping(self._action_space, count, self._owner)
