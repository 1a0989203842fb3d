"""Conversion of old curricula: thresholds of one behaviour, and values of several parameters together.

Today each parameter has a curriculum of its own. Up to 0.13 there was a folder with a file for each behaviour, then
one YAML with all of them, then a section of the trainer's file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from headrace.config.errors import ConfigError, KeyPath, Mistake
from headrace.config.legacy.old_values import Notes, OldValue, Place, Target, integral, truth
from headrace.config.yaml_reader import last_of_repeated, read_file

T = TypeVar("T")

_KEYS = ("measure", "thresholds", "min_lesson_length", "signal_smoothing", "parameters")
_DEFAULTS = {"measure": "reward", "min_lesson_length": 0, "signal_smoothing": True}


def is_curriculum(value: Any) -> bool:
    """Return True if a value looks like one behaviour's curriculum."""
    return isinstance(value, dict) and "thresholds" in value and "parameters" in value


def read_curricula(path: Path) -> dict[str, OldValue]:
    """Read the argument of `--curriculum`: a folder with a file for each behaviour, one of them, or one file with all.

    Raises:
        ConfigError: if it can't be read, or holds no curricula.
    """
    if path.is_dir():
        files = sorted(each for each in path.iterdir() if each.suffix.lower() == ".json")
        if not files:
            message = "holds no curricula; expected a file <behaviour>.json for each behaviour that learns in lessons"
            raise ConfigError([Mistake(str(path), None, "", message)])
        return {name: old for each in files for name, old in _read(each).items()}
    return _read(path)


def _read(path: Path) -> dict[str, OldValue]:
    document, _ = last_of_repeated(read_file(path))
    return curricula_in(OldValue(document.data, document))


def curricula_in(file: OldValue) -> dict[str, OldValue]:
    """Return the curricula, by behaviour, of a file that holds nothing else.

    Raises:
        ConfigError: if it holds other values.
    """
    if file.document.mistakes:
        raise ConfigError(file.document.mistakes)
    if is_curriculum(file.value):
        return {Path(file.document.name).stem: file}
    if isinstance(file.value, dict) and set(file.value) == {"curriculum"}:
        file = file.at("curriculum")
    if not isinstance(file.value, dict) or not file.value or not all(map(is_curriculum, file.value.values())):
        message = f"holds no curricula; expected behaviours, each with {', '.join(_KEYS)}"
        raise ConfigError([Mistake(file.place.file, file.place.line, "", message)])
    return dict(file.items())


def convert_curriculum(behavior: str, old: OldValue, target: Target, *, strict: bool = False) -> None:
    """Convert a behaviour's curriculum to one for each of its parameters.

    Args:
        behavior: the behaviour that is measured.
        old: its curriculum.
        target: the new `environment_parameters`.
        strict: True if no key may be missing, as in files of their own.
    """
    notes = target.notes
    if not isinstance(old.value, dict):
        notes.wrong(old.place, old.path, f"does not fit; expected a map with {', '.join(_KEYS)}")
        return
    if not _is_whole(old, notes, strict=strict):
        return
    thresholds = old.at("thresholds")
    for key, value in old.items():
        if key in _KEYS:
            new = "completion_criteria.threshold" if key == "thresholds" else f"completion_criteria.{key}"
            new = f"environment_parameters.<name>.curriculum.<n>.{'value' if key == 'parameters' else new}"
            notes.warn(value.place, key, f"is '{new}' now")
    for name, values in old.at("parameters").items():
        if name in target.data:
            earlier = notes.origins.get((*target.path, name), "under environment_parameters")
            notes.wrong(
                values.place, values.path, f"has a curriculum already ({earlier}); a parameter can have only one"
            )
        elif not isinstance(values.value, list) or len(values.value) != len(thresholds.value) + 1:
            got = f"{len(values.value)} values" if isinstance(values.value, list) else repr(values.value)
            message = f"{got} for {len(thresholds.value)} thresholds; expected a list of {len(thresholds.value) + 1}"
            notes.wrong(values.place, values.path, message)
        else:
            target.put_at((name,), {"curriculum": list(_lessons(behavior, old, values))}, values)
            _trace(name, old, values, target)


def _is_whole(old: OldValue, notes: Notes, *, strict: bool) -> bool:
    lacking = [key for key in _KEYS if key not in old.value and (strict or key not in _DEFAULTS)]
    unknown = [key for key in old.value if key not in _KEYS]
    if lacking:
        notes.wrong(old.place, old.path, f"lacks {', '.join(lacking)}; expected {', '.join(_KEYS)}")
    for key in unknown:
        notes.wrong(old.at(key).place, (*old.path, key), f"unknown key; expected one of {', '.join(_KEYS)}")
    for key, kind in (("thresholds", list), ("parameters", dict)):
        if key in old.value and not isinstance(old.value[key], kind):
            lacking.append(key)
            expected = "a list" if kind is list else "a map of lists"
            notes.wrong(old.at(key).place, (*old.path, key), f"does not fit; expected {expected}")
    return not lacking and not unknown


def _lessons(behavior: str, old: OldValue, values: OldValue) -> Iterator[dict[str, Any]]:
    given = {**_DEFAULTS, **old.value}
    for number, value in enumerate(values.value):
        lesson: dict[str, Any] = {"name": f"Lesson{number}", "value": value}
        if number < len(given["thresholds"]):
            lesson["completion_criteria"] = {
                "behavior": behavior,
                "measure": given["measure"],
                "threshold": given["thresholds"][number],
                "min_lesson_length": integral(given["min_lesson_length"]),
                "signal_smoothing": truth(given["signal_smoothing"]),
                "require_reset": True,
            }
        yield lesson


def _trace(name: str, old: OldValue, values: OldValue, target: Target) -> None:
    """Note the origins of the lessons' parts, and the reason of the reset."""
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
        notes.comments[first] = "environments began anew with each lesson"


def skip_lessons(count: int, parameters: Any, notes: Notes, place: Callable[[KeyPath], Place]) -> Any:
    """Begin all curricula with a later lesson (`--lesson`): earlier ones are left out.

    Args:
        count: the lesson to begin with, from 0; the last one if there are fewer.
        parameters: the new `environment_parameters`; they are not changed.
        notes: where warnings go.
        place: returns the place of a path in the file that was read.

    Returns:
        The parameters with the rest of their curricula.
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
        notes.warn(place(where), ".".join(where), f"{what}, as --lesson {count} says; those before are left out")
    return begun


def _renumber(where: tuple[str, str, str], left_out: int, notes: Notes, places: dict[KeyPath, Place]) -> None:
    """Move notes about lessons to their new numbers."""
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
