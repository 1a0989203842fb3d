"""`--set path.to.key=value`: single values laid over the YAML before it is checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from config.errors import ConfigError, KeyPath, Mistake, dotted
from config.explain import show, suggest
from config.yaml_reader import read_text

_NAMED = ("behaviors", "environment_parameters")
"""Sections whose keys are names of the user's choice: the schema can't tell a slip there."""


@dataclass(frozen=True, slots=True)
class Override:
    """One `--set`."""

    argument: str
    """As it was given: `path.to.key=value`."""
    path: KeyPath
    value: Any


def parse(arguments: Sequence[str]) -> tuple[list[Override], list[Mistake]]:
    """Read the arguments of `--set`; what can't be read comes back as mistakes."""
    overrides, mistakes = [], []
    for argument in arguments:
        key, equals, text = argument.partition("=")
        parts = key.strip().split(".")
        if not equals or not all(parts):
            mistakes.append(Mistake(named(argument), None, "", "expected path.to.key=value"))
            continue
        path = tuple(int(part) if part.isdigit() and place > 0 else part for place, part in enumerate(parts))
        try:
            document = read_text(text, named(argument))
            wrong = document.mistakes
            overrides.append(Override(argument, path, document.data))
        except ConfigError as error:
            wrong = error.mistakes
        mistakes += [Mistake(each.file, None, key, each.message) for each in wrong]
    return overrides, mistakes


def apply(data: dict[str, Any], overrides: Sequence[Override]) -> tuple[dict[str, Any], list[Mistake]]:
    """Lay overrides over plain data, the later above the earlier; gives new data, and what has no place."""
    mistakes = []
    for override in overrides:
        try:
            data = _put(data, override.path, override.value, override.path)
        except _NoPlaceError as error:
            mistakes.append(Mistake(named(override.argument), None, dotted(override.path), str(error)))
    return data, mistakes


def named(argument: str) -> str:
    """Say which `--set` is meant."""
    return f"--set {argument}"


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
