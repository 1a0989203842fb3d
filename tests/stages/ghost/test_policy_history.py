"""The history of one behaviour: its snapshots, records and counters."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest
from fakes import policy_update

from headrace.config import SelfPlaySettings
from headrace.stages.errors import StageError
from headrace.stages.ghost.policy_history import NEWEST, PolicyHistory, UniformOpponents


def make(sampler=None, **settings):
    defaults = {"save_steps": 100, "play_against_latest_model_ratio": 0.0}
    return PolicyHistory("Ball", SelfPlaySettings(**(defaults | settings)), sampler or UniformOpponents())


def policy(step):
    return policy_update("Ball", step // 10, step)


def test_snapshots_are_made_by_trainer_steps_and_the_window_is_bounded():
    history = make(window=3)
    for step in range(0, 1100, 50):
        history.add(policy(step))
    # The first policy, then whenever more than 100 steps have passed.
    assert [(s.snapshot, s.step) for s in history.snapshots] == [(5, 750), (6, 900), (7, 1050)]
    assert history.newest_snapshot == 7


def test_a_snapshot_keeps_the_weights_that_it_was_made_of():
    history = make()
    update = policy(0)
    history.add(update)
    update.weights[:] = 99
    assert history.snapshots[0].weights.tolist() == [0.0]
    assert history.newest.weights.tolist() == [0.0]


def test_the_record_of_a_snapshot_outlives_its_place_in_the_window():
    history = make(window=1)
    for step in (0, 200, 400):
        history.add(policy(step))
    assert [(number, record.step) for number, record in history.records.items()] == [
        (NEWEST, 0),
        (0, 0),
        (1, 200),
        (2, 400),
    ]


def test_a_sampler_is_shown_the_window_with_its_records_and_its_choice_is_played():
    class Second:
        def choose(self, candidates, random):
            self.seen = candidates
            return candidates[1].number

    sampler = Second()
    history = make(sampler, window=2)
    for step in (0, 200, 400):
        history.add(policy(step))
    for score in (1.0, 0.5, 0.0, 0.0):
        history.records[1].count(score)
    assert history.choose_opponent(np.random.default_rng(0)) == 2
    assert [asdict(candidate) for candidate in sampler.seen] == [
        {"number": 1, "rating": 1200.0, "games": 4, "wins": 1, "draws": 1, "losses": 2},
        {"number": 2, "rating": 1200.0, "games": 0, "wins": 0, "draws": 0, "losses": 0},
    ]


def test_a_sampler_that_raises_is_reported_by_its_key():
    class Broken:
        def choose(self, candidates, random):
            raise ValueError("boom")

    history = make(Broken())
    history.add(policy(0))
    with pytest.raises(
        StageError,
        match=r"behaviors\.Ball\.self_play\.opponents: Broken\.choose\(\) raised Val.*: boom \(at .*test_policy_history\.py:\d+, in choose\)",
    ):
        history.choose_opponent(np.random.default_rng(0))


@pytest.mark.parametrize("wrong", [-1, 7, None, "0"])
def test_a_sampler_that_chooses_an_unknown_snapshot_is_refused(wrong):
    class Wrong:
        def choose(self, candidates, random):
            return wrong

    history = make(Wrong())
    history.add(policy(0))
    with pytest.raises(StageError, match=r"behaviors\.Ball\.self_play\.opponents: Wrong\.choose\(\) returned .*\(0\)"):
        history.choose_opponent(np.random.default_rng(0))


def due(history, batch, batches):
    """After how many steps of a turn swaps are due, where steps come in batches."""
    return [batch * (at + 1) for at in range(batches) if history.count_ghost_steps(batch, batch)]


def test_swaps_of_a_turn_are_due_after_half_of_swap_steps_and_then_after_each_swap_steps():
    history = make(swap_steps=50)
    assert due(history, 1, 200) == [25, 75, 125, 175]
    history.begin_turn(False)
    assert due(history, 1, 200) == [25, 75, 125, 175], "counted from the turn's beginning"
    assert due(make(swap_steps=1), 1, 4) == [1, 2, 3, 4]


def test_steps_of_the_previous_turn_do_not_count_towards_a_swap():
    history = make(swap_steps=50)
    assert not history.count_ghost_steps(1000, 24)
    assert history.count_ghost_steps(1, 1)


def test_a_first_turn_that_is_the_whole_run_has_a_swap_at_each_swap_steps():
    """ML-Agents' acceptance cases count on it: with more swap_steps than max_steps nothing is swapped."""
    history = PolicyHistory("Ball", SelfPlaySettings(team_change=400, swap_steps=50), UniformOpponents(), max_steps=400)
    assert due(history, 1, 200) == [50, 100, 150, 200]
    history.begin_turn(True)
    assert due(history, 1, 100) == [25, 75], "a turn did end, as one behaviour was done"


def test_a_snapshot_keeps_the_rating_that_its_policy_had():
    history = make()
    now = history.records[NEWEST]
    now.rating, now.mu, now.sigma = 1300.0, 28.0, 3.0
    history.add(policy(0))
    now.rating, now.mu, now.sigma = 1400.0, 30.0, 2.0
    kept = history.records[0]
    assert (kept.rating, kept.mu, kept.sigma) == (1300.0, 28.0, 3.0)


def test_a_trainer_that_goes_back_takes_the_rating_and_the_counters_with_it_and_leaves_the_snapshots():
    history = make(team_change=1000)
    now = history.records[NEWEST]
    for step, rating in ((0, 1200.0), (200, 1300.0), (400, 1500.0)):
        now.rating = rating
        history.add(policy(step))
    history.begin_turn(learns=True)
    history.counters.done = True
    history.rewind(250)
    assert history.records[NEWEST].rating == 1300.0
    assert not history.counters.done
    assert [snapshot.step for snapshot in history.snapshots] == [0, 200, 400]
    history.add(policy(250))
    history.add(policy(351))
    assert history.snapshots[-1].step == 351
    assert not history.turn_is_over
    history.add(policy(1251))
    assert history.turn_is_over  # 1000 steps after the step that it went back to


def test_a_trainer_that_restarts_has_the_first_rating_again():
    history = make(initial_elo=1250.0)
    history.records[NEWEST].rating = 1600.0
    history.rewind(0)
    assert history.records[NEWEST].rating == 1250.0


def test_a_resumed_history_is_what_it_was_even_in_a_smaller_window():
    history = make(window=3)
    for step in range(0, 1000, 50):
        history.add(policy(step))
    history.count_ghost_steps(77, 7)
    history.counters.done = True
    history.results[3, "Ball", 2] = [1, 2, 3]
    again = make(window=3)
    again.load_state_dict(history.state_dict())
    assert repr(again.state_dict()) == repr(history.state_dict())
    smaller = make(window=2)
    smaller.load_state_dict(history.state_dict())
    assert [s.snapshot for s in smaller.snapshots] == [s.snapshot for s in history.snapshots][-2:]
