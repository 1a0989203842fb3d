"""Specifications of the assembler: announced, gathered, made real, or given up."""

from __future__ import annotations

import logging

import pytest
from fakes_files import Faulty

from headrace.pipeline.run_folder.checkpoint import (
    PATIENCE_S,
    CheckpointAssembler,
    checkpoint_folder,
    newest_checkpoint,
    unfinished_folder,
    write_part,
)

PARTS = ("trainer@learner-Ball", "ghost-Ball@main")


@pytest.fixture
def saved(tmp_path):
    """Writes a part as its host does, and gives what the host tells."""
    return lambda number, name: write_part(tmp_path, number, name, {"number": number})


def test_a_checkpoint_becomes_real_with_its_last_part(tmp_path, saved):
    assembler = CheckpointAssembler(tmp_path)
    assert assembler.newest == -1
    number = assembler.begin(PARTS, 0.0)
    assert (number, assembler.pending) == (0, 0)
    assert not assembler.add(saved(number, PARTS[1]))
    assert newest_checkpoint(tmp_path) is None
    assert assembler.add(saved(number, PARTS[0]))
    assert newest_checkpoint(tmp_path) is None
    assert assembler.commit({"Ball": 5}, {"seed": 1}) == 0
    assert (assembler.newest, assembler.pending) == (0, None)
    assert newest_checkpoint(tmp_path).read(PARTS[0]) == {"number": 0}


def test_unexpected_parts_are_ignored(tmp_path, saved):
    assembler = CheckpointAssembler(tmp_path)
    assert not assembler.add(saved(0, PARTS[0]))
    first = assembler.begin(PARTS, 0.0)
    assembler.add(saved(first, PARTS[0]))
    second = assembler.begin(PARTS, 1.0)
    assert second == first + 1
    assert not assembler.add(saved(first, PARTS[1])), "it belongs to the one that was replaced"
    assert not assembler.add(saved(second, PARTS[1]))
    assert assembler.add(saved(second, PARTS[0]))


def test_parts_of_other_hosts_are_carried_over_from_the_newest_checkpoint_with_their_files(tmp_path, saved):
    assembler = CheckpointAssembler(tmp_path)
    number = assembler.begin(PARTS, 0.0)
    first = [saved(number, name) for name in PARTS]
    (unfinished_folder(tmp_path, 0) / "replay-Ball.bin").write_bytes(b"memory")
    for part in first:
        assembler.add(part)
    assembler.commit({}, {})
    assembler.add(saved(assembler.begin(PARTS[1:], 1.0), PARTS[1]))
    assembler.carry_over(first)
    assembler.commit({}, {})
    newest = newest_checkpoint(tmp_path)
    assert [newest.read(name)["number"] for name in PARTS] == [0, 1], "its own part, where it has one"
    assert (newest.folder / "replay-Ball.bin").read_bytes() == b"memory"
    newest.check()


def test_a_checkpoint_that_takes_too_long_is_abandoned_and_the_missing_hosts_are_named(tmp_path, saved, caplog):
    assembler = CheckpointAssembler(tmp_path)
    assert not assembler.give_up_if_overdue(1e9)
    number = assembler.begin(PARTS, 1000.0)
    assembler.add(saved(number, PARTS[0]))
    assert not assembler.give_up_if_overdue(1000.0 + PATIENCE_S)
    with caplog.at_level(logging.WARNING):
        assert assembler.give_up_if_overdue(1000.1 + PATIENCE_S)
    assert "still missing: ghost-Ball@main" in caplog.text
    assert assembler.pending is None


def test_a_disk_that_refuses_the_manifest_leaves_the_one_before_and_the_next_number_free(tmp_path, saved):
    files = Faulty(at=10**9, stop=False)
    assembler = CheckpointAssembler(tmp_path, files=files)
    for refuse in (False, True, False):
        number = assembler.begin(PARTS, 0.0)
        for name in PARTS:
            assembler.add(saved(number, name))
        files.at = len(files.done) if refuse else 10**9
        if refuse:
            with pytest.raises(OSError, match="no space"):
                assembler.commit({}, {})
            assert (assembler.newest, newest_checkpoint(tmp_path).number) == (0, 0)
            assert assembler.pending is None
        else:
            assembler.commit({}, {})
    assert (assembler.newest, newest_checkpoint(tmp_path).number) == (2, 2)
    assert newest_checkpoint(tmp_path).read(PARTS[1]) == {"number": 2}
    assert not checkpoint_folder(tmp_path, 1).exists()
