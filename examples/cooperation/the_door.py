"""A task for two agents, one of which must sacrifice itself: groups of agents in a custom environment.

All instances are stepped together, so this is an `EnvironmentGroup` (stages/environments/protocol.py). Axis letter: n
instances, with two agents each.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from headrace import ActionBatch, ActionSpec, AgentSteps, BehaviorSpec, ObservationSpec, StepResult

WAIT, PUSH, GO = range(3)


class TheDoor:
    """Two agents in front of a closed door, with a reward behind it.

    An agent waits, pushes against the door, or goes through it. Pushing opens the door, but terminates the agent that
    pushes, at a small cost to that agent. Going through the open door ends the task with a reward of 1 for the group,
    which the agent that opened the door does not live to see. Going through the closed door has no effect, and both
    agents terminate when time is up. Agents observe which of the two they are, whether the door is open, whether the
    other agent is still alive, and the time left.

    Args:
        num_envs: n, the number of instances.
        behavior: name of the behaviour that all agents share.
        price: cost of opening the door.
        steps: number of steps after which time is up.
    """

    def __init__(self, num_envs: int, behavior: str, price: float = 0.1, steps: int = 10) -> None:
        self.num_envs = num_envs
        seen, actions = (ObservationSpec("seen", (5,)),), ActionSpec(discrete_branches=(3,))
        self.behavior_specs: Mapping[str, BehaviorSpec] = {
            behavior: BehaviorSpec(behavior, seen, actions, grouped=True)
        }
        self._behavior, self._price, self._steps = behavior, price, steps
        self._agents = np.arange(2 * num_envs).reshape(num_envs, 2)
        self._instances = np.repeat(np.arange(num_envs)[:, None], 2, axis=1)
        self._there = np.ones((num_envs, 2), np.bool_)
        self._open = np.zeros(num_envs, np.bool_)
        self._t = np.zeros(num_envs, np.int64)
        self._episodes = np.full(num_envs, -1, np.int64)

    def reset(self, seed: int | None = None) -> StepResult:
        """Close all doors. Nothing here is random; a seed restarts the episode counts."""
        if seed is not None:
            self._episodes[:] = -1
        self._begin(np.ones(self.num_envs, np.bool_))
        nobody = np.zeros((self.num_envs, 2), np.bool_)
        nothing = np.zeros(self.num_envs)
        return self._result(nobody, self._seen(), self._episodes, nobody * 0.0, nothing)

    def step(self, actions: Mapping[str, ActionBatch]) -> StepResult:
        """Step all instances; an agent that goes finds the door as it was before this step's pushes."""
        chosen = np.full((self.num_envs, 2), WAIT)
        chosen[self._there] = actions[self._behavior].discrete[:, 0]
        pushed, solved = chosen == PUSH, ((chosen == GO) & self._open[:, None]).any(axis=1)
        self._open |= pushed.any(axis=1)
        self._t += 1
        over = solved | (self._t >= self._steps)
        ended = self._there & (pushed | over[:, None])
        self._there &= ~ended
        finals, episodes = self._seen(), self._episodes.copy()
        self._begin(~self._there.any(axis=1))
        return self._result(ended, finals, episodes, -self._price * pushed, solved.astype(np.float64))

    def close(self) -> None:
        """Do nothing, as the environment holds no resources."""

    def _begin(self, where: np.ndarray) -> None:
        """Start episodes in these instances [n]. A group of agents keeps its number."""
        self._there[where] = True
        self._open[where] = False
        self._t[where] = 0
        self._episodes[where] += 1

    def _seen(self) -> np.ndarray:
        """Return observations [n, 2, 5]: is agent 0, is agent 1, door is open, the other agent is alive, time left."""
        seen = np.zeros((self.num_envs, 2, 5), np.float32)
        seen[:, 0, 0] = seen[:, 1, 1] = 1.0
        seen[:, :, 2] = self._open[:, None]
        seen[:, :, 3] = self._there[:, ::-1]
        seen[:, :, 4] = 1.0 - self._t[:, None] / self._steps
        return seen

    def _result(
        self,
        ended: np.ndarray,
        finals: np.ndarray,
        episodes: np.ndarray,
        rewards: np.ndarray,
        of_groups: np.ndarray,
    ) -> StepResult:
        """Return the rows of ended agents, then those of present agents, without rewards from an earlier episode.

        Args:
            ended: [n, 2] true for agents that ended.
            finals: [n, 2, 5] final observations.
            episodes: [n] the step's episode.
            rewards: [n, 2] the agents' own rewards.
            of_groups: [n] the groups' rewards.
        """
        there, went_on = self._there, (self._episodes == episodes)[:, None]
        groups = self._instances + 1  # 0 means no group
        shared = np.repeat(of_groups[:, None], 2, axis=1)

        def rows(of_ended: np.ndarray, of_present: np.ndarray) -> np.ndarray:
            return np.concatenate([of_ended[ended], of_present[there]])

        steps = AgentSteps(
            agent_ids=rows(self._agents, self._agents),
            env_ids=rows(self._instances, self._instances).astype(np.int32),
            episode_ids=rows(episodes[self._instances], self._episodes[self._instances]),
            observations=(rows(finals, self._seen()),),
            rewards=rows(rewards, rewards * went_on).astype(np.float32),
            ended=int(ended.sum()),
            terminated=np.ones(ended.sum(), np.bool_),
            truncated=np.zeros(ended.sum(), np.bool_),
            group_ids=rows(groups, groups),
            group_rewards=rows(shared, shared * went_on).astype(np.float32),
        )
        return StepResult({self._behavior: steps})
