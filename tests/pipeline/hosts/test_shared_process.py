"""Learners that share a process: what one does or suffers by itself ends no other; what the process suffers ends all."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
from collections import Counter
from pathlib import Path

import psutil
import pytest
from hosts_of_a_kind import FarReceiver, hosts_of, without_torch
from queue_conformance import numbered
from run_configs import cartpole

from headrace.config import ConfigError, RunConfig
from headrace.pipeline.common.errors import RunError
from headrace.pipeline.control import HostFailed, HostFinished, LogLine
from headrace.pipeline.hosts.early_children import learner_processes
from headrace.pipeline.hosts.process import ProcessHosts
from headrace.queues.errors import QueueClosed


@pytest.fixture
def hosts(tmp_path, monkeypatch, request):
    monkeypatch.syspath_prepend(request.config.rootpath / "tests")
    without_torch(tmp_path, monkeypatch)
    return lambda: hosts_of("process", tmp_path)


async def two(hosts):
    """Two learners of one process; the scripted ones are of no behaviour, so they are taken for one that is not listed."""
    first, second = await hosts.start("learner-A", "learner"), await hosts.start("learner-B", "learner")
    assert await first.order("pid") == await second.order("pid") == first.handle.pid == second.handle.pid
    return first, second


@pytest.mark.lengthy
async def test_each_has_its_own_channel_and_queues_and_ends_alone_and_the_process_ends_with_the_last(hosts):
    async with hosts() as opened:
        first, second = await two(opened)
        third = await opened.start("learner-C", "learner")
        process = psutil.Process(first.handle.pid)
        await channels_are_apart(first, second)
        await none_waits_for_the_others_consumer(opened, first, second)
        queue = await first.handle.sender("in/of the failed")
        first.order("raise")
        assert await first.end() == 1
        assert "the motor is on fire" in (await first.until(HostFailed)).message
        first.handle.kill()  # it has ended already: nobody else is
        async with opened.closing(queue):
            first.handle.rule_out_successor()
            with pytest.raises(QueueClosed):  # as of a dead process
                for number in itertools.count():
                    await queue.put(numbered(number))
        second.order("end")
        assert await second.end() == 0
        assert await third.order("pid") == process.pid
        third.order("end")
        assert await third.end() == 0
        assert isinstance(third.heard[-1], HostFinished)
        await asyncio.to_thread(process.wait, 20)
        later = await opened.start("learner-D", "learner")
        assert await later.order("pid") != process.pid


async def channels_are_apart(first, second):
    for peer in (first, second):
        await peer.order("log", value=f"said by {peer.handle.plan.name}")
        await peer.until(LogLine, text=f"said by {peer.handle.plan.name}")
    assert not [each for each in second.heard if isinstance(each, LogLine) and "learner-A" in each.text]


async def none_waits_for_the_others_consumer(opened, first, second):
    full = await first.handle.sender("in/full")
    async with opened.closing(full):
        for number in range(2):
            await full.put(numbered(number))
        waiting = asyncio.ensure_future(full.put(numbered(2)))  # nobody takes it
        free = await second.handle.sender("in/free")
        async with opened.closing(free):
            for number in range(9):
                await free.put(numbered(number))
                await FarReceiver(second, "in/free").get()
        assert not waiting.done()
        await FarReceiver(first, "in/full").get()
        await waiting


@pytest.mark.lengthy
async def test_a_killed_process_ends_all_its_learners_and_their_replacements_share_a_new_one(hosts, monkeypatch):
    """A start that fails halfway ends them too, even if no task awaits it."""
    async with hosts() as opened:
        first, second = await two(opened)
        killed = first.handle.pid
        second.order("hang")
        while "hang_in_a_loop" not in await first.handle.describe():
            pass
        assert all(
            "hang_in_a_loop" in each for each in await asyncio.gather(first.handle.describe(), second.handle.describe())
        )
        first.handle.kill()
        assert (await first.end(), await second.end()) == (-9, -9)
        for peer in (first, second):
            assert not [message for message in peer.heard if isinstance(message, HostFinished | HostFailed)]
        again = [await opened.start(each.handle.plan.name, "learner", replaces=each.handle) for each in (first, second)]
        assert len({await each.order("pid") for each in again} - {killed}) == 1

        def limited(*given):
            raise OSError(24, "too many open files")

        monkeypatch.setattr(socket, "send_fds", limited)
        with pytest.raises(RunError, match="learner-C can't be started"):
            await opened.start("learner-C", "learner")
        assert [await each.end() for each in again] == [-9, -9]


def listed(count, **changes):
    plain = cartpole(environment__behavior="B0", **changes)
    plain["behaviors"] = {f"B{number}": {"trainer_type": "ppo"} for number in range(count)}
    return RunConfig.from_plain(plain)


@pytest.mark.parametrize(
    ("behaviors", "changes", "processes"),
    [(1, {}, 1), (2, {}, 2), (8, {}, 4), (8, {"processes": 1}, 1), (8, {"processes": 100}, 8), (8, {"replicas": 2}, 8)],
)
def test_by_default_there_are_as_many_processes_as_cores_and_as_many_learners_in_each(
    monkeypatch, behaviors, changes, processes
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(4), raising=False)
    monkeypatch.setattr("headrace.pipeline.common.process.CONTROL_GROUPS", Path("nowhere"))
    config = listed(behaviors, **{f"pipeline__hosts__learners__{key}": value for key, value in changes.items()})
    shares = Counter(learner_processes(config).values())
    assert (len(shares), max(shares.values())) == (processes, behaviors // processes)


async def test_a_behaviour_that_was_not_listed_learns_where_the_fewest_do():
    async with asyncio.TaskGroup() as tasks:
        factory = ProcessHosts(listed(3, pipeline__hosts__learners__processes=2), tasks)
    assert factory.process_of("Late") == "learner-B1"
    assert factory.process_of("Later") in ("learner-B0", "learner-B1")
    assert factory.process_of("Late") == "learner-B1"


@pytest.mark.parametrize("value", [0, -1, 257, "many", True, 1.5])
def test_an_invalid_number_of_processes_is_refused(value):
    with pytest.raises(ConfigError, match="expected 'auto' or a whole number from 1 to 256"):
        listed(1, pipeline__hosts__learners__processes=value)
