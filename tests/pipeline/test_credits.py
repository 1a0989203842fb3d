"""The ledger of credits, case by case; `test_flow_property` runs it with everything else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline.control import CreditRequest, Grant
from headrace.pipeline.flow import CreditLedger
from headrace.queues.messages import FREE


def ledger(rows=8, lag=1, sources=1, **options):
    made = CreditLedger(**options)
    made.open_window("Walker", rows, lag)
    for source in range(sources):
        made.add_source(source)
    return made


def ask(source=0, number=1, used=0, gives_back=(), wants=("Walker",), **more):
    return CreditRequest(source, number, {"Walker": used} | more, wants, gives_back)


def waits(source=0, number=1, used=0):
    return ask(source, number, used, gives_back=("Walker",))


# Granting. -----------------------------------------------------------------------------------------------------------


def test_a_grant_is_one_actor_s_share_of_an_update():
    assert ledger(rows=8).request(ask(number=3)) == [Grant(0, 3, {"Walker": 8}, {"Walker": 0})]
    assert ledger(rows=8, sources=3).request(ask()) == [Grant(0, 1, {"Walker": 3}, {"Walker": 0})]


def test_the_window_is_lag_plus_one_updates():
    books = ledger(rows=8, lag=1)
    assert books.request(ask(number=1))[0].caps == {"Walker": 8}
    assert books.request(ask(number=2, used=4))[0].caps == {"Walker": 16}
    assert books.request(ask(number=3, used=12)) == []
    assert books.outstanding("Walker") == 16


def test_a_request_that_can_t_be_met_waits_until_credits_come_back():
    books = ledger(rows=8, lag=0)
    books.request(ask(number=1))
    assert books.request(waits(number=2, used=8)) == []
    assert books.returned("trainer", "Walker", 0, 8) == [Grant(0, 2, {"Walker": 16}, {"Walker": 0})]


def test_actors_are_served_in_the_order_of_their_requests():
    books = ledger(rows=4, lag=0, sources=2)
    books.request(ask(0, 1))
    books.request(ask(1, 1))
    assert books.request(waits(1, 2, used=2)) == []
    assert books.request(waits(0, 2, used=2)) == []
    assert [grant.source for grant in books.returned("trainer", "Walker", 0, 1)] == [1]
    assert [grant.source for grant in books.returned("trainer", "Walker", 0, 2)] == [0]


def test_an_actor_that_waits_gives_back_the_steps_that_it_has_not_used():
    books = ledger(rows=8, lag=0, sources=2)
    books.request(ask(0, 1))
    books.request(ask(1, 1))
    books.request(ask(1, 2, used=4))
    assert books.outstanding("Walker") == 8
    grants = books.request(waits(0, 2, used=1))
    assert [(grant.source, grant.caps["Walker"]) for grant in grants] == [(1, 7)], "the other one needed it"


def test_returned_credits_are_not_granted_for_an_earlier_request():
    """The gate would not accept the credit, so no actor could use it."""
    books = ledger(rows=8, lag=0)
    books.open_window("Swimmer", 4, 0)
    books.request(ask(number=1, wants=("Walker", "Swimmer")))
    assert books.request(ask(number=2, used=8, Swimmer=3, wants=("Walker", "Swimmer"))) == []
    assert books.request(ask(number=3, used=8, Swimmer=3, gives_back=("Swimmer",), wants=())) == []
    assert books.returned("trainer", "Walker", 0, 8) == [Grant(0, 2, {"Walker": 16}, {"Walker": 0})]
    assert books.outstanding("Swimmer") == 3
    books.request(ask(number=4, used=12))
    assert books.request(ask(number=5, used=12, gives_back=("Walker",), wants=())) == [Grant(0, 4, {}, {})]


def test_steps_beyond_the_cap_are_charged():
    books = ledger(rows=8, lag=0)
    books.request(ask(number=1))
    books.request(waits(number=2, used=11))
    assert books.outstanding("Walker") == 11
    assert books.returned("trainer", "Walker", 0, 3) == [], "the window is still full"
    assert books.returned("trainer", "Walker", 0, 11)[0].caps == {"Walker": 19}


# The lag. -------------------------------------------------------------------------------------------------------------


def overtaken() -> CreditLedger:
    """Two actors at lag 1: the first one's 8 steps filled an update; the second has 4 credits for version 0 or newer."""
    books = ledger(rows=8, lag=1, sources=2)
    for source, number in [(1, 1), (0, 1), (0, 2)]:
        books.request(ask(source, number))
    assert books.learned("Walker", 1, 0, {0: 8}, {0: 8}) == []
    assert books.request(waits(0, 3, used=8))[0].caps == {"Walker": 12}, "with the other one's it makes an update"
    assert books.request(ask(0, 4, used=10)) == [], "or version 2 might learn from what version 0 has made"
    assert books.outstanding("Walker") == 8
    return books


def test_a_grant_waits_until_steps_have_arrived_that_others_would_leave_behind():
    assert overtaken().learned("Walker", 1, 4, {0: 8}, {0: 8, 1: 4})[0].caps == {"Walker": 16}


def test_a_grant_waits_no_longer_for_an_actor_that_acts_by_a_newer_version():
    books = overtaken()
    acts = CreditRequest(1, 2, {"Walker": 1}, (), (), {"Walker": (1, 1)})
    assert books.request(acts)[0].caps == {"Walker": 15}, "three of its steps come after the one that is late"
    books.request(ask(0, 5, used=14))
    assert books.learned("Walker", 1, 1, {0: 8}, {0: 8, 1: 1})[0].caps == {"Walker": 19}


def test_an_actor_does_not_wait_for_its_own_steps():
    assert overtaken().request(ask(1, 2, used=3))[0].caps == {"Walker": 8}


def test_credits_of_a_dead_actor_do_not_block_the_others():
    assert overtaken().remove_source(1)[0].caps == {"Walker": 20}


# Several behaviours. --------------------------------------------------------------------------------------------------


def test_an_actor_gets_all_the_behaviours_that_it_wants_at_once_or_waits():
    books = ledger(rows=8)
    both = CreditRequest(0, 1, {"Walker": 0, "Swimmer": 0}, ("Swimmer", "Walker"))
    assert books.request(both) == [], "Swimmer's trainer is not up yet"
    assert books.outstanding("Walker") == 0
    books.open_window("Swimmer", 4, 0)
    assert books.resume() == [Grant(0, 1, {"Swimmer": 4, "Walker": 8}, {"Swimmer": 0, "Walker": 0})]


def test_of_two_behaviours_the_one_that_is_used_up_holds_back_the_other():
    books = ledger(rows=8, lag=0)
    books.open_window("Swimmer", 4, 0)
    books.request(ask(number=1, Swimmer=0, wants=("Swimmer",)))
    both = CreditRequest(0, 2, {"Walker": 0, "Swimmer": 4}, ("Swimmer", "Walker"), ("Swimmer",))
    assert books.request(both) == []
    assert books.outstanding("Walker") == 0, "nothing is set aside for who can't move"
    assert books.returned("trainer", "Swimmer", 0, 4)[0].caps == {"Swimmer": 8, "Walker": 8}


def test_a_behaviour_that_nothing_bounds_is_granted_for_good():
    books = ledger(rows=8, sources=2)
    books.open_unbounded("Crowd")
    for source in range(2):
        request = CreditRequest(source, 1, {"Walker": 0, "Crowd": 0}, ("Crowd", "Walker"))
        (grant,) = books.request(request)
        assert grant.caps == {"Crowd": FREE, "Walker": 4}
    books.learned("Crowd", 7)
    (grant,) = books.request(CreditRequest(0, 2, {"Crowd": 10**9}, ("Crowd",), ("Crowd",)))
    assert grant.versions == {"Crowd": 0}, "nobody waits for its policies"


# Actors that die, trainers that resume. -------------------------------------------------------------------------------


def test_rows_granted_to_a_dead_actor_are_written_off():
    books = ledger(rows=8, lag=0, sources=2)
    books.request(ask(0, 1))
    books.request(ask(1, 1))
    books.request(waits(1, 2, used=4))
    grants = books.remove_source(0)
    assert [(grant.source, grant.caps["Walker"]) for grant in grants] == [(1, 8)]


def test_late_words_of_a_dead_actor_and_those_of_strangers_change_nothing():
    books = ledger(rows=4, lag=0, sources=2)
    for source in (0, 1):
        books.request(ask(source, 1))
    books.request(waits(0, 2, used=2))
    books.remove_source(0)
    assert books.returned("trainer", "Walker", 1, 2) == []
    for source in (0, 99):
        assert books.returned("trainer", "Walker", source, 2) == []
    assert books.request(ask(source=99)) == []
    assert books.outstanding("Walker") == 0


def test_all_that_is_outstanding_with_a_lost_trainer_is_written_off():
    books = ledger(rows=4, lag=0, sources=2)
    books.request(ask(0, 1))
    books.request(ask(1, 1))
    books.close_window("Walker")
    books.add_source(2)
    assert books.request(ask(2, 2, used=1)) == []  # it waits for the next trainer
    books.open_window("Walker", 4, 0)
    (grant,) = books.request(ask(0, 2, used=2))  # from before: its successor has asked
    assert (grant.source, grant.caps) == (2, {"Walker": 4})  # one of which is used
    assert books.returned("trainer", "Walker", 0, 2) == []
    assert books.outstanding("Walker") == 4


def test_a_lost_trainer_costs_the_window_of_another_one_nothing():
    books = ledger(rows=8, lag=0)
    books.open_window("Rival", 8, 0)
    assert books.request(ask(wants=("Walker", "Rival")))[0].caps == {"Walker": 8, "Rival": 8}
    books.close_window("Walker")
    books.add_source(1)
    books.request(CreditRequest(0, 2, {"Walker": 5, "Rival": 5}, (), ("Walker", "Rival")))
    assert books.outstanding("Rival") == 5
    books.returned("trainer", "Rival", 0, 3)
    assert books.outstanding("Rival") == 2
    books.open_window("Walker", 8, 0)
    (grant,) = books.request(CreditRequest(1, 3, {}, ("Walker", "Rival"), ()))
    assert grant.caps == {"Walker": 8, "Rival": 6}
    books.remove_source(0)
    assert books.outstanding("Rival") == 6


def test_rows_that_a_resumed_trainer_brings_along_are_part_of_the_window():
    books = CreditLedger()
    books.open_window("Walker", 8, 0, restored_rows=5)
    books.add_source(0)
    assert books.request(ask())[0].caps == {"Walker": 3}
    books.request(waits(number=2, used=3))
    books.returned("trainer", "Walker", CreditLedger.RESTORED, 5)
    assert books.outstanding("Walker") == 0 + 3 + 5


# At rest. ------------------------------------------------------------------------------------------------------------


def test_at_rest_nothing_is_granted_while_an_actor_still_moves():
    books = ledger(rows=8, lag=0, sources=2, at_rest=True)
    assert books.request(waits(0, 1)) == [], "the other one may be on its way, or not"
    assert books.request(waits(1, 1)) == [Grant(each, 1, {"Walker": 4}, {"Walker": 0}) for each in (0, 1)]
    assert books.request(waits(0, 2, used=2)) == [], "the other one still moves"
    assert books.request(waits(1, 2, used=2)) == [], "what they emitted has not arrived"
    assert [grant.source for grant in books.learned("Walker", 0, held=4)] == [0], "there are no more than four"


def test_at_rest_nothing_is_granted_before_each_trainer_has_learned():
    """A policy that comes while others step would come at any time."""
    books = ledger(rows=8, lag=0, sources=2, at_rest=True)
    books.open_window("Hider", 4, 0)
    books.request(waits(0, 1))
    hider = CreditRequest(1, 1, {"Hider": 0}, ("Hider",), ("Hider",))
    assert [grant.source for grant in books.request(hider)] == [0, 1]
    books.request(waits(0, 2, used=4))
    books.learned("Walker", 0, held=4)
    books.request(CreditRequest(1, 2, {"Hider": 4}, ("Hider",), ("Hider",)))
    assert books.learned("Hider", 0, held=4) == [], "it has yet to learn"
    assert [grant.source for grant in books.learned("Hider", 1, held=0, returned={1: 4})] == [0, 1]


# Behaviours that wait. -----------------------------------------------------------------------------------------------


def test_a_held_actor_gets_nothing_and_others_wait_until_its_steps_are_learned_from():
    books = ledger(rows=8, lag=1, sources=2)
    books.open_window("Hider", 8, 1)
    books.pause_behaviors(["Hider"])
    hider = CreditRequest(1, 1, {"Hider": 0}, ("Hider",), ("Hider",))
    assert books.request(hider) == []
    assert [grant.source for grant in books.request(ask())] == [0]
    books.pause_behaviors(["Walker"])
    assert books.request(waits(0, 2, used=4)) == [], "what it has emitted has not arrived"
    assert books.learned("Walker", 0, held=4, arrived={0: 4}) == [Grant(1, 1, {"Hider": 4}, {"Hider": 0})]
    books.pause_behaviors([])
    assert [grant.source for grant in books.learned("Walker", 0, held=4, arrived={0: 4})] == [0]


def test_an_update_that_a_held_trainer_has_yet_to_make_comes_first():
    books = ledger(rows=4, lag=1, sources=2)
    books.open_window("Hider", 4, 1)
    for number in (1, 2):
        books.request(ask(number=number, used=2 * number - 2))
    books.pause_behaviors(["Walker"])
    books.request(waits(0, 3, used=4))
    books.request(CreditRequest(1, 1, {"Hider": 0}, ("Hider",), ("Hider",)))
    assert books.learned("Walker", 0, held=4, arrived={0: 4}) == []
    assert [grant.source for grant in books.learned("Walker", 1, returned={0: 4}, arrived={0: 4})] == [1]


# Whatever happens. ----------------------------------------------------------------------------------------------------

EVENTS = st.tuples(st.sampled_from(["step", "ask", "wait", "return"]), st.integers(0, 2), st.integers(1, 6))
MOVES = ["adopt", "make", "make", "make", "ask", "wait", "arrive", "arrive", "report"]


@pytest.mark.lengthy
@given(st.integers(1, 6), st.integers(0, 3), st.randoms(use_true_random=False))
def test_the_lag_bound_holds_in_any_order_of_steps_and_messages(rows, lag, random):
    """Three actors, of which one is slow, and a trainer: what they say comes at once, but they say it whenever they like."""
    moves = [(random.choice(MOVES), random.choices(range(3), [9, 9, 1])[0]) for _ in range(300)]
    books = ledger(rows, lag, sources=3)
    caps, used, acting, needs, numbers = [0] * 3, [0] * 3, [(0, 0)] * 3, [0] * 3, [0] * 3
    under_way, held = [[], [], []], []
    version, arrived, returned = 0, dict.fromkeys(range(3), 0), dict.fromkeys(range(3), 0)
    for move, source in moves:
        grants = []
        match move:
            case "adopt" if acting[source][1] < version:
                acting[source] = used[source], version
            case "make" if used[source] < caps[source] and acting[source][1] >= needs[source]:
                used[source] += 1
                under_way[source].append(acting[source][1])
            case "ask" | "wait":
                numbers[source] += 1
                if move == "wait":
                    caps[source] = used[source]
                gives_back = ("Walker",) if move == "wait" else ()
                said = {"Walker": used[source]}, ("Walker",), gives_back, {"Walker": acting[source]}
                grants = books.request(CreditRequest(source, numbers[source], *said))
            case "arrive" if under_way[source]:
                held.append((source, under_way[source].pop(0)))
                arrived[source] += 1
                if len(held) == rows:
                    for learned_from, made_by in held:
                        assert version - made_by <= lag
                        returned[learned_from] += 1
                    held.clear()
                    version += 1
            case "report":
                grants = books.learned("Walker", version, len(held), dict(returned), dict(arrived))
        for grant in grants:
            caps[grant.source], needs[grant.source] = grant.caps["Walker"], grant.versions["Walker"]


@given(st.integers(1, 9), st.integers(0, 2), st.lists(EVENTS, max_size=80))
def test_credits_are_conserved_and_the_window_is_never_exceeded(rows, lag, events):
    """Granted = used + unused; used = returned + in flight. No source exceeds its cap here."""
    books = ledger(rows, lag, sources=3)
    caps, used, returned, numbers = [0] * 3, [0] * 3, [0] * 3, [0] * 3
    for what, source, amount in events:
        grants = []
        match what:
            case "step":
                used[source] = min(caps[source], used[source] + amount)
            case "ask" | "wait":
                numbers[source] += 1
                if what == "wait":
                    caps[source] = used[source]
                grants = books.request((waits if what == "wait" else ask)(source, numbers[source], used[source]))
            case "return":
                returned[source] = min(used[source], returned[source] + amount)
                grants = books.returned("trainer", "Walker", source, returned[source])
        for grant in grants:
            assert grant.caps["Walker"] > caps[grant.source]
            caps[grant.source] = grant.caps["Walker"]
        assert books.outstanding("Walker") == sum(caps) - sum(returned) <= rows * (lag + 1)
