"""Flow control: how far actors may run ahead of a trainer, as a ledger of credits.

A credit is one step of the learning team. The ledger, in the main host, holds a *window* of credits per
behaviour name: `(max_policy_lag + 1) × rows_per_update`. An actor asks for credits and gets a *cap*: how
many steps it may have made in all. It steps only while what it emitted and what it holds is below the cap.
Whoever ends a trajectory returns its credits: the trainer when it has learned from it, the ghost stage for
what it turns away, the stage loop for what a stage swallows.

Why it never hangs. An actor that has to wait first emits everything it holds and gives back what it did not
use, so credits are held only by actors that are moving, by trajectories on their way, and by the trainer. If
nobody moves and nothing is on its way, the trainer holds the whole window, which is at least one update: it
learns and returns them.

Why the lag is bounded. A grant names the trainer's version at that time, and the actor may use it only with
a policy at least that new; what it began by an older one it sends off first. Within one window the trainer
makes at most `max_policy_lag` further updates before it learns from it. A tick is never cut, so an actor may
make as many steps beyond its cap as it has agents, less one; they come on top. All this holds of one actor,
however slow the ways are. Of several, one that takes longer for a tick than the others for an update is
overtaken: their credits come back and are granted anew while its own are still out.

All counts are cumulative, so a message that is repeated or late does no harm. A source is one incarnation of
an actor: what a dead one held is written off, and returns that still come for it are ignored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from stages.actor.credit_gate import FREE


class FlowError(ValueError):
    """A window that could not work; the message says why."""


@dataclass(frozen=True, slots=True)
class CreditRequest:
    """An actor's word on its credits."""

    source: int
    number: int
    """Counts the actor's requests; the grant that answers carries it."""
    used: Mapping[str, int]
    """By behaviour name: learning steps emitted and held so far, cumulative."""
    wants: tuple[str, ...]
    """Behaviours that it wants more of, all at once: it can't step while one of them is missing."""
    gives_back: tuple[str, ...] = ()
    """Behaviours whose unused credits it gives back: all of them when it stands still."""


@dataclass(frozen=True, slots=True)
class Grant:
    """The ledger's answer: new caps, and the policy version from which on they may be used.

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
    """The main host's account of all credits. Pure: calls in, grants out; no clock, no I/O.

    Args:
        at_rest: grant only when nothing is on its way any more: all actors stand still, and what they emitted has
            reached its trainer or was returned. What is granted then does not depend on who was how quick.
    """

    RESTORED = -1
    """Source of the rows that a resumed trainer brought along from its checkpoint."""

    def __init__(self, at_rest: bool = False) -> None:
        self._at_rest = at_rest
        self._windows: dict[str, _Window] = {}
        self._sources: set[int] = set()
        self._requests: deque[CreditRequest] = deque()
        self._paused = False

    def open_window(self, behavior: str, rows_per_update: int, max_policy_lag: int, restored_rows: int = 0) -> None:
        """Start to account for a behaviour whose trainer learns at `rows_per_update` rows.

        Args:
            behavior: the behaviour name.
            rows_per_update: rows at which its trainer learns.
            max_policy_lag: how many updates a policy may be old when its steps are learned from.
            restored_rows: rows that the trainer already holds, on a resume.

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

    def open_freely(self, behavior: str) -> None:
        """Bound nothing for a behaviour: it is not learned from, or by a trainer that any lag suits."""
        self._windows[behavior] = _Window(FREE, FREE)

    def add_source(self, source: int) -> None:
        """An actor (a new incarnation, with an id never used before) takes part from now on."""
        self._sources.add(source)

    def remove_source(self, source: int) -> list[Grant]:
        """An actor is gone: write off what it held."""
        self._sources.discard(source)
        for window in self._windows.values():
            window.granted.pop(source, None)
            window.returned.pop(source, None)
        self._requests = deque(request for request in self._requests if request.source != source)
        return self._serve()

    def request(self, request: CreditRequest) -> list[Grant]:
        """An actor asks for credits, or gives back what it did not use."""
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
            # The gate takes no cap of an earlier request for what it has given back: it would be nobody's.
            self._requests = deque(map(partial(_less, request), self._requests))
        return self._serve()

    def returned(self, by: str, behavior: str, source: int, total: int) -> list[Grant]:
        """Credits of a source came back.

        Args:
            by: who returned them (a stage and replica); each returner counts for itself.
            behavior: the behaviour name.
            source: the actor incarnation that emitted the steps.
            total: how many this returner has returned for this source so far, cumulative.
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
        """The trainer has published this version, and holds so many credits; to be told before what it returned."""
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
        """Credits that are not in the ledger: held by actors, on their way, or in the trainer's buffer."""
        return self._windows[behavior].outstanding()

    def _serve(self) -> list[Grant]:
        """Answer waiting requests in their order; each gets all that it wants, in part at least, or stays."""
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
            return None  # its trainer is not up yet
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


def _less(later: CreditRequest, earlier: CreditRequest) -> CreditRequest:
    """An earlier request without what the same actor has given back since."""
    if earlier.source != later.source:
        return earlier
    return replace(earlier, wants=tuple(name for name in earlier.wants if name not in later.gives_back))
