import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainer_samples import experience

from headrace.config import MemorySettings
from headrace.queues.columns import Column
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.errors import StageError
from headrace.stages.policy.observations import ObservationLayout
from headrace.stages.trainer.intake import Intake
from headrace.stages.trainer.on_policy.rollout_buffer import ColumnTable, RolloutBuffer, SequenceCuts
from headrace.stages.trainer.on_policy.signals import BufferTransitions

COLUMNS = (Column("a", "float32", (2,)), Column("b", "int64"))


def rows(start, n):
    numbers = np.arange(start, start + n)
    return {"a": np.stack([numbers, -numbers], axis=1).astype(np.float32), "b": numbers, "unknown": numbers}


def test_it_copies_what_is_appended():
    table, source = ColumnTable(COLUMNS, 4), rows(0, 3)
    table.append(source)
    source["b"][:] = 99
    assert table["b"].tolist() == [0, 1, 2]


def test_it_grows_where_rows_overshoot_and_keeps_their_order():
    table = ColumnTable(COLUMNS, 2)
    for start, n in ((0, 2), (2, 1), (3, 20)):
        table.append(rows(start, n))
    assert len(table) == 23
    np.testing.assert_array_equal(table["b"], np.arange(23))
    np.testing.assert_array_equal(table["a"][:, 1], -np.arange(23.0))


def test_after_clearing_it_starts_anew():
    table = ColumnTable(COLUMNS, 4)
    table.append(rows(0, 3))
    table.clear()
    assert len(table) == 0
    table.append(rows(7, 1))
    assert table["b"].tolist() == [7]


def test_a_loaded_state_is_what_was_saved_and_does_not_share_memory_with_it():
    table, other = ColumnTable(COLUMNS, 4), ColumnTable(COLUMNS, 1)
    table.append(rows(0, 3))
    other.append(rows(50, 1))
    state = table.state_dict()
    other.load_state_dict(state)
    table.clear()
    table.append(rows(9, 3))
    state["b"][:] = 0
    assert other["b"].tolist() == [0, 1, 2]


def test_a_state_of_other_columns_is_refused_by_name():
    table = ColumnTable(COLUMNS, 4)
    with pytest.raises(StageError, match=r"'a': expected rows of shape \(2,\), got \(3,\)"):
        table.load_state_dict({"a": np.zeros((1, 3)), "b": np.zeros(1)})
    with pytest.raises(StageError, match=r"'b': expected rows of shape \(\), got None"):
        table.load_state_dict({"a": np.zeros((1, 2))})


def test_sequences_are_cut_within_trajectories_and_the_rest_of_one_is_shorter():
    cuts = SequenceCuts.of(np.array([5, 2, 4]), 2)
    assert cuts.starts.tolist() == [0, 2, 4, 5, 7, 9]
    assert cuts.sizes.tolist() == [2, 2, 1, 2, 2, 2]
    assert cuts.first.tolist() == [0, 3, 4]


def test_padding_repeats_the_last_row_at_the_end():
    rows, real = SequenceCuts.of(np.array([5, 2]), 4).padded(np.array([2, 1, 0]))
    assert rows.tolist() == [[5, 6, 6, 6], [4, 4, 4, 4], [0, 1, 2, 3]]
    assert real.tolist() == [0, 1, 4, 8, 9, 10, 11]


@given(lengths=st.lists(st.integers(1, 30), min_size=1, max_size=12), length=st.integers(1, 12))
def test_every_row_is_in_exactly_one_sequence_and_in_order(lengths, length):
    cuts = SequenceCuts.of(np.array(lengths, np.int32), length)
    rows, real = cuts.padded(np.arange(len(cuts)))
    assert rows.reshape(-1)[real].tolist() == list(range(sum(lengths)))
    assert cuts.sizes.max() <= length
    first_rows = np.cumsum(lengths) - lengths
    assert cuts.starts[cuts.first].tolist() == first_rows.tolist()


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
    buffer.append(batch, *Intake(SPEC, False, beyond_termination).encode(batch, 0))
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


def test_the_actors_memories_are_kept_before_sequences_only():
    buffer, batch = filled([3, 2, 1], memory_size=4)
    np.testing.assert_array_equal(buffer.sequences["memories"], batch.rows["memories"][[0, 2, 3, 5]])


def transitions(buffer):
    return BufferTransitions(SPEC, buffer, "cpu")


@pytest.mark.parametrize("beyond_termination", [False, True])
@pytest.mark.parametrize("rows", [[0, 1, 2, 3, 4, 5], [4, 1, 5, 0]])
def test_what_follows_a_row_is_the_next_row_or_the_final_observation(rows, beyond_termination):
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


def test_taking_transitions_changes_nothing_in_the_buffer():
    buffer, batch = filled([2, 3], terminated=[True, True])
    before = buffer.state_dict()
    taken = transitions(buffer).take(np.arange(5))
    taken.next_inputs.vectors[:] = 7
    for name, column in before["trajectories"].items():
        np.testing.assert_array_equal(buffer.trajectories[name], column)
