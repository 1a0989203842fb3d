"""The actor's table of transitions, read as a table: which state follows which, on what, and after doing what."""

from __future__ import annotations

import pytest

from headrace.stages.actor.actor import STANDS_STILL, TRANSITIONS, Action, Guard, State

CHECKPOINT, RENEWAL, STOP = Guard.CHECKPOINT_DUE, Guard.RENEWAL_DUE, Guard.STOP_DUE
NO_POLICY, RESET, NO_CREDITS = Guard.POLICY_MISSING, Guard.RESET_DUE, Guard.CREDITS_MISSING

TICK = [
    # Commands take precedence over all else, a checkpoint over a stop.
    (State.DECIDING, {CHECKPOINT}, Action.BARRIER, State.DECIDING),
    (State.DECIDING, {CHECKPOINT, RENEWAL}, Action.RENEWAL, State.CHECKPOINT),
    (State.DECIDING, {CHECKPOINT, STOP, NO_POLICY}, Action.BARRIER, State.DECIDING),
    (State.DECIDING, {STOP, NO_POLICY}, Action.FLUSH, State.STOPPED),
    (State.DECIDING, {NO_POLICY, RESET, NO_CREDITS}, Action.SLEEP, State.DECIDING),
    (State.DECIDING, {RESET, NO_CREDITS}, Action.DECIDE, State.DECIDED),
    (State.DECIDING, set(), Action.DECIDE, State.DECIDED),
    # A tick is not cut in two: what is asked for in its midst waits for its end.
    (State.DECIDED, {CHECKPOINT, RENEWAL, STOP, NO_POLICY}, Action.STEP, State.DECIDING),
    (State.DECIDED, {RESET, NO_CREDITS}, Action.RESET, State.RESET),
    (State.DECIDED, {NO_CREDITS}, Action.STAND_STILL, State.WAITING),
    (State.DECIDED, set(), Action.STEP, State.DECIDING),
    (State.RESET, {CHECKPOINT, RENEWAL, STOP, RESET, NO_CREDITS}, Action.DECIDE, State.DECIDED),
]
STANDING = [
    (State.WAITING, {CHECKPOINT, NO_CREDITS}, Action.BARRIER, State.WAITING),
    (State.WAITING, {CHECKPOINT, RENEWAL, NO_CREDITS}, Action.RENEWAL, State.CHECKPOINT),
    (State.WAITING, {STOP, NO_CREDITS}, Action.FLUSH, State.STOPPED),
    (State.WAITING, {NO_POLICY}, Action.SLEEP, State.WAITING),
    (State.WAITING, {RESET, NO_CREDITS}, Action.RESET, State.RESET_WAITING),
    (State.WAITING, {NO_CREDITS}, Action.ASK, State.WAITING),
    (State.WAITING, set(), Action.RESUME, State.DECIDING),
    (State.RESET_WAITING, {CHECKPOINT, RENEWAL, STOP, RESET, NO_CREDITS}, Action.DECIDE, State.WAITING),
    (State.CHECKPOINT, {CHECKPOINT, RENEWAL}, Action.RENEWAL, State.CHECKPOINT),
    (State.CHECKPOINT, {STOP, NO_CREDITS}, Action.FLUSH, State.STOPPED),
    (State.CHECKPOINT, {NO_CREDITS, RESET, NO_POLICY}, Action.ASK, State.CHECKPOINT),
    (State.CHECKPOINT, {RESET, NO_POLICY}, Action.SLEEP, State.CHECKPOINT),
    (State.CHECKPOINT, {RESET}, Action.RENEW, State.RESET_WAITING),
]
END = [
    (State.ENDED, {CHECKPOINT, RENEWAL, STOP}, Action.BARRIER, State.ENDED),
    (State.ENDED, {STOP}, Action.FLUSH, State.STOPPED),
    (State.ENDED, {RENEWAL, NO_POLICY, RESET, NO_CREDITS}, Action.CLOSE, State.ENDED),
]


@pytest.mark.parametrize(("state", "guards", "action", "then"), TICK + STANDING + END)
def test_of_all_that_is_due_the_first_in_the_table_is_done(state, guards, action, then):
    transition = next(each for each in TRANSITIONS[state] if each.guard in guards | {Guard.ALWAYS})
    assert (transition.action, transition.then) == (action, then)


def test_the_rows_above_tell_of_every_transition():
    rows = {(state, action, then) for state, _, action, then in TICK + STANDING + END}
    assert rows == {(state, row.action, row.then) for state, them in TRANSITIONS.items() for row in them}


def test_there_is_always_something_to_do_until_it_is_stopped():
    assert TRANSITIONS.keys() == set(State)
    for state, rows in TRANSITIONS.items():
        guards = [row.guard for row in rows]
        assert guards.index(Guard.ALWAYS) == len(guards) - 1 if rows else state is State.STOPPED
        assert len(set(guards)) == len(guards), "a cue that stands twice is followed once"


def test_it_comes_to_its_stop_from_everywhere():
    reached = {State.STOPPED}
    while more := {s for s, rows in TRANSITIONS.items() if {row.then for row in rows} & reached} - reached:
        reached |= more
    assert reached == set(State)


def test_it_waits_only_where_commands_are_followed():
    """Else a command that comes while it waits would have to wait as well, perhaps for ever."""
    waits = {Action.SLEEP, Action.STAND_STILL, Action.ASK, Action.CLOSE}
    for row in (row for rows in TRANSITIONS.values() for row in rows if row.action in waits):
        guards = {each.guard for each in TRANSITIONS[row.then]}
        assert STOP in guards
        assert guards & {CHECKPOINT, RENEWAL}


def test_a_deterministic_run_steps_only_after_it_was_granted_credits():
    """Where it stands still it comes to whenever the host speaks, so nothing but credits may set it in motion."""
    leaves = [
        row for state in STANDS_STILL for row in TRANSITIONS[state] if row.then not in STANDS_STILL | {State.STOPPED}
    ]
    assert [(row.guard, row.action) for row in leaves] == [(Guard.ALWAYS, Action.RESUME)]
    guards = [row.guard for row in TRANSITIONS[State.WAITING]]
    assert guards.index(NO_CREDITS) < guards.index(Guard.ALWAYS)
