"""docs/stream-format.md is right: its dump is a stream, its tables are complete, and a reader made from it
works."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import numpy as np
import zstandard
from stream_samples import EVERY_KIND, header, index_of, record

from headrace.queues import codec
from headrace.queues.columns import (
    EPISODE_COLUMNS,
    GAME_COLUMNS,
    GROUP_EPISODE_COLUMNS,
    GROUP_ROW_COLUMNS,
    GROUP_TRAJECTORY_COLUMNS,
    REPEAT_ROW_COLUMNS,
    TRAJECTORY_COLUMNS,
)
from headrace.queues.messages import Barrier, PolicyUpdate
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.queues.stream_file import FRAME, MAX_FRAME_BYTES, StreamHeader, StreamReader, StreamWriter

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "read_stream.py"
DOCS = (ROOT / "docs" / "stream-format.md").read_text(encoding="utf-8")


def dumps() -> list[bytes]:
    """The hex dumps of the page, whose offsets must be right as well."""
    found: list[bytearray] = []
    for offset, digits in re.findall(r"^([0-9a-f]{4})  ((?:[0-9a-f]{2} ?)+?)(?: {2,}.*)?$", DOCS, re.M):
        if int(offset, 16) == 0:
            found.append(bytearray())
        assert int(offset, 16) == len(found[-1])
        found[-1] += bytes.fromhex(digits)
    return [bytes(dump) for dump in found]


def example():
    spec = importlib.util.spec_from_file_location("read_stream", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_dump_is_the_stream_that_the_page_says(tmp_path):
    path = tmp_path / "tiny.stream"
    path.write_bytes(dumps()[0])
    reader = StreamReader(path)
    first, second = reader
    assert (reader.closed_cleanly, path.stat().st_size, reader.header.run_id) == (True, 1081, "tiny")
    assert (first.message, first.time_s) == (Barrier(1), 0.5)
    assert isinstance(second.message, PolicyUpdate)
    assert second.message.tensors()["w"].tolist() == [1.0, -2.0, 0.5]


def test_a_writer_makes_the_content_that_the_page_shows(tmp_path):
    spec = BehaviorSpec("B", (ObservationSpec("xy", (2,)),), ActionSpec(discrete_branches=(3,)))
    update = PolicyUpdate("B", 2, np.array([1, -2, 0.5], "<f4"), (("w", (3,)),), 64)
    with StreamWriter(tmp_path / "tiny.stream", StreamHeader.of("tiny", 1700000000.0, ["trainer"], [spec])) as writer:
        writer.write("trainer", Barrier(1), 0.5)
        writer.write("trainer", update, 1.5)
    offset = int(index_of(tmp_path / "tiny.stream")[0][1])
    data = (tmp_path / "tiny.stream").read_bytes()[offset:]
    payload = data[FRAME.size : FRAME.size + FRAME.unpack_from(data)[0]]
    assert zstandard.ZstdDecompressor().decompress(payload) == dumps()[1]


def test_the_tables_of_columns_are_complete():
    for axis, columns in (
        ("rows", GROUP_ROW_COLUMNS + REPEAT_ROW_COLUMNS),
        ("trajectories", TRAJECTORY_COLUMNS + GROUP_TRAJECTORY_COLUMNS),
        ("episodes", EPISODE_COLUMNS + GROUP_EPISODE_COLUMNS),
        ("games", GAME_COLUMNS),
    ):
        for column in columns:
            assert f"| `{axis}/{column.name}` | {column.dtype} |" in DOCS
    for message in EVERY_KIND:
        described, _ = codec.describe(message)
        assert f"`{described['type']}`" in DOCS
        assert all(f"`{name}`" in DOCS for name in described["fields"])
    assert "2³⁰" in DOCS
    assert MAX_FRAME_BYTES == 2**30


def test_the_header_keys_are_all_in_the_page():
    for key in header().to_plain():
        assert f"| `{key}` |" in DOCS


def test_the_example_reads_what_the_reader_reads(tmp_path):
    path = record(tmp_path / "a.stream", list(EVERY_KIND))
    frames = list(example().read_stream(path))
    assert [kind for kind, _, _ in frames] == [1, 2, 2, 2, 2, 3]
    for (_, meta, arrays), message in zip(frames[1:-1], EVERY_KIND, strict=True):
        described, expected = codec.describe(message)
        assert meta["message"] == codec.unpack(codec.pack(described))
        assert [a.tobytes() for a in arrays.values()] == [a.tobytes() for a in expected]
    assert frames[-1][2]["rows"].tolist() == [3, 3, 0, 0]
