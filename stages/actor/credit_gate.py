"""The actor's side of flow control: its caps, and its requests to the ledger."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from headrace.queues.messages import FREE


class CreditGate:
    """Caps on learning steps by behaviour name. Pure: the host sends its requests and passes it the grants.

    Everywhere, `used` counts the steps emitted or held so far, by behaviour name, and `alive` names the behaviours that
    have agents here now: only these can close the gate.

    Args:
        request: called with (number of the request, used, wanted behaviours, behaviours whose credits are returned).
    """

    def __init__(self, request: Callable[[int, Mapping[str, int], Sequence[str], Sequence[str]], None]) -> None:
        self._request = request
        self._caps: dict[str, int] = {}
        self._ask_at: dict[str, int] = {}
        self._versions: dict[str, int] = {}
        self._given_back_at: dict[str, int] = {}
        self._number = 0
        self._asked_at = 0
        self._asked = False

    def closed(self, used: Mapping[str, int], alive: Collection[str]) -> list[str]:
        """Behaviours that have used up their caps."""
        return [name for name in alive if used.get(name, 0) >= self._caps.get(name, 0)]

    def bounds(self, alive: Collection[str]) -> bool:
        """True if the gate will close again some time; behaviours may be without a cap."""
        return any(self._caps.get(name, 0) < FREE for name in alive)

    def look_ahead(self, used: Mapping[str, int], alive: Collection[str], news: bool = False) -> None:
        """Ask for more while some are left, so that in the steady state the answer comes before they are used up.

        Credits of behaviours that have no agents here any more are returned, as other actors may need them.

        Args:
            used: see the class.
            alive: see the class.
            news: tell the ledger in any case, as this actor acts by a newer policy: others may wait for that.
        """
        if len(alive) < len(self._caps):
            idle = [name for name, cap in self._caps.items() if name not in alive and cap > used.get(name, 0)]
            if idle:
                self._give_back(used, (), idle)
        low = [name for name in alive if used.get(name, 0) >= self._ask_at.get(name, 0)] if not self._asked else []
        if low or news:
            self._asked |= bool(low)
            self._number += 1
            self._ask(used, low, ())

    def wait(self, used: Mapping[str, int], alive: Collection[str]) -> None:
        """Request credits for an actor that stands still: it has emitted all it held, and returns the unused ones."""
        self._asked = True
        # Nothing is left of any cap, so all behaviours that have agents here are wanted, not only the closed ones.
        self._give_back(used, sorted(alive), list(self._caps))

    def renew(self, used: Mapping[str, int]) -> None:
        """Give back all that is left, and begin without any credits, as another source."""
        self._give_back(used, (), list(self._caps))
        for table in (self._caps, self._ask_at, self._versions, self._given_back_at):
            table.clear()
        self._asked = False

    def granted(self, number: int, caps: Mapping[str, int], versions: Mapping[str, int]) -> None:
        """Apply the ledger's answer to request `number`."""
        if number == self._asked_at:
            self._asked = False
        for name, cap in caps.items():
            if number >= self._given_back_at.get(name, 0):
                self._ask_at[name] = (self._caps.get(name, 0) + cap) // 2
                self._caps[name] = cap
                self._versions[name] = versions[name]

    def needed_version(self, name: str) -> int:
        """The oldest policy version that may use the last grant."""
        return self._versions.get(name, 0)

    def _give_back(self, used: Mapping[str, int], wants: Sequence[str], names: Sequence[str]) -> None:
        self._number += 1
        for name in names:
            self._caps[name] = self._ask_at[name] = used.get(name, 0)
            self._given_back_at[name] = self._number
        self._ask(used, wants, names)

    def _ask(self, used: Mapping[str, int], wants: Sequence[str], gives_back: Sequence[str]) -> None:
        self._request(self._number, used, wants, gives_back)
        if wants:
            self._asked_at = self._number
        for name in wants:
            # Requested credits may be granted after they were returned, so they can be returned from now on.
            self._caps.setdefault(name, 0)
