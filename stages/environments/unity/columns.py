"""Unity's agents as columns: one reader per behaviour.

Unity sends a message per agent; the readers make arrays of all agents. They also check the messages, and name what is
wrong: worker, behaviour, agent, observation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.queues.messages import Array
from headrace.queues.specs import BehaviorSpec
from headrace.stages.environments.programs.rows import ProgramRows
from headrace.stages.environments.unity.actions import action_spec
from headrace.stages.environments.unity.errors import UnityBroken, UnityMisobserved
from headrace.stages.environments.unity.observations import WrongObservation, observation_reader, observation_spec


class BehaviorReader:
    """Reads the agents of one behaviour.

    Its first agent determines its observations; later agents must be alike.

    Attributes:
        spec: of the behaviour.

    Args:
        brain: its `BrainParametersProto`.
        first: the `AgentInfoProto` of one of its agents.
        owner: its sender (`Unity worker 3`), for messages.

    Raises:
        UnityRefused: if the behaviour is not supported.
        UnityBroken: if the first agent's observations can't be read.
    """

    def __init__(self, brain: Any, first: Any, owner: str) -> None:
        self._owner = f"{owner}, behaviour {brain.brain_name!r}"
        agent = f"{self._owner}, agent {first.id}"
        self.spec = BehaviorSpec(
            brain.brain_name,
            tuple(observation_spec(proto, index, agent) for index, proto in enumerate(first.observations)),
            action_spec(brain, self._owner),
            grouped=True,
        )
        pairs = zip(self.spec.observations, first.observations, strict=True)
        self._readers = [observation_reader(spec, proto) for spec, proto in pairs]
        branches = self.spec.actions.discrete_branches
        self._branch_starts = np.cumsum((0, *branches[:-1])) if branches else None

    def read(self, infos: Sequence[Any]) -> ProgramRows:
        """Convert the behaviour's agents (`AgentInfoProto`) of one message to columns.

        Raises:
            UnityBroken: if agents are doubled, a reward or observation is not finite, or an observation or action mask
                does not fit the spec; the text names the agent.
        """
        endings = [info for info in infos if info.done]
        rows = [*endings, *(info for info in infos if not info.done)] if endings else list(infos)
        ended = len(endings)
        ids = [info.id for info in rows]
        self._check_ids(ids[:ended], "ended")
        self._check_ids(ids[ended:], "asks for a decision")
        return ProgramRows(
            ids=np.array(ids, np.int32),
            rewards=self._rewards([info.reward for info in rows], ids, "reward"),
            ended=ended,
            interrupted=np.array([info.max_step_reached for info in endings], np.bool_),
            observations=self._observations(rows, ids),
            action_masks=self._masks(rows[ended:]),
            group_ids=np.array([info.group_id for info in rows], np.int32),
            group_rewards=self._rewards([info.group_reward for info in rows], ids, "group reward"),
        )

    def _check_ids(self, ids: list[int], what: str) -> None:
        if len(set(ids)) != len(ids):
            double = next(agent for at, agent in enumerate(ids) if agent in ids[:at])
            raise UnityBroken(
                f"{self._owner}, agent {double}: {what} {ids.count(double)} times in one step; an agent's id must be "
                "its own"
            )

    def _rewards(self, values: list[float], ids: list[int], what: str) -> NDArray[np.float32]:
        rewards = np.array(values, np.float32)
        finite = np.isfinite(rewards)
        if not finite.all():
            row = int(np.argmin(finite))
            raise UnityBroken(
                f"{self._owner}, agent {ids[row]}: its {what} is {rewards[row]}, expected a finite number; look for a "
                "division by zero where the agent's script adds rewards"
            )
        return rewards

    def _observations(self, rows: list[Any], ids: list[int]) -> tuple[Array, ...]:
        per_agent = [info.observations for info in rows]
        wanted = len(self._readers)
        if any(len(observations) != wanted for observations in per_agent):
            row = next(row for row, observations in enumerate(per_agent) if len(observations) != wanted)
            raise UnityMisobserved(
                f"{self._owner}, agent {ids[row]}: has {len(per_agent[row])} observations, expected {wanted} as of the "
                f"first agent of the behaviour ({', '.join(o.name for o in self.spec.observations)}); give its agents "
                "the same sensors, or a behaviour name of their own"
            )
        return tuple(self._column(index, per_agent, ids) for index in range(wanted))

    def _column(self, index: int, per_agent: list[Any], ids: list[int]) -> Array:
        reader = self._readers[index]
        try:
            return reader.read([observations[index] for observations in per_agent])
        except WrongObservation as error:
            raise UnityMisobserved(
                f"{self._owner}, agent {ids[error.row]}: observation {reader.spec.name!r} {error.problem}"
            ) from error

    def _masks(self, rows: list[Any]) -> NDArray[np.bool_] | None:
        if self._branch_starts is None:
            return None
        width = self.spec.actions.mask_size
        masks = [info.action_mask for info in rows]
        lengths = {len(mask) for mask in masks} - {0}
        if not lengths:  # agents that forbid nothing send no mask
            return np.ones((len(rows), width), np.bool_)
        lengths.discard(width)
        if lengths:
            row = next(row for row, mask in enumerate(masks) if len(mask) in lengths)
            raise UnityBroken(
                f"{self._owner}, agent {rows[row].id}: its action mask has {len(masks[row])} entries, expected {width}"
                f": one for each choice of the branches {list(self.spec.actions.discrete_branches)}"
            )
        nothing = [False] * width
        forbidden = np.array([mask[:] or nothing for mask in masks], np.bool_).reshape(len(rows), width)
        stuck = np.logical_and.reduceat(forbidden, self._branch_starts, axis=1)
        if stuck.any():
            row, branch = (int(index) for index in np.argwhere(stuck)[0])
            raise UnityBroken(
                f"{self._owner}, agent {rows[row].id}: its action mask forbids every choice of branch {branch}; leave "
                "it at least one"
            )
        return ~forbidden
