"""The wait at resume for all participants of the saved run."""

from __future__ import annotations

from headrace.stages.ghost.controller import POLICY, REPORT, ResumeWait

HIDER, SEEKER = "Hider?team=0", "Seeker?team=1"


def test_a_run_that_begins_afresh_waits_for_nobody(caplog):
    nobody = ResumeWait()
    assert not nobody
    assert not nobody.announce(HIDER)
    assert not nobody.receive("Hider", POLICY)
    assert nobody.all_announced() == frozenset()
    assert not caplog.messages


def test_behaviour_ids_and_both_words_of_their_trainers_are_waited_for_in_any_order():
    call = ResumeWait([HIDER], ["Hider"])
    assert call.receive("Hider", REPORT)
    assert not call.receive("Hider", REPORT), "it was heard before"
    assert call.announce(HIDER)
    assert not call.announce(HIDER), "another actor's"
    assert call
    assert "Hider" in call
    assert call.receive("Hider", POLICY)
    assert "Hider" not in call
    assert not call


def test_a_behaviour_that_was_never_trained_has_no_words_to_wait_for():
    call = ResumeWait([HIDER])
    assert call.announce(HIDER)
    assert not call


def test_when_all_are_announced_those_who_are_gone_are_named_and_not_waited_for(caplog):
    call = ResumeWait([HIDER, SEEKER, "Seeker?team=2"], ["Hider", "Seeker"])
    call.announce(HIDER)
    assert call.all_announced() == {SEEKER, "Seeker?team=2"}
    assert "Seeker" not in call
    assert "Hider" in call, "its trainer is on its way"
    (warning,) = caplog.messages
    assert warning.startswith(f"Self-play continues without {SEEKER}, Seeker?team=2, which")
    assert call.all_announced() == frozenset()
    assert len(caplog.messages) == 1


def test_a_behaviour_of_which_one_team_is_gone_has_still_to_speak():
    call = ResumeWait([HIDER, "Hider?team=1"], ["Hider"])
    call.announce(HIDER)
    assert call.all_announced() == {"Hider?team=1"}
    assert "Hider" in call
