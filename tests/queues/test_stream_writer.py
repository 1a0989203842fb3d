"""What a writer leaves on the disk: whole frames, an index, and nothing overwritten."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from full_disk import files_no_larger_than
from stream_samples import EVERY_KIND, SPEC, header, index_of, record, same, trajectories

from headrace.queues.errors import ShapeError, StreamError
from headrace.queues.messages import Barrier, TrajectoryBatch
from headrace.queues.stream_file import StreamReader, StreamWriter, next_stream_path


def sources(reader: StreamReader) -> list[int]:
    return [frame.message.source for frame in reader if isinstance(frame.message, TrajectoryBatch)]


def test_every_message_is_in_the_file_before_the_next_one_is_written(tmp_path):
    with StreamWriter(tmp_path / "a.stream", header()) as writer:
        for i, message in enumerate(EVERY_KIND):
            writer.write("trainer", message, float(i))
            assert same(list(StreamReader(tmp_path / "a.stream"))[-1].message, message)


def test_an_existing_file_is_never_overwritten(tmp_path):
    (tmp_path / "a.stream").write_bytes(b"precious")
    with pytest.raises(StreamError, match="File exists"):
        StreamWriter(tmp_path / "a.stream", header())
    assert (tmp_path / "a.stream").read_bytes() == b"precious"


def test_a_path_that_can_not_be_made_is_a_stream_error_that_names_it(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StreamError, match=r"file.a\.stream: can't record"):
        StreamWriter(tmp_path / "file" / "a.stream", header())


def test_a_message_that_can_not_be_written_leaves_no_trace(tmp_path):
    bad = trajectories().replace(unknown=np.array([None, None, None], object))
    with StreamWriter(tmp_path / "a.stream", header()) as writer:
        writer.write("trainer", trajectories(0), 0.0)
        with pytest.raises(ShapeError):
            writer.write("trainer", bad, 1.0)
        writer.write("trainer", trajectories(1), 2.0)
    reader = StreamReader(tmp_path / "a.stream")
    assert [frame.sequence for frame in reader] == [0, 1]
    assert sources(reader) == [0, 1]
    assert reader.damage is None


def test_numpy_numbers_in_fields_become_numbers(tmp_path):
    record(tmp_path / "a.stream", [Barrier(cast("int", np.int64(4)), source=cast("int", np.int32(2)))])
    (frame,) = StreamReader(tmp_path / "a.stream")
    assert isinstance(frame.message, Barrier)
    assert (frame.message, type(frame.message.number)) == (Barrier(4, 2), int)


def test_big_endian_and_strided_arrays_come_back_equal(tmp_path):
    sent = trajectories().replace(rewards=np.arange(6, dtype=np.float32)[::2], unknown=np.array([1, 2, 3], ">i8"))
    record(tmp_path / "a.stream", [sent])
    (frame,) = StreamReader(tmp_path / "a.stream")
    assert isinstance(frame.message, TrajectoryBatch)
    assert frame.message.rewards.tolist() == [0, 2, 4]
    assert frame.message.rows["unknown"].tolist() == [1, 2, 3]


@pytest.mark.lengthy
def test_a_killed_writer_loses_no_message_that_it_had_written(tmp_path):
    script = (
        "import sys; from stream_samples import *\n"
        "writer = StreamWriter(sys.argv[1], header())\n"
        "for i in range(10**9):\n"
        "    writer.write('trainer', trajectories(i % 9), float(i)); print(i, flush=True)\n"
    )
    folders = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(folders)}
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "a.stream")], stdout=subprocess.PIPE, env=env
    ) as child:
        assert child.stdout is not None
        assert 30 in map(int, iter(child.stdout.readline, b""))
        child.kill()
        said = [30, *map(int, child.stdout.read().split(b"\n")[:-1])][-1]
    reader = StreamReader(tmp_path / "a.stream")
    last = [frame.sequence for frame in reader][-1]
    assert last in (said, said + 1)
    assert not reader.closed_cleanly


@pytest.mark.skipif(sys.platform == "win32", reason="files have no size limit there")
def test_a_full_disk_leaves_complete_frames_and_raises_an_error(tmp_path):
    writer = StreamWriter(tmp_path / "a.stream", header())
    writer.write("trainer", trajectories(0), 0.0)
    size = (tmp_path / "a.stream").stat().st_size
    with files_no_larger_than(size + 100), pytest.raises(StreamError, match="after 1 messages"):
        writer.write("trainer", trajectories(1), 1.0)
    assert (tmp_path / "a.stream").stat().st_size == size
    writer.write("trainer", trajectories(2), 2.0)
    writer.close()
    assert sources(StreamReader(tmp_path / "a.stream")) == [0, 2]


def test_a_resumed_run_takes_the_next_number(tmp_path):
    assert next_stream_path(tmp_path / "none", "Ball", "trainer").name == "Ball-trainer-0001.stream"
    for name in ("Ball-trainer-0001", "Ball-trainer-0007", "Ball-ghost-0009", "Balls-trainer-0011"):
        (tmp_path / f"{name}.stream").touch()
    assert next_stream_path(tmp_path, "Ball", "trainer").name == "Ball-trainer-0008.stream"


def test_behaviour_ids_become_names_that_every_file_system_takes(tmp_path):
    path = next_stream_path(tmp_path, "My Ball?team=1", "trainer")
    assert path.name == "My_Ball_team_1-trainer-0001.stream"


def test_behaviors_that_are_announced_later_are_known_as_soon_as_the_file_is_opened(tmp_path):
    early, late = SPEC, replace(SPEC, behavior_id="Late")
    with StreamWriter(tmp_path / "a.stream", header()) as writer:
        writer.write("trainer", trajectories(0), 0.0)
        writer.announce(header(specs=(late,)))
        writer.write("trainer", trajectories(1, "Late"), 1.0)
    reader = StreamReader(tmp_path / "a.stream")
    assert reader.header.specs == (early, late)
    assert reader.header.columns.keys() == {early.behavior_id, "Late"}
    assert [frame.sequence for frame in reader] == [0, 1]
    assert (reader.damage, reader.closed_cleanly) == (None, True)
    assert index_of(tmp_path / "a.stream")[0].shape == (2,), "the index lists messages only"


def test_a_file_that_grows_is_read_with_what_it_announces_meanwhile(tmp_path):
    late = replace(SPEC, behavior_id="Late")
    with StreamWriter(tmp_path / "a.stream", header()) as writer:
        writer.write("trainer", trajectories(0), 0.0)
        reader = StreamReader(tmp_path / "a.stream")
        assert [spec.behavior_id for spec in reader.header.specs] == [SPEC.behavior_id]
        writer.announce(header(specs=(late,)))
        writer.write("trainer", trajectories(1, "Late"), 1.0)
        assert [frame.message.behavior_id for frame in reader if isinstance(frame.message, TrajectoryBatch)] == [
            SPEC.behavior_id,
            "Late",
        ]
        assert reader.header.specs[1] == late
