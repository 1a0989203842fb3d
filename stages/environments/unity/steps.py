"""The steps of ML-Agents' low-level interface: agents that ask for a decision, and agents that ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

Step = TypeVar("Step")


class DecisionStep(NamedTuple):
    """One agent that asks for a decision."""

    obs: list[NDArray[np.float32]]
    reward: float
    agent_id: int
    action_mask: list[NDArray[np.bool_]] | None
    """[choices] per branch, true = forbidden."""
    group_id: int
    group_reward: float


class TerminalStep(NamedTuple):
    """One agent whose episode has ended."""

    obs: list[NDArray[np.float32]]
    reward: float
    interrupted: bool
    agent_id: int
    group_id: int
    group_reward: float


class _Steps(Mapping[int, Step], Generic[Step]):
    """The steps of n agents, as columns and by agent id."""

    obs: list[NDArray[np.float32]]
    agent_id: NDArray[np.int32]

    @cached_property
    def agent_id_to_index(self) -> dict[int, int]:
        """The row of each agent."""
        return {agent: row for row, agent in enumerate(self.agent_id.tolist())}

    def __len__(self) -> int:
        return len(self.agent_id)

    def __iter__(self) -> Iterator[int]:
        return iter(self.agent_id.tolist())

    def __getitem__(self, agent_id: int) -> Step:
        row = self.agent_id_to_index.get(agent_id)
        if row is None:
            raise KeyError(f"agent {agent_id} is not among these; there are {self.agent_id.tolist()}")
        return self._at(row, [column[row] for column in self.obs])

    def _at(self, row: int, obs: list[NDArray[np.float32]]) -> Step:
        raise AssertionError("subclasses make rows")


@dataclass(eq=False, repr=False)
class DecisionSteps(_Steps[DecisionStep]):
    """The agents of a behaviour that ask for a decision; actions are given in their order."""

    obs: list[NDArray[np.float32]]
    """[n, *shape] per observation."""
    reward: NDArray[np.float32]
    """[n]"""
    agent_id: NDArray[np.int32]
    """[n]"""
    action_mask: list[NDArray[np.bool_]] | None
    """[n, choices] per branch, true = forbidden; None without discrete actions."""
    group_id: NDArray[np.int32]
    """[n] 0 for none."""
    group_reward: NDArray[np.float32]
    """[n]"""

    def _at(self, row: int, obs: list[NDArray[np.float32]]) -> DecisionStep:
        mask = None if self.action_mask is None else [branch[row] for branch in self.action_mask]
        return DecisionStep(obs, self.reward[row], self.agent_id[row], mask, self.group_id[row], self.group_reward[row])

    @staticmethod
    def empty(spec: Any) -> DecisionSteps:
        """No agents of a behaviour."""
        return DecisionSteps(_nothing(spec), _NO_FLOATS, _NO_NUMBERS, None, _NO_NUMBERS, _NO_FLOATS)


@dataclass(eq=False, repr=False)
class TerminalSteps(_Steps[TerminalStep]):
    """The agents of a behaviour whose episodes have ended since the last step."""

    obs: list[NDArray[np.float32]]
    reward: NDArray[np.float32]
    interrupted: NDArray[np.bool_]
    """[n] true if the episode was truncated."""
    agent_id: NDArray[np.int32]
    group_id: NDArray[np.int32]
    group_reward: NDArray[np.float32]

    def _at(self, row: int, obs: list[NDArray[np.float32]]) -> TerminalStep:
        return TerminalStep(
            obs, self.reward[row], self.interrupted[row], self.agent_id[row], self.group_id[row], self.group_reward[row]
        )

    @staticmethod
    def empty(spec: Any) -> TerminalSteps:
        """No agents of a behaviour."""
        return TerminalSteps(_nothing(spec), _NO_FLOATS, np.zeros(0, np.bool_), _NO_NUMBERS, _NO_NUMBERS, _NO_FLOATS)


_NO_FLOATS = np.zeros(0, np.float32)
_NO_NUMBERS = np.zeros(0, np.int32)


def _nothing(spec: Any) -> list[NDArray[np.float32]]:
    return [np.zeros((0, *observation.shape), np.float32) for observation in spec.observation_specs]
