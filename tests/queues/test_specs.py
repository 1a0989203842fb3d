"""Specs as they are told to people."""

from __future__ import annotations

import pytest

from queues.specs import ActionSpec, BehaviorSpec, ObservationSpec


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (ObservationSpec("position", (3,)), "position float32[3]"),
        (
            ObservationSpec("camera", (84, 84, 3), "uint8", channels_last=True),
            "camera uint8[84, 84, 3] (channels last)",
        ),
        (ObservationSpec("target", (2,), goal=True), "target float32[2] (a goal)"),
        (ActionSpec(1), "1 continuous action"),
        (ActionSpec(3, unbounded=(0, 1)), "3 continuous actions (2 without bounds)"),
        (ActionSpec(0, (4,)), "branch of 4 choices"),
        (ActionSpec(2, (3, 2), masked=True), "2 continuous actions and branches of 3, 2 choices (masked)"),
        (ActionSpec(), "no actions"),
    ],
)
def test_specs_read_as_words(spec, words):
    assert str(spec) == words


def test_a_behavior_says_what_is_seen():
    two = (ObservationSpec("a", (1,)), ObservationSpec("b", (2, 2)))
    assert BehaviorSpec("Walker", two, ActionSpec(1)).seen == "a float32[1], b float32[2, 2]"
    assert BehaviorSpec("Walker", (), ActionSpec(1)).seen == "no observations"
