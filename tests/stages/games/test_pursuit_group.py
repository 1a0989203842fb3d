"""Pursuit as an environment group."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.matches import RandomPlayer
from headrace.queues.messages import ActionBatch
from headrace.stages.environments.protocol import EnvironmentGroup
from headrace.stages.games.pursuit import ACTIONS, EVADER, RESULT_REWARD, STEP_REWARD, PursuitGroup

HUNT, FLEE = "Pursuer?team=0", "Evader?team=1"


def stay(group):
    """Everybody stands still."""
    return {
        behavior_id: ActionBatch(np.zeros((count, 0), np.float32), np.zeros((count, 1), np.int32))
        for behavior_id, count in ((HUNT, 2 * group.num_envs), (FLEE, group.num_envs))
    }


def random_game(group, seed, ticks):
    """The results of a reset and of random play."""
    play = RandomPlayer(ACTIONS, seed)
    yield group.reset(seed)
    for _ in range(ticks):
        yield group.step({i: play((np.zeros((n * group.num_envs, 13)),)) for i, n in ((HUNT, 2), (FLEE, 1))})


def catch(group, env_id):
    """Put a pursuer onto the evader."""
    group.arenas.places[env_id, 1] = group.arenas.places[env_id, EVADER]


def test_the_group_has_two_behaviours():
    group = PursuitGroup(2, pursuer="Hunter", evader="Fox")

    assert isinstance(group, EnvironmentGroup)
    assert list(group.behavior_specs) == ["Hunter?team=0", "Fox?team=1"]
    for spec in group.behavior_specs.values():
        assert spec.observations[0].shape == (13,)
        assert spec.actions.discrete_branches == (9,)
    group.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_envs": 0}, "num_envs is 0"),
        ({"num_envs": 1, "time_limit_s": 0.01}, "time_limit_s is 0.01, shorter than one decision"),
        ({"num_envs": 1, "evader": "Pursuer"}, "pursuer and evader are both 'Pursuer'"),
        ({"num_envs": 1, "evader_speed": 2}, "evader_speed is 2; it must be above 0 and at most 1.75 m/s"),
        ({"num_envs": 1, "catch_distance": 0.05}, "catch_distance is 0.05; it must be 0.07 to 1 m"),
    ],
)
def test_options_out_of_range_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        PursuitGroup(**options)


def test_the_same_seed_and_actions_give_the_same_games():
    runs = [list(random_game(PursuitGroup(8, time_limit_s=2), seed, 60)) for seed in (5, 5, 6)]

    def seen(run):
        return np.stack([result.steps[FLEE].observations[0][-8:] for result in run])

    np.testing.assert_array_equal(seen(runs[0]), seen(runs[1]))
    assert (seen(runs[0]) != seen(runs[2])).any()


def test_a_catch_ends_the_game_for_all_three():
    group = PursuitGroup(2)
    group.reset(0)
    group.step(stay(group))
    catch(group, 1)
    last = group.step(stay(group))

    hunters, evaders = last.steps[HUNT], last.steps[FLEE]
    assert (hunters.ended, evaders.ended) == (2, 1)
    np.testing.assert_allclose(hunters.rewards[:2], RESULT_REWARD - STEP_REWARD)
    np.testing.assert_allclose(evaders.rewards, [STEP_REWARD - RESULT_REWARD, STEP_REWARD, 0])
    np.testing.assert_allclose(hunters.rewards[2:], [-STEP_REWARD, -STEP_REWARD, 0, 0])
    assert evaders.terminated.tolist() == [True]
    np.testing.assert_array_equal(last.games.env_ids, [1])
    np.testing.assert_array_equal(last.games.outcomes, [[1, 0]])
    assert last.statistics["Pursuit/Caught"] == 1


def test_an_evader_that_is_not_caught_in_time_escapes():
    group = PursuitGroup(1, time_limit_s=0.6)
    group.reset(0)
    assert group.game_decisions == 5
    for _ in range(4):
        assert group.step(stay(group)).games is None
    last = group.step(stay(group))

    np.testing.assert_allclose(last.steps[FLEE].rewards[0], RESULT_REWARD + STEP_REWARD)
    assert last.steps[FLEE].terminated.tolist() == [True]
    assert not last.steps[FLEE].truncated.any()
    np.testing.assert_array_equal(last.games.outcomes, [[0, 1]])
    np.testing.assert_allclose(last.steps[FLEE].observations[0][:, 12], [0, 1])  # the time that is left


def test_the_final_rewards_have_the_sign_of_the_result_for_each_side():
    for result in random_game(PursuitGroup(16, time_limit_s=3), 2, 120):
        if result.games is not None:
            hunters, evaders = result.steps[HUNT], result.steps[FLEE]
            np.testing.assert_array_equal(evaders.rewards[: evaders.ended] > 0, result.games.outcomes[:, 1] == 1)
            np.testing.assert_array_equal(hunters.rewards[: hunters.ended : 2] > 0, result.games.outcomes[:, 0] == 1)


def test_rows_are_endings_first_and_agents_keep_their_numbers():
    n, group, games = 12, PursuitGroup(12, time_limit_s=3), 0
    episode = np.zeros(n, np.int64)
    for result in random_game(group, 1, 100):
        hunters, evaders = result.steps[HUNT], result.steps[FLEE]
        over = evaders.env_ids[: evaders.ended]
        np.testing.assert_array_equal(hunters.env_ids[: hunters.ended], np.repeat(over, 2))
        np.testing.assert_array_equal(evaders.env_ids[evaders.ended :], np.arange(n))
        np.testing.assert_array_equal(hunters.env_ids[hunters.ended :], np.repeat(np.arange(n), 2))
        np.testing.assert_array_equal(evaders.agent_ids, evaders.env_ids * 3 + 2)
        np.testing.assert_array_equal(
            hunters.agent_ids, hunters.env_ids * 3 + np.tile([0, 1], len(hunters.env_ids) // 2)
        )
        np.testing.assert_array_equal(evaders.episode_ids[: evaders.ended], episode[over])
        episode[over] += 1
        np.testing.assert_array_equal(evaders.episode_ids[evaders.ended :], episode)
        for steps, count in ((hunters, 2), (evaders, 1)):
            assert steps.observations[0].shape == (count * n + steps.ended, 13)
            assert steps.observations[0].dtype == steps.rewards.dtype == np.float32
            assert (steps.agent_ids.dtype, steps.env_ids.dtype) == (np.int64, np.int32)
            assert len(steps.terminated) == len(steps.truncated) == steps.ended
        games += len(over)
    assert games > n


def test_a_slower_evader_comes_less_far():
    def way(**options):
        group = PursuitGroup(1, **options)
        group.reset(0)
        begin = group.arenas.places[0, 2].copy()
        east = {
            name: ActionBatch(np.zeros((count, 0), np.float32), np.full((count, 1), direction, np.int32))
            for name, count, direction in ((group.pursuer_id, 2, 0), (group.evader_id, 1, 1))
        }
        for _ in range(3):
            group.step(east)
        return group.arenas.places[0, 2, 0] - begin[0]

    assert 0 < way(evader_speed=0.5) < 0.7 * way()


def test_a_pursuer_may_reach_farther():
    def falls(**options):
        group = PursuitGroup(1, **options)
        group.reset(0)
        group.arenas.places[0] = (-0.15, 0), (0.9, 0.9), (0, 0)
        still = {
            name: ActionBatch(np.zeros((count, 0), np.float32), np.zeros((count, 1), np.int32))
            for name, count in ((group.pursuer_id, 2), (group.evader_id, 1))
        }
        return group.step(still).games is not None

    assert falls(catch_distance=0.2)
    assert not falls()
