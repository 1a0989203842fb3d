"""What hosts of every kind must do, and the queues to and from them: one suite over the table of kinds."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest
from hosts_of_a_kind import FarReceiver, FarSender, Hosts, Peer, configuration, hosts_of, without_torch
from queue_conformance import Ends, check_queue, number_of, numbered
from scripted_host import words_of

from headrace.config.host_kinds import HOST_KINDS, HostKind
from headrace.pipeline.control import (
    CreditsReturned,
    HostFailed,
    HostFinished,
    LogLine,
    PreparationNotice,
    StatisticsReport,
)
from headrace.queues.errors import QueueClosed
from headrace.queues.messages import Barrier

TESTS = Path(__file__).parents[2]
PLAIN = "process, plain"
"""Process hosts without what Linux has."""
NOT_IN_MAIN = "what ends, stops or holds a host in main's own event loop does the same to main"
"""Why some promises are for hosts beside main alone."""

OpenHosts = Callable[[], AbstractAsyncContextManager[Hosts]]


@pytest.fixture(scope="module")
def one_ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One Ray for all tests of this module, as if a script had started one before the run."""
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    from headrace.pipeline.hosts.ray.hosts import RaySession

    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYTHONPATH", os.pathsep.join([str(TESTS.parent), str(TESTS)]))
        session = RaySession(configuration("ray"))
        yield
        session.close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each kind of hosts; `make fast` has those in main, and on Ray, where each takes a second, most are slow tests."""
    if "kind" in metafunc.fixturenames:
        kinds = [pytest.param(kind, marks=marks_of(HOST_KINDS[kind])) for kind in HOST_KINDS]
        metafunc.parametrize("kind", [*kinds, pytest.param(PLAIN, marks=pytest.mark.slow)], indirect=True)


def marks_of(kind: HostKind) -> Sequence[pytest.MarkDecorator]:
    if kind.on_ray:
        return [pytest.mark.slow]
    return [] if kind.in_main else [pytest.mark.lengthy]


@pytest.fixture
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each kind of hosts."""
    if request.param == PLAIN:
        monkeypatch.setenv("HEADRACE_PLATFORM", "plain")
        return "process"
    if HOST_KINDS[request.param].on_ray:
        request.getfixturevalue("one_ray")
    return str(request.param)


@pytest.fixture
def opened(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OpenHosts:
    """Opens hosts of the kind."""
    monkeypatch.syspath_prepend(TESTS)
    if kind == "process":
        without_torch(tmp_path, monkeypatch)
    return lambda: hosts_of(kind, tmp_path)


@pytest.fixture
def beside_main(kind: str) -> None:
    """For promises that hosts in main can't keep."""
    if HOST_KINDS[kind].in_main:
        pytest.skip(NOT_IN_MAIN)


async def from_host(hosts: Hosts, peer: Peer, name: str) -> Ends:
    """A queue from a host to main."""
    receiver = await hosts.factory.gather(name, [peer.handle]).open()
    return FarSender(peer, name), receiver  # type: ignore[return-value]


async def to_host(peer: Peer, name: str) -> Ends:
    """A queue from main to a learner."""
    return await peer.handle.sender(name), FarReceiver(peer, name)  # type: ignore[return-value]


# Queues. A process takes a second to start, so each test asks as much of its hosts as it can. --------------------------


async def test_queues_from_an_actor_pass_the_queue_checks_and_its_replacement_continues_in_them(
    opened: OpenHosts, kind: str
):
    async with opened() as hosts:
        peer, numbers = await hosts.start("actor-0"), itertools.count()

        @asynccontextmanager
        async def make(maxlen: int) -> AsyncIterator[Ends]:
            sender, receiver = await from_host(hosts, peer, f"out/{next(numbers)}")
            async with hosts.closing(sender, receiver):
                yield sender, receiver

        await check_queue(make, one_loop=False)
        await the_newest_policy_comes(hosts, await peer.handle.sender("in", newest=True), FarReceiver(peer, "in"))
        sender, receiver = await from_host(hosts, peer, "out")
        async with hosts.closing(receiver):
            await sender.put(numbered(0))
            assert number_of(await receiver.get()) == 0
            if not HOST_KINDS[kind].in_main:
                peer.handle.kill()
                await peer.end()
                first, peer = peer, await hosts.start("actor-0", replaces=peer.handle)
                first.handle.close()
                later = FarSender(peer, "out")
                for number in (1, 2):
                    await later.put(numbered(number))
                    assert number_of(await receiver.get()) == number
            await what_a_killed_host_had_put_arrives_once(peer, FarSender(peer, "out"), receiver)


async def what_a_killed_host_had_put_arrives_once(peer: Peer, sender: Any, receiver: Any) -> None:
    """Then the stream ends; what was on its way may be lost with the host."""
    await sender.put(numbered(7))
    peer.handle.kill()
    assert await peer.end() != 0
    peer.handle.rule_out_successor()
    assert [number_of(item) async for item in receiver] in ([7], [])


async def the_newest_policy_comes(hosts: Hosts, sender: Any, receiver: Any) -> None:
    """A queue of policies never lets its producer wait."""
    async with hosts.closing(sender, receiver):
        for number in range(20):
            await sender.put(numbered(number))
        taken = [number_of(await receiver.get())]
        while taken[-1] != 19:
            taken.append(number_of(await receiver.get()))
        assert taken == sorted(taken)


async def test_queues_to_a_learner_are_queues_and_their_producer_learns_of_its_death(opened: OpenHosts):
    async with opened() as hosts:
        peer, numbers = await hosts.start("learner-Ball", "learner"), itertools.count()

        @asynccontextmanager
        async def make(maxlen: int) -> AsyncIterator[Ends]:
            sender, receiver = await to_host(peer, f"in/{next(numbers)}")
            async with hosts.closing(sender, receiver):
                yield sender, receiver

        await check_queue(make, one_loop=False)
        await the_newest_policy_comes(hosts, FarSender(peer, "out"), await peer.handle.receiver("out"))
        sender, receiver = await to_host(peer, "in")
        async with hosts.closing(sender):
            await sender.put(Barrier(0))
            assert await receiver.get() == Barrier(0)
            peer.handle.kill()
            await peer.end()
            peer.handle.rule_out_successor()
            with pytest.raises(QueueClosed):
                for number in range(10):
                    await sender.put(Barrier(number))


async def test_actors_put_straight_into_a_learner_s_queue_which_ends_with_the_last_of_them(opened: OpenHosts):
    async with opened() as hosts:
        actors = [await hosts.start(f"actor-{i}") for i in range(2)]
        feed = hosts.factory.gather("feed", [actor.handle for actor in actors])
        learner = await hosts.start("learner-Ball", "learner", feed)

        async def produce(actor: Peer, first: int) -> None:
            sender = FarSender(actor, "feed")
            for number in range(first, first + 10):
                await sender.put(numbered(number))
            sender.close()

        async with asyncio.TaskGroup() as tasks:
            for i, actor in enumerate(actors):
                tasks.create_task(produce(actor, 100 * i))
            taken = [number_of(item) async for item in FarReceiver(learner, "feed")]
        for first in (0, 100):
            assert [number for number in taken if first <= number < first + 100] == [*range(first, first + 10)]
        assert len(taken) == 20


# Life and death. ------------------------------------------------------------------------------------------------------


async def test_a_host_answers_in_order_logs_prepares_itself_and_says_that_it_has_ended_well(
    opened: OpenHosts, caplog: pytest.LogCaptureFixture
):
    async with opened() as hosts:
        peer = await hosts.start("actor-0")
        await asyncio.gather(*(peer.order("tell", value=number) for number in range(300)))
        told = [message.total for message in peer.heard if isinstance(message, CreditsReturned)]
        assert told == [*range(300)]
        await peer.order("log", value="all is well")
        assert "all is well" in caplog.text or await peer.until(LogLine, text="all is well")
        peer.order("prepare itself")
        await peer.until(PreparationNotice, begins=False)
        prepared = [message for message in peer.heard if isinstance(message, PreparationNotice)]
        assert prepared == [PreparationNotice(begins=True), PreparationNotice(begins=False)]
        peer.order("end")
        assert await peer.end() == 0
        assert isinstance(peer.heard[-1], HostFinished)


@pytest.mark.lengthy
async def test_a_host_gives_signs_of_life_reports_its_queues_and_ends_when_main_says_no_more(opened: OpenHosts):
    async with opened() as hosts:
        peer = await hosts.start("actor-0")
        _, receiver = await from_host(hosts, peer, "out")
        async with hosts.closing(receiver):
            for _ in range(2):
                report = await peer.until(StatisticsReport)
                peer.heard.clear()
            assert [queue["name"] for queue in report.queues] == ["out"]
            assert sys.platform != "linux" or (report.cpu_s > 0 and report.memory > 2**20)
        peer.handle.control.close()
        await peer.handle.wait()


@pytest.mark.parametrize(
    ("what", "said"),
    [("raise", "the motor is on fire"), pytest.param("raise SystemExit", "SystemExit", marks=pytest.mark.slow)],
)
async def test_a_host_that_fails_says_why_last_and_ends_with_status_1(opened: OpenHosts, what: str, said: str):
    async with opened() as hosts:
        peer = await hosts.start("actor-0")
        peer.order(what)
        assert await peer.end() == 1
        failed = peer.heard[-1]
        assert isinstance(failed, HostFailed)
        assert said in failed.message
        assert "scripted_host.py" in failed.traceback


async def test_a_host_that_can_not_be_made_says_why(opened: OpenHosts):
    async with opened() as hosts:
        peer = await hosts.start("actor-0", host_class="scripted_host:NoSuchHost")
        assert await peer.end() == 1
        assert "NoSuchHost" in (await peer.until(HostFailed)).message


@pytest.mark.parametrize(
    ("what", "value"), [("os._exit", 0), pytest.param("os._exit", 3, marks=pytest.mark.slow), ("kill -9", None)]
)
async def test_a_host_that_dies_takes_what_it_has_started_with_it(
    opened: OpenHosts, beside_main: None, what: str, value: int | None, monkeypatch: pytest.MonkeyPatch
):
    on_linux = sys.platform == "linux"  # elsewhere what hosts leave behind is not found
    if on_linux:
        monkeypatch.delenv("HEADRACE_PLATFORM", raising=False)
    async with opened() as hosts:
        peer = await hosts.start("actor-0")
        pid = await peer.order("pid")
        program = await peer.order("start a program") if on_linux else pid
        peer.order(what, value=value)
        status = await peer.end()
        assert status != 0 or value == 0
        assert not [message for message in peer.heard if isinstance(message, HostFinished | HostFailed)]
        assert not is_running(pid)
        await asyncio.to_thread(wait_until, lambda: not is_running(program))


async def test_an_item_put_before_a_hang_arrives_and_the_hanging_host_can_be_described_and_killed(
    opened: OpenHosts, beside_main: None
):
    async with opened() as hosts:
        peer = await hosts.start("actor-0")
        sender, receiver = await from_host(hosts, peer, "out")
        async with hosts.closing(receiver):
            await sender.put(numbered(0))
            assert number_of(await receiver.get()) == 0
            peer.order("put and hang", "out", words_of(numbered(1)))
            assert number_of(await receiver.get()) == 1
            while "hang_in_a_loop" not in await peer.handle.describe():
                pass
            peer.handle.kill()
            assert await peer.end() < 0
            peer.handle.rule_out_successor()


async def test_a_host_that_is_stopped_or_prepares_itself_can_be_killed(opened: OpenHosts, beside_main: None):
    async with opened() as hosts:
        peer = await hosts.start("actor-0")
        pid = await peer.order("pid")
        if sys.platform != "win32":  # there is no SIGSTOP
            os.kill(pid, signal.SIGSTOP)
            await asyncio.to_thread(wait_until, lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)
            assert "stopped" in await peer.handle.describe()
            os.kill(pid, signal.SIGCONT)
        peer.order("hang while it prepares itself")
        await peer.until(PreparationNotice, begins=True)
        peer.handle.kill()
        assert await peer.end() < 0
        assert PreparationNotice(begins=False) not in peer.heard


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for what another process does, of which nobody tells."""
    while not condition():
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    """Whether there is such a process, and it has not ended."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.lengthy
async def test_hosts_that_have_come_and_gone_leave_no_descriptor_and_no_task(opened: OpenHosts):
    async def come_and_go() -> None:
        async with opened() as hosts:
            peer = await hosts.start("actor-0")
            sender, receiver = await from_host(hosts, peer, "out")
            async with hosts.closing(receiver):
                await sender.put(numbered(0))
                assert number_of(await receiver.get()) == 0
        gc.collect()  # what was taken is memory that is shared with the host
        await asyncio.sleep(0)  # a transport that was closed gives its socket back in the loop's next turn

    await come_and_go()  # what is opened once for all
    descriptors, tasks = psutil.Process().num_fds(), len(asyncio.all_tasks())
    await come_and_go()
    assert len(asyncio.all_tasks()) <= tasks
    assert psutil.Process().num_fds() <= descriptors
