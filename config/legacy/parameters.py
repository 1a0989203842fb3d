"""Converts old curricula and samplers to `environment_parameters`.

An old curriculum has thresholds for one behaviour, and values for several parameters together; now each parameter has a
separate curriculum. Up to version 0.13 there was a folder with a file for each behaviour, then one YAML file for all of
them, then a section in the trainer's file. Old samplers are the section `parameter_randomization`, or the file given by
`--sampler`; they resample at intervals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from headrace.config.errors import ConfigError, KeyPath, Mistake, suggest
from headrace.config.legacy.old_values import Notes, OldValue, SourceLocation, Target, integral, truth
from headrace.config.yaml_reader import read_file

T = TypeVar("T")

_KEYS = ("measure", "thresholds", "min_lesson_length", "signal_smoothing", "parameters")
_DEFAULTS = {"measure": "reward", "min_lesson_length": 0, "signal_smoothing": True}


def is_curriculum(value: Any) -> bool:
    """Return True if a value looks like one behaviour's curriculum."""
    return isinstance(value, dict) and "thresholds" in value and "parameters" in value


def read_curricula(path: Path) -> dict[str, OldValue]:
    """Read the argument of `--curriculum`: a folder with a file per behaviour, or a file for one or all behaviours.

    Raises:
        ConfigError: if the argument can't be read, or contains no curricula.
    """
    if path.is_dir():
        files = sorted(each for each in path.iterdir() if each.suffix.lower() == ".json")
        if not files:
            message = (
                "contains no curricula; expected a file <behaviour>.json for each behaviour that learns in lessons"
            )
            raise ConfigError([Mistake(str(path), None, "", message)])
        return {name: old for each in files for name, old in _read(each).items()}
    return _read(path)


def _read(path: Path) -> dict[str, OldValue]:
    document = read_file(path).last_of_repeated()
    return curricula_in(OldValue(document.data, document))


def curricula_in(file: OldValue) -> dict[str, OldValue]:
    """Return the curricula in a file that contains nothing else, keyed by behaviour.

    Raises:
        ConfigError: if the file contains other values.
    """
    if file.document.mistakes:
        raise ConfigError(file.document.mistakes)
    if is_curriculum(file.value):
        return {Path(file.document.name).stem: file}
    if isinstance(file.value, dict) and set(file.value) == {"curriculum"}:
        file = file.at("curriculum")
    if not isinstance(file.value, dict) or not file.value or not all(map(is_curriculum, file.value.values())):
        message = f"contains no curricula; expected behaviours, each with {', '.join(_KEYS)}"
        raise ConfigError([Mistake(file.place.file, file.place.line, "", message)])
    return dict(file.items())


def convert_curriculum(behavior: str, old: OldValue, target: Target, *, strict: bool = False) -> None:
    """Convert a behaviour's curriculum to one curriculum for each of its parameters.

    Args:
        behavior: the behaviour that is measured.
        old: the behaviour's curriculum.
        target: the new `environment_parameters`.
        strict: True if no key may be missing, as in separate files.
    """
    notes = target.notes
    if not isinstance(old.value, dict):
        notes.wrong(old, f"is not valid; expected a map with {', '.join(_KEYS)}")
        return
    if not _is_whole(old, notes, strict=strict):
        return
    thresholds = old.at("thresholds")
    for key, value in old.items():
        if key in _KEYS:
            new = "completion_criteria.threshold" if key == "thresholds" else f"completion_criteria.{key}"
            new = f"environment_parameters.<name>.curriculum.<n>.{'value' if key == 'parameters' else new}"
            notes.warn(value, key, f"is now '{new}'")
    for name, values in old.at("parameters").items():
        if name in target.data:
            earlier = notes.origins.get((*target.path, name), "under environment_parameters")
            notes.wrong(values, f"already has a curriculum ({earlier}); a parameter can have only one")
        elif not isinstance(values.value, list) or len(values.value) != len(thresholds.value) + 1:
            got = f"{len(values.value)} values" if isinstance(values.value, list) else repr(values.value)
            message = f"{got} for {len(thresholds.value)} thresholds; expected a list of {len(thresholds.value) + 1}"
            notes.wrong(values, message)
        else:
            target.put_at((name,), {"curriculum": list(_lessons(behavior, old, values))}, values)
            _trace(name, old, values, target)


def _is_whole(old: OldValue, notes: Notes, *, strict: bool) -> bool:
    lacking = [key for key in _KEYS if key not in old.value and (strict or key not in _DEFAULTS)]
    unknown = [key for key in old.value if key not in _KEYS]
    if lacking:
        notes.wrong(old, f"lacks {', '.join(lacking)}; expected {', '.join(_KEYS)}")
    for key in unknown:
        notes.wrong(old.at(key), f"unknown key; expected one of {', '.join(_KEYS)}")
    for key, kind in (("thresholds", list), ("parameters", dict)):
        if key in old.value and not isinstance(old.value[key], kind):
            lacking.append(key)
            expected = "a list" if kind is list else "a map of lists"
            notes.wrong(old.at(key), f"is not valid; expected {expected}")
    return not lacking and not unknown


def _lessons(behavior: str, old: OldValue, values: OldValue) -> Iterator[dict[str, Any]]:
    curriculum = {**_DEFAULTS, **old.value}
    for number, value in enumerate(values.value):
        lesson: dict[str, Any] = {"name": f"Lesson{number}", "value": value}
        if number < len(curriculum["thresholds"]):
            lesson["completion_criteria"] = {
                "behavior": behavior,
                "measure": curriculum["measure"],
                "threshold": curriculum["thresholds"][number],
                "min_lesson_length": integral(curriculum["min_lesson_length"]),
                "signal_smoothing": truth(curriculum["signal_smoothing"]),
                "require_reset": True,
            }
        yield lesson


def _trace(name: str, old: OldValue, values: OldValue, target: Target) -> None:
    """Record where the lessons' parts came from, and add a comment that explains `require_reset`."""
    where, notes = (*target.path, name, "curriculum"), target.notes
    for number in range(len(values.value)):
        notes.origins[*where, number] = notes.origins[*where, number, "value"] = values.place
        criteria = (*where, number, "completion_criteria")
        for key in ("measure", "min_lesson_length", "signal_smoothing"):
            if key in old.value:
                notes.origins[*criteria, key] = old.at(key).place
        notes.origins[*criteria, "threshold"] = old.at("thresholds").place
    if len(values.value) > 1:
        first = (*where, 0, "completion_criteria", "require_reset")
        notes.comments[first] = "environments were reset at each lesson"


def skip_lessons(count: int, parameters: Any, notes: Notes, place: Callable[[KeyPath], SourceLocation]) -> Any:
    """Drop the lessons before a given one (`--lesson`) from all curricula.

    Args:
        count: 0-based index of the lesson at which to start; a curriculum with fewer lessons starts at its last one.
        parameters: the new `environment_parameters`, which are not modified.
        notes: receives warnings.
        place: returns the location of a path in the file that was read.

    Returns:
        The parameters with the remaining lessons.
    """
    if not isinstance(parameters, dict):
        return parameters
    begun = dict(parameters)
    for name, value in parameters.items():
        lessons = value.get("curriculum") if isinstance(value, dict) else None
        if not isinstance(lessons, list) or not lessons:
            continue
        left_out = min(count, len(lessons) - 1)
        begun[name] = {**value, "curriculum": lessons[left_out:]}
        where = ("environment_parameters", name, "curriculum")
        _renumber(where, left_out, notes, {path: place(path) for path in _paths(where, lessons)})
        what = f"begins with lesson {left_out}"
        notes.warn(
            place(where), ".".join(where), f"{what}, as --lesson {count} requests; the earlier lessons are left out"
        )
    return begun


def _renumber(where: tuple[str, str, str], left_out: int, notes: Notes, places: dict[KeyPath, SourceLocation]) -> None:
    """Move notes about lessons to the lessons' new numbers."""
    comments = {path: notes.comments.pop(path) for path in [*notes.comments] if path[:3] == where and len(path) > 3}
    for path in [path for path in notes.origins if path[:3] == where and len(path) > 3]:
        del notes.origins[path]
    notes.comments |= _moved(comments, left_out)
    notes.origins |= _moved(places, left_out)


def _moved(found: dict[KeyPath, T], left_out: int) -> dict[KeyPath, T]:
    numbered = [(path, int(path[3]), what) for path, what in found.items() if len(path) > 3]
    return {(*path[:3], number - left_out, *path[4:]): what for path, number, what in numbered if number >= left_out}


def _paths(path: KeyPath, value: Any) -> Iterator[KeyPath]:
    yield path
    if isinstance(value, dict | list):
        for key, below in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _paths((*path, key), below)


# Samplers.

_INTERVALS = ("resampling-interval", "resampling_interval", "episode-length")
"""Names of the resampling interval's key; the last name is from the first versions with samplers."""
_TYPES = ("sampler-type", "sampler_type")
_NEW_NAMES = {"multirange_uniform": "multirangeuniform"}
_NEEDED = {
    "uniform": ("min_value", "max_value"),
    "gaussian": ("mean", "st_dev"),
    "multirangeuniform": ("intervals",),
    "constant": ("value",),
}


def is_samplers(value: Any) -> bool:
    """Return True if data looks like a file that contains only samplers."""
    if not isinstance(value, dict):
        return False
    bodies = [body for key, body in value.items() if key not in _INTERVALS]
    return bool(bodies) and all(isinstance(body, dict) and any(key in body for key in _TYPES) for body in bodies)


def read_samplers(path: Path) -> OldValue:
    """Read the argument of `--sampler`.

    Raises:
        ConfigError: if the file can't be read, or contains no samplers.
    """
    document = read_file(path).last_of_repeated()
    file = OldValue(document.data, document)
    if document.mistakes:
        raise ConfigError(document.mistakes)
    if isinstance(file.value, dict) and set(file.value) == {"parameter_randomization"}:
        file = file.at("parameter_randomization")
    if not is_samplers(file.value):
        message = "contains no samplers; expected resampling-interval, and parameters that each have a sampler-type"
        raise ConfigError([Mistake(file.place.file, file.place.line, "", message)])
    return file


def convert_samplers(samplers: OldValue, target: Target) -> None:
    """Convert samplers.

    Args:
        samplers: a map from parameters to their samplers, which also contains the interval.
        target: the new `environment_parameters`.
    """
    if not isinstance(samplers.value, dict):
        target.notes.wrong(samplers, "is not valid; expected a map of parameters")
        return
    for name, old in samplers.items():
        if name in _INTERVALS:
            message = (
                f"was removed: values were drawn every {old.value} steps, with a reset; now they are drawn for each "
                "episode"
            )
            target.notes.warn(old, name, message)
        elif name in target.data:
            earlier = target.notes.origins.get((*target.path, name), "under environment_parameters")
            target.notes.wrong(old, f"is already defined ({earlier}); a parameter can be defined only once")
        else:
            _convert_sampler(name, old, target)


def _convert_sampler(name: str, old: OldValue, target: Target) -> None:
    kinds = [key for key in _TYPES if isinstance(old.value, dict) and key in old.value]
    if not kinds or "sampler_parameters" in old.value:
        target.put_at((name,), old.value, old)  # a number, or the current form; the schema reports other values
        return
    sampler_type = old.at(kinds[0])
    kind = (
        _NEW_NAMES.get(sampler_type.value, sampler_type.value)
        if isinstance(sampler_type.value, str)
        else sampler_type.value
    )
    where = "environment_parameters.<name>"
    if kinds[0] != "sampler_type":
        target.notes.warn(sampler_type, kinds[0], f"is now '{where}.sampler_type'")
    if kind != sampler_type.value:
        target.notes.warn(sampler_type, f"{kinds[0]}: {sampler_type.value}", f"is now '{where}.sampler_type: {kind}'")
    target.put_at((name,), {}, old)
    target.put_at((name, "sampler_type"), kind, sampler_type, "a new value in each episode")
    target.put_at((name, "sampler_parameters"), {}, old)
    for key, value in old.items():
        if key in _TYPES:
            continue
        new = key.replace("-", "_")
        target.notes.warn(value, key, f"is now '{where}.sampler_parameters.{new}'")
        target.put_at((name, "sampler_parameters", new), value.value, value)
    keys = {key.replace("-", "_") for key in old.value}
    for key in _NEEDED.get(kind, ()) if isinstance(kind, str) else ():
        if key not in keys:
            target.notes.wrong(old, f"lacks '{key}', which the sampler '{kind}' needs{suggest(key, sorted(keys))}")
