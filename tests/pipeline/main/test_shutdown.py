"""The end of a run: it begins once, at the first cause, which is the one that is reported."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakes import counting_spec

from headrace.config import RunConfig
from headrace.config.host_kinds import HOST_KINDS, HostKind
from headrace.config.pipeline import SupervisionSettings
from headrace.pipeline.control import HostFailed, local_pair
from headrace.pipeline.hosts.inline import InlineHost, InlineHosts, LocalEdges
from headrace.pipeline.hosts.protocol import HostPlan
from headrace.pipeline.main.behavior import BehaviorState, TrajectoryPath
from headrace.pipeline.main.checkpointing import Checkpointing
from headrace.pipeline.main.launcher import Broadcaster, Launcher, RunningHosts
from headrace.pipeline.main.run_plan import RunPlan
from headrace.pipeline.main.shutdown import DISMISSED_S, Shutdown
from headrace.pipeline.reporting.statistics import StatisticsCollector
from headrace.pipeline.roles.stages import StageHost
from headrace.pipeline.run_folder.folder import RunFolder
from headrace.queues.disks import Disks, answered

pytestmark = pytest.mark.virtual_time

GRACE_S = SupervisionSettings().grace_s


class Asked(Checkpointing):
    """Checkpoints that are noted and not made."""

    def __init__(self, run: Any, asked: list[str]) -> None:
        super().__init__(run)
        self._asked = asked

    def begin(self, then_stop: bool = False) -> None:
        assert then_stop
        self._asked.append("last checkpoint")

    def save_now(self) -> None:
        self._asked.append("save now")


class Begun(Asked):
    """Checkpoints that begin and are never complete."""

    def begin(self, then_stop: bool = False) -> None:
        super().begin(then_stop)
        self._announce(["trainer@learner-Ball"])


class DeafHosts(InlineHosts):
    """A kind of host that does nothing, and does not end when it is asked to."""

    async def start(self, plan: HostPlan, feed: Any = None, replaces: Any = None) -> InlineHost:
        task: asyncio.Task[Any] = self._tasks.create_task(asyncio.Event().wait())
        return InlineHost(plan, self._maxlen, local_pair(plan.name)[0], LocalEdges(), task)


async def nothing_beside(*_: Any) -> list[Any]:
    return []


class Ending:
    """The end of a run with one behaviour, whose learner never was there, and how often what was asked for."""

    def __init__(self, folder: RunFolder, tasks: asyncio.TaskGroup, checkpoints: type[Asked] = Asked) -> None:
        environment = {"kind": "builtin", "id": "Volley", "behavior": "Ball"}
        config = RunConfig.from_plain(
            {"behaviors": {"Ball": {}}, "environment": environment, "pipeline": {"hosts": {"actors": {"replicas": 2}}}}
        )
        plan = RunPlan(config, folder, 0, None)
        stages = StageHost("main", folder.path, 0, None, StatisticsCollector(0), None, lambda message: None)
        self.running = RunningHosts(config, tasks, lambda host: None)
        broadcaster = Broadcaster(Launcher(plan, self.running, nothing_beside))
        path = TrajectoryPath(plan.route("Ball"), config, stages, broadcaster.publisher)
        ball = BehaviorState("Ball", counting_spec("Ball"), config.behavior_settings("Ball"), path)
        self.asked: list[str] = []
        self.behaviors = {"Ball": ball}
        run: Any = SimpleNamespace(
            plan=plan, behaviors=self.behaviors, running=self.running, broadcaster=broadcaster, stages=stages
        )
        run.checkpointing = checkpoints(run, self.asked)
        self.shutdown = Shutdown(run)


@asynccontextmanager
async def ending_in(folder: Path, checkpoints: type[Asked] = Asked) -> AsyncIterator[Ending]:
    with RunFolder.create(folder, "run") as made:
        async with asyncio.TaskGroup() as tasks:
            ending = Ending(made, tasks, checkpoints)
            yield ending
            ending.running.mark_ended("learner-Ball")


async def test_a_stop_before_a_trainer_is_ready_ends_even_a_host_that_hangs_within_seconds(tmp_path, monkeypatch):
    monkeypatch.setitem(HOST_KINDS, "deaf", HostKind("deaf", f"{__name__}:DeafHosts", in_main=True))
    async with ending_in(tmp_path) as ending:
        learner = await ending.running.start("deaf", HostPlan("learner", "learner-Ball", {}, None, "", 0))
        ending.shutdown.stop()
        began_s = asyncio.get_running_loop().time()
        assert await learner.wait() == 1
        assert asyncio.get_running_loop().time() - began_s <= DISMISSED_S
        assert ending.asked == [], "there is nothing to save"


async def time_to_end(ending: Ending) -> float:
    """End the run, whose learner does not end, and return the seconds until the learner is killed."""
    learner = await ending.running.start("deaf", HostPlan("learner", "learner-Ball", {}, None, "", 0))
    began_s = asyncio.get_running_loop().time()
    ending.shutdown.finish()
    assert await learner.wait() == 1
    return asyncio.get_running_loop().time() - began_s


async def test_a_learner_that_hangs_in_the_last_checkpoint_holds_the_end_for_grace_s(tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(HOST_KINDS, "deaf", HostKind("deaf", f"{__name__}:DeafHosts", in_main=True))
    caplog.set_level("INFO")
    async with ending_in(tmp_path, Begun) as ending:
        assert GRACE_S <= await time_to_end(ending) <= GRACE_S + 3
        assert ending.asked == ["last checkpoint", "save now"]
    assert "Waiting for the last checkpoint. Still running: learner-Ball." in caplog.text


async def test_a_run_whose_disk_hangs_waits_for_no_host(tmp_path, monkeypatch):
    monkeypatch.setitem(HOST_KINDS, "deaf", HostKind("deaf", f"{__name__}:DeafHosts", in_main=True))
    answers = threading.Event()
    with Disks(0.02, lambda _: None, checked_s=0.01).used():
        async with ending_in(tmp_path, Begun) as ending:
            with pytest.raises(OSError, match="the disk or storage has not answered"):
                answered("a file", answers.wait, 20)
            assert await time_to_end(ending) <= 1
            answers.set()


async def test_the_first_failure_is_the_one_that_counts(tmp_path, caplog):
    async with ending_in(tmp_path) as ending:
        ending.shutdown.fail(HostFailed("the first", "", "actor"))
        ending.shutdown.fail(HostFailed("what followed from it", "", "actor"))
        ending.shutdown.finish()
        assert ending.shutdown.failure == HostFailed("the first", "", "actor")
        (told,) = [record.message for record in caplog.records if record.levelname == "ERROR"]
        assert told.startswith("actor has failed."), "what was wrong is said as the run ends"
        assert ending.asked == [], "there is no learner that could save"


async def test_a_run_ends_with_the_last_of_its_sources(tmp_path):
    async with ending_in(tmp_path) as ending:
        for name in ("actor-0", "actor-0"):
            ending.shutdown.source_ended(name)
            assert not ending.shutdown.begun
        ending.shutdown.source_replaced("actor-0")
        ending.shutdown.source_ended("actor-1")
        assert not ending.shutdown.begun, "a new actor-0 produces"
        ending.shutdown.source_ended("actor-0")
        assert (ending.shutdown.begun, ending.shutdown.failure) == (True, None)
        assert ending.asked == ["last checkpoint"]


async def test_sources_that_end_before_any_agent_was_seen_are_a_failure(tmp_path):
    async with ending_in(tmp_path) as ending:
        ending.behaviors.clear()
        ending.shutdown.source_ended("actor-0")
        ending.shutdown.source_ended("actor-1")
        assert ending.shutdown.failure is not None
        assert "closed before any agent requested a decision" in ending.shutdown.failure.message


async def test_a_failed_checkpoint_is_a_failure_only_if_it_is_the_last_one(tmp_path):
    async with ending_in(tmp_path) as ending:
        ending.shutdown.checkpoint_ended("no space left")
        assert ending.shutdown.failure is None
        ending.shutdown.finish()
        ending.shutdown.checkpoint_ended("no space left")
        assert ending.shutdown.failure is not None
        assert ending.shutdown.failure.message == "the run's last checkpoint could not be written: no space left"


@pytest.mark.parametrize(("stage", "at_start"), [("learner-Ball", True), ("actor", False)])
async def test_a_trainer_that_failed_before_it_was_ready_failed_at_the_start(stage, at_start, tmp_path):
    async with ending_in(tmp_path) as ending:
        ending.shutdown.fail(HostFailed("broken", "", stage))
        assert ending.shutdown.failed_at_start is at_start


async def test_a_learner_that_was_lost_and_could_not_be_replaced_did_not_fail_at_the_start(tmp_path):
    """The message names the checkpoint from which another run can resume."""
    async with ending_in(tmp_path) as ending:
        (state,) = ending.behaviors.values()
        state.was_ready = True
        ending.shutdown.fail(HostFailed("its node is gone", "", "learner-Ball"))
        assert not ending.shutdown.failed_at_start
