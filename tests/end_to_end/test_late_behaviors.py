"""A behaviour that a resumed run's environments show late, or never, keeps what it has learned."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from run_configs import INLINE, late
from run_folders import weights_digest
from runs import run_here

from headrace.pipeline.run import RunResult
from headrace.pipeline.run_folder.checkpoint import newest_checkpoint


def trained(results: Any, late_one: bool, early_steps: int, **settings: Any) -> RunResult:
    """Train in an environment with both behaviours, or with the first one alone."""
    plain = late(
        **INLINE,
        environment__options={"after": 0, "late": late_one},
        behaviors__Early__max_steps=early_steps,
        behaviors__Early__checkpoint_interval=100,
        behaviors__Late__max_steps=early_steps,
        behaviors__Late__trainer_type="sac",
        behaviors__Late__hyperparameters={
            "batch_size": 16,
            "buffer_init_steps": 32,
            "steps_per_update": 10,
            "save_replay_buffer": True,
        },
    )
    if not late_one:
        del plain["environment"]["behaviors"]["late_*"]
    return run_here(plain, results, "run", **settings)


def test_a_behavior_keeps_what_it_learned_in_a_resumed_run_that_never_met_it(tmp_path, caplog):
    first = trained(tmp_path, True, 100)
    digest = weights_digest(first.folder, "Late")
    listed = training_status(first.folder)["Late"]
    second = trained(tmp_path, False, 600, resume=True)
    assert second.checkpoint > first.checkpoint + 2, "the one that it resumed from is removed by now"
    newest = newest_checkpoint(second.folder / "checkpoints")
    assert newest is not None
    newest.check()
    assert newest.steps["Late"] == first.behaviors["Late"].step
    assert weights_digest(second.folder, "Late") == digest
    assert training_status(second.folder)["Late"] == listed
    caplog.clear()
    with caplog.at_level(logging.INFO):
        third = trained(tmp_path, True, 700, resume=True)
    assert f"Resuming training from step {newest.steps['Late']}." in caplog.messages
    assert third.behaviors["Late"].step >= 700
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def training_status(folder: Path) -> Any:
    return json.loads((folder / "run_logs" / "training_status.json").read_text())
