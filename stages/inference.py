"""Central inference: decides for the agents of many actors, in batches.

One forward pass per policy handles all waiting requests for that policy.

This is the design of SEED RL (Espeholt et al. 2020, "SEED RL: Scalable and Efficient Deep-RL with Accelerated Central
Inference"): actors only step environments, and policies run on a machine with a GPU, or on a core with a large cache.
Unlike in SEED RL, the agents' memories stay with their actors, so an actor that dies leaves no state here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from headrace.queues.messages import (
    DECISION,
    DecisionAnswer,
    DecisionRequest,
    PolicyAnswer,
    PolicyQuestion,
    PolicyUpdate,
)
from headrace.queues.specs import BehaviorSpec
from headrace.stages.errors import StageError
from headrace.stages.policy.protocol import ActingPolicy, Recall

__all__ = ["CentralDecider"]


_QuestionKey = tuple[str, int]
"""(actor, index of a question in the actor's request)."""


class CentralDecider:
    """Stores policies and requests, and answers the requests.

    Each actor has one pending request at a time: a newer request replaces one that has not been answered yet.

    Args:
        make_policy: makes an acting policy for a behaviour spec.
        random: the only source of randomness in decisions.
        actors: the number of actors.
    """

    def __init__(
        self, make_policy: Callable[[BehaviorSpec], ActingPolicy], random: np.random.Generator, actors: int
    ) -> None:
        self._make_policy = make_policy
        self._random = random
        self._actors = actors
        self._policies: dict[str, KeptPolicies] = {}
        self._requests: dict[str, DecisionRequest] = {}

    def __len__(self) -> int:
        """Return the number of waiting requests."""
        return len(self._requests)

    def add_behavior(self, spec: BehaviorSpec) -> None:
        """Add a behaviour id, before its policies arrive."""
        self._policies.setdefault(spec.behavior_id, KeptPolicies(lambda: self._make_policy(spec)))

    def kept(self, behavior_id: str) -> int:
        """Return the number of policies stored for a behaviour id."""
        return len(self._policies[behavior_id])

    def load(self, update: PolicyUpdate) -> None:
        """Store a policy, which actors may query from now on.

        Raises:
            StageError: if the policy does not fit its behaviour.
        """
        self._policies[update.behavior_id].load(update)

    def receive(self, actor: str, request: DecisionRequest) -> None:
        """Store an actor's request until `answer` is called."""
        self._requests[actor] = request

    def answer(self) -> list[tuple[str, DecisionAnswer]]:
        """Answer all waiting requests; return each answer with the actor that it is for.

        Raises:
            StageError: as in `ActingPolicy.act`, or if a question refers to a policy that is not stored.
        """
        requests, self._requests = self._requests, {}
        groups: dict[
            tuple[int, bool, frozenset[str]], tuple[KeptPolicy, list[tuple[_QuestionKey, PolicyQuestion]]]
        ] = {}
        for actor, request in requests.items():
            for number, question in enumerate(request.questions):
                kept = self._policies[question.behavior_id].find(question)
                key = id(kept), question.greedy, frozenset(question.columns)
                groups.setdefault(key, (kept, []))[1].append(((actor, number), question))
        given: dict[_QuestionKey, PolicyAnswer] = {}
        for kept, keyed in groups.values():
            answers = decide_together(kept, [question for _, question in keyed], self._random)
            given |= {key: answer for (key, _), answer in zip(keyed, answers, strict=True)}
        for actor, request in requests.items():
            for question in request.questions:
                self._policies[question.behavior_id].forget(actor, question.held, self._actors)
        return [
            (actor, DecisionAnswer(request.number, tuple(given[actor, i] for i in range(len(request.questions)))))
            for actor, request in requests.items()
        ]


def decide_together(
    kept: KeptPolicy, questions: Sequence[PolicyQuestion], random: np.random.Generator
) -> list[PolicyAnswer]:
    """Answer several questions to one policy, all with the same columns, in one forward pass."""
    names = questions[0].columns
    # Copy even a single question: arrays from another process are read-only, and some networks write to their inputs.
    joined = {name: np.concatenate([question.columns[name] for question in questions]) for name in names}
    seen = sorted((name for name in names if name.startswith("obs_")), key=lambda name: int(name.removeprefix("obs_")))
    observations = tuple(joined[name] for name in seen)
    recall = Recall(joined["memories"], joined["previous_actions"]) if "memories" in names else None
    masks = joined.get("masks")
    decision = kept.policy.act(observations, masks, random, questions[0].greedy, recall)
    held_by_actor = {"action_masks"} if masks is not None else set()
    if recall is None or decision.columns.get("memories", recall.memories).shape == recall.memories.shape:
        held_by_actor.add("memories")
    columns = {f"{DECISION}{name}": column for name, column in decision.columns.items() if name not in held_by_actor}
    columns |= {"continuous": decision.actions.continuous, "discrete": decision.actions.discrete}
    if decision.recall is not None:
        columns |= {"memories": decision.recall.memories, "previous_actions": decision.recall.previous_actions}
    answers, at = [], 0
    for question in questions:
        rows = slice(at, at + len(question.columns["obs_0"]))
        at = rows.stop
        answers.append(PolicyAnswer(kept.version, {name: column[rows] for name, column in columns.items()}))
    return answers


# The policies that an actor may query for one behaviour id: the trainer's newest one, and snapshots in use.


@dataclass
class KeptPolicy:
    """A policy and its version."""

    policy: ActingPolicy
    version: int


class KeptPolicies:
    """Stores the policies that actors may query.

    A newer policy from the trainer replaces the previous one. A snapshot is dropped once no actor names it any more and
    every actor names a later one. Before its first request, an actor may need any snapshot.

    Args:
        make: makes a policy, into which weights are then loaded.
    """

    def __init__(self, make: Callable[[], ActingPolicy]) -> None:
        self._make = make
        self._newest: KeptPolicy | None = None
        self._snapshots: dict[int, KeptPolicy] = {}
        """Snapshots, keyed by number, in the order in which they were last sent."""
        self._held: dict[str, tuple[int, ...]] = {}
        """The snapshots in each actor's last request."""

    def __len__(self) -> int:
        return len(self._snapshots) + (self._newest is not None)

    def load(self, update: PolicyUpdate) -> None:
        """Store a policy that was sent, if its version is new."""
        if update.snapshot < 0:
            if self._newest is None:
                self._newest = KeptPolicy(self._make(), -1)
            kept = self._newest
        else:
            stored = self._snapshots.pop(update.snapshot, None)
            kept = self._snapshots[update.snapshot] = stored or KeptPolicy(self._make(), -1)
        if kept.version != update.version:
            kept.policy.load(update)
            kept.version = update.version

    def find(self, question: PolicyQuestion) -> KeptPolicy:
        """Return the policy that a question refers to.

        Raises:
            StageError: if the policy is not stored, which should never happen.
        """
        kept = self._newest if question.snapshot < 0 else self._snapshots.get(question.snapshot)
        if kept is None:
            wanted = f"snapshot {question.snapshot}" if question.snapshot >= 0 else f"version {question.version}"
            raise StageError(
                f"{question.behavior_id}: an actor requested {wanted} of its policy, but that is not available"
            )
        return kept

    def forget(self, actor: str, held: tuple[int, ...], actors: int) -> None:
        """Drop unused snapshots.

        Args:
            actor: the actor whose request is being handled.
            held: the snapshots that this actor now holds.
            actors: the number of actors.
        """
        if self._held.get(actor) == held:
            return
        self._held[actor] = held
        order = {snapshot: place for place, snapshot in enumerate(self._snapshots)}
        if len(self._held) < actors:
            return
        for snapshot, place in order.items():
            if all(
                snapshot not in names and any(order.get(name, -1) > place for name in names)
                for names in self._held.values()
            ):
                del self._snapshots[snapshot]
