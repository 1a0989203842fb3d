"""Games of two teams and more: what their results do to ratings, and what is reported at the end."""

from __future__ import annotations

import numpy as np
import pytest
from fakes import policy_update

from headrace.config import SelfPlaySettings
from headrace.stages.ghost.policy_history import NEWEST, PolicyHistory, UniformOpponents
from headrace.stages.ghost.rating import SnapshotRatings, report


def history(name, snapshots=3, **settings):
    made = PolicyHistory(name, SelfPlaySettings(**({"save_steps": 1} | settings)), UniformOpponents())
    for step in range(0, 2 * snapshots, 2):
        made.add(policy_update(name, step, step))
    return made


def make(*names, **settings):
    histories = {name: history(name, **settings) for name in names}
    return SnapshotRatings(histories), histories


def games(generation, outcome, outcomes=None):
    columns = {"game_generation": np.array([generation]), "game_outcome": np.array([outcome], np.float32)}
    return columns if outcomes is None else columns | {"game_outcomes": np.array([outcomes], np.float32)}


def ratings(history):
    return {number: round(record.rating, 3) for number, record in history.records.items() if record.rating != 1200}


def test_a_win_moves_both_ratings_by_the_same_amount():
    board, histories = make("Ball")
    board.begin(4, 0, {"Ball?team=0": NEWEST, "Ball?team=1": 1})
    assert board.rate(games(4, 1.0)) == [("Ball", "Self-play/ELO", 1208.0)]
    assert ratings(histories["Ball"]) == {NEWEST: 1208.0, 1: 1192.0}
    assert board.rate(games(4, 0.0)) == [("Ball", "Self-play/ELO", pytest.approx(1199.632, abs=0.001))]


def test_the_last_thousand_assignments_are_remembered():
    board, _ = make("Ball")
    for generation in range(1001):
        board.begin(generation, 0, {"Ball?team=0": NEWEST, "Ball?team=1": 0})
    assert [len(board.rate(games(generation, 1.0))) for generation in (0, 1, 1000)] == [0, 1, 1]


def test_a_team_s_rating_is_its_members_mean_and_all_of_them_are_moved():
    board, histories = make("A", "B", "C")
    histories["A"].records[NEWEST].rating = 1300
    histories["B"].records[NEWEST].rating = 1100
    board.begin(1, 0, {"A?team=0": NEWEST, "B?team=0": NEWEST, "C?team=1": 2})
    told = board.rate(games(1, 1.0))
    assert told == [("A", "Self-play/ELO", 1308.0), ("B", "Self-play/ELO", 1108.0)]
    assert ratings(histories["C"]) == {2: 1192.0}


def test_among_many_teams_a_game_is_a_duel_with_each():
    board, histories = make("Ball", elo_k=18.0)
    players = {"Ball?team=0": 0, "Ball?team=1": NEWEST, "Ball?team=2": 1, "Ball?team=3": 2}
    board.begin(1, 1, players)
    board.rate(games(1, 0.5, [1.0, 0.5, 0.5, 0.0]))
    assert ratings(histories["Ball"]) == {0: 1203.0, 2: 1197.0}, "lost to 0, drawn with 1, won against 2"
    assert [histories["Ball"].records[n].games for n in range(3)] == [1, 1, 1]


def test_teams_with_the_learner_s_newest_policy_are_not_rated():
    board, histories = make("Ball")
    board.begin(1, 0, {"Ball?team=0": NEWEST, "Ball?team=1": NEWEST, "Ball?team=2": 1})
    assert board.rate(games(1, 1.0, [1.0, 0.0, 0.0]))[0] == ("Ball", "Self-play/ELO", 1208.0)
    assert ratings(histories["Ball"]) == {NEWEST: 1208.0, 1: 1192.0}


def test_members_that_play_for_both_sides_are_not_rated():
    board, histories = make("A", "B")
    players = {"A?team=0": NEWEST, "B?team=0": NEWEST, "A?team=1": NEWEST, "B?team=1": 2}
    board.begin(1, 0, players)
    assert {name: value for name, _, value in board.rate(games(1, 1.0))} == {"A": 1200.0, "B": 1208.0}
    assert ratings(histories["A"]) == {}
    assert ratings(histories["B"]) == {NEWEST: 1208.0, 2: 1192.0}
    assert [histories["A"].records[NEWEST].games, histories["B"].records[2].games] == [0, 1]
    assert [(met["against"], met["snapshot"]) for met in report(histories["B"])["results"]] == [("B", 2)]


def test_a_guessed_result_counts_for_all_opponents():
    board, histories = make("Ball")
    board.begin(1, 0, {"Ball?team=0": NEWEST, "Ball?team=1": 0, "Ball?team=2": 1})
    board.rate(games(1, 0.0))
    assert ratings(histories["Ball"]) == {NEWEST: 1192.0, 0: 1204.0, 1: 1204.0}


def test_the_report_has_each_snapshot_from_its_own_side_and_the_matrix_from_the_learner_s():
    board, histories = make("Hider", "Seeker", snapshots=2)
    board.begin(1, 0, {"Hider?team=0": NEWEST, "Seeker?team=1": 0})
    board.begin(2, 0, {"Hider?team=0": NEWEST, "Seeker?team=1": NEWEST})
    for outcome in (1.0, 1.0, 0.5, 0.0):
        board.rate(games(1, outcome))
    histories["Hider"].add(policy_update("Hider", 9, 9))
    board.rate(games(1, 0.0))
    board.rate(games(2, 1.0))
    hider, seeker = report(histories["Hider"]), report(histories["Seeker"])
    assert hider["results"] == [
        {"since": 1, "against": "Seeker", "snapshot": 0, "won": 2, "drawn": 1, "lost": 1},
        {"since": 2, "against": "Seeker", "snapshot": -1, "won": 1, "drawn": 0, "lost": 0},
        {"since": 2, "against": "Seeker", "snapshot": 0, "won": 0, "drawn": 0, "lost": 1},
    ]
    assert seeker["results"] == []
    first, second = seeker["snapshots"]
    told = {key: first[key] for key in ("snapshot", "step", "games", "won", "drawn", "lost")}
    assert told == {"snapshot": 0, "step": 0, "games": 5, "won": 2, "drawn": 1, "lost": 2}
    assert (second["rating"], second["games"], second["skill"]) == (1200.0, 0, None)
    assert hider["rating"] == histories["Hider"].records[NEWEST].rating


def test_matches_are_saved_and_resumed():
    board, histories = make("Ball")
    board.begin(7, 1, {"Ball?team=0": 2, "Ball?team=1": NEWEST})
    again = SnapshotRatings(histories)
    again.load_state_dict(board.state_dict())
    assert again.state_dict() == board.state_dict()
    assert set(again.players(7)) == {"Ball?team=0", "Ball?team=1"}
    again.rate(games(7, 1.0))
    assert ratings(histories["Ball"]) == {NEWEST: 1208.0, 2: 1192.0}


# Brains. ---------------------------------------------------------------------------------------------------------------

SHARES = [{"use": "scripted", "weight": 0.25}, {"use": "random", "weight": 0.25}]


def drawn_games(*draws):
    """Games that the learner, team 0, has won, with what was drawn for team 1."""
    columns = games(4, 1.0)
    count = len(draws)
    return {name: np.repeat(column, count) for name, column in columns.items()} | {
        "game_draws": np.array([[-1.0, draw] for draw in draws], np.float32)
    }


def test_a_game_is_rated_for_the_brain_that_was_drawn():
    board, histories = make("Ball", brains=SHARES)
    board.begin(4, 0, {"Ball?team=0": NEWEST, "Ball?team=1": 1})
    (said,) = [s for s in board.rate(drawn_games(0.3)) if s[1].startswith("Self-play/ELO of")]
    assert said == ("Ball", "Self-play/ELO of random", 1192.0)
    assert ratings(histories["Ball"]) == {NEWEST: 1208.0}, "the snapshot did not play"
    board.rate(drawn_games(0.1, 0.7, -1.0))
    played = {name: (record.games, record.wins) for name, record in histories["Ball"].brains.items()}
    assert played == {"scripted": (1, 1), "random": (1, 1)}
    assert histories["Ball"].records[1].games == 2


def test_a_game_against_a_brain_counts_even_if_the_newest_policy_would_have_met_itself():
    board, histories = make("Ball", brains=SHARES)
    board.begin(4, 0, {"Ball?team=0": NEWEST, "Ball?team=1": NEWEST})
    assert board.rate(drawn_games(0.7)) == []
    board.rate(drawn_games(0.1))
    assert ratings(histories["Ball"]) == {NEWEST: 1208.0}


def test_the_report_names_the_brains_and_a_resumed_run_keeps_their_results():
    board, histories = make("Ball", brains=SHARES)
    board.begin(4, 0, {"Ball?team=0": NEWEST, "Ball?team=1": 1})
    board.rate(drawn_games(0.1, 0.1, 0.7))
    told = report(histories["Ball"])
    assert [(each["brain"], each["games"], each["lost"]) for each in told["brains"]] == [
        ("scripted", 2, 2),
        ("random", 0, 0),
    ]
    assert [(each["snapshot"], each.get("brain"), each["won"]) for each in told["results"]] == [
        (1, None, 1),
        (None, "scripted", 2),
    ]
    resumed = history("Ball", 0, brains=[{"use": "scripted", "weight": 0.5}, {"use": "results/first", "weight": 0.1}])
    resumed.load_state_dict(histories["Ball"].state_dict())
    assert resumed.results == histories["Ball"].results
    assert resumed.brains["scripted"] == histories["Ball"].brains["scripted"]
    assert resumed.brains["results/first"].games == 0
