"""The replay host: plays a recording or demonstrations in place of an actor.

A recording of the agent processor's output takes the entire route again: custom stages in the actor host, main's
stages, trainer. A recording of a trainer's input has already passed through these stages and goes straight to the
trainer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from headrace.pipeline.common.graph import TRAINER, learner_name, offline_demonstrations, part_name, placements_after
from headrace.pipeline.control import BeginCheckpoint, BehaviorSeen, ControlEnd, OpenEdge, Pause, SourceEnded, Stop
from headrace.pipeline.hosts.protocol import HostEdges, HostPlan
from headrace.pipeline.roles.runtime import Host
from headrace.pipeline.roles.senders import AGENT_PROCESSOR, LearnedStepsOnly, Router
from headrace.pipeline.roles.sizes import rows_per_batch
from headrace.pipeline.roles.stages import LOCAL_BOUND, build_stages, chain
from headrace.queues.agent_manager_queue import AgentManagerQueue
from headrace.queues.ends import ItemSink
from headrace.queues.messages import Barrier
from headrace.queues.specs import BehaviorSpec
from headrace.stages.environments.factory import EnvironmentRequest, announced_specs
from headrace.stages.loop import run_source
from headrace.stages.replay import ReplaySource
from headrace.stages.trainer.imitation.loading import needs_spec
from headrace.stages.trainer.imitation.source import DemonstrationSource


# A replay host takes an actor's place, so stages are wired in only one way (docs/decisions/045).
class ReplayHost(Host):
    """Replays recorded streams into the trajectory queues."""

    def __init__(self, plan: HostPlan, control: ControlEnd, edges: HostEdges) -> None:
        super().__init__(plan, control, edges)
        self._source = _make_source(self, self._announce)
        self._router = Router()
        # Main sends one checkpoint at a time, and a single stop.
        self._commands: asyncio.Queue[int | None] = asyncio.Queue(8)
        self._flowing = asyncio.Event()
        self._flowing.set()

    async def _work(self) -> None:
        if isinstance(self._source, DemonstrationSource):
            self._source.specs = await _unrecorded_specs(self)
        whole_way = self.plan.replay_edge == AGENT_PROCESSOR
        placements = placements_after(self.config, AGENT_PROCESSOR, in_main=False) if whole_way else []
        stages = build_stages(placements, self.config)
        context = self.stages.context("replay")
        self._source.start(context)
        for spec in self._source.behavior_specs.values():
            self._announce(spec)
        queue: AgentManagerQueue[Any] = AgentManagerQueue("replay", LOCAL_BOUND)
        sender = LearnedStepsOnly(self._router, self.config)
        barriers, batches = queue.add_producer(), queue.add_producer()
        async with asyncio.TaskGroup() as tasks:
            if stages:
                for runner in chain(stages, self.stages, queue, sender):
                    tasks.create_task(runner)
            else:
                tasks.create_task(_carry(queue, sender))
            tasks.create_task(self._obey(barriers))
            await run_source(self._source, _PausableSender(batches, self._flowing), context)
            self.control.send(SourceEnded())
        for behavior, rows in sender.left_out.items():
            if rows:
                context.log.warning(
                    "%s: skipped %d of %d recorded steps, because they come from self-play opponents.",
                    *(behavior, rows, sender.rows[behavior]),
                )

    def _announce(self, spec: BehaviorSpec) -> None:
        self._router.expect(spec.name)
        self.control.send(BehaviorSeen(spec.to_plain()))

    async def _obey(self, barriers: Any) -> None:
        try:
            while (number := await self._commands.get()) is not None:
                await barriers.put(Barrier(number))
        finally:
            barriers.close()

    async def _listen(self) -> None:
        async for message in self.control.receive():
            match message:
                case OpenEdge():
                    self._router.open(message.name.partition("/")[2], await self.open_sender(message))
                case BeginCheckpoint():
                    self._commands.put_nowait(message.number)
                case Pause(paused=True):
                    self._flowing.clear()
                case Pause():
                    self._flowing.set()
                case Stop():
                    self._flowing.set()
                    self._source.request_stop()
                    self._commands.put_nowait(None)


async def _carry(queue: AgentManagerQueue[Any], sender: ItemSink[Any]) -> None:
    try:
        async for item in queue:
            await sender.put(item)
            del item
    finally:
        queue.close()
        sender.close()


class _PausableSender:
    """An output queue that blocks while the run is paused."""

    def __init__(self, sender: ItemSink[Any], flowing: asyncio.Event) -> None:
        self._sender = sender
        self._flowing = flowing

    async def put(self, item: Any) -> None:
        await self._flowing.wait()
        await self._sender.put(item)

    def close(self) -> None:
        self._sender.close()


def _make_source(host: Host, announce: Callable[[BehaviorSpec], None]) -> ReplaySource | DemonstrationSource:
    """Open the recording to replay or, without one, the demonstrations for behaviours that learn only from these."""
    config = host.config
    if config.replay is not None:
        return ReplaySource(config.replay.streams, host.plan.replay_edge, speed=config.replay.speed, announce=announce)
    paths = offline_demonstrations(config)
    return DemonstrationSource(paths, rows_per_batch(config), config.source_folder, _steps_before(host, paths))


async def _unrecorded_specs(host: Host) -> dict[str, BehaviorSpec]:
    """Return the environment's specs, keyed by behaviour name; empty if all demonstrations contain a spec."""
    config = host.config
    paths = offline_demonstrations(config)
    if not any(needs_spec(path, name, config.source_folder) for name, path in paths.items()):
        return {}
    return await announced_specs(EnvironmentRequest(config, host.plan.seed, run_folder=host.plan.folder))


def _steps_before(host: Host, behaviors: Iterable[str]) -> dict[str, int]:
    """Return the number of steps that a resumed run's trainers had received, from their own checkpoint parts.

    The manifest's steps can't be used: a trainer that saves early reports more steps before the manifest is written.
    """
    if host.checkpoint is None:
        return {}
    states = {name: host.checkpoint.read(part_name(TRAINER, learner_name(name))) for name in behaviors}
    return {name: int(state["trainer"]["step"]) for name, state in states.items() if state is not None}
