"""Conversion of old samplers: `parameter_randomization`, or the file of `--sampler`, with resampling at intervals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace.config.errors import ConfigError, Mistake, suggest
from headrace.config.legacy.old_values import OldValue, Target
from headrace.config.yaml_reader import last_of_repeated, read_file

_INTERVALS = ("resampling-interval", "resampling_interval", "episode-length")
"""The last is the name in the first versions that had samplers."""
_TYPES = ("sampler-type", "sampler_type")
_NEW_NAMES = {"multirange_uniform": "multirangeuniform"}
_NEEDED = {
    "uniform": ("min_value", "max_value"),
    "gaussian": ("mean", "st_dev"),
    "multirangeuniform": ("intervals",),
    "constant": ("value",),
}


def is_samplers(value: Any) -> bool:
    """Return True if data looks like a file that holds samplers alone."""
    if not isinstance(value, dict):
        return False
    bodies = [body for key, body in value.items() if key not in _INTERVALS]
    return bool(bodies) and all(isinstance(body, dict) and any(key in body for key in _TYPES) for body in bodies)


def read_samplers(path: Path) -> OldValue:
    """Read the argument of `--sampler`.

    Raises:
        ConfigError: if it can't be read, or holds no samplers.
    """
    document, _ = last_of_repeated(read_file(path))
    file = OldValue(document.data, document)
    if document.mistakes:
        raise ConfigError(document.mistakes)
    if isinstance(file.value, dict) and set(file.value) == {"parameter_randomization"}:
        file = file.at("parameter_randomization")
    if not is_samplers(file.value):
        message = "holds no samplers; expected resampling-interval, and parameters with a sampler-type each"
        raise ConfigError([Mistake(file.place.file, file.place.line, "", message)])
    return file


def convert_samplers(samplers: OldValue, target: Target) -> None:
    """Convert samplers.

    Args:
        samplers: a map of parameters and their samplers, with the interval among them.
        target: the new `environment_parameters`.
    """
    if not isinstance(samplers.value, dict):
        target.notes.wrong(samplers.place, samplers.path, "does not fit; expected a map of parameters")
        return
    for name, old in samplers.items():
        if name in _INTERVALS:
            message = f"is gone: values were drawn every {old.value} steps, with a reset; now they are for each episode"
            target.notes.warn(old.place, name, message)
        elif name in target.data:
            earlier = target.notes.origins.get((*target.path, name), "under environment_parameters")
            message = f"is given already ({earlier}); a parameter can have only one meaning"
            target.notes.wrong(old.place, old.path, message)
        else:
            _convert_sampler(name, old, target)


def _convert_sampler(name: str, old: OldValue, target: Target) -> None:
    kinds = [key for key in _TYPES if isinstance(old.value, dict) and key in old.value]
    if not kinds or "sampler_parameters" in old.value:
        target.put_at((name,), old.value, old)  # a number, or today's form; if neither, the schema says what is wrong
        return
    sampler_type = old.at(kinds[0])
    kind = (
        _NEW_NAMES.get(sampler_type.value, sampler_type.value)
        if isinstance(sampler_type.value, str)
        else sampler_type.value
    )
    where = "environment_parameters.<name>"
    if kinds[0] != "sampler_type":
        target.notes.warn(sampler_type.place, kinds[0], f"is '{where}.sampler_type' now")
    if kind != sampler_type.value:
        target.notes.warn(
            sampler_type.place, f"{kinds[0]}: {sampler_type.value}", f"is '{where}.sampler_type: {kind}' now"
        )
    target.put_at((name,), {}, old)
    target.put_at((name, "sampler_type"), kind, sampler_type, "drawn anew for each episode")
    target.put_at((name, "sampler_parameters"), {}, old)
    for key, value in old.items():
        if key in _TYPES:
            continue
        new = key.replace("-", "_")
        target.notes.warn(value.place, key, f"is '{where}.sampler_parameters.{new}' now")
        target.put_at((name, "sampler_parameters", new), value.value, value)
    _check_needed(kind, old, target)


def _check_needed(kind: Any, old: OldValue, target: Target) -> None:
    given = {key.replace("-", "_") for key in old.value}
    for key in _NEEDED.get(kind, ()) if isinstance(kind, str) else ():
        if key not in given:
            message = f"lacks '{key}', which the sampler '{kind}' needs{suggest(key, sorted(given))}"
            target.notes.wrong(old.place, old.path, message)
