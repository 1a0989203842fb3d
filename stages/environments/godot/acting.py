"""Converts a script's actions to a message: one dict per agent, with the game's keys."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.stages.environments.godot.announcement import AgentSpaces


class ActingAgents:
    """Converts the actions of agents with equal action spaces to a message."""

    def __init__(self, places: list[int], actions: Mapping[str, Any]) -> None:
        self.places = places
        self._names = list(actions)
        self._sizes = [
            0 if space["action_type"] == "discrete" else int(space["size"]) for space in actions.values()
        ]  # 0 for a discrete action, which is one number

    def write(self, action: Any, order_ij: bool, agents: int) -> list[dict[str, Any]]:
        """Return each agent's actions by key, given all agents' actions as `[key][agent]` or `[agent][key]`."""
        places, names = self.places, self._names
        columns = []
        for index, size in enumerate(self._sizes):
            try:
                if order_ij:
                    at = names[index] if isinstance(action[places[0]], Mapping) else index
                    values = [action[place][at] for place in places]
                else:
                    values = action[index]
                    if len(places) != agents:
                        values = [values[place] for place in places]
            except (IndexError, KeyError):
                expected = f"actions for {len(names)} keys and {agents} agents"
                raise ValueError(f"actions: no actions for the key {names[index]!r}; expected {expected}") from None
            columns.append(self._plain(values if isinstance(values, np.ndarray) else np.asarray(values), index, size))
        if len(names) == 1:
            (name,), (column,) = names, columns
            return [{name: value} for value in column]
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]

    def _plain(self, values: NDArray[Any], index: int, size: int) -> list[Any]:
        """Return each agent's value for one key: a list of numbers, or an integer for a discrete action."""
        count = len(self.places)
        if size:
            if values.shape == (count, size):
                return list(values.tolist())
        elif values.size == count:
            whole = values.reshape(-1)
            return list((whole if whole.dtype.kind in "iu" else whole.astype(np.int64)).tolist())
        expected = f"{size} numbers" if size else "one whole number"
        raise ValueError(
            f"actions: for the key {self._names[index]!r}, the shape is {values.shape}; expected {expected} for each "
            f"of {count} agents"
        )


def of_equal_actions(agents: Sequence[AgentSpaces]) -> list[ActingAgents]:
    """Return a game's agents, grouped by action space."""
    places: dict[str, list[int]] = {}
    for place, agent in enumerate(agents):
        places.setdefault(json.dumps(agent.actions), []).append(place)
    return [ActingAgents(own, agents[own[0]].actions) for own in places.values()]
