"""The controller of a league, step by step: it needs no pipeline."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from league_fakes import controller, games, policy, receive_policy
from properties import examples

from headrace.stages.errors import StageError
from headrace.stages.league.controller import LeagueController
from headrace.stages.league.matchmaking import OWN
from headrace.stages.league.pool import read_member

PFSP = {"iterations": 4, "learners": {"main": {"matches": [{"match": "pfsp", "weighting": "linear"}]}}}
"""Frozen after 500 steps and a probability of 0.7, or after 1000."""
ALPHASTAR = {"preset": "alphastar", "iterations": 4}


def rows(league: LeagueController, learner: str = "main") -> dict[tuple[int, int], float]:
    table = league.table(learner)
    assert table is not None
    assert sum(table.weights) == pytest.approx(1)
    named = {player for player in (*table.seats, *table.opponents) if player >= 0}
    assert table.members == {number: asdict(league.pool.members[number]) for number in named}
    return dict(zip(zip(table.seats, table.opponents, strict=True), table.weights, strict=True))


def frozen(league: LeagueController) -> list[tuple[str, int, int]]:
    return [(member.learner, member.step, member.parent) for member in league.pool.members]


def test_the_first_policy_is_the_first_opponent(tmp_path):
    league = controller(tmp_path, PFSP)
    assert league.table("main") is None
    assert receive_policy(league, "main", policy()) is None
    assert rows(league) == {(OWN, 0): 1.0}
    assert frozen(league) == [("main", 0, -1)]


def test_a_learner_is_frozen_after_the_most_steps_or_as_soon_as_it_beats_all(tmp_path):
    league = controller(tmp_path, PFSP)
    for step in (0, 999, 1000, 1499, 1500):
        receive_policy(league, "main", policy(step=step, fill=step))
    assert frozen(league) == [("main", 0, -1), ("main", 1000, 0)]
    league.rate("main", games(*[(OWN, member, 1.0) for member in (0, 1)] * 9))
    receive_policy(league, "main", policy(step=1499, fill=3))
    assert len(league.pool.members) == 2
    receive_policy(league, "main", policy(step=1500, fill=4))
    assert frozen(league)[2:] == [("main", 1500, 1)]
    league.rate("main", games((OWN, 0, 1.0), (OWN, 1, 1.0), (OWN, 2, 0.0)))
    receive_policy(league, "main", policy(step=2400))
    assert len(league.pool.members) == 3


def test_opponents_follow_the_results_and_the_table_rises_with_each_change(tmp_path):
    league = controller(tmp_path, PFSP)
    for step in (0, 1000):
        receive_policy(league, "main", policy(step=step, fill=step))
    assert rows(league) == {(OWN, 0): 0.5, (OWN, 1): 0.5}
    first = league.table("main")
    league.rate("main", games((OWN, 0, 1.0)))
    assert league.table("main") is first
    league.rate("main", games(*[(OWN, 0, 1.0)] * 40))
    assert rows(league) == pytest.approx({(OWN, 0): 0.05, (OWN, 1): 0.95}, abs=0.01)
    assert league.table("main").number > first.number


def no_space(*_):
    raise OSError(28, "No space left on device")


def test_a_full_disk_delays_a_freeze_and_is_reported_once(tmp_path, monkeypatch, caplog):
    league = controller(tmp_path, ALPHASTAR)
    receive_policy(league, "main", policy())
    with monkeypatch.context() as full:
        full.setattr(os, "replace", no_space)
        assert receive_policy(league, "main", policy(step=5000)) is None
        assert receive_policy(league, "main", policy(step=5010)) is None
    assert [record.getMessage() for record in caplog.records] == [
        f"Duel.main can't be frozen into {tmp_path}: No space left on device. Training continues, and the league "
        "retries with each new policy."
    ]
    receive_policy(league, "main", policy(step=5020))
    assert frozen(league) == [("main", 0, -1), ("main", 5020, 0)]


def test_a_full_disk_at_the_start_fails_the_run(tmp_path, monkeypatch):
    league = controller(tmp_path, ALPHASTAR)
    monkeypatch.setattr(os, "replace", no_space)
    with pytest.raises(
        StageError, match=r"^Duel.main can't be frozen into .*: No space left on device; its games need"
    ):
        receive_policy(league, "main", policy())


def test_a_run_without_a_checkpoint_begins_with_an_empty_pool(tmp_path):
    killed = controller(tmp_path, {**PFSP, "members": "random"})
    for step in (0, 1000):
        receive_policy(killed, "main", policy(step=step))
    league = controller(tmp_path, {**PFSP, "members": "random"})
    receive_policy(league, "main", policy(fill=1.0))
    assert [(member.label, member.step) for member in league.pool.members] == [("random", 0), ("main 1", 0)]
    assert len(list(tmp_path.glob("*.policy"))) == 1
    assert set(rows(league)) == {(OWN, 0), (OWN, 1)}


def test_an_exploiter_is_frozen_before_it_is_reset(tmp_path):
    league = controller(tmp_path, ALPHASTAR)
    for learner in ("main", "main_exploiter", "league_exploiter"):
        assert receive_policy(league, learner, policy(learner)) is None
    assert frozen(league) == [("main", 0, -1)]
    reset = receive_policy(league, "main_exploiter", policy("main_exploiter", 1000, 7.0))
    assert (reset.learner, reset.weights) == ("main_exploiter", None)
    assert frozen(league)[1:] == [("main_exploiter", 1000, -1)]
    assert read_member(tmp_path, league.pool.members[1]).weights[0] == 7.0
    assert receive_policy(league, "main_exploiter", policy("main_exploiter", 1999)) is None
    assert receive_policy(league, "main_exploiter", policy("main_exploiter", 2000)) is not None
    assert frozen(league)[2:] == [("main_exploiter", 2000, -1)], "it does not descend from the one before its reset"


def test_a_learner_that_is_reset_to_another_descends_from_that(tmp_path):
    league = controller(
        tmp_path,
        {"iterations": 4, "learners": {"main": {}, "other": {"freeze": {"first": False}, "reset": {"to": "main"}}}},
    )
    receive_policy(league, "main", policy("main", 0))
    receive_policy(league, "other", policy("other", 0))
    update = policy("main", 900, 3.0)
    receive_policy(league, "main", update)
    update.weights[:] = 9  # a trainer goes on
    reset = receive_policy(league, "other", policy("other", 1000, 2.0))
    assert (reset.weights.behavior_id, reset.weights.weights.tolist()) == ("Duel.main", [3.0] * 3)
    receive_policy(league, "other", policy("other", 2000, 4.0))
    assert frozen(league) == [("main", 0, -1), ("other", 1000, -1), ("other", 2000, 0)]


@pytest.mark.lengthy
def test_a_league_exploiter_is_reset_in_a_quarter_of_the_cases(tmp_path):
    league = controller(tmp_path, {**ALPHASTAR, "iterations": 1})
    receive_policy(league, "league_exploiter", policy("league_exploiter"))
    found = [
        receive_policy(league, "league_exploiter", policy("league_exploiter", 4000 * i, i)) is not None
        for i in range(1, 61)
    ]
    assert 6 <= sum(found) <= 26
    assert len(league.pool.members) == 60


def test_main_meets_exploiters_that_beat_it(tmp_path):
    league = controller(tmp_path, ALPHASTAR)
    for learner in ("main", "main_exploiter", "league_exploiter"):
        receive_policy(league, learner, policy(learner))
    assert rows(league) == pytest.approx({(OWN, 0): 0.5, (OWN, OWN): 0.5})
    assert rows(league, "main_exploiter") == {(OWN, -2): 1.0}
    assert rows(league, "league_exploiter") == {(OWN, 0): 1.0}
    receive_policy(league, "main_exploiter", policy("main_exploiter", 1000))
    league.rate("main", games(*[(OWN, 1, 0.0)] * 64))
    assert rows(league) == pytest.approx({(OWN, 0): 0.1, (OWN, 1): 0.4 + 0.15, (OWN, OWN): 0.35}, abs=0.01)


def test_opponents_of_openai_five_are_lowered_by_wins(tmp_path):
    league = controller(tmp_path, {"preset": "five", "quality_rate": 0.5, "iterations": 4})
    for step in (0, 1000):
        receive_policy(league, "main", policy(step=step))
    assert rows(league) == pytest.approx({(OWN, OWN): 0.8, (OWN, 0): 0.1, (OWN, 1): 0.1})
    league.rate("main", games(*[(OWN, OWN, 1.0)] * 31, (OWN, 0, 1.0), (OWN, 1, 0.0)))
    share = np.exp(-0.5) / (np.exp(-0.5) + 1)
    assert rows(league) == pytest.approx({(OWN, OWN): 0.8, (OWN, 0): 0.2 * share, (OWN, 1): 0.2 * (1 - share)})


def test_the_number_of_members_does_not_depend_on_the_size_of_updates(tmp_path):
    league = controller(tmp_path, {**PFSP, "learners": {"main": {"freeze": {"win_rate": None}}}})
    for step in range(0, 4001, 800):
        receive_policy(league, "main", policy(step=step))
    assert [step for _, step, _ in frozen(league)] == [0, 1600, 2400, 3200, 4000]


def psro(folder, **more):
    return controller(folder, {"preset": "psro", "meta_solver": "replicator", "iterations": 4, **more})


def test_psro_meets_the_mixture_and_rates_members_that_have_played_little(tmp_path):
    league = psro(tmp_path)
    for step in (0, 1000):
        receive_policy(league, "main", policy(step=step))
    assert rows(league) == pytest.approx({(OWN, 0): 0.45, (OWN, 1): 0.45, (0, 1): 0.1})
    assert league.mixture() == {0: 0.5, 1: 0.5}
    league.rate("main", games(*[(0, 1, 1.0)] * 40, returns=2.0))
    assert league.mixture()[0] > 0.9
    assert rows(league)[OWN, 0] > 0.8
    assert league.report()["payoffs"][1:] == [[None, None, 2.0], [None, -2.0, None]]


def test_a_member_that_was_not_rated_yet_has_what_its_learner_had(tmp_path):
    league = psro(tmp_path)
    receive_policy(league, "main", policy())
    league.rate("main", games(*[(OWN, 0, 1.0)] * 9))
    receive_policy(league, "main", policy(step=1000))
    assert league.mixture()[1] > 0.9
    assert league.report()["games"][2][1] == 0


@pytest.mark.parametrize("preset", ["alphastar", "five"])
def test_without_a_meta_solver_all_that_main_has_frozen_are_the_mixture(tmp_path, preset):
    league = controller(tmp_path, {"preset": preset, "iterations": 4, "members": "random"})
    assert league.mixture() == {}
    for step in (0, 1000, 2000):
        receive_policy(league, "main", policy(step=step))
    assert league.mixture() == pytest.approx({1: 1 / 6, 2: 2 / 6, 3: 3 / 6})


def test_results_come_with_statistics(tmp_path):
    league = controller(tmp_path, PFSP)
    receive_policy(league, "main", policy())
    assert league.rate("main", {}) == []
    found = league.rate("main", games((OWN, 0, 1.0), (OWN, 0, 0.0), (OWN, 0, 0.5), (OWN, 0, 1.0), (OWN, OWN, 0.0)))
    assert found[0] == ("main", "League/Score", 0.625)
    assert found[1][:2] == ("main", "League/Lowest Chance")
    assert found[1][2] == pytest.approx((0.99**3 + 0.99 * 0.5 + 1 + 1) / (0.99**3 + 0.99**2 + 0.99 + 1 + 2))
    assert found[2:] == [("main", "League/Members", 1.0)]


def test_games_of_more_teams_are_duels_of_the_seat(tmp_path):
    league = controller(tmp_path, PFSP)
    for step in (0, 1000):
        receive_policy(league, "main", policy(step=step))
    league.rate(
        "main",
        {
            "game_team": np.array([1, 0], np.int32),
            "game_outcome": np.array([0.5, 1.0], np.float32),
            "game_outcomes": np.array([[5.0, 3.0, 1.0], [2.0, 2.0, 0.0]], np.float32),
            "game_players": np.array([[0, OWN, 1], [OWN, 0, 1]], np.int32),
            "game_returns": np.zeros((2, 3), np.float32),
        },
    )
    report = league.report()
    assert report["players"] == ["main", "main 0", "main 1"]
    assert report["games"] == [[0, 2, 2], [2, 0, 0], [2, 0, 0]]
    assert report["payoffs"][0][1:] == pytest.approx([0.5 / 1.99, 1.0])


def test_the_report_is_plain_data_of_all_that_a_picture_needs(tmp_path):
    league = controller(tmp_path, {**ALPHASTAR, "members": [{"use": "random", "name": "chance"}]})
    for learner in ("main", "main_exploiter"):
        receive_policy(league, learner, policy(learner))
    receive_policy(league, "main", policy(step=1000))
    league.rate("main", games((OWN, 0, 0.5), (OWN, 1, 0.0)))
    report = json.loads(json.dumps(league.report()))
    assert [each["learner"] for each in report["learners"]] == ["main", "main_exploiter", "league_exploiter"]
    assert report["learners"][0]["frozen"] == 1000
    assert {name for name, _ in report["learners"][0]["opponents"]} == {"main", "chance", "main 1", "main 2"}
    assert report["learners"][1]["opponents"] == [["main", 1.0]]
    assert report["learners"][2]["opponents"] == []
    assert [(each["label"], each["parent"]) for each in report["members"]] == [
        ("chance", -1),
        ("main 1", -1),
        ("main 2", 1),
    ]
    assert report["players"] == ["main", "main_exploiter", "league_exploiter", "chance", "main 1", "main 2"]
    assert report["games"][0] == [0, 0, 0, 1, 1, 0]
    assert report["payoffs"][0] == [None, None, None, 0.5, 0.0, None]
    assert report["mixture"] == [[1, 1 / 3], [2, 2 / 3]]


def test_a_brain_that_is_listed_no_more_is_not_met(tmp_path):
    members = [{"use": "random", "name": "chance"}]
    before = controller(tmp_path, {**PFSP, "members": members})
    receive_policy(before, "main", policy())
    assert set(rows(before)) == {(OWN, 0), (OWN, 1)}
    after = controller(tmp_path, PFSP)
    after.load_state_dict(before.state_dict())
    receive_policy(after, "main", policy(step=1000))
    assert set(rows(after)) == {(OWN, 1), (OWN, 2)}


def test_without_scipy_a_league_that_needs_it_does_not_begin(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(StageError, match="needs SciPy") as error:
        controller(tmp_path, {"preset": "psro"})
    assert error.value.key == ("behaviors", "Duel", "league", "meta_solver")


def test_a_member_whose_model_has_changed_is_refused_at_resume_by_its_key(tmp_path):
    model = tmp_path / "old.onnx"
    model.write_bytes(b"a model")
    league = controller(tmp_path / "pool", {**PFSP, "members": [{"use": str(model), "name": "old"}]})
    model.write_bytes(b"another model")
    with pytest.raises(StageError, match="has changed") as error:
        league.load_state_dict(league.state_dict())
    assert error.value.key == ("behaviors", "Duel", "league", "members")


def test_a_learner_that_is_new_in_a_resumed_run_begins(tmp_path):
    before = controller(tmp_path, {"iterations": 4, "learners": {"main": {}, "second": {}}})
    for learner in ("main", "second"):
        receive_policy(before, learner, policy(learner))
    before.rate("second", games((OWN, 0, 0.5)))
    after = controller(tmp_path, {"iterations": 4, "learners": {"main": {}, "third": {}, "second": {}}})
    after.load_state_dict(before.state_dict())
    assert after.table("third") is None
    assert set(rows(after, "second")) == {(OWN, 0), (OWN, 1)}
    assert after.report()["payoffs"][2][3] == 0.5


@pytest.mark.lengthy
@pytest.mark.parametrize("solver", ["nash", "replicator"])
def test_psro_finds_the_equilibrium_of_a_game_by_best_responses(tmp_path, solver):
    """A policy is an action of a matrix game, its weights hold the number; a learner finds the best one at once."""
    if solver == "nash":
        pytest.importorskip("scipy")
    game = np.random.default_rng(4).normal(size=(6, 6))
    game -= game.T
    league, random = psro(tmp_path, meta_solver=solver, iterations=8), np.random.default_rng(0)
    actions: list[int] = []
    for step in range(0, 4801, 600):
        mixture = sum(share * game[:, actions[member]] for member, share in league.mixture().items())
        actions.append(int(mixture.argmax()) if step else 0)
        for _ in range(5 if step else 0):
            table = league.table("main")
            drawn = random.choice(len(table.weights), size=200, p=table.weights)
            played = dict(games(*((table.seats[row], table.opponents[row], 0.5) for row in drawn)))
            played["game_returns"] = game[*np.array(actions)[played["game_players"]].T][:, None] * [1, -1]
            league.rate("main", played)
        receive_policy(league, "main", policy(step=step, fill=actions[-1]))
    assert mixture.max() < (0.02 if solver == "nash" else 0.1) * np.abs(game).max()


STEPS = st.tuples(
    st.sampled_from(["policy", "games"]),
    st.integers(0, 2),
    st.integers(1, 900),
    st.lists(st.tuples(st.integers(-4, 3), st.sampled_from([0.0, 0.5, 1.0])), max_size=30),
)


def drive(league: LeagueController, steps: Iterable[tuple], at: list[int]) -> list[object]:
    """Give a league policies and games; returns all that it says."""
    said: list[object] = []
    names = list(league.settings.learners)
    for kind, index, more, played in steps:
        learner = names[index % len(names)]
        if kind == "policy":
            at[index] += more
            reset = receive_policy(league, learner, policy(learner, at[index], at[index] % 7))
            said.append(None if reset is None else (reset.learner, reset.weights and reset.weights.weights.tolist()))
        else:
            said.append(league.rate(learner, games(*((OWN, player, outcome) for player, outcome in played))))
        said += [league.table(learner), list(league.mixture().items())]
    return said


@pytest.mark.lengthy
@given(
    st.lists(STEPS, max_size=15),
    st.lists(STEPS, max_size=10),
    st.sampled_from(
        [
            ALPHASTAR,
            {"preset": "five", "iterations": 4},
            {"preset": "psro", "meta_solver": "uniform", "iterations": 4},
            {
                "iterations": 8,
                "payoff": "mean_return",
                "rating": 0.2,
                "members": "random",
                "learners": {"main": {}, "other": {"reset": {"probability": 0.5, "to": "main"}}},
            },
        ]
    ),
)
@examples(8)
def test_a_league_continues_identically_from_a_saved_state(tmp_path_factory, before, after, league):
    folder = tmp_path_factory.mktemp("league")
    ran, at = controller(folder, league, seed=5), [0, 0, 0]
    drive(ran, before, at)
    state = ran.state_dict()
    resumed = controller(folder, league, seed=6)
    resumed.load_state_dict(msgpack.unpackb(msgpack.packb(state)))
    assert resumed.state_dict() == state
    then = list(at)
    said = drive(ran, after, at)
    resumed.load_state_dict(state)
    assert drive(resumed, after, then) == said
