"""Main's messages to actors, and the actors that they reach: all, one, or those that use a policy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fakes import policy_update

from headrace.config import RunConfig
from headrace.config.host_kinds import HOST_KINDS, HostKind
from headrace.pipeline.control import Grant, LocalControl, OpenEdge, Stop, local_pair
from headrace.pipeline.hosts.inline import InlineHost, InlineHosts, LocalEdges
from headrace.pipeline.main.launcher import Broadcaster, Launcher, RunningHosts
from headrace.pipeline.main.run_plan import RunPlan
from headrace.pipeline.run_folder.folder import RunFolder

pytestmark = pytest.mark.virtual_time


class SilentHosts(InlineHosts):
    """A kind of host that does nothing; what main has sent lies in its end of the channel."""

    ends: dict[str, LocalControl] = {}

    async def start(self, plan: Any, feed: Any = None, replaces: Any = None) -> InlineHost:
        control, self.ends[plan.name] = local_pair(plan.name)
        task = self._tasks.create_task(asyncio.Event().wait())
        return InlineHost(plan, self._maxlen, control, LocalEdges(), task)


async def received(name: str) -> list[Any]:
    """Close the channel to a host, and return what was sent there, but for ends of queues."""
    messages = [message async for message in SilentHosts.ends[name].receive()]
    return [message for message in messages if not isinstance(message, OpenEdge)]


@pytest.fixture(autouse=True)
def _kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(HOST_KINDS, "silent", HostKind("silent", f"{__name__}:SilentHosts", in_main=True))
    monkeypatch.setattr(SilentHosts, "ends", {})


@asynccontextmanager
async def two_actors(folder: Path) -> AsyncIterator[tuple[Launcher, RunningHosts]]:
    hosts = {"actors": {"kind": "silent", "replicas": 2}, "learners": {"kind": "silent"}}
    config = RunConfig.from_plain(
        {"behaviors": {"Ball": {}}, "environment": {"kind": "builtin", "id": "Volley"}, "pipeline": {"hosts": hosts}}
    )
    with RunFolder.create(folder, "run") as made:
        async with asyncio.TaskGroup() as tasks:
            running = RunningHosts(config, tasks, lambda host: None)
            launcher = Launcher(RunPlan(config, made, 0, None), running)
            for replica in range(2):
                await launcher.start_actor(replica, f"actor-{replica}")
            yield launcher, running
            running.close()


async def test_a_message_to_all_reaches_each_actor_and_a_grant_its_own(tmp_path):
    grant = Grant(source=1, number=4, caps={"Ball": 8}, versions={"Ball": 2})
    async with two_actors(tmp_path) as (launcher, running):
        broadcaster = Broadcaster(launcher)
        broadcaster.send_to_sources(Stop())
        broadcaster.grant([grant])
        running.close()
        assert await received("actor-0") == [Stop()]
        assert await received("actor-1") == [Stop(), grant]


async def test_a_grant_for_an_actor_that_was_replaced_goes_to_nobody(tmp_path):
    async with two_actors(tmp_path) as (launcher, running):
        old = launcher.actors[1]
        old.handle.kill()
        new = await launcher.start_actor(1, "actor-1", old)
        Broadcaster(launcher).grant([Grant(old.source, 0, {}, {})])
        running.close()
        assert (old.source, new.source) == (1, 2)
        assert await received("actor-1") == []
        assert (launcher.slot_of(old.handle), launcher.slot_of(new.handle)) == (None, new)


async def test_a_policy_goes_to_actors_with_such_agents_and_later_ones_catch_up(tmp_path):
    async with two_actors(tmp_path) as (launcher, _):
        broadcaster = Broadcaster(launcher)
        first, second = launcher.actors.values()
        broadcaster.publisher.add_behavior("Ball")
        await launcher.open_policies(first, "Ball")
        list(broadcaster.publisher.process(policy_update("Ball", 3)))
        assert first.policies["Ball"].statistics().items_in == 1
        await launcher.open_policies(second, "Ball")
        broadcaster.catch_up(second, "Ball")
        assert second.policies["Ball"].statistics().items_in == 1


async def test_a_policy_for_an_actor_that_has_ended_is_dropped(tmp_path):
    async with two_actors(tmp_path) as (launcher, _):
        broadcaster = Broadcaster(launcher)
        broadcaster.publisher.add_behavior("Ball")
        slot = launcher.actors[0]
        await launcher.open_policies(slot, "Ball")
        slot.policies["Ball"].close()
        list(broadcaster.publisher.process(policy_update("Ball", 3)))
        assert slot.policies["Ball"].statistics().items_in == 0
