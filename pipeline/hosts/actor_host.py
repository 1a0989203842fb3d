"""The actor host: environments, policies, agent processor, custom stages behind them, and the way to the trainers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from config import RunConfig, TrainerKind
from pipeline.common.graph import placements_after
from pipeline.control.channel import ControlEnd
from pipeline.control.credits import CreditRequest, Grant
from pipeline.control.messages import BeginCheckpoint, BehaviorSeen, OpenEdge, SourceEnded, Stop
from pipeline.hosts.custom_stages import LOCAL_BOUND, chain
from pipeline.hosts.plan import HostPlan
from pipeline.hosts.protocol import HostEdges
from pipeline.hosts.router import Router
from pipeline.hosts.runtime import HostRuntime, run_host
from pipeline.policies.inference import make_inference_policy
from queues.agent_manager_queue import AgentManagerQueue
from queues.columns import Column, memory_column
from queues.ends import Inlet
from queues.messages import Assignment, Barrier, PolicyUpdate, TrajectoryBatch
from queues.specs import BehaviorSpec
from queues.stream_format import StreamHeader
from queues.stream_writer import StreamWriter, next_stream_path
from stages.actor.actor import Actor, ActorPort
from stages.actor.credit_gate import CreditGate
from stages.agent import AgentProcessor
from stages.environment.factory import EnvironmentRequest, make_group
from stages.environment.lineup import Lineups, nobody
from stages.environment.parameters import EnvironmentParameters
from stages.environment.stage import EnvironmentStage
from stages.loop import run_source
from stages.policy.design import design_of
from stages.policy.factory import make_policy
from stages.policy.protocol import ActingPolicy
from stages.replay.recorder import Recorder
from stages.restarts import RestartBudget
from stages.trainer.pacing import USUAL_BUFFER_SIZE, longest_piece, rows_per_update
from stages.trainers import trainer_kind

AGENT_ID_RANGE = 2**40
"""Agent ids of one actor's environments; replica r has those from r × this on."""


class ActorHost:
    """Runs one actor.

    Args:
        plan: what it is told to be.
        control: its end of the control channel.
        edges: opens queue ends.
    """

    def __init__(self, plan: HostPlan, control: ControlEnd, edges: HostEdges) -> None:
        self._runtime = HostRuntime(plan, control, edges)
        config = self._runtime.config
        self._router = Router()
        self._recorder = _StreamTap(self._runtime) if _records(config) else None
        self._policies = asyncio.Queue[Inlet[PolicyUpdate]](maxsize=64)  # ends to listen to; a handful per run
        self._told = asyncio.Event()
        if not config.environment_parameters:
            self._told.set()
        lineups = Lineups(policy_maker(config, plan.folder), self_play_of(config))
        environment = EnvironmentStage(
            partial(make_group, EnvironmentRequest(config, plan.seed, plan.replica, plan.folder)),
            lineups,
            plan.replica * AGENT_ID_RANGE,
            deterministic=lambda name: config.behavior_settings(name).network_settings.deterministic,
        )
        limits = config.env_settings
        self._actor = Actor(
            environment,
            AgentProcessor(
                lambda name: longest_piece(
                    config.behavior_settings(name), agents_of(config), kind_of_trainer(config, name).off_policy
                ),
                plan.source,
                min_rows=rows_per_batch(config),
            ),
            CreditGate(self._ask),
            ActorPort(self._announce, ended=lambda _: self._runtime.control.send(SourceEnded())),
            restarts=RestartBudget(
                limits.max_lifetime_restarts,
                limits.restarts_rate_limit_n,
                limits.restarts_rate_limit_period_s,
            ),
            resets_at_checkpoints=config.pipeline.deterministic,
            resumed_at=plan.resumed_at,
        )

    async def run(self) -> bool:
        """Run until told to stop, or until something fails; returns whether it ended well."""
        return await run_host(self._runtime, self._work, self._listen)

    async def _work(self) -> None:
        runtime = self._runtime
        placements = placements_after(runtime.config, "agent_processor", in_main=False)
        outlet: Any = self._router
        async with asyncio.TaskGroup() as tasks:
            policies = tasks.create_task(self._follow_policies())
            if placements:
                outlet = AgentManagerQueue("agent_processor out", LOCAL_BOUND)
                runners = [tasks.create_task(c) for c in chain(placements, runtime, outlet, self._router)]
            else:
                runners = []
            if self._recorder is not None:
                outlet = self._recorder.before(outlet)
            await self._told.wait()  # the first episodes need their parameters
            await run_source(self._actor, outlet, runtime.context("actor"))
            if runners:
                await asyncio.wait(runners)
            policies.cancel()
        if self._recorder is not None:
            self._recorder.close()

    async def _listen(self) -> None:
        async for message in self._runtime.control.receive():
            match message:
                case Grant():
                    self._actor.take_grant(message.number, message.caps, message.versions)
                case Assignment():
                    self._actor.take_assignment(message)
                case EnvironmentParameters():
                    self._actor.take_parameters(message)
                    self._told.set()
                case BeginCheckpoint():
                    self._actor.request_checkpoint(message.number)
                case Stop():
                    self._actor.request_stop()
                case OpenEdge():
                    await self._open(message)

    async def _open(self, message: OpenEdge) -> None:
        kind, _, what = message.name.partition("/")
        if kind == "trajectories":
            outlet = await self._runtime.edges.open_outlet(message.name, message.address)
            self._runtime.ends[message.name] = outlet
            self._router.open(what, outlet)
        else:
            inlet = await self._runtime.edges.open_inlet(message.name, message.address)
            self._runtime.ends[message.name] = inlet
            await self._policies.put(inlet)

    async def _follow_policies(self) -> None:
        async def follow(inlet: Inlet[PolicyUpdate]) -> None:
            async for update in inlet:
                self._actor.take_policy(update)

        async with asyncio.TaskGroup() as tasks:
            while True:
                tasks.create_task(follow(await self._policies.get()))

    def _announce(self, spec: BehaviorSpec) -> None:
        self._router.expect(spec.name)
        if self._recorder is not None:
            self._recorder.expect(spec)
        self._runtime.control.send(BehaviorSeen(spec.to_plain()))

    def _ask(self, number: int, used: Mapping[str, int], wants: Sequence[str], gives_back: Sequence[str]) -> None:
        source = self._runtime.plan.source
        self._runtime.control.send(CreditRequest(source, number, dict(used), tuple(wants), tuple(gives_back)))


class _StreamTap:
    """Records what leaves the agent processor, one file per actor."""

    def __init__(self, runtime: HostRuntime) -> None:
        self._runtime = runtime
        self._specs: list[BehaviorSpec] = []
        self._recorder: Recorder | None = None
        self._writer: StreamWriter | None = None

    def expect(self, spec: BehaviorSpec) -> None:
        """The header will need this spec; streams begin with the first batch."""
        self._specs.append(spec)

    def before(self, sink: Any) -> _Tapped:
        """A sink that records what goes to `sink`."""
        return _Tapped(self, sink)

    def tap(self, item: TrajectoryBatch | Barrier) -> None:
        """Record an item."""
        wanted = self._runtime.config.record.behaviors if self._runtime.config.record else "all"
        if isinstance(item, TrajectoryBatch) and wanted != "all" and item.behavior not in wanted:
            return
        if self._recorder is None:
            plan = self._runtime.plan
            path = next_stream_path(plan.folder / "streams", plan.name, "agent_processor")
            extra = remembered_columns(self._runtime.config, self._specs)
            names = dict.fromkeys(spec.name for spec in self._specs)
            squashed = [name for name in names if kind_of_trainer(self._runtime.config, name).squashed]
            header = StreamHeader.of(
                plan.run_id, time.time(), ("agent_processor",), self._specs, plan.config, extra, squashed
            )
            self._writer = StreamWriter(path, header)
            self._recorder = Recorder(self._writer, "agent_processor")
        self._recorder.tap(item)

    def close(self) -> None:
        """Write the index."""
        if self._writer is not None:
            self._writer.close()


class _Tapped:
    def __init__(self, tap: _StreamTap, sink: Any) -> None:
        self._tap = tap
        self._sink = sink

    async def put(self, item: TrajectoryBatch | Barrier) -> None:
        self._tap.tap(item)
        await self._sink.put(item)

    def close(self) -> None:
        self._sink.close()


def remembered_columns(config: RunConfig, specs: Iterable[BehaviorSpec]) -> dict[str, tuple[Column, ...]]:
    """The columns that policies with a memory add to decisions, by behaviour name."""
    memories = {spec.name: config.behavior_settings(spec.name).network_settings.memory for spec in specs}
    return {name: (memory_column(memory.memory_size),) for name, memory in memories.items() if memory is not None}


def policy_maker(config: RunConfig, run_folder: Path) -> Callable[[BehaviorSpec], ActingPolicy]:
    """What makes acting policies for behaviours; where nothing is learned, they may be models from the run's folder."""
    if config.checkpoint_settings.inference:
        return lambda spec: make_inference_policy(config, run_folder, spec)
    return lambda spec: make_policy(design_of(spec, config.behavior_settings(spec.name), config.source_folder))


def self_play_of(config: RunConfig) -> Callable[[str], bool]:
    """What tells of a behaviour name whether assignments say how it plays; they don't where nothing is learned."""
    if config.checkpoint_settings.inference:
        return nobody
    return lambda name: config.behavior_settings(name).self_play is not None


def kind_of_trainer(config: RunConfig, behavior: str) -> TrainerKind:
    """Return the static properties of a behaviour's trainer.

    Raises:
        LoadError: if it is one of the user's own and can't be imported.
    """
    return trainer_kind(config.behavior_settings(behavior).trainer_type, config.source_folder, ("behaviors", behavior))


def agents_of(config: RunConfig) -> int:
    """How many agents act at a time, as far as the configuration tells: environments × actors."""
    environments = config.environment.num_envs if config.environment is not None else config.env_settings.num_envs
    return environments * config.pipeline.hosts.actors.replicas


def rows_per_batch(config: RunConfig) -> int:
    """Rows that the agent processor gathers before it emits: a quarter of what the actor contributes to an update.

    Fewer would cost more messages than they are worth; more would let the trainer wait for the last ones.
    """
    agents = agents_of(config)
    sizes = [
        rows_per_update(settings, agents, kind_of_trainer(config, name).off_policy)
        for name, settings in config.behaviors.items()
    ] or [USUAL_BUFFER_SIZE]
    return max(1, min(sizes) // (4 * config.pipeline.hosts.actors.replicas))


def _records(config: RunConfig) -> bool:
    return config.record is not None and "agent_processor" in config.record.edges
