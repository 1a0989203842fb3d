"""A run, from a configuration to trained policies: starts the hosts, wires them, minds them, ends them.

`run(config)` is the whole of it for callers from Python; the command line adds signals and a terminal.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from config import RunConfig
from pipeline.common.errors import RunError, RunFailed
from pipeline.common.graph import offline_demonstrations
from pipeline.common.seeds import choose_seed
from pipeline.common.versions import version_information
from pipeline.main.coordinator import Coordinator
from pipeline.main.references import in_place, names_of_main
from pipeline.main.run_plan import RunPlan
from pipeline.main.self_play import check_players
from pipeline.policies.clip import write_final_clip
from pipeline.policies.export import NEWEST, is_export
from pipeline.policies.inference import plays_given_models
from pipeline.policies.warm_start import initial_policy
from pipeline.reporting.progress import Progress, ProgressSnapshot
from pipeline.run_folder.checkpoint import Checkpoint, newest_checkpoint
from pipeline.run_folder.folder import RunFolder
from queues.errors import StreamError
from stages.error_text import describe_error
from stages.errors import StageError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BehaviorResult:
    """What became of one behaviour."""

    step: int
    """Trainer steps."""
    version: int
    """Updates made."""
    recent_return: float | None
    """Mean return of the last (up to) 100 training episodes."""
    elo: float | None
    """Rating of the final policy, with self-play."""
    export: Path | None
    """The final policy."""


@dataclass(frozen=True)
class RunResult:
    """What a run has reached."""

    run_id: str
    folder: Path
    """`results/<run-id>`."""
    behaviors: Mapping[str, BehaviorResult]
    checkpoint: int
    """Number of the newest whole checkpoint, -1 if there is none."""
    interrupted: bool
    """It was asked to stop before its trainers were done."""
    elapsed_s: float


@dataclass(frozen=True)
class RunOptions:
    """How a caller takes part in a run."""

    stop: asyncio.Event | None = None
    """Set it to stop cleanly: drain, checkpoint, export."""
    on_progress: Callable[[ProgressSnapshot], None] | None = None
    """Called about once a second."""
    progress: Progress = field(default_factory=lambda: Progress(enabled=False))
    """The live table."""
    console: bool = False
    """Log versions and a line per summary, as ML-Agents does."""


def run(config: RunConfig, options: RunOptions | None = None) -> RunResult:
    """Run a configuration to its end.

    Args:
        config: what to run.
        options: how the caller takes part; nothing by default.

    Returns:
        what was reached.

    Raises:
        RunError: if the run can't start.
        RunFolderError: if its folder is there already, or missing on a resume.
        RunFailed: if something in it failed; what could be saved was saved.
    """
    return asyncio.run(run_async(config, options))


async def run_async(config: RunConfig, options: RunOptions | None = None) -> RunResult:
    """As `run`, within a running event loop. If cancelled, all hosts are ended at once."""
    options = options or RunOptions()
    _check(config)
    settings = config.checkpoint_settings
    going_on = settings.resume or settings.inference
    known = (Path(settings.results_dir) / settings.run_id).is_dir()
    with RunFolder.create(
        settings.results_dir,
        settings.run_id,
        resume=going_on and (known or not plays_given_models(config)),
        force=settings.force,
        configuration=_configuration(config),
    ) as folder:
        checkpoint = newest_checkpoint(folder.checkpoints) if going_on else None
        if settings.resume and checkpoint is None:
            log.warning("%s has no whole checkpoint yet: starting from step 0", folder.path)
        if checkpoint is not None and settings.resume:
            checkpoint.check()
            if not settings.inference:
                check_players(config, checkpoint)
        plan = RunPlan(config, folder, _seed(config, checkpoint), checkpoint)
        if options.console:
            log.info("%s", version_information())
        async with Coordinator(plan, options.console, options.progress) as coordinator:
            await coordinator.run(options.stop or asyncio.Event(), options.on_progress)
        await _write_league(coordinator, folder)
        result = _result(config, coordinator, folder)
        _tell_of_unseen(config, list(coordinator.starter.behaviors))
        if not settings.inference:
            await asyncio.to_thread(_film, config, result)
        return result


async def _write_league(coordinator: Coordinator, folder: RunFolder) -> None:
    """Write how self-play went, also of a run that has failed: who looks for the reason wants to see it."""
    self_play = coordinator.starter.self_play
    if self_play is None:
        return
    try:
        await asyncio.to_thread(self_play.write_league, folder.path)
    except Exception as error:
        if coordinator.shutdown.failure is None:
            raise
        # What has failed may be self-play itself, in the middle of its books; that failure is what is to be told.
        log.warning("the league could not be written after the failure: %s", describe_error(error))


def _tell_of_unseen(config: RunConfig, seen: Sequence[str]) -> None:
    """A name that is misspelt, or whose agents never appeared, has learned nothing: the end is where that is known."""
    unseen = [name for name in config.behaviors if name not in seen]
    if seen and unseen:
        log.warning(
            "Listed under behaviors, but never met in the environment: %s (met: %s).",
            *(", ".join(unseen), ", ".join(seen)),
        )


def _film(config: RunConfig, result: RunResult) -> None:
    for name, behavior in result.behaviors.items():
        if behavior.export is not None:
            try:
                write_final_clip(config, result.folder, name, behavior.export)
            except (OSError, ValueError) as error:  # a run is no worse for a film that could not be made
                log.warning("the final policy could not be filmed: %s", error)


def _configuration(config: RunConfig) -> str:
    """The effective options, for `configuration.yaml`; playing leaves those of the training as they are."""
    settings = config.checkpoint_settings
    kept = Path(settings.results_dir) / settings.run_id / "configuration.yaml"
    if settings.inference and kept.is_file():
        return kept.read_text()
    return yaml.safe_dump(config.to_plain(), sort_keys=False)


def _result(config: RunConfig, coordinator: Coordinator, folder: RunFolder) -> RunResult:
    failure = coordinator.shutdown.failure
    if failure is not None:
        text = in_place(config, failure.key, failure.message)
        if failure.of_user and not config.debug:
            text += "\n--debug shows the whole traceback."
        if coordinator.checkpointing.newest >= 0 and not coordinator.shutdown.failed_at_start:
            text += f"\nGo on from the last checkpoint with: --run-id {folder.run_id} --resume"
        raise RunFailed(text, failure.stage, failure.traceback)
    behaviors = {
        name: BehaviorResult(state.step, state.version, state.recent_return, state.elo, state.export)
        for name, state in coordinator.starter.behaviors.items()
    }
    return RunResult(
        folder.run_id,
        folder.path,
        behaviors,
        coordinator.checkpointing.newest,
        coordinator.interrupted,
        coordinator.reporter.elapsed_s,
    )


def _check(config: RunConfig) -> None:
    offline = offline_demonstrations(config)
    others = [name for name in config.behaviors if name not in offline]
    if offline and others:
        raise RunError(
            f"{next(iter(offline))} learns from demonstrations alone, and {others[0]} does not: they can't be trained "
            f"in one run; train {', '.join(offline)} in a run of its own, or let it imitate a `teacher` of this run."
        )
    if config.environment is None and config.replay is None and not offline:
        _check_unity(config)
    if config.replay is not None:
        _check_streams(config.replay.streams)
    if config.checkpoint_settings.resume:
        _check_whose(Path(config.checkpoint_settings.results_dir) / config.checkpoint_settings.run_id)
    if not (config.checkpoint_settings.resume or config.checkpoint_settings.inference):
        for name in config.behaviors:
            initial_policy(config, name)
    mistakes = names_of_main(config)
    if mistakes:
        raise RunError("\n".join(mistakes))


def _check_unity(config: RunConfig) -> None:
    """See that there is something to start, before a folder is made for the run."""
    from stages.unity.executable import find_executable

    path = config.env_settings.env_path
    try:
        if path is not None:
            find_executable(Path(path))
    except StageError as error:
        raise RunError(str(error)) from error


def _check_whose(run_folder: Path) -> None:
    """See that a run to resume is one of ours: in one of ML-Agents, training would begin anew over its files."""
    theirs = [path for path in sorted(run_folder.glob(f"*/{NEWEST}")) if not is_export(path)]
    if theirs and newest_checkpoint(run_folder / "checkpoints") is None:
        raise RunError(
            f"{run_folder} is a run of ML-Agents, which can't be gone on with here: {theirs[0]} holds networks that "
            "are built otherwise. Start a run of its own with another --run-id; --inference plays its .onnx files"
        )


def _check_streams(streams: Sequence[str]) -> None:
    """See that there are recordings and that they are such, before a folder is made for the run."""
    from stages.replay.recording import recorded_edge

    try:
        recorded_edge(streams)
    except (StageError, StreamError, OSError) as error:
        raise RunError(str(error)) from error


def _seed(config: RunConfig, checkpoint: Checkpoint | None) -> int:
    """The run's seed: of the run that goes on, else the configured one, else the recording's, else a random one."""
    if checkpoint is not None and "seed" in checkpoint.progress:
        return int(checkpoint.progress["seed"])
    configured = config.env_settings.seed
    if configured < 0 and config.replay is not None:
        from stages.replay.recording import recorded_seed

        configured = recorded_seed(config.replay.streams)
    return choose_seed(configured)
