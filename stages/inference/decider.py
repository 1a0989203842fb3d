"""Decides for the agents of many actors: all waiting requests for a policy go through it in one forward pass.

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
    Array,
    DecisionAnswer,
    DecisionRequest,
    PolicyAnswer,
    PolicyQuestion,
    PolicyUpdate,
)
from headrace.queues.specs import BehaviorSpec
from headrace.stages.errors import StageError
from headrace.stages.policy.protocol import ActingPolicy, Decision, Recall

_Place = tuple[str, int]
"""(actor, index of one of its questions)."""


class CentralDecider:
    """Keeps policies and requests, and answers the requests.

    An actor has one request at a time: a newer request replaces one that is not answered yet.

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
        """The number of waiting requests."""
        return len(self._requests)

    def add_behavior(self, spec: BehaviorSpec) -> None:
        """Add a behaviour id, before its policies arrive."""
        self._policies.setdefault(spec.behavior_id, KeptPolicies(lambda: self._make_policy(spec)))

    def kept(self, behavior_id: str) -> int:
        """Return the number of policies kept for a behaviour id."""
        return len(self._policies[behavior_id])

    def load(self, update: PolicyUpdate) -> None:
        """Keep a policy, which actors may query from now on.

        Raises:
            StageError: if the policy does not fit its behaviour.
        """
        self._policies[update.behavior_id].load(update)

    def receive(self, actor: str, request: DecisionRequest) -> None:
        """Keep an actor's request until `answer`."""
        self._requests[actor] = request

    def answer(self) -> list[tuple[str, DecisionAnswer]]:
        """Answer all waiting requests, each to its actor.

        Raises:
            StageError: as in `ActingPolicy.act`, or if a question is for a policy that is not kept.
        """
        requests, self._requests = self._requests, {}
        groups: dict[tuple[int, bool, frozenset[str]], tuple[KeptPolicy, list[tuple[_Place, PolicyQuestion]]]] = {}
        for actor, request in requests.items():
            for number, question in enumerate(request.questions):
                kept = self._policies[question.behavior_id].find(question)
                key = id(kept), question.greedy, frozenset(question.columns)
                groups.setdefault(key, (kept, []))[1].append(((actor, number), question))
        found: dict[_Place, PolicyAnswer] = {}
        for kept, placed in groups.values():
            answers = decide_together(kept, [question for _, question in placed], self._random)
            found |= {place: answer for (place, _), answer in zip(placed, answers, strict=True)}
        for actor, request in requests.items():
            for question in request.questions:
                self._policies[question.behavior_id].forget(actor, question.held, self._actors)
        return [
            (actor, DecisionAnswer(request.number, tuple(found[actor, i] for i in range(len(request.questions)))))
            for actor, request in requests.items()
        ]


def decide_together(
    kept: KeptPolicy, questions: Sequence[PolicyQuestion], random: np.random.Generator
) -> list[PolicyAnswer]:
    """Decide, in one forward pass, for the agents in several questions to one policy, all with the same columns."""
    names = questions[0].columns
    # Copies even a single question: arrays from another process are read-only, and some networks write to theirs.
    joined = {name: np.concatenate([question.columns[name] for question in questions]) for name in names}
    observations = tuple(joined[name] for name in sorted(names, key=_number) if name.startswith("obs_"))
    recall = Recall(joined["memories"], joined["previous_actions"]) if "memories" in names else None
    masks = joined.get("masks")
    decision = kept.policy.act(observations, masks, random, questions[0].greedy, recall)
    known = {"action_masks"} if masks is not None else set()
    if recall is None or decision.columns.get("memories", recall.memories).shape == recall.memories.shape:
        known.add("memories")
    columns = _columns_of(decision, known)
    answers, at = [], 0
    for question in questions:
        rows = slice(at, at + len(question.columns["obs_0"]))
        at = rows.stop
        answers.append(PolicyAnswer(kept.version, {name: column[rows] for name, column in columns.items()}))
    return answers


def _number(name: str) -> int:
    kind, _, number = name.partition("_")
    return int(number) if kind == "obs" else -1


def _columns_of(decision: Decision, known: set[str]) -> dict[str, Array]:
    """Return an answer's columns, without those that the actor already has."""
    columns = {f"{DECISION}{name}": column for name, column in decision.columns.items() if name not in known}
    columns |= {"continuous": decision.actions.continuous, "discrete": decision.actions.discrete}
    if decision.recall is not None:
        columns |= {"memories": decision.recall.memories, "previous_actions": decision.recall.previous_actions}
    return columns


# The policies that an actor may query for one behaviour id: its trainer's newest one, and snapshots in use.


@dataclass
class KeptPolicy:
    """A policy and its version."""

    policy: ActingPolicy
    version: int


class KeptPolicies:
    """Keeps the policies that actors may query.

    Policies straight from the trainer replace each other. A snapshot is forgotten once every actor plays by a later
    one and no longer names it; before an actor's first request, it may want any snapshot.

    Args:
        make: makes a policy, into which weights are then loaded.
    """

    def __init__(self, make: Callable[[], ActingPolicy]) -> None:
        self._make = make
        self._newest: KeptPolicy | None = None
        self._snapshots: dict[int, KeptPolicy] = {}
        """Snapshots by number, in the order in which they were last sent."""
        self._held: dict[str, tuple[int, ...]] = {}
        """For each actor, the snapshots that it named last."""

    def __len__(self) -> int:
        return len(self._snapshots) + (self._newest is not None)

    def load(self, update: PolicyUpdate) -> None:
        """Keep a policy that was sent."""
        if update.snapshot < 0:
            if self._newest is None:
                self._newest = KeptPolicy(self._make(), -1)
            kept = self._newest
        else:
            found = self._snapshots.pop(update.snapshot, None)
            kept = self._snapshots[update.snapshot] = found or KeptPolicy(self._make(), -1)
        if kept.version != update.version:
            kept.policy.load(update)
            kept.version = update.version

    def find(self, question: PolicyQuestion) -> KeptPolicy:
        """Return the policy that a question is for.

        Raises:
            StageError: if the policy is not kept, which no actor should cause.
        """
        kept = self._newest if question.snapshot < 0 else self._snapshots.get(question.snapshot)
        if kept is None:
            wanted = f"snapshot {question.snapshot}" if question.snapshot >= 0 else f"version {question.version}"
            raise StageError(
                f"{question.behavior_id}: an actor requests {wanted} of its policy, which is not available"
            )
        return kept

    def forget(self, actor: str, held: tuple[int, ...], actors: int) -> None:
        """Forget unused snapshots, now that an actor has named those it holds; `actors` is the number of actors."""
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
