"""A checkpoint that can't be used is named, with what is wrong with it, before anything is started."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from run_configs import INLINE, cartpole
from run_folders import manifest
from runs import Command, run_here

from pipeline.run_folder.checkpoint import CheckpointError

PLAIN = cartpole(behaviors__CartPole__max_steps=1000, **INLINE)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a run that has ended."""
    return run_here(PLAIN, tmp_path_factory.mktemp("trained"), "run").folder


@pytest.fixture
def damaged(trained, tmp_path):
    """A copy of it, to be damaged."""
    return Path(shutil.copytree(trained, tmp_path / "results" / "run"))


def part(run_folder):
    return next(run_folder.glob("checkpoints/*/trainer*.part"))


def truncate(run_folder):
    part(run_folder).write_bytes(part(run_folder).read_bytes()[:-1])


def flip_a_bit(run_folder):
    data = bytearray(part(run_folder).read_bytes())
    data[len(data) // 2] ^= 4
    part(run_folder).write_bytes(data)


def remove(run_folder):
    part(run_folder).unlink()


def remove_the_folder(run_folder):
    shutil.rmtree(part(run_folder).parent)


def empty_the_manifest(run_folder):
    manifest(run_folder).write_bytes(b"")


def cut_the_manifest(run_folder):
    manifest(run_folder).write_bytes(manifest(run_folder).read_bytes()[:-20])


def fill_the_manifest_with_garbage(run_folder):
    manifest(run_folder).write_bytes(bytes(range(256)))


def nest_the_manifest(run_folder):
    manifest(run_folder).write_text("[" * 100_000)


def write_another_format(run_folder):
    manifest(run_folder).write_text(json.dumps({**json.loads(manifest(run_folder).read_text()), "format": 99}))


def write_a_list(run_folder):
    manifest(run_folder).write_text("[1, 2]")


def leave_a_key_out(run_folder):
    content = json.loads(manifest(run_folder).read_text())
    del content["parts"]["trainer@learner-CartPole"]["crc32"]
    manifest(run_folder).write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("damage", "file", "message"),
    [
        (truncate, "trainer%40learner-CartPole.part", "is damaged: it has .* bytes, .* were written"),
        (flip_a_bit, "trainer%40learner-CartPole.part", "is damaged: its checksum"),
        (remove, "trainer%40learner-CartPole.part", "can't be read: No such file"),
        (remove_the_folder, "trainer%40learner-CartPole.part", "can't be read: No such file"),
        (empty_the_manifest, "manifest.json", "is no manifest of a checkpoint"),
        (cut_the_manifest, "manifest.json", "is no manifest of a checkpoint"),
        (fill_the_manifest_with_garbage, "manifest.json", "is no manifest of a checkpoint"),
        (nest_the_manifest, "manifest.json", "is no manifest of a checkpoint"),
        (write_another_format, "manifest.json", "format 99, this version reads 1"),
        (write_a_list, "manifest.json", "is no manifest of a checkpoint"),
        (leave_a_key_out, "manifest.json", "is no manifest of a checkpoint: KeyError"),
    ],
)
def test_what_is_wrong_with_it_is_said_and_the_run_is_left_as_it_is(damaged, damage, file, message):
    damage(damaged)
    before = sorted(damaged.rglob("*"))
    with pytest.raises(CheckpointError, match=f"{file}.*{message}"):
        run_here(PLAIN, damaged.parent, "run", resume=True)
    assert sorted(damaged.rglob("*")) == before


def test_the_command_says_so_without_a_traceback_and_ends_with_status_2(damaged, tmp_path):
    flip_a_bit(damaged)
    command = Command(tmp_path, PLAIN, "--resume")
    assert command.wait() == 2
    (line,) = [line for line in command.output.splitlines() if not line.startswith("warning")]
    assert line.startswith("run-pipeline: ")
    assert "trainer%40learner-CartPole.part: is damaged" in line


def test_a_damaged_checkpoint_keeps_nobody_from_starting_anew(damaged):
    fill_the_manifest_with_garbage(damaged)
    result = run_here(PLAIN, damaged.parent, "run", force=True)
    assert result.checkpoint >= 0
