"""Policies outside the actor: another process (`stages/inference.py`) makes their decisions, tick by tick.

The environment stage then decides in two steps: it requests the decisions of all these policies together, and waits
(`EnvironmentStage.consult`); then it decides as usual, and each of these policies returns its answer. So memories,
stamps and trajectories are made in the same way for local and remote policies, and local decisions cost nothing extra.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from headrace.queues.messages import DECISION, ActionBatch, Array, PolicyAnswer, PolicyQuestion, PolicyUpdate
from headrace.queues.specs import BehaviorSpec
from headrace.stages.policy.protocol import Decision, Recall


class NoDecisionError(Exception):
    """The request was cancelled before the answer arrived, or no process can answer any more."""


class DecisionClient(Protocol):
    """A connection to the process that makes the decisions."""

    async def ask(self, questions: tuple[PolicyQuestion, ...]) -> tuple[PolicyAnswer, ...]:
        """Return the answers to all questions of a tick, in their order; cancelling the wait abandons the request.

        Raises:
            NoDecisionError: if `give_up` was called in the meantime, or no answer can come.
        """
        ...

    def give_up(self) -> None:
        """Stop waiting for answers."""
        ...


class RemotePolicy:
    """An `ActingPolicy` that returns another process's answers.

    Args:
        behavior_id: the policy's behaviour id.
        memory_size, previous_action_size: the memory size and previous-action size of the policy that decides.
        alive: the policies of the behaviour id that play games, including this one while it is in use.
    """

    def __init__(
        self, behavior_id: str, memory_size: int, previous_action_size: int, alive: WeakSet[RemotePolicy]
    ) -> None:
        self.memory_size = memory_size
        self.previous_action_size = previous_action_size
        self._behavior_id = behavior_id
        self._alive = alive
        self._named = (-1, -1)
        self._answer: PolicyAnswer | None = None
        alive.add(self)

    def load(self, update: PolicyUpdate) -> None:
        """Use this policy for all later decisions; its weights are in the other process."""
        self._named = (update.snapshot, update.version)

    def question(
        self, observations: tuple[Array, ...], masks: NDArray[np.bool_] | None, greedy: bool, recall: Recall | None
    ) -> PolicyQuestion:
        """Put the arguments of `act`, except its random numbers, into a message, without copying arrays."""
        columns = {f"obs_{i}": observation for i, observation in enumerate(observations)}
        if masks is not None:
            columns["masks"] = masks
        if recall is not None:
            columns |= {"memories": recall.memories, "previous_actions": recall.previous_actions}
        held = sorted({policy._named[0] for policy in self._alive} - {-1})
        return PolicyQuestion(self._behavior_id, *self._named, greedy, tuple(held), columns)

    def answered(self, answer: PolicyAnswer) -> None:
        """Store the answer for `act`."""
        self._answer = answer

    def act(
        self,
        observations: tuple[Array, ...],
        masks: NDArray[np.bool_] | None,
        random: np.random.Generator,
        deterministic: bool = False,
        recall: Recall | None = None,
    ) -> Decision:
        """Return the other process's decision for the same rows."""
        answer, self._answer = self._answer, None
        assert answer is not None, f"{self._behavior_id}: no answer has arrived"
        parts = dict(answer.columns)
        columns = {name.removeprefix(DECISION): parts[name] for name in parts if name.startswith(DECISION)}
        after = None
        if recall is not None:
            if self.previous_action_size:  # only a recurrent memory, if the answer lacks the column
                columns.setdefault("memories", recall.memories)
            after = Recall(parts["memories"], parts["previous_actions"])
        return Decision(ActionBatch(parts["continuous"], parts["discrete"]), columns, after)


class RemotePolicies:
    """Makes an actor's remote policies.

    Args:
        sizes: returns the memory size and the previous-action size of a behaviour's policy.
    """

    def __init__(self, sizes: Callable[[BehaviorSpec], tuple[int, int]]) -> None:
        self._sizes = sizes
        self._alive: dict[str, WeakSet[RemotePolicy]] = {}

    def __call__(self, spec: BehaviorSpec) -> RemotePolicy:
        """Make a policy for a behaviour id."""
        return RemotePolicy(spec.behavior_id, *self._sizes(spec), self._alive.setdefault(spec.behavior_id, WeakSet()))
