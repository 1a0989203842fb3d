"""Flow control: a ledger of credits, which limits how far actors may run ahead of a trainer.

A credit is one step of the learning team. The ledger, in the main host, holds a *window* of credits per behaviour name:
`(max_policy_lag + 1) × rows_per_update`. An actor requests credits and receives a *cap*, the total number of steps that
it may have made. It steps only while the number of steps that it has emitted or holds is below the cap. The stage that
ends a trajectory returns its credits: the trainer when it has learned from the trajectory, the ghost stage when it
rejects one, and the stage loop when a stage drops one.

Why it never hangs: an actor that must wait first emits everything it holds and gives back unused credits, so credits
are held only by actors that are stepping, by trajectories in transit, and by the trainer. If no actor steps and nothing
is in transit, the trainer holds the entire window, which is enough for at least one update: it learns and returns the
credits. Steps that other actors wait for do arrive: an actor that starts to act with a newer policy first emits the
steps made by older versions, and the trainer reports arrivals within milliseconds.

Why the lag is bounded, with any number of actors: see `CreditWindow`. A tick is never split, so an actor may exceed
its cap by at most its number of agents minus one.

All counts are cumulative, so a repeated or late message is harmless. A source is one incarnation of an actor: the
credits of a dead source are written off, and later returns for it are ignored. The cost of handling a message depends
on the behaviours and sources that it names and on the grants that it triggers, not on the number of actors.

`CreditLedger` is the ledger, `PolicyLags` sizes its windows, and `StarvationWatch` warns if a trainer receives no
steps. `FlowControl` updates all three from messages. An update may free credits, which go to the actors that are
waiting for them.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from statistics import median

from headrace.config import RunConfig
from headrace.config.host_kinds import HOST_KINDS
from headrace.config.pipeline import PipelineSettings
from headrace.pipeline.common.graph import teacher_of
from headrace.pipeline.control import CreditRequest, CreditsReturned, Grant, LearnerReady
from headrace.queues.messages import FREE
from headrace.stages.errors import StageError
from headrace.stages.trainer.report import TrainerReport

TRAINER = "trainer"
"""Name that identifies a trainer, rather than another stage, when it returns credits."""


@dataclass(slots=True)
class _Account:
    """One source's credits in one window; all counts are cumulative."""

    cap: int = 0
    out: int = 0
    """Number of credits that have not yet returned to the ledger, as of `CreditWindow`'s last update."""
    arrived: int = 0
    """Number of steps that have reached the trainer."""
    returned: dict[str, int] = field(default_factory=dict)
    """Number of credits returned, keyed by stage."""
    settled: int = 0
    """Number of leading steps no longer in flight: they reached the trainer or were rejected."""
    marks: list[tuple[int, int]] = field(default_factory=list)
    """(steps, version), both ascending: after its first `steps` steps, the source uses `version` or newer."""

    def mark(self, steps: int, version: int) -> None:
        """Record that all steps after the first `steps` come from `version` or newer."""
        newest, marks = -1, list[tuple[int, int]]()
        for mark in sorted((*self.marks, (steps, version))):
            if mark[1] > newest:
                if marks and marks[-1][0] == mark[0]:
                    marks.pop()
                marks.append(mark)
                newest = mark[1]
        while len(marks) > 1 and marks[1][0] <= self.settled:
            del marks[0]
        self.marks = marks

    def leeway(self, rows_per_update: int) -> int | None:
        """Return the minimum of `version * rows_per_update + after` over all steps in flight; None if there are none.

        `version` is the policy that made the step; `after` is the number of steps that this source makes after it.
        """
        least = None
        for number, (steps, version) in enumerate(self.marks):
            end = self.marks[number + 1][0] if number + 1 < len(self.marks) else self.cap
            if end > max(self.settled, steps):
                leeway = version * rows_per_update + self.cap - end
                least = leeway if least is None else min(least, leeway)
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
        self._accounts: defaultdict[int, _Account] = defaultdict(_Account)
        self._leeways: dict[int, int] = {}
        self._least: list[tuple[int, int]] = []
        """Heap of (leeway, source); entries that differ from `_leeways` are stale."""

    @property
    def at_rest(self) -> bool:
        """True if no steps are in flight and the trainer holds too few steps for an update."""
        if self.rows == FREE:
            return True
        # Not `out == held`: the trainer may hold a killed actor's steps, whose credits were written off.
        in_flight = (account.cap > account.settled for account in self._accounts.values())
        return self.held < self.rows and not any(in_flight)

    def free(self, source: int) -> int:
        """Return the number of credits that may be granted to a source now."""
        free = (self.lag + 1) * self.rows - self.out
        slowest = self.slowest(but=source)
        if slowest is not None:
            free = min(free, (self.lag + 1 - self.version) * self.rows + slowest[0] - self.out)
        return free

    def slowest(self, but: int | None = None) -> tuple[int, int] | None:
        """Return the least leeway and its source, whose steps in flight limit the other sources most.

        None if no step is in flight. The source `but`, if given, does not count.
        """
        least, current = self._least, False
        while least and (least[0][1] == but or self._leeways.get(least[0][1]) != least[0][0]):
            leeway, source = heappop(least)
            current |= self._leeways.get(source) == leeway
        slowest = least[0] if least else None
        if current:
            assert but is not None, "only the entry of this source was current"
            heappush(least, (self._leeways[but], but))
        return slowest

    def use(self, source: int, used: int, gives_back: bool, acting: tuple[int, int] | None) -> None:
        """Record what a source reports about itself; see `CreditRequest`."""
        account = self._accounts[source]
        # Steps beyond the cap also count as used (a tick is never split).
        account.cap = max(0 if gives_back else account.cap, used)
        if acting is not None:
            account.mark(*acting)
        self._changed(source, account)

    def grant(self, source: int, amount: int) -> int:
        """Grant a source `amount` more credits, for use with the trainer's version or a newer one.

        Return its new cap.
        """
        account = self._accounts[source]
        account.mark(account.cap, self.version)
        account.cap += amount
        self._changed(source, account)
        return account.cap

    def give_back(self, source: int, by: str, total: int, arrived: int) -> None:
        """Record one source's totals: the credits that a stage has returned, and the steps that have arrived."""
        account = self._accounts[source]
        if account.returned.get(by) == total and arrived <= account.arrived:
            return
        account.returned[by] = total
        if by == TRAINER:
            account.arrived = max(account.arrived, arrived, total)
        account.settled = account.arrived + sum(account.returned.values()) - account.returned.get(TRAINER, 0)
        self._changed(source, account)

    def remove(self, source: int) -> None:
        """Write off a source's outstanding credits."""
        account = self._accounts.pop(source, None)
        if account is not None:
            self.out -= account.out
            self._leeways.pop(source, None)

    def _changed(self, source: int, account: _Account) -> None:
        """Update the window's totals after a change to one source's account."""
        out = max(0, account.cap - sum(account.returned.values()))
        self.out += out - account.out
        account.out = out
        leeway = account.leeway(self.rows) if self.rows != FREE else None
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


class CreditLedger:
    """Main's ledger of all credits. Pure: calls in, grants out, no clock or I/O.

    Args:
        at_rest: grant only when nothing is in transit: all actors wait, and all their emitted steps have reached a
            trainer or were returned. Grants then do not depend on timing, and all actors receive them simultaneously.
    """

    RESTORED = -1
    """Pseudo-source for the rows that a resumed trainer restores from its checkpoint."""

    def __init__(self, at_rest: bool = False) -> None:
        self._at_rest = at_rest
        self._windows: dict[str, CreditWindow] = {}
        self._sources: set[int] = set()
        self._retired: set[int] = set()
        self._firsts: dict[str, int] = {}
        self._requests: dict[int, CreditRequest] = {}
        """Waiting requests, keyed by source, in order of arrival."""
        self._early: dict[str, dict[tuple[str, int], int]] = {}
        """For behaviours without a window: the credits that stages have returned, keyed by behaviour, then by stage and
        source.
        """
        self._wanted: Counter[tuple[str, ...]] = Counter()
        """Number of waiting requests for each combination of behaviours, 0 for a combination that was once wanted."""
        self._paused: set[str] = set()
        self._paused_behaviors: frozenset[str] = frozenset()

    def open_window(self, behavior: str, rows_per_update: int, max_policy_lag: int, restored_rows: int = 0) -> None:
        """Open the window of a behaviour whose trainer makes an update every `rows_per_update` rows.

        Args:
            behavior: the behaviour name.
            rows_per_update: number of rows that the trainer needs for an update.
            max_policy_lag: maximum age, in updates, of a policy when the trainer learns from its steps.
            restored_rows: number of rows that the trainer already holds after a resume.

        Raises:
            StageError: if the window could never fill the trainer's buffer.
        """
        if rows_per_update < 1 or max_policy_lag < 0:
            raise StageError(
                f"{behavior}: a window needs at least 1 row per update and a lag of at least 0, "
                f"got {rows_per_update} rows and lag {max_policy_lag}"
            )
        window = self._windows[behavior] = CreditWindow(max_policy_lag, rows_per_update, restored_rows)
        window.first = self._firsts.get(behavior, 0)
        for request in self._requests.values():  # an actor that waits for a lost trainer's successor holds no steps
            if used := request.used.get(behavior, 0):
                window.use(request.source, used, behavior in request.gives_back, request.acting.get(behavior))
        for (by, source), total in self._early.pop(behavior, {}).items():
            self._return(window, by, source, total)

    def resize_window(self, behavior: str, max_policy_lag: int) -> list[Grant]:
        """Set the maximum age, in updates, that a policy may have when the trainer learns from its steps."""
        self._windows[behavior].lag = max_policy_lag
        return self._serve()

    def open_unbounded(self, behavior: str) -> None:
        """Open an unbounded window, for a behaviour that has no trainer or whose trainer accepts any lag."""
        self._windows[behavior] = CreditWindow(0, FREE)

    def close_window(self, behavior: str) -> None:
        """Close the window of a behaviour whose trainer is lost, and write off its outstanding credits.

        All actors must continue as new sources. Steps from their earlier sources count only for the other behaviours.
        """
        self._windows.pop(behavior, None)
        self._early.pop(behavior, None)
        self._firsts[behavior] = max(self._sources, default=-1) + 1
        self._retired |= self._sources
        self._sources.clear()
        self._requests.clear()
        self._wanted.clear()

    def add_source(self, source: int) -> None:
        """Add a source: a new incarnation of an actor, with an id higher than all earlier ones."""
        self._sources.add(source)

    def remove_source(self, source: int) -> list[Grant]:
        """Remove the source of an actor that has ended, and write off its credits."""
        self._sources.discard(source)
        self._retired.discard(source)
        for window in self._windows.values():
            window.remove(source)
        self._forget(source)
        return self._serve()

    def request(self, request: CreditRequest) -> list[Grant]:
        """Handle a message in which an actor requests or gives back credits."""
        source, retired = request.source, request.source in self._retired
        if source not in self._sources and not retired:
            return []
        for behavior, used in request.used.items():
            window = self._windows.get(behavior)
            if window is not None and source >= window.first:
                window.use(source, used, behavior in request.gives_back, request.acting.get(behavior))
        if retired:
            pass  # the source that succeeds it makes a new request
        elif request.wants:
            self._forget(source)
            self._requests[source] = request
            self._wanted[request.wants] += 1
        elif request.gives_back and source in self._requests:
            # The gate ignores caps for behaviours that it has given back since the request, so they would be lost.
            earlier = self._requests[source]
            kept = tuple(name for name in earlier.wants if name not in request.gives_back)
            self._requests[source] = replace(earlier, wants=kept)  # at its place in the order
            self._wanted[earlier.wants] -= 1
            self._wanted[kept] += 1
        return self._serve()

    def returned(self, by: str, behavior: str, source: int, total: int) -> list[Grant]:
        """Record credits that a stage has returned for a source.

        Args:
            by: the stage and replica that returned them; each replica has its own count.
            behavior: the behaviour name.
            source: the actor incarnation that emitted the steps.
            total: cumulative number of credits that `by` has returned for this source.
        """
        window = self._windows.get(behavior)
        if window is None:  # also if steps are dropped while a lost trainer has no successor yet
            self._early.setdefault(behavior, {})[by, source] = total
            return []
        self._return(window, by, source, total)
        return self._serve()

    def learned(
        self,
        behavior: str,
        version: int,
        held: int = 0,
        returned: Mapping[int, int] | None = None,
        arrived: Mapping[int, int] | None = None,
    ) -> list[Grant]:
        """Record a trainer's report.

        Args:
            behavior: the behaviour name.
            version: version of the trainer's most recently published policy.
            held: number of credits that the trainer holds.
            returned: cumulative number of credits that the trainer has returned, keyed by source.
            arrived: cumulative number of credits that have reached the trainer, keyed by source.
        """
        window = self._windows.get(behavior)
        if window is None:
            return []
        window.version, window.held = version, held
        returned, arrived = returned or {}, arrived or {}
        for source in {**returned, **arrived}:
            self._return(window, TRAINER, source, returned.get(source, 0), arrived.get(source, 0))
        return self._serve()

    def pause(self, why: str = "") -> None:
        """Grant no credits until `resume` is called with the same reason."""
        self._paused.add(why)

    def resume(self, why: str = "") -> list[Grant]:
        """Resume granting credits, unless granting is paused for another reason."""
        self._paused.discard(why)
        return self._serve()

    def pause_behaviors(self, behaviors: Collection[str]) -> None:
        """Grant no credits for these behaviours from now on, and none for the others until these are at rest."""
        self._paused_behaviors = frozenset(behaviors)

    def outstanding(self, behavior: str) -> int:
        """Return the number of credits outside the ledger: held by actors, in transit, or in the trainer's buffer."""
        return self._windows[behavior].out

    def size(self, behavior: str) -> int:
        """Return the maximum number of outstanding credits; 0 if there is no bound."""
        window = self._windows.get(behavior)
        return 0 if window is None or window.rows == FREE else (window.lag + 1) * window.rows

    def _return(self, window: CreditWindow, by: str, source: int, total: int, arrived: int = 0) -> None:
        if source == self.RESTORED:
            left = max(0, window.restored - total)
            window.out += left - window.restored_left
            window.restored_left = left
        elif source >= window.first and (source in self._sources or source in self._retired):
            window.give_back(source, by, total, arrived)

    def _forget(self, source: int) -> None:
        request = self._requests.pop(source, None)
        if request is not None:
            self._wanted[request.wants] -= 1

    def _serve(self) -> list[Grant]:
        """Answer waiting requests in order.

        A request gets credits for all behaviours that it wants, or keeps waiting.
        """
        grants: list[Grant] = []
        if self._paused:
            return grants
        for name in self._paused_behaviors:
            if name in self._windows and not self._windows[name].at_rest:
                return grants
        if self._at_rest and not self._all_can_go_on():
            return grants
        closed: dict[tuple[str, ...], None] = {}
        for request in self._requests.values():
            if request.wants in closed:
                continue
            grant = self._grant(request)
            if grant is not None:
                grants.append(grant)
                continue
            # Requests with equal wants depend on the same windows. Closing them together keeps their order: none can be
            # overtaken forever by later requests that need less.
            closed[request.wants] = None
            if closed.keys() >= (+self._wanted).keys():
                break  # all remaining requests want what is closed; with many actors, most calls end here
        for grant in grants:
            self._forget(grant.source)
        # A window that one source's steps close to all others may be open to that source.
        for name in dict.fromkeys(name for wants in closed for name in wants if name in self._windows):
            slowest = self._windows[name].slowest()
            waiting = self._requests.get(slowest[1]) if slowest is not None else None
            grant = self._grant(waiting) if waiting is not None else None
            if grant is not None:
                grants.append(grant)
                self._forget(grant.source)
        return grants

    def _all_can_go_on(self) -> bool:
        """Return True if all actors wait and all can receive credits, so no trainer has an update to make first."""
        if len(self._requests) < len(self._sources):
            return False
        wanted = [(request, self._windows.get(name)) for request in self._requests.values() for name in request.wants]
        return all(
            window is not None
            and (window.rows == FREE or (window.out == window.held and window.free(request.source) > 0))
            for request, window in wanted
        )

    def _grant(self, request: CreditRequest) -> Grant | None:
        free: dict[str, int] = {}
        for name in request.wants:
            window = self._windows.get(name)
            if window is None or name in self._paused_behaviors:
                return None  # the behaviour's trainer is not ready yet, or must wait
            if window.rows != FREE:
                free[name] = window.free(request.source)
                if free[name] < 1:
                    return None
        caps, versions = dict.fromkeys(request.wants, FREE), dict.fromkeys(request.wants, 0)
        for name, amount in free.items():
            window = self._windows[name]
            # An equal share, so that no source takes the whole window while the others wait; rounded up, so that the
            # shares cover the window.
            chunk = -(-window.rows // max(1, len(self._sources)))
            versions[name] = window.version
            caps[name] = window.grant(request.source, min(chunk, amount))
        return Grant(request.source, request.number, caps, versions)


class FlowControl:
    """Keeps the ledger of all credits and sends grants.

    Args:
        config: the run's configuration.
        replayed: True if the run learns from a recording, whose steps need no credits.
        grant: sends grants to actors.

    Attributes:
        ledger: the ledger of all credits.
    """

    def __init__(self, config: RunConfig, replayed: bool, grant: Callable[[Sequence[Grant]], None]) -> None:
        self.ledger = CreditLedger(at_rest=config.pipeline.deterministic)
        self._config = config
        self._replayed = replayed
        self._grant = grant
        self._lags = PolicyLags(config.pipeline)
        self._starvation = StarvationWatch()
        self._returned: dict[tuple[str, str, int], int] = {}

    def sources_removed(self, sources: Iterable[int]) -> None:
        """Write off the credits held by these sources, whose actor has ended for good."""
        for source in sources:
            self._grant(self.ledger.remove_source(source))

    def learner_ready(self, message: LearnerReady) -> None:
        """Open a trainer's window, which is unbounded if the steps don't come from the trainer's own policy."""
        behavior, rows = message.behavior, message.rows_per_update
        self._starvation.add_trainer(behavior, rows)
        if self._replayed or teacher_of(self._config, behavior) is not None:
            self.ledger.open_unbounded(behavior)
        else:
            lag = self._lags.first(behavior, rows, message.any_age, message.corrects_age)
            self.ledger.open_window(behavior, rows, lag, message.held_rows)
        self.resume()

    def returned(self, message: CreditsReturned) -> None:
        """Take back the credits for steps that a stage withholds from the trainer."""
        key = (message.by, message.behavior, message.source)
        self._starvation.kept_back(message.by, message.behavior, message.total - self._returned.get(key, 0))
        self._returned[key] = message.total
        self._grant(self.ledger.returned(*key, message.total))

    def trainer_reported(self, report: TrainerReport) -> None:
        """Handle a trainer's report, which may return credits."""
        self._starvation.fed(report.behavior, report.step, report.done)
        grants = self.ledger.learned(report.behavior, report.version, report.held, report.returned, report.arrived)
        if report.behavior in self._lags.measuring:
            lag = self._lags.measured(report.behavior, report.collecting_s, report.learning_s)
            if lag is not None:
                grants += self.ledger.resize_window(report.behavior, lag)
        self._grant(grants)

    def resume(self, why: str = "") -> None:
        """Resume granting credits, unless granting is paused for another reason."""
        self._grant(self.ledger.resume(why))


# Warns about a trainer that learns nothing because the stages before it hold everything back. A run like this does not
# hang: it just never ends, and only a warning tells the user why.

log = logging.getLogger(__name__)

PATIENCE_UPDATES = 8
"""How many updates' worth of steps stages may hold back, without passing any on, before the warning is logged."""


@dataclass
class _TrainerProgress:
    rows_per_update: int
    step: int = -1
    kept: Counter[str] = field(default_factory=Counter)
    warned: bool = False


class StarvationWatch:
    """Compares the steps that stages hold back with those that trainers receive. Warns once per behaviour."""

    def __init__(self) -> None:
        self._trainers: dict[str, _TrainerProgress] = {}

    def add_trainer(self, behavior: str, rows_per_update: int) -> None:
        """Start watching a trainer."""
        self._trainers[behavior] = _TrainerProgress(rows_per_update)

    def fed(self, behavior: str, step: int, done: bool) -> None:
        """Record the step that a trainer has reported. No warning follows for a trainer that is done."""
        trainer = self._trainers[behavior]
        if step != trainer.step or done:
            trainer.step = step
            trainer.kept.clear()

    def kept_back(self, by: str, behavior: str, steps: int) -> None:
        """Record how many steps a stage has held back; negative if it has passed on steps that it held back earlier."""
        trainer = self._trainers.get(behavior)
        if trainer is None:
            return
        trainer.kept[by] += steps
        kept = trainer.kept.total()
        if kept >= PATIENCE_UPDATES * trainer.rows_per_update and not trainer.warned:
            trainer.warned = True
            log.warning(
                "The trainer of %s has received nothing since step %d, while the stages before the trainer are "
                "holding back %d steps (%s). Until these stages pass steps on, the trainer learns nothing and the run "
                "does not end; Ctrl-C ends the run.",
                behavior,
                max(0, trainer.step),
                kept,
                ", ".join(f"{name}: {count}" for name, count in trainer.kept.most_common()),
            )


# How many updates actors may run ahead of each trainer if `max_policy_lag` is `auto`. Pure: no clock, no I/O.
# Collecting while the trainer learns saves time, at the price of steps from an older policy. If collecting an update's
# steps takes much longer than learning from them, running ahead saves little, so actors wait for each policy. Both
# times are measured in the first updates, during which actors wait. We compare medians of the last ones, so that a
# single update delayed by an actor's restart or a checkpoint has no effect. In a run's first second, whatever else
# starts may slow the actors down, so only a later comparison may decide that they wait. A resumed run measures again
# because it may run on a different machine.

MEASURED_UPDATES = 5
"""Number of compared updates. The first update is skipped because its steps are collected while the run starts."""
SETTLED_S = 1.0
"""Seconds of measured updates after which nothing else starts any more."""
MOST_COLLECTING = 3.0
"""Largest collecting-to-learning time ratio at which actors run ahead, where doing so saves a quarter of the time."""
AHEAD = 1
"""Number of updates that actors run ahead if running ahead pays off."""


@dataclass(frozen=True)
class _UpdateTimes:
    rows: int
    collecting_s: list[float] = field(default_factory=list)
    learning_s: list[float] = field(default_factory=list)


# Collecting ahead pays only if updates take long, so `auto` measures the first few (docs/decisions/018).
class PolicyLags:
    """Chooses each behaviour's policy lag: first when its trainer starts, and perhaps again after measuring updates.

    Attributes:
        measuring: the updates measured so far, keyed by behaviours whose lag is not decided yet.
    """

    def __init__(self, settings: PipelineSettings) -> None:
        self._max_policy_lag = settings.max_policy_lag
        hosts = settings.hosts
        self._takes_turns = HOST_KINDS[hosts.actors.kind].in_main and HOST_KINDS[hosts.learners.kind].in_main
        self.measuring: dict[str, _UpdateTimes] = {}

    def first(self, behavior: str, rows_per_update: int, any_age: bool, corrects_age: bool) -> int:
        """Return a behaviour's initial lag, in updates.

        Args:
            behavior: the behaviour name.
            rows_per_update: number of rows per update of its trainer.
            any_age: True if its trainer learns from steps of any age.
            corrects_age: True if its trainer corrects for steps from slightly older policies.
        """
        if self._max_policy_lag != "auto":
            return self._max_policy_lag
        if self._takes_turns:
            return self._say(behavior, 0, "actors and learner take turns in the main process")
        if any_age:
            return self._say(behavior, AHEAD, "its trainer learns from steps of any age")
        if not corrects_age:
            return self._say(behavior, 0, "its trainer does not correct for steps from older policies")
        self.measuring[behavior] = _UpdateTimes(rows_per_update)
        return 0

    def measured(self, behavior: str, collecting_s: Sequence[float], learning_s: Sequence[float]) -> int | None:
        """Add the seconds spent on collecting and learning; return the lag once it is decided, and None until then."""
        times = self.measuring.get(behavior)
        if times is None:
            return None
        times.collecting_s.extend(collecting_s)
        times.learning_s.extend(learning_s)
        if len(times.learning_s) < MEASURED_UPDATES:
            return None
        collecting, learning = (median(took[-MEASURED_UPDATES:]) for took in (times.collecting_s, times.learning_s))
        lag = AHEAD if collecting <= MOST_COLLECTING * learning else 0
        if not lag and sum(times.collecting_s) + sum(times.learning_s) < SETTLED_S:
            return None
        del self.measuring[behavior]
        why = f"collecting {times.rows} steps takes {collecting:.2g} s, learning from them {learning:.2g} s, so actors "
        return self._say(behavior, lag, why + ("keep collecting during updates" if lag else "wait for each policy"))

    def _say(self, behavior: str, lag: int, why: str) -> int:
        log.info("%s: max_policy_lag is %d (auto): %s.", behavior, lag, why, extra={"behavior": behavior})
        return lag
