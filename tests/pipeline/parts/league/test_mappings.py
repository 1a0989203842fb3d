"""Who plays the games of an actor of a league, and who learns from them."""

from __future__ import annotations

import numpy as np
import pytest
from fakes import EchoPolicy, counting_spec, policy_update
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline.parts.league import OWN, LeagueMappings
from headrace.queues.messages import Matches
from headrace.stages.actor.policy_mapping import MappedPlayer
from headrace.stages.errors import StageError

MAIN, EXPLOITER = "Ball.main", "Ball.exploiter"
FIRST, SECOND = f"{MAIN}?team=0", f"{MAIN}?team=1"
OTHER = -3
"""The code of the exploiter, which is the second learner."""


def matches(*rows, number=1):
    """Rows are (seat, opponent, weight)."""
    seats, opponents, weights = zip(*rows, strict=True)
    named = {code: {"number": code} for code in {*seats, *opponents} if code >= 0}
    return Matches(number, seats, opponents, weights, named)


class Actor:
    """The mappings of an actor that plays for main, and the members that were read for it."""

    def __init__(self, *rows, games=64, memory=4, teams=(0, 1)):
        self.read = []
        self.mappings = LeagueMappings(EchoPolicy, MAIN, {MAIN: "Ball", EXPLOITER: "Ball"}, self._member, memory)
        for team in teams:
            self.mappings.add_behavior(counting_spec(f"{MAIN}?team={team}"))
        self.mappings.update(policy_update(MAIN, 0))
        self.mappings.begin_games(games, np.random.default_rng(7))
        if rows:
            self.mappings.assign(matches(*rows))

    def _member(self, spec, number, known):
        self.read.append(number)
        assert known == {"number": number}
        return MappedPlayer(EchoPolicy(spec), 0, number)

    @property
    def games(self):
        return self.mappings.games


def test_no_game_begins_before_all_that_may_be_drawn_is_there():
    actor = Actor((OWN, OTHER, 1.0))
    ids = [FIRST, SECOND]
    assert not actor.mappings.ready(ids)
    assert {game.codes for game in actor.games} == {()}
    actor.mappings.update(policy_update(EXPLOITER, 3))
    assert actor.mappings.ready(ids)
    assert {game.codes for game in actor.games} == {(OWN, OTHER), (OTHER, OWN)}


def test_matches_wait_for_the_policies_that_they_name_while_games_continue():
    actor = Actor((OWN, 0, 1.0))
    actor.mappings.assign(matches((OWN, OTHER, 1.0), number=2))
    actor.mappings.restart_games(np.arange(64, dtype=np.int32))
    assert {game.generation for game in actor.games} == {1}
    actor.mappings.update(policy_update(EXPLOITER, 3))
    actor.mappings.restart_games(np.arange(64, dtype=np.int32))
    assert {game.codes for game in actor.games} == {(OWN, OTHER), (OTHER, OWN)}


def test_the_seat_is_drawn_uniformly_and_the_seat_alone_learns_against_members():
    actor = Actor((OWN, 5, 1.0), games=2000)
    seats = np.array([game.learning_team for game in actor.games])
    assert 900 < seats.sum() < 1100
    for game in actor.games:
        mine, theirs = (FIRST, SECOND) if game.learning_team == 0 else (SECOND, FIRST)
        assert game.learners == {mine}
        assert game.players[mine].snapshot == -1
        assert game.players[theirs].snapshot == 5
        assert game.opponent == 5


def test_all_teams_learn_if_the_learner_meets_itself():
    actor = Actor((OWN, OWN, 1.0))
    assert all(game.learners == {FIRST, SECOND} and game.codes == (OWN, OWN) for game in actor.games)


def test_nothing_is_learned_if_a_member_has_the_seat():
    actor = Actor((3, 4, 1.0))
    assert all(not game.learners for game in actor.games)
    assert {game.codes for game in actor.games} == {(3, 4), (4, 3)}


def test_opponents_are_drawn_as_often_as_their_weights_say():
    actor = Actor((OWN, 0, 0.7), (OWN, 1, 0.2), (OWN, OWN, 0.1), games=4000)
    shares = {code: sum(game.opponent == code for game in actor.games) / 4000 for code in (0, 1, OWN)}
    assert shares == pytest.approx({0: 0.7, 1: 0.2, OWN: 0.1}, abs=0.03)


def test_each_other_team_has_its_own_opponent():
    actor = Actor((OWN, 0, 0.5), (OWN, 1, 0.5), games=400, teams=(0, 1, 2))
    assert {frozenset(game.codes) for game in actor.games} == {frozenset(s) for s in ([OWN, 0], [OWN, 1], [OWN, 0, 1])}


def test_a_game_keeps_its_opponent_until_it_ends():
    actor = Actor((OWN, 0, 1.0), games=4)
    actor.mappings.assign(matches((OWN, 1, 1.0), number=2))
    assert [game.opponent for game in actor.games] == [0] * 4
    actor.mappings.restart_games(np.array([1, 3], np.int32))
    assert [game.opponent for game in actor.games] == [0, 1, 0, 1]
    assert [game.generation for game in actor.games] == [1, 2, 1, 2]


def test_a_newer_policy_of_the_learner_plays_at_once_and_members_do_not_change():
    actor = Actor((OWN, 0, 1.0), games=2)
    (game, *_), member = actor.games, actor.games[0].players
    actor.mappings.update(policy_update(MAIN, 9))
    assert {player.version for player in member.values()} == {9, 0}
    assert game.players[FIRST if game.learning_team == 0 else SECOND].version == 9


ROWS = st.lists(st.tuples(st.sampled_from([OWN, 0, 1]), st.sampled_from([OWN, 0, 1, 2, 3])), min_size=1, max_size=6)


@pytest.mark.lengthy
@given(ROWS, st.lists(st.lists(st.integers(0, 7), min_size=1, max_size=8, unique=True), max_size=30))
def test_rows_are_split_by_the_mappings_of_their_games_whatever_has_ended(rows, ended):
    actor = Actor(*((seat, opponent, 1 / len(rows)) for seat, opponent in rows), games=8, memory=1)
    for env_ids in ended:
        actor.mappings.restart_games(np.array(sorted(env_ids), np.int32))
        asked = np.array(env_ids, np.int32)
        found = {}
        for mapping, places in actor.mappings.rows_by_mapping(asked):
            for place in range(len(asked)) if places is None else places.tolist():
                assert place not in found, "a row has one mapping"
                found[place] = mapping
        assert [found[place] for place in range(len(asked))] == [actor.games[env_id] for env_id in env_ids]


# Leagues of several behaviours, each one team's.

RIVAL, RIVALS = "Wall?team=1", {MAIN: "Ball", "Wall.main": "Wall"}
WALL = -3


def rivals(*rows, known=(FIRST, RIVAL)):
    """Mappings of an actor that plays for Ball.main, and the specs for which members were read."""
    read = []

    def member(spec, number, about):
        read.append((number, spec.behavior_id))
        return MappedPlayer(EchoPolicy(spec), 0, number)

    mappings = LeagueMappings(EchoPolicy, MAIN, RIVALS, member, 4)
    for behavior_id in known:
        mappings.add_behavior(counting_spec(behavior_id))
    mappings.begin_games(64, np.random.default_rng(7))
    mappings.update(policy_update(MAIN, 0))
    seats, opponents, weights = zip(*rows, strict=True)
    named = {code: {"behavior": "Ball" if code % 2 == 0 else "Wall"} for code in {*seats, *opponents} if code >= 0}
    mappings.assign(Matches(1, seats, opponents, weights, named))
    return mappings, read


def test_the_team_of_another_behaviour_has_its_players_and_the_own_team_the_seat():
    mappings, read = rivals((OWN, 1, 0.5), (0, 1, 0.25), (OWN, WALL, 0.25))
    assert {game.codes for game in mappings.games} == {()}, "the newest policy of the rival is not there"
    mappings.update(policy_update("Wall.main", 3))
    assert {game.codes for game in mappings.games} == {(OWN, 1), (0, 1), (OWN, WALL)}
    assert {*read} == {(1, RIVAL), (0, FIRST)}
    for game in mappings.games:
        assert game.learning_team == 0
        assert game.learners == ({FIRST} if game.codes[0] == OWN else set())
        assert game.players[RIVAL].snapshot == (game.codes[1] if game.codes[1] >= 0 else -1)


def test_steps_of_another_behaviour_stay_in_the_actor():
    mappings, _ = rivals((OWN, 1, 1.0))
    specs = {name: counting_spec(name) for name in (FIRST, RIVAL)}
    assert [*mappings.emitted(specs)] == [FIRST]
    assert (mappings.emits(FIRST), mappings.emits(RIVAL)) == (True, False)


def test_policies_of_a_behaviour_that_is_seen_late_are_kept_for_it():
    mappings, _ = rivals((OWN, WALL, 1.0), known=[FIRST])
    mappings.update(policy_update("Wall.main", 3))
    assert {game.codes for game in mappings.games} == {()}
    mappings.add_behavior(counting_spec(RIVAL))
    assert {game.codes for game in mappings.games} == {(OWN, WALL)}
    assert mappings.games[0].players[RIVAL].version == 3


@pytest.mark.parametrize(
    ("known", "found"),
    [
        ([FIRST, "Wall?team=0"], "Ball and Wall in team 0"),
        ([FIRST, SECOND, RIVAL], "Ball in team 0, Ball in team 1; give"),
    ],
)
def test_teams_that_share_a_behaviour_or_have_two_are_refused_if_several_have_leagues(known, found):
    with pytest.raises(StageError, match=f"each team has a different behaviour; found {found}"):
        rivals((OWN, 1, 1.0), known=known)
