"""One behaviour's credit window: how many credits are outstanding, and how many more the lag bound allows.

`credits` is the ledger of all windows. Pure: numbers in, numbers out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from headrace.queues.messages import FREE

TRAINER = "trainer"
"""The stage name under which a trainer returns credits."""


@dataclass(slots=True)
class _Account:
    """The credits of one source in one window. Counts are cumulative."""

    cap: int = 0
    arrived: int = 0
    """Steps that have reached the trainer."""
    returned: dict[str, int] = field(default_factory=dict)
    """Number of credits returned, by stage."""
    marks: list[tuple[int, int]] = field(default_factory=list)
    """(steps, version), both ascending: after this many steps, the source uses this version or newer ones."""

    @property
    def out(self) -> int:
        """Number of credits that have not returned to the ledger."""
        return max(0, self.cap - sum(self.returned.values()))

    def settled(self) -> int:
        """Number of leading steps no longer in flight, because they have reached the trainer or were rejected."""
        return self.arrived + sum(self.returned.values()) - self.returned.get(TRAINER, 0)

    def mark(self, steps: int, version: int) -> None:
        """Note that all steps after the first `steps` come from `version` or newer."""
        newest, marks = -1, list[tuple[int, int]]()
        for mark in sorted((*self.marks, (steps, version))):
            if mark[1] > newest:
                if marks and marks[-1][0] == mark[0]:
                    marks.pop()
                marks.append(mark)
                newest = mark[1]
        settled = self.settled()
        while len(marks) > 1 and marks[1][0] <= settled:
            del marks[0]
        self.marks = marks

    def leeway(self, rows_per_update: int) -> int | None:
        """Return the minimum, over all steps in flight, of their version's rows plus the steps that come after them.

        None if no step is in flight.
        """
        settled, least = self.settled(), None
        for number, (steps, version) in enumerate(self.marks):
            end = self.marks[number + 1][0] if number + 1 < len(self.marks) else self.cap
            if end > max(settled, steps):
                found = version * rows_per_update + self.cap - end
                least = found if least is None else min(least, found)
        return least


# With several actors the window's size does not bound the lag, so grants name a policy version (docs/decisions/017).
class CreditWindow:
    """The credits for one behaviour name.

    An update takes `rows` steps in the order of their arrival (or more, if the trainer takes all that it holds). Of
    the `out` credits that are not back, some steps have arrived at the trainer; the others are in flight or not
    made yet, and may arrive in any order, except those of one source, which arrive in the order in which they are
    made. So a step in flight is learned from, no later, after all that are out but those that its source makes
    after it: by a trainer at version V + ceil((out - after) / rows) - 1, if it is at V now. A step that version v has
    made is learned from in time if this is at most v + lag, thus if

        out <= (lag + 1 - V) * rows + leeway,   where leeway = v * rows + after.

    A grant raises `out`, and waits unless this then holds for all steps in flight. Those that have arrived need
    nothing more: what is granted now comes after them. Nor do those of the same source: it makes the new steps later.
    An update raises V by 1 and lowers `out` by `rows` at least, an arrival takes a step out of the condition, a newer
    version in place of an older one raises `leeway`: what holds after a grant holds until the next one. And no rule
    that keeps the bound grants more: any order of arrival that this one allows for may be the one that comes.

    With one source only the size of the window is left, (lag + 1) * rows, and so it is at lag 0. With several, it costs
    time only if, from an update on, lag * rows steps are made before all sources have the new policy, what they had
    made before has arrived, and grants are back: that trip has to be shorter than the collecting of lag updates.

    Not counted are steps that a killed actor had in flight when its credits were written off, and the order of
    those that a stage turns away.
    """

    def __init__(self, lag: int, rows: int, restored: int = 0) -> None:
        self.lag, self.rows = lag, rows
        self.version = 0
        self.first = 0
        """The first source that may hold credits from this window."""
        self.held = self.out = restored
        self.restored = self.restored_left = restored
        self._accounts: dict[int, _Account] = {}
        self._leeways: dict[int, int] = {}
        self._least: list[tuple[int, int]] = []
        """Heap of (leeway, source); entries that differ from `_leeways` are stale."""

    @property
    def size(self) -> int:
        """Maximum number of outstanding credits."""
        return FREE if self.rows == FREE else (self.lag + 1) * self.rows

    @property
    def at_rest(self) -> bool:
        """True if no steps are in flight, and the trainer holds too few for an update."""
        if self.rows == FREE:
            return True
        # Not `out == held`: the trainer may hold a killed actor's steps, whose credits were written off.
        in_flight = (account.cap > account.settled() for account in self._accounts.values())
        return self.held < self.rows and not any(in_flight)

    def free(self, source: int) -> int:
        """Return the credits that may be granted to a source now."""
        free = self.size - self.out
        least = self._least_leeway(source)
        if least is not None:
            free = min(free, (self.lag + 1 - self.version) * self.rows + least - self.out)
        return free

    def slowest(self) -> int:
        """Return the source that holds up the others most; -1 if no step is in flight."""
        return self._least[0][1] if self._least_leeway(-1) is not None else -1

    def use(self, source: int, used: int, gives_back: bool, acting: tuple[int, int] | None) -> None:
        """Record what a source reports about itself; see `CreditRequest`."""
        account = self._account(source)
        out = account.out
        # Steps beyond the cap (a tick is never cut) are still used up.
        account.cap = max(0 if gives_back else account.cap, used)
        if acting is not None:
            account.mark(*acting)
        self._changed(source, account, out)

    def grant(self, source: int, amount: int) -> int:
        """Grant a source that many more credits, for the trainer's version or newer ones; return its cap."""
        account = self._account(source)
        out = account.out
        account.mark(account.cap, self.version)
        account.cap += amount
        self._changed(source, account, out)
        return account.cap

    def give_back(self, source: int, by: str, total: int, arrived: int) -> None:
        """Record, for one source, the total credits that a stage has returned and the total steps that have arrived."""
        account = self._account(source)
        if account.returned.get(by) == total and arrived <= account.arrived:
            return
        out = account.out
        account.returned[by] = total
        if by == TRAINER:
            account.arrived = max(account.arrived, arrived, total)
        self._changed(source, account, out)

    def remove(self, source: int) -> None:
        """Write off a source."""
        account = self._accounts.pop(source, None)
        if account is not None:
            self.out -= account.out
            self._set_leeway(source, None)

    def _account(self, source: int) -> _Account:
        return self._accounts.setdefault(source, _Account())

    def _changed(self, source: int, account: _Account, out_before: int) -> None:
        """Update the sums."""
        self.out += account.out - out_before
        if self.rows != FREE:
            self._set_leeway(source, account.leeway(self.rows))

    def _set_leeway(self, source: int, leeway: int | None) -> None:
        if leeway == self._leeways.get(source):
            return
        if leeway is None:
            del self._leeways[source]
            return
        self._leeways[source] = leeway
        if len(self._least) > 8 + 2 * len(self._leeways):
            self._least = [(value, other) for other, value in self._leeways.items()]
            heapify(self._least)
        else:
            heappush(self._least, (leeway, source))

    def _least_leeway(self, but_of: int) -> int | None:
        self._drop_past()
        if not self._least or self._least[0][1] != but_of:
            return self._least[0][0] if self._least else None
        own = heappop(self._least)
        self._drop_past(own)
        least = self._least[0][0] if self._least else None
        heappush(self._least, own)
        return least

    def _drop_past(self, but: tuple[int, int] | None = None) -> None:
        least = self._least
        while least and (least[0] == but or self._leeways.get(least[0][1]) != least[0][0]):
            heappop(least)
