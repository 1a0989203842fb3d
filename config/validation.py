"""Check plain data against a model, and report everything that is wrong at once.

Pydantic skips the checks between keys while any key of the same model, or of one below it, is wrong. So wrong keys
are removed and the rest is checked again, until nothing new is found. What can't be judged without a removed key
has to wait until that key is mended.
"""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from headrace.config.error_messages import MOST_FINDINGS, explain
from headrace.config.errors import ConfigError, Finding, KeyPath, Locate
from headrace.config.schema_lookup import is_inside

Model = TypeVar("Model", bound=BaseModel)

MERGED = {"default_settings": "merged"}
"""Context of validating data into which `default_settings` is merged: merging again would undo what was dropped."""

_TAGS = ("kind", "sampler_type", "trainer_type", "use")
"""Keys on which the meaning of their whole map depends: if one is wrong, the keys beside it can't be judged."""


def check(model: type[Model], data: dict[str, Any], locate: Locate) -> Model:
    """Build the model from plain data.

    Args:
        model: the model to build.
        data: the plain data; it is not changed.
        locate: makes a mistake of a path in the data and a message.

    Raises:
        ConfigError: with all mistakes.
    """
    found: list[Finding] = []
    removed: list[KeyPath] = []
    while True:
        try:
            valid = model.model_validate(data, context=MERGED)
        except ValidationError as error:
            findings = explain(model, error, data)
        else:
            break
        found += [finding for finding in findings if not _follows(finding, removed)]
        culprits = {_culprit(finding.path, data) for finding in findings} - {()}
        if not culprits or len(found) >= MOST_FINDINGS:
            break
        for path in culprits:
            data = _without(data, path)
        removed += culprits
    if found:
        own = [finding for finding in found if not _is_echo(finding, found)]
        raise ConfigError(list(dict.fromkeys(locate(each.path, each.message) for each in own)))
    return valid


def _follows(finding: Finding, removed: list[KeyPath]) -> bool:
    """Return True if a finding depends on a key that was removed, such as by missing it."""
    return any(finding.path[: len(path)] == path for path in removed) or any(
        other[: len(path)] == path or path[: len(other)] == other for other in finding.involves for path in removed
    )


def _is_echo(finding: Finding, findings: list[Finding]) -> bool:
    """Return True if a behaviour only repeats a mistake of the `default_settings` that it inherits."""
    origin = ("default_settings", *finding.path[2:])
    return finding.path[:1] == ("behaviors",) and any(
        other.path == origin and other.message == finding.message for other in findings
    )


def _culprit(path: KeyPath, data: Any) -> KeyPath:
    """Find what to remove: the key, or the map or list around it if that has no meaning without it."""
    # A list without one of its items is another list; a map in it may lack one of its keys.
    while path and (path[-1] in _TAGS or isinstance(path[-1], int) or not is_inside(path, data)):
        path = path[:-1]
    return path


def _without(data: Any, path: KeyPath) -> Any:
    if not is_inside(path, data):
        return data  # a map around it was removed already
    key, *below = path
    if isinstance(data, list):
        return [_without(item, tuple(below)) if index == key else item for index, item in enumerate(data)]
    rest = {name: value for name, value in data.items() if name != key}
    return {**rest, key: _without(data[key], tuple(below))} if below else rest
