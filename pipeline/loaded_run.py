"""Loads the `RunResult` of an earlier run from its folder, or from a file written by `RunResult.save`."""

from __future__ import annotations

import os
from contextlib import suppress

from headrace.pipeline.common.errors import RunFolderError
from headrace.pipeline.common.graph import TRAINER, learner_name, part_name
from headrace.pipeline.policies.export import NEWEST, best_policy, read_score
from headrace.pipeline.run import BehaviorResult, RunResult
from headrace.pipeline.run_folder.carrying import unpack
from headrace.pipeline.run_folder.checkpoint import Checkpoint, CheckpointError, newest_checkpoint
from headrace.pipeline.run_folder.names import behavior_folder
from headrace.pipeline.run_folder.resuming import kept_configuration
from headrace.startup_context import absolute


def load(
    path: str | os.PathLike[str], results_dir: str | os.PathLike[str] = "results", run_id: str | None = None
) -> RunResult:
    """Load an earlier run, in order to resume it, save it or load its policy.

        run = load("cartpole.zip")
        run.resume(steps=50_000)
        policy = load_policy(run.folder)

    Args:
        path: a run's folder, or a file written by `RunResult.save`, which is unpacked into a folder.
        results_dir: parent of the unpacked folder.
        run_id: name of the unpacked folder; None for the saved run's id.

    Raises:
        RunFolderError: if `path` is not a run, is damaged or has no checkpoint, or if the new folder exists already.
        ConfigError: if the run's configuration was written by a different version or has mistakes.
    """
    folder = absolute(path)
    if not folder.is_dir():
        folder = unpack(path, results_dir, run_id)
    config = kept_configuration(folder)
    try:
        checkpoint = newest_checkpoint(folder / "checkpoints")
        if checkpoint is None:
            raise RunFolderError(f"{folder} can't be resumed: it has no checkpoint")
        behaviors = {name: _behavior(checkpoint, name, folder) for name in checkpoint.steps}
    except CheckpointError as error:
        raise RunFolderError(str(error)) from error
    interrupted = any(each.step < config.behavior_settings(name).max_steps for name, each in behaviors.items())
    elapsed_s = float(checkpoint.progress.get("elapsed_s", 0.0))
    return RunResult(folder.name, folder, behaviors, checkpoint.number, interrupted, elapsed_s, config=config)


def _behavior(checkpoint: Checkpoint, name: str, folder: os.PathLike[str]) -> BehaviorResult:
    state = checkpoint.read(part_name(TRAINER, learner_name(name))) or {}
    returns = state.get("recent_returns") or ()
    export, best = behavior_folder(absolute(folder), name) / NEWEST, None
    with suppress(OSError, ValueError, LookupError):  # no policy was evaluated
        best = float(read_score(best_policy(absolute(folder), name))["mean"])
    return BehaviorResult(
        checkpoint.steps[name],
        int(state.get("policy", {}).get("version", 0)),
        sum(returns) / len(returns) if returns else None,
        None,
        export if export.is_file() else None,
        best,
    )
