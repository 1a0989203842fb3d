"""One behaviour's credit window: how many credits are outstanding, and how many more the lag bound allows.

The ledger of all windows is in `credits`. Pure: numbers in, numbers out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from headrace.queues.messages import FREE

TRAINER = "trainer"
"""Name that identifies a trainer, rather than another stage, when it returns credits."""


@dataclass(slots=True)
class _Account:
    """One source's credits in one window; all counts are cumulative."""

    cap: int = 0
    arrived: int = 0
    """Number of steps that have reached the trainer."""
    returned: dict[str, int] = field(default_factory=dict)
    """Number of credits returned, keyed by stage."""
    marks: list[tuple[int, int]] = field(default_factory=list)
    """(steps, version), both ascending: after its first `steps` steps, the source uses `version` or newer."""

    @property
    def out(self) -> int:
        """Number of credits that have not yet returned to the ledger."""
        return max(0, self.cap - sum(self.returned.values()))

    def settled(self) -> int:
        """Return the number of leading steps no longer in flight: they reached the trainer or were rejected."""
        return self.arrived + sum(self.returned.values()) - self.returned.get(TRAINER, 0)

    def mark(self, steps: int, version: int) -> None:
        """Record that all steps after the first `steps` come from `version` or newer."""
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
        """Return the minimum of `version * rows_per_update + after` over all steps in flight; None if there are none.

        `version` is the policy that made the step; `after` is the number of steps that this source makes after it.
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

    An update takes `rows` steps in order of arrival, or more if the trainer takes all the steps that it holds. `out` is
    the number of outstanding credits. Some of their steps have arrived at the trainer; the others are in flight or not
    made yet. These may arrive in any order, except that steps from one source arrive in the order in which it makes
    them. In the worst case, a step in flight is therefore used after all outstanding steps except the `after` steps
    that its source makes later. If the trainer is at version V now, it is then at V + ceil((out - after) / rows) - 1. A
    step made by version v is used in time if the trainer's version is at most v + lag, which means

        out <= (lag + 1 - V) * rows + leeway,   where leeway = v * rows + after.

    A grant raises `out`, and waits unless this condition then holds for all steps in flight. It need not hold for steps
    that have arrived, because the granted steps arrive later. Nor does it matter for steps of the same source, which
    makes the granted steps later. An update raises V by 1 and lowers `out` by at least `rows`. An arrival removes a
    step from the condition, and a newer version in place of an older one raises `leeway`. The condition therefore still
    holds when the next grant is made. No rule that keeps the bound grants more, because every order of arrival that
    this rule allows for can occur.

    With one source, only the window's size, (lag + 1) * rows, limits grants; the same is true at lag 0. With several
    sources, the condition costs time only if actors make lag * rows steps after an update before three things have
    happened: all sources have the new policy, their older steps have arrived, and new grants are back. This round trip
    must be shorter than the time to collect the steps for lag updates.

    The bound does not cover steps that a killed actor had in flight when its credits were written off, nor the order of
    steps that a stage rejects.
    """

    def __init__(self, lag: int, rows: int, restored: int = 0) -> None:
        self.lag, self.rows = lag, rows
        self.version = 0
        self.first = 0
        """Lowest id of a source that may hold credits from this window."""
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
        """True if no steps are in flight and the trainer holds too few steps for an update."""
        if self.rows == FREE:
            return True
        # Not `out == held`: the trainer may hold a killed actor's steps, whose credits were written off.
        in_flight = (account.cap > account.settled() for account in self._accounts.values())
        return self.held < self.rows and not any(in_flight)

    def free(self, source: int) -> int:
        """Return the number of credits that may be granted to a source now."""
        free = self.size - self.out
        least = self._least_leeway(source)
        if least is not None:
            free = min(free, (self.lag + 1 - self.version) * self.rows + least - self.out)
        return free

    def slowest(self) -> int:
        """Return the source whose steps in flight limit the other sources most; -1 if no step is in flight."""
        return self._least[0][1] if self._least_leeway(-1) is not None else -1

    def use(self, source: int, used: int, gives_back: bool, acting: tuple[int, int] | None) -> None:
        """Record what a source reports about itself; see `CreditRequest`."""
        account = self._account(source)
        out = account.out
        # Steps beyond the cap also count as used (a tick is never split).
        account.cap = max(0 if gives_back else account.cap, used)
        if acting is not None:
            account.mark(*acting)
        self._changed(source, account, out)

    def grant(self, source: int, amount: int) -> int:
        """Grant a source `amount` more credits, for use with the trainer's version or a newer one.

        Return its new cap.
        """
        account = self._account(source)
        out = account.out
        account.mark(account.cap, self.version)
        account.cap += amount
        self._changed(source, account, out)
        return account.cap

    def give_back(self, source: int, by: str, total: int, arrived: int) -> None:
        """Record one source's totals: the credits that a stage has returned, and the steps that have arrived."""
        account = self._account(source)
        if account.returned.get(by) == total and arrived <= account.arrived:
            return
        out = account.out
        account.returned[by] = total
        if by == TRAINER:
            account.arrived = max(account.arrived, arrived, total)
        self._changed(source, account, out)

    def remove(self, source: int) -> None:
        """Write off a source's outstanding credits."""
        account = self._accounts.pop(source, None)
        if account is not None:
            self.out -= account.out
            self._set_leeway(source, None)

    def _account(self, source: int) -> _Account:
        return self._accounts.setdefault(source, _Account())

    def _changed(self, source: int, account: _Account, out_before: int) -> None:
        """Update the window's totals after a change to one source's account."""
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
