"""Recording what passes an edge."""

from __future__ import annotations

import itertools
import sys

import pytest
from full_disk import files_no_larger_than
from stream_samples import EVERY_KIND, header, same

from headrace.queues.messages import Barrier
from headrace.queues.stream_file import StreamReader, StreamWriter
from headrace.stages.replay import GuardedRecorder, Recorder


def test_tap_writes_what_it_sees_with_the_time_of_its_clock(tmp_path):
    clock = itertools.count(10.0, 0.5)
    with StreamWriter(tmp_path / "a.stream", header()) as writer:
        recorder = Recorder(writer, "trainer", lambda: next(clock))
        for message in EVERY_KIND:
            recorder.tap(message)
    frames = list(StreamReader(tmp_path / "a.stream"))
    assert [(f.edge, f.time_s) for f in frames] == [("trainer", t) for t in (10.0, 10.5, 11.0, 11.5)]
    assert all(same(f.message, sent) for f, sent in zip(frames, EVERY_KIND, strict=True))


def test_an_edge_that_the_stream_does_not_have_is_refused_at_the_door(tmp_path):
    with StreamWriter(tmp_path / "a.stream", header()) as writer:
        with pytest.raises(ValueError, match="'ghost'"):
            Recorder(writer, "ghost")


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such limit")
def test_a_recording_that_the_disk_refuses_ends_with_its_last_whole_message_and_a_warning(tmp_path, caplog):
    path = tmp_path / "a.stream"
    recorder = GuardedRecorder(lambda: Recorder(StreamWriter(path, header()), "trainer"))
    recorder.tap(Barrier(0))
    with files_no_larger_than(path.stat().st_size + 10):
        recorder.tap(Barrier(1))
    recorder.tap(Barrier(2))  # a recording with a hole would replay as another run
    recorder.finish()
    assert [frame.message for frame in StreamReader(path)] == [Barrier(0)]
    (warning,) = caplog.messages
    assert "can't record" in warning
    assert "Training continues without this recording" in warning


def test_a_recording_that_can_not_be_begun_ends_no_run(tmp_path, caplog):
    (tmp_path / "streams").touch()
    recorder = GuardedRecorder(lambda: Recorder(StreamWriter(tmp_path / "streams" / "a.stream", header()), "trainer"))
    recorder.tap(Barrier(0))
    recorder.finish()
    assert "can't record a stream there" in caplog.text


@pytest.mark.skipif(sys.platform == "win32", reason="nobody can remove it there")
def test_a_recording_that_was_removed_is_said_to_be_lost(tmp_path, caplog):
    path = tmp_path / "a.stream"
    recorder = GuardedRecorder(lambda: Recorder(StreamWriter(path, header()), "trainer"))
    path.unlink()
    recorder.finish()
    assert "a.stream was deleted while the run was writing it; the recording is lost" in caplog.text
