"""The live page's thread wakes up seldom, so that a flood of connections does not take the GIL from training."""

import selectors
import socket
import time

import pytest

from headrace.pipeline.monitor.monitor import PACE_S, PacedSelector


@pytest.fixture
def paced():
    """A selector, and two pairs of sockets whose first ones it watches."""
    pairs = [socket.socketpair(), socket.socketpair()]
    with PacedSelector() as selector:
        for number, (watched, _) in enumerate(pairs):
            selector.register(watched, selectors.EVENT_READ, number)
        yield selector, pairs
    for pair in pairs:
        for end in pair:
            end.close()


def numbers(events):
    return {key.data for key, _ in events}


def test_events_that_arrive_soon_after_each_other_are_returned_together(paced):
    selector, pairs = paced
    pairs[0][1].send(b"a")
    assert numbers(selector.select()) == {0}
    woke_s = time.monotonic()
    pairs[1][1].send(b"b")
    assert numbers(selector.select()) == {0, 1}
    assert time.monotonic() - woke_s >= 0.5 * PACE_S


def test_a_loop_with_work_left_does_not_wait(paced):
    selector, pairs = paced
    assert numbers(selector.select(0.0)) == set()
    pairs[0][1].send(b"a")
    assert numbers(selector.select(0.0)) == numbers(selector.select(0.0)) == {0}
    assert numbers(selector.select(0.001)) == {0}
