"""Specifications of hosts in main's event loop: their ends of queues."""

from __future__ import annotations

import pytest

from pipeline.hosts.inline import LocalEdges
from queues.agent_manager_queue import AgentManagerQueue


async def test_an_end_that_was_put_down_is_picked_up_once():
    edges, queue = LocalEdges(), AgentManagerQueue("trajectories/Ball", 2)
    address = edges.put_down(queue)
    other = edges.put_down("another end")
    assert address != other
    assert await edges.open_outlet("trajectories/Ball", address) is queue
    assert await edges.open_inlet("policies/Ball", other) == "another end"
    with pytest.raises(KeyError):
        await edges.open_inlet("trajectories/Ball", address)
