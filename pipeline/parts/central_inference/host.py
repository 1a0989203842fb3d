"""The inference host: decides for the agents of all actors (`pipeline.inference: central`)."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.pipeline.common.graph import INFERENCE, actor_names
from headrace.pipeline.common.seeds import derive_seed
from headrace.pipeline.control.channel import ControlEnd
from headrace.pipeline.control.messages import DecideFor, OpenEdge, PolicyKept, Stop
from headrace.pipeline.hosts.failures import contained
from headrace.pipeline.hosts.protocol import HostEdges, HostPlan
from headrace.pipeline.policies.inference import policy_maker
from headrace.pipeline.roles.device import choose_device
from headrace.pipeline.roles.runtime import Host
from headrace.queues.ends import Inlet, Outlet
from headrace.queues.errors import QueueClosed
from headrace.queues.messages import DecisionRequest, PolicyUpdate
from headrace.queues.specs import BehaviorSpec
from headrace.stages.activity import ACTING
from headrace.stages.inference import CentralDecider

PATIENCE = 0.5
"""How long the first request waits for others, as a fraction of the time that the last decision took. A decision is
delayed by at most half its duration, and one decision serves all waiting requests."""
_SHORTEST_WAIT_S = 1e-3
"""Shortest time in seconds that an event loop can wait; if less remains, the host serves only the requests that have
already arrived.
"""
_TURNS = 4
"""Number of event-loop turns within which data at a socket reaches this host."""


@dataclass(frozen=True)
class _Deciding:
    requests: int

    def describe(self) -> str:
        return f"choosing actions for {self.requests} requests"


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
        self._following = asyncio.Queue[tuple[str, Inlet[Any]]](maxsize=64)  # queue ends to read; a handful per run
        self._answers: dict[str, Outlet[Any]] = {}
        self._requested = asyncio.Event()
        self._batches = 0
        self._stopped = asyncio.Event()

    async def _work(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(contained(self.plan.name, each)) for each in (self._follow(), self._decide())]
            await self._stopped.wait()
            for task in running:
                task.cancel()

    async def _listen(self) -> None:
        async for message in self.control.receive():
            match message:
                case DecideFor():
                    self._decider.add_behavior(BehaviorSpec.from_plain(dict(message.spec)))
                case OpenEdge() if message.name.startswith("answered/"):
                    self._answers[message.name.partition("/")[2]] = await self.open_outlet(message)
                case OpenEdge():
                    await self._following.put((message.name, await self.open_inlet(message)))
                case Stop():
                    self._stopped.set()

    async def _follow(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            while True:
                name, inlet = await self._following.get()
                kind, _, what = name.partition("/")
                follow = self._take_policies(inlet) if kind == "policies" else self._take_requests(what, inlet)
                tasks.create_task(contained(self.plan.name, follow))

    async def _take_policies(self, inlet: Inlet[PolicyUpdate]) -> None:
        async for update in inlet:
            self._decider.load(update)
            self.control.send(PolicyKept(update.behavior_id, update.version, update.step, update.snapshot))
            del update

    async def _take_requests(self, actor: str, inlet: Inlet[DecisionRequest]) -> None:
        async for request in inlet:
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
                context.activity.operation = _Deciding(len(self._decider))
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
