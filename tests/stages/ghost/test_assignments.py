"""Which policy each behaviour id plays with: the learners' newest, and for the others what was chosen when it was."""

from __future__ import annotations

import numpy as np
import pytest
from fakes import policy_update

from headrace.config import SelfPlaySettings
from headrace.stages.ghost.controller import Assignments
from headrace.stages.ghost.policy_history import NEWEST, PolicyHistory

HOME, AWAY = "Ball?team=0", "Ball?team=1"
PLAYERS = (HOME, AWAY)


class Next:
    """Chooses the snapshots in turn."""

    def __init__(self):
        self.times = 0

    def choose(self, candidates, random):
        self.times += 1
        return candidates[(self.times - 1) % len(candidates)].number


@pytest.fixture
def history():
    settings = SelfPlaySettings(save_steps=100, play_against_latest_model_ratio=0.0, window=2)
    history = PolicyHistory("Ball", settings, Next())
    for step in (0, 200):  # snapshots 0 and 1
        history.add(policy_update("Ball", step // 10, step))
    return history


@pytest.fixture
def assignments(history):
    return Assignments({"Ball": history}, np.random.default_rng(0))


def steps_of(assignments, learning_team=0):
    """The trainer steps at which the policies that are played with were made."""
    return {policy.behavior_id: policy.step for policy in assignments.matchup(PLAYERS, learning_team).policies}


def test_learners_have_their_newest_policy_and_the_others_what_was_chosen_for_them(assignments, history):
    assignments.choose([AWAY])
    match = assignments.begin(PLAYERS, 0, PLAYERS)
    assert (match.learning_team, match.players) == (0, {HOME: NEWEST, AWAY: 0})
    history.add(policy_update("Ball", 25, 250))
    assert steps_of(assignments) == {HOME: 250, AWAY: 0}
    assignment = assignments.matchup(PLAYERS, 0).assignment
    assert (assignment.generation, assignment.opponent) == (1, 0)
    assert assignment.policies == {HOME: (NEWEST, 25), AWAY: (0, 0)}


def test_what_is_chosen_waits_for_an_assignment_that_changes_its_player(assignments):
    assignments.choose([AWAY])
    assignments.begin(PLAYERS, 0, PLAYERS)
    assignments.choose([AWAY])
    assignments.begin(PLAYERS, 0, ())
    assert assignments.opponents == {AWAY: 0}
    assignments.begin(PLAYERS, 0, [AWAY])
    assert assignments.opponents == {AWAY: 1}
    assert assignments.generation == 3


def test_an_opponent_stays_what_it_was_when_its_snapshot_leaves_the_window(assignments, history):
    assignments.choose([AWAY])
    assignments.begin(PLAYERS, 0, PLAYERS)
    for step in (400, 600):
        history.add(policy_update("Ball", step // 10, step))
    assert [snapshot.number for snapshot in history.snapshots] == [2, 3]
    assignments.begin(PLAYERS, 0, ())
    assert steps_of(assignments)[AWAY] == 0


def test_for_whom_nothing_was_chosen_plays_with_what_is_newest_now(assignments, history):
    assignments.begin(PLAYERS, 0, PLAYERS)
    history.add(policy_update("Ball", 25, 250))
    assert assignments.opponents == {AWAY: NEWEST}
    assert steps_of(assignments) == {HOME: 250, AWAY: 200}


@pytest.mark.parametrize("end_of_choice", ["it learned in between", "it was gone"])
def test_a_choice_does_not_outlast_its_player_s_part(assignments, end_of_choice):
    assignments.choose([AWAY])
    if end_of_choice == "it was gone":
        assignments.forget([AWAY])
    else:
        assignments.begin(PLAYERS, 1, PLAYERS)
    assignments.begin(PLAYERS, 0, PLAYERS)
    assert assignments.opponents == {AWAY: NEWEST}


def test_it_goes_on_from_its_state(assignments, history):
    assignments.choose([AWAY])
    assignments.begin(PLAYERS, 0, PLAYERS)
    assignments.choose([AWAY])
    resumed = Assignments({"Ball": history}, np.random.default_rng(1))
    resumed.load_state_dict(assignments.state_dict())
    assert resumed.state_dict()["random"] == assignments.state_dict()["random"]
    assert steps_of(resumed) == steps_of(assignments)
    resumed.begin(PLAYERS, 0, [AWAY])
    assert (resumed.generation, resumed.opponents) == (2, {AWAY: 1})
