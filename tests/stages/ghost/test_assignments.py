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


def test_learners_play_their_newest_policy_and_opponents_the_chosen_one(assignments, history):
    assignments.choose([AWAY])
    assert assignments.begin(PLAYERS, 0, PLAYERS) == {HOME: NEWEST, AWAY: 0}
    history.add(policy_update("Ball", 25, 250))
    assert steps_of(assignments) == {HOME: 250, AWAY: 0}
    assignment = assignments.matchup(PLAYERS, 0).assignment
    assert (assignment.generation, assignment.opponent) == (1, 0)
    assert assignment.policies == {HOME: (NEWEST, 25), AWAY: (0, 0)}


def test_a_chosen_opponent_waits_for_an_assignment_that_changes_its_player(assignments):
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
    assert [snapshot.snapshot for snapshot in history.snapshots] == [2, 3]
    assignments.begin(PLAYERS, 0, ())
    assert steps_of(assignments)[AWAY] == 0


def test_opponents_without_a_choice_play_the_newest_policy(assignments, history):
    assignments.begin(PLAYERS, 0, PLAYERS)
    history.add(policy_update("Ball", 25, 250))
    assert assignments.opponents == {AWAY: NEWEST}
    assert steps_of(assignments) == {HOME: 250, AWAY: 200}
