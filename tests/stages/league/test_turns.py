"""Whose turn it is to learn."""

from __future__ import annotations

from headrace.stages.league.controller import Turns


def learners(turns: Turns, *reports: tuple[str, int] | tuple[str, int, bool]) -> list[str]:
    """Whose turn it is after each report."""
    found = []
    for learner, step, *done in reports:
        before = turns.learner
        assert turns.reported(learner, step, any(done)) == (turns.learner != before)
        found.append(turns.learner)
    return found


def test_each_learner_learns_for_its_steps_and_then_the_next_one():
    turns = Turns({"main": 100, "exploiter": 50})
    assert (turns.learner, turns.waiting) == ("main", ["exploiter"])
    assert learners(turns, ("main", 99), ("main", 100), ("exploiter", 49), ("exploiter", 50), ("main", 199)) == [
        *["main", "exploiter", "exploiter", "main", "main"]
    ]
    assert turns.waiting == ["exploiter"]


def test_steps_beyond_a_turn_shorten_the_next_one():
    turns = Turns({"main": 100, "exploiter": 100})
    assert learners(turns, ("main", 120), ("main", 160), ("exploiter", 250), ("main", 199), ("main", 200)) == [
        *["exploiter", "exploiter", "main", "main", "exploiter"]
    ]
    assert learners(turns, ("exploiter", 299), ("exploiter", 300)) == ["exploiter", "main"]


def test_a_learner_that_is_done_has_no_more_turns():
    turns = Turns({"main": 100, "one": 100, "two": 100})
    assert learners(turns, ("one", 0, True), ("main", 100), ("two", 40, True), ("main", 200), ("main", 300, True)) == [
        *["main", "two", "main", "main", "main"]
    ]


def test_turns_resume_from_their_state():
    turns = Turns({"main": 100, "exploiter": 100})
    learners(turns, ("main", 130), ("exploiter", 60))
    resumed = Turns({"main": 100, "exploiter": 100})
    resumed.load_state_dict(turns.state_dict())
    assert resumed.state_dict() == turns.state_dict()
    assert learners(resumed, ("exploiter", 99), ("exploiter", 100), ("main", 199)) == ["exploiter", "main", "main"]


def test_a_learner_that_is_gone_leaves_its_turn_to_the_first():
    turns = Turns({"main": 100, "exploiter": 100})
    learners(turns, ("main", 130))
    resumed = Turns({"main": 100, "other": 100})
    resumed.load_state_dict(turns.state_dict())
    assert learners(resumed, ("main", 199), ("main", 200)) == ["main", "other"]


def test_a_learner_that_is_lost_and_goes_back_behind_its_end_gets_turns_again():
    turns = Turns({"main": 100, "exploiter": 100})
    assert learners(turns, ("main", 100, True), ("exploiter", 200), ("main", 60), ("exploiter", 300)) == [
        *["exploiter", "exploiter", "exploiter", "main"]
    ]
    assert learners(turns, ("exploiter", 300, True), ("main", 100, True)) == ["main", "main"]
    turns = Turns({"main": 100, "exploiter": 100})
    learners(turns, ("main", 100, True), ("exploiter", 100, True))
    assert learners(turns, ("main", 60)) == ["main"]
