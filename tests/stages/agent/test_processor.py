"""What the agent processor says of itself, sentence by sentence."""

from __future__ import annotations

import logging
import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from headrace.queues.errors import ShapeError
from headrace.queues.messages import StepBatch, TrajectoryBatch
from headrace.stages.agent import AgentProcessor
from headrace.stages.errors import StageError


@dataclass
class Row:
    """A row of a step; `obs` is what the agent sees, `action` what it does then (never 0: that is none)."""

    agent: int
    obs: float = 0
    reward: float = 0
    action: int = 1
    episode: int = 0
    env: int = 0
    version: int = 0
    learning: bool = True
    generation: int = 0
    opponent: int = -1
    terminated: bool = True
    truncated: bool = False


def step(
    *decisions: Row,
    ended: Sequence[Row] = (),
    behavior_id: str = "Ball",
    games: Sequence[float] = (),
) -> StepBatch:
    rows = [*ended, *decisions]
    actions = np.array([row.action for row in decisions], np.int32).reshape(-1, 1)
    return StepBatch(
        behavior_id=behavior_id,
        agent_ids=np.array([row.agent for row in rows], np.int64),
        env_ids=np.array([row.env for row in rows], np.int32),
        episode_ids=np.array([row.episode for row in rows], np.int64),
        observations=(np.array([[row.obs, -row.obs] for row in rows], np.float32).reshape(-1, 2),),
        rewards=np.array([row.reward for row in rows], np.float32),
        ended=len(ended),
        terminated=np.array([row.terminated for row in ended], np.bool_),
        truncated=np.array([row.truncated for row in ended], np.bool_),
        decisions={
            "discrete_actions": actions,
            "log_probs": (actions / 8).astype(np.float32),
            "hidden_state": np.repeat(actions, 6).reshape(-1, 2, 3).astype(np.float16),
        },
        policy_versions=np.array([row.version for row in decisions], np.int64),
        generations=np.array([row.generation for row in decisions], np.int32),
        learning=np.array([row.learning for row in decisions], np.bool_),
        opponents=np.array([row.opponent for row in decisions], np.int32),
        games={"game_outcome": np.array(games, np.float32)} if len(games) else {},
    )


def run(processor: AgentProcessor, *steps: StepBatch) -> list[TrajectoryBatch]:
    return [batch for item in steps for batch in processor.process(item)]


def observed(batch: TrajectoryBatch) -> list[float]:
    return batch.rows["obs_0"][:, 0].tolist()


def followed_by(batch: TrajectoryBatch) -> list[float]:
    return batch.trajectories["next_obs_0"][:, 0].tolist()


def acted_before(batch: TrajectoryBatch) -> list[int]:
    return batch.trajectories["previous_discrete_actions"][:, 0].tolist()


def numbers(batch: TrajectoryBatch) -> list[int]:
    return batch.trajectories["numbers"].tolist()


def make(horizon: int = 100, **options: int) -> AgentProcessor:
    return AgentProcessor({"Ball": horizon}, **options)


def pending(processor: AgentProcessor) -> int:
    return processor.used("Ball") - processor.emitted("Ball")


# Steps, endings and cuts. -----------------------------------------------------------------------------------


def test_a_row_carries_the_reward_of_the_previous_decision() -> None:
    (batch,) = run(
        make(),
        step(Row(7, obs=1, action=4)),
        step(Row(7, obs=2, reward=10, action=5)),
        step(ended=[Row(7, obs=3, reward=20)]),
    )
    assert observed(batch) == [1, 2]
    assert batch.rewards.tolist() == [10, 20]
    assert batch.rows["discrete_actions"].tolist() == [[4], [5]]
    assert batch.rows["log_probs"].tolist() == [[0.5], [0.625]]


def test_an_ending_closes_the_trajectory_before_its_observation() -> None:
    (batch,) = run(make(), step(Row(7, obs=1)), step(ended=[Row(7, obs=2)]))
    assert batch.lengths.tolist() == [1]
    assert followed_by(batch) == [2]
    assert batch.terminated.tolist() == [True]
    assert batch.truncated.tolist() == [False]


@pytest.mark.parametrize(
    ("terminated", "truncated", "becomes"),
    [(True, False, (True, False)), (False, True, (False, True)), (True, True, (True, False))],
)
def test_terminated_wins_over_truncated(terminated: bool, truncated: bool, becomes: tuple[bool, bool]) -> None:
    ending = Row(7, terminated=terminated, truncated=truncated)
    (batch,) = run(make(), step(Row(7)), step(ended=[ending]))
    assert (batch.terminated[0], batch.truncated[0]) == becomes


def test_trajectories_are_numbered_in_the_order_in_which_they_leave() -> None:
    processor = make()
    batches = run(processor, step(Row(7), Row(8), Row(9)), step(ended=[Row(8), Row(7)]), step(ended=[Row(9)]))
    assert [numbers(batch) for batch in batches] == [[0, 1], [2]]
    run(processor, step(Row(7, episode=1)), step(Row(7, episode=1)))
    assert [numbers(batch) for batch in processor.flush()] == [[3]]


def test_a_trajectory_is_cut_at_the_horizon_and_the_episode_continues_in_the_next() -> None:
    first, second = run(make(2), *(step(Row(7, obs=i, reward=10 * i, action=i)) for i in range(1, 6)))
    assert (observed(first), observed(second)) == ([1, 2], [3, 4])
    assert (first.rewards.tolist(), second.rewards.tolist()) == ([20, 30], [40, 50])
    assert (followed_by(first), followed_by(second)) == ([3], [5])
    assert not (first.terminated | first.truncated | second.terminated | second.truncated).any()


def test_the_action_before_a_trajectory_is_zero_at_an_episodes_start_only() -> None:
    batches = run(
        make(2),
        *(step(Row(7, action=i)) for i in range(1, 4)),
        step(Row(7, episode=1, action=8), ended=[Row(7)]),
        step(ended=[Row(7, episode=1)]),
    )
    assert [acted_before(batch) for batch in batches] == [[0], [2], [0]]


def test_an_agent_may_end_and_restart_within_a_tick() -> None:
    restart = step(Row(7, obs=5, reward=99, episode=1), ended=[Row(7, obs=3, reward=1)])
    first, second = run(make(), step(Row(7, obs=1)), restart, step(ended=[Row(7, obs=6, reward=2, episode=1)]))
    assert (observed(first), followed_by(first), first.rewards.tolist()) == ([1], [3], [1])
    assert (observed(second), followed_by(second), second.rewards.tolist()) == ([5], [6], [2])
    assert [batch.episodes["episode_returns"].tolist() for batch in (first, second)] == [[1], [2]]


def test_an_ending_without_a_decision_is_ignored() -> None:
    processor = make()
    assert run(processor, step(ended=[Row(7)]), step(Row(8)), step(Row(8), ended=[Row(7, reward=3)])) == []
    (batch,) = run(processor, step(ended=[Row(7), Row(8)]))
    assert batch.trajectories["agent_ids"].tolist() == [8]
    assert batch.episodes["episode_agent_ids"].tolist() == [8]


# Stamps. ----------------------------------------------------------------------------------------------------


def test_a_new_episode_without_an_ending_drops_the_open_decision_and_truncates_before_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    processor = make()
    with caplog.at_level(logging.WARNING):
        (batch,) = run(
            processor,
            *(step(Row(7, obs=i, reward=i)) for i in (1, 2, 3)),
            step(Row(7, obs=9, reward=50, episode=1)),
            step(Row(7, obs=9, reward=60, episode=2)),
        )
    assert (observed(batch), followed_by(batch)) == ([1, 2], [3])
    assert (batch.terminated.tolist(), batch.truncated.tolist()) == ([False], [True])
    assert batch.episodes == {}
    assert pending(processor) == 0
    assert len(caplog.records) == 1
    assert "agent 7 began episode 1, but its episode 0 has not ended" in caplog.text


@pytest.mark.parametrize("change", [{"generation": 4}, {"learning": False}, {"opponent": 2}])
def test_a_stamp_that_changes_within_an_episode_cuts_and_loses_nothing(change: dict[str, int]) -> None:
    processor = make()
    (first,) = run(
        processor,
        step(Row(7, obs=1, action=1), Row(8)),
        step(Row(7, obs=2, action=2, reward=10, **change), Row(8)),  # type: ignore[arg-type]
    )
    assert (observed(first), followed_by(first), first.rewards.tolist()) == ([1], [2], [10])
    assert (first.terminated.tolist(), first.truncated.tolist(), first.credits) == ([False], [False], 1)
    (second,) = run(processor, step(ended=[Row(7, obs=3, reward=20)]))
    assert {name: second.trajectories[name][0] for name in change} == change
    assert (observed(second), acted_before(second), second.rewards.tolist()) == ([2], [1], [20])
    assert second.credits == (0 if "learning" in change else 1)
    assert second.episodes["episode_returns"].tolist() == [30]


def test_the_end_of_learning_keeps_completed_steps_and_spends_no_more_credits() -> None:
    processor = make(min_rows=100)
    run(processor, *(step(Row(7, obs=i, action=i, reward=i, generation=4), Row(8, learning=False)) for i in (1, 2)))
    processor.end_learning("Ball")
    assert pending(processor) == 1
    run(
        processor,
        step(Row(7, obs=3, action=3, reward=3, generation=4, learning=False), Row(8, learning=False)),
        step(Row(7, obs=4, reward=4, generation=5), Row(8, learning=False)),
    )
    assert pending(processor) == 1
    (batch,) = processor.flush()
    assert batch.trajectories["agent_ids"].tolist() == [7, 7, 8]
    assert batch.trajectories["lengths"].tolist() == [1, 2, 3], "what did not learn anyway is not cut"
    assert batch.trajectories["credits"].tolist() == [1, 0, 0]
    assert batch.trajectories["generation"].tolist() == [4, 4, 0]
    assert (observed(batch)[:3], followed_by(batch)[:2]) == ([1, 2, 3], [2, 4])
    assert batch.rewards.tolist()[:3] == [2, 3, 4]
    assert not batch.truncated.any()


def test_trajectories_tell_stamp_and_versions_and_carry_credits_if_learning() -> None:
    stamp = {"episode": 3, "generation": 5, "opponent": 6}
    (batch,) = run(
        make(source=9),
        step(Row(1, version=4, **stamp), Row(2, version=4, learning=False)),  # type: ignore[arg-type]
        step(Row(1, version=6, **stamp), Row(2, version=5, learning=False)),  # type: ignore[arg-type]
        step(ended=[Row(1, episode=3), Row(2)]),
    )
    assert batch.source == 9
    columns = batch.trajectories
    assert columns["episode_ids"].tolist() == [3, 0]
    assert columns["generation"].tolist() == [5, 0]
    assert columns["opponent"].tolist() == [6, -1]
    assert columns["learning"].tolist() == [True, False]
    assert columns["credits"].tolist() == [2, 0]
    assert columns["first_version"].tolist() == [4, 4]
    assert columns["last_version"].tolist() == [6, 5]


# Columns. ---------------------------------------------------------------------------------------------------


def test_a_column_that_changes_is_named() -> None:
    processor = make()
    run(processor, step(Row(7)))
    good = dict(step(Row(7)).decisions)
    for decisions, named in (
        (good | {"log_probs": np.zeros((1, 2), np.float32)}, "'log_probs'"),
        (good | {"log_probs": np.zeros((1, 1), np.float64)}, "float64"),
        (good | {"values": np.zeros(1)}, "'values'"),
        ({"log_probs": good["log_probs"]}, "discrete_actions"),
    ):
        with pytest.raises(ShapeError, match=f"Ball: .*{named}"):
            run(processor, replace(step(Row(7)), decisions=decisions))
    with pytest.raises(ShapeError, match="expected 1 observations, got 0"):
        run(processor, replace(step(Row(7)), observations=()))


def test_a_behaviour_without_a_sound_horizon_is_refused() -> None:
    with pytest.raises(StageError, match="no time_horizon for behaviour 'Ball'"):
        run(AgentProcessor({"Other": 3}), step(Row(7)))
    with pytest.raises(StageError, match="at least 1, got 0"):
        run(AgentProcessor(lambda name: 0), step(Row(7)))


# Batches. ---------------------------------------------------------------------------------------------------


def test_closed_rows_wait_until_there_are_min_rows() -> None:
    processor = make(2, min_rows=4)
    assert run(processor, *(step(Row(1, obs=i)) for i in range(4))) == []
    assert pending(processor) == 3
    (batch,) = run(processor, step(Row(1, obs=4)))
    assert batch.lengths.tolist() == [2, 2]
    assert observed(batch) == [0, 1, 2, 3]


def test_teams_make_separate_batches_and_are_counted_under_one_name() -> None:
    processor = make()
    for team in (0, 1):
        run(
            processor,
            *(step(Row(team, learning=team == 0), behavior_id=f"Ball?team={team}") for _ in range(3)),
        )
    assert (pending(processor), processor.open_agents("Ball")) == (2, 2)
    batches = processor.flush()
    assert [batch.behavior_id for batch in batches] == ["Ball?team=0", "Ball?team=1"]
    assert [batch.credits for batch in batches] == [2, 0]
    assert (pending(processor), processor.emitted("Ball"), processor.emitted("Other")) == (0, 2, 0)


def test_episodes_are_summed_over_trajectories_in_double_precision() -> None:
    rewards = [0, 2**24, 1, 1, 1]
    *_, batch = run(make(2), *(step(Row(7, reward=reward)) for reward in rewards), step(ended=[Row(7, reward=1)]))
    assert batch.episodes["episode_returns"].dtype == np.float32
    assert batch.episodes["episode_returns"].tolist() == [2**24 + 4]
    assert batch.episodes["episode_lengths"].tolist() == [5]
    assert batch.episodes["episode_agent_ids"].tolist() == [7]
    assert batch.episodes["episode_learning"].tolist() == [True]


def test_games_go_with_the_next_batch_of_their_behaviour() -> None:
    processor = make()
    assert run(processor, step(Row(7), games=[1.0]), step(Row(7), games=[0.5, 0.0])) == []
    (batch,) = run(processor, step(ended=[Row(7)]))
    assert batch.games["game_outcome"].tolist() == [1.0, 0.5, 0.0]
    (later,) = run(processor, step(Row(7)), step(ended=[Row(7)]))
    assert later.games == {}


def test_games_without_trajectories_leave_with_a_flush() -> None:
    processor = make()
    run(processor, step(Row(7), games=[1.0]))
    (batch,) = processor.flush()
    assert (batch.num_rows, batch.num_trajectories) == (0, 0)
    assert batch.games["game_outcome"].tolist() == [1.0]
    assert set(batch.rows) == {"obs_0", "discrete_actions", "log_probs", "hidden_state", "rewards"}
    assert processor.flush() == []


# What flow control and checkpoints ask for. -----------------------------------------------------------------


def test_flush_closes_trajectories_and_the_next_ones_begin_at_the_open_decision() -> None:
    processor = make()
    run(processor, *(step(Row(7, obs=i, reward=10 * i, action=i)) for i in (1, 2, 3)), step(Row(8)))
    (first,) = processor.flush()
    assert (observed(first), followed_by(first), first.rewards.tolist()) == ([1, 2], [3], [20, 30])
    assert not (first.terminated | first.truncated).any()
    assert processor.flush() == []
    (second,) = run(processor, step(ended=[Row(7, obs=4, reward=40)]))
    assert (observed(second), acted_before(second), second.rewards.tolist()) == ([3], [2], [40])
    assert second.rows["discrete_actions"].tolist() == [[3]]
    assert second.episodes["episode_lengths"].tolist() == [3]


def test_cut_older_than_closes_only_trajectories_begun_with_old_versions() -> None:
    processor = make()
    run(processor, step(Row(1, version=3)), step(Row(1, version=5), Row(2, version=4)))
    run(processor, step(Row(1, version=5), Row(2, version=5)))
    assert processor.cut_older_than("Ball", 2) == []
    assert processor.cut_older_than("Ball?team=1", 9) == []
    (batch,) = processor.cut_older_than("Ball", 3)
    assert batch.trajectories["agent_ids"].tolist() == [1]
    assert batch.trajectories["last_version"].tolist() == [5]
    (batch,) = processor.cut_older_than("Ball", 4)
    assert batch.trajectories["agent_ids"].tolist() == [2]


def test_close_all_truncates_and_forgets_all_agents() -> None:
    processor = make()
    run(processor, *(step(Row(7, obs=i)) for i in (1, 2)), step(Row(8)))
    (batch,) = processor.close_all()
    assert (observed(batch), followed_by(batch)) == ([1], [2])
    assert (batch.terminated.tolist(), batch.truncated.tolist(), batch.episodes) == ([False], [True], {})
    assert processor.open_agents("Ball") == 0
    (batch,) = run(processor, step(Row(7, obs=5, reward=3)), step(ended=[Row(7, reward=4)]))
    assert (observed(batch), acted_before(batch)) == ([5], [0])
    assert batch.episodes["episode_returns"].tolist() == [4]


def test_drop_environments_forgets_agents_and_returns_the_number_of_lost_steps() -> None:
    processor = make()
    agents = [Row(1, env=0), Row(2, env=1), Row(3, env=1, learning=False)]
    run(processor, *(step(*agents) for _ in range(3)))
    assert pending(processor) == 4
    assert processor.drop_environments([1]) == 2
    assert processor.drop_environments(np.arange(5, 9)) == 0
    assert (pending(processor), processor.open_agents("Ball")) == (2, 1)
    (batch,) = processor.flush()
    assert batch.trajectories["agent_ids"].tolist() == [1]


def test_close_environments_forgets_their_agents_and_keeps_what_they_made() -> None:
    processor = make()
    run(processor, *(step(Row(1, env=0), Row(2, env=1)) for _ in range(3)))
    processor.close_environments([1, 7])
    assert (pending(processor), processor.open_agents("Ball")) == (4, 1)
    (batch,) = run(processor, step(Row(1, env=0)))
    assert (batch.trajectories["agent_ids"].tolist(), batch.lengths.tolist()) == ([2], [2])
    assert (batch.truncated.tolist(), batch.terminated.tolist()) == ([True], [False])


def test_decisions_may_be_replaced_before_the_environment_acts_on_them() -> None:
    processor = make()
    run(processor, step(Row(1, obs=1), Row(2)))
    processor.replace_decisions(step(Row(1, obs=77, action=5, version=8), Row(99, action=6)))
    (batch,) = run(processor, step(ended=[Row(1)]))
    assert (observed(batch), batch.rows["discrete_actions"].tolist()) == ([1], [[5]])
    assert batch.trajectories["first_version"].tolist() == [8]
    (batch,) = run(processor, step(Row(3)), step(ended=[Row(3)]))
    assert acted_before(batch) == [0]


def test_a_new_source_numbers_batches_from_0_and_keeps_open_steps() -> None:
    processor = make()
    run(processor, step(Row(7), Row(8)), step(Row(7), ended=[Row(8)]))
    assert (processor.emitted("Ball"), pending(processor)) == (1, 1)
    processor.begin_source(9)
    assert (processor.source, processor.emitted("Ball"), pending(processor)) == (9, 0, 1)
    (batch,) = processor.flush()
    assert (batch.source, numbers(batch), batch.credits) == (9, [0], 1)
    assert processor.emitted("Ball") == 1


@pytest.mark.lengthy
def test_memory_stays_flat_however_many_agents_come_and_go() -> None:
    processor = make(256)  # so a page that is lost weighs 10 KB, more than the interpreter's own caches

    def live(first: int, lives: int) -> int:
        for agent in range(first, first + lives):
            run(processor, step(Row(agent)), step(Row(agent, episode=1)), step(ended=[Row(agent, episode=1)]))
            run(processor, step(Row(agent)))
            processor.drop_environments([0])
            run(processor, step(Row(agent)))
            processor.close_all()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = live(0, 50)
        assert live(50, 100) < before + 400_000
    finally:
        tracemalloc.stop()
