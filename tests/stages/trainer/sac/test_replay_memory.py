import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples
from replay_world import Every, Piece, World, add, as_read, new_memory, rows_of

from headrace.queues.messages import TrajectoryBatch
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.errors import StageError
from headrace.stages.policy.observations import ObservationLayout
from headrace.stages.trainer.replay.replay_memory import ReplayMemory

PIECES = st.builds(
    Piece,
    agent=st.integers(0, 2),
    length=st.integers(1, 7),
    ending=st.sampled_from(["cut", "cut", "terminated", "truncated"]),
    lost=st.sampled_from([False, False, False, True]),
)


@pytest.mark.lengthy
@examples(30)
@given(st.integers(28, 40), st.lists(st.lists(PIECES, min_size=1, max_size=4), max_size=16))
def test_a_memory_holds_the_newest_rows_and_each_observation_once(capacity, batches):
    memory, world = new_memory(capacity), World()
    for pieces in batches:
        batch = world.batch(pieces)
        if batch is not None:
            add(memory, batch)
        live = world.rows[-capacity:]
        assert len(memory) == len(live)
        if live:
            assert sorted(rows_of(memory.sample(len(live), Every()))) == sorted(as_read(row) for row in live)
        distinct = {row.observation for row in live} | {row.next_observation for row in live}
        assert len(memory.observations) == len(distinct)
        assert memory.observations.touched <= 2 * capacity


@pytest.mark.lengthy
@examples(30)
@given(st.integers(28, 40), st.lists(st.lists(PIECES, min_size=1, max_size=4), max_size=16))
def test_sequences_begin_at_multiples_of_their_length_and_end_with_their_piece(capacity, batches):
    length = 3
    memory, world = new_memory(capacity, length), World()
    for batch in filter(None, map(world.batch, batches)):
        add(memory, batch)
    expected, first_live = [], len(world.rows) - capacity
    position = 0
    for rows, previous in world.pieces:
        for at in range(0, len(rows), length):
            if position + at >= first_live:
                before = (rows[at - 1].action, rows[at - 1].choice) if at else previous
                expected.append((rows[at : at + length], before))
        position += len(rows)
    assert memory.num_sequences == len(expected)
    if not expected:
        return
    replayed = memory.sample_sequences(len(memory), Every())
    found, sequences = rows_of(replayed), replayed.sequences
    length = max(len(rows) for rows, _ in expected)
    assert sequences.length == length, "padded to the longest"
    got = []
    for index in range(len(expected)):
        rows = found[index * length : (index + 1) * length]
        mask = sequences.mask[index * length : (index + 1) * length]
        real = int(mask.sum())
        assert mask.tolist() == [True] * real + [False] * (length - real)
        assert rows[real:] == [rows[real - 1]] * (length - real)
        previous = sequences.previous
        before = (previous["previous_continuous_actions"][index, 0], previous["previous_discrete_actions"][index, 0])
        got.append((rows[:real], before, sequences.memories[index].tolist()))
    wanted = [([as_read(row) for row in rows], before, [rows[0].memory, -rows[0].memory]) for rows, before in expected]
    assert sorted(got) == sorted(wanted)


def test_padding_does_not_count_as_rows_so_more_short_sequences_are_drawn():
    memory, world = new_memory(64, 16), World()
    for _ in range(8):
        add(memory, world.batch([Piece(0, 2), Piece(0, 4)]))
    drawn = memory.sample_sequences(48, np.random.default_rng(0)).sequences
    assert drawn.length == 4
    assert len(drawn.mask) == 16 * 4, "16 sequences of 3 rows on average"
    assert 40 <= drawn.mask.sum() <= 56


IMAGES = BehaviorSpec("Test", (ObservationSpec("frames", (84, 84, 4), "uint8"),), ActionSpec(0, (4,)))


def frames(first, count):
    return np.repeat(np.arange(first, first + count, dtype=np.uint8), 84 * 84 * 4).reshape(count, 84, 84, 4)


@pytest.mark.parametrize("piece", [1, 5])
def test_a_memory_of_images_keeps_each_frame_once_however_short_the_pieces_are(piece):
    layout = ObservationLayout(IMAGES)
    memory = ReplayMemory(IMAGES, layout, 10**6)
    for first in range(0, 100, piece):
        batch = TrajectoryBatch(
            "Test",
            0,
            {
                "obs_0": frames(first, piece),
                "discrete_actions": np.zeros((piece, 1), np.int32),
                "rewards": np.zeros(piece, np.float32),
            },
            {
                "lengths": np.array([piece], np.int32),
                "agent_ids": np.array([1]),
                "episode_ids": np.array([1]),
                "terminated": np.array([False]),
                "truncated": np.array([False]),
                "next_obs_0": frames(first + piece, 1),
            },
        )
        rows, finals = layout.encode_columns(batch.rows), layout.encode_columns(batch.trajectories, "next_obs_")
        memory.add(batch, rows, finals)
    assert len(memory) == 100
    assert len(memory.observations) == memory.observations.touched == 101
    images = memory.observations.columns[1]
    assert images.rows.dtype == np.uint8
    assert images.rows[0].nbytes == 84 * 84 * 4
    replayed = memory.sample(100, Every())
    np.testing.assert_array_equal(replayed.observations.others[0][:, 0, 0, 0], np.arange(100))
    np.testing.assert_array_equal(replayed.next_observations.others[0][:, 0, 0, 0], np.arange(1, 101))


def test_the_final_observation_of_an_episode_is_kept():
    memory, world = new_memory(8), World()
    add(memory, world.batch([Piece(0, 2, "truncated"), Piece(0, 2, "terminated")]))
    (_, cut), (_, over) = (pair for pair in zip(world.pieces, world.pieces, strict=True))
    last_of_first, last_of_second = cut[0][-1], over[0][-1]
    found = {row[0]: row for row in rows_of(memory.sample(4, Every()))}
    assert found[last_of_first.observation][1] == last_of_first.next_observation
    assert found[last_of_second.observation][5]
    assert len(memory.observations) == 6


def test_samples_are_drawn_from_all_rows_with_replacement():
    memory, world = new_memory(8), World()
    for _ in range(5):
        add(memory, world.batch([Piece(0, 4)]))
    random = np.random.default_rng(0)
    drawn = np.array([row[0] for row in rows_of(memory.sample(4000, random))])
    values, counts = np.unique(drawn, return_counts=True)
    assert values.tolist() == [row.observation for row in world.rows[-8:]]
    assert counts.min() > 400  # 500 expected of each


def test_a_batch_larger_than_the_memory_is_refused():
    with pytest.raises(StageError, match="a batch of 9 steps does not fit into a replay buffer of 8 steps: raise"):
        add(new_memory(8), World().batch([Piece(0, 4), Piece(1, 5)]))
