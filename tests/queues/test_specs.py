"""Specs as people read them."""

from __future__ import annotations

import pytest

from headrace.queues.errors import SpecError
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec, behavior_team


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


def test_specs_do_not_differ_by_the_environments_own_spaces_but_carry_them():
    bare, own = BehaviorSpec("A", (), ActionSpec(1)), BehaviorSpec("A", (), ActionSpec(1), spaces={"action": {}})
    assert bare == own
    assert BehaviorSpec.from_plain(own.to_plain()).spaces == {"action": {}}
    assert "spaces" not in bare.to_plain()


def test_a_behavior_says_what_is_seen():
    two = (ObservationSpec("a", (1,)), ObservationSpec("b", (2, 2)))
    assert BehaviorSpec("Walker", two, ActionSpec(1)).seen == "a float32[1], b float32[2, 2]"
    assert BehaviorSpec("Walker", (), ActionSpec(1)).seen == "no observations"


@pytest.mark.parametrize(
    ("behavior_id", "team"),
    [
        ("Ball", 0),
        ("Ball?team=0", 0),
        ("Ball?team=3", 3),
        ("Ball?team=1&side=left", 1),
        ("Ball?side=left", 0),
        ("//[Ball?team=2#x", 2),
    ],
)
def test_the_team_is_what_the_behaviour_id_says_and_else_the_first(behavior_id, team):
    assert behavior_team(behavior_id) == team


@pytest.mark.parametrize("said", ["", "x", "-1", "1.5", "²", "①", "٣", "３", "1" * 19])
def test_a_team_that_is_not_a_number_is_refused_with_the_id(said):
    with pytest.raises(SpecError, match=f"^behaviour id 'Ball.team={said}': the team must be .*, got '{said}'$"):
        behavior_team(f"Ball?team={said}")


def test_a_spec_keeps_its_heads_names_and_repeat_as_plain_data():
    assert "action_repeat" not in BehaviorSpec("Arm", (), ActionSpec(2, (3,))).to_plain()
    named = BehaviorSpec(
        "Arm",
        (),
        ActionSpec(1, (3, 4), continuous_names=("turn",), branch_names=("grip", "step_mul")),
        False,
        "learned",
    )

    again = BehaviorSpec.from_plain(named.to_plain())

    assert again == named
    assert (again.actions.continuous_heads, again.actions.branch_heads) == (("turn",), ("grip", "step_mul"))


def test_actions_are_the_same_whatever_the_names_of_their_heads():
    assert ActionSpec(0, (3,), branch_names=("move",)) == ActionSpec(0, (3,))


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ({"shape": [float("inf")]}, "cannot convert float infinity"),
        ({"shape": [1 << 40, 1 << 40]}, "more than 1,073,741,824"),
        ({"shape": [-1]}, "less than 0 numbers"),
        ({"dtype": "float32,(1000000000,)f8"}, "invalid shape in fixed-type tuple"),
    ],
)
def test_a_spec_that_no_environment_has_is_refused(part, value):
    plain = BehaviorSpec("Arm", (ObservationSpec("eye", (3,)),), ActionSpec(1)).to_plain()
    plain["observations"][0] |= part
    with pytest.raises(SpecError, match=f"^not a behaviour spec: .*{value}"):
        BehaviorSpec.from_plain(plain)


def test_a_spec_with_a_billion_choices_is_refused():
    plain = BehaviorSpec("Arm", (), ActionSpec(0, (3, 1 << 30))).to_plain()
    with pytest.raises(SpecError, match="more than 1,073,741,824"):
        BehaviorSpec.from_plain(plain)
