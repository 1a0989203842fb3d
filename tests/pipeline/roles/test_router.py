"""The router: trajectories go to their behaviour's queue, barriers to all that there are or will be."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from stream_samples import trajectories
from virtual_time import until_blocked

from headrace.pipeline.roles.senders import Router
from headrace.queues.agent_manager_queue import AgentManagerQueue
from headrace.queues.messages import Barrier


@pytest.mark.virtual_time
async def test_a_barrier_waits_for_the_queue_of_a_behaviour_that_was_announced():
    router, barrier = Router(), Barrier(3)
    ball, goalie = AgentManagerQueue[Any]("trajectories/Ball", 4), AgentManagerQueue[Any]("trajectories/Goalie", 4)
    router.open("Ball", ball)
    await router.put(trajectories(behavior_id="Ball?team=1"))
    router.expect("Goalie")
    put = asyncio.create_task(router.put(barrier))
    await until_blocked()
    assert not put.done()
    router.open("Goalie", goalie)
    await put
    assert (ball.qsize(), goalie.get_nowait()) == (2, barrier)
