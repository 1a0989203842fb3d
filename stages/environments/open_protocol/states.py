"""A game's state: the rows of its behaviours, and its statistics."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.queues.specs import BehaviorSpec
from headrace.stages.environments.open_protocol.columns import read_rows
from headrace.stages.environments.programs.errors import MessageError
from headrace.stages.environments.programs.rows import ProgramRows

_KEYS = ("type", "number", "agents", "statistics")


@dataclass(frozen=True, slots=True)
class SentState:
    """What a game has sent of its agents."""

    rows: Mapping[str, ProgramRows]
    """By behaviour id; those without a row are left out."""
    statistics: Mapping[str, tuple[float, ...]]


def read_state(message: Mapping[str, Any], specs: Mapping[str, BehaviorSpec]) -> SentState:
    """Read a `state`.

    Args:
        message: the game's.
        specs: what its hello has announced, by behaviour id.

    Raises:
        MessageError: if something is unknown, or does not fit what was announced.
    """
    unknown = [str(key) for key in message if key not in _KEYS]
    if unknown:
        raise MessageError(f"has sent {', '.join(unknown)} in a state: expected no keys but {', '.join(_KEYS)}")
    agents = message.get("agents", {})
    if not isinstance(agents, Mapping):
        raise MessageError(f"has sent {repr(agents)[:60]} as agents: expected a map by behaviour")
    rows = {}
    for behavior_id, part in agents.items():
        spec = specs.get(behavior_id)
        if spec is None:
            known = ", ".join(specs)
            raise MessageError(f"has sent agents of {behavior_id!r}, which its hello did not announce ({known})")
        columns = read_rows(spec, part)
        if len(columns):
            rows[behavior_id] = columns
    return SentState(rows, _statistics(message.get("statistics", {})))


def _statistics(given: Any) -> dict[str, tuple[float, ...]]:
    if not isinstance(given, Mapping):
        raise MessageError(f"has sent {repr(given)[:60]} as statistics: expected a map of numbers, or lists of numbers")
    found = {}
    for name, value in given.items():
        values = value if isinstance(value, list) else [value]
        if not all(_is_number(each) for each in values):
            raise MessageError(f"has sent {repr(value)[:60]} as the statistic {name!r}: expected finite numbers")
        if values:
            found[str(name)] = tuple(map(float, values))
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
