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


def test_nothing_may_be_done_before_the_first_grant(gate):
    assert gate.closed({"Walker": 0}, ("Walker",)) == ["Walker"]


def test_a_behaviour_without_agents_here_closes_nothing(gate):
    assert gate.closed({"Walker": 0}, ()) == []


def test_it_closes_when_the_cap_is_used_up(gate):
    gate.wait({"Walker": 0}, ("Walker",))
    gate.granted(1, {"Walker": 10}, {"Walker": 0})
    assert gate.closed({"Walker": 9}, ("Walker",)) == []
    assert gate.closed({"Walker": 10}, ("Walker",)) == ["Walker"]


def test_one_behaviour_that_has_used_up_its_cap_is_enough(gate):
    gate.wait({}, ("Walker", "Swimmer"))
    gate.granted(1, {"Walker": 10, "Swimmer": 5}, {"Walker": 0, "Swimmer": 0})
    assert gate.closed({"Walker": 1, "Swimmer": 7}, ("Walker", "Swimmer")) == ["Swimmer"]


def test_who_waits_wants_everything_and_gives_back_all_that_it_has(gate, ledger):
    gate.wait({"Walker": 0}, ("Walker",))
    gate.granted(1, {"Walker": 10, "Swimmer": 5}, {"Walker": 0, "Swimmer": 0})
    gate.wait({"Walker": 10, "Swimmer": 2}, ("Walker", "Swimmer"))
    assert ledger.last == (2, {"Walker": 10, "Swimmer": 2}, ["Swimmer", "Walker"], ["Walker", "Swimmer"])
    assert gate.closed({"Walker": 10, "Swimmer": 2}, ("Swimmer",)) == ["Swimmer"]


def test_it_asks_for_more_when_half_of_the_last_grant_is_used(gate, ledger):
    gate.wait({}, ("Walker",))
    gate.granted(1, {"Walker": 10}, {"Walker": 0})
    gate.look_ahead({"Walker": 4}, ("Walker",))
    assert len(ledger.requests) == 1
    gate.look_ahead({"Walker": 5}, ("Walker",))
    assert ledger.last == (2, {"Walker": 5}, ["Walker"], [])


def test_it_asks_once_until_it_is_answered(gate, ledger):
    gate.wait({}, ("Walker",))
    gate.granted(1, {"Walker": 10}, {"Walker": 0})
    for used in (6, 7, 8):
        gate.look_ahead({"Walker": used}, ("Walker",))
    assert len(ledger.requests) == 2
    gate.granted(2, {"Walker": 20}, {"Walker": 1})
    gate.look_ahead({"Walker": 14}, ("Walker",))
    assert len(ledger.requests) == 2
    gate.look_ahead({"Walker": 15}, ("Walker",))
    assert len(ledger.requests) == 3


def test_a_grant_from_before_a_give_back_is_ignored(gate):
    gate.wait({}, ("Walker",))
    gate.granted(1, {"Walker": 10}, {"Walker": 0})
    gate.look_ahead({"Walker": 6}, ("Walker",))
    gate.wait({"Walker": 10}, ("Walker",))  # overtakes the answer to request 2
    gate.granted(2, {"Walker": 16}, {"Walker": 1})
    assert gate.closed({"Walker": 10}, ("Walker",)) == ["Walker"]
    assert gate.needed_version("Walker") == 0
    gate.granted(3, {"Walker": 20}, {"Walker": 2})
    assert gate.closed({"Walker": 10}, ("Walker",)) == []
    assert gate.needed_version("Walker") == 2


def test_an_old_answer_does_not_make_it_ask_again_while_it_waits(gate, ledger):
    gate.wait({}, ("Walker",))
    gate.granted(1, {"Walker": 10}, {"Walker": 0})
    gate.look_ahead({"Walker": 6}, ("Walker",))
    gate.wait({"Walker": 10}, ("Walker",))
    gate.granted(2, {"Walker": 16}, {"Walker": 1})
    gate.look_ahead({"Walker": 10}, ("Walker",))
    assert [request[0] for request in ledger.requests] == [1, 2, 3]


def test_news_are_told_at_once_and_with_a_request_if_one_is_due(gate, ledger):
    gate.wait({}, ("Walker",))
    gate.granted(1, {"Walker": 10}, {"Walker": 0})
    gate.look_ahead({"Walker": 2}, ("Walker",), news=True)
    assert ledger.last == (2, {"Walker": 2}, [], [])
    gate.look_ahead({"Walker": 6}, ("Walker",), news=True)
    assert ledger.last == (3, {"Walker": 6}, ["Walker"], [])
    gate.granted(3, {"Walker": 20}, {"Walker": 1})
    gate.look_ahead({"Walker": 7}, ("Walker",))
    assert len(ledger.requests) == 3


def test_credits_of_behaviours_that_have_gone_are_given_back(gate, ledger):
    gate.wait({}, ("Walker", "Swimmer"))
    gate.granted(1, {"Walker": 10, "Swimmer": 8}, {"Walker": 0, "Swimmer": 0})
    gate.look_ahead({"Walker": 1, "Swimmer": 3}, ("Walker",))
    assert ledger.last == (2, {"Walker": 1, "Swimmer": 3}, [], ["Swimmer"])
    gate.look_ahead({"Walker": 2, "Swimmer": 3}, ("Walker",))
    assert len(ledger.requests) == 2, "they are given back once"
    assert gate.closed({"Swimmer": 3}, ("Swimmer",)) == ["Swimmer"], "it must ask anew when it is back"


def test_who_waits_gives_back_what_may_be_on_its_way_too(gate, ledger):
    gate.wait({}, ("Hider", "Walker"))
    gate.wait({}, ("Seeker", "Walker"))  # it is the seekers' turn before the answer comes
    assert ledger.last == (2, {}, ["Seeker", "Walker"], ["Hider", "Walker"])
    gate.granted(1, {"Hider": 4, "Walker": 4}, {"Hider": 0, "Walker": 0})
    assert gate.closed({}, ("Hider", "Walker")) == ["Hider", "Walker"]


def test_it_asks_again_when_it_is_answered_though_it_has_given_back_others_meanwhile(gate, ledger):
    gate.wait({}, ("Swimmer", "Walker"))
    gate.granted(1, {"Swimmer": 8, "Walker": 10}, {"Swimmer": 0, "Walker": 0})
    gate.look_ahead({"Swimmer": 0, "Walker": 6}, ("Swimmer", "Walker"))
    gate.look_ahead({"Swimmer": 0, "Walker": 6}, ("Walker",))
    assert [request[2:] for request in ledger.requests[1:]] == [(["Walker"], []), ([], ["Swimmer"])]
    gate.granted(2, {"Walker": 20}, {"Walker": 1})
    gate.look_ahead({"Swimmer": 0, "Walker": 15}, ("Walker",))
    assert ledger.last == (4, {"Swimmer": 0, "Walker": 15}, ["Walker"], [])


def test_as_another_source_it_has_no_credits_and_asks_anew(gate, ledger):
    gate.wait({}, ["Walker"])
    gate.granted(1, {"Walker": 8}, {"Walker": 4})
    gate.renew({"Walker": 5})
    assert ledger.last == (2, {"Walker": 5}, [], ["Walker"])
    assert gate.closed({}, ["Walker"]) == ["Walker"]
    assert gate.needed_version("Walker") == 0
    gate.wait({"Walker": 1}, ["Walker"])
    assert ledger.last == (3, {"Walker": 1}, ["Walker"], [])
    gate.granted(3, {"Walker": 8}, {"Walker": 1})
    assert gate.closed({"Walker": 1}, ["Walker"]) == []
