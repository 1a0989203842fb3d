"""SAC whose replay buffer lies in hosts of its own."""

from __future__ import annotations

import json
import logging
import os
import signal
from zipfile import ZipFile

import pytest
from run_configs import INLINE, Plain, changed, sac
from run_folders import weights_digest
from runs import run_here

from headrace.pipeline.run_folder.checkpoint import newest_checkpoint
from headrace.stages.trainer.replay.replay_memory import HEADER


def sharded(kind: str, replicas: int, **changes: object) -> Plain:
    """SAC on Pendulum, with a reward signal that learns."""
    plain = sac(behaviors__Pendulum__hyperparameters__steps_per_update=1, **changes)
    return changed(plain, {"pipeline__hosts__replay": {"kind": kind, "replicas": replicas}})


def rows_in_files(run_folder, shards: int) -> list[int]:
    """Rows in the shards' files of the newest checkpoint."""
    checkpoint = newest_checkpoint(run_folder / "checkpoints")
    assert checkpoint is not None
    rows = []
    for shard in range(shards):
        with ZipFile(checkpoint.folder / f"replay-Pendulum-{shard}.bin") as archive:
            facts = json.loads(archive.read(HEADER))["facts"]
        rows.append(min(facts["count"], facts["buffer_size"]))
    return rows


def test_a_saved_buffer_is_divided_among_the_shards_of_a_resumed_run(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    changes = {**INLINE, "behaviors__Pendulum__hyperparameters__buffer_size": 900}
    short = {"behaviors__Pendulum__max_steps": 300}
    inside = sac(behaviors__Pendulum__hyperparameters__steps_per_update=8, **changes, **short)
    first = run_here(inside, tmp_path, "run")
    kept = first.behaviors["Pendulum"].step
    for shards in (3, 2):
        more = {"behaviors__Pendulum__max_steps": kept + 16}
        last = run_here(sharded("inline", shards, **changes, **more), tmp_path, "run", resume=True)
        step = last.behaviors["Pendulum"].step
        rows = rows_in_files(last.folder, shards)
        assert sum(rows) == step
        assert max(rows) - min(rows) < 60
        kept = step
    assert "replay-Pendulum-0 restored" in caplog.text
    assert "starts empty" not in caplog.text


@pytest.mark.slow
def test_deterministic_runs_with_shards_have_the_same_weights(tmp_path):
    plain = sharded("inline", 3, **INLINE, pipeline__deterministic=True)
    first = run_here(plain, tmp_path, "first")
    again = run_here(plain, tmp_path, "again")
    assert first.behaviors["Pendulum"].step >= 600
    assert weights_digest(first.folder, "Pendulum") == weights_digest(again.folder, "Pendulum")


@pytest.mark.slow
def test_the_death_of_a_shard_ends_the_run_by_its_name_and_the_run_can_be_resumed(start):
    host = "replay-Pendulum-1"
    command = start(sharded("process", 2, behaviors__Pendulum__max_steps=10**6))
    command.until_checkpoint()
    os.kill(command.pid_of(host), signal.SIGKILL)
    assert command.wait() == 1
    assert f"the process of {host} was killed by signal 9" in command.output
    assert "Traceback" not in command.output
    command.assert_left_nothing()
    before = newest_checkpoint(command.run_folder / "checkpoints")
    assert before is not None
    command = start(sharded("process", 2, behaviors__Pendulum__max_steps=before.steps["Pendulum"] + 200), "--resume")
    assert command.wait() == 0, command.output


@pytest.mark.slow
def test_a_killed_learner_resumes_with_its_shards(start):
    command = start(sharded("process", 2, behaviors__Pendulum__max_steps=10**6))
    number = command.until_checkpoint(1).number
    before = command.hosts()
    os.kill(command.pid_of("learner-Pendulum"), signal.SIGKILL)
    command.until_checkpoint(number + 3)
    assert "learner-Pendulum continues from step" in command.output
    after = command.hosts()
    assert after.pop("learner-Pendulum") != before.pop("learner-Pendulum")
    assert after == before
    command.interrupt()
    assert command.wait() == 0, command.output
    assert "Traceback" not in command.output
    command.assert_left_nothing()
