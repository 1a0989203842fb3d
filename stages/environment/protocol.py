"""What an environment is to the pipeline: a group of instances that are stepped together, in columns.

Adapters (Gymnasium, …) and built-in environments implement `EnvironmentGroup`; the environment stage drives it.
A group of one instance is as good as one of a thousand; what counts is that rows are arrays, never objects.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from queues.messages import ActionBatch, Array
from queues.specs import BehaviorSpec


@dataclass(frozen=True, slots=True)
class AgentSteps:
    """What one behaviour id's agents saw at one tick. The first `ended` rows are endings, the rest ask for a decision.

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
    """[ended] true where the task itself ended the episode. Not exclusive with `truncated`: terminated wins."""
    truncated: NDArray[np.bool_]
    """[ended] true where the episode was cut short."""
    action_masks: NDArray[np.bool_] | None = None
    """[d, sum of branches] true = allowed; None where the spec is not `masked`."""
    group_ids: NDArray[np.int64] | None = None
    """[n] the group of agents with a common reward that each belongs to, unique over the instances of this environment
    group; 0 for none. None where there are none at all; may be given only where the spec is `grouped`. A group may
    keep its number over its episodes."""
    group_rewards: NDArray[np.float32] | None = None
    """[n] the group's reward since the agent's previous decision, beside its own; 0 in the first row of an episode. The
    same for all mates who decide at the same ticks, whose own rewards POCA adds; of mates who never do, it has to have
    what they received as well. None for nothing."""
    parameters: NDArray[np.int32] | None = None
    """[ended] generation of the environment parameters that each ended episode began under, where episodes of one
    instance may begin at different times; None where the instance's (`EpisodeParameters.begun`) says it."""


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
    """Values of one of the environment's own numbers that came with one tick."""

    values: tuple[float, ...]
    how: str = "mean"
    """What is made of them over a summary period: `mean`, `sum`, `last` or `histogram`."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """Everything that one tick of a group brought.

    A tick need not be about all instances: those that are still stepping come with a later one.
    """

    steps: Mapping[str, AgentSteps]
    """By behaviour id."""
    games: GameResults | None = None
    """None where no game has ended. An environment whose agents may leave a game before its end gives an empty one in
    what `reset` returns, to say that it declares games: of others, results are guessed from the agents' episodes."""
    statistics: Mapping[str, float | Measured] = field(default_factory=dict)
    """The environment's own numbers, for TensorBoard."""
    lost: NDArray[np.int32] | None = None
    """Instances that the group itself begins anew since this tick, because they broke: what their agents were doing
    never ends. Their new episodes may come with this tick or a later one. None for none."""


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
        """Start all instances anew; with a seed, everything that follows is determined by it and the actions."""
        ...

    def step(self, actions: Mapping[str, ActionBatch]) -> StepResult | Awaitable[StepResult]:
        """Apply the actions and advance one tick. Instances restart by themselves within the tick in which they end.

        Raises:
            BrokenEnvironmentError: if it has to be made anew as a whole.
            EnvironmentEnded: if it has come to its end in order.
            StageError: any other, if making it anew would not help.
        """
        ...

    def close(self) -> Awaitable[None] | None:
        """Release everything; closing twice is allowed."""
        ...


@runtime_checkable
class Stoppable(Protocol):
    """An environment group whose steps may hang."""

    def request_stop(self) -> None:
        """The run is to end: a `reset` or `step` that still goes on should soon raise `EnvironmentEnded`."""
        ...


@runtime_checkable
class Rendering(Protocol):
    """An environment group that can be looked at."""

    def render(self, env_id: int = 0) -> NDArray[np.uint8]:
        """One instance as an RGB picture [height, width, 3]."""
        ...
