"""From a YAML file, `--set` arguments and options to a checked `RunConfig`, or to all that is wrong with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from config.check import check
from config.errors import ConfigError, KeyPath, Mistake, dotted
from config.explain import show
from config.inherit import complete
from config.overrides import Override, apply, parse
from config.run import RunConfig
from config.yaml_reader import Document, read_file, read_text

_RESUME_YIELDS = "checkpoint_settings.resume: has no effect, because initialize_from was set on the command line"
_NO_FILE = (
    "no configuration file was given: each behaviour that the environment has learns with the defaults "
    "(trainer_type ppo)"
)


def load_config(path: Path | str | None, overrides: Sequence[str | Override] = ()) -> RunConfig:
    """Load a configuration.

    Args:
        path: the YAML file; None: nothing but defaults, for whatever behaviours the environment has.
        overrides: what goes before the file, and the later before the earlier: values, or `path.to.key=value` each,
            the value read as YAML. List items are named by their index from 0: `pipeline.stages.0.host=main`.

    Raises:
        ConfigError: with every mistake in file and overrides.
    """
    document = read_text("default_settings: {}", "") if path is None else read_file(Path(path))
    given, wrong_arguments = parse(overrides)
    data, sets, misplaced = apply(_as_map(document), given)
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
    notes = (*((_NO_FILE,) if path is None else ()), *warnings, *((_RESUME_YIELDS,) if yields else ()))
    return config.loaded(None if path is None else Path(path), notes)


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
            return Mistake(override.name, None, dotted(path), message)
    return Mistake(document.name, document.line_of(path), dotted(path), message)
