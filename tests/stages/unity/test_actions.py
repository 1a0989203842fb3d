"""Actions on their way to Unity."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from unity_samples import brain

from queues.specs import ActionSpec, BehaviorSpec
from stages.unity.actions import action_protos, action_spec
from stages.unity.errors import UnityRefused
from stages.unity.messages import BrainParametersProto

DISCRETE, CONTINUOUS = 0, 1


def spec_of(continuous=0, branches=()):
    return BehaviorSpec("Crawler", (), ActionSpec(continuous, tuple(branches), masked=bool(branches)))


def test_todays_packages_announce_both_kinds_of_actions():
    assert action_spec(brain(continuous=2, branches=(3, 4)), "here") == ActionSpec(2, (3, 4), masked=True)
    assert action_spec(brain(continuous=2), "here") == ActionSpec(2)


@pytest.mark.parametrize("empty", [True, False])
@pytest.mark.parametrize(
    ("space", "sizes", "expected"),
    [
        (CONTINUOUS, [3], ActionSpec(3)),
        (DISCRETE, [3, 2], ActionSpec(0, (3, 2), masked=True)),
        (DISCRETE, [], ActionSpec()),
        (CONTINUOUS, [], ActionSpec()),
    ],
)
def test_old_packages_fill_the_deprecated_fields(empty, space, sizes, expected):
    old = BrainParametersProto(vector_action_size_deprecated=sizes, vector_action_space_type_deprecated=space)
    if empty:  # a spec that says 0 and 0 is as good as none
        old.action_spec.SetInParent()
    assert action_spec(old, "here") == expected


def test_the_deprecated_fields_count_for_nothing_beside_an_action_spec():
    both = brain(continuous=2)
    both.vector_action_size_deprecated.append(5)
    assert action_spec(both, "here") == ActionSpec(2)


def test_contradictions_are_refused():
    wrong = brain(branches=(3, 4))
    wrong.action_spec.num_discrete_actions = 3
    with pytest.raises(UnityRefused, match=r"^here: announces 3 discrete actions and the sizes of 2 \(\[3, 4\]\)"):
        action_spec(wrong, "here")
    with pytest.raises(UnityRefused, match=r"branches of sizes \[3, 0\]"):
        action_spec(brain(branches=(3, 0)), "here")


@given(st.integers(0, 9), st.integers(0, 3), st.integers(0, 5), st.randoms())
def test_every_agent_gets_its_row_and_old_packages_theirs(agents, continuous, branches, random):
    values = np.array([[random.uniform(-1, 1) for _ in range(continuous)] for _ in range(agents)], np.float32)
    values = values.reshape(agents, continuous)
    choices = np.array([[random.randrange(300) for _ in range(branches)] for _ in range(agents)], np.int32)
    choices = choices.reshape(agents, branches)
    protos = action_protos(spec_of(continuous, (300,) * branches), values, choices)
    assert len(protos.value) == agents
    for proto, row, chosen in zip(protos.value, values.tolist(), choices.tolist(), strict=True):
        assert list(proto.continuous_actions) == row
        assert list(proto.discrete_actions) == chosen
        assert list(proto.vector_actions_deprecated) == row + chosen


@pytest.mark.parametrize(("continuous", "discrete"), [((2, 3), (2, 1)), ((2, 2), (2, 2)), ((2, 2), (1, 1))])
def test_actions_of_other_shapes_than_the_spec_says_are_a_mistake(continuous, discrete):
    with pytest.raises(ValueError, match=r"^Crawler: actions of shapes"):
        action_protos(spec_of(2, (3,)), np.zeros(continuous, np.float32), np.zeros(discrete, np.int32))
