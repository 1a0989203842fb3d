"""Specifications of sessions: what is remembered, for how long, and for how many; a test's own clock."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.pipeline.serving.action_request import ActionRequest, ErrorKind, RequestRefused
from headrace.pipeline.serving.service import ServingLimits, Sessions
from headrace.stages.policy.protocol import Recall


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def nothing(agents):
    return Recall(np.zeros((agents, 3), np.float32), np.ones((agents, 2), np.float32))


def opened(**limits):
    clock = Clock()
    return Sessions(nothing, clock, ServingLimits(**limits)), clock


def asked(session, agents=1, starts=None):
    flags = None if starts is None else np.asarray(starts)
    return ActionRequest((np.zeros((agents, 1), np.float32),), session=session, episode_start=flags)


def decide(sessions, request, value=1.0):
    """The memories before a decision; those after it are of this value."""
    with sessions.turn(request) as turn:
        n = request.agents
        turn.after, turn.decided = Recall(np.full((n, 3), value), np.full((n, 2), value)), True
        return turn.before


def refused(call, *arguments):
    with pytest.raises(RequestRefused) as raised:
        call(*arguments)
    return raised.value.why


def test_a_session_remembers_from_request_to_request():
    sessions, _ = opened()
    one, two = sessions.open(1), sessions.open(1)
    assert decide(sessions, asked(one), 5.0).memories.tolist() == [[0, 0, 0]]
    assert decide(sessions, asked(one)).memories.tolist() == [[5, 5, 5]]
    assert decide(sessions, asked(two)).previous_actions.tolist() == [[1, 1]]


def test_only_agents_whose_episode_begins_lose_their_memory():
    sessions, _ = opened()
    key = sessions.open(2)
    decide(sessions, asked(key, 2), 5.0)
    before = decide(sessions, asked(key, 2, [True, False]))
    assert before.memories.tolist() == [[0, 0, 0], [5, 5, 5]]
    assert before.previous_actions.tolist() == [[1, 1], [5, 5]]


def test_without_a_decision_a_session_is_unchanged():
    sessions, _ = opened()
    key = sessions.open(1)
    decide(sessions, asked(key), 5.0)
    with pytest.raises(ZeroDivisionError), sessions.turn(asked(key, starts=[True])):
        raise ZeroDivisionError
    assert decide(sessions, asked(key)).memories.tolist() == [[5, 5, 5]]


def test_two_requests_of_one_session_at_a_time_are_refused():
    sessions, _ = opened()
    key = sessions.open(1)
    with sessions.turn(asked(key)):
        assert refused(decide, sessions, asked(key)) is ErrorKind.BUSY
    decide(sessions, asked(key))


def test_unknown_sessions_and_those_of_other_agents_are_refused():
    sessions, _ = opened()
    key = sessions.open(2)
    assert refused(decide, sessions, asked("none")) is ErrorKind.UNKNOWN
    assert refused(sessions.close, "none") is ErrorKind.UNKNOWN
    assert refused(decide, sessions, asked(key, 3)) is ErrorKind.UNFIT
    sessions.close(key)
    assert refused(decide, sessions, asked(key, 2)) is ErrorKind.UNKNOWN
    assert len(sessions) == 0


def test_a_session_that_is_idle_is_ended():
    sessions, clock = opened(idle_s=10)
    old, used = sessions.open(1), sessions.open(1)
    clock.now = 9.0
    decide(sessions, asked(used))
    clock.now = 10.0
    assert refused(decide, sessions, asked(old)) is ErrorKind.UNKNOWN
    decide(sessions, asked(used))
    assert len(sessions) == 1


def test_a_session_in_use_is_not_idle():
    sessions, clock = opened(idle_s=10)
    key = sessions.open(1)
    with sessions.turn(asked(key)):
        clock.now = 100.0
        sessions.expire()
    decide(sessions, asked(key))


def test_a_session_can_be_closed_during_a_request():
    sessions, _ = opened()
    key = sessions.open(1)
    with sessions.turn(asked(key)):
        sessions.close(key)
    assert refused(decide, sessions, asked(key)) is ErrorKind.UNKNOWN


@pytest.mark.parametrize(("limits", "agents"), [({"sessions": 2}, 1), ({"session_agents": 6}, 3)])
def test_sessions_and_their_agents_are_bounded_and_idle_ones_make_room(limits, agents):
    sessions, clock = opened(idle_s=10, **limits)
    sessions.open(agents)
    clock.now = 5.0
    sessions.open(agents)
    assert refused(sessions.open, agents) is ErrorKind.FULL
    clock.now = 10.0
    sessions.open(agents)


@pytest.mark.parametrize("agents", [0, -1, 10_000])
def test_a_session_for_too_few_or_too_many_agents_is_refused(agents):
    assert refused(opened()[0].open, agents) is ErrorKind.UNFIT


def test_the_id_of_a_sequence_has_a_bound():
    """Ten thousand of them with a megabyte each would fill the memory."""
    sessions, _ = opened()
    sessions.open(1, "x" * 256)
    assert refused(sessions.open, 1, "x" * 257) is ErrorKind.UNFIT
    assert len(sessions) == 1


def test_session_ids_are_unguessable():
    sessions, _ = opened()
    assert len({sessions.open(1) for _ in range(100)}) == 100
    assert len(sessions.open(1)) >= 20
