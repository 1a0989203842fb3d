"""Central inference in main: connects the inference host to all actors and sends policies to the host.

Requests and answers pass through main, so that hosts of any kind can be connected and an actor can be replaced without
the inference host's knowledge. Once the host has a policy, actors receive an update without weights, and handle
policies, assignments and versions as if they held the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import numpy as np

from headrace.pipeline.common.graph import INFERENCE, actor_names
from headrace.pipeline.control.messages import DecideFor, PolicyKept, Stop
from headrace.pipeline.hosts.protocol import HostHandle
from headrace.pipeline.main.launcher import ActorSlot
from headrace.pipeline.main.run_part import Run, RunPart
from headrace.queues.ends import Inlet, Outlet
from headrace.queues.errors import QueueClosed
from headrace.queues.messages import PolicyUpdate
from headrace.queues.specs import BehaviorSpec


class CentralInference(RunPart):
    """The inference host, and the queues that connect it to the actors."""

    receives = (PolicyKept,)
    host_name = INFERENCE

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._host: HostHandle | None = None
        self._added: set[str] = set()
        self._policies: dict[str, Outlet[Any]] = {}
        self._requests: dict[int, Outlet[Any]] = {}
        self._answers: dict[int, Outlet[Any]] = {}
        """Main's ends of the answer queues to the current actors, keyed by replica number."""
        self._kept: dict[str, PolicyUpdate] = {}
        """Announcements of the newest policies that the host holds, keyed by behaviour id."""

    async def start(self) -> None:
        """Start the host, which receives the policies from now on."""
        self._host = await self.run.launcher.start(INFERENCE, INFERENCE)
        self.run.broadcaster.relay = self

    async def actor_started(self, slot: ActorSlot) -> None:
        """Connect an actor; if it replaces a dead one, the answer to the dead actor's request is dropped."""
        assert self._host is not None, "it is there before the actors"
        actor, ends = slot.handle.plan.name, self.run.launcher.ends
        requests, answers, asked, answered = (
            f"{kind}/{actor}" for kind in ("requests", "answers", "asked", "answered")
        )
        if slot.replica not in self._requests:
            self._requests[slot.replica] = ends[asked] = await self._host.outlet(asked)
            inlet = ends[answered] = await self._host.inlet(answered, newest=False)
            self.run.tasks.run(self._carry_answers(slot.replica, inlet))
        inlet = ends[requests] = await slot.handle.inlet(requests, newest=False)
        self._answers[slot.replica] = ends[answers] = await slot.handle.outlet(answers)
        self.run.tasks.run(_carry_requests(inlet, self._requests[slot.replica]))

    async def add_behavior(self, spec: BehaviorSpec, newest_for: Callable[[str], Iterable[PolicyUpdate]]) -> None:
        """Handle an actor's first agents with a behaviour id; if the id is new, send it and its policy to the host.

        Args:
            spec: the behaviour id's spec.
            newest_for: returns the last published policy, if any; called once the queue is open, because another policy
                may be published in the meantime.
        """
        behavior_id = spec.behavior_id
        if behavior_id in self._added:
            return
        assert self._host is not None, "it is there before the actors"
        self._added.add(behavior_id)
        self._host.control.send(DecideFor(spec.to_plain()))
        name = f"policies/{behavior_id}"
        outlet = self.run.launcher.ends[f"{name} inference"] = await self._host.outlet(name, newest=True)
        self._policies[behavior_id] = outlet
        for update in newest_for(behavior_id):
            self.send(update)

    def send(self, update: PolicyUpdate) -> None:
        """Send a policy to the host, if any actor has agents with its behaviour id."""
        outlet = self._policies.get(update.behavior_id)
        if outlet is not None:
            with suppress(QueueClosed):  # the host has ended
                outlet.put_nowait(update)

    def receive(self, host: HostHandle, message: PolicyKept) -> None:
        """Announce the host's policy to the actors, as an update without weights."""
        no_weights = np.empty(0, np.float32)
        behavior_id = message.behavior_id
        kept = PolicyUpdate(behavior_id, message.version, no_weights, (), message.step, message.snapshot)
        self._kept[behavior_id] = kept
        self.run.broadcaster.send_to_actors(kept)

    def newest_for(self, behavior_id: str) -> list[PolicyUpdate]:
        """Return the announcement of the host's newest policy, for an actor that starts later."""
        return [self._kept[behavior_id]] if behavior_id in self._kept else []

    def fewer_hosts(self, at_once: bool) -> None:
        """Let the host end once the run is ending and no actor is left to send requests."""
        if self._host is None or not self.run.shutdown.begun:
            return
        if not self.run.running.unended.intersection(actor_names(self.run.plan.config)):
            self._host.control.send(Stop())

    async def _carry_answers(self, replica: int, answers: Inlet[Any]) -> None:
        async for answer in answers:
            with suppress(QueueClosed):  # the actor has died, and the next one sends its own requests
                await self._answers[replica].put(answer)
            del answer
        self._answers[replica].close()  # signals to the actor that no more answers will come
        self._requests[replica].close()


async def _carry_requests(requests: Inlet[Any], outlet: Outlet[Any]) -> None:
    """Forward an actor's requests until the actor ends.

    Leave the output queue open, because a replacement may follow.
    """
    try:
        async for request in requests:
            await outlet.put(request)
            del request
    except QueueClosed:
        pass  # the inference host is gone; main detects that elsewhere
    finally:
        requests.close()
