"""Policies that wait to be evaluated: of each behaviour the newest, from queues that may be added at any time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fakes import policy_update

from headrace.pipeline.parts.evaluation import WaitingPolicies
from headrace.queues.agent_manager_queue import AgentManagerQueue

pytestmark = pytest.mark.virtual_time


def queue_of(name: str, *versions: int) -> AgentManagerQueue[Any]:
    queue: AgentManagerQueue[Any] = AgentManagerQueue(name, 8)
    for version in versions:
        queue.put_nowait(policy_update(name, version))
    return queue


async def test_the_newest_policy_of_each_behaviour_is_taken_and_the_longest_waiting_behaviour_first():
    policies, taken = WaitingPolicies(), []
    async with asyncio.TaskGroup() as tasks:
        for queue in (queue_of("Ball", 1, 2, 3), queue_of("Goalie", 7)):
            tasks.create_task(policies.follow(queue))
            queue.close()
        await asyncio.sleep(1.0)
        async for policy in policies:
            taken.append((policy.behavior_id, policy.version))
    assert taken == [("Ball", 3), ("Goalie", 7)]


async def test_a_queue_that_is_added_while_a_policy_is_played_is_taken_from():
    ended: list[bool] = []
    policies, taken = WaitingPolicies(lambda: ended.append(True)), []
    first, second = queue_of("Ball", 1), queue_of("Goalie", 2)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(policies.follow(first))
        async for policy in policies:
            taken.append(policy.version)
            if policy.version == 1:
                tasks.create_task(policies.follow(second))
            else:
                assert not ended
                first.close()
                second.close()
    assert (taken, ended) == ([1, 2], [True])


async def test_a_waiting_policy_is_taken_after_the_last_queue_has_ended():
    ended: list[bool] = []
    policies = WaitingPolicies(lambda: ended.append(True))
    queue = queue_of("Ball", 5)
    queue.close()
    await policies.follow(queue)
    assert ended
    assert [policy.version async for policy in policies] == [5]
