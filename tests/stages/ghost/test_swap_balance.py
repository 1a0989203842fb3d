"""The warning about teams of unequal size."""

from __future__ import annotations

import numpy as np
import pytest
from fakes import trajectories
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

from headrace.config import SelfPlaySettings
from headrace.stages.ghost.policy_history import PolicyHistory, UniformOpponents
from headrace.stages.ghost.swap_balance import SwapBalance

PAIR, LONE = "Pair?team=0", "Lone?team=1"


def history(name, **settings):
    return PolicyHistory(name, SelfPlaySettings(**settings), UniformOpponents())


def batch_of(behavior_id, lengths, first_agent=0):
    made = trajectories(lengths, behavior_id)
    return made.replace(agent_ids=first_agent + np.arange(len(lengths)))


def play(balance, pair, lone, made, rounds=10, learning_team=0):
    """All agents' trajectories of some rounds; the numbers of steps of each agent of the sides are `made`."""
    for _ in range(rounds):
        balance.count(batch_of(PAIR, made[0], 100))
        balance.count(batch_of(LONE, made[1], 200))
        teams = [[pair], [lone]]
        balance.check(teams[1 - learning_team], teams[learning_team], learning_team)


def test_two_against_one_with_the_same_swap_steps_gets_advice_what_to_set_and_only_once(caplog):
    pair = history("Pair", team_change=1000, swap_steps=125)
    lone = history("Lone", team_change=1000, swap_steps=125)
    play(SwapBalance(), pair, lone, ([50, 50], [50]))
    (said,) = caplog.messages
    assert "Lone makes 0.50 steps for each step of Pair" in said
    assert "Pair meets new opponents 4 times per turn, and Lone 16 times" in said
    assert "set behaviors.Pair.self_play.swap_steps to 500" in said


@pytest.mark.parametrize("learning_team", [0, 1])
@pytest.mark.parametrize("change", [(1000, 1000), (2000, 500), (30, 90)])
def test_the_advice_is_what_the_documented_formula_gives(caplog, learning_team, change):
    """(its agents / their agents) × their team_change / x, for four swaps."""
    pair = history("Pair", team_change=change[0], swap_steps=max(1, 2 * change[1] // 4))
    lone = history("Lone", team_change=change[1], swap_steps=max(1, change[0] // 2 // 4))
    play(SwapBalance(), pair, lone, ([64, 64], [64]), 100, learning_team)
    assert not caplog.messages


def test_the_warning_waits_for_enough_steps(caplog):
    """Nobody knows how many agents there are, and what they have made beside, before each has come several times."""
    balance, pair, lone = SwapBalance(), history("Pair", swap_steps=125), history("Lone", swap_steps=125)
    play(balance, pair, lone, ([64] * 2, [64]), 3)
    assert not caplog.messages
    play(balance, pair, lone, ([64] * 2, [64]), 9)
    assert caplog.messages


@pytest.mark.parametrize("made", [80, 70, 96])
def test_teams_of_equal_size_cause_no_warning(caplog, made):
    """Even if a batch of one side comes early or late."""
    play(SwapBalance(), history("Pair", team_change=1000), history("Lone", team_change=1000), ([80], [made]), 50)
    assert not caplog.messages


@pytest.mark.parametrize("lone_learns", [True, False])
def test_the_fastest_behaviour_of_a_team_is_compared(caplog, lone_learns):
    """The slow one, who makes a quarter of the lone one's steps, would have met new opponents sixteen times."""
    fast, slow, lone = (history(name, team_change=1000, swap_steps=250) for name in ("Fast", "Slow", "Lone"))
    balance = SwapBalance()
    teams = ([fast, slow], [lone])
    for _ in range(20):
        for behavior_id, steps in (("Fast?team=0", 80), ("Slow?team=0", 20), ("Lone?team=1", 80)):
            balance.count(batch_of(behavior_id, [steps]))
        balance.check(*(teams if lone_learns else teams[::-1]), learning_team=int(lone_learns))
    assert not caplog.messages


class Side:
    """Agents of one side, whose trajectories are cut at a horizon, where their episodes end, and where their turn does."""

    def __init__(self, behavior_id, agents, horizon, life, first_agent, random):
        self.behavior_id, self.horizon, self.life, self.random = behavior_id, horizon, life, random
        self.ids = first_agent + np.arange(agents)
        self.open = np.zeros(agents, np.int64)
        self.left = self._lives(agents)

    def _lives(self, count):
        return self.random.integers(1, 2 * self.life, count)

    def step(self, cut=False):
        """One tick; the batch of trajectories that are complete, None for none."""
        self.open += 1
        self.left -= 1
        ended = self.left == 0
        done = ended | (self.open == self.horizon) | cut
        self.left[ended] = self._lives(int(ended.sum()))
        if not done.any():
            return None
        batch = trajectories(self.open[done].tolist(), self.behavior_id).replace(agent_ids=self.ids[done])
        self.open[done] = 0
        return batch


def game(sides, pair, lone, ticks, window, team_change):
    """Play: who learns has its trajectories cut after each window of its steps, and turns change."""
    balance, learner, learned, in_window = SwapBalance(), 0, 0, 0
    for _ in range(ticks):
        learned += len(sides[learner].ids)
        in_window += len(sides[learner].ids)
        cut = in_window >= window
        for team, side in enumerate(sides):
            batch = side.step(cut and team == learner)
            if batch is not None:
                balance.count(batch)
                if team != learner:
                    balance.check(([pair], [lone])[team], ([pair], [lone])[learner], learner)
        in_window = 0 if cut else in_window
        if learned > team_change[learner] and cut:
            learner, learned = 1 - learner, 0
    return balance


@pytest.mark.lengthy
@given(
    agents=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    horizon=st.sampled_from([5, 64, 300]),
    life=st.sampled_from([4, 40, 10_000]),
    change=st.tuples(st.integers(50, 4000), st.integers(50, 4000)),
    window=st.sampled_from([16, 256, 2000]),
    swaps=st.sampled_from([2, 4, 10]),
    wrong=st.sampled_from([1, 1, 6]),
    seed=st.integers(0, 100),
)
@examples(12)
def test_the_documented_formula_is_never_warned_of_and_what_is_far_from_it_always_is(
    agents, horizon, life, change, window, swaps, wrong, seed
):
    random = np.random.default_rng(seed)
    sides = [
        Side(i, n, horizon, life, 1000 * k, random) for k, (i, n) in enumerate(zip((PAIR, LONE), agents, strict=True))
    ]
    needed = [agents[k] / agents[1 - k] * change[1 - k] / swaps for k in range(2)]
    if min(needed) < 10:
        return  # whole numbers are too coarse for as many swaps
    pair = history("Pair", team_change=change[0], swap_steps=round(needed[0] * wrong))
    lone = history("Lone", team_change=change[1], swap_steps=round(needed[1]))
    ticks = 400 if wrong == 1 else 20 * min(horizon, life) + 400
    assert game(sides, pair, lone, ticks, window, change).warned == (wrong != 1)
