"""Says what a resumed run's settings change of those that it was trained with so far."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from headrace.config import ConfigError, RunConfig
from headrace.config.errors import KeyPath, dotted

_SHOWN = 12
_PASSING = ("checkpoint_settings", "debug", "default_settings", "monitor")
"""Sections about this start of the command alone; default settings show in the behaviours that have them."""
_ABSENT = object()


def changed_settings(before: str, config: RunConfig) -> str:
    """Return the settings that differ, from what to what; empty if none does.

    Args:
        before: the text of the run's `configuration.yaml`.
        config: the configuration with which it is resumed.
    """
    try:
        old = RunConfig.from_plain(yaml.safe_load(before)).to_plain()
    except (ConfigError, yaml.YAMLError, TypeError, AttributeError):  # of another version, or written by somebody else
        return ""
    changes = [
        f"{dotted(path)} {_shown(was)} → {_shown(now)}"
        for path, was, now in _differences(old, config.to_plain(), ())
        if path[0] not in _PASSING
    ]
    more = f", and {len(changes) - _SHOWN} more" if len(changes) > _SHOWN else ""
    return ", ".join(changes[:_SHOWN]) + more


def other_run(before: str, config: RunConfig) -> str:
    """Say why a run can't go on with this configuration: it has none of the run's behaviours; empty if it can.

    Args:
        before: the text of the run's `configuration.yaml`.
        config: the configuration with which it would be resumed.
    """
    try:
        learned = yaml.safe_load(before).get("behaviors") or {}
    except (yaml.YAMLError, AttributeError):
        return ""
    if not learned or not config.behaviors or learned.keys() & config.behaviors.keys():
        return ""
    return (
        f"it is a run of {', '.join(map(str, learned))}, and the configuration has {', '.join(config.behaviors)}: "
        "resume it with its own file, or give this one a run of its own with another --run-id"
    )


def _differences(was: Any, now: Any, path: KeyPath) -> Iterator[tuple[KeyPath, Any, Any]]:
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        for key in dict.fromkeys([*was, *now]):
            yield from _differences(was.get(key, _ABSENT), now.get(key, _ABSENT), (*path, key))
    elif was != now:
        yield path, was, now


def _shown(value: Any) -> str:
    if value is _ABSENT or value is None:
        return "none"
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
