"""The warning about teams of unequal size."""

from __future__ import annotations

import pytest

from headrace.config import SelfPlaySettings
from headrace.stages.ghost.opponents import UniformOpponents
from headrace.stages.ghost.policy_history import PolicyHistory, SwapBalance


def history(name, **settings):
    return PolicyHistory(name, SelfPlaySettings(**settings), UniformOpponents())


def play(pace, learner, ghost, learned, made):
    learner.counters.turn_learned += learned
    ghost.count_ghost_steps(made, made)
    pace.check([ghost], [learner])


def test_two_against_one_with_the_same_swap_steps_gets_advice_what_to_set_and_only_once(caplog):
    pair = history("Pair", team_change=1000, swap_steps=125)
    lone = history("Lone", team_change=1000, swap_steps=125)
    pace = SwapBalance()
    for _ in range(5):
        play(pace, pair, lone, 200, 100)
    (said,) = caplog.messages
    assert "Lone makes 0.50 steps for each of Pair" in said
    assert "Pair meets new opponents 4 times in a turn, and Lone 16 times" in said
    assert "set behaviors.Pair.self_play.swap_steps to 500" in said


def test_the_advice_is_what_the_documented_formula_gives(caplog):
    """(its agents / their agents) × their team_change / x, for four swaps: (2 / 1) × 1000 / 4."""
    pair = history("Pair", team_change=1000, swap_steps=500)
    lone = history("Lone", team_change=1000, swap_steps=125)
    play(SwapBalance(), pair, lone, 800, 400)
    play(SwapBalance(), lone, pair, 800, 1600)
    assert not caplog.messages


def test_nothing_is_said_before_there_is_enough_to_tell(caplog):
    pace, pair, lone = SwapBalance(), history("Pair", team_change=1000), history("Lone", team_change=1000)
    play(pace, pair, lone, 749, 300)
    assert not caplog.messages
    play(pace, pair, lone, 1, 0)
    assert caplog.messages


def test_steps_of_the_turn_before_are_not_compared_with(caplog):
    pace, pair, lone = SwapBalance(), history("Pair", team_change=1000), history("Lone", team_change=1000)
    pair.counters.turn_learned += 900
    for each in (pair, lone):
        each.begin_turn(each is pair)
    play(pace, pair, lone, 700, 10)
    assert not caplog.messages


@pytest.mark.parametrize("made", [800, 700, 960])
def test_teams_of_equal_size_need_no_word(caplog, made):
    """Even if a batch of one side comes early or late."""
    play(SwapBalance(), history("A", team_change=1000), history("B", team_change=1000), 800, made)
    assert not caplog.messages


def test_a_symmetric_game_has_but_one_number_to_set(caplog):
    pace, ball = SwapBalance(), history("Ball", team_change=1000)
    play(pace, ball, ball, 800, 400)
    assert not caplog.messages


def test_nothing_is_unequal_where_both_teams_have_the_same_two_behaviours(caplog):
    keeper, striker = (history(name, team_change=1000) for name in ("Keeper", "Striker"))
    keeper.counters.turn_learned += 900
    for each, made in ((keeper, 900), (striker, 250)):
        each.count_ghost_steps(made, made)
    SwapBalance().check([keeper, striker], [keeper, striker])
    assert not caplog.messages


@pytest.mark.parametrize("lone_learns", [True, False])
def test_of_a_team_s_behaviours_the_one_that_ends_its_turn_is_compared(caplog, lone_learns):
    """The slow one, who makes a quarter of the lone one's steps, would have met new opponents sixteen times."""
    fast, slow, lone = (history(name, team_change=1000, swap_steps=250) for name in ("Fast", "Slow", "Lone"))
    for each, steps in ((fast, 800), (slow, 200), (lone, 800)):
        if (each is lone) == lone_learns:
            each.counters.turn_learned += steps
        else:
            each.count_ghost_steps(steps, steps)
    teams = ([fast, slow], [lone])
    SwapBalance().check(*(teams if lone_learns else teams[::-1]))
    assert not caplog.messages
