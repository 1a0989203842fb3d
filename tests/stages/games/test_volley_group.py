import numpy as np
import pytest

from benchmarks.matches import RandomPlayer
from headrace.queues.messages import ActionBatch
from headrace.stages.environments.protocol import EnvironmentGroup
from headrace.stages.games.volley import ACTIONS, BALL_RADIUS, VX, VY, VolleyGroup, X, Y

LEFT, RIGHT = "Volley?team=0", "Volley?team=1"


def idle(group):
    """Everybody stands still."""
    stay = np.tile(np.array([1, 0], np.int32), (group.num_envs, 1))
    batch = ActionBatch(np.zeros((group.num_envs, 0), np.float32), stay)
    return dict.fromkeys(group.behavior_ids, batch)


def random_game(group, seed, ticks):
    """The results of a reset and of random play."""
    play = RandomPlayer(ACTIONS, seed)
    yield group.reset(seed)
    decide = np.zeros((group.num_envs, 12), np.float32)
    for _ in range(ticks):
        yield group.step({behavior_id: play((decide,)) for behavior_id in group.behavior_ids})


def drop_ball(group, court, x):
    """Let the ball touch the ground at `x` within the next tick."""
    group.courts.ball[[X, Y, VX, VY], court] = x, BALL_RADIUS + 0.01, 0, -3


def test_the_group_has_one_behaviour_for_two_teams():
    group = VolleyGroup(2, behavior="Duel")

    assert isinstance(group, EnvironmentGroup)
    assert list(group.behavior_specs) == ["Duel?team=0", "Duel?team=1"]
    spec = group.behavior_specs["Duel?team=1"]
    assert (spec.name, spec.team) == ("Duel", 1)
    assert spec.observations[0].shape == (12,)
    assert spec.actions.discrete_branches == (3, 2)
    group.close()
    group.close()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"num_envs": 0}, "num_envs"),
        ({"num_envs": 1, "points_to_win": 0}, "points_to_win"),
        ({"num_envs": 1, "frame_skip": 0}, "frame_skip"),
        ({"num_envs": 1, "time_limit_s": 0.01}, "time_limit_s"),
    ],
)
def test_options_out_of_range_are_named(options, named):
    with pytest.raises(ValueError, match=named):
        VolleyGroup(**options)


@pytest.mark.lengthy
def test_the_same_seed_and_actions_give_the_same_games():
    runs = [list(random_game(VolleyGroup(16, points_to_win=2), seed, 60)) for seed in (5, 5, 6)]

    def seen(run):
        return np.stack([result.steps[LEFT].observations[0][-16:] for result in run])

    np.testing.assert_array_equal(seen(runs[0]), seen(runs[1]))
    assert [r.statistics for r in runs[0]] == [r.statistics for r in runs[1]]
    assert (seen(runs[0]) != seen(runs[2])).any()


@pytest.mark.lengthy
def test_rows_are_endings_first_then_one_decision_per_court():
    n, endings = 32, 0
    group = VolleyGroup(n, points_to_win=2, time_limit_s=6.0)
    episode = np.zeros(n, np.int64)
    for result in random_game(group, 1, 200):
        for team, behavior_id in enumerate((LEFT, RIGHT)):
            steps = result.steps[behavior_id]
            k = steps.ended
            over = steps.env_ids[:k]
            np.testing.assert_array_equal(steps.env_ids[k:], np.arange(n))
            np.testing.assert_array_equal(steps.agent_ids, steps.env_ids * 2 + team)
            np.testing.assert_array_equal(steps.episode_ids[:k], episode[over])
            assert steps.agent_ids.dtype == steps.episode_ids.dtype == np.int64
            assert steps.env_ids.dtype == np.int32
            assert steps.rewards.dtype == np.float32
            assert steps.observations[0].shape == (n + k, 12)
            assert len(steps.terminated) == len(steps.truncated) == k
            assert (steps.terminated ^ steps.truncated).all()
            assert (steps.rewards[k:][over] == 0).all()
            assert steps.action_masks is None
        episode[over] += 1
        np.testing.assert_array_equal(result.steps[LEFT].episode_ids[k:], episode)
        np.testing.assert_array_equal(result.steps[LEFT].rewards, -result.steps[RIGHT].rewards)
        endings += k
    assert endings > 2 * n


@pytest.mark.lengthy
def test_results_agree_with_the_sign_of_the_final_rewards():
    matches = 0
    for result in random_game(VolleyGroup(32, points_to_win=3, time_limit_s=4.0), 2, 200):
        ended = result.steps[LEFT].ended
        assert (result.games is None) == (ended == 0)
        if result.games is not None:
            final = result.steps[LEFT].rewards[:ended]
            np.testing.assert_array_equal(result.games.env_ids, result.steps[LEFT].env_ids[:ended])
            np.testing.assert_array_equal(result.games.outcomes, np.stack([1 + final, 1 - final], 1) / 2)
            np.testing.assert_array_equal(result.steps[LEFT].truncated, final == 0)
            matches += ended
    assert matches > 32


def test_a_point_is_rewarded_and_followed_by_a_serve_within_the_match():
    group = VolleyGroup(2)
    group.reset(0)
    drop_ball(group, 1, x=2.0)
    group.courts.players[X, 1, 1] = -0.6

    steps = group.step(idle(group)).steps[LEFT]

    assert steps.ended == 0
    np.testing.assert_array_equal(steps.rewards, [0, 1])
    np.testing.assert_array_equal(group.score, [[0, 1], [0, 0]])
    assert group.courts.ball[X, 1] == 0


def test_the_last_point_wins_the_match():
    group = VolleyGroup(1, points_to_win=3)
    group.reset(0)
    group.score[:, 0] = 1, 2
    drop_ball(group, 0, x=-2.5)
    group.courts.players[X, 0, 0] = -0.6

    result = group.step(idle(group))

    assert result.steps[RIGHT].terminated.tolist() == [True]
    assert result.steps[RIGHT].rewards.tolist() == [1, 0]
    assert result.games.outcomes.tolist() == [[0, 1]]
    assert group.score.tolist() == [[0], [0]]


def test_at_the_time_limit_the_leader_wins_and_equal_points_are_a_truncated_draw():
    group = VolleyGroup(2, time_limit_s=0.12)
    group.reset(0)
    group.score[:, 0] = 2, 1

    result = group.step(idle(group))

    steps = result.steps[LEFT]
    assert steps.rewards.tolist() == [1, 0, 0, 0]
    assert steps.terminated.tolist() == [True, False]
    assert steps.truncated.tolist() == [False, True]
    assert result.games.outcomes.tolist() == [[1, 0], [0.5, 0.5]]


def test_the_final_observation_is_of_the_match_that_ended():
    group = VolleyGroup(1, points_to_win=1)
    group.reset(0)
    drop_ball(group, 0, x=-2.5)
    group.courts.players[X, 0, 0] = -0.6

    final, first = group.step(idle(group)).steps[LEFT].observations[0]

    assert final[4] < -0.7
    assert first[4] == 0


def test_both_sides_receive_equally_many_serves():
    group = VolleyGroup(4000)
    group.reset(11)

    towards_left = int((group.courts.ball[VX] < 0).sum())

    assert abs(towards_left - 2000) < 4 * np.sqrt(1000)
    assert (np.abs(group.courts.ball[VX]) > 0).all()
