"""Describes a run's bottleneck in words for the live page, terminal and charts, based on `time_shares`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.pipeline.reporting.time_shares import (
    ACTORS,
    BUSY,
    DURATION,
    ENVIRONMENT,
    INFERENCE,
    LEARNERS,
    MAIN,
    POLICIES,
    PUBLISHER,
    RECORDER,
    TRAINER,
    WAIT,
)

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
    return _Reading(numbers, blocks or {}).cause()


def held_up_by(
    *runs: Mapping[str, Mapping[str, Sequence[float]]], blocks: Mapping[str, Any] | None = None
) -> Bottleneck | None:
    """Return the bottleneck of several runs taken together, based on the means of their curves.

    Args:
        runs: each run's curves in the category `Pipeline`, keyed by name; a curve has the key `values`.
        blocks: as for `find_bottleneck`.
    """
    found: dict[str, list[float]] = {}
    for name, curve in ((name, curve) for curves in runs for name, curve in curves.items()):
        if name.partition("/")[0] in (BUSY, WAIT, DURATION):
            found.setdefault(name, []).extend(curve["values"])
    return find_bottleneck({name: sum(values) / len(values) for name, values in found.items() if values}, blocks)


Place = tuple[str, str]
_INSIDE = ((ACTORS, ENVIRONMENT), (ACTORS, POLICIES))
"""Places (host and stage) whose time is already included in the actors' time."""


def _place(name: str) -> Place:
    """Split a statistic's name into host and stage; learner names may contain slashes, because behaviour names may."""
    rest = name.partition("/")[2]
    host, _, stage = rest.rpartition("/") if rest.startswith(OF_LEARNERS) else rest.partition("/")
    return host, stage


class _Reading:
    """Interprets a run's numbers."""

    def __init__(self, numbers: Mapping[str, float], blocks: Mapping[str, Any]) -> None:
        self.numbers, self.blocks = numbers, blocks
        self.places = {_place(name): share for name, share in numbers.items() if name.startswith(f"{BUSY}/")}
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
        (cause, busy), (_, second) = sorted([*self.parts.items(), (("", ""), 0.0)], key=lambda each: -each[1])[:2]
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
        who, has = f"Learner of {behavior}" if self.several else "Learner", self.blocks.get(behavior) or {}
        less = [words for key, words in _LESS.items() if key in (has.get("hyperparameters") or {})]
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
