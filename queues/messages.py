"""The messages that flow through the pipeline: columnar batches and policies.

A message is a frozen dataclass around NumPy arrays. A consumer must not modify these arrays, because others may read
them, and must copy any that it keeps. `codec` converts messages to bytes; `columns` declares the columns of a batch.

Axis letters: N rows (agent steps), K trajectories, E episodes, G games, T teams.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.queues.errors import ShapeError
from headrace.queues.specs import behavior_name, behavior_team

Array = NDArray[Any]
Floats = NDArray[np.float32]

FREE = 2**62  # a credit limit that no actor reaches
Columns = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class ActionBatch:
    """Actions for those agents of one behaviour that need a decision, in row order."""

    continuous: NDArray[np.float32]
    """[d, continuous_size] in [-1, 1]; raw values in dimensions that the spec declares unbounded."""
    discrete: NDArray[np.int32]
    """[d, branches] index of the choice in each branch."""


@dataclass(frozen=True, slots=True)
class StepBatch:
    """One tick of an actor's environments for one behaviour id: what happened to its agents, and what they decided.

    A row is an agent seen at this tick. The first `ended` rows are endings (an episode's final observation and last
    reward, no decision); the other rows are decisions. An agent whose episode ended and restarted within the tick has
    two rows, the ending first. In shapes, n is the number of rows, and d = n - ended is the number of decisions.
    """

    behavior_id: str
    agent_ids: NDArray[np.int64]
    """[n] agent ids, unique across environment instances and actors; constant over an agent's episodes."""
    env_ids: NDArray[np.int32]
    """[n] index of the environment instance within the actor's group of environments."""
    episode_ids: NDArray[np.int64]
    """[n] number of the agent's episode, which increases with each episode."""
    observations: tuple[Array, ...]
    """One array [n, *shape] per observation spec; in endings, the final observations."""
    rewards: NDArray[np.float32]
    """[n] reward since the agent's previous decision (0 in an episode's first row)."""
    ended: int
    """Number of endings, which are the leading rows."""
    terminated: NDArray[np.bool_]
    """[ended] true if the episode ended by the task's own rules, so that the next state's value is zero."""
    truncated: NDArray[np.bool_]
    """[ended] true if the episode was cut short (ML-Agents' interrupted): bootstrap from the final observation."""
    decisions: Columns
    """Decision columns [d, ...]: actions, log_probs, action_masks and the columns declared by the trainer."""
    policy_versions: NDArray[np.int64]
    """[d] version of the policy that made the decision."""
    generations: NDArray[np.int32]
    """[d] generation of the game's self-play assignment; 0 without self-play."""
    learning: NDArray[np.bool_]
    """[d] true if the agent played for the learning team (always true without self-play)."""
    opponents: NDArray[np.int32]
    """[d] the (first) opponent's snapshot; -1 for the newest policy or no opponent."""
    games: Columns = field(default_factory=dict)
    """[G] games that ended at this tick (`columns.GAME_COLUMNS`), in the batch of the learning team's behaviour id."""
    tick: int = 0
    """Number of the tick, which keeps increasing as long as the actor exists, even when its environments are reset."""
    group_ids: NDArray[np.int64] | None = None
    """[n] id of the agent's group, which shares a reward: unique across environment instances and actors, 0 for no
    group. None if the behaviour has no groups (`BehaviorSpec.grouped`)."""
    group_rewards: NDArray[np.float32] | None = None
    """[n] the group's reward since the agent's previous decision, excluding the agent's own reward; None without
    groups."""
    parameters: NDArray[np.int32] | None = None
    """[ended] generation of the environment parameters at the ended episode's start; None if all are 0."""
    env_frames: NDArray[np.int32] | None = None
    """[n] environment steps since the agent's previous decision, 0 in an episode's first row; None if each action lasts
    one step (see `BehaviorSpec.action_repeat`)."""
    undiscounted: NDArray[np.float32] | None = None
    """[n, 2] the agent's own and its group's reward as counted in episode returns; None if they equal `rewards` and
    `group_rewards`, which is always the case unless repeated actions are discounted."""


@dataclass(frozen=True, slots=True)
class TrajectoryBatch:
    """K trajectories of one behaviour id, concatenated into N rows without padding.

    A trajectory is a sequence of consecutive steps of one agent, which is cut at the episode's end, at `time_horizon`
    or by flow control. The rows of trajectory k follow those of k-1; row order is step order.

    Raises:
        ShapeError: if columns with the same axis differ in length, or `lengths` does not add up to N.
    """

    behavior_id: str
    source: int
    """Number of the actor and its incarnation; flow credits are counted per source."""
    rows: Columns
    """[N, ...] per step: obs_0…, continuous_actions, discrete_actions, log_probs, action_masks, rewards, …"""
    trajectories: Columns
    """[K, ...] per trajectory: see `columns.TRAJECTORY_COLUMNS`, and next_obs_0… (after the last step)."""
    episodes: Columns = field(default_factory=dict)
    """[E] per episode that ended in this batch: see `columns.EPISODE_COLUMNS`."""
    games: Columns = field(default_factory=dict)
    """[G] per game that ended in this batch: see `columns.GAME_COLUMNS`."""

    def __post_init__(self) -> None:
        for axis in ("rows", "trajectories", "episodes", "games"):
            lengths = {name: len(column) for name, column in getattr(self, axis).items()}
            if len(set(lengths.values())) > 1:
                raise ShapeError(f"{axis}: all columns need the same length, got {lengths}")
        total, n = int(self.trajectories["lengths"].sum()), len(next(iter(self.rows.values()), ()))
        if total != n:
            raise ShapeError(f"{self.behavior_id}: trajectory lengths add up to {total}, but the batch has {n} rows")

    @property
    def behavior(self) -> str:
        """The behaviour name, without the team."""
        return behavior_name(self.behavior_id)

    @property
    def num_rows(self) -> int:
        """N, the number of rows."""
        return len(self.rows["rewards"])

    @property
    def num_trajectories(self) -> int:
        """K, the number of trajectories."""
        return len(self.trajectories["lengths"])

    @property
    def rewards(self) -> NDArray[np.float32]:
        """[N] reward received after the row's action."""
        return self.rows["rewards"]

    @property
    def lengths(self) -> NDArray[np.int32]:
        """[K] number of rows in each trajectory."""
        return self.trajectories["lengths"]

    @property
    def terminated(self) -> NDArray[np.bool_]:
        """[K] true if the last step ended the episode by the task's own rules. Trainers then don't bootstrap."""
        return self.trajectories["terminated"]

    @property
    def truncated(self) -> NDArray[np.bool_]:
        """[K] true if the episode was cut short after the last step. Trainers bootstrap from `next_obs_*`."""
        return self.trajectories["truncated"]

    @property
    def credits(self) -> int:
        """Flow credits in the batch, one per learning-team step. They are returned once the batch is consumed."""
        return int(self.trajectories["credits"].sum())

    def replace(self, **columns: Array) -> TrajectoryBatch:
        """Return a batch with some columns replaced by name; new columns of length N are added.

        Raises:
            ShapeError: if a column fits no axis of the batch.
        """
        rows, trajectories = dict(self.rows), dict(self.trajectories)
        episodes, games = dict(self.episodes), dict(self.games)
        for name, value in columns.items():
            home = next((axis for axis in (rows, trajectories, episodes, games) if name in axis), rows)
            home[name] = value
        return replace(self, rows=rows, trajectories=trajectories, episodes=episodes, games=games)

    def select(self, keep: NDArray[np.bool_]) -> TrajectoryBatch:
        """Return the batch with only the trajectories for which `keep` [K] is true, and all episodes and games."""
        row_mask = np.repeat(keep, self.lengths)
        return replace(
            self,
            rows={name: column[row_mask] for name, column in self.rows.items()},
            trajectories={name: column[keep] for name, column in self.trajectories.items()},
        )

    def split(self, first: int) -> tuple[TrajectoryBatch, TrajectoryBatch]:
        """Return two batches of views: the first `first` trajectories, and the others with all episodes and games."""
        at = int(self.lengths[:first].sum())
        head = replace(
            self,
            rows={name: column[:at] for name, column in self.rows.items()},
            trajectories={name: column[:first] for name, column in self.trajectories.items()},
            episodes={},
            games={},
        )
        tail = replace(
            self,
            rows={name: column[at:] for name, column in self.rows.items()},
            trajectories={name: column[first:] for name, column in self.trajectories.items()},
        )
        return head, tail

    def copy(self) -> TrajectoryBatch:
        """Return a batch with copied arrays, which stay valid after the call that received the original."""
        return replace(
            self,
            rows={name: column.copy() for name, column in self.rows.items()},
            trajectories={name: column.copy() for name, column in self.trajectories.items()},
            episodes={name: column.copy() for name, column in self.episodes.items()},
            games={name: column.copy() for name, column in self.games.items()},
        )


@dataclass(frozen=True, slots=True)
class PolicyUpdate:
    """A policy to act with. An update contains the full state, never a diff, so only the newest update matters."""

    behavior_id: str
    version: int
    """Number of trainer updates so far; 0 for the untrained policy."""
    weights: NDArray[np.float32]
    """All parameters and the normaliser's state, concatenated."""
    layout: tuple[tuple[str, tuple[int, ...]], ...]
    """(name, shape) of each tensor in `weights`, in order."""
    step: int
    """Number of trainer steps up to this version: agent decisions that were learned from or counted."""
    snapshot: int = -1
    """Number of the self-play snapshot; -1 for a policy directly from the trainer."""

    def copy(self) -> PolicyUpdate:
        """Return an update with copied weights, which stay valid after the call that received the original."""
        return replace(self, weights=self.weights.copy())

    def tensors(self) -> dict[str, NDArray[np.float32]]:
        """Return views into `weights`, keyed by name, with the shapes in the layout.

        Raises:
            ShapeError: if the layout's total number of elements differs from the size of `weights`.
        """
        sizes = [math.prod(shape) for _, shape in self.layout]
        if sum(sizes) != self.weights.size:
            raise ShapeError(
                f"policy version {self.version} of {self.behavior_id} has {self.weights.size} weights, but its layout "
                f"requires {sum(sizes)}"
            )
        views, at = {}, 0
        for (name, shape), size in zip(self.layout, sizes, strict=True):
            views[name] = self.weights[at : at + size].reshape(shape)
            at += size
        return views


@dataclass(frozen=True, slots=True)
class Barrier:
    """A checkpoint's mark in the stream: checkpoint `number` contains everything before it and nothing after it."""

    number: int
    source: int = 0
    """The actor incarnation that sent the barrier."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """The opponents in all games from now on. An assignment is matchmaking's full state, never a change to it.

    Actors apply an assignment to each game at the game's start, once they hold the policies that it names.
    """

    generation: int
    """Number that increases with every assignment; recorded in trajectories and game results."""
    learning_team: int
    """The team whose results count; unless `all_learn` is set, only this team learns."""
    policies: Mapping[str, tuple[int, int]]
    """Maps a behaviour id to the exact (snapshot, version) of its policy. For a learner, the snapshot is -1, and newer
    versions are allowed too."""
    opponent: int = -1
    """The (first) opponent's snapshot; -1 for the newest policy. The generation identifies all opponents."""
    all_learn: bool = False
    """True if all teams learn simultaneously, each with its newest policy."""

    def learns(self, behavior_id: str) -> bool:
        """Return True if this behaviour id plays its newest policy and learns from its steps."""
        return self.all_learn or behavior_team(behavior_id) == self.learning_team


@dataclass(frozen=True, slots=True)
class Matches:
    """Who plays whom in one league learner's games from now on, as rows that each have a probability.

    Players are codes: a pool member's number, -1 for the learner's newest policy, or -2 - k for the newest policy of
    the league's k-th learner. For each other team, a row is drawn from those whose opponents play the team's behaviour.
    """

    number: int
    """Number that increases with each change; recorded in trajectories and game results."""
    seats: tuple[int, ...]
    """Each row's player on the learner's side. The trainer does not learn from games that a pool member plays."""
    opponents: tuple[int, ...]
    weights: tuple[float, ...]
    """Probability of each row; the probabilities of rows whose opponents play the same behaviour add up to 1."""
    members: Mapping[int, Mapping[str, Any]]
    """Data that an actor needs about each member named in a row."""


@dataclass(frozen=True, slots=True)
class Matchup:
    """An assignment and the weights of the policies that it names; the ghost stage sends it to the publisher."""

    assignment: Assignment
    policies: tuple[PolicyUpdate, ...]
    """One policy, with weights, per behaviour id: the learning team's newest policy, or an opponent's policy."""


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """A trainer's request to a replay buffer shard: how many rows the shard contributes to each batch."""

    counts: NDArray[np.int64]
    """[batches] number of rows for each batch; 0 for none."""


@dataclass(frozen=True, slots=True)
class ReplaySample:
    """A replay buffer shard's reply: rows for one batch, or, in its first message, `size`."""

    columns: Columns


@dataclass(frozen=True, slots=True)
class PolicyQuestion:
    """A request for one policy's decisions for d agents, sent to the process that has the policy."""

    behavior_id: str
    snapshot: int
    version: int
    """The policy's version (see `PolicyUpdate`). If the policy comes directly from a trainer, a newer version is
    allowed too."""
    greedy: bool
    """True to return the mean and the most likely choice instead of a sample."""
    held: tuple[int, ...]
    """All snapshots of this behaviour id that the actor still plays. The actor will not request any other snapshot that
    was sent before the newest of them."""
    columns: Columns
    """[d, ...] obs_0…, and, if the policy uses them, masks, memories and previous_actions (see
    `policy.protocol.Recall`)."""


@dataclass(frozen=True, slots=True)
class DecisionRequest:
    """All of an actor's questions at one tick; the next request follows only when this one is answered or abandoned."""

    number: int
    """Number that increases with each request; unique among the requests of an actor and its predecessors."""
    questions: tuple[PolicyQuestion, ...]


DECISION = "decision/"
"""Prefix of the names of decision columns in an answer."""


@dataclass(frozen=True, slots=True)
class PolicyAnswer:
    """One policy's decisions for d agents."""

    version: int
    """Version of the policy that made the decisions."""
    columns: Columns
    """[d, ...] `continuous`, `discrete` and `decision/…` (see `policy.protocol.Decision`). With memory, also the
    memories and `previous_actions` for the next decision."""


@dataclass(frozen=True, slots=True)
class DecisionAnswer:
    """The answers to a request, in the order of its questions."""

    number: int
    answers: tuple[PolicyAnswer, ...]


# fmt: off
Message = (
    StepBatch | TrajectoryBatch | PolicyUpdate | Barrier | ReplayRequest | ReplaySample | DecisionRequest
    | DecisionAnswer
)
# fmt: on
