"""Sending to actors: messages to all of them, credits to each, policies to those that have such agents."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Protocol

from headrace.pipeline.control.messages import ControlMessage, Grant
from headrace.pipeline.hosts.protocol import HostHandle
from headrace.pipeline.main.launcher import ActorSlot, Launcher
from headrace.queues.errors import QueueClosed
from headrace.queues.messages import PolicyUpdate
from headrace.queues.specs import BehaviorSpec
from headrace.stages.publisher import PolicyPublisher, PublisherPort


class PolicyRelay(Protocol):
    """A host that gets the policies in place of the actors."""

    async def add_behavior(self, spec: BehaviorSpec, newest_for: Callable[[str], Iterable[PolicyUpdate]]) -> None:
        """An actor has agents of a behaviour id, whose policies `newest_for` returns."""

    def send(self, update: PolicyUpdate) -> None:
        """Send a policy to the host."""

    def newest_for(self, behavior_id: str) -> Iterable[PolicyUpdate]:
        """Return word of the policy that the host has, for an actor that comes later."""


class Broadcaster:
    """Sends at once, never waits; an actor that has ended gets nothing.

    Args:
        launcher: knows the actors.
    """

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self.relay: PolicyRelay | None = None
        """Where policies go instead, if one host decides for all actors; these are told what it has."""
        self.publisher = PolicyPublisher(PublisherPort(self._send_policy, self.send_to_sources))

    def sources(self) -> list[HostHandle]:
        """The hosts that produce experience."""
        return self._launcher.sources()

    def send_to_sources(self, message: ControlMessage) -> None:
        """Send a message to all that produce experience."""
        for host in self.sources():
            host.control.send(message)

    def grant(self, grants: Iterable[Grant]) -> None:
        """Send credits to whom each grant is for."""
        for grant in grants:
            for slot in self._launcher.actors.values():
                if slot.source == grant.source:
                    slot.handle.control.send(grant)

    def catch_up(self, slot: ActorSlot, behavior_id: str) -> None:
        """An actor that comes later needs what the others were sent before."""
        known = self.publisher if self.relay is None else self.relay
        for update in known.newest_for(behavior_id):
            slot.policies[behavior_id].put_nowait(update)
        if self.publisher.assignment is not None:
            slot.handle.control.send(self.publisher.assignment)

    def _send_policy(self, update: PolicyUpdate) -> None:
        if self.relay is not None:
            self.relay.send(update)
        else:
            self.send_to_actors(update)

    def send_to_actors(self, update: PolicyUpdate) -> None:
        """Send a policy, or word of one, to all that have agents of its behaviour id."""
        for slot in self._launcher.actors.values():
            outlet = slot.policies.get(update.behavior_id)
            if outlet is not None:
                with suppress(QueueClosed):  # the actor has ended
                    outlet.put_nowait(update)
