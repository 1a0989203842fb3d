"""The actor's side of flow control, alone: what it asks for and when it is closed."""

from __future__ import annotations

import pytest

from headrace.stages.actor.credits import CreditGate


class Ledger:
    """Keeps what the gate asks for."""

    def __init__(self):
        self.requests = []

    def __call__(self, number, used, wants, gives_back):
        self.requests.append((number, dict(used), list(wants), list(gives_back)))

    @property
    def last(self):
        return self.requests[-1]


@pytest.fixture
def ledger():
    return Ledger()


@pytest.fixture
def gate(ledger):
    return CreditGate(ledger)


def test_the_gate_is_closed_before_the_first_grant(gate):
    assert gate.closed({"Walker": 0}, {"Walker": 9}) == ["Walker"]


def test_the_gate_closes_at_the_cap(gate):
    gate.wait({"Walker": 0}, ("Walker",))
    gate.granted(1, {"Walker": 10}, {"Walker": 0})
    assert gate.closed({"Walker": 9}, {"Walker": 9}) == []
    assert gate.closed({"Walker": 10}, {"Walker": 9}) == ["Walker"]


def test_a_behaviour_at_its_cap_closes_the_gate(gate):
    gate.wait({}, ("Walker", "Swimmer"))
    gate.granted(1, {"Walker": 10, "Swimmer": 5}, {"Walker": 0, "Swimmer": 0})
    assert gate.closed({"Walker": 1, "Swimmer": 7}, {"Walker": 9, "Swimmer": 9}) == ["Swimmer"]


def test_a_waiting_actor_requests_credits_and_returns_the_rest(gate, ledger):
    gate.wait({"Walker": 0}, ("Walker",))
    gate.granted(1, {"Walker": 10, "Swimmer": 5}, {"Walker": 0, "Swimmer": 0})
    gate.wait({"Walker": 10, "Swimmer": 2}, ("Walker", "Swimmer"))
    assert ledger.last == (2, {"Walker": 10, "Swimmer": 2}, ["Swimmer", "Walker"], ["Walker", "Swimmer"])
    assert gate.closed({"Walker": 10, "Swimmer": 2}, {"Swimmer": 9}) == ["Swimmer"]


def test_more_credits_are_requested_at_half_of_the_last_grant(gate, ledger):
    gate.wait({}, ("Walker",))
    gate.granted(1, {"Walker": 10}, {"Walker": 0})
    gate.request_ahead({"Walker": 4}, ("Walker",))
    assert len(ledger.requests) == 1
    gate.request_ahead({"Walker": 5}, ("Walker",))
    assert ledger.last == (2, {"Walker": 5}, ["Walker"], [])


def test_the_gate_sends_one_request_at_a_time(gate, ledger):
    gate.wait({}, ("Walker",))
    gate.granted(1, {"Walker": 10}, {"Walker": 0})
    for used in (6, 7, 8):
        gate.request_ahead({"Walker": used}, ("Walker",))
    assert len(ledger.requests) == 2
    gate.granted(2, {"Walker": 20}, {"Walker": 1})
    gate.request_ahead({"Walker": 14}, ("Walker",))
    assert len(ledger.requests) == 2
    gate.request_ahead({"Walker": 15}, ("Walker",))
    assert len(ledger.requests) == 3


def test_a_grant_older_than_the_last_return_is_ignored(gate):
    gate.wait({}, ("Walker",))
    gate.granted(1, {"Walker": 10}, {"Walker": 0})
    gate.request_ahead({"Walker": 6}, ("Walker",))
    gate.wait({"Walker": 10}, ("Walker",))  # overtakes the answer to request 2
    gate.granted(2, {"Walker": 16}, {"Walker": 1})
    assert gate.closed({"Walker": 10}, {"Walker": 9}) == ["Walker"]
    assert gate.versions.get("Walker", 0) == 0
    gate.granted(3, {"Walker": 20}, {"Walker": 2})
    assert gate.closed({"Walker": 10}, {"Walker": 2}) == []
    assert gate.closed({"Walker": 10}, {"Walker": 1}) == ["Walker"], "the policy of the grant has not arrived yet"


def test_credits_of_behaviours_without_agents_are_returned(gate, ledger):
    gate.wait({}, ("Walker", "Swimmer"))
    gate.granted(1, {"Walker": 10, "Swimmer": 8}, {"Walker": 0, "Swimmer": 0})
    gate.request_ahead({"Walker": 1, "Swimmer": 3}, ("Walker",))
    assert ledger.last == (2, {"Walker": 1, "Swimmer": 3}, [], ["Swimmer"])
    gate.request_ahead({"Walker": 2, "Swimmer": 3}, ("Walker",))
    assert len(ledger.requests) == 2, "they are given back once"
    assert gate.closed({"Swimmer": 3}, {"Swimmer": 9}) == ["Swimmer"], "it must ask anew when it is back"


def test_a_waiting_actor_returns_grants_that_are_in_flight(gate, ledger):
    gate.wait({}, ("Hider", "Walker"))
    gate.wait({}, ("Seeker", "Walker"))  # it is the seekers' turn before the answer comes
    assert ledger.last == (2, {}, ["Seeker", "Walker"], ["Hider", "Walker"])
    gate.granted(1, {"Hider": 4, "Walker": 4}, {"Hider": 0, "Walker": 0})
    assert gate.closed({}, {"Hider": 9, "Walker": 9}) == ["Hider", "Walker"]


def test_a_new_source_has_no_credits(gate, ledger):
    gate.wait({}, ["Walker"])
    gate.granted(1, {"Walker": 8}, {"Walker": 4})
    gate.start_again({"Walker": 5})
    assert ledger.last == (2, {"Walker": 5}, [], ["Walker"])
    assert gate.closed({}, {"Walker": 9}) == ["Walker"]
    assert gate.versions.get("Walker", 0) == 0
    gate.wait({"Walker": 1}, ["Walker"])
    assert ledger.last == (3, {"Walker": 1}, ["Walker"], [])
    gate.granted(3, {"Walker": 8}, {"Walker": 1})
    assert gate.closed({"Walker": 1}, {"Walker": 9}) == []
