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
FEW_COMPONENTS, FEW_ROWS = 8, 2048
"""Up to this number of components of observations and actions, regressions use this number of rows."""
RIDGE = 1e-3
"""Weight of the regressions' penalty, relative to the number of rows."""
PREFIX = "Data/"

Matrix = NDArray[np.float64]
Tables = tuple[dict[str, Array], dict[str, Array], dict[str, Array]]
"""Columns by row, by trajectory (with what follows its last row) and by ended episode."""


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
        self._pieces: list[Tables] = []
        self._rows = 0
        """Rows in `_pieces`."""
        self._until = 0
        """Rows that pass before the window opens; the first window opens at once, for it shows the first policy."""

    def add(self, batch: TrajectoryBatch) -> None:
        """Keep a sample of a batch's columns if the window is open."""
        if self._until > 0:
            self._until -= batch.num_rows
        elif self._rows < self._window and batch.num_trajectories:
            with self._guarded():
                self._pieces.append(tables(batch, self._spec, self._squashed))
                self._rows += batch.num_rows

    def report(self, statistics: Statistics, behavior: str) -> None:
        """Report the measurements of the window if it is nearly full, and begin the next window later."""
        if self._rows < self._window // 2:
            return
        pieces, self._pieces, self._until, self._rows = self._pieces, [], self._every - self._window, 0
        with self._guarded():
            for name, value in Window(pieces).measure():
                statistics.add(behavior, PREFIX + name, value, "last")

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Measure no more after an error: custom stages may send other columns, and training must go on."""
        try:
            yield
        except Exception as error:
            log.warning("The rows can't be measured, so the diagnosis sees less: %s", describe_error(error))
            self._until = 2**62


class Window:
    """The rows of one window, sorted by agent, with the row before and after each one.

    Args:
        batches: batches in the order of their arrival.

    Attributes:
        observations: [N, D] components of the observations.
        following: [N, D] those after the row's action.
        same: [N] true if not even one component of the whole observation changes with the row's action.
        first: [N] true in an episode's first row, where that is known.
        last: [N] true in the last row of an ended episode.
        before: [N] index of the agent's previous row in the same episode; -1 if the window has none.
        continues: [N] true if the row before is the agent's previous row, also of its previous episode.
    """

    def __init__(self, batches: list[Tables]) -> None:
        rows, pieces, ended = (
            {name: np.concatenate([table[name] for table in axis]) for name in axis[0]}
            for axis in zip(*batches, strict=True)
        )
        order, lengths = np.argsort(pieces["agents"], kind="stable"), pieces["lengths"]
        starts, sizes = (np.cumsum(lengths) - lengths)[order], lengths[order]
        ends = np.cumsum(sizes) - 1
        begins, n = ends - sizes + 1, int(sizes.sum())
        rows = {name: column[np.repeat(starts - begins, sizes) + np.arange(n)] for name, column in rows.items()}
        pieces = {name: column[order] for name, column in pieces.items()}

        def marked(where: Array) -> NDArray[np.bool_]:
            return np.isin(np.arange(n), where)

        def after(name: str) -> Matrix:
            following: Matrix = np.roll(rows[name], -1, 0)
            following[ends] = pieces[name]
            return following

        self.observations, self.following, self.actions = rows["observations"], after("observations"), rows["actions"]
        self.continuous, self.masks, self.rewards = rows["continuous"], rows["masks"], rows["rewards"]
        self.signatures, self.following_signatures = rows["signatures"], after("signatures")
        self.returns, self.episode_lengths = ended["returns"], ended["lengths"]
        self.same = self.following_signatures == self.signatures
        over, agents = pieces["terminated"] | pieces["truncated"], pieces["agents"]
        goes_on = np.r_[False, agents[1:] == agents[:-1]]
        after_end = goes_on & np.r_[False, over[:-1]]
        self.restarts = begins[after_end]
        """First rows of episodes whose agent's previous episode ended in the window."""
        self.first, self.last = marked(self.restarts), marked(ends[over])
        self.terminated_rows = marked(ends[pieces["terminated"]])
        self.before = np.arange(n) - 1
        self.before[begins[~goes_on | after_end]] = -1
        self.continues = self.first | (self.before >= 0)
        self.episodes = np.cumsum(self.first)
        """Episode number of each row."""
        self.pieces = np.repeat(np.arange(len(agents)), sizes)

    def measure(self) -> Iterator[tuple[str, float]]:
        """Yield the name and the value of everything that the window tells."""
        yield from self._observations()
        yield from self._episodes()
        yield from self._rewards()
        if len(self.continuous) and self.continuous.shape[1]:
            yield "Actions at Bounds", float((np.abs(self.continuous) >= 1).mean())
        yield from self._forbidden()
        yield from self._regressions()

    def _observations(self) -> Iterator[tuple[str, float]]:
        seen = self.observations
        mean, deviation = seen.mean(0), seen.std(0)
        varied = deviation > 1e-6 * (1 + np.abs(mean))
        constant = bool((self.signatures == self.signatures[0]).all())
        yield "Constant Observations", 1.0 if constant else min(0.99, float(1 - varied.mean()))
        if varied.any():
            different = len({column.tobytes() for column in seen.T[varied]})
            yield "Duplicate Observations", float(1 - different / varied.sum())
            deviation, mean = deviation[varied], mean[varied]
            yield "Observation Scale", float(deviation.max())
            yield "Observation Offset", float((np.abs(mean) / deviation).max())
            yield "Observation Scale Ratio", float(deviation.max() / np.median(deviation))
        starts = self.first & ~self.last
        if starts.sum() >= LEAST_EPISODES:
            yield "Repeated Starts", float(self.same[starts].mean())
        if (others := ~self.first & ~self.last).sum() >= LEAST_ROWS:
            yield "Repeated Observations", float(self.same[others].mean())
        changes = np.bincount(self.pieces, ~self.same)
        counts = np.bincount(self.pieces)
        if (long := counts > 1).sum() >= 4:
            yield "Frozen Trajectories", float((changes[long] == 0).mean())

    def _episodes(self) -> Iterator[tuple[str, float]]:
        if len(self.restarts) >= LEAST_EPISODES:
            left = self.following_signatures[self.restarts - 1]
            yield "Starts at Last End", float((self.signatures[self.restarts] == left).mean())
            moves = (self.following != self.observations).mean(0) > 0.5
            kept = self.observations[self.restarts] == self.following[self.restarts - 1]
            if moves.any():  # components that stay equal anyway are equal over a reset as well
                yield "Component Kept over Resets", float(kept[:, moves].mean(0).max())
        if self.last.sum() >= LEAST_EPISODES:
            yield "Terminated Episodes", float(self.terminated_rows.sum() / self.last.sum())
        if len(self.episode_lengths) >= LEAST_EPISODES:
            yield "Median Episode Length", float(np.median(self.episode_lengths))
            yield "Episode Length Deviation", float(self.episode_lengths.std())
            yield "Return Deviation", float(self.returns.std())

    def _rewards(self) -> Iterator[tuple[str, float]]:
        yield "Rewarded Steps", float((self.rewards != 0).mean())
        yield "Reward Deviation", float(self.rewards.std())
        yield "Reward Size", float(np.abs(self.rewards).mean())
        rewarded = self.rewards != 0
        if rewarded.sum() >= LEAST_EPISODES and self.first.sum() >= LEAST_EPISODES:
            yield "Rewards at Start", float((rewarded & self.first).sum() / rewarded.sum())
        if self.terminated_rows.sum() >= LEAST_EPISODES and self.rewards.std() > 0:
            others = self.rewards[~self.last] if not self.last.all() else self.rewards[self.terminated_rows]
            special = abs(self.rewards[self.terminated_rows].mean() - others.mean())
            yield "Reward at End", float(special / self.rewards.std())

    def _forbidden(self) -> Iterator[tuple[str, float]]:
        if not self.masks.shape[1]:
            return
        _, group = np.unique(self.observations, axis=0, return_inverse=True)
        if group.max() < len(group) // 8:  # observations recur often enough
            allowed = np.zeros((group.max() + 1, self.masks.shape[1]), np.bool_)
            np.logical_or.at(allowed, group.ravel(), self.masks)
            yield "Observations with Forbidden Choices", float((~allowed.all(1)).mean())

    def _regressions(self) -> Iterator[tuple[str, float]]:
        """Yield held-out shares of variance that linear models on features of the rows explain."""
        n = len(self.rewards)
        if n < LEAST_ROWS:
            return
        test = np.arange(n) // max(1, n // 32) % 2 == 1  # every second block of consecutive rows
        rows = np.arange(n)
        if self.observations.shape[1] + self.actions.shape[1] <= FEW_COMPONENTS:
            rows = np.sort(np.random.default_rng(0).permutation(n)[:FEW_ROWS])
        change = self.following - self.observations
        rounding = 4 * np.finfo(np.float32).eps * np.abs(self.observations).max(0)
        change[:, change.std(0) <= rounding] = 0.0  # a component that moves evenly
        reward = {"Reward": self.rewards[:, None]}
        targets = {"Change": change, **reward}
        seen, both = _features(self.observations[rows]), self._with_actions(rows, rows)
        history, has = self._history(rows)
        previous = rows[self.continues[rows]]
        for how, features, of, explained in (
            ("by Observation", seen, rows, targets),
            ("by Observation and Action", both, rows, targets),
            ("with History", np.concatenate([both, history], 1)[has], rows[has], targets),
            ("without History", both[has], rows[has], targets),
            ("by Previous Step", self._with_actions(previous - 1, previous - 1), previous, reward),
        ):
            if len(of) >= LEAST_ROWS:
                yield from _explained(how, features, {name: target[of] for name, target in explained.items()}, test[of])
        starts = np.maximum.accumulate(np.where(self.first, np.arange(n), -1))
        complete = np.flatnonzero(self.last & (starts >= 0))
        complete = complete[self.episodes[complete] == self.episodes[starts[complete]]]
        if len(complete) >= 4 * LEAST_EPISODES:
            last = {"Last Reward": self.rewards[complete, None]}
            for which, at in (("First", starts[complete]), ("Last", complete)):
                features = self._with_actions(at, complete)
                yield from _explained(f"by {which} Observation", features, last, np.arange(len(complete)) % 2 == 1)
        ended = self.last & self.terminated_rows
        if ended.sum() >= LEAST_EPISODES and (~self.last).sum() >= LEAST_EPISODES:
            told = np.flatnonzero(ended | ~self.last)
            ended, test = ended[told], test[told]
            score = _fitted(_features(self.following[told]), ended[:, None].astype(np.float64), test)[:, 0]
            if 0 < ended[test].sum() < test.sum():
                yield "End by Observation", _separation(score, ended[test], ~ended[test])

    def _with_actions(self, seen: NDArray[np.int64], acted: NDArray[np.int64]) -> Matrix:
        """Return features of the observations of some rows, and of the actions of the same or other rows."""
        observations = self.observations[seen]
        return np.concatenate([_features(observations), _products(observations, self.actions[acted])], 1)

    def _history(self, rows: NDArray[np.int64]) -> tuple[Matrix, NDArray[np.bool_]]:
        """Return features of earlier rows of the same episode, and which rows have enough of these.

        Hidden state shows in what these features add, and noise does not.
        """
        few = self.observations[:, :: -(-self.observations.shape[1] // MOST_PAST)]
        past, parts, has = rows, list[Matrix](), np.ones(len(rows), np.bool_)
        for lag in range(1, LAGS + 1):
            past = np.where(past >= 0, self.before[past], -1)
            has &= (past >= 0) | (lag > 2)
            before = np.where((past >= 0)[:, None], few[past], few[rows])
            # A difference: close rows would drown in the ridge.
            parts += [few[rows] - before, _products(before, self.actions[rows])[:, 2 * self.actions.shape[1] :]]
        return np.concatenate(parts, 1), has


def tables(batch: TrajectoryBatch, spec: BehaviorSpec, squashed: bool) -> Tables:
    """Return copies of what measurements need of a batch's rows, trajectories and ended episodes."""
    seen = [(batch.rows[f"obs_{i}"], batch.trajectories[f"next_obs_{i}"]) for i in range(len(spec.observations))]
    (observations, finals), (signatures, final_signatures) = (
        zip(*((of(column), of(final)) for column, final in seen), strict=True) for of in (_components, _signature)
    )
    n = batch.num_rows
    drawn = batch.rows.get("continuous_actions", np.zeros((n, 0), np.float32))
    continuous = np.clip(environment_actions(spec.actions, drawn, squashed), -10.0, 10.0)
    choices = np.array(spec.actions.discrete_branches, np.int32)
    # A custom stage or trainer may let choices pass that do not exist.
    discrete = np.clip(batch.rows.get("discrete_actions", np.zeros((n, 0), np.int32)), 0, choices - 1)
    rows = {
        "observations": np.concatenate(observations, 1),
        "signatures": np.sum(signatures, 0),
        "actions": action_features(spec.actions, continuous, discrete).astype(np.float64),
        "continuous": continuous,
        "masks": batch.rows.get("action_masks", np.ones((n, 0), np.bool_)).copy(),
        "rewards": batch.rewards.astype(np.float64),
    }
    pieces = {
        "observations": np.concatenate(finals, 1),
        "signatures": np.sum(final_signatures, 0),
        "lengths": batch.lengths.astype(np.int64),
        "agents": batch.trajectories["agent_ids"] + (np.int64(batch.source) << 40),
        "terminated": batch.terminated.copy(),
        "truncated": batch.truncated.copy(),
    }
    ended = {
        name: batch.episodes.get(f"episode_{name}", np.zeros(0)).astype(np.float64) for name in ("returns", "lengths")
    }
    return rows, pieces, ended


def _components(column: Array) -> Matrix:
    """Return evenly spaced components [n, at most `MOST_COMPONENTS`] of an observation column."""
    flat = column.reshape(len(column), -1)
    return flat[:, :: -(-flat.shape[1] // MOST_COMPONENTS)].astype(np.float64)


def _signature(column: Array) -> Matrix:
    """Return a fixed random combination [n] of all elements, which is equal only for equal observations."""
    flat = column.reshape(len(column), -1)
    weights = np.random.default_rng(0).standard_normal(flat.shape[1])
    parts = [(flat[at : at + 64] * weights).sum(1) for at in range(0, len(flat), 64)]  # a product rounds by position
    return np.concatenate(parts) if parts else np.zeros(0)


def _features(observations: Matrix) -> Matrix:
    """Return the observations, their sizes, and the products of a few of them."""
    few = observations[:, :: -(-observations.shape[1] // MOST_PAST)]
    first, second = np.triu_indices(few.shape[1])
    return np.concatenate([observations, np.abs(observations), few[:, first] * few[:, second]], 1)


def _products(observations: Matrix, actions: Matrix) -> Matrix:
    """Return the actions, their squares, and their products with the observations."""
    products = (observations[:, :, None] * actions[:, None, :]).reshape(len(observations), -1)
    return np.concatenate([actions, np.square(actions), products], 1)


def _explained(
    how: str, features: Matrix, targets: dict[str, Matrix], test: NDArray[np.bool_]
) -> Iterator[tuple[str, float]]:
    """Yield the share of each target's variance that ridge regression explains in rows that it was not fitted to.

    It is the mean over the target's varying components. A target is left out if no component varies, or if the share is
    far below 0, as it is where a feature varies in the held-out rows alone: then the regression says nothing.
    """
    together = np.concatenate([*targets.values()], 1)
    spread = together[test].std(0)
    varied = (spread > 1e-9 * (1 + np.abs(together[test]).max(0, initial=0))) & (together[~test].std(0) > 0)
    if not varied.any() or test.sum() < LEAST_EPISODES:
        return
    errors = together[test][:, varied] - _fitted(features, together[:, varied], test)
    shares = np.full(len(varied), np.nan)
    shares[varied] = 1 - np.square(errors).mean(0) / np.square(spread[varied])
    ends = np.cumsum([target.shape[1] for target in targets.values()])
    for name, own in zip(targets, np.split(shares, ends[:-1]), strict=True):
        if np.isfinite(own).any() and (share := float(np.nanmean(own))) > -0.5:
            yield f"{name} {how}", share


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


def _separation(values: Matrix, positive: NDArray[np.bool_], negative: NDArray[np.bool_]) -> float:
    """Return how well a threshold on the values tells the two groups apart: 0.5 not at all, 1 perfectly."""
    ordered = np.sort(values[negative])
    below = np.searchsorted(ordered, values[positive], "left") + np.searchsorted(ordered, values[positive], "right")
    share = float(below.mean() / (2 * len(ordered)))
    return max(share, 1 - share)
