"""The side channel of statistics that scenes record."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from enum import IntEnum

from headrace.stages.environments.unity.side_channels.channel import IncomingMessage, SideChannel

log = logging.getLogger(__name__)


class StatsAggregationMethod(IntEnum):
    """Aggregation of a statistic's values within a summary period."""

    AVERAGE = 0
    MOST_RECENT = 1
    SUM = 2
    HISTOGRAM = 3


StatList = list[tuple[float, StatsAggregationMethod]]


class StatsSideChannel(SideChannel):
    """Keeps the values that Unity records until they are read."""

    def __init__(self) -> None:
        super().__init__(uuid.UUID("a1d8f7b7-cec8-50f9-b78b-d3e165a78520"))
        self._stats: dict[str, StatList] = {}
        self._warned: set[int] = set()

    def on_message_received(self, msg: IncomingMessage) -> None:
        """Keep a value."""
        key = msg.read_string()
        value = msg.read_float32()
        self._stats.setdefault(key, []).append((value, self._method(msg.read_int32(), key)))

    def get_and_reset_stats(self) -> Mapping[str, StatList]:
        """All values since the last call by name, each with its aggregation method, the oldest first."""
        stats, self._stats = self._stats, {}
        return stats

    def _method(self, number: int, key: str) -> StatsAggregationMethod:
        if number in StatsAggregationMethod._value2member_map_:
            return StatsAggregationMethod(number)
        if number not in self._warned:
            self._warned.add(number)
            log.warning(
                "Unity records %r with the aggregation method %d, which is unknown; it is averaged",
                key,
                number,
            )
        return StatsAggregationMethod.AVERAGE
