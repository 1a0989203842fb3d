"""Central inference (`pipeline.inference: central`): one host decides for the agents of all actors.

In main, `CentralInference` connects the inference host to all actors and sends policies to the host. Requests and
answers pass through main, so that hosts of any kind can be connected and an actor can be replaced without the inference
host's knowledge. Once the host has a policy, actors receive an update without weights, and handle policies, assignments
and versions as if they held the weights. `CentralActor` is the actor's side: it requests decisions and waits for them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from headrace.config import RunConfig
from headrace.pipeline.common.graph import INFERENCE, actor_names
from headrace.pipeline.common.seeds import derive_seed
from headrace.pipeline.control import ControlEnd, DecideFor, OpenEdge, PolicyKept, Stop
from headrace.pipeline.hosts.protocol import HostEdges, HostHandle, HostPlan
from headrace.pipeline.main.behavior import carry
from headrace.pipeline.main.launcher import ActorSlot
from headrace.pipeline.main.run_part import Run, RunPart
from headrace.pipeline.policies.inference import acting_design, make_inference_policy, policy_maker
from headrace.pipeline.roles.actor import ActorPart
from headrace.pipeline.roles.device import choose_device
from headrace.pipeline.roles.runtime import Host, contained
from headrace.queues.ends import ItemSource, Receiver, Sender
from headrace.queues.errors import QueueClosed
from headrace.queues.messages import DecisionAnswer, DecisionRequest, PolicyAnswer, PolicyQuestion, PolicyUpdate
from headrace.queues.specs import BehaviorSpec
from headrace.stages.activity import ACTING
from headrace.stages.actor.remote_policy import NoDecisionError, RemotePolicies
from headrace.stages.environments.factory import EnvironmentRequest
from headrace.stages.inference import CentralDecider
from headrace.stages.policy.design import policy_layout
from headrace.stages.policy.sampling import noise_size

PATIENCE = 0.5
"""How long the first request waits for others, as a fraction of the time that the last decision took. A decision is
delayed by at most half its duration, and one decision serves all waiting requests."""
_SHORTEST_WAIT_S = 1e-3
"""Shortest time in seconds that an event loop can wait; if less remains, the host serves only the requests that have
already arrived.
"""
_TURNS = 4
"""Number of event-loop turns within which data at a socket reaches this host."""


class InferenceHost(Host):
    """Runs the decider, which chooses actions for all actors."""

    named_in_failures = True  # a failing policy's error names its behaviour but not its host

    def __init__(self, plan: HostPlan, control: ControlEnd, edges: HostEdges) -> None:
        super().__init__(plan, control, edges)
        device = self.config.torch_settings.device
        if device != "cpu":  # simple policies need no torch
            device, why = choose_device(device)
            self.stages.context(INFERENCE).log.info("Policies run on %s (%s).", device, why)
        actors = len(actor_names(self.config))
        random = np.random.default_rng(derive_seed(plan.seed, INFERENCE))
        self._decider = CentralDecider(policy_maker(self.config, plan.folder, device), random, actors)
        self._actors = actors
        self._following = asyncio.Queue[tuple[str, Receiver[Any]]](maxsize=64)  # queue ends to read; a handful per run
        self._answers: dict[str, Sender[Any]] = {}
        self._requested = asyncio.Event()
        self._batches = 0
        self._stopped = asyncio.Event()

    async def _work(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(contained(self.plan.name, job)) for job in (self._follow(), self._decide())]
            await self._stopped.wait()
            for task in running:
                task.cancel()

    async def _listen(self) -> None:
        async for message in self.control.receive():
            match message:
                case DecideFor():
                    self._decider.add_behavior(BehaviorSpec.from_plain(dict(message.spec)))
                case OpenEdge() if message.name.startswith("answered/"):
                    self._answers[message.name.partition("/")[2]] = await self.open_sender(message)
                case OpenEdge():
                    await self._following.put((message.name, await self.open_receiver(message)))
                case Stop():
                    self._stopped.set()

    async def _follow(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            while True:
                name, receiver = await self._following.get()
                kind, _, what = name.partition("/")
                follow = self._take_policies(receiver) if kind == "policies" else self._take_requests(what, receiver)
                tasks.create_task(contained(self.plan.name, follow))

    async def _take_policies(self, receiver: Receiver[PolicyUpdate]) -> None:
        async for update in receiver:
            self._decider.load(update)
            self.control.send(PolicyKept(update.behavior_id, update.version, update.step, update.snapshot))
            del update

    async def _take_requests(self, actor: str, receiver: Receiver[DecisionRequest]) -> None:
        async for request in receiver:
            self._decider.receive(actor, request)
            self._requested.set()
            del request

    async def _decide(self) -> None:
        context = self.stages.context(INFERENCE)
        took_s = 0.0
        with context.activity.running(INFERENCE, lambda: self._batches):
            while True:
                await self._requested.wait()
                await self._wait_for_others(took_s * PATIENCE)
                self._requested.clear()
                began = time.perf_counter()
                requests = len(self._decider)
                context.activity.operation = lambda: f"choosing actions for {requests} requests"  # noqa: B023 - read only meanwhile
                answers = self._decider.answer()
                took_s = time.perf_counter() - began
                context.timings.add(ACTING, took_s)
                self._batches += 1
                context.activity.operation = None
                for actor, answer in answers:
                    with suppress(QueueClosed):  # main is gone or is ending this host
                        await self._answers[actor].put(answer)

    async def _wait_for_others(self, patience_s: float) -> None:
        """Wait briefly, so that requests that arrive soon are decided together."""
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        if patience_s < _SHORTEST_WAIT_S:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                while len(self._decider) < self._actors:
                    self._requested.clear()
                    await self._requested.wait()


_NUMBERS_OF_ONE = 2**40
"""Number of request numbers reserved for each incarnation, so that an answer to a dead incarnation matches no later
request.
"""


class CentralActor(ActorPart):
    """Lets the inference host decide for this actor, which sends one request at a time.

    It is the actor's `headrace.stages.actor.remote_policy.DecisionClient`.
    """

    senders, receivers = ("requests",), ("answers",)

    def __init__(self, host: Host, request: EnvironmentRequest) -> None:
        super().__init__(host, request)
        self.oracle = self
        self.make_policy = _remote_policies(host.config, host.plan.folder)
        self._number = host.plan.source * _NUMBERS_OF_ONE
        self._sender: Sender[DecisionRequest] | None = None
        self._waiting: asyncio.Future[tuple[PolicyAnswer, ...]] | None = None
        self._lost = False

    def open_sender(self, sender: Sender[Any]) -> None:
        """Send requests through this queue, which main opens before the first policy arrives."""
        self._sender = sender

    async def follow(self, receiver: ItemSource[DecisionAnswer]) -> None:
        """Receive answers until their queue ends; no more answers come after that."""
        async for answer in receiver:
            if answer.number == self._number and self._waiting is not None and not self._waiting.done():
                self._waiting.set_result(answer.answers)
            del answer
        self._lost = True
        self.give_up()

    async def ask(self, questions: tuple[PolicyQuestion, ...]) -> tuple[PolicyAnswer, ...]:
        """Request decisions; see `DecisionClient`."""
        if self._lost or self._sender is None:
            raise NoDecisionError
        self._number += 1
        self._waiting = asyncio.get_running_loop().create_future()
        try:
            await self._sender.put(DecisionRequest(self._number, questions))
            return await self._waiting
        except QueueClosed:
            self._lost = True
            raise NoDecisionError from None
        finally:
            self._waiting = None

    def give_up(self) -> None:
        """Abandon the pending request; see `DecisionClient`."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(NoDecisionError())


def _remote_policies(config: RunConfig, run_folder: Path) -> RemotePolicies:
    """Return the factory for an actor's policies, whose decisions the inference host makes."""

    def sizes(spec: BehaviorSpec) -> tuple[int, int]:
        if config.checkpoint_settings.inference:  # an exported model may have other sizes
            model = make_inference_policy(config, run_folder, spec)
            return model.memory_size, model.previous_action_size
        design = acting_design(config, spec)
        kept = 0 if design.gsde is None else noise_size(design, policy_layout(design))
        return design.memory_size + kept, design.previous_action_size

    return RemotePolicies(sizes)


class CentralInference(RunPart):
    """The inference host, and the queues that connect it to the actors."""

    receives = (PolicyKept,)

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._host: HostHandle | None = None
        self._added: set[str] = set()
        self._policies: dict[str, Sender[Any]] = {}
        self._requests: dict[int, Sender[Any]] = {}
        self._answers: dict[int, Sender[Any]] = {}
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
        requests, answers, to_host, from_host = (
            f"{kind}/{actor}" for kind in ("requests", "answers", "asked", "answered")
        )
        if slot.replica not in self._requests:
            self._requests[slot.replica] = ends[to_host] = await self._host.sender(to_host)
            receiver = ends[from_host] = await self._host.receiver(from_host, newest=False)
            self.run.tasks.run(self._carry_answers(slot.replica, receiver))
        receiver = ends[requests] = await slot.handle.receiver(requests, newest=False)
        self._answers[slot.replica] = ends[answers] = await slot.handle.sender(answers)
        # The host's queue stays open, because another actor may replace this one.
        self.run.tasks.run(carry(receiver, self._requests[slot.replica], closes=False))

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
        sender = self.run.launcher.ends[f"{name} inference"] = await self._host.sender(name, newest=True)
        self._policies[behavior_id] = sender
        for update in newest_for(behavior_id):
            self.send(update)

    def send(self, update: PolicyUpdate) -> None:
        """Send a policy to the host, if any actor has agents with its behaviour id."""
        sender = self._policies.get(update.behavior_id)
        if sender is not None:
            with suppress(QueueClosed):  # the host has ended
                sender.put_nowait(update)

    def receive(self, host: HostHandle, message: PolicyKept) -> None:
        """Announce the host's policy to the actors, as an update without weights."""
        no_weights = np.empty(0, np.float32)
        behavior_id = message.behavior_id
        kept = PolicyUpdate(behavior_id, message.version, no_weights, (), message.step, message.snapshot)
        self._kept[behavior_id] = kept
        self.run.broadcaster.send_policy(kept, to_actors=True)

    def newest_for(self, behavior_id: str) -> list[PolicyUpdate]:
        """Return the announcement of the host's newest policy, for an actor that starts later."""
        return [self._kept[behavior_id]] if behavior_id in self._kept else []

    def fewer_hosts(self, at_once: bool) -> None:
        """Let the host end once the run is ending and no actor is left to send requests."""
        if self._host is None or not self.run.shutdown.begun:
            return
        if not self.run.running.unended.intersection(actor_names(self.run.plan.config)):
            self._host.control.send(Stop())

    async def _carry_answers(self, replica: int, answers: Receiver[Any]) -> None:
        async for answer in answers:
            with suppress(QueueClosed):  # the actor has died, and the next one sends its own requests
                await self._answers[replica].put(answer)
            del answer
        self._answers[replica].close()  # signals to the actor that no more answers will come
        self._requests[replica].close()
