"""The protocol of environments: a group of instances that are stepped together and exchange columns.

Adapters (Gymnasium, …) and built-in games implement `EnvironmentGroup`; the environment stage drives it. A group may
have one instance or thousands; rows are arrays, never objects.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from headrace.queues.messages import ActionBatch, Array
from headrace.queues.specs import BehaviorSpec

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class AgentSteps:
    """The rows of one behaviour id's agents at one tick. The first `ended` rows are endings, the rest await a decision.

    n rows in all, d = n - ended of them decisions. Arrays may be reused by the environment only after the next
    `step` has returned; the pipeline copies what it keeps before that.
    """

    agent_ids: NDArray[np.int64]
    """[n] unique within the group; an agent that restarts keeps its id."""
    env_ids: NDArray[np.int32]
    """[n] instance within the group, 0 … num_envs-1."""
    episode_ids: NDArray[np.int64]
    """[n] rising with each episode of the agent."""
    observations: tuple[Array, ...]
    """[n, *shape] per observation spec, in its dtype."""
    rewards: NDArray[np.float32]
    """[n] since the agent's previous decision; 0 in the first row of an episode."""
    ended: int
    terminated: NDArray[np.bool_]
    """[ended] true where the task itself ended the episode. Takes precedence over `truncated`."""
    truncated: NDArray[np.bool_]
    """[ended] true where the episode was cut short."""
    action_masks: NDArray[np.bool_] | None = None
    """[d, sum of branches] true = allowed; None where the spec is not `masked`."""
    group_ids: NDArray[np.int64] | None = None
    """[n] id of the group of agents with a common reward that the agent belongs to, unique over the instances of this
    environment group; 0 for none. None if there are no groups; allowed only where the spec is `grouped`. A group may
    keep its id over its episodes."""
    group_rewards: NDArray[np.float32] | None = None
    """[n] the group's reward since the agent's previous decision, beside its own; 0 in the first row of an episode. It
    is the same for all mates that decide at the same ticks, to which POCA adds their own rewards; it includes the
    rewards of mates that never decide. None for no reward."""
    parameters: NDArray[np.int32] | None = None
    """[ended] generation of the environment parameters under which each ended episode began, where episodes of one
    instance may begin at different times; None where it is the instance's (`EpisodeParameters.begun`)."""
    env_frames: NDArray[np.int32] | None = None
    """[n] environment steps since the agent's previous decision, 0 in the first row of an episode; given where the spec
    has an `action_repeat`, and nowhere else."""
    undiscounted: NDArray[np.float32] | None = None
    """[n, 2] own and group's reward for the returns of episodes, where those in `rewards` and `group_rewards` are
    discounted; None where they are not."""


@dataclass(frozen=True, slots=True)
class GameResults:
    """Games (one instance's match between teams) that ended at this tick."""

    env_ids: NDArray[np.int32]
    """[g] the instances whose game ended, each once."""
    outcomes: NDArray[np.float32]
    """[g, teams] per team, by team id: 1 won, 0.5 drawn, 0 lost, so that two add up to 1; of more than two teams, any
    ranking in numbers."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Values of one of the environment's own statistics at one tick."""

    values: tuple[float, ...]
    how: str = "mean"
    """Aggregation over a summary period: `mean`, `sum`, `last` or `histogram`."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of one tick of a group.

    A tick need not include all instances: those that are still stepping come with a later one.
    """

    steps: Mapping[str, AgentSteps]
    """By behaviour id."""
    games: GameResults | None = None
    """None if no game has ended. An environment whose agents may leave a game before its end returns an empty one from
    `reset`, to announce that it declares games: in others, results are inferred from the agents' episodes."""
    statistics: Mapping[str, float | Measured] = field(default_factory=dict)
    """The environment's own statistics, for TensorBoard."""
    behavior_statistics: Mapping[str, Mapping[str, Measured]] = field(default_factory=dict)
    """Statistics of single behaviours, by behaviour name; `statistics` are of all of them."""
    lost: NDArray[np.int32] | None = None
    """Instances that broke and that the group itself restarts: the episodes of their agents never end. New episodes may
    come with this tick or a later one. None for none."""
    closed: NDArray[np.int32] | None = None
    """Instances that have closed in order and are not started again: no more rows of their agents come. From `step`,
    those that have since the last tick; from `reset`, all. When the last one closes, the group raises
    `EnvironmentEnded` instead. None for none."""

    @property
    def gone(self) -> list[NDArray[np.int32]]:
        """What there is of `lost` and `closed`."""
        return [env_ids for env_ids in (self.lost, self.closed) if env_ids is not None]


@runtime_checkable
class EnvironmentGroup(Protocol):
    """A group of environment instances stepped together. `reset`, `step` and `close` may be `async`.

    Attributes:
        num_envs: number of instances.
        behavior_specs: by behaviour id; may grow during `reset` and `step`, never change.
    """

    num_envs: int
    behavior_specs: Mapping[str, BehaviorSpec]

    def reset(self, seed: int | None = None) -> StepResult | Awaitable[StepResult]:
        """Reset all instances; with a seed, everything that follows is determined by it and the actions."""
        ...

    def step(self, actions: Mapping[str, ActionBatch]) -> StepResult | Awaitable[StepResult]:
        """Apply the actions and advance one tick. Instances restart by themselves within the tick in which they end.

        Raises:
            BrokenEnvironmentError: if the whole group must be rebuilt.
            EnvironmentEnded: if the environment has ended normally.
            StageError: if rebuilding would not help.
        """
        ...

    def close(self) -> Awaitable[None] | None:
        """Release everything; closing twice is allowed."""
        ...


async def settled(result: _Result | Awaitable[_Result]) -> _Result:
    """Return what a group's `reset`, `step` or `close` gave, once it is there."""
    return await result if inspect.isawaitable(result) else result


@runtime_checkable
class Punctual(Protocol):
    """An environment group that says by itself what takes too long, so that nobody else needs to."""

    has_deadlines: bool
    """True if each of its resets and steps ends in time, with an error if need be."""


@runtime_checkable
class Stoppable(Protocol):
    """An environment group whose steps may hang."""

    def request_stop(self) -> None:
        """Let a `reset` or `step` that still runs raise `EnvironmentEnded` soon, as the run is to end."""
        ...


ACHIEVED_GOAL, DESIRED_GOAL = "achieved_goal", "desired_goal"
"""Observations of a goal environment, beside `observation`, as in Gymnasium-Robotics: vectors of one size."""


class GoalRewards(Protocol):
    """The reward of a run's environment as a function of goals, for a trainer that learns from others than its own."""

    def open(self, size: int) -> None:
        """Get ready, and compute the rewards of a few goals of so many numbers.

        Raises:
            StageError: if there is no such function, or it does not do what is expected of it.
        """
        ...

    def __call__(self, achieved: Array, desired: Array) -> NDArray[np.float32]:
        """Compute the rewards [n] of n steps.

        Args:
            achieved: [n, g] goals as they were achieved after each step.
            desired: [n, g] goals that count.

        Raises:
            BrokenEnvironmentError: if the function raises, or returns something else than n numbers.
            NotFiniteError: if a reward is NaN or infinite.
        """
        ...

    def close(self) -> None:
        """Release what `open` has made, if it was called."""
        ...


class WrappedGroup:
    """An environment group in front of another one; a derived class has `behavior_specs`, `reset` and `step`.

    Args:
        group: the environments; the wrapper closes them.
    """

    def __init__(self, group: EnvironmentGroup) -> None:
        self.num_envs = group.num_envs
        self.has_deadlines = isinstance(group, Punctual) and group.has_deadlines
        self._group = group

    def request_stop(self) -> None:
        """Let a step that hangs end soon, if the environments can do that."""
        if isinstance(self._group, Stoppable):
            self._group.request_stop()

    def close(self) -> Awaitable[None] | None:
        """Close the environments."""
        return self._group.close()
