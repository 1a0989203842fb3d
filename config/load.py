"""From a YAML file and `--set` arguments to a checked `RunConfig`, or to all that is wrong with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from config.check import check
from config.errors import ConfigError, KeyPath, Mistake, dotted
from config.explain import show
from config.inherit import complete
from config.overrides import Override, apply, named, parse
from config.run import RunConfig
from config.yaml_reader import Document, read_file

_RESUME_YIELDS = "checkpoint_settings.resume: has no effect, because initialize_from was set on the command line"


def load_config(path: Path | str, overrides: Sequence[str] = ()) -> RunConfig:
    """Load a configuration.

    Args:
        path: the YAML file.
        overrides: `path.to.key=value` each, the value read as YAML; they go before the file, and the later
            before the earlier. List items are named by their index from 0: `pipeline.stages.0.host=main`.

    Raises:
        ConfigError: with every mistake in file and overrides.
    """
    document = read_file(Path(path))
    sets, wrong_arguments = parse(overrides)
    data, misplaced = apply(_as_map(document), sets)
    mistakes = [*document.mistakes, *wrong_arguments, *misplaced]
    yields = _resume_yields(data, sets)
    if yields:
        data = {**data, "checkpoint_settings": {**data["checkpoint_settings"], "resume": False}}
    completed, warnings = complete(data)
    try:
        config = check(RunConfig, completed, lambda place, message: _locate(document, sets, place, message))
    except ConfigError as error:
        mistakes += error.mistakes
    if mistakes:
        raise ConfigError(sorted(mistakes, key=lambda each: (each.file != document.name, each.line or 0)))
    return config.loaded(Path(path), (*warnings, _RESUME_YIELDS) if yields else warnings)


def _as_map(document: Document) -> dict[str, Any]:
    if document.data is None:
        raise ConfigError([Mistake(document.name, None, "", "is empty; expected at least 'behaviors'")])
    if not isinstance(document.data, dict):
        message = f"holds {show(document.data)}; expected a map with 'behaviors' and other sections"
        raise ConfigError([Mistake(document.name, document.line_of(()), "", message)])
    return document.data


def _resume_yields(data: Mapping[str, Any], overrides: Sequence[Override]) -> bool:
    """Whether `initialize_from` on the command line meets `resume` in the file: the former wins."""
    set_here = {override.path: override.value for override in overrides}
    section = data.get("checkpoint_settings")
    return (
        isinstance(section, Mapping)
        and section.get("resume") is True
        and set_here.get(("checkpoint_settings", "initialize_from")) is not None
        and ("checkpoint_settings", "resume") not in set_here
    )


def _locate(document: Document, overrides: Sequence[Override], path: KeyPath, message: str) -> Mistake:
    for override in reversed(overrides):
        shared = min(len(path), len(override.path))
        # An override is to blame for what it sets, and for the maps around it that it made.
        if path[:shared] == override.path[:shared] and (shared == len(override.path) or not document.has(path)):
            return Mistake(named(override.argument), None, dotted(path), message)
    return Mistake(document.name, document.line_of(path), dotted(path), message)
