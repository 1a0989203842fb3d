"""Which checkpoint a run resumes from: never a damaged one, never one mistaken for another, and it is said which."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from fakes_files import Faulty, Recorder, Stopped

from headrace.pipeline.run_folder.checkpoint import (
    MANIFEST,
    CheckpointError,
    CheckpointFormatError,
    checksum_of,
    newest_checkpoint,
    write_manifest,
    write_part,
)
from headrace.pipeline.run_folder.resuming import choose_checkpoint

PARTS = ("trainer@learner-Ball", "ghost-Ball@main")


def save(folder, number):
    """One checkpoint, with states as large as those of all others."""
    parts = [write_part(folder, number, name, np.full(20, number, np.float32)) for name in PARTS]
    write_manifest(folder, number, parts, {"Ball": 100 * number}, {"seed": 7})


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """The folder of checkpoints 6 and 7."""
    save(tmp_path, 6)
    save(tmp_path, 7)
    return tmp_path


@pytest.fixture(autouse=True)
def heard(caplog):
    caplog.set_level(logging.WARNING)
    return caplog


def part(folder, number):
    return folder / f"{number:06d}" / "trainer%40learner-Ball.part"


def flip(path, bit=1000):
    data = bytearray(path.read_bytes())
    data[bit // 8 % len(data)] ^= 1 << bit % 8
    path.write_bytes(data)


def manifest(folder, number):
    return folder / f"{number:06d}" / MANIFEST


def swap_the_part(folder):
    shutil.copy(part(folder, 6), part(folder, 7))


def swap_the_folders(folder):
    (folder / "000007").rename(folder / "x")
    (folder / "000006").rename(folder / "000007")
    (folder / "x").rename(folder / "000008")


DAMAGES = {
    "a flipped bit": (lambda folder: flip(part(folder, 7)), "000007.trainer.*is damaged: its checksum"),
    "a missing part": (lambda folder: part(folder, 7).unlink(), "000007.trainer.*can't be read: No such file"),
    "a part of the older one": (swap_the_part, "000007.trainer.*its checksum"),
    "a manifest of the older one": (
        lambda folder: shutil.copy(manifest(folder, 6), manifest(folder, 7)),
        "is the manifest of checkpoint 6, not of checkpoint 7",
    ),
    "a truncated manifest": (
        lambda folder: os.truncate(manifest(folder, 7), 100),
        "000007.manifest.json is not a checkpoint manifest",
    ),
    "a missing manifest": (lambda folder: manifest(folder, 7).unlink(), "000007.manifest.json is missing"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_newest_one_is_named_and_put_aside_and_the_older_one_is_taken(two, heard, damage):
    harm, message = DAMAGES[damage]
    harm(two)
    chosen = choose_checkpoint(two)
    assert chosen.number == 6
    chosen.check()
    (record,) = heard.records
    assert re.search(message, record.getMessage())
    assert f"Resuming from the previous checkpoint, {two / '000006'} (Ball at step 600), instead" in record.getMessage()
    assert f"are kept as {two / '000007.damaged'}" in record.getMessage()
    assert not (two / "000007").exists()
    assert newest_checkpoint(two).number == 6, "hosts take the same one"
    save(two, 7)
    assert choose_checkpoint(two).number == 7


def test_folders_that_have_changed_places_are_not_mistaken_for_each_other(two):
    swap_the_folders(two)
    with pytest.raises(
        CheckpointError, match="000008.*of checkpoint 7, not of checkpoint 8.*000007.*of checkpoint 6, not of"
    ):
        choose_checkpoint(two)


def test_when_all_are_damaged_each_is_named_and_nothing_is_changed(two):
    flip(part(two, 7))
    part(two, 6).unlink()
    before = sorted(two.rglob("*"))
    with pytest.raises(
        CheckpointError, match=r"000007.trainer.*000006.trainer.*No older checkpoint is intact.*--force"
    ):
        choose_checkpoint(two)
    assert sorted(two.rglob("*")) == before


@pytest.mark.lengthy
@pytest.mark.parametrize("stride", [11, pytest.param(1, marks=pytest.mark.slow)])
def test_no_flip_of_a_bit_of_a_manifest_makes_another_checkpoint_of_it(tmp_path, stride):
    save(tmp_path, 7)
    (tmp_path / "000007" / "trainer%40learner-Ball.part").unlink()  # what its manifest says is all that is asked
    whole = newest_checkpoint(tmp_path)
    path = manifest(tmp_path, 7)
    data = path.read_bytes()
    refused = 0
    for bit in range(0, 8 * len(data), stride):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        try:
            found = newest_checkpoint(tmp_path)
        except CheckpointError:
            refused += 1
            continue
        assert (found.number, found.parts, found.steps, found.progress) == (
            whole.number,
            whole.parts,
            whole.steps,
            whole.progress,
        )
    assert refused > 0.9 * 8 * len(data) // stride


def sealed(content):
    del content["checksum"]
    return json.dumps({**content, "checksum": checksum_of(content)})


def test_another_version_of_the_format_does_not_count_as_damage(two):
    path = manifest(two, 7)
    path.write_text(sealed({**json.loads(path.read_text()), "format": 2}))
    refused = r"000007.manifest\.json has format 2, but this version of Headrace reads format 1"
    with pytest.raises(CheckpointFormatError, match=refused):
        choose_checkpoint(two)
    assert (two / "000007").is_dir()


@pytest.mark.parametrize("name", ["../000006/trainer%40learner-Ball.part", "/etc/passwd"])
def test_a_manifest_names_no_files_elsewhere(two, name):
    content = json.loads(manifest(two, 7).read_text())
    content["parts"][PARTS[0]]["file"] = name
    manifest(two, 7).write_text(sealed(content))
    assert choose_checkpoint(two).number == 6


def test_to_play_policies_no_part_has_to_be_whole_and_nothing_is_put_aside(two, heard):
    flip(part(two, 7))
    assert choose_checkpoint(two, playing=True).number == 7
    os.truncate(manifest(two, 7), 100)
    before = sorted(two.rglob("*"))
    assert choose_checkpoint(two, playing=True).number == 6
    assert "Playing from the previous checkpoint" in heard.text
    assert sorted(two.rglob("*")) == before


def test_wherever_putting_aside_is_interrupted_the_next_try_takes_the_same_one(tmp_path):
    whole = tmp_path / "whole"
    save(whole, 6)
    save(whole, 7)
    flip(part(whole, 7))
    at = 0
    while True:
        folder = tmp_path / str(at)
        shutil.copytree(whole, folder)
        try:
            choose_checkpoint(folder, files=Faulty(at, stop=True))
            break
        except Stopped:
            at += 1
        assert choose_checkpoint(folder, files=Recorder()).number == 6
        assert newest_checkpoint(folder).number == 6
    assert at >= 2
