"""Controls for a run in progress: pause, resume, save, change a hyperparameter."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from headrace.config.errors import nowhere
from headrace.config.validation import check
from headrace.pipeline.control import LearnerReady, Pause, SetHyperparameter
from headrace.pipeline.hosts.protocol import HostHandle
from headrace.pipeline.main.checkpointing import SavedRun

log = logging.getLogger(__name__)


class NotNow(Exception):
    """The run can't do what the user requests now, or at all; the message says why."""


class NeedsConfirmation(Exception):
    """The action requires confirmation; the message says why."""


FAR = 10.0 + 1e-9
"""Factor by which a hyperparameter may change without confirmation; a larger change may be a typing error."""


class RunControls:
    """Controls a run. All calls come from main's event loop.

    When a run is paused, its sources emit all the steps that they hold and then wait, as they do without credits. They
    still follow all other commands, such as those to begin a checkpoint or to stop. No host falls silent, and trainers
    still learn from the steps in transit.

    Args:
        run: the run, with its checkpoints.

    Attributes:
        paused: True while the run is paused.
    """

    def __init__(self, run: SavedRun) -> None:
        self.paused = False
        self._run = run
        self._changed: dict[str, dict[str, float]] = {}

    def pause(self, paused: bool = True) -> None:
        """Pause the sources or let them continue; do nothing if the run is already in that state.

        Raises:
            NotNow: if the run is ending.
        """
        self._refuse_at_end()
        if paused != self.paused:
            self.paused = self._run.reporter.paused = paused
            log.info("Paused." if paused else "Resumed.")
            self._run.broadcaster.send_to_sources(Pause(paused))

    def source_started(self, source: HostHandle) -> None:
        """Pause a new source if the others are paused."""
        if self.paused:
            source.control.send(Pause(True))

    def checkpoint(self) -> None:
        """Begin a checkpoint.

        Raises:
            NotNow: if a checkpoint is in progress, or the run saves no checkpoints.
        """
        self._refuse_at_end()
        if self._run.plan.playing:
            raise NotNow("this run plays policies without training them, so there is nothing to save")
        if not any(state.ready or not state.learns for state in self._run.behaviors.values()):
            raise NotNow("no trainer is ready yet")
        if self._run.checkpointing.busy:
            raise NotNow("a checkpoint is already in progress")
        log.info("Saving a checkpoint, as requested.")
        self._run.checkpointing.begin()

    def hyperparameters(self, behavior: str) -> Mapping[str, float]:
        """Return a behaviour's changeable hyperparameters, with the values at which their schedules start."""
        settings = self._run.behaviors[behavior].settings
        values = settings.declared_hyperparameters
        if values is None or self._run.plan.playing or not settings.learns:
            return {}
        return {name: getattr(values, name) for name in values.scheduled()} | self._changed.get(behavior, {})

    def learner_ready(self, message: LearnerReady) -> None:
        """Record the hyperparameters that a learner continues with."""
        self._changed[message.behavior] = dict(message.hyperparameters)

    def set_hyperparameter(self, behavior: str, name: str, value: float, confirm: bool = False) -> None:
        """Set a trainer's hyperparameter, starting with its next update.

        Raises:
            LookupError: if the behaviour does not exist, or the hyperparameter can't change during a run.
            ConfigError: if the value is out of bounds.
            NeedsConfirmation: if the value is far from the current one and not confirmed.
            NotNow: if the learner can't use the value now.
        """
        self._refuse_at_end()
        if behavior not in self._run.behaviors:
            raise LookupError(
                f"unknown behaviour '{behavior}'; available: {', '.join(self._run.behaviors) or 'none yet'}"
            )
        may = self.hyperparameters(behavior)
        if name not in may:
            raise LookupError(
                f"'{name}' of {behavior} can't be changed during a run; only these can: {', '.join(may) or 'none'}"
            )
        if self._run.plan.config.pipeline.hosts.learners.replicas > 1:
            raise NotNow("hyperparameters can't be changed in a run whose learners have several replicas")
        state = self._run.behaviors[behavior]
        configured = state.settings.declared_hyperparameters
        assert configured is not None, "it has values that may change"
        at = ("behaviors", behavior, "hyperparameters")
        check(type(configured), {**configured.model_dump(), name: value}, lambda key, text: nowhere((*at, *key), text))
        low, high = sorted((abs(may[name]), abs(value)))
        if high > FAR * low and not confirm:
            raise NeedsConfirmation(
                f"{name} of {behavior} is {may[name]:g}, and {value:g} differs from it by more than a factor of 10"
            )
        if state.learner is None or not state.ready:
            raise NotNow(f"the learner of {behavior} is not ready")
        self._changed.setdefault(behavior, {})[name] = value
        state.learner.control.send(SetHyperparameter(name, value))
        self._run.reporter.mark(behavior, state.step, "set", f"{name} = {value:g}")

    def _refuse_at_end(self) -> None:
        if self._run.shutdown.begun:
            raise NotNow("the run is ending")
