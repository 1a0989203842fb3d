"""Says what a resumed run's settings change of those that it was trained with so far."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from config import ConfigError, RunConfig
from config.errors import KeyPath, dotted

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
