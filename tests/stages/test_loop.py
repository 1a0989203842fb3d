"""What the one loop promises every stage: waiting, closing, credits, barriers, and to be named when it misbehaves."""

from __future__ import annotations

import asyncio
import dataclasses
import logging

import pytest
from fakes import trajectories
from virtual_time import until_blocked

from headrace.config import ConfigError, Mistake
from headrace.queues.agent_manager_queue import AgentManagerQueue
from headrace.queues.errors import QueueClosed
from headrace.queues.messages import Barrier
from headrace.stages.errors import StageError
from headrace.stages.loop import StageFailure, StageHooks, StageRunner, run_source
from headrace.stages.stage import Source, Stage, StageContext

pytestmark = pytest.mark.virtual_time


class Recorded:
    """What a stage's loop told its host."""

    def __init__(self):
        self.credits = []
        self.parts = []

    def hooks(self):
        return StageHooks(
            lambda behavior, source, amount: self.credits.append((behavior, source, amount)),
            lambda name, number, state: self.parts.append((name, number, dict(state))),
        )


class Lifecycle(Stage):
    """Notes what the loop calls."""

    def __init__(self, process=lambda item: [item], at_end=()):
        self.calls = []
        self._process = process
        self._at_end = at_end

    def start(self, context):
        self.calls.append(f"start {context.name}")

    def process(self, item):
        self.calls.append("process")
        return self._process(item)

    def finish(self):
        self.calls.append("finish")
        return list(self._at_end)

    def stop(self):
        self.calls.append("stop")

    def state_dict(self):
        return {"calls": len(self.calls)}

    def load_state_dict(self, state):
        self.calls.append(f"load {state['calls']}")


def filled(*items, maxlen=100):
    queue = AgentManagerQueue("in", maxlen)
    for item in items:
        queue.put_nowait(item)
    queue.close()
    return queue


def drained(queue):
    """Everything in a queue that has been closed."""
    items = []
    while True:
        try:
            items.append(queue.get_nowait())
        except QueueClosed:
            return items


async def run(stage, *items, maxlen=100, **options):
    """What a stage makes of items."""
    receiver, sender = filled(*items), AgentManagerQueue("out", maxlen)
    await StageRunner(stage, receiver, sender, StageContext("clip"), **options).run()
    return drained(sender)


# What a stage may yield. --------------------------------------------------------------------------------------------


async def test_a_plain_generator_yields_none_one_or_many():
    def repeat(item):
        for _ in range(item):
            yield item

    assert await run(Lifecycle(repeat), 0, 1, 3) == [1, 3, 3, 3]


async def test_an_async_generator_yields_none_one_or_many_and_may_wait():
    async def repeat(item):
        for _ in range(item):
            await asyncio.sleep(60)
            yield item

    assert await run(Lifecycle(repeat), 0, 1, 3) == [1, 3, 3, 3]


async def test_a_stage_that_returns_none_swallows_the_item():
    assert await run(Lifecycle(lambda item: None), 1, 2) == []


async def test_the_items_of_finish_come_last():
    assert await run(Lifecycle(at_end=["a", "b"]), 1) == [1, "a", "b"]


async def test_an_async_process_without_yield_is_refused_with_the_advice_to_yield():
    class Forgetful(Stage):
        async def process(self, item):  # type: ignore[override]  # the mistake that is found
            return [item]

    with pytest.raises(StageFailure, match=r"clip failed on item 1: int: TypeError: process\(\) is async but yields"):
        await run(Forgetful(), 5)


async def test_a_process_that_returns_no_iterable_is_refused_with_the_advice_to_yield():
    with pytest.raises(StageFailure, match=r"process\(\) returned a float: use `yield`"):
        await run(Lifecycle(lambda item: 1.5), 5)


# Order and waiting. -------------------------------------------------------------------------------------------------


async def test_the_loop_calls_start_load_process_finish_and_stop_in_this_order():
    stage = Lifecycle()
    await run(stage, 1, state={"calls": 7})
    assert stage.calls == ["start clip", "load 7", "process", "finish", "stop"]


async def test_a_stage_has_the_context_that_it_is_started_with():
    class Named(Lifecycle):
        def process(self, item):
            return [f"{self.context.name} {item}"]

    @dataclasses.dataclass(frozen=True)
    class Frozen(Stage):
        factor: int

        def process(self, item):
            return [f"{self.context.name} {item * self.factor}"]

    assert await run(Named(), 1) == ["clip 1"]
    assert await run(Frozen(2), 1) == ["clip 2"]


async def test_start_and_stop_may_be_async():
    class Slow(Lifecycle):
        async def start(self, context):
            await asyncio.sleep(1)
            self.calls.append("started")

        async def stop(self):
            await asyncio.sleep(1)
            self.calls.append("stopped")

    stage = Slow()
    await run(stage, 1)
    assert stage.calls == ["started", "process", "finish", "stopped"]


async def test_a_full_sender_makes_the_stage_wait_and_its_receiver_fill():
    taken = []

    def process(item):
        taken.append(item)
        return [item]

    stage = Lifecycle(process)
    receiver, sender = AgentManagerQueue("in", 2), AgentManagerQueue("out", 1)
    async with asyncio.TaskGroup() as tasks:
        runner = tasks.create_task(StageRunner(stage, receiver, sender, StageContext("clip")).run())
        producer = tasks.create_task(produce(receiver, range(10)))
        await until_blocked()
        assert taken == [0, 1], "one lies in the sender, one waits for its place"
        assert (receiver.qsize(), sender.qsize()) == (2, 1)
        assert not producer.done()
        assert [item async for item in sender] == list(range(10))
        await runner


async def produce(queue, items):
    for item in items:
        await queue.put(item)
    queue.close()


async def test_a_closed_sender_ends_the_stage_quietly_and_closes_its_receiver():
    stage = Lifecycle()
    receiver, sender = AgentManagerQueue("in", 2), AgentManagerQueue("out", 1)
    receiver.put_nowait(1)
    sender.close()
    await StageRunner(stage, receiver, sender, StageContext("clip")).run()
    assert stage.calls == ["start clip", "process", "stop"]
    with pytest.raises(QueueClosed):
        receiver.put_nowait(2)


# Failure. -----------------------------------------------------------------------------------------------------------


async def test_a_stage_that_raises_is_stopped_and_both_its_ends_are_closed():
    def process(item):
        yield item
        raise ValueError("negative reward")

    stage = Lifecycle(process)
    receiver, sender = AgentManagerQueue("in", 5), AgentManagerQueue("out", 5)
    receiver.put_nowait(1)
    with pytest.raises(StageFailure):
        await StageRunner(stage, receiver, sender, StageContext("clip")).run()
    assert stage.calls == ["start clip", "process", "stop"]
    assert receiver.closed
    assert sender.closed


async def test_the_failure_names_stage_and_item_and_chains_the_cause():
    def process(item):
        if item.num_rows == 7:
            raise ValueError("negative reward")
        yield item

    with pytest.raises(StageFailure) as caught:
        await run(Lifecycle(process), trajectories([2]), trajectories([3, 4], source=5))
    failure = caught.value
    assert str(failure).startswith(
        "stage clip failed on item 2: TrajectoryBatch of Walker (2 trajectories, 7 steps, from actor 5): "
        f"ValueError: negative reward (at {__file__}:"
    )
    assert isinstance(failure, StageError)
    assert isinstance(failure.__cause__, ValueError)
    assert (failure.stage, failure.cause) == ("clip", failure.__cause__)


@pytest.mark.parametrize(
    ("method", "doing"), [("start", "while starting"), ("finish", "while finishing"), ("stop", "while stopping")]
)
async def test_a_failure_outside_process_says_what_the_stage_was_doing(method, doing):
    class Failing(Lifecycle):
        pass

    def fail(self, *args):
        raise OSError("disk full")

    setattr(Failing, method, fail)
    with pytest.raises(StageFailure, match=f"stage clip failed {doing}: OSError: disk full"):
        await run(Failing(), 1)


async def test_a_mistake_of_the_configuration_is_reported_without_the_kind_of_error():
    class Failing(Lifecycle):
        def start(self, context):
            raise ConfigError([Mistake("a.yaml", 3, "behaviors", "no 'Ball'")])

    with pytest.raises(StageFailure, match="^stage clip failed while starting: a.yaml:3: behaviors: no 'Ball'$"):
        await run(Failing(), 1)


async def test_a_stage_that_fails_to_start_is_stopped_all_the_same():
    class Failing(Lifecycle):
        def start(self, context):
            raise OSError("no such device")

    stage = Failing()
    with pytest.raises(StageFailure):
        await run(stage, 1)
    assert stage.calls == ["stop"]


async def test_cancelling_stops_the_stage_and_is_not_a_failure():
    stage = Lifecycle()
    receiver, sender = AgentManagerQueue("in", 1), AgentManagerQueue("out", 1)
    task = asyncio.create_task(StageRunner(stage, receiver, sender, StageContext("clip")).run())
    await until_blocked()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert stage.calls == ["start clip", "stop"]
    assert sender.closed


# Blocking. ----------------------------------------------------------------------------------------------------------


class Clock:
    """In the place of `time.perf_counter`: moves only when a stage says that it works."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr("time.perf_counter", lambda: self.now)

    def work(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def plain(clock, seconds):
    def process(item):
        clock.work(seconds)
        yield item
        clock.work(seconds / 10)

    return process


def returning(clock, seconds):
    def process(item):
        clock.work(seconds)
        return [item]

    return process


@pytest.mark.parametrize("kind", [plain, returning])
async def test_a_stage_that_blocks_its_loop_is_named_with_how_long(kind, clock, caplog):
    await run(Lifecycle(kind(clock, 1.5)), "item")
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith("stage clip blocked its event loop for 1.50 s on item 1")


async def test_a_stage_that_may_block_is_not_named(clock, caplog):
    stage = Lifecycle(plain(clock, 30))
    stage.may_block = True
    await run(stage, "item")
    assert not caplog.records


async def test_a_stage_that_always_blocks_is_named_less_and_less_often(clock, caplog):
    await run(Lifecycle(returning(clock, 1)), *range(20))
    assert len(caplog.records) == 5  # the 1st, 2nd, 4th, 8th and 16th time
    assert "item 16 (16 times so far)" in caplog.records[-1].getMessage()


# Credits. -----------------------------------------------------------------------------------------------------------


async def test_credits_of_swallowed_items_come_back():
    told = Recorded()
    await run(Lifecycle(lambda item: None), trajectories([3, 4], source=2), hooks=told.hooks())
    assert told.credits == [("Walker", 2, 7)]


async def test_credits_of_swallowed_trajectories_come_back():
    told = Recorded()
    batch = trajectories([3, 4, 5])
    await run(Lifecycle(lambda item: [item.select(item.lengths != 4)]), batch, hooks=told.hooks())
    assert told.credits == [("Walker", 0, 4)]


async def test_doubled_items_take_credits_up():
    told = Recorded()
    await run(Lifecycle(lambda item: [item, item]), trajectories([3]), hooks=told.hooks())
    assert told.credits == [("Walker", 0, -3)]


@pytest.mark.parametrize("parts", [lambda item: [item], lambda item: item.split(1)], ids=["whole", "split"])
async def test_passed_items_return_no_credits(parts):
    told = Recorded()
    await run(Lifecycle(parts), trajectories([3, 4]), hooks=told.hooks())
    assert told.credits == []


async def test_only_the_learning_team_s_steps_carry_credits():
    told = Recorded()
    await run(Lifecycle(lambda item: None), trajectories([3, 4], learning=[True, False]), hooks=told.hooks())
    assert told.credits == [("Walker", 0, 3)]


async def test_credits_come_back_only_when_the_last_result_has_its_place():
    told = Recorded()
    receiver, sender = filled(trajectories([3, 4])), AgentManagerQueue("out", 1)
    stage = Lifecycle(lambda item: item.select(item.lengths == 3).split(0))  # an empty batch, and half of it
    task = asyncio.create_task(StageRunner(stage, receiver, sender, StageContext("clip"), told.hooks()).run())
    await until_blocked()
    assert told.credits == []
    sender.get_nowait()
    await task
    assert told.credits == [("Walker", 0, 4)]


# Behaviours. --------------------------------------------------------------------------------------------------------


async def test_other_behaviours_pass_by_in_order_with_their_credits():
    told = Recorded()
    items = [trajectories([n], name) for n, name in enumerate(["Walker", "Ball?team=1", "Walker", "Ball?team=0"], 1)]
    stage = Lifecycle(lambda item: None)
    out = await run(stage, *items, behaviors=frozenset({"Walker"}), hooks=told.hooks())
    assert [item.behavior_id for item in out] == ["Ball?team=1", "Ball?team=0"]
    assert told.credits == [("Walker", 0, 1), ("Walker", 0, 3)]


# Barriers. ----------------------------------------------------------------------------------------------------------


async def test_a_barrier_saves_the_stage_s_part_and_passes_on_in_order():
    told, stage = Recorded(), Lifecycle()
    out = await run(stage, 1, Barrier(4), 2, hooks=told.hooks())
    assert out == [1, Barrier(4), 2]
    assert told.parts == [("clip", 4, {"calls": 2})], "saved between the two items"
    assert stage.calls.count("process") == 2


async def test_a_barrier_that_comes_from_several_actors_passes_once():
    told = Recorded()
    out = await run(Lifecycle(), Barrier(0, 1), Barrier(0, 2), Barrier(1, 2), Barrier(1, 1), hooks=told.hooks())
    assert [barrier.number for barrier in out] == [0, 1]
    assert [number for _, number, _ in told.parts] == [0, 1]


async def test_the_last_stage_of_the_way_saves_and_passes_no_barrier():
    told = Recorded()
    assert await run(Lifecycle(), Barrier(0), ends_barriers=True, hooks=told.hooks()) == []
    assert told.parts == [("clip", 0, {"calls": 1})]


async def test_a_stage_that_fails_to_save_is_named():
    class Failing(Lifecycle):
        def state_dict(self):
            raise ValueError("half-made")

    with pytest.raises(StageFailure, match="clip failed saving its part of checkpoint 3: ValueError: half-made"):
        await run(Failing(), Barrier(3))


# Sources. -----------------------------------------------------------------------------------------------------------


class Numbers(Source):
    def __init__(self, *numbers, error=None):
        self.calls = []
        self._numbers = numbers
        self._error = error

    def start(self, context):
        self.calls.append("start")

    async def produce(self):
        try:
            for number in self._numbers:
                yield number
            if self._error is not None:
                raise self._error
        finally:
            self.calls.append("produced")

    def stop(self):
        self.calls.append("stop")


async def test_a_source_fills_its_sender_and_closes_it():
    source, sender = Numbers(1, 2), AgentManagerQueue("out", 5)
    await run_source(source, sender, StageContext("numbers"))
    assert drained(sender) == [1, 2]
    assert source.calls == ["start", "produced", "stop"]


async def test_a_source_that_raises_is_named_stopped_and_closes_its_sender():
    source, sender = Numbers(1, error=OSError("unplugged")), AgentManagerQueue("out", 5)
    with pytest.raises(StageFailure, match="stage numbers failed while producing: OSError: unplugged"):
        await run_source(source, sender, StageContext("numbers"))
    assert drained(sender) == [1]
    assert source.calls[-1] == "stop"
