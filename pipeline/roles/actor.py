"""The actor host: environments, policies, the agent processor, later custom stages, and the route to the trainers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import cache, partial
from typing import Any, ClassVar

from headrace.config import RunConfig
from headrace.config.sections import EnvSettings
from headrace.pipeline.common.graph import ACTOR, placements_after
from headrace.pipeline.common.process import give_way
from headrace.pipeline.common.run_parts import wanted_sides
from headrace.pipeline.common.seeds import derive_seed
from headrace.pipeline.control import (
    BeginCheckpoint,
    BehaviorSeen,
    ControlEnd,
    ControlMessage,
    CreditRequest,
    Grant,
    LearnerReplaced,
    OpenEdge,
    Pause,
    SourceEnded,
    Stop,
)
from headrace.pipeline.hosts.protocol import HostEdges, HostPlan
from headrace.pipeline.policies.inference import brain_maker, policy_maker
from headrace.pipeline.roles.runtime import Host, contained
from headrace.pipeline.roles.senders import (
    AGENT_PROCESSOR,
    BrainSteps,
    LearnedStepsOnly,
    Router,
    SenderTap,
    recorded_here,
)
from headrace.pipeline.roles.sizes import agents_of, kind_of_trainer, outnumber_cores, rows_per_batch
from headrace.pipeline.roles.stages import LOCAL_BOUND, build_stages, chain
from headrace.queues.agent_manager_queue import AgentManagerQueue
from headrace.queues.ends import Receiver, Sender
from headrace.queues.messages import Assignment, Matches, PolicyUpdate
from headrace.queues.specs import BehaviorSpec
from headrace.stages.actor.actor import Actor, ActorPort
from headrace.stages.actor.credits import CreditGate
from headrace.stages.actor.environment_stage import EnvironmentStage
from headrace.stages.actor.policy_mapping import PolicyMappings, no_behavior
from headrace.stages.actor.remote_policy import DecisionClient
from headrace.stages.agent import AgentProcessor
from headrace.stages.environments.factory import EnvironmentRequest, make_group
from headrace.stages.environments.parameters import EnvironmentParameters
from headrace.stages.environments.protocol import EnvironmentGroup
from headrace.stages.evaluation.scores import ScoreKeeper
from headrace.stages.loop import run_source
from headrace.stages.policy.protocol import ActingPolicy
from headrace.stages.restarts import RestartBudget
from headrace.stages.trainer.protocol import longest_piece
from headrace.startup_context import absolute

BRAINS = "brains"
"""Name from which the brains' seed is derived."""
AGENT_ID_RANGE = 2**40
"""Number of agent ids reserved for each actor; the ids of replica r start at r × AGENT_ID_RANGE."""


class ActorPart:
    """The actor's side of one part of a run (`pipeline/common/run_parts.py`). Methods not overridden do nothing.

    Args:
        host: the actor host.
        request: the request for the actor's environments.

    Attributes:
        oracle: makes decisions in place of the actor's own policies, unless None.
        audience: receives every step that is played, unless None.
        make_group: creates the environments; None for the default.
        make_policy: creates the acting policies; None for the default.
        make_mappings: creates the object that assigns players to games, with the arguments of `PolicyMappings`; None
            for the default.
        person: creates the brain for a person who plays; None if the part has none.
    """

    senders: ClassVar[tuple[str, ...]] = ()
    """Kinds of the part's output queues; a queue's kind is its name before the first slash."""
    receivers: ClassVar[tuple[str, ...]] = ()
    """Kinds of the part's input queues."""
    oracle: DecisionClient | None = None
    audience: ScoreKeeper | None = None
    make_group: Callable[[], EnvironmentGroup] | None = None
    make_policy: Callable[[BehaviorSpec], ActingPolicy] | None = None
    make_mappings: Callable[..., PolicyMappings] | None = None
    person: Any = None

    def __init__(self, host: Host, request: EnvironmentRequest) -> None:
        self.host = host
        self.request = request

    def receive(self, message: ControlMessage) -> None:
        """Handle a message from main, after the actor has handled it."""

    def open_sender(self, sender: Sender[Any]) -> None:
        """Use the producing end of a queue whose kind is in `senders`."""

    def follow(self, receiver: Receiver[Any]) -> Coroutine[Any, Any, None]:
        """Listen to a queue whose kind is in `receivers` until the queue ends."""
        raise NotImplementedError

    def before_report(self) -> None:
        """Act just before the host sends a report to main."""


class ActorHost(Host):
    """Runs one actor.

    Args:
        plan, control, edges: as for every host.
        make_policy: creates the acting policies; None to use policies like the trainers' or, in inference mode, the
            saved policies.
    """

    def __init__(
        self,
        plan: HostPlan,
        control: ControlEnd,
        edges: HostEdges,
        make_policy: Callable[[BehaviorSpec], ActingPolicy] | None = None,
    ) -> None:
        super().__init__(plan, control, edges)
        config = self.config
        self._router = Router()
        self._tap = SenderTap(plan, config, self.stages.timings) if recorded_here(config, AGENT_PROCESSOR) else None
        # Functions that create the readers of queue ends, a handful per run; an ending host may never call them.
        self._followed = asyncio.Queue[Callable[[], Coroutine[Any, Any, None]]](maxsize=64)
        self._parameters_set = asyncio.Event()
        if not config.environment_parameters:
            self._parameters_set.set()
        request = EnvironmentRequest(config, plan.seed, plan.replica, plan.folder)
        self._parts: list[ActorPart] = [part(self, request) for part in wanted_sides(config, "actor").values()]
        self._before_report.extend(part.before_report for part in self._parts)
        make_brains = brain_maker(config, derive_seed(plan.seed, BRAINS, plan.replica), self._of_parts("person"))
        make_policy = make_policy or self._of_parts("make_policy") or policy_maker(config, plan.folder)
        make_mappings = self._of_parts("make_mappings") or PolicyMappings
        mappings = make_mappings(make_policy, self_play_of(config), make_brains)
        environment = EnvironmentStage(
            self._maker(request),
            mappings,
            plan.replica * AGENT_ID_RANGE,
            deterministic=cache(lambda name: config.behavior_settings(name).network_settings.deterministic),
            oracle=self._of_parts("oracle"),
            audience=self._of_parts("audience"),
        )
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
            ActorPort(self._announce, ended=lambda _: self._send_ended(), stopped=self._send_ended),
            restarts=_restarts(config.env_settings),
            resets_at_checkpoints=config.pipeline.deterministic,
            resumed_at=plan.resumed_at,
        )

    def _of_parts(self, name: str) -> Any:
        """Look this attribute up in each part, in order; return the first value that is not None, or None."""
        return next((value for part in self._parts if (value := getattr(part, name)) is not None), None)

    def _maker(self, request: EnvironmentRequest) -> Callable[[], EnvironmentGroup]:
        """Return the function that creates the environments."""
        settings, inference = self.config.inference, self.config.checkpoint_settings.inference
        make: Callable[[], EnvironmentGroup] | None = self._of_parts("make_group")
        if make is not None:
            return make
        if inference and settings.video is not None:
            from headrace.stages.exhibition.recorder import GameRecorder  # imports Pillow

            return GameRecorder(request, absolute(settings.video), self.plan.run_id, settings.wanted).make
        return partial(make_group, request)

    async def _work(self) -> None:
        stages = build_stages(placements_after(self.config, AGENT_PROCESSOR, in_main=False), self.config)
        last: Any = LearnedStepsOnly(self._router, self.config)
        sender = last
        if self.config.pipeline.hosts.actors.kind == "process" and outnumber_cores(self.config):
            give_way()  # actors wait for learners, so learners come first
        async with asyncio.TaskGroup() as tasks:
            following = tasks.create_task(self._follow())
            runners = []
            if stages:
                sender = AgentManagerQueue("agent_processor out", LOCAL_BOUND)
                runners = [tasks.create_task(runner) for runner in chain(stages, self.stages, sender, last)]
            if self._tap is not None:
                sender = self._tap.before(sender)
            if _has_brains(self.config):
                sender = BrainSteps(sender, self._router, self.config)
            await self._parameters_set.wait()  # the first episodes need their parameters
            await run_source(self._actor, sender, self.stages.context(ACTOR))
            if runners:
                await asyncio.wait(runners)
            following.cancel()
        if self._tap is not None:
            self._tap.finish()

    async def _listen(self) -> None:
        async for message in self.control.receive():
            match message:
                case Grant() if message.source == self._actor.source:
                    self._actor.receive_grant(message.number, message.caps, message.versions)
                case Assignment() | Matches():
                    self._actor.receive_assignment(message)
                case EnvironmentParameters():
                    self._actor.receive_parameters(message)
                    self._parameters_set.set()
                case LearnerReplaced():
                    self._actor.begin_source(message.source)
                    self._edges.reconnect(f"trajectories/{message.behavior}")
                case BeginCheckpoint():
                    self._actor.request_checkpoint(message.number)
                case Pause():
                    self._actor.pause(message.paused)
                case Stop():
                    self._actor.request_stop()
                case OpenEdge():
                    await self._open(message)
            for part in self._parts:
                part.receive(message)

    async def _open(self, message: OpenEdge) -> None:
        kind, _, what = message.name.partition("/")
        match kind:
            case "trajectories":
                self._router.open(what, await self.open_sender(message))
            case "policies":
                await self._followed.put(partial(self._follow_policies, await self.open_receiver(message)))
            case _:
                part = next(part for part in self._parts if kind in part.senders + part.receivers)
                if kind in part.senders:
                    part.open_sender(await self.open_sender(message))
                else:
                    await self._followed.put(partial(part.follow, await self.open_receiver(message)))

    async def _follow(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            while True:
                follow = await self._followed.get()
                tasks.create_task(contained(self.plan.name, follow()))

    async def _follow_policies(self, receiver: Receiver[PolicyUpdate]) -> None:
        async for update in receiver:
            self._actor.receive_policy(update)

    def _announce(self, spec: BehaviorSpec) -> None:
        self._router.expect(spec.name)
        if self._tap is not None:
            self._tap.expect(spec)
        self.control.send(BehaviorSeen(spec.to_plain()))

    def _send_ended(self) -> None:
        self.control.send(SourceEnded())

    def _ask(self, number: int, used: Mapping[str, int], wants: Sequence[str], gives_back: Sequence[str]) -> None:
        source, acting = self._actor.source, dict(self._actor.acting)
        self.control.send(CreditRequest(source, number, dict(used), tuple(wants), tuple(gives_back), acting))


def _has_brains(config: RunConfig) -> bool:
    """Return True if brains may decide for any behaviour."""
    every = [*config.behaviors.values(), *([config.default_settings] if config.default_settings is not None else [])]
    return any(settings.brain for settings in every)


def _restarts(limits: EnvSettings) -> RestartBudget:
    return RestartBudget(
        limits.max_lifetime_restarts, limits.restarts_rate_limit_n, limits.restarts_rate_limit_period_s
    )


def self_play_of(config: RunConfig) -> Callable[[str], bool]:
    """Return a predicate that is True for behaviours with self-play. In inference mode, it is False for all of them."""
    if config.checkpoint_settings.inference:
        return no_behavior
    return lambda name: config.behavior_settings(name).self_play is not None
