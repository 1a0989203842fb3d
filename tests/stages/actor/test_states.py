"""The actor's table of transitions, read as a table: which state follows which, on what, and after doing what."""

from __future__ import annotations

import pytest

from headrace.stages.actor.states import STANDS_STILL, TRANSITIONS, Act, Cue, State

CHECKPOINT, RENEWAL, STOP = Cue.CHECKPOINT_DUE, Cue.RENEWAL_DUE, Cue.STOP_DUE
NO_POLICY, RESET, NO_CREDITS = Cue.POLICY_MISSING, Cue.RESET_DUE, Cue.CREDITS_MISSING

TICK = [
    # Commands take precedence over all else, a checkpoint over a stop.
    (State.DECIDING, {CHECKPOINT}, Act.BARRIER, State.DECIDING),
    (State.DECIDING, {CHECKPOINT, RENEWAL}, Act.RENEWAL, State.CHECKPOINT),
    (State.DECIDING, {CHECKPOINT, STOP, NO_POLICY}, Act.BARRIER, State.DECIDING),
    (State.DECIDING, {STOP, NO_POLICY}, Act.FLUSH, State.STOPPED),
    (State.DECIDING, {NO_POLICY, RESET, NO_CREDITS}, Act.SLEEP, State.DECIDING),
    (State.DECIDING, {RESET, NO_CREDITS}, Act.DECIDE, State.DECIDED),
    (State.DECIDING, set(), Act.DECIDE, State.DECIDED),
    # A tick is not cut in two: what is asked for in its midst waits for its end.
    (State.DECIDED, {CHECKPOINT, RENEWAL, STOP, NO_POLICY}, Act.STEP, State.DECIDING),
    (State.DECIDED, {RESET, NO_CREDITS}, Act.RESET, State.RESET),
    (State.DECIDED, {NO_CREDITS}, Act.STAND_STILL, State.WAITING),
    (State.DECIDED, set(), Act.STEP, State.DECIDING),
    (State.RESET, {CHECKPOINT, RENEWAL, STOP, RESET, NO_CREDITS}, Act.DECIDE, State.DECIDED),
]
STANDING = [
    (State.WAITING, {CHECKPOINT, NO_CREDITS}, Act.BARRIER, State.WAITING),
    (State.WAITING, {CHECKPOINT, RENEWAL, NO_CREDITS}, Act.RENEWAL, State.CHECKPOINT),
    (State.WAITING, {STOP, NO_CREDITS}, Act.FLUSH, State.STOPPED),
    (State.WAITING, {NO_POLICY}, Act.SLEEP, State.WAITING),
    (State.WAITING, {RESET, NO_CREDITS}, Act.RESET, State.RESET_WAITING),
    (State.WAITING, {NO_CREDITS}, Act.ASK, State.WAITING),
    (State.WAITING, set(), Act.RESUME, State.DECIDING),
    (State.RESET_WAITING, {CHECKPOINT, RENEWAL, STOP, RESET, NO_CREDITS}, Act.DECIDE, State.WAITING),
    (State.CHECKPOINT, {CHECKPOINT, RENEWAL}, Act.RENEWAL, State.CHECKPOINT),
    (State.CHECKPOINT, {STOP, NO_CREDITS}, Act.FLUSH, State.STOPPED),
    (State.CHECKPOINT, {NO_CREDITS, RESET, NO_POLICY}, Act.ASK, State.CHECKPOINT),
    (State.CHECKPOINT, {RESET, NO_POLICY}, Act.SLEEP, State.CHECKPOINT),
    (State.CHECKPOINT, {RESET}, Act.RENEW, State.RESET_WAITING),
]
END = [
    (State.ENDED, {CHECKPOINT, RENEWAL, STOP}, Act.BARRIER, State.ENDED),
    (State.ENDED, {STOP}, Act.FLUSH, State.STOPPED),
    (State.ENDED, {RENEWAL, NO_POLICY, RESET, NO_CREDITS}, Act.CLOSE, State.ENDED),
]


@pytest.mark.parametrize(("state", "cues", "act", "then"), TICK + STANDING + END)
def test_of_all_that_is_due_the_first_in_the_table_is_done(state, cues, act, then):
    made = next(each for each in TRANSITIONS[state] if each.cue in cues | {Cue.ALWAYS})
    assert (made.act, made.then) == (act, then)


def test_the_rows_above_tell_of_every_transition():
    told = {(state, act, then) for state, _, act, then in TICK + STANDING + END}
    assert told == {(state, row.act, row.then) for state, rows in TRANSITIONS.items() for row in rows}


def test_there_is_always_something_to_do_until_it_is_stopped():
    assert TRANSITIONS.keys() == set(State)
    for state, rows in TRANSITIONS.items():
        cues = [row.cue for row in rows]
        assert cues.index(Cue.ALWAYS) == len(cues) - 1 if rows else state is State.STOPPED
        assert len(set(cues)) == len(cues), "a cue that stands twice is followed once"


def test_it_comes_to_its_stop_from_everywhere():
    reached = {State.STOPPED}
    while more := {s for s, rows in TRANSITIONS.items() if {row.then for row in rows} & reached} - reached:
        reached |= more
    assert reached == set(State)


def test_it_waits_only_where_commands_are_followed():
    """Else a command that comes while it waits would have to wait as well, perhaps for ever."""
    waits = {Act.SLEEP, Act.STAND_STILL, Act.ASK, Act.CLOSE}
    for row in (row for rows in TRANSITIONS.values() for row in rows if row.act in waits):
        cues = {each.cue for each in TRANSITIONS[row.then]}
        assert STOP in cues
        assert cues & {CHECKPOINT, RENEWAL}


def test_a_deterministic_run_steps_only_after_it_was_granted_credits():
    """Where it stands still it comes to whenever the host speaks, so nothing but credits may set it in motion."""
    leaves = [
        row for state in STANDS_STILL for row in TRANSITIONS[state] if row.then not in STANDS_STILL | {State.STOPPED}
    ]
    assert [(row.cue, row.act) for row in leaves] == [(Cue.ALWAYS, Act.RESUME)]
    cues = [row.cue for row in TRANSITIONS[State.WAITING]]
    assert cues.index(NO_CREDITS) < cues.index(Cue.ALWAYS)
