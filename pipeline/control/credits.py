"""Flow control: how far actors may run ahead of a trainer, as a ledger of credits.

A credit is one step of the learning team. The ledger, in the main host, holds a *window* of credits per
behaviour name: `(max_policy_lag + 1) × rows_per_update`. An actor asks for credits and gets a *cap*: how
many steps it may have made in all. It steps only while what it emitted and what it holds is below the cap.
The stage that ends a trajectory returns its credits: the trainer when it has learned from it, the ghost stage for
those it rejects, the stage loop for those that a stage drops.

Why it never hangs. An actor that has to wait first emits everything it holds and gives back what it did not
use, so credits are held only by actors that are stepping, by trajectories in transit, and by the trainer. If
no actor steps and nothing is in transit, the trainer holds the whole window, which is at least one update: it
learns and returns them.

Why the lag is bounded. A grant names the trainer's version at that time, and the actor may use it only with
a policy at least that new; trajectories begun with an older one are emitted first. Within one window the trainer
makes at most `max_policy_lag` further updates before it learns from it. A tick is never cut, so an actor may
make as many steps beyond its cap as it has agents, less one; they come on top. All this holds for one actor,
whatever the latency. Among several, one whose tick takes longer than the others' update is overtaken: their
credits come back and are granted again while its own are still out.

All counts are cumulative, so a message that is repeated or late does no harm. A source is one incarnation of
an actor: credits of a dead one are written off, and later returns for it are ignored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from queues.messages import FREE


class FlowError(ValueError):
    """The window is too small to work; the message says why."""


@dataclass(frozen=True, slots=True)
class CreditRequest:
    """An actor's request for credits, with its account of those it has used."""

    source: int
    number: int
    """Number of the actor's request, repeated in the grant that answers it."""
    used: Mapping[str, int]
    """By behaviour name: learning steps emitted and held so far, cumulative."""
    wants: tuple[str, ...]
    """Behaviours that it needs credits for, all of them: it can't step without any one of them."""
    gives_back: tuple[str, ...] = ()
    """Behaviours whose unused credits it gives back: all of them when it is waiting."""


@dataclass(frozen=True, slots=True)
class Grant:
    """The ledger's answer: new caps, and the lowest policy version that may use them.

    An actor ignores the cap of a behaviour that it has given back in a later request.
    """

    source: int
    number: int
    caps: Mapping[str, int]
    versions: Mapping[str, int]


@dataclass
class _Window:
    """The credits of one behaviour name."""

    size: int
    chunk_of: int
    version: int = 0
    held: int = 0
    restored: int = 0
    restored_returned: int = 0
    granted: dict[int, int] = field(default_factory=dict)
    returned: dict[int, dict[str, int]] = field(default_factory=dict)

    def outstanding(self) -> int:
        held = sum(max(0, cap - self.returned_by(source)) for source, cap in self.granted.items())
        return held + max(0, self.restored - self.restored_returned)

    def returned_by(self, source: int) -> int:
        return sum(self.returned.get(source, {}).values())


class CreditLedger:
    """Main's account of all credits. Pure: calls in, grants out; no clock, no I/O.

    Args:
        at_rest: grant only when nothing is in transit: all actors are waiting, and what they emitted has reached its
            trainer or was returned. Grants then do not depend on timing.
    """

    RESTORED = -1
    """Source of the rows that a resumed trainer holds from its checkpoint."""

    def __init__(self, at_rest: bool = False) -> None:
        self._at_rest = at_rest
        self._windows: dict[str, _Window] = {}
        self._sources: set[int] = set()
        self._requests: deque[CreditRequest] = deque()
        self._paused = False

    def open_window(self, behavior: str, rows_per_update: int, max_policy_lag: int, restored_rows: int = 0) -> None:
        """Open the account of a behaviour whose trainer learns at `rows_per_update` rows.

        Args:
            behavior: the behaviour name.
            rows_per_update: rows at which its trainer learns.
            max_policy_lag: number of updates that a policy may be old when its steps are learned from.
            restored_rows: rows that the trainer already holds after a resume.

        Raises:
            FlowError: if the window could never fill the trainer.
        """
        if rows_per_update < 1 or max_policy_lag < 0:
            raise FlowError(
                f"{behavior}: a window needs at least 1 row per update and a lag of at least 0, "
                f"got {rows_per_update} rows and lag {max_policy_lag}"
            )
        window = _Window((max_policy_lag + 1) * rows_per_update, rows_per_update)
        window.restored = window.held = restored_rows
        self._windows[behavior] = window

    def resize_window(self, behavior: str, max_policy_lag: int) -> list[Grant]:
        """Let a policy be this many updates old from now on when its steps are learned from."""
        window = self._windows[behavior]
        window.size = (max_policy_lag + 1) * window.chunk_of
        return self._serve()

    def open_unbounded(self, behavior: str) -> None:
        """Open an account without a bound, for a behaviour without a trainer or whose trainer accepts any lag."""
        self._windows[behavior] = _Window(FREE, FREE)

    def add_source(self, source: int) -> None:
        """Add an actor: a new incarnation, with an id never used before."""
        self._sources.add(source)

    def remove_source(self, source: int) -> list[Grant]:
        """Remove an actor that has ended, and write off its credits."""
        self._sources.discard(source)
        for window in self._windows.values():
            window.granted.pop(source, None)
            window.returned.pop(source, None)
        self._requests = deque(request for request in self._requests if request.source != source)
        return self._serve()

    def request(self, request: CreditRequest) -> list[Grant]:
        """Handle an actor's request for credits, or its return of unused ones."""
        if request.source not in self._sources:
            return []
        for behavior, used in request.used.items():
            window = self._windows.get(behavior)
            if window is not None:
                # Steps beyond the cap (a tick is never cut) are used up all the same.
                charged = 0 if behavior in request.gives_back else window.granted.get(request.source, 0)
                window.granted[request.source] = max(charged, used)
        if request.wants:
            self._requests = deque(earlier for earlier in self._requests if earlier.source != request.source)
            self._requests.append(request)
        else:
            # The gate ignores caps of earlier requests for what it has given back: such credits would be lost.
            self._requests = deque(map(partial(_without_returned, request), self._requests))
        return self._serve()

    def returned(self, by: str, behavior: str, source: int, total: int) -> list[Grant]:
        """Record credits of a source that were returned.

        Args:
            by: the stage and replica that returned them; each has a count of its own.
            behavior: the behaviour name.
            source: the actor incarnation that emitted the steps.
            total: number of credits that `by` has returned for this source so far, cumulative.
        """
        window = self._windows.get(behavior)
        if window is None:
            return []
        if source == self.RESTORED:
            window.restored_returned = total
        elif source in self._sources:
            window.returned.setdefault(source, {})[by] = total
        return self._serve()

    def learned(self, behavior: str, version: int, held: int = 0) -> list[Grant]:
        """Record the trainer's published version and the credits it holds; to be called before `returned`."""
        if behavior in self._windows:
            self._windows[behavior].version = version
            self._windows[behavior].held = held
        return self._serve()

    def pause(self) -> None:
        """Grant nothing until `resume`."""
        self._paused = True

    def resume(self) -> list[Grant]:
        """Grant again."""
        self._paused = False
        return self._serve()

    def outstanding(self, behavior: str) -> int:
        """Return the credits that are not in the ledger: held by actors, in transit, or in the trainer's buffer."""
        return self._windows[behavior].outstanding()

    def _serve(self) -> list[Grant]:
        """Answer waiting requests in order; each gets some credits for all that it wants, or keeps waiting."""
        if self._paused:
            return []
        grants, left = [], deque[CreditRequest]()
        for request in self._requests:
            grant = self._grant(request)
            if grant is None:
                left.append(request)
            else:
                grants.append(grant)
        self._requests = left
        return grants

    def _grant(self, request: CreditRequest) -> Grant | None:
        wanted = {name: self._windows[name] for name in request.wants if name in self._windows}
        if len(wanted) < len(request.wants):
            return None  # its trainer is not ready yet
        if self._at_rest and any(w.outstanding() != w.held for w in wanted.values() if w.size != FREE):
            return None
        free = {name: window.size - window.outstanding() for name, window in wanted.items()}
        if any(amount < 1 for amount in free.values()):
            return None
        caps, versions = {}, {}
        for name, window in wanted.items():
            if window.size == FREE:
                caps[name], versions[name] = FREE, 0
                continue
            versions[name] = window.version
            chunk = -(-window.chunk_of // max(1, len(self._sources)))
            held = window.granted.get(request.source, 0)
            window.granted[request.source] = caps[name] = held + min(chunk, free[name])
        return Grant(request.source, request.number, caps, versions)


def _without_returned(later: CreditRequest, earlier: CreditRequest) -> CreditRequest:
    """Return an earlier request without the behaviours that the same actor has given back since."""
    if earlier.source != later.source:
        return earlier
    return replace(earlier, wants=tuple(name for name in earlier.wants if name not in later.gives_back))
