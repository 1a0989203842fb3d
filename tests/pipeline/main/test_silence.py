"""What follows from the silence of a host: a warning with its stack, then its end, by its role."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.config import EnvSettings, RunConfig
from headrace.config.host_kinds import HOST_KINDS, HostKind
from headrace.config.pipeline import PAUSE_S, STARTING_FACTOR, SupervisionSettings
from headrace.pipeline.common.graph import MAIN
from headrace.pipeline.control import local_pair
from headrace.pipeline.hosts.inline import InlineHost, InlineHosts, LocalEdges
from headrace.pipeline.hosts.protocol import HostPlan
from headrace.pipeline.main.coordinator import HostWatch
from headrace.pipeline.main.launcher import RunningHosts
from headrace.pipeline.main.supervision import Supervisor
from headrace.pipeline.reporting.statistics import StatisticsCollector
from headrace.pipeline.roles.stages import StageHost

WARN_S, END_S = 4.0, 10.0
LIMITS = {role: {"warn_s": WARN_S, "end_s": END_S} for role in ("actors", "learners", "main")}


class FarHost(InlineHost):
    """A host that does nothing until it is killed, and that main can end alone."""

    may_hang, unplaced = True, False

    async def describe(self) -> str:
        return "in step of its environment"


class FarHosts(InlineHosts):
    """The kind of such hosts."""

    async def start(self, plan: HostPlan, feed: Any = None, replaces: Any = None) -> FarHost:
        task: asyncio.Task[Any] = self._tasks.create_task(asyncio.Event().wait())
        return FarHost(plan, self._maxlen, local_pair(plan.name)[0], LocalEdges(), task)


class Watched:
    """One host, and what is made of its silence."""

    def __init__(self, tasks: asyncio.TaskGroup, folder: Path) -> None:
        self.tasks = tasks
        self.failures: list[Any] = []
        self.blamed: list[str] = []
        self.plan = SimpleNamespace(replaces_learners=True)
        self.running = RunningHosts(RunConfig.from_plain({"behaviors": {"Ball": {}}}), tasks, lambda host: None)
        supervisor = Supervisor(EnvSettings(), SupervisionSettings.model_validate(LIMITS))
        self.stages = StageHost(MAIN, folder, 1, None, StatisticsCollector(1), None, lambda message: None)
        self._begun = self._now = time.monotonic()
        run: Any = SimpleNamespace(
            supervisor=supervisor,
            running=self.running,
            tasks=SimpleNamespace(group=tasks),
            shutdown=SimpleNamespace(fail=self.failures.append),
            parts=SimpleNamespace(of_role=self.part_of),
            stages=self.stages,
            plan=self.plan,
        )
        self.watch = HostWatch(run)

    def part_of(self, role: str) -> Any:
        return SimpleNamespace(host_failed=self.blamed.append) if role == "evaluation" else None

    async def start(self, role: Any, name: str) -> Any:
        host = await self.running.start("far", HostPlan(role, name, {}, None, "", 0))
        self.watch.expect_reports(host)
        return host

    async def pass_seconds(self, seconds: float) -> None:
        """Look at the clock as often as main does, or a little less."""
        until = self._now + seconds
        while self._now < until:
            self._now += PAUSE_S / 2
            self.watch.check_silence(self._now)
            for _ in range(3):  # who is silent is asked in a task
                await asyncio.sleep(0)


@pytest.fixture
async def watched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Any:
    monkeypatch.setitem(HOST_KINDS, "far", HostKind("far", f"{__name__}:FarHosts", in_main=False))
    caplog.set_level(logging.WARNING)
    tasks = asyncio.TaskGroup()
    await tasks.__aenter__()
    watched = Watched(tasks, tmp_path)
    yield watched
    watched.running.close()
    await tasks.__aexit__(None, None, None)


async def test_a_silent_actor_is_warned_of_with_what_it_does_and_then_killed(watched, caplog):
    actor = await watched.start("actor", "actor-0")
    await watched.pass_seconds(STARTING_FACTOR * WARN_S + 1)
    (warned,) = caplog.messages
    assert "actor-0 has been silent" in warned
    assert "(pipeline.supervision.actors.warn_s): in step of its environment" in warned
    await watched.pass_seconds(STARTING_FACTOR * (END_S - WARN_S) + 1)
    assert caplog.messages[1].endswith("Killing it.")
    assert await actor.wait() == 1
    assert not watched.failures  # another one takes its place


async def test_a_silent_learner_that_is_not_replaced_fails_the_run_and_is_killed(watched):
    watched.plan.replaces_learners = False
    learner = await watched.start("learner", "learner-Ball")
    await watched.pass_seconds(STARTING_FACTOR * END_S + 1)
    (failure,) = watched.failures
    assert failure.stage == "learner-Ball"
    assert failure.message.endswith("in step of its environment\nThe host was killed.")
    assert await learner.wait() == 1


async def test_a_silent_evaluation_is_blamed_and_may_be_started_again(watched):
    evaluation = await watched.start("evaluation", "evaluation")
    await watched.pass_seconds(STARTING_FACTOR * END_S + 1)
    assert "evaluation has been silent" in watched.blamed[0]
    assert await evaluation.wait() == 1
    assert not watched.failures
