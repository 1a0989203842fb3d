"""The hosts of a run: which of them are in one process."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from headrace.config import RunConfig
from headrace.config.host_kinds import HOST_KINDS, HostKind
from headrace.pipeline.hosts.protocol import HostPlan
from headrace.pipeline.main.launcher import RunningHosts


class TwoProcesses:
    """A kind of host whose hosts are in one process, but for `alone`."""

    def __init__(self, *_: object) -> None: ...

    async def start(self, plan: HostPlan, *_: object) -> Any:
        return SimpleNamespace(plan=plan, pid=8 if plan.name == "alone" else 7, close=lambda: None)


async def test_hosts_that_share_a_process_are_known_until_they_end(monkeypatch):
    monkeypatch.setitem(HOST_KINDS, "two", HostKind("two", f"{__name__}:TwoProcesses"))
    async with asyncio.TaskGroup() as tasks:
        running = RunningHosts(RunConfig.from_plain({"behaviors": {"Ball": {}}}), tasks, lambda host: None)
        first, _, alone = [
            await running.start("two", HostPlan("actor", name, {}, None, "", 0)) for name in ("one", "other", "alone")
        ]
        assert (running.sharers(first), running.sharers(alone)) == (["other"], [])
        running.mark_ended("other")
        assert running.sharers(first) == []
