import numpy as np
import pytest
import torch
from replay_world import MEMORY_SIZE, SPEC, Every, Piece, World, add, new_memory

from headrace.queues.specs import ActionSpec
from headrace.stages.policy.design import MASK_PENALTY
from headrace.stages.policy.observations import EncodedObservations
from headrace.stages.trainer.intake import ObservationPreprocessor
from headrace.stages.trainer.replay.replay_memory import MinibatchMaker, ReplayedRows

LENGTH = 3


@pytest.fixture
def world():
    return World()


def made(memory, replayed, normalize=False):
    intake = ObservationPreprocessor(SPEC, normalize)
    if normalize:
        intake.normalizer.update(np.array([[3.0, 5.0], [9.0, -5.0]], np.float32))
    maker = MinibatchMaker(intake, SPEC.actions, "cpu")
    transitions = maker.transitions(replayed)
    return maker.minibatch(replayed, transitions), transitions, intake


def features(rows):
    """Actions as networks with memory take them in: the continuous one, and the choice of three as a one-hot."""
    return np.array([[action, *np.eye(3)[choice]] for action, choice in rows], np.float32)


def test_rows_without_memory_go_to_all_networks_alike(world):
    memory = new_memory(8)
    add(memory, world.batch([Piece(0, 3, "terminated"), Piece(1, 2)]))
    batch, transitions, _ = made(memory, memory.sample(5, Every()))
    assert batch.actor_inputs is batch.critic_inputs is transitions.inputs
    assert batch.mask is None
    order = transitions.inputs.vectors[:, 0].tolist()
    rows = {row.observation: row for row in world.rows}
    following = [rows[number].next_observation for number in order]
    assert batch.target_inputs.vectors[:, 0].tolist() == following
    assert batch.target_inputs.others[0].dtype == torch.uint8
    assert batch.choices[0].flatten().tolist() == [rows[number].choice for number in order]
    assert transitions.terminated.tolist() == [float(rows[number].terminated) for number in order]


def test_networks_get_normalized_vectors_and_reward_signals_do_not(world):
    memory = new_memory(8)
    add(memory, world.batch([Piece(0, 4)]))
    batch, transitions, intake = made(memory, memory.sample(4, Every()), normalize=True)
    raw = transitions.inputs.vectors.numpy()
    np.testing.assert_array_equal(raw[:, 0], [row.observation for row in world.rows])
    np.testing.assert_allclose(batch.actor_inputs.vectors, intake.normalizer.apply(raw))
    np.testing.assert_allclose(
        batch.target_inputs.vectors, intake.normalizer.apply(transitions.next_inputs.vectors.numpy())
    )


def test_sequences_start_from_recorded_memories_for_the_actor_and_from_zeros_for_critics(world):
    memory = new_memory(16, LENGTH)
    add(memory, world.batch([Piece(0, 3), Piece(0, 2)]))
    batch, _, _ = made(memory, memory.sample_sequences(len(memory), Every()))
    first, second = (rows[0] for rows, _ in world.pieces)
    expected = [[first.memory, -first.memory], [second.memory, -second.memory]]
    np.testing.assert_array_equal(batch.actor_inputs.memories, expected)
    np.testing.assert_array_equal(batch.critic_inputs.memories, np.zeros((2, MEMORY_SIZE)))
    np.testing.assert_array_equal(batch.target_inputs.memories, np.zeros((2, MEMORY_SIZE)))
    assert batch.actor_inputs.sequence_length == batch.critic_inputs.sequence_length == LENGTH
    assert batch.mask.tolist() == [1, 1, 1, 1, 1, 0]


def test_each_row_of_a_sequence_has_the_action_before_it(world):
    memory = new_memory(16, LENGTH)
    add(memory, world.batch([Piece(0, 3)]))
    add(memory, world.batch([Piece(0, 3)]))
    batch, _, _ = made(memory, memory.sample_sequences(len(memory), Every()))
    actions = [(0.0, 0), *((row.action, row.choice) for row in world.rows)]
    np.testing.assert_array_equal(batch.critic_inputs.previous_actions, features(actions[:6]))


def test_the_target_network_sees_each_sequence_and_what_came_after_it(world):
    memory = new_memory(16, LENGTH)
    add(memory, world.batch([Piece(0, 3), Piece(1, 2, "truncated")]))
    batch, _, _ = made(memory, memory.sample_sequences(len(memory), Every()))
    (long, _), (short, _) = world.pieces
    assert batch.target_inputs.sequence_length == LENGTH + 1
    seen = batch.target_inputs.vectors[:, 0].view(2, LENGTH + 1).tolist()
    assert seen[0] == [row.observation for row in long] + [long[-1].next_observation]
    assert seen[1][:3] == [row.observation for row in short] + [short[-1].next_observation]
    before = batch.target_inputs.previous_actions.view(2, LENGTH + 1, 4)
    np.testing.assert_array_equal(before[0], features([(0.0, 0), *((row.action, row.choice) for row in long)]))


def test_masks_become_penalties_and_counts_of_allowed_choices():
    actions = ActionSpec(0, (3, 2), masked=True)
    masks = np.array([[1, 0, 1, 0, 1], [1, 1, 1, 1, 1]], np.bool_)
    columns = {
        "rewards": np.zeros(2, np.float32),
        "terminated": np.zeros(2, np.bool_),
        "discrete_actions": np.array([[2, 1], [0, 0]], np.int32),
        "action_masks": masks,
    }
    observations = EncodedObservations(np.zeros((2, 2), np.float32))
    maker = MinibatchMaker(ObservationPreprocessor(SPEC, normalize=False), actions, "cpu")
    replayed = ReplayedRows(observations, observations, columns)
    batch = maker.minibatch(replayed, maker.transitions(replayed))
    np.testing.assert_array_equal(batch.penalties, np.where(masks, 0.0, MASK_PENALTY))
    assert batch.allowed.tolist() == [[2.0, 1.0], [3.0, 2.0]]
    assert [choice.flatten().tolist() for choice in batch.choices] == [[2, 0], [4, 3]]  # among all choices
    assert transitions_choices(maker, replayed) == [[2, 1], [0, 0]]  # within each branch


def transitions_choices(maker, replayed):
    return maker.transitions(replayed).choices.tolist()
