"""A person's keys come late, twice, or never again."""

from headrace.stages.exhibition.people import AWAY_S, LATE_S, Person


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_held_keys_count_until_they_are_let_go():
    hands = Person(Clock())
    hands.receive_keys(0, ["a", "b"])
    assert hands.pressed == {"a", "b"}
    hands.decided()
    hands.receive_keys(1, ["b"])
    assert hands.pressed == {"b"}


def test_a_tap_between_two_decisions_counts_once():
    hands = Person(Clock())
    hands.receive_keys(0, ["a"])
    hands.receive_keys(1, [])
    assert hands.pressed == hands.tapped == {"a"}
    hands.decided()
    assert hands.pressed == hands.tapped == frozenset()


def test_a_key_that_is_held_on_is_tapped_once():
    hands = Person(Clock())
    hands.receive_keys(0, ["a"])
    hands.decided()
    hands.receive_keys(1, ["a"])
    assert hands.pressed == {"a"}
    assert hands.tapped == frozenset()


def test_a_message_that_comes_twice_or_too_late_is_left_out():
    hands = Person(Clock())
    hands.receive_keys(5, ["a"])
    hands.receive_keys(5, ["b"])
    hands.receive_keys(4, [])
    assert hands.pressed == {"a"}


def test_keys_are_released_after_a_while_without_messages():
    clock = Clock()
    hands = Person(clock)
    hands.receive_keys(0, ["a"])
    clock.now = LATE_S
    assert hands.pressed == frozenset()
    assert hands.present
    clock.now = AWAY_S
    assert not hands.present
    hands.receive_keys(1, ["b"])
    assert hands.present
    assert hands.pressed >= {"b"}
