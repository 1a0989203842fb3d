"""A behaviour's way through main: to its trainer, to those who imitate it, and its policies to the publisher."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from fakes import policy_update
from stream_samples import trajectories

from headrace.config import RunConfig
from headrace.pipeline.common.graph import route
from headrace.pipeline.control import CreditsReturned
from headrace.pipeline.main.behavior import TrajectoryPath
from headrace.pipeline.reporting.statistics import StatisticsCollector
from headrace.pipeline.roles.stages import StageHost
from headrace.queues.agent_manager_queue import AgentManagerQueue
from headrace.queues.messages import Barrier
from headrace.stages.loop import StageFailure
from headrace.stages.publisher import PolicyPublisher, PublisherPort
from headrace.stages.stage import Stage

Queue = AgentManagerQueue[Any]


class Keeper(Stage):
    """A custom stage that lets nothing pass, and has no state that can be saved."""

    asked = 0

    def process(self, item):
        return None

    def state_dict(self):
        Keeper.asked += 1
        raise ValueError("nothing to be had")


def path_in(folder: Path, sent: list[Any], publisher: PolicyPublisher | None = None, **pipeline: Any) -> TrajectoryPath:
    config = RunConfig.from_plain({"behaviors": {"Ball": {}}, "pipeline": pipeline})
    stages = StageHost("main", folder, 0, None, StatisticsCollector(0), None, sent.append)
    return TrajectoryPath(route(config, "Ball"), config, stages, publisher or PolicyPublisher())


def fed(*items: Any) -> Queue:
    receiver = Queue("receiver", 4)
    for item in items:
        receiver.put_nowait(item)
    receiver.close()
    return receiver


async def test_students_get_copies_under_their_own_names(tmp_path):
    path, learner, student = path_in(tmp_path, []), Queue("learn/Ball", 4), Queue("learn/Student", 4)
    path.students["Student"] = student
    await asyncio.gather(*path.trajectories(fed(trajectories()), learner))
    assert [batch.behavior_id async for batch in learner] == ["Ball?team=0"]
    assert [batch.behavior_id async for batch in student] == ["Student?team=0"]


@pytest.mark.parametrize("saved", [False, True], ids=["in the stream", "at a failure"])
async def test_custom_stages_in_main_are_on_the_way(saved, tmp_path, caplog):
    sent: list[Any] = []
    keeper = {"use": f"{__name__}:Keeper", "name": "keeper", "host": "main"}
    path, learner = path_in(tmp_path, sent, stages=[keeper]), Queue("learn/Ball", 4)
    if saved:
        parts: list[Any] = []
        path.save_now(lambda name, state: parts.append((name, state)))
        assert parts == [("keeper-Ball", None)]
        assert "stage keeper-Ball can't be saved" in caplog.text
        return
    await asyncio.gather(*path.trajectories(fed(trajectories()), learner))
    assert learner.empty()
    assert sent == [CreditsReturned("keeper-Ball@main", "Ball", 0, 2)]


async def test_a_stage_that_failed_during_state_dict_is_not_called_again(tmp_path):
    keeper = {"use": f"{__name__}:Keeper", "name": "keeper", "host": "main"}
    path, parts = path_in(tmp_path, [], stages=[keeper]), list[Any]()
    (runner,) = path.trajectories(fed(Barrier(0)), Queue("learn/Ball", 4))
    before = Keeper.asked
    with pytest.raises(StageFailure, match="keeper-Ball failed saving its part of checkpoint 0"):
        await runner
    path.save_now(lambda name, state: parts.append((name, state)))
    assert Keeper.asked == before + 1
    assert parts == [("keeper-Ball", None)]


async def test_a_publisher_that_fails_is_named(tmp_path):
    def fail(update):
        raise BrokenPipeError("the actor is gone")

    publisher = PolicyPublisher(PublisherPort(send=fail))
    updates: Queue = AgentManagerQueue("updates", 1)
    (carry,) = path_in(tmp_path, [], publisher).policies(updates)
    await updates.put(policy_update("Ball", version=1))
    with pytest.raises(
        StageFailure, match="stage publisher failed on PolicyUpdate of Ball .version 1.: BrokenPipeError"
    ):
        await carry
