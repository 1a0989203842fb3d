"""Bookkeeping on a trainer stage's input: finished episodes, action histograms, duplicate deliveries."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from headrace.config.behaviors import StopWhenSettings
from headrace.queues.messages import Array, Columns, TrajectoryBatch
from headrace.queues.specs import ActionSpec
from headrace.stages.errors import StageError
from headrace.stages.policy.sampling import environment_actions
from headrace.stages.stage import Statistics
from headrace.stages.trainer.report import EpisodeSink

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
            self._keep(returns, batch.episodes.get("episode_parameters"), learning)
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

    def _keep(self, returns: list[float], parameters: Array | None, learning: Array) -> None:
        """Keep the returns of episodes begun under the newest parameters so far; drop all others."""
        begun = parameters[learning] if parameters is not None else np.zeros(len(returns), np.int32)
        newest = int(begun.max(initial=0))
        if newest > self.parameter_generation:
            self.parameter_generation = newest
            self.kept_returns.clear()
        self.kept_returns.extend(
            value for value, one in zip(returns, begun.tolist(), strict=True) if one == self.parameter_generation
        )


class StopCriterion:
    """Decides when to stop a trainer before `max_steps`.

    A trainer stops when its returns reach a threshold or stop rising. The decision depends only on the sequence of
    returns, so a trainer's replicas all agree, and so do repeated deterministic runs.

    Args:
        settings: the behaviour's `stop_when` settings; None to never stop.

    Attributes:
        episodes: the number of returns that the criterion uses; 0 without a criterion.
        met: the reason why the trainer was stopped, as readable text; empty until then.
    """

    def __init__(self, settings: StopWhenSettings | None) -> None:
        self.episodes = 0 if settings is None else settings.over
        self.met = ""
        self._settings = settings
        self._best = -math.inf
        self._best_step = 0

    def check(self, step: int, recent: Sequence[float]) -> None:
        """Check the criterion, and set `met` if it is satisfied.

        Args:
            step: the trainer's step.
            recent: returns of the last episodes; at least `episodes` returns, if that many episodes have ended.
        """
        settings = self._settings
        if settings is None or self.met or len(recent) < settings.over:
            return
        mean = math.fsum(islice(reversed(recent), settings.over)) / settings.over
        if settings.mean_reward is not None and mean >= settings.mean_reward:
            self.met = f"the mean return of {settings.over} episodes is {mean:g} (stop_when.mean_reward)"
        if mean > self._best:
            self._best, self._best_step = mean, step
        elif settings.plateau is not None and step - self._best_step >= settings.plateau and not self.met:
            since = step - self._best_step
            self.met = (
                f"the mean return of {settings.over} episodes has not risen for {since} steps (stop_when.plateau)"
            )

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
        actions: the behaviour's actions.
        squashed: whether continuous actions were drawn as SAC draws them.
        rows_per_update: the trainer's rows per update.
    """

    def __init__(self, actions: ActionSpec, squashed: bool, rows_per_update: int) -> None:
        self._actions = actions
        self._squashed = squashed
        self._stride = max(_SMALLEST_STRIDE, rows_per_update // SAMPLED_PER_UPDATE)
        self._next = 0
        """Number of rows to skip before the next row to sample."""
        self._taken: dict[str, list[Array]] = {"continuous_actions": [], "discrete_actions": []}
        self._count = 0
        """Number of sampled rows that are not yet reported."""
        self._reported = False

    def add(self, rows: Columns, count: int) -> None:
        """Sample actions from a batch's rows [count, …]."""
        if self._next < count:
            for name, taken in self._taken.items():
                if name in rows:
                    taken.append(rows[name][self._next :: self._stride].copy())
            several = -(-(count - self._next) // self._stride)
            self._count += several
            self._next += several * self._stride
        self._next -= count

    def report(self, statistics: Statistics, behavior: str) -> None:
        """Report the sampled actions, and drop them, if enough are sampled; for a run's first report, one is enough."""
        if self._count < (SAMPLED_PER_UPDATE if self._reported else 1):
            return
        heads = {"continuous_actions": self._actions.continuous_heads, "discrete_actions": self._actions.branch_heads}
        for name, taken in self._taken.items():
            if taken:
                values = np.concatenate(taken)
                if name == "continuous_actions":
                    values = environment_actions(self._actions, values, self._squashed)
                for head, column in zip(heads[name], values.T, strict=True):
                    statistics.extend(behavior, f"action/{head}", column)
                taken.clear()
        self._count, self._reported = 0, True


# Only tests check deliveries, by setting `HEADRACE_DELIVERIES`: custom stages may legitimately drop, delay or duplicate
# trajectories.
VARIABLE = "HEADRACE_DELIVERIES"
"""Environment variable that turns on the check. With `once`, no trajectory may arrive twice or out of order within its
source; with `all`, none may be missing either."""


class DeliveryError(StageError):
    """Raised if a trajectory arrives twice, out of order, or never; the message gives source and sequence numbers."""


class Deliveries:
    """Checks the sequence numbers of trajectories that arrive at a trainer, per behaviour id and source.

    Args:
        complete: whether to require all numbers, starting with 0.
    """

    def __init__(self, complete: bool) -> None:
        self._complete = complete
        self._next: dict[tuple[str, int], int] = {}

    @classmethod
    def asked_for(cls) -> Deliveries | None:
        """Make the checker that the environment variable requests; return None if it requests no check."""
        asked = os.environ.get(VARIABLE)
        return cls(complete=asked == "all") if asked in ("once", "all") else None

    def check(self, batch: TrajectoryBatch) -> None:
        """Check a batch. Batches without sequence numbers, from a custom stage, pass.

        Raises:
            DeliveryError: if a trajectory arrives twice or out of order, or if an earlier trajectory is missing.
        """
        numbers = batch.trajectories.get("numbers")
        if numbers is None or not len(numbers):
            return
        key = batch.behavior_id, batch.source
        next_number = self._next.get(key, 0)
        steps = np.diff(numbers, prepend=next_number - 1)
        wrong = np.flatnonzero(steps != 1 if self._complete else steps < 1)
        if len(wrong):
            expected = int(numbers[wrong[0]] - steps[wrong[0]]) + 1
            number = int(numbers[wrong[0]])
            what = "is a duplicate or out of order" if number < expected else f"arrived, but {expected} did not"
            raise DeliveryError(
                f"{batch.behavior_id}: trajectory {number} of actor {batch.source} {what}: expected "
                f"{'' if self._complete else 'at least '}number {expected}, got a batch of {int(numbers[0])} to "
                f"{int(numbers[-1])}; {VARIABLE} enables this check"
            )
        self._next[key] = int(numbers[-1]) + 1


@dataclass(slots=True)
class PendingRows:
    """The rows of a batch that were added to the trainer but not yet learned from."""

    source: int
    rows: int
    credits: int
    version: float | None = None
    """Mean over rows of the policy version that began the row's trajectory; None for rows from before a resume."""
