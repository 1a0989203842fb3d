import numpy as np
import pytest
from trainer_samples import experience

from headrace.config import MemorySettings
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.policy.observations import ObservationLayout
from headrace.stages.trainer.intake import ObservationPreprocessor
from headrace.stages.trainer.on_policy.trainer import BufferTransitions, RolloutBuffer


def rows(start, n):
    numbers = np.arange(start, start + n)
    return {"a": np.stack([numbers, -numbers], axis=1).astype(np.float32), "b": numbers, "unknown": numbers}


SPEC = BehaviorSpec(
    "Test", (ObservationSpec("v", (2,)), ObservationSpec("i", (1, 4, 4), "uint8")), ActionSpec(2, (3,), unbounded=(1,))
)


def filled(lengths, memory_size=0, beyond_termination=False, **trajectories):
    buffer = RolloutBuffer(
        SPEC,
        ObservationLayout(SPEC),
        8,
        MemorySettings(memory_size=memory_size, sequence_length=2) if memory_size else None,
        follows_agents=True,
    )
    batch = experience(SPEC, lengths, memory_size=memory_size)
    batch = batch.replace(**{name: np.array(column) for name, column in trajectories.items()})
    buffer.append(batch, *ObservationPreprocessor(SPEC, False, beyond_termination).encode(batch, 0))
    return buffer, batch


def test_a_rows_previous_action_is_the_row_befores_as_the_environment_got_it():
    buffer, batch = filled(
        [2, 1],
        memory_size=2,
        previous_continuous_actions=np.array([[0.0, 0.0], [-6.0, 7.0]], np.float32),
        previous_discrete_actions=np.array([[0], [2]], np.int32),
    )
    buffer.rows["continuous_actions"][:] = [[1.5, 9.0], [5.0, -9.0], [0.3, 1.0]]
    buffer.rows["discrete_actions"][:] = [[1], [2], [0]]
    before, last = buffer.previous_action_features()
    expected = np.array([[0, 0, 1, 0, 0], [0.5, 9, 0, 1, 0], [-1, 7, 0, 0, 1]])
    np.testing.assert_allclose(before, expected)
    np.testing.assert_allclose(last, np.array([[1, -9, 0, 0, 1], [0.1, 1, 1, 0, 0]]), rtol=1e-6)


def transitions(buffer):
    return BufferTransitions(SPEC, buffer, "cpu")


@pytest.mark.parametrize("beyond_termination", [False, True])
@pytest.mark.parametrize("rows", [[0, 1, 2, 3, 4, 5], [4, 1, 5, 0]])
def test_the_next_observation_of_a_row_is_the_next_row_or_the_final_observation(rows, beyond_termination):
    ends = {"terminated": [True, False, False], "truncated": [False, False, True]}
    buffer, batch = filled([2, 3, 1], beyond_termination=beyond_termination, **ends)
    taken = transitions(buffer).take(np.array(rows))
    next_vectors = np.empty((6, 2), np.float32)
    next_vectors[[0, 2, 3]] = batch.rows["obs_0"][[1, 3, 4]]
    next_vectors[[1, 4, 5]] = batch.trajectories["next_obs_0"]
    if not beyond_termination:
        next_vectors[1] = 0  # where the episode terminated
    next_images = np.empty((6, 1, 4, 4), np.uint8)
    next_images[[0, 2, 3]] = batch.rows["obs_1"][[1, 3, 4]]
    next_images[[1, 4, 5]] = batch.trajectories["next_obs_1"]
    np.testing.assert_array_equal(taken.inputs.vectors, batch.rows["obs_0"][rows])
    np.testing.assert_array_equal(taken.inputs.others[0], batch.rows["obs_1"][rows])
    np.testing.assert_array_equal(taken.next_inputs.vectors, next_vectors[rows])
    np.testing.assert_array_equal(taken.next_inputs.others[0], next_images[rows])
    np.testing.assert_array_equal(taken.terminated, np.array([0, 1, 0, 0, 0, 0], np.float32)[rows])
    np.testing.assert_array_equal(taken.rewards, batch.rewards[rows])
    np.testing.assert_array_equal(taken.choices, batch.rows["discrete_actions"][rows])


def test_actions_are_those_that_the_environment_got():
    buffer, _ = filled([2])
    buffer.rows["continuous_actions"][:] = [[1.5, 9.0], [-5.0, -9.0]]
    np.testing.assert_allclose(transitions(buffer).take(np.arange(2)).continuous, [[0.5, 9.0], [-1.0, -9.0]])
