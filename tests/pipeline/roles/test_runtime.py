"""How a host ends: what main hears, and what those who take from the host see."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.pipeline.control import HostFailed, HostFinished, OpenEdge, local_pair
from headrace.pipeline.hosts.inline import LocalEdges
from headrace.pipeline.hosts.protocol import HostPlan
from headrace.pipeline.roles.runtime import Host
from headrace.queues.agent_manager_queue import AgentManagerQueue

pytestmark = pytest.mark.virtual_time


class Short(Host):
    """Opens its stream, and ends at once: well, or with an error."""

    def __init__(self, *all_hosts: Any, error: Exception | None) -> None:
        super().__init__(*all_hosts)
        self._error = error

    async def _work(self) -> None:
        await self.open_sender(OpenEdge("trajectories/Ball", {}))
        if self._error is not None:
            raise self._error

    async def _listen(self) -> None:
        await asyncio.Event().wait()


@pytest.mark.parametrize(("error", "last"), [(None, HostFinished), (ValueError("the motor is on fire"), HostFailed)])
async def test_its_streams_end_with_it_and_not_before_it_said_how_it_failed(error, last):
    queue: AgentManagerQueue[Any] = AgentManagerQueue("trajectories/Ball", 2)
    edges, (main, theirs) = LocalEdges(), local_pair("actor-0")
    edges.ends["trajectories/Ball"] = queue
    told: list[tuple[Any, bool]] = []

    class Telling:
        """The host's end of the channel; notes down with each message whether the stream has ended by then."""

        def send(self, message: Any) -> None:
            told.append((message, queue.closed))

        drain, receive, close = theirs.drain, theirs.receive, theirs.close

    host = Short(HostPlan("actor", "actor-0", {"behaviors": {"Ball": {}}}, None, "", 0), Telling(), edges, error=error)
    assert await host.run() is (error is None)
    message, ended_before = told[-1]
    assert isinstance(message, last)
    assert queue.closed
    if error is not None:
        assert not ended_before
    main.close()
