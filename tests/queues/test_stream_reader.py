"""What a reader makes of whole, cut, damaged and foreign files."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from properties import examples
from stream_samples import EVERY_KIND, header, index_of, index_offset, record, same, steps, trajectories

from headrace.queues.errors import StreamError
from headrace.queues.messages import Barrier, Message, PolicyUpdate, StepBatch, TrajectoryBatch
from headrace.queues.stream_file import (
    FRAME,
    MAGIC,
    MESSAGE,
    PREAMBLE,
    TRAILER,
    Frame,
    StreamReader,
    StreamWriter,
    checksum,
)

DTYPES = [np.dtype(name) for name in ("?", "u1", "i2", "i4", "i8", "<f2", "f4", "f8", ">f4", ">i8")]


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    return record(tmp_path / "a.stream", [trajectories(0), trajectories(1), steps(), trajectories(2)])


def frames_or_error(path: Path) -> tuple[list[Frame], StreamReader | None, StreamError | None]:
    """What was replayed before the end or the error; any other exception is a failed test."""
    frames: list[Frame] = []
    try:
        reader = StreamReader(path)
        frames.extend(reader)
    except StreamError as error:
        return frames, None, error
    return frames, reader, None


def assert_prefix(frames: list[Frame], whole: list[Frame]) -> None:
    for got, expected in zip(frames, whole, strict=False):
        assert (got.edge, got.sequence, got.time_s) == (expected.edge, expected.sequence, expected.time_s)
        assert same(got.message, expected.message)
    assert len(frames) <= len(whole)


def boundaries(path: Path) -> list[int]:
    """Where each message frame begins, and where the index does."""
    return [*map(int, index_of(path)[0]), index_offset(path.read_bytes())]


def places(first: int, last: int) -> list[int]:
    """Every byte of what is short; of what is long those of its beginning and end, and each fifth between them."""
    return [at for at in range(first, last) if min(at - first, last - 1 - at) < 40 or at % 5 == 0]


# --- whole files


def test_header_and_messages_come_back_as_they_were_recorded(tmp_path):
    path = record(tmp_path / "a.stream", list(EVERY_KIND), start_s=100.0)
    reader = StreamReader(path)
    frames = list(reader)
    assert reader.header == header()
    assert [(f.edge, f.sequence, f.time_s) for f in frames] == [("trainer", i, 100.0 + i) for i in range(4)]
    assert all(same(f.message, sent) for f, sent in zip(frames, EVERY_KIND, strict=True))
    assert (reader.closed_cleanly, reader.lost_bytes, reader.damage) == (True, 0, None)


def test_index_finds_every_message_and_counts_its_rows(recording):
    offsets, sequences, rows = index_of(recording)
    assert (sequences.tolist(), rows.tolist()) == ([0, 1, 2, 3], [3, 3, 3, 3])
    data, starts = recording.read_bytes(), boundaries(recording)
    for offset, end in pairwise(starts):
        length, kind, _ = FRAME.unpack_from(data, offset)
        assert (kind, offset + FRAME.size + length) == (MESSAGE, end)
    assert len(offsets) == len(list(StreamReader(recording)))


def arrays(*shape: int) -> st.SearchStrategy[Any]:
    return st.sampled_from(DTYPES).flatmap(lambda dtype: hnp.arrays(dtype, shape))


def columns(length: int) -> st.SearchStrategy[dict[str, Any]]:
    trailing = hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=3)
    return st.dictionaries(st.text(max_size=8), trailing.flatmap(lambda t: arrays(length, *t)), max_size=3)


@st.composite
def messages(draw: Callable[..., Any]) -> Message:
    ints, names = st.integers(-(2**63), 2**63 - 1), st.text(max_size=12)
    kind = draw(st.sampled_from([TrajectoryBatch, StepBatch, PolicyUpdate, Barrier]))
    if kind is Barrier:
        return Barrier(draw(ints), draw(ints))
    if kind is PolicyUpdate:
        layout = draw(st.lists(st.tuples(names, st.tuples(st.integers(0, 9))), max_size=3))
        return PolicyUpdate(draw(names), draw(ints), draw(arrays(4)), tuple(layout), draw(ints), draw(ints))
    if kind is TrajectoryBatch:
        lengths = np.array(draw(st.lists(st.integers(0, 3), max_size=3)), np.int32)
        rows = draw(columns(int(lengths.sum()))) if lengths.sum() else {}
        rows["rewards"] = draw(arrays(int(lengths.sum())))
        return TrajectoryBatch(
            draw(names),
            draw(ints),
            rows,
            draw(columns(len(lengths))) | {"lengths": lengths},
            draw(columns(2)),
            draw(columns(0)),
        )
    n, ended = draw(st.integers(0, 3)), 0
    return StepBatch(
        draw(names),
        agent_ids=draw(arrays(n)),
        env_ids=draw(arrays(n)),
        episode_ids=draw(arrays(n)),
        observations=(draw(arrays(n, 2)), draw(arrays(n, 1, 2))),
        rewards=draw(arrays(n)),
        ended=ended,
        terminated=draw(arrays(ended)),
        truncated=draw(arrays(ended)),
        decisions=draw(columns(n)),
        policy_versions=draw(arrays(n)),
        generations=draw(arrays(n)),
        learning=draw(arrays(n)),
        opponents=draw(arrays(n)),
        games=draw(columns(1)),
    )


@pytest.mark.lengthy
@examples(15)
@given(sent=st.lists(messages(), max_size=4), times=st.lists(st.floats(), min_size=4, max_size=4))
def test_any_messages_come_back_equal_bit_for_bit(tmp_path_factory, sent, times):
    path = tmp_path_factory.mktemp("streams") / "a.stream"
    with StreamWriter(path, header()) as writer:
        for message, time_s in zip(sent, times, strict=False):
            writer.write("trainer", message, time_s)
    reader = StreamReader(path)
    got = list(reader)
    assert [struct.pack("d", f.time_s) for f in got] == [struct.pack("d", t) for t in times[: len(sent)]]
    assert all(same(f.message, message) for f, message in zip(got, sent, strict=True))
    assert reader.damage is None


# --- cut files


@pytest.mark.lengthy
def test_a_cut_at_any_byte_of_the_last_two_frames_replays_the_whole_frames_before_it(recording, tmp_path):
    data, whole, starts = recording.read_bytes(), list(StreamReader(recording)), boundaries(recording)
    assert max(b - a for a, b in pairwise(starts)) < 2048
    for cut in (*places(starts[-3], starts[-2]), *places(starts[-2], starts[-1] + 1)):
        path = tmp_path / "cut.stream"
        path.write_bytes(data[:cut])
        reader = StreamReader(path)
        frames = list(reader)
        complete = sum(end <= cut for end in starts[1:])
        lost = cut - starts[complete]
        assert len(frames) == complete
        assert_prefix(frames, whole)
        assert (reader.lost_bytes, reader.closed_cleanly) == (lost, False)
        assert (f"{lost:,} bytes" in reader.damage) if lost else reader.damage is None


@pytest.mark.lengthy
def test_a_cut_at_any_byte_of_the_index_loses_no_message(recording, tmp_path):
    data, starts = recording.read_bytes(), boundaries(recording)
    for cut in places(starts[-1], len(data)):
        path = tmp_path / "cut.stream"
        path.write_bytes(data[:cut])
        reader = StreamReader(path)
        assert len(list(reader)) == 4
        assert not reader.closed_cleanly
        assert reader.lost_bytes <= cut - starts[-1]
        assert reader.lost_bytes == 0 or reader.damage


@pytest.mark.lengthy
def test_a_cut_at_any_byte_before_the_first_message_is_a_stream_error(recording, tmp_path):
    data, starts = recording.read_bytes(), boundaries(recording)
    path = tmp_path / "cut.stream"
    for cut in places(0, starts[0]):
        path.write_bytes(data[:cut])
        with pytest.raises(StreamError, match=r"cut\.stream: "):
            StreamReader(path)


# --- damaged files


@pytest.mark.lengthy
def test_a_flipped_bit_in_any_byte_gives_a_clean_prefix_or_a_stream_error(tmp_path):
    path = record(tmp_path / "a.stream", [trajectories(0), Barrier(1)])
    data, whole = bytearray(path.read_bytes()), list(StreamReader(path))
    for at in places(0, len(data)):
        data[at] ^= 1 << at % 8
        path.write_bytes(data)
        frames, reader, error = frames_or_error(path)
        assert_prefix(frames, whole)
        assert error is not None or (reader is not None and (reader.lost_bytes or not reader.closed_cleanly))
        data[at] ^= 1 << at % 8


def test_a_frame_that_was_taken_out_is_noticed(recording, tmp_path):
    data, starts = recording.read_bytes(), boundaries(recording)
    path = tmp_path / "spliced.stream"
    path.write_bytes(data[: starts[1]] + data[starts[2] :])
    reader = StreamReader(path)
    assert [frame.sequence for frame in reader] == [0]
    assert reader.damage is not None
    assert "missing or duplicated" in reader.damage


def test_bytes_behind_the_end_are_reported_and_no_message_is_lost(recording):
    recording.write_bytes(recording.read_bytes() + b"more")
    reader = StreamReader(recording)
    assert len(list(reader)) == 4
    assert (reader.closed_cleanly, reader.lost_bytes) == (False, TRAILER.size + 4)


def test_a_damaged_header_is_a_stream_error_that_says_where(recording):
    data = bytearray(recording.read_bytes())
    data[PREAMBLE.size + FRAME.size + 5] ^= 1
    recording.write_bytes(data)
    with pytest.raises(StreamError, match="header frame at byte 12 is damaged"):
        StreamReader(recording)


# --- files that are something else


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "ends after 0 bytes"),
        (b"behaviors:\n  Ball: {}\n" * 50, "not a stream: it begins with b'behavior'"),
        (b"{", "not a stream"),
        (MAGIC.replace(b"\r\n", b"\n") + bytes(100), "not a stream"),
        (MAGIC[:5], "ends after 5 bytes"),
        (PREAMBLE.pack(MAGIC, 2) + bytes(100), "format version 2; expected 1"),
        (PREAMBLE.pack(MAGIC, 1) + bytes(100), "header frame at byte 12"),
    ],
)
def test_a_file_that_is_not_a_stream_is_refused_by_name_and_reason(tmp_path, content, reason):
    path = tmp_path / "odd.stream"
    path.write_bytes(content)
    with pytest.raises(StreamError, match=r"odd\.stream: ") as caught:
        StreamReader(path)
    assert reason in str(caught.value)


def test_missing_files_and_folders_are_stream_errors(tmp_path):
    for path in (tmp_path / "none.stream", tmp_path):
        with pytest.raises(StreamError, match="can't read the stream"):
            StreamReader(path)


# --- hostile frames: their checksums hold


def frame(content: bytes, kind: int = MESSAGE) -> bytes:
    return FRAME.pack(len(content), kind, checksum(len(content), kind, content)) + content


def body(meta: Any) -> bytes:
    packed = msgpack.packb(meta)
    padded = (struct.pack("<I", len(packed)) + packed).ljust(-(-(4 + len(packed)) // 64) * 64, b"\0")
    return zstandard.ZstdCompressor().compress(padded)


def _meta(**changes: Any) -> dict[str, Any]:
    message = {"type": "Barrier", "fields": {"number": 1, "source": 0}, "arrays": []}
    return {"edge": "trainer", "sequence": 1, "time_s": 0.0, "message": message} | changes


def after_one_message(path: Path, data: bytes) -> Path:
    """A stream of one good message that goes on with `data`."""
    record(path, [Barrier(1)])
    path.write_bytes(path.read_bytes()[: boundaries(path)[-1]] + data)
    return path


UNNAMED = {
    "type": "PolicyUpdate",
    "fields": {"behavior_id": [7], "version": 1, "layout": [], "step": 1},
    "arrays": [["weights", "<f4", [0]]],
}
TEN_GB = 10_000_000_000
BOMB = b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", TEN_GB) + b"\x01\x00\x00"


@pytest.mark.parametrize("size_of_file", [None, TEN_GB + 10_000], ids=["small file", "file with a 10 GB hole"])
def test_a_frame_of_ten_gigabytes_is_refused_without_allocating(tmp_path, size_of_file):
    path = after_one_message(tmp_path / "a.stream", FRAME.pack(TEN_GB, MESSAGE, 0) + bytes(50))
    if size_of_file:
        with path.open("r+b") as file:
            file.truncate(size_of_file)
    reader = StreamReader(path)
    tracemalloc.start()
    try:
        sequences = [frame.sequence for frame in reader]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sequences == [0]
    assert peak < 1_000_000
    assert reader.damage is not None
    assert "claims 10,000,000,000 bytes" in reader.damage


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (BOMB, "states 10,000,000,000 bytes"),
        (
            body(_meta(message={"type": "PolicyUpdate", "fields": {}, "arrays": [["weights", "<f4", [TEN_GB // 4]]]})),
            "claims 10000000000 bytes of arrays",
        ),
    ],
    ids=["in the compressed content", "in an array's shape"],
)
def test_content_of_ten_gigabytes_is_refused_without_allocating(tmp_path, content, reason):
    path = after_one_message(tmp_path / "a.stream", frame(content))
    got: list[int] = []
    tracemalloc.start()
    try:
        with pytest.raises(StreamError, match=reason):
            got.extend(f.sequence for f in StreamReader(path))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert got == [0]
    assert peak < 1_000_000


@pytest.mark.parametrize(
    "data",
    [
        frame(b"not zstd"),
        frame(body(_meta()), kind=9),
        frame(body({})),
        frame(body(_meta(message="text"))),
        frame(body(_meta(message={"type": "System", "fields": {}, "arrays": []}))),
        frame(body(_meta(message={"type": "Barrier", "fields": {"cmd": "rm"}, "arrays": []}))),
        frame(body(_meta(message={"type": "Barrier", "fields": {}, "arrays": [["a", "|O", [0]]]}))),
        frame(body(_meta(message={"type": "TrajectoryBatch", "fields": {}, "arrays": []}))),
        frame(body(_meta(message=UNNAMED))),
    ],
)
def test_content_that_no_writer_makes_is_a_stream_error_after_the_good_frames(tmp_path, data):
    got: list[int] = []
    with pytest.raises(StreamError, match=r"a.stream: the frame at byte [\d,]+ is not a recorded message"):
        got.extend(f.sequence for f in StreamReader(after_one_message(tmp_path / "a.stream", data)))
    assert got == [0]
