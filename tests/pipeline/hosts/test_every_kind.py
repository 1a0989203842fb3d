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
from hosts_of_a_kind import FarInlet, FarOutlet, Hosts, Peer, configuration, hosts_of
from queue_conformance import Ends, check_queue, number_of, numbered
from scripted_host import words_of

from headrace.config.host_kinds import HOST_KINDS, HostKind
from headrace.pipeline.control.messages import (
    CreditsReturned,
    HostFailed,
    HostFinished,
    LogLine,
    Preparing,
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
    from headrace.pipeline.hosts.ray.session import RaySession

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
    return lambda: hosts_of(kind, tmp_path)


@pytest.fixture
def beside_main(kind: str) -> None:
    """For promises that hosts in main can't keep."""
    if HOST_KINDS[kind].in_main:
        pytest.skip(NOT_IN_MAIN)


async def from_host(hosts: Hosts, peer: Peer, name: str) -> Ends:
    """A queue from a host to main."""
    inlet = await hosts.factory.gather(name, [peer.handle]).open()
    return FarOutlet(peer, name), inlet  # type: ignore[return-value]


async def to_host(peer: Peer, name: str) -> Ends:
    """A queue from main to a learner."""
    return await peer.handle.outlet(name), FarInlet(peer, name)  # type: ignore[return-value]


# Queues. --------------------------------------------------------------------------------------------------------------


async def test_a_queue_from_a_host_does_what_every_queue_does(opened: OpenHosts):
    async with opened() as hosts:
        peer, numbers = await hosts.start("actor-0"), itertools.count()

        @asynccontextmanager
        async def make(maxlen: int) -> AsyncIterator[Ends]:
            outlet, inlet = await from_host(hosts, peer, f"out/{next(numbers)}")
            async with hosts.closing(outlet, inlet):
                yield outlet, inlet

        await check_queue(make, one_loop=False)


async def test_a_queue_to_a_host_does_what_every_queue_does(opened: OpenHosts):
    async with opened() as hosts:
        peer, numbers = await hosts.start("learner-Ball", "learner"), itertools.count()

        @asynccontextmanager
        async def make(maxlen: int) -> AsyncIterator[Ends]:
            outlet, inlet = await to_host(peer, f"in/{next(numbers)}")
            async with hosts.closing(outlet, inlet):
                yield outlet, inlet

        await check_queue(make, one_loop=False)


async def test_actors_put_straight_into_a_learner_s_queue_which_ends_with_the_last_of_them(opened: OpenHosts):
    async with opened() as hosts:
        actors = [await hosts.start(f"actor-{i}") for i in range(2)]
        feed = hosts.factory.gather("feed", [actor.handle for actor in actors])
        learner = await hosts.start("learner-Ball", "learner", feed)

        async def produce(actor: Peer, first: int) -> None:
            outlet = FarOutlet(actor, "feed")
            for number in range(first, first + 10):
                await outlet.put(numbered(number))
            outlet.close()

        async with asyncio.TaskGroup() as tasks:
            for i, actor in enumerate(actors):
                tasks.create_task(produce(actor, 100 * i))
            taken = [number_of(item) async for item in FarInlet(learner, "feed")]
        for first in (0, 100):
            assert [number for number in taken if first <= number < first + 100] == [*range(first, first + 10)]
        assert len(taken) == 20


@pytest.mark.parametrize("to_main", [True, False], ids=["to main", "from main"])
async def test_a_queue_of_policies_never_lets_its_producer_wait_and_the_newest_comes(opened: OpenHosts, to_main: bool):
    async with opened() as hosts:
        peer = await hosts.start("host", "learner" if to_main else "actor")
        name = "out" if to_main else "in"
        outlet: Any
        inlet: Any
        if to_main:
            outlet, inlet = FarOutlet(peer, name), await peer.handle.inlet(name)
        else:
            outlet, inlet = await peer.handle.outlet(name, newest=True), FarInlet(peer, name)
        async with hosts.closing(outlet, inlet):
            for number in range(20):
                await outlet.put(numbered(number))
            taken = [number_of(await inlet.get())]
            while taken[-1] != 19:
                taken.append(number_of(await inlet.get()))
            assert taken == sorted(taken)


async def test_what_a_host_has_put_arrives_while_it_computes(opened: OpenHosts, beside_main: None):
    async with opened() as hosts:
        peer = await hosts.start("actor-0")
        outlet, inlet = await from_host(hosts, peer, "out")
        async with hosts.closing(inlet):
            await outlet.put(numbered(0))
            assert number_of(await inlet.get()) == 0
            peer.order("put and hang", "out", words_of(numbered(1)))
            assert number_of(await inlet.get()) == 1
            peer.handle.kill()
            await peer.end()
            peer.handle.settle()


async def test_what_a_killed_host_had_put_arrives_once_and_the_stream_ends(opened: OpenHosts):
    async with opened() as hosts:
        peer = await hosts.start("actor-0")
        outlet, inlet = await from_host(hosts, peer, "out")
        async with hosts.closing(inlet):
            await outlet.put(numbered(0))
            assert number_of(await inlet.get()) == 0
            await outlet.put(numbered(1))
            peer.handle.kill()
            assert await peer.end() != 0
            peer.handle.settle()
            assert [number_of(item) async for item in inlet] in ([1], [])  # what was on its way may be lost with it


async def test_a_producer_learns_of_its_consumer_s_death(opened: OpenHosts):
    async with opened() as hosts:
        peer = await hosts.start("learner-Ball", "learner")
        outlet, inlet = await to_host(peer, "in")
        async with hosts.closing(outlet):
            await outlet.put(Barrier(0))
            assert await inlet.get() == Barrier(0)
            peer.handle.kill()
            await peer.end()
            peer.handle.settle()
            with pytest.raises(QueueClosed):
                for number in range(10):
                    await outlet.put(Barrier(number))


async def test_a_replacement_goes_on_in_the_queues_of_a_dead_actor(opened: OpenHosts, beside_main: None):
    async with opened() as hosts:
        first = await hosts.start("actor-0")
        outlet, inlet = await from_host(hosts, first, "out")
        async with hosts.closing(inlet):
            await outlet.put(numbered(0))
            assert number_of(await inlet.get()) == 0
            first.handle.kill()
            await first.end()
            second = await hosts.start("actor-0", replaces=first.handle)
            first.handle.close()
            later = FarOutlet(second, "out")
            await later.put(numbered(1))
            await later.put(numbered(2))
            later.close()
            second.handle.settle()
            assert [number_of(item) async for item in inlet] == [1, 2]


# Life and death. ------------------------------------------------------------------------------------------------------


async def test_control_messages_keep_their_order_both_ways(opened: OpenHosts):
    async with opened() as hosts:
        peer = await hosts.start("actor-0")
        await asyncio.gather(*(peer.order("tell", value=number) for number in range(300)))
        told = [message.total for message in peer.heard if isinstance(message, CreditsReturned)]
        assert told == [*range(300)]


@pytest.mark.lengthy
async def test_it_gives_signs_of_life_and_says_how_its_queues_are(opened: OpenHosts):
    async with opened() as hosts:
        peer = await hosts.start("actor-0")
        _, inlet = await from_host(hosts, peer, "out")
        async with hosts.closing(inlet):
            for _ in range(2):
                report = await peer.until(StatisticsReport)
                peer.heard.clear()
            assert [queue["name"] for queue in report.queues] == ["out"]
            assert sys.platform != "linux" or (report.cpu_s > 0 and report.memory > 2**20)


async def test_what_it_logs_reaches_main(opened: OpenHosts, caplog: pytest.LogCaptureFixture):
    async with opened() as hosts:
        peer = await hosts.start("actor-0")
        await peer.order("log", value="all is well")
        assert "all is well" in caplog.text or await peer.until(LogLine, text="all is well")


async def test_one_that_has_done_its_work_says_so_and_ends_well(opened: OpenHosts):
    async with opened() as hosts:
        peer = await hosts.start("actor-0")
        peer.order("end")
        assert await peer.end() == 0
        assert isinstance(peer.heard[-1], HostFinished)


@pytest.mark.parametrize(("what", "said"), [("raise", "the motor is on fire"), ("raise SystemExit", "SystemExit")])
async def test_one_that_fails_says_why_last_and_ends_with_status_1(opened: OpenHosts, what: str, said: str):
    async with opened() as hosts:
        peer = await hosts.start("actor-0")
        peer.order(what)
        assert await peer.end() == 1
        failed = peer.heard[-1]
        assert isinstance(failed, HostFailed)
        assert said in failed.message
        assert "scripted_host.py" in failed.traceback


async def test_one_that_can_t_be_made_says_why(opened: OpenHosts):
    async with opened() as hosts:
        peer = await hosts.start("actor-0", host_class="scripted_host:NoSuchHost")
        assert await peer.end() == 1
        assert "NoSuchHost" in (await peer.until(HostFailed)).message


async def test_one_whose_main_says_no_more_ends(opened: OpenHosts):
    async with opened() as hosts:
        peer = await hosts.start("actor-0")
        await peer.order("pid")
        peer.handle.control.close()
        await peer.handle.wait()


@pytest.mark.parametrize(("what", "value"), [("os._exit", 0), ("os._exit", 3), ("kill -9", None)])
async def test_one_that_dies_ends_without_a_farewell(
    opened: OpenHosts, beside_main: None, what: str, value: int | None
):
    async with opened() as hosts:
        peer = await hosts.start("actor-0")
        pid = await peer.order("pid")
        peer.order(what, value=value)
        status = await peer.end()
        assert status != 0 or value == 0
        assert not [message for message in peer.heard if isinstance(message, HostFinished | HostFailed)]
        assert not is_running(pid)


async def test_one_that_hangs_says_where_and_can_be_killed(opened: OpenHosts, beside_main: None):
    async with opened() as hosts:
        peer = await hosts.start("actor-0")
        await peer.order("pid")
        peer.order("hang")
        while "hang_in_a_loop" not in await peer.handle.describe():
            pass
        peer.handle.kill()
        assert await peer.end() < 0


async def test_one_that_prepares_itself_says_so_before_it_holds_its_event_loop(opened: OpenHosts, beside_main: None):
    async with opened() as hosts:
        peer = await hosts.start("actor-0")
        peer.order("hang while it prepares itself")
        await peer.until(Preparing, begins=True)
        peer.handle.kill()
        assert await peer.end() < 0
        assert Preparing(begins=False) not in peer.heard


async def test_one_that_has_prepared_itself_says_so(opened: OpenHosts):
    async with opened() as hosts:
        peer = await hosts.start("actor-0")
        peer.order("prepare itself")
        await peer.until(Preparing, begins=False)
        told = [message for message in peer.heard if isinstance(message, Preparing)]
        assert told == [Preparing(begins=True), Preparing(begins=False)]


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGSTOP")
async def test_one_that_is_stopped_is_said_to_be_silent_and_can_be_killed(opened: OpenHosts, beside_main: None):
    async with opened() as hosts:
        peer = await hosts.start("actor-0")
        pid = await peer.order("pid")
        os.kill(pid, signal.SIGSTOP)
        await asyncio.to_thread(wait_until, lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)
        assert "stopped" in await peer.handle.describe()
        peer.handle.kill()
        assert await peer.end() < 0


@pytest.mark.skipif(sys.platform != "linux", reason="what hosts leave behind is found on Linux alone")
async def test_what_it_has_started_ends_with_it(opened: OpenHosts, kind: str, beside_main: None, monkeypatch):
    monkeypatch.delenv("HEADRACE_PLATFORM", raising=False)
    async with opened() as hosts:
        peer = await hosts.start("actor-0")
        host, program = await peer.order("pid"), await peer.order("start a program")
        peer.handle.kill()
        await peer.end()
        await asyncio.to_thread(wait_until, lambda: not is_running(program) and not is_running(host))


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
            outlet, inlet = await from_host(hosts, peer, "out")
            async with hosts.closing(inlet):
                await outlet.put(numbered(0))
                assert number_of(await inlet.get()) == 0
        gc.collect()  # what was taken is memory that is shared with the host
        await asyncio.sleep(0)  # a transport that was closed gives its socket back in the loop's next turn

    await come_and_go()  # what is opened once for all
    descriptors, tasks = psutil.Process().num_fds(), len(asyncio.all_tasks())
    for _ in range(2):
        await come_and_go()
    assert len(asyncio.all_tasks()) == tasks
    assert psutil.Process().num_fds() <= descriptors
