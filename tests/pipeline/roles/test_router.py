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

pytestmark = pytest.mark.virtual_time


def opened(router: Router, behavior: str) -> AgentManagerQueue[Any]:
    queue: AgentManagerQueue[Any] = AgentManagerQueue(f"trajectories/{behavior}", 4)
    router.open(behavior, queue)
    return queue


async def test_each_behaviour_s_trajectories_go_to_its_own_queue():
    router = Router()
    ball, goalie = opened(router, "Ball"), opened(router, "Goalie")
    await router.put(trajectories(behavior_id="Ball?team=1"))
    assert (ball.qsize(), goalie.qsize()) == (1, 0)


async def test_a_barrier_waits_for_the_queue_of_a_behaviour_that_was_announced():
    router, barrier = Router(), Barrier(3)
    ball = opened(router, "Ball")
    router.expect("Goalie")
    put = asyncio.create_task(router.put(barrier))
    await until_blocked()
    assert not put.done()
    goalie = opened(router, "Goalie")
    await put
    assert (ball.get_nowait(), goalie.get_nowait()) == (barrier, barrier)


async def test_trajectories_wait_for_a_place_in_their_queue():
    router, full = Router(), AgentManagerQueue[Any]("trajectories/Ball", 1)
    router.open("Ball", full)
    await router.put(trajectories())
    second = asyncio.create_task(router.put(trajectories(1)))
    await until_blocked()
    assert not second.done()
    full.get_nowait()
    await second


async def test_closing_leaves_the_queues_open_to_the_end_of_the_host():
    router = Router()
    queue = opened(router, "Ball")
    router.close()
    assert not queue.closed
