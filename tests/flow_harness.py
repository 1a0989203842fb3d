"""The pipeline without processes and sockets: everything that flow control consists of, and delays on every hop.

The parts are the real ones: actors, gates, the ledger, the loop that runs stages, the ghost stage, the trainer stage,
the publisher, the queues. They are joined as `pipeline.main.coordinator` joins them. Environments, policies and trainers
are those of `fakes`. Control channels, policy queues and trajectory queues each have a delay of their own, so messages
on different ways overtake each other as they do between processes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from fakes import AGENT, TICK, Cast, Counters, CountingGroup, EchoPolicy, RememberingTrainer, check_trajectories
from virtual_time import VirtualTimeLoop

from config import SelfPlaySettings
from pipeline.control.credits import CreditLedger, CreditRequest, Grant
from pipeline.hosts.router import Router
from queues.agent_manager_queue import AgentManagerQueue
from queues.errors import QueueClosed
from queues.messages import Assignment, Matchup, PolicyUpdate, TrajectoryBatch
from queues.specs import behavior_name
from stages.actor.actor import Actor, ActorPort
from stages.actor.credit_gate import CreditGate
from stages.agent import AgentProcessor
from stages.environment.lineup import Lineups
from stages.environment.stage import EnvironmentStage
from stages.ghost.controller import GhostController
from stages.ghost.stage import GhostPolicies, GhostStage
from stages.loop import StageHooks, StageRunner, run_source
from stages.publisher import PolicyPublisher, PublisherPort
from stages.restarts import RestartBudget
from stages.stage import Stage, StageContext
from stages.trainer.stage import TrainerPort, TrainerReport, TrainerStage

ID_RANGE = 10**6
"""Agent ids of one actor."""

PATIENCE_TICKS = 20_000
"""Ticks after which an actor that still moves without the run coming to its end counts as hung."""


@dataclass(frozen=True)
class Trained:
    """A behaviour and its trainer."""

    name: str
    rows_per_update: int
    horizon: int
    updates: int
    """How many it makes before it is done."""
    uses_all: bool = True


@dataclass(frozen=True)
class Scenario:
    """All that can differ between two runs."""

    trained: tuple[Trained, ...]
    casts: tuple[Cast, ...]
    seed: int = 0
    replicas: int = 1
    max_policy_lag: int = 1
    num_envs: int = 1
    game_length: int = 0
    self_play: SelfPlaySettings | None = None
    plain: tuple[str, ...] = ()
    """Behaviours without it, beside those that have it."""
    min_rows: int = 1
    bound: int = 2
    """Of every trajectory queue."""
    meddling: float = 0.0
    """How often a custom stage drops, doubles or splits what comes along."""
    slowness_s: tuple[float, ...] = (0.0,)
    """Each hop, and each actor's environment, has one of these as its mean delay."""
    deaths_s: tuple[tuple[float, int], ...] = ()
    """When which replica is killed."""
    breaks_at: tuple[int, ...] = ()
    """Ticks at which each actor's environment crashes."""
    deterministic: bool = False
    """Whether what is learned must not depend on who was how quick."""


class FastVirtualLoop(VirtualTimeLoop):
    """Without debug mode, which costs more than everything else here."""

    def __init__(self) -> None:
        super().__init__()
        self.set_debug(False)


def run_flow(scenario: Scenario) -> Flow:
    """Run a scenario to its end."""
    flow = Flow(scenario)
    with asyncio.Runner(loop_factory=FastVirtualLoop) as runner:
        runner.run(flow.run())
    return flow


class Channel:
    """An ordered, bounded way for messages, with delays."""

    def __init__(
        self, name: str, handle: Callable[[Any], Awaitable[None] | None], delay_s: Callable[[], float]
    ) -> None:
        self.queue: AgentManagerQueue[Any] = AgentManagerQueue(name, 1024)
        self._handle = handle
        self._delay_s = delay_s

    def send(self, message: Any) -> None:
        self.queue.put_nowait(message)

    async def pump(self) -> None:
        async for message in self.queue:
            await asyncio.sleep(self._delay_s())
            result = self._handle(message)
            if result is not None:
                await result


async def hop(inlet: Any, outlet: Any, delay_s: Callable[[], float]) -> None:
    """Carry items, each with a delay, as a link between two processes does."""
    try:
        async for item in inlet:
            await asyncio.sleep(delay_s())
            await outlet.put(item)
    except QueueClosed:
        pass
    finally:
        inlet.close()
        outlet.close()


class Meddler(Stage[TrajectoryBatch, TrajectoryBatch]):
    """A custom stage that now and then drops a batch or a part of it, doubles it, or splits it."""

    def __init__(self, how_often: float, random: np.random.Generator) -> None:
        self.dropped: list[TrajectoryBatch] = []
        self.doubled: list[TrajectoryBatch] = []
        self._how_often = how_often
        self._random = random

    async def process(self, item: TrajectoryBatch) -> AsyncIterator[TrajectoryBatch]:
        if self._random.random() >= self._how_often:
            yield item
            return
        match int(self._random.integers(4)):
            case 0:
                self.dropped.append(item.copy())
            case 1:
                keep = self._random.random(item.num_trajectories) < 0.5
                self.dropped.append(item.select(~keep))
                yield item.select(keep)
            case 2:
                self.doubled.append(item.copy())
                yield item
                await asyncio.sleep(0.001)
                yield item
            case _:
                for part in item.split(item.num_trajectories // 2):
                    yield part


@dataclass
class ActorRun:
    """One incarnation of an actor, and what it has done."""

    replica: int
    source: int
    actor: Actor
    processor: AgentProcessor
    router: Router
    up: Channel
    down: Channel
    meddler: Meddler
    policies: dict[str, AgentManagerQueue[PolicyUpdate]] = field(default_factory=dict)
    emitted: list[TrajectoryBatch] = field(default_factory=list)
    acted: dict[tuple[str, int], int] = field(default_factory=dict)
    """(behaviour name, tick) → the newest version that acted by the time the tick came."""
    decided: set[tuple[int, int]] = field(default_factory=set)
    caps: dict[str, int] = field(default_factory=dict)
    """What the ledger has granted, less what was given back, and what was used beyond it."""
    groups: list[CountingGroup] = field(default_factory=list)
    carriers: list[asyncio.Task[None]] = field(default_factory=list)
    task: asyncio.Task[None] | None = None
    alive: bool = True

    def versions(self, name: str) -> list[int]:
        """By tick: the newest version that had acted for a behaviour."""
        newest, found = -1, []
        for tick in range(self.groups[-1].tick + 1):
            newest = max(newest, self.acted.get((name, tick), -1))
            found.append(newest)
        return found


@dataclass
class Line:
    """One behaviour's trainer, its way, and what came of it."""

    trained: Trained
    gather: AgentManagerQueue[Any]
    keeper: Any
    trainer: RememberingTrainer
    stage: Finite
    meddler: Meddler
    queues: list[AgentManagerQueue[Any]]
    controller: GhostController | None = None
    task: asyncio.Task[None] | None = None
    done: bool = False
    turned_away: list[TrajectoryBatch] = field(default_factory=list)
    window: int = 0
    granted_peak: int = 0
    """Most credits outstanding by the ledger's account."""
    made_peak: int = 0
    """Most steps that were made and not returned."""


class Flow:
    """One run of a scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.random = np.random.default_rng(scenario.seed)
        self.ledger = CreditLedger(at_rest=scenario.deterministic)
        self.lines: dict[str, Line] = {}
        self.controller = GhostController(np.random.default_rng(scenario.seed))
        self.actors: list[ActorRun] = []
        self.assignments: dict[int, Assignment] = {}
        self.rotations: list[int] = [0]
        """Generations that began with another learning team."""
        self.removed: set[int] = set()
        self.returned: dict[tuple[str, int], dict[str, int]] = {}
        self._publisher = PolicyPublisher(PublisherPort(self._send_policy, self._assign))
        self._channels: list[Channel] = []
        self._last_words: list[asyncio.Task[None]] = []
        self._stopping = False
        self._stopped = asyncio.Event()
        self._tasks: asyncio.TaskGroup

    # Running. ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until each trainer has made its updates and everything that was under way has come to its end.

        Raises:
            DeadlockError: by the virtual loop.
            ExceptionGroup: if a part fails, or moves and moves and never comes to its end.
        """
        async with asyncio.TaskGroup() as self._tasks:
            for replica in range(self.scenario.replicas):
                self._start_actor(replica)
            deaths = self._tasks.create_task(self._kill_some())
            await self._stopped.wait()
            deaths.cancel()
            await asyncio.wait([actor.task for actor in self.actors if actor.task is not None])
            await asyncio.wait([line.task for line in self.lines.values() if line.task is not None])
            await asyncio.wait(self._last_words)
            for channel in self._channels:
                channel.queue.close()
            for actor in self.actors:
                for queue in actor.policies.values():
                    queue.close()

    def delays(self) -> Callable[[], float]:
        """The delays of one hop: most are short, some are long."""
        mean = float(self.random.choice(self.scenario.slowness_s))

        def draw() -> float:
            return float(mean * self.random.exponential() * self.random.choice([0.1, 1.0, 5.0])) if mean else 0.0

        return draw

    # Actors. -------------------------------------------------------------------------------------------------------

    def _start_actor(self, replica: int) -> None:
        scenario, source = self.scenario, len(self.actors)
        counters, breaks_at = Counters(), set(scenario.breaks_at)
        delay_s = self.delays()

        def step_s() -> float:
            assert counters.tick < PATIENCE_TICKS, "it moves and moves and never comes to its end"
            return 0.01 + delay_s()

        def make_group() -> CountingGroup:
            run.groups.append(
                CountingGroup(
                    scenario.casts, scenario.num_envs, scenario.game_length, step_s, breaks_at, counters=counters
                )
            )
            return run.groups[-1]

        def ask(number: int, used: Any, wants: Any, gives_back: Any) -> None:
            run.up.send(CreditRequest(source, number, dict(used), tuple(wants), tuple(gives_back)))

        horizons = {trained.name: trained.horizon for trained in scenario.trained}
        run = ActorRun(
            replica,
            source,
            None,  # type: ignore[arg-type]
            AgentProcessor(horizons, source, scenario.min_rows),
            Router(),
            self._channel(f"up {source}", lambda message: self._hear_actor(run, message)),
            self._channel(f"down {source}", lambda message: self._tell_actor(run, message)),
            Meddler(scenario.meddling, np.random.default_rng([scenario.seed, source])),
        )
        lineups = Lineups(lambda spec: Watched(spec, run), self._has_self_play)
        run.actor = Actor(
            EnvironmentStage(make_group, lineups, source * ID_RANGE),
            run.processor,
            CreditGate(ask),
            ActorPort(lambda spec: run.up.send(spec)),
            RestartBudget(-1, -1, 1.0),
            resets_at_checkpoints=scenario.deterministic,
            clock=asyncio.get_running_loop().time,
        )
        self.actors.append(run)
        self.ledger.add_source(source)
        for line in self.lines.values():
            self._open(run, line)
        run.task = self._tasks.create_task(self._run_actor(run), name=f"actor {source}")

    async def _run_actor(self, run: ActorRun) -> None:
        middle: AgentManagerQueue[Any] = AgentManagerQueue("agent_processor out", 2)
        hooks = StageHooks(self._returner(f"meddler@{run.source}", run.up.send))
        runner = StageRunner(run.meddler, middle, run.router, StageContext("meddler"), hooks)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(run_source(run.actor, Tap(middle, run), StageContext("actor", seed=run.source)))
                tasks.create_task(runner.run())
        finally:
            run.router.close()
            run.up.queue.close()

    def _open(self, run: ActorRun, line: Line) -> None:
        """The way of a behaviour's trajectories from an actor to main."""
        name = line.trained.name
        link: AgentManagerQueue[Any] = AgentManagerQueue(f"trajectories {name} {run.source}", self.scenario.bound)
        line.queues.append(link)
        run.router.open(name, link)
        end = line.gather.add_producer()
        run.carriers.append(self._tasks.create_task(hop(link, end, self.delays())))
        # A task that is cancelled before its first step does not even close.
        run.carriers[-1].add_done_callback(lambda _: end.close())

    def _hear_actor(self, run: ActorRun, message: Any) -> None:
        match message:
            case CreditRequest():
                for name, used in message.used.items():
                    run.caps[name] = used if name in message.gives_back else max(used, run.caps.get(name, 0))
                self._grant(self.ledger.request(message))
            case (str(by), str(behavior), int(source), int(total)):
                self._take_back(by, behavior, source, total)
            case _:
                self._meet(run, message.behavior_id)

    def _tell_actor(self, run: ActorRun, message: Any) -> None:
        match message:
            case Grant():
                run.actor.receive_grant(message.number, message.caps, message.versions)
            case Assignment():
                run.actor.receive_assignment(message)
            case "stop":
                run.actor.request_stop()

    def _meet(self, run: ActorRun, behavior_id: str) -> None:
        """An actor has met a behaviour id."""
        if self._stopping or not run.alive:
            return
        name = behavior_name(behavior_id)
        run.router.expect(name)
        self._publisher.add_behavior(behavior_id)
        if name not in self.lines:
            self._start_line(next(trained for trained in self.scenario.trained if trained.name == name))
        inbox: AgentManagerQueue[PolicyUpdate] = AgentManagerQueue(f"policies {behavior_id}", 1, "replace_oldest")
        run.policies[behavior_id] = inbox
        self._tasks.create_task(self._follow(run, inbox))
        controller = self.lines[name].controller
        self._publish(controller.add_behavior(behavior_id) if controller is not None else None)
        for update in self._publisher.newest_for(behavior_id):
            inbox.put_nowait(update)
        if self._publisher.assignment is not None:
            run.down.send(self._publisher.assignment)

    async def _follow(self, run: ActorRun, inbox: AgentManagerQueue[PolicyUpdate]) -> None:
        delay_s = self.delays()
        async for update in inbox:
            await asyncio.sleep(delay_s())
            run.actor.receive_policy(update)

    async def _kill_some(self) -> None:
        for when, replica in self.scenario.deaths_s:
            await asyncio.sleep(when)
            run = next(a for a in reversed(self.actors) if a.replica == replica)
            if run.alive and not self._stopping:
                self._tasks.create_task(self._bury(run))

    async def _bury(self, run: ActorRun) -> None:
        """Kill an actor; what main has not heard of yet it still hears, then another one takes its place."""
        assert run.task is not None
        run.alive = False
        run.task.cancel()
        if self.random.random() < 0.5:  # what lies in its queues is lost with it
            for carrier in run.carriers:
                carrier.cancel()
        await asyncio.sleep(self.delays()())
        self.removed.add(run.source)
        self._grant(self.ledger.remove_source(run.source))
        if not self._stopping:
            self._start_actor(run.replica)

    # Learners. -----------------------------------------------------------------------------------------------------

    def _start_line(self, trained: Trained) -> None:
        scenario, name = self.scenario, trained.name
        gather: AgentManagerQueue[Any] = AgentManagerQueue(f"gather {name}", scenario.bound)
        keeper = gather.add_producer()
        trainer = RememberingTrainer(name, trained.rows_per_update, trained.uses_all)
        up = self._channel(f"up {name}", lambda message: self._hear_learner(line, message))
        stage = Finite(trainer, name, trained.updates, TrainerPort(up.send), self.scenario.deterministic)
        meddler = Meddler(scenario.meddling, np.random.default_rng(scenario.seed))
        line = self.lines[name] = Line(trained, gather, keeper, trainer, stage, meddler, [gather])
        if scenario.self_play is not None and self._has_self_play(name):
            line.controller = self.controller
            self.controller.add_history(name, scenario.self_play)
        for run in self.actors:
            if run.alive:
                self._open(run, line)
        line.task = self._tasks.create_task(self._run_line(line, up), name=f"line {name}")

    async def _run_line(self, line: Line, up: Channel) -> None:
        name, scenario = line.trained.name, self.scenario

        def queue(what: str) -> AgentManagerQueue[Any]:
            line.queues.append(AgentManagerQueue(f"{what} {name}", scenario.bound))
            return line.queues[-1]

        judged, meddled, learn, updates, arrived = (
            line.gather,
            queue("meddled"),
            queue("learn"),
            AgentManagerQueue[Any](f"updates {name}", 1, "replace_oldest"),
            AgentManagerQueue[Any](f"arrived {name}", 1, "replace_oldest"),
        )
        async with asyncio.TaskGroup() as tasks:
            publish: Stage[Any, Any] = self._publisher
            if line.controller is not None:
                judged = queue("judged")
                ghost = Judge(line, GhostStage(line.controller, self._publish))
                tasks.create_task(self._stage("ghost", ghost, line.gather, judged))
                publish = GhostPolicies(line.controller, self._publish)
            tasks.create_task(self._stage("meddler", line.meddler, judged, meddled))
            tasks.create_task(hop(meddled, learn, self.delays()))
            tasks.create_task(hop(updates, arrived, self.delays()))
            tasks.create_task(StageRunner(publish, arrived, Into(self._publisher), StageContext("policies")).run())
            up.send("ready")
            await updates.put(line.trainer.policy())
            line.stage.report_now()
            await StageRunner(line.stage, learn, updates, StageContext("trainer")).run()
        up.queue.close()

    def _stage(self, kind: str, stage: Stage[Any, Any], inlet: Any, outlet: Any) -> Any:
        hooks = StageHooks(self._returner(f"{kind}@main", self._hear_main))
        return StageRunner(stage, inlet, outlet, StageContext(kind), hooks).run()

    def _hear_learner(self, line: Line, message: Any) -> None:
        if isinstance(message, TrainerReport):
            self._grant(self.ledger.learned(message.behavior, message.version, message.held))
            for source, total in message.returned.items():
                self._take_back("trainer", message.behavior, source, total)
            line.done = message.done
            if line.controller is not None:
                self._publish(line.controller.receive_report(message.behavior, message.done, message.version))
            if all(other.done for other in self.lines.values()) and len(self.lines) == len(self.scenario.trained):
                self._stop()
            return
        name, lag = line.trained.name, self.scenario.max_policy_lag
        self.ledger.open_window(name, line.trained.rows_per_update, lag)
        line.window = (lag + 1) * line.trained.rows_per_update
        self._grant(self.ledger.resume())

    def _stop(self) -> None:
        if self._stopping:
            return
        self._stopping = True
        for run in self.actors:
            if run.alive:
                run.down.send("stop")
        for line in self.lines.values():
            line.keeper.close()
        self._stopped.set()

    # Credits and policies. -----------------------------------------------------------------------------------------

    def _returner(self, by: str, send: Callable[[tuple[str, str, int, int]], None]) -> Callable[[str, int, int], None]:
        totals: Counter[tuple[str, int]] = Counter()

        def give_back(behavior: str, source: int, amount: int) -> None:
            totals[behavior, source] += amount
            send((by, behavior, source, totals[behavior, source]))

        return give_back

    def _hear_main(self, message: tuple[str, str, int, int]) -> None:
        self._take_back(*message)

    def _take_back(self, by: str, behavior: str, source: int, total: int) -> None:
        self.returned.setdefault((behavior, source), {})[by] = total
        self._grant(self.ledger.returned(by, behavior, source, total))

    def _grant(self, grants: list[Grant]) -> None:
        for grant in grants:
            assert grant.source not in self.removed, "a grant for a source that was removed"
            self.actors[grant.source].caps.update(grant.caps)
            self.actors[grant.source].down.send(grant)
        for line in self.lines.values():
            if line.window:
                self._audit(line)

    def _audit(self, line: Line) -> None:
        """Compare the ledger's account with what was granted and returned, and note what the actors have made."""
        name = line.trained.name
        granted = made = 0
        for run in self.actors:
            if run.source not in self.removed:
                returned = sum(self.returned.get((name, run.source), {}).values())
                granted += max(0, run.caps.get(name, 0) - returned)
                made += run.processor.emitted(name) + run.processor.pending(name) - returned
        assert self.ledger.outstanding(name) == granted
        line.granted_peak, line.made_peak = max(line.granted_peak, granted), max(line.made_peak, made)

    def _send_policy(self, update: PolicyUpdate) -> None:
        for run in self.actors:
            if update.behavior_id in run.policies and not run.policies[update.behavior_id].closed:
                run.policies[update.behavior_id].put_nowait(update)

    def _has_self_play(self, name: str) -> bool:
        return self.scenario.self_play is not None and name not in self.scenario.plain

    def _publish(self, matchup: Matchup | None) -> None:
        if matchup is None:
            return
        assert matchup.assignment.generation == len(self.assignments) + 1, "generations rise by one"
        before = self.assignments.get(matchup.assignment.generation - 1)
        self.assignments[matchup.assignment.generation] = matchup.assignment
        if before is not None and before.learning_team != matchup.assignment.learning_team:
            self.rotations.append(matchup.assignment.generation)
        self._publisher.publish_matchup(matchup)

    def _assign(self, assignment: Assignment) -> None:
        self.assignments.setdefault(assignment.generation, assignment)
        for run in self.actors:
            if run.alive:
                run.down.send(assignment)

    def _channel(self, name: str, handle: Callable[[Any], None]) -> Channel:
        channel = Channel(name, handle, self.delays())
        self._channels.append(channel)
        pump = self._tasks.create_task(channel.pump(), name=name)
        if name.startswith("up"):
            self._last_words.append(pump)
        return channel


class Finite(TrainerStage):
    """A trainer stage that is done after a number of updates: counting steps would count what uses_all adds."""

    def __init__(
        self, trainer: RememberingTrainer, behavior: str, updates: int, port: TrainerPort, reports_each: bool
    ) -> None:
        super().__init__(trainer, behavior, 1, port=port, reports_each=reports_each)
        self._updates = updates

        self.drained: list[TrajectoryBatch] = []

    @property
    def done(self) -> bool:
        return self.trainer.version >= self._updates

    def process(self, item: TrajectoryBatch) -> Iterator[PolicyUpdate]:
        if self.done:
            self.drained.append(item.copy())
        yield from super().process(item)


class Watched(EchoPolicy):
    """Notes for the actor which version acted at which tick."""

    def __init__(self, spec: Any, run: ActorRun) -> None:
        super().__init__(spec)
        self._run = run

    def act(
        self,
        observations: Any,
        masks: Any,
        random: np.random.Generator,
        deterministic: bool = False,
        recall: Any = None,
    ) -> Any:
        assert self.loaded is not None
        if self.loaded.snapshot < 0:
            for agent, tick in observations[0][:, [AGENT, TICK]].tolist():
                key = (self.spec.name, tick)
                if (agent, tick) in self._run.decided:  # decided anew after standing still
                    key = (self.spec.name, tick + 1)
                self._run.decided.add((agent, tick))
                self._run.acted[key] = max(self._run.acted.get(key, -1), self.loaded.version)
        return super().act(observations, masks, random, deterministic, recall)


class Tap:
    """Keeps what an actor emits."""

    def __init__(self, outlet: Any, run: ActorRun) -> None:
        self._outlet = outlet
        self._run = run

    async def put(self, item: Any) -> None:
        check_trajectories(item, self._run.source * ID_RANGE)
        assert item.source == self._run.source
        self._run.emitted.append(item.copy())
        await self._outlet.put(item)

    def close(self) -> None:
        self._outlet.close()


class Judge(Stage[TrajectoryBatch, TrajectoryBatch]):
    """The ghost stage, and what it turned away."""

    def __init__(self, line: Line, ghost: GhostStage) -> None:
        self._line = line
        self._ghost = ghost

    def process(self, item: TrajectoryBatch) -> Iterator[TrajectoryBatch]:
        assert self._line.controller is not None
        keep = self._line.controller.learning_mask(item)
        if not keep.all():
            self._line.turned_away.append(item.select(~keep).copy())
        yield from self._ghost.process(item)


class Into:
    """The publisher as a sink."""

    def __init__(self, publisher: PolicyPublisher) -> None:
        self._publisher = publisher

    async def put(self, item: PolicyUpdate) -> None:
        for _ in self._publisher.process(item):
            pass

    def close(self) -> None:
        pass
