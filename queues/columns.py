"""The table of columns: the name, dtype and trailing shape of every column.

Buffers, checks and stream headers are derived from this table. Columns not listed here pass through every stage
unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.queues.specs import BehaviorSpec


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a batch; the table that lists it determines its leading axis (row, trajectory, episode, game)."""

    name: str
    dtype: str
    shape: tuple[int, ...] = ()


TRAJECTORY_COLUMNS: tuple[Column, ...] = (
    Column("lengths", "int32"),  # number of rows in the trajectory
    Column("agent_ids", "int64"),
    Column("episode_ids", "int64"),
    Column("terminated", "bool"),
    Column("truncated", "bool"),
    Column("first_version", "int64"),  # policy version of the first and of the last decision
    Column("last_version", "int64"),
    Column("generation", "int32"),  # self-play: the assignment's generation, role, opponent's snapshot (-1 newest)
    Column("learning", "bool"),
    Column("opponent", "int32"),
    Column("numbers", "int64"),  # 0, 1, 2, … for each source and behaviour id: exposes a trajectory that arrives twice
    Column("credits", "int32"),  # flow credits carried: the length if the learning team played it, otherwise 0
)
"""Columns [K] of every trajectory batch, in addition to those from `final_columns`."""

REPEAT_ROW_COLUMNS: tuple[Column, ...] = (
    Column("env_frames", "int32"),  # number of environment steps that the row's action lasted
)
"""Columns [N] that only behaviours with action repeat have; without it, each action lasts one environment step."""

GROUP_ROW_COLUMNS: tuple[Column, ...] = (
    Column("group_rewards", "float32"),  # the group's reward after the row's action, excluding the agent's own reward
    Column("ticks", "int64"),  # the actor's tick of the decision: equal for simultaneous rows of one group
)
"""Columns [N] that only behaviours with groups have."""

GROUP_TRAJECTORY_COLUMNS: tuple[Column, ...] = (
    Column("group_ids", "int64"),  # group of agents that share a reward; 0 for none
    Column("next_ticks", "int64"),  # the tick of the cut: trajectories of one group end together
    Column("group_left", "bool"),  # whether a member of the group continued; false if the group ended too
)
"""Columns [K] that only behaviours with groups have."""

EPISODE_COLUMNS: tuple[Column, ...] = (
    Column("episode_agent_ids", "int64"),
    Column("episode_returns", "float32"),  # undiscounted sum of the environment's rewards
    Column("episode_lengths", "int32"),  # number of decisions
    Column("episode_learning", "bool"),  # whether the learning team played it
    Column("episode_parameters", "int32"),  # generation of the environment parameters at the episode's start; 0 if none
)
"""Columns [E]: episodes that ended in the batch."""

GROUP_EPISODE_COLUMNS: tuple[Column, ...] = (
    Column("episode_group_returns", "float32"),  # undiscounted sum of the group's rewards while the agent was in it
    Column("episode_group_over", "bool"),  # whether the group ended too: true for one of the agents that ended last
)
"""Columns [E] that only behaviours with groups have."""

GAME_COLUMNS: tuple[Column, ...] = (
    Column("game_generation", "int32"),
    Column("game_team", "int32"),  # the learning team in the game
    Column("game_opponent", "int32"),  # opponent's snapshot (the first of several), -1 newest; for brains see below
    Column("game_outcome", "float32"),  # for the learning team: 1 won, 0.5 drawn, 0 lost; or fraction of teams beaten
)
"""Columns [G]: games that ended in the batch, one row per match, from the learning team's side.

Games between more than two teams also have `game_outcomes` [G, teams], as the environment reported them. If brains that
do not learn play some of the games, the batch also has `game_draws` [G, teams]. If the first opponent is the brain at
index i of its list, `game_opponent` is -2 - i.
"""

GAME_DRAWS = "game_draws"
"""Column [G, teams] float32: the random number in [0, 1) that selected each team's brain; -1 if no number was drawn."""


GAME_PLAYERS, GAME_RETURNS = "game_players", "game_returns"
"""Columns [G, teams] for games in a league: each team's player code (int32) and undiscounted return (float32)."""


def observation_columns(spec: BehaviorSpec, prefix: str = "obs_") -> tuple[Column, ...]:
    """Return the columns `obs_0`, `obs_1`, … (or `next_obs_0`, …), one per observation spec of the behaviour."""
    return tuple(Column(f"{prefix}{i}", o.dtype, o.shape) for i, o in enumerate(spec.observations))


def action_columns(spec: BehaviorSpec, prefix: str = "") -> tuple[Column, ...]:
    """Return the columns `continuous_actions` and `discrete_actions`, if used: the policy's raw action.

    Raw actions are neither clipped nor scaled.
    """
    columns = []
    if spec.actions.continuous_size:
        columns.append(Column(f"{prefix}continuous_actions", "float32", (spec.actions.continuous_size,)))
    if spec.actions.discrete_branches:
        columns.append(Column(f"{prefix}discrete_actions", "int32", (len(spec.actions.discrete_branches),)))
    return tuple(columns)


def decision_columns(spec: BehaviorSpec, extra: tuple[Column, ...] = ()) -> tuple[Column, ...]:
    """Return the columns [d] that a decision adds to a step: actions, `log_probs`, `action_masks`, and extras.

    In `action_masks`, true means allowed.
    """
    columns = [*action_columns(spec), Column("log_probs", "float32", (spec.actions.log_prob_size,))]
    if spec.actions.masked:
        columns.append(Column("action_masks", "bool", (spec.actions.mask_size,)))
    return (*columns, *extra)


def row_columns(spec: BehaviorSpec, extra: tuple[Column, ...] = ()) -> tuple[Column, ...]:
    """Return the columns [N] of a behaviour's trajectory batches; `extra` are the columns that the trainer declares."""
    columns = (*observation_columns(spec), *decision_columns(spec, extra), Column("rewards", "float32"))
    groups = GROUP_ROW_COLUMNS if spec.grouped else ()
    return (*columns, *groups, *(REPEAT_ROW_COLUMNS if spec.action_repeat else ()))


def final_columns(spec: BehaviorSpec) -> tuple[Column, ...]:
    """Return the columns [K] with each trajectory's next observation, previous action and group."""
    columns = (*observation_columns(spec, "next_obs_"), *action_columns(spec, "previous_"))
    return (*columns, *GROUP_TRAJECTORY_COLUMNS) if spec.grouped else columns


def episode_columns(spec: BehaviorSpec) -> tuple[Column, ...]:
    """Return the columns [E] of a behaviour's trajectory batches."""
    return (*EPISODE_COLUMNS, *GROUP_EPISODE_COLUMNS) if spec.grouped else EPISODE_COLUMNS


def memory_column(size: int) -> Column:
    """Return the column `memories` [..., size]: a recurrent policy's state *before* the decision, [h, c]."""
    return Column("memories", "float32", (size,))
