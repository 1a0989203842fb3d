"""Connect four as an environment group."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.queues.messages import ActionBatch
from headrace.stages.environments.protocol import EnvironmentGroup
from headrace.stages.errors import StageError
from headrace.stages.games import connect_four
from headrace.stages.games.connect_four import ConnectFourGroup, RandomPlayer

ZERO, ONE = "Four?team=0", "Four?team=1"


def drop(group, *columns):
    """Drop one stone on every board, whoever is to move there."""
    mover, given = group.to_move, np.array(columns, np.int32)
    return group.step(
        {
            behavior_id: ActionBatch(
                np.zeros((int((mover == team).sum()), 0), np.float32), given[mover == team][:, None]
            )
            for team, behavior_id in enumerate(group.behavior_ids)
        }
    )


def test_the_group_has_two_masked_behaviours():
    group = ConnectFourGroup(2, behavior="Four")

    assert isinstance(group, EnvironmentGroup)
    assert list(group.behavior_specs) == [ZERO, ONE]
    assert group.behavior_specs[ONE].actions.masked
    group.close()
    with pytest.raises(ValueError, match="num_envs is 0"):
        ConnectFourGroup(0)


def test_only_the_player_to_move_decides_and_teams_take_turns_at_starting():
    group = ConnectFourGroup(3, behavior="Four")
    first = group.reset(0)
    assert [first.steps[name].env_ids.tolist() for name in (ZERO, ONE)] == [[0, 2], [1]]

    second = drop(group, 3, 3, 3)
    assert [second.steps[name].env_ids.tolist() for name in (ZERO, ONE)] == [[1], [0, 2]]
    assert second.games is None


def test_each_player_sees_its_own_stones_first():
    group = ConnectFourGroup(1, behavior="Four")
    group.reset(0)
    second = drop(group, 2)
    board = second.steps[ONE].observations[0].reshape(6, 7, 2)
    assert np.argwhere(board).tolist() == [[5, 2, 1]]
    third = drop(group, 2)
    board = third.steps[ZERO].observations[0].reshape(6, 7, 2)
    assert sorted(map(tuple, np.argwhere(board))) == [(4, 2, 1), (5, 2, 0)]


def test_four_in_a_row_win_and_the_other_team_starts_the_next_game():
    group = ConnectFourGroup(1, behavior="Four")
    group.reset(0)
    for column in (0, 1, 0, 1, 0, 1):
        result = drop(group, column)
        assert result.games is None
    last = drop(group, 0)

    winner, loser = last.steps[ZERO], last.steps[ONE]
    assert (winner.ended, winner.rewards.tolist(), winner.terminated.tolist()) == (1, [1.0], [True])
    assert (loser.ended, loser.rewards.tolist()) == (1, [-1.0, 0.0])
    np.testing.assert_array_equal(loser.episode_ids, [0, 1])
    assert loser.observations[0][0].sum() == 7
    assert loser.observations[0][1].sum() == 0
    np.testing.assert_array_equal(last.games.outcomes, [[1, 0]])
    assert last.statistics == {"Connect Four/Moves": 7.0}


def test_a_full_board_is_a_draw():
    group = ConnectFourGroup(1, behavior="Four")
    group.reset(0)
    # Columns in pairs, filled so that nobody gets four: a known way to a full board.
    moves = [c for low, high in ((0, 1), (2, 3), (4, 5)) for c in (low, high) * 2 + (high, low) * 2 + (low, high) * 2]
    moves += [6] * 6
    for column in moves[:-1]:
        assert drop(group, column).games is None
    last = drop(group, moves[-1])

    np.testing.assert_array_equal(last.games.outcomes, [[0.5, 0.5]])
    for name in (ZERO, ONE):
        assert last.steps[name].rewards[0] == 0
        assert last.steps[name].terminated.tolist() == [True]


def test_full_columns_are_masked_and_refused():
    group = ConnectFourGroup(1, behavior="Four")
    group.reset(0)
    for _ in range(6):
        result = drop(group, 4)

    assert result.steps[ZERO].action_masks.tolist() == [[True] * 4 + [False] + [True] * 2]
    with pytest.raises(StageError, match="column 4 of board 0 is full"):
        drop(group, 4)


def test_rows_and_episodes_of_random_games_are_consistent():
    boards, games = 16, 0
    group, player = ConnectFourGroup(boards, behavior="Four"), RandomPlayer(0)
    result = group.reset(0)
    episode = np.zeros(boards, int)
    for _ in range(120):
        deciding = []
        for team, name in enumerate((ZERO, ONE)):
            steps = result.steps[name]
            np.testing.assert_array_equal(steps.agent_ids, steps.env_ids * 2 + team)
            assert (steps.rewards[steps.ended :] == 0).all()
            np.testing.assert_array_equal(steps.episode_ids[steps.ended :], episode[steps.env_ids[steps.ended :]])
            assert (steps.observations[0].dtype, steps.rewards.dtype) == (np.int8, np.float32)
            deciding += steps.env_ids[steps.ended :].tolist()
        assert sorted(deciding) == list(range(boards))
        zero, one = (result.steps[name] for name in (ZERO, ONE))
        np.testing.assert_array_equal(zero.rewards[: zero.ended], -one.rewards[: one.ended])
        result = group.step({name: player((), result.steps[name].action_masks) for name in (ZERO, ONE)})
        if result.games is not None:
            np.testing.assert_array_equal(
                result.games.outcomes[:, 0], (1 + result.steps[ZERO].rewards[: len(result.games.env_ids)]) / 2
            )
            episode[result.games.env_ids] += 1
            games += len(result.games.env_ids)
    assert games > boards


def opened(boards=64, most=12, seed=3):
    group = ConnectFourGroup(boards, behavior="Four", opening_moves=most)
    return group, group.reset(seed)


def stones_of(group):
    return group.heights.sum(axis=1)


def test_games_begin_with_moves_drawn_at_random():
    group, result = opened()

    assert set(stones_of(group)) == set(range(13))
    np.testing.assert_array_equal(group.to_move, (np.arange(64) + stones_of(group)) % 2)
    assert not connect_four.four_in_a_row(group.stones).any()
    for team, name in enumerate((ZERO, ONE)):
        steps = result.steps[name]
        np.testing.assert_array_equal(steps.env_ids, np.flatnonzero(group.to_move == team))
        np.testing.assert_array_equal(steps.action_masks, group.heights[steps.env_ids] < 6)
        own, other, heights = connect_four.from_planes(steps.observations[0])
        np.testing.assert_array_equal(own, group.stones[team, steps.env_ids])
        np.testing.assert_array_equal(other, group.stones[1 - team, steps.env_ids])
        np.testing.assert_array_equal(heights, group.heights[steps.env_ids])


def test_an_opening_that_would_end_the_game_is_left_out():
    group, _ = opened(boards=500, most=41)

    assert not connect_four.four_in_a_row(group.stones).any()
    assert (stones_of(group) == 0).sum() > 100, "most openings as long as that would"
    drop(group, *connect_four.free(group.heights).argmax(axis=1))


@pytest.mark.lengthy
def test_the_seed_decides_the_openings_of_all_games():
    def heights(seed):
        group, _ = opened(boards=8, seed=seed)
        for _ in range(60):
            drop(group, *connect_four.free(group.heights).argmax(axis=1))
        return group.heights

    np.testing.assert_array_equal(heights(3), heights(3))
    assert (heights(3) != heights(4)).any()


@pytest.mark.parametrize("most", [-1, 42])
def test_an_opening_that_fills_the_board_is_refused(most):
    with pytest.raises(ValueError, match=f"opening_moves is {most}"):
        ConnectFourGroup(2, opening_moves=most)
