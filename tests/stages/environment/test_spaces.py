from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.environment.protocol import ActionBatch
from stages.environment.spaces import action_mapping, action_masks, observation_parts
from stages.errors import StageError

FLOAT_MAX = float(np.finfo(np.float32).max)


def continuous(*rows):
    values = np.array(rows, np.float32)
    return ActionBatch(values, np.empty((len(values), 0), np.int32))


def discrete(*rows):
    values = np.array(rows, np.int32)
    return ActionBatch(np.empty((len(values), 0), np.float32), values)


@pytest.mark.parametrize(
    ("dtype", "kept"),
    [
        (np.float64, "float32"),
        (np.float16, "float32"),
        (np.float32, "float32"),
        (np.int64, "int64"),
        (np.uint8, "uint8"),
        (np.int8, "int8"),
    ],
)
def test_floats_become_float32_and_other_numbers_keep_their_dtype(dtype, kept):
    (part,) = observation_parts(spaces.Box(0, 100, (3,), dtype), "Env")

    extracted = part.extract(np.array([[1, 2, 3], [4, 5, 6]], dtype))

    assert (part.spec.shape, part.spec.dtype) == ((3,), kept)
    assert extracted.dtype == kept
    assert extracted.tolist() == [[1, 2, 3], [4, 5, 6]]


def test_an_extracted_observation_is_a_copy_also_where_the_dtype_is_right():
    (part,) = observation_parts(spaces.Box(0, 1, (2,)), "Env")
    batch = np.zeros((3, 2), np.float32)

    extracted = part.extract(batch)
    batch[:] = 1

    assert not extracted.any()


@pytest.mark.parametrize("shape", [(), (2, 3), (2, 1, 2, 2)])
def test_boxes_of_other_ranks_are_flattened(shape):
    (part,) = observation_parts(spaces.Box(-9, 9, shape), "Env")
    size = int(np.prod(shape))

    extracted = part.extract(np.arange(2 * size, dtype=np.float32).reshape(2, *shape))

    assert part.spec.shape == (size,)
    assert extracted.tolist() == np.arange(2 * size).reshape(2, size).tolist()


def test_discrete_observations_become_one_hot_from_their_start():
    (part,) = observation_parts(spaces.Discrete(3, start=5), "Env")

    assert (part.spec.shape, part.spec.dtype) == ((3,), "float32")
    assert part.extract(np.array([5, 7, 6])).tolist() == [[1, 0, 0], [0, 0, 1], [0, 1, 0]]


def test_multi_discrete_observations_become_one_hots_side_by_side():
    (part,) = observation_parts(spaces.MultiDiscrete([[2, 3], [1, 2]], start=[[0, 1], [0, 0]]), "Env")

    extracted = part.extract(np.array([[[1, 3], [0, 0]], [[0, 1], [0, 1]]]))

    assert extracted.tolist() == [[0, 1, 0, 0, 1, 1, 1, 0], [1, 0, 1, 0, 0, 1, 0, 1]]


def test_multi_binary_observations_become_numbers():
    (part,) = observation_parts(spaces.MultiBinary((2, 2)), "Env")

    assert part.spec.dtype == "float32"
    assert part.extract(np.array([[[0, 1], [1, 1]]], np.int8)).tolist() == [[0, 1, 1, 1]]


def test_images_are_refused_for_now():
    with pytest.raises(StageError, match=r"Env: observations of shape \(84, 84, 3\) are taken for images, which"):
        observation_parts(spaces.Box(0, 255, (84, 84, 3), np.uint8), "Env")


@pytest.mark.parametrize("space", [spaces.Dict(a=spaces.Discrete(2)), spaces.Tuple([spaces.Discrete(2)])])
def test_composed_spaces_are_refused_for_now(space):
    name = type(space).__name__
    with pytest.raises(StageError, match=f"Env: observations of a {name} space are not supported yet"):
        observation_parts(space, "Env")
    with pytest.raises(StageError, match=f"Env: actions of a {name} space are not supported yet"):
        action_mapping(space, 2, "Env")


def test_discrete_actions_count_from_the_start_of_the_space():
    mapping = action_mapping(spaces.Discrete(3, start=-1), 3, "Env")

    given_to_env = mapping.to_environment(discrete([0], [1], [2]))

    assert mapping.spec.discrete_branches == (3,)
    assert given_to_env.tolist() == [-1, 0, 1]
    assert given_to_env in batch_space(spaces.Discrete(3, start=-1), 3)


def test_multi_discrete_actions_get_the_shape_of_the_space():
    space = spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[0, 10], [0, 0]])
    mapping = action_mapping(space, 2, "Env")

    given_to_env = mapping.to_environment(discrete([0, 1, 2, 3], [1, 2, 3, 4]))

    assert mapping.spec.discrete_branches == (2, 3, 4, 5)
    assert given_to_env.tolist() == [[[0, 11], [2, 3]], [[1, 12], [3, 4]]]
    assert given_to_env in batch_space(space, 2)


def test_multi_binary_actions_are_branches_of_two():
    space = spaces.MultiBinary(3)
    mapping = action_mapping(space, 1, "Env")

    given_to_env = mapping.to_environment(discrete([0, 1, 1]))

    assert mapping.spec.discrete_branches == (2, 2, 2)
    assert not mapping.maskable
    assert given_to_env.tolist() == [[0, 1, 1]]
    assert given_to_env in batch_space(space, 1)


def test_box_actions_are_scaled_to_the_bounds_of_each_dimension():
    space = spaces.Box(np.array([0.0, -2.0], np.float32), np.array([10.0, 6.0], np.float32))
    mapping = action_mapping(space, 3, "Env")

    given_to_env = mapping.to_environment(continuous([-1, -1], [0, 0], [1, 0.5]))

    assert mapping.spec.continuous_size == 2
    assert mapping.spec.unbounded == ()
    assert given_to_env.tolist() == [[0, -2], [5, 2], [10, 4]]


def test_unbounded_dimensions_get_the_raw_value_and_are_listed():
    low = np.array([-1.0, -np.inf, 0.0, -FLOAT_MAX], np.float32)
    high = np.array([3.0, np.inf, np.inf, FLOAT_MAX], np.float32)
    mapping = action_mapping(spaces.Box(low, high), 2, "Env")

    given_to_env = mapping.to_environment(continuous([0, 7.5, 7.5, 7.5], [1, -7.5, -7.5, -7.5]))

    assert mapping.spec.unbounded == (1, 2, 3)
    assert given_to_env.tolist() == [
        [1, 7.5, 7.5, 7.5],
        [3, -7.5, 0, -7.5],
    ]  # 0: the one bound it has is kept


@settings(deadline=None)
@given(
    low=st.floats(-1e6, 1e6, width=32),
    extent=st.floats(2.0**-10, 1e6, width=32),
    value=st.floats(-3, 3, width=32),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_a_scaled_action_is_always_in_the_space(low, extent, value, dtype):
    space = spaces.Box(np.array([low], dtype), np.array([low + extent], dtype), dtype=dtype)
    mapping = action_mapping(space, 3, "Env")

    given_to_env = mapping.to_environment(continuous([value], [-1], [1]))

    assert given_to_env.dtype == dtype
    assert given_to_env in batch_space(space, 3)


def test_whole_number_boxes_are_rounded_and_keep_shape_and_dtype():
    space = spaces.Box(0, 4, (2, 2), np.uint8)
    mapping = action_mapping(space, 1, "Env")

    given_to_env = mapping.to_environment(continuous([-1, 1, 0, 0.6]))

    assert given_to_env.dtype == np.uint8
    assert given_to_env.tolist() == [[[0, 4], [2, 3]]]


def test_masks_of_instances_that_gave_none_allow_everything():
    infos = {
        "action_mask": np.array([[1, 0, 1], [0, 0, 0]], np.int8),
        "_action_mask": np.array([True, False]),
    }

    assert action_masks(infos, 2, 3).tolist() == [[True, False, True], [True, True, True]]
    assert action_masks({}, 2, 3).all()


def test_masks_may_be_one_array_for_each_branch():
    per_instance = np.empty(2, object)
    per_instance[0] = (np.array([1, 0], np.int8), np.array([0, 1, 1], np.int8))
    per_branch = (np.array([[1, 0], [1, 1]], np.int8), np.array([[0, 1, 1], [1, 1, 1]], np.int8))
    expected = [[True, False, False, True, True], [True] * 5]

    assert action_masks({"action_mask": per_instance}, 2, 5).tolist() == expected
    assert action_masks({"action_mask": per_branch}, 2, 5).tolist() == expected


def test_masks_of_another_width_are_refused():
    with pytest.raises(ValueError, match="reshape"):
        action_masks({"action_mask": np.ones((2, 4), np.int8)}, 2, 5)
    with pytest.raises(ValueError, match=r"got shape \(2, 4\) for 2 instances"):
        action_masks({"action_mask": (np.ones((2, 4), np.int8),)}, 2, 5)
