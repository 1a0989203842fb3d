"""Overrides of single values of the YAML, applied before it is checked: `--set path.to.key=value`, and options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from headrace.config.error_messages import show
from headrace.config.errors import ConfigError, KeyPath, Mistake, dotted, suggest
from headrace.config.yaml_reader import read_text

EACH = "*"
"""In a path: all names of the map at this place."""

_NAMED = ("behaviors", "environment_parameters")
"""Sections whose keys are names of the user's choice, where the schema can't detect a slip."""


@dataclass(frozen=True, slots=True)
class Override:
    """One value that takes precedence over the file's."""

    name: str
    """Its name in mistakes: `--set path.to.key=value`, or an option as it was given, such as `--num-envs 0`."""
    path: KeyPath
    value: Any
    optional: bool = False
    """True if it is to be left out where the file lacks the section that it starts with."""


def parse(arguments: Sequence[str | Override]) -> tuple[list[Override], list[Mistake]]:
    """Read the arguments of `--set`; return the overrides, and mistakes for arguments that can't be read."""
    overrides, mistakes = [], []
    for argument in arguments:
        if isinstance(argument, Override):
            overrides.append(argument)
            continue
        key, equals, text = argument.partition("=")
        parts = key.strip().split(".")
        if not equals or not all(parts):
            mistakes.append(Mistake(_set(argument), None, "", "expected path.to.key=value"))
            continue
        path = tuple(int(part) if part.isdecimal() and place > 0 else part for place, part in enumerate(parts))
        try:
            document = read_text(text, _set(argument))
            wrong = document.mistakes
            overrides.append(Override(_set(argument), path, document.data))
        except ConfigError as error:
            wrong = error.mistakes
        mistakes += [Mistake(each.file, None, key, each.message) for each in wrong]
    return overrides, mistakes


def apply(data: dict[str, Any], overrides: Sequence[Override]) -> tuple[dict[str, Any], list[Override], list[Mistake]]:
    """Apply overrides to plain data, in their order.

    Returns:
        New data, the overrides that were applied, with complete paths, and mistakes for those that have no place.
    """
    applied, mistakes = [], []
    for override in overrides:
        for each in _spelt_out(data, override):
            try:
                data = _put(data, each.path, each.value, each.path)
                applied.append(each)
            except _NoPlaceError as error:
                mistakes.append(Mistake(each.name, None, dotted(each.path), str(error)))
    return data, applied, mistakes


def _set(argument: str) -> str:
    """Return the name of an argument of `--set` in mistakes."""
    return f"--set {argument}"


def _spelt_out(data: dict[str, Any], override: Override) -> list[Override]:
    """Return the override once for each name that `EACH` stands for; none if it is optional and has no place."""
    section, *below = override.path
    if override.optional and data.get(str(section)) is None:
        return []
    if not below or below[0] != EACH:
        return [override]
    named = data.get(str(section))
    names = named if isinstance(named, dict) else ()
    return [replace(override, path=(section, name, *below[1:])) for name in names]


class _NoPlaceError(Exception):
    """The path of an override leads nowhere."""


def _put(here: Any, path: KeyPath, value: Any, whole: KeyPath) -> Any:
    if not path:
        return value
    key, *below = path
    if isinstance(here, list):
        if not isinstance(key, int) or key >= len(here):
            raise _NoPlaceError(f"the list has {len(here)} items; expected an index below that, got '{key}'")
        return [*here[:key], _put(here[key], tuple(below), value, whole), *here[key + 1 :]]
    if here is not None and not isinstance(here, dict):
        before = dotted(whole[: len(whole) - len(path)])
        raise _NoPlaceError(f"'{before}' is {show(here)}, which has no keys")
    name, rest = str(key), here or {}
    if below and name not in rest and whole[0] in _NAMED and len(path) == len(whole) - 1:
        hint = suggest(name, list(rest)) or f"; listed: {', '.join(rest) or 'none'}"
        raise _NoPlaceError(f"'{name}' is not listed under {whole[0]}{hint}")
    return {**rest, name: _put(rest.get(name), tuple(below), value, whole)}
