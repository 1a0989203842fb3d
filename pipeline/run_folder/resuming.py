"""Resumes a run: chooses its checkpoint, lists changed settings, and checks that the configuration fits the run."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from headrace.config import ConfigError, RunConfig
from headrace.config.errors import KeyPath, dotted
from headrace.pipeline.common.errors import RunError, RunFolderError
from headrace.pipeline.run_folder.checkpoint import (
    MENDING,
    Checkpoint,
    CheckpointError,
    checkpoint_folder,
    each_checkpoint,
    newest_checkpoint,
    numbered_folders,
)
from headrace.pipeline.run_folder.folder import read_configuration
from headrace.pipeline.run_folder.names import CONFIGURATION
from headrace.queues.files import REAL, FileOperations, free_name

log = logging.getLogger(__name__)


def choose_checkpoint(checkpoints: Path, *, playing: bool = False, files: FileOperations = REAL) -> Checkpoint | None:
    """Return the newest intact checkpoint; warn about damaged checkpoints, and name the one used instead.

    Damaged checkpoints are renamed to `<number>.damaged`, so the resumed run can reuse their numbers.

    Args:
        checkpoints: `results/<run-id>/checkpoints`.
        playing: True if policies are only played: parts are not read or checked, and nothing is renamed.
        files: file operations.

    Returns:
        The checkpoint; None if none was ever complete.

    Raises:
        CheckpointError: if all checkpoints are damaged or have a different version.
    """
    defects: list[str] = []
    for checkpoint in each_checkpoint(checkpoints):
        try:
            if isinstance(checkpoint, CheckpointError):
                raise checkpoint
            if not playing:
                checkpoint.check()
        except CheckpointError as error:
            defects.append(str(error))
            continue
        aside = [] if playing else _make_newest(checkpoints, checkpoint.number, files)
        if defects:
            kept = f" The damaged files are kept as {', '.join(map(str, aside))}." if aside else ""
            log.warning(
                "%s. %s from the previous checkpoint, %s (%s), instead.%s",
                "; ".join(defects),
                "Playing" if playing else "Resuming",
                checkpoint.folder,
                ", ".join(f"{name} at step {step}" for name, step in checkpoint.steps.items()),
                kept,
            )
        return checkpoint
    if defects:
        raise CheckpointError(f"{'; '.join(defects)}. No older checkpoint is intact: {MENDING}")
    return None


def _make_newest(checkpoints: Path, chosen: int, files: FileOperations) -> list[Path]:
    """Rename the folders of checkpoints newer than the chosen one; return their new paths."""
    aside = []
    try:
        for number in sorted(number for number in numbered_folders(checkpoints) if number > chosen):
            folder = checkpoint_folder(checkpoints, number)
            aside.append(free_name(folder.with_name(f"{folder.name}.damaged")))
            files.replace(folder, aside[-1])
        if aside:
            files.sync_folder(checkpoints)
    except OSError as error:
        raise CheckpointError(f"{checkpoints}: can't be prepared for resuming: {error}") from error
    return aside


_SHOWN = 12
_PASSING = ("checkpoint_settings", "debug", "default_settings", "monitor")
"""Sections that are not compared, because they only affect one start of the run or are merged into the behaviours."""
_ABSENT = object()


def changed_settings(before: str, config: RunConfig) -> str:
    """Return the settings that differ, with old and new values; empty if none differ.

    Args:
        before: the text of the run's `configuration.yaml`.
        config: the configuration for the resumed run.
    """
    try:
        old = RunConfig.from_plain(yaml.safe_load(before)).to_plain()
    except (ConfigError, yaml.YAMLError, TypeError, AttributeError):  # written by a different version or program
        return ""
    changes = [
        f"{dotted(path)} {_text(was)} → {_text(now)}"
        for path, was, now in _differences(old, config.to_plain(), ())
        if path[0] not in _PASSING
    ]
    more = f", and {len(changes) - _SHOWN} more" if len(changes) > _SHOWN else ""
    return ", ".join(changes[:_SHOWN]) + more


def kept_configuration(run_folder: Path) -> RunConfig:
    """Return the configuration in a run's folder.

    Raises:
        RunFolderError: if the file is missing or can't be read.
        ConfigError: if the configuration was written by a different version or has mistakes.
    """
    file, plain = run_folder / CONFIGURATION, read_configuration(run_folder)
    if not plain:
        raise RunFolderError(f"{file} is missing, or can't be read: this is not a run folder")
    return RunConfig.from_plain(plain, file)


def resumed_settings(config: RunConfig, run_folder: Path, steps: int | None) -> RunConfig:
    """Return the configuration that a run uses when it continues in its folder.

    Args:
        config: the run's configuration.
        run_folder: the run's current folder.
        steps: number of additional steps for each behaviour after its newest checkpoint; None to continue up to
            `max_steps`.

    Raises:
        RunError: if `steps` is not positive.
        CheckpointError: if no checkpoint can be read.
    """
    plain = config.to_plain()
    here = {"results_dir": str(run_folder.parent), "run_id": run_folder.name, "resume": True}
    plain["checkpoint_settings"] |= {**here, "force": False, "inference": False, "initialize_from": None}
    if steps is not None and steps < 1:
        raise RunError(f"resume(steps=…): must be at least 1, got {steps}")
    checkpoint = None if steps is None else newest_checkpoint(run_folder / "checkpoints")
    if checkpoint is not None and steps is not None:
        for name, reached in checkpoint.steps.items():
            plain["behaviors"].setdefault(name, {})["max_steps"] = reached + steps
    return config.rewritten(plain)


def other_run(before: str, config: RunConfig) -> str:
    """Return an error message if a configuration has none of a run's behaviours, and so can't resume it; else "".

    Args:
        before: the text of the run's `configuration.yaml`.
        config: the configuration that the resumed run would use.
    """
    try:
        learned = yaml.safe_load(before).get("behaviors") or {}
    except (yaml.YAMLError, AttributeError):
        return ""
    if not learned or not config.behaviors or learned.keys() & config.behaviors.keys():
        return ""
    return (
        f"this run trains {', '.join(map(str, learned))}, but the configuration lists {', '.join(config.behaviors)}: "
        "resume the run with its original file, or use a different --run-id to start a new run"
    )


def _differences(was: Any, now: Any, path: KeyPath) -> Iterator[tuple[KeyPath, Any, Any]]:
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        for key in dict.fromkeys([*was, *now]):
            yield from _differences(was.get(key, _ABSENT), now.get(key, _ABSENT), (*path, key))
    elif was != now:
        yield path, was, now


def _text(value: Any) -> str:
    if value is _ABSENT or value is None:
        return "none"
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
