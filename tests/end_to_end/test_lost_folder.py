"""A run whose folder is removed, moved or taken over ends by name, and goes on from a folder beside it."""

from __future__ import annotations

import pytest
from lost_folders import move, remove
from run_configs import INLINE, cartpole, changed
from runs import MORE_PATIENCE_S, Command, run_here

from headrace.pipeline.common.errors import RunFailed
from headrace.pipeline.run import RunOptions
from headrace.pipeline.run_folder.checkpoint import newest_checkpoint

ENDLESS = 100_000
PLAIN = cartpole(behaviors__CartPole__max_steps=ENDLESS, behaviors__CartPole__checkpoint_interval=500, **INLINE)


def lose(plain, results, way, at=1):
    """Run until the folder is lost at a checkpoint; the message, and the step that the run had by then."""
    steps = {}

    def written(checkpoint):
        steps.update(checkpoint.steps)
        if checkpoint.number == at:
            way(results / "run")

    with pytest.raises(RunFailed) as failed:
        run_here(plain, results, "run", RunOptions(on_checkpoint=written))
    return str(failed.value), steps


def assert_goes_on(plain, results, behavior, steps):
    kept = newest_checkpoint(results / "run-rescued" / "checkpoints")
    assert kept is not None
    assert kept.steps[behavior] >= steps[behavior]
    assert (results / "run-rescued" / behavior / f"{behavior}-{kept.steps[behavior]}.pt").is_file()
    more = changed(plain, {f"behaviors__{behavior}__max_steps": kept.steps[behavior] + 200})
    assert run_here(more, results, "run-rescued", resume=True).behaviors[behavior].step >= kept.steps[behavior] + 200


def test_a_run_whose_folder_is_removed_is_resumed_from_the_rescued_folder(tmp_path):
    results = tmp_path / "results"
    said, steps = lose(PLAIN, results, remove)
    assert f"{results / 'run'} is no longer the folder that this run has locked" in said
    assert f"The run's state at that point is in {results / 'run-rescued'}." in said
    assert "--run-id run-rescued --resume" in said
    assert not (results / "run").exists()
    assert_goes_on(PLAIN, results, "CartPole", steps)


@pytest.mark.slow
def test_another_run_may_take_over_the_folder(tmp_path):
    plain = cartpole(behaviors__CartPole__max_steps=10**8, behaviors__CartPole__checkpoint_interval=2000)
    first = Command(tmp_path, plain, patience_s=MORE_PATIENCE_S)
    try:
        first.until(lambda: bool(newest_checkpoint(first.run_folder / "checkpoints")), "a checkpoint")
        move(first.run_folder)  # to remove it takes several tries while a learner writes there
        second = Command(tmp_path, plain, "--force", patience_s=MORE_PATIENCE_S)
        try:
            assert first.wait() == 1
            assert "it was removed, moved or replaced" in first.output
            assert newest_checkpoint(tmp_path / "results" / "run-rescued" / "checkpoints") is not None
            second.until(lambda: bool(newest_checkpoint(second.run_folder / "checkpoints")), "a checkpoint")
            second.interrupt()
            assert second.wait() == 0
        finally:
            second.end()
    finally:
        first.end()


@pytest.mark.slow
def test_a_folder_that_is_lost_after_the_last_checkpoint_is_a_failure(tmp_path):
    plain = changed(PLAIN, {"behaviors__CartPole__max_steps": 1200})
    said, steps = lose(plain, tmp_path, move, at=2)
    assert "it was removed, moved or replaced" in said
    assert "No trainer could save its state" in said
    kept = newest_checkpoint(tmp_path / "elsewhere" / "checkpoints")
    assert kept is not None
    assert kept.steps == steps
