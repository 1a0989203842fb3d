"""Brains that do not learn in mappings: in which games which of them decide."""

from __future__ import annotations

import numpy as np
import pytest
from fakes import EchoPolicy, counting_spec, policy_update

from headrace.queues.messages import Assignment
from headrace.stages.actor.policy_mapping import PolicyMappings
from headrace.stages.brains import BrainShare

HOME, AWAY = "Ball?team=0", "Ball?team=1"


def mappings(shares, *behavior_ids, self_play=False, num_envs=400, seed=0):
    """Games in which `shares` (name, weight) decide for the behaviour ids that it lists."""

    def brains(spec):
        return [BrainShare(name, weight, EchoPolicy(spec)) for name, weight in shares.get(spec.behavior_id, ())]

    made = PolicyMappings(EchoPolicy, lambda name: self_play and name != "Walker", brains)
    for behavior_id in behavior_ids:
        made.add_behavior(counting_spec(behavior_id))
    made.begin_games(num_envs, np.random.default_rng(seed))
    return made


def deciders(made, behavior_id):
    return [game.players[behavior_id].brain for game in made.games]


def test_a_brain_is_ready_immediately():
    made = mappings({"Walker": [("scripted", 1.0)]}, "Walker")
    assert made.ready(["Walker"])
    assert set(deciders(made, "Walker")) == {"scripted"}
    assert made.newest_versions(["Walker"]) == {}
    assert not made.mixes_brains


def test_a_brain_decides_its_share_of_the_games_and_the_rest_is_trained_on():
    made = mappings({"Walker": [("scripted", 0.25), ("random", 0.25)]}, "Walker", num_envs=2000)
    made.update(policy_update("Walker", 3))
    names = deciders(made, "Walker")
    assert names.count("scripted") == pytest.approx(500, abs=80)
    assert names.count("random") == pytest.approx(500, abs=80)
    assert all(("Walker" in game.learners) == (game.players["Walker"].brain == "") for game in made.games)
    assert next(game for game in made.games if "Walker" in game.learners).players["Walker"].version == 3


def test_each_new_game_draws_its_brain_by_the_seed():
    def drawn(seed):
        made = mappings({"Walker": [("random", 0.5)]}, "Walker", num_envs=50, seed=seed)
        first = deciders(made, "Walker")
        made.restart_games(np.arange(0, 50, 2, dtype=np.int32))
        return first, deciders(made, "Walker")

    first, second = drawn(1)
    assert first[1::2] == second[1::2]
    assert first[::2] != second[::2]
    assert drawn(1) == (first, second)
    assert drawn(2) != (first, second)


def test_behaviours_of_one_team_with_equal_shares_get_brains_of_equal_places():
    shares = {"Keeper?team=1": [("slow", 0.5)], "Striker?team=1": [("fast", 0.5)], "Keeper?team=0": [("slow", 0.5)]}
    made = mappings(shares, *shares)
    assert {
        (bool(a), bool(b))
        for a, b in zip(*(deciders(made, i) for i in ("Keeper?team=1", "Striker?team=1")), strict=True)
    } == {
        (True, True),
        (False, False),
    }
    assert deciders(made, "Keeper?team=0") != deciders(made, "Keeper?team=1")


def assign(made, generation, team=0):
    made.assign(Assignment(generation, team, {HOME: (-1, 0), AWAY: (-1, 0)}))


def test_in_self_play_brains_decide_only_for_opponents():
    shares = [("scripted", 0.3)]
    made = mappings({HOME: shares, AWAY: shares}, HOME, AWAY, self_play=True, num_envs=1000)
    for behavior_id in (HOME, AWAY):
        made.update(policy_update(behavior_id, 0))
    assert not made.ready([HOME, AWAY])
    assign(made, 1)
    assert deciders(made, HOME) == [""] * 1000
    assert deciders(made, AWAY).count("scripted") == pytest.approx(300, abs=60)
    met = {game.players[AWAY].brain: game for game in made.games}
    assert (met[""].opponent, met["scripted"].opponent) == (-1, -2)
    assert all(game.learners == {HOME} and game.generation == 1 for game in made.games)
    assert all(0 <= game.draws[1] < 0.3 for game in made.games if game.players[AWAY].brain)


def test_the_next_turn_ends_learning_in_games_with_brains_too():
    shares = [("scripted", 0.5)]
    made = mappings({HOME: shares, AWAY: shares}, HOME, AWAY, self_play=True)
    for behavior_id in (HOME, AWAY):
        made.update(policy_update(behavior_id, 0))
    assign(made, 1)
    before = [*made.games]
    assign(made, 2, team=1)
    assert all(not game.learners for game in before)
    made.restart_games(np.arange(400, dtype=np.int32))
    assert set(deciders(made, HOME)) == {"", "scripted"}
    assert set(deciders(made, AWAY)) == {""}
