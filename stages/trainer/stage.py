"""The trainer stage, which passes trajectories to a trainer, makes it learn, emits its policies, and returns credits.

What the trainer learns depends only on its input and the order of the input: replaying a recorded input gives the same
weights.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.config.behaviors import StopWhenSettings
from headrace.queues.columns import Column
from headrace.queues.messages import Array, Columns, PolicyUpdate, TrajectoryBatch
from headrace.queues.specs import ActionSpec
from headrace.stages.activity import LEARNING
from headrace.stages.policy.design import require_columns
from headrace.stages.policy.sampling import environment_actions
from headrace.stages.stage import Stage, StageContext, Statistics
from headrace.stages.trainer.deliveries import Deliveries
from headrace.stages.trainer.protocol import Trainer, defaults_of
from headrace.stages.trainer.report import EpisodeSink, TrainerPort, TrainerReport
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
        episodes: the finished episodes in its input.
        takeover: replaces the trainer before the next batch, if that is wanted.
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
        self._unlearned: deque[_PendingRows] = deque()
        self._returned, self._arrived = Counter[int](), Counter[int]()
        self._unreported_age = False
        self.ended_by = ""
        self.late_rows = 0
        self.held_rows = 0
        self._criterion = StopCriterion(stop_when)
        judged, sink = self._criterion.episodes, self._port.each_episode
        self.episodes = FinishedEpisodes(behavior, strength, kept_returns, not trainer.imitates, judged, sink)
        self._unreported_rows = 0
        self._report_due = False
        self._policy: PolicyUpdate | None = None
        self._frames = 0
        self._repeats = False
        self.takeover = Takeover(make_trainer)
        self.changed: dict[str, float] = {}
        """Hyperparameters that were changed during the run, with their new values."""
        self._actions: ActionHistograms | None = None
        if actions is not None and not trainer.imitates:  # its teacher's trainer reports the actions
            self._actions = ActionHistograms(behavior, actions, trainer.squashed, trainer.rows_per_update)

    @property
    def version(self) -> int:
        """Version of the trainer's policy: the trainer's versions, plus those of earlier trainers."""
        return self.trainer.version + self.takeover.versions

    @property
    def updates(self) -> int:
        """The trainer's updates that changed weights, plus those of earlier trainers."""
        return self.trainer.policy_updates + self.takeover.updates

    @property
    def step(self) -> int:
        """The trainer's steps, plus those of earlier trainers."""
        return self.trainer.step + self.takeover.steps

    @property
    def done(self) -> bool:
        """True once the trainer has reached max_steps, or has been stopped earlier."""
        return bool(self.ended_by) or self.step >= self._max_steps

    def start(self, context: StageContext) -> None:
        """Store the context."""
        self._context = context

    def process(self, item: TrajectoryBatch) -> Iterator[PolicyUpdate]:
        """Add a batch, and learn if there are enough rows.

        Raises:
            StageError: if the rows lack a column that the trainer requires.
            DeliveryError: if deliveries are checked, and a trajectory arrives twice.
        """
        if self.takeover.wanted:
            yield self._change_trainer()
        if self._take(item):
            while self.trainer.ready():
                yield self._learn()
        self._end_item(item)

    def _take(self, item: TrajectoryBatch) -> bool:
        """Add a batch; return True if the trainer may now have enough rows to learn from."""
        if self._deliveries is not None:
            self._deliveries.check(item)
        self.episodes.add(item, self._context.statistics)
        if self._criterion.episodes and not self.done:
            self.end_learning(self._criterion.check(self.step, self.episodes.recent))
        self._arrived[item.source] += item.credits
        if self.done:
            self.late_rows += item.num_rows
            self._returned[item.source] += item.credits
            return False
        if not item.num_trajectories:  # a batch may contain only episodes or games that have ended
            return False
        if self.takeover.oldest >= 0:
            of_trainer = item.trajectories["first_version"] >= self.takeover.oldest
            if not of_trainer.all():  # steps by an earlier trainer's policies
                self._returned[item.source] += int(item.trajectories["credits"][~of_trainer].sum())
                self._report_due = True
                item = item.select(of_trainer)
            if not item.num_trajectories:
                return False
        if self._columns:
            require_columns(item, self._columns)
        with defaults_of(type(self.trainer)):
            self.trainer.add(item)
        if self._port.each_batch is not None:
            self._port.each_batch(item)
        frames = item.rows.get("env_frames")  # the environment steps that each action lasted
        self._repeats |= frames is not None
        self._frames += item.num_rows if frames is None else int(frames.sum())
        if self._actions is not None:
            self._actions.add(item.rows, item.num_rows, self._context.statistics)
        begun_by = float(item.trajectories["first_version"] @ item.lengths.astype(np.int64)) / item.num_rows
        self._unlearned.append(_PendingRows(item.source, item.num_rows, item.credits, begun_by))
        self.held_rows += item.credits
        self._unreported_age |= begun_by < self.version
        return True

    def end_learning(self, why: str) -> None:
        """Stop learning for this reason, as if `max_steps` were reached; do nothing if the reason is empty."""
        if why and not self.ended_by and not self.done:
            self.ended_by = why
            self._context.log.info("%s stops at step %d: %s.", self._behavior, self.step, why)

    def _end_item(self, item: TrajectoryBatch) -> None:
        if self.done:
            self._use_up(math.inf, self.version)
        self._unreported_rows += item.num_rows
        # Report after an update, and also halfway to the next update unless that is near. Reports are not sent more
        # often, because each one wakes this host and the main process.
        unreported, enough = self._unreported_rows, self.trainer.rows_per_update
        due = self._report_due or unreported >= enough or (2 * unreported >= enough and 4 * self.held_rows < 3 * enough)
        if due or self._reports_each or self.done:
            self.report_now()
        elif self._unreported_age and len(self._arrived) > 1:
            self._port.soon(self._report_arrivals)

    def policy(self) -> PolicyUpdate:
        """Return the last policy emitted, which actors use; before the first update, this is the untrained policy.

        It is not the trainer's current policy, whose step and normaliser have changed with the rows added since. If
        actors used that one, a resumed run would act differently from one that was never interrupted.
        """
        if self._policy is None:
            with defaults_of(type(self.trainer)):
                self._policy = replace(self.trainer.policy(), version=self.version, step=self.step)
        return self._policy

    def _change_trainer(self) -> PolicyUpdate:
        self._use_up(math.inf, self.version)
        self._report_due = True  # because actors may be waiting for the credits
        with defaults_of(type(self.trainer)):
            self.trainer = self.takeover.next(self.trainer)
        for name, value in self.changed.items():
            self.trainer.set_hyperparameter(name, value)
        self._policy = None
        return self.policy()

    def number_above(self, version: int) -> None:
        """Give policies higher versions than this one, which a different trainer used. Actors use the highest version.

        Only the versions continue from there; `updates` does not count the other trainer's updates, which are lost.
        """
        if version >= max(0, self.version):
            self.takeover.versions += version + 1 - self.version
            self._policy = replace(self.policy(), version=self.version)

    def set_hyperparameter(self, name: str, value: float) -> None:
        """Change a hyperparameter, with effect from the next update; the value is saved in checkpoints.

        Raises:
            StageError: if the trainer has no changeable hyperparameter of this name.
            ValueError: if the value is out of bounds.
        """
        self.trainer.set_hyperparameter(name, value)
        self.changed[name] = value

    def state_dict(self) -> Mapping[str, Any]:
        """Return the trainer's complete state, the last policy emitted, and the number of rows not yet learned from."""
        policy = self.policy()
        with defaults_of(type(self.trainer)):
            trainer = self.trainer.state_dict()
        return {
            **self.takeover.state_dict(),
            "hyperparameters": dict(self.changed),
            "threads": None if self._threads is None else self._threads.state,
            "trainer": trainer,
            "policy": {"weights": policy.weights, "step": policy.step, "version": policy.version},
            "updates": self.updates,
            "held_rows": self.held_rows,
            "recent_returns": list(self.episodes.recent),
            "stop_when": self._criterion.state_dict(),
            "episodes": self.episodes.count,
            "frames": self._frames,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from a checkpoint."""
        with defaults_of(type(self.trainer)):
            self.trainer.load_state_dict(state["trainer"])
            current = self.trainer.policy()
        for name, value in state.get("hyperparameters", {}).items():
            self.set_hyperparameter(name, float(value))
        self.takeover.load_state_dict(state)
        if self._threads is not None and (threads := state.get("threads")) is not None:
            self._threads.keep(int(threads))
        policy = state["policy"]
        weights = np.asarray(policy["weights"], np.float32)
        if len(weights) != len(current.weights):  # the environment's vectors have become float64, or float32
            weights = current.weights
        self._policy = replace(current, weights=weights, step=int(policy["step"]), version=int(policy["version"]))
        self._unlearned.clear()
        self.held_rows = int(state["held_rows"])
        if self.held_rows:
            self._unlearned.append(_PendingRows(RESTORED_SOURCE, self.held_rows, self.held_rows))
        self.episodes.recent.extend(float(value) for value in state["recent_returns"])
        self.episodes.count = int(state["episodes"])
        self._frames = int(state["frames"])
        self._criterion.load_state_dict(state["stop_when"])
        if self._criterion.episodes and not self.done:
            self.end_learning(self._criterion.check(self.step, self.episodes.recent))

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
        if (recent := self.episodes.recent_return) is not None:
            add(self._behavior, "Pipeline/Update Mean Return", recent)
        if self._repeats:
            add(self._behavior, "Environment/Frames", float(self._frames), "last")
        rows_with_version, age = self._use_up(used, version)
        self._report_due = True
        if rows_with_version and not self.trainer.imitates:  # an imitator's rows have its teacher's versions
            add(self._behavior, "Policy/Lag", age / rows_with_version)  # waiting rows grow older: docs/decisions/025
        self._policy = replace(policy, version=self.version, step=self.step)
        before, self._learned_at = self._learned_at, self._clock()
        took = self._learned_at - began
        if before is not None:
            self._collecting_s.append(began - before)
            self._learning_s.append(took)
        self._context.timings.add(LEARNING, took)
        add(self._behavior, "Pipeline/Update Duration", took)
        return self._policy

    def _use_up(self, rows: float, version: int) -> tuple[int, float]:
        """Give back the credits of the oldest `rows` rows, which the update after `version` has used up.

        Returns:
            The number of rows whose version is known, and the sum over these rows of the number of updates since then.
        """
        rows_with_version, age = 0, 0.0
        while rows > 0 and self._unlearned:
            waiting = self._unlearned[0]
            used = int(min(rows, waiting.rows))
            share = waiting.credits * used // waiting.rows
            rows -= used
            waiting.rows -= used
            waiting.credits -= share
            self.held_rows -= share
            self._returned[waiting.source] += share
            if waiting.version is not None:
                rows_with_version += used
                age += used * (version - waiting.version)
            if not waiting.rows:
                self._unlearned.popleft()
        return rows_with_version, age

    def _report_arrivals(self) -> None:
        """Report if steps by older versions have arrived, because other actors may be waiting for them."""
        if self._unreported_age:
            self.report_now()

    def report_now(self) -> None:
        """Send a report without waiting for a batch."""
        self._unreported_rows, self._unreported_age, self._report_due = 0, False, False
        collecting_s, learning_s = tuple(self._collecting_s), tuple(self._learning_s)
        returns = tuple(self.episodes.kept_returns)
        self._collecting_s.clear()
        self._learning_s.clear()
        self.episodes.kept_returns.clear()
        self._port.report(
            TrainerReport(
                behavior=self._behavior,
                step=self.step,
                version=self.version,
                done=self.done,
                ended_by=self.ended_by,
                recent_return=self.episodes.recent_return,
                episodes=self.episodes.count,
                returned=dict(self._returned),
                held=self.held_rows,
                arrived=dict(self._arrived),
                returns=returns,
                parameter_generation=self.episodes.parameter_generation,
                collecting_s=collecting_s,
                learning_s=learning_s,
                updates=self.updates,
            )
        )


@dataclass(slots=True)
class _PendingRows:
    """The rows of a batch that were added to the trainer but not yet learned from."""

    source: int
    rows: int
    credits: int
    version: float | None = None
    """Mean over rows of the policy version that began the row's trajectory; None for rows from before a resume."""


class Takeover:
    """Earlier trainers' step and version totals, and the request for a new trainer.

    Args:
        make: makes a trainer with initial weights; None if the trainer is never replaced.

    Attributes:
        steps: the number of steps that earlier trainers have counted.
        versions: the number of policy versions that earlier trainers have used.
        updates: the number of updates that earlier trainers have made.
        wanted: true if a new trainer is due to take over.
        oldest: version of the current trainer's first policy; steps by older versions belong to a previous trainer. -1
            if this is the first trainer.
    """

    def __init__(self, make: Callable[[], Trainer] | None) -> None:
        self._make = make
        self.wanted = False
        self._number = 0
        """Number of the newest request, whether granted or pending."""
        self._weights: NDArray[np.float32] | None = None
        self.oldest = -1
        self.steps = 0
        self.versions = 0
        self.updates = 0

    def want(self, number: int, weights: NDArray[np.float32] | None) -> None:
        """Request a new trainer with a new optimizer, normaliser and schedules.

        Args:
            number: increases with each request, and is at least the policy version at which the request was decided. A
                request has no effect unless its number is above all earlier ones, including those from a checkpoint.
            weights: the weights of the new trainer's first policy; None for newly drawn weights.
        """
        if number > self._number:
            self._number, self.wanted, self._weights = number, True, weights

    def next(self, before: Trainer) -> Trainer:
        """Make and return the new trainer that takes over from `before`."""
        assert self._make is not None, "only called to replace the trainer"
        version, trainer = before.version + self.versions + 1, self._make()
        if self._weights is not None:
            trainer.take_weights(replace(trainer.policy(), weights=self._weights).tensors())
        self.wanted, self._weights = False, None
        self.steps += before.step
        self.updates += before.policy_updates
        self.versions, self.oldest = version - trainer.version, version
        return trainer

    def state_dict(self) -> dict[str, Any]:
        """Return the data that the stage must save for this object."""
        return {
            "begins_anew": {"weights": self._weights} if self.wanted else None,
            "begun_anew": self._number,
            "lost_updates": self.versions,
            "former_steps": self.steps,
            "former_updates": self.updates,
            "oldest_version": self.oldest,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from the stage's state."""
        pending = state.get("begins_anew")
        self.wanted, self._weights = pending is not None, None if pending is None else pending["weights"]
        self.versions, self._number = int(state.get("lost_updates", 0)), int(state.get("begun_anew", 0))
        self.steps, self.oldest = int(state.get("former_steps", 0)), int(state.get("oldest_version", -1))
        self.updates = int(state.get("former_updates", 0))


RECENT_EPISODES = 100
"""Number of episodes in the recent mean return, as is customary in RL."""


class FinishedEpisodes:
    """Counts and reports the episodes of a behaviour's learning agents.

    Args:
        behavior: the behaviour name.
        strength: strength of the extrinsic reward, for its statistic; 0 if the trainer does not learn from it.
        most_kept: the maximum number of returns kept for the next report; 0 if no lesson depends on the behaviour.
        judged: the number of returns that the stop criterion uses; 0 without a criterion.
        sink: called with the ended episodes of each batch, if not None.
        reports: whether to report statistics; false for an imitator, whose episodes are reported by its teacher's
            trainer.

    Attributes:
        count: the number of episodes so far.
        recent: returns of up to the last 100 episodes, or of `judged` episodes if that is more.
        kept_returns: the newest returns since the last report, all of them from episodes begun under the same
            environment parameters.
        parameter_generation: generation of these parameters.
    """

    def __init__(
        self,
        behavior: str,
        strength: float,
        most_kept: int,
        reports: bool,
        judged: int = 0,
        sink: EpisodeSink | None = None,
    ) -> None:
        self.count = 0
        self.recent: deque[float] = deque(maxlen=max(RECENT_EPISODES, judged))
        self.parameter_generation = 0
        self._behavior = behavior
        self._strength = strength
        self.kept_returns: deque[float] = deque(maxlen=most_kept)
        self._reports = reports
        self._sink = sink

    @property
    def recent_return(self) -> float | None:
        """Mean return of up to the last 100 episodes; None before the first one."""
        recent = [*islice(reversed(self.recent), RECENT_EPISODES)]
        return math.fsum(recent) / len(recent) if recent else None

    def add(self, batch: TrajectoryBatch, statistics: Statistics) -> None:
        """Add the episodes that ended in a batch."""
        if not batch.episodes or not len(batch.episodes["episode_returns"]):
            return
        learning = batch.episodes["episode_learning"]
        returns = batch.episodes["episode_returns"][learning].tolist()
        lengths = batch.episodes["episode_lengths"][learning].tolist()
        self.count += len(returns)
        if self.kept_returns.maxlen:
            # Keep the returns of episodes begun under the newest parameters so far; drop all others.
            parameters = batch.episodes.get("episode_parameters")
            begun = np.zeros(len(returns), np.int32) if parameters is None else parameters[learning]
            newest = int(begun.max(initial=0))
            if newest > self.parameter_generation:
                self.parameter_generation = newest
                self.kept_returns.clear()
            self.kept_returns.extend(np.array(returns)[begun == self.parameter_generation].tolist())
        if not self._reports:
            return
        self.recent.extend(returns)
        if self._sink is not None and returns:
            self._sink(self.count, returns, lengths)
        statistics.extend(self._behavior, "Environment/Cumulative Reward", returns, "histogram")
        statistics.extend(self._behavior, "Environment/Episode Length", lengths, "mean")
        if self._strength:
            scaled = [value * self._strength for value in returns]
            statistics.extend(self._behavior, "Policy/Extrinsic Reward", scaled, "mean")
        if "episode_group_over" in batch.episodes:
            over = learning & batch.episodes["episode_group_over"]
            of_groups = batch.episodes["episode_group_returns"][over].tolist()
            statistics.extend(self._behavior, "Environment/Group Cumulative Reward", of_groups, "histogram")


class StopCriterion:
    """Decides when to stop a trainer before `max_steps`.

    A trainer stops when its returns reach a threshold or stop rising. The decision depends only on the sequence of
    returns, so a trainer's replicas all agree, and so do repeated deterministic runs.

    Args:
        settings: the behaviour's `stop_when` settings; None to never stop.

    Attributes:
        episodes: the number of returns that the criterion uses; 0 without a criterion.
    """

    def __init__(self, settings: StopWhenSettings | None) -> None:
        self.episodes = 0 if settings is None else settings.over
        self._settings = settings
        self._best = -math.inf
        self._best_step = 0

    def check(self, step: int, recent: Sequence[float]) -> str:
        """Return the reason to stop, as readable text; empty if the criterion is not met.

        Args:
            step: the trainer's step.
            recent: returns of the last episodes; at least `episodes` returns, if that many episodes have ended.
        """
        settings = self._settings
        if settings is None or len(recent) < settings.over:
            return ""
        mean = math.fsum(islice(reversed(recent), settings.over)) / settings.over
        if settings.mean_reward is not None and mean >= settings.mean_reward:
            return f"the mean return of {settings.over} episodes is {mean:g} (stop_when.mean_reward)"
        if mean > self._best:
            self._best, self._best_step = mean, step
        since = step - self._best_step
        if settings.plateau is None or since < settings.plateau:
            return ""
        return f"the mean return of {settings.over} episodes has not risen for {since} steps (stop_when.plateau)"

    def state_dict(self) -> Mapping[str, Any]:
        """Return the highest mean so far, and the step at which it was reached."""
        return {"best": self._best, "best_step": self._best_step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from a checkpoint."""
        self._best, self._best_step = float(state["best"]), int(state["best_step"])


SAMPLED_PER_UPDATE = 32
"""Number of rows per update whose actions are sampled (fewer for small updates).

Sampling all rows would take too long.
"""
_SMALLEST_STRIDE = 32


class ActionHistograms:
    """Samples actions, and reports them as statistics `action/<head>`.

    For discrete heads, these are the choices; for continuous heads, the actions that environments receive.

    Every n-th row that arrives is sampled, so all rows count equally.

    Args:
        behavior: the behaviour name.
        actions: the behaviour's actions.
        squashed: whether continuous actions were drawn as SAC draws them.
        rows_per_update: the trainer's rows per update.
    """

    def __init__(self, behavior: str, actions: ActionSpec, squashed: bool, rows_per_update: int) -> None:
        self._behavior = behavior
        self._actions = actions
        self._squashed = squashed
        self._stride = max(_SMALLEST_STRIDE, rows_per_update // SAMPLED_PER_UPDATE)
        self._next = 0
        """Number of rows to skip before the next row to sample."""
        self._taken: dict[str, list[Array]] = {"continuous_actions": [], "discrete_actions": []}
        self._count = 0
        """Number of sampled rows that are not yet reported."""
        self._enough = 1

    def add(self, rows: Columns, count: int, statistics: Statistics) -> None:
        """Sample actions from a batch's rows [count, …], and report the samples once there are enough of them.

        For a run's first report, one sample is enough.
        """
        if self._next < count:
            for name, taken in self._taken.items():
                if name in rows:
                    taken.append(rows[name][self._next :: self._stride].copy())
            several = -(-(count - self._next) // self._stride)
            self._count += several
            self._next += several * self._stride
        self._next -= count
        if self._count < self._enough:
            return
        heads = {"continuous_actions": self._actions.continuous_heads, "discrete_actions": self._actions.branch_heads}
        for name, taken in self._taken.items():
            if taken:
                values = np.concatenate(taken)
                if name == "continuous_actions":
                    values = environment_actions(self._actions, values, self._squashed)
                for head, column in zip(heads[name], values.T, strict=True):
                    statistics.extend(self._behavior, f"action/{head}", column)
                taken.clear()
        self._count, self._enough = 0, SAMPLED_PER_UPDATE
