"""Trajectories as pieces of episodes: splitting and chaining them, and keeping values from one piece to the next.

Axis letters: N rows of K consecutive trajectories, in order of arrival.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.queues.messages import Columns
from headrace.stages.errors import StageError

Numbers = NDArray[np.int64]
Floats = NDArray[np.float64]
Tables = tuple[Columns, Columns]
"""Row columns [N] and trajectory columns [K]."""

# Pure functions of columns split trajectories where the rows for an update are complete. The piece before the split is
# like one that flow control has closed there: its episode continues, and its next observation is that of the first row
# of the piece after it.

_GOES_ON = {"terminated": False, "truncated": False, "group_left": True}


def rows_within(lengths: NDArray[np.integer], room: int) -> Numbers:
    """Return, for each of K trajectories, how many of its rows [K] are among the first `room` rows."""
    before = np.cumsum(lengths, dtype=np.int64) - lengths
    kept: Numbers = np.clip(room - before, 0, lengths)
    return kept


def moments_within(trajectories: Columns, ticks: Numbers, room: int) -> Numbers:
    """Do the same as `rows_within` for groups: teammates are split at a tick at which all of them decide.

    There may therefore be more than `room` rows. The excess is less than the size of the group; or, if teammates decide
    at different ticks, it extends to the next tick at which all decide, or to the end of their trajectories.

    Args:
        trajectories: `headrace.queues.columns.GROUP_TRAJECTORY_COLUMNS` and lengths, from a single source.
        ticks: [N] the tick of each row.
        room: the number of rows to keep, less than N.
    """
    lengths, groups = trajectories["lengths"], trajectories["group_ids"]
    # Trajectories of teammates close together; an agent without a group counts as a separate group.
    apart = np.where(groups == 0, -1 - np.arange(len(groups)), groups)
    order = numbered(apart, trajectories["next_ticks"])
    ends = np.cumsum(np.bincount(order, lengths).astype(np.int64))
    divided = int(np.searchsorted(ends, room))
    among = order == divided
    kept = np.where(order < divided, lengths, 0).astype(np.int64)
    before = int(ends[divided - 1]) if divided else 0
    kept[among] = _moments_of_group(lengths[among], ticks[among.repeat(lengths)], room - before)
    return kept


def numbered(*keys: Numbers) -> Numbers:
    """Number the different combinations of keys [n] in the order in which they first occur; return n numbers."""
    _, first, which = np.unique(np.stack(keys), axis=1, return_index=True, return_inverse=True)
    numbers: Numbers = first.argsort().argsort()[which.reshape(-1)]
    return numbers


# Learning from the surplus would make updates rarer and leave the next window short of rows (docs/decisions/034).
def split(
    rows: Columns, trajectories: Columns, kept: Numbers, following: Mapping[str, str], preceding: Mapping[str, str]
) -> tuple[Tables, Tables]:
    """Split trajectories into their `kept` [K] leading rows and the remaining rows.

    Args:
        rows: row columns [N].
        trajectories: trajectory columns [K], including `lengths`.
        kept: the number of leading rows of each trajectory, from 0 to its length.
        following: maps each trajectory column that holds a next value to the row column of that value.
        preceding: maps each trajectory column that holds a previous value to the row column of that value.
    """
    lengths = trajectories["lengths"]
    starts = np.cumsum(lengths, dtype=np.int64) - lengths
    parted = (kept > 0) & (kept < lengths)
    begun = np.union1d(starts, (starts + kept)[parted])
    pieces = _pieces(rows, trajectories, begun, following, preceding)
    first = begun < np.repeat(starts + kept, 1 + parted)
    chosen, at = np.repeat(first, pieces["lengths"]), int(kept.sum())
    contiguous = bool(chosen[:at].all())  # contiguous rows need no copies
    of_first, of_rest = (slice(at), slice(at, None)) if contiguous else (chosen, ~chosen)
    return (
        ({name: column[of_first] for name, column in rows.items()}, {n: column[first] for n, column in pieces.items()}),
        ({name: column[of_rest] for name, column in rows.items()}, {n: column[~first] for n, column in pieces.items()}),
    )


def cut_every(
    rows: Columns,
    trajectories: Columns,
    length: int,
    before: int,
    following: Mapping[str, str],
    preceding: Mapping[str, str],
) -> Columns:
    """Cut trajectories at each multiple of `length` rows; return the pieces' columns. The rows do not change.

    Args:
        rows: row columns [N].
        trajectories: trajectory columns [K], including `lengths`.
        length: the number of rows between two cuts.
        before: the number of rows before these trajectories.
        following: maps each trajectory column that holds a next value to the row column of that value.
        preceding: maps each trajectory column that holds a previous value to the row column of that value.
    """
    lengths = trajectories["lengths"]
    count, starts = int(lengths.sum()), np.cumsum(lengths, dtype=np.int64) - lengths
    begun = np.union1d(starts, np.arange(-before % length, count, length))
    return trajectories if len(begun) == len(starts) else _pieces(rows, trajectories, begun, following, preceding)


def _pieces(
    rows: Columns, trajectories: Columns, begun: Numbers, following: Mapping[str, str], preceding: Mapping[str, str]
) -> Columns:
    """Return the columns of the pieces that begin at the rows `begun`, ascending; every trajectory begins at one."""
    lengths = trajectories["lengths"]
    starts = np.cumsum(lengths, dtype=np.int64) - lengths
    whole = np.searchsorted(starts, begun, side="right") - 1
    inner = begun > starts[whole]
    goes_on = np.append(inner[1:], False)
    pieces = {name: column[whole] for name, column in trajectories.items()}
    pieces["lengths"] = np.diff(begun, append=int(lengths.sum()))
    for name, value in {**_GOES_ON, **{name: rows[of][begun[inner]] for name, of in following.items()}}.items():
        if name in pieces:
            pieces[name][goes_on] = value
    for name, of in preceding.items():
        pieces[name][inner] = rows[of][begun[inner] - 1]
    return pieces


def _moments_of_group(lengths: NDArray[np.integer], ticks: Numbers, room: int) -> Numbers:
    """Return teammates' leading rows [k], up to the first tick, after at least `room` rows, at which all decide."""
    starts = np.cumsum(lengths, dtype=np.int64) - lengths
    moments, place = np.unique(ticks, return_inverse=True)
    deciding = np.bincount(place)
    begin = np.bincount(place[starts], minlength=len(moments))
    all_decide = deciding - begin == np.cumsum(begin) - begin
    possible = np.flatnonzero(all_decide & (np.cumsum(deciding) - deciding >= room))
    if not len(possible):
        return lengths.astype(np.int64)
    earlier: Numbers = np.add.reduceat(ticks < moments[possible[0]], starts, dtype=np.int64)
    return earlier


# Cuts of trajectories into sequences, for policies with memory.


@dataclass(frozen=True, slots=True)
class SequenceCuts:
    """The positions of Q sequences among the rows, in row order.

    A sequence is within one trajectory and has at most L rows; a trajectory's last sequence may be shorter.
    """

    length: int
    """L, the maximum number of rows per sequence."""
    starts: Numbers
    """[Q] the first row of each sequence."""
    sizes: Numbers
    """[Q] the number of rows of each sequence, from 1 to L."""
    first: Numbers
    """[K] the index of the first sequence in each trajectory."""

    @classmethod
    def of(cls, lengths: NDArray[np.integer], length: int) -> SequenceCuts:
        """Cut consecutive trajectories of `lengths` [K] rows, each at least 1."""
        counts = -(-lengths.astype(np.int64) // length)
        first = np.cumsum(counts) - counts
        before = length * (np.arange(int(counts.sum())) - np.repeat(first, counts))
        rows_before = np.cumsum(lengths, dtype=np.int64) - lengths
        starts = np.repeat(rows_before, counts) + before
        sizes = np.minimum(length, np.repeat(lengths, counts) - before)
        return cls(length, starts, sizes, first)

    def __len__(self) -> int:
        return len(self.starts)

    def padded(self, which: NDArray[np.integer] | slice) -> tuple[Numbers, NDArray[np.bool_]]:
        """Return q sequences' row indices [q, L], padded with their last rows, and a mask [q, L], false for padding."""
        sizes, steps = self.sizes[which][:, None], np.arange(self.length)
        return self.starts[which][:, None] + np.minimum(steps, sizes - 1), steps < sizes


# Chains of trajectories, and the values that a trainer keeps for each agent from one trajectory to the next.

PATIENCE = 100
"""Number of updates after which an agent without a new trajectory is forgotten. Either the agent has vanished without
an episode's end, or there are enough agents that resetting their memories now and then does no harm."""


@dataclass(frozen=True, slots=True)
class Chains:
    """The agents of K trajectories, links between trajectories that continue each other, and an order to process them.

    A trajectory that ends its episode has no successor.
    """

    agents: Numbers
    """[K] the agent of each trajectory."""
    episodes: Numbers
    """[K] the episode of each trajectory."""
    ended: NDArray[np.bool_]
    """[K] true if the episode ends with the trajectory."""
    rounds: tuple[Numbers, ...]
    """Indices of trajectories; each trajectory's predecessor, if any, is in the previous round."""
    previous: Numbers
    """[K] the trajectory, of the same agent and episode, that each trajectory continues; -1 for none."""
    latest: NDArray[np.bool_]
    """[K] true for an agent's last trajectory."""

    @classmethod
    def of(cls, agents: Numbers, episodes: Numbers, ended: NDArray[np.bool_]) -> Chains:
        """Chain trajectories by agent and episode."""
        count = len(agents)
        order = np.argsort(agents, kind="stable")
        agent, episode = agents[order], episodes[order]
        starts, latest = np.ones(count, np.bool_), np.ones(count, np.bool_)
        starts[1:] = (agent[1:] != agent[:-1]) | (episode[1:] != episode[:-1]) | ended[order][:-1]
        latest[order[:-1]] = agent[1:] != agent[:-1]
        places = np.arange(count)
        rank = places - np.maximum.accumulate(np.where(starts, places, 0))
        previous = np.full(count, -1, np.int64)
        previous[order[~starts]] = order[np.flatnonzero(~starts) - 1]
        by_rank = np.argsort(rank, kind="stable")
        rounds = np.split(order[by_rank], np.cumsum(np.bincount(rank))[:-1]) if count else []
        return cls(agents, episodes, ended, tuple(rounds), previous, latest)


class AgentTable:
    """Values [width] kept for each agent in the middle of an episode."""

    def __init__(self, width: int, dtype: str) -> None:
        self._columns: dict[str, NDArray[Any]] = {  # in the ascending order of agents
            "agents": np.empty(0, np.int64),
            "episodes": np.empty(0, np.int64),
            "heard": np.empty(0, np.int64),
            "values": np.empty((0, width), dtype),
        }

    def __len__(self) -> int:
        return len(self._columns["agents"])

    def values_of(self, chains: Chains) -> NDArray[Any]:
        """Return the values [K, width] before each trajectory, as a new array; zeros for agents in new episodes."""
        agents, kept = self._columns["agents"], self._columns["values"]
        values = np.zeros((len(chains.agents), kept.shape[1]), kept.dtype)
        if not len(agents):
            return values
        at = np.minimum(np.searchsorted(agents, chains.agents), len(agents) - 1)
        same = (agents[at] == chains.agents) & (self._columns["episodes"][at] == chains.episodes)
        values[same] = kept[at[same]]
        return values

    def keep(self, chains: Chains, values: NDArray[Any], update: int) -> None:
        """Store the values [K, width] after each agent's last trajectory, unless that ends its episode.

        Agents whose episode has ended are forgotten, and so are agents absent for `PATIENCE` updates; `update` is the
        update's number, ascending.
        """
        columns, on = self._columns, chains.latest & ~chains.ended
        stay = ~np.isin(columns["agents"], chains.agents) & (columns["heard"] > update - PATIENCE)
        order = np.argsort(np.concatenate([columns["agents"][stay], chains.agents[on]]), kind="stable")
        heard = np.full(len(values), update)
        new = {"agents": chains.agents, "episodes": chains.episodes, "heard": heard, "values": values}
        for name, column in columns.items():
            columns[name] = np.concatenate([column[stay], new[name][on].astype(column.dtype)])[order]

    def state_dict(self) -> dict[str, Any]:
        """Return copies of the columns."""
        return {name: column.copy() for name, column in self._columns.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict()`.

        Raises:
            StageError: if the state's rows have a different width.
        """
        got, expected = np.shape(state["values"])[1:], self._columns["values"].shape[1:]
        if got != expected:
            raise StageError(f"table of agents: expected rows of shape {expected}, got {got}")
        self._columns = {name: np.array(state[name], column.dtype) for name, column in self._columns.items()}


def add_to_episodes(table: AgentTable, chains: Chains, amounts: Floats, update: int) -> Floats:
    """Add up amounts over episodes that arrived in K pieces.

    Args:
        table: the sums for unfinished episodes, which this function updates.
        chains: the pieces.
        amounts: [K, width] the amounts that each piece adds.
        update: the update's number, ascending; see `AgentTable.keep`.

    Returns:
        The sums [E, width] for the episodes that ended.
    """
    sums, so_far = np.array(amounts), table.values_of(chains)
    for which in chains.rounds:
        before = chains.previous[which]
        sums[which] += np.where(before[:, None] < 0, so_far[which], sums[before])
    table.keep(chains, sums, update)
    return sums[chains.ended]


# Rewards are divided by the running standard deviation of discounted returns, which keeps value targets near 1, as in
# `VecNormalize` of Stable-Baselines3 (and Engstrom et al. (2020), "Implementation Matters in Deep Policy Gradients",
# section 3). Each agent's R = γ·R + r restarts with each episode; its variance is computed over all steps so far, and a
# reward becomes r / sqrt(variance + 1e-8), clipped to ±10. A buffer's rewards are divided by the deviation after its
# last row. A replay memory keeps unscaled rewards, which are divided by the deviation when they are drawn. Scores and
# statistics use the environment's unscaled rewards.

LIMIT = 10.0
_EPSILON = 1e-8
_FIRST_COUNT = 1e-4
"""Weight of the initial variance of 1, as a number of steps."""


class RewardScale:
    """Divides one behaviour's rewards by the running standard deviation of its discounted returns.

    Args:
        gamma: γ, the discount.
    """

    def __init__(self, gamma: float) -> None:
        self._gamma = gamma
        self._count, self._mean, self._variance = _FIRST_COUNT, 0.0, 1.0
        self._returns = AgentTable(1, "float64")
        """The discounted return R so far, for each agent in the middle of an episode."""

    def see(
        self,
        rewards: NDArray[np.floating[Any]],
        lengths: NDArray[np.integer[Any]],
        chains: Chains,
        update: int,
    ) -> None:
        """Update the deviation with the rewards [N] of K consecutive trajectories.

        Args:
            rewards: [N] the rewards, unscaled.
            lengths: [K] the number of rows of each trajectory.
            chains: the trajectories.
            update: the update's number, ascending; see `AgentTable.keep`.
        """
        discounted, after = np.empty(len(rewards)), self._returns.values_of(chains)[:, 0]
        starts = np.cumsum(lengths) - lengths
        for which in chains.rounds:
            before = chains.previous[which]
            returns = np.where(before < 0, after[which], after[before])
            # All trajectories of a round in parallel, one step at a time, the longest first.
            order = np.argsort(-lengths[which], kind="stable")
            first, returns = starts[which][order], returns[order]
            going = np.searchsorted(-lengths[which][order], -np.arange(int(lengths[which].max())), side="left")
            for step, count in enumerate(going.tolist()):
                returns[:count] *= self._gamma
                returns[:count] += rewards[first[:count] + step]
                discounted[first[:count] + step] = returns[:count]
            after[which] = discounted[starts[which] + lengths[which] - 1]
        self._returns.keep(chains, after[:, None], update)
        # Combine the moments with those of the new values, after Chan, Golub and LeVeque (1979).
        count, mean, variance = len(discounted), float(discounted.mean()), float(discounted.var())
        total, delta = self._count + count, mean - self._mean
        squares = self._variance * self._count + variance * count + delta * delta * self._count * count / total
        self._mean += delta * count / total
        self._count, self._variance = total, squares / total

    def apply(self, rewards: NDArray[np.floating[Any]]) -> Floats:
        """Return the rewards, of any shape, after scaling and clipping."""
        scaled: Floats = np.clip(rewards / np.sqrt(self._variance + _EPSILON), -LIMIT, LIMIT)
        return scaled

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state."""
        moments = {"count": self._count, "mean": self._mean, "variance": self._variance}
        return {**moments, "returns": self._returns.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict()`."""
        self._count, self._mean, self._variance = (float(state[name]) for name in ("count", "mean", "variance"))
        self._returns.load_state_dict(state["returns"])
