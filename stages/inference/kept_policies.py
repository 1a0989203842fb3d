"""The policies of one behaviour id that some actor may ask: the newest of its trainer, and snapshots in use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.queues.messages import PolicyQuestion, PolicyUpdate
from headrace.stages.errors import StageError
from headrace.stages.policy.protocol import ActingPolicy


@dataclass
class KeptPolicy:
    """A policy and its version."""

    policy: ActingPolicy
    version: int


class KeptPolicies:
    """Keeps what may be asked.

    Policies straight from the trainer follow each other in one place. A snapshot is forgotten once every actor plays by
    a later one and names it no more: until an actor has asked for the first time, it may want any.

    Args:
        make: makes a policy, to be loaded.
    """

    def __init__(self, make: Callable[[], ActingPolicy]) -> None:
        self._make = make
        self._newest: KeptPolicy | None = None
        self._snapshots: dict[int, KeptPolicy] = {}
        """By number, in the order in which they were last sent."""
        self._held: dict[str, tuple[int, ...]] = {}
        """By actor: the snapshots that it named last."""

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
            StageError: if it is not there, which no actor should bring about.
        """
        kept = self._newest if question.snapshot < 0 else self._snapshots.get(question.snapshot)
        if kept is None:
            asked = f"snapshot {question.snapshot}" if question.snapshot >= 0 else f"version {question.version}"
            raise StageError(f"{question.behavior_id}: an actor asks {asked} of its policy, which is not here")
        return kept

    def forget(self, actor: str, held: tuple[int, ...], actors: int) -> None:
        """Forget what nobody asks any more, as an actor names what it plays by; `actors` is the number of all."""
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
