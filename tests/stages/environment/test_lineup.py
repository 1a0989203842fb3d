"""Who plays with which policy in which game."""

from __future__ import annotations

import numpy as np
import pytest
from fakes import EchoPolicy, counting_spec, policy_update

from queues.messages import Assignment
from stages.environment.lineup import Lineups

HOME, AWAY = "Ball?team=0", "Ball?team=1"


def lineups(*behavior_ids, self_play=False, num_envs=2):
    made = Lineups(EchoPolicy, self_play)
    made.open_games(num_envs)
    for behavior_id in behavior_ids:
        made.add_behavior(counting_spec(behavior_id))
    return made


def assignment(generation, team=0, opponent=-1, home=(-1, 0), away=(-1, 0)):
    return Assignment(generation, team, {HOME: home, AWAY: away}, opponent)


def assigned(*updates, **options):
    """Two teams that play under generation 1: home learns at version 0, away plays snapshot 0."""
    made = lineups(HOME, AWAY, self_play=True, **options)
    made.update(policy_update(HOME, 0))
    made.update(policy_update(AWAY, 0, snapshot=0))
    made.assign(assignment(1, opponent=0, away=(0, 0)))
    return made


def loaded(lineup, behavior_id):
    update = lineup.players[behavior_id].policy.loaded
    return update.snapshot, update.version


def ids(*numbers):
    return np.array(numbers, np.int32)


# Without self-play. --------------------------------------------------------------------------------------------------


def test_nobody_is_ready_before_the_first_policy():
    made = lineups("Walker", "Swimmer")
    made.update(policy_update("Walker", 0))
    assert not made.ready(["Walker", "Swimmer"])
    assert made.ready(["Walker"])


def test_the_newest_policy_acts_at_once_and_everybody_learns():
    made = lineups("Walker")
    made.update(policy_update("Walker", 0))
    made.update(policy_update("Walker", 3))
    assert loaded(made.games[1], "Walker") == (-1, 3)
    assert made.current.players["Walker"].version == 3
    assert made.current.learns("Walker")


def test_a_policy_is_copied_before_its_sender_writes_over_it():
    made = lineups(HOME, AWAY, self_play=True)
    update = policy_update(AWAY, 0, snapshot=0)
    made.update(update)
    update.weights[:] = 99
    made.update(policy_update(HOME, 0))
    made.assign(assignment(1, opponent=0, away=(0, 0)))
    assert made.current.players[AWAY].policy.loaded.weights[0] == 0


def test_the_newest_version_is_told_by_behaviour_name():
    made = lineups("Walker", "Swimmer")
    assert made.newest_version("Walker") == -1
    made.update(policy_update("Walker", 4))
    assert (made.newest_version("Walker"), made.newest_version("Swimmer")) == (4, -1)


def test_snapshots_say_nothing_about_the_newest_version():
    made = lineups(HOME, AWAY, self_play=True)
    made.update(policy_update(AWAY, 9, snapshot=2))
    assert made.newest_version("Ball") == -1


# Assignments. --------------------------------------------------------------------------------------------------------


def test_with_self_play_nobody_is_ready_before_an_assignment():
    made = lineups(HOME, AWAY, self_play=True)
    made.update(policy_update(HOME, 0))
    made.update(policy_update(AWAY, 0))
    assert not made.ready([HOME, AWAY])
    made.assign(assignment(1))
    assert made.ready([HOME, AWAY])


def test_an_assignment_that_comes_before_its_policies_waits_for_them():
    made = lineups(HOME, AWAY, self_play=True)
    made.assign(assignment(1, opponent=3, away=(3, 5)))
    made.update(policy_update(HOME, 7))
    assert not made.ready([HOME, AWAY])
    made.update(policy_update(AWAY, 5, snapshot=3))
    assert made.ready([HOME, AWAY])
    assert loaded(made.current, AWAY) == (3, 5)


@pytest.mark.parametrize("version", [5, 6])
def test_the_learner_may_be_newer_than_named(version):
    made = lineups(HOME, AWAY, self_play=True)
    made.update(policy_update(HOME, version))
    made.update(policy_update(AWAY, 5))
    made.assign(assignment(1, home=(-1, 5), away=(-1, 5)))
    assert made.ready([HOME, AWAY])


@pytest.mark.parametrize(
    ("home", "away"),
    [
        (policy_update(HOME, 4), policy_update(AWAY, 2, snapshot=1)),  # the learner is too old
        (policy_update(HOME, 5, snapshot=2), policy_update(AWAY, 2, snapshot=1)),  # a snapshot does not learn
        (policy_update(HOME, 5), policy_update(AWAY, 2, snapshot=0)),  # another snapshot
        (policy_update(HOME, 5), policy_update(AWAY, 3)),  # a newer policy is no snapshot
    ],
)
def test_others_than_the_named_policies_do_not_do(home, away):
    made = lineups(HOME, AWAY, self_play=True)
    made.update(home)
    made.update(away)
    made.assign(assignment(1, opponent=1, home=(-1, 5), away=(1, 2)))
    assert not made.ready([HOME, AWAY])


def test_only_the_learning_team_learns():
    made = assigned()
    assert made.current.learns(HOME)
    assert not made.current.learns(AWAY)
    assert (made.current.generation, made.current.opponent) == (1, 0)


def test_the_opponent_stays_frozen_while_the_learner_goes_on():
    made = assigned()
    made.update(policy_update(HOME, 1))
    made.update(policy_update(AWAY, 1))  # meant for a later assignment
    assert loaded(made.current, HOME) == (-1, 1)
    assert loaded(made.current, AWAY) == (0, 0)


# Games. --------------------------------------------------------------------------------------------------------------


def test_running_games_keep_their_opponent_and_new_ones_get_the_next():
    made = assigned()
    made.update(policy_update(AWAY, 2, snapshot=1))
    made.assign(assignment(2, opponent=1, away=(1, 2)))
    assert [loaded(game, AWAY) for game in made.games] == [(0, 0), (0, 0)]
    made.restart(ids(1))
    assert [loaded(game, AWAY) for game in made.games] == [(0, 0), (1, 2)]
    assert [game.generation for game in made.games] == [1, 2]


def test_after_a_swap_the_learner_goes_on_learning_in_all_games():
    made = assigned()
    made.update(policy_update(AWAY, 2, snapshot=1))
    made.assign(assignment(2, opponent=1, away=(1, 2)))
    made.restart(ids(1))
    made.update(policy_update(HOME, 4))
    assert [loaded(game, HOME) for game in made.games] == [(-1, 4), (-1, 4)]
    assert [game.players[HOME].version for game in made.games] == [4, 4]


def test_after_a_rotation_the_former_learner_is_left_as_it_was():
    made = assigned()
    made.update(policy_update(HOME, 2, snapshot=1))
    made.update(policy_update(AWAY, 3))
    made.assign(assignment(2, team=1, opponent=1, home=(1, 2), away=(-1, 3)))
    made.restart(ids(1))
    made.update(policy_update(AWAY, 4))
    old, new = made.games
    assert (loaded(old, HOME), loaded(old, AWAY)) == ((-1, 0), (0, 0))
    assert (loaded(new, HOME), loaded(new, AWAY)) == ((1, 2), (-1, 4))
    assert old.learns(HOME)
    assert new.learns(AWAY)


def test_only_the_last_of_two_assignments_counts_while_policies_are_awaited():
    made = lineups(HOME, AWAY, self_play=True)
    made.assign(assignment(1, opponent=0, away=(0, 0)))
    made.assign(assignment(2, opponent=1, away=(1, 4)))
    made.update(policy_update(HOME, 4))
    made.update(policy_update(AWAY, 4, snapshot=1))
    assert made.current.generation == 2


def test_a_game_that_a_team_had_not_joined_yet_is_played_under_the_lineup_that_knows_it():
    made = lineups(HOME, self_play=True)
    made.update(policy_update(HOME, 0))
    made.assign(Assignment(1, 0, {HOME: (-1, 0)}))
    made.add_behavior(counting_spec(AWAY))
    assert not made.ready([HOME, AWAY])
    made.update(policy_update(AWAY, 0))
    made.assign(assignment(2))
    assert made.ready([HOME, AWAY])
    for game in made.games:
        assert game.players.keys() == {HOME, AWAY}
        assert game.generation == 2


def test_rows_of_one_lineup_are_not_split():
    made = assigned()
    assert made.split(ids(0, 1, 1)) == [(made.current, None)]


def test_rows_are_split_by_the_lineups_of_their_games():
    made = assigned(num_envs=3)
    first = made.current
    made.update(policy_update(AWAY, 2, snapshot=1))
    made.assign(assignment(2, opponent=1, away=(1, 2)))
    made.restart(ids(1))
    parts = {lineup.generation: rows.tolist() for lineup, rows in made.split(ids(0, 1, 2, 1, 0))}
    assert parts == {1: [0, 2, 4], 2: [1, 3]}
    assert made.split(ids(2, 0)) == [(first, None)]
    made.restart(ids(0, 2))
    assert made.split(ids(0, 1, 2)) == [(made.current, None)]


def test_opening_games_puts_all_of_them_under_the_current_lineup():
    made = assigned()
    made.update(policy_update(AWAY, 2, snapshot=1))
    made.assign(assignment(2, opponent=1, away=(1, 2)))
    made.open_games(2)
    assert [game.generation for game in made.games] == [2, 2]
    assert made.split(ids(0, 1)) == [(made.current, None)]
