"""The end of a run: in order, when all is learned or a user asks for it, or because something failed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from pipeline.common.graph import learner_name
from pipeline.control.messages import HostFailed, Stop
from pipeline.main.behavior import BehaviorState
from pipeline.main.broadcast import Broadcaster
from pipeline.main.running_hosts import RunningHosts

log = logging.getLogger(__name__)

GRACE_S = 20.0
"""Seconds that hosts may take to drain once the run ends; then they are killed."""


class Shutdown:
    """Ends the run once, at the first cause.

    Args:
        behaviors: the open behaviours, by name.
        running: the hosts.
        broadcaster: reaches the sources.
        last_checkpoint: begins the checkpoint behind which the sources stop; None where nothing is saved.
        save_trainers: lets trainers save where they stand.

    Attributes:
        begun: true if the run is ending.
        failure: what went wrong first; None if nothing did.
    """

    def __init__(
        self,
        behaviors: Mapping[str, BehaviorState],
        running: RunningHosts,
        broadcaster: Broadcaster,
        last_checkpoint: Callable[[], None] | None,
        save_trainers: Callable[[], None],
    ) -> None:
        self.begun = False
        self.failure: HostFailed | None = None
        self._behaviors = behaviors
        self._running = running
        self._broadcaster = broadcaster
        self._last_checkpoint = last_checkpoint
        self._save_trainers = save_trainers

    @property
    def learners_ended(self) -> bool:
        """True if the run is ending and no trainer will send a policy any more."""
        return self.begun and all(self._running.has_ended(learner_name(name)) for name in self._behaviors)

    @property
    def failed_at_start(self) -> bool:
        """True if a trainer failed before it was ready to learn; a resumed run would only meet that again."""
        failed = self.failure.stage if self.failure is not None else ""
        return any(not state.ready and learner_name(name) == failed for name, state in self._behaviors.items())

    def finish(self) -> None:
        """End the run in order: sources make a last checkpoint and stop, all else drains."""
        if self.begun:
            return
        self.begun = True
        if not self._behaviors:
            self._running.dismiss_all(GRACE_S / 4)
            return
        if self._last_checkpoint is None:
            self._broadcaster.send_to_sources(Stop())
        else:
            self._last_checkpoint()
            self.release_learners()
        self._running.kill_later(GRACE_S)

    def fail(self, failure: HostFailed) -> None:
        """Something failed: save what can be saved, and end."""
        if self.failure is not None:
            log.debug("a further failure: %s", failure.message)
            return
        self.failure = failure
        log.error("%s", failure.message.partition("\n")[0])  # all of it is shown as the run ends
        log.debug("%s", failure.traceback)
        self.begun = True
        if self._trainers_are_sound(failure.stage):
            self._save_trainers()
        self._broadcaster.send_to_sources(Stop())
        self.release_learners()
        self._running.kill_later(GRACE_S / 4)

    def checkpoint_failed(self, problem: str) -> None:
        """A checkpoint could not be written. What the last one would have kept of the run is nowhere else."""
        if self.begun and self.failure is None:
            self.failure = HostFailed(f"the run's last checkpoint could not be written: {problem}", "", "main")

    def release_learners(self) -> None:
        """Let learners end with their inlets: nothing more will be asked of them."""
        for state in self._behaviors.values():
            if state.learner is not None:
                state.learner.control.send(Stop())

    def _trainers_are_sound(self, failed_stage: str) -> bool:
        """Return True if what trainers would save now is worth more than the checkpoint before."""
        learners = [learner_name(state.behavior) for state in self._behaviors.values() if state.learner is not None]
        dead = any(self._running.has_ended(name) or name == failed_stage for name in learners)
        return bool(learners) and not dead and failed_stage != "trainer"
