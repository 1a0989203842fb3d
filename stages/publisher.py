"""The policy publisher: sends policies to the actors, as the current assignment requires.

Policy queues keep only the newest item, so publishing never waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from headrace.queues.messages import Assignment, Matchup, PolicyUpdate
from headrace.queues.specs import behavior_name
from headrace.stages.stage import Stage


@dataclass(frozen=True)
class PublisherPort:
    """The publisher's interface to the actors. All calls return immediately."""

    send: Callable[[PolicyUpdate], None] = lambda update: None
    """Sends an update to every actor, through the policy queue for its behaviour id."""
    assign: Callable[[Assignment], None] = lambda assignment: None
    """Sends an assignment to every actor, through the control channel."""


class PolicyPublisher(Stage[PolicyUpdate, None]):
    """Sends the policies that trainers (or the ghost stage) emit to the actors.

    An update for a behaviour name goes to all behaviour ids with that name; an update for a full behaviour id goes only
    to that id. The publisher keeps the last policy for each id, for actors that start later.
    """

    def __init__(self, port: PublisherPort | None = None) -> None:
        self._port = port or PublisherPort()
        self._ids: dict[str, list[str]] = {}
        self._newest: dict[str, PolicyUpdate] = {}
        self.assignment: Assignment | None = None

    def add_behavior(self, behavior_id: str) -> None:
        """Register a behaviour id that actors have announced."""
        ids = self._ids.setdefault(behavior_name(behavior_id), [])
        if behavior_id not in ids:
            ids.append(behavior_id)

    def newest_for(self, behavior_id: str) -> list[PolicyUpdate]:
        """Return the last policy sent, if any, for an actor in which this behaviour id's first agents have appeared."""
        update = self._newest.get(behavior_id)
        if update is None and behavior_id in self._ids.get(behavior_name(behavior_id), []):
            others = (self._newest.get(other) for other in self._ids[behavior_name(behavior_id)])
            update = next((u for u in others if u is not None and u.snapshot < 0), None)
        return [replace(update, behavior_id=behavior_id)] if update is not None else []

    def process(self, item: PolicyUpdate) -> Iterator[None]:
        """Send an update to the actors."""
        weights = item.weights.copy()
        for behavior_id in self._ids.get(item.behavior_id, [item.behavior_id]):
            self._newest[behavior_id] = update = replace(item, behavior_id=behavior_id, weights=weights)
            self._port.send(update)
        yield from ()

    def publish_matchup(self, matchup: Matchup) -> None:
        """Send the policies named in an assignment, then the assignment itself."""
        for update in matchup.policies:
            self._newest[update.behavior_id] = update
            self._port.send(update)
        self.assignment = matchup.assignment
        self._port.assign(matchup.assignment)
