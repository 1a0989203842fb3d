"""The hosts of a run: who is there, who has ended, and that none is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from headrace.config import RunConfig
from headrace.config.host_kinds import HOST_KINDS, HostKind
from headrace.pipeline.control import local_pair
from headrace.pipeline.hosts.inline import InlineHost, InlineHosts, LocalEdges
from headrace.pipeline.hosts.protocol import HostPlan
from headrace.pipeline.main.launcher import RunningHosts

pytestmark = pytest.mark.virtual_time


class IdleHosts(InlineHosts):
    """A kind of host that does nothing until main closes its control channel; one called deaf does not even then."""

    async def start(self, plan: HostPlan, feed: Any = None, replaces: Any = None) -> InlineHost:
        control, theirs = local_pair(plan.name)

        async def idle() -> bool:
            async for _ in theirs.receive():
                pass
            if plan.name == "deaf":
                await asyncio.Event().wait()
            return True

        return InlineHost(plan, self._maxlen, control, LocalEdges(), self._tasks.create_task(idle()))


def plan_of(name: str) -> HostPlan:
    return HostPlan("actor", name, {}, None, "", 0)


@pytest.fixture(autouse=True)
def _kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(HOST_KINDS, "idle", HostKind("idle", f"{__name__}:IdleHosts", in_main=True))


@asynccontextmanager
async def hosts_of_a_run() -> AsyncIterator[RunningHosts]:
    """Hosts that are marked as ended when they end, as the coordinator does it."""
    async with asyncio.TaskGroup() as tasks:

        async def mark_at_its_end(host: Any) -> None:
            await host.wait()
            if running.current(host):
                running.mark_ended(host.plan.name)

        def watch(host: Any) -> None:
            tasks.create_task(mark_at_its_end(host))

        running = RunningHosts(RunConfig.from_plain({"behaviors": {"Ball": {}}}), tasks, watch)
        yield running
        running.close()


async def test_a_replacement_takes_the_name_of_the_host_that_it_replaces():
    async with hosts_of_a_run() as running:
        first = await running.start("idle", plan_of("actor-0"))
        first.kill()
        await running.wait_all()
        second = await running.start("idle", plan_of("actor-0"), replaces=first)
        assert (running.current(first), running.current(second)) == (False, True)
        assert running.get("actor-0") is second
        assert not running.has_ended("actor-0")


async def test_dismissed_hosts_end_by_themselves_and_the_deaf_are_killed(caplog):
    async with hosts_of_a_run() as running:
        hosts = [await running.start("idle", plan_of(name)) for name in ("actor-0", "deaf")]
        running.dismiss_all(5.0)
        await running.wait_all()
        assert [await host.wait() for host in hosts] == [0, 1]
        assert caplog.messages == ["deaf did not end within 5 s; killing it."]


async def test_a_run_without_hosts_has_none_to_wait_for():
    async with hosts_of_a_run() as running:
        running.dismiss_all(5.0)
        await running.wait_all()


async def test_closing_kills_every_host():
    async with hosts_of_a_run() as running:
        host = await running.start("idle", plan_of("actor-0"))
        running.close()
        assert await host.wait() == 1


async def test_hosts_of_one_kind_share_a_factory():
    async with hosts_of_a_run() as running:
        assert running.factory("idle") is running.factory("idle")


async def test_hosts_that_share_a_process_are_known_until_they_end(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(InlineHost, "pid", property(lambda host: 7 + (host.plan.name == "alone")), raising=False)
    async with hosts_of_a_run() as running:
        first, _, alone = [await running.start("idle", plan_of(name)) for name in ("one", "two", "alone")]
        assert running.sharers(first) == ["two"]
        assert running.sharers(alone) == []
        running.mark_ended("two")
        assert running.sharers(first) == []
        running.dismiss_all(1)
