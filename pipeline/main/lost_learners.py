"""Lost learners: each is started again from the newest checkpoint, beside the actors, which go on.

A learner is lost when its process ends without a word, or is killed because it was silent. One that fails by an
exception says so and ends the run: it would fail again.
"""

from __future__ import annotations

import logging

from headrace.pipeline.common.graph import learner_name
from headrace.pipeline.control.messages import LearnerReady, LearnerReplaced
from headrace.pipeline.flow.control import FlowControl
from headrace.pipeline.hosts.protocol import HostHandle
from headrace.pipeline.main.behavior_start import BehaviorStarter
from headrace.pipeline.main.checkpointing import Checkpointing
from headrace.pipeline.main.launcher import Launcher
from headrace.pipeline.main.run_plan import RunPlan
from headrace.pipeline.reporting.reporter import Reporter
from headrace.pipeline.run_folder.checkpoint import newest_checkpoint

log = logging.getLogger(__name__)


class LostLearners:
    """Replaces learners, and takes back in main what they had learned since the checkpoint.

    Args:
        plan: the run.
        launcher: starts hosts.
        starter: knows the behaviours and the run's self-play.
        checkpointing: the run's checkpoints.
        flow: flow control.
        reporter: informs people.
    """

    def __init__(
        self,
        plan: RunPlan,
        launcher: Launcher,
        starter: BehaviorStarter,
        checkpointing: Checkpointing,
        flow: FlowControl,
        reporter: Reporter,
    ) -> None:
        self._plan = plan
        self._launcher = launcher
        self._starter = starter
        self._checkpointing = checkpointing
        self._flow = flow
        self._reporter = reporter
        self._lost: dict[str, int] = {}
        """By behaviour whose learner is replaced: the step at which it was lost."""

    @property
    def replaced(self) -> bool:
        """True if a lost learner is started again."""
        return self._plan.replaces_learners

    async def replace(self, lost: HostHandle) -> None:
        """Start a learner in the place of a lost one; the actors go on, with credits that are counted anew."""
        state = self._starter.behaviors[lost.plan.behavior]
        name = state.behavior
        self._lost[name] = max(state.step, self._lost.get(name, 0))
        state.ready = state.done = False
        self._checkpointing.host_ended(learner_name(name))  # what it had not saved of one under way, nobody will
        self._flow.ledger.close_window(name)
        checkpoint = newest_checkpoint(self._checkpointing.folder)
        step = checkpoint.steps.get(name) if checkpoint is not None else None
        if self._starter.self_play is not None:
            self._starter.self_play.rewind(name, step or 0)
        await self._launcher.replace_learner(state, resume=lost.plan.resume or step is not None)
        for slot in self._launcher.actors.values():
            source = self._launcher.renew_source(slot)
            self._flow.ledger.add_source(source)
            slot.handle.control.send(LearnerReplaced(name, source))

    def goes_on(self, host: HostHandle, message: LearnerReady) -> None:
        """A learner is ready; if it replaces a lost one, all else goes back to its step."""
        lost_at = self._lost.pop(message.behavior, None)
        if lost_at is None:
            return
        state = self._starter.behaviors[message.behavior]
        state.start_at(message.step)
        self._reporter.rewind(message.behavior, message.step)
        self._checkpointing.repeat_for_learner(host)
        log.warning(
            "%s goes on from %s; its actors were not restarted. %d steps of learning are lost.",
            host.plan.name,
            f"step {message.step}, its last checkpoint" if host.plan.resume else "the start, as there is no checkpoint",
            max(0, lost_at - message.step),
        )
