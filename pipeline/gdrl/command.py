"""The command `gdrl`: from its flags to an exit status."""

from __future__ import annotations

import shutil
import sys
from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from headrace.pipeline.actions import train
from headrace.pipeline.common.errors import CommandError
from headrace.pipeline.gdrl.experiment import configuration_of, folder_of
from headrace.pipeline.gdrl.flags import read_flags
from headrace.pipeline.gdrl.saved_models import save
from headrace.pipeline.reporting.progress import ProgressSnapshot


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status: 0 done, 1 failed, 2 a mistake in the command or the configuration."""
    from headrace.config import ConfigError

    asked, passed = read_flags(arguments)
    try:
        config = configuration_of(asked, passed)
    except (CommandError, ConfigError) as error:
        sys.stderr.write(f"gdrl: {error}\n")
        return 2
    for warning in config.warnings:
        sys.stderr.write(f"warning: {warning}\n")
    if passed:
        sys.stderr.write(f"Passed on to the game: {' '.join(passed)}\n")
    played = asked.timesteps if asked.inference else None
    status = train(config, until=None if played is None else partial(_have_played, played))
    if asked.inference or not (folder_of(asked) / "checkpoints" / "manifest.json").is_file():
        return status
    try:
        for written in _left(asked):
            sys.stdout.write(f"{written}\n")
    except CommandError as error:
        sys.stderr.write(f"gdrl: {error}\n")
        return status or 1
    return status


def _have_played(steps: int, run: ProgressSnapshot) -> bool:
    """Return True if all agents together have made so many steps."""
    return sum(behavior.steps for behavior in run.behaviors) >= steps


def _left(asked: Namespace) -> list[str]:
    """Write what was asked for beside the experiment; returns a line for each file."""
    folder = folder_of(asked)
    lines = []
    if asked.save_model_path is not None:
        lines.append(f"saved as {save(folder, Path(asked.save_model_path))}")
    if asked.onnx_export_path is not None:
        models = sorted(folder.glob("*.onnx"))
        if not models:
            raise CommandError(f"--onnx_export_path: {folder} has no model, as its log says why")
        path = Path(asked.onnx_export_path).with_suffix(".onnx")
        for model in models:
            target = path if len(models) == 1 else path.with_name(f"{path.stem}_{model.name}")
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(model, target)
            except OSError as error:
                raise CommandError(f"--onnx_export_path {target}: {error.strerror or error}") from error
            lines.append(f"exported as {target}")
    return lines
