import numpy as np
import pytest

from queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from stages.errors import StageError
from stages.policy import ObservationEncoder


def encoder(*observations):
    return ObservationEncoder(BehaviorSpec("Test", observations, ActionSpec(2)))


@pytest.mark.parametrize("dtype", ["uint8", "int64", "float64", "bool", "float32"])
def test_vectors_of_every_dtype_become_float32(dtype):
    out = np.full((2, 3), np.nan, np.float32)
    encoder(ObservationSpec("o", (3,), dtype)).write((np.array([[0, 1, 1], [1, 0, 1]], dtype),), out)
    assert out.tolist() == [[0.0, 1.0, 1.0], [1.0, 0.0, 1.0]]


def test_observations_lie_side_by_side_in_the_order_of_the_spec():
    both = encoder(ObservationSpec("a", (2,)), ObservationSpec("b", (), "int32"), ObservationSpec("c", (1,)))
    assert both.size == 4
    out = np.empty((1, 4), np.float32)
    both.write((np.array([[1, 2]], np.float32), np.array([3], np.int32), np.array([[4]], np.float32)), out)
    assert out.tolist() == [[1.0, 2.0, 3.0, 4.0]]


def test_an_image_is_refused_with_its_shape_and_a_way_out():
    with pytest.raises(StageError, match=r"'camera' has shape \(64, 64, 3\).*FlattenObservation"):
        encoder(ObservationSpec("camera", (64, 64, 3), "uint8"))


def test_a_behaviour_that_observes_nothing_is_refused():
    with pytest.raises(StageError, match="at least one observation"):
        encoder()


def test_an_observation_that_is_no_number_is_refused():
    with pytest.raises(StageError, match="dtype '<U4'"):
        encoder(ObservationSpec("name", (1,), "<U4"))
