"""Runs a configuration until its policies are trained: checks it, opens the folder, runs and reports.

Python callers only need `run(config)`; the command line adds signals and a terminal. `load` reads the `RunResult` of an
earlier run from its folder, or from a file written by `RunResult.save`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass, field, replace
from operator import methodcaller
from os import PathLike
from pathlib import Path
from typing import Any

import yaml

from headrace.config import RunConfig, load_config
from headrace.config.learning_defaults import describe_learning_defaults
from headrace.pipeline.common.errors import RunError, RunFailed, RunFolderError
from headrace.pipeline.common.global_state_guard import global_state_guard, put_back
from headrace.pipeline.common.graph import TRAINER, learner_name, part_name
from headrace.pipeline.common.loop_watch import LoopWatch
from headrace.pipeline.common.output import complain
from headrace.pipeline.common.process import version_information
from headrace.pipeline.common.seeds import choose_seed
from headrace.pipeline.diagnosis.rules import Finding
from headrace.pipeline.hosts.early_children import started_early
from headrace.pipeline.main.coordinator import Coordinator
from headrace.pipeline.main.preflight import check_run, key_of
from headrace.pipeline.main.run_plan import RunPlan
from headrace.pipeline.main.run_shape import choose_shape, for_viewers
from headrace.pipeline.policies.export import NEWEST, best_policy, read_score
from headrace.pipeline.policies.inference import plays_given_models
from headrace.pipeline.policies.ml_agents import left_steps
from headrace.pipeline.reporting.console import Progress, ProgressSnapshot, logged_to
from headrace.pipeline.reporting.league_files import write_leagues
from headrace.pipeline.reporting.pictures import write_run_picture
from headrace.pipeline.run_folder.carrying import carry, unpack
from headrace.pipeline.run_folder.checkpoint import Checkpoint, CheckpointError, newest_checkpoint
from headrace.pipeline.run_folder.folder import RunFolder, unusable
from headrace.pipeline.run_folder.names import CONFIGURATION, behavior_folder
from headrace.pipeline.run_folder.remote_copy import prepare_copy
from headrace.pipeline.run_folder.resuming import (
    changed_settings,
    choose_checkpoint,
    kept_configuration,
    other_run,
    resumed_settings,
)
from headrace.pipeline.run_handle import CheckpointWritten, StopRequest, SummaryWritten, guarded, join_callbacks
from headrace.pipeline.run_handle import RunOptions as RunOptions
from headrace.queues.disks import Disks, in_thread
from headrace.stages.errors import describe_error, is_failure
from headrace.stages.evaluation.scores import Score
from headrace.stages.user_calls import in_a_loop, run_alone
from headrace.startup_context import absolute, kept_startup_context, shortened, shown
from headrace.stop_requests import cleaned_up_by

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BehaviorResult:
    """The result of one behaviour in a run."""

    step: int
    """Number of steps counted by the trainer."""
    version: int
    """Version of the trainer's last policy. SAC's policies have new versions before its first update, too."""
    recent_return: float | None
    """Mean return of the last (up to) 100 training episodes."""
    elo: float | None
    """Self-play rating (Elo) of the final policy; None without self-play."""
    export: Path | None
    """Path of the exported final policy; None if there is none."""
    best_evaluation: float | None = None
    """Mean return of the best evaluated policy; None without evaluations."""
    ended_by: str = ""
    """Why `stop_when` ended the training before `max_steps`; empty if it did not."""
    updates: int = 0
    """Number of updates that the trainer made."""


@dataclass(frozen=True)
class RunResult:
    """The result of a run."""

    run_id: str
    folder: Path
    """The run's folder, `results/<run-id>`."""
    behaviors: Mapping[str, BehaviorResult]
    checkpoint: int
    """Number of the newest complete checkpoint; -1 if there is none."""
    interrupted: bool
    """True if the run ended before its trainers were done, because of a stop request or a time limit."""
    elapsed_s: float
    scores: Mapping[str, Score] = field(default_factory=dict)
    """In inference, the scores of the episodes that each policy played, keyed by behaviour id."""
    findings: tuple[Finding, ...] = ()
    """Why behaviours do not learn, at most one finding for each; see docs/diagnosis.md."""
    ended_by: str = ""
    """What ended the run early, `stop` or `max_wall_time_s`; empty if the trainers were done."""
    config: RunConfig | None = field(default=None, repr=False, compare=False)
    """The run's configuration; None in a result from another process."""
    environment: Any = field(default=None, repr=False, compare=False)
    """The `environment` argument of `run`."""

    def resume(self, steps: int | None = None, options: RunOptions | None = None, **parts: Any) -> RunResult:
        """Resume the run from its newest checkpoint; the arguments and errors are the same as for `run`.

        Args:
            steps: number of additional steps for each behaviour after that checkpoint; None to continue up to
                `max_steps`.
            options: the caller's options.
            parts: fields of `RunOptions`; `environment` defaults to this run's environment.
        """
        return run(self._resumed(steps), self._again(options), **parts)

    async def resume_async(
        self, steps: int | None = None, options: RunOptions | None = None, **parts: Any
    ) -> RunResult:
        """Resume the run like `resume`, within a running event loop."""
        return await run_async(self._resumed(steps), self._again(options), **parts)

    def save(self, path: str | PathLike[str]) -> Path:
        """Save the run as one file for `load`: its configuration, newest checkpoint and policies.

        Args:
            path: path of the file; `.zip` is added if the path has no suffix.

        Raises:
            RunFolderError: if the run has no checkpoint, or a damaged one.
        """
        return carry(self.folder, path)

    def _resumed(self, steps: int | None) -> RunConfig:
        return resumed_settings(self.config or kept_configuration(self.folder), self.folder, steps)

    def _again(self, options: RunOptions | None) -> RunOptions:
        options = options or RunOptions()
        return options if options.environment is not None else replace(options, environment=self.environment)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle, without objects that may belong to this process."""
        return {**vars(self), "config": None, "environment": None}


Configuration = RunConfig | Mapping[str, Any] | str | Path
"""A configuration: already loaded, as the data in a YAML file, or as the path of a YAML file."""


UNCHANGED: Any = object()
"""Stands for a keyword of `run` that is not given."""


# The keywords are spelt out, because editors such as Jupyter's don't complete those of a TypedDict.
def run(
    config: Configuration,
    options: RunOptions | None = None,
    *,
    environment: Any = UNCHANGED,
    stop: StopRequest | asyncio.Event | None = UNCHANGED,
    on_progress: Callable[[ProgressSnapshot], object] | None = UNCHANGED,
    on_summary: Callable[[SummaryWritten], object] | None = UNCHANGED,
    on_checkpoint: Callable[[CheckpointWritten], object] | None = UNCHANGED,
    progress: Progress = UNCHANGED,
    console: bool = UNCHANGED,
) -> RunResult:
    """Run a configuration to its end.

    Args:
        config: the configuration.
        options: the caller's options; None for the defaults.
        environment: as in `RunOptions`, like the following ones; they override those in `options`.
        stop: a request to stop.
        on_progress: called about once a second.
        on_summary: called at each summary.
        on_checkpoint: called when a checkpoint is complete.
        progress: the live table.
        console: True to log a line per summary.

    Raises:
        ConfigError: if the configuration has mistakes.
        RunError: if the run can't start.
        RunFolderError: if the run's folder already exists, or is missing on a resume.
        RunFailed: if something in the run failed; everything that could be saved was saved.
    """
    parts = {name: value for name, value in locals().items() if value is not UNCHANGED}
    if in_a_loop():
        raise RunError(
            "run() can't be called while an event loop is running. In a notebook write `await run_async(…)`; in a "
            "file that a run imports, for example to make its environment, put the call under `if __name__ == "
            "'__main__':`"
        )
    return run_alone(run_async(**parts))


async def run_async(
    config: Configuration,
    options: RunOptions | None = None,
    *,
    environment: Any = UNCHANGED,
    stop: StopRequest | asyncio.Event | None = UNCHANGED,
    on_progress: Callable[[ProgressSnapshot], object] | None = UNCHANGED,
    on_summary: Callable[[SummaryWritten], object] | None = UNCHANGED,
    on_checkpoint: Callable[[CheckpointWritten], object] | None = UNCHANGED,
    progress: Progress = UNCHANGED,
    console: bool = UNCHANGED,
) -> RunResult:
    """Run a configuration like `run`, within a running event loop. Cancellation ends all hosts immediately."""
    given = {name: value for name, value in locals().items() if value is not UNCHANGED}
    parts = {name: given[name] for name in given.keys() - {"config", "options"}}
    try:
        with kept_startup_context(), global_state_guard():
            options = replace(options or RunOptions(), **parts)
            stop = options.stop.event() if isinstance(options.stop, StopRequest) else options.stop or asyncio.Event()
            with _loaded(config, options.environment) as loaded:
                if not isinstance(config, RunConfig):  # the caller has loaded it, and has seen its warnings
                    for warning in loaded.warnings:
                        log.warning("%s", warning)
                warnings = loaded.warnings
                loaded, chosen = await _shaped(loaded, stop)
                with started_early(loaded):
                    result = await _run(loaded, chosen, options, stop, warnings)
                    return replace(result, config=loaded, environment=options.environment)
    except Exception:
        raise
    except BaseException as error:  # code named in the configuration must not end the caller's process
        if not is_failure(error):
            raise
        raise RunFailed(describe_error(error)) from error


def _loaded(config: Configuration, environment: Any) -> AbstractContextManager[RunConfig]:
    if environment is None:
        return nullcontext(config if isinstance(config, RunConfig) else load_config(config))
    from headrace.pipeline.given_environment import given_to  # not needed by runs from files

    return given_to(config, environment)


async def _shaped(config: RunConfig, stop: asyncio.Event) -> tuple[RunConfig, str]:
    """Choose the run's shape; a stop request ends the measurement of the environment."""
    try:
        return await in_thread("shape of the run", choose_shape, config, hurry=stop)
    except Exception as error:
        text = f"choosing the numbers of actors and environments: {describe_error(error)}"
        raise RunFailed(text, detail=shortened("".join(traceback.format_exception(error)))) from error


async def _run(
    config: RunConfig, chosen: str, options: RunOptions, stop: asyncio.Event, warnings: Sequence[str]
) -> RunResult:
    config = for_viewers(config)
    disks = Disks(config.pipeline.supervision.grace_s / 2, complain)
    with disks.used():
        await in_thread("copy of the run", prepare_copy, config)
    check_run(config)
    settings = config.checkpoint_settings
    with disks.used(), _open_folder(config) as folder, cleaned_up_by(folder.close), ExitStack() as stack:
        if not settings.inference:
            stack.enter_context(logged_to(folder.path, settings.resume, warnings))
        checkpoint, left = _open_checkpoint(config, folder)
        plan = RunPlan(config, folder, _seed(config, checkpoint), checkpoint, left)
        if options.console:
            log.info("%s", version_information())
        for line in filter(None, (chosen, describe_learning_defaults(config))):
            log.info("%s", line)
        watch = nullcontext() if options.watched else LoopWatch(config.pipeline.supervision.main)
        async with Coordinator(plan, options.console, options.progress) as coordinator:
            with watch:
                problem = await _run_to_end(plan, coordinator, options, stop)
        if problem is not None:
            raise problem
        return await _report(plan, coordinator)


async def _run_to_end(
    plan: RunPlan, coordinator: Coordinator, options: RunOptions, stop: asyncio.Event
) -> RunError | None:
    """Run to completion. If the run can't start, return the error, because a task group would wrap a raised one."""
    on_progress = None if options.on_progress is None else guarded("on_progress", options.on_progress, coordinator)
    join_callbacks(coordinator, options.on_summary, options.on_checkpoint)

    async def run_hosts(on_progress: Callable[[ProgressSnapshot], object] | None) -> None:
        if options.on_start is not None:
            options.on_start(lambda: coordinator.shutdown.would_save)
        await coordinator.run(stop, on_progress)

    if plan.config.monitor is None:
        await run_hosts(on_progress)
        return None
    from headrace.pipeline.monitor.monitor import monitored

    try:
        async with monitored(plan, coordinator, plan.config.monitor, stop) as show:

            def tell(snapshot: ProgressSnapshot) -> None:
                show(snapshot)
                if on_progress is not None:
                    on_progress(snapshot)

            await run_hosts(tell)
    except RunError as error:
        return error
    return None


def _open_folder(config: RunConfig) -> RunFolder:
    settings = config.checkpoint_settings
    path = absolute(settings.results_dir) / settings.run_id
    try:
        # Models named by `init_path` can play without a run, so the folder need not exist.
        resume = (settings.resume or settings.inference) and (path.is_dir() or not plays_given_models(config))
        kept = path / CONFIGURATION
        before = kept.read_text(encoding="utf-8", errors="replace") if resume and kept.is_file() else ""
        if settings.resume and (other := other_run(before, config)):
            raise RunError(f"{path} can't be resumed: {other}")
        folder = RunFolder.create(
            settings.results_dir,
            settings.run_id,
            resume=resume,
            force=settings.force,
            waits=settings.resume,
            # If policies only play, the run keeps its training options.
            configuration=(settings.inference and before) or yaml.safe_dump(config.to_plain(), sort_keys=False),
        )
    except OSError as error:
        raise unusable(path, error) from error
    changed = changed_settings(before, config) if before and not settings.inference else ""
    if changed:
        log.info("Resuming with changed settings: %s.", changed)
    return folder


def _open_checkpoint(config: RunConfig, folder: RunFolder) -> tuple[Checkpoint | None, dict[str, int]]:
    """Return the checkpoint to resume from, or whose policies to play, and `RunPlan.left`."""
    settings = config.checkpoint_settings
    if not (settings.resume or settings.inference):
        return None, {}
    checkpoint = choose_checkpoint(folder.checkpoints, playing=settings.inference)
    if settings.inference:
        return checkpoint, {}
    folder.put_broken_status_aside()
    left = left_steps(folder.path, () if checkpoint is None else checkpoint.steps)
    if checkpoint is None and not left:
        log.warning("%s ended before its first checkpoint was complete: starting from step 0.", shown(folder.path))
    return checkpoint, left


def _seed(config: RunConfig, checkpoint: Checkpoint | None) -> int:
    """Return the seed of the resumed run, else the configured seed, else that of the recording, else a random seed.

    If policies only play, the configured seed comes first, because play may differ from training.
    """
    configured = config.env_settings.seed
    own_seed = config.checkpoint_settings.inference and configured >= 0
    if checkpoint is not None and "seed" in checkpoint.progress and not own_seed:
        return int(checkpoint.progress["seed"])
    if configured < 0 and config.replay is not None:
        from headrace.stages.replay import recorded_seed

        configured = recorded_seed(config.replay.streams)
    return choose_seed(configured)


async def _report(plan: RunPlan, coordinator: Coordinator) -> RunResult:
    """Write a run's final files and return its result.

    Raises:
        RunFailed: if something in the run failed.
    """
    put_back()
    config, folder, elapsed_s = plan.config, plan.folder.path, coordinator.reporter.elapsed_s
    writes = not plan.folder.waits
    if writes:
        await _write_league(coordinator, folder)
    await in_thread("copy of the run", coordinator.checkpointing.copier.finish)
    results = await in_thread("report", coordinator.parts.merged, lambda part: part.report())
    if writes and not plan.playing:
        await in_thread("draw curves", write_run_picture, folder)
    _raise_failure(plan, coordinator)
    behaviors = {
        name: BehaviorResult(
            state.step,
            state.version,
            state.recent_return,
            state.elo,
            state.export,
            ended_by=state.ended_by,
            updates=state.updates,
            **coordinator.parts.merged(methodcaller("results", name)),
        )
        for name, state in coordinator.starter.behaviors.items()
    }
    if missing := never_met(config, coordinator):
        log.warning("%s", missing)
    return RunResult(
        plan.folder.run_id,
        folder,
        behaviors,
        coordinator.checkpointing.newest,
        bool(coordinator.shutdown.ended_by),
        elapsed_s,
        ended_by=coordinator.shutdown.ended_by,
        findings=tuple(coordinator.diagnosis.findings.values()),
        **results,
    )


def never_met(config: RunConfig, coordinator: Coordinator) -> str:
    """Return a warning about listed behaviours that never appeared, perhaps due to misspelt names; empty if none."""
    met = coordinator.starter.behaviors
    leagues = {name: {name, settings.league.of} for name, settings in config.behaviors.items() if settings.league}
    unseen = [name for name in config.behaviors if not met.keys() & leagues.get(name, {name})]
    if not (met and unseen):
        return ""
    return f"Listed under behaviors, but never seen in the environment: {', '.join(unseen)} (seen: {', '.join(met)})."


async def _write_league(coordinator: Coordinator, run_folder: Path) -> None:
    """Write the leagues' results, even for a failed run, because they may show why it failed."""
    try:
        await in_thread("write leagues", lambda: write_leagues(coordinator.starter.league_reports(), run_folder))
    except Exception as error:
        if coordinator.shutdown.failure is None:
            raise
        # The league may have failed with inconsistent state. That failure is reported instead of this error.
        log.warning("the league could not be written after the failure: %s", describe_error(error))


def _raise_failure(plan: RunPlan, coordinator: Coordinator) -> None:
    failure = coordinator.shutdown.failure
    if failure is None:
        return
    text = reason = plan.config.in_place(key_of(failure, plan.config), failure.message)
    if failure.of_user and not plan.config.debug:
        text += "\nUse --debug to see the full traceback."
    if plan.folder.rescued_as:
        kept = coordinator.checkpointing.newest >= 0 or any(
            behavior.exports for behavior in coordinator.behaviors.values()
        )
        text += (
            f"\nThe run's state at that point is in {shown(plan.folder.path)}."
            if kept
            else "\nNo trainer could save its state: the only checkpoints were in the lost folder."
        )
    if coordinator.checkpointing.newest >= 0 and not plan.playing and not coordinator.shutdown.failed_at_start:
        run = plan.folder.rescued_as or f"--run-id {plan.folder.run_id}"
        text += f"\nResume from the last checkpoint with: {run} --resume"
    raise RunFailed(text, failure.stage, failure.traceback, reason) from coordinator.shutdown.cause


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
    if folder.is_dir():
        return _load_folder(folder)
    folder = unpack(path, results_dir, run_id)
    try:
        return _load_folder(folder)
    except Exception as error:
        error.add_note(f"{folder} was unpacked from {absolute(path)} and has been removed again.")
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _load_folder(folder: Path) -> RunResult:
    config = kept_configuration(folder)
    try:
        checkpoint = newest_checkpoint(folder / "checkpoints")
        if checkpoint is None:
            raise RunFolderError(f"{folder} can't be resumed: it has no checkpoint")
        behaviors = {name: _behavior(checkpoint, name, folder) for name in checkpoint.steps}
    except CheckpointError as error:
        raise RunFolderError(str(error)) from error
    interrupted = any(behavior.step < config.behavior_settings(name).max_steps for name, behavior in behaviors.items())
    elapsed_s = float(checkpoint.progress.get("elapsed_s", 0.0))
    return RunResult(folder.name, folder, behaviors, checkpoint.number, interrupted, elapsed_s, config=config)


def _behavior(checkpoint: Checkpoint, name: str, folder: os.PathLike[str]) -> BehaviorResult:
    state = checkpoint.read(part_name(TRAINER, learner_name(name))) or {}
    returns = state.get("recent_returns") or ()
    export, best = behavior_folder(absolute(folder), name) / NEWEST, None
    with suppress(OSError, ValueError, LookupError):  # no policy was evaluated
        best = float(read_score(best_policy(absolute(folder), name))["mean"])
    version = int(state.get("policy", {}).get("version", 0))
    return BehaviorResult(
        checkpoint.steps[name],
        version,
        sum(returns) / len(returns) if returns else None,
        None,
        export if export.is_file() else None,
        best,
        updates=int(state.get("updates", version)),
    )
