"""Hands: which keys a person holds, as far as is known: messages come late, twice, or no more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

LATE_S = 1.5
"""Seconds without a message after which no key counts as pressed any more; the page sends several a second."""
AWAY_S = 5.0
"""Seconds without a message after which the person has gone, and the policy plays on."""
MOST_KEYS = 16


class HeldKeys:
    """The keys that one person holds.

    Args:
        clock: seconds on a monotonic clock.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.changed = asyncio.Event()
        """Set by each message."""
        self._clock = clock
        self._held: frozenset[str] = frozenset()
        self._tapped: set[str] = set()
        self._number = -1
        self._heard = clock()

    def hear(self, number: int, held: Collection[str]) -> None:
        """Take a message.

        Args:
            number: rising with each message of a person; one that is not newer than the last one is left out.
            held: all keys that are held now.
        """
        if number <= self._number:
            return
        self._number, self._heard = number, self._clock()
        now = frozenset(sorted(held)[:MOST_KEYS])
        self._tapped |= now - self._held
        self._held = now
        self.changed.set()

    @property
    def there(self) -> bool:
        """False if the person has gone, or the connection is lost."""
        return self._clock() - self._heard < AWAY_S

    @property
    def late(self) -> bool:
        """True if no key counts, as nothing has been heard for a while."""
        return self._clock() - self._heard >= LATE_S

    @property
    def pressed(self) -> frozenset[str]:
        """The keys that count: those that are held, and those that were tapped since the last decision."""
        return frozenset() if self.late else self._held | self._tapped

    @property
    def tapped(self) -> frozenset[str]:
        """Of these only those that were newly pressed since the last decision."""
        return frozenset(self._tapped) if self.pressed else frozenset()

    def decided(self) -> None:
        """A decision was made of them: a tap counts once."""
        self._tapped.clear()
        self.changed.clear()
