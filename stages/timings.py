"""Times of a host's work, which main gathers in `timers.json`."""

from __future__ import annotations

from collections.abc import Mapping

ACTING = "acting"
"""Policies decide, once a tick."""
STEPPING = "stepping"
"""The environments' share of a tick, waiting for them included."""
LEARNING = "learning"
"""An update of a trainer."""


class Timings:
    """Adds up times since they were last drained."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    def add(self, name: str, seconds: float) -> None:
        """Add the time that a piece of work took."""
        self._seconds[name] = self._seconds.get(name, 0.0) + seconds
        self._counts[name] = self._counts.get(name, 0) + 1

    def drain(self) -> Mapping[str, tuple[float, int]]:
        """Return seconds and count of each kind of work, and begin anew."""
        drained = {name: (seconds, self._counts[name]) for name, seconds in self._seconds.items()}
        self._seconds.clear()
        self._counts.clear()
        return drained
