"""Tasks for groups of agents with a common reward; the rest is as in `acceptance_envs`, beside which they are found.

Axis letters: n instances, a agents of each.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from acceptance.acceptance_envs import Simple
from numpy.typing import NDArray

from headrace.queues.messages import ActionBatch, Array
from headrace.queues.specs import BehaviorSpec
from headrace.stages.environments.protocol import AgentSteps, StepResult

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
EXAMPLE = Path(__file__).parents[2] / "examples" / "cooperation"


class GroupTask:
    """N instances of a task for one group of agents each. What the task is, is its subclasses' affair.

    A group is over when all of its agents have ended; then all of them begin again. It keeps its number.

    Args:
        num_envs: n.
        behavior: the behaviour id of all agents.
        agents: a.
        spec: of the behaviour.
    """

    def __init__(self, num_envs: int, behavior: str, agents: int, spec: BehaviorSpec) -> None:
        self.num_envs = num_envs
        self.behavior_specs: Mapping[str, BehaviorSpec] = {behavior: spec}
        self.shape = (num_envs, agents)
        self.random = np.random.default_rng(0)
        self.alive = np.ones(self.shape, np.bool_)
        """[n, a] who has not ended yet."""
        self._behavior = behavior
        self._episodes = np.full(num_envs, -1, np.int64)

    def begin(self, which: NDArray[np.intp]) -> None:
        """Start anew in these instances."""
        raise NotImplementedError

    def advance(self, continuous: Array, discrete: Array) -> tuple[Floats, Floats, Bools, Bools]:
        """Take an action [n, a, …] each; those of agents that are not alive are zeros.

        Returns:
            The agents' own rewards [n, a], their groups' rewards [n], terminated [n, a] and truncated [n, a]; of agents
            that are not alive, nothing is looked at.
        """
        raise NotImplementedError

    def observe(self) -> tuple[Array, ...]:
        """What each agent sees now: new arrays [n, a, *shape], one per observation."""
        raise NotImplementedError

    def reset(self, seed: int | None = None) -> StepResult:
        """Start all instances anew."""
        if seed is not None:
            self.random = np.random.default_rng(seed)
            self._episodes[:] = -1
        self._begin(np.arange(self.num_envs))
        nobody, nothing = np.zeros(self.shape, np.bool_), np.zeros(self.shape)
        return self._rows(None, self.observe(), self._episodes.copy(), nothing, nothing, nobody, nobody)

    def step(self, actions: Mapping[str, ActionBatch]) -> StepResult:
        """Advance all instances."""
        given = actions[self._behavior]
        continuous, discrete = (
            np.zeros((*self.shape, part.shape[1]), part.dtype) for part in (given.continuous, given.discrete)
        )
        continuous[self.alive], discrete[self.alive] = given.continuous, given.discrete
        rewards, of_groups, terminated, truncated = self.advance(continuous, discrete)
        shared = np.repeat(of_groups[:, None], self.shape[1], axis=1)
        ended = self.alive & (terminated | truncated)
        self.alive = self.alive & ~ended
        seen, episodes = self.observe(), self._episodes.copy()
        over = np.flatnonzero(~self.alive.any(axis=1))
        finals = tuple(observation[ended] for observation in seen)
        if len(over):
            self._begin(over)
            seen = self.observe()
        return self._rows((finals, terminated[ended]), seen, episodes, rewards, shared, ended, self._fresh(over))

    def close(self) -> None:
        """Nothing is open."""

    def _begin(self, which: NDArray[np.intp]) -> None:
        self.alive[which] = True
        self._episodes[which] += 1
        self.begin(which)

    def _fresh(self, which: NDArray[np.intp]) -> Bools:
        fresh = np.zeros(self.shape, np.bool_)
        fresh[which] = True
        return fresh

    def _rows(
        self,
        ending: tuple[tuple[Array, ...], Bools] | None,
        seen: tuple[Array, ...],
        episodes: NDArray[np.int64],
        rewards: Floats,
        shared: Floats,
        ended: Bools,
        fresh: Bools,
    ) -> StepResult:
        """The rows of those who ended, then of those who are alive; those who begin got nothing yet."""
        everyone = np.arange(self.alive.size).reshape(self.shape)
        instances = np.repeat(np.arange(self.num_envs)[:, None], self.shape[1], axis=1)
        observations = tuple(observation[self.alive] for observation in seen)
        terminated = np.zeros(0, np.bool_)
        if ending is not None:
            finals, terminated = ending
            observations = tuple(np.concatenate(pair) for pair in zip(finals, observations, strict=True))

        def both(of_ended: Any, of_alive: Any, dtype: Any) -> Any:
            return np.concatenate((of_ended[ended], of_alive[self.alive])).astype(dtype)

        now = ~fresh
        steps = AgentSteps(
            both(everyone, everyone, np.int64),
            both(instances, instances, np.int32),
            both(episodes[instances], self._episodes[instances], np.int64),
            observations,
            both(rewards, rewards * now, np.float32),
            int(ended.sum()),
            terminated,
            ~terminated,
            group_ids=both(instances + 1, instances + 1, np.int64),
            group_rewards=both(shared, shared * now, np.float32),
        )
        return StepResult({self._behavior: steps})


class MultiAgent(GroupTask):
    """ML-Agents' MultiAgentEnvironment: each agent has a `Simple` task of its own, and whoever is done waits.

    Who is done before the last one gets no more than the cost of a step; the last one's result is the group's reward.

    Args:
        num_envs: n.
        behavior: the behaviour id.
        agents: a.
        **options: of each agent's `Simple`.
    """

    def __init__(self, num_envs: int, behavior: str, agents: int = 2, **options: Any) -> None:
        self._tasks = Simple(num_envs * agents, behavior, **options)
        alone = self._tasks.behavior_specs[behavior]
        spec = BehaviorSpec(behavior, alone.observations, alone.actions, grouped=True)
        super().__init__(num_envs, behavior, agents, spec)

    def begin(self, which: NDArray[np.intp]) -> None:
        """Draw goals."""
        self._tasks.random = self.random
        self._tasks.begin((which[:, None] * self.shape[1] + np.arange(self.shape[1])).reshape(-1))

    def advance(self, continuous: Array, discrete: Array) -> tuple[Floats, Floats, Bools, Bools]:
        """Move."""
        flat = ActionBatch(*(part.reshape(self.alive.size, part.shape[2]) for part in (continuous, discrete)))
        rewards, done, truncated = (result.reshape(self.shape) for result in self._tasks.advance(flat))
        done &= self.alive
        over = np.all(~self.alive | done, axis=1)
        # Of those who are done at the same time, the last one in order counts as the last.
        last = over[:, None] & done & (np.cumsum(done, axis=1) == done.sum(axis=1, keepdims=True))
        own = np.where(done, np.minimum(-Simple.COST, rewards), rewards)
        return np.where(last, 0.0, own), (rewards * last).sum(axis=1), done, truncated

    def observe(self) -> tuple[Array, ...]:
        """What each one's task shows."""
        return tuple(seen.reshape(*self.shape, *seen.shape[1:]) for seen in self._tasks.observe())


def _example() -> Any:
    """The class of examples/cooperation, whose folder is no package."""
    spec = importlib.util.spec_from_file_location("the_door", EXAMPLE / "the_door.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


the_door = _example()
TheDoor = the_door.TheDoor
"""Two agents before a door, of whom one has to give itself up: the task of examples/cooperation."""
