"""Self-play's bookkeeping, case by case; `test_controller_property` has the schedules that nobody thinks of."""

from __future__ import annotations

import numpy as np
import pytest
from fakes import policy_update, trajectories

from config import SelfPlaySettings
from stages.ghost.controller import GhostController

HOME, AWAY = "Ball?team=0", "Ball?team=1"


def make(*behavior_ids, **settings):
    defaults = {"save_steps": 100, "team_change": 1000, "swap_steps": 50, "play_against_latest_model_ratio": 0.0}
    controller = GhostController(SelfPlaySettings(**(defaults | settings)), np.random.default_rng(0))
    for behavior_id in behavior_ids or (HOME, AWAY):
        assert controller.add_behavior(behavior_id) is None, "nobody can play before there is a policy"
    return controller


def policy(step, version=None):
    return policy_update("Ball", step // 100 if version is None else version, step)


def games(*rows):
    names = ("game_generation", "game_opponent", "game_outcome")
    return dict(zip(names, (np.array(column) for column in zip(*rows, strict=True)), strict=True))


# Policies and assignments. --------------------------------------------------------------------------------------------


def test_the_first_policy_brings_everybody_into_play():
    controller = make()
    updates, matchup = controller.take_policy(policy(0))
    assert updates == []
    assert matchup.assignment.generation == 1
    assert matchup.assignment.learning_team == 0
    assert matchup.assignment.policies == {HOME: (-1, 0), AWAY: (-1, 0)}
    assert [update.behavior_id for update in matchup.policies] == [HOME, AWAY]


def test_later_policies_go_to_the_learning_team_only():
    controller = make()
    controller.take_policy(policy(0))
    updates, matchup = controller.take_policy(policy(100))
    assert matchup is None
    assert [(update.behavior_id, update.version, update.snapshot) for update in updates] == [(HOME, 1, -1)]


def test_a_team_that_appears_later_brings_a_new_assignment():
    controller = make(AWAY)
    controller.take_policy(policy(0))
    matchup = controller.add_behavior(HOME)
    assert matchup.assignment.policies.keys() == {HOME, AWAY}
    assert matchup.assignment.learning_team == 1, "who has begun to learn goes on"
    assert controller.add_behavior(HOME) is None


def test_with_one_team_nothing_rotates():
    controller = make(HOME, team_change=1)
    controller.take_policy(policy(0))
    updates, matchup = controller.take_policy(policy(5000))
    assert matchup is None
    assert len(updates) == 1


def test_snapshots_are_made_by_trainer_steps_and_the_window_is_bounded():
    controller = make(window=3, save_steps=100)
    for step in range(0, 1100, 50):
        controller.take_policy(policy(step))
    # The first policy, then whenever more than 100 steps have passed.
    assert [snapshot.update.step for snapshot in controller.snapshots] == [750, 900, 1050]
    assert [snapshot.number for snapshot in controller.snapshots] == [5, 6, 7]


def test_a_snapshot_keeps_the_weights_that_it_was_made_of():
    controller = make()
    update = policy(0)
    controller.take_policy(update)
    update.weights[:] = 99
    assert controller.snapshots[0].update.weights.tolist() == [0.0]


def test_teams_change_by_trainer_steps_and_the_new_learner_starts_from_the_newest_weights():
    controller = make(team_change=300)
    controller.take_policy(policy(0))
    assert controller.take_policy(policy(300))[1] is None
    updates, matchup = controller.take_policy(policy(400))
    assert updates == []
    assignment = matchup.assignment
    assert assignment.learning_team == controller.learning_team == 1
    assert assignment.policies[AWAY] == (-1, 4)
    assert assignment.policies[HOME][0] == assignment.opponent >= 0, "opponents are swapped at once"


def test_opponents_are_swapped_by_ghost_steps():
    controller = make(swap_steps=50)
    controller.take_policy(policy(0))
    assert controller.count_ghost_steps(50) is None
    matchup = controller.count_ghost_steps(1)
    assert matchup.assignment.generation == 2
    assert matchup.assignment.policies == {HOME: (-1, 0), AWAY: (0, 0)}
    assert controller.count_ghost_steps(50) is None
    assert controller.count_ghost_steps(1).assignment.generation == 3
    assert controller.ghost_step == 102


def test_ghost_steps_before_the_first_policy_swap_nothing():
    assert make().count_ghost_steps(1000) is None


@pytest.mark.parametrize(("ratio", "opponents"), [(1.0, {-1}), (0.0, {0, 1, 2})])
def test_the_share_of_the_newest_policy_among_opponents_is_the_configured_one(ratio, opponents):
    controller = make(window=3, save_steps=100, play_against_latest_model_ratio=ratio)
    for step in (0, 101, 202):
        controller.take_policy(policy(step))
    assert {controller.count_ghost_steps(51).assignment.opponent for _ in range(60)} == opponents


def test_an_opponent_that_has_left_the_window_plays_on_until_the_next_assignment():
    controller = make(window=1, save_steps=100)
    controller.take_policy(policy(0))
    first = controller.count_ghost_steps(51).policies[1]
    controller.take_policy(policy(200))
    assert [snapshot.number for snapshot in controller.snapshots] == [1]
    assert first.snapshot == 0
    assert controller.rate(games((2, 0, 1.0))) == [1208.0], "and games against it count"


# Judging. ------------------------------------------------------------------------------------------------------------


def judged(controller, behavior_id, generation, learning):
    return controller.judge(
        trajectories([1] * len(learning), behavior_id, generation=generation, learning=learning)
    ).tolist()


def test_only_what_the_learning_team_played_is_learned_from():
    controller = make()
    controller.take_policy(policy(0))
    assert judged(controller, HOME, 1, [True, False]) == [True, False]
    assert judged(controller, AWAY, 1, [False, True]) == [False, False]


def test_after_a_rotation_late_trajectories_of_the_former_learner_are_turned_away():
    controller = make(team_change=300)
    controller.take_policy(policy(0))
    controller.take_policy(policy(400))
    assert judged(controller, HOME, 1, [True]) == [False]
    assert judged(controller, AWAY, 1, [True]) == [False], "the team learns now, but did not then"
    assert judged(controller, AWAY, 2, [True, False]) == [True, False]


def test_after_two_rotations_a_trajectory_from_two_rotations_ago_is_turned_away():
    controller = make(team_change=300)
    for step in (0, 400, 800):
        controller.take_policy(policy(step))
    assert controller.learning_team == 0
    assert judged(controller, HOME, 1, [True]) == [False]
    assert judged(controller, HOME, 3, [True]) == [True]


def test_after_a_swap_games_that_are_still_played_against_the_old_opponent_are_learned_from():
    controller = make()
    controller.take_policy(policy(0))
    controller.count_ghost_steps(51)
    assert judged(controller, HOME, 1, [True]) == [True]


# Ratings. ------------------------------------------------------------------------------------------------------------


def test_a_result_moves_both_ratings_once():
    controller = make()
    controller.take_policy(policy(0))
    assert controller.rate(games((1, 0, 1.0))) == [1208.0]
    assert (controller.elo, controller.rating(0)) == (1208.0, 1192.0)


def test_a_snapshot_starts_with_the_rating_of_the_policy_that_it_is():
    controller = make(save_steps=100)
    controller.take_policy(policy(0))
    controller.rate(games((1, 0, 1.0)))
    controller.take_policy(policy(101))
    assert controller.rating(1) == 1208.0


def test_a_result_counts_for_the_snapshot_that_was_met_not_for_the_current_one():
    controller = make(window=3, save_steps=100)
    for step in (0, 101, 202):
        controller.take_policy(policy(step))
    controller.count_ghost_steps(51)
    met = (controller.opponent + 1) % 3
    controller.rate(games((1, met, 0.0)))
    assert [number for number in range(3) if controller.rating(number) != 1200] == [met]
    assert controller.elo == 1192.0


def test_a_game_of_the_newest_policy_with_itself_counts_for_nothing():
    controller = make()
    controller.take_policy(policy(0))
    assert controller.rate(games((1, -1, 1.0))) == []
    assert controller.elo == 1200


def test_results_from_before_a_rotation_count_for_nothing():
    controller = make(team_change=300)
    controller.take_policy(policy(0))
    controller.take_policy(policy(400))
    assert controller.rate(games((1, 0, 1.0), (2, 0, 1.0))) == [1208.0]


def test_no_games_no_ratings():
    assert make().rate({}) == []
