"""How a run spends its time: the fraction of the time that each stage works or waits, measured by its host's clock.

Hosts report seconds by kind of work (`headrace.stages.activity`) once a second. Shares (fractions of time) cover the
busiest learner's last complete updates, and at least ten seconds, because part of an update might include only
collecting or only learning. Shares are statistics of the category `Pipeline`. `Bottleneck` explains them in words, for
the live page, terminal and charts.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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
    reported_s: float = 0.0
    spans: list[float] = field(default_factory=lambda: [0.0])
    updates: list[int] = field(default_factory=lambda: [0])
    totals: list[dict[str, tuple[float, int]]] = field(default_factory=lambda: [{}])

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

    def over(self, window_s: float, since_s: float = 0.0, silent_s: float = 0.0) -> _Window:
        """Return the host's work in a past time window.

        Args:
            window_s: length of the window in seconds.
            since_s: seconds since the window's end.
            silent_s: seconds that the host has not reported yet.
        """
        end = bisect_right(self.spans, self.spans[-1] - max(0.0, since_s - silent_s) + _EXACT_S) - 1
        late_s = max(0.0, silent_s - since_s)
        at = max(0, bisect_right(self.spans, self.spans[end] + late_s - window_s + _EXACT_S) - 1)
        window = _Window(self.spans[end] - self.spans[at] + late_s)
        for kind, (seconds, count) in self.totals[end].items():
            seconds_before, count_before = self.totals[at].get(kind, (0.0, 0))
            window.seconds[kind] = seconds - seconds_before
            window.counts[kind] = count - count_before
        window.seconds[f"{WORKING}/{TRAINER}" if self.role == "learner" else STEPPING] += late_s
        for kind, spent_s in window.seconds.items():
            window.shares[kind] = spent_s / window.span_s if window.span_s > 0 else 0.0
        for kind, share in window.shares.items():
            work, _, stage = kind.partition("/")
            if work == WORKING:
                window.busy[stage] = max(0.0, share - window.shares.get(f"{BLOCKED}/{stage}", 0.0))
        return window


@dataclass(frozen=True)
class _Window:
    """A host's work within a time window."""

    span_s: float
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds spent on each kind of work."""
    counts: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    """How often the work was done, keyed by kind."""
    shares: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Fraction of the time spent on each kind of work."""
    busy: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Fraction of the time in which each stage worked rather than waiting for space."""


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
        total = dict(host.totals[-1])
        for kind, (seconds, count) in work.items():
            seconds_before, count_before = total.get(kind, (0.0, 0))
            total[kind] = seconds_before + seconds, count_before + count
        host.totals.append(total)
        host.spans.append(host.spans[-1] + span_s)
        host.updates.append(total.get(LEARNING, (0.0, 0))[1])
        if len(host.spans) > MOST_MARKS:
            for series in (host.spans, host.updates, host.totals):
                del series[: MOST_MARKS // 2]
        host.reported_s = self._clock()

    def ended(self, name: str) -> None:
        """Remove a host that has ended."""
        self._hosts.pop(name, None)

    def numbers(self) -> dict[str, float]:
        """Return the statistics, keyed by name; empty before the first update, unless actors wait most of the time.

        Actors may wait before the first update, either for space or because the update is slow.
        """
        learners = [host for host in self._hosts.values() if host.role == "learner"]
        learned, window_s, since_s = self._window(learners)
        numbers: dict[str, float] = {}
        actors = [host for host in self._hosts.values() if host.role == "actor"]
        for host in actors:  # their statistics are averaged
            for name, value in _of_actor(host.over(window_s, since_s, self._silent_s(host)), host.loop == MAIN).items():
                numbers[name] = numbers.get(name, 0.0) + value / len(actors)
        long = any(self._silent_s(host) >= WINDOW_S / 2 for host in learners if host.spans[-1])
        waiting = numbers.get(f"{WAIT}/room", 0.0) + (numbers.get(f"{WAIT}/policies", 0.0) if long else 0.0)
        if not learned and waiting < 0.5:
            return {}
        loops: dict[str, list[float]] = {}
        for name, host in self._hosts.items():
            window = host.over(window_s, since_s, self._silent_s(host))
            match host.role:
                case "learner":
                    numbers[f"{BUSY}/{name}/{TRAINER}"] = window.busy[TRAINER]
                    loops.setdefault(host.loop, []).append(window.busy[TRAINER])
                    if recording := window.shares[RECORDING]:
                        numbers[f"{BUSY}/{name}/{RECORDER}"] = recording
                    whole = host.over(*host.cycles())
                    if updates := whole.counts[LEARNING]:
                        collecting_s = max(0.0, 1.0 - numbers.get(f"{WAIT}/policies", 0.0)) * whole.span_s
                        numbers[f"{DURATION}/update {host.behavior}"] = whole.seconds[LEARNING] / updates
                        numbers[f"{DURATION}/collecting {host.behavior}"] = collecting_s / updates
                case "main":
                    numbers |= _of_main(window, [learner.behavior for learner in learners])
                    if all(other.loop != MAIN for other in self._hosts.values() if other is not host):
                        numbers[f"{BUSY}/{MAIN}"] = min(1.0, window.shares[COMPUTING])
                case "inference":
                    numbers[f"{BUSY}/{INFERENCE}/{INFERENCE}"] = window.shares[ACTING]
        busiest = max(loops.values(), key=sum, default=[])
        if len(busiest) > 1 and max(busiest) < ONE_OF_THEM * sum(busiest):  # they keep the loop busy together
            numbers[f"{BUSY}/{LEARNERS}/{TRAINER}"] = min(1.0, sum(busiest))
        return numbers

    def _window(self, learners: Sequence[_Host]) -> tuple[bool, float, float]:
        """Return whether a learner has updated, the busiest learner's time for its last updates, and the time since."""
        cycles = [(host, *host.cycles()) for host in learners if host.updates[-1]]
        if not cycles:
            return False, WINDOW_S, 0.0
        busiest, cycle_s, since_s = max(cycles, key=lambda cycle: cycle[0].over(*cycle[1:]).busy[TRAINER])
        since_s += self._silent_s(busiest)
        return True, cycle_s, 0.0 if since_s > cycle_s else since_s  # a longer gap has a different cause

    def _silent_s(self, host: _Host) -> float:
        """Return how many seconds a host's event loop has been blocked, judging by the missing reports."""
        late = self._clock() - host.reported_s
        main = self._hosts.get(MAIN)
        alone = sum(other.loop == host.loop for other in self._hosts.values()) == 1
        if not alone or late < LATE_S or main is None or self._clock() - main.reported_s >= LATE_S:
            return 0.0
        return late


def _of_actor(window: _Window, in_main: bool) -> dict[str, float]:
    """Return one actor's statistics.

    Args:
        window: the actor's work.
        in_main: True if the actor runs in main's event loop.
    """
    shares = window.shares
    stepping, acting, recording = shares[STEPPING], shares[ACTING], shares[RECORDING]
    blocked = max(0.0, shares[f"{BLOCKED}/actor"] - recording)
    stages = {stage: share for stage, share in window.busy.items() if stage != "actor"}
    away = shares[RESTING] + shares[ASKING] + shares[f"{BLOCKED}/actor"] + sum(stages.values())
    whole = shares[f"{WORKING}/actor"] - away
    busy = stepping + acting if in_main else max(whole, stepping + acting)  # other hosts in main's loop use the rest
    numbers = {
        f"{BUSY}/{ACTORS}": busy,
        f"{BUSY}/{ACTORS}/{ENVIRONMENT}": stepping,
        f"{BUSY}/{ACTORS}/{POLICIES}": acting,
        **{f"{BUSY}/{ACTORS}/{stage}": share for stage, share in stages.items()},
        f"{WAIT}/policies": shares[WAITING],
        f"{WAIT}/decisions": shares[ASKING],
        f"{WAIT}/room": blocked,
        f"{DURATION}/step": window.seconds[STEPPING] / max(1, window.counts[STEPPING]),
    }
    if recording:
        numbers[f"{BUSY}/{ACTORS}/{RECORDER}"] = recording
    for kind, share in shares.items():
        if kind.startswith(f"{WAITING}/"):
            numbers[f"{WAIT}/policy {kind.removeprefix(f'{WAITING}/')}"] = share
    return numbers


def _of_main(window: _Window, behaviors: Sequence[str]) -> dict[str, float]:
    """Sum the shares of main's stages over behaviours; a stage's name may end with its behaviour's name."""
    numbers = {f"{BUSY}/{MAIN}/{PUBLISHER}": window.shares[PUBLISHING]}
    for stage, share in window.busy.items():
        short = next((stage.removesuffix(f"-{name}") for name in behaviors if stage.endswith(f"-{name}")), stage)
        name = f"{BUSY}/{MAIN}/{short}"
        numbers[name] = min(1.0, numbers.get(name, 0.0) + share)
    return numbers


LEAST_BUSY = 0.5
"""Minimum fraction of the time that a part must be working to count as a bottleneck."""
MARGIN = 0.2
"""Minimum lead over the next busiest part's fraction. With a smaller lead, the run counts as balanced."""
OF_LEARNERS = "learner-"
"""Prefix of the names of learner hosts (`headrace.pipeline.common.graph.learner_name`)."""


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """A run's bottleneck, or the finding that there is none."""

    text: str
    """Text for users: a few sentences, with a number to support each claim."""
    host: str = ""
    """Name of the host that is the bottleneck, or `actors` for all actors; empty if there is no single bottleneck."""
    stage: str = ""
    busy: float = 0.0
    """Fraction of the time (0 to 1) in which the bottleneck works."""
    wait: float = 0.0
    """Fraction of the time (0 to 1) in which other parts wait for the bottleneck."""
    behavior: str = ""
    """The behaviour whose trajectories or policies the bottleneck delays; empty if it delays all behaviours."""


def find_bottleneck(numbers: Mapping[str, float], blocks: Mapping[str, Any] | None = None) -> Bottleneck | None:
    """Return a run's bottleneck; None if it is not known yet.

    Among parts that wait for each other, the busiest one sets the pace. The bottleneck is therefore the busiest part,
    if it is clearly busier than all others.

    Args:
        numbers: as `TimeShares.numbers` returns them, or their means over a run.
        blocks: each behaviour's settings as plain data, used for suggestions.
    """
    return _BottleneckFinder(numbers, blocks or {}).cause()


def bottleneck_of_runs(
    *runs: Mapping[str, Mapping[str, Sequence[float]]], blocks: Mapping[str, Any] | None = None
) -> Bottleneck | None:
    """Return the bottleneck of several runs taken together, based on the means of their curves.

    Args:
        runs: each run's curves in the category `Pipeline`, keyed by name; a curve has the key `values`.
        blocks: as for `find_bottleneck`.
    """
    all_values: dict[str, list[float]] = {}
    for name, curve in ((name, curve) for curves in runs for name, curve in curves.items()):
        if name.partition("/")[0] in (BUSY, WAIT, DURATION):
            all_values.setdefault(name, []).extend(curve["values"])
    return find_bottleneck({name: sum(values) / len(values) for name, values in all_values.items() if values}, blocks)


HostStage = tuple[str, str]
_INSIDE = ((ACTORS, ENVIRONMENT), (ACTORS, POLICIES))
"""Places (host and stage) whose time is already included in the actors' time."""


def _host_stage(name: str) -> HostStage:
    """Split a statistic's name into host and stage; learner names may contain slashes, because behaviour names may."""
    rest = name.partition("/")[2]
    host, _, stage = rest.rpartition("/") if rest.startswith(OF_LEARNERS) else rest.partition("/")
    return host, stage


class _BottleneckFinder:
    """Interprets a run's numbers."""

    def __init__(self, numbers: Mapping[str, float], blocks: Mapping[str, Any]) -> None:
        self.numbers, self.blocks = numbers, blocks
        self.places = {_host_stage(name): share for name, share in numbers.items() if name.startswith(f"{BUSY}/")}
        learners = [place for place in self.places if place[0].startswith(OF_LEARNERS) and place[1] == TRAINER]
        self.learning = max((self.places[place] for place in learners), default=0.0)
        """Fraction of the time in which the busiest learner works."""
        self.several = len(learners) > 1
        who = "no learner is more than" if self.several else "the learner is"
        self.learners = f"{who} {_percent(self.learning)} busy"
        inside = (*_INSIDE, *(learners if (LEARNERS, TRAINER) in self.places else ()))
        of_main = [place for place in self.places if place[0] == MAIN and place[1]]
        if (MAIN, "") in self.places:  # a slow stage explains more than a busy main
            slow = max((self.places[place] for place in of_main), default=0.0) >= LEAST_BUSY
            inside += ((MAIN, ""),) if slow else (*of_main,)
        self.parts = {place: share for place, share in self.places.items() if place not in inside}

    def cause(self) -> Bottleneck | None:
        if not self.parts:
            return None
        (cause, busy), (_, second) = sorted([*self.parts.items(), (("", ""), 0.0)], key=lambda part: -part[1])[:2]
        of_actors = (f"{BUSY}/{ACTORS}", f"{WAIT}/policies", f"{WAIT}/decisions", f"{WAIT}/room")
        if max(busy, sum(self.numbers.get(name, 0.0) for name in of_actors)) < LEAST_BUSY:  # blocked or ending
            return None
        if busy < LEAST_BUSY or busy - second < MARGIN:
            return Bottleneck(self._balance(busy + second))
        return self._actors(cause[1], busy) if cause[0] == ACTORS else self._describe(*cause, busy)

    def _describe(self, host: str, stage: str, busy: float) -> Bottleneck:
        numbers = self.numbers
        behavior = host.removeprefix(OF_LEARNERS) if host.startswith(OF_LEARNERS) else ""
        if host == INFERENCE:
            wait = numbers.get(f"{WAIT}/decisions", 0.0)
        else:
            policies = numbers.get(f"{WAIT}/policies", 0.0)
            wait = numbers.get(f"{WAIT}/policy {behavior}", policies) + numbers.get(f"{WAIT}/room", 0.0)
        text = f"{_percent(busy)} busy; actors wait {_percent(wait)} of the time for it."
        if f"{BUSY}/{ACTORS}" not in numbers:  # a recording replaces the actors
            text = f"{_percent(busy)} busy."
        if host == LEARNERS:
            text = f"Learners in one event loop: {text} `learners.kind: process`, or more `processes`, would help."
        elif stage == TRAINER:
            text = self._learner(behavior, text)
        else:
            who = {
                INFERENCE: "Central inference",
                PUBLISHER: "Policy publisher",
                RECORDER: f"Recorder of {behavior}",
                "": "Main",
            }.get(stage, f"Stage {stage} in main")
            text = f"{who}: {text} {_HELP.get(stage, _HELP_STAGE)} would help."
        return Bottleneck(text, host, stage, busy, min(1.0, wait), behavior)

    def _learner(self, behavior: str, text: str) -> str:
        update, collecting = (self.numbers.get(f"{DURATION}/{what} {behavior}") for what in ("update", "collecting"))
        if update is not None and collecting is not None:
            text += f" An update takes {_seconds(update)}, collecting {_seconds(collecting)}."
        who, block = f"Learner of {behavior}" if self.several else "Learner", self.blocks.get(behavior) or {}
        less = [words for key, words in _LESS.items() if key in (block.get("hyperparameters") or {})]
        help_ = ", ".join([*less, "more `learners.threads` or `learners.replicas`"])
        return f"{who}: {text} {help_[0].upper()}{help_[1:]} would help."

    def _actors(self, stage: str, busy: float) -> Bottleneck:
        stepping, deciding = (self.places.get(place, 0.0) for place in _INSIDE)
        rest, more = max(0.0, busy - stepping - deciding), "`pipeline.hosts.actors.replicas`"
        if stage == RECORDER:
            what, help_ = f"Recorder: writing takes {_percent(busy)} of the actors' time", _HELP[RECORDER]
        elif stage:
            what, help_ = f"Stage {stage}: takes {_percent(busy)} of the actors' time", f"A faster stage or more {more}"
        elif stepping >= max(deciding, rest, LEAST_BUSY):
            step = _seconds(self.numbers.get(f"{DURATION}/step", 0.0))
            what = f"Environments: stepping takes {_percent(stepping)} of the actors' time, {step} a step"
            stage, help_ = ENVIRONMENT, f"More `num_envs` or {more}, with Unity a higher `time_scale`,"
        elif deciding >= max(rest, LEAST_BUSY):
            what = f"Policies: deciding takes {_percent(deciding)} of the actors' time, stepping {_percent(stepping)}"
            stage, help_ = ENVIRONMENT, f"A smaller network, more {more} or `pipeline.inference: central`"
        else:
            what = f"Actors: {_percent(busy)} busy, stepping {_percent(stepping)}, deciding {_percent(deciding)}"
            stage, help_ = "agent_processor", f"More {more}"
        return Bottleneck(f"{what}; {self.learners}. {help_} would help.", ACTORS, stage, busy, 1 - self.learning)

    def _balance(self, busiest_two: float) -> str:
        busy = self.numbers.get(f"{BUSY}/{ACTORS}")
        actors = "" if busy is None else f"actors are {_percent(busy)} busy, "
        idle = busiest_two < 2 * LEAST_BUSY - MARGIN
        rest = " Messages, or waiting for a free core, take the rest." if idle else ""
        return f"No single part is the bottleneck: {actors}{self.learners}.{rest}"


_HELP_STAGE = "A faster stage, or one in the actors,"
_HELP = {
    INFERENCE: "A GPU for it, a smaller network or fewer actors",
    PUBLISHER: "A smaller network or fewer actors",
    RECORDER: "A faster disk or fewer `record.edges`",
    "ghost": "Fewer actors",
    "": "Fewer `pipeline.hosts.actors.replicas`, with more `num_envs` each,",
}
"""Suggestions for a busy stage, keyed by the stage's name."""
_LESS = {"num_epoch": "Fewer epochs (`num_epoch`)", "steps_per_update": "A higher `steps_per_update`"}
"""Suggestions for cheaper updates, keyed by the trainer's hyperparameter that controls the cost."""


def _percent(share: float) -> str:
    return f"{100 * min(1.0, share):.0f} %"


def _seconds(value: float) -> str:
    number, unit = (1000 * value, "ms") if value < 0.1 else (value, "s")
    return f"{float(f'{number:.2g}'):g} {unit}"
