"""The wait at resume: self-play goes on when every participant of the saved run is present again.

The learning team and the matchups follow from all participants, so they must not depend on the order of arrival.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from headrace.queues.specs import behavior_name

log = logging.getLogger(__name__)

POLICY, REPORT = "policy", "report"
"""The two messages by which each trainer gives its position: its newest policy, and its report."""


class ResumeWait:
    """The trainers' messages and the behaviour ids that a resumed run still waits for.

    Args:
        ids: the behaviour ids that took part.
        behaviors: those of their behaviour names that have been trained.
    """

    def __init__(self, ids: Iterable[str] = (), behaviors: Iterable[str] = ()) -> None:
        self._ids = set(ids)
        self._messages = {name: {POLICY, REPORT} for name in behaviors}
        self._announced: set[str] = set()

    def __bool__(self) -> bool:
        """True while anything is missing."""
        return bool(self._messages or self._ids)

    def __contains__(self, behavior: str) -> bool:
        """True while a message from a behaviour's trainer is missing."""
        return behavior in self._messages

    def receive(self, behavior: str, message: str) -> bool:
        """Note a trainer's message; returns True if it was missing."""
        missing = self._messages.get(behavior, set())
        expected = message in missing
        missing.discard(message)
        if not missing:
            self._messages.pop(behavior, None)
        return expected

    def announce(self, behavior_id: str) -> bool:
        """Note that an environment has a behaviour id; returns True if it was missing."""
        self._announced.add(behavior_name(behavior_id))
        expected = behavior_id in self._ids
        self._ids.discard(behavior_id)
        return expected

    def all_announced(self) -> frozenset[str]:
        """Stop waiting for what no environment has announced.

        Returns:
            the behaviour ids that are gone.
        """
        gone, self._ids = frozenset(self._ids), set()
        self._messages = {name: missing for name, missing in self._messages.items() if name in self._announced}
        if gone:
            log.warning(
                "Self-play goes on without %s: the checkpoint has them, but this run's environments do not. If that is "
                "not meant, stop the run, and resume it with environments that have these behaviours and teams.",
                ", ".join(sorted(gone)),
            )
        return gone
