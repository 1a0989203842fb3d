"""The trainer stage, which passes trajectories to a trainer, makes it learn, emits its policies, and returns credits.

What the trainer learns depends only on its input and the order of the input: replaying a recorded input gives the same
weights.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.config.behaviors import StopWhenSettings
from headrace.queues.columns import Column
from headrace.queues.messages import PolicyUpdate, TrajectoryBatch
from headrace.queues.specs import ActionSpec
from headrace.stages.activity import LEARNING
from headrace.stages.policy.design import require_columns
from headrace.stages.stage import Stage, StageContext
from headrace.stages.trainer.input_tracking import (
    ActionHistograms,
    Deliveries,
    FinishedEpisodes,
    PendingRows,
    StopCriterion,
)
from headrace.stages.trainer.protocol import Trainer, defaults_of
from headrace.stages.trainer.report import TrainerPort, TrainerReport
from headrace.stages.trainer.takeover import Takeover
from headrace.stages.trainer.thread_choice import ThreadChoice

RESTORED_SOURCE = -1
"""The source of the rows that a resumed trainer starts with."""


class TrainerStage(Stage[TrajectoryBatch, PolicyUpdate]):
    """Drives one trainer.

    Consumes TrajectoryBatches with one behaviour name; yields a PolicyUpdate after each update. Once `max_steps` is
    reached, it stops learning, but continues to drain its input, so no upstream stage blocks.

    Args:
        trainer: the trainer.
        behavior: the behaviour name.
        max_steps: the number of agent steps after which the stage stops learning.
        strength: strength of the extrinsic reward, for its statistic; 0 if the trainer does not learn from it.
        port: the connection to the stage's host.
        reports_each: whether to report after each batch, for a main process that waits until stages are idle.
        kept_returns: the maximum number of episodes' returns in a report.
        clock: returns the time in seconds, for measuring updates.
        columns: the columns that the trainer requires from the policies, which all rows must have.
        actions: the behaviour's actions, for histograms; None for no histograms.
        deliveries: in tests, checks that no trajectory arrives twice; None for no check.
        stop_when: a criterion for stopping before `max_steps`; None to stop only at `max_steps`.
        threads: chooses the number of threads for updates; None to use the process's setting.
        make_trainer: makes a replacement for `trainer` that starts from scratch; None if the trainer is never replaced.

    Attributes:
        ended_by: the reason, as readable text, why the stage stopped before `max_steps`; empty if it did not.
        late_rows: the number of rows that arrived after the trainer was done.
        held_rows: flow credits of the rows that were added but not yet learned from.
    """

    may_block = True

    def __init__(
        self,
        trainer: Trainer,
        behavior: str,
        max_steps: int,
        strength: float = 1.0,
        port: TrainerPort | None = None,
        reports_each: bool = False,
        kept_returns: int = 0,
        clock: Callable[[], float] = time.perf_counter,
        columns: tuple[Column, ...] = (),
        actions: ActionSpec | None = None,
        deliveries: Deliveries | None = None,
        stop_when: StopWhenSettings | None = None,
        threads: ThreadChoice | None = None,
        make_trainer: Callable[[], Trainer] | None = None,
    ) -> None:
        self.trainer = trainer
        self._behavior = behavior
        self._max_steps = max_steps
        self._port = port or TrainerPort()
        self._reports_each = reports_each
        self._clock = clock
        self._threads = threads
        self._columns = columns
        self._deliveries = deliveries
        self._learned_at: float | None = None
        self._collecting_s: list[float] = []
        self._learning_s: list[float] = []
        self._context = StageContext("trainer")
        self._unlearned: deque[PendingRows] = deque()
        self._returned: dict[int, int] = {}
        self._arrived: dict[int, int] = {}
        self._unreported_age = False
        self.ended_by = ""
        self.late_rows = 0
        self.held_rows = 0
        self._criterion = StopCriterion(stop_when)
        judged, sink = self._criterion.episodes, self._port.each_episode
        self._episodes = FinishedEpisodes(behavior, strength, kept_returns, not trainer.imitates, judged, sink)
        self._unreported_rows = 0
        self._policy: PolicyUpdate | None = None
        self._frames = 0
        self._repeats = False
        self._takeover = Takeover(make_trainer)
        self.changed: dict[str, float] = {}
        """Hyperparameters that were changed during the run, with their new values."""
        self._actions: ActionHistograms | None = None
        if actions is not None and not trainer.imitates:  # its teacher's trainer reports the actions
            self._actions = ActionHistograms(actions, trainer.squashed, trainer.rows_per_update)

    @property
    def version(self) -> int:
        """Version of the trainer's policy: the trainer's updates, plus those of earlier trainers."""
        return self.trainer.version + self._takeover.versions

    @property
    def step(self) -> int:
        """The trainer's steps, plus those of earlier trainers."""
        return self.trainer.step + self._takeover.steps

    @property
    def done(self) -> bool:
        """True once the trainer has reached max_steps, or has been stopped earlier."""
        return bool(self.ended_by) or self.step >= self._max_steps

    @property
    def recent_return(self) -> float | None:
        """Mean return of up to the last 100 finished episodes; None before the first one."""
        return self._episodes.recent_return

    def start(self, context: StageContext) -> None:
        """Store the context."""
        self._context = context

    def process(self, item: TrajectoryBatch) -> Iterator[PolicyUpdate]:
        """Add a batch, and learn if there are enough rows.

        Raises:
            StageError: if the rows lack a column that the trainer requires.
            DeliveryError: if deliveries are checked, and a trajectory arrives twice.
        """
        if self._takeover.wanted:
            yield self._change_trainer()
        if self._take(item):
            while self.trainer.ready():
                yield self._learn()
                self._unreported_rows = self.trainer.rows_per_update
        self._end_item(item)

    def _take(self, item: TrajectoryBatch) -> bool:
        """Add a batch; return True if the trainer may now have enough rows to learn from."""
        if self._deliveries is not None:
            self._deliveries.check(item)
        self._episodes.add(item, self._context.statistics)
        if self._criterion.episodes:
            self._judge()
        credits = item.credits
        self._arrived[item.source] = self._arrived.get(item.source, 0) + credits
        if self.done:
            self.late_rows += item.num_rows
            self._give_back(item.source, credits)
            return False
        if not item.num_trajectories:  # a batch may contain only episodes or games that have ended
            return False
        if self._takeover.oldest >= 0:
            item, others = self._takeover.own(item)
            self._give_back(item.source, others)
            if not item.num_trajectories:
                return False
        if self._columns:
            require_columns(item, self._columns)
        if self._port.each_batch is not None:
            self._port.each_batch(item)
        with defaults_of(type(self.trainer)):
            self.trainer.add(item)
        frames = item.rows.get("env_frames")  # the environment steps that each action lasted
        self._repeats |= frames is not None
        self._frames += item.num_rows if frames is None else int(frames.sum())
        if self._actions is not None:
            self._actions.add(item.rows, item.num_rows)
        begun_by = float(item.trajectories["first_version"] @ item.lengths.astype(np.int64)) / item.num_rows
        self._unlearned.append(PendingRows(item.source, item.num_rows, item.credits, begun_by))
        self.held_rows += item.credits
        self._unreported_age |= begun_by < self.version
        return True

    def _judge(self) -> None:
        """Stop learning if the stop criterion is met."""
        if not self.done:
            self._criterion.check(self.step, self._episodes.recent)
            self.end_learning(self._criterion.met)

    def end_learning(self, why: str) -> None:
        """Stop learning for this reason, as if `max_steps` were reached; do nothing if the reason is empty."""
        if why and not self.ended_by and not self.done:
            self.ended_by = why
            self._context.log.info("%s stops at step %d: %s.", self._behavior, self.step, why)

    def _end_item(self, item: TrajectoryBatch) -> None:
        if self.done:
            self._release()
        self._unreported_rows += item.num_rows
        # Report after an update, and also halfway to the next update unless that is near. Reports are not sent more
        # often, because each one wakes this host and the main process.
        unreported, enough = self._unreported_rows, self.trainer.rows_per_update
        due = unreported >= enough or (2 * unreported >= enough and 4 * self.held_rows < 3 * enough)
        if due or self._reports_each or self.done:
            self._report()
        elif self._unreported_age and len(self._arrived) > 1:
            self._port.soon(self._report_arrivals)

    def _release(self) -> None:
        while self._unlearned:
            waiting = self._unlearned.popleft()
            self.held_rows -= waiting.credits
            self._give_back(waiting.source, waiting.credits)

    def policy(self) -> PolicyUpdate:
        """Return the last policy emitted, which actors use; before the first update, this is the untrained policy.

        It is not the trainer's current policy, whose step and normaliser have changed with the rows added since. If
        actors used that one, a resumed run would act differently from one that was never interrupted.
        """
        if self._policy is None:
            with defaults_of(type(self.trainer)):
                self._policy = self._takeover.numbered(self.trainer.policy())
        return self._policy

    def begin_anew(self, number: int, weights: NDArray[np.float32] | None = None) -> None:
        """Replace the trainer before the next batch; see `Takeover.want`."""
        self._takeover.want(number, weights)

    def _change_trainer(self) -> PolicyUpdate:
        self._release()
        with defaults_of(type(self.trainer)):
            self.trainer = self._takeover.next(self.trainer)
        for name, value in self.changed.items():
            self.trainer.set_hyperparameter(name, value)
        self._policy = None
        return self.policy()

    def number_above(self, version: int) -> None:
        """Give policies higher versions than this one, which a different trainer used. Actors use the highest version.

        The count of updates continues from there, as if none of the other trainer's updates had been lost.
        """
        if self._takeover.number_above(version, self.trainer.version):
            self._policy = replace(self.policy(), version=self.version)

    def set_hyperparameter(self, name: str, value: float) -> None:
        """Change a hyperparameter, with effect from the next update; the value is saved in checkpoints.

        Raises:
            StageError: if the trainer has no changeable hyperparameter of this name.
            ValueError: if the value is out of bounds.
        """
        self.trainer.set_hyperparameter(name, value)
        self.changed[name] = value

    def report_now(self) -> None:
        """Send a report without waiting for a batch."""
        self._report()

    def state_dict(self) -> Mapping[str, Any]:
        """Return the trainer's complete state, the last policy emitted, and the number of rows not yet learned from."""
        policy = self.policy()
        with defaults_of(type(self.trainer)):
            trainer = self.trainer.state_dict()
        changed = {"hyperparameters": dict(self.changed)} if self.changed else {}
        threads = None if self._threads is None else self._threads.state
        chosen = {} if threads is None else {"threads": threads}
        return {
            **self._takeover.state_dict(),
            **changed,
            **chosen,
            "trainer": trainer,
            "policy": {"weights": policy.weights, "step": policy.step, "version": policy.version},
            "held_rows": self.held_rows,
            "recent_returns": list(self._episodes.recent),
            "stop_when": self._criterion.state_dict(),
            "episodes": self._episodes.count,
            "frames": self._frames,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from a checkpoint."""
        with defaults_of(type(self.trainer)):
            self.trainer.load_state_dict(state["trainer"])
            current = self.trainer.policy()
        for name, value in state.get("hyperparameters", {}).items():
            self.set_hyperparameter(name, float(value))
        self._takeover.load_state_dict(state)
        if self._threads is not None and "threads" in state:
            self._threads.keep(int(state["threads"]))
        policy = state["policy"]
        weights = np.asarray(policy["weights"], np.float32)
        if len(weights) != len(current.weights):  # the environment's vectors have become float64, or float32
            weights = current.weights
        self._policy = replace(current, weights=weights, step=int(policy["step"]), version=int(policy["version"]))
        self._unlearned.clear()
        self.held_rows = int(state["held_rows"])
        if self.held_rows:
            self._unlearned.append(PendingRows(RESTORED_SOURCE, self.held_rows, self.held_rows))
        self._episodes.recent.extend(float(value) for value in state["recent_returns"])
        self._episodes.count = int(state["episodes"])
        self._frames = int(state["frames"])
        self._criterion.load_state_dict(state["stop_when"])
        if self._criterion.episodes:
            self._judge()

    def _learn(self) -> PolicyUpdate:
        if len(self._arrived) > 1:
            self._report_arrivals()  # report now, so waiting actors can continue during the update
        began, version = self._clock(), self.version
        if self._threads is not None:
            self._threads.begin()
        with defaults_of(type(self.trainer)):
            used = self.trainer.learn()
            policy = self.trainer.policy()
        if self._threads is not None:
            self._threads.took(self._clock() - began, used)
        add = self._context.statistics.add
        add(self._behavior, "Pipeline/Update Experiences", float(used))
        if (recent := self._episodes.recent_return) is not None:
            add(self._behavior, "Pipeline/Update Mean Return", recent)
        if self._repeats:
            add(self._behavior, "Environment/Frames", float(self._frames), "last")
        if self._actions is not None:
            self._actions.report(self._context.statistics, self._behavior)
        rows_with_version, age = self._use_up(used, version)
        if rows_with_version and not self.trainer.imitates:  # an imitator's rows have its teacher's versions
            add(self._behavior, "Policy/Lag", age / rows_with_version)  # waiting rows grow older: docs/decisions/025
        self._policy = self._takeover.numbered(policy)
        before, self._learned_at = self._learned_at, self._clock()
        took = self._learned_at - began
        if before is not None:
            self._collecting_s.append(began - before)
            self._learning_s.append(took)
        self._context.timings.add(LEARNING, took)
        add(self._behavior, "Pipeline/Update Duration", took)
        return self._policy

    def _use_up(self, rows: int, version: int) -> tuple[int, float]:
        """Give back the credits of the oldest `rows` rows, which the update after `version` has used up.

        Returns:
            The number of rows whose version is known, and the sum over these rows of the number of updates since then.
        """
        rows_with_version, age = 0, 0.0
        while rows > 0 and self._unlearned:
            waiting = self._unlearned[0]
            used = min(rows, waiting.rows)
            share = waiting.credits * used // waiting.rows
            rows -= used
            waiting.rows -= used
            waiting.credits -= share
            self.held_rows -= share
            self._give_back(waiting.source, share)
            if waiting.version is not None:
                rows_with_version += used
                age += used * (version - waiting.version)
            if not waiting.rows:
                self._unlearned.popleft()
        return rows_with_version, age

    def _give_back(self, source: int, amount: int) -> None:
        if amount:  # a report is due, because actors may be waiting for these credits
            self._returned[source] = self._returned.get(source, 0) + amount
            self._unreported_rows = self.trainer.rows_per_update

    def _report_arrivals(self) -> None:
        """Report if steps by older versions have arrived, because other actors may be waiting for them."""
        if self._unreported_age:
            self._report()

    def _report(self) -> None:
        self._unreported_rows = 0
        self._unreported_age = False
        collecting_s, learning_s = tuple(self._collecting_s), tuple(self._learning_s)
        returns = tuple(self._episodes.kept_returns)
        self._collecting_s.clear()
        self._learning_s.clear()
        self._episodes.kept_returns.clear()
        self._port.report(
            TrainerReport(
                behavior=self._behavior,
                step=self.step,
                version=self.version,
                done=self.done,
                ended_by=self.ended_by,
                recent_return=self._episodes.recent_return,
                episodes=self._episodes.count,
                returned=dict(self._returned),
                held=self.held_rows,
                arrived=dict(self._arrived),
                returns=returns,
                parameter_generation=self._episodes.parameter_generation,
                collecting_s=collecting_s,
                learning_s=learning_s,
            )
        )
