"""Actions on their way to Unity."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples
from unity_samples import brain

from headrace.queues.specs import ActionSpec, BehaviorSpec
from headrace.stages.environments.engines.errors import GameRefused
from headrace.stages.environments.engines.unity.columns import action_protos, action_spec
from headrace.stages.environments.engines.unity.messages import BrainParametersProto

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


def test_an_action_spec_overrides_the_deprecated_fields():
    both = brain(continuous=2)
    both.vector_action_size_deprecated.append(5)
    assert action_spec(both, "here") == ActionSpec(2)


def test_contradictions_are_refused():
    wrong = brain(branches=(3, 4))
    wrong.action_spec.num_discrete_actions = 3
    with pytest.raises(GameRefused, match=r"^here: announces 3 discrete actions, but sizes for 2 \(\[3, 4\]\)"):
        action_spec(wrong, "here")
    with pytest.raises(GameRefused, match=r"branches of sizes \[3, 0\]"):
        action_spec(brain(branches=(3, 0)), "here")


@pytest.mark.parametrize("choices", [2, 128, 129, 300])
@examples(8)
@given(agents=st.integers(0, 9), continuous=st.integers(0, 3), branches=st.integers(0, 5), random=st.randoms())
def test_every_agent_gets_its_row_and_old_packages_theirs(choices, agents, continuous, branches, random):
    values = np.array([[random.uniform(-1, 1) for _ in range(continuous)] for _ in range(agents)], np.float32)
    values = values.reshape(agents, continuous)
    chosen = np.array([[random.randrange(choices) for _ in range(branches)] for _ in range(agents)], np.int32)
    chosen = chosen.reshape(agents, branches)
    protos = action_protos(spec_of(continuous, (choices,) * branches), values, chosen)
    assert len(protos.value) == agents
    for proto, row, of_row in zip(protos.value, values.tolist(), chosen.tolist(), strict=True):
        assert list(proto.continuous_actions) == row
        assert list(proto.discrete_actions) == of_row
        assert list(proto.vector_actions_deprecated) == row + of_row


@pytest.mark.parametrize("choices", [3, 300])
@pytest.mark.parametrize("wrong", [-1, 300, 100_000])
def test_a_choice_outside_its_branch_is_refused(choices, wrong):
    spec = spec_of(0, (5, choices))
    expected = rf"^Crawler: choice {wrong} of branch 1 in row 1; that branch has the choices 0 to {choices - 1}$"
    with pytest.raises(ValueError, match=expected):
        action_protos(spec, np.zeros((2, 0), np.float32), np.array([[4, 0], [4, wrong]], np.int32))
