"""Ends a run: cleanly if the run is done or a user requests it, or after a failure.

In a clean end, sources put a last barrier into their streams and stop after it, and everything else drains. The last
checkpoint does not wait for a dead or silent source: trainers and main's stages then save their current state.
"""

from __future__ import annotations

import asyncio
import logging
import time

from headrace.pipeline.common.global_state_guard import put_back
from headrace.pipeline.common.graph import actor_names, learner_name
from headrace.pipeline.control import HostFailed, LearnNoMore, Stop
from headrace.pipeline.main.behavior import BehaviorState
from headrace.pipeline.main.checkpointing import SavedRun
from headrace.queues.disks import current_disks

log = logging.getLogger(__name__)

SOURCES_SHARE = 1 / 6
"""Fraction of `grace_s` after which silent sources are abandoned. From then on, a user who pressed Ctrl-C waits only
for learners."""

DISMISSED_S = 4.0
"""Maximum seconds that hosts have to end by themselves if the run has nothing to save."""

STOPPED, OUT_OF_TIME = "stop", "max_wall_time_s"
"""Values of `Shutdown.ended_by`."""

_CHECK_S = 1.0

_NOTHING_SEEN = (
    "the environments closed before any agent requested a decision, so nothing was learned. In Unity, check that the "
    "scene has agents with a Decision Requester, and that their Behavior Type is Default."
)


class Shutdown:
    """Ends the run once, for the first reason that arises.

    Also ends a behaviour's training at its target rating.

    Args:
        run: the run, with its checkpoints.

    Attributes:
        begun: True if the run is ending.
        failure: the first failure; None if the run has not failed.
        cause: the exception behind the failure if main raised it, such as a callback's; None for other hosts'.
        ended_by: `stop` if a user ended the run before its trainers were done, `max_wall_time_s` if its time limit was
            reached; otherwise empty.
    """

    def __init__(self, run: SavedRun) -> None:
        self.begun = False
        self.failure: HostFailed | None = None
        self.cause: BaseException | None = None
        self.ended_by = ""
        self._limit_s = run.plan.config.pipeline.max_wall_time_s
        self._started_s = time.monotonic()
        self._at_target: set[str] = set()
        """Names of the behaviours that have reached their target ratings."""
        self._playing, self._folder = run.plan.playing, run.plan.folder
        self._behaviors, self._running, self._broadcaster = run.behaviors, run.running, run.broadcaster
        self._checkpointing = run.checkpointing
        self._checkpointing.ended, self._checkpointing.failed = self.checkpoint_ended, self.fail
        self._sources = frozenset(actor_names(run.plan.config))
        """Names of all the run's sources, including those that have not started yet."""
        self._grace_s = grace_s = run.plan.config.pipeline.supervision.grace_s
        # In a deterministic run, sources follow commands only while idle.
        self._sources_s = grace_s if run.plan.deterministic else grace_s * SOURCES_SHARE
        self._owing: set[str] = set()
        """Names of the sources that have not yet confirmed a stop request."""
        self._exhausted: set[str] = set()
        """Names of the sources that have nothing left to produce; others may still produce."""
        self._any_stopped = False
        self._without_barriers = False
        self._begun_s = self._moved_s = 0.0
        self._signs: object = None

    @property
    def learners_ended(self) -> bool:
        """True if the run is ending and no trainer will send another policy."""
        learners = [name for name, state in self._behaviors.items() if state.learns]
        return self.begun and all(learner_name(name) in self._running.ended for name in learners)

    @property
    def failed_at_start(self) -> bool:
        """True if a trainer failed before it was ready to learn. A resumed run would then fail the same way."""
        failed = self.failure.stage if self.failure is not None else ""
        return any(not state.was_ready and learner_name(name) == failed for name, state in self._behaviors.items())

    @property
    def would_save(self) -> bool:
        """True if a clean end would save something: a trainer has been ready, or all behaviours only play."""
        states = [*self._behaviors.values()]  # other threads also use this property
        learners = [state for state in states if state.learns and not self._playing]
        return any(state.was_ready for state in learners) if learners else bool(states)

    async def stop_on(self, stop: asyncio.Event) -> None:
        """Wait until a user requests the end of the run, then end it."""
        await stop.wait()
        self._end_early(STOPPED, "Stopped." if self._playing else "Learning was interrupted.")

    def check_time(self, now_s: float) -> None:
        """End the run if its time limit is reached."""
        if self._limit_s is not None and not self.begun and now_s - self._started_s >= self._limit_s:
            words = f"The run has reached its time limit of {self._limit_s:g} s (pipeline.max_wall_time_s)."
            self._end_early(OUT_OF_TIME, words)

    def check_rating(self, state: BehaviorState) -> None:
        """Stop training a behaviour if it has reached its target rating."""
        target = state.settings.stop_when.elo if state.settings.stop_when is not None else None
        if target is None or state.elo is None or state.elo < target or state.done or state.learner is None:
            return
        if state.behavior not in self._at_target:
            self._at_target.add(state.behavior)
            state.learner.control.send(LearnNoMore(f"its rating is {state.elo:.1f} (stop_when.elo)"))

    def _end_early(self, why: str, words: str) -> None:
        if not self.begun:
            self.ended_by = why
        saving = self.would_save and not self._playing
        log.info("%s%s", words, " Please wait while a checkpoint is saved." if saving else "")
        self.stop()

    def stop(self) -> None:
        """End the run before it is done: immediately if it has nothing to save, and otherwise cleanly."""
        if self.would_save:
            self.finish()
        else:
            self._begin()
            self._running.dismiss_all(min(self._sources_s, DISMISSED_S))

    def finish(self) -> None:
        """End the run cleanly: sources begin a last checkpoint and stop, and everything else drains."""
        if self.begun:
            return
        self._begin()
        if self._playing:
            self._broadcaster.send_to_sources(Stop())
        else:
            self._checkpointing.begin(then_stop=True)

    def fail(self, failure: HostFailed) -> bool:
        """Handle a failure: save what can be saved, and end the run; return False if the run had already failed."""
        if self.failure is not None:
            log.debug("another failure: %s", failure.message)
            return False
        self.failure = failure
        put_back()  # so that the failure is logged
        if self.begun and not self._running.unended:
            return True
        does = "ends" if self._playing else "saves what it can"
        log.error("%s has failed. The run %s, then reports the error.", failure.stage, does)
        log.debug("%s", failure.traceback)
        self._begin()
        if self._trainers_are_sound(failure.stage):
            self._without_barriers = True
            self._checkpointing.save_now()
        elif len(self._behaviors) > 1 and not self._folder.waits:
            self._checkpointing.save_now()  # there is no checkpoint, but sound learners export their policies
        self._broadcaster.send_to_sources(Stop())
        self._release_learners()
        return True

    def source_ended(self, name: str) -> None:
        """Handle a source that has stopped or has nothing left to produce; end the run after the last source."""
        self._exhausted.add(name)
        if name in self._owing:
            self._owing.remove(name)
            self._any_stopped = True
        if self.begun or not self._exhausted >= self._sources:
            return
        if self._behaviors:
            log.info("No more experience is arriving, so the run is ending.")
            self.finish()
        else:
            self.fail(HostFailed(_NOTHING_SEEN, "", name))

    def source_replaced(self, name: str) -> None:
        """Record that a source replaces a dead one; the new source produces steps even if the dead one had stopped."""
        self._exhausted.discard(name)

    def host_ended(self, name: str, how: str, in_order: bool) -> None:
        """Handle a host's end while the run is ending; `how` describes an abnormal end for a warning."""
        if not in_order and self.failure is None and name not in self._running.killed:
            log.warning("The process of %s %s as the run ended.", name, how)
        owed = name in self._owing
        self._owing.discard(name)
        self._checkpointing.host_ended(name)
        if owed and not self._owing and not self._any_stopped and self._checkpointing.busy:
            self._leave_barriers()  # no host is left to send one

    def checkpoint_ended(self, problem: str | None) -> None:
        """Handle a checkpoint's end. If the last one failed, fail the run, because its state is saved nowhere else."""
        if not self.begun:
            return
        if problem is not None and self.failure is None:
            self.failure = HostFailed(f"the run's last checkpoint could not be written: {problem}", "", "main")
        self.moved()
        self._release_learners()

    def learner_started(self) -> None:
        """Repeat the requests that a learner missed because it was still starting when the run's end began."""
        if self._checkpointing.busy and self._without_barriers:
            self._checkpointing.save_now()
        self._release_learners()

    def moved(self) -> None:
        """Record a sign of progress, which restarts the grace time."""
        self._moved_s = asyncio.get_running_loop().time()

    def _begin(self) -> None:
        if self.begun:
            return
        self.begun = True
        put_back()
        self._owing = {host.plan.name for host in self._broadcaster.sources()}
        self.moved()
        self._begun_s = self._moved_s
        self._running.until_all_ended(self._check_progress, min(_CHECK_S, self._sources_s / 2))

    def _check_progress(self) -> None:
        """Kill hosts that end too slowly: first only sources, and later all hosts."""
        now_s = asyncio.get_running_loop().time()
        signs = (self._checkpointing.signs(), len(self._owing), len(self._running.unended))
        if self._signs not in (None, signs):
            self._moved_s = now_s
        self._signs = signs
        silent_s = now_s - self._moved_s
        if current_disks().unanswered():  # main has waited for half of the grace time, and can't commit a checkpoint
            self._running.kill(self._running.unended, now_s - self._begun_s)
        elif not self._checkpointing.busy:
            if now_s - self._begun_s > self._sources_s:
                self._running.kill(self._owing, self._sources_s)
            if silent_s > (self._sources_s if self.failure is not None else self._grace_s):
                self._running.kill(self._running.unended, silent_s)
        elif not self._without_barriers:
            if silent_s > self._sources_s or now_s - self._begun_s > self._grace_s:
                self._leave_barriers()
        elif silent_s > self._grace_s * (1 - SOURCES_SHARE):  # the sources have had the rest
            self._running.kill(self._running.unended, silent_s)

    def _leave_barriers(self) -> None:
        """Stop waiting for barriers: let each learner save when it is next free."""
        self._without_barriers = True
        self.moved()
        left = ", ".join(sorted(self._owing))
        if left:
            text = "%s did not stop within %.0f s: saving the last checkpoint without it."
            log.warning(text, left, self._sources_s)
        else:  # if the log's disk hangs, main notices that, too
            running = ", ".join(sorted(self._running.unended))
            log.info("Waiting for the last checkpoint. Still running: %s.", running)
        self._checkpointing.save_now()

    def _release_learners(self) -> None:
        """Let learners end when their input queues end, unless a checkpoint still needs them."""
        if not self._checkpointing.busy:
            for state in self._behaviors.values():
                if state.learner is not None:
                    state.learner.control.send(Stop())

    def _trainers_are_sound(self, failed_stage: str) -> bool:
        """Return True if the trainers' current state is consistent and newer than the last checkpoint."""
        learners = [learner_name(state.behavior) for state in self._behaviors.values() if state.learner is not None]
        dead = any(name in self._running.ended or name == failed_stage for name in learners)
        return bool(learners) and not dead and failed_stage != "trainer"
