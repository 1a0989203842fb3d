"""Recording what passes an edge."""

from __future__ import annotations

import itertools

import pytest
from stream_samples import EVERY_KIND, header, same

from queues.messages import Barrier
from queues.stream_reader import StreamReader
from queues.stream_writer import StreamWriter
from stages.replay import Recorder


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
