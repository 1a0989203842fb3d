"""Recording: alone, and as a stage between two plain queues."""

from __future__ import annotations

import itertools

import pytest
from stream_samples import EVERY_KIND, header, same, trajectories

from queues.agent_manager_queue import AgentManagerQueue
from queues.messages import Barrier, Message
from queues.stream_reader import StreamReader
from queues.stream_writer import StreamWriter
from stages.loop import StageRunner
from stages.replay import Recorder, RecorderStage
from stages.stage import StageContext


def test_tap_writes_what_it_sees_with_the_time_of_its_clock(tmp_path):
    clock = itertools.count(10.0, 0.5)
    with StreamWriter(tmp_path / "a.stream", header()) as writer:
        recorder = Recorder(writer, "trainer", lambda: next(clock))
        for message in EVERY_KIND:
            recorder.tap(message)
    frames = list(StreamReader(tmp_path / "a.stream"))
    assert [(f.edge, f.time_s) for f in frames] == [("trainer", t) for t in (10.0, 10.5, 11.0, 11.5)]
    assert all(same(f.message, sent) for f, sent in zip(frames, EVERY_KIND, strict=True))


def test_two_recorders_share_a_stream_and_its_numbers(tmp_path):
    with StreamWriter(tmp_path / "a.stream", header(edges=("trainer", "ghost"))) as writer:
        Recorder(writer, "ghost").tap(Barrier(1))
        Recorder(writer, "trainer").tap(Barrier(2))
    frames = [(f.edge, f.sequence) for f in StreamReader(tmp_path / "a.stream")]
    assert frames == [("ghost", 0), ("trainer", 1)]


def test_an_edge_that_the_stream_does_not_have_is_refused_at_the_door(tmp_path):
    with StreamWriter(tmp_path / "a.stream", header()) as writer:
        with pytest.raises(ValueError, match="'ghost'"):
            Recorder(writer, "ghost")


def test_the_stage_passes_on_the_very_item_that_it_recorded(tmp_path):
    stage = RecorderStage(Recorder(StreamWriter(tmp_path / "a.stream", header()), "trainer"))
    item = trajectories()
    assert next(stage.process(item)) is item
    stage.stop()
    reader = StreamReader(tmp_path / "a.stream")
    assert same(next(iter(reader)).message, item)
    assert reader.closed_cleanly


async def test_the_stage_records_between_two_queues_and_closes_its_stream(tmp_path):
    inlet: AgentManagerQueue[Message] = AgentManagerQueue("Ball", 3)
    outlet: AgentManagerQueue[Message] = AgentManagerQueue("Ball", 3)
    sent = [trajectories(0), trajectories(1)]
    for message in sent:
        await inlet.put(message)
    inlet.close()
    stage = RecorderStage(Recorder(StreamWriter(tmp_path / "a.stream", header()), "trainer"))
    await StageRunner(stage, inlet, outlet, StageContext("recorder")).run()
    assert [item async for item in outlet] == sent
    reader = StreamReader(tmp_path / "a.stream")
    assert all(same(f.message, message) for f, message in zip(reader, sent, strict=True))
    assert reader.closed_cleanly
