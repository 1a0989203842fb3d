"""Replaying: which files and messages, in which order, at which pace."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from stream_samples import SPEC, header, index_of, record, same, trajectories

from headrace.queues.agent_manager_queue import AgentManagerQueue
from headrace.queues.columns import Column
from headrace.queues.errors import StreamError
from headrace.queues.messages import Barrier, Message, TrajectoryBatch
from headrace.queues.specs import ActionSpec, ObservationSpec
from headrace.queues.stream_file import StreamHeader, StreamWriter
from headrace.stages.errors import StageError
from headrace.stages.loop import run_source
from headrace.stages.replay import ReplaySource
from headrace.stages.stage import StageContext

CONTEXT = StageContext("replay")
OTHER = replace(SPEC, behavior_id="Goal", actions=ActionSpec(continuous_size=2))


@dataclass
class FakeTime:
    """A clock that only sleeping moves."""

    now_s: float = 50.0
    slept: list[float] = field(default_factory=list)

    def clock(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds


async def replay(source: ReplaySource) -> list[Message]:
    source.start(CONTEXT)
    return [message async for message in source.produce()]


async def numbers(source: ReplaySource) -> list[int]:
    return [m.source for m in await replay(source) if isinstance(m, TrajectoryBatch)]


def stream(folder: Path, name: str, *ids: int, **parts: Any) -> Path:
    return record(folder / f"{name}.stream", [trajectories(i) for i in ids], **parts)


# --- which files, which messages


async def test_messages_come_back_as_they_were_recorded(tmp_path):
    sent = [trajectories(i) for i in range(3)]
    got = await replay(ReplaySource([record(tmp_path / "a.stream", sent)]))
    assert all(same(a, b) for a, b in zip(got, sent, strict=True))


async def test_files_follow_each_other_in_the_order_given_and_patterns_by_name(tmp_path):
    stream(tmp_path, "Ball-trainer-0002", 3, 4)
    stream(tmp_path, "Ball-trainer-0001", 1, 2)
    first = stream(tmp_path, "first", 9)
    source = ReplaySource([first, str(tmp_path / "Ball-*.stream"), first])
    assert await numbers(source) == [9, 1, 2, 3, 4]


async def test_a_folder_stands_for_its_streams_by_name(tmp_path):
    stream(tmp_path, "Ball-trainer-0002", 3)
    stream(tmp_path, "Ball-trainer-0001", 1, 2)
    (tmp_path / "notes.txt").write_text("beside them")
    assert await numbers(ReplaySource([tmp_path])) == [1, 2, 3]


@pytest.mark.parametrize("streams", [["none.stream"], ["*.nothing"], ["tests"], []])
def test_missing_streams_are_a_mistake(streams):
    with pytest.raises(StageError, match="no stream"):
        ReplaySource(streams).start(CONTEXT)


def test_a_file_that_is_not_a_stream_is_a_mistake_before_the_first_message(tmp_path):
    good, bad = stream(tmp_path, "a", 1), tmp_path / "b.stream"
    bad.write_bytes(b"")
    with pytest.raises(StreamError, match=r"b\.stream: ends after 0 bytes"):
        ReplaySource([good, bad]).start(CONTEXT)


async def test_only_the_chosen_edge_is_replayed(tmp_path):
    with StreamWriter(tmp_path / "a.stream", header(edges=("ghost", "trainer"))) as writer:
        for i, edge in enumerate(("ghost", "trainer", "trainer", "ghost")):
            writer.write(edge, trajectories(i), float(i))
    stream(tmp_path, "b", 7, edges=("ghost",))
    pattern = str(tmp_path / "*.stream")
    assert await numbers(ReplaySource([pattern], edge="trainer")) == [1, 2]
    assert await numbers(ReplaySource([pattern], edge="ghost")) == [0, 3, 7]


def test_an_ambiguous_or_unknown_edge_is_a_mistake_that_lists_them(tmp_path):
    path = stream(tmp_path, "a", 1, edges=("trainer", "ghost"))
    for edge, reason in ((None, "name the edge"), ("trainr", "no stream has an edge 'trainr'")):
        with pytest.raises(StageError, match=reason) as caught:
            ReplaySource([path], edge=edge).start(CONTEXT)
        assert "['ghost', 'trainer']" in str(caught.value)


async def test_barriers_of_the_recorded_run_are_left_out(tmp_path):
    path = record(tmp_path / "a.stream", [trajectories(1), Barrier(1), trajectories(2)])
    assert [type(m) for m in await replay(ReplaySource([path]))] == [TrajectoryBatch, TrajectoryBatch]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"observations": (ObservationSpec("vector", (3,)),)}, "the observations differ"),
        ({"actions": ActionSpec(continuous_size=2)}, "the actions differ"),
        ({"behavior_id": "Ball?team=1", "actions": ActionSpec(discrete_branches=(2,))}, "the actions differ"),
    ],
)
def test_files_that_disagree_about_a_behaviour_are_named_both(tmp_path, changes, reason):
    one = stream(tmp_path, "one", 1)
    two = record(tmp_path / "two.stream", [], specs=(replace(SPEC, **changes),))
    with pytest.raises(StageError, match=reason) as caught:
        ReplaySource([one, two]).start(CONTEXT)
    assert str(one) in str(caught.value)
    assert str(two) in str(caught.value)


def test_files_recorded_for_trainers_that_store_other_columns_are_a_mistake(tmp_path):
    one, two = stream(tmp_path, "one", 1), tmp_path / "two.stream"
    extra = {"Ball": (Column("logits", "float32", (3,)),)}
    StreamWriter(two, StreamHeader.of("run-2", 0.0, ["trainer"], [SPEC], extra=extra)).close()
    with pytest.raises(StageError, match=r"columns differ.*logits"):
        ReplaySource([one, two]).start(CONTEXT)


# --- damage


async def test_lost_bytes_are_reported_in_a_warning_and_the_next_file_follows(tmp_path, caplog):
    cut, next_one = stream(tmp_path, "a", 1, 2, 3), stream(tmp_path, "b", 4)
    cut.write_bytes(cut.read_bytes()[: int(index_of(cut)[0][2]) + 33])
    assert await numbers(ReplaySource([cut, next_one])) == [1, 2, 4]
    (warning,) = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert str(cut) in warning.getMessage()
    assert "33 bytes" in warning.getMessage()


async def test_a_stream_that_was_never_closed_is_reported_in_a_warning(tmp_path, caplog):
    path = stream(tmp_path, "a", 1, 2)
    path.write_bytes(path.read_bytes()[: int(index_of(path)[0][1])])
    assert await numbers(ReplaySource([path])) == [1]
    assert "no bytes are lost, but the stream was not closed" in caplog.text


# --- pace


@pytest.mark.parametrize(("speed", "gaps"), [("realtime", 1.0), (4, 0.25), (0.5, 2.0)])
async def test_messages_come_at_the_recorded_pace_times_the_speed(tmp_path, speed, gaps):
    time = FakeTime()
    source = ReplaySource([stream(tmp_path, "a", 1, 2, 3)], speed=speed, clock=time.clock, sleep=time.sleep)
    source.start(CONTEXT)
    arrived = [time.now_s - 50.0 async for _ in source.produce()]
    assert arrived == [0.0, gaps, 2 * gaps]


async def test_a_message_that_is_late_follows_at_once_and_the_pace_is_kept(tmp_path):
    time, arrived = FakeTime(), []
    path = stream(tmp_path, "a", 1, 2, 3, 4)
    source = ReplaySource([path], speed="realtime", clock=time.clock, sleep=time.sleep)
    source.start(CONTEXT)
    async for _ in source.produce():
        arrived.append(time.now_s - 50.0)
        if len(arrived) == 1:
            time.now_s += 2.5
    assert arrived == [0.0, 2.5, 2.5, 3.0]


@pytest.mark.parametrize("speed", ["fast", 0, -1, float("nan"), float("inf"), True, None])
def test_a_speed_that_is_none_is_a_mistake(speed):
    with pytest.raises(StageError, match="speed must be"):
        ReplaySource(["a.stream"], speed=speed)


# --- ending


async def test_a_stop_request_ends_the_replay_after_the_current_message(tmp_path):
    source = ReplaySource([stream(tmp_path, "a", 1, 2, 3), stream(tmp_path, "b", 4)])
    source.start(CONTEXT)
    got = []
    async for message in source.produce():
        assert isinstance(message, TrajectoryBatch)
        got.append(message.source)
        source.request_stop()
    assert got == [1]


async def test_a_stop_cuts_a_long_wait_short(tmp_path):
    asleep = asyncio.Event()

    async def sleep(seconds: float) -> None:
        asleep.set()
        await asyncio.Event().wait()

    source = ReplaySource([stream(tmp_path, "a", 1, 2)], speed="realtime", clock=lambda: 0.0, sleep=sleep)
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        replayed = group.create_task(numbers(source))
        await asleep.wait()
        source.request_stop()
    assert replayed.result() == [1]


# --- between queues


async def test_a_replay_waits_while_its_queue_is_full(tmp_path):
    sender: AgentManagerQueue[Message] = AgentManagerQueue("Ball", 1)
    source = ReplaySource([stream(tmp_path, "a", *range(6))])
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        group.create_task(run_source(source, sender, CONTEXT))
        got = [message.source async for message in sender if isinstance(message, TrajectoryBatch)]
    assert got == [0, 1, 2, 3, 4, 5]
    assert sender.statistics().high_water == 1
