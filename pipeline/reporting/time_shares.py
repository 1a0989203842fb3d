"""How a run spends its time: the fraction of the time that each stage works or waits, measured by its host's clock.

Hosts report seconds by kind of work (`headrace.stages.activity`) once a second. Shares (fractions of time) cover the
busiest learner's last complete updates, and at least ten seconds, because part of an update might include only
collecting or only learning. Shares are statistics of the category `Pipeline`; `bottleneck` explains them in words.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.stages.activity import (
    ACTING,
    ASKING,
    BLOCKED,
    COMPUTING,
    LEARNING,
    PUBLISHING,
    RECORDING,
    RESTING,
    STEPPING,
    WAITING,
    WORKING,
)

WINDOW_S = 10.0
"""Minimum number of seconds that shares cover, once the run has been active for that long."""
MOST_MARKS = 1200
"""Maximum number of reports stored per host: twenty minutes' worth, because an update may take ten minutes."""
LATE_S = 2.0
"""Seconds without a report after which a host's event loop counts as blocked; hosts report once a second."""
_EXACT_S = 1e-6
"""Tolerance for comparing sums of seconds."""
ONE_OF_THEM = 0.8
"""Minimum fraction of an event loop's work that one of several learners must do to count as the only cause."""
MAIN, ACTORS, LEARNERS, INFERENCE = "main", "actors", "learners", "inference"
TRAINER, ENVIRONMENT, POLICIES, RECORDER, PUBLISHER = (
    "trainer",
    "environment",
    "policies",
    "recorder",
    "policy_publisher",
)
BUSY, WAIT, DURATION = "Busy", "Wait", "Duration"
"""Prefixes of the statistics' names. The rest, after a slash, is the host and stage, what is awaited, or what is timed.
"""

Work = Mapping[str, tuple[float, int]]
"""The seconds spent on each kind of work, and how often the work was done, keyed by kind."""


@dataclass
class _Host:
    """One host's reports as cumulative sums; index 0 is the host's start."""

    role: str
    behavior: str
    loop: str
    heard_s: float = 0.0
    spans: list[float] = field(default_factory=lambda: [0.0])
    updates: list[int] = field(default_factory=lambda: [0])
    totals: list[dict[str, tuple[float, int]]] = field(default_factory=lambda: [{}])

    def add(self, work: Work, span_s: float) -> None:
        total = dict(self.totals[-1])
        for kind, (seconds, count) in work.items():
            before = total.get(kind, (0.0, 0))
            total[kind] = before[0] + seconds, before[1] + count
        self.totals.append(total)
        self.spans.append(self.spans[-1] + span_s)
        self.updates.append(total.get(LEARNING, (0.0, 0))[1])
        if len(self.spans) > MOST_MARKS:
            for told in (self.spans, self.updates, self.totals):
                del told[: MOST_MARKS // 2]

    def cycles(self) -> tuple[float, float]:
        """Return how many seconds the last complete updates took, and the seconds since then.

        The updates cover at least ten seconds. Both values are 0 before the first update. Complete updates are measured
        from the report after one update to the report after a later one.
        """
        if not self.updates[-1]:
            return 0.0, 0.0
        end = bisect_left(self.updates, self.updates[-1])
        at = max(0, bisect_right(self.spans, self.spans[end] - WINDOW_S) - 1)
        begin = bisect_left(self.updates, self.updates[at])
        return self.spans[end] - self.spans[begin], self.spans[-1] - self.spans[end]

    def over(self, window_s: float, since_s: float = 0.0, held_s: float = 0.0) -> _Window:
        """Return the host's work in a past time window.

        Args:
            window_s: length of the window in seconds.
            since_s: seconds since the window's end.
            held_s: seconds that the host has not reported yet.
        """
        end = bisect_right(self.spans, self.spans[-1] - max(0.0, since_s - held_s) + _EXACT_S) - 1
        late_s = max(0.0, held_s - since_s)
        at = max(0, bisect_right(self.spans, self.spans[end] + late_s - window_s + _EXACT_S) - 1)
        before, now = self.totals[at], self.totals[end]
        seconds = {kind: total[0] - before.get(kind, (0.0, 0))[0] for kind, total in now.items()}
        counts = {kind: total[1] - before.get(kind, (0.0, 0))[1] for kind, total in now.items()}
        kind = f"{WORKING}/{TRAINER}" if self.role == "learner" else STEPPING
        seconds[kind] = seconds.get(kind, 0.0) + late_s
        return _Window(self.spans[end] - self.spans[at] + late_s, seconds, counts)


@dataclass(frozen=True)
class _Window:
    """A host's work within a time window."""

    span_s: float
    seconds: Mapping[str, float]
    counts: Mapping[str, int]

    def share(self, kind: str) -> float:
        return self.seconds.get(kind, 0.0) / self.span_s if self.span_s > 0 else 0.0

    def busy(self, stage: str) -> float:
        """Return the fraction of the time in which a stage worked rather than waiting for space."""
        return max(0.0, self.share(f"{WORKING}/{stage}") - self.share(f"{BLOCKED}/{stage}"))

    def stages(self) -> list[str]:
        return [kind.partition("/")[2] for kind in self.seconds if kind.startswith(f"{WORKING}/")]


class TimeShares:
    """Collects the hosts' reports and computes their shares of time.

    Args:
        clock: main's clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._hosts: dict[str, _Host] = {}

    def add(self, name: str, work: Work, span_s: float, role: str = MAIN, behavior: str = "", loop: str = MAIN) -> None:
        """Add a host's report.

        Args:
            name: the host's name.
            work: work by kind, as `Timings.drain` returns it.
            span_s: seconds that the report covers, measured by the host's clock.
            role: the host's role.
            behavior: the learner's behaviour; empty for other roles.
            loop: name of the host's event loop; `main` for main's event loop.
        """
        host = self._hosts.setdefault(name, _Host(role, behavior, loop))
        host.add(work, span_s)
        host.heard_s = self._clock()

    def ended(self, name: str) -> None:
        """Remove a host that has ended."""
        self._hosts.pop(name, None)

    def numbers(self) -> dict[str, float]:
        """Return the statistics, keyed by name; empty before the first update, unless actors wait most of the time.

        Actors may wait before the first update, either for space or because the update is slow.
        """
        learners = [host for host in self._hosts.values() if host.role == "learner"]
        learned, window_s, since_s = self._window(learners)
        found = self._of_actors(window_s, since_s)
        long = any(self._held_s(host) >= WINDOW_S / 2 for host in learners if host.spans[-1])
        waiting = found.get(f"{WAIT}/room", 0.0) + (found.get(f"{WAIT}/policies", 0.0) if long else 0.0)
        if not learned and waiting < 0.5:
            return {}
        for name, host in self._hosts.items():
            window = host.over(window_s, since_s, self._held_s(host))
            match host.role:
                case "learner":
                    found |= _of_learner(name, window)
                    found |= _durations(host.behavior, host.over(*host.cycles()), found.get(f"{WAIT}/policies", 0.0))
                case "main":
                    found |= _of_main(window, [learner.behavior for learner in learners])
                    if all(other.loop != MAIN for other in self._hosts.values() if other is not host):
                        found[f"{BUSY}/{MAIN}"] = min(1.0, window.share(COMPUTING))
                case "inference":
                    found[f"{BUSY}/{INFERENCE}/{INFERENCE}"] = window.share(ACTING)
        return found | self._of_loops(found)

    def _of_loops(self, found: Mapping[str, float]) -> dict[str, float]:
        """Return the share of the busiest learner event loop, if several learners together keep that loop busy."""
        loops: dict[str, list[float]] = {}
        for name, host in self._hosts.items():
            if host.role == "learner":
                loops.setdefault(host.loop, []).append(found[f"{BUSY}/{name}/{TRAINER}"])
        busiest = max(loops.values(), key=sum, default=[])
        shared = len(busiest) > 1 and max(busiest) < ONE_OF_THEM * sum(busiest)
        return {f"{BUSY}/{LEARNERS}/{TRAINER}": min(1.0, sum(busiest))} if shared else {}

    def _window(self, learners: Sequence[_Host]) -> tuple[bool, float, float]:
        """Return whether a learner has updated, the busiest learner's time for its last updates, and the time since."""
        cycles = [(host, *host.cycles()) for host in learners if host.updates[-1]]
        if not cycles:
            return False, WINDOW_S, 0.0
        busiest, cycle_s, since_s = max(cycles, key=lambda each: each[0].over(*each[1:]).busy(TRAINER))
        since_s += self._held_s(busiest)
        return True, cycle_s, 0.0 if since_s > cycle_s else since_s  # a longer gap has a different cause

    def _of_actors(self, window_s: float, since_s: float) -> dict[str, float]:
        """Return the actors' statistics, averaged over all actors."""
        actors = [host for host in self._hosts.values() if host.role == "actor"]
        found: dict[str, float] = {}
        for host in actors:
            for name, value in _of_actor(host.over(window_s, since_s, self._held_s(host)), host.loop == MAIN).items():
                found[name] = found.get(name, 0.0) + value / len(actors)
        return found

    def _held_s(self, host: _Host) -> float:
        """Return how many seconds a host's event loop has been blocked, judging by the missing reports."""
        late = self._clock() - host.heard_s
        main = self._hosts.get(MAIN)
        alone = sum(other.loop == host.loop for other in self._hosts.values()) == 1
        if not alone or late < LATE_S or main is None or self._clock() - main.heard_s >= LATE_S:
            return 0.0
        return late


def _of_actor(window: _Window, in_main: bool) -> dict[str, float]:
    stepping, acting, recording = (window.share(kind) for kind in (STEPPING, ACTING, RECORDING))
    blocked = max(0.0, window.share(f"{BLOCKED}/actor") - recording)
    stages = {stage: window.busy(stage) for stage in window.stages() if stage != "actor"}
    away = sum(window.share(kind) for kind in (RESTING, ASKING, f"{BLOCKED}/actor")) + sum(stages.values())
    whole = window.share(f"{WORKING}/actor") - away
    busy = stepping + acting if in_main else max(whole, stepping + acting)  # other hosts in main's loop use the rest
    found = {
        f"{BUSY}/{ACTORS}": busy,
        f"{BUSY}/{ACTORS}/{ENVIRONMENT}": stepping,
        f"{BUSY}/{ACTORS}/{POLICIES}": acting,
        **{f"{BUSY}/{ACTORS}/{stage}": share for stage, share in stages.items()},
        f"{WAIT}/policies": window.share(WAITING),
        f"{WAIT}/decisions": window.share(ASKING),
        f"{WAIT}/room": blocked,
        f"{DURATION}/step": window.seconds.get(STEPPING, 0.0) / max(1, window.counts.get(STEPPING, 0)),
    }
    if recording:
        found[f"{BUSY}/{ACTORS}/{RECORDER}"] = recording
    names = [kind.partition("/")[2] for kind in window.seconds if kind.startswith(f"{WAITING}/")]
    return found | {f"{WAIT}/policy {name}": window.share(f"{WAITING}/{name}") for name in names}


def _of_main(window: _Window, behaviors: Sequence[str]) -> dict[str, float]:
    """Sum the shares of main's stages over behaviours; a stage's name may end with its behaviour's name."""
    found = {f"{BUSY}/{MAIN}/{PUBLISHER}": window.share(PUBLISHING)}
    for stage in window.stages():
        short = next((stage.removesuffix(f"-{name}") for name in behaviors if stage.endswith(f"-{name}")), stage)
        name = f"{BUSY}/{MAIN}/{short}"
        found[name] = min(1.0, found.get(name, 0.0) + window.busy(stage))
    return found


def _of_learner(name: str, window: _Window) -> dict[str, float]:
    found = {f"{BUSY}/{name}/{TRAINER}": window.busy(TRAINER)}
    if recording := window.share(RECORDING):
        found[f"{BUSY}/{name}/{RECORDER}"] = recording
    return found


def _durations(behavior: str, whole: _Window, wait: float) -> dict[str, float]:
    """Return the seconds per complete update that are spent learning, and the seconds in which actors do not wait."""
    updates = whole.counts.get(LEARNING, 0)
    if not updates:
        return {}
    return {
        f"{DURATION}/update {behavior}": whole.seconds.get(LEARNING, 0.0) / updates,
        f"{DURATION}/collecting {behavior}": max(0.0, 1.0 - wait) * whole.span_s / updates,
    }
