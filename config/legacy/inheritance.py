"""The own keys of a behaviour which, merged over `default_settings`, give its section of an old file.

An old section was laid over `default` key by key at the top only: its `reward_signals` replaced those of the default.
Today maps are merged all the way down.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from headrace.config.behaviors import BehaviorSettings
from headrace.config.errors import KeyPath
from headrace.config.legacy.old_values import is_number
from headrace.config.schema_lookup import fields_of, models_at

_PACE, _SIGNALS_PACE = "steps_per_update", "reward_signal_steps_per_update"
_SAVE, _TURN, _SAVES_IN_A_TURN = "save_steps", "team_change", 5


def own_part(default: Mapping[str, Any], whole: Mapping[str, Any]) -> dict[str, Any]:
    """Return a block without what it inherits from `default_settings` anyway.

    Args:
        default: the `default_settings`.
        whole: the block.
    """
    own = _difference(default, whole, (), whole)
    return {"trainer_type": whole["trainer_type"], **own} if "trainer_type" in whole else own


def in_order(block: Mapping[str, Any], path: KeyPath = (), whole: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return a block with its keys in the order of the documentation."""
    whole = block if whole is None else whole
    known = [key for model in models_at(BehaviorSettings, path, dict(whole)) for key in fields_of(model)]
    ordered = sorted(block.items(), key=lambda item: known.index(item[0]) if item[0] in known else len(known))
    return {key: in_order(value, (*path, key), whole) if isinstance(value, dict) else value for key, value in ordered}


def _difference(
    default: Mapping[str, Any], part: Mapping[str, Any], path: KeyPath, whole: Mapping[str, Any]
) -> dict[str, Any]:
    own = {}
    unsaid = {key: _otherwise((*path, key), part, whole) for key in default if key not in part}
    for key, value in {**part, **unsaid}.items():
        below = default.get(key)
        if isinstance(value, dict) and isinstance(below, dict):
            deeper = _difference(below, value, (*path, key), whole)
            if deeper:
                own[key] = deeper
        elif key not in default or value != below:
            own[key] = value
    return own


def _otherwise(path: KeyPath, part: Mapping[str, Any], whole: Mapping[str, Any]) -> Any:
    """Return the value of a key that a block lacks: its default, or null for a section or another trainer's key."""
    key = str(path[-1])
    if key == _SIGNALS_PACE and _PACE in part:
        return part[_PACE]
    if key == _TURN and is_number(part.get(_SAVE)):
        return _SAVES_IN_A_TURN * part[_SAVE]
    for model in models_at(BehaviorSettings, path[:-1], dict(whole)):
        field = fields_of(model).get(key)
        if field is not None and not field.is_required():
            default = field.get_default(call_default_factory=True)
            return (
                default.model_dump(mode="json", by_alias=True, exclude_none=True)
                if isinstance(default, BaseModel)
                else default
            )
    return None
