import contextlib
import json
import zipfile

import pytest
from replay_world import Every, Piece, World, add, new_memory, rows_of

from headrace.stages.trainer.replay.replay_memory import HEADER, ReplayFileError, read_replay, write_replay

CAPACITY, LENGTH = 12, 3


@pytest.fixture
def world():
    return World()


@pytest.fixture
def memory(world):
    memory = new_memory(CAPACITY, LENGTH)
    for pieces in ([Piece(0, 5), Piece(1, 4)], [Piece(0, 3, "terminated"), Piece(1, 1)], [Piece(0, 2), Piece(1, 2)]):
        add(memory, world.batch(pieces))
    return memory


def everything(memory):
    """All rows and sequences, in the order in which they would be drawn."""
    return rows_of(memory.sample(len(memory), Every())), rows_of(memory.sample_sequences(len(memory), Every()))


def test_a_restored_memory_equals_the_saved_one_and_continues_identically(memory, world, tmp_path):
    write_replay(memory, tmp_path / "replay.bin")
    other = new_memory(CAPACITY, LENGTH)
    read_replay(other, tmp_path / "replay.bin")
    assert everything(other) == everything(memory)
    assert len(other.observations) == len(memory.observations)
    for _ in range(6):
        batch = world.batch([Piece(1, 2), Piece(0, 3), Piece(1, 1, "truncated"), Piece(1, 2)])
        for each in (memory, other):
            add(each, batch)
        assert everything(other) == everything(memory)
        assert len(other.observations) == len(memory.observations)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ReplayFileError, match=r"nothing\.bin: No such file"):
        read_replay(new_memory(CAPACITY), tmp_path / "nothing.bin")


def test_a_file_cut_anywhere_is_refused_and_the_memory_left_empty(memory, tmp_path):
    path = tmp_path / "replay.bin"
    write_replay(memory, path)
    whole = path.read_bytes()
    for length in range(0, len(whole), 37):
        path.write_bytes(whole[:length])
        other = new_memory(CAPACITY, LENGTH)
        with pytest.raises(ReplayFileError, match="truncated|not a replay buffer"):
            read_replay(other, path)
        assert len(other) == len(other.observations) == 0


@pytest.mark.lengthy
def test_a_file_with_any_byte_changed_is_refused_unless_the_rows_are_intact(memory, tmp_path):
    path = tmp_path / "replay.bin"
    write_replay(memory, path)
    whole = path.read_bytes()
    for at in range(0, len(whole), 11):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        other = new_memory(CAPACITY, LENGTH)
        with contextlib.suppress(ReplayFileError):
            read_replay(other, path)
            assert everything(other) == everything(memory)  # for instance, the time of an entry has changed
            continue
        assert len(other) == 0


def test_another_version_of_the_format_is_refused_by_name(memory, tmp_path):
    path = tmp_path / "replay.bin"
    write_replay(memory, path)
    with zipfile.ZipFile(path) as archive:
        header = json.loads(archive.read(HEADER))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(HEADER, json.dumps({**header, "format": 2}))
    with pytest.raises(ReplayFileError) as refused:
        read_replay(new_memory(CAPACITY, LENGTH), path)
    assert str(refused.value) == f"{path}: the file has format 2, but this version of Headrace reads format 1"


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (new_memory(CAPACITY + 1, LENGTH), "saved with buffer_size 12, which is now 13"),
        (new_memory(CAPACITY, LENGTH + 1), "saved with sequence_length 3, which is now 4"),
    ],
)
def test_a_file_of_another_memory_is_refused(memory, tmp_path, other, message):
    write_replay(memory, tmp_path / "replay.bin")
    with pytest.raises(ReplayFileError, match=message):
        read_replay(other, tmp_path / "replay.bin")


def test_writing_that_fails_leaves_the_older_file_and_nothing_else(memory, tmp_path, monkeypatch):
    path = tmp_path / "replay.bin"
    write_replay(new_memory(CAPACITY, LENGTH), path)
    older = path.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_replay(memory, path)
    assert path.read_bytes() == older
    assert [file.name for file in tmp_path.iterdir()] == ["replay.bin"]
