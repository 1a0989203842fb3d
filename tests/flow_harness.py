"""Whole runs in virtual time: the real coordinator and its hosts, with agents that count, delays and accidents.

Environments, policies and trainers are those of `fakes`, hosts those of `delayed_hosts`. All else is what any run has.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from audited_ledger import AuditedLedger
from delayed_hosts import APART, KIND, Network
from fakes import AGENT, TICK, Cast, Counters, CountingGroup, EchoPolicy, RememberingTrainer
from virtual_time import VirtualTimeLoop

from headrace.config import RunConfig, SelfPlaySettings
from headrace.config.environment_kinds import ENVIRONMENT_KINDS, EnvironmentKind
from headrace.pipeline.common import global_state_guard
from headrace.pipeline.hosts.run_host import build_host
from headrace.pipeline.main.coordinator import Coordinator
from headrace.pipeline.main.run_plan import RunPlan
from headrace.pipeline.reporting.console import Progress
from headrace.pipeline.roles.actor import ActorHost
from headrace.pipeline.run_folder.folder import RunFolder
from headrace.queues.messages import Assignment, TrajectoryBatch
from headrace.stages.environments.factory import EnvironmentRequest
from headrace.stages.stage import Stage, StageContext
from headrace.stages.trainer.deliveries import VARIABLE
from headrace.stages.trainer.protocol import TrainerContext

PATIENCE_TICKS = 20_000
"""Ticks after which an actor that still moves without the run coming to its end counts as hung."""
PATIENCE_S = 300.0
"""Virtual seconds after which a run counts as hung in which nothing moves but clocks."""
STEP_S = 1e-5
MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class Trained:
    """A behaviour and its trainer."""

    name: str
    rows_per_update: int
    horizon: int
    updates: int
    """It is done when it has this many updates' worth of steps."""
    uses_all: bool = True
    learning_s: float = 0.0
    """How much longer its updates take than the scenario's."""


@dataclass(frozen=True)
class Scenario:
    """All that can differ between two runs."""

    trained: tuple[Trained, ...]
    casts: tuple[Cast, ...]
    seed: int = 0
    replicas: int = 1
    max_policy_lag: int | str = 1
    learning_s: float = 0.0
    """How long an update takes."""
    stepping_s: float = STEP_S
    """How long a step of the environments takes."""
    slow_stage_s: float = 0.0
    """How long a custom stage in main takes for a batch; 0: there is none."""
    num_envs: int = 1
    game_length: int = 0
    self_play: SelfPlaySettings | None = None
    plain: tuple[str, ...] = ()
    """Behaviours without it, beside those that have it."""
    min_rows: int = 1
    bound: int = 2
    """Of every trajectory queue."""
    meddling: float = 0.0
    """How often custom stages drop, double or split what comes along."""
    slowness_s: tuple[float, ...] = (0.0,)
    """Each way, and each actor's environment, has one of these as its mean delay."""
    deaths_s: tuple[tuple[float, int], ...] = ()
    """How long after the one before which replica is killed."""
    breaks_at: tuple[int, ...] = ()
    """Ticks at which each actor's environment crashes."""
    hangs_at: tuple[tuple[int, int], ...] = ()
    """(replica, tick) at which an actor's environment does not come back."""
    checkpoint_interval: int = 10**6
    restarts: int = -1
    """Of an actor, or of its environment, in the whole run; -1: any number."""
    apart: bool = False
    """True if hosts are taken for such as run beside main, so that a lost learner is replaced."""
    deterministic: bool = False
    """True if what is learned must not depend on which part is how quick."""

    def plays_itself(self, name: str) -> bool:
        return self.self_play is not None and name not in self.plain

    def config(self) -> RunConfig:
        """Return what a user would write for it."""
        stages = [{"use": f"{__name__}:Meddler", "name": "emitted", "with": {"how_often": self.meddling}}]
        if self.self_play is not None:
            stages.append({"use": f"{__name__}:Meddler", "name": "unjudged", "host": "main"})
        if self.self_play is not None or self.meddling:
            after = {"after": "ghost"} if self.self_play is not None else {"host": "main"}
            stages.append(
                {"use": f"{__name__}:Meddler", "name": "judged", "with": {"how_often": self.meddling}, **after}
            )
        if self.slow_stage_s:
            stages.append({"use": f"{__name__}:Slow", "name": "slow", "host": "main"})
        size = 4 * self.replicas * self.min_rows
        kind = APART if self.apart or self.max_policy_lag == "auto" else KIND
        behaviors = {
            each.name: {
                "trainer_type": f"{__name__}:CountingTrainer",
                "hyperparameters": {"buffer_size": size, "rows": each.rows_per_update, "uses_all": each.uses_all},
                "max_steps": each.updates * each.rows_per_update,
                "time_horizon": each.horizon,
                "checkpoint_interval": self.checkpoint_interval,
                "self_play": self.self_play.model_dump(by_alias=True)
                if self.self_play and self.plays_itself(each.name)
                else None,
            }
            for each in self.trained
        }
        return RunConfig.from_plain(
            {
                "environment": {"kind": "counting", "num_envs": self.num_envs},
                "env_settings": {
                    "seed": self.seed,
                    "max_lifetime_restarts": self.restarts,
                    "restarts_rate_limit_n": -1,
                },
                "torch_settings": {"device": "cpu"},
                "behaviors": behaviors,
                "pipeline": {
                    "deterministic": self.deterministic,
                    "max_policy_lag": self.max_policy_lag,
                    "hosts": {
                        "actors": {"kind": kind, "replicas": self.replicas},
                        "learners": {"kind": kind},
                    },
                    "queues": {"trajectories": {"maxlen": self.bound}},
                    "stages": stages,
                },
            }
        )


@dataclass
class ActorRun:
    """One incarnation of an actor, and what it has done."""

    replica: int
    source: int
    acted: dict[tuple[str, int], int] = field(default_factory=dict)
    """(behaviour name, tick) → the newest version that acted by the time the tick came."""
    decided: set[tuple[int, int]] = field(default_factory=set)
    groups: list[CountingGroup] = field(default_factory=list)
    counters: Counters = field(default_factory=Counters)
    alive: bool = True

    def versions(self, name: str) -> list[int]:
        """By tick: the newest version that had acted for a behaviour."""
        newest, found = -1, []
        for tick in range(self.groups[-1].tick + 1):
            newest = max(newest, self.acted.get((name, tick), -1))
            found.append(newest)
        return found


class Flow:
    """One run of a scenario, and what is to be seen of it."""

    current: Flow

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.network = Network(np.random.default_rng(scenario.seed), scenario.slowness_s, self._build, self._sent)
        self.trainers: dict[str, CountingTrainer] = {}
        self.actors: dict[int, ActorRun] = {}
        """By source."""
        self.came: dict[str, list[TrajectoryBatch]] = defaultdict(list)
        """By custom stage: what it took in."""
        self.dropped: list[TrajectoryBatch] = []
        self.doubled: list[TrajectoryBatch] = []
        self.assignments: dict[int, Assignment] = {}
        self.emitted: dict[tuple[str, int], int] = defaultdict(int)
        """By behaviour and source: credits of what actors have emitted, and of what was doubled since."""
        self.stop = asyncio.Event()
        self.learned = asyncio.Event()
        """Set after each update."""
        self.hung = asyncio.Event()
        """Set when an environment hangs."""
        self.coordinator: Coordinator
        self.ledger: AuditedLedger

    def window(self, name: str) -> int:
        rows = next(each.rows_per_update for each in self.scenario.trained if each.name == name)
        lag = self.scenario.max_policy_lag
        return ((self.ledger.resized.get(name, 0) if isinstance(lag, str) else lag) + 1) * rows

    async def run(self, results: str, during: Callable[[Flow], Coroutine[Any, Any, None]]) -> None:
        """Run to the end, and `during` beside it.

        Raises:
            TimeoutError: if it hangs.
        """
        with RunFolder.create(results, "run") as folder:
            plan = RunPlan(self.scenario.config(), folder, self.scenario.seed, None)
            coordinator = self.coordinator = Coordinator(plan, console=False, progress=Progress(enabled=False))
            self.ledger = coordinator.flow.ledger = AuditedLedger(
                self.window, self.emitted, self.scenario.deterministic
            )
            async with asyncio.timeout(PATIENCE_S), coordinator, asyncio.TaskGroup() as tasks:
                beside = tasks.create_task(during(self))
                await coordinator.run(self.stop, None)
                beside.cancel()
                self.network.close()

    async def kill_some(self) -> None:
        """Kill actors at the scenario's times."""
        for wait_s, replica in self.scenario.deaths_s:
            await asyncio.sleep(wait_s)
            if self.network.hosts and not self.coordinator.shutdown.begun:
                self.actors[self.network.kill(f"actor-{replica}").plan.source].alive = False

    def _build(self, plan: Any, control: Any, edges: Any) -> Any:
        if plan.role != "actor":
            return build_host(plan, control, edges)
        run = self.actors[plan.source] = ActorRun(plan.replica, plan.source)
        return ActorHost(plan, control, edges, lambda spec: Watched(spec, run))

    def _sent(self, message: Any) -> None:
        if isinstance(message, Assignment):
            self.assignments[message.generation] = message


@contextmanager
def installed(flow: Flow) -> Iterator[str]:
    """Enter the kinds of hosts and environments into their tables; gives a folder for results."""
    Flow.current = flow
    ENVIRONMENT_KINDS["counting"] = EnvironmentKind(meaning="for tests", group=f"{__name__}:make_group")
    where = MEMORY if MEMORY.is_dir() else None
    try:
        with flow.network.installed(), tempfile.TemporaryDirectory(dir=where) as results:
            yield results
    finally:
        del ENVIRONMENT_KINDS["counting"]


def run_flow(
    scenario: Scenario, during: Callable[[Flow], Coroutine[Any, Any, None]] = Flow.kill_some, fails: bool = False
) -> Flow:
    """Run a scenario to its end, which is a good one unless it `fails`, and `during` beside it.

    Where no stage drops or doubles what comes along, trainers refuse trajectories that come twice or are missing.
    """
    global_state_guard._kept = None  # of an earlier example
    flow = Flow(scenario)
    deliveries = "" if scenario.meddling else "once" if scenario.self_play or scenario.apart else "all"
    with (
        patch.dict(os.environ, {VARIABLE: deliveries}),
        installed(flow) as results,
        asyncio.Runner(debug=False, loop_factory=VirtualTimeLoop) as runner,
    ):
        runner.run(flow.run(results, during))
    failure = flow.coordinator.shutdown.failure
    assert fails or failure is None, failure and (failure.traceback or failure.message)
    assert fails or not flow.network.killed, "all hosts end by themselves"
    return flow


def make_group(request: EnvironmentRequest) -> CountingGroup:
    """The environments of the newest actor of a replica."""
    flow = Flow.current
    scenario = flow.scenario
    run = [run for run in flow.actors.values() if run.replica == request.replica][-1]
    delay_s = flow.network.delays()

    def step_s() -> float:
        assert run.counters.tick < PATIENCE_TICKS, "it moves and moves and never comes to its end"
        if (request.replica, run.counters.tick) in scenario.hangs_at:
            flow.hung.set()
            return 10 * PATIENCE_S
        return scenario.stepping_s + delay_s()

    breaks_at = {tick for tick in scenario.breaks_at if tick > run.counters.tick}
    group = CountingGroup(
        scenario.casts, scenario.num_envs, scenario.game_length, step_s, breaks_at, counters=run.counters
    )
    run.groups.append(group)
    return group


class CountingTrainer(RememberingTrainer):
    """Learns nothing and keeps everything."""

    corrects_age = True

    def __init__(self, context: TrainerContext) -> None:
        given: Any = context.settings.hyperparameters
        super().__init__(context.behavior, given["rows"], given["uses_all"])
        Flow.current.trainers[context.behavior] = self

    def learn(self) -> int:
        Flow.current.learned.set()
        scenario = Flow.current.scenario
        own_s = sum(each.learning_s for each in scenario.trained if each.name == self._behavior)
        pass_time(scenario.learning_s + own_s)
        return super().learn()


def pass_time(seconds: float) -> None:
    """Hold the event loop."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    loop.pass_time(seconds)


class Slow(Stage[TrajectoryBatch, TrajectoryBatch]):
    """Takes its time for each batch."""

    async def process(self, item: TrajectoryBatch) -> AsyncIterator[TrajectoryBatch]:
        await asyncio.sleep(Flow.current.scenario.slow_stage_s)
        yield item


class Meddler(Stage[TrajectoryBatch, TrajectoryBatch]):
    """A custom stage that notes what comes, and now and then drops a batch or a part of it, doubles it, or splits it."""

    def __init__(self, how_often: float = 0.0) -> None:
        self._how_often = how_often

    def start(self, context: StageContext) -> None:
        self._random = np.random.default_rng(context.seed)
        self._name = context.name.partition("-")[0]

    async def process(self, item: TrajectoryBatch) -> AsyncIterator[TrajectoryBatch]:
        flow = Flow.current
        flow.came[self._name].append(item.copy())
        if self._name == "emitted":
            flow.emitted[item.behavior, item.source] += item.credits
        if self._random.random() >= self._how_often:
            yield item
            return
        match int(self._random.integers(4)):
            case 0:
                flow.dropped.append(item.copy())
            case 1:
                keep = self._random.random(item.num_trajectories) < 0.5
                flow.dropped.append(item.select(~keep).copy())
                yield item.select(keep)
            case 2:
                flow.doubled.append(item.copy())
                flow.emitted[item.behavior, item.source] += item.credits
                yield item
                await asyncio.sleep(STEP_S)
                yield item
            case _:
                for part in item.split(item.num_trajectories // 2):
                    yield part


class Watched(EchoPolicy):
    """Notes for the actor which version acted at which tick."""

    def __init__(self, spec: Any, run: ActorRun) -> None:
        super().__init__(spec)
        self._run = run

    def act(self, observations: Any, masks: Any, random: Any, deterministic: bool = False, recall: Any = None) -> Any:
        assert self.loaded is not None
        if self.loaded.snapshot < 0:
            for agent, tick in observations[0][:, [AGENT, TICK]].tolist():
                key = (self.spec.name, tick)
                if (agent, tick) in self._run.decided:  # decided anew after standing still
                    key = (self.spec.name, tick + 1)
                self._run.decided.add((agent, tick))
                self._run.acted[key] = max(self._run.acted.get(key, -1), self.loaded.version)
        return super().act(observations, masks, random, deterministic, recall)
