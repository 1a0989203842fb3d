"""Flow control in main: the windows of behaviours, the actors' credits, and a warning where a trainer gets no steps.

`pipeline/flow/credits.py` is the account, `PolicyLags` the size of its windows, `StarvationWatch` the warning.
`FlowControl` says which message changes what in them; each change may free credits, which go to the actors that have
asked for some.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
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
    """Keeps the account of all credits, and sends grants.

    Args:
        config: the run's.
        replayed: true if a recording is learned from, whose steps need no credits.
        send: sends grants to actors.
        at_rest: called before grants of a deterministic run are sent, while all stand still.

    Attributes:
        ledger: the account.
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
        """An actor has ended for good: its credits are written off, whatever sources it has been."""
        for source in sources:
            self._grant(self.ledger.remove_source(source))

    def learner_ready(self, message: LearnerReady) -> None:
        """A trainer can take steps: open its window, without a bound where no policy of its own makes them."""
        behavior, rows = message.behavior, message.rows_per_update
        self._starvation.add_trainer(behavior, rows)
        if self._replayed or teacher_of(self._config, behavior) is not None:
            self.ledger.open_unbounded(behavior)
        else:
            lag = self._lags.first(behavior, rows, message.any_age, message.corrects_age)
            self.ledger.open_window(behavior, rows, lag, message.held_rows)
        self.resume()

    def requested(self, request: CreditRequest) -> None:
        """An actor asks for credits, or gives some back."""
        self._grant(self.ledger.request(request))

    def returned(self, message: CreditsReturned) -> None:
        """A stage gives back the credits of steps that the trainer does not get."""
        key = (message.by, message.behavior, message.source)
        self._starvation.kept_back(message.by, message.behavior, message.total - self._returned.get(key, 0))
        self._returned[key] = message.total
        self._grant(self.ledger.returned(*key, message.total))

    def trainer_reported(self, report: TrainerReport) -> None:
        """A trainer has learned, or gives credits back."""
        self._starvation.fed(report.behavior, report.step, report.done)
        grants = self.ledger.learned(report.behavior, report.version, report.held, report.returned, report.arrived)
        lag = self._lags.measured(report.behavior, report.collecting_s, report.learning_s)
        if lag is not None:
            grants += self.ledger.resize_window(report.behavior, lag)
        self._grant(grants)

    def pause(self, why: str = "") -> None:
        """Grant nothing until `resume` for the same reason."""
        self.ledger.pause(why)

    def resume(self, why: str = "") -> None:
        """Grant again, unless there is another reason not to."""
        self._grant(self.ledger.resume(why))

    def _grant(self, grants: list[Grant]) -> None:
        if grants and self._config.pipeline.deterministic:
            self._at_rest()
        self._send(grants)


# Warns of a trainer that learns nothing because stages before it keep everything back. Such a run hangs nowhere: it
# just never ends, and without a warning nobody would know the reason.

log = logging.getLogger(__name__)

PATIENCE_UPDATES = 8
"""The warning comes when as many updates' worth of steps in a row were kept back."""


@dataclass
class _Watched:
    rows_per_update: int
    step: int = -1
    kept: Counter[str] = field(default_factory=Counter)
    warned: bool = False


class StarvationWatch:
    """Compares what stages keep back with what trainers get. Pure: calls in, one warning per behaviour out."""

    def __init__(self) -> None:
        self._trainers: dict[str, _Watched] = {}

    def add_trainer(self, behavior: str, rows_per_update: int) -> None:
        """Watch a trainer, which has started."""
        self._trainers[behavior] = _Watched(rows_per_update)

    def fed(self, behavior: str, step: int, done: bool) -> None:
        """Note the step that a trainer has reported; one that is done wants nothing more."""
        trainer = self._trainers[behavior]
        if step != trainer.step or done:
            trainer.step = step
            trainer.kept.clear()

    def kept_back(self, by: str, behavior: str, steps: int) -> None:
        """Note steps that a stage has received and not passed on (negative: it has passed on some after all)."""
        trainer = self._trainers.get(behavior)
        if trainer is None:
            return
        trainer.kept[by] += steps
        kept = trainer.kept.total()
        if kept >= PATIENCE_UPDATES * trainer.rows_per_update and not trainer.warned:
            trainer.warned = True
            log.warning(
                "The trainer of %s has got nothing since step %d, while stages before it have kept back %d steps (%s). "
                "It learns nothing, and the run does not end, until they pass something on; Ctrl-C ends it.",
                behavior,
                max(0, trainer.step),
                kept,
                ", ".join(f"{name}: {count}" for name, count in trainer.kept.most_common()),
            )


# How many updates actors may run ahead of each trainer, where `max_policy_lag` is `auto`. Pure: no clock, no I/O.
# Collecting while the trainer learns saves time, at the price of steps by an older policy. Where it takes much longer
# to collect the steps of an update than to learn from them, little is saved: actors wait for each policy. What takes
# how long is measured in the first updates, in which actors wait. Medians count, so that one update that something
# held up, such as an actor's restart or a checkpoint, does not. A resumed run measures anew: it may have another
# machine.

MEASURED_UPDATES = 5
"""Updates that are measured, from the second on: the first one's steps are collected while the run starts."""
MOST_COLLECTING = 3.0
"""Times that of learning that collecting may take: running ahead then saves a quarter of the time."""
AHEAD = 1
"""Updates that actors run ahead where that is worth it."""


@dataclass(frozen=True)
class _Measured:
    rows: int
    collecting_s: list[float] = field(default_factory=list)
    learning_s: list[float] = field(default_factory=list)


# Collecting ahead pays only if updates take long, so `auto` measures the first few (docs/decisions/018).
class PolicyLags:
    """The lag of each behaviour, from its trainer's start on."""

    def __init__(self, settings: PipelineSettings) -> None:
        self._max_policy_lag = settings.max_policy_lag
        hosts = settings.hosts
        self._takes_turns = HOST_KINDS[hosts.actors.kind].in_main and HOST_KINDS[hosts.learners.kind].in_main
        self._measured: dict[str, _Measured] = {}

    def first(self, behavior: str, rows_per_update: int, any_age: bool, corrects_age: bool) -> int:
        """Return the lag to begin with.

        Args:
            behavior: the behaviour name.
            rows_per_update: rows that its trainer learns from at a time.
            any_age: it learns from steps of any age.
            corrects_age: it learns as well from steps of somewhat older policies.
        """
        if self._max_policy_lag != "auto":
            return self._max_policy_lag
        if self._takes_turns:
            return self._say(behavior, 0, "actors and learner take turns in the main process")
        if any_age:
            return self._say(behavior, AHEAD, "its trainer learns from steps of any age")
        if not corrects_age:
            return self._say(behavior, 0, "its trainer does not correct for steps of older policies")
        self._measured[behavior] = _Measured(rows_per_update)
        return 0

    def measured(self, behavior: str, collecting_s: Sequence[float], learning_s: Sequence[float]) -> int | None:
        """Take the seconds of collecting and of learning of further updates; returns the lag once it is decided."""
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
        return self._say(behavior, lag, why + ("collect meanwhile" if lag else "wait for each policy"))

    def _say(self, behavior: str, lag: int, why: str) -> int:
        log.info("%s: max_policy_lag auto is %d: %s.", behavior, lag, why)
        return lag
