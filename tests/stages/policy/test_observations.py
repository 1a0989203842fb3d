"""From observations as environments give them to what networks take in."""

import numpy as np
import pytest

from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.errors import StageError
from headrace.stages.policy.observations import ObservationLayout

IMAGE = ObservationSpec("camera", (4, 5, 3), "uint8", channels_last=True)
THINGS = ObservationSpec("things", (6, 2))
MIXED = (ObservationSpec("a", (2,)), IMAGE, ObservationSpec("b", (), "int32"), THINGS, ObservationSpec("c", (3,)))


def layout(*observations):
    return ObservationLayout(BehaviorSpec("Test", observations, ActionSpec(2)))


def mixed(n):
    random = np.random.default_rng(0)
    return (
        random.normal(size=(n, 2)).astype(np.float32),
        random.integers(0, 256, (n, 4, 5, 3)).astype(np.uint8),
        random.integers(-5, 5, n).astype(np.int32),
        random.normal(size=(n, 6, 2)).astype(np.float32),
        random.normal(size=(n, 3)).astype(np.float32),
    )


@pytest.mark.parametrize("dtype", ["uint8", "int64", "float16", "bool", "float32"])
def test_vectors_of_every_dtype_become_float32(dtype):
    encoded = layout(ObservationSpec("o", (3,), dtype)).encode((np.array([[0, 1, 1], [1, 0, 1]], dtype),))
    assert encoded.vectors.dtype == np.float32
    assert encoded.vectors.tolist() == [[0.0, 1.0, 1.0], [1.0, 0.0, 1.0]]


def test_a_float64_vector_makes_all_vectors_float64():
    both = layout(ObservationSpec("clock", (1,), "float64"), ObservationSpec("v", (2,)))
    encoded = both.encode((np.array([[1.7e9 + 1]]), np.array([[0.5, 2]], np.float32)))
    assert encoded.vectors.tolist() == [[1.7e9 + 1, 0.5, 2.0]]
    assert both.columns()[0].dtype == "float64"
    assert (
        layout(ObservationSpec("i", (3, 9, 9), "float64"), ObservationSpec("v", (2,))).columns()[0].dtype == "float32"
    )


def test_vectors_are_concatenated_in_the_order_of_the_spec():
    three = layout(ObservationSpec("a", (2,)), ObservationSpec("b", (), "int32"), ObservationSpec("c", (1,)))
    assert three.vector_size == 4
    out = np.empty((1, 4), np.float32)
    seen = np.array([[1, 2]], np.float32), np.array([3], np.int32), np.array([[4]], np.float32)
    assert three.encode(seen, out).vectors is out
    assert out.tolist() == three.encode(seen).vectors.tolist() == [[1.0, 2.0, 3.0, 4.0]]


def test_a_vector_without_numbers_comes_back_as_it_was():
    """Unity's own `testdcvis.demo` has one in addition to its image."""
    layout = ObservationLayout(
        BehaviorSpec("B", (ObservationSpec("none", (0,)), ObservationSpec("x", (2,))), ActionSpec(1))
    )
    seen = [np.zeros((3, 0), np.float32), np.arange(6, dtype=np.float32).reshape(3, 2)]
    for given, found in zip(seen, layout.decode(layout.encode(seen)), strict=True):
        np.testing.assert_array_equal(given, found)


def test_images_and_sets_stay_what_they_are():
    seen = mixed(7)
    encoded = layout(*MIXED).encode(seen)
    assert np.array_equal(encoded.vectors, np.concatenate([seen[0], seen[2][:, None], seen[4]], axis=1))
    assert [other is given for other, given in zip(encoded.others, (seen[1], seen[3]), strict=True)] == [True, True]


def test_vectors_alone_are_plain_and_images_sets_and_goals_are_not():
    vector, goal = ObservationSpec("v", (2,)), ObservationSpec("g", (3,), goal=True)
    assert layout(vector, ObservationSpec("w", (1,))).plain
    assert not layout(vector, IMAGE).plain
    assert not layout(vector, THINGS).plain
    assert not layout(vector, goal).plain
    assert layout(vector, goal).goals == (slice(2, 5),)


def test_columns_of_a_batch_are_encoded_like_observations():
    seen = mixed(3)
    columns = {f"next_obs_{index}": observation for index, observation in enumerate(seen)}
    encoded, expected = layout(*MIXED).encode_columns(columns, "next_obs_"), layout(*MIXED).encode(seen)
    assert np.array_equal(encoded.vectors, expected.vectors)
    assert encoded.others[1] is seen[3]


def test_observations_survive_a_round_trip_through_buffer_columns():
    made = layout(*MIXED)
    encoded = made.encode(mixed(4))
    columns = made.as_columns(encoded)
    declared = {column.name: (np.dtype(column.dtype), column.shape) for column in made.columns()}
    assert {name: (array.dtype, array.shape[1:]) for name, array in columns.items()} == declared
    again = made.from_columns(columns)
    assert again.vectors is encoded.vectors
    assert again.others == encoded.others


def test_a_rank_that_nothing_is_known_for_is_refused_with_its_shape_and_a_way_out():
    with pytest.raises(StageError, match=r"'video' has shape \(8, 64, 64, 3\).*reshape it in the environment"):
        layout(ObservationSpec("video", (8, 64, 64, 3), "uint8"))


def test_a_behaviour_that_observes_nothing_is_refused():
    with pytest.raises(StageError, match="at least one observation"):
        layout()


def test_an_observation_that_is_not_a_number_is_refused():
    with pytest.raises(StageError, match="dtype '<U4'"):
        layout(ObservationSpec("name", (1,), "<U4"))
