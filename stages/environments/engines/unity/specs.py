"""Specs and steps of ML-Agents' low-level interface, under their ML-Agents names, for scripts.

The pipeline's own specs are in `headrace.queues.specs`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from functools import cached_property
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from headrace.stages.environments.engines.unity.errors import UnityActionException

Step = TypeVar("Step")
_NO_FLOATS = np.zeros(0, np.float32)
_NO_NUMBERS = np.zeros(0, np.int32)


class DimensionProperty(IntFlag):
    """Property of one dimension of an observation."""

    UNSPECIFIED = 0
    NONE = 1
    TRANSLATIONAL_EQUIVARIANCE = 2
    VARIABLE_SIZE = 4


class ObservationType(IntEnum):
    """Kind of an observation."""

    DEFAULT = 0
    GOAL_SIGNAL = 1


class ObservationSpec(NamedTuple):
    """The spec of one observation."""

    shape: tuple[int, ...]
    dimension_property: tuple[DimensionProperty, ...]
    observation_type: ObservationType
    name: str


class ActionTuple:
    """Actions of n agents.

    Args:
        continuous: [n, continuous_size] continuous actions; None if there are none.
        discrete: [n, branches] index of the choice in each branch; None if there are none.
    """

    def __init__(self, continuous: Any = None, discrete: Any = None) -> None:
        count = len(continuous) if continuous is not None else len(discrete) if discrete is not None else 0
        self._continuous = np.zeros((count, 0), np.float32)
        self._discrete = np.zeros((count, 0), np.int32)
        if continuous is not None:
            self.add_continuous(continuous)
        if discrete is not None:
            self.add_discrete(discrete)

    @property
    def continuous(self) -> NDArray[np.float32]:
        """The continuous actions [n, continuous_size]."""
        return self._continuous

    @property
    def discrete(self) -> NDArray[np.int32]:
        """The index of the choice in each branch [n, branches]."""
        return self._discrete

    def add_continuous(self, continuous: Any) -> None:
        """Set the continuous part."""
        self._continuous = np.asarray(continuous, np.float32)
        if not self._discrete.shape[1]:
            self._discrete = np.zeros((len(self._continuous), 0), np.int32)

    def add_discrete(self, discrete: Any) -> None:
        """Set the discrete part."""
        self._discrete = np.asarray(discrete, np.int32)
        if not self._continuous.shape[1]:
            self._continuous = np.zeros((len(self._discrete), 0), np.float32)


class ActionSpec(NamedTuple):
    """The spec of a behaviour's actions."""

    continuous_size: int
    discrete_branches: tuple[int, ...]
    """Number of choices of each branch."""

    @classmethod
    def create_continuous(cls, continuous_size: int) -> ActionSpec:
        """Return a spec with continuous actions only."""
        return cls(continuous_size, ())

    @classmethod
    def create_discrete(cls, discrete_branches: tuple[int, ...]) -> ActionSpec:
        """Return a spec with discrete actions only."""
        return cls(0, tuple(discrete_branches))

    @classmethod
    def create_hybrid(cls, continuous_size: int, discrete_branches: tuple[int, ...]) -> ActionSpec:
        """Return a spec with continuous and discrete actions."""
        return cls(continuous_size, tuple(discrete_branches))

    @property
    def discrete_size(self) -> int:
        """Number of branches."""
        return len(self.discrete_branches)

    def is_discrete(self) -> bool:
        """True if there are only discrete actions."""
        return self.discrete_size > 0 and self.continuous_size == 0

    def is_continuous(self) -> bool:
        """True if there are only continuous actions."""
        return self.discrete_size == 0 and self.continuous_size > 0

    def empty_action(self, n_agents: int) -> ActionTuple:
        """Return actions for n agents that are all zeros."""
        return ActionTuple(
            np.zeros((n_agents, self.continuous_size), np.float32), np.zeros((n_agents, self.discrete_size), np.int32)
        )

    def random_action(self, n_agents: int) -> ActionTuple:
        """Return uniformly random actions for n agents; continuous ones are between -1 and 1."""
        random = np.random.default_rng()
        discrete = random.integers(
            np.zeros(self.discrete_size, np.int32),
            self.discrete_branches or [],
            endpoint=False,
            size=(n_agents, self.discrete_size),
        )
        return ActionTuple(random.uniform(-1, 1, (n_agents, self.continuous_size)), discrete)

    def checked(self, actions: Any, n_agents: int, behavior_name: str) -> ActionTuple:
        """Convert actions of n agents to arrays of the right dtypes.

        Raises:
            UnityActionException: if the actions have the wrong shape.
        """
        checked = ActionTuple(np.asarray(actions.continuous), np.asarray(actions.discrete))
        expected = (n_agents, self.continuous_size), (n_agents, self.discrete_size)
        if (checked.continuous.shape, checked.discrete.shape) != expected:
            raise UnityActionException(
                f"{behavior_name}: got continuous actions of shape {checked.continuous.shape} and discrete actions of "
                f"{checked.discrete.shape}; expected {expected[0]} and {expected[1]}, a row for each of the {n_agents} "
                "agents in its DecisionSteps"
            )
        return checked


class BehaviorSpec(NamedTuple):
    """The specs of a behaviour's observations and actions."""

    observation_specs: list[ObservationSpec]
    action_spec: ActionSpec


class DecisionStep(NamedTuple):
    """One agent that needs a decision."""

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
    """The steps of n agents, as columns, and as a mapping from agent ids."""

    agent_id: NDArray[np.int32]
    _row: ClassVar[Any]
    """The class of one agent's step, whose fields are those of the columns."""

    @cached_property
    def agent_id_to_index(self) -> dict[int, int]:
        """The row number of each agent, keyed by agent id."""
        return {agent: row for row, agent in enumerate(self.agent_id.tolist())}

    def __len__(self) -> int:
        return len(self.agent_id)

    def __iter__(self) -> Iterator[int]:
        return iter(self.agent_id.tolist())

    def __getitem__(self, agent_id: int) -> Step:
        row = self.agent_id_to_index.get(agent_id)
        if row is None:
            raise KeyError(f"agent {agent_id} is not in these steps; the agents are {self.agent_id.tolist()}")
        return cast("Step", self._row(*(_at(row, getattr(self, name)) for name in self._row._fields)))


def _at(row: int, column: Any) -> Any:
    """Return one row of a column, of a list of columns, or of a column that is absent."""
    if isinstance(column, list):
        return [part[row] for part in column]
    return None if column is None else column[row]


@dataclass(eq=False, repr=False)
class DecisionSteps(_Steps[DecisionStep]):
    """The agents of a behaviour that need a decision; actions follow their order."""

    obs: list[NDArray[np.float32]]
    """One array [n, *shape] for each observation."""
    reward: NDArray[np.float32]
    """[n] reward since the agent's previous decision."""
    agent_id: NDArray[np.int32]
    """[n] id of each row's agent."""
    action_mask: list[NDArray[np.bool_]] | None
    """[n, choices] per branch, true = forbidden; None without discrete actions."""
    group_id: NDArray[np.int32]
    """[n] id of each row's group, or 0 if there is no group."""
    group_reward: NDArray[np.float32]
    """[n] the group's reward since the agent's previous decision."""
    _row = DecisionStep

    @staticmethod
    def empty(spec: Any) -> DecisionSteps:
        """Return an empty batch for a behaviour, with no agents."""
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
    _row = TerminalStep

    @staticmethod
    def empty(spec: Any) -> TerminalSteps:
        """Return an empty batch for a behaviour, with no agents."""
        return TerminalSteps(_nothing(spec), _NO_FLOATS, np.zeros(0, np.bool_), _NO_NUMBERS, _NO_NUMBERS, _NO_FLOATS)


def _nothing(spec: Any) -> list[NDArray[np.float32]]:
    return [np.zeros((0, *observation.shape), np.float32) for observation in spec.observation_specs]
