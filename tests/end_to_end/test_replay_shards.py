"""SAC whose replay buffer lies in hosts of its own."""

from __future__ import annotations

import json
import os
import signal

import pytest
from run_configs import INLINE, Plain, changed, sac
from run_folders import weights_digest
from runs import run_here

from pipeline.run_folder.checkpoint import newest_checkpoint


def sharded(kind: str, replicas: int, **changes: object) -> Plain:
    """SAC on Pendulum, with a reward signal that learns."""
    plain = sac(behaviors__Pendulum__hyperparameters__steps_per_update=1, **changes)
    return changed(plain, {"pipeline__hosts__replay": {"kind": kind, "replicas": replicas}})


def rows_in_files(checkpoint) -> int:
    """Rows in the shards' files of a checkpoint."""
    total = 0
    for path in checkpoint.folder.glob("replay-Pendulum-*.bin"):
        data = path.read_bytes()
        begin = data.index(b"{")
        length = int.from_bytes(data[begin - 8 : begin], "little")
        total += min(json.loads(data[begin : begin + length])["facts"]["count"], 200)
    return total


@pytest.mark.lengthy
def test_it_learns_from_shards_and_a_deterministic_run_ends_alike(tmp_path):
    plain = sharded("inline", 3, **INLINE, pipeline__deterministic=True)
    first = run_here(plain, tmp_path, "first")
    again = run_here(plain, tmp_path, "again")
    assert first.behaviors["Pendulum"].step >= 600
    assert weights_digest(first.folder, "Pendulum") == weights_digest(again.folder, "Pendulum")


@pytest.mark.slow
def test_a_checkpoint_holds_each_shard_and_a_resumed_run_goes_on_with_them(start):
    command = start(sharded("process", 2))
    assert command.wait() == 0, command.output
    command.assert_left_nothing()
    checkpoint = newest_checkpoint(command.run_folder / "checkpoints")
    assert checkpoint is not None
    assert {f"replay_shard@replay-Pendulum-{shard}" for shard in (0, 1)} < set(checkpoint.parts)
    assert rows_in_files(checkpoint) == 400  # 200 in each, of the newest 400 of 600
    command = start(sharded("process", 2, behaviors__Pendulum__max_steps=900), "--resume")
    assert command.wait() == 0, command.output
    assert "starts empty" not in command.output


@pytest.mark.slow
def test_the_death_of_a_shard_ends_the_run_by_its_name_and_the_run_can_be_resumed(start):
    command = start(sharded("process", 2, behaviors__Pendulum__max_steps=10**6))
    command.until_checkpoint()
    os.kill(command.pid_of("replay-Pendulum-1"), signal.SIGKILL)
    assert command.wait() == 1
    assert "the process of replay-Pendulum-1 was killed by signal 9" in command.output
    assert "Traceback" not in command.output
    command.assert_left_nothing()
    before = newest_checkpoint(command.run_folder / "checkpoints")
    assert before is not None
    command = start(sharded("process", 2, behaviors__Pendulum__max_steps=before.steps["Pendulum"] + 200), "--resume")
    assert command.wait() == 0, command.output
