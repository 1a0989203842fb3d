"""The messages that flow through the pipeline: columnar batches and policies.

A message is a frozen dataclass around NumPy arrays. A consumer must not change its arrays (others may read them), and
copies what it keeps. `codec` turns messages into bytes; `columns` declares the columns of a batch.

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

FREE = 2**62  # a cap on credits that no actor reaches
Columns = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class ActionBatch:
    """Actions for the agents of one behaviour that request a decision, in the order of their rows."""

    continuous: NDArray[np.float32]
    """[d, continuous_size] in [-1, 1], raw in dimensions that the spec calls unbounded."""
    discrete: NDArray[np.int32]
    """[d, branches] index of the choice."""


@dataclass(frozen=True, slots=True)
class StepBatch:
    """One tick of an actor's environments for one behaviour id: what happened to its agents, and what they decided.

    A row is an agent seen at this tick. The first `ended` rows are endings (an episode's final observation and
    last reward; no decision); the other rows are decisions. An agent whose episode ended and restarted within
    the tick has two rows, the ending first. The axis letter n counts all rows, d = n - ended the decisions.
    """

    behavior_id: str
    agent_ids: NDArray[np.int64]
    """[n] unique across environment instances and actors; constant over an agent's episodes."""
    env_ids: NDArray[np.int32]
    """[n] environment instance within the actor's group of environments."""
    episode_ids: NDArray[np.int64]
    """[n] number of the agent's episode, rising."""
    observations: tuple[Array, ...]
    """One array [n, *shape] per observation spec; final observations in the rows that are endings."""
    rewards: NDArray[np.float32]
    """[n] reward received since the agent's previous decision (0 in an episode's first row)."""
    ended: int
    """Number of leading rows that are endings."""
    terminated: NDArray[np.bool_]
    """[ended] the episode ended by the task's own rules: the value beyond is zero."""
    truncated: NDArray[np.bool_]
    """[ended] the episode was cut short (ML-Agents' interrupted): bootstrap from the final observation."""
    decisions: Columns
    """Columns [d, ...] of the decision: actions, log_probs, action_masks and the columns that the trainer declared."""
    policy_versions: NDArray[np.int64]
    """[d] version of the policy that decided."""
    generations: NDArray[np.int32]
    """[d] generation of the game's self-play assignment; 0 without self-play."""
    learning: NDArray[np.bool_]
    """[d] true where the agent played for the learning team (always, without self-play)."""
    opponents: NDArray[np.int32]
    """[d] opponent's snapshot, -1 for the newest policy or no opponent; of several opponents, the first one's."""
    games: Columns = field(default_factory=dict)
    """[G] games that ended at this tick (`columns.GAME_COLUMNS`), in the batch of the learning team's behaviour id."""
    tick: int = 0
    """Number of the tick, rising for as long as this actor lives, across resets of its environments too."""
    group_ids: NDArray[np.int64] | None = None
    """[n] group of agents with a common reward, unique across environment instances and actors; 0 for none.
    None where the behaviour has no groups (`BehaviorSpec.grouped`)."""
    group_rewards: NDArray[np.float32] | None = None
    """[n] reward of the agent's group since the agent's previous decision, apart from its own; None without groups."""
    parameters: NDArray[np.int32] | None = None
    """[ended] generation of the environment parameters at the ended episode's start; None for all 0."""
    env_frames: NDArray[np.int32] | None = None
    """[n] environment steps since the agent's previous decision, 0 in an episode's first row; None where each action
    lasts one (`BehaviorSpec.action_repeat`)."""
    undiscounted: NDArray[np.float32] | None = None
    """[n, 2] the agent's own and its group's reward as episode returns count them; None where these equal `rewards` and
    `group_rewards`, as they do unless held actions are discounted."""


@dataclass(frozen=True, slots=True)
class TrajectoryBatch:
    """K trajectories of one behaviour id, packed end to end into N rows; never padded.

    A trajectory is a run of consecutive steps of one agent. Its episode's end, `time_horizon` or flow control cuts it.
    Rows of trajectory k follow those of k-1; row order is step order.

    Raises:
        ShapeError: if columns of one axis differ in length or `lengths` does not add up to N.
    """

    behavior_id: str
    source: int
    """The actor and its incarnation: flow credits are accounted by source."""
    rows: Columns
    """[N, ...] per step: obs_0…, continuous_actions, discrete_actions, log_probs, action_masks, rewards, …"""
    trajectories: Columns
    """[K, ...] per trajectory: see `columns.TRAJECTORY_COLUMNS`, and next_obs_0… (the final next observation)."""
    episodes: Columns = field(default_factory=dict)
    """[E] per episode that ended with this batch: see `columns.EPISODE_COLUMNS`."""
    games: Columns = field(default_factory=dict)
    """[G] per game that ended with this batch: see `columns.GAME_COLUMNS`."""

    def __post_init__(self) -> None:
        n = _common_length(self.rows, "rows")
        k = _common_length(self.trajectories, "trajectories")
        _common_length(self.episodes, "episodes")
        _common_length(self.games, "games")
        lengths = self.trajectories["lengths"]
        if int(lengths.sum()) != n:
            total = int(lengths.sum())
            raise ShapeError(f"{self.behavior_id}: lengths of {k} trajectories add up to {total}, got {n} rows")

    @property
    def behavior(self) -> str:
        """The behaviour name, without the team."""
        return behavior_name(self.behavior_id)

    @property
    def num_rows(self) -> int:
        """N."""
        return len(self.rows["rewards"])

    @property
    def num_trajectories(self) -> int:
        """K."""
        return len(self.trajectories["lengths"])

    @property
    def rewards(self) -> NDArray[np.float32]:
        """[N] reward received after the action of the same row."""
        return self.rows["rewards"]

    @property
    def lengths(self) -> NDArray[np.int32]:
        """[K] rows of each trajectory."""
        return self.trajectories["lengths"]

    @property
    def terminated(self) -> NDArray[np.bool_]:
        """[K] the trajectory's last step ended the episode: no bootstrap."""
        return self.trajectories["terminated"]

    @property
    def truncated(self) -> NDArray[np.bool_]:
        """[K] the episode was cut short after the last step: bootstrap from `next_obs_*`."""
        return self.trajectories["truncated"]

    @property
    def credits(self) -> int:
        """Flow credits in the batch: learning-team steps, to be returned where the batch ends."""
        return int(self.trajectories["credits"].sum())

    def replace(self, **columns: Array) -> TrajectoryBatch:
        """A batch with some columns replaced (or added, where their length is N) by name.

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
        """The batch with only the trajectories where `keep` [K] is true; its episodes and games stay."""
        row_mask = np.repeat(keep, self.lengths)
        return replace(
            self,
            rows={name: column[row_mask] for name, column in self.rows.items()},
            trajectories={name: column[keep] for name, column in self.trajectories.items()},
        )

    def split(self, first: int) -> tuple[TrajectoryBatch, TrajectoryBatch]:
        """The first `first` trajectories, and the rest, as views. Episodes and games go with the rest."""
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
        """A batch with its own arrays, to be kept beyond the call that received the original."""
        return replace(
            self,
            rows={name: column.copy() for name, column in self.rows.items()},
            trajectories={name: column.copy() for name, column in self.trajectories.items()},
            episodes={name: column.copy() for name, column in self.episodes.items()},
            games={name: column.copy() for name, column in self.games.items()},
        )


@dataclass(frozen=True, slots=True)
class PolicyUpdate:
    """A policy to act with: full state, never a difference, so that only the newest one matters."""

    behavior_id: str
    version: int
    """Number of the trainer's updates so far; 0 is the untrained policy."""
    weights: NDArray[np.float32]
    """All parameters and the normaliser's state, end to end."""
    layout: tuple[tuple[str, tuple[int, ...]], ...]
    """(name, shape) of each tensor in `weights`, in order."""
    step: int
    """Trainer steps (agent decisions learned from, or counted) at this version."""
    snapshot: int = -1
    """Number of the self-play snapshot, -1 for a policy straight from the trainer."""

    def copy(self) -> PolicyUpdate:
        """An update with its own weights, to be kept beyond the call that received the original."""
        return replace(self, weights=self.weights.copy())

    def tensors(self) -> dict[str, NDArray[np.float32]]:
        """Views into `weights` by name, shaped as the layout says.

        Raises:
            ShapeError: if the layout's tensors have more or fewer elements in total.
        """
        sizes = [math.prod(shape) for _, shape in self.layout]
        if sum(sizes) != self.weights.size:
            raise ShapeError(
                f"policy version {self.version} of {self.behavior_id} has {self.weights.size} weights, expected "
                f"{sum(sizes)} from its layout"
            )
        views, at = {}, 0
        for (name, shape), size in zip(self.layout, sizes, strict=True):
            views[name] = self.weights[at : at + size].reshape(shape)
            at += size
        return views


@dataclass(frozen=True, slots=True)
class Barrier:
    """A checkpoint's mark in the stream: everything before it is in checkpoint `number`, and nothing after it."""

    number: int
    source: int = 0
    """The actor incarnation that sent it."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """The opponents in all games from now on: the full state of matchmaking, never a difference.

    Actors adopt it game by game, at a game's start, once they hold the policies that it names.
    """

    generation: int
    """Rises with every assignment; trajectories and game results carry it."""
    learning_team: int
    """The team whose results count, and unless `all_learn`, the only one that learns."""
    policies: Mapping[str, tuple[int, int]]
    """Behaviour id → (snapshot, version) that it plays: exactly this one, or, for a learner, -1 and this version or a
    newer one."""
    opponent: int = -1
    """The opponent's snapshot, -1 for the newest policy; of several opponents, the first one's: the generation
    identifies all of them."""
    all_learn: bool = False
    """Whether all teams learn simultaneously, each with its newest policy."""

    def learns(self, behavior_id: str) -> bool:
        """Return True if a behaviour id in self-play plays its newest policy and learns from its steps."""
        return self.all_learn or behavior_team(behavior_id) == self.learning_team


@dataclass(frozen=True, slots=True)
class Matches:
    """Who plays whom in the games of a league's learner from now on: rows, each with its probability.

    Players are codes: a member of the pool has its number, the learner's own newest policy -1, and that of the league's
    k-th learner -2 - k. For each other team one of the rows is drawn whose opponents play the team's behaviour.
    """

    number: int
    """Rises with each change; trajectories and game results carry it."""
    seats: tuple[int, ...]
    """The player in the learner's place, by row; the trainer learns nothing from games of a member there."""
    opponents: tuple[int, ...]
    weights: tuple[float, ...]
    """The sum of those of opponents of one behaviour is 1."""
    members: Mapping[int, Mapping[str, Any]]
    """What an actor needs to know of each member that a row names."""


@dataclass(frozen=True, slots=True)
class Matchup:
    """An assignment and the weights that it names: goes from the ghost stage to the publisher."""

    assignment: Assignment
    policies: tuple[PolicyUpdate, ...]
    """Full weights for every team's behaviour id: the newest for the learning team, the opponents' for the others."""


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """A trainer's request to a shard of its replay buffer: the rows that the shard contributes to some batches."""

    counts: NDArray[np.int64]
    """[batches] rows for each; none for 0."""


@dataclass(frozen=True, slots=True)
class ReplaySample:
    """What a shard of a replay buffer sends: rows of one batch, or, in its first message, `size`."""

    columns: Columns


@dataclass(frozen=True, slots=True)
class PolicyQuestion:
    """The decisions of d agents by one policy, requested from a process that holds it."""

    behavior_id: str
    snapshot: int
    version: int
    """The policy as `PolicyUpdate` numbers it; of those straight from a trainer, this or a newer one."""
    greedy: bool
    """True for the mean and the most likely choice instead of a sample."""
    held: tuple[int, ...]
    """All snapshots of the behaviour id that the actor still plays; it requests no other one sent before the newest of
    them."""
    columns: Columns
    """[d, ...] obs_0…, and where they exist masks, memories, previous_actions (see `policy.protocol.Recall`)."""


@dataclass(frozen=True, slots=True)
class DecisionRequest:
    """All requests of an actor at one tick; it sends no more until they are answered or abandoned."""

    number: int
    """Unique among the requests of an actor and its predecessors, rising."""
    questions: tuple[PolicyQuestion, ...]


DECISION = "decision/"
"""Prefix of an answer's columns that are columns of the decision."""


@dataclass(frozen=True, slots=True)
class PolicyAnswer:
    """The decision of one policy for d agents."""

    version: int
    """Version of the policy that decided."""
    columns: Columns
    """[d, ...] continuous, discrete; decision/… (see `policy.protocol.Decision`); with memory: memories and
    previous_actions of the next decision."""


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


def _common_length(columns: Columns, axis: str) -> int:
    length = -1
    for column in columns.values():
        if len(column) != length:
            if length >= 0:
                found = {name: len(column) for name, column in columns.items()}
                raise ShapeError(f"{axis}: all columns need the same length, got {found}")
            length = len(column)
    return max(0, length)
