"""Spaces as plain data: what comes back from a file is the space that was written."""

from __future__ import annotations

import json

import msgpack
import numpy as np
import pytest
from gymnasium import spaces

from headrace.queues.messages import ActionBatch
from headrace.stages.environments.spaces.columns import action_mapping
from headrace.stages.environments.spaces.own_space import (
    from_plain,
    leaves,
    own_space,
    plain_spaces,
    to_plain,
    with_clipped_boxes,
)

SPACES = [
    spaces.Box(-1, 1, (2, 3)),
    spaces.Box(np.array([-1.5, -np.inf, 0]), np.array([1.5, 3, np.inf]), dtype=np.float64),
    spaces.Box(0, 255, (84, 84, 3), np.uint8),
    spaces.Box(-(2**62), 2**62, (), np.int64),
    spaces.Discrete(3, start=-1),
    spaces.MultiDiscrete(np.array([[2, 3], [4, 5]]), start=np.array([[0, 10], [0, 0]])),
    spaces.MultiBinary((2, 2)),
    spaces.Sequence(spaces.Dict(kind=spaces.Discrete(2), at=spaces.Box(-9, 9, (2,))), stack=True),
    spaces.Dict(
        {"a": spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 1)]), "b": spaces.Dict({"c": spaces.Discrete(2)})}
    ),
    spaces.Dict([(5, spaces.Discrete(2))]),  # type: ignore[list-item]  # the library takes any key
]


@pytest.mark.parametrize("space", SPACES, ids=str)
@pytest.mark.parametrize("through", [lambda x: json.loads(json.dumps(x)), lambda x: msgpack.unpackb(msgpack.packb(x))])
def test_a_space_survives_json_and_msgpack(space, through):
    ours = own_space(space)
    again = from_plain(through(to_plain(ours)))

    assert str(again) == str(ours)
    for (keys, one), (others, other) in zip(leaves(ours), leaves(again), strict=True):
        assert keys == others
        assert (one.kind, one.shape) == (other.kind, other.shape)
        for bound in ("low", "high", "sizes", "start"):
            if hasattr(one, bound):
                np.testing.assert_array_equal(getattr(one, bound), getattr(other, bound), strict=True)
        assert getattr(one, "dtype", None) == getattr(other, "dtype", None)


def test_an_action_space_may_be_one_of_clipped_numbers():
    space = own_space(spaces.Tuple([spaces.Box(-2, 2, (1,)), spaces.Discrete(2)]))
    plain = to_plain(with_clipped_boxes(space))
    again = action_mapping(from_plain(json.loads(json.dumps(plain))), 3, "Env")
    assert (again.spec.continuous_size, again.spec.unbounded) == (1, (0,))
    drawn = ActionBatch(np.array([[-3.0], [0.5], [2.5]], np.float32), np.zeros((3, 1), np.int32))
    assert again.to_environment(drawn)[0].tolist() == [[-2.0], [0.5], [2.0]]


def test_equal_bounds_of_a_picture_take_two_numbers():
    assert len(json.dumps(to_plain(own_space(spaces.Box(0, 255, (210, 160, 3), np.uint8))))) < 100


def test_spaces_of_other_kinds_and_keys_have_no_plain_form():
    other = own_space(spaces.Tuple([spaces.Text(3)]))
    unnamed = own_space(spaces.Dict([(("a", "tuple"), spaces.Discrete(2))]))  # type: ignore[list-item]

    assert str(other) == "Tuple(Text)"
    assert to_plain(other) is to_plain(unnamed) is plain_spaces(own_space(spaces.Discrete(2)), other) is None


@pytest.mark.parametrize(
    "plain",
    [
        {},
        {"kind": "Box", "shape": [2], "dtype": "float32", "low": [1], "high": 2},
        {"kind": "Discrete", "dtype": "int64", "sizes": 0, "start": 0},
        {"kind": "Dict", "parts": [["a"]]},
    ],
)
def test_invalid_descriptions_are_refused(plain):
    with pytest.raises(ValueError, match="not a description of a space"):
        from_plain(plain)
