"""Specifications of checkpoints on disk: what is read is what was written, and a whole one is always there."""

from __future__ import annotations

import random
from collections import OrderedDict, deque
from enum import Enum, IntEnum
from typing import Any, NamedTuple

import msgpack
import numpy as np
import pytest
import torch
from fakes_files import Faulty, Recorder, Stopped
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline.run_folder.checkpoint import (
    MANIFEST,
    CheckpointError,
    each_checkpoint,
    newest_checkpoint,
    pack_state,
    part_file,
    unpack_state,
    write_manifest,
    write_part,
)
from headrace.stages.errors import StageError

PARTS = ("trainer@learner-Ball", "ghost-Ball@main")


def state_of(number, name):
    """A state that no other part of any checkpoint has."""
    return {"number": number, "name": name, "weights": np.full(50, number, np.float32)}


def save(folder, number, files, keep=2):
    """One checkpoint as a run makes it: all parts, then the manifest."""
    parts = [write_part(folder, number, name, state_of(number, name), files) for name in PARTS]
    write_manifest(folder, number, parts, {"Ball": 100 * number}, {"seed": 7}, files, keep)


def assert_whole(checkpoint):
    """Every part can be read, and all are of this very checkpoint."""
    assert set(checkpoint.parts) == set(PARTS)
    assert checkpoint.steps == {"Ball": 100 * checkpoint.number}
    checkpoint.check()
    for name in PARTS:
        read, written = checkpoint.read(name), state_of(checkpoint.number, name)
        assert read["weights"].tobytes() == written["weights"].tobytes()
        assert (read["number"], read["name"]) == (written["number"], written["name"])


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_the_newest_checkpoints_are_kept_whole_and_the_ones_before_are_removed(tmp_path, keep):
    for number in range(5):
        save(tmp_path, number, Recorder(), keep)
        checkpoint = newest_checkpoint(tmp_path)
        assert checkpoint.number == number
        assert checkpoint.progress == {"seed": 7}
        kept = range(max(0, number + 1 - keep), number + 1)
        assert {entry.name for entry in tmp_path.iterdir()} == {f"{n:06d}" for n in kept}
        for found in each_checkpoint(tmp_path):
            assert_whole(found)


# Every file operation goes wrong once, over a sequence of checkpoints. ------------------------------------------------


CHECKPOINTS = 3
HALF = [pytest.param(False, marks=pytest.mark.slow), True]
"""Whether half of a file was written when it went wrong, or nothing."""


@pytest.fixture(scope="module")
def operations(tmp_path_factory):
    """How many primitives the checkpoints consist of."""
    recorder, folder = Recorder(), tmp_path_factory.mktemp("probe") / "checkpoints"
    for number in range(CHECKPOINTS):
        save(folder, number, recorder)
    return len(recorder.done)


@pytest.mark.lengthy
@pytest.mark.parametrize("half", HALF)
def test_a_crash_at_any_operation_leaves_a_whole_checkpoint_and_the_next_run_continues(tmp_path, operations, half):
    assert operations > 20 * CHECKPOINTS
    for at in range(operations):
        folder = tmp_path / str(at)
        made = -1
        files = Faulty(at, stop=True, half=half)
        with pytest.raises(Stopped):
            for number in range(CHECKPOINTS):
                save(folder, number, files)
                made = number
        found = newest_checkpoint(folder)
        assert (found.number if found else -1) in (made, made + 1)
        if found is not None:
            assert_whole(found)
        going_on = found.number + 1 if found else 0  # the same number once more: its folder may be half full
        save(folder, going_on, Recorder())
        assert newest_checkpoint(folder).number == going_on
        assert_whole(newest_checkpoint(folder))
        if found is not None:
            assert_whole(found)
        kept = {f"{number:06d}" for number in ([found.number] if found else []) + [going_on]}
        assert {entry.name for entry in folder.iterdir() if not entry.name.startswith(".")} == kept


@pytest.mark.lengthy
@pytest.mark.parametrize("half", HALF)
def test_a_disk_error_at_any_operation_leaves_a_whole_checkpoint_then_and_afterwards(tmp_path, operations, half):
    for at in range(operations):
        folder = tmp_path / str(at)
        files = Faulty(at, stop=False, half=half)
        made = -1
        for number in range(CHECKPOINTS):
            try:
                save(folder, number, files)
                made = number
            except OSError:
                found = newest_checkpoint(folder)
                assert (found.number if found else -1) in (made, number)
                if found is not None:
                    assert_whole(found)
        assert len(files.done) > at, "nothing went wrong"
        assert newest_checkpoint(folder).number in (made, CHECKPOINTS - 1)
        assert_whole(newest_checkpoint(folder))


def test_old_checkpoints_that_can_not_be_removed_are_removed_with_the_next_one(tmp_path, caplog):
    class Clinging(Recorder):
        def perform(self, operation, file, function, *args, **kwargs):
            if operation == "replace" and args[0].name == "000000" and "removed" not in caplog.text:
                raise PermissionError(13, "somebody reads it", str(args[0]))
            return super().perform(operation, file, function, *args, **kwargs)

    files = Clinging()
    for number in range(3):
        save(tmp_path, number, files)
    assert "could not be removed" in caplog.text
    assert newest_checkpoint(tmp_path).number == 2
    save(tmp_path, 3, files)
    assert {entry.name for entry in tmp_path.iterdir()} == {"000002", "000003"}


# What is damaged is named. -------------------------------------------------------------------------------------------


def test_a_damaged_part_is_named_with_what_is_wrong(tmp_path):
    save(tmp_path, 0, Recorder())
    checkpoint = newest_checkpoint(tmp_path)
    path = checkpoint.folder / part_file(PARTS[1])
    data = path.read_bytes()
    for damaged, message in [(data[:-1], "bytes"), (data[:-1] + b"?", "checksum"), (None, "can't be read")]:
        path.unlink() if damaged is None else path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=f"ghost-Ball%40main.part.*{message}"):
            checkpoint.check()
        with pytest.raises(CheckpointError, match=f"ghost-Ball%40main.part.*{message}.*--force"):
            checkpoint.read(PARTS[1])
        checkpoint.read(PARTS[0])


@pytest.mark.parametrize(
    "text",
    [b"", b"\xff\xfe", b"[]", b"[" * 10**5, b'{"format": 2}', b'{"format": 1, "number": "x"}'],
)
def test_an_invalid_manifest_is_named(tmp_path, text):
    (tmp_path / "000000").mkdir()
    (tmp_path / "000000" / MANIFEST).write_bytes(text)
    with pytest.raises(CheckpointError, match=MANIFEST):
        newest_checkpoint(tmp_path)


# States. -------------------------------------------------------------------------------------------------------------

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
HUGE = st.integers(-(2**200), 2**200)
ARRAYS = st.builds(
    lambda dtype, shape, seed: np.random.default_rng(seed).integers(0, 2, shape).astype(dtype),
    st.sampled_from(["bool", "uint8", "int32", "int64", "uint64", "float16", "float32", "float64", ">f4"]),
    st.lists(st.integers(0, 3), max_size=3),
    st.integers(0, 9),
)
STATES = st.recursive(
    SCALARS | HUGE | ARRAYS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text() | HUGE | st.tuples(HUGE, st.text()), inner, max_size=3)
    ),
    max_leaves=8,
)


@pytest.mark.lengthy
@given(STATES)
def test_a_state_is_read_as_it_was_written(state):
    assert_same(unpack_state(pack_state(state)), state)


def assert_same(read, written):
    if isinstance(written, np.ndarray):
        assert (read.dtype, read.shape, read.tobytes()) == (written.dtype, written.shape, written.tobytes())
        assert read.flags.writeable, "a state is loaded into things that go on changing it"
    elif isinstance(written, dict):
        assert read.keys() == written.keys()
        for key in written:
            assert_same(read[key], written[key])
    elif isinstance(written, list | tuple):
        assert type(read) is type(written)
        assert len(read) == len(written)
        for one, other in zip(read, written, strict=True):
            assert_same(one, other)
    else:
        assert read == written
        assert type(read) is type(written)


@pytest.mark.parametrize("kind", [np.random.PCG64, np.random.MT19937])
def test_the_states_of_random_generators_are_kept(kind):
    generator, other = np.random.Generator(kind(3)), np.random.Generator(kind(4))
    ours, theirs = random.Random(3), random.Random(4)
    state = {"numpy": generator.bit_generator.state, "legacy": ours.getstate()}
    state = unpack_state(pack_state(state))
    other.bit_generator.state = state["numpy"]
    theirs.setstate(state["legacy"])
    assert other.integers(0, 2**60, 9).tolist() == generator.integers(0, 2**60, 9).tolist()
    assert theirs.random() == ours.random()


class Color(IntEnum):
    RED = 1


class Name(str, Enum):  # noqa: UP042 - users of older Pythons write this
    RED = "red"


ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)


class Pair(NamedTuple):
    one: int
    two: int


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        (Color.RED, 1),
        (Name.RED, "red"),
        (Pair(1, 2), (1, 2)),
        (OrderedDict(a=1), {"a": 1}),
        ({np.int64(3): 1}, {3: 1}),
    ],
)
def test_scalars_of_numpy_and_kinds_of_plain_values_become_plain(value, plain):
    assert_same(unpack_state(pack_state({"value": value}))["value"], plain)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"value": object()}, r"state\['value'\] is an object, which can't be saved; convert it to plain "),
        ({"a": {"b": [1, (2, {3})]}}, r"state\['a'\]\['b'\]\[1\]\[1\] is a set, "),
        ({"a": torch.zeros(2)}, r"state\['a'\] is a Tensor, "),
        ({"a": {(1, frozenset()): 2}}, r"a key of state\['a'\]\[1\] is a frozenset, "),
        ({"a": ENDLESS}, r"state\['a'\].* is nested too deeply, or contains itself"),
        (deque([1]), r"^state is a deque, "),
    ],
)
def test_state_that_can_not_be_saved_is_refused_with_its_keys(state, message):
    with pytest.raises(StageError, match=message):
        pack_state(state)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        pack_state([1, 2])[:-1],
        msgpack.packb(msgpack.ExtType(5, b"")),
        msgpack.packb(msgpack.ExtType(1, msgpack.packb(["O", [1], b"12345678"]))),
        msgpack.packb(msgpack.ExtType(1, msgpack.packb(["no such dtype", [1], b"1234"]))),
    ],
)
def test_bytes_that_are_not_a_state_are_refused_and_nothing_is_unpickled(data):
    with pytest.raises(CheckpointError, match="not a valid state"):
        unpack_state(data)
