"""What a resumed run waits for before play goes on: everybody who was there when it was saved.

Whose turn it is and who plays whom follow from all of them, so nothing may depend on who speaks up first.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from queues.specs import behavior_name

log = logging.getLogger(__name__)

POLICY, REPORT = "policy", "report"
"""What each trainer says of where it stands: its newest policy, and its report."""


class RollCall:
    """Trainers that have yet to speak, and behaviour ids that no environment of this run has announced yet.

    Args:
        ids: the behaviour ids that took part.
        behaviors: those of their behaviour names that have been trained.
    """

    def __init__(self, ids: Iterable[str] = (), behaviors: Iterable[str] = ()) -> None:
        self._ids = set(ids)
        self._words = {name: {POLICY, REPORT} for name in behaviors}
        self._met: set[str] = set()

    def __bool__(self) -> bool:
        """Whether somebody is still waited for."""
        return bool(self._words or self._ids)

    def __contains__(self, behavior: str) -> bool:
        """Whether a word of a behaviour's trainer is still waited for."""
        return behavior in self._words

    def hear(self, behavior: str, word: str) -> bool:
        """A trainer speaks; whether this word of it was waited for."""
        words = self._words.get(behavior, set())
        expected = word in words
        words.discard(word)
        if not words:
            self._words.pop(behavior, None)
        return expected

    def meet(self, behavior_id: str) -> bool:
        """A behaviour id is announced; whether it was waited for."""
        self._met.add(behavior_name(behavior_id))
        expected = behavior_id in self._ids
        self._ids.discard(behavior_id)
        return expected

    def end(self) -> frozenset[str]:
        """The environments have announced all that they have: who has not been met is not waited for any longer.

        Returns:
            the behaviour ids that are gone.
        """
        gone, self._ids = frozenset(self._ids), set()
        self._words = {name: words for name, words in self._words.items() if name in self._met}
        if gone:
            log.warning(
                "Self-play goes on without %s: the checkpoint has them, but this run's environments do not. If that is "
                "not meant, stop the run, and resume it with environments that have these behaviours and teams.",
                ", ".join(sorted(gone)),
            )
        return gone
