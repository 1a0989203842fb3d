"""Specifications of hosts in main's event loop: their ends of queues."""

from __future__ import annotations

import pytest

from headrace.pipeline.hosts.inline import LocalEdges
from headrace.queues.agent_manager_queue import AgentManagerQueue


async def test_an_end_that_main_has_left_is_opened_once():
    edges, queue = LocalEdges(), AgentManagerQueue("trajectories/Ball", 2)
    edges.ends |= {"trajectories/Ball": queue, "policies/Ball": "another end"}
    assert await edges.open_sender("trajectories/Ball", {}) is queue
    assert await edges.open_receiver("policies/Ball", {}) == "another end"
    with pytest.raises(KeyError):
        await edges.open_receiver("trajectories/Ball", {})
