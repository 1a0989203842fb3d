"""`--validate`'s trial: the run itself, on a small scale, with its files in a temporary folder.

Only sizes differ, and nothing that users can see (writers, pages, recordings) is started. A fault therefore has the
same message as in the run, and the run's own supervision ends an environment that hangs or crashes.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from headrace.config import BehaviorSettings, ConfigError, RunConfig
from headrace.config.brains import PLAYER
from headrace.config.environment_kinds import load_entry
from headrace.config.errors import dotted
from headrace.config.host_kinds import HOST_KINDS
from headrace.config.hyperparameters import Hyperparameters
from headrace.config.section_checks import persons_in
from headrace.pipeline.common.errors import RunError, RunFailed, RunFolderError
from headrace.pipeline.common.graph import acts
from headrace.pipeline.common.output import say
from headrace.pipeline.diagnosis import rules
from headrace.pipeline.hosts.process_cleanup import remove_folder_at_end
from headrace.pipeline.main import shutdown
from headrace.pipeline.main.run_shape import ProbeError, for_viewers, probe
from headrace.pipeline.policies.warm_start import initial_policy
from headrace.pipeline.reporting.console import Progress, ProgressSnapshot, configure_logging
from headrace.pipeline.run import RunResult, run
from headrace.pipeline.run_folder.checkpoint import CheckpointError
from headrace.pipeline.run_folder.names import CONFIGURATION
from headrace.pipeline.run_handle import StopRequest
from headrace.stages.environments.factory import HUMAN, check_window, no_screen
from headrace.stages.errors import StageError
from headrace.stages.trainer.protocol import rows_per_update
from headrace.startup_context import absolute
from headrace.stop_requests import cleaned_up_by

TICKS = 200
"""Number of steps that each instance makes, if time allows; when an episode ends, the next one begins."""
ROWS = 128
"""Number of steps per update of Headrace's trainers; more if there are many instances."""
UPDATES = 16
"""Maximum number of updates that a trainer makes in these steps."""
ENOUGH_S = 8.0
"""Seconds after which a slow trial ends, provided that all trainers have made an update."""
_NEVER = 10**12


def try_run(config: RunConfig) -> tuple[list[str], list[str]]:
    """Try a run, whose warnings appear on standard error.

    Returns:
        The reasons why the run can't work, each with its location, and further warnings, which also list what was not
        tried.
    """
    try:
        config = for_viewers(config)
        if config.environment is not None:
            check_window(config.environment.options)
        if config.environment_kind.preflight is not None and acts(config):
            load_entry(config.environment_kind.preflight)(config)
        why_not = untried_environment(config)
    except (RunError, StageError) as error:
        return [str(error)], []
    if why_not:
        return [], [f"not tried: {why_not}; so the network and the update were not tried either"]
    console = configure_logging(config.debug, sys.stderr)
    if not config.debug:
        console.setLevel(logging.WARNING)
    console.addFilter(_is_about_the_run)
    with _folder() as folder:
        small, rows = smaller(config, folder)
        try:
            result = _run(small, rows)
        except RunFailed as error:
            return [error.reason], []
        except (RunError, RunFolderError, CheckpointError, ConfigError) as error:
            return [str(error)], []
    tried = [
        f"{name}: {behavior.step} steps{f', updates: {behavior.updates}' if _learns(config, name) else ''}"
        for name, behavior in result.behaviors.items()
    ]
    say(f"tried on a small scale: {'; '.join(tried) or 'the environment'}")
    return [], [*_without_update(config, result, rows), *_advice(small, config), *left_out(config)]


def _is_about_the_run(record: logging.LogRecord) -> bool:
    """Return False for the trial's own failure, which only the trial logs, and for a diagnosis of its small scale."""
    diagnosed = record.name == rules.__name__ and record.levelno < logging.ERROR
    return not diagnosed and not (record.name == shutdown.__name__ and record.levelno == logging.ERROR)


def _run(small: RunConfig, rows: int) -> RunResult:
    """Run the small configuration until it ends, or has shown enough, or its time is over."""
    stop, limit_s, steps = StopRequest(), small.env_settings.timeout_wait, 0
    playing = small.checkpoint_settings.inference

    def watch(snapshot: ProgressSnapshot) -> None:
        nonlocal steps
        learned = [
            behavior.updates > 0 and behavior.steps >= rows
            for behavior in snapshot.behaviors
            if _learns(small, behavior.name)
        ]
        before, steps = steps, sum(behavior.steps for behavior in snapshot.behaviors)
        # A trial without progress continues: either it recovers, or the run's supervision ends it and names the cause.
        enough = steps > before and snapshot.elapsed > (ENOUGH_S if all(learned) else limit_s)
        # Playing agents count as steps only once per `time_horizon`, and their episode may never end.
        endless = bool(snapshot.behaviors) and playing and snapshot.elapsed > 2 * limit_s
        if enough or endless:
            stop.set()

    return run(small, stop=stop, on_progress=watch, console=False, progress=Progress(enabled=False))


def _learns(config: RunConfig, behavior: str) -> bool:
    return config.behavior_settings(behavior).learns and not config.checkpoint_settings.inference


def _without_update(config: RunConfig, result: RunResult, rows: int) -> Iterator[str]:
    for name, behavior in result.behaviors.items():
        if _learns(config, name) and (behavior.updates == 0 or behavior.step < rows):
            advice = " (raise env_settings.timeout_wait for a longer trial)" if behavior.step < rows else ""
            yield (
                f"not tried: the first update of {name}, because the trial ended with only {behavior.step} steps "
                f"collected{advice}"
            )


def _advice(small: RunConfig, config: RunConfig) -> Iterator[str]:
    """Yield advice that the run would not give (`advice_on`)."""
    if acts(config) and (config.environment_kind.advice is not None or config.monitor is not None):
        with_page = small.model_copy(update={"monitor": config.monitor})
        try:
            yield from probe(
                with_page, "headrace.pipeline.roles.probe:advice_on", timeout_s=config.env_settings.timeout_wait
            )
        except ProbeError as error:
            yield f"not tried: checks of the environment beyond those of the run: {error}"


@contextmanager
def _folder() -> Iterator[str]:
    """Create a folder that is removed when the context or this process ends, whatever the reason."""
    folder = os.path.join(tempfile.gettempdir(), f"headrace-trial-{os.urandom(8).hex()}")
    remove = partial(shutil.rmtree, folder, ignore_errors=True)
    with cleaned_up_by(remove):  # before the folder exists, because a signal may arrive between any two lines
        remove_folder_at_end(folder)
        os.mkdir(folder, 0o700)
        try:
            yield folder
        finally:
            remove()


def untried_environment(config: RunConfig) -> str:
    """Return why the run's environment can't be tried; empty if it can."""
    kind, settings = config.environment_kind, config.env_settings
    if not (kind.apart and acts(config)):
        return ""
    if settings.env_path is None:
        return f"the environment, which waits for {kind.editor}"
    if kind.opens_window and not config.engine_settings.no_graphics and (reason := no_screen()):
        why, _, _ = reason.partition(". ")
        return (
            f"the game {settings.env_path}, which opens a window, because {why} (--no-graphics tries the game without "
            "one)"
        )
    return ""


def left_out(config: RunConfig) -> Iterator[str]:
    """Yield a line with the features of a run that its trial leaves out, if there are any."""
    hosts, settings, trains = (
        config.pipeline.hosts,
        config.checkpoint_settings,
        not config.checkpoint_settings.inference,
    )
    unlisted_start = settings.initialize_from is not None and config.default_settings is not None
    used = {
        "the checkpoint that the run resumes from (checkpoint_settings.resume)": settings.resume,
        "starting unlisted behaviours from another run (checkpoint_settings.initialize_from)": unlisted_start,
        "several replicas of a learner (pipeline.hosts.learners.replicas)": hosts.learners.replicas > 1 and trains,
        "hosts on Ray (pipeline.hosts)": any(
            host.kind is not None and HOST_KINDS[host.kind].on_ray for _, host in hosts
        ),
        "statistics writers (pipeline.statistics_writers)": bool(config.pipeline.statistics_writers),
        "evaluation": config.evaluation is not None and trains,
        "recording (record)": config.record is not None,
    }
    names = [name for name, is_used in used.items() if is_used]
    names += [
        f"the person who plays ({dotted(path)}.brain), replaced by random actions" for path, _ in persons_in(config)
    ]
    if names:
        yield f"not tried: {', '.join(names)}"


# The run's configuration with smaller sizes.


def smaller(config: RunConfig, folder: str) -> tuple[RunConfig, int]:
    """Return the trial's configuration, and the number of steps per update."""
    plain = config.to_plain()
    steps = TICKS * _with_few_instances(plain, config)
    rows = max(ROWS, steps // UPDATES)
    hosts, settings = plain["pipeline"]["hosts"], plain["checkpoint_settings"]
    used = {"replay": hosts["replay"]["kind"] is not None, "inference": config.pipeline.inference == "central"}
    chosen = ("actors", "learners", *(role for role in used if used[role]))
    processes: dict[str, dict[str, Any]] = {which: {"kind": "process"} for which in chosen}
    if used["replay"]:
        processes["replay"] |= {"replicas": hosts["replay"]["replicas"]}
    leagues = [block["league"] for block in plain["behaviors"].values() if block["league"]]
    for learner in (learner for league in leagues for learner in league["learners"].values()):
        learner["actors"] = 1
    if leagues and not config.checkpoint_settings.inference:
        processes["actors"] |= {"replicas": len(leagues)}
    plain["pipeline"] |= {
        "hosts": processes,
        "statistics_writers": [],
        "max_wall_time_s": None,
        "deterministic": False,
    }
    plain |= {"record": None, "evaluation": None, "monitor": None}
    if config.checkpoint_settings.inference:
        _lend(absolute(settings["results_dir"]) / settings["run_id"], Path(folder) / settings["run_id"])
    settings |= {"results_dir": folder, "initialize_from": None, "copy_to": None}
    settings |= {"resume": False, "load_model": False, "force": False}
    plain["env_settings"] |= {"max_lifetime_restarts": 0}
    plain["inference"] |= {"episodes": 1, "watch": False, "video": config.inference.video and folder}
    if plain["replay"] is not None:
        plain["replay"]["speed"] = "max"
    for name, behavior in config.behaviors.items():
        _shrink(plain["behaviors"][name], behavior, steps, rows)
        if _learns(config, name) and not config.checkpoint_settings.resume and (start := initial_policy(config, name)):
            plain["behaviors"][name]["init_path"] = str(start)
    if config.default_settings is not None:
        _shrink(plain["default_settings"], config.default_settings, steps, rows)
    return config.rewritten(plain), rows


def _lend(played: Path, folder: Path) -> None:
    """Create a run's folder from which the policies of another run can be played, without changing that run's files."""
    if not played.is_dir():  # models play, or the run reports that there is nothing to play
        return
    folder.mkdir()
    for path in (entry for entry in played.iterdir() if entry.is_dir() and entry.name != "run_logs"):
        try:
            (folder / path.name).symlink_to(path, target_is_directory=True)
        except OSError:  # Windows allows links only to some users
            shutil.copytree(path, folder / path.name)
    for path in (played / CONFIGURATION, *played.glob("*.onnx")):
        if path.is_file():
            shutil.copy(path, folder)


def _with_few_instances(plain: dict[str, Any], config: RunConfig) -> int:
    """Set the number of instances to one for programs, and to two for `auto`; disable windows; return the number."""
    settings, section = plain["env_settings"], plain["environment"]
    if config.environment_kind.apart:
        settings |= {"num_envs": 1, "base_port": 0}
        if section is not None:
            section["num_envs"] = 1
    if section is None:
        return 1
    if section["num_envs"] == "auto":
        section["num_envs"] = 2
    if section["options"].get("render_mode") == HUMAN:
        del section["options"]["render_mode"]
    return int(section["num_envs"])


def _shrink(block: dict[str, Any], settings: BehaviorSettings, steps: int, rows: int) -> None:
    """Make a behaviour learn soon and end soon afterwards."""
    hyperparameters = settings.hyperparameters
    if isinstance(hyperparameters, Hyperparameters):
        block["hyperparameters"] = hyperparameters.small(rows).model_dump(mode="json", by_alias=True)
    else:  # a custom trainer, whose sizes stay unchanged
        rows = rows_per_update(settings, 1, off_policy=False)
    block |= {
        "max_steps": max(steps, 2 * rows),
        "checkpoint_interval": _NEVER,
        "summary_freq": _NEVER,
        "even_checkpoints": False,
        "stop_when": None,
    }
    if memory := block.get("network_settings", {}).get("memory"):
        memory["sequence_length"] = min(memory.get("sequence_length", rows), rows // 4)
    if block.get("self_play"):
        self_play = block["self_play"]
        self_play |= {key: min(self_play.get(key, rows), rows) for key in ("save_steps", "team_change", "swap_steps")}
    for brain in block.get("brain", ()):
        if brain["use"] == PLAYER:
            brain["use"] = "random"
