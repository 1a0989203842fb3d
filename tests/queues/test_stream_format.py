"""The header and the frames as bytes, and what is refused in them."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import msgpack
import numpy as np
import pytest
import zstandard
from stream_samples import SPEC, header

from headrace.queues import stream_file
from headrace.queues.columns import (
    GROUP_EPISODE_COLUMNS,
    GROUP_ROW_COLUMNS,
    GROUP_TRAJECTORY_COLUMNS,
    REPEAT_ROW_COLUMNS,
    Column,
)
from headrace.queues.errors import ShapeError, StreamError
from headrace.queues.stream_file import (
    MESSAGE,
    StreamHeader,
    column_table,
    pack_frame,
    unpack_arrays,
    unpack_payload,
)


def test_header_survives_the_way_through_plain_data():
    original = header(edges=("trainer", "agent_processor"))
    packed = msgpack.unpackb(msgpack.packb(original.to_plain()))
    assert StreamHeader.from_plain(packed) == original


def test_header_lists_the_columns_that_the_trainer_declared():
    extra = Column("values", "float32", (1,))
    made = StreamHeader.of("run", 0.0, ["trainer"], [SPEC], extra={"Ball": (extra,)})
    assert extra in made.columns["Ball?team=0"]["rows"]
    assert extra not in column_table(SPEC)["rows"]


def test_only_behaviours_with_groups_have_columns_for_them():
    plain, grouped = column_table(SPEC), column_table(replace(SPEC, grouped=True))
    added = {axis: set(grouped[axis]) - set(plain[axis]) for axis in plain}
    assert added == {
        "rows": set(GROUP_ROW_COLUMNS),
        "trajectories": set(GROUP_TRAJECTORY_COLUMNS),
        "episodes": set(GROUP_EPISODE_COLUMNS),
        "games": set(),
    }


def test_only_behaviours_with_action_repeat_have_a_column_of_frames():
    plain, repeated = column_table(SPEC), column_table(replace(SPEC, action_repeat="fixed"))
    assert {axis: set(repeated[axis]) - set(plain[axis]) for axis in plain}["rows"] == set(REPEAT_ROW_COLUMNS)


@pytest.mark.parametrize("grouped", [False, True])
def test_a_header_states_whether_a_behaviour_has_groups(grouped):
    spec = replace(SPEC, grouped=grouped)
    made = StreamHeader.of("run", 0.0, ["trainer"], [spec])
    packed = msgpack.unpackb(msgpack.packb(made.to_plain()))
    assert StreamHeader.from_plain(packed) == made
    assert ("grouped" in packed["behaviors"][0]) is grouped, "headers of others are as they were"


@pytest.mark.parametrize("missing", ["run_id", "columns"])
def test_header_without_a_field_is_refused(missing):
    plain = header().to_plain()
    del plain[missing]
    with pytest.raises(StreamError, match=missing):
        StreamHeader.from_plain(plain)


@pytest.mark.parametrize(("field", "value"), [("columns", [1]), ("behaviors", [{}]), ("edges", 3), ("config", 1)])
def test_header_with_a_field_of_another_kind_is_refused(field, value):
    with pytest.raises(StreamError, match="not a stream header"):
        StreamHeader.from_plain(header().to_plain() | {field: value})


def test_arrays_of_python_objects_are_refused_by_the_writer():
    array = np.array([{}, []], object)
    table = {"arrays": [["a", array.dtype.str, [2]]]}
    with pytest.raises(ShapeError):
        pack_frame(MESSAGE, table, table, [array])


@pytest.mark.parametrize("dtype", ["|O", "|V8", "<c8", "<U4", "(2,)f4", "", 4, None])
def test_dtypes_other_than_plain_numbers_are_refused_by_the_reader(dtype):
    with pytest.raises(StreamError):
        unpack_arrays({"arrays": [["a", dtype, [1]]]}, memoryview(bytes(64)))


@pytest.mark.parametrize("shape", [[-1], [1.0], ["1"], [2**62, 2**62], [17], None, [1 << 40, 0, 1 << 40]])
def test_shapes_that_can_not_be_are_refused_by_the_reader(shape):
    with pytest.raises(StreamError):
        unpack_arrays({"arrays": [["a", "<f4", shape]]}, memoryview(bytes(64)))


def test_arrays_from_a_frame_can_not_be_written_to():
    table = {"arrays": [["a", "<f4", [2]]]}
    frame = pack_frame(MESSAGE, table, table, [np.ones(2, "<f4")])
    (array,) = unpack_arrays(*unpack_payload(frame[stream_file.FRAME.size :]))
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 2


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"\x05\0\0", "not msgpack"),
        (b"\xff\xff\xff\xff" + bytes(60), "claims 4,294,967,295 bytes"),
        (b"\x01\0\0\0\xc1" + bytes(59), "not msgpack"),
        (b"\x50\0\0\0" + b"\x91" * 80 + bytes(44), "not msgpack"),
    ],
)
def test_content_that_no_writer_makes_is_refused(body, reason):
    with pytest.raises(StreamError, match=reason):
        unpack_payload(zstandard.ZstdCompressor().compress(body))


def test_content_that_does_not_state_its_size_is_refused():
    payload = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(64))
    with pytest.raises(StreamError, match="states no size"):
        unpack_payload(payload)


@pytest.mark.parametrize("payload", [b"", b"text", bytes(100)])
def test_payload_that_is_not_zstd_is_refused(payload):
    with pytest.raises(StreamError, match="not zstd"):
        unpack_payload(payload)


def test_bytes_behind_the_compressed_content_are_refused():
    with pytest.raises(StreamError, match="not zstd"):
        unpack_payload(zstandard.ZstdCompressor().compress(bytes(64)) + b"x")


@pytest.mark.parametrize("module", [stream_file])
def test_no_module_of_the_format_can_unpickle(module):
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    calls = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not names & {"pickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "torch"}
    assert not calls & {"load", "loads", "eval", "exec", "fromfile"}
