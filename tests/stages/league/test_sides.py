"""A league of two behaviours: each plays the other's members, and each has a mixture of its own."""

from __future__ import annotations

import msgpack
import numpy as np
import pytest
from league_fakes import MAX_STEPS, games, policy, receive_policy

from headrace.config.league import LeagueSettings, LearnerSettings
from headrace.stages.league.controller import LeagueController
from headrace.stages.league.matchmaking import OWN
from headrace.stages.league.pool import Pool

A, B = "Attack.main", "Defence.main"
SIDES = {A: "Attack", "Attack.spoiler": "Attack", B: "Defence", "Defence.other": "Defence"}
FIRST, SPOILER, SECOND, OTHER = -2, -3, -4, -5


def league(folder, learners, seed=0, **more):
    whole = LeagueSettings.model_validate({"iterations": 4, **more})
    of_learners = learners if isinstance(learners, dict) else {name: {} for name in learners}
    each = {name: LearnerSettings.model_validate(plain) for name, plain in of_learners.items()}
    found = whole.model_copy(update={"learners": each}).for_steps(MAX_STEPS)
    sides = {name: SIDES[name] for name in each}
    return LeagueController("Attack", found, Pool(folder), np.random.default_rng(seed), sides)


def rows(found, learner):
    table = found.table(learner)
    return dict(zip(zip(table.seats, table.opponents, strict=True), table.weights, strict=True))


def test_only_the_other_behaviour_meets_members(tmp_path):
    found = league(tmp_path, [A, B])
    receive_policy(found, A, policy())
    assert found.table(A) is None, "nobody of the other behaviour is there"
    receive_policy(found, B, policy())
    receive_policy(found, A, policy(step=1000))
    assert [(member.learner, member.behavior) for member in found.pool.members] == [
        (A, "Attack"),
        (B, "Defence"),
        (A, "Attack"),
    ]
    assert rows(found, A) == {(OWN, 1): 1.0}
    assert rows(found, B) == {(OWN, 0): 0.5, (OWN, 2): 0.5}


@pytest.mark.parametrize(
    ("learners", "learner", "met"),
    [
        ([A, B], A, SECOND + 1),
        ([A, "Attack.spoiler", B, "Defence.other"], "Attack.spoiler", SECOND),
        ([A, "Attack.spoiler", "Defence.other"], "Attack.spoiler", SECOND),
    ],
)
def test_self_is_the_learner_of_the_same_name_else_main_else_the_first(tmp_path, learners, learner, met):
    found = league(tmp_path, {name: {"matches": [{"match": "self"}]} for name in learners})
    for name in learners:
        receive_policy(found, name, policy())
    assert rows(found, learner) == {(OWN, met): 1.0}


def test_verification_uses_the_former_policies_of_the_counterpart(tmp_path):
    found = league(tmp_path, {A: {"matches": [{"match": "verify"}]}, B: {}})
    for step in (0, 1000, 2000):
        receive_policy(found, A, policy(step=step, fill=step))
        receive_policy(found, B, policy(step=step, fill=step))
    assert [member.learner for member in found.pool.members] == [A, B, A, B, A, B]
    found.rate(A, games(*[(OWN, 1, 0.5), (OWN, 3, 1.0), (OWN, 5, 0.0)] * 20))
    draw = rows(found, A)
    assert {opponent for _, opponent in draw} == {1, 3}
    assert draw[OWN, 1] > draw[OWN, 3]


@pytest.mark.lengthy
@pytest.mark.parametrize("solver", ["nash", "replicator"])
def test_psro_finds_the_equilibrium_of_a_game_of_two_different_sides_by_best_responses(tmp_path, solver):
    """Matching pennies in which heads is worth three times as much: the mixtures of the sides, and the value, differ.

    A policy is an action, its weight holds the number; a learner finds the best one at once.
    """
    if solver == "nash":
        pytest.importorskip("scipy")
    game = np.array([[3.0, -1.0, 0.5], [-1.0, 1.0, -2.0]])
    meta = {name: {"matches": [{"match": "meta"}]} for name in (A, B)}
    found = league(tmp_path, meta, payoff="mean_return", meta_solver=solver, rating=0.2, iterations=6)
    random, actions = np.random.default_rng(0), []
    for step in range(0, 4201, 700):
        mixed = {side: np.zeros(size) for side, size in (("Attack", 2), ("Defence", 3))}
        for number, share in found.mixture().items():
            mixed[found.pool.members[number].behavior][actions[number]] += share
        best = int((game @ mixed["Defence"]).argmax()), int((mixed["Attack"] @ game).argmin())
        for learner, sign in ((A, 1), (B, -1)):
            for _ in range(5 if step else 0):
                table = found.table(learner)
                drawn = random.choice(len(table.weights), size=100, p=table.weights)
                pairs = [(table.seats[row], table.opponents[row]) for row in drawn]
                own = np.array([actions[seat] if seat >= 0 else best[learner == B] for seat, _ in pairs])
                theirs = np.array([actions[opponent] for _, opponent in pairs])
                gained = sign * (game[own, theirs] if learner == A else game[theirs, own])
                played = dict(games(*((*pair, 0.5) for pair in pairs)))
                seats = played["game_team"]
                played["game_returns"] = np.where(np.arange(2) == seats[:, None], gained[:, None], -gained[:, None])
                found.rate(learner, played)
        for learner, action in zip((A, B), best, strict=True):
            actions.append(action)
            receive_policy(found, learner, policy(step=step, fill=len(actions)))
    x, y = (np.zeros(size) for size in (2, 3))
    for number, share in found.mixture().items():
        (x if found.pool.members[number].behavior == "Attack" else y)[actions[number]] += share
    assert (x.sum(), y.sum()) == pytest.approx((1, 1))
    gap = (game @ y).max() - (x @ game).min()
    assert gap < (0.05 if solver == "nash" else 0.3)
    assert not np.allclose(x, y[:2], atol=0.05)


def test_a_restored_league_of_two_behaviours_equals_the_saved_one(tmp_path):
    plain = {A: {}, B: {"matches": [{"match": "self"}, {"match": "pfsp"}]}}
    more = {"payoff": "mean_return", "meta_solver": "replicator", "rating": 0.1}
    before = league(tmp_path, plain, **more)
    for step in (0, 1000):
        receive_policy(before, A, policy(step=step, fill=step))
        receive_policy(before, B, policy(step=step, fill=step))
        before.rate(A, games((OWN, 1, 1.0), (0, 1, 0.0)))
        before.table(A), before.table(B)
    state = msgpack.unpackb(msgpack.packb(before.state_dict()))
    after = league(tmp_path, plain, seed=4, **more)
    after.load_state_dict(state)
    assert after.state_dict() == state
    assert (rows(after, A), rows(after, B)) == (rows(before, A), rows(before, B))
    assert after.mixture() == before.mixture()
