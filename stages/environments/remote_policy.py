"""Policies that do not lie in the actor: what they decide is asked for elsewhere (`stages/inference/`), tick by tick.

The environment stage then decides in two parts: it asks for the decisions of all such policies at once, and waits
(`EnvironmentStage.consult`); then it decides as ever, and each of them returns what was answered. So memories, stamps
and trajectories are made in one way, wherever policies lie, and who decides locally pays nothing.
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
    """What was asked is not answered: who asked has given up, or nobody is there to answer any more."""


class DecisionClient(Protocol):
    """Whoever answers."""

    async def ask(self, questions: tuple[PolicyQuestion, ...]) -> tuple[PolicyAnswer, ...]:
        """Return the answers to all questions of a tick, in their order; a wait that is cancelled gives up.

        Raises:
            NoDecisionError: if `give_up` was called meanwhile, or nobody answers.
        """
        ...

    def give_up(self) -> None:
        """Wait no longer."""
        ...


class RemotePolicy:
    """An `ActingPolicy` that returns what was answered.

    Args:
        behavior_id: whose policy it is.
        memory_size, previous_action_size: those of the policy that decides.
        alive: the policies of the behaviour id by which games are played, of which this is one as long as it is used.
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
        """Be this policy, whose weights lie elsewhere, from the next question on."""
        self._named = (update.snapshot, update.version)

    def question(
        self, observations: tuple[Array, ...], masks: NDArray[np.bool_] | None, greedy: bool, recall: Recall | None
    ) -> PolicyQuestion:
        """Put what `act` is asked, its random numbers aside, into a message; nothing is copied."""
        columns = {f"obs_{i}": observation for i, observation in enumerate(observations)}
        if masks is not None:
            columns["masks"] = masks
        if recall is not None:
            columns |= {"memories": recall.memories, "previous_actions": recall.previous_actions}
        held = sorted({policy._named[0] for policy in self._alive} - {-1})
        return PolicyQuestion(self._behavior_id, *self._named, greedy, tuple(held), columns)

    def answered(self, answer: PolicyAnswer) -> None:
        """Keep the answer for `act`."""
        self._answer = answer

    def act(
        self,
        observations: tuple[Array, ...],
        masks: NDArray[np.bool_] | None,
        random: np.random.Generator,
        deterministic: bool = False,
        recall: Recall | None = None,
    ) -> Decision:
        """Return the decision that was answered for the same rows."""
        answer, self._answer = self._answer, None
        assert answer is not None, f"{self._behavior_id}: it was asked before"
        parts = dict(answer.columns)
        columns = {name.removeprefix(DECISION): parts[name] for name in parts if name.startswith(DECISION)}
        after = None
        if recall is not None:
            if self.previous_action_size:  # a recurrent memory, and nothing else, if the answer has no such column
                columns.setdefault("memories", recall.memories)
            after = Recall(parts["memories"], parts["previous_actions"])
        return Decision(ActionBatch(parts["continuous"], parts["discrete"]), columns, after)


class RemotePolicies:
    """Makes the policies of an actor that are asked elsewhere.

    Args:
        sizes: returns the memory size and the size of the previous action of a behaviour's policy.
    """

    def __init__(self, sizes: Callable[[BehaviorSpec], tuple[int, int]]) -> None:
        self._sizes = sizes
        self._alive: dict[str, WeakSet[RemotePolicy]] = {}

    def __call__(self, spec: BehaviorSpec) -> RemotePolicy:
        """Make a policy of a behaviour id."""
        return RemotePolicy(spec.behavior_id, *self._sizes(spec), self._alive.setdefault(spec.behavior_id, WeakSet()))
