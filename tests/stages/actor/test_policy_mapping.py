"""Who plays with which policy in which game."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fakes import EchoPolicy, counting_spec, policy_update

from headrace.queues.messages import Assignment
from headrace.stages.actor.policy_mapping import PolicyMappings

HOME, AWAY = "Ball?team=0", "Ball?team=1"


def mappings(*behavior_ids, self_play=False, num_envs=2):
    made = PolicyMappings(EchoPolicy, lambda name: self_play and name != "Walker")
    made.begin_games(num_envs)
    for behavior_id in behavior_ids:
        made.add_behavior(counting_spec(behavior_id))
    return made


def assignment(generation, team=0, opponent=-1, home=(-1, 0), away=(-1, 0)):
    return Assignment(generation, team, {HOME: home, AWAY: away}, opponent)


def assigned(*updates, **options):
    """Two teams that play under generation 1: home learns at version 0, away plays snapshot 0."""
    made = mappings(HOME, AWAY, self_play=True, **options)
    made.update(policy_update(HOME, 0))
    made.update(policy_update(AWAY, 0, snapshot=0))
    made.assign(assignment(1, opponent=0, away=(0, 0)))
    return made


def loaded(policy_mapping, behavior_id):
    update = policy_mapping.players[behavior_id].policy.loaded
    return update.snapshot, update.version


def ids(*numbers):
    return np.array(numbers, np.int32)


# All teams at once. --------------------------------------------------------------------------------------------------


def test_if_all_teams_learn_a_new_policy_acts_in_running_games():
    made = mappings(HOME, AWAY, self_play=True)
    for behavior_id in (HOME, AWAY):
        made.update(policy_update(behavior_id, 1))
    made.assign(replace(assignment(1), all_learn=True))
    for behavior_id in (HOME, AWAY):
        assert behavior_id in made.games[0].learners
        made.update(policy_update(behavior_id, 2))
        assert loaded(made.games[0], behavior_id) == (-1, 2)
    assert made.current is made.games[0]


# Without self-play. --------------------------------------------------------------------------------------------------


def test_the_newest_policy_acts_immediately():
    made = mappings("Walker")
    made.update(policy_update("Walker", 0))
    made.update(policy_update("Walker", 3))
    assert loaded(made.games[1], "Walker") == (-1, 3)
    assert made.current.players["Walker"].version == 3
    assert "Walker" in made.current.learners


def test_a_policy_is_copied_before_its_sender_writes_over_it():
    made = mappings(HOME, AWAY, self_play=True)
    update = policy_update(AWAY, 0, snapshot=0)
    made.update(update)
    update.weights[:] = 99
    made.update(policy_update(HOME, 0))
    made.assign(assignment(1, opponent=0, away=(0, 0)))
    assert made.current.players[AWAY].policy.loaded.weights[0] == 0


# Assignments. --------------------------------------------------------------------------------------------------------


def test_an_assignment_that_comes_before_its_policies_waits_for_them():
    made = mappings(HOME, AWAY, self_play=True)
    made.assign(assignment(1, opponent=3, away=(3, 5)))
    made.update(policy_update(HOME, 7))
    assert not made.ready([HOME, AWAY])
    made.update(policy_update(AWAY, 5, snapshot=3))
    assert made.ready([HOME, AWAY])
    assert loaded(made.current, AWAY) == (3, 5)


@pytest.mark.parametrize("version", [5, 6])
def test_the_learner_may_be_newer_than_named(version):
    made = mappings(HOME, AWAY, self_play=True)
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
def test_an_assignment_needs_exactly_the_named_policies(home, away):
    made = mappings(HOME, AWAY, self_play=True)
    made.update(home)
    made.update(away)
    made.assign(assignment(1, opponent=1, home=(-1, 5), away=(1, 2)))
    assert not made.ready([HOME, AWAY])


def test_the_version_by_which_a_behaviour_s_learners_act_is_the_one_that_counts():
    made = mappings(HOME, AWAY, self_play=True)
    made.update(policy_update(AWAY, 9, snapshot=2))
    assert made.newest_versions(["Ball"]) == {}, "nobody acts yet"
    made.update(policy_update(HOME, 9))
    made.assign(assignment(1, opponent=2, home=(-1, 9), away=(2, 9)))
    made.update(policy_update(HOME, 11))
    assert made.newest_versions(["Ball"]) == {"Ball": 11}
    made.update(policy_update(AWAY, 12))
    assert made.newest_versions(["Ball"]) == {"Ball": 11}, "it plays as an opponent, and not by this one yet"


def test_only_the_behaviour_of_the_learning_team_learns():
    made = mappings("Hider?team=0", "Seeker?team=1", self_play=True)
    made.update(policy_update("Hider?team=0", 3))
    made.update(policy_update("Seeker?team=1", 0))
    made.assign(Assignment(1, 0, {"Hider?team=0": (-1, 3), "Seeker?team=1": (-1, 0)}))
    assert made.newest_versions(("Hider", "Seeker")) == {"Hider": 3}
    made.assign(Assignment(2, 1, {"Hider?team=0": (-1, 3), "Seeker?team=1": (-1, 0)}))
    assert made.newest_versions(("Hider", "Seeker")) == {"Seeker": 0}


def test_the_opponent_stays_frozen_while_the_learner_is_updated():
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
    made.restart_games(ids(1))
    assert [loaded(game, AWAY) for game in made.games] == [(0, 0), (1, 2)]
    assert [game.generation for game in made.games] == [1, 2]


def test_after_a_rotation_the_former_learner_is_frozen():
    made = assigned()
    made.update(policy_update(HOME, 2, snapshot=1))
    made.update(policy_update(AWAY, 3))
    made.assign(assignment(2, team=1, opponent=1, home=(1, 2), away=(-1, 3)))
    made.restart_games(ids(1))
    made.update(policy_update(AWAY, 4))
    old, new = made.games
    assert (loaded(old, HOME), loaded(old, AWAY)) == ((-1, 0), (0, 0))
    assert (loaded(new, HOME), loaded(new, AWAY)) == ((1, 2), (-1, 4))
    assert AWAY in new.learners


def test_after_a_rotation_games_of_the_previous_turn_are_not_trained_on():
    """The ghost stage would turn it away; and the gate must not wait for credits of whose turn is over."""
    made = assigned()
    (old, _) = made.games
    assert HOME in old.learners
    made.update(policy_update(HOME, 2, snapshot=1))
    made.update(policy_update(AWAY, 3))
    made.assign(assignment(2, team=1, opponent=1, home=(1, 2), away=(-1, 3)))
    assert HOME not in old.learners
    made.update(policy_update(HOME, 4))
    made.update(policy_update(AWAY, 4, snapshot=2))
    made.assign(assignment(3, opponent=2, home=(-1, 4), away=(2, 4)))
    assert made.games == [old, old], "no game has ended meanwhile"
    assert HOME not in old.learners, "also when its turn comes round again"
    assert HOME in made.current.learners


def test_only_the_last_of_two_assignments_counts_while_policies_are_awaited():
    made = mappings(HOME, AWAY, self_play=True)
    made.assign(assignment(1, opponent=0, away=(0, 0)))
    made.assign(assignment(2, opponent=1, away=(1, 4)))
    made.update(policy_update(HOME, 4))
    made.update(policy_update(AWAY, 4, snapshot=1))
    assert made.current.generation == 2


def test_a_game_that_a_team_had_not_joined_yet_is_played_under_the_mapping_that_knows_it():
    made = mappings(HOME, self_play=True)
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


def test_rows_are_split_by_the_mappings_of_their_games():
    made = assigned(num_envs=3)
    first = made.current
    made.update(policy_update(AWAY, 2, snapshot=1))
    made.assign(assignment(2, opponent=1, away=(1, 2)))
    made.restart_games(ids(1))
    parts = {
        policy_mapping.generation: rows.tolist() for policy_mapping, rows in made.rows_by_mapping(ids(0, 1, 2, 1, 0))
    }
    assert parts == {1: [0, 2, 4], 2: [1, 3]}
    assert made.rows_by_mapping(ids(2, 0)) == [(first, None)]
    made.restart_games(ids(2))
    parts = {policy_mapping.generation: rows.tolist() for policy_mapping, rows in made.rows_by_mapping(ids(0, 1, 2))}
    assert parts == {1: [0], 2: [1, 2]}
    made.restart_games(ids(0))
    assert made.rows_by_mapping(ids(0, 1, 2)) == [(made.current, None)]


# Behaviours without self-play beside those that have it. --------------------------------------------------------------


def test_a_plain_behaviour_learns_in_all_games_on_every_team_s_turn():
    made = assigned()
    made.add_behavior(counting_spec("Walker"))
    made.update(policy_update("Walker", 5))
    made.update(policy_update(HOME, 2, snapshot=1))
    made.update(policy_update(AWAY, 3))
    made.assign(assignment(2, team=1, opponent=1, home=(1, 2), away=(-1, 3)))
    made.restart_games(ids(1))
    made.update(policy_update("Walker", 6))
    assert made.newest_versions(["Walker"]) == {"Walker": 6}
    for game in made.games:
        assert "Walker" in game.learners
        assert (loaded(game, "Walker"), game.players["Walker"].plain) == ((-1, 6), True)
    assert not made.has_self_play("Walker")
    assert made.has_self_play(HOME)


def test_an_assignment_waits_for_the_policies_of_plain_behaviours_too():
    made = mappings(HOME, AWAY, "Walker", self_play=True)
    made.update(policy_update(HOME, 0))
    made.update(policy_update(AWAY, 0))
    made.assign(assignment(1))
    assert not made.ready([HOME, AWAY, "Walker"])
    made.update(policy_update("Walker", 0))
    assert made.ready([HOME, AWAY, "Walker"])
