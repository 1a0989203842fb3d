"""What a command asks for: a file, and what goes before it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from config import Override, RunConfig
from pipeline.command.old_options import translations
from pipeline.command.options import current_overrides
from pipeline.command.paths import sort_out
from pipeline.common.errors import CommandError


@dataclass(frozen=True, slots=True)
class Request:
    """A command, understood."""

    config: Path | None
    """The configuration file; None for none."""
    overrides: tuple[Override | str, ...]
    """What goes before the file, the later before the earlier; `--set` comes last."""
    warnings: tuple[str, ...] = ()
    env: str | None = None
    """The Unity executable, if the command names one."""
    old_files: Mapping[str, Any] = field(default_factory=dict)
    """Further files of older versions, to be converted with it: keyword arguments of `load_config` and `convert`."""


def understand(asked: argparse.Namespace) -> Request:
    """Say what a command asks for.

    Raises:
        CommandError: if it can't be followed; the message has all reasons.
    """
    found = list(translations(asked))
    refusals = [refusal for each in found for refusal in each.refusals]
    warnings = [warning for each in found for warning in each.warnings]
    try:
        paths = sort_out(asked.paths, asked.env)
    except CommandError as error:
        refusals.append(str(error))
    if refusals:
        raise CommandError("\n".join(refusals))
    replaced = {name: value for each in found for name, value in each.replaced.items()}
    if paths.env is not None:
        replaced["env"] = paths.env
        warnings.append(
            f"{paths.env}: an environment as an argument is of older versions of ML-Agents; write --env {paths.env}"
        )
    # What is of old comes first: a present option beside it wins.
    old = [override for each in found for override in each.overrides]
    now = current_overrides(argparse.Namespace(**{**vars(asked), **replaced}))
    files = {name: value for each in found for name, value in each.old_files.items()}
    return Request(paths.config, (*old, *now, *asked.set), tuple(warnings), paths.env or asked.env, files)


def contradictions(request: Request, config: RunConfig) -> list[str]:
    """What was asked for and can't be done with this configuration."""
    if request.env is not None and config.environment is not None:
        return [
            f"--env {request.env}: the configuration's 'environment' section says to run "
            f"{config.environment.kind} {config.environment.id or config.environment.factory}; keep one of the two"
        ]
    return []
