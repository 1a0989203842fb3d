"""The protocol of environments: groups of instances that are stepped together and exchange columns with the pipeline.

Adapters (Gymnasium, …) and built-in games implement `EnvironmentGroup`; the environment stage drives it. A group may
have one instance or thousands; rows are arrays, never objects.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from headrace.queues.messages import ActionBatch, Array
from headrace.queues.specs import BehaviorSpec
from headrace.stages.user_calls import call_user

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class AgentSteps:
    """The rows of one behaviour id's agents at one tick. The first `ended` rows are endings; the rest need a decision.

    Of the n rows, d = n - ended are decisions. The environment may reuse the arrays only after the next `step` has
    returned; before that, the pipeline copies the data that it keeps.
    """

    agent_ids: NDArray[np.int64]
    """[n] id of the row's agent, unique within the group; an agent keeps its id when it begins a new episode."""
    env_ids: NDArray[np.int32]
    """[n] number of the row's instance within the group, 0 … num_envs-1."""
    episode_ids: NDArray[np.int64]
    """[n] id of the row's episode; each of an agent's episodes has a higher id than the one before."""
    observations: tuple[Array, ...]
    """One array [n, *shape] for each observation spec, in the spec's dtype."""
    rewards: NDArray[np.float32]
    """[n] reward since the agent's previous decision; 0 in the first row of an episode."""
    ended: int
    terminated: NDArray[np.bool_]
    """[ended] true where the task itself ended the episode. Takes precedence over `truncated`."""
    truncated: NDArray[np.bool_]
    """[ended] true where the episode was cut short."""
    action_masks: NDArray[np.bool_] | None = None
    """[d, sum of branches] true = allowed; None unless the spec is `masked`."""
    group_ids: NDArray[np.int64] | None = None
    """[n] id of the agent's group, whose members share a reward, or 0 if the agent has no group. Ids are unique across
    the instances of this environment group, and a group may keep its id across episodes. None if there are no groups;
    an array is allowed only if the spec is `grouped`."""
    group_rewards: NDArray[np.float32] | None = None
    """[n] the group's reward since the agent's previous decision, without the agent's own reward; 0 in the first row of
    an episode. It includes the rewards of members that never decide, and is the same for all members that decide at the
    same ticks. POCA adds each member's own reward. None if there are no group rewards."""
    parameters: NDArray[np.int32] | None = None
    """[ended] generation of the environment parameters at each ended episode's start, if episodes of one instance may
    begin at different times; None to use the instance's generation (`EpisodeParameters.begun`)."""
    env_frames: NDArray[np.int32] | None = None
    """[n] environment steps since the agent's previous decision, 0 in the first row of an episode; None unless the spec
    has an `action_repeat`."""
    undiscounted: NDArray[np.float32] | None = None
    """[n, 2] the agent's own and its group's undiscounted rewards, for episode returns, if `rewards` and
    `group_rewards` are discounted; otherwise None."""


@dataclass(frozen=True, slots=True)
class GameResults:
    """Games (matches between teams in one instance) that ended at this tick."""

    env_ids: NDArray[np.int32]
    """[g] numbers of the instances whose games ended, without duplicates."""
    outcomes: NDArray[np.float32]
    """[g, teams] each team's outcome, in the order of team ids. With two teams, 1 is a win, 0.5 a draw and 0 a loss, so
    the outcomes add up to 1. With more teams, the outcomes are any numbers that rank the teams."""


@dataclass(frozen=True, slots=True)
class StatisticValues:
    """Values of one of the environment's own statistics at one tick."""

    values: tuple[float, ...]
    how: str = "mean"
    """Aggregation over a summary period: `mean`, `sum`, `last` or `histogram`."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of a group's tick.

    A tick need not include all instances: a slow instance's rows may be in a later tick.
    """

    steps: Mapping[str, AgentSteps]
    """The agents' rows, keyed by behaviour id."""
    games: GameResults | None = None
    """The games that ended; None if no game has ended. An environment whose agents may leave a game before its end
    returns an empty `GameResults` from `reset`, to announce that it declares its games' results; otherwise results are
    inferred from the agents' episodes."""
    statistics: Mapping[str, float | StatisticValues] = field(default_factory=dict)
    """The environment's own statistics, for TensorBoard."""
    behavior_statistics: Mapping[str, Mapping[str, StatisticValues]] = field(default_factory=dict)
    """Statistics of individual behaviours, keyed by behaviour name; those in `statistics` apply to all behaviours."""
    lost: NDArray[np.int32] | None = None
    """Instances that broke and that the group itself restarts. The running episodes of their agents get no endings. New
    episodes may begin in this tick or a later one. None if no instance broke."""
    closed: NDArray[np.int32] | None = None
    """Instances that have closed normally and don't restart. Their agents have no more rows. `step` returns the
    instances closed since the last tick, `reset` all closed instances. When the last instance closes, the group raises
    `EnvironmentEnded` instead. None if no instance closed."""

    @property
    def gone(self) -> list[NDArray[np.int32]]:
        """The arrays `lost` and `closed`, except for those that are None."""
        return [env_ids for env_ids in (self.lost, self.closed) if env_ids is not None]


@runtime_checkable
class EnvironmentGroup(Protocol):
    """A group of environment instances stepped together. `reset`, `step` and `close` may be `async`.

    Attributes:
        num_envs: number of instances.
        behavior_specs: the specs, keyed by behaviour id; `reset` and `step` may add some, but never change one.
    """

    num_envs: int
    behavior_specs: Mapping[str, BehaviorSpec]

    def reset(self, seed: int | None = None) -> StepResult | Awaitable[StepResult]:
        """Reset all instances. If a seed is given, the seed and the actions determine everything that follows."""
        ...

    def step(self, actions: Mapping[str, ActionBatch]) -> StepResult | Awaitable[StepResult]:
        """Apply the actions and advance one tick. Instances restart automatically within the tick in which they end.

        Raises:
            BrokenEnvironmentError: if the entire group must be rebuilt.
            EnvironmentEnded: if the environment has ended normally.
            StageError: if rebuilding would not help.
        """
        ...

    def close(self) -> Awaitable[None] | None:
        """Release all resources; closing twice is allowed."""
        ...


async def maybe_await(call: Callable[..., _Result | Awaitable[_Result]], *arguments: Any) -> _Result:
    """Call a group's `reset`, `step` or `close`, and return the result once it is available."""
    result = call_user(call, *arguments)
    return await result if inspect.isawaitable(result) else result


async def play(
    group: EnvironmentGroup, decide: Callable[[str, AgentSteps], ActionBatch], result: StepResult
) -> AsyncIterator[StepResult]:
    """Yield a group's results without end: the given one, of a reset or a step, and those of the steps after it.

    Args:
        group: the environments.
        decide: returns a behaviour id's actions, given its rows. It is called only after the caller has seen the rows,
            so a caller that leaves the loop at a result causes no further decision.
        result: the result to continue from.
    """
    while True:
        yield result
        await asyncio.sleep(0)  # most groups never wait, and messages and requests to stop could not arrive otherwise
        actions = {behavior_id: decide(behavior_id, steps) for behavior_id, steps in result.steps.items()}
        result = await maybe_await(group.step, actions)


@runtime_checkable
class GroupWithDeadlines(Protocol):
    """An environment group that reports delays itself, so supervision does not need to."""

    has_deadlines: bool
    """True if every reset and step ends within a time limit, with an error if necessary."""


@runtime_checkable
class StoppableGroup(Protocol):
    """An environment group whose resets and steps may hang, but can be interrupted."""

    def request_stop(self) -> None:
        """Make a running `reset` or `step` raise `EnvironmentEnded` soon, because the run is ending."""
        ...


ACHIEVED_GOAL, DESIRED_GOAL = "achieved_goal", "desired_goal"
"""Names of a goal environment's goal observations, as in Gymnasium-Robotics; both are vectors of the same size."""


class GoalRewards(Protocol):
    """The reward of a run's environment as a function of goals, for a trainer that learns from substituted goals."""

    def open(self, size: int) -> None:
        """Prepare to compute rewards, and test the reward function on a few goals of `size` numbers.

        Raises:
            StageError: if the environment has no reward function, or the function breaks its contract.
        """
        ...

    def __call__(self, achieved: Array, desired: Array) -> NDArray[np.float32]:
        """Compute the rewards [n] of n steps.

        Args:
            achieved: [n, g] the goals achieved after each step.
            desired: [n, g] the goals that determine the rewards.

        Raises:
            BrokenEnvironmentError: if the function raises, or does not return n numbers.
            NotFiniteError: if a reward is NaN or infinite.
        """
        ...

    def close(self) -> None:
        """Release the resources that `open` has acquired, if it was called."""
        ...


class WrappedGroup:
    """An environment group that wraps another one; a derived class defines `behavior_specs`, `reset` and `step`.

    If the wrapped group takes parameters, or limits episodes itself (`limits_episodes`), so does the wrapper.

    Args:
        group: the environments; the wrapper closes them.
    """

    def __init__(self, group: EnvironmentGroup) -> None:
        self.num_envs = group.num_envs
        self.has_deadlines = isinstance(group, GroupWithDeadlines) and group.has_deadlines
        for name in ("set_parameters", "limits_episodes"):
            if hasattr(group, name):
                setattr(self, name, getattr(group, name))
        self._group = group

    def request_stop(self) -> None:
        """Make a hanging step end soon, if the environments support that."""
        if isinstance(self._group, StoppableGroup):
            self._group.request_stop()

    def close(self) -> Awaitable[None] | None:
        """Close the environments."""
        return self._group.close()
