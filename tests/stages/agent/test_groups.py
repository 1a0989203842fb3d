"""Groups of agents: what the agent processor says of them, and that mates' trajectories are closed together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from headrace.queues.columns import GROUP_EPISODE_COLUMNS, GROUP_ROW_COLUMNS, GROUP_TRAJECTORY_COLUMNS
from headrace.queues.errors import ShapeError
from headrace.queues.messages import StepBatch, TrajectoryBatch
from headrace.stages.agent import AgentProcessor


@dataclass
class Row:
    """A row of an agent at a tick; an ending if `ended`."""

    agent: int
    group: int = 7
    reward: float = 0.0
    shared: float = 0.0
    ended: bool = False
    episode: int = 0


def step(tick: int, *rows: Row, grouped: bool = True) -> StepBatch:
    """One tick; what an agent sees and decides is the tick."""
    ordered = sorted(rows, key=lambda row: not row.ended)
    ended = sum(row.ended for row in rows)
    d = len(rows) - ended
    return StepBatch(
        behavior_id="Team",
        agent_ids=np.array([row.agent for row in ordered], np.int64),
        env_ids=np.zeros(len(rows), np.int32),
        episode_ids=np.array([row.episode for row in ordered], np.int64),
        observations=(np.full((len(rows), 1), tick, np.float32),),
        rewards=np.array([row.reward for row in ordered], np.float32),
        ended=ended,
        terminated=np.ones(ended, np.bool_),
        truncated=np.zeros(ended, np.bool_),
        decisions={
            "discrete_actions": np.full((d, 1), tick, np.int32),
            "log_probs": np.zeros((d, 1), np.float32),
        },
        policy_versions=np.full(d, tick, np.int64),
        generations=np.zeros(d, np.int32),
        learning=np.ones(d, np.bool_),
        opponents=np.full(d, -1, np.int32),
        tick=tick,
        group_ids=np.array([row.group for row in ordered], np.int64) if grouped else None,
        group_rewards=np.array([row.shared for row in ordered], np.float32) if grouped else None,
    )


def run(processor: AgentProcessor, *steps: StepBatch) -> list[TrajectoryBatch]:
    return [batch for each in steps for batch in processor.process(each)]


@pytest.fixture
def processor() -> AgentProcessor:
    return AgentProcessor({"Team": 10})


def seen(batch: TrajectoryBatch) -> dict[int, tuple[list[int], int, int]]:
    """By agent: ticks of its rows, the tick that its next observation shows, the tick of closing."""
    found, ends = {}, np.cumsum(batch.lengths)
    for k, end in enumerate(ends):
        rows = slice(end - batch.lengths[k], end)
        np.testing.assert_array_equal(batch.rows["obs_0"][rows, 0], batch.rows["ticks"][rows])
        found[int(batch.trajectories["agent_ids"][k])] = (
            batch.rows["ticks"][rows].tolist(),
            int(batch.trajectories["next_obs_0"][k, 0]),
            int(batch.trajectories["next_ticks"][k]),
        )
    return found


def test_rows_carry_their_tick_and_the_group_reward(processor):
    (batch,) = run(
        processor,
        step(4, Row(1)),
        step(5, Row(1, reward=1, shared=10)),
        step(6, Row(1, reward=2, shared=20, ended=True)),
    )
    assert batch.rows["ticks"].tolist() == [4, 5]
    assert batch.rows["group_rewards"].tolist() == [10, 20]
    assert batch.rewards.tolist() == [1, 2]
    assert batch.trajectories["group_ids"].tolist() == [7]
    for axis, columns in (
        ("rows", GROUP_ROW_COLUMNS),
        ("trajectories", GROUP_TRAJECTORY_COLUMNS),
        ("episodes", GROUP_EPISODE_COLUMNS),
    ):
        for column in columns:
            assert getattr(batch, axis)[column.name].dtype == column.dtype


def test_an_ending_cuts_the_trajectories_of_teammates(processor):
    (batch,) = run(
        processor,
        step(0, Row(1), Row(2), Row(3, group=8)),
        step(1, Row(1), Row(2), Row(3, group=8)),
        step(2, Row(1, ended=True), Row(2), Row(3, group=8)),
    )
    assert seen(batch) == {1: ([0, 1], 2, 2), 2: ([0, 1], 2, 2)}
    assert batch.terminated.tolist() == [True, False]
    assert batch.trajectories["group_left"].tolist() == [True, True]
    assert not batch.truncated.any()
    (rest,) = processor.flush()
    assert seen(rest) == {3: ([0, 1], 2, 2)}


def test_the_decision_at_a_cut_is_the_first_row_of_the_next_trajectory(processor):
    run(processor, step(0, Row(1), Row(2)), step(1, Row(1, ended=True), Row(2)))
    (batch,) = run(processor, step(2, Row(2, reward=5, shared=50)), step(3, Row(2, reward=6, shared=60, ended=True)))
    assert seen(batch) == {2: ([1, 2], 3, 3)}
    assert batch.rows["group_rewards"].tolist() == [50, 60]
    assert batch.trajectories["previous_discrete_actions"].tolist() == [[0]]


def test_a_teammate_without_a_decision_at_the_cut_is_closed_at_its_last_one(processor):
    """Its next observation is the newest there is of it, and it has the tick of the cut."""
    (batch,) = run(
        processor, step(0, Row(1), Row(2)), step(1, Row(1), Row(2)), step(2, Row(1)), step(3, Row(1, ended=True))
    )
    assert seen(batch) == {1: ([0, 1, 2], 3, 3), 2: ([0], 1, 3)}


def test_the_horizon_and_old_policies_cut_teammates_together():
    processor = AgentProcessor({"Team": 3})
    (batch,) = run(processor, step(0, Row(1)), *(step(t, Row(1), Row(2)) for t in range(1, 4)))
    assert seen(batch) == {1: ([0, 1, 2], 3, 3), 2: ([1, 2], 3, 3)}
    run(processor, step(4, Row(1), Row(2), Row(3, group=0)), step(5, Row(1), Row(2), Row(3, group=0)))
    (batch,) = processor.cut_older_than("Team", 3)
    assert seen(batch) == {1: ([3, 4], 5, 5), 2: ([3, 4], 5, 5)}


def test_a_group_s_return_is_reported_at_its_last_ending():
    processor = AgentProcessor({"Team": 10}, min_rows=100)
    run(
        processor,
        step(0, Row(1), Row(2)),
        step(1, Row(1, shared=1), Row(2, shared=1, reward=5)),
        step(2, Row(1, shared=2, ended=True), Row(2, shared=2), Row(3)),
        step(3, Row(2, shared=4, ended=True), Row(3, shared=4, ended=True)),
        step(4, Row(2, episode=1), Row(3, episode=1)),
    )
    (batch,) = processor.flush()
    episodes = batch.episodes
    assert episodes["episode_agent_ids"].tolist() == [1, 2, 3]
    assert episodes["episode_returns"].tolist() == [0, 5, 0]
    assert episodes["episode_group_returns"].tolist() == [3, 7, 4]
    assert episodes["episode_group_over"].tolist() == [False, True, False]


def test_a_group_that_restarts_within_a_tick_reports_its_return(processor):
    (batch,) = run(
        processor,
        step(0, Row(1), Row(2)),
        step(
            1,
            *(Row(agent, shared=3, ended=True) for agent in (1, 2)),
            *(Row(agent, episode=1) for agent in (1, 2)),
        ),
    )
    assert batch.episodes["episode_group_over"].tolist() == [True, False]
    assert batch.trajectories["group_left"].tolist() == [False, False]
    (batch,) = run(processor, step(2, *(Row(agent, shared=1, ended=True, episode=1) for agent in (1, 2))))
    assert batch.episodes["episode_group_returns"].tolist() == [1, 1], "counted anew"


def test_group_columns_in_only_some_steps_are_refused(processor):
    run(processor, step(0, Row(1)))
    with pytest.raises(ShapeError, match="Team: a behaviour must have group_ids either in all steps or in no step"):
        run(processor, step(1, Row(1), grouped=False))
