"""Whom a resumed run waits for."""

from __future__ import annotations

from stages.ghost.resume_wait import POLICY, REPORT, RollCall

HIDER, SEEKER = "Hider?team=0", "Seeker?team=1"


def test_a_run_that_begins_afresh_waits_for_nobody(caplog):
    nobody = RollCall()
    assert not nobody
    assert not nobody.meet(HIDER)
    assert not nobody.hear("Hider", POLICY)
    assert nobody.end() == frozenset()
    assert not caplog.messages


def test_behaviour_ids_and_both_words_of_their_trainers_are_waited_for_in_any_order():
    call = RollCall([HIDER], ["Hider"])
    assert call.hear("Hider", REPORT)
    assert not call.hear("Hider", REPORT), "it was heard before"
    assert call.meet(HIDER)
    assert not call.meet(HIDER), "another actor's"
    assert call
    assert "Hider" in call
    assert call.hear("Hider", POLICY)
    assert "Hider" not in call
    assert not call


def test_a_behaviour_that_was_never_trained_has_no_words_to_wait_for():
    call = RollCall([HIDER])
    assert call.meet(HIDER)
    assert not call


def test_when_all_are_announced_those_who_are_gone_are_told_and_not_waited_for(caplog):
    call = RollCall([HIDER, SEEKER, "Seeker?team=2"], ["Hider", "Seeker"])
    call.meet(HIDER)
    assert call.end() == {SEEKER, "Seeker?team=2"}
    assert "Seeker" not in call
    assert "Hider" in call, "its trainer is on its way"
    (warning,) = caplog.messages
    assert warning.startswith(f"Self-play goes on without {SEEKER}, Seeker?team=2:")
    assert call.end() == frozenset()
    assert len(caplog.messages) == 1


def test_a_behaviour_of_which_one_team_is_gone_has_still_to_speak():
    call = RollCall([HIDER, "Hider?team=1"], ["Hider"])
    call.meet(HIDER)
    assert call.end() == {"Hider?team=1"}
    assert "Hider" in call
