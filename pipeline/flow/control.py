"""Flow control in main: the behaviours' windows, the actors' credits, and a warning if a trainer receives no steps.

`pipeline/flow/credits.py` keeps the ledger, `PolicyLags` sizes its windows, and `StarvationWatch` warns. `FlowControl`
updates all three from messages. An update may free credits, which go to the actors that are waiting for them.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

from headrace.config import RunConfig
from headrace.config.host_kinds import HOST_KINDS
from headrace.config.pipeline import PipelineSettings
from headrace.pipeline.common.graph import teacher_of
from headrace.pipeline.control.messages import CreditRequest, CreditsReturned, Grant, LearnerReady
from headrace.pipeline.flow.credits import CreditLedger
from headrace.stages.trainer.report import TrainerReport


class FlowControl:
    """Keeps the ledger of all credits and sends grants.

    Args:
        config: the run's configuration.
        replayed: True if the run learns from a recording, whose steps need no credits.
        send: sends grants to actors.
        at_rest: called before a deterministic run sends grants, while all hosts are idle.

    Attributes:
        ledger: the ledger of all credits.
    """

    def __init__(
        self, config: RunConfig, replayed: bool, send: Callable[[Iterable[Grant]], None], at_rest: Callable[[], None]
    ) -> None:
        self.ledger = CreditLedger(at_rest=config.pipeline.deterministic)
        self._config = config
        self._replayed = replayed
        self._send = send
        self._at_rest = at_rest
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

    def requested(self, request: CreditRequest) -> None:
        """Handle a message in which an actor requests or gives back credits."""
        self._grant(self.ledger.request(request))

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
        lag = self._lags.measured(report.behavior, report.collecting_s, report.learning_s)
        if lag is not None:
            grants += self.ledger.resize_window(report.behavior, lag)
        self._grant(grants)

    def pause(self, why: str = "") -> None:
        """Grant no credits until `resume` is called with the same reason."""
        self.ledger.pause(why)

    def resume(self, why: str = "") -> None:
        """Resume granting credits, unless granting is paused for another reason."""
        self._grant(self.ledger.resume(why))

    def hold(self, behaviors: Collection[str]) -> None:
        """Grant no credits for these behaviours, and none for others until these behaviours' trainers are idle."""
        self.ledger.hold(behaviors)

    def _grant(self, grants: list[Grant]) -> None:
        if grants and self._config.pipeline.deterministic:
            self._at_rest()
        self._send(grants)


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
# times are measured in the first updates, during which actors wait. We compare medians, so that a single update delayed
# by an actor's restart or a checkpoint has no effect. A resumed run measures again because it may run on a different
# machine.

MEASURED_UPDATES = 5
"""Number of measured updates. The first update is skipped because its steps are collected while the run starts."""
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
    """Chooses each behaviour's policy lag: first when its trainer starts, and perhaps again after measuring updates."""

    def __init__(self, settings: PipelineSettings) -> None:
        self._max_policy_lag = settings.max_policy_lag
        hosts = settings.hosts
        self._takes_turns = HOST_KINDS[hosts.actors.kind].in_main and HOST_KINDS[hosts.learners.kind].in_main
        self._measured: dict[str, _UpdateTimes] = {}

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
        self._measured[behavior] = _UpdateTimes(rows_per_update)
        return 0

    def measured(self, behavior: str, collecting_s: Sequence[float], learning_s: Sequence[float]) -> int | None:
        """Add the seconds spent on collecting and learning; return the lag once it is decided, and None until then."""
        found = self._measured.get(behavior)
        if found is None:
            return None
        found.collecting_s.extend(collecting_s)
        found.learning_s.extend(learning_s)
        if len(found.learning_s) < MEASURED_UPDATES:
            return None
        del self._measured[behavior]
        collecting, learning = median(found.collecting_s), median(found.learning_s)
        lag = AHEAD if collecting <= MOST_COLLECTING * learning else 0
        why = f"collecting {found.rows} steps takes {collecting:.2g} s, learning from them {learning:.2g} s, so actors "
        return self._say(behavior, lag, why + ("keep collecting during updates" if lag else "wait for each policy"))

    def _say(self, behavior: str, lag: int, why: str) -> int:
        log.info("%s: max_policy_lag is %d (auto): %s.", behavior, lag, why)
        return lag
