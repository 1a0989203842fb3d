"""The actor's table of transitions, read as a table: which state follows which, on what, and after doing what."""

from __future__ import annotations

from headrace.stages.actor.actor import STANDS_STILL, TRANSITIONS, Action, Guard, State

CHECKPOINT, RESETTING, STOP = Guard.CHECKPOINT_DUE, Guard.RESETTING_CHECKPOINT_DUE, Guard.STOP_DUE
NO_POLICY, RESET, NO_CREDITS = Guard.POLICY_MISSING, Guard.RESET_DUE, Guard.CREDITS_MISSING


def test_every_state_leads_to_the_stop():
    reached = {State.STOPPED}
    while more := {s for s, rows in TRANSITIONS.items() if {row.then for row in rows} & reached} - reached:
        reached |= more
    assert reached == set(State)


def test_states_that_wait_follow_commands():
    """Otherwise, a command that arrives during the wait would also have to wait, perhaps forever."""
    waits = {Action.SLEEP, Action.STAND_STILL, Action.ASK, Action.CLOSE}
    for row in (row for rows in TRANSITIONS.values() for row in rows if row.action in waits):
        guards = {each.guard for each in TRANSITIONS[row.then]}
        assert STOP in guards
        assert guards & {CHECKPOINT, RESETTING}


def test_a_deterministic_run_steps_only_after_a_grant():
    """Where it stands still it comes to whenever the host speaks, so nothing but credits may set it in motion."""
    leaves = [
        row for state in STANDS_STILL for row in TRANSITIONS[state] if row.then not in STANDS_STILL | {State.STOPPED}
    ]
    assert [(row.guard, row.action) for row in leaves] == [(Guard.ALWAYS, Action.RESUME)]
    guards = [row.guard for row in TRANSITIONS[State.WAITING]]
    assert guards.index(NO_CREDITS) < guards.index(Guard.ALWAYS)
