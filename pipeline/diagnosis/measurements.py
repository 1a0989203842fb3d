"""Measures the rows that a trainer receives: what actions, observations, rewards, resets and ends of episodes tell.

Causes that no curve shows lie in the rows that the trainer receives. `RowMeasurements` keeps a window of the newest
rows, in the learner's process, and turns it into the statistics `Data/*`, which travel, are written and are judged by
the rules as any other statistic.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from headrace.queues.messages import Array, TrajectoryBatch
from headrace.queues.specs import BehaviorSpec
from headrace.stages.errors import describe_error
from headrace.stages.policy.sampling import action_features, environment_actions
from headrace.stages.stage import Statistics

log = logging.getLogger(__name__)
WINDOW = 4096
"""Maximum number of rows that one measurement uses."""
MEASUREMENTS = 5
"""Approximate number of measurements in a run, however long it is, so that they cost a fixed time."""
MOST_COMPONENTS = 16
"""Number of components of each observation that are measured; larger observations are sampled evenly."""
LEAST_ROWS, LEAST_EPISODES = 256, 16
"""Below these numbers, a share or a regression says nothing and is left out."""
LAGS, MOST_PAST = 4, 8
"""Number of earlier rows that the regressions with history use, and of these rows' components."""
RIDGE = 1e-3
"""Weight of the regressions' penalty, relative to the number of rows."""
FAR_BELOW = -0.5
"""An explained share below this says nothing: a feature varies in the held-out rows alone."""
PREFIX = "Data/"

Matrix = NDArray[np.float64]
Tables = tuple[dict[str, Array], dict[str, Array]]
"""Columns by row, and by ended episode."""


class RowMeasurements:
    """Measures the rows of one behaviour's trainer, in windows (docs/decisions/060).

    Args:
        spec: the behaviour's observations and actions.
        squashed: whether continuous actions were drawn as SAC draws them.
        every: number of rows from one measurement to the next, at least.
    """

    def __init__(self, spec: BehaviorSpec, squashed: bool, every: int) -> None:
        self._spec, self._squashed = spec, squashed
        self._every = max(2 * LEAST_ROWS, every)
        self._window = min(WINDOW, self._every)
        self._kept: list[Tables] = []
        self._rows = 0
        """Rows in `_kept`."""
        self._until = 0
        """Rows that pass before the window opens; the first window opens at once, for it shows the first policy."""

    def add(self, batch: TrajectoryBatch) -> None:
        """Keep a sample of a batch's columns if the window is open."""
        if self._until > 0:
            self._until -= batch.num_rows
        elif self._rows < self._window and batch.num_trajectories:
            with self._guarded():
                self._kept.append(tables(batch, self._spec, self._squashed))
                self._rows += batch.num_rows

    def report(self, statistics: Statistics, behavior: str) -> None:
        """Report the measurements of the window if it is nearly full, and begin the next window later."""
        if self._rows < self._window // 2:
            return
        kept, self._kept, self._until, self._rows = self._kept, [], self._every - self._window, 0
        with self._guarded():
            for name, value in Window(kept).measure():
                statistics.add(behavior, PREFIX + name, value, "last")

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Measure no more after an error: custom stages may send other columns, and training must go on."""
        try:
            yield
        except Exception as error:
            log.warning("The rows can't be measured, so the diagnosis sees less: %s", describe_error(error))
            self._until = 2**62


def tables(batch: TrajectoryBatch, spec: BehaviorSpec, squashed: bool) -> Tables:
    """Return copies of what measurements need of a batch's rows, and of the episodes that ended in it."""
    n, ends = batch.num_rows, np.cumsum(batch.lengths) - 1
    seen = [batch.rows[f"obs_{i}"] for i in range(len(spec.observations))]
    following = [np.roll(column, -1, 0) for column in seen]
    for i, column in enumerate(following):
        column[ends] = batch.trajectories[f"next_obs_{i}"]
    drawn = batch.rows.get("continuous_actions", np.zeros((n, 0), np.float32))
    continuous = np.clip(environment_actions(spec.actions, drawn, squashed), -10.0, 10.0)
    choices = np.array(spec.actions.discrete_branches, np.int32)
    # A custom stage or trainer may let choices pass that do not exist.
    discrete = np.clip(batch.rows.get("discrete_actions", np.zeros((n, 0), np.int32)), 0, choices - 1)
    terminated, truncated = np.zeros((2, n), np.bool_)
    terminated[ends], truncated[ends] = batch.terminated, batch.truncated
    rows = {
        "observations": _components(seen),
        "following": _components(following),
        "same": np.all([(a == b).reshape(n, -1).all(1) for a, b in zip(seen, following, strict=True)], 0),
        "actions": action_features(spec.actions, continuous, discrete).astype(np.float64),
        "continuous": continuous,
        "masks": batch.rows.get("action_masks", np.ones((n, 0), np.bool_)).copy(),
        "rewards": batch.rewards.astype(np.float64),
        "agents": np.repeat(batch.trajectories["agent_ids"] + (np.int64(batch.source) << 40), batch.lengths),
        "terminated": terminated,
        "over": terminated | truncated,
    }
    episodes = {name: batch.episodes.get(f"episode_{name}", np.zeros(0)) for name in ("returns", "lengths")}
    return rows, {name: column.astype(np.float64) for name, column in episodes.items()}


class Window:
    """The rows of one window's batches, sorted by agent, with the row before and after each one.

    Attributes:
        observations, following: [N, D] components of the observations before and after the row's action.
        same: [N] true if not even one component of the whole observation changes with the row's action.
        first: [N] true in an episode's first row, where that is known.
        last: [N] true in the last row of an ended episode.
        before: [N] index of the agent's previous row in the same episode; -1 if the window has none.
        held_out: [N] true in every second block of consecutive rows, to which regressions are not fitted.
    """

    def __init__(self, batches: list[Tables]) -> None:
        rows, self.ended = (
            {name: np.concatenate([table[name] for table in axis]) for name in axis[0]}
            for axis in zip(*batches, strict=True)
        )
        order = np.argsort(rows["agents"], kind="stable")
        rows = {name: column[order] for name, column in rows.items()}
        self.observations, self.following, self.actions = rows["observations"], rows["following"], rows["actions"]
        self.continuous, self.masks, self.rewards = rows["continuous"], rows["masks"], rows["rewards"]
        self.same, self.terminated, self.last = rows["same"], rows["terminated"], rows["over"]
        self.agents = rows["agents"]
        goes_on = np.r_[False, self.agents[1:] == self.agents[:-1]]
        self.first = goes_on & np.r_[False, self.last[:-1]]
        self.before = np.where(goes_on & ~self.first, np.arange(len(order)) - 1, -1)
        self.held_out = np.arange(len(order)) // max(1, len(order) // 32) % 2 == 1

    def measure(self) -> Iterator[tuple[str, float]]:
        """Yield the name and the value of everything that the window tells."""
        yield from self._observations()
        yield from self._episodes()
        yield from self._rewards()
        if self.continuous.size:
            yield "Actions at Bounds", float((np.abs(self.continuous) >= 1).mean())
        if self.masks.size:
            yield from self._forbidden()
        if len(self.rewards) >= LEAST_ROWS:
            yield from self._regressions()
            yield from self._ends()

    def _observations(self) -> Iterator[tuple[str, float]]:
        mean, deviation = self.observations.mean(0), self.observations.std(0)
        varied = deviation > 1e-6 * (1 + np.abs(mean))
        # The components may be a sample of an image that changes elsewhere.
        yield "Constant Observations", min(1.0 if self.same.all() else 0.99, float(1 - varied.mean()))
        if varied.any():
            different = len({column.tobytes() for column in self.observations.T[varied]})
            yield "Duplicate Observations", float(1 - different / varied.sum())
            deviation, mean = deviation[varied], mean[varied]
            yield "Observation Scale", float(deviation.max())
            yield "Observation Offset", float((np.abs(mean) / deviation).max())
            yield "Observation Scale Ratio", float(deviation.max() / np.median(deviation))
        starts, others = self.first & ~self.last, ~self.first & ~self.last
        if starts.sum() >= LEAST_EPISODES:
            yield "Repeated Starts", float(self.same[starts].mean())
        if others.sum() >= LEAST_ROWS:
            yield "Repeated Observations", float(self.same[others].mean())

    def _episodes(self) -> Iterator[tuple[str, float]]:
        starts = np.flatnonzero(self.first)
        if len(starts) >= LEAST_EPISODES:
            moves = (self.following != self.observations).mean(0) > 0.5
            kept = self.observations[starts] == self.following[starts - 1]
            yield "Starts at Last End", float(kept.all(1).mean())
            if moves.any():  # components that stay equal anyway are equal over a reset as well
                yield "Component Kept over Resets", float(kept[:, moves].mean(0).max())
        if self.last.sum() >= LEAST_EPISODES:
            yield "Terminated Episodes", float(self.terminated.sum() / self.last.sum())
        if len(self.ended["lengths"]) >= LEAST_EPISODES:
            yield "Median Episode Length", float(np.median(self.ended["lengths"]))
            yield "Episode Length Deviation", float(self.ended["lengths"].std())
            yield "Return Deviation", float(self.ended["returns"].std())

    def _rewards(self) -> Iterator[tuple[str, float]]:
        deviation = float(self.rewards.std())
        yield "Rewarded Steps", float((self.rewards != 0).mean())
        yield "Reward Deviation", deviation
        yield "Reward Size", float(np.abs(self.rewards).mean())
        if self.terminated.sum() >= LEAST_EPISODES and deviation > 0:
            others = self.rewards[~self.last] if not self.last.all() else self.rewards[self.terminated]
            yield "Reward at End", float(abs(self.rewards[self.terminated].mean() - others.mean()) / deviation)

    def _forbidden(self) -> Iterator[tuple[str, float]]:
        _, group = np.unique(self.observations, axis=0, return_inverse=True)
        if group.max() < len(group) // 8:  # observations recur often enough
            allowed = np.zeros((group.max() + 1, self.masks.shape[1]), np.bool_)
            np.logical_or.at(allowed, group.ravel(), self.masks)
            yield "Observations with Forbidden Choices", float((~allowed.all(1)).mean())

    def _regressions(self) -> Iterator[tuple[str, float]]:
        """Yield held-out shares of variance that linear models on features of the rows explain."""
        change = self.following - self.observations
        rounding = 4 * np.finfo(np.float32).eps * np.abs(self.observations).max(0)
        change[:, change.std(0) <= rounding] = 0.0  # a component that moves evenly
        targets = np.concatenate([change, self.rewards[:, None]], 1)
        alone, both = _features(self.observations), _features(self.observations, self.actions)
        rows, previous = np.arange(len(both)), np.flatnonzero(self.first | (self.before >= 0))
        found = dict[str, Matrix]()
        for how, features, of in (
            ("by Observation", alone, rows),
            ("by Observation and Action", both, rows),
            ("with History", np.concatenate([both, self._history()], 1), rows),
            ("by Previous Step", both[previous - 1], previous),  # also the last step of the episode before
        ):
            if len(of) >= LEAST_ROWS:
                found[how] = _explained(features, targets[of], self.held_out[of])
                yield from _known(f"Change {how}", found[how][:-1])
                yield from _known(f"Reward {how}", found[how][-1:])
        # What an action does may show in a single component, beside a large change that it does not cause.
        shares, without = found["by Observation and Action"], found["by Observation"].clip(0)
        gains = (shares - without) / (1 - without).clip(0.01)
        if len(both) >= 4 * LEAST_ROWS and np.isfinite(gains).any() and not (shares <= FAR_BELOW).any():
            yield "Effect of Action", float(np.nanmax(gains))

    def _ends(self) -> Iterator[tuple[str, float]]:
        """Yield what the last reward of an episode depends on, and how well the observation tells that one ends."""
        rows = np.arange(len(self.rewards))
        starts = np.maximum.accumulate(np.where(self.first, rows, -1))
        complete = np.flatnonzero(self.last & (starts >= 0) & (self.agents[starts] == self.agents))
        if len(complete) >= 4 * LEAST_EPISODES:
            for which, at in (("First", starts[complete]), ("Last", complete)):
                features = _features(self.observations[at], self.actions[complete])
                explained = _explained(features, self.rewards[complete, None], np.arange(len(complete)) % 2 == 1)
                yield from _known(f"Last Reward by {which} Observation", explained)
        told = np.flatnonzero(self.terminated | ~self.last)
        ended, test = self.terminated[told], self.held_out[told]
        if min(ended.sum(), (~ended).sum()) >= LEAST_EPISODES and 0 < ended[test].sum() < test.sum():
            score = _fitted(_features(self.following[told]), ended[:, None].astype(np.float64), test)[:, 0]
            ends, others = score[ended[test]], np.sort(score[~ended[test]])
            below = (np.searchsorted(others, ends, "left") + np.searchsorted(others, ends, "right")) / (2 * len(others))
            yield "End by Observation", float(max(below.mean(), 1 - below.mean()))

    def _history(self) -> Matrix:
        """Return differences to earlier rows of the same episode: hidden state shows in these, noise does not."""
        few = self.observations[:, :: -(-self.observations.shape[1] // MOST_PAST)]
        past, parts = np.arange(len(few)), list[Matrix]()
        for _ in range(LAGS):
            past = np.where(past >= 0, self.before[past], -1)
            # A difference: close rows would drown in the ridge.
            parts.append(few - np.where((past >= 0)[:, None], few[past], few))
        return np.concatenate(parts, 1)


def _components(columns: list[Array]) -> Matrix:
    """Return evenly spaced components [n, D] of observations, at most `MOST_COMPONENTS` of each."""
    parts = list[Matrix]()
    for flat in (column.reshape(len(column), -1) for column in columns):
        few = flat[:, :: -(-flat.shape[1] // MOST_COMPONENTS)].astype(np.float64)
        parts.append(few / 255 if flat.dtype == np.uint8 else few)  # an image, as networks receive it
    return np.concatenate(parts, 1)


def _features(observations: Matrix, actions: Matrix | None = None) -> Matrix:
    """Return the observations, their sizes and products of a few of them, and the actions with all their products."""
    few = observations[:, :: -(-observations.shape[1] // MOST_PAST)]
    first, second = np.triu_indices(few.shape[1])
    parts = [observations, np.abs(observations), few[:, first] * few[:, second]]
    if actions is not None:
        products = (observations[:, :, None] * actions[:, None, :]).reshape(len(observations), -1)
        parts += [actions, np.square(actions), products]
    return np.concatenate(parts, 1)


def _known(name: str, shares: Matrix) -> Iterator[tuple[str, float]]:
    """Yield the mean of some targets' shares, unless no target varies or the regression says nothing."""
    if np.isfinite(shares).any() and (share := float(np.nanmean(shares))) > FAR_BELOW:
        yield name, share


def _explained(features: Matrix, targets: Matrix, test: NDArray[np.bool_]) -> Matrix:
    """Return the share of each target's variance that ridge regression explains in rows that it was not fitted to.

    It is NaN for a target that does not vary.
    """
    shares = np.full(targets.shape[1], np.nan)
    if test.all() or not test.any():
        return shares
    spread = targets[test].std(0)
    varied = (spread > 1e-9 * (1 + np.abs(targets[test]).max(0))) & (targets[~test].std(0) > 0)
    if varied.any():
        errors = targets[test][:, varied] - _fitted(features, targets[:, varied], test)
        shares[varied] = 1 - np.square(errors).mean(0) / np.square(spread[varied])
    return shares


def _fitted(features: Matrix, targets: Matrix, test: NDArray[np.bool_]) -> Matrix:
    """Fit ridge regression to the other rows, and return its predictions for the held-out rows."""
    mean, deviation = features[~test].mean(0), features[~test].std(0)
    varied = deviation > 1e-9 * (1 + np.abs(mean))
    scaled = ((features[:, varied] - mean[varied]) / deviation[varied]).clip(-5, 5).astype(np.float32)
    design, centre = scaled[~test], targets[~test].mean(0)
    gram = design.T @ design + RIDGE * len(design) * np.eye(scaled.shape[1])
    weights = np.linalg.solve(gram, design.T @ (targets[~test] - centre))
    predicted: Matrix = scaled[test] @ weights + centre
    return predicted
